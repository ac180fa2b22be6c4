"""Two lists of stored runs held against each other: runs that were not made in blocks, imported logs, before and after.

Where all runs lie in one series they are two samples (Welch). Where they lie in several, the series is the unit: two series of
an unchanged machine differ too. Logs that do not say when they were written are one series a side. Each side must be about one
thing, and both about the same; whoever knows better says `--anyway`, and what was wrong stands next to the verdict.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from stackmark.errors import SpecError
from stackmark.events import Result
from stackmark.experiments import fairness
from stackmark.experiments.design import MARGIN, check_margin
from stackmark.experiments.examine import arms_of, in_window, published_beside, read_run, title_of
from stackmark.experiments.judging import read_stored
from stackmark.experiments.kinds import kind_of
from stackmark.experiments.progress import StepTimes, rates_in, runs_in, series_numbers, window_of, with_rates
from stackmark.ledger import spreads
from stackmark.ledger.rows import RunDetail
from stackmark.ledger.store import Ledger
from stackmark.remarks import Remark
from stackmark.verdict.comparable import Subject, not_known, reasons_not_comparable
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.covariates import covariate_lines
from stackmark.verdict.examined import Examined
from stackmark.verdict.explain import explain
from stackmark.verdict.needed import sd_upper
from stackmark.verdict.series import compare_series
from stackmark.verdict.unpaired import RunSpread, compare_runs


@dataclass(frozen=True)
class Side:
    """The good runs that some names stand for, oldest first, and what of it is not counted, in sentences."""

    rows: tuple[RunDetail, ...]
    left_out: tuple[str, ...]


def examine_groups(
    ledger: Ledger,
    before: Sequence[str],
    after: Sequence[str],
    *,
    margin: float = MARGIN,
    anyway: bool = False,
    command: str = "",
) -> Examined:
    """`after` against `before`, each a list of ids of runs or experiments."""
    check_margin(margin)
    sides = _side(ledger, before), _side(ledger, after)
    twice = {row.id for row in sides[0].rows} & {row.id for row in sides[1].rows}
    if twice:
        raise SpecError(f"{min(twice)} stands on both sides", hint="a run is held against other runs")
    labels = _labels(sides[0].rows, sides[1].rows)
    subjects = [subject_of(ledger, label, side.rows) for label, side in zip(labels, sides, strict=True)]
    mixed = [reason for _, reasons in subjects for reason in reasons]
    reasons = [*mixed, *reasons_not_comparable(subjects[0][0], subjects[1][0])]
    if reasons and not anyway:
        raise SpecError(
            f"these runs cannot be compared: {'; '.join(reasons)}",
            hint="take other runs; --anyway compares them all the same and says so",
        )
    doubts = [*reasons, *sides[0].left_out, *sides[1].left_out, *not_known(subjects[0][0], subjects[1][0])]
    return _put_together(ledger, sides, labels, margin, doubts, command)


def _side(ledger: Ledger, names: Sequence[str]) -> Side:
    """Good measured runs, by their ids or by that of their experiment; `last` is the latest experiment."""
    found: dict[str, RunDetail] = {}
    left_out: list[str] = []
    for name in names:
        text = name.strip().lower()
        if text == "last" or text.startswith("x-"):
            rows, bad = _of_experiment(ledger, name)
            left_out += bad
        else:
            rows = [_good_run(ledger, name)]
        found.update((row.id, row) for row in rows)
    if not found:
        raise SpecError("no run was named", hint="stackmark verdict RUN… --against RUN…")
    ordered = sorted(found.values(), key=lambda row: (row.started_unix_s, row.id))
    return Side(tuple(ordered), tuple(dict.fromkeys(left_out)))


def _good_run(ledger: Ledger, name: str) -> RunDetail:
    row = ledger.run(name)
    if row.role == "primer":
        raise SpecError(f"{row.id} only filled the caches: it is no measurement", hint="name a measured run")
    if row.status != "done" or not row.rate_per_s:
        why = row.failure_message or row.failure_kind or "it has no rate"
        raise SpecError(f"the run {row.id} is {row.status}: {why}", hint=f"look at it: stackmark show {row.id} --log")
    return row


def _of_experiment(ledger: Ledger, name: str) -> tuple[list[RunDetail], list[str]]:
    experiment = ledger.experiment(name)
    rows = [row for row in ledger.runs_of(experiment.id) if row.role == "measured"]
    # The two arms of an A/A experiment are one and the same.
    if len({(row.arm, row.slot) for row in rows}) > 1 and not kind_of(experiment).is_one_side:
        raise SpecError(
            f"{experiment.id} has several arms, which are no one side",
            hint=f"its own verdict: stackmark verdict {experiment.id}; or name the runs of one arm (stackmark results)",
        )
    good = [row for row in rows if row.status == "done" and row.rate_per_s]
    bad = [row for row in rows if row not in good]
    if not good:
        why = f": {bad[0].id} {bad[0].failure_message or bad[0].status}" if bad else ""
        raise SpecError(f"{experiment.id} has no good run{why}", hint="name another experiment, or run it again")
    return good, [
        f"{len(bad)} of {len(rows)} runs of {experiment.id} gave no result and are not counted"
    ] if bad else []


def _labels(before: Sequence[RunDetail], after: Sequence[RunDetail]) -> tuple[str, str]:
    """By the labels that imported runs were given, or by their places, where those tell the sides apart; else by time."""
    first, second = (
        ", ".join(dict.fromkeys(str(row.handle.get("label") or row.place) for row in rows)) for rows in (before, after)
    )
    if first != second:
        return first, second
    if _ended(before) <= after[0].started_unix_s:
        return "before", "after"
    return ("after", "before") if _ended(after) <= before[0].started_unix_s else ("A", "B")


def _ended(rows: Sequence[RunDetail]) -> float:
    return max(row.ended_unix_s or row.started_unix_s for row in rows)


def subject_of(ledger: Ledger, label: str, rows: Sequence[RunDetail]) -> tuple[Subject, list[Remark]]:
    """What the runs of a side are about, and why they are not about one thing, where they are not."""
    results: dict[tuple[str, str], Result | None] = {}
    for row in rows:
        key = row.experiment_id, row.spec_digest
        if key not in results:
            ended = read_stored(ledger.stream(row.id)).stream.ended()
            results[key] = ended if isinstance(ended, Result) else None
    subjects = [_subject(row.id, row, results[row.experiment_id, row.spec_digest]) for row in rows]
    first = subjects[0]
    conflicts = next(filter(None, (reasons_not_comparable(first, other) for other in subjects[1:])), [])
    mixed = [Remark(f"the runs of {label} are not of one kind: {reason}", "mixed-runs") for reason in conflicts[:1]]
    places = dict.fromkeys(f"{row.place} {json.dumps(row.place_options, sort_keys=True)}" for row in rows)
    if len(places) > 1:
        named = ", ".join(place.removesuffix(" {}") for place in places)
        mixed.append(Remark(f"the runs of {label} were made in {len(places)} places: {named}", "several-places"))
    return replace(first, label=label), mixed


def _subject(label: str, row: RunDetail, result: Result | None) -> Subject:
    return Subject(
        label=label,
        workload=row.workload,
        params=row.spec.params,
        unit=row.rate_unit,
        samples_per_step=result.samples_per_step if result and result.figure is None else None,
        ranks=row.spec.ranks,
        operations_per_sample=result.operations_per_sample if result else None,
        chip=row.chip,
        chip_uuid=row.chip_uuid,
        # A log does not say on which machine it was written.
        machine_id=row.ran_on or None,
    )


def compare_rows(
    a: str, b: str, before: Sequence[RunDetail], after: Sequence[RunDetail], margin: float, spread: RunSpread
) -> Comparison:
    """Compare by runs where all lie in one series, or came from logs that do not say when; else by series."""
    rows = [*before, *after]
    numbers = series_numbers(rows)
    logs = [log_rate(row) for row in rows]
    undated = any(not row.boot_id for row in rows)
    if len(set(numbers)) == 1 or undated:
        first, second = logs[: len(before)], logs[len(before) :]
        return compare_runs(a, b, first, second, margin, spread=spread, undated=undated)
    grouped: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
    for index, (number, log) in enumerate(zip(numbers, logs, strict=True)):
        grouped[index >= len(before)].setdefault(number, []).append(log)
    return compare_series(a, b, list(grouped[0].values()), list(grouped[1].values()), margin)


def run_spread(ledger: Ledger, row: RunDetail) -> RunSpread:
    """Look up how far runs like this one differ from each other in this ledger."""
    arms = [[math.log(rate) for rate in rates] for rates in spreads.rates_by_arm(ledger, row.workload, row.chip)]
    df = sum(len(logs) - 1 for logs in arms)
    squares = sum((log - fmean(logs)) ** 2 for logs in arms for log in logs)
    most = sd_upper(math.sqrt(squares / df), df) if df else None
    return RunSpread(most, sum(map(len, arms)), spreads.largest_factor(ledger))


def log_rate(row: RunDetail) -> float:
    """ln R of a run that is good."""
    assert row.rate_per_s
    return math.log(row.rate_per_s)


def _put_together(
    ledger: Ledger,
    sides: tuple[Side, Side],
    labels: tuple[str, str],
    margin: float,
    doubts: Sequence[str],
    command: str,
) -> Examined:
    rows = [row.model_copy(update={"arm": arm}) for arm, side in enumerate(sides) for row in side.rows]
    times = StepTimes(ledger)
    seen = [read_run(ledger, row, counted=True, times=times) for row in rows]
    facts = [fact for _, fact in seen]
    window = window_of(rows, times)
    runs = runs_in(window, [run for run, _ in seen], rows, times)
    rows = with_rates(rows, rates_in(window, rows, times))
    before, after = ([row for row in rows if row.arm == arm] for arm in (0, 1))
    arms = arms_of([(label, {}) for label in labels], runs, facts, rows)
    title, sample = title_of(rows[0].workload, rows[0].rate_unit)
    comparison = compare_rows(*labels, before, after, margin, run_spread(ledger, rows[0]))
    shown = Examined(
        experiment_id="",
        kind="compare",
        state="done",
        state_sentence=f"{len(sides[1].rows)} stored runs ({labels[1]}) against {len(sides[0].rows)} ({labels[0]})",
        created_unix_s=min(row.started_unix_s for row in rows),
        ended_unix_s=max((row.ended_unix_s for row in rows if row.ended_unix_s), default=None),
        command=command,
        workload=rows[0].workload,
        title=title,
        sample=sample,
        seed=None,
        margin=margin,
        blocks_planned=None,
        blocks_whole=0,
        blocks_repeated=0,
        order=(),
        arms=arms,
        runs=tuple(runs),
        comparisons=(comparison,),
        differences=explain(arms, runs),
        covariates=covariate_lines(arms, runs),
        published=published_beside(ledger, rows, arms),
        scope=fairness.scope(rows),
        held=(),
        not_held=tuple(doubts),
        method=fairness.method(None, from_logs=all(not row.boot_id for row in rows)),
        warnings=fairness.warnings(arms, runs, ""),
    )
    return in_window(shown, window)
