"""The implementation of `command/`: start a program and read its figure."""
