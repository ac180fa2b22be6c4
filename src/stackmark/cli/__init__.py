"""The command line: one thin file a verb, over a library that is usable without it."""
