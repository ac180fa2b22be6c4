"""Parse typed parameter values, alike for options of the command line and keys of an arm.

Ranges and choices are checked later by the parameter model itself, all in one place; here text becomes a value of the
parameter's type. Apart from arms.py, which loads the ledger: the help of `run` needs this and must come at once.

Natural slips are accepted where they mean one thing only: `docker`, `BF16`, `float16`, `gpu`, `resnet50`, a margin of `5`. What
is stored, hashed and repeated is the canonical name, so two runs of one work have one hash however they were typed. The command
line says what it read (cli/forgiving.py); from Python the same names are accepted silently. A word that may mean two things stays
an error with the nearest names.
"""

import math
import re
from collections.abc import Iterable
from typing import Any, Literal, get_args, get_origin

from stackmark.errors import SEE_HELP, SpecError
from stackmark.model import FieldLike
from stackmark.spec import AUTO, Scalar
from stackmark.units import parse_seconds, parse_share

_TRUE, _FALSE = {"yes", "true", "on", "1"}, {"no", "false", "off", "0"}
_SHOWN = 40
# Other names of places. An engine is a container with that engine.
PLACES = {
    "docker": "container,engine=docker",
    "podman": "container,engine=podman",
    "k8s": "pod",
    "kubernetes": "pod",
    "kube": "pod",
    "local": "host",
    "localhost": "host",
    "bare": "host",
    "baremetal": "host",
    "bare-metal": "host",
}
# Other names of precisions: torch's, NumPy's, C's.
PRECISIONS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "single": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "tensorfloat32": "tf32",
}
_DEVICE = re.compile(r"(gpu|cuda):?(\d{1,3})?")


def extra_of(info: FieldLike) -> dict[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def pattern_of(info: FieldLike) -> str:
    return next((str(item.pattern) for item in info.metadata if getattr(item, "pattern", None)), "")


def choices_of(info: FieldLike) -> tuple[Any, ...]:
    return get_args(info.annotation) if get_origin(info.annotation) is Literal else ()


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
    """Read a value. `option` is how the person wrote it: `--batch`, or `batch` in an arm."""
    if not isinstance(value, str) or value == AUTO:
        scalar: Scalar = value
        return scalar
    if extra_of(info).get("quantity") == "seconds":
        return read_seconds(option, value)
    if info.annotation is bool:
        return _yes_or_no(option, value)
    value = canonical_value(info, value)
    if (pattern := pattern_of(info)) and not re.fullmatch(pattern, value):
        raise SpecError(f"{option} takes {info.description}, got {value!r}", hint=SEE_HELP)
    kind = {int: (int, "a whole number"), float: (float, "a number")}.get(info.annotation or str)
    if kind is None:
        return str(value)
    try:
        number: int | float = kind[0](value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (ValueError, OverflowError) as error:
        raise SpecError(f"{option} takes {kind[1]}, got {_short(value)!r}", hint=SEE_HELP) from error


def _yes_or_no(option: str, value: str) -> bool:
    if value.lower() not in _TRUE | _FALSE:
        raise SpecError(f"{option} takes yes or no, got {_short(value)!r}")
    return value.lower() in _TRUE


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# --- natural slips ---------------------------------------------------------------------------------------------------------


def canonical_place(text: str, known: Iterable[str]) -> str:
    """Return an arm with the place by its own name: `docker,shm=1g` is `container,engine=docker,shm=1g`.

    `known` are the names of all places: a package may add one that is called docker.
    """
    place, comma, rest = text.partition(",")
    name, lower = place.strip(), place.strip().lower()
    if name in known:
        return text
    if lower in known:
        return f"{lower}{comma}{rest}"
    meant = PLACES.get(lower)
    if meant is None:
        return text
    if meant.startswith("container,") and any(part.strip().startswith("engine=") for part in rest.split(",")):
        raise SpecError(f"{name} is {meant}, and an engine is named again", hint=f"write it like: {meant},shm=1g")
    return f"{meant}{comma}{rest}"


def canonical_value(info: FieldLike, value: str) -> str:
    """Return the value of a parameter or an option by its own name: `BF16` is `bf16`, `gpu` is `cuda`."""
    lower = value.strip().lower()
    if "cuda" in pattern_of(info):
        if match := _DEVICE.fullmatch(lower):
            return f"cuda:{match[2]}" if match[2] else "cuda"
        return lower if lower == "cpu" else value
    choices = [one for one in choices_of(info) if isinstance(one, str)]
    if value in choices:
        return value
    return next((one for one in choices if one.lower() in (lower, PRECISIONS.get(lower))), value)


def canonical_workload(name: str, known: Iterable[str]) -> str:
    """Return the workload that a name in another case, or without its family, means.

    Of several families with that name it is the first one's: a network is trained, unless `serve/` is typed.
    """
    names = list(known)
    lower = name.strip().lower()
    if name in names or not lower:
        return name
    if lower in names:
        return lower
    found = [one for one in names if one.partition("/")[2] == lower]
    return found[0] if found else name


def canonical_share(text: str) -> str:
    """Return a share with its sign: `5` is `5%`, since no share is larger than one; `0.05` is `5%`, as it always was."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not 0 < number <= 100:
        return text
    share = number / 100 if number >= 1 else parse_share(text)
    return f"{100 * share:.10g}%"
