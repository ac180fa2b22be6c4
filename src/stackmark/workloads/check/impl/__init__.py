"""The implementation of `check/`, on the framework."""
