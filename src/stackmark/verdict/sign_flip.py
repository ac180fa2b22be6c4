"""A test over blocks that does not take the noise for normal.

Without a difference, the sign of each block's d = ln R_b − ln R_a is a matter of chance, whatever the distribution of the noise
(the order within blocks is drawn at random). So all 2^n ways to give the blocks signs are equally likely, and p is the share of
them whose mean is as far out as the one that was seen. With four blocks p cannot fall below 0.125, with six it can reach 0.031.
"""

import numpy as np

from stackmark.verdict.comparison import Word
from stackmark.verdict.evidence import Floats, limit_of

# Below this spread of a block's ln R_b − ln R_a, words rest on differences that are many times smaller than any tail.
NORMAL_UP_TO = 0.03
LEAST_BLOCKS = 6
# All signs of so many blocks are tried; of more, as many as this are drawn, with a fixed seed.
EXACT_BLOCKS, DRAWS = 14, 2**14


def sign_flip_p(differences: Floats, word: Word, margin: float) -> float | None:
    """Return the p of the claim that a word makes; None where the spread is small or the blocks are too few.

    EQUIVALENT claims that the mean lies inside the margin (the larger p of two one-sided tests), any other word that it differs
    from 0 (two-sided).
    """
    n = differences.size
    if n < LEAST_BLOCKS or differences.std(ddof=1) <= NORMAL_UP_TO:
        return None
    signs = _signs(n)
    if word != "EQUIVALENT":
        return _share(np.abs(signs @ differences), abs(differences.sum()))
    limit = limit_of(margin)
    return max(
        _share(signs @ (differences + limit), (differences + limit).sum()),
        _share(signs @ (limit - differences), (limit - differences).sum()),
    )


def _share(sums: Floats, seen: float) -> float:
    # The signs that were seen are among them; rounding must not lose them.
    return float((sums >= seen - 1e-12 * abs(seen)).mean())


def _signs(n: int) -> Floats:
    if n <= EXACT_BLOCKS:
        bits = (np.arange(2**n)[:, None] >> np.arange(n)) & 1
        return np.where(bits, -1.0, 1.0)
    drawn = np.random.default_rng(n).choice((1.0, -1.0), size=(DRAWS, n))
    drawn[0] = 1.0
    return drawn
