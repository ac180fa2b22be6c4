"""Our runs against a number that somebody else printed.

The number is taken for a constant, since nobody printed how sure it is; that is said in the sentence. Its recipe is never
quite ours, so the margin is wider, 5 % unless said, and whoever shows the comparison lists beside it every field that differs.
"""

import math
from collections.abc import Sequence

from stackmark.verdict.comparison import Comparison
from stackmark.verdict.evidence import logs_of, paired
from stackmark.verdict.ratio import Pair, judged, without_interval

PUBLISHED_MARGIN = 0.05


def compare_published(
    label: str, logs: Sequence[float], published_value: float, margin: float = PUBLISHED_MARGIN, what: str = ""
) -> Comparison:
    """Our ln R of each run against a published rate in the same unit. `what` names it: who, which chip, how much."""
    if not (math.isfinite(published_value) and published_value > 0):
        raise ValueError(f"a published rate is a finite number above zero, not {published_value}")
    runs = logs_of(logs, label)
    pair = Pair(what or f"{published_value:g}", label, "published", 0, runs.size)
    differences = runs - math.log(published_value)
    if differences.size == 1:
        return without_interval(pair, float(differences[0]), margin)
    return judged(pair, paired(differences), margin)
