"""Search the highest rate whose answers are good enough: bracket, bisect, and confirm both ends.

A single test near the limit is a coin toss, and where latency grows slowly with the load there is a band of rates at which the
answer changes from test to test. So the answer is two rates: the lower one held in three tests of three, the higher one failed in
three of three. An end that a test contradicts moves outwards, and never back; what lies between the two is left open.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from stackmark.workloads.workload import WorkloadFailure

# Bisecting ends when the two rates are this close.
CLOSE = 1.1
CONFIRMED = 3
# How far the search looks at once for a bracket, and how far an end moves that was contradicted.
WIDEN, MOVE = 1.6, 1.15
# Of the rate that the search begins with: how far below and above it looks.
FARTHEST = 64.0


class Tested(Protocol):
    """What one test says; `valid`: the rate held."""

    @property
    def valid(self) -> bool: ...


T = TypeVar("T", bound=Tested)


@dataclass(frozen=True)
class RateFound(Generic[T]):
    """The highest rate that held in all its tests, and the lowest above it that failed in all. `last` is a test of the former."""

    holds: float
    fails: float
    tests: int
    last: T


@dataclass(frozen=True)
class Words:
    """What a search says: why no rate holds, what to relax then, and what is counted."""

    none_holds: str
    bound: str
    unit: str = "queries/s"


class Search(Generic[T]):
    """`test` runs one test at a rate, `say` says in short what it showed."""

    def __init__(
        self,
        test: Callable[[float], T],
        log: Callable[[str], None],
        first: float,
        say: Callable[[T], str],
        words: Words,
    ) -> None:
        self._test, self._log, self._first = test, log, _round(first)
        self._say, self._words = say, words
        self._seen: dict[float, list[T]] = {}

    def run(self) -> RateFound[T]:
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
        moved, words = _round(rate * factor), self._words
        if self._first / FARTHEST <= moved <= self._first * FARTHEST:
            return moved
        if factor > 1:
            message, way = f"every rate up to {rate:g} {words.unit} holds", "a smaller"
        else:
            message, way = f"no rate from {rate:g} {words.unit} on holds: {words.none_holds}", "a longer"
        raise WorkloadFailure("no_figure", message, f"give it {way} {words.bound}, or end other programs")

    def _holds(self, rate: float) -> bool:
        tested = self._test(rate)
        self._seen.setdefault(rate, []).append(tested)
        said = "holds" if tested.valid else "fails"
        self._log(f"{rate:g} {self._words.unit} {said}: {self._say(tested)}")
        return tested.valid


def _round(rate: float) -> float:
    """Keep three digits: what was asked for is what is printed."""
    return float(f"{rate:.3g}")
