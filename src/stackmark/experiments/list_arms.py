"""Arms that went through a list: each arm's rows over the runs that count, and every pair of arms row by row.

The verdict is by the list's own rate, run against run. It is about one list only where all runs timed the same problems: a
problem that failed in one arm makes two lists of it, and that is said before anything else.
"""

from collections.abc import Sequence
from itertools import combinations

from stackmark.events import OpRow
from stackmark.experiments.judging import read_stored
from stackmark.experiments.list_specs import is_list
from stackmark.experiments.listed import rows_in
from stackmark.ledger.rows import RunDetail
from stackmark.ledger.store import Ledger
from stackmark.units import counted
from stackmark.verdict.examined import ExaminedRun
from stackmark.verdict.operators import ListRatio, ListResult, compare_lists, over_runs

# For each arm its runs that count, each with its block (None where there are no blocks) and its rows.
ArmRuns = list[list[tuple[int | None, list[OpRow]]]]


def arm_list_runs(ledger: Ledger, rows: Sequence[RunDetail], runs: Sequence[ExaminedRun], arms: int) -> ArmRuns:
    """Read the rows of each arm's runs that count; nothing where the workload is not a list, or was read from a log."""
    if not is_list(rows[0].workload):
        return []
    of_arm: ArmRuns = [[] for _ in range(arms)]
    for row, run in zip(rows, runs, strict=True):
        if run.counted:
            of_arm[run.arm].append((run.block, rows_in(read_stored(ledger.stream(row.id)).stream.events)))
    return of_arm if any(found for arm in of_arm for _, found in arm) else []


def arm_lists(of_arm: ArmRuns) -> list[ListResult]:
    """Sum up the list of each arm over its runs."""
    every = sorted({row.index for arm in of_arm for _, run in arm for row in run})
    return [over_runs([run for _, run in arm], every) for arm in of_arm]


def list_ratios(labels: Sequence[str], of_arm: ArmRuns) -> tuple[ListRatio, ...]:
    """Compare every pair of arms row by row, by the blocks that both have."""
    by_block = [{block: run for block, run in arm if block is not None} for arm in of_arm]
    pairs = [
        compare_lists(labels[a], labels[b], by_block[a], by_block[b]) for a, b in combinations(range(len(by_block)), 2)
    ]
    return tuple(pair for pair in pairs if pair)


def list_doubts(labels: Sequence[str], lists: Sequence[ListResult]) -> list[str]:
    """Where arms, or runs of one arm, did not time the same problems."""
    asked = {frozenset(row.index for row in one.rows) for one in lists}
    if len(asked) > 1:
        counts = ", ".join(
            f"{counted(len(one.rows), 'problem')} in {label}" for label, one in zip(labels, lists, strict=False)
        )
        return [f"the rates are not of one list: {counts}; give all arms the same --rows"]
    failed = [
        f"{counted(len(one.failed), 'problem')} in {label}"
        for label, one in zip(labels, lists, strict=False)
        if one.failed
    ]
    same = len({frozenset(row.index for row in one.failed) for one in lists}) <= 1
    if not failed or (same and all(row.seconds is None for one in lists for row in one.failed)):
        return []
    return [
        f"the rates are not of one list: {', '.join(failed)} gave no number; leave them out with --rows, or mend them"
    ]
