"""The workload family `check/`: verifies that a device computes, and computes correctly."""
