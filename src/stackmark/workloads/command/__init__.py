"""The workload family `command/`: a user's own program, run whole."""
