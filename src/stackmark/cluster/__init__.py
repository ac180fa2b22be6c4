"""Is the cluster fit for this work: the doctor's diagnostics, the functional tests, the faults."""
