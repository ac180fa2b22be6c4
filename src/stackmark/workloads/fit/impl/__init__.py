"""Implementations of the tasks of `fit/`; a worker alone imports them."""
