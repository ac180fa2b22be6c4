"""Is the cluster fit for this work: the ladder of the doctor, the functional checks, the faults."""
