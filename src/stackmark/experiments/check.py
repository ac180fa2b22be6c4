"""Measure a baseline again and compare: is it still as fast as before?

The unit is the series, also where an hour has not passed since the baseline: an upgrade lies between. What is measured now is
judged on its own; earlier checks of the same spec, chip and stack are a second answer, back to where the rate last changed
(verdict/series.py). Checks within the series of the one that runs now are not nights of their own, and their runs are not
averaged into it: that would hide a change of the last hour. They are reported and counted in no verdict.
Of a baseline that several machines share, only the series on today's chip count.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from statistics import fmean, median

from stackmark.errors import Exit, LedgerError, SpecError
from stackmark.experiments.baseline import (
    HeldWorkload,
    SeriesOptions,
    SeriesResult,
    Trouble,
    failed_runs,
    held_by,
    held_so_far,
    measure_series,
)
from stackmark.experiments.design import MARGIN
from stackmark.experiments.driver import machine_name
from stackmark.experiments.examine import arms_of, read_run
from stackmark.experiments.groups import log_rate, subject_of
from stackmark.experiments.progress import StepTimes, in_common_windows, series_numbers
from stackmark.experiments.recorder import new_experiment
from stackmark.figures import figure_unit
from stackmark.ledger import baselines, spreads
from stackmark.ledger.rows import Experiment, Json, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.remarks import Remark
from stackmark.units import counted
from stackmark.verdict.comparable import reasons_not_comparable
from stackmark.verdict.comparison import MOST_MARGIN, Comparison
from stackmark.verdict.examined import FactDifference, Facts
from stackmark.verdict.explain import explain
from stackmark.verdict.fact_values import STACK, StackChange, stack_changes
from stackmark.verdict.family import holm
from stackmark.verdict.interference import allowance_cpus
from stackmark.verdict.rules import RULES as RULES
from stackmark.verdict.series import ENOUGH, Alarm, History, Nights, history_of, judge_nights
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.workloads.command.definition import metric_name

# Ten series know their mean to a third of their spread; older ones say more about then than about now.
MOST_EARLIER = 10
# Differs between any two series that a reboot parts: the unit of the comparison, not an explanation.
EXPECTED = "host.boot_id"

Rows = Sequence[RunDetail]
FactsOf = Callable[[RunDetail], Facts]


@dataclass(frozen=True)
class Rate:
    """The geometric mean of a side's series, each of which is the mean of its runs."""

    rate_per_s: float
    series: int
    runs: int


@dataclass(frozen=True)
class EarlierChecks:
    """The checks of the same series before this one: within the hour, or back to back. No verdict counts them."""

    rate_per_s: float
    checks: int
    runs: int


@dataclass(frozen=True)
class Checked:
    """One workload now compared with before. Without a comparison, `trouble` says why.

    `now` and `comparison` are of this check alone; `lately` and `lately_comparison` of this and the earlier checks on other
    days since the rate last changed, where there are any.
    """

    label: str
    workload: str
    place: str
    unit: str
    seconds: float
    # What a user's own figure is called.
    metric: str = ""
    # Empty where nothing was measured.
    experiment_id: str = ""
    before: Rate | None = None
    now: Rate | None = None
    comparison: Comparison | None = None
    lately: Rate | None = None
    lately_comparison: Comparison | None = None
    # Checks in the same series as this one, where there are any.
    same_series: EarlierChecks | None = None
    alarm: Alarm | None = None
    # Of the stack: what a person looks for first after an upgrade.
    stack_changed: tuple[StackChange, ...] = ()
    # What else differs, most telling first.
    changed: tuple[FactDifference, ...] = ()
    # What a reader must know next to the verdict: why the comparison is not fair, what was left out.
    doubts: tuple[Remark, ...] = ()
    trouble: Trouble | None = None


@dataclass(frozen=True)
class Sides:
    """The runs that are compared, by series, oldest first; the last of `nights` is this check alone.

    `same_series` are the runs of earlier checks in the series of this one.
    """

    before: list[list[RunDetail]]
    nights: list[list[RunDetail]]
    same_series: list[RunDetail]
    doubts: list[Remark] = field(default_factory=list)


def check(ledger: Ledger, name: str, how: SeriesOptions, *, margin: float, anyway: bool = False) -> Iterator[Checked]:
    """Check workload by workload; a failure does not stop the others. When all are done, `decided` has the words."""
    every = held_by(ledger, name)
    for number, held in enumerate(every, start=1):
        if len(every) > 1:
            how.watcher.notice(f"{number} of {len(every)}: {held.label}")
        yield check_held(ledger, name, held, how, margin, anyway)


def decided(checked: Sequence[Checked]) -> list[Checked]:
    """Decide the words by Holm over all workloads: with ten workloads a false word is nearly even odds."""
    found = list(checked)
    words = iter(holm([one.comparison for one in found if one.comparison]))
    found = [replace(one, comparison=next(words)) if one.comparison else one for one in found]
    words = iter(holm([one.lately_comparison for one in found if one.lately_comparison]))
    return [replace(one, lately_comparison=next(words)) if one.lately_comparison else one for one in found]


def check_held(
    ledger: Ledger,
    name: str,
    held: HeldWorkload,
    how: SeriesOptions,
    margin: float,
    anyway: bool,
    *,
    canary: bool = False,
) -> Checked:
    """Check one workload of a baseline; its word is not decided together with others yet.

    `canary` is stored with it: whoever judges it later leaves out what was disturbed (experiments/canary.py).
    """
    began = time.monotonic()
    before = _rate(by_series(held.rows))
    unit, metric = held.rows[0].rate_unit or "", metric_name(held.spec.params)
    blank = Checked(held.label, held.spec.workload, held.place, unit, 0.0, metric, before=before)
    if not anyway and all(row.machine_id != machine_name() for row in held.rows):
        # Known beforehand, so nobody has to wait for it.
        return replace(blank, trouble=_incomparable(name, ["it was measured on a different machine"]))
    request: Json = {"baseline": name, "workload": held.spec.workload, "margin": margin, "anyway": anyway}
    if canary:
        request["canary"] = True
    experiment = new_experiment(kind="check", command=how.command, note=name, request=request)
    series = measure_series(ledger, held, experiment, how)
    blank = replace(blank, experiment_id=series.experiment_id, seconds=time.monotonic() - began)
    if series.trouble:
        return replace(blank, trouble=series.trouble)
    return _compare(ledger, name, held, series, blank, margin, anyway)


@dataclass(frozen=True)
class StoredCheck:
    """What a stored check shows when it is judged again; one experiment is one workload of a check."""

    baseline: str
    margin: float
    checked: Checked
    # The runs of the baseline that it was compared with.
    before: tuple[RunDetail, ...] = ()


def words_of_check(ledger: Ledger, experiment: Experiment) -> tuple[str, ...]:
    """Return the word of a stored check; nothing where its baseline is gone, or nothing was compared."""
    try:
        found = check_again(ledger, experiment)
    except (LedgerError, SpecError):
        return ()
    return (found.checked.comparison.word,) if found and found.checked.comparison else ()


def check_again(ledger: Ledger, experiment: Experiment) -> StoredCheck | None:
    """Compare the runs of a stored check with its baseline again; None before it ended, or where that baseline is gone.

    The baseline is taken as it was then: what was saved later is left out.
    """
    name, margin = experiment.request.get("baseline"), experiment.request.get("margin")
    rows = in_common_windows(ledger, ledger.runs_of(experiment.id))
    if not isinstance(name, str) or not rows or any(row.status == "running" for row in rows):
        return None
    every, like = held_so_far(ledger, name), rows[0]
    key = (like.spec_digest, like.place, like.place_options)
    held = next((one for one in every if (one.spec.digest, one.place, one.place_options) == key), None)
    before = tuple(row for row in held.rows if row.started_unix_s < like.started_unix_s) if held else ()
    if held is None or not before:
        return None
    held = replace(held, rows=before)
    # Checks of older versions did not store it.
    chosen = float(margin) if isinstance(margin, int | float) and 0 < margin < MOST_MARGIN else MARGIN
    blank = Checked(
        held.label,
        held.spec.workload,
        held.place,
        held.rows[0].rate_unit or "",
        max(row.ended_unix_s or row.started_unix_s for row in rows) - experiment.created_unix_s,
        metric_name(held.spec.params),
        experiment.id,
        _rate(by_series(held.rows)),
    )
    series = SeriesResult(held.label, experiment.id, tuple(rows), failed_runs(rows))
    if series.trouble:
        return StoredCheck(name, chosen, replace(blank, trouble=series.trouble))
    found = _compare(ledger, name, held, series, blank, chosen, bool(experiment.request.get("anyway")))
    if len(every) > 1:
        alone = f"judged alone: {name} has {counted(len(every), 'workload')}, whose words a check decides together"
        found = replace(found, doubts=(*found.doubts, Remark(alone, "judged-alone")))
    return StoredCheck(name, chosen, found, before)


def _compare(
    ledger: Ledger, name: str, held: HeldWorkload, series: SeriesResult, blank: Checked, margin: float, anyway: bool
) -> Checked:
    today = [row for row in in_common_windows(ledger, ledger.runs_of(series.experiment_id)) if row.rate_per_s]
    facts = facts_reader(ledger)
    sides = sides_of(ledger, name, held, today, facts)
    before, now = _flat(sides.before), sides.nights[-1]
    subjects = [subject_of(ledger, label, rows) for label, rows in ((name, before), ("now", now))]
    reasons = [reason for _, mixed in subjects for reason in mixed]
    reasons += reasons_not_comparable(subjects[0][0], subjects[1][0])
    seen = replace(
        blank,
        before=_rate(sides.before),
        now=_rate([now]),
        stack_changed=stack_changes(facts(before[-1]), facts(now[-1])),
        changed=differences(ledger, before, today),
        doubts=(*reasons, *_busy(ledger, name, before, now), *sides.doubts),
    )
    if reasons and not anyway:
        return replace(seen, trouble=_incomparable(name, reasons), doubts=())
    judged = judge(ledger, name, held, sides, margin)
    latest = sides.nights[judged.left_out :]
    return replace(
        seen,
        comparison=judged.tonight,
        lately=_rate(latest) if judged.lately else None,
        lately_comparison=judged.lately,
        same_series=_same_series(sides.same_series),
        alarm=judged.alarm,
        doubts=(*seen.doubts, *_left_out(judged.left_out)),
    )


def judge(ledger: Ledger, name: str, held: HeldWorkload, sides: Sides, margin: float) -> Nights:
    """Judge the last night of `sides` against the baseline, by the rules of today."""
    before, nights = ([[log_rate(row) for row in series] for series in side] for side in (sides.before, sides.nights))
    like = sides.nights[-1][-1]
    history = _history(ledger, held, like) if len(before) < ENOUGH else None
    return judge_nights(name, before, nights, margin, history, figure_unit(like.rate_unit).terms)


def _busy(ledger: Ledger, name: str, before: Rows, now: Rows) -> list[Remark]:
    """Say where other programs kept CPUs or the GPU busy while either side was measured."""
    times = StepTimes(ledger)
    said = []
    latest = [row for row in before if row.experiment_id == before[-1].experiment_id]
    for label, rows in ((f"the last series of {name}", latest), ("this check", now)):
        loads = [times.load(row) for row in rows]
        busy = [load.busy_cpus for load in loads if load.busy_cpus is not None]
        if busy and median(busy) > allowance_cpus(loads[0].cores):
            said.append(f"{median(busy):.1f} of {loads[0].cores} CPUs during {label}")
        if any(load.other_gpu_processes for load in loads):
            said.append(f"the GPU during {label}")
    text = f"other programs used {' and '.join(said)}: free the machine before you rely on the difference"
    return [Remark(text, "busy-machine")] if said else []


def _same_series(rows: Rows) -> EarlierChecks | None:
    if not rows:
        return None
    rate = rate_of_series(rows)
    return EarlierChecks(rate.rate_per_s, len({row.experiment_id for row in rows}), len(rows))


def _left_out(count: int) -> list[Remark]:
    if not count:
        return []
    text = (
        f"the rate changed after the first {counted(count, 'earlier check')} on this stack, by more than series spread; driver, "
        "firmware, kernel and versions did not change"
    )
    return [Remark(text, "rate-changed")]


def _history(ledger: Ledger, held: HeldWorkload, like: RunDetail) -> History | None:
    """Tell how far series of this workload differed on this machine and chip before this check, whatever the stack."""
    rows = [
        row
        for row in spreads.runs_of_spec(ledger, held.spec.digest)
        if row.experiment_id != like.experiment_id
        and row.started_unix_s < like.started_unix_s
        and (row.place, row.place_options) == (held.place, held.place_options)
        and _same_chip(row, like)
    ]
    return history_of([_mean(series) for series in by_series(rows)])


def _incomparable(name: str, reasons: Sequence[str]) -> Trouble:
    return Trouble(
        f"cannot be compared with {name}: {'; '.join(reasons)}",
        "save a baseline here, or give --anyway to compare and list what differs",
        Exit.WRONG_USE,
    )


def sides_of(ledger: Ledger, name: str, held: HeldWorkload, today: Rows, facts: FactsOf) -> Sides:
    """Collect what a check of these runs is compared with."""
    like = today[-1]
    here = [row for row in held.rows if _same_chip(row, like)]
    doubts = []
    if here and len(here) < len(held.rows):
        left = f"{len(held.rows) - len(here)} runs of {name} on other chips or machines are left out"
        doubts.append(Remark(left, "other-chips-left-out"))
    before = by_series(here or held.rows)
    doubts += _mixed_stacks(name, _flat(before), facts)
    earlier = _earlier(ledger, name, held, like, _flat(before)[-1], facts)
    numbers = series_numbers([*earlier, *today])
    now = set(numbers[len(earlier) :])
    other_days = [row for row, number in zip(earlier, numbers, strict=False) if number not in now]
    same_series = [row for row, number in zip(earlier, numbers, strict=False) if number in now]
    return Sides(before, [*by_series(other_days), list(today)], same_series, doubts)


def _earlier(
    ledger: Ledger, name: str, held: HeldWorkload, like: RunDetail, last: RunDetail, facts: FactsOf
) -> list[RunDetail]:
    """Find runs of checks before this one and after the baseline, of the same place, chip and stack, oldest first."""
    rows = [
        row
        for row in baselines.checked_runs(ledger, name, held.spec.digest)
        if row.experiment_id != like.experiment_id
        and row.rate_per_s
        and (row.place, row.place_options) == (held.place, held.place_options)
        and _same_chip(row, like)
        and last.started_unix_s < row.started_unix_s < like.started_unix_s
    ]
    found: list[RunDetail] = []
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.experiment_id)]
    for group in reversed(groups[-MOST_EARLIER:]):
        if stack_changes(facts(group[-1]), facts(like)):
            break
        found = [*group, *found]
    return in_common_windows(ledger, found)


def _same_chip(one: RunDetail, other: RunDetail) -> bool:
    return (one.ran_on, one.chip, one.chip_uuid) == (other.ran_on, other.chip, other.chip_uuid)


def _mixed_stacks(name: str, before: Rows, facts: FactsOf) -> list[Remark]:
    """Name what changed within a baseline: the spread of one that was saved over an upgrade includes the upgrade."""
    seen = [facts(row) for row in {row.experiment_id: row for row in before}.values()]
    changes = dict.fromkeys(str(change) for old, new in pairwise(seen) for change in stack_changes(old, new))
    text = f"{name} was itself measured on several stacks: {'; '.join(changes)}"
    return [Remark(text, "several-stacks")] if changes else []


def by_series(rows: Rows) -> list[list[RunDetail]]:
    """Group runs by series, oldest first."""
    found: dict[int, list[RunDetail]] = {}
    for number, row in zip(series_numbers(rows), rows, strict=True):
        found.setdefault(number, []).append(row)
    return [found[number] for number in sorted(found)]


def _flat(series: Sequence[Rows]) -> list[RunDetail]:
    return [row for one in series for row in one]


def _mean(series: Rows) -> float:
    return fmean(log_rate(row) for row in series)


def rate_of_series(rows: Rows) -> Throughput:
    return throughput_over_runs([row.rate_per_s for row in rows if row.rate_per_s])


def _rate(series: Sequence[Rows]) -> Rate:
    means = [rate_of_series(one).rate_per_s for one in series]
    return Rate(throughput_over_runs(means).rate_per_s, len(series), sum(map(len, series)))


def facts_reader(ledger: Ledger) -> FactsOf:
    """Return a function that reads the facts of a run, once for each run."""
    known: dict[str, Facts] = {}

    def facts(row: RunDetail) -> Facts:
        if row.id not in known:
            known[row.id] = read_run(ledger, row, counted=True)[1]
        return known[row.id]

    return facts


def differences(ledger: Ledger, before: Rows, today: Rows) -> tuple[FactDifference, ...]:
    """What else differs between the latest series before and today's."""
    latest = [row for row in before if row.experiment_id == before[-1].experiment_id]
    rows = [row.model_copy(update={"arm": arm}) for arm, side in enumerate((latest, today)) for row in side]
    seen = [read_run(ledger, row, counted=True) for row in rows]
    runs = [run for run, _ in seen]
    arms = arms_of([("before", {}), ("now", {})], runs, [facts for _, facts in seen], rows)
    return tuple(one for one in explain(arms, runs) if f"{one.subject}.{one.key}" not in {*STACK, EXPECTED})
