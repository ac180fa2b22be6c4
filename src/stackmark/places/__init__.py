"""Places: where a worker runs. A place only launches the worker and passes on its output."""
