"""Interpret the time of a collective: three figures that are all called bandwidth, each under its own name.

nccl-tests (doc/PERFORMANCE.md) have two. Algorithm bandwidth is "size (S) / time (t)", useful "to compute how much time any large
operation would take". Bus bandwidth is that times a factor "to reflect the speed of the inter-GPU communication", so that "we can
compare it with the hardware peak bandwidth, independently of the number of ranks": what each rank's own link carries.
DeepBench's sheets have a third, bytes × ranks / time, which grows with the ranks and which no link ever carries; of its 203
published rows each is just that. It is kept for those who hold an old table next to a new one, and under DeepBench's own name.

No rank of a collective is slow alone: the others wait for it, and their own time grows with it. What differs between ranks is
when each begins and is done, and where that is a good part of the call, the ranks are not alike.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from stackmark.events import OpRow
from stackmark.units import say_seconds
from stackmark.workloads.op.definition import bus_factor, known_operator

ALGORITHM, BUS, DEEPBENCH = "algorithm GB/s", "bus GB/s", "DeepBench's Gigabytes/sec"
# Ranks whose own times differ by more than this are not alike.
APART = 0.10


@dataclass(frozen=True)
class Bandwidths:
    """The bandwidths of one collective. `limit_bus_gb_per_s` is what the links' description allows; None where unknown."""

    seconds: float
    algorithm_gb_per_s: float
    bus_gb_per_s: float
    deepbench_gb_per_s: float
    limit_bus_gb_per_s: float | None = None
    limit: str = ""

    @property
    def limit_share(self) -> float | None:
        return self.bus_gb_per_s / self.limit_bus_gb_per_s if self.limit_bus_gb_per_s else None

    def by_name(self) -> dict[str, float]:
        return {
            ALGORITHM: self.algorithm_gb_per_s,
            BUS: self.bus_gb_per_s,
            DEEPBENCH: self.deepbench_gb_per_s,
        }


def bandwidths(
    op: str, ranks: int, array_bytes: float, seconds: float, limit_per_s: float | None = None, limit: str = ""
) -> Bandwidths:
    """Compute the bandwidths. `array_bytes` is the whole array, as in nccl-tests; `limit_per_s` counts bytes of it per second."""
    algorithm = array_bytes / seconds / 1e9
    factor = bus_factor(op, ranks)
    return Bandwidths(
        seconds=seconds,
        algorithm_gb_per_s=algorithm,
        bus_gb_per_s=algorithm * factor,
        deepbench_gb_per_s=algorithm * ranks,
        limit_bus_gb_per_s=limit_per_s * factor / 1e9 if limit_per_s else None,
        limit=limit,
    )


def rows_apart(rows: Mapping[int, Sequence[OpRow]]) -> list[str]:
    """Flag the rank that took longest in most of the rows where the ranks differ."""
    own: dict[int, dict[int, float]] = {}
    for rank, of_rank in rows.items():
        for row in of_rank:
            if row.own_s and not row.failure_kind and _ranks_alike(row.op):
                own.setdefault(row.index, {})[rank] = row.own_s
    found = [times for times in own.values() if _differ(times)]
    if not found:
        return []
    slowest = [max(times, key=times.__getitem__) for times in found]
    rank = max(sorted(set(slowest)), key=slowest.count)
    its = [times for times, slow in zip(found, slowest, strict=True) if slow == rank]
    return [_say(max(its, key=_ratio), f"than another in {len(its)} of {len(own)} rows, at most")]


def _ranks_alike(op: str) -> bool:
    """Tell whether all ranks do the same; one that only sends is done before the others, which says nothing of it."""
    operator = known_operator(op)
    return operator is None or operator.exchange is None or operator.exchange.ranks_alike


def steps_apart(step_s: Mapping[int, Sequence[float]]) -> list[str]:
    """Flag the slowest rank from the step times of each rank, as `rows_apart` does from rows."""
    times = {rank: median(steps) for rank, steps in step_s.items() if steps}
    return [_say(times, "than another at a step:")] if _differ(times) else []


def _differ(times: Mapping[int, float]) -> bool:
    return len(times) > 1 and _ratio(times) > 1 + APART


def _ratio(times: Mapping[int, float]) -> float:
    return max(times.values()) / min(times.values())


def _say(times: Mapping[int, float], where: str) -> str:
    slow, quick = (choose(times, key=times.__getitem__) for choose in (max, min))
    said = f"{say_seconds(times[slow])} where rank {quick} took {say_seconds(times[quick])}"
    return f"stragglers: rank {slow} took more than {100 * APART:.0f} % longer {where} {said}"
