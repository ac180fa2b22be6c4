"""Errors: one tree of exceptions, one table of exit codes.

    StackmarkError
    ├── SpecError       what was asked for cannot be: a name, a type, a range                    exit 2
    ├── WorkerError     the run failed: it ran out of memory, its loss was not finite …          exit 3
    │   └── StreamError     the worker's stream of events cannot be read                         exit 3
    ├── PlaceError      the place failed: no worker was started there, or it was lost            exit 4
    ├── LedgerError     the ledger cannot be opened, read or written                             exit 5
    └── ClusterError    the cluster, or a check of it, failed                                    exit 6

Users see `message` and `hint` as sentences; `command`, where something was run, lets them try it by hand. The codes are
part of the command line's contract (docs/exit-codes.md): scripts depend on them, so they never change their meaning.
"""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of the command line."""

    DONE = 0
    WRONG_USE = 2
    RUN_FAILED = 3
    PLACE_FAILED = 4
    LEDGER_FAILED = 5
    CLUSTER_FAILED = 6
    PART_FAILED = 7
    VERDICT_NAMED = 8
    HANGUP = 129
    INTERRUPTED = 130
    TERMINATED = 143


class StackmarkError(Exception):
    """An error that can be told to a person in a sentence."""

    exit_code: Exit = Exit.RUN_FAILED

    def __init__(self, message: str, *, hint: str | None = None, command: str | None = None, kind: str = "") -> None:
        super().__init__(message)
        # For programs: which of the errors of its class it is, where they have kinds. It never changes its meaning.
        self.kind = kind
        # The arm that it is about, by its label, where several were asked for.
        self.arm = ""
        self.message = message
        self.hint = hint
        self.command = command


# The hint of an error about an option. The layers below the command line do not know which command was typed, so it puts that
# command's own help in its place.
SEE_HELP = "see: stackmark --help"


class SpecError(StackmarkError):
    exit_code = Exit.WRONG_USE


class WorkerError(StackmarkError):
    exit_code = Exit.RUN_FAILED


class StreamError(WorkerError):
    """A line that started as an event and could not be read; `line` counts from 1."""

    def __init__(self, message: str, *, line: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.line = line


class PlaceError(StackmarkError):
    exit_code = Exit.PLACE_FAILED


class LedgerError(StackmarkError):
    exit_code = Exit.LEDGER_FAILED


class ClusterError(StackmarkError):
    exit_code = Exit.CLUSTER_FAILED


class Terminated(BaseException):
    """SIGTERM reached the driver. Like KeyboardInterrupt it is not an Exception: only the borders catch it."""


class HungUp(Terminated):
    """SIGHUP reached the driver: its terminal was closed. It ends as SIGTERM does, with its own exit code."""


def how_ended(interruption: BaseException) -> tuple[str, str]:
    """Return the kind of failure that ended a run from the driver's side, and a sentence."""
    if isinstance(interruption, HungUp):
        return "terminated", "the run was terminated: its terminal was closed"
    kind = "interrupted" if isinstance(interruption, KeyboardInterrupt) else "terminated"
    return kind, f"the run was {kind}"


def nearest_names(wrong: str, known: list[str]) -> str:
    """Return '; did you mean …?' for an unknown name, or an empty text where no known name is similar."""
    from difflib import get_close_matches  # only when somebody mistyped

    close = get_close_matches(wrong, known, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""
