"""A histogram of times whose cells grow with the time: a million latencies in a few kilobytes, each known to 0.05 %.

It is an HDR histogram: a cell is one nanosecond wide up to 2048 ns, and from there each doubling has 1024 cells of equal
width. Means of percentiles are no percentiles, so histograms of processes are added, cell by cell, and percentiles are taken
of the sum. It belongs to the contracts: a worker fills it, and what is printed is computed from it again later. The first and
the slowest times are kept one by one: what a server does at its start, and the tail, are looked at singly.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappush, heappushpop

# The cells of a doubling; the middle of a cell differs from what fell into it by at most half of 1/1024.
_CELLS = 1024
_BITS = 11
# How many single times are kept from the beginning, and how many of the slowest.
KEPT = 1000
# Eleven days in nanoseconds: what is longer is counted there.
LONGEST_NS = 10**15
# A percentile needs this number of times beyond it, else another run would say another one.
BEYOND = 10


def cell_of(value_ns: int) -> int:
    """Return the number of the cell of a time."""
    shift = max(0, value_ns.bit_length() - _BITS)
    return shift * _CELLS + (value_ns >> shift)


def bounds_of(cell: int) -> tuple[int, int]:
    """Return the smallest and the largest time of a cell."""
    shift = max(0, cell // _CELLS - 1)
    low = (cell - shift * _CELLS) << shift
    return low, low + (1 << shift) - 1


HIGHEST_CELL = cell_of(LONGEST_NS)


@dataclass
class Histogram:
    """Times in nanoseconds. `name` is that of its metrics: `latency`, `ttft`."""

    name: str = "latency"
    counts: dict[int, int] = field(default_factory=dict)
    total: int = 0
    # In the order in which they were recorded.
    first_ns: list[int] = field(default_factory=list)
    _slowest: list[int] = field(default_factory=list)

    @property
    def slowest_ns(self) -> list[int]:
        """Return the slowest times, the slowest of all first."""
        return sorted(self._slowest, reverse=True)

    def record(self, value_ns: int) -> None:
        value_ns = min(max(0, value_ns), LONGEST_NS)
        self._add(cell_of(value_ns), 1)
        if len(self.first_ns) < KEPT:
            self.first_ns.append(value_ns)
        self._slow(value_ns)

    def record_all(self, values_ns: Iterable[int]) -> "Histogram":
        for value in values_ns:
            self.record(value)
        return self

    def add(self, other: "Histogram") -> None:
        """Add the times of another histogram; its first ones come after those of this one."""
        for cell, count in other.counts.items():
            self._add(cell, count)
        self.first_ns += other.first_ns[: KEPT - len(self.first_ns)]
        for value in other._slowest:
            self._slow(value)

    def add_piece(
        self, counts: Sequence[tuple[int, int]], first_ns: Sequence[int] = (), slowest_ns: Sequence[int] = ()
    ) -> None:
        """Add a part of a stored histogram. What a worker sends may be wrong: a ValueError says in what."""
        for cell, count in counts:
            if not 0 <= cell <= HIGHEST_CELL or count < 1:
                raise ValueError(f"a histogram has {count} times in cell {cell}")
            self._add(cell, count)
        self.first_ns += list(first_ns)[: KEPT - len(self.first_ns)]
        for value in slowest_ns:
            self._slow(value)

    def _add(self, cell: int, count: int) -> None:
        self.counts[cell] = self.counts.get(cell, 0) + count
        self.total += count

    def _slow(self, value_ns: int) -> None:
        if len(self._slowest) < KEPT:
            heappush(self._slowest, value_ns)
        elif value_ns > self._slowest[0]:
            heappushpop(self._slowest, value_ns)

    def percentile_ns(self, percent: float) -> float | None:
        """Return the time that this share of all times does not exceed; None where fewer than ten times lie beyond it."""
        if self.total * (100 - percent) / 100 < BEYOND - 1e-9:
            return None
        return self._at(max(1, math.ceil(self.total * percent / 100 - 1e-9)))

    def curve(self, points: int = 100) -> list[tuple[float, float]]:
        """Return percents with their times in nanoseconds, for a picture: as far into the tail as the times allow.

        The points are even in the logarithm of the share that lies beyond, so that each further nine has the same width.
        """
        if self.total < 2 * BEYOND:
            return []
        least = BEYOND / self.total
        shares = (least ** (number / (points - 1)) for number in range(points))
        return [(100 * (1 - share), self._at(max(1, math.ceil(self.total * (1 - share))))) for share in shares]

    @property
    def mean_ns(self) -> float | None:
        if not self.total:
            return None
        return sum(count * _middle(cell) for cell, count in self.counts.items()) / self.total

    def _at(self, rank: int) -> float:
        """Return the time with this rank, from 1: exactly where it is one of the slowest."""
        from_top = self.total - rank
        if from_top < len(self._slowest):
            return float(self.slowest_ns[from_top])
        seen = 0
        for cell in sorted(self.counts):
            seen += self.counts[cell]
            if seen >= rank:
                return _middle(cell)
        raise ValueError(f"rank {rank} of {self.total} times")

    def pieces(self, room: int) -> Iterator["Piece"]:
        """Cut it into parts with at most `room` numbers each, for events whose size is limited."""
        cells = sorted(self.counts.items())
        for start in range(0, len(cells), room // 2):
            yield Piece(counts=cells[start : start + room // 2])
        for start in range(0, len(self.first_ns), room):
            yield Piece(first_ns=self.first_ns[start : start + room])
        slowest = self.slowest_ns
        for start in range(0, len(slowest), room):
            yield Piece(slowest_ns=slowest[start : start + room])


@dataclass(frozen=True)
class Piece:
    """A part of a histogram: cells with their counts, or single times."""

    counts: Sequence[tuple[int, int]] = ()
    first_ns: Sequence[int] = ()
    slowest_ns: Sequence[int] = ()


def _middle(cell: int) -> float:
    low, high = bounds_of(cell)
    return (low + high) / 2
