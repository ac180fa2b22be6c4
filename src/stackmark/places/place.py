"""What a place is: one method that matters.

A place starts a worker with a task, hands on each line as it comes, and says at the end what the worker could not say
itself: that it was killed, by whom, or that its time was up. Lines are handed on as text: reading them is the lab's
business, so that a recorded stream can be played back through the same door.
"""

from dataclasses import dataclass, field
from typing import Protocol

from pydantic import JsonValue

from stackmark.spec import Task

# What is kept of a worker's standard error: enough for a traceback of a compiler, not for a day of warnings.
STDERR_LINES_KEPT = 400

Handle = dict[str, JsonValue]


@dataclass(frozen=True)
class PlaceFailure:
    """What the place saw and the worker could not say."""

    kind: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class Outcome:
    exit_code: int | None
    failure: PlaceFailure | None = None
    stderr: tuple[str, ...] = ()
    # Ctrl-C or SIGTERM in the driver: raised again by the lab once the run is stored.
    interruption: BaseException | None = field(default=None, compare=False)


class Watch(Protocol):
    """Who listens while a worker runs."""

    def started(self, handle: Handle) -> None: ...
    def line(self, text: str) -> None: ...
    def stderr(self, text: str) -> None: ...


class Place(Protocol):
    name: str

    def options(self) -> dict[str, JsonValue]:
        """The place's options, as they are stored with a run."""

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        """Runs one worker to its end. `mark` is the run's id: whatever the place leaves behind carries it."""
