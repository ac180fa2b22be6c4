"""The workload family `op/`: single operators by lists of problems, links between devices, and a machine's ceilings."""
