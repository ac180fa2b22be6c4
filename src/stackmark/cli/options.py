"""Options that several verbs share, and the options that are made from a workload's parameters.

Every parameter of every family becomes an option with the parameter's own description. Values are taken as text, since a
list (`--precision bf16,fp32`) makes several requests and `auto` leaves the choice to the probe; ranges and choices are
checked by the parameter model itself.
"""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from itertools import product
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from stackmark.api.options import (
    all_places,
    canonical_share,
    check_margin,
    choices_of,
    extra_of,
    pattern_of,
    places_with,
    pod_fields,
    read_seconds,
    read_value,
    takes_several,
)
from stackmark.cli.forgiving import Forgiving, say_share
from stackmark.cli.saying import notice
from stackmark.errors import Exit, SpecError, nearest_names
from stackmark.model import FieldLike, ValidationError
from stackmark.ranks import MOST_RANKS
from stackmark.spec import AUTO, Request, Scalar, explain
from stackmark.units import parse_seconds, parse_share
from stackmark.workloads.command.definition import OWN_COMMAND
from stackmark.workloads.registry import families, find

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

PARAMETERS = "Parameters of the workload"
PLACE_OPTIONS = "Options of places"
# More requests than anybody waits for, and a typo in a range would make: each takes a minute or so.
MOST_REQUESTS = 1000
# All choices of a parameter that may be asked for together.
ALL = "all"
DEFAULT = "[default: "


def ledger_option(command: F) -> F:
    text = "Where results are kept: a file or a postgresql:// URL. Also by the variable STACKMARK_LEDGER."
    return click.option("--ledger", metavar="PATH|URL", callback=not_empty, help=text)(command)


def ledgers_option(command: F) -> F:
    text = (
        "Where results are kept: a file or a postgresql:// URL. Also by the variable STACKMARK_LEDGER. With --against it may be "
        "given several times: the ledgers are searched as one."
    )
    return click.option("--ledger", metavar="PATH|URL", multiple=True, callback=not_empty, help=text)(command)


def trust_option(command: F) -> F:
    text = "Run what the ledger says without a question, also what you did not type on this machine."
    return click.option("--trust-ledger", "trusted", is_flag=True, help=text)(command)


def time_limit_option(command: F) -> F:
    text = "End a run that takes longer: 10min; none: never. [default: when it said nothing for 30 min, your program for 24 h]"
    return click.option("--time-limit", metavar="TIME", help=text)(command)


def sample_hz_option(command: F) -> F:
    text = "Sample the machine so often while it is measured, up to 10 times a second; 0: not. [default: 2; of op/: 0]"
    return click.option("--sample-hz", type=click.FloatRange(0, 10), metavar="X", help=text)(command)


FAIL_ON = ("slower", "worse", "inconclusive", "different")


def fail_on_option(command: F) -> F:
    text = "Exit with 8 on such a verdict; may be repeated. `slower` and `worse` mean the same."
    return click.option("--fail-on", type=click.Choice(FAIL_ON), multiple=True, help=text)(command)


def check_fail_on_option(command: F) -> F:
    text = (
        "Exit with 8 on such a verdict; may be repeated. `slower` and `worse` mean the same and include LIKELY SLOWER. `alarm` "
        "is for every night: two checks in a row that are slower, or small drops that add up (CUSUM; by chance once in about 200 "
        "nights)."
    )
    return click.option("--fail-on", type=click.Choice([*FAIL_ON, "alarm"]), multiple=True, help=text)(command)


def junit_option(text: str) -> Callable[[F], F]:
    return click.option("--junit", metavar="FILE", callback=not_empty, help=text)


def check_junit(path: str | None, example: str) -> None:
    """Refuse a file that cannot be written before anything is measured. Standard output has the result already."""
    if path is None:
        return
    from stackmark.show.writing import check_writable

    hint = f"give a file in a folder that may be written, e.g. --junit {example}"
    if path == "-":
        raise SpecError("--junit: standard output holds the result already", hint=hint)
    try:
        check_writable(Path(path))
    except SpecError as error:
        raise SpecError(f"--junit: {error.message}", hint=hint) from error


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")(command)


def details_option(command: F) -> F:
    text = "Print everything that is known of the result, and not just the answer."
    return click.option("--details", is_flag=True, help=text)(command)


def ranks_option(command: F) -> F:
    text = "Processes that make one run together, a GPU each or a share of the cores: op/all-reduce and its like. [default: 1]"
    return click.option("--ranks", metavar="N", callback=not_empty, help=text)(command)


def read_ranks(text: str | None) -> list[int]:
    """`2`, or `2,4,8` for several measurements."""
    found = []
    for part in (text or "1").split(","):
        if not part.strip().isdecimal() or not 1 <= int(part) <= MOST_RANKS:
            raise SpecError(f"--ranks takes a number from 1 to {MOST_RANKS}, not {part.strip()!r}")
        found.append(int(part))
    return found


def format_option(command: F) -> F:
    from stackmark.show.list_formats import list_format_names

    names = list_format_names()
    text = f"Print a list as another program does: {', '.join(names)}."
    return click.option("--format", "form", type=click.Choice(names), help=text)(command)


def check_format(form: str | None, as_json: bool, workloads: Sequence[str]) -> None:
    """Refuse workloads of which the program that `--format` names has no table."""
    if form is None:
        return
    if as_json:
        raise SpecError("--format and --json were both given", hint="give one of them")
    from stackmark.show.list_formats import find_list_format

    for workload in workloads:
        find_list_format(form).require(workload)


def not_empty(_ctx: click.Context, _param: click.Parameter, value: T) -> T:
    """An empty value is a shell variable that was never set: neither a wish for the default nor the prefix of any id."""
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, str) and not text.strip():
            raise click.BadParameter("it is empty")
    return value


# Longer than the first sentence of any command's help.
WHOLE_SENTENCE = 500


class Subverbs(click.Group):
    """A verb with verbs of its own. Alone it answers as `stackmark` alone does: with its help, and as wrong use."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:
            click.echo(ctx.get_help())
            ctx.exit(Exit.WRONG_USE)
        return super().parse_args(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with a whole sentence each: click cuts what is longer than a line."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(WHOLE_SENTENCE)) for name, one in commands if one])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and args[0] not in names and not args[0].startswith("-"):
            known = nearest_names(args[0], names)
            raise click.UsageError(f"there is no command '{self.name} {args[0]}'{known}", ctx)
        name, command, rest = super().resolve_command(ctx, args)
        if name and command:
            from stackmark.cli.defaults import settle

            settle(ctx, (str(self.name), name), command, rest)
        return name, command, rest


def filter_options(command: F) -> F:
    """Which stored runs are meant."""
    for option in (
        click.option(
            "--status", type=click.Choice(["running", "done", "failed", "invalid"]), help="Only runs with this status."
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


def read_margin(text: str) -> float:
    """Read a margin: `5%`, `0.05` or `5`. How a number without its sign was read is said."""
    said = canonical_share(text)
    try:
        margin = parse_share(said)
    except SpecError as error:
        raise SpecError(f"--margin: {error.message}", hint=error.hint) from error
    if said != text:
        notice(f"--margin {text} is read as {say_share(text, said)}")
    check_margin(margin)
    return margin


def seconds_of(option: str, text: str | None) -> float | None:
    if text is None:
        return None
    if option == "--time-limit" and text.strip().lower() == "none":
        return math.inf
    seconds = read_seconds(option, text)
    if option == "--time-limit" and seconds == 0:
        return math.inf
    return seconds


def parameters_with() -> dict[str, dict[str, FieldLike]]:
    """Every parameter of every family: by its name, the families that have it, each with its own field."""
    found: dict[str, dict[str, FieldLike]] = {}
    for typed, family in families().items():
        for name, info in family.params.model_fields.items():
            found.setdefault(name, {})[typed] = info
    return found


def parameter_fields() -> dict[str, FieldLike]:
    """Every parameter of every family, by name; where several have one, the first family's."""
    return {name: next(iter(of.values())) for name, of in parameters_with().items()}


def parameter_options(command: F) -> F:
    for name, of in reversed(parameters_with().items()):
        info = next(iter(of.values()))
        flag = True if info.annotation is bool else None
        command = click.option(
            *_names(name, info),
            name,
            metavar=_metavar(*of.values()),
            default=None,
            help=_help_of(of),
            is_flag=flag,
            cls=FirstName,
        )(command)
    return command


def _help_of(families_with: dict[str, FieldLike]) -> str:
    """The first family's help, and behind it what the same name means to another, where it means something else."""
    first, *_ = (_help(info) for info in families_with.values())
    text, bracket, default = first.partition(DEFAULT)
    said = [text.rstrip()]
    for family, info in families_with.items():
        own = f"{(info.description or '').rstrip('.')}."
        if own.lower() not in said[0].lower() and not any(own in one for one in said):
            said.append(f"In {family if '/' in family else f'{family}/'}: {own}")
    return " ".join([*said, *([bracket + default] if bracket else [])])


def place_names() -> str:
    """Return the places by their names, for the help of what takes one."""
    return ", ".join(all_places())


def place_fields() -> dict[str, FieldLike]:
    """Every option of every place, by name; where several have one, the first's is offered."""
    return {name: next(iter(places.values())) for name, places in places_with().items()}


def place_options(command: F) -> F:
    """Options of places, for `--on` or for all arms whose place has them."""
    for name, places in reversed(places_with().items()):
        command = _place_option(name, next(iter(places.values())), _help_of_places(places))(command)
    return command


def pod_options(*without: str) -> Callable[[F], F]:
    """Options of a pod alone, for verbs that know no other place; `without` names those that the verb has itself."""

    def add(command: F) -> F:
        for name, info in reversed(pod_fields().items()):
            if name not in without:
                command = _place_option(name, info, _help(info))(command)
        return command

    return add


def taken_pod_options(typed: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of a pod out of what was typed; those that were given."""
    return _given({name: typed.pop(name) for name in pod_fields() if name in typed})


def _place_option(name: str, info: FieldLike, text: str) -> Callable[[F], F]:
    return click.option(
        *_names(name, info),
        name,
        metavar=None if info.annotation is bool else str(extra_of(info).get("metavar", "TEXT")),
        default=None,
        multiple=takes_several(info),
        is_flag=True if info.annotation is bool else None,
        help=text,
    )


def _help_of_places(places: Mapping[str, FieldLike]) -> str:
    """One help for all, or where a word of it differs, each place's own."""
    texts = dict.fromkeys(_help(info) for info in places.values())
    if len(texts) == 1:
        return next(iter(texts))
    ends = {text[text.index(DEFAULT) :] if DEFAULT in text else "" for text in texts}
    end = ends.pop() if len(ends) == 1 else ""
    each = {kind: _help(info).removesuffix(end).rstrip() for kind, info in places.items()}
    return " ".join([*(f"{kind.capitalize()}: {text}" for kind, text in each.items()), *filter(None, [end])])


def taken_place_options(typed: dict[str, Any]) -> dict[str, Any]:
    """Takes the options of places out of what was typed; those that were given."""
    return _given({name: typed.pop(name) for name in place_fields() if name in typed})


def _given(typed: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in typed.items()
        if value is not None and value != ()
    }


class InSections(Forgiving):
    """Help in sections: forty options in one list are a wall."""

    # A verb that knows one place only has all its options in one section.
    only_place: str | None = None

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        fields, of_places = parameter_fields(), places_with()
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], PLACE_OPTIONS: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if isinstance(param, click.Option) and record is not None:
                info = fields.get(param.name or "")
                name = "Options" if info is None else str(extra_of(info).get("group", PARAMETERS))
                if param.name in of_places:
                    places = [self.only_place] if self.only_place else list(of_places[param.name])
                    name = PLACE_OPTIONS if len(places) > 1 else f"Options of the place {places[0]}"
                sections.setdefault(name, []).append(record)
        for name, records in ((name, records) for name, records in sections.items() if records):
            with formatter.section(name):
                formatter.write_dl(records)


class OfAPod(InSections):
    only_place = "pod"


class FirstName(click.Option):
    """An option whose earlier names still work; help shows the first."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        shown = copy(self)
        shown.opts, shown.secondary_opts = self.opts[:1], self.secondary_opts[:1]
        return click.Option.get_help_record(shown, ctx)


def _names(name: str, info: FieldLike) -> list[str]:
    """Return the option of a field, and the name of the field as another one where they differ."""
    options = dict.fromkeys((_option(name, info), _option(name)))
    return [f"{option}/--no-{option[2:]}" if info.annotation is bool else option for option in options]


def _option(name: str, info: FieldLike | None = None) -> str:
    said = extra_of(info).get("option") if info else None
    return f"--{said or name.replace('_', '-')}"


def _metavar(info: FieldLike, *others: FieldLike) -> str | None:
    """`others` are fields of the same name: what any of them takes may be typed."""
    if info.annotation is bool:
        return None
    if get_origin(info.annotation) is Literal:
        words = dict.fromkeys(word for one in (info, *others) for word in get_args(one.annotation))
        return "|".join([*words, *([ALL] if extra_of(info).get("takes_all") else [])])
    if extra_of(info).get("quantity") == "seconds":
        return "TIME"
    return {int: "N", float: "X"}.get(info.annotation or str, "TEXT")


def _help(info: FieldLike) -> str:
    text = (info.description or "").rstrip(".")
    # A sentence begins with a capital, unless it begins with a value or a name (`cpu or cuda:N`, `torch.compile …`, `op/gemm:`).
    first = text.partition(" ")[0].rstrip(":;,")
    values = {*get_args(info.annotation), "cpu", "device"}
    if first not in values and "." not in first and "/" not in first:
        text = text[:1].upper() + text[1:]
    default: object = extra_of(info).get("default", info.default)
    if info.is_required():
        default = AUTO if extra_of(info).get("auto") else None
    if isinstance(default, bool):
        default = "on" if default else "off"
    elif isinstance(default, float):
        default = f"{default:g}"
    return f"{text}. {DEFAULT}{default}]" if default not in ("", None, ()) else f"{text}."


def names_image(places: Sequence[str], options: Mapping[str, Any]) -> bool:
    """Tell whether an image was named, for all places by an option or in one of them."""
    return "image" in options or any(part.startswith("image=") for place in places for part in place.split(",")[1:])


def asked_workloads(workload: str | None, typed: dict[str, Any], *, image: bool = False) -> list[str]:
    """Return the workloads that were named, or the person's own program; an image without either runs its entry point."""
    named = [name.strip() for name in (workload or "").split(",") if name.strip()]
    if named and typed.get("cmd") is not None and not all(map(_takes_command, named)):
        raise SpecError("both a workload and --cmd were given", hint="give one of them")
    if typed.get("cmd") is not None:
        if not typed["cmd"].strip():
            raise SpecError("--cmd is empty", hint="give the program and its arguments: --cmd 'python train.py'")
        return named or [OWN_COMMAND]
    if not named and image:
        return [OWN_COMMAND]
    if not named:
        raise SpecError("no workload was named", hint="list them with: stackmark workloads; or give --cmd")
    return named


def _takes_command(workload: str) -> bool:
    return "cmd" in find(workload)[0].params.model_fields


def read_requests(workloads: list[str], typed: dict[str, Any]) -> list[Request]:
    """The requests that a command line means: one for each combination of the lists in it."""
    for workload in workloads:
        find(workload)
    if any(map(_takes_command, workloads)) and not typed.get("cwd"):
        # Where the person is, whatever the place of the first arm is; an image's entry point runs in the image's own folder.
        typed = {**typed, "cwd": _working_folder() if typed.get("cmd") else "."}
    ranks = read_ranks(typed.get("ranks"))
    typed = {name: value for name, value in typed.items() if name != "ranks"}
    lists = {workload: _lists(workload, typed) for workload in workloads}
    _check_once("the list of workloads", workloads)
    _check_once("--ranks", ranks)
    count = len(ranks) * sum(math.prod(map(len, values.values())) for values in lists.values())
    if count > MOST_REQUESTS:
        raise SpecError(f"these lists make {count:,} measurements", hint=f"at most {MOST_REQUESTS} are made at once")
    made = [
        Request(workload=workload, params=_that_apply(workload, lists[workload], values), ranks=number)
        for workload in workloads
        for values in product(*lists[workload].values())
        for number in ranks
    ]
    return [one for place, one in enumerate(made) if one not in made[:place]]


def _that_apply(workload: str, lists: Mapping[str, list[Scalar]], values: Sequence[Scalar]) -> dict[str, Scalar]:
    """Return the values of one request. Of several scenarios each takes what is for it: only the server takes a rate."""
    chosen = dict(zip(lists, values, strict=True))
    fields = find(workload)[0].params.model_fields

    def applies(name: str) -> bool:
        only = extra_of(fields[name]).get("only") if name in fields else None
        return not only or any(
            len(lists.get(other, ())) < 2 or chosen[other] == value or value not in lists[other]
            for other, value in only.items()
        )

    return {name: value for name, value in chosen.items() if applies(name)}


def _check_once(what: str, values: Sequence[object]) -> None:
    """Refuse a value that a list has twice: its measurement would be made twice, in two rows of one name."""
    if (twice := next((value for value in values if values.count(value) > 1), None)) is not None:
        raise SpecError(
            f"{what} has {twice} twice",
            hint="name each once; for more runs of each give --runs, in a comparison --blocks",
        )


def _working_folder() -> str:
    folder = os.getcwd()
    try:
        folder.encode()
    except UnicodeEncodeError as error:
        raise SpecError(
            f"the name of the working folder {folder!r} holds bytes that are not UTF-8: a program is not started there",
            hint="name another folder with --cwd",
        ) from error
    return folder


def _lists(workload: str, typed: dict[str, Any]) -> dict[str, list[Scalar]]:
    """Every value that was typed, read as this workload's own parameter; one it does not have, as another family's."""
    fields: dict[str, FieldLike] = {**parameter_fields(), **find(workload)[0].params.model_fields}
    found = {}
    for name, value in typed.items():
        if value is not None:
            option = _option(name, fields[name])
            found[name] = [read_value(option, fields[name], part) for part in _parts(fields[name], value)]
            _check_once(option, found[name])
    return found


def _parts(info: FieldLike, value: Any) -> list[Any]:
    """A list has commas; a free text (a folder, a schedule) may have them too and is one value, as are numbers of rows."""
    one_value = extra_of(info).get("one_value") or (info.annotation is str and not pattern_of(info))
    if not isinstance(value, str) or one_value:
        return [value]
    parts = [part.strip() for part in value.split(",")]
    if parts == [ALL] and extra_of(info).get("takes_all"):
        return list(choices_of(info))
    return [part for part in parts if part] or [value]


def read_parameter(name: str, text: str) -> None:
    """Refuse a text that is not a value of this parameter in any family; a list is read value by value."""
    refusals: list[SpecError] = []
    for family in families().values():
        if (info := family.params.model_fields.get(name)) is None:
            continue
        try:
            for part in _parts(info, text):
                value = read_value(_option(name, info), info, part)
                if value != AUTO:
                    info.validate(value)
        except SpecError as error:
            refusals.append(error)
        except ValidationError as error:
            refusals.append(SpecError(explain(error)))
        else:
            return
    if refusals:
        raise refusals[0]
