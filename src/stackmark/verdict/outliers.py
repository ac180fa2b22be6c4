"""Many devices: which one is slow?

A cohort is devices of one model with one stack. ln R of each stands against the cohort's median, in units of 1.4826·MAD, which
a few slow devices do not move. Flagged: below the median by more than the margin, and significant after Benjamini and Hochberg
at 5 % over the cohort. What is flagged is suspected, no more; it is named once it was run again beside a good one (`confirm`).

The p of a device. The MAD of a handful is a poor measure of spread: with it, a normal p would flag somebody in 18 of 100 sweeps
of ten equal devices instead of 5. Simulated (10^4 to 10^6 cohorts of each size from 5 to 500, normal noise), (x − median) /
(1.4826·MAD) of a device that is like the others follows Student's t, with a scale of 1 − 1/k and 0.36·k + 0.6 degrees of freedom
for an even number k of devices, 0.375·k for an odd one (whose median is itself a device): the p is then right within some 15 %
down to 0.01/k, and 4 to 5 % of cohorts without a slow device have one flagged. One-sided: nobody complains about a fast one.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import median

from stackmark.units import say_rate
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.needed import percent
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.student import t_cdf, t_quantile

ALPHA = 0.05
# Of four devices the median is two of them, and the MAD says next to nothing: the p would need a device at a tenth of the speed.
LEAST_DEVICES = 5
# From the median absolute deviation to a standard deviation, for normal noise.
MAD_TO_SD = 1.4826
# Runs of one chip on the quietest machine that we have seen spread by 0.09 %. Devices that agree better do so by chance, or
# because the rate is counted coarsely; without a floor the smallest difference would be infinitely many deviations.
LEAST_SD = 0.0005


@dataclass(frozen=True)
class Device:
    """One device and what it reached: ln R. `stack` is what makes it comparable: model, driver, framework."""

    node: str
    device: str
    log_rate: float
    stack: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.node if self.device == self.node else f"{self.node} {self.device}"


@dataclass(frozen=True)
class Standing:
    """Where a device stands in its cohort. `p` is its own, `p_adjusted` after Benjamini and Hochberg; None where the cohort
    is too small for either."""

    device: Device
    ratio: float
    deviations: float
    p: float | None = None
    p_adjusted: float | None = None
    flagged: bool = False


@dataclass(frozen=True)
class Cohort:
    stack: tuple[str, ...]
    log_median: float
    sd_log: float
    standings: tuple[Standing, ...]
    # Why nobody can be named in it; empty where somebody can.
    cannot: str = ""

    @property
    def flagged(self) -> tuple[Standing, ...]:
        return tuple(one for one in self.standings if one.flagged)


def cohorts(devices: Sequence[Device], margin: float) -> tuple[Cohort, ...]:
    """The devices by model and stack, the largest cohort first; each device against its own."""
    by_stack: dict[tuple[str, ...], list[Device]] = {}
    for device in devices:
        by_stack.setdefault(device.stack, []).append(device)
    ordered = sorted(by_stack.items(), key=lambda item: -len(item[1]))
    return tuple(_cohort(stack, members, margin) for stack, members in ordered)


def _cohort(stack: tuple[str, ...], members: Sequence[Device], margin: float) -> Cohort:
    logs = [member.log_rate for member in members]
    middle = median(logs)
    sd = max(MAD_TO_SD * median(abs(log - middle) for log in logs), LEAST_SD)
    standings = [
        Standing(member, ratio=math.exp(log - middle), deviations=(log - middle) / sd)
        for member, log in zip(members, logs, strict=True)
    ]
    if len(members) < LEAST_DEVICES:
        return Cohort(stack, middle, sd, tuple(standings), _too_few(len(members)))
    p_values = [device_p(one.deviations, len(members)) for one in standings]
    adjusted = benjamini_hochberg(p_values)
    limit = math.log1p(-margin)
    found = tuple(
        replace(one, p=p, p_adjusted=q, flagged=q <= ALPHA and one.device.log_rate - middle < limit)
        for one, p, q in zip(standings, p_values, adjusted, strict=True)
    )
    return Cohort(stack, middle, sd, found)


def _too_few(count: int) -> str:
    what = "one device has nothing to stand against" if count == 1 else f"{count} devices do not tell what is usual"
    return f"{what}: a slow one can be named among {LEAST_DEVICES} or more of one model and stack"


def device_p(deviations: float, count: int) -> float:
    """How often a device that is like its `count` − 1 fellows stands so low, or lower."""
    scale, df = _shape(count)
    return t_cdf(deviations / scale, df)


def _shape(count: int) -> tuple[float, float]:
    return 1 - 1 / count, 0.375 * count if count % 2 else 0.36 * count + 0.6


def seen_from(cohort: Cohort, margin: float) -> float:
    """How much slower than the median, as a share, a single device must be to be flagged: what a sweep can tell at all."""
    count = len(cohort.standings)
    scale, df = _shape(count)
    least = -t_quantile(ALPHA / count, df) * scale * cohort.sd_log
    return max(margin, -math.expm1(-least))


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Each p as the smallest rate of false discoveries at which it is one (step-up)."""
    adjusted = [1.0] * len(p_values)
    least = 1.0
    for rank, index in reversed(list(enumerate(sorted(range(len(p_values)), key=p_values.__getitem__), start=1))):
        least = min(least, p_values[index] * len(p_values) / rank)
        adjusted[index] = least
    return adjusted


def reference_for(flagged: Standing, cohort: Cohort, busy: Collection[str] = ()) -> Device | None:
    """The good one to run it beside: near the median, on a node where nobody is suspected, and not its own.

    Whatever slows a node slows a reference on it too, and then nothing would be seen. A node of `busy` is taken where there is
    no other: two repetitions at once need two references."""
    suspected = {one.device.node for one in cohort.flagged}
    good = sorted((one for one in cohort.standings if not one.flagged), key=lambda one: abs(one.deviations))
    elsewhere = [one.device for one in good if one.device.node not in suspected]
    free = [device for device in elsewhere if device.node not in busy]
    other_nodes = [one.device for one in good if one.device.node != flagged.device.node]
    return next(iter(free or elsewhere or other_nodes or [one.device for one in good]), None)


def confirm(
    flagged: Device, reference: Device, logs_flagged: Sequence[float], logs_reference: Sequence[float], margin: float
) -> Comparison | None:
    """The repetition: blocks of one run on each, fresh data that had no part in the suspicion. None without a whole block."""
    if not logs_flagged:
        return None
    return compare_blocks(reference.name, flagged.name, logs_reference, logs_flagged, margin)


def is_confirmed(comparison: Comparison | None) -> bool:
    """Slower by more than the margin, with 95 % confidence on that side: what a verdict between two arms asks too."""
    return comparison is not None and comparison.word == "SLOWER"


def slow_nodes(devices: Sequence[Device], slow: Sequence[Device]) -> dict[str, int]:
    """Nodes all of whose devices are slow, two or more: then it is the node, not one device after another."""
    of_node: dict[str, int] = {}
    for device in devices:
        of_node[device.node] = of_node.get(device.node, 0) + 1
    found: dict[str, int] = {}
    for device in slow:
        found[device.node] = found.get(device.node, 0) + 1
    return {node: count for node, count in found.items() if count > 1 and count == of_node.get(node)}


def say_cohort(cohort: Cohort, unit: str = "") -> str:
    """`10 × Xeon, PyTorch 2.11: median 142 images/s, devices spread by 0.4 %`"""
    what = ", ".join(part for part in cohort.stack if part) or "devices of an unknown model"
    middle = math.exp(cohort.log_median)
    said = f"{len(cohort.standings)} × {what}: median {say_rate(middle)}{f' {unit}' if unit else ''}"
    if len(cohort.standings) > 1:
        floor = " or less" if cohort.sd_log <= LEAST_SD else ""
        said += f"; they spread by {percent(cohort.sd_log)}{floor}"
    return said
