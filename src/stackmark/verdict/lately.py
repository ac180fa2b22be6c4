"""Which of the latest sittings are "now".

The side after an upgrade grows with every check on the same stack. But a machine may become slower without any fact saying so,
and thirty good nights before would then hide the bad one: their mean hardly moves. So the side reaches back from the latest
sitting only to the first that differs from it by more than the margin, and by more than sittings of the baseline spread.
Such a step back is taken wrongly in one of a hundred sittings, and costs some certainty then, not the truth.
"""

import math
from collections.abc import Sequence

import numpy as np

from stackmark.verdict.evidence import limit_of
from stackmark.verdict.sittings import ENOUGH
from stackmark.verdict.student import t_quantile

# Two-sided, of a single difference of two sittings.
LEVEL = 0.01


def still_now(before: Sequence[float], now: Sequence[float], margin: float) -> int:
    """How many of the latest sittings count, at least one. Both are means of ln R of sittings, oldest first.

    With fewer than three sittings before, how far sittings differ is not known, and all count.
    """
    if len(before) < ENOUGH:
        return len(now)
    spread = float(np.std(before, ddof=1))
    reach = max(limit_of(margin), t_quantile(1 - LEVEL / 2, len(before) - 1) * spread * math.sqrt(2))
    for count, earlier in enumerate(reversed(now)):
        if abs(earlier - now[-1]) > reach:
            return count
    return len(now)
