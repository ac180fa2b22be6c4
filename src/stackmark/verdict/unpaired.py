"""Runs that were not made in blocks: two lists of them, such as logs of somebody else's machine, or runs of two days.

Nothing was held equal between them, so a drift of the machine is in the difference, and more noise than between the runs of a
block. Welch's interval takes the two sides to be independent and lets them spread differently. What it cannot see is said in a
note: all of one side may have run on a warmer day.

`sittings_of` tells which runs belong together in time; sittings.py compares before and after by them.
"""

from collections.abc import Sequence

from stackmark.verdict.comparison import Comparison, Needed
from stackmark.verdict.evidence import logs_of, welch
from stackmark.verdict.ratio import Pair, judged, without_interval

# The pause after which a machine is no longer what it was: it has cooled, somebody has worked on it.
PAUSE_S = 3600.0
NOT_INTERLEAVED = "the runs were not interleaved: what changed between the two sides over time is in the difference too"


def compare_runs(a: str, b: str, logs_a: Sequence[float], logs_b: Sequence[float], margin: float) -> Comparison:
    """B against A from ln R of the runs of each, in any order and number."""
    first, second = logs_of(logs_a, a), logs_of(logs_b, b)
    pair = Pair(a, b, "runs", first.size, second.size)
    if min(first.size, second.size) < 2:
        alone = " and ".join(name for name, logs in ((a, first), (b, second)) if logs.size == 1)
        return without_interval(
            pair,
            float(second.mean() - first.mean()),
            margin,
            why=f"one run of {alone} has no spread, so there is no interval",
            advice=Needed(None, "how many runs it takes is known when there are two or more a side; six are usual"),
        )
    return judged(pair, welch(first, second), margin, notes=(NOT_INTERLEAVED,))


def sittings_of(runs: Sequence[tuple[float, float | None, str]]) -> list[int]:
    """For each run (started, ended, boot id) the number of its sitting, in the order of time, from 0.

    A reboot or an hour's pause begins a new one. Runs of several machines may be mixed: each boot has its own sittings.
    """
    numbers = [0] * len(runs)
    current: dict[str, int] = {}
    latest_unix_s: dict[str, float] = {}
    count = 0
    for index in sorted(range(len(runs)), key=lambda at: runs[at][0]):
        started, ended, boot = runs[index]
        if boot not in current or started - latest_unix_s[boot] >= PAUSE_S:
            current[boot] = count
            count += 1
        numbers[index] = current[boot]
        # A run that never ended lasted at least until it began; one inside another does not end the other.
        latest_unix_s[boot] = max(latest_unix_s.get(boot, started), started if ended is None else ended)
    return numbers
