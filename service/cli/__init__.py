"""One file a command. Knows terminals and HTTP; nothing else of the service imports it."""
