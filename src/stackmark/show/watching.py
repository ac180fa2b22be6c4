"""A running experiment in another terminal: what its own terminal shows, from what its driver stores."""

from typing import Any

from rich.console import Console
from rich.text import Text

from stackmark.experiments.design import stored_design
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.watched import ExperimentProgress
from stackmark.ledger.rows import RunRow
from stackmark.schemas import with_schema
from stackmark.show.live import LiveBar, PlainLines
from stackmark.show.safe import safe_line
from stackmark.spec import Spec
from stackmark.units import counted

ENDED = {
    "done": "is finished",
    "open": "was interrupted; go on with: stackmark resume {id}",
    "short": "ended: too many of its runs failed",
    "failed": "ended: no run gave a number",
    "empty": "ended before its first run",
    "lost": "was left by its driver, which was killed; go on with: stackmark resume {id}",
}
# Runs that had ended before somebody looked: the last few, as a terminal would still show them.
SHOWN_BEFORE = 10


class Follower:
    """Feeds a display with what changed since it was last told."""

    def __init__(self, display: Watcher) -> None:
        self._display = display
        self._run_id = ""
        self._ended: set[str] | None = None

    def take(self, found: ExperimentProgress) -> None:
        if self._ended is None:
            self._begin(found)
        self._say_ended(found)
        now = found.current
        if now is None or not found.is_at_work:
            return
        if now.run_id != self._run_id:
            self._run_id = now.run_id
            spec = Spec(workload=now.workload, params={})
            self._display.run_begins(now.run_id, now.number, now.of, spec, label=now.label, block=now.block)
        if isinstance(self._display, LiveBar | PlainLines):
            self._display.follow(now, found.left_s, found.share)

    def _begin(self, found: ExperimentProgress) -> None:
        design = stored_design(found.experiment)
        if design:
            self._display.experiment_begins([arm.label for arm in design.arms], design.blocks)
        before = [row.id for row in found.runs if row.status != "running"]
        self._ended = set(before[:-SHOWN_BEFORE])
        if self._ended:
            self._display.notice(
                f"{counted(len(self._ended), 'run')} ended before: stackmark show {found.experiment.id}"
            )

    def _say_ended(self, found: ExperimentProgress) -> None:
        assert self._ended is not None
        design = stored_design(found.experiment)
        labels = [arm.label for arm in design.arms] if design else []
        of = found.planned or len(found.runs)
        for row in found.runs:
            if row.status == "running" or row.id in self._ended:
                continue
            self._ended.add(row.id)
            label = labels[row.arm] if len(labels) > 1 and row.arm < len(labels) else ""
            if isinstance(self._display, LiveBar | PlainLines):
                self._display.run_was(row, row.position + 1, max(of, row.position + 1), label)


def say_end(found: ExperimentProgress) -> str:
    """Say in a line how an experiment ended."""
    what = ENDED.get(found.state, found.state).format(id=found.experiment.id)
    words = f": {', '.join(dict.fromkeys(found.verdicts))}" if found.state == "done" and found.verdicts else ""
    return f"{found.experiment.id} {what}{words}"


def print_end(found: ExperimentProgress, console: Console) -> None:
    good = found.state == "done" and not found.exit_code
    console.print(Text(safe_line(say_end(found)), style="" if good else "yellow"), soft_wrap=True)


def progress_json(found: ExperimentProgress) -> dict[str, Any]:
    """Return the progress of an experiment for programs."""
    now = found.current
    told = {
        "experiment": found.experiment.id,
        "kind": found.experiment.kind,
        "command": found.experiment.command,
        "state": found.state,
        "at_work": found.is_at_work,
        "driver": {"host": found.driver_host, "pid": found.driver_pid} if found.driver_pid is not None else None,
        "planned": found.planned,
        "share": None if found.share is None else round(found.share, 4),
        "left_s": None if found.left_s is None else round(found.left_s, 1),
        "current": now.model_dump(mode="json") if now else None,
        "told_unix_s": found.told_unix_s or None,
        "age_s": None if found.age_s is None else round(found.age_s, 3),
        "runs": [_run_json(row) for row in found.runs],
        "verdicts": list(found.verdicts),
        "exit_code": None if found.is_at_work else int(found.exit_code),
    }
    return with_schema("progress", told)


def _run_json(row: RunRow) -> dict[str, Any]:
    shown = row.model_dump(mode="json")
    kept = (
        "id", "workload", "place", "arm", "block", "attempt", "role", "status", "started_unix_s", "ended_unix_s",
        "rate_per_s", "rate_unit", "figure", "figure_unit", "failure_kind", "failure_message",
    )  # fmt: skip
    return {name: shown[name] for name in kept if name in shown}
