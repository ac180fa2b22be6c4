"""Parse and format quantities, in one grammar for every place.

`64m` means 64 MiB to podman and 0.064 bytes to Kubernetes; `8Gi` is Kubernetes' and `8g` is docker's word for the same
thing. So people type one grammar here, and each place translates. Binary prefixes are 1024 with or without the `i`, for
sizes in bytes (as memory is sold and limited); `GB`, with the B and without the `i`, is 1000, as the SI says.
"""

import re
from datetime import datetime, timezone

from stackmark.errors import SpecError

KIB, MIB, GIB, TIB = 1024, 1024**2, 1024**3, 1024**4
# No quantity that anybody types is larger in any unit, and times any unit it is still a finite number.
LARGEST = 1e18
# From here on three figures would round up to 1000 of a unit; it is 1.00 of the next.
_ROUNDS_UP = 0.9995

_SIZE = {
    "": 1, "b": 1,
    "k": KIB, "ki": KIB, "kib": KIB, "kb": 10**3,
    "m": MIB, "mi": MIB, "mib": MIB, "mb": 10**6,
    "g": GIB, "gi": GIB, "gib": GIB, "gb": 10**9,
    "t": TIB, "ti": TIB, "tib": TIB, "tb": 10**12,
}  # fmt: skip
_SECONDS = {
    "": 1.0,
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "second": 1.0,
    "seconds": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "m": 60.0,
    "min": 60.0,
    "mins": 60.0,
    "minute": 60.0,
    "minutes": 60.0,
    "h": 3600.0,
    "hour": 3600.0,
    "hours": 3600.0,
    "d": 86400.0,
    "day": 86400.0,
    "days": 86400.0,
}
_NUMBER = re.compile(r"\s*((?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµμ%]*)\s*")


def _split(text: str, kind: str, example: str) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if not match:
        raise SpecError(f"{text!r} is not {kind}", hint=f"write it like {example}")
    number = float(match[1])
    if number > LARGEST:
        raise SpecError(f"{text!r} is too large for {kind}", hint=f"write it like {example}")
    return number, match[2]


def parse_size(text: str) -> int:
    """Parse bytes: `64MiB`, `64m`, `8Gi`, `1.5g`, `10GB`, `4096`."""
    number, unit = _split(text, "a size", "64MiB, 8Gi or 10GB")
    if unit.lower() not in _SIZE:
        raise SpecError(f"{text!r} is not a size: unknown unit {unit!r}", hint="write it like 64MiB, 8Gi or 10GB")
    return round(number * _SIZE[unit.lower()])


def parse_seconds(text: str) -> float:
    """Parse seconds: `1.5s`, `250ms`, `2min`, `1h`, `30`."""
    number, unit = _split(text, "a time", "30s, 250ms or 2min")
    if unit not in _SECONDS:
        raise SpecError(f"{text!r} is not a time: unknown unit {unit!r}", hint="write it like 30s, 250ms or 2min")
    return number * _SECONDS[unit]


def parse_share(text: str) -> float:
    """Parse a share of one: `1%` or `0.01`."""
    number, unit = _split(text, "a share", "1% or 0.01")
    if unit not in ("", "%"):
        raise SpecError(f"{text!r} is not a share: unknown unit {unit!r}", hint="write it like 1% or 0.01")
    share = number / 100 if unit == "%" else number
    if not 0 <= share <= 1:
        raise SpecError(f"a share must be between 0 and 100 %, got {text!r}", hint="write it like 1% or 0.01")
    return share


def say_seconds(seconds: float) -> str:
    """Format like `2.3 µs`, `12.5 ms`, `4.21 s`, `3 min 20 s`: three significant figures, or whole seconds past two minutes."""
    if seconds < 0:
        return f"-{say_seconds(-seconds)}"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s")):
        if seconds < limit * (_ROUNDS_UP if limit <= 1 else 1):
            return f"{_three_figures(seconds * factor)} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def say_size(size_bytes: float) -> str:
    """Format like `512 B`, `64.0 MiB`, `139 GiB`."""
    for limit, factor, unit in ((KIB, 1, "B"), (MIB, KIB, "KiB"), (GIB, MIB, "MiB"), (TIB, GIB, "GiB")):
        if abs(size_bytes) < limit:
            return f"{_three_figures(size_bytes / factor)} {unit}" if factor > 1 else f"{size_bytes:.0f} B"
    return f"{_three_figures(size_bytes / TIB)} TiB"


def say_count(number: float) -> str:
    """Format like `820`, `12.4 k`, `25.6 M`, `4.09 G`, `1.24 T`: decimal prefixes, for counts of parameters and operations."""
    for limit, factor, unit in ((1e3, 1.0, ""), (1e6, 1e3, " k"), (1e9, 1e6, " M"), (1e12, 1e9, " G")):
        if abs(number) < limit * (_ROUNDS_UP if factor > 1 else 1):
            return f"{_three_figures(number / factor)}{unit}" if factor > 1 else f"{number:g}"
    return f"{_three_figures(number / 1e12)} T"


# The first second after the year 9999, the last that calendars here know.
END_OF_TIME_UNIX_S = 253_402_300_800.0


def say_percent(share: float, decimals: int | None = None, *, figures: int = 3) -> str:
    """Format a share of one: `1 %`, `0.5 %`, `12 %`: to significant figures, or to a fixed number of decimals."""
    if decimals is None and abs(100 * share) >= 99.5:
        decimals = 0  # two figures of 110 would be written 1.1e+02
    return f"{100 * share:.{figures}g} %" if decimals is None else f"{100 * share:.{decimals}f} %"


def say_percents(low: float, high: float, decimals: int = 1) -> str:
    """Format an interval of shares: `95.9 to 97.6 %`; a bound past ten times the whole only says that it is."""
    if low >= 10:
        return "over 1,000 %"
    return f"{100 * low:.{decimals}f} to {f'{100 * high:.{decimals}f}' if high < 10 else 'over 1,000'} %"


def say_multiple(factor: float) -> str:
    """Format like `0.0154`, `2.05`, `145`, `1,200`: a number of times, without an exponent for large ones."""
    return f"{factor:.3g}" if factor < 999.5 else f"{float(f'{factor:.2g}'):,.0f}"


def say_moment(unix_s: float, form: str = "%Y-%m-%d %H:%M:%S", *, utc: bool = False) -> str:
    """Format a moment as local time or UTC. A number that is not a date, as a ledger may hold, is printed as the number."""
    try:
        return datetime.fromtimestamp(unix_s, timezone.utc if utc else None).strftime(form)
    except (ValueError, OverflowError, OSError):
        return f"{unix_s:.6g} s after 1970"


def say_zone(unix_s: float) -> str:
    """Name the local time zone at that moment: `UTC`, `CET`, or `UTC+04:00` for a zone without a name. Empty if it is no date."""
    try:
        name = datetime.fromtimestamp(unix_s).astimezone().tzname() or ""
    except (ValueError, OverflowError, OSError):
        return ""
    return name if name.isalpha() else say_offset(unix_s)


def say_offset(unix_s: float) -> str:
    """Say how far local time is from UTC at that moment: `UTC+01:00`."""
    offset = datetime.fromtimestamp(unix_s).astimezone().strftime("%z")
    return f"UTC{offset[:3]}:{offset[3:5]}"


def say_local(unix_s: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    """Format a moment in local time with its zone: `2026-11-15 12:59:03 UTC`."""
    return f"{say_moment(unix_s, form)} {say_zone(unix_s)}".rstrip()


def say_minute(unix_s: float) -> str:
    """Format a moment to the minute, in local time with its zone: `2026-11-15 12:59 UTC`."""
    return say_local(unix_s, "%Y-%m-%d %H:%M")


def say_span(first_unix_s: float, last_unix_s: float) -> str:
    """Format a span of time: `2026-11-15 12:59 to 13:05 UTC`. The zone stands twice where it changed in between."""
    first, zone = say_minute(first_unix_s), say_zone(first_unix_s)
    if first == say_minute(last_unix_s):
        return first
    if zone and zone == say_zone(last_unix_s):
        first = first.removesuffix(f" {zone}")
    same_day = say_moment(first_unix_s, "%Y-%m-%d") == say_moment(last_unix_s, "%Y-%m-%d")
    return f"{first} to {say_local(last_unix_s, '%H:%M' if zone and same_day else '%Y-%m-%d %H:%M')}"


def counted(number: float, thing: str) -> str:
    """Format like `1 run`, `2 runs`, `3 series`, `1,048,576 open files`."""
    return f"{number:,.0f} {thing}" if number == 1 or thing.endswith("series") else f"{number:,.0f} {thing}s"


def say_rate(rate: float) -> str:
    """Format a throughput with four significant figures and thousands separated: `0.008673`, `4.213`, `142.6`, `7,087`."""
    if 0 < rate < 0.09995:
        return f"{rate:.4g}"
    if rate >= 999.95:
        return f"{rate:,.0f}"
    decimals = 1 if rate >= 99.995 else 2 if rate >= 9.9995 else 3
    return f"{rate:.{decimals}f}"


# Rates that our own workloads are stored in, and what one of each is. A program's own figure stays in its own unit.
_SCALED_RATES = {"TFLOP/s": ("FLOP/s", 1e12), "TOP/s": ("OP/s", 1e12), "GB/s": ("B/s", 1e9)}
# From which number on a prefix is taken, as say_count does, and what it stands for.
_PREFIXES = (
    ("T", _ROUNDS_UP * 1e12, 1e12),
    ("G", _ROUNDS_UP * 1e9, 1e9),
    ("M", _ROUNDS_UP * 1e6, 1e6),
    ("k", 1e3, 1e3),
)


def scale_rate(unit: str, rate: float | None) -> tuple[float, str]:
    """Return a factor and the unit to print rates in, so that this one is 1 or more: GFLOP/s where TFLOP/s is too coarse.

    Rates next to each other are printed in one unit, which one of them chooses for all.
    """
    bare, one = _SCALED_RATES.get(unit, ("", 0.0))
    if not bare or not rate:
        return 1.0, unit
    number = rate * one
    prefix, size = next(((name, size) for name, least, size in _PREFIXES if number >= least), ("", 1.0))
    return one / size, f"{prefix}{bare}"


def _three_figures(number: float) -> str:
    if abs(number) >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if abs(number) >= 9.995 else f"{number:.2f}"
