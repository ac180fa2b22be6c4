"""The progress of a measurement for a Python callback."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stackmark.events import Event, Phase, Probe
from stackmark.experiments.recorder import Silent, Watcher
from stackmark.figures import say_figure
from stackmark.ledger.rows import RunRow
from stackmark.spec import Request, Spec


@dataclass(frozen=True)
class Progress:
    """Something that happened while a measurement runs, for a progress callback.

    `number` counts runs from 1; `of` is how many are planned. `rate_per_s` is known when a run `ended` with a number.
    """

    kind: Literal["notice", "probe", "run", "phase", "ended"]
    message: str
    run_id: str = ""
    number: int = 0
    of: int = 0
    arm: str = ""
    block: int | None = None
    rate_per_s: float | None = None


ProgressLike = Callable[[Progress], None] | Watcher | None


class Callbacks(Silent):
    """Tells a Python callback what happens."""

    def __init__(self, tell: Callable[[Progress], None]) -> None:
        self._tell = tell
        self._run = Progress("run", "")

    def notice(self, sentence: str) -> None:
        self._tell(Progress("notice", sentence))

    def probing(self, request: Request) -> None:
        self._run = Progress("run", "")
        self._tell(Progress("probe", f"{request.workload}: choosing what was not given"))

    def probed(self, probe: Probe) -> None:
        chosen = ", ".join(f"{name} {value}" for name, value in probe.spec.params.items() if name in probe.choices)
        self._tell(Progress("probe", f"{probe.spec.workload}: {chosen or 'nothing was left to choose'}"))

    def run_begins(
        self, run_id: str, number: int, of: int, spec: Spec, *, label: str = "", block: int | None = None
    ) -> None:
        where = f" ({label})" if label else ""
        self._run = Progress("run", f"run {number} of {of} begins{where}", run_id, number, of, label, block)
        self._tell(self._run)

    def event(self, event: Event) -> None:
        if isinstance(event, Phase) and event.state == "begin" and self._run.run_id:
            run = self._run
            self._tell(Progress("phase", event.phase, run.run_id, run.number, run.of, run.arm, run.block))

    def run_ended(self, row: RunRow, number: int, of: int) -> None:
        said = row.failure_message or (say_figure(row.rate_per_s, row.rate_unit) if row.rate_per_s else "")
        run = self._run
        self._tell(Progress("ended", f"{row.status}: {said}", row.id, number, of, run.arm, run.block, row.rate_per_s))


def watcher_of(progress: ProgressLike) -> Watcher:
    if progress is None:
        return Silent()
    if callable(progress):
        return Callbacks(progress)
    return progress
