"""Scaling: how the rate of a group grows with its devices, and where the rest goes.

The efficiency of N devices is R_N / (N·R_1). Blocks hold one device and N: d = ln R_N − ln R_1 − ln N, so it is the ratio of two
rates per device, and the tests of ratio.py apply. The question has one side: is it at least 1 − margin? SCALES: the 90 % interval
lies above 1 − margin (a one-sided test at 5 %). FALLS SHORT: it lies below, and the 95 % interval excludes 1. Else INCONCLUSIVE.

What is lost is 1 − efficiency, as a share of the group's time. A step of a synchronous group is a rank's own compute, its waiting
for the slowest rank, and the exchange that the compute did not hide. So the exchange and the mean waiting are two parts of the
loss; what is left over is that each rank computes more slowly than a device alone does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Literal

from stackmark.verdict.comparison import Comparison

Mode = Literal["weak", "strong"]
# Ten percent: of what people publish as good scaling on one machine, most reach 90 %.
MARGIN = 0.10
# The names under which ranks report the parts of a step.
COMPUTE, WAITING, EXCHANGE, BYTES = "compute_step_s", "waiting_step_s", "exchange_step_s", "exchanged_bytes_step"
ONE_NEEDED = "the efficiency of N ranks is against one: the rate of one rank is missing"


@dataclass(frozen=True)
class RankTimes:
    """What one rank of one run says of its step; None where it does not say it."""

    compute_s: float | None = None
    waiting_s: float | None = None
    exchange_s: float | None = None
    exchanged_bytes: float | None = None


@dataclass(frozen=True)
class GroupTimes:
    """What the ranks of one run say of a step: the mean over the ranks, and the compute of the slowest."""

    compute_s: float
    slowest_compute_s: float
    waiting_s: float
    exchange_s: float
    exchanged_bytes: float | None = None

    @property
    def step_s(self) -> float:
        return self.compute_s + self.waiting_s + self.exchange_s


@dataclass(frozen=True)
class Losses:
    """Where 1 − efficiency goes, as shares of what perfect scaling would give; `other` may be below 0.

    `other` is what each rank computes more slowly than a device alone: shared power, memory, cores, or a smaller batch.
    """

    communication: float
    stragglers: float
    other: float


@dataclass(frozen=True)
class Expected:
    """What the exchange should take, from its bytes and a measured all-reduce rate, and the efficiencies that follow.

    `efficiency_low` is that of an exchange that begins when all compute is done, `efficiency_high` of one that compute hides as
    far as it can.
    """

    exchanged_bytes: float
    bus_gb_per_s: float
    exchange_s: float
    efficiency_low: float
    efficiency_high: float
    # The stored run that measured the rate, and the bytes of its array.
    run_id: str
    array_bytes: float


@dataclass(frozen=True)
class PublishedScaling:
    """The efficiency that somebody else's two numbers give, for one device and for several of one recipe."""

    ranks: int
    efficiency: float
    one: float
    several: float
    unit: str
    what: str
    framework: str
    # synthetic, real or unknown.
    data: str
    source: str
    date: str


@dataclass(frozen=True)
class ScalingPoint:
    """One number of ranks. Speed-up and efficiency are None where there is no rate, or where they would mislead."""

    label: str
    ranks: int
    batch: int | None
    rate_per_s: float | None
    speedup: float | None = None
    efficiency: float | None = None
    # The 95 % interval of the efficiency.
    low: float | None = None
    high: float | None = None
    losses: Losses | None = None
    expected: Expected | None = None
    # Why there is no efficiency.
    refused: str = ""
    # The command that would give what is expected, where only the all-reduce rate is missing.
    missing: str = ""


@dataclass(frozen=True)
class Scaling:
    """How the rate grew. `devices` says which device the single rank had in which block."""

    mode: Mode
    points: tuple[ScalingPoint, ...]
    devices: str = ""
    published: tuple[PublishedScaling, ...] = ()

    @property
    def is_drawable(self) -> bool:
        """Tell whether a group has a speed-up."""
        return any(point.speedup for point in self.points if point.ranks > 1)

    @property
    def refused(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.refused for point in self.points if point.refused))


def group_times(ranks: Sequence[RankTimes]) -> GroupTimes | None:
    """Put the ranks of one run together; None unless every rank says all three parts."""
    computes = [one.compute_s for one in ranks if one.compute_s is not None]
    waits = [one.waiting_s for one in ranks if one.waiting_s is not None]
    exchanges = [one.exchange_s for one in ranks if one.exchange_s is not None]
    sent = [one.exchanged_bytes for one in ranks if one.exchanged_bytes]
    if not ranks or not len(computes) == len(waits) == len(exchanges) == len(ranks):
        return None
    # A rank measures both by the clock of the group's step: a hair below 0 is noise.
    mean_wait, exchange = max(fmean(waits), 0.0), max(fmean(exchanges), 0.0)
    slowest = max(computes)
    if slowest <= 0:
        return None
    return GroupTimes(fmean(computes), slowest, mean_wait, exchange, max(sent) if sent else None)


def losses(runs: Sequence[GroupTimes], efficiency: float) -> Losses | None:
    """Divide 1 − efficiency among its causes: the median over an arm's runs."""
    if not runs:
        return None
    communication = median(one.exchange_s / one.step_s for one in runs)
    stragglers = median(one.waiting_s / one.step_s for one in runs)
    return Losses(communication, stragglers, 1.0 - efficiency - communication - stragglers)


def expected(
    ranks: int,
    exchanged_bytes: float,
    bus_gb_per_s: float,
    *,
    ideal_s: float,
    compute_s: float,
    run_id: str,
    array_bytes: float,
) -> Expected:
    """Compute what an all-reduce of these bytes takes at that bus bandwidth, and which efficiency it leaves.

    `ideal_s` is the step at perfect scaling, `compute_s` the slowest rank's step without exchange.
    """
    exchange_s = 2 * (ranks - 1) / ranks * exchanged_bytes / (bus_gb_per_s * 1e9)
    return Expected(
        exchanged_bytes=exchanged_bytes,
        bus_gb_per_s=bus_gb_per_s,
        exchange_s=exchange_s,
        # A rank of a group that computes faster than one alone does so by chance.
        efficiency_low=min(1.0, ideal_s / (compute_s + exchange_s)),
        efficiency_high=min(1.0, ideal_s / max(compute_s, exchange_s)),
        run_id=run_id,
        array_bytes=array_bytes,
    )


def is_questioned(comparison: Comparison) -> bool:
    """Tell whether an efficiency lies above 1 beyond its 95 % interval, which N devices should not reach."""
    return comparison.interval_95 is not None and comparison.interval_95.low > 1.0


def question(comparison: Comparison) -> str:
    """Ask what an efficiency above 1 may come from."""
    return f"{comparison.b} are above 100 % beyond the interval, which more devices do not explain: was the one rank held back?"


def shared_devices(chips: Sequence[str | None]) -> str:
    """Say that ranks share a GPU, by the UUIDs that they report; empty where each has its own or none is known."""
    known = [chip for chip in chips if chip]
    twice = next((chip for chip in known if known.count(chip) > 1), None)
    if twice is None:
        return ""
    count = known.count(twice)
    return f"{count} of {len(chips)} ranks share one GPU ({twice}): that is sharing, not scaling, so there is no efficiency"
