"""Count runs that are occasionally slow, and bound their share where a few clean runs cannot exclude them.

An arm of which one run in ten is 20 % slow often shows no such run in four blocks, and is then called EQUIVALENT. The ratio is
right for the runs that were seen; what it cannot say is how many of the next ones will be bad. So every verdict states how
large the share of bad runs of an arm can be (Clopper and Pearson's upper bound, 95 %), and where a run is an outlier the arms'
shares are compared (Fisher's exact test).

A run is bad where it lies below its arm's median by more than the margin and by more than six robust standard deviations
(1.4826·MAD over the runs of all arms, each against its own arm's median). With Gaussian noise, one experiment of four blocks
in twenty has such a run by chance, of six blocks one in fifty (benchmarks/verdicts.py).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from stackmark.units import counted

DEVIATIONS = 6.0
# From the median absolute deviation to a standard deviation, for normal noise.
MAD_TO_SD = 1.4826
LEVEL = 0.05


@dataclass(frozen=True)
class BadRuns:
    """The number of bad runs of an arm, and an upper bound of their share with 95 % confidence."""

    arm: str
    bad: int
    runs: int
    share_most: float


def count_bad_runs(
    labels: Sequence[str],
    logs: Sequence[Sequence[float]],
    margin: float,
    late: Sequence[Sequence[bool]] = (),
) -> tuple[BadRuns, ...]:
    """Count the slow outliers of each arm, from ln R of its runs. Of `late` ones the warm-up ended too late: they are bad too."""
    apart = [[log - median(arm) for log in arm] if arm else [] for arm in logs]
    every = [abs(distance) for arm in apart for distance in arm]
    if not every:
        return ()
    least = max(DEVIATIONS * MAD_TO_SD * median(every), -math.log1p(-margin))
    found = []
    for number, (label, arm) in enumerate(zip(labels, apart, strict=True)):
        also = late[number] if late else [False] * len(arm)
        bad = sum(distance < -least or was_late for distance, was_late in zip(arm, also, strict=True))
        found.append(BadRuns(label, bad, len(arm), share_at_most(bad, len(arm))))
    return tuple(found)


def share_at_most(bad: int, runs: int, level: float = LEVEL) -> float:
    """Return Clopper and Pearson's one-sided upper bound of a share, of which `bad` in `runs` were seen."""
    if bad >= runs:
        return 1.0
    low, high = 0.0, 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        seldom = sum(math.comb(runs, k) * middle**k * (1 - middle) ** (runs - k) for k in range(bad + 1)) < level
        low, high = (low, middle) if seldom else (middle, high)
    return high


def fisher_p(one: BadRuns, other: BadRuns) -> float:
    """Return the two-sided p of Fisher's exact test: do two arms have the same share of bad runs?"""
    bad, runs = one.bad + other.bad, one.runs + other.runs
    every = math.comb(runs, bad)

    def chance(of_one: int) -> float:
        return math.comb(one.runs, of_one) * math.comb(other.runs, bad - of_one) / every

    seen = chance(one.bad)
    possible = range(max(0, bad - other.runs), min(bad, one.runs) + 1)
    # Tables as unlikely as the one that was seen count, also where rounding makes them a little more likely.
    return min(1.0, sum(p for of_one in possible if (p := chance(of_one)) <= seen * (1 + 1e-9)))


def say_bad_runs(arms: Sequence[BadRuns], p: float | None) -> str:
    """Say how many runs of the arms were bad, and how many may be. `p` compares two arms' shares."""
    if not any(arm.bad for arm in arms) and len({arm.runs for arm in arms}) == 1:
        each = counted(arms[0].runs, "run")
        return f"none in {each} of each arm; up to {_share(arms[0])} of an arm's runs may still be slow (95 % bound)"
    said = ", ".join(f"{arm.bad} of {arm.runs} in {arm.arm} (at most {_share(arm)}: 95 % bound)" for arm in arms)
    if p is None:
        return said
    differ = (
        "the arms differ in their share of bad runs" if p <= LEVEL else "the arms' shares do not differ significantly"
    )
    return f"{said}; Fisher's exact test: p = {p:.2g}, {differ}"


def _share(arm: BadRuns) -> str:
    return f"{100 * arm.share_most:.0f} %"
