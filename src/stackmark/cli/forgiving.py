"""Accept natural slips on the command line, and say how each was read.

The words are replaced before they are parsed, also in the command line that is stored: whoever repeats it repeats the canonical
form. What is accepted is decided in one place for the command line, arms and Python (experiments/typed.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import click

from stackmark.api.options import (
    all_places,
    canonical_place,
    canonical_share,
    canonical_value,
    canonical_workload,
    choices_of,
    pattern_of,
    places_with,
)
from stackmark.cli.help import first_example
from stackmark.cli.saying import notice
from stackmark.model import FieldLike
from stackmark.workloads.registry import definitions, families

# Options that people type from other programs or other commands, and what they may mean: the first that the command has.
MEANT = {
    "--runs": ("--blocks",),
    "--blocks": ("--runs",),
    "--repeat": ("--runs", "--blocks"),
    "--repeats": ("--runs", "--blocks"),
    "--iterations": ("--steps",),
    "--duration": ("--seconds", "--for"),
    "--time": ("--seconds",),
    "--where": ("--on", "--arm"),
    "--place": ("--on", "--arm"),
    "--out": ("--output",),
    "--dtype": ("--precision",),
    "--batch-size": ("--batch",),
}
# What another command does.
ELSEWHERE = {"--report": "write it afterwards: stackmark report last -o FILE"}

# A reading: the text, and how it is shown before and after, without what may be secret in it.
Reading = tuple[str, str, str]


class Forgiving(click.Command):
    """A command that takes other names for places, devices, precisions and workloads."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        accepted, notes = accept(self, args)
        if accepted != args and isinstance(ctx.obj, tuple):
            ctx.obj = (*ctx.obj[: len(ctx.obj) - len(args)], *accepted)
        notice(*notes)
        return super().parse_args(ctx, accepted)


def accept(command: click.Command, args: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments in their canonical form, and a sentence for each that was read as another one."""
    readers = {name: reader for name, reader in _readers().items() if name in {param.name for param in command.params}}
    options = {name: param for param in command.params if isinstance(param, click.Option) for name in param.opts}
    arguments = _arguments(command)
    words: list[str] = []
    notes: list[str] = []

    def read(name: str | None, shown: str, text: str) -> str:
        reader = readers.get(name or "")
        made, before, after = reader(text) if reader else (text, "", "")
        if made != text:
            notes.append(f"{shown}{before} is read as {after}")
        return made

    rest = iter(args)
    for word in rest:
        option, equals, value = word.partition("=")
        param = options.get(option)
        if word == "--":
            words += [word, *rest]
        elif param is not None and not param.is_flag and equals:
            words.append(f"{option}={read(param.name, f'{option} ', value)}")
        elif param is not None and not param.is_flag:
            words.append(word)
            words += [read(param.name, f"{option} ", one) for one in _next(rest)]
        elif word.startswith("-"):
            words.append(word)
        else:
            words.append(read(next(arguments, None), "", word))
    return words, notes


def explain_wrong_use(error: click.ClickException) -> tuple[str, list[str]]:
    """Return the message of a wrong command line, which names the option that was meant, and what else to do."""
    message = error.format_message()
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    if ctx is None:
        return message, []
    if isinstance(error, click.NoSuchOption):
        has = {name for param in ctx.command.params for name in param.opts}
        meant = next((name for name in MEANT.get(error.option_name, ()) if name in has), "")
        hints = [ELSEWHERE[error.option_name]] if error.option_name in ELSEWHERE else []
        return (f"{error.message} Did you mean {meant!r}?" if meant else message), hints
    if isinstance(error, click.MissingParameter) and isinstance(error.param, click.Argument):
        example = first_example(ctx.command)
        return message, [f"for example: {example}"] if example else []
    return message, []


def say_share(typed: str, read: str) -> str:
    """Say how a share without its sign was read. A number below one may have been meant in percent."""
    return read if float(typed) >= 1 else f"{read}; for {typed} % write {typed}%"


def _next(words: Iterator[str]) -> list[str]:
    return [one] if (one := next(words, None)) is not None else []


def _arguments(command: click.Command) -> Iterator[str | None]:
    """Name the arguments of a command in their order; the last may take any number of words."""
    for param in command.params:
        if isinstance(param, click.Argument):
            yield param.name
            while param.nargs == -1:
                yield param.name


def _readers() -> Mapping[str, Callable[[str], Reading]]:
    """How the values of parameters are read, by their names."""
    return {
        **{name: _reader_of(infos) for name, infos in _fields().items()},
        "place": _place,
        "on": _place,
        "arms": _arm,
        "workload": _workloads,
        "margin": _margin,
    }


def _fields() -> dict[str, list[FieldLike]]:
    """Parameters and options of places that have a fixed list of values, or name a device."""
    found: dict[str, list[FieldLike]] = {}
    for family in families().values():
        for name, info in family.params.model_fields.items():
            found.setdefault(name, []).append(info)
    for name, places in places_with().items():
        found.setdefault(name, []).extend(places.values())
    return {
        name: infos
        for name, infos in found.items()
        if any(choices_of(info) or "cuda" in pattern_of(info) for info in infos)
    }


def _reader_of(infos: Sequence[FieldLike]) -> Callable[[str], Reading]:
    def read(text: str) -> Reading:
        made = ",".join(_value(infos, part) for part in text.split(","))
        return made, text, made

    return read


def _value(infos: Sequence[FieldLike], text: str) -> str:
    """Read a value as any of the fields of its name does: families differ in the precisions that they know."""
    known = {choice for info in infos for choice in choices_of(info)}
    if text in known:
        return text
    return next((made for info in infos if (made := canonical_value(info, text)) != text), text)


def _place(text: str) -> Reading:
    made = canonical_place(text, all_places())
    rest = text.partition(",")[2]
    return made, text.partition(",")[0], made.removesuffix(f",{rest}") if rest else made


def _arm(text: str) -> Reading:
    """Read the place of an arm, and the parameters in it: `docker,precision=BF16`. Other keys may hold secrets."""
    made, before, after = _place(text)
    fields = _fields()
    place, *pieces = made.split(",")
    said = [(before, after)] if made != text else []
    for number, piece in enumerate(pieces):
        key, equals, value = piece.partition("=")
        infos = fields.get(key.strip().replace("-", "_"))
        if equals and infos and (read := _value(infos, value.strip())) != value.strip():
            pieces[number] = f"{key}={read}"
            said.append((piece.strip(), pieces[number].strip()))
    joined = ",".join([place, *pieces])
    return joined, ",".join(one for one, _ in said), ",".join(one for _, one in said)


def _margin(text: str) -> Reading:
    made = canonical_share(text)
    return made, text, say_share(text, made) if made != text else made


def _workloads(text: str) -> Reading:
    names = [one.name for one in definitions()]
    made = ",".join(canonical_workload(part.strip(), names) for part in text.split(","))
    made = made if made != ",".join(part.strip() for part in text.split(",")) else text
    return made, text, made
