"""Examine whether a cluster is fit for GPU work: the doctor's diagnostics, the functional tests, the faults."""
