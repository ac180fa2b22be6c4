"""What a machine says of itself: its identity, its chips, /proc and control groups, for the worker and for the driver."""
