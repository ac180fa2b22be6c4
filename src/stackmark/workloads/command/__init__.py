"""The workload family `command/`: a user's own program, run from start to end."""
