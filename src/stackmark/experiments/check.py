"""Is it still as fast as before? What a baseline holds is measured again, and held against it.

The unit is the series, also where an hour has not passed: an upgrade lies between. What is measured today is judged on its own;
earlier checks of the same spec, chip and stack are a second answer, back to where the rate last changed (verdict/series.py).
Of a baseline that several machines share, the series on today's chip count.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, pairwise
from statistics import fmean

from stackmark.errors import Exit
from stackmark.experiments.baseline import HeldWorkload, SeriesOptions, SeriesResult, Trouble, held_by, measure_series
from stackmark.experiments.driver import machine_name
from stackmark.experiments.examine import arms_of, read_run
from stackmark.experiments.groups import log_rate, subject_of
from stackmark.experiments.progress import in_common_windows, series_numbers
from stackmark.experiments.recorder import new_experiment
from stackmark.ledger import baselines, spreads
from stackmark.ledger.rows import Json, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.remarks import Remark
from stackmark.units import counted
from stackmark.verdict.comparable import reasons_not_comparable
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import FactDifference, Facts
from stackmark.verdict.explain import explain
from stackmark.verdict.fact_values import STACK, StackChange, stack_changes
from stackmark.verdict.family import holm
from stackmark.verdict.rules import RULES as RULES
from stackmark.verdict.series import Alarm, History, history_of, judge_nights
from stackmark.verdict.throughput import throughput_over_runs

# Ten series know their mean to a third of their spread; older ones say more about then than about now.
MOST_EARLIER = 10
# Differs between any two series that a reboot parts: the unit of the comparison, not an explanation.
EXPECTED = "host.boot_id"

Rows = Sequence[RunDetail]


@dataclass(frozen=True)
class Rate:
    """The geometric mean of the series of a side, each of which is that of its runs."""

    rate_per_s: float
    series: int
    runs: int


@dataclass(frozen=True)
class Checked:
    """One workload now against before. Without a comparison, `trouble` says why there is none.

    `now` and `comparison` are of today's series alone; `lately` and `lately_comparison` of today's and the earlier checks since
    the rate last changed, where there are any.
    """

    label: str
    workload: str
    place: str
    unit: str
    seconds: float
    # Empty where nothing was measured.
    experiment_id: str = ""
    before: Rate | None = None
    now: Rate | None = None
    comparison: Comparison | None = None
    lately: Rate | None = None
    lately_comparison: Comparison | None = None
    alarm: Alarm | None = None
    # Of the stack: what a person looks for first after an upgrade.
    stack_changed: tuple[StackChange, ...] = ()
    # What else differs, most telling first.
    changed: tuple[FactDifference, ...] = ()
    # What a reader must know beside the verdict: why it is no fair comparison, what was left out.
    doubts: tuple[Remark, ...] = ()
    trouble: Trouble | None = None


@dataclass(frozen=True)
class _Sides:
    """The runs that are compared, by series, oldest first; the last of `nights` is today's."""

    before: list[list[RunDetail]]
    nights: list[list[RunDetail]]
    doubts: list[Remark] = field(default_factory=list)


def check(ledger: Ledger, name: str, how: SeriesOptions, *, margin: float, anyway: bool = False) -> Iterator[Checked]:
    """Workload by workload, as each is done; one that fails stops no other. When all are done, `decided` has the words."""
    every = held_by(ledger, name)
    for number, held in enumerate(every, start=1):
        if len(every) > 1:
            how.watcher.notice(f"{number} of {len(every)}: {held.label}")
        yield _check(ledger, name, held, how, margin, anyway)


def decided(checked: Sequence[Checked]) -> list[Checked]:
    """With the words as Holm decides them over all workloads: with ten of them a false one is nearly even odds."""
    found = list(checked)
    words = iter(holm([one.comparison for one in found if one.comparison]))
    found = [replace(one, comparison=next(words)) if one.comparison else one for one in found]
    words = iter(holm([one.lately_comparison for one in found if one.lately_comparison]))
    return [replace(one, lately_comparison=next(words)) if one.lately_comparison else one for one in found]


def _check(ledger: Ledger, name: str, held: HeldWorkload, how: SeriesOptions, margin: float, anyway: bool) -> Checked:
    began = time.monotonic()
    before = _rate(_by_series(held.rows))
    blank = Checked(held.label, held.spec.workload, held.place, held.rows[0].rate_unit or "", 0.0, before=before)
    if not anyway and all(row.machine_id != machine_name() for row in held.rows):
        # Known beforehand, so nobody has to wait for it.
        return replace(blank, trouble=_incomparable(name, ["it was measured on another machine"]))
    request: Json = {"baseline": name, "workload": held.spec.workload}
    experiment = new_experiment(kind="check", command=how.command, note=name, request=request)
    series = measure_series(ledger, held, experiment, how)
    blank = replace(blank, experiment_id=series.experiment_id, seconds=time.monotonic() - began)
    if series.trouble:
        return replace(blank, trouble=series.trouble)
    return _compare(ledger, name, held, series, blank, margin, anyway)


def _compare(
    ledger: Ledger, name: str, held: HeldWorkload, series: SeriesResult, blank: Checked, margin: float, anyway: bool
) -> Checked:
    today = [row for row in in_common_windows(ledger, ledger.runs_of(series.experiment_id)) if row.rate_per_s]
    sides = _sides(ledger, name, held, today)
    before, now = _flat(sides.before), sides.nights[-1]
    subjects = [subject_of(ledger, label, rows) for label, rows in ((name, before), ("now", now))]
    reasons = [reason for _, mixed in subjects for reason in mixed]
    reasons += reasons_not_comparable(subjects[0][0], subjects[1][0])
    seen = replace(
        blank,
        before=_rate(sides.before),
        now=_rate([now]),
        stack_changed=stack_changes(_facts(ledger, before[-1]), _facts(ledger, now[-1])),
        changed=_changed(ledger, before, today),
        doubts=(*reasons, *sides.doubts),
    )
    if reasons and not anyway:
        return replace(seen, trouble=_incomparable(name, reasons), doubts=())
    logs = [[[log_rate(row) for row in series] for series in side] for side in (sides.before, sides.nights)]
    judged = judge_nights(name, logs[0], logs[1], margin, _history(ledger, held, now[-1]))
    latest = sides.nights[judged.left_out :]
    return replace(
        seen,
        comparison=judged.tonight,
        lately=_rate(latest) if judged.lately else None,
        lately_comparison=judged.lately,
        alarm=judged.alarm,
        doubts=(*seen.doubts, *_left_out(judged.left_out)),
    )


def _left_out(count: int) -> list[Remark]:
    if not count:
        return []
    text = (
        f"the rate has changed after the first {counted(count, 'earlier check')} on this stack, by more than series spread, and "
        "nothing of the stack that is looked at did"
    )
    return [Remark(text, "rate-changed")]


def _history(ledger: Ledger, held: HeldWorkload, like: RunDetail) -> History | None:
    """How far series of this workload have differed on this machine and chip, whatever the stack, without today's."""
    rows = [
        row
        for row in spreads.runs_of_spec(ledger, held.spec.digest)
        if row.experiment_id != like.experiment_id
        and (row.place, row.place_options) == (held.place, held.place_options)
        and _same_chip(row, like)
    ]
    return history_of([_mean(series) for series in _by_series(rows)])


def _incomparable(name: str, reasons: Sequence[str]) -> Trouble:
    return Trouble(
        f"cannot be compared with {name}: {'; '.join(reasons)}",
        "save a baseline here, or take --anyway, and what differs is said",
        Exit.WRONG_USE,
    )


def _sides(ledger: Ledger, name: str, held: HeldWorkload, today: Rows) -> _Sides:
    like = today[-1]
    here = [row for row in held.rows if _same_chip(row, like)]
    doubts = []
    if here and len(here) < len(held.rows):
        left = f"{len(held.rows) - len(here)} runs of {name} on other chips or machines are left out"
        doubts.append(Remark(left, "other-chips-left-out"))
    before = _by_series(here or held.rows)
    doubts += _mixed_stacks(ledger, name, _flat(before))
    return _Sides(before, _by_series([*_earlier(ledger, name, held, like, _flat(before)[-1]), *today]), doubts)


def _earlier(ledger: Ledger, name: str, held: HeldWorkload, like: RunDetail, last: RunDetail) -> list[RunDetail]:
    """Runs of checks before this one and after the baseline, of the same place, chip and stack, oldest first."""
    rows = [
        row
        for row in baselines.checked_runs(ledger, name, held.spec.digest)
        if row.experiment_id != like.experiment_id
        and row.rate_per_s
        and (row.place, row.place_options) == (held.place, held.place_options)
        and _same_chip(row, like)
        and last.started_unix_s < row.started_unix_s < like.started_unix_s
    ]
    facts = _facts(ledger, like)
    found: list[RunDetail] = []
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row.experiment_id)]
    for group in reversed(groups[-MOST_EARLIER:]):
        if stack_changes(_facts(ledger, group[-1]), facts):
            break
        found = [*group, *found]
    return in_common_windows(ledger, found)


def _same_chip(one: RunDetail, other: RunDetail) -> bool:
    return (one.ran_on, one.chip, one.chip_uuid) == (other.ran_on, other.chip, other.chip_uuid)


def _mixed_stacks(ledger: Ledger, name: str, before: Rows) -> list[Remark]:
    """A baseline over an upgrade is two: its spread holds what the upgrade did."""
    facts = [_facts(ledger, row) for row in {row.experiment_id: row for row in before}.values()]
    changes = dict.fromkeys(str(change) for old, new in pairwise(facts) for change in stack_changes(old, new))
    text = f"{name} was itself measured on several stacks: {'; '.join(changes)}"
    return [Remark(text, "several-stacks")] if changes else []


def _by_series(rows: Rows) -> list[list[RunDetail]]:
    found: dict[int, list[RunDetail]] = {}
    for number, row in zip(series_numbers(rows), rows, strict=True):
        found.setdefault(number, []).append(row)
    return [found[number] for number in sorted(found)]


def _flat(series: Sequence[Rows]) -> list[RunDetail]:
    return [row for one in series for row in one]


def _mean(series: Rows) -> float:
    return fmean(log_rate(row) for row in series)


def _rate(series: Sequence[Rows]) -> Rate:
    means = [throughput_over_runs([row.rate_per_s for row in one if row.rate_per_s]).rate_per_s for one in series]
    return Rate(throughput_over_runs(means).rate_per_s, len(series), sum(map(len, series)))


def _facts(ledger: Ledger, row: RunDetail) -> Facts:
    return read_run(ledger, row, counted=True)[1]


def _changed(ledger: Ledger, before: Rows, today: Rows) -> tuple[FactDifference, ...]:
    """What else differs between the latest series before and today's."""
    latest = [row for row in before if row.experiment_id == before[-1].experiment_id]
    rows = [row.model_copy(update={"arm": arm}) for arm, side in enumerate((latest, today)) for row in side]
    seen = [read_run(ledger, row, counted=True) for row in rows]
    runs = [run for run, _ in seen]
    arms = arms_of([("before", {}), ("now", {})], runs, [facts for _, facts in seen], rows)
    return tuple(one for one in explain(arms, runs) if f"{one.subject}.{one.key}" not in {*STACK, EXPECTED})
