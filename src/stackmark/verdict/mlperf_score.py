"""The score of MLPerf Training from the times of runs: sort, drop the fastest and the slowest, mean of the rest.

One run that did not reach the target counts as the slowest and is the one dropped; with two there is no score. How many runs a
score needs is part of the rules, since time to a target is quantised by the evaluations: with fewer, one lucky run decides. A
score from another number of runs is computed all the same and called unofficial, with the reason.
"""

from collections.abc import Sequence
from statistics import fmean

from stackmark.units import counted

# Runs that v0.6 asks for. (NCF was suspended in that round.)
RUNS_ASKED = {"resnet": 5, "ssd": 5, "maskrcnn": 5, "gnmt": 10, "transformer": 10, "minigo": 10}
# Without the fastest and the slowest one has to be left. Of fewer runs the unofficial score is the plain mean.
FEWEST_RUNS = 3
MOST_FAILED = 1
ROUND = "v0.6"
_OTHER_NAMES = {"mask": "maskrcnn", "mask_rcnn": "maskrcnn", "resnet50": "resnet"}


def benchmark_name(name: str) -> str:
    """Return the name of a benchmark as the rules spell it."""
    return _OTHER_NAMES.get(name, name)


def score_of(seconds: Sequence[float], failed: int) -> float:
    """Compute the score in minutes. A failed run counts as the slowest; the caller refuses more than one.

    Fewer than three runs leave nothing between the fastest and the slowest: their score is the mean of the times.
    """
    if len(seconds) + failed < FEWEST_RUNS:
        return fmean(seconds) / 60
    kept = sorted(seconds)[1:] if failed else sorted(seconds)[1:-1]
    return fmean(kept) / 60


def has_score(runs: int, failed: int) -> bool:
    """Tell whether the rules give these runs a score at all."""
    return failed <= MOST_FAILED and failed < runs


def why_unofficial(benchmark: str, count: int) -> str:
    """Say why the rules do not give a score from this number of runs; nothing where they do."""
    asked = RUNS_ASKED.get(benchmark)
    if asked is None:
        return f"the number of runs that the rules require for {benchmark} is unknown; this score uses {count}"
    return f"{counted(count, 'run')}; the rules of MLPerf Training {ROUND} require {asked}" if count != asked else ""
