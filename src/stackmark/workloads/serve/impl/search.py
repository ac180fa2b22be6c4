"""Search the highest rate whose latency stays within a bound: bracket, bisect, and confirm both ends.

A single test near the limit is a coin toss, and where latency grows slowly with the load there is a band of rates at which the
answer changes from test to test. So the answer is two rates: the lower one held in three tests of three, the higher one failed in
three of three. An end that a test contradicts moves outwards, and never back; what lies between the two is left open.
"""

from collections.abc import Callable
from dataclasses import dataclass

from stackmark.workloads.serve.impl.loadgen import LoadResult
from stackmark.workloads.workload import WorkloadFailure

# Bisecting ends when the two rates are this close.
CLOSE = 1.1
CONFIRMED = 3
# How far the search looks at once for a bracket, and how far an end moves that was contradicted.
WIDEN, MOVE = 1.6, 1.15
# Of the rate that the search begins with: how far below and above it looks.
FARTHEST = 64.0


@dataclass(frozen=True)
class RateFound:
    """The highest rate that held in all its tests, and the lowest above it that failed in all. `last` is a test of the former."""

    holds: float
    fails: float
    tests: int
    last: LoadResult


class Search:
    """`test` runs one test at a rate; it holds where LoadGen calls it valid."""

    def __init__(
        self, test: Callable[[float], LoadResult], bound_s: float, log: Callable[[str], None], first: float
    ) -> None:
        self._test, self._bound_s, self._log, self._first = test, bound_s, log, _round(first)
        self._seen: dict[float, list[LoadResult]] = {}

    def run(self) -> RateFound:
        low, high = self._bracket()
        while high / low > CLOSE:
            middle = _round((low * high) ** 0.5)
            if middle in (low, high):
                break
            low, high = (middle, high) if self._holds(middle) else (low, middle)
        while not self._always(low, True):
            low = self._moved(low, 1 / MOVE)
        while not self._always(high, False):
            high = self._moved(high, MOVE)
        return RateFound(low, high, sum(map(len, self._seen.values())), self._seen[low][-1])

    def _bracket(self) -> tuple[float, float]:
        """Return a rate that held and a higher one that failed, in one test each."""
        rate = self._first
        if self._holds(rate):
            low = rate
            while self._holds(rate := self._moved(low, WIDEN)):
                low = rate
            return low, rate
        high = rate
        while not self._holds(rate := self._moved(high, 1 / WIDEN)):
            high = rate
        return rate, high

    def _always(self, rate: float, wanted: bool) -> bool:
        """Tell whether all tests at a rate end as they should; test until one does not, or enough did."""
        while all(one.valid == wanted for one in self._seen.get(rate, [])):
            if len(self._seen.get(rate, [])) >= CONFIRMED:
                return True
            self._holds(rate)
        return False

    def _moved(self, rate: float, factor: float) -> float:
        moved = _round(rate * factor)
        if self._first / FARTHEST <= moved <= self._first * FARTHEST:
            return moved
        if factor > 1:
            message, way = f"every rate up to {rate:g} queries/s holds", "a smaller"
        else:
            message = (
                f"no rate from {rate:g} queries/s on holds: more than 1 % of the answers take over {self._bound_s:g} s"
            )
            way = "a longer"
        raise WorkloadFailure("no_figure", message, f"give it {way} --latency-bound, or end other programs")

    def _holds(self, rate: float) -> bool:
        tested = self._test(rate)
        self._seen.setdefault(rate, []).append(tested)
        self._log(
            f"{rate:g} queries/s {'holds' if tested.valid else 'fails'}: p99 {1e3 * tested.percentile_s(99):.4g} ms"
        )
        return tested.valid


def _round(rate: float) -> float:
    """Keep three digits: what was asked for is what is printed."""
    return float(f"{rate:.3g}")
