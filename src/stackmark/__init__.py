"""stackmark: one workload, one worker, every layer of the machine-learning stack.

The names below come from the chapters of `stackmark.api`. A chapter is loaded when the first of its names is used:
`import stackmark`, the worker and `stackmark --help` load nothing of them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stackmark.api.ledgers import Ledger
    from stackmark.api.measuring import Progress, compare, run
    from stackmark.api.stored import Experiment, Measurement, Run, Verdict, load, load_run
    from stackmark.errors import ClusterError, LedgerError, PlaceError, SpecError, StackmarkError, WorkerError

__version__ = "0.1.0"
# Where each name is; the imports above say the same to type checkers.
_CHAPTERS = {
    "api.ledgers": ("Ledger",),
    "api.measuring": ("Progress", "compare", "run"),
    "api.stored": ("Experiment", "Measurement", "Run", "Verdict", "load", "load_run"),
    "errors": ("ClusterError", "LedgerError", "PlaceError", "SpecError", "StackmarkError", "WorkerError"),
}
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
        chapter = next((chapter for chapter, names in _CHAPTERS.items() if name in names), None)
        if chapter is None:
            raise AttributeError(f"module 'stackmark' has no attribute {name!r}")
        from importlib import import_module

        found = getattr(import_module(f"stackmark.{chapter}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
