"""How far an experiment has come, and what comes next: the plan, the stopping rule and the ledger's rows put together."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stackmark.lab.windows import StepTimes, rates_in, window_of, with_rates
from stackmark.ledger.rows import LOST, RunRow
from stackmark.plan.design import Assignment, Design, Done, Finished, StoppingRule, next_run, sequences_of, whole
from stackmark.verdict.bad_runs import count_bad_runs, fisher_p
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.noise import median_block_s
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.rules import RULES
from stackmark.verdict.unpaired import series_of

# Whoever drove the run ended it, or was ended: that says nothing about the arm.
CUT_OFF = {LOST, "interrupted", "terminated"}


@dataclass(frozen=True)
class Progress:
    """`blocks` are the whole ones, each with its attempt; the verdict is made from the first `look` of them."""

    next: Assignment | Done
    blocks: dict[int, int]
    look: int
    # Of a sequential design: the levels at that look.
    levels: tuple[float, float] | None = None

    @property
    def open(self) -> bool:
        return isinstance(self.next, Assignment)


def progress(design: Design, rows: Sequence[RunRow], times: StepTimes | None = None) -> Progress:
    """How far it has come. With `times` a look measures its runs over one window, as the verdict does."""
    finished = finished_runs(rows)
    if design.rule is None:
        blocks = whole(design, finished)
        return Progress(next_run(design, finished), blocks, len(blocks))
    return _by_rule(design, design.rule, finished, rows, times)


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
        if all(pair.word != "INCONCLUSIVE" for pair in comparisons(design, seen, blocks, levels, rules=design.rules)):
            break
    return Progress(Done(), blocks, looked, levels)


def rows_in_window(rows: Sequence[RunRow], blocks: dict[int, int], times: StepTimes) -> list[RunRow]:
    """The runs of these blocks, with their rates over the window that they have in common.

    Only theirs: what a look showed does not change with the runs that come after it.
    """
    looked_at = [row for row in rows if is_in(row, blocks)]
    return with_rates(looked_at, rates_in(window_of(looked_at, times), looked_at, times))


def is_in(row: RunRow, blocks: dict[int, int]) -> bool:
    """Whether it is a good measured run of one of these blocks."""
    good = row.role == "measured" and row.status == "done" and bool(row.rate_per_s)
    return good and row.block is not None and blocks.get(row.block) == row.attempt


def finished_runs(rows: Sequence[RunRow]) -> list[Finished]:
    measured = sorted(
        (row for row in rows if row.role == "measured" and row.block is not None and row.status != "running"),
        key=lambda row: (row.started_unix_s, row.id),
    )
    return [
        Finished(
            arm=row.arm,
            block=row.block or 0,
            attempt=row.attempt,
            good=row.status == "done" and bool(row.rate_per_s),
            cut_off=row.failure_kind in CUT_OFF,
            sitting=sitting,
        )
        for row, sitting in zip(measured, series_numbers(measured), strict=True)
    ]


def series_numbers(rows: Sequence[RunRow]) -> list[int]:
    """Return for each run the number of its series, from 0 in the order of time."""
    return series_of([(row.started_unix_s, row.ended_unix_s, row.boot_id) for row in rows])


def rates_by_block(design: Design, rows: Sequence[RunRow], blocks: dict[int, int]) -> list[list[float]]:
    """For each arm ln R of each whole block, in the order of the blocks."""
    rate = {
        (row.arm, row.block, row.attempt): row.rate_per_s
        for row in rows
        if row.role == "measured" and row.status == "done" and row.rate_per_s
    }
    return [
        [math.log(rate[arm, block, attempt]) for block, attempt in sorted(blocks.items())]
        for arm in range(len(design.arms))
    ]


def comparisons(
    design: Design,
    rows: Sequence[RunRow],
    blocks: dict[int, int],
    levels: tuple[float, float] | None,
    margin: float | None = None,
    *,
    rules: int = RULES,
) -> list[Comparison]:
    """Compare every pair of arms, the first of each being the one that was named first; before Holm."""
    logs = rates_by_block(design, rows, blocks)
    labels = [arm.label for arm in design.arms]
    wanted = design.margin if margin is None else margin
    bad = count_bad_runs(labels, logs, wanted)
    block_s = median_block_s(
        (row.block, row.started_unix_s, row.ended_unix_s)
        for row in rows
        if row.block is not None and row.ended_unix_s is not None and blocks.get(row.block) == row.attempt
    )
    found = []
    for a in range(len(labels)):
        for b in range(a + 1, len(labels)):
            pair = compare_blocks(
                labels[a], labels[b], logs[a], logs[b], wanted, levels=levels, multiple=sequences_of(len(labels)),
                block_s=block_s, rules=rules,
            )  # fmt: skip
            p = fisher_p(bad[a], bad[b]) if bad[a].bad or bad[b].bad else None
            found.append(replace(pair, bad_runs=(bad[a], bad[b]), p_bad_runs=p))
    return found
