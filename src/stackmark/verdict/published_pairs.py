"""A result next to a published number of the same metric, as plain data: charts, reports and JSON are made from it.

experiments/against_published.py makes these pairs from stored runs, experiments/mlperf.py from scores of MLPerf logs. A pair
states both figures in one unit. `context` tells that the recipe differs: then the ratio says how large the number is, and is
not a verdict on the machine.
"""

from dataclasses import dataclass
from typing import Literal

from stackmark.figures import MOST_PER_CENT, FigureUnit

# What a part of the stack that nobody wrote down is called.
NOT_STATED = "not stated"

Agreement = Literal["same", "differs", "not stated"]


@dataclass(frozen=True)
class StackLine:
    """One part of the stack, here and in the published system; None where it is not stated."""

    name: str
    ours: str | None
    theirs: str | None
    agreement: Agreement


@dataclass(frozen=True)
class PublishedPair:
    # The workload, and the arm or the settings that tell it from others.
    benchmark: str
    unit: str
    higher_is_better: bool
    # The figure in its own terms, with its 95 % interval; None where one run gives none.
    ours: float
    low: float | None
    high: float | None
    # The figure of each run.
    runs: tuple[float, ...]
    theirs: float
    # How much ours is above theirs, in percent of theirs.
    percent: float
    # Ours over theirs, so oriented that more is better.
    ratio: float
    # What was published (model, chips, precision), by whom, when, and where in the source.
    what: str
    source: str
    date: str
    at: str
    context: bool
    # Every field of the recipe that differs or is not stated.
    differs: tuple[str, ...]
    # The verdict at the margin; None where the recipe differs or one run gives no interval.
    word: str | None = None
    margin: float | None = None
    # What must stand next to the figure: that a score is unofficial, and why.
    notes: tuple[str, ...] = ()
    stack: tuple[StackLine, ...] = ()

    @property
    def figure_unit(self) -> FigureUnit:
        return FigureUnit(self.unit, self.higher_is_better)

    @property
    def difference(self) -> str:
        """Say how far ours is from theirs: `5.30 % slower`, `slower by a factor of 145`, `the same`."""
        return self._against("")

    @property
    def sentence(self) -> str:
        """Say the same with what it is compared with: `5.30 % slower than published`."""
        return self._against("as published" if self._is_same else "than published")

    @property
    def _is_same(self) -> bool:
        """Tell whether no printed digit shows a difference. MLPerf prints hundredths of a minute."""
        rounded = self.unit == "min" and f"{self.ours:.2f}" == f"{self.theirs:.2f}"
        return rounded or abs(self.percent) < 0.005

    def _against(self, what: str) -> str:
        after = f" {what}" if what else ""
        if self._is_same:
            return f"the same{after}"
        better, worse = ("faster", "slower") if self.figure_unit.terms == "speed" else ("better", "worse")
        word = f"{better if self.ratio > 1 else worse}{after}"
        factor, size = max(self.ratio, 1 / self.ratio), abs(self.percent)
        if factor >= MOST_PER_CENT:
            return f"{word} by a factor of {factor:,.0f}" if factor >= 100 else f"{word} by a factor of {factor:.3g}"
        return f"{size:.{2 if size < 10 else 1}f} % {word}"

    @property
    def footnote(self) -> str:
        """Return what was published and where, in one line."""
        return f"{self.what}: {self.source}, {self.date}" + (f"; {self.at}" if self.at else "")


def pair_of_figures(unit: FigureUnit, ours: float, theirs: float) -> tuple[float, float]:
    """Return how much ours is above theirs in percent, and the ratio so oriented that more is better."""
    return 100 * (ours / theirs - 1), ours / theirs if unit.higher_is_better else theirs / ours
