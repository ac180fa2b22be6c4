"""A worker in a pod: the client, the manifest, the log, the place."""
