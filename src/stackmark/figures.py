"""A figure in its own terms: 0.202 s, lower is better.

The ledger keeps one number for each run, so oriented that more is better: a figure that is better when it is lower is stored
as its reciprocal, in `1/s`. All statistics are made with that number. People read the figure itself, and this file alone turns
one into the other, so that no screen shows 4.95 1/s. The interval of a mean is symmetric in the logarithm, therefore the
interval of the figure is the reciprocal of the stored one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.units import say_rate, scale_rate

RECIPROCAL = "1/"
LOWER_IS_BETTER = "lower is better"
# As people and programs write them.
_TIME_UNITS = (
    "s sec secs second seconds ms msec msecs millisecond milliseconds us usec usecs µs μs microsecond microseconds "
    "ns nsec nsecs nanosecond nanoseconds min mins minute minutes h hr hrs hour hours"
)
TIME_UNITS = frozenset(_TIME_UNITS.split())


@dataclass(frozen=True)
class FigureUnit:
    """What a figure is counted in, and which way is better. Its methods take the numbers of the ledger."""

    name: str
    higher_is_better: bool = True
    # What a number of the ledger is multiplied by where it is printed with another prefix.
    factor: float = 1.0

    def scaled(self, rate: float) -> "FigureUnit":
        """Return the unit with the prefix that suits a number: GFLOP/s where it is 0.011 TFLOP/s."""
        factor, name = scale_rate(self.name, rate) if self.higher_is_better else (1.0, self.name)
        return FigureUnit(name, self.higher_is_better, factor)

    def value(self, rate: float) -> float:
        return self.factor * rate if self.higher_is_better else 1.0 / rate

    def bounds(self, low: float, high: float) -> tuple[float, float]:
        """Return the interval of the figure, the smaller end first."""
        ends = self.value(low), self.value(high)
        return ends if self.higher_is_better else ends[::-1]

    def number(self, rate: float) -> str:
        """`0.202`: for columns that have the unit in their head."""
        return say_rate(self.value(rate))

    def say(self, rate: float) -> str:
        """`0.202 s`, `7,087 images/s`."""
        return f"{self.number(rate)} {self.name}".rstrip()

    def say_bounds(self, low: float, high: float) -> str:
        """`0.201 to 0.203`."""
        return " to ".join(map(say_rate, self.bounds(low, high)))

    def say_change(self, ratio: float) -> str:
        """Say what a ratio of rates means to a figure that is not a rate: `takes 3.1 % longer`; nothing of a rate."""
        if self.higher_is_better or ratio == 1.0:
            return ""
        verb, more, less = ("takes", "longer", "less") if self.name.lower() in TIME_UNITS else ("is", "higher", "lower")
        factor = 1.0 / ratio
        if not 0.5 < factor < 2.0:
            return f"{verb} {factor:.3g} times as {'long' if verb == 'takes' else 'much'}"
        return f"{verb} {100 * abs(factor - 1.0):.2g} % {more if factor > 1 else less}"

    @property
    def direction(self) -> str:
        """`, lower is better`; nothing of a rate, of which everybody knows it."""
        return "" if self.higher_is_better else f", {LOWER_IS_BETTER}"


def figure_unit(rate_unit: str | None) -> FigureUnit:
    """Read the unit as the ledger has it: `1/s` is of seconds, lower is better."""
    unit = rate_unit or ""
    if unit.startswith(RECIPROCAL):
        return FigureUnit(unit.removeprefix(RECIPROCAL), higher_is_better=False)
    return FigureUnit(unit)


def rate_unit_of(unit: str, *, higher_is_better: bool) -> str:
    """Return the unit as the ledger has it."""
    return unit if higher_is_better else f"{RECIPROCAL}{unit}"


def rate_of(value: float, *, higher_is_better: bool) -> float:
    """Return the number as the ledger has it."""
    return value if higher_is_better else 1.0 / value


def say_figure(rate: float, rate_unit: str | None) -> str:
    """`0.202 s` of 4.95 in `1/s`."""
    return figure_unit(rate_unit).scaled(rate).say(rate)


def name_of_figures(rate_units: Sequence[str | None]) -> str:
    """Return the head of a column: `rate`, or `figure` where one of them is none."""
    return "rate" if all(figure_unit(unit).higher_is_better for unit in rate_units) else "figure"


def figure_fields(rate: object, rate_unit: object) -> dict[str, float | str | bool | None]:
    """Return the figure of a run for programs, to stand next to `rate_per_s` and `rate_unit`; null without a rate."""
    if not isinstance(rate, float | int) or not rate or not isinstance(rate_unit, str):
        return {"figure_value": None, "figure_unit": None, "higher_is_better": None}
    unit = figure_unit(rate_unit)
    return {"figure_value": unit.value(rate), "figure_unit": unit.name, "higher_is_better": unit.higher_is_better}
