"""Read a container's log to its end, whatever happens on the way."""
