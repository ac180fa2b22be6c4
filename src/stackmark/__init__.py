"""stackmark: one workload, one worker, every layer of the machine-learning stack.

The names below come from `stackmark.api`, which is loaded when the first of them is used: `import stackmark`, the worker and
`stackmark --help` load nothing of it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stackmark.api import (
        Experiment,
        Ledger,
        Measurement,
        Progress,
        Run,
        Verdict,
        compare,
        load,
        load_run,
        run,
    )
    from stackmark.errors import ClusterError, LedgerError, PlaceError, SpecError, StackmarkError, WorkerError

__version__ = "0.1.0"
__all__ = [
    "ClusterError",
    "Experiment",
    "Ledger",
    "LedgerError",
    "Measurement",
    "PlaceError",
    "Progress",
    "Run",
    "SpecError",
    "StackmarkError",
    "Verdict",
    "WorkerError",
    "__version__",
    "compare",
    "load",
    "load_run",
    "run",
]


if not TYPE_CHECKING:  # else a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'stackmark' has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(f"stackmark.{'errors' if name.endswith('Error') else 'api'}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
