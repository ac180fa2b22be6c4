"""Measure the stored runs of an experiment over one common window (verdict/window.py).

The rates in the ledger are each run's own and stay as they are. A comparison takes the rates over the common window, computed
from the stored steps. A run without steps (a program's own figure, a log) has one rate, and keeps it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from stackmark.events import Metric, Stream, gathered_facts
from stackmark.experiments.judging import read_stored, timed_run
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.verdict.examined import ExaminedRun
from stackmark.verdict.interference import Load
from stackmark.verdict.window import TimedRun, Window, common_window, first_step_in, rate_in

Row = TypeVar("Row", bound=RunRow)


class StepTimes:
    """The step times of stored runs, and what each met, read once: a look at 40 runs after every second block would read them
    again."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, TimedRun | None] = {}
        self._loads: dict[str, Load] = {}

    def remember(self, row: RunRow, stream: Stream) -> TimedRun | None:
        """Keep what is needed of a stream that was read anyway, and return its steps."""
        # A run whose numbers cannot be was failed for that: they are not judged again.
        self._known[row.id] = timed_run(stream) if row.rate_per_s else None
        self._loads[row.id] = _load(row, stream)
        return self._known[row.id]

    def of(self, row: RunRow) -> TimedRun | None:
        self._read(row)
        return self._known[row.id]

    def load(self, row: RunRow) -> Load:
        """Return what a run met of other programs."""
        self._read(row)
        return self._loads[row.id]

    def _read(self, row: RunRow) -> None:
        if row.id not in self._known:
            self.remember(row, read_stored(self._ledger.stream(row.id)).stream)


def _load(row: RunRow, stream: Stream) -> Load:
    said = {event.name: event.value for event in stream.events if isinstance(event, Metric) and event.rank == 0}
    threads = gathered_facts(stream.events).get("cpu", {}).get("threads")
    return Load(
        arm=row.arm,
        block=row.block or 0,
        attempt=row.attempt,
        other_cpus=said.get("other_cpus"),
        other_gpu_processes=said.get("other_gpu_processes"),
        seconds=said.get("counters_elapsed_s"),
        cores=threads if isinstance(threads, int) and threads > 0 else 1,
    )


def window_of(rows: Sequence[RunRow], times: StepTimes) -> Window | None:
    """The common window; None unless every run has steps: a window for one arm alone would compare two things.

    None also where all runs are too short to tell: each is measured over its own second half then, by one rule for all.
    """
    timed = [times.of(row) for row in rows]
    found = [run for run in timed if run is not None]
    if len(found) < len(timed) or all(run.kind == "too short to tell" for run in found):
        return None
    return common_window(found)


def rates_in(window: Window | None, rows: Sequence[RunRow], times: StepTimes) -> dict[str, float]:
    """By the run's id, the rate over the window of each run that has steps."""
    if window is None:
        return {}
    return {row.id: rate_in(window, timed) for row in rows if (timed := times.of(row)) is not None}


def with_rates(rows: Sequence[Row], rates: Mapping[str, float]) -> list[Row]:
    """The rows with other rates, where there is one."""
    return [row.model_copy(update={"rate_per_s": rates[row.id]}) if row.id in rates else row for row in rows]


def runs_in(
    window: Window | None, runs: Sequence[ExaminedRun], rows: Sequence[RunRow], times: StepTimes
) -> list[ExaminedRun]:
    """The measured runs over the window; without one, and the primers, as they are."""
    found = []
    for run, row in zip(runs, rows, strict=True):
        timed = times.of(row) if window and run.role == "measured" else None
        if window is None or timed is None:
            found.append(run)
        else:
            found.append(
                replace(
                    run,
                    rate_per_s=rate_in(window, timed),
                    first_step=first_step_in(window, timed),
                    late=timed.late,
                )
            )
    return found
