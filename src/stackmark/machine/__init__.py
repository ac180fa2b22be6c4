"""Facts of a machine: its identity, its chips, /proc and control groups, for the worker and for the driver."""
