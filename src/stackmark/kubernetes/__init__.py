"""Kubernetes: the client, manifests, pods and logs."""
