"""Tell from the ledger alone how far an experiment is: for other processes than its driver.

The driver's claim says whether anybody works on it; where its process can be seen from here and is gone, the driver was killed.
Its row of progress (publishing.py) has the run at hand, and the rows of runs have those before.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from stackmark.errors import Exit
from stackmark.experiments.driver import machine_name, may_live, sees
from stackmark.experiments.fitting import is_censored
from stackmark.experiments.kinds import SUITE, ExperimentKind, kind_of
from stackmark.experiments.overview import State as StoredState
from stackmark.experiments.overview import overview
from stackmark.ledger import progress
from stackmark.ledger.progress import Holder, RunProgress
from stackmark.ledger.rows import Experiment, ExperimentRow, RunFilter, RunRow
from stackmark.ledger.store import Ledger

# `starting`: stored a moment ago, before its driver claimed it. `lost`: its driver was killed.
State = Literal["starting", "lost"] | StoredState
AT_WORK: tuple[State, ...] = ("starting", "running")
# Between the row of an experiment and its claim lies a check of the machine, not a measurement.
STARTING_S = 15.0
# Of a sweep the newest runs.
MOST_RUNS = 2000


@dataclass(frozen=True)
class ExperimentProgress:
    """How far an experiment is, at one moment. `current` is the run at hand, as its driver last told."""

    experiment: Experiment
    kind: ExperimentKind
    state: State
    # In the order in which they began, with the one that runs; of a suite those of all its rows.
    runs: tuple[RunRow, ...]
    current: RunProgress | None = None
    # When the driver told of it, by the ledger's clock, and how many seconds ago that was.
    told_unix_s: float = 0.0
    age_s: float | None = None
    driver_host: str = ""
    driver_pid: int | None = None
    # What a finished comparison shows, a word for each pair of arms.
    verdicts: tuple[str, ...] = ()

    @property
    def is_at_work(self) -> bool:
        return self.state in AT_WORK

    @property
    def planned(self) -> int | None:
        """Return how many runs are planned; None between the runs of a suite, and before the first."""
        return self.current.of if self.current else None

    @property
    def left_s(self) -> float | None:
        """Return about how many seconds all runs still take; None where nothing tells."""
        now = self.current
        if now is None or not self.is_at_work:
            return None
        took = [row.ended_unix_s - row.started_unix_s for row in self._measured() if row.ended_unix_s is not None]
        this_s = None if now.left_s is None else max(0.0, now.left_s - (self.age_s or 0.0))
        after = now.of - now.number
        if this_s is None and not took:
            return None
        if this_s is None:
            this_s = 0.0 if self._is_over(now) else max(0.0, fmean(took) - self._elapsed_s(now))
        each_s = fmean(took) if took else self._elapsed_s(now) + this_s
        return this_s + after * each_s

    @property
    def share(self) -> float | None:
        """Return how much of the whole is done, by time; None where nothing tells how far the first run is."""
        now, left_s = self.current, self.left_s
        if now is None or left_s is None or not self.runs:
            return None
        spent_s = max(0.0, now.began_unix_s + self._elapsed_s(now) - min(row.started_unix_s for row in self.runs))
        return min(spent_s / (spent_s + left_s), 0.99) if spent_s + left_s else None

    @property
    def exit_code(self) -> Exit:
        """Return what `stackmark watch` ends with: how the experiment ended."""
        last = self.runs[-1] if self.runs else None
        if self.is_at_work:
            return Exit.DONE
        if self.state == "lost":
            return Exit.PLACE_FAILED
        if self.state == "open":
            ended = {"interrupted": Exit.INTERRUPTED, "terminated": Exit.TERMINATED}
            return ended.get((last.failure_kind if last else None) or "", Exit.PART_FAILED)
        if self.state != "done":
            return Exit.RUN_FAILED
        bad = any(row.status != "done" and not is_censored(row) for row in self._measured())
        if not bad or self.kind.has_blocks:
            return Exit.DONE  # a block in which a run failed was measured again
        return Exit.PART_FAILED if self.kind is SUITE else Exit.RUN_FAILED

    def _measured(self) -> Sequence[RunRow]:
        return [row for row in self.runs if row.role == "measured" and row.status != "running"]

    def _is_over(self, now: RunProgress) -> bool:
        return any(row.id == now.run_id and row.status != "running" for row in self.runs)

    def _elapsed_s(self, now: RunProgress) -> float:
        return max(0.0, self.told_unix_s - now.began_unix_s + (self.age_s or 0.0))


def progress_of(ledger: Ledger, experiment_id: str) -> ExperimentProgress:
    """Return how far an experiment is: an id, any unique beginning of one, or `last`."""
    experiment = ledger.experiment(experiment_id)
    kind, ids = kind_of(experiment), [experiment.id]
    if kind is SUITE:
        ids += [one.id for one in ledger.experiments_of(experiment.id)]
    told = progress.read(ledger, ids)
    holder, now_unix_s = progress.holder(ledger, experiment.id), progress.now(ledger)
    runs = [row for id_ in ids for row in ledger.runs(RunFilter(experiment_id=id_), limit=MOST_RUNS)]
    runs.sort(key=lambda row: (row.started_unix_s, row.id))
    state = _state_of_driver(experiment, holder, runs, now_unix_s)
    verdicts: tuple[str, ...] = ()
    if state is None:
        listed = overview(ledger, [_row(experiment, runs)])[0]
        state, verdicts = listed.state, listed.verdicts or ()
    newest = told[0] if told and state in (*AT_WORK, "lost") else None
    return ExperimentProgress(
        experiment,
        kind,
        state,
        tuple(runs),
        current=newest.progress if newest else None,
        age_s=max(0.0, now_unix_s - newest.updated_unix_s) if newest else None,
        driver_host=holder.driver.host if holder else "",
        driver_pid=holder.driver.driver_pid if holder else None,
        verdicts=verdicts,
        told_unix_s=newest.updated_unix_s if newest else 0.0,
    )


def _state_of_driver(
    experiment: Experiment, holder: Holder | None, runs: Sequence[RunRow], now_unix_s: float
) -> State | None:
    """Return the state where somebody works on it, or should; None where nobody does, and its runs tell."""
    if holder is not None:
        alive = sees(holder.driver)
        return "running" if alive or (alive is None and holder.left_s > 0) else "lost"
    running = [row for row in runs if row.status == "running"]
    if running:
        # Kinds that claim nothing, as a check has its runs made: whether their driver lives can be seen on its machine only.
        here = machine_name()
        return "running" if any(row.machine_id != here or may_live(row) for row in running) else "lost"
    return "starting" if not runs and 0 <= now_unix_s - experiment.created_unix_s < STARTING_S else None


def _row(experiment: Experiment, runs: Sequence[RunRow]) -> ExperimentRow:
    counts: dict[str, int] = {}
    for row in runs:
        if row.role == "measured":
            counts[row.status] = counts.get(row.status, 0) + 1
    return ExperimentRow.model_validate(
        {
            "experiment": experiment,
            "workloads": tuple(sorted({row.workload for row in runs})),
            "places": tuple(sorted({row.place for row in runs})),
            "runs": counts,
        }
    )
