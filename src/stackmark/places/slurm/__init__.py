"""Run a worker under Slurm: one job, one agent on each node."""
