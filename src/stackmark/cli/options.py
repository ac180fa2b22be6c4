"""Options that several verbs share, and the options that are made from a workload's parameters.

Every parameter of every family becomes an option with the parameter's own description. Values are taken as text, since a
list (`--precision bf16,fp32`) makes several requests and `auto` leaves the choice to the probe; ranges and choices are
checked by the parameter model itself.
"""

import math
import re
import time
from collections.abc import Callable
from itertools import product
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from stackmark.errors import SpecError
from stackmark.spec import AUTO, Request, Scalar
from stackmark.units import parse_seconds
from stackmark.workloads.catalog import families, find

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PARAMETERS = "Parameters of the workload"
# More requests than anybody waits for, and a typo in a range would make: each takes a minute or so.
MOST_REQUESTS = 1000


def ledger_option(command: F) -> F:
    text = "Where results are kept: a file or a postgresql:// URL. Also by the variable STACKMARK_LEDGER."
    return click.option("--ledger", metavar="PATH|URL", callback=not_empty, help=text)(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")(command)


def not_empty(_ctx: click.Context, _param: click.Parameter, value: T) -> T:
    """An empty value is a shell variable that was never set: neither a wish for the default nor the prefix of any id."""
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, str) and not text.strip():
            raise click.BadParameter("it is empty")
    return value


def filter_options(command: F) -> F:
    """Which stored runs are meant."""
    for option in (
        click.option(
            "--status", type=click.Choice(["running", "done", "failed", "invalid"]), help="Only runs that ended so."
        ),
        click.option("--place", metavar="GLOB", callback=not_empty, help="Only runs in this place: host."),
        click.option("--chip", metavar="GLOB", callback=not_empty, help="Only runs on this chip, e.g. '*H200*'."),
        click.option("--until", metavar="WHEN", help="Only runs before: 2h (ago), 2026-11-15, or 2026-11-15T08:00."),
        click.option("--since", metavar="WHEN", help="Only runs since: 7d (ago), 2026-11-01, or 2026-11-01T08:00."),
        click.option(
            "--workload", metavar="GLOB", callback=not_empty, help="Only this workload: train/resnet50, or 'train/*'."
        ),
    ):
        command = option(command)
    return command


def parse_when(option: str, text: str) -> float:
    """A moment in unix seconds: so long ago, or a local date and time."""
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        pass
    hint = "write it like 7d, 2h or 2026-11-01"
    try:
        ago = parse_seconds(text)
    except SpecError as error:
        raise SpecError(f"{option}: {text!r} is neither a time ago nor a date", hint=hint) from error
    # Before 1970 there is no run, and past some 10^300 no number.
    if not ago < time.time():
        raise SpecError(f"{option}: {text!r} is longer ago than computers", hint=hint)
    return time.time() - ago


def read_seconds(option: str, text: str) -> float:
    try:
        seconds = parse_seconds(text)
    except SpecError as error:
        raise SpecError(f"{option}: {error.message}", hint=error.hint) from error
    if not math.isfinite(seconds):
        raise SpecError(f"{option}: {text!r} is too large for a time", hint="write it like 30s, 250ms or 2min")
    return seconds


def parameter_fields() -> dict[str, FieldInfo]:
    """Every parameter of every family, by name."""
    return {name: info for family in families().values() for name, info in family.params.model_fields.items()}


def parameter_options(command: F) -> F:
    for name, info in reversed(parameter_fields().items()):
        flag = True if info.annotation is bool else None
        command = click.option(
            *_names(name, info), name, metavar=_metavar(info), default=None, help=_help(info), is_flag=flag
        )(command)
    return command


class InSections(click.Command):
    """Help in sections: forty options in one list are a wall."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        fields = parameter_fields()
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, click.Option) and record is not None:
                info = fields.get(param.name or "")
                name = "Options" if info is None else str(_extra(info).get("group", PARAMETERS))
                sections.setdefault(name, []).append(record)
        for name, records in sections.items():
            with formatter.section(name):
                formatter.write_dl(records)


def _names(name: str, info: FieldInfo) -> list[str]:
    option = _option(name)
    return [f"{option}/--no-{option[2:]}"] if info.annotation is bool else [option]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _extra(info: FieldInfo) -> dict[str, Any]:
    return info.json_schema_extra if isinstance(info.json_schema_extra, dict) else {}


def _metavar(info: FieldInfo) -> str | None:
    if info.annotation is bool:
        return None
    if get_origin(info.annotation) is Literal:
        return "|".join(get_args(info.annotation))
    if _extra(info).get("quantity") == "seconds":
        return "TIME"
    return {int: "N", float: "X"}.get(info.annotation or str, "TEXT")  # type: ignore[arg-type]


def _help(info: FieldInfo) -> str:
    text = (info.description or "").rstrip(".")
    # A sentence begins with a capital, unless it begins with a value (`cpu or cuda:N`, `torch.compile the model`).
    first = text.partition(" ")[0].rstrip(":;,")
    values = {*get_args(info.annotation), "cpu", "device"}
    if first not in values and "." not in first:
        text = text[:1].upper() + text[1:]
    default: object = AUTO if info.is_required() else info.default
    if isinstance(default, bool):
        default = "on" if default else "off"
    elif isinstance(default, float):
        default = f"{default:g}"
    return f"{text}. [default: {default}]" if default not in ("", None) else f"{text}."


def read_requests(workloads: list[str], typed: dict[str, Any]) -> list[Request]:
    """The requests that a command line means: one for each combination of the lists in it."""
    for workload in workloads:
        find(workload)
    fields = parameter_fields()
    lists = {
        name: [_read(name, fields[name], part) for part in _parts(fields[name], value)]
        for name, value in typed.items()
        if value is not None
    }
    count = len(workloads) * math.prod(map(len, lists.values()))
    if count > MOST_REQUESTS:
        raise SpecError(f"these lists make {count:,} measurements", hint=f"at most {MOST_REQUESTS} are made at once")
    return [
        Request(workload=workload, params=dict(zip(lists, values, strict=True)))
        for workload in workloads
        for values in product(*lists.values())
    ]


def _parts(info: FieldInfo, value: Any) -> list[Any]:
    """A list has commas; a free text (a folder, a schedule) may have them too and is one value."""
    if not isinstance(value, str) or (info.annotation is str and not _pattern(info)):
        return [value]
    parts = [part.strip() for part in value.split(",")]
    return [part for part in parts if part] or [value]


def _pattern(info: FieldInfo) -> str:
    return next((str(item.pattern) for item in info.metadata if getattr(item, "pattern", None)), "")


def _read(name: str, info: FieldInfo, value: Any) -> Scalar:
    """Text to the parameter's type; ranges and choices are checked later, all in one place."""
    if not isinstance(value, str) or value == AUTO:
        scalar: Scalar = value
        return scalar
    option = _option(name)
    if _extra(info).get("quantity") == "seconds":
        return read_seconds(option, value)
    if (pattern := _pattern(info)) and not re.fullmatch(pattern, value):
        raise SpecError(f"{option} takes {info.description}, not {value!r}", hint="see: stackmark run --help")
    kind = {int: (int, "a whole number"), float: (float, "a number")}.get(info.annotation or str)  # type: ignore[arg-type]
    if kind is None:
        return value
    try:
        number: int | float = kind[0](value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (ValueError, OverflowError) as error:
        shown = value if len(value) <= 40 else f"{value[:40]}…"
        raise SpecError(f"{option} takes {kind[1]}, not {shown!r}", hint="see: stackmark run --help") from error
