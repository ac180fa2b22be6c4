"""Diagnose whether a cluster is fit for GPU work: pure judgements of what was seen, each with what to do about it."""
