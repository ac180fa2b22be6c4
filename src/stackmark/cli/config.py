"""`stackmark config`: which defaults are set, where each comes from, and how to change them."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from stackmark.api.settings import (
    NAME,
    Setting,
    SettingsFile,
    Source,
    Value,
    from_variable,
    read_settings,
    read_settings_file,
    settings_files,
    trust_file,
    why_not_trusted,
    with_setting,
)
from stackmark.cli.defaults import (
    MEASURES,
    QUIET,
    TYPED_ONLY,
    VERBOSE,
    check_table,
    check_top_level,
    checked_value,
    command_at,
    hidden,
    needs_trust,
    options_of,
    top_level_options,
    unknown_key,
)
from stackmark.cli.options import Subverbs, json_option
from stackmark.cli.saying import print_json
from stackmark.errors import Exit, SpecError, nearest_names
from stackmark.schemas import with_schema

HERE = click.option("--here", is_flag=True, help=f"In ./{NAME} instead of the file in your configuration folder.")
SOURCES = {"variable": "variable", "here": "working folder", "user": "your configuration folder"}


class Alone(Subverbs):
    """A group that does something when it is called alone."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return click.Group.parse_args(self, ctx, args)


@click.group(
    "config",
    cls=Alone,
    invoke_without_command=True,
    epilog="""\b
Examples:
  stackmark config
  stackmark config --json
  stackmark config set margin 2%
  stackmark config set compare.blocks 12 --here
  stackmark config unset margin
""",
)
@click.option("--path", "only_paths", is_flag=True, help="Print the names of the two files, and nothing else.")
@json_option
@click.pass_context
def command(ctx: click.Context, only_paths: bool, as_json: bool) -> int:
    """Show the defaults of options that are set, and where each comes from.

    A value is taken from the first of: what is typed, a STACKMARK_… variable, ./stackmark.toml, the file in your configuration
    folder. Keys are named like the options, at the top level for all commands that measure, in a table for one.
    """
    if ctx.invoked_subcommand is not None:
        return Exit.DONE
    if only_paths:
        for source, path in settings_files().items():
            click.echo(os.path.abspath(path) if source == "here" else path)
        return Exit.DONE
    files = read_settings()
    check_files(files, ctx)
    rows = list(_rows(files, ctx))
    for row in rows:
        if row.setting.source == "variable" and row.setting.key not in (QUIET, VERBOSE):
            checked_value(row.setting, _option((), row.setting.key, ctx.find_root(), row.setting), ctx)
    if as_json:
        told = {"settings": [row.to_dict() for row in rows], "files": [_file_json(file) for file in files]}
        print_json(with_schema("config", told))
    else:
        _print(rows, files)
    return Exit.DONE


@dataclass(frozen=True)
class Row:
    """A setting, and why it has no effect where it has none."""

    setting: Setting
    overridden_by: str = ""
    not_trusted: str = ""

    def to_dict(self) -> dict[str, object]:
        return {
            "key": self.setting.name,
            "value": _masked(self.setting),
            "source": self.setting.source,
            "where": self.setting.where,
            "overridden_by": self.overridden_by or None,
            "needs_trust": bool(self.not_trusted),
        }


def _masked(setting: Setting) -> Value:
    """Return the value as it may be shown; its type stays where nothing is hidden."""
    if isinstance(setting.value, str):
        return hidden(setting.key, setting.value)
    return [hidden(setting.key, one) for one in setting.value] if isinstance(setting.value, list) else setting.value


def check_files(files: Sequence[SettingsFile], ctx: click.Context) -> None:
    """Refuse a key or a value that no command takes."""
    root = ctx.find_root()
    settings = [setting for file in files for setting in file.settings]
    check_top_level(iter(settings), ctx)
    for setting in settings:
        if setting.key not in (QUIET, VERBOSE) or setting.table:
            checked_value(setting, _option(setting.table, setting.key, root, setting), ctx)


def _option(table: tuple[str, ...], key: str, root: click.Context, setting: Setting) -> click.Option:
    """Return the option that a key sets."""
    known = options_of(command_at(root, table)) if table else top_level_options(root)
    if key not in known or key in TYPED_ONLY:
        raise unknown_key(setting, list(known))
    return known[key]


def _rows(files: Sequence[SettingsFile], ctx: click.Context) -> Iterator[Row]:
    """Yield variables, then the files' settings, each with what is stronger."""
    keys = [*top_level_options(ctx.find_root()), QUIET, VERBOSE]
    variables = {key: found for key in keys if (found := from_variable(key))}
    yield from (Row(setting) for setting in variables.values())
    stronger: dict[str, str] = {}
    for file in files:
        refusal = None
        for setting in file.settings:
            by = stronger.get(setting.name) or (stronger.get(setting.key, "") if setting.table in MEASURES else "")
            if (setting.table in MEASURES or not setting.table) and setting.key in variables:
                by = variables[setting.key].where
            if not by and _is_guarded(setting, ctx):
                refusal = refusal or why_not_trusted(file)
            yield Row(setting, by, refusal[1] if refusal and not by and _is_guarded(setting, ctx) else "")
        for setting in file.settings:
            stronger.setdefault(setting.name, setting.where)


def _is_guarded(setting: Setting, ctx: click.Context) -> bool:
    """Tell whether a setting takes effect only with trust."""
    if not setting.table and setting.key in (QUIET, VERBOSE):
        return False
    option = _option(setting.table, setting.key, ctx.find_root(), setting)
    return needs_trust(option, checked_value(setting, option, ctx))


def _file_json(file: SettingsFile) -> dict[str, object]:
    return {"path": os.path.abspath(file.path), "source": file.source, "exists": file.exists}


def _print(rows: Sequence[Row], files: Sequence[SettingsFile]) -> None:
    from stackmark.show.terminal import Column, print_table, standard_output

    if rows:
        columns = (Column("key", style="cyan"), Column("value"), Column("from"), Column("note"))
        cells = [
            [row.setting.name, hidden(row.setting.key, row.setting.value), row.setting.where, _note(row)]
            for row in rows
        ]
        print_table(standard_output(), columns, cells)
    else:
        click.echo("nothing is set: every option has its built-in default")
    click.echo()
    for file in files:
        click.echo(f"{SOURCES[file.source]}: {file.shown}{'' if file.exists else ' (does not exist)'}")
    click.echo("change it with: stackmark config set KEY VALUE")


def _note(row: Row) -> str:
    if row.overridden_by:
        return f"no effect: {row.overridden_by} is stronger"
    return f"not trusted: {row.not_trusted}" if row.not_trusted else ""


@command.command(
    "set",
    epilog="""\b
Examples:
  stackmark config set margin 2%
  stackmark config set ledger ~/team.sqlite3
  stackmark config set compare.blocks 12
  stackmark config set compare.arm host container --here
""",
)
@click.argument("key")
@click.argument("values", nargs=-1, required=True, metavar="VALUE…")
@HERE
@click.pass_context
def set_(ctx: click.Context, key: str, values: tuple[str, ...], here: bool) -> int:
    """Set KEY to VALUE in your configuration folder, or with --here in the working folder.

    KEY is the name of an option (`margin`); for one command it has the command before it (`compare.margin`). An option that may
    be repeated takes several values.
    """
    file = _target(here)
    table, name = _read_key(key, ctx)
    setting = Setting(
        table, name, list(values) if len(values) > 1 else values[0], file.source, ".".join((*table, name))
    )
    option = None if not table and name in (QUIET, VERBOSE) else _option(table, name, ctx.find_root(), setting)
    value = _typed(setting, option)
    if option is not None:
        checked_value(replace(setting, value=value), option, ctx)
    _write(file, table, name, value, believed=_is_believed(file, ctx))
    click.echo(f"{key} = {hidden(name, value)} in {file.shown}")
    if found := from_variable(name):
        click.echo(f"{found.where} is set, and stronger")
    return Exit.DONE


@command.command(
    "unset", epilog="\b\nExamples:\n  stackmark config unset margin\n  stackmark config unset compare.blocks --here"
)
@click.argument("key")
@HERE
@click.pass_context
def unset(ctx: click.Context, key: str, here: bool) -> int:
    """Remove KEY from your configuration folder's file, or with --here from that in the working folder."""
    file = _target(here)
    *table, name = key.replace("_", "-").split(".")
    names = [setting.name for setting in file.settings]
    if key.replace("_", "-") not in names:
        raise SpecError(
            f"{key} is not set in {file.shown}{nearest_names(key, names)}", hint="see what is set: stackmark config"
        )
    _write(file, tuple(table), name, None, believed=_is_believed(file, ctx))
    click.echo(f"{key} is removed from {file.shown}")
    return Exit.DONE


@command.command("trust", epilog="\b\nExamples:\n  stackmark config trust")
@click.pass_context
def trust(ctx: click.Context) -> int:
    """Trust ./stackmark.toml as it is now, after you have looked at it.

    The file may come from somebody else. Values that could run a program, mount or write files or send data (image, env, mount,
    cmd, ledger …) are taken from it only when you have trusted it; when the file changes, you are asked again.
    """
    file = read_settings_file(Path(NAME), "here")
    if not file.exists:
        raise SpecError(f"there is no {file.shown}", hint="make one: stackmark config set KEY VALUE --here")
    check_files([file], ctx)
    trust_file(file)
    guarded = [setting for setting in file.settings if _is_guarded(setting, ctx)]
    for setting in guarded:
        click.echo(f"{setting.name} = {hidden(setting.key, setting.value)}")
    click.echo(f"{file.shown} is trusted as it is now" if guarded else f"nothing in {file.shown} needs trust")
    return Exit.DONE


def _target(here: bool) -> SettingsFile:
    source: Source = "here" if here else "user"
    path = settings_files().get(source)
    if path is None:
        raise SpecError("there is no home folder to keep settings in", hint="set XDG_CONFIG_HOME, or give --here")
    return read_settings_file(path, source)


def _read_key(key: str, ctx: click.Context) -> tuple[tuple[str, ...], str]:
    """`compare.margin` is for one command, `margin` for all that measure."""
    *table, name = (part.strip().replace("_", "-") for part in key.split("."))
    if table:
        check_table(tuple(table), ctx.find_root(), key)
    return tuple(table), name


def _typed(setting: Setting, option: click.Option | None) -> Value:
    """Return a value with the type that a file should have: numbers and switches as such, all else as text."""
    texts = setting.value if isinstance(setting.value, list) else [str(setting.value)]
    if option is None or option.is_flag:
        if len(texts) == 1 and texts[0].lower() in ("true", "yes", "on", "false", "no", "off"):
            return texts[0].lower() in ("true", "yes", "on")
        raise SpecError(f"{setting.name} must be true or false, got {' '.join(texts)!r}")
    if option.multiple:
        return list(texts)
    if len(texts) > 1:
        raise SpecError(f"{setting.name} takes one value, got {len(texts)}", hint="quote a value that has spaces")
    return int(texts[0]) if texts[0].isdecimal() and len(texts[0]) < 10 and option.metavar in ("N", "X") else texts[0]


def _is_believed(file: SettingsFile, ctx: click.Context) -> bool:
    """Tell whether what we write stays trusted: all of the file is the user's own word, or harmless."""
    if file.source != "here" or not file.exists:
        return True
    try:
        return why_not_trusted(file) is None or not any(_is_guarded(setting, ctx) for setting in file.settings)
    except SpecError:  # a wrong line, which this command may be about to mend
        return False


def _write(file: SettingsFile, table: tuple[str, ...], key: str, value: Value | None, *, believed: bool) -> None:
    from stackmark.show.writing import write_whole

    text = with_setting(file.text, table, key, value)
    if text is None:
        where = f" below [{'.'.join(table)}]" if table else ""
        raise SpecError(
            f"{file.shown} is not changed: {'.'.join((*table, key))} is written there in a way that this command cannot edit",
            hint=f"edit it yourself: the line of {key}{where}",
        )
    if file.source == "user":
        _make_folder(file.path.parent)
    write_whole(file.path, text.encode())
    if believed and file.source == "here":
        trust_file(read_settings_file(file.path, file.source))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise SpecError(f"cannot make the folder {folder}: {error.strerror}", hint="set XDG_CONFIG_HOME") from error
