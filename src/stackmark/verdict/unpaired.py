"""Runs that were not made in blocks: two lists of them, such as logs of somebody else's machine, or runs of two days.

Nothing was held equal between them, so a drift of the machine is in the difference, and more noise than between the runs of a
block. Welch's interval takes the two sides to be independent and lets them spread differently. What it cannot see is said in a
note: all of one side may have run on a warmer day.

Logs that do not say when they were written are one series a side: their runs may all be of one day, and a day's own 1 % makes
a word of nothing in one of three comparisons. So the word is said of these logs alone, and the verdict is INCONCLUSIVE.

`series_of` tells which runs belong together in time; series.py compares before and after by them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from stackmark.verdict.comparison import Comparison, Needed
from stackmark.verdict.evidence import logs_of, welch
from stackmark.verdict.needed import percent
from stackmark.verdict.one_run import CERTAIN_FACTOR, RunSpread, compare_single
from stackmark.verdict.ratio import Pair, judged

# The pause after which a machine is no longer what it was: it has cooled, somebody has worked on it.
PAUSE_S = 3600.0
# A series of runs back to back ends after a day: what follows meets another day's temperature and load.
LONGEST_SERIES_S = 24 * 3600.0
NOT_INTERLEAVED = "the runs were not interleaved: what changed between the two sides over time is in the difference too"
ONE_SERIES = (
    "logs do not say when their runs were made, so each side is one series: how far series of these machines differ is "
    "not known"
)
DATED_ADVICE = "runs of three days or more a side, measured with stackmark or with their dates, would tell"


def compare_runs(
    a: str,
    b: str,
    logs_a: Sequence[float],
    logs_b: Sequence[float],
    margin: float,
    *,
    spread: RunSpread | None = None,
    undated: bool = False,
) -> Comparison:
    """Compare B with A from ln R of the runs of each, in any order and number.

    `spread` is what the ledger knows of such runs, for a side with a single one. `undated` says that the runs are logs that do
    not say when they were made.
    """
    first, second = logs_of(logs_a, a), logs_of(logs_b, b)
    pair = Pair(a, b, "runs", first.size, second.size)
    if min(first.size, second.size) < 2:
        single = compare_single(pair, float(second.mean() - first.mean()), margin, spread)
        return _in_these_logs(single) if undated else single
    comparison = judged(pair, welch(first, second), margin, notes=(NOT_INTERLEAVED,))
    return _in_these_logs(comparison) if undated else comparison


def _in_these_logs(comparison: Comparison) -> Comparison:
    """Limit a word to the logs it comes from, unless no day's effect can explain it."""
    if comparison.word == "INCONCLUSIVE":
        return replace(comparison, notes=(*comparison.notes, ONE_SERIES))
    if abs(math.log(comparison.ratio)) >= math.log(CERTAIN_FACTOR):
        return replace(comparison, notes=(*comparison.notes, ONE_SERIES))
    return replace(
        comparison,
        word="INCONCLUSIVE",
        difference=None,
        # Nothing for Holm to decide: these are p values of the logs, not of the machines.
        p_equivalence=None,
        p_difference=None,
        p_outside=None,
        needed=Needed(None, DATED_ADVICE),
        sentence=f"INCONCLUSIVE at {percent(comparison.margin)}; in these logs {comparison.sentence}",
        notes=(*comparison.notes, ONE_SERIES),
    )


def series_of(runs: Sequence[tuple[float, float | None, str]], longest_s: float = LONGEST_SERIES_S) -> list[int]:
    """Return for each run (started, ended, boot id) the number of its series, in the order of time, from 0.

    A reboot, an hour's pause or the end of `longest_s` begins a new one. Runs of several machines may be mixed: each boot has its
    own series.
    """
    numbers = [0] * len(runs)
    current: dict[str, int] = {}
    began_unix_s: dict[str, float] = {}
    latest_unix_s: dict[str, float] = {}
    count = 0
    for index in sorted(range(len(runs)), key=lambda at: runs[at][0]):
        started, ended, boot = runs[index]
        paused = boot not in current or started - latest_unix_s[boot] >= PAUSE_S
        if paused or started - began_unix_s[boot] >= longest_s:
            current[boot], began_unix_s[boot] = count, started
            count += 1
        numbers[index] = current[boot]
        # A run that never ended lasted at least until it began; one inside another does not end the other.
        latest_unix_s[boot] = max(latest_unix_s.get(boot, started), started if ended is None else ended)
    return numbers
