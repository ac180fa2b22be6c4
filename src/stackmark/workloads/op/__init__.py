"""The workload family `op/`: single operators by lists of problems, links between devices, and a machine's ceilings.

`params`, `problem` and `lists` import no framework: the command line reads them.
"""
