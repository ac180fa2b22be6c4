"""Was a worker's last word received? A log that the API server calls whole may lack its end.

The container runtime writes the log. What a container prints while containerd is down waits in a pipe, and is lost if the
container ends before containerd is back: the pod's status then says that it ended with code 0, and nothing says that lines are
missing. A worker that ends with code 0 has always closed its stream, so a stream without its closing event is the sign.
"""

from collections.abc import Iterable

from stackmark.events import EVENT_PREFIX
from stackmark.failures import LOG_INCOMPLETE, PlaceFailure
from stackmark.spec import Task

_RESULT, _FAILED, _FACTS = (f'{EVENT_PREFIX}"{name}"' for name in ("result", "failed", "facts"))
# A probe ends with its facts, the last of which are about these; older workers have no facts about stackmark.
_LAST_SUBJECTS = ('"subject":"environment"', '"subject":"stackmark"')


class Closing:
    """Looks in a worker's lines for the events that close its stream."""

    def __init__(self, task: Task | None) -> None:
        asked = (task.spec or task.request) if task else None
        self._measures = task is not None and task.do == "run"
        # Each rank of a run gives its own result.
        self._missing = asked.ranks if asked and self._measures else 1

    @classmethod
    def of(cls, task: Task | None, lines: Iterable[str]) -> "Closing":
        made = cls(task)
        for text in lines:
            made.line(text)
        return made

    def line(self, text: str) -> None:
        if text.startswith(_FAILED):
            self._missing = 0
        elif text.startswith(_RESULT if self._measures else _FACTS):
            self._missing -= self._measures or any(subject in text for subject in _LAST_SUBJECTS)

    @property
    def seen(self) -> bool:
        return self._missing <= 0

    def failure(self, exit_code: int | None, node: str | None, runtime: str | None) -> PlaceFailure | None:
        """The failure of a worker that ended well and whose last word is missing; None where there is none."""
        if exit_code != 0 or self.seen:
            return None
        where = f"the node {node} (container runtime {runtime or 'not known'})" if node else "its node"
        return PlaceFailure(
            LOG_INCOMPLETE,
            f"the pod ended with code 0, but the log that {where} kept of it has no closing event: its last lines are missing",
            "run it again; a container runtime that is down or restarted when a container ends loses what it printed last "
            "(see the runtime's own log on the node). If it happens every time, is stackmark's worker what runs in the image?",
        )
