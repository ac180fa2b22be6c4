"""From what a person typed to a parameter's value: the same for an option of the command line and for a key of an arm.

Ranges and choices are checked later by the parameter model itself, all in one place; here text becomes a value of the
parameter's type. Apart from arms.py, which loads the ledger: the help of `run` needs this and must come at once.
"""

import math
import re
from typing import Any

from stackmark.errors import SEE_HELP, SpecError
from stackmark.model import FieldLike
from stackmark.spec import AUTO, Scalar
from stackmark.units import parse_seconds

_TRUE, _FALSE = {"yes", "true", "on", "1"}, {"no", "false", "off", "0"}
_SHOWN = 40


def extra_of(info: FieldLike) -> dict[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def pattern_of(info: FieldLike) -> str:
    return next((str(item.pattern) for item in info.metadata if getattr(item, "pattern", None)), "")


def takes_several(info: FieldLike) -> bool:
    return "tuple" in str(info.annotation)


def read_seconds(option: str, text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except SpecError as error:
        raise SpecError(f"{option}: {error.message}", hint=error.hint) from error
    if not math.isfinite(seconds):
        raise SpecError(f"{option}: {text!r} is too large for a time", hint="write it like 30s, 250ms or 2min")
    return seconds


def read_value(option: str, info: FieldLike, value: Any) -> Scalar:
    """`option` is how the person wrote it: `--batch`, or `batch` in an arm."""
    if not isinstance(value, str) or value == AUTO:
        scalar: Scalar = value
        return scalar
    if extra_of(info).get("quantity") == "seconds":
        return read_seconds(option, value)
    if info.annotation is bool:
        return _yes_or_no(option, value)
    if (pattern := pattern_of(info)) and not re.fullmatch(pattern, value):
        raise SpecError(f"{option} takes {info.description}, not {value!r}", hint=SEE_HELP)
    kind = {int: (int, "a whole number"), float: (float, "a number")}.get(info.annotation or str)
    if kind is None:
        return value
    try:
        number: int | float = kind[0](value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (ValueError, OverflowError) as error:
        raise SpecError(f"{option} takes {kind[1]}, not {_short(value)!r}", hint=SEE_HELP) from error


def _yes_or_no(option: str, value: str) -> bool:
    if value.lower() not in _TRUE | _FALSE:
        raise SpecError(f"{option} takes yes or no, not {_short(value)!r}")
    return value.lower() in _TRUE


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
