"""Other programs, and parts of ours, as processes that take a file's name a line and answer with its text.

Each keeps its model loaded between lines, so that loading is part of no figure. The clock runs inside the process:
it counts opening the file, decoding it, and all that follows up to the text.
"""
