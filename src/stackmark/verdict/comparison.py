"""What comparing two arms shows, as data. How it is computed is in ratio.py, sequential.py, unpaired.py,
sittings.py and against_published.py.

A ratio is B over A: above one, B is faster. `word` is the verdict at the margin; beside it, `difference` names a difference
that the 95 % interval shows to be real, however small. "Not significantly different" is never written as "the same".
"""

from dataclasses import dataclass
from typing import Literal

Word = Literal["EQUIVALENT", "SLOWER", "FASTER", "INCONCLUSIVE"]
Difference = Literal["slower", "faster"]
# What the numbers were paired by: blocks of one experiment; nothing (Welch); sittings before and after; a constant.
Kind = Literal["blocks", "runs", "sittings", "published"]


@dataclass(frozen=True)
class Interval:
    """Of the ratio, not of its logarithm."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Needed:
    """How many blocks (runs, sittings) in all would decide at this margin; None where no number is likely to."""

    count: int | None
    sentence: str


@dataclass(frozen=True)
class Comparison:
    """B against A. Intervals are unadjusted, also where Holm decided; they are None where one sample has no spread."""

    a: str
    b: str
    kind: Kind
    count_a: int
    count_b: int
    ratio: float
    interval_90: Interval | None
    interval_95: Interval | None
    # Standard deviation of ln R_b − ln R_a between blocks; of the pooled ln R where nothing was paired.
    sd_log: float | None
    margin: float
    word: Word
    difference: Difference | None
    p_equivalence: float | None
    p_difference: float | None
    needed: Needed | None
    # The verdict in one sentence, without its scope.
    sentence: str
    notes: tuple[str, ...] = ()
    # Of the comparisons in one family; above 1 Holm decided.
    family: int = 1
    # Of "slower, or faster, by more than the margin": what SLOWER and FASTER rest on, as EQUIVALENT on p_equivalence.
    p_outside: float | None = None
