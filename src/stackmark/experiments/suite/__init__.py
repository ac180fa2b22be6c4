"""Suites: a matrix of workloads, places and parameters, measured as one design."""
