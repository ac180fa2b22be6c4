"""The implementation of `op/`, on the framework."""
