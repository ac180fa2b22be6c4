"""Compare a run with its machine's limits: how much of the matrix rate and of the memory's bandwidth it reaches, and which of the
two is the nearer.

What a run does is known by two counts of bytes (workloads/train/impl/nets/moving.py): the fewest that its matrix operators must
move, and all that its operators move as they are called one by one. What an eager run moves is nearly the second; what a compiled
one moves lies between the two. So a run is no point in the picture but a bar, from its intensity as called to the most that it
can be.

A share is compared with the sustained matrix rate, since a run of minutes is at full power, and with the bandwidth of a copy.
It may be above 100 %. Nothing is faster than its limit, so that ceiling is out of date: it is called so, and no limit is
called the nearer one. Nothing is clipped. Two shares above 100 % have another reason: of the sustained rate alone (the chip was
cooler than when its ceiling was measured), and of the bytes that a compiled run would move if it called its operators one by one.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stackmark.spec import Scalar
from stackmark.units import say_count
from stackmark.verdict.ceilings import Ceilings, Rate

# Below this share of both limits a run waits mostly for something else.
NEAR = 1 / 3
# Cold and sustained rates that differ by less are one number to a reader.
ALIKE = 0.02
MEASURE = "stackmark ceilings"
NO_CEILINGS = f"this machine's ceilings are not measured yet: {MEASURE}"

ELSEWHERE = "the time goes elsewhere: kernels that reach neither limit, launches, waiting"

Ceiling = Literal["copy", "matrix"]
Bound = Literal["memory", "probably memory", "either", "matrix", "neither", ""]


@dataclass(frozen=True)
class Work:
    """The work: operations and bytes of one sample or one call, and how many of them per second."""

    rate_per_s: float
    operations: float
    precision: str
    least_bytes: float | None = None
    # As the operators are called; None where that is the same, as of a single operator, or is not known.
    called_bytes: float | None = None
    # A compiler fuses operators, so that fewer bytes move than are called.
    compiled: bool = False


@dataclass(frozen=True)
class Standing:
    """A run, or one row of a list, against its machine's ceilings; None: that ceiling was not measured."""

    work: Work
    matrix: Rate | None
    memory_bytes_per_s: float | None

    @property
    def operations_per_s(self) -> float:
        return self.work.rate_per_s * self.work.operations

    @property
    def least_bytes_per_s(self) -> float | None:
        return _times(self.work.least_bytes, self.work.rate_per_s)

    @property
    def called_bytes_per_s(self) -> float | None:
        return _times(self.work.called_bytes, self.work.rate_per_s)

    @property
    def intensity_least(self) -> float | None:
        """Return the operations per byte if the fewest bytes move: the highest possible intensity."""
        return _over(self.work.operations, self.work.least_bytes)

    @property
    def intensity_called(self) -> float | None:
        return _over(self.work.operations, self.work.called_bytes)

    @property
    def intensity(self) -> float | None:
        """Return the intensity that represents the run: as called where that is known, else at the least bytes."""
        return self.intensity_called or self.intensity_least

    @property
    def matrix_share(self) -> float | None:
        return _over(self.operations_per_s, self.matrix.sustained_per_s if self.matrix else None)

    @property
    def cold_share(self) -> float | None:
        return _over(self.operations_per_s, self.matrix.cold_per_s if self.matrix else None)

    @property
    def least_share(self) -> float | None:
        return _over(self.least_bytes_per_s, self.memory_bytes_per_s)

    @property
    def called_share(self) -> float | None:
        return _over(self.called_bytes_per_s, self.memory_bytes_per_s)

    def roof_per_s(self, intensity: float | None) -> float | None:
        """Return the most operations per second at this intensity, by the known ceilings."""
        slope = _times(intensity, self.memory_bytes_per_s)
        flat = self.matrix.sustained_per_s if self.matrix else None
        return min((limit for limit in (slope, flat) if limit is not None), default=None)

    @property
    def roof_share(self) -> float | None:
        """Return the share of the roof at the run's intensity; None where a part of the roof is unknown."""
        if self.matrix is None or self.memory_bytes_per_s is None:
            return None
        return _over(self.operations_per_s, self.roof_per_s(self.intensity))

    @property
    def out_of_date(self) -> tuple[Ceiling, ...]:
        """Return the ceilings that this run exceeds."""
        moved = self.least_share if self.work.compiled or self.called_share is None else self.called_share
        found: list[Ceiling] = ["copy"] if max(moved or 0, self.least_share or 0) > 1 else []
        return (*found, "matrix") if min(self.matrix_share or 0, self.cold_share or 0) > 1 else tuple(found)

    @property
    def bound(self) -> Bound:
        """Return which limit is nearer, as far as the counts show; empty where one of them is out of date."""
        matrix = self.matrix_share
        least = self.least_share
        called = self.called_share if self.called_share is not None else least
        if matrix is None or least is None or called is None or self.out_of_date:
            return ""
        if max(matrix, called) < NEAR:
            return "neither"
        if matrix >= called:
            return "matrix"
        if least > matrix or not self.work.compiled:
            return "memory"
        # Between the two counts: their middle, as of quantities that are compared by ratio.
        return "probably memory" if math.sqrt(least * called) > matrix else "either"


def stand(work: Work, ceilings: Ceilings) -> Standing:
    """Place the run by the ceiling of the precision that it computed in."""
    memory = ceilings.copy_bytes_per_s or ceilings.memory_bytes_per_s
    return Standing(work, ceilings.matrix.get(work.precision), memory)


# Words

_BOUNDS: Mapping[Bound, str] = {
    "memory": "memory-bound",
    "probably memory": "probably memory-bound",
    "either": "bound by memory or by arithmetic (undecided)",
    "matrix": "bound by its arithmetic",
    "neither": "near neither limit",
}


def say_bound(standing: Standing) -> str:
    if standing.out_of_date:
        return "ceilings out of date" if len(standing.out_of_date) > 1 else "ceiling out of date"
    return _BOUNDS.get(standing.bound, "")


def say_standing(standing: Standing) -> str:
    """Format like `memory-bound: 71 % of copy bandwidth as the operators are called (at least 21 %), 22 % of the bf16 …`."""
    memory, matrix = _say_memory(standing), _say_matrix(standing)
    highest = standing.called_share or standing.least_share or 0
    shares = [matrix, memory] if (standing.matrix_share or 0) >= highest else [memory, matrix]
    said = ", ".join(filter(None, shares))
    bound = say_bound(standing)
    after = f"; {ELSEWHERE}" if standing.bound == "neither" else ""
    return (f"{bound}: {said}{after}" if bound and said else said) or "no ceiling was measured to compare it with"


def _say_memory(standing: Standing) -> str:
    least, called = standing.least_share, standing.called_share
    if least is None:
        return ""
    if called is None:
        return f"at least {say_share(least)} of copy bandwidth"
    if standing.work.compiled:
        span = f"{_number(least)} to {say_share(called)} of copy bandwidth"
        return f"{span} (at least, and as the operators are called; compiled code is in between)"
    return f"{say_share(called)} of copy bandwidth as the operators are called (at least {say_share(least)})"


def _say_matrix(standing: Standing) -> str:
    sustained, cold = standing.matrix_share, standing.cold_share
    if sustained is None or cold is None:
        return ""
    cold_share = f" ({say_share(cold)} of the cold one)" if abs(cold / sustained - 1) > ALIKE else ""
    return f"{say_share(sustained)} of the {standing.work.precision} matrix rate{cold_share}"


@dataclass(frozen=True)
class Doubt:
    """A caveat. `kind` is for programs."""

    kind: str
    what: str


def doubts(standing: Standing) -> list[Doubt]:
    """Name what speaks against a standing."""
    found = []
    precision = standing.work.precision
    if standing.matrix is None:
        what = f"this machine's {precision} matrix rate is not measured: {MEASURE} --precision {precision}"
        found.append(Doubt("no-matrix-rate", what))
    elif standing.matrix.doubts:
        # Then it explains a share above 100 % as well.
        found += [
            Doubt("doubtful-ceiling", f"doubtful: when the {precision} matrix rate was measured, {one}")
            for one in standing.matrix.doubts
        ]
        found.append(Doubt("measure-again", f"measure it again when the machine is idle: {MEASURE}"))
    elif min(standing.matrix_share or 0, standing.cold_share or 0) > 1:
        what = f"above 100 % of the {precision} matrix rate, cold too: that ceiling is out of date; measure it again: {MEASURE}"
        found.append(Doubt("matrix-out-of-date", what))
    elif (standing.matrix_share or 0) > 1:
        what = f"above 100 % of the sustained {precision} matrix rate: the chip was cooler than when its ceiling was measured"
        found.append(Doubt("cooler", what))
    if standing.memory_bytes_per_s is None:
        found.append(Doubt("no-copy-rate", f"this machine's copy bandwidth is not measured: {MEASURE}"))
    elif "copy" in standing.out_of_date:
        what = f"above 100 % of the copy bandwidth: that ceiling is out of date; measure it again: {MEASURE}"
        found.append(Doubt("copy-out-of-date", f"{what}; if it stays above 100 %, a cache holds part of the bytes"))
    elif (standing.called_share or 0) > 1:
        what = (
            "more bytes per second as called than memory can copy: operators were fused, or a cache held part of them"
        )
        found.append(Doubt("fused-or-cached-as-called", what))
    return found


def say_operations(per_s: float, precision: str) -> str:
    """Format a rate of operations; those on integers are OP/s, not FLOP/s."""
    return f"{say_count(per_s)}{'OP' if precision.startswith('int') else 'FLOP'}/s"


def say_share(share: float) -> str:
    """Format like `71 %`, `124 %`, `3.2 %`, `0.04 %`."""
    return f"{_number(share)} %"


def _number(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f}" if percent >= 9.95 else f"{percent:.2g}"


def _times(one: float | None, other: float | None) -> float | None:
    return one * other if one is not None and other is not None else None


def _over(one: float | None, other: float | None) -> float | None:
    return one / other if one is not None and other else None


# The picture's data


@dataclass(frozen=True)
class Point:
    """A run, an arm of an experiment, or a row of a list."""

    workload: str
    work: Work
    # The run or experiment that it is from.
    run_id: str
    # Of a row: its operator and its shape.
    op: str = ""
    shape: Mapping[str, Scalar] = field(default_factory=dict)
    # What may tell it from another of the same workload: precision, batch, tuning, arm.
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Roofline:
    """Runs of one chip and its ceilings. `left_out` are sentences about what could not be placed."""

    ceilings: Ceilings
    points: tuple[Point, ...]
    left_out: tuple[str, ...] = ()

    @property
    def precisions(self) -> tuple[str, ...]:
        """Return the precisions of the points first, then the others that have a ceiling, each once."""
        return tuple(dict.fromkeys([*(point.work.precision for point in self.points), *self.ceilings.matrix]))

    def standing(self, point: Point) -> Standing:
        return stand(point.work, self.ceilings)
