"""Latency against load: one server under several loads, and the knee of its curve.

The knee is the load with the most answers per second for its median latency (Kleinrock's power, throughput / latency). Below
it a higher load costs little latency; above it, it buys waiting and few answers. It is only named where the curve shows it: with
a lower and a higher load on either side.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

RULE = "the load with the most answers a second for its median latency (throughput / latency)"


@dataclass(frozen=True)
class LoadPoint:
    """One load: clients in a closed loop, or requests per second in an open one. `times_s` are percentiles by name."""

    load: float
    requests_per_s: float
    output_per_s: float | None
    failed_share: float
    times_s: Mapping[str, float]

    @property
    def latency_s(self) -> float:
        return self.times_s["p50_latency"]

    @property
    def power(self) -> float:
        return self.requests_per_s / self.latency_s


@dataclass(frozen=True)
class LoadCurve:
    """The loads in rising order. `name` is the parameter that differs: `concurrency` or `rate`."""

    name: str
    points: tuple[LoadPoint, ...]

    @property
    def best(self) -> LoadPoint:
        return max(self.points, key=lambda point: point.power)

    @property
    def knee(self) -> LoadPoint | None:
        """Return the knee; None where the best load is the lowest or the highest one."""
        return self.best if self.points[0] is not self.best is not self.points[-1] else None


def load_curve(name: str, points: Sequence[LoadPoint]) -> LoadCurve | None:
    """Put a curve together; None where fewer than three loads gave a median latency and an answer."""
    good = [point for point in points if point.times_s.get("p50_latency", 0.0) > 0 and point.requests_per_s > 0]
    return LoadCurve(name, tuple(sorted(good, key=lambda point: point.load))) if len(good) >= 3 else None
