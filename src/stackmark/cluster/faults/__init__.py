"""Faults on purpose: a part of the cluster is stopped while a workload trains, and heals by itself."""
