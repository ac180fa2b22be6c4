"""Find for each benchmark of an experiment the published number that comes nearest, and put both next to each other.

A benchmark is what runs have in common: an arm, a spec and a chip. An import of several logs may hold many. The published row
is the one that `--published` named when the experiment was made, else the nearest of the same metric; for MLPerf training it
is the time of the same benchmark, round and chips. Everything is computed again from the ledger.
"""

import math
import shlex
from collections.abc import Sequence

from stackmark.errors import SpecError
from stackmark.events import Hello
from stackmark.experiments.judging import read_stored
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.mlperf import LoggedSystem, time_published_for
from stackmark.figures import FigureUnit, figure_unit
from stackmark.ledger.importers.mlperf_training import FORMAT
from stackmark.ledger.rows import IMPORT, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.published.lookup import (
    choose,
    find_reference,
    higher_is_better,
    known_operators,
    known_rows,
    near,
    say_row,
)
from stackmark.published.near import Match
from stackmark.published.operators import NearPublished, published_for
from stackmark.published.stack import stack_differences, stack_lines, stack_of_facts, stack_of_row
from stackmark.published.table import Published
from stackmark.remarks import Remark
from stackmark.spec import Spec
from stackmark.units import counted
from stackmark.verdict.examined import Examined, ExaminedArm, ExaminedRun, Facts
from stackmark.verdict.mlperf_score import RUNS_ASKED
from stackmark.verdict.operators import RowResult
from stackmark.verdict.published_pairs import PublishedPair, pair_of_figures
from stackmark.verdict.throughput import throughput_over_runs
from stackmark.verdict.unpaired import compare_published

OPTION = "--published"


def published_pairs(
    ledger: Ledger,
    command: str,
    rows: Sequence[RunDetail],
    runs: Sequence[ExaminedRun],
    facts: Sequence[Facts],
    arms: Sequence[ExaminedArm],
) -> tuple[PublishedPair, ...]:
    """Return a pair for each benchmark that has a published row of its metric; rows, runs and facts are parallel."""
    groups: dict[tuple[int, str, str | None], list[int]] = {}
    for index, (row, run) in enumerate(zip(rows, runs, strict=True)):
        if run.counted and run.rate_per_s and not is_list(row.workload):
            groups.setdefault((run.arm, row.spec_digest, row.chip), []).append(index)
    known = known_rows(ledger) if groups else ()
    labels = {arm.index: arm.label for arm in arms} if len(arms) > 1 else {}
    found: list[PublishedPair] = []
    without: set[tuple[str, str | None]] = set()
    for (arm, _, _), indices in sorted(groups.items(), key=lambda one: one[0][0]):
        row = rows[indices[-1]]
        # A table of thousands of rows is searched once for each workload that it has nothing of.
        if (row.workload, row.rate_unit) in without:
            continue
        rates = [rate for index in indices if (rate := runs[index].rate_per_s)]
        pair = _pair(ledger, command, row, rates, facts[indices[-1]], labels.get(arm, ""), known)
        if pair is None:
            without.add((row.workload, row.rate_unit))
        else:
            found.append(pair)
    return tuple(found)


def _pair(
    ledger: Ledger,
    command: str,
    row: RunDetail,
    rates: Sequence[float],
    facts: Facts,
    arm: str,
    known: Sequence[Published],
) -> PublishedPair | None:
    unit = figure_unit(row.rate_unit)
    over_runs = throughput_over_runs(rates)
    ours = unit.value(over_runs.rate_per_s)
    match = _mlperf_match(ledger, row, facts, ours, len(rates))
    notes = _mlperf_notes(row.workload, len(rates)) if match else ()
    match = match or _nearest(command, row, unit, known)
    if match is None or not _same_metric(match.row, unit):
        return None
    theirs = match.row.value
    percent, ratio = pair_of_figures(unit, ours, theirs)
    low = high = None
    if over_runs.low_per_s is not None and over_runs.high_per_s is not None:
        low, high = unit.bounds(over_runs.low_per_s, over_runs.high_per_s)
    context = bool(match.differs)
    judged = None
    # Logs that do not say when they were made are one series: they allow no word on the machine.
    if len(rates) > 1 and not context and row.boot_id:
        # As the ledger has figures: a time as its reciprocal.
        constant = theirs if unit.higher_is_better else 1 / theirs
        judged = compare_published("ours", [math.log(rate) for rate in rates], constant)
    mine = stack_of_facts(facts, row.chip, row.spec.ranks, row.framework)
    return PublishedPair(
        _name(row.spec, arm), unit.name, unit.higher_is_better, ours, low, high,
        tuple(map(unit.value, rates)), theirs, percent, ratio, what=_what(match.row), source=match.row.source,
        date=match.row.date, at=match.row.at, context=context, differs=match.differs, word=judged.word if judged else None,
        margin=judged.margin if judged else None, notes=notes, stack=stack_lines(mine, stack_of_row(match.row)),
    )  # fmt: skip


def _same_metric(row: Published, unit: FigureUnit) -> bool:
    """Tell whether a row counts in the same unit with the same direction: of times and watts less is better."""
    return row.unit == unit.name and unit.higher_is_better == higher_is_better(row)


def _what(row: Published) -> str:
    submitter = row.extra.get("submitter")
    return f"{row.system}, {submitter}: {say_row(row)}" if submitter and row.system else say_row(row)


def _name(spec: Spec, arm: str) -> str:
    """Format like `train/resnet50_v1.5, bf16, batch 256, 2 devices, container`."""
    precision, batch = spec.params.get("precision"), spec.params.get("batch")
    parts = [spec.workload, str(precision) if precision else "", f"batch {batch}" if batch else ""]
    return ", ".join(part for part in [*parts, counted(spec.ranks, "device") if spec.ranks > 1 else "", arm] if part)


def _nearest(command: str, row: RunDetail, unit: FigureUnit, known: Sequence[Published]) -> Match | None:
    """Return the row that the command named, else the nearest one of the same metric."""
    if text := asked_row(command):
        try:
            reference = find_reference(text, row.workload, row.spec.params, unit.name, known)
        except SpecError:
            pass  # the row was removed, or the text is of another workload of the command
        else:
            if chosen := choose(reference, row.spec, unit.name, row.chip, row.framework):
                return chosen
    return next(iter(near(row.spec, unit.name, row.chip, row.framework, known, limit=1)), None)


def asked_row(command: str) -> str | None:
    """Return what a stored command gave to `--published`; None without the option."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    for index, word in enumerate(words):
        if word == OPTION:
            return next(iter(words[index + 1 :]), None)
        if word.startswith(f"{OPTION}="):
            return word.partition("=")[2] or None
    return None


# --- MLPerf training ----------------------------------------------------------------------------------------------------


def _mlperf_match(ledger: Ledger, row: RunDetail, facts: Facts, minutes: float, runs: int) -> Match | None:
    """Return the published time of the same benchmark, round and chips, with everything that differs."""
    logged = facts.get(IMPORT, {})
    if logged.get("format") != FORMAT or row.chip is None:
        return None
    hello = next(
        (event for event in read_stored(ledger.stream(row.id)).stream.events if isinstance(event, Hello)), None
    )
    when = hello.time_unix_s if hello and hello.time_unix_s else None
    found = time_published_for(LoggedSystem(row.workload, row.chip, row.spec.ranks, logged, when), minutes)
    if found is None:
        return None
    theirs = found.row
    differs: list[str] = []
    if not found.same_system:
        differs.append(
            Remark(f"{theirs.system} instead of {logged.get('platform') or 'a system not stated'}", "system")
        )
    batch, its = row.spec.params.get("global_batch"), theirs.extra.get("global_batch")
    if its is not None and its != batch:
        differs.append(Remark(f"global batch {its}" + (f" instead of {batch}" if batch else ""), "batch"))
    its_runs = theirs.extra.get("runs_s")
    if isinstance(its_runs, list) and len(its_runs) != runs:
        differs.append(Remark(f"{counted(len(its_runs), 'run')} instead of {runs}", "runs"))
    stack = stack_lines(stack_of_facts(facts, row.chip, row.spec.ranks, row.framework), stack_of_row(theirs))
    return Match(theirs, (*differs, *stack_differences(stack)), ())


def _mlperf_notes(workload: str, runs: int) -> tuple[str, ...]:
    asked = RUNS_ASKED.get(workload.partition("/")[2])
    rule = f"; the rules require {asked} and drop the fastest and the slowest" if asked else ""
    return (f"unofficial, not a score of MLPerf: the mean of {counted(runs, 'run')}{rule}",)


# --- operator lists -----------------------------------------------------------------------------------------------------

MILLISECONDS = FigureUnit("ms", higher_is_better=False)


def operator_pairs(ledger: Ledger, examined: Examined) -> tuple[PublishedPair, ...]:
    """Return a pair for each problem of an operator list that has a published time, and each arm that has a time.

    They are made for a chart only: the report shows published times in the table of the list.
    """
    if not any(problem.published for problem in examined.operators):
        return ()
    known = known_operators(ledger)
    found = []
    for problem in examined.operators:
        for arm, row in zip(examined.arms, problem.rows, strict=False):
            if row is None or row.seconds is None:
                continue
            label = arm.label if len(examined.arms) > 1 else ""
            name = ", ".join(part for part in (f"{examined.workload} {problem.name}", row.precision, label) if part)
            near_it = published_for(known, row.op, row.shape, row.precision, arm.chip, limit=1)
            found += [_operator_pair(name, arm, row, one) for one in near_it]
    return tuple(found)


def _operator_pair(name: str, arm: ExaminedArm, row: RowResult, near_it: NearPublished) -> PublishedPair:
    assert row.seconds is not None
    ours, theirs = 1e3 * row.seconds, 1e3 * near_it.seconds
    percent, ratio = pair_of_figures(MILLISECONDS, ours, theirs)
    framework = arm.facts.get("software", {}).get("torch")
    mine = stack_of_facts(arm.facts, arm.chip, 1, f"PyTorch {framework}" if framework else None)
    stack = stack_lines(mine, stack_of_row(near_it.row))
    chip = [one for one in stack_differences(stack) if one.kind == "stack-chip"]
    differs = (*chip, *near_it.caveats)
    return PublishedPair(
        name, MILLISECONDS.name, MILLISECONDS.higher_is_better, ours, 1e3 * row.low_s if row.low_s else None,
        1e3 * row.high_s if row.high_s else None, (ours,) * max(row.runs, 1), theirs, percent, ratio,
        what=f"{near_it.chip}, {near_it.precision}", source=near_it.row.source, date=near_it.row.date,
        at=near_it.row.at.partition("[")[0], context=bool(differs), differs=differs, stack=stack,
    )  # fmt: skip
