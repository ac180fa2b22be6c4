"""How many blocks (runs, sittings) would decide, and where no number is likely to.

METHOD: n ≈ ((t(1−α) + t(1−β))·s / (|ln(1−m)| − |d̄|))², with β/2 where d̄ is near 0, since then either end of the interval may
miss. Here the chances that the one and the other end misses are added up, which is β at either extreme and passes from one
to the other without a rule of what "near" is. It takes the mean and the spread for what they were so far, so it is a forecast
and says "about".
"""

import math
from collections.abc import Callable

from stackmark.verdict.comparison import Kind, Needed
from stackmark.verdict.evidence import ALPHA, limit_of
from stackmark.verdict.student import t_cdf, t_quantile

BETA = 0.1
MOST = 1000  # more blocks than anybody runs: a day of one-minute runs
# Within this share of the margin around it the count depends on where exactly the mean lies, which is what is not known;
# a count of many times what was run is then a number without a meaning.
NEAR_SHARE = 0.2
NEAR_TIMES = 4
# In which margins people think. One of them is proposed where theirs cannot be decided.
ROUND_MARGINS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4)
UNIT: dict[Kind, str] = {"blocks": "block", "runs": "run", "sittings": "sitting", "published": "run"}


def sides_of(kind: Kind) -> int:
    """In how many samples the noise comes in: a block carries both arms' in one difference, a constant has none."""
    return 2 if kind in ("runs", "sittings") else 1


def count_needed(
    mean: float,
    sd: float,
    margin: float,
    *,
    sides: int = 1,
    alpha: float = ALPHA,
    least: int = 2,
    most: int = 10 * MOST,
    multiple: int = 1,
) -> int | None:
    """So many (a side, where there are two) decide in nine of ten experiments; None where more than `most` would be needed.

    mean and sd are of ln(B/A) and of one observation of it.
    """
    if not (math.isfinite(mean) and math.isfinite(sd) and sd >= 0):
        raise ValueError(f"a mean and a spread are finite, not {mean} and {sd}")
    limit, distance = limit_of(margin), abs(mean)
    least = max(least, 2)
    if sd == 0:
        return whole(least, multiple) if distance != limit else None

    def missed(n: int) -> float:
        error, df = sd * math.sqrt(sides / n), sides * (n - 1)
        reach = t_quantile(1 - alpha, df)
        far = t_cdf(reach - (limit + distance) / error, df) if distance < limit else 0.0
        return t_cdf(reach - abs(limit - distance) / error, df) + far

    found = _first(lambda n: missed(n) <= BETA, least, max(most, least))
    return None if found is None else whole(found, multiple)


def smallest_margin(sd: float, count: int, *, sides: int = 1) -> float:
    """The margin that so many blocks of this spread decide in nine of ten experiments, where there is no difference."""
    if count < 2:
        raise ValueError("one block has no spread: the margin it could decide is not known")
    df = sides * (count - 1)
    limit = (t_quantile(1 - ALPHA, df) + t_quantile(1 - BETA / 2, df)) * sd * math.sqrt(sides / count)
    return -math.expm1(-limit)


def needed(
    kind: Kind, mean: float, sd: float, margin: float, ran: int, *, alpha: float = ALPHA, multiple: int = 1
) -> Needed:
    """What would decide, for a comparison of `ran` blocks (the smaller side's runs) that did not."""
    sides = sides_of(kind)
    # What was run did not decide, so it takes at least one more, whatever the forecast says.
    limit = limit_of(margin)
    near = abs(limit - abs(mean)) < NEAR_SHARE * limit
    most = max(NEAR_TIMES * ran if near else MOST, ran + 1)
    count = count_needed(mean, sd, margin, sides=sides, alpha=alpha, least=ran + 1, most=most, multiple=multiple)
    if count is None:
        why = "the ratio lies too near the margin" if near else f"the {UNIT[kind]}s spread by {percent(sd)}"
        else_ = _other_margin(kind, mean, sd, margin, ran, alpha, multiple)
        return Needed(None, f"it cannot be decided at {percent(margin)}: {why}{else_}")
    side = " a side" if sides == 2 else ""
    return Needed(
        count,
        f"about {count} {UNIT[kind]}s{side} in all ({count - ran} more) would decide at {percent(margin)}, "
        "if ratio and spread stay as they are",
    )


def _other_margin(kind: Kind, mean: float, sd: float, margin: float, ran: int, alpha: float, multiple: int) -> str:
    sides = sides_of(kind)
    side = " a side" if sides == 2 else ""
    reach = t_quantile(1 - alpha, sides * (ran - 1)) * sd * math.sqrt(sides / ran) if ran > 1 else math.inf
    for other in (candidate for candidate in ROUND_MARGINS if candidate > margin):
        if abs(mean) + reach <= limit_of(other):
            return f"; at {percent(other)} it is decided by what was run"
        most = max(2 * ran, 20)
        count = count_needed(mean, sd, other, sides=sides, alpha=alpha, least=ran + 1, most=most, multiple=multiple)
        if count is not None:
            return f"; at {percent(other)} it can, with about {count} {UNIT[kind]}s{side} in all"
    return ""


def whole(count: int, multiple: int) -> int:
    """Rounded up to whole designs."""
    return -(-count // multiple) * multiple


def percent(share: float) -> str:
    """`1 %`, `0.5 %`, `12 %`: as people write a margin or a spread."""
    return f"{100 * share:.3g} %"


def _first(decides: Callable[[int], bool], least: int, most: int) -> int | None:
    """The smallest n from `least` to `most` that decides, where every larger one decides too."""
    if decides(least):
        return least
    if not decides(most):
        return None
    low, high = least, min(2 * least, most)
    while not decides(high):
        low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if decides(middle) else (middle, high)
    return high
