"""Name the rank that the others wait for.

Ranks that exchange in each step wait for the slowest, so their step times are alike whoever it was. What tells them apart is how
long each one's steps take without the exchange (worker/exchange.py), and in how many of these steps it was the slowest. Among N
ranks that are alike each is the slowest in one of N steps, by chance; a rank is named where that chance does not explain it and
it takes noticeably longer than the others do.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from stackmark.units import say_percent, say_seconds

# Where one rank of N is named, N were looked at: Bonferroni.
LEVEL = 0.01
# A rank that is slower by less is not worth a warning.
SLOWER = 0.05


@dataclass(frozen=True)
class RankSteps:
    """Steps of one rank without their exchange."""

    compute_s: float
    # In how many of `steps` it was the slowest of all ranks.
    slowest: int
    steps: int
    # Where it ran: `node-2, GPU-1a2b…`; empty where that is not known.
    where: str = ""


def stragglers(ranks: Mapping[int, RankSteps]) -> list[str]:
    """Flag the slowest rank if it is slower than the others by more than chance."""
    if len(ranks) < 2:
        return []
    rank = max(ranks, key=lambda number: ranks[number].compute_s)
    slow, others = ranks[rank], median(one.compute_s for number, one in ranks.items() if number != rank)
    if others <= 0 or slow.compute_s <= others * (1 + SLOWER) or not 0 < slow.slowest <= slow.steps:
        return []
    if at_least(slow.slowest, slow.steps, 1 / len(ranks)) * len(ranks) > LEVEL:
        return []
    where = f" ({slow.where})" if slow.where else ""
    longer = f"{say_seconds(slow.compute_s)}, {say_percent(slow.compute_s / others - 1, 0)} longer than the others'"
    often = f"the slowest in {slow.slowest} of {slow.steps} steps"
    return [f"stragglers: rank {rank}{where} was {often}: without exchange its steps take {longer}"]


def at_least(count: int, trials: int, chance: float) -> float:
    """Return the probability of `count` or more of `trials`, each with this chance."""
    if count <= 0:
        return 1.0
    logs = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * math.log(chance) + (trials - k) * math.log1p(-chance)
        for k in range(count, trials + 1)
    ]  # fmt: skip
    return min(1.0, math.fsum(math.exp(log) for log in logs))
