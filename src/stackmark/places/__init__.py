"""Where a worker runs. A place only launches the worker and hands on what it says."""
