"""Stop early by a rule that is fixed before the first run.

Looking after every block and stopping at the first verdict finds one sooner or later, whatever the truth is. So the looks are
planned, and an alpha-spending function (Lan and DeMets) says how much of the 5 % each may use up; the last may use what is
left. Two functions are here. Pocock's spends evenly; O'Brien and Fleming's hardly anything at first. With six blocks and a
standard deviation that is itself estimated, hardly anything is nothing at all: a look at 4 of 20 blocks would ask for
t(3) > 40. Pocock's is the default: on a quiet machine (s_d 0.3 %) it decides at 1 % after 4 blocks, the other after 7 to 9. On
a noisy one, where hardly all blocks suffice, the other is a little better (benchmarks/verdicts.py has both).

The levels are exact for Student's t. Textbooks compute them for a known standard deviation and use t quantiles at those
levels; with few blocks that spends 5.4 % instead of 5 (benchmarks/verdicts.py). But the t statistics of the looks form a Markov
chain, whose law depends on no parameter: with direction u = sum/√(sum of squares) after n blocks, one more block turns it by an
angle ψ of density ∝ cos(ψ)^(n−1), to u·cos ψ + sin ψ. So the probability of a first crossing at each look is a recursion over
one variable.

The intervals at a look are those of its level (repeated confidence intervals): they hold together at all looks, so one may stop
at any of them, and ask for another margin later.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from stackmark.errors import SpecError
from stackmark.verdict.evidence import ALPHA, Floats
from stackmark.verdict.needed import whole
from stackmark.verdict.student import normal_cdf, normal_quantile

Spending = Literal["pocock", "obrien-fleming"]

# Two blocks have t(1), three t(2): whatever level they get, they decide nothing, and what they spend is lost.
FIRST_LOOK = 4
MOST_BLOCKS = 400
# Cells of the chain's distribution, over normal scores from −6 to 6. More than twice as many change a level above 1e-6 by
# less than 0.5 % of it, and take ten times as long; with these, 20 blocks take a quarter of a second.
CELLS = 640
SCORES = 6.0
ANGLES = 20_001


@dataclass(frozen=True)
class StoppingLevels:
    """Nominal levels per look: one-sided for the tests behind a word; two-sided for the named difference.

    `alpha` is what all looks together spend in each family.
    """

    kind: Spending
    alpha: float
    looks: tuple[int, ...]
    one_sided: tuple[float, ...]
    two_sided: tuple[float, ...]


def first_look(multiple: int = 2) -> int:
    """Return four blocks, rounded up to a whole design."""
    return whole(FIRST_LOOK, multiple)


def planned_looks(most_blocks: int, multiple: int = 2) -> tuple[int, ...]:
    """Plan the looks up to this many blocks: at first after every design, then about every quarter more."""
    last = max(whole(most_blocks, multiple), first_look(multiple))
    looks = [first_look(multiple)]
    while looks[-1] < last:
        following = whole(max(looks[-1] + 1, math.ceil(1.25 * looks[-1])), multiple)
        # A look just before the last would cost more than it saves.
        looks.append(following if following + multiple < last else last)
    return tuple(looks)


def stopping_rule(
    looks: Sequence[int], alpha: float = ALPHA, *, comparisons: int = 1, spending: Spending = "pocock"
) -> StoppingLevels:
    """Fix the levels of each look. Comparisons that stop together share alpha (Bonferroni): Holm has no looks."""
    planned = tuple(looks)
    if not planned or planned[0] < 2 or any(later <= earlier for earlier, later in itertools.pairwise(planned)):
        raise ValueError(f"looks must be increasing numbers of blocks, at least 2, got {list(planned)}")
    if planned[-1] > MOST_BLOCKS:
        raise SpecError(
            f"a stopping rule allows at most {MOST_BLOCKS} blocks, got {planned[-1]}",
            hint=f"use --blocks {MOST_BLOCKS} or fewer, or a wider --margin",
        )
    if not 0 < alpha < 0.5 or comparisons < 1:
        raise ValueError(f"there is no rule for alpha {alpha} over {comparisons} comparisons")
    share = alpha / comparisons
    one, half = _levels(planned, (share, share / 2), spending)
    return StoppingLevels(spending, share, planned, one, tuple(2 * level for level in half))


def spent(share: Floats, alpha: float, spending: Spending) -> Floats:
    """Return how much of alpha may be spent when this share of the blocks is there."""
    if spending == "pocock":
        return alpha * np.log1p((math.e - 1) * share)
    edge = normal_quantile(1 - alpha / 2)
    return np.array([2 * normal_cdf(-edge / math.sqrt(part)) for part in share.tolist()])


@lru_cache(maxsize=32)
def _levels(looks: tuple[int, ...], alphas: tuple[float, ...], spending: Spending) -> tuple[tuple[float, ...], ...]:
    """For each alpha the one-sided level at each look, such that the first crossings add up to what may be spent."""
    share = np.array(looks, dtype=np.float64) / looks[-1]
    budget = np.array([np.diff(spent(share, alpha, spending), prepend=0.0) for alpha in alphas])
    edges = np.linspace(-SCORES, SCORES, CELLS + 1)
    below = np.array([0.0, *(normal_cdf(edge) for edge in edges[1:-1].tolist()), 1.0])
    # One row an alpha: the probability of being in a cell and of not having crossed yet. Each cell's is its share at first.
    alive = np.tile(np.diff(below), (len(alphas), 1))
    found: list[list[float]] = []
    for number, look in enumerate(looks):
        if number:
            for n in range(looks[number - 1], look):
                alive = alive @ _turned(n, below)
        levels = []
        for row, allowed in zip(alive, budget[:, number], strict=True):
            edge = _cut(row, edges, float(allowed))
            levels.append(normal_cdf(-edge))
        found.append(levels)
    return tuple(zip(*found, strict=True))


def _cut(row: Floats, edges: Floats, allowed: float) -> float:
    """Take the topmost `allowed` of the probability away, in place, and say above which normal score that was."""
    above = np.concatenate([np.cumsum(row[::-1])[::-1], [0.0]])
    cell = int(np.searchsorted(-above, -allowed, side="left")) - 1
    if cell < 0:
        raise ValueError("the looks are too close together for what is left to spend")
    # Inside the cell the probability above falls nearly exponentially.
    top, bottom = max(above[cell + 1], 1e-300), above[cell]
    part = math.log(bottom / allowed) / math.log(bottom / top) if top < bottom else 0.0
    row[cell + 1 :] = 0.0
    row[cell] = bottom - allowed
    return float(edges[cell] + part * (edges[cell + 1] - edges[cell]))


def _turned(n: int, below: Floats) -> Floats:
    """From each cell after n blocks to each cell after n + 1: the chance. Cells are of equal normal score, by `below`."""
    psi = np.linspace(-math.pi / 2, math.pi / 2, ANGLES)
    middle = (below[:-1] + below[1:]) / 2
    start = math.sqrt(n) * np.sin(np.interp(middle, _angle_cdf(psi, n - 2), psi))
    turn = _angle_cdf(psi, n - 1)
    ends = math.sqrt(n + 1) * np.sin(np.interp(below, turn, psi))
    # u·cos ψ + sin ψ = r·sin(ψ + lean); below an end it is for ψ in the stretches between these three angles.
    lean, r = np.arctan(start)[:, None], np.sqrt(1 + start**2)[:, None]
    arc = np.arcsin(np.clip(ends[None, :] / r, -1, 1))
    before = np.interp(arc - lean, psi, turn) - np.interp(-math.pi - arc - lean, psi, turn)
    reached = before + 1 - np.interp(math.pi - arc - lean, psi, turn)
    reached[:, 0], reached[:, -1] = 0.0, 1.0
    return np.diff(reached, axis=1)


def _angle_cdf(psi: Floats, power: int) -> Floats:
    """The distribution function of an angle whose density goes as cos(ψ)^power."""
    density = np.cos(psi) ** power
    density[[0, -1]] = 0.0 if power else 1.0
    total = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    cdf: Floats = total / total[-1]
    return cdf
