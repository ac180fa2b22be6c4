"""Implementations of the tasks of `serve/`; a worker alone imports them."""
