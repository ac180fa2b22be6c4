"""A container's log, read to its end whatever happens on the way."""
