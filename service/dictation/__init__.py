"""Live dictation: sessions that take audio while it is spoken, keep it on disk and turn it into text at once."""
