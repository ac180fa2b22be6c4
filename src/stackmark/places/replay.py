"""Play back a recorded stream like a live one: for tests, and for examining a run again."""

from collections.abc import Sequence

from pydantic import JsonValue

from stackmark.failures import PlaceFailure
from stackmark.places.place import Facts, Outcome, Watch
from stackmark.spec import Spec, Task


class ReplayPlace:
    """Passes on the lines of the given runs, one run after another; the last one again when there are no more."""

    name = "replay"

    def __init__(self, *streams: Sequence[str], exit_code: int = 0, failure: PlaceFailure | None = None) -> None:
        self._streams = list(streams)
        self._exit_code = exit_code
        self._failure = failure

    def options(self) -> dict[str, JsonValue]:
        return {}

    def not_enforced(self, spec: Spec, facts: Facts) -> list[str]:
        return []

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        lines = self._streams.pop(0) if len(self._streams) > 1 else self._streams[0]
        watch.started({})
        for line in lines:
            watch.line(line)
        return Outcome(self._exit_code, self._failure, live=False)
