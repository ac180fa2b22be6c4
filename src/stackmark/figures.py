"""Show a figure in its own terms: 0.202 s, lower is better.

The ledger keeps one number for each run, so oriented that more is better: a figure that is better when it is lower is stored
as its reciprocal, in `1/s`. All statistics are made with that number. People read the figure itself, and this file alone turns
one into the other, so that no screen shows 4.95 1/s. The interval of a mean is symmetric in the logarithm, therefore the
interval of the figure is the reciprocal of the stored one.

The unit also tells which words a verdict has. Rates and times are slower or faster; a quality or a cost (%, J, USD) is worse or
better.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stackmark.units import say_rate, scale_rate

RECIPROCAL = "1/"
LOWER_IS_BETTER = "lower is better"
# As people and programs write them.
_TIME_UNITS = (
    "s sec secs second seconds ms msec msecs millisecond milliseconds us usec usecs µs μs microsecond microseconds "
    "ns nsec nsecs nanosecond nanoseconds min mins minute minutes h hr hrs hour hours"
)
TIME_UNITS = frozenset(_TIME_UNITS.split())


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What is spent: better when it is lower, and not a speed even per second or hour.
COST_UNITS = _words("j kj mj joule joules wh kwh mwh w kw watt watts $ € usd eur gbp dollar dollars cent cents")
_RATE_UNITS = _words("fps tps qps rps iops ops ips bps kbps mbps gbps flops mips hz khz mhz ghz x")
# Units that do not say which way is better.
_AMOUNT_UNITS = _words("% percent b kb mb gb tb kib mib gib tib bytes")
# Names that stand for a unit where a program prints none: `throughput: 12`.
_SPEED_NAMES = _words(
    "rate rates speed throughput bandwidth performance perf latency latencies lat time times runtime walltime duration elapsed "
    "delay rtt ttft tpot itl lag wait"
)
# What is not a speed though it is counted per second or hour.
_NOT_SPEEDS = _words(
    "error errors miss misses failures failed retries retransmits dropped timeouts stalls loss losses energy cost costs"
)
UNKNOWN_UNIT = "units"
# The unit of times to a target; people read less than one of them in seconds.
MINUTES = "min"
# Up to this factor a change is said in per cent.
MOST_PER_CENT = 3.0
_PER = re.compile(r"(.*?)(?:/|(?:^|[ _])per[ _])(.+)")

UnitKind = Literal["time", "rate", "amount", ""]
# What a verdict on a figure is about: slower and faster, worse and better, or whether more devices are used well.
Terms = Literal["speed", "quality", "efficiency"]


def unit_kind(unit: str) -> UnitKind:
    """Classify a unit; the empty text stands for one that is not known. `ms/step` is a time, `images/s` a rate."""
    word = unit.lower().strip(" .")
    if per := _PER.fullmatch(word):
        counted, each = per[1].strip(), per[2].strip()
        first, *others = (part.strip() for part in each.split("/"))
        if first in TIME_UNITS and not COST_UNITS & {*others}:
            return "amount" if (_NOT_SPEEDS | COST_UNITS) & {*unit_words(counted)} else "rate"
        return "time" if counted in TIME_UNITS else "amount" if counted else ""
    if word in TIME_UNITS:
        return "time"
    if word in _RATE_UNITS or word.endswith("flops"):
        return "rate"
    return "amount" if word in _AMOUNT_UNITS | COST_UNITS else ""


def is_cost(unit: str) -> bool:
    """Tell whether something that is spent is counted: J, USD per hour, and not images per J."""
    per = _PER.fullmatch(unit.lower().strip(" ."))
    return bool(COST_UNITS & {*unit_words(per[1] if per else unit)})


def unit_words(unit: str) -> list[str]:
    """Split a unit or a name into its words, in lower case."""
    return re.split(r"[^a-zµμ%$€]+", unit.lower())


def terms_of(unit: str) -> Terms:
    """Tell in which words a figure of this unit is judged. A unit that is not known counts as a rate."""
    known = unit_kind(unit)
    if known in ("time", "rate") or unit in ("", UNKNOWN_UNIT):
        return "speed"
    return "speed" if not known and _SPEED_NAMES & {*unit_words(unit)} else "quality"


@dataclass(frozen=True)
class FigureUnit:
    """A figure's unit, and which direction is better. Its methods take the numbers of the ledger."""

    name: str
    higher_is_better: bool = True
    # What the figure is multiplied by where it is printed with another prefix, or in another unit of time.
    factor: float = 1.0

    def scaled(self, rate: float) -> "FigureUnit":
        """Return the unit that suits a number: GFLOP/s where it is 0.011 TFLOP/s, seconds where it is 0.2 min."""
        if self.higher_is_better:
            factor, name = scale_rate(self.name, rate)
            return FigureUnit(name, True, factor)
        if self.name == MINUTES and rate > 1.0:
            return FigureUnit("s", False, 60.0)
        return self

    @property
    def is_time(self) -> bool:
        """Tell whether it is a time, which takes longer or less."""
        return not self.higher_is_better and self.name.lower() in TIME_UNITS

    def value(self, rate: float) -> float:
        return self.factor * rate if self.higher_is_better else self.factor / rate

    def bounds(self, low: float, high: float) -> tuple[float, float]:
        """Return the interval of the figure, the smaller end first."""
        ends = self.value(low), self.value(high)
        return ends if self.higher_is_better else ends[::-1]

    def number(self, rate: float) -> str:
        """Format like `0.202`: for columns that have the unit in their head."""
        return say_rate(self.value(rate))

    def say(self, rate: float) -> str:
        """Format like `0.202 s`, `7,087 images/s`."""
        return f"{self.number(rate)} {self.name}".rstrip()

    def say_bounds(self, low: float, high: float) -> str:
        """Format like `0.201 to 0.203`."""
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
    def terms(self) -> Terms:
        """Tell whether verdicts say slower and faster, or worse and better."""
        return terms_of(self.name)

    def own_ratio(self, ratio: float) -> float:
        """Turn a ratio of the ledger's numbers into one of the figures: 2 is twice the time or twice the rate."""
        return ratio if self.higher_is_better else 1.0 / ratio

    def say_shift(self, ratio: float, bounds: tuple[float, float] | None = None) -> tuple[str, str]:
        """Say by how much the figure itself changed, and the interval of that: `−60.1 %`, `−60.3 to −59.9 %`.

        `ratio` and its bounds are of the ledger's numbers. From a factor of three on it is said as a factor: `3.2 times`.
        """
        own = self.own_ratio(ratio)
        low, high = sorted(map(self.own_ratio, bounds)) if bounds else (own, own)
        if own >= MOST_PER_CENT:
            return f"{own:.3g} times", f"{low:.3g} to {high:.3g} times" if bounds else ""
        width = 100 * (high - low)
        decimals = 1 if not bounds or width >= 1 else 2 if width >= 0.1 else 3
        said, first, last = (_signed(100 * (one - 1), decimals) for one in (own, low, high))
        return f"{said} %", f"{first} to {last} %" if bounds else ""

    @property
    def direction(self) -> str:
        """Return `, lower is better`; empty for a rate, where it is obvious."""
        return "" if self.higher_is_better else f", {LOWER_IS_BETTER}"


def _signed(value: float, decimals: int) -> str:
    """With a real minus, and without a sign for zero."""
    said = f"{abs(value):.{decimals}f}"
    return said if not float(said) else f"{'−' if value < 0 else '+'}{said}"


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
    """Format like `0.202 s`, from 4.95 in `1/s`."""
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
