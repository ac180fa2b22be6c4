"""Inject faults: stop a part of the cluster while a workload trains; it heals by itself."""
