"""Numbers of an experiment as people read them, and what is derived from the data: for sections.py and the pictures.

All of it can be computed from the Examined alone.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from stackmark.experiments.result import time_taken
from stackmark.figures import FigureUnit
from stackmark.units import counted, say_multiple, say_seconds
from stackmark.verdict.bad_runs import LEVEL, say_bad_runs
from stackmark.verdict.comparison import Comparison, Interval
from stackmark.verdict.examined import Examined, ExaminedArm, ExaminedRun
from stackmark.verdict.needed import UNIT, percent
from stackmark.verdict.sentence import MOST_DECIMALS, assumed, say_by, say_efficiency, say_shares
from stackmark.verdict.throughput import Throughput

LETTERS = "ABCDEFGHI"
# Up to here a ratio reads best as a difference in per cent, beyond as a factor.
MOST_PER_CENT = 2.0
# Half of the width of a rate's 95 % interval, by which it is coloured. Up to ±1 %, the margin of a comparison unless said, a rate
# can decide most questions: green. Up to ±5 %, the margin against published numbers, it can tell large differences: yellow.
# Beyond, and without an interval, it decides nothing by itself: red.
NARROW, WIDE = 0.01, 0.05


@dataclass(frozen=True)
class BlockRatio:
    block: int
    ratio: float


@dataclass(frozen=True)
class Percentiles:
    """Of the steady steps, the median over an arm's runs."""

    p50_s: float
    p90_s: float
    p99_s: float


def letter(arm: int) -> str:
    return LETTERS[arm] if arm < len(LETTERS) else str(arm + 1)


def say_arm_rate(arm: ExaminedArm) -> str:
    if not arm.throughput:
        return "target not reached" if arm.missed_target else "no run that counts"
    rate = arm.throughput.rate_per_s
    figure = arm.figure_unit.scaled(rate).say(rate)
    return f"{figure} {say_spread(arm.throughput) or '(one run: no interval)'}"


def say_spread(throughput: Throughput) -> str:
    """± of the 95 % interval; it is symmetric in the logarithm, so a wide one is said as a factor. Nothing for one run."""
    if throughput.high_per_s is None or throughput.low_per_s is None:
        return ""
    factor = throughput.high_per_s / throughput.rate_per_s
    return f"± {100 * (factor - 1):.2g} %" if factor < 1.2 else f"within a factor of {say_multiple(factor)}"


def width_style(throughput: Throughput | None) -> str:
    """Return the colour of a rate, which follows the width of its interval and not whether it succeeded."""
    if throughput is None or throughput.high_per_s is None:
        return "bold red"
    half = throughput.high_per_s / throughput.rate_per_s - 1.0
    return "bold green" if half <= NARROW else "bold yellow" if half <= WIDE else "bold red"


def say_ratio(ratio: float) -> str:
    return f"{ratio:.4f}" if 1 / MOST_PER_CENT < ratio < MOST_PER_CENT else f"{ratio:.4g}"


def say_interval(interval: Interval | None) -> str:
    return f"{say_ratio(interval.low)} to {say_ratio(interval.high)}" if interval else "no interval"


def say_change(ratio: float) -> str:
    """`−0.17 %`, `+3.2 %`, `2.41 times`."""
    if not 1 / MOST_PER_CENT < ratio < MOST_PER_CENT:
        return f"{say_multiple(ratio)} times"
    change = 100 * (ratio - 1)
    digits = 2 if abs(change) < 10 else 1
    return f"{signed(round(change, digits), digits)} %"


def say_changes(low: float, high: float) -> str:
    """Say both ends of an interval in one form: `−1.05 % to +2.01 %`, `0.0919 to 1.5 times`."""
    if all(1 / MOST_PER_CENT < ratio < MOST_PER_CENT for ratio in (low, high)):
        return f"{say_change(low)} to {say_change(high)}"
    return f"{say_multiple(low)} to {say_multiple(high)} times"


def signed(value: float, digits: int) -> str:
    """With a real minus, thousands separated, and without a sign for nothing."""
    said = f"{abs(value):,.{digits}f}"
    return said if not said.strip("0.") else f"{'−' if value < 0 else '+'}{said}"


def say_in_own_terms(comparison: Comparison, unit: FigureUnit) -> str:
    """Say the sentence of a verdict, and of times how much longer they are where a difference was shown.

    The ratio is of rates, so that more is better: 0.97 of a time is 3.1 % longer.
    """
    if comparison.terms == "efficiency":
        return comparison.sentence
    shown = comparison.is_slower or comparison.is_faster or comparison.difference is not None
    change = unit.say_change(comparison.ratio) if shown else ""
    return f"{comparison.sentence.rstrip('.')}; it {change}" if change else comparison.sentence


def say_answer(comparison: Comparison, unit: FigureUnit) -> str:
    """Say a verdict with its word first. One that rests on an assumption keeps the sentence that states it: one run a side, logs
    of one day, series, a published number."""
    c = comparison
    judged = c.kind == "blocks" or (c.kind == "runs" and min(c.count_a, c.count_b) > 1 and c.p_difference is not None)
    said = say_plainly(c, unit) if judged else say_in_own_terms(c, unit)
    return said if said.startswith(c.word) else f"{c.word}: {said}"


def say_plainly(comparison: Comparison, unit: FigureUnit) -> str:
    """Say a verdict in one plain sentence, without its word: what it means for B against A, and how sure it is.

    "Runs as fast as" is only for EQUIVALENT, and carries the margin. Of a figure that is not a rate it says how much longer it
    takes. What other programs disturbed is part of the sentence.
    """
    c = comparison
    a = c.a
    caveats = "".join(f"; {said}" for said in c.caveats)
    if c.terms == "efficiency":
        return f"{_say_scaling(c)}{caveats}"
    if c.word == "EQUIVALENT":
        named = f"; though {say_by(c.interval_95, c.terms)}" if c.difference and c.interval_95 else ""
        verb = "runs as fast as" if c.terms == "speed" else "is as good as"
        return f"{c.b} {verb} {a}: {say_change(c.ratio)}, within ±{percent(c.margin)}{named}{assumed(c)}{caveats}"
    if c.word == "INCONCLUSIVE":
        first = f"{c.caveats[0]}; " if c.caveats else ""
        return f"{first}{_say_open(c, a, unit)}"
    likely = "likely " if c.word.startswith("LIKELY") else ""
    return f"{c.b} {_say_shown(c, a, unit, likely)}{assumed(c)}{caveats}"


def _say_scaling(c: Comparison) -> str:
    """`2 ranks are 96.7 % efficient (90 %: 95.9 to 97.6 %), at least 90 %`."""
    said = f"{c.b} {say_efficiency(c.ratio)}"
    if c.interval_90 is None:
        return f"{said} and no interval from {say_counts(c)}"
    said = f"{said} (90 %: {say_shares(c.interval_90)})"
    least = percent(1 - c.margin)
    if c.word == "INCONCLUSIVE":
        return f"{said}; whether that is at least {least} is open"
    return f"{said}, {'at least' if c.word == 'SCALES' else 'less than'} {least}{assumed(c)}"


def _say_open(c: Comparison, a: str, unit: FigureUnit) -> str:
    margin = percent(c.margin)
    if c.interval_90 is None:
        return f"{c.b} against {a} has ratio {say_ratio(c.ratio)} and no interval from {say_counts(c)}"
    if c.difference and c.interval_95:
        return f"{c.b} against {a} is {say_by(c.interval_95, c.terms)}; whether by more than {margin} is open"
    sure = say_changes(c.interval_90.low, c.interval_90.high)
    # Of a time, + could be read as longer.
    better = "faster" if c.terms == "speed" else "better"
    sign = "" if unit.higher_is_better else f"+ is {better}; "
    return f"whether {c.b} differs from {a} by more than {margin} is open: {say_change(c.ratio)} ({sign}90 %: {sure})"


def _say_shown(c: Comparison, a: str, unit: FigureUnit, likely: str) -> str:
    """`is 3.1 % slower than host (95 %: 2.8 to 3.4 %)`, `takes 3.2 % longer than …`, `is 2.41 times as fast as …`."""
    bounds = [1.0, 1.0] if c.interval_95 is None else [c.interval_95.low, c.interval_95.high]
    if not unit.higher_is_better:
        value, *ends = 1 / c.ratio, *sorted(1 / bound for bound in bounds)
        verb = "takes" if unit.is_time else "is"
        more, less, times = ("longer than", "less than", "times as long as") if unit.is_time else _MORE_OR_LESS
    else:
        value, *ends = c.ratio, *bounds
        fast = c.terms == "speed"
        verb, times = "is", f"times as {'fast' if fast else 'good'} as"
        more, less = ("faster than", "slower than") if fast else ("better than", "worse than")
    if value >= MOST_PER_CENT:
        sure = f" (95 %: {say_multiple(ends[0])} to {say_multiple(ends[1])} times)" if c.interval_95 else ""
        return f"{verb} {likely}{say_multiple(value)} {times} {a}{sure}"
    change, parts = abs(value - 1), sorted(100 * abs(end - 1) for end in ends)
    sure = f" (95 %: {_together(*parts)} %)" if c.interval_95 else ""
    return f"{verb} {likely}{percent(change)} {more if value > 1 else less} {a}{sure}"


_MORE_OR_LESS = ("higher than", "lower than", "times as much as")


def _together(low: float, high: float) -> str:
    """Two numbers with as many decimals as tell them apart: `2.8 to 3.4`."""
    decimals = 1
    while decimals < MOST_DECIMALS and f"{low:.{decimals}f}" == f"{high:.{decimals}f}":
        decimals += 1
    return f"{low:.{decimals}f} to {high:.{decimals}f}"


def say_counts(comparison: Comparison) -> str:
    """From how many it comes: `6 blocks`, `3 and 4 runs`."""
    second = counted(comparison.count_b, UNIT[comparison.kind])
    return f"{comparison.count_a} and {second}" if comparison.kind in ("runs", "series") else second


def say_took(examined: Examined) -> str:
    """Say the wall time of an experiment, without pauses that a person made."""
    spans = [(run.started_unix_s, run.ended_unix_s) for run in examined.runs if run.ended_unix_s is not None]
    took_s = time_taken(examined.created_unix_s, spans)
    return say_seconds(took_s) if took_s else ""


def sentence(said: str) -> str:
    """With a capital and a full stop, as it stands alone."""
    said = said.strip()
    if not said:
        return ""
    return stopped(said[:1].upper() + said[1:])


def stopped(said: str) -> str:
    return said if not said or said[-1] in ".!?…" else f"{said}."


def measured_runs(examined: Examined) -> list[ExaminedRun]:
    """Without the primers, in the order in which they ran."""
    return sorted((run for run in examined.runs if run.role == "measured"), key=lambda run: run.started_unix_s)


def bad_runs(examined: Examined) -> list[ExaminedRun]:
    """Return the runs that failed or are invalid. One that counts without a figure only did not reach its target."""
    return [run for run in examined.runs if run.status in ("failed", "invalid") and not run.counted]


def say_bad_run_shares(examined: Examined) -> list[str]:
    """Say how many runs of the arms were slow outliers and how many may be, and which pairs differ in that."""
    pairs = [one for one in examined.comparisons if one.bad_runs]
    if len(pairs) == 1:
        return [say_bad_runs(pairs[0].bad_runs, pairs[0].p_bad_runs)]
    arms = {arm.arm: arm for one in pairs for arm in one.bad_runs}
    said = [say_bad_runs(list(arms.values()), None)] if arms else []
    said += [
        f"{one.b} / {one.a}: {say_bad_runs(one.bad_runs, one.p_bad_runs)}"
        for one in pairs
        if one.p_bad_runs is not None and one.p_bad_runs <= LEVEL
    ]
    return said


def arms_of(examined: Examined, comparison: Comparison) -> tuple[int | None, int | None]:
    """The arms that a comparison is about. Both may have one label, in an A/A; a published number is no arm."""
    first = [arm.index for arm in examined.arms if arm.label == comparison.a]
    a = first[0] if first else None
    second = [arm.index for arm in examined.arms if arm.label == comparison.b and arm.index != a]
    return a, second[0] if second else None


def block_ratios(examined: Examined, comparison: Comparison) -> list[BlockRatio]:
    """What the ratio is the mean of: one for each block in which both arms' runs count."""
    a, b = arms_of(examined, comparison)
    if comparison.kind != "blocks" or a is None or b is None:
        return []
    rates = {
        (run.block, run.arm): run.rate_per_s
        for run in measured_runs(examined)
        if run.counted and run.block is not None and run.rate_per_s
    }
    blocks = sorted({block for block, _ in rates if block is not None})
    # Of rank counts the ratio is that of the rates per rank.
    ranks = {point.label: point.ranks for point in examined.scaling.points} if examined.scaling else {}
    fewer = ranks.get(comparison.a, 1) / ranks.get(comparison.b, 1)
    return [
        BlockRatio(block, fewer * rates[block, b] / rates[block, a])
        for block in blocks
        if (block, a) in rates and (block, b) in rates
    ]


def percentiles(examined: Examined, arm: int) -> Percentiles | None:
    found = [
        np.percentile(run.step_s[run.first_step :], (50, 90, 99), method="linear")
        for run in measured_runs(examined)
        # A program's own figure, or that of a log, has no shape: the one "step" next to it is the whole run.
        if run.arm == arm and run.counted and run.steady and len(run.step_s) > run.first_step
    ]
    if not found:
        return None
    p50, p90, p99 = (float(median(run[index] for run in found)) for index in range(3))
    return Percentiles(p50, p90, p99)


def setup_parts(arms: Sequence[ExaminedArm]) -> list[str]:
    """The names of the parts, in the order in which they happen, `start` first."""
    names: list[str] = []
    for arm in arms:
        for name, _ in arm.setup:
            if name not in names:
                names.append(name)
    return sorted(names, key=lambda name: name != "start")


def setup_total_s(arm: ExaminedArm) -> float:
    return sum(seconds for _, seconds in arm.setup)


def say_setup_difference(arms: Sequence[ExaminedArm]) -> str:
    """Where most of the difference in set-up lies, against the first arm; nothing where it is under half a second."""
    if len(arms) < 2 or not arms[0].setup:
        return ""
    base = dict(arms[0].setup)
    sentences = []
    for arm in arms[1:]:
        more_s = setup_total_s(arm) - setup_total_s(arms[0])
        if not arm.setup or abs(more_s) < 0.5:
            continue
        parts = {name: seconds - base.get(name, 0.0) for name, seconds in arm.setup}
        name, part_s = max(parts.items(), key=lambda part: part[1] * math.copysign(1, more_s))
        word = "longer" if more_s > 0 else "less"
        sentences.append(
            f"{arm.label} took {say_seconds(abs(more_s))} {word} to set up than {arms[0].label}, "
            f"{say_seconds(abs(part_s))} of it in “{name}” ({say_seconds(base.get(name, 0.0))} against "
            f"{say_seconds(dict(arm.setup)[name])})."
        )
    return " ".join(sentences)


def say_order(examined: Examined, letters: str) -> str:
    """AB BA AB BA: the arms' letters, a word a block."""

    def words() -> Iterator[str]:
        for block in examined.order:
            yield "".join(letters[arm] if arm < len(letters) else "?" for arm in block)

    return " ".join(words())
