"""Compare two lists of stored runs: runs that were not made in blocks, imported logs, before and after.

Where all runs lie in one series they are two samples (Welch). Where they lie in several, the series is the unit: two series of
an unchanged machine differ too. Logs that do not say when they were written are one series a side. Each side must be about one
thing, and both about the same; whoever knows better says `--anyway`, and what was wrong stands next to the verdict.

A side is a list of ids, or a selection (selecting.py). Where the two selections name different chips or machines, these are the
question: the scope is the machines that were measured, and what else differs stands first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from stackmark.errors import SpecError
from stackmark.events import Result
from stackmark.experiments import fairness
from stackmark.experiments.against_published import published_pairs
from stackmark.experiments.design import MARGIN, check_margin
from stackmark.experiments.examine import arms_of, in_window, nearest_published, read_run, title_of
from stackmark.experiments.fitting import refuse_censored
from stackmark.experiments.judging import read_stored
from stackmark.experiments.kinds import kind_of, refuse_suite
from stackmark.experiments.progress import StepTimes, rates_in, runs_in, series_numbers, window_of, with_rates
from stackmark.experiments.selecting import (
    NOT_GIVEN,
    Question,
    is_selection,
    matching_values,
    question_of,
    read_conditions,
    select_runs,
    value_of,
    varying_keys,
)
from stackmark.figures import figure_unit
from stackmark.ledger import spreads
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.several import SeveralLedgers, StreamSource
from stackmark.ledger.store import Ledger
from stackmark.remarks import MIXED_RUNS, Remark
from stackmark.spec import Scalar
from stackmark.units import counted
from stackmark.verdict.comparable import Subject, not_known, reasons_not_comparable
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.covariates import covariate_lines
from stackmark.verdict.examined import Examined, FactDifference
from stackmark.verdict.explain import explain
from stackmark.verdict.needed import sd_upper
from stackmark.verdict.series import compare_series
from stackmark.verdict.unpaired import KnownSpread, RunSpread, beyond_any_series, compare_runs, in_these_logs

CANNOT_COMPARE = "these runs cannot be compared"
# Another framework, or another layer, is known to matter.
LOG_WEIGHT = 80


@dataclass(frozen=True)
class Side:
    """The successful runs that some names select, oldest first, and sentences about what is not counted."""

    rows: tuple[RunDetail, ...]
    left_out: tuple[str, ...] = ()
    # The conditions that select them; empty where they are named by their ids.
    conditions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Sides:
    """Two sides of stored runs, what they are called, and what they were selected by. The first is the reference."""

    first: Side
    second: Side
    labels: tuple[str, str]
    question: Question = field(default_factory=Question)

    @property
    def both(self) -> tuple[Side, Side]:
        return self.first, self.second


def examine_groups(
    sources: SeveralLedgers,
    before: Sequence[str],
    after: Sequence[str],
    *,
    margin: float = MARGIN,
    anyway: bool = False,
    command: str = "",
) -> Examined:
    """Compare `after` with `before`, each a list of ids of runs or experiments, or of conditions like `chip=V100`."""
    check_margin(margin)
    sides = find_sides(sources, before, after)
    reasons, doubts = reasons_of(sources, sides)
    if reasons and not anyway:
        raise SpecError(f"{CANNOT_COMPARE}: {'; '.join(reasons)}", hint=_hint(sides, reasons))
    return put_together(sources, sides, margin, [*reasons, *doubts], command)


def find_sides(sources: SeveralLedgers, before: Sequence[str], after: Sequence[str]) -> Sides:
    first, second = _side(sources, before, "--against"), _side(sources, after, "--runs")
    twice = {row.id for row in first.rows} & {row.id for row in second.rows}
    if twice:
        more = f" and {counted(len(twice) - 1, 'more run')} are" if len(twice) > 1 else " is"
        hint = "name a key with another value on each side" if first.conditions else "compare a run with other runs"
        raise SpecError(f"{min(twice)}{more} on both sides", hint=hint)
    question = question_of(first.conditions, second.conditions)
    return Sides(first, second, question.labels or _labels(first.rows, second.rows), question)


def _hint(sides: Sides, reasons: Sequence[Remark]) -> str:
    kinds = {reason.kind for reason in reasons}
    if not sides.first.conditions and {"other-chip-model", "other-chip", "other-machine"} & kinds:
        ask = "to compare two chips or machines, select both sides by them: --runs chip=… --against chip=…"
        return f"{ask}; --anyway compares these runs nevertheless, with a warning"
    if MIXED_RUNS in kinds and sides.first.conditions:
        chips = {row.chip for side in sides.both for row in side.rows}
        by = [] if sides.question.is_about_chips or len(chips) == 1 else ["chip"]
        by += [key for key in varying_keys(sides.first.rows, sides.second.rows) if key not in sides.question.keys]
        return f"add a condition, or compare row by row: --by {','.join(by)}; --anyway compares them nevertheless"
    return "choose other runs; --anyway compares them nevertheless, with a warning"


def has_imported_arms(experiment: Experiment) -> bool:
    """Tell whether it holds the logs of several arms, which `import --arm` or `--arm-column` stored together."""
    return kind_of(experiment).from_logs and "arms" in experiment.request


def examine_imported_arms(ledger: Ledger, experiment: Experiment, margin: float | None = None) -> Examined:
    """Compare the two arms of an import. Where they cannot be compared there is no comparison, and a warning says why."""
    margin = MARGIN if margin is None else margin
    check_margin(margin)
    sources = SeveralLedgers([ledger])
    sides = sides_of_import(ledger, experiment)
    good = [side.rows for side in sides.both]
    counting = {row.id for rows in good for row in rows}
    bad = [row for row in ledger.runs_of(experiment.id) if row.role == "measured" and row.id not in counting]
    if all(good):
        reasons, doubts = reasons_of(sources, sides)
    else:
        without = [label for label, of_arm in zip(sides.labels, good, strict=True) if not of_arm]
        reasons, doubts = [Remark(f"{', '.join(without)} has no run with a result", "no-result")], []
    shown = put_together(sources, sides, margin, doubts, experiment.command, bad=bad, comparable=not reasons)
    warnings = [Remark(f"{CANNOT_COMPARE}: {'; '.join(reasons)}", "not-comparable")] if reasons else []
    instead: tuple[str, ...] = ()
    if shared := _shared_specs(sides) if reasons else ():
        text = f"the arms hold runs of several specs, of which both have {len(shared)}: {', '.join(shared)}"
        warnings = [Remark(f"{text}; they are compared row by row", "not-comparable")]
        instead = (f"stackmark verdict {experiment.id}",)
    return replace(
        shown,
        instead=instead,
        experiment_id=experiment.id,
        kind="import",
        state_sentence=f"{shown.state_sentence}, imported together",
        created_unix_s=experiment.created_unix_s,
        warnings=(*warnings, *shown.warnings),
    )


def _shared_specs(sides: Sides) -> list[str]:
    """Return the specs that both sides ran, by the values in which specs differ; nothing where all runs are of one."""
    keys = varying_keys(sides.first.rows, sides.second.rows)
    first, second = ({row.spec_digest: row for row in side.rows} for side in sides.both)
    if len({*first, *second}) < 2:
        return []
    return [
        " ".join(_say_value(key, value_of(row, key)) for key in keys)
        for digest, row in first.items()
        if digest in second
    ]


def _say_value(key: str, value: str) -> str:
    """Say a value so that it is understood alone: `train/resnet50`, `fp32`, `ranks 2`."""
    return value if key in ("workload", "precision") else f"{key} {value or NOT_GIVEN}"


def sides_of_import(ledger: Ledger, experiment: Experiment) -> Sides:
    """Return the good runs of the two arms of an import.

    Where each arm is called by its chip, or by its value of a parameter, these are the question.
    """
    rows = [row for row in ledger.runs_of(experiment.id) if row.role == "measured"]
    arms = [[row for row in rows if row.arm == arm] for arm in (0, 1)]
    if not all(arms):
        raise SpecError(f"the runs of an arm of {experiment.id} were deleted", hint="import the logs again")
    labels = _labels(arms[0], arms[1])
    first, second = ([row for row in of_arm if row.status == "done" and row.rate_per_s] for of_arm in arms)
    keys = ("chip", *dict.fromkeys(name for row in rows for name in row.spec.params))
    asked = (key for key in keys if _is_called_by(key, labels[0], first) and _is_called_by(key, labels[1], second))
    key = next(asked, None)
    question = question_of({key: labels[0]}, {key: labels[1]}) if key else Question()
    return Sides(Side(tuple(first)), Side(tuple(second)), labels, question)


def _is_called_by(key: str, label: str, rows: Sequence[RunDetail]) -> bool:
    """Tell whether all runs have one value of a key, and the label is that value."""
    values = {value_of(row, key) for row in rows}
    return len(values) == 1 and bool(matching_values(key, label, [value for value in values if value]))


def reasons_of(sources: StreamSource, sides: Sides) -> tuple[list[Remark], list[str]]:
    """Return why two sides cannot be compared, and what else is doubtful about comparing them."""
    question = sides.question
    about_chips = question.is_about_chips
    subjects = [
        subject_of(sources, label, side.rows, about_chips=about_chips)
        for label, side in zip(sides.labels, sides.both, strict=True)
    ]
    first, second = (subject for subject, _ in subjects)
    mixed = [reason for _, reasons in subjects for reason in reasons]
    left_out = [*sides.first.left_out, *sides.second.left_out]
    why = reasons_not_comparable(first, second, typed_keys=question.parameters, may_differ_chip=about_chips)
    several = [_say_several(label, side) for label, side in zip(sides.labels, sides.both, strict=True) if about_chips]
    return [*mixed, *why], [*left_out, *filter(None, several), *not_known(first, second)]


def _say_several(label: str, side: Side) -> str:
    """Say that a side has several chips of one model, or machines, where the chip is the question."""
    gpus = {row.chip_uuid for row in side.rows if row.chip_uuid}
    machines = {row.ran_on for row in side.rows if row.ran_on}
    if len(gpus) < 2 and len(machines) < 2:
        return ""
    on = [counted(len(found), name) for found, name in ((gpus, "GPU"), (machines, "machine")) if len(found) > 1]
    return Remark(
        f"the runs of {label} are from {' and '.join(on)}, which differ among each other too", "several-chips"
    )


def _side(sources: SeveralLedgers, names: Sequence[str], option: str) -> Side:
    """Good measured runs, by conditions, by their ids or by that of their experiment; `last` is the latest experiment."""
    selections = [name for name in names if is_selection(name)]
    if selections and len(selections) < len(names):
        other = next(name for name in names if not is_selection(name))
        raise SpecError(
            f"{option}: {selections[0]!r} is a condition and {other!r} is an id",
            hint="give conditions, or ids, not both",
        )
    if selections:
        found_by = select_runs(sources, read_conditions(selections, option), option)
        return Side(found_by.rows, found_by.left_out, found_by.conditions)
    found: dict[str, RunDetail] = {}
    left_out: list[str] = []
    for name in names:
        text = name.strip().lower()
        if text == "last" or text.startswith("x-"):
            rows, bad = _of_experiment(sources, name)
            left_out += bad
        else:
            rows = [_good_run(sources, name)]
        found.update((row.id, row) for row in rows)
    if not found:
        raise SpecError("no run was named", hint="stackmark verdict RUN… --against RUN…")
    ordered = sorted(found.values(), key=lambda row: (row.started_unix_s, row.id))
    return Side(tuple(ordered), tuple(dict.fromkeys(left_out)))


def _good_run(sources: SeveralLedgers, name: str) -> RunDetail:
    row = sources.run(name)
    if row.role == "primer":
        raise SpecError(f"{row.id} only filled the caches and is not a measurement", hint="name a measured run")
    if row.status != "done" or not row.rate_per_s:
        why = row.failure_message or row.failure_kind or "it has no rate"
        raise SpecError(f"the run {row.id} is {row.status}: {why}", hint=f"look at it: stackmark show {row.id} --log")
    return row


def _of_experiment(sources: SeveralLedgers, name: str) -> tuple[list[RunDetail], list[str]]:
    experiment, every = sources.experiment(name)
    refuse_suite(experiment)
    rows = [row for row in every if row.role == "measured"]
    # The two arms of an A/A experiment are one and the same.
    if len({(row.arm, row.slot) for row in rows}) > 1 and not kind_of(experiment).is_one_side:
        raise SpecError(
            f"{experiment.id} has several arms and cannot be one side",
            hint=f"its own verdict: stackmark verdict {experiment.id}; or name the runs of one arm (stackmark results)",
        )
    refuse_censored(rows, experiment.id)
    good = [row for row in rows if row.status == "done" and row.rate_per_s]
    bad = [row for row in rows if row.status != "done" or not row.rate_per_s]
    if not good:
        why = f": {bad[0].id} {bad[0].failure_message or bad[0].status}" if bad else ""
        raise SpecError(f"{experiment.id} has no successful run{why}", hint="name another experiment, or run it again")
    return good, [
        f"{len(bad)} of {len(rows)} runs of {experiment.id} have no result and are not counted"
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


def subject_of(
    ledger: StreamSource, label: str, rows: Sequence[RunDetail], *, about_chips: bool = False
) -> tuple[Subject, list[Remark]]:
    """Return what the runs of a side measured, and why they are not one subject where they differ.

    `about_chips`: the question is about a model of chip, so that several chips of one model are one subject.
    """
    results: dict[tuple[str, str], Result | None] = {}
    for row in rows:
        key = row.experiment_id, row.spec_digest
        if key not in results:
            ended = read_stored(ledger.stream(row.id)).stream.ended()
            results[key] = ended if isinstance(ended, Result) else None
    subjects = [_subject(row.id, row, results[row.experiment_id, row.spec_digest]) for row in rows]
    first = subjects[0]
    same_model = [replace(one, chip_uuid=None, machine_id=None) for one in subjects] if about_chips else subjects
    conflicts = next(filter(None, (reasons_not_comparable(same_model[0], other) for other in same_model[1:])), [])
    mixed = [Remark(f"the runs of {label} differ in kind: {reason}", MIXED_RUNS) for reason in conflicts[:1]]
    places = dict.fromkeys(_say_place(row) for row in rows)
    if len(places) > 1:
        named = "; ".join(places)
        mixed.append(Remark(f"the runs of {label} were made in {len(places)} places: {named}", "several-places"))
    return replace(first, label=label), mixed


def _say_place(row: RunDetail) -> str:
    """`container,cpus=2,env=A=1+B=2`: a place with its options, as they are typed in an arm."""
    options = []
    for name, value in sorted(row.place_options.items()):
        several = value if isinstance(value, list) else [value]
        options.append(f"{name}={'+'.join(map(str, several))}")
    return ",".join([row.place, *options])


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
    a: str,
    b: str,
    before: Sequence[RunDetail],
    after: Sequence[RunDetail],
    margin: float,
    spread: RunSpread,
) -> Comparison:
    """Compare by runs where all lie in one series, or came from logs that do not say when; else by series.

    What it says about undated logs is for `in_these_logs` to limit.
    """
    rows = [*before, *after]
    numbers = series_numbers(rows)
    logs = [log_rate(row) for row in rows]
    terms = figure_unit(rows[0].rate_unit).terms
    if len(set(numbers)) == 1 or are_undated(rows):
        first, second = logs[: len(before)], logs[len(before) :]
        return compare_runs(a, b, first, second, margin, spread=spread, terms=terms)
    grouped: tuple[dict[int, list[float]], dict[int, list[float]]] = ({}, {})
    for index, (number, log) in enumerate(zip(numbers, logs, strict=True)):
        grouped[index >= len(before)].setdefault(number, []).append(log)
    return beyond_any_series(
        compare_series(a, b, list(grouped[0].values()), list(grouped[1].values()), margin, terms=terms)
    )


def are_undated(rows: Sequence[RunDetail]) -> bool:
    """Tell whether any of the runs is from a log that does not say when it was made."""
    return any(not row.boot_id for row in rows)


def run_spread(sources: SeveralLedgers, a: RunDetail, b: RunDetail) -> RunSpread:
    """Look up how far runs like A, and like B, differ from each other in these ledgers."""
    factors = [factor for book in sources.books if (factor := spreads.largest_factor(book))]
    return RunSpread(_known_spread(sources, a), _known_spread(sources, b), max(factors, default=None))


def _known_spread(sources: SeveralLedgers, row: RunDetail) -> KnownSpread | None:
    arms = [
        [math.log(rate) for rate in rates]
        for book in sources.books
        for rates in spreads.rates_by_arm(book, row.workload, row.chip)
    ]
    df = sum(len(logs) - 1 for logs in arms)
    squares = sum((log - fmean(logs)) ** 2 for logs in arms for log in logs)
    most = sd_upper(math.sqrt(squares / df), df) if df else None
    what = f"{row.workload} on {row.chip or 'an unknown chip'}"
    return KnownSpread(what, most, sum(map(len, arms))) if most is not None else None


def log_rate(row: RunDetail) -> float:
    """Return ln R of a successful run."""
    assert row.rate_per_s
    return math.log(row.rate_per_s)


def put_together(
    sources: SeveralLedgers,
    sides: Sides,
    margin: float,
    doubts: Sequence[str],
    command: str,
    *,
    bad: Sequence[RunDetail] = (),
    comparable: bool = True,
    limited: bool = True,
) -> Examined:
    """Gather what two sides show. `bad` are runs without a result, which are shown and do not count.

    Words about undated logs are limited to these logs, unless `limited` is False: then whoever calls does it.
    """
    labels = sides.labels
    good = [row.model_copy(update={"arm": arm}) for arm, side in enumerate(sides.both) for row in side.rows]
    times = StepTimes(sources)
    window = window_of(good, times) if good else None
    rows = [*good, *bad]
    seen = [read_run(sources, row, counted=number < len(good), times=times) for number, row in enumerate(rows)]
    facts = [fact for _, fact in seen]
    runs = runs_in(window, [run for run, _ in seen], rows, times)
    good = with_rates(good, rates_in(window, good, times))
    rows = [*good, *bad]
    before, after = ([row for row in good if row.arm == arm] for arm in (0, 1))
    typed: list[dict[str, Scalar]] = [{**sides.question.typed(side)} for side in (0, 1)]
    arms = arms_of(list(zip(labels, typed, strict=True)), runs, facts, rows)
    title, sample = title_of(rows[0].workload, rows[0].rate_unit)
    compared: tuple[Comparison, ...] = ()
    if comparable:
        one = compare_rows(*labels, before, after, margin, run_spread(sources, before[0], after[0]))
        compared = (in_these_logs(one) if limited and are_undated(good) else one,)
    shown = Examined(
        experiment_id="",
        kind="compare",
        state="done",
        state_sentence=f"{counted(len(after), 'stored run')} ({labels[1]}) against {len(before)} ({labels[0]})",
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
        comparisons=compared,
        differences=(*_in_columns(labels, before, after), *explain(arms, runs)),
        covariates=covariate_lines(arms, runs),
        published=nearest_published(sources.first, rows, arms),
        scope=fairness.scope_of_sides(labels, (before, after))
        if sides.question.is_about_chips
        else fairness.scope(rows),
        held=(),
        not_held=tuple(doubts),
        method=fairness.method(None, from_logs=all(not row.boot_id for row in rows)),
        warnings=fairness.warnings(arms, runs, ""),
        selected_by=sides.question.keys,
        published_pairs=published_pairs(sources.first, command, rows, runs, facts, arms),
    )
    return in_window(shown, window)


def _in_columns(
    labels: tuple[str, str], before: Sequence[RunDetail], after: Sequence[RunDetail]
) -> list[FactDifference]:
    """Return in which framework and place logs differ: they have no facts that say so. Places that name the sides are known."""
    found = []
    for key in ("framework", "place") if before and after and are_undated([*before, *after]) else ():
        values = tuple(
            ", ".join(dict.fromkeys(str(getattr(row, key) or "unknown") for row in rows)) for rows in (before, after)
        )
        called = key == "place" and {value.casefold() for value in values} == {label.casefold() for label in labels}
        if values[0] != values[1] and not called:
            found.append(FactDifference("log", key, values, "as the logs, or whoever imported them, say", LOG_WEIGHT))
    return found
