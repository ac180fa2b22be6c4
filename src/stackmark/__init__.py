"""stackmark: one workload, one worker, every layer of the machine-learning stack.

This file imports nothing heavy on purpose: `import stackmark` and `stackmark --help` answer at once.
"""

__version__ = "0.1.0"
