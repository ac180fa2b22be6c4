"""Before and after: an upgrade lies between, so nothing can be interleaved, and the unit is the sitting.

Two sittings of an unchanged machine differ too: another temperature, another memory layout, another neighbour. How much, only
several sittings tell; any number of runs in one sitting does not. So each sitting counts once, with the mean of its ln R,
and three a side are asked for. With fewer it says what can be said:

- one sitting on one side, three or more on the other (a `check` against a good baseline): the lone one is taken to spread like
  the others (Student's pooled variance), and that assumption is in the notes;
- otherwise no spread between sittings exists. The ratio is shown with the interval of the runs, which holds for these sittings
  and not for the upgrade; the word is INCONCLUSIVE whatever the interval.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from stackmark.verdict.comparison import Comparison, Needed
from stackmark.verdict.evidence import Floats, logs_of, pooled, welch
from stackmark.verdict.needed import percent
from stackmark.verdict.ratio import Pair, judged, without_interval
from stackmark.verdict.sentence import say_ratios

ENOUGH = 3
ADVICE = f"{ENOUGH} sittings a side are asked for: measure again after a reboot, or an hour later"


def compare_sittings(
    a: str, b: str, sittings_a: Sequence[Sequence[float]], sittings_b: Sequence[Sequence[float]], margin: float
) -> Comparison:
    """B (after) against A (before), from ln R of the runs of each sitting."""
    means_a, means_b = _means(sittings_a, a), _means(sittings_b, b)
    pair = Pair(a, b, "sittings", means_a.size, means_b.size)
    few, many = sorted((means_a.size, means_b.size))
    if few >= 2:
        notes = () if few >= ENOUGH else (f"with only {few} sittings on a side their spread is hardly known; {ADVICE}",)
        return judged(pair, welch(means_a, means_b), margin, notes=notes)
    if many >= ENOUGH:
        alone, others = (a, b) if means_a.size == 1 else (b, a)
        note = (
            f"{alone} has one sitting, which tells nothing of how its sittings spread: they are taken to spread like the "
            f"{many} of {others}, which an upgrade may have changed; {ADVICE}"
        )
        return judged(pair, pooled(means_a, means_b), margin, notes=(note,))
    return _these_sittings_only(pair, sittings_a, sittings_b, float(means_b.mean() - means_a.mean()), margin)


def _these_sittings_only(
    pair: Pair, sittings_a: Sequence[Sequence[float]], sittings_b: Sequence[Sequence[float]], mean: float, margin: float
) -> Comparison:
    why = (
        f"with {pair.count_a} and {pair.count_b} sittings it is not known how far two sittings of an unchanged machine differ "
        "here, so nothing is said about the upgrade"
    )
    bare = without_interval(pair, mean, margin, why=why, advice=Needed(ENOUGH, ADVICE))
    runs_a, runs_b = np.concatenate(sittings_a), np.concatenate(sittings_b)
    if min(runs_a.size, runs_b.size) < 2:
        return bare
    runs = judged(replace(pair, kind="runs", count_a=runs_a.size, count_b=runs_b.size), welch(runs_a, runs_b), margin)
    ratio, low, high = say_ratios(bare.ratio, runs.interval_90)
    seen = (
        f"these sittings differ by more than their runs spread ({runs.b} is {runs.difference}): whether the upgrade did "
        "it, or the sitting, is open"
        if runs.difference
        else "these sittings do not differ by more than their runs spread, which does not say that others would not"
    )
    return replace(
        bare,
        interval_90=runs.interval_90,
        interval_95=runs.interval_95,
        sentence=(
            f"INCONCLUSIVE at {percent(margin)}: {pair.b} against {pair.a} has ratio {ratio}; in these sittings alone the "
            f"runs' 90 % interval is {low} to {high} ({runs_b.size} runs against {runs_a.size})"
        ),
        notes=(*bare.notes, seen, "the intervals are those of the runs: they hold for these sittings only"),
    )


def _means(sittings: Sequence[Sequence[float]], what: str) -> Floats:
    if not sittings:
        raise ValueError(f"there are no sittings of {what} to compare")
    return np.array([logs_of(sitting, what).mean() for sitting in sittings], dtype=np.float64)
