"""A client for running servers, on the standard library: it runs wherever a worker does, and is measured itself."""
