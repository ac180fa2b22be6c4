"""Manifests: the objects created in a cluster, as plain data."""
