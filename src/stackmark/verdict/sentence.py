"""Write a verdict in one sentence. "Not significantly different" is never written as "the same": it is called undecided."""

import math

from stackmark.figures import Terms
from stackmark.units import counted, say_percents
from stackmark.verdict.comparison import Comparison, Interval, difference_in
from stackmark.verdict.evidence import ALPHA, NO_SPREAD, NORMAL_UP_TO
from stackmark.verdict.needed import UNIT, percent

MOST_DECIMALS = 8
NORMAL_NOISE = "rests on the assumption of normal noise"


def sentence_of(comparison: Comparison) -> str:
    """Write the verdict: word, margin, ratio and interval, how many samples, and the named difference."""
    if comparison.terms == "efficiency":
        return _sentence_of_efficiency(comparison)
    c = comparison
    a = f"{c.a}, a published value of unknown uncertainty," if c.kind == "published" else c.a
    ratio, low, high = say_ratios(c.ratio, c.interval_90)
    interval = f"{'assumed ' if c.assumed else ''}90 % interval"
    numbers = f"ratio {ratio}, {interval} {low} to {high} ({_counted(c)})" if c.interval_90 else ""
    if c.sd_log is not None and c.sd_log <= NO_SPREAD:
        numbers += ", without any spread, which does not prove that there is none"
    margin = percent(c.margin)
    by = say_by(c.interval_95, c.terms) if c.difference and c.interval_95 else ""
    if c.word == "EQUIVALENT":
        return f"{c.b} is EQUIVALENT to {a} within {margin}: {numbers}{f'; though {by}' if by else ''}{assumed(c)}"
    if c.is_slower or c.is_faster:
        return f"{c.b} is {c.word} than {a} by more than {margin}: {numbers}{f'; {by}' if by else ''}{assumed(c)}"
    if not numbers:
        return f"INCONCLUSIVE at {margin}: {c.b} against {a} has ratio {ratio} and no interval ({_counted(c)})"
    if by:
        return f"INCONCLUSIVE at {margin}: {c.b} against {a} is {by}, but whether by more than {margin} is undecided; {numbers}"
    return f"INCONCLUSIVE at {margin}: {c.b} against {a} has {numbers}{_where(c)}"


def _sentence_of_efficiency(c: Comparison) -> str:
    """Write the verdict on an efficiency, with its word first."""
    head = f"{c.word} at {percent(c.margin)}: {c.b} {say_efficiency(c.ratio)}"
    if c.interval_90 is None:
        return f"{head} and no interval ({_counted(c)})"
    interval = f"{'assumed ' if c.assumed else ''}90 % interval {say_shares(c.interval_90)}"
    still = ", without any spread, which does not prove that there is none"
    spread = still if c.sd_log is not None and c.sd_log <= NO_SPREAD else ""
    return f"{head}, {interval} ({_counted(c)}){spread}{assumed(c) if c.word != 'INCONCLUSIVE' else ''}"


def say_efficiency(efficiency: float) -> str:
    return f"are {100 * efficiency:.1f} % efficient"


def say_shares(interval: Interval) -> str:
    """`95.9 to 97.6 %`, with as many decimals as tell the two apart."""
    low, high = 100 * interval.low, 100 * interval.high
    decimals = 1
    while decimals < MOST_DECIMALS and low < high and f"{low:.{decimals}f}" == f"{high:.{decimals}f}":
        decimals += 1
    return say_percents(interval.low, interval.high, decimals)


def assumed(c: Comparison) -> str:
    """Say where a word stands on Student's t alone: the sign-flip test does not support it, or cannot with so few blocks."""
    if c.p_log_rank is not None:
        return f"; log-rank test p = {c.p_log_rank:.2g}"
    if c.kind != "blocks" or c.sd_log is None or c.sd_log <= NORMAL_UP_TO:
        return ""
    if c.p_sign_flip is None:
        return f"; {NORMAL_NOISE}"
    p = f"sign-flip test p = {c.p_sign_flip:.2g}"
    return f"; {p}" if c.p_sign_flip <= ALPHA else f"; {p}: {NORMAL_NOISE}"


def _where(c: Comparison) -> str:
    """Which end keeps it open; nothing where the interval alone would have decided and Holm did not."""
    assert c.interval_90
    if c.interval_90.high < 1 - c.margin or c.interval_90.low > 1 / (1 - c.margin):
        # It lies beyond the margin, and yet no difference is shown: by Holm, or since the 95 % interval holds 1.
        return "" if c.family > 1 else ", beyond the margin, but the 95 % interval does not exclude 1"
    low, high = c.interval_90.low < 1 - c.margin, c.interval_90.high > 1 / (1 - c.margin)
    if low and high:
        return ", which exceeds the margin on both sides"
    return ", which exceeds the margin" if low or high else ""


def _counted(c: Comparison) -> str:
    unit = UNIT[c.kind]
    if c.kind == "series":
        return f"{c.count_b} series against {c.count_a}"
    if c.kind == "runs" and c.count_a == c.count_b == 1:
        return "one run a side"
    if c.kind == "runs":
        return f"{counted(c.count_b, unit)} against {c.count_a}"
    return counted(c.count_b, unit)


def say_ratios(ratio: float, interval: Interval | None) -> tuple[str, str, str]:
    """Format the three with as many decimals as four digits of the ratio, or two of the interval's width, need."""
    decimals = 4 if 0.1 <= ratio < 10 else 3 - math.floor(math.log10(ratio))
    if interval is None:
        return f"{ratio:.{_bounded(decimals)}f}", "", ""
    width = interval.high - interval.low
    if width > 0:
        decimals = max(decimals, 1 - math.floor(math.log10(width)))
    decimals = _bounded(decimals)
    return f"{ratio:.{decimals}f}", f"{interval.low:.{decimals}f}", f"{interval.high:.{decimals}f}"


def say_by(interval: Interval, terms: Terms = "speed") -> str:
    """`slower by 0.1 to 0.4 %`, or `2.3 to 2.4 times as fast`, past which a percentage is hard to read."""
    if interval.high >= 2 and interval.low > 1:
        return f"{interval.low:.4g} to {interval.high:.4g} times as {'fast' if terms == 'speed' else 'good'}"
    faster = interval.low > 1
    low, high = (interval.low - 1, interval.high - 1) if faster else (1 - interval.high, 1 - interval.low)
    low, high = 100 * low, 100 * high
    which = difference_in(terms, "faster" if faster else "slower")
    if high - low < 10**-MOST_DECIMALS:
        return f"{which} by {low:.3g} %"
    decimals = 1
    # Neither "by 0.0 to 0.4 %" nor "by 0.1 to 0.1 %".
    while decimals < MOST_DECIMALS and (round(low, decimals) <= 0 or round(low, decimals) == round(high, decimals)):
        decimals += 1
    return f"{which} by {low:.{decimals}f} to {high:.{decimals}f} %"


def _bounded(decimals: int) -> int:
    return min(max(decimals, 0), MOST_DECIMALS)
