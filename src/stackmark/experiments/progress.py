"""Compute how far an experiment is and what comes next, from the plan, the stopping rule and the ledger's rows.

The rates in the ledger are each run's own and stay as they are. A comparison takes the rates over the window that its runs have
in common (verdict/throughput.py), computed from the stored steps. A run without steps (a program's own figure, a log) has one
rate, and keeps it.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from stackmark.events import Metric, Stream, gathered_facts, histograms
from stackmark.experiments.design import (
    Assignment,
    Design,
    Done,
    Finished,
    StoppingRule,
    balanced,
    next_run,
    sequences_of,
    whole,
    whole_attempts,
)
from stackmark.experiments.fitting import is_censored, is_outcome, trained_runs
from stackmark.experiments.judging import Facts, read_stored, timed_run
from stackmark.figures import figure_unit
from stackmark.histogram import Histogram
from stackmark.ledger.rows import LOST, RunRow
from stackmark.ledger.several import StreamSource
from stackmark.spec import Spec
from stackmark.verdict.bad_runs import count_bad_runs, fisher_p
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import ExaminedRun
from stackmark.verdict.interference import Disturbed, Load, combined, disturbances
from stackmark.verdict.noise import median_block_s
from stackmark.verdict.ratio import Pair, compare_blocks
from stackmark.verdict.rules import RULES
from stackmark.verdict.survival import Span
from stackmark.verdict.telemetry import Telemetry, read_telemetry
from stackmark.verdict.throughput import TimedRun, Window, common_window, first_step_in, rate_in
from stackmark.verdict.time_to_quality import TrainedRun, compare_times
from stackmark.verdict.unpaired import LONGEST_SERIES_S, series_of

Row = TypeVar("Row", bound=RunRow)
# Whoever drove the run ended it, or was ended: that says nothing about the arm.
CUT_OFF = {LOST, "interrupted", "terminated"}


class StepTimes:
    """The step times of stored runs, and what each met, read once: a look at 40 runs after every second block would read them
    again."""

    def __init__(self, ledger: StreamSource) -> None:
        self._ledger = ledger
        self._known: dict[str, TimedRun | None] = {}
        self._loads: dict[str, Load] = {}
        self._metrics: dict[str, dict[str, float]] = {}
        self._latencies: dict[str, dict[str, Histogram]] = {}
        self._trained: dict[str, TrainedRun | None] = {}
        self._sampled: dict[str, Telemetry | None] = {}

    def remember(self, row: RunRow, stream: Stream) -> TimedRun | None:
        """Keep what is needed of a stream that was read anyway, and return its steps."""
        # A run whose numbers cannot be was failed for that: they are not judged again.
        self._known[row.id] = timed_run(stream) if row.rate_per_s else None
        self._metrics[row.id] = _metrics(stream)
        self._latencies[row.id] = _latencies(stream)
        facts = gathered_facts(stream.events)
        sampled = read_telemetry(stream.events, facts)
        # Without its points: a look at a hundred runs needs what they show, and no pictures.
        self._sampled[row.id] = replace(sampled, series={}) if sampled else None
        self._loads[row.id] = _load(row, facts, self._metrics[row.id], self._sampled[row.id])
        return self._known[row.id]

    def of(self, row: RunRow) -> TimedRun | None:
        self._read(row)
        return self._known[row.id]

    def load(self, row: RunRow) -> Load:
        """Return what a run met of other programs."""
        self._read(row)
        return self._loads[row.id]

    def metrics(self, row: RunRow) -> Mapping[str, float]:
        """Return the numbers that a run reported next to its figure."""
        self._read(row)
        return self._metrics[row.id]

    def latencies(self, row: RunRow) -> Mapping[str, Histogram]:
        """Return the histograms of times that a run sent, by name."""
        self._read(row)
        return self._latencies[row.id]

    def sampled(self, row: RunRow) -> Telemetry | None:
        """Return what was sampled next to a run; None where nothing was."""
        self._read(row)
        return self._sampled[row.id]

    def trained(self, row: RunRow, spec: Spec) -> TrainedRun | None:
        """Return the run's way to its target; None where its spec has none."""
        if row.id not in self._trained:
            self._trained[row.id] = next(iter(trained_runs(self._ledger, spec, [row])), None)
        return self._trained[row.id]

    def _read(self, row: RunRow) -> None:
        if row.id not in self._known:
            self.remember(row, read_stored(self._ledger.stream(row.id)).stream)


def _metrics(stream: Stream) -> dict[str, float]:
    return {event.name: event.value for event in stream.events if isinstance(event, Metric) and event.rank == 0}


def _latencies(stream: Stream) -> dict[str, Histogram]:
    try:
        return histograms(stream.events)
    except ValueError:  # a run that sent such ones has failed for that
        return {}


def _load(row: RunRow, facts: Facts, said: Mapping[str, float], sampled: Telemetry | None) -> Load:
    threads = facts.get("cpu", {}).get("threads")
    on_gpu = said.get("other_gpu_processes")
    # A program that came and went in between is in the samples only. A user's own program is told from others by their numbers.
    in_between = sampled.others_on_gpu if sampled and "chip_by" not in facts.get("gpu", {}) else None
    if in_between is not None:
        on_gpu = max(on_gpu or 0.0, in_between)
    return Load(
        arm=row.arm,
        block=row.block or 0,
        attempt=row.attempt,
        # CPU time by the counters at both ends: they miss nothing, where samples are looks at moments.
        other_cpus=said.get("other_cpus"),
        other_gpu_processes=on_gpu,
        seconds=said.get("counters_elapsed_s"),
        cores=threads if isinstance(threads, int) and threads > 0 else 1,
    )


def window_of(rows: Sequence[RunRow], times: StepTimes) -> Window | None:
    """Return the common window; None unless every run has steps, because a window for one arm would compare two things.

    None also where all runs are too short to tell: each is measured over its own second half then, by one rule for all.
    """
    timed = [times.of(row) for row in rows]
    found = [run for run in timed if run is not None]
    if len(found) < len(timed) or all(run.kind == "too short to tell" for run in found):
        return None
    return common_window(found)


def rates_in(window: Window | None, rows: Sequence[RunRow], times: StepTimes) -> dict[str, float]:
    """Return the rate over the window of each run that has steps, by run id."""
    if window is None:
        return {}
    return {row.id: rate_in(window, timed) for row in rows if (timed := times.of(row)) is not None}


def with_rates(rows: Sequence[Row], rates: Mapping[str, float]) -> list[Row]:
    """Return the rows with the given rates, where there are any."""
    return [row.model_copy(update={"rate_per_s": rates[row.id]}) if row.id in rates else row for row in rows]


def in_common_windows(ledger: StreamSource, rows: Sequence[Row]) -> list[Row]:
    """Return the rows with the rates of each experiment's good runs over the window that they have in common."""
    times, rates = StepTimes(ledger), dict[str, float]()
    good = [row for row in rows if row.role == "measured" and row.status == "done" and row.rate_per_s]
    for experiment_id in dict.fromkeys(row.experiment_id for row in good):
        together = [row for row in good if row.experiment_id == experiment_id]
        # A run by itself has its own steady part, and its row says its rate.
        window = window_of(together, times) if len(together) > 1 else None
        rates |= rates_in(window, together, times)
    return with_rates(rows, rates)


def runs_in(
    window: Window | None, runs: Sequence[ExaminedRun], rows: Sequence[RunRow], times: StepTimes
) -> list[ExaminedRun]:
    """Return the measured runs over the window; without a window, and for primers, as they are."""
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


@dataclass(frozen=True)
class Progress:
    """The progress of an experiment. `blocks` are complete, each with its attempt; the verdict uses the first `look` of them."""

    next: Assignment | Done
    blocks: dict[int, int]
    look: int
    # Of a sequential design: the levels at that look.
    levels: tuple[float, float] | None = None
    # Whether what comes next is a block that other programs disturbed, measured again.
    again: bool = False

    @property
    def open(self) -> bool:
        return isinstance(self.next, Assignment)


def progress(design: Design, rows: Sequence[RunRow], times: StepTimes | None = None) -> Progress:
    """Return how far the experiment is. With `times` a look measures its runs over one window, as the verdict does."""
    finished = finished_runs(rows, disturbed_runs(design, rows, times))
    if design.rule is None:
        blocks = whole(design, finished)
        now = Progress(next_run(design, finished), blocks, len(blocks))
    else:
        now = _by_rule(design, design.rule, finished, rows, times)
    return replace(now, again=_begins_again(design, now.next, finished))


def _begins_again(design: Design, step: Assignment | Done, finished: list[Finished]) -> bool:
    """Whether a run is the first of a repetition of a whole block."""
    if not isinstance(step, Assignment) or not step.attempt:
        return False
    begun = any((run.block, run.attempt) == (step.block, step.attempt) for run in finished)
    return not begun and (step.block, step.attempt - 1) in whole_attempts(design, finished)


def _by_rule(
    design: Design,
    rule: StoppingRule,
    finished: list[Finished],
    rows: Sequence[RunRow],
    times: StepTimes | None,
) -> Progress:
    """Between two looks, what the one before showed; a look is at all of its blocks or at none."""
    looked, levels = 0, None
    for look, *both in zip(rule.looks, rule.levels, rule.levels_95, strict=True):
        step = next_run(design, finished, blocks=look)
        blocks = {block: attempt for block, attempt in whole(design, finished).items() if block < look}
        if isinstance(step, Assignment) or step.short:
            return Progress(step, blocks, looked, levels)
        looked, levels = look, (both[0], both[1])
        seen = rows_in_window(rows, blocks, times) if times else rows
        # By the rules it was made under: an experiment that has stopped does not become open again by new rules.
        attempts = whole_attempts(design, finished) if design.repeats_disturbed else {}
        if all(
            pair.word != "INCONCLUSIVE"
            for pair in judged_pairs(
                design,
                seen,
                blocks,
                attempts,
                levels=levels,
                rules=design.rules,
                trained=trained_in(design, seen, times),
            )
        ):
            break
    return Progress(Done(), blocks, looked, levels)


def rows_in_window(rows: Sequence[RunRow], blocks: dict[int, int], times: StepTimes) -> list[RunRow]:
    """Return the runs of these blocks, with their rates over the window that they have in common.

    Only theirs: what a look showed does not change with the runs that come after it.
    """
    looked_at = [row for row in rows if is_in(row, blocks)]
    window = window_of(looked_at, times)
    # Disturbed attempts at these blocks are measured over the same window, for the verdict with them.
    every = [
        row
        for row in rows
        if row.role == "measured" and (row.status == "done" or is_censored(row)) and row.block in blocks
    ]
    return with_rates(every, rates_in(window, every, times))


def is_in(row: RunRow, blocks: dict[int, int]) -> bool:
    """Return whether it is a successful measured run of one of these blocks."""
    good = row.role == "measured" and is_outcome(row)
    return good and row.block is not None and blocks.get(row.block) == row.attempt


def disturbed_runs(design: Design, rows: Sequence[RunRow], times: StepTimes | None) -> set[tuple[int, int, int]]:
    """Find the runs that other programs disturbed, by arm, block and attempt."""
    if times is None:
        return set()
    good = [
        row
        for row in rows
        if row.role == "measured" and (row.status == "done" or is_censored(row)) and row.block is not None
    ]
    found = disturbances([times.load(row) for row in good], design.idle_cpus)
    return {(one.arm, one.block, one.attempt) for one in found}


def finished_runs(rows: Sequence[RunRow], disturbed: Collection[tuple[int, int, int]] = ()) -> list[Finished]:
    measured = sorted(
        (row for row in rows if row.role == "measured" and row.block is not None and row.status != "running"),
        key=lambda row: (row.started_unix_s, row.id),
    )
    return [
        Finished(
            arm=row.arm,
            block=row.block or 0,
            attempt=row.attempt,
            good=is_outcome(row),
            cut_off=row.failure_kind in CUT_OFF,
            series=series,
            disturbed=(row.arm, row.block or 0, row.attempt) in disturbed,
        )
        # A block of runs that take a day each is still a block: only a reboot or a pause tears it apart.
        for row, series in zip(measured, series_numbers(measured, longest_s=math.inf), strict=True)
    ]


def trained_in(design: Design, rows: Sequence[RunRow], times: StepTimes | None) -> dict[str, TrainedRun]:
    """Return the ways to the target of all runs, by run id, where one of them did not reach it; else nothing is asked of them."""
    if times is None or not any(is_censored(row) for row in rows):
        return {}
    measured = [row for row in rows if row.role == "measured" and is_outcome(row)]
    found = {row.id: times.trained(row, design.arms[row.arm].spec) for row in measured}
    return {run_id: run for run_id, run in found.items() if run is not None}


def series_numbers(rows: Sequence[RunRow], longest_s: float = LONGEST_SERIES_S) -> list[int]:
    """Return for each run the number of its series, from 0 in the order of time."""
    return series_of([(row.started_unix_s, row.ended_unix_s, row.boot_id) for row in rows], longest_s)


def rates_by_block(design: Design, rows: Sequence[RunRow], blocks: Iterable[tuple[int, int]]) -> list[list[float]]:
    """Return for each arm ln R of each complete block, in the order of the blocks, with its attempt; R of rank counts is per
    rank. An arm of which a run has no rate, because it did not reach its target, has none."""
    order = sorted(blocks)
    rate = {
        (row.arm, row.block, row.attempt): row.rate_per_s
        for row in rows
        if row.role == "measured" and row.status == "done" and row.rate_per_s
    }
    # Of a group the rate per rank: the ratio to one rank is the efficiency then.
    ranks = [arm.spec.ranks if design.scaling else 1 for arm in design.arms]
    arms = range(len(design.arms))
    return [
        [math.log(rate[(arm, *key)] / ranks[arm]) for key in order] if all((arm, *key) in rate for key in order) else []
        for arm in arms
    ]


def times_by_block(
    arm: int, rows: Sequence[RunRow], blocks: Sequence[tuple[int, int]], trained: Mapping[str, TrainedRun]
) -> list[Span]:
    """Return what is known of an arm's time to its target in each block, in the order of the blocks."""
    ids = {
        (row.block, row.attempt): row.id
        for row in rows
        if row.role == "measured" and row.arm == arm and is_outcome(row)
    }
    # A run whose evaluations cannot be read says nothing: longer than no time.
    runs = [trained.get(ids[key]) for key in blocks]
    return [run.span if run else Span(0.0, None) for run in runs]


def judged_pairs(
    design: Design,
    rows: Sequence[RunRow],
    blocks: dict[int, int],
    attempts: Mapping[tuple[int, int], bool],
    *,
    levels: tuple[float, float] | None,
    margin: float | None = None,
    rules: int = RULES,
    finish: Callable[[list[Comparison]], list[Comparison]] = list,
    late: Collection[tuple[int, int, int]] = (),
    trained: Mapping[str, TrainedRun] | None = None,
) -> list[Comparison]:
    """Compare every pair of arms with and without the blocks that other programs disturbed. `finish` is Holm's part.

    `attempts` are all whole attempts at blocks, and whether each was disturbed; `blocks` those that count. `trained` has the ways
    of runs to their target quality, where one of them did not reach it.
    """

    def of(chosen: Iterable[tuple[int, int]]) -> list[Comparison]:
        return finish(comparisons(design, rows, chosen, levels, margin, rules=rules, late=late, trained=trained))

    every = [key for key in attempts if key[0] in blocks]
    if not any(attempts[key] for key in every):
        return of(blocks.items())
    clean = {block: attempt for block, attempt in blocks.items() if not attempts.get((block, attempt))}
    kept = clean if design.rule else balanced(design, clean)
    left = sum(bool(attempts.get(key)) for key in blocks.items())
    repeated = len({block for block, attempt in every if attempts[block, attempt]}) - left
    seen = Disturbed(len(blocks), left, repeated, len(clean) - len(kept), again=len(every) - len(blocks))
    without: list[Comparison | None] = [*of(kept.items())] if len(kept) > 1 else []
    return [combined(without[number] if without else None, pair, seen) for number, pair in enumerate(of(every))]


def comparisons(
    design: Design,
    rows: Sequence[RunRow],
    blocks: Iterable[tuple[int, int]],
    levels: tuple[float, float] | None,
    margin: float | None = None,
    *,
    rules: int = RULES,
    late: Collection[tuple[int, int, int]] = (),
    trained: Mapping[str, TrainedRun] | None = None,
) -> list[Comparison]:
    """Compare every pair of arms, the first of each being the one that was named first; before Holm.

    `late` are runs, by arm, block and attempt, whose warm-up ended so late that they count as bad ones.
    """
    chosen = sorted(blocks)
    logs = rates_by_block(design, rows, chosen)
    labels = [arm.label for arm in design.arms]
    wanted = design.margin if margin is None else margin
    spoilt = [[(arm, *key) in late for key in chosen] if logs[arm] else [] for arm in range(len(labels))]
    bad = count_bad_runs(labels, logs, wanted, spoilt)
    block_s = median_block_s(
        (row.block, row.started_unix_s, row.ended_unix_s)
        for row in rows
        if row.block is not None and row.ended_unix_s is not None and (row.block, row.attempt) in chosen
    )
    terms = figure_unit(next((row.rate_unit for row in rows if row.rate_unit), None)).terms
    if design.scaling:
        terms = "efficiency"
    found = []
    # Rank counts are compared with one rank, and not with each other.
    for a in range(len(labels))[: 1 if design.scaling else None]:
        for b in range(a + 1, len(labels)):
            if not logs[a] or not logs[b]:
                of_a, of_b = (times_by_block(arm, rows, chosen, trained or {}) for arm in (a, b))
                who = Pair(labels[a], labels[b], "blocks", len(chosen), len(chosen), terms)
                found.append(compare_times(who, of_a, of_b, wanted, levels=levels, block_s=block_s))
                continue
            pair = compare_blocks(
                labels[a], labels[b], logs[a], logs[b], wanted, levels=levels, multiple=sequences_of(len(labels)),
                block_s=block_s, rules=rules, terms=terms,
            )  # fmt: skip
            p = fisher_p(bad[a], bad[b]) if bad[a].bad or bad[b].bad else None
            found.append(replace(pair, bad_runs=(bad[a], bad[b]), p_bad_runs=p))
    return found
