"""Give the options of a command the values that `stackmark.toml` and `STACKMARK_…` variables set (api/settings.py).

Keys are named like the options. A key at the top level, and a variable, is for every command that measures and has the option;
commands that only look at what is stored take `ledger` from there, so that a margin for comparisons does not change how a
stored experiment is judged. A table (`[compare]`, `[cluster.sweep]`) is for one command and may hold any of its options.

A setting is a default, not an order: it is left out where it does not fit what was typed (`image` on the host, `batch` of an
operator). What was taken is said in a line, and added to the command line that is stored, so that `repeat` needs no file.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
from click.core import ParameterSource

from stackmark.api.settings import (
    Setting,
    SettingsFile,
    Value,
    from_variable,
    is_anything_set,
    is_harmless,
    read_settings,
    why_not_trusted,
)
from stackmark.cli.saying import SETTINGS_TAKEN, VERBOSITY, notice, of_click
from stackmark.errors import SpecError, nearest_names
from stackmark.spec import LEDGER_VARIABLE

# What measures takes the keys of the top level. `ceilings` does not: its runs are of another kind.
MEASURES = (
    ("run",), ("compare",), ("noise",), ("scale",), ("baseline", "save"), ("check",), ("manifest",), ("cluster", "sweep"),
    ("cluster", "fault"), ("cluster", "check"), ("cluster", "doctor"),
)  # fmt: skip
LEDGER = "ledger"
# The classic command line has no option for it.
TAKES_LEDGER_BY_VARIABLE = ("tf-cnn",)
# These are about the settings themselves, or take none.
WITHOUT = ("config", "help", "completion")
# How much is said, for all commands.
QUIET, VERBOSE = "quiet", "verbose"
# Each answers a question, or names one stored thing: typed each time, or not at all.
TYPED_ONLY = frozenset(
    {"yes", "trust-ledger", "anyway", "force", "dry-run", "resume", "from", "show", "choose-again", "again", "failed",
     "only-control-plane"}
)  # fmt: skip
# Where one of these was typed, what is stored decides, and a default would be refused.
GOES_BY_WHAT_IS_STORED = ("experiments", "resume", "show")
# An option with such a value can neither run, mount, write nor send anything.
HARMLESS_VALUES = frozenset({"N", "X", "TIME", "SHARE", "GLOB", "WHEN"})


@dataclass(frozen=True)
class Default:
    """A setting that takes effect: the option it is for, its value as click takes it, and as it would be typed."""

    setting: Setting
    option: click.Option
    value: Any
    words: tuple[str, ...]


def settle(ctx: click.Context, path: Sequence[str], command: click.Command, args: Sequence[str]) -> None:
    """Make settings the defaults of `command`, which is about to be called below `ctx` with `args`.

    `path` is how it is typed: `("cluster", "sweep")`.
    """
    if ctx.resilient_parsing or not is_anything_set() or isinstance(command, click.Group) or path[0] in WITHOUT:
        return
    if "--help" in args or "-h" in args:
        return
    name = path[-1]
    files = read_settings()
    _set_verbosity(ctx, files)
    if tuple(path) == TAKES_LEDGER_BY_VARIABLE:
        _set_ledger_variable(files)
    probe = _parsed(ctx, command, name, args)
    taken = list(_defaults(tuple(path), command, files, probe))
    ctx.default_map = {name: {default.option.name or "": default.value for default in taken}}
    ctx.obj = _pinned(ctx.obj, [word for default in taken for word in default.words])
    _say(taken)
    ctx.meta.setdefault(SETTINGS_TAKEN, []).extend(taken)


def _set_ledger_variable(files: Sequence[SettingsFile]) -> None:
    setting = strongest(LEDGER, TAKES_LEDGER_BY_VARIABLE, files)
    if setting and setting.source != "variable":
        option = click.Option([f"--{LEDGER}"], metavar="PATH|URL")
        _require_trust(setting, option, setting.value, files)
        os.environ[LEDGER_VARIABLE] = str(setting.value)


def _parsed(ctx: click.Context, command: click.Command, name: str, args: Sequence[str]) -> click.Context:
    """Read what was typed, without complaint: the command itself reads it again and complains."""
    return command.make_context(name, list(args), parent=ctx, resilient_parsing=True)


def _set_verbosity(ctx: click.Context, files: Sequence[SettingsFile]) -> None:
    if ctx.meta.get(VERBOSITY):
        return
    for key, level in ((QUIET, -1), (VERBOSE, 1)):
        setting = from_variable(key) or next((one for one in _of(files) if not one.table and one.key == key), None)
        if setting and _read_switch(setting):
            ctx.meta[VERBOSITY] = level
            return


def _of(files: Sequence[SettingsFile]) -> Iterator[Setting]:
    for file in files:
        yield from file.settings


def _defaults(
    path: tuple[str, ...], command: click.Command, files: Sequence[SettingsFile], typed: click.Context
) -> Iterator[Default]:
    options = options_of(command)
    if path in MEASURES and any(file.settings for file in files):
        check_top_level(_of(files), typed)
    for setting in _of(files):
        if setting.table == path and (setting.key not in options or setting.key in TYPED_ONLY):
            raise unknown_key(setting, list(options))
    stored = any(typed.params.get(name) for name in GOES_BY_WHAT_IS_STORED)
    fits = _Fits(typed, files, path)
    for key, option in options.items():
        if key in TYPED_ONLY or _was_typed(option, typed) or (stored and key != LEDGER):
            continue
        found = strongest(key, path, files)
        if found is None or (key == LEDGER and found.source == "variable"):  # the ledger reads its variable itself
            continue
        if fits.leaves_out(option):
            continue
        value = checked_value(found, option, typed)
        _require_trust(found, option, value, files)
        yield Default(found, option, value, _words(option, value))


def strongest(key: str, path: tuple[str, ...], files: Sequence[SettingsFile]) -> Setting | None:
    """Return the setting that wins for an option of a command: a variable, then file by file its table, then its top level."""
    top = path in MEASURES or key == LEDGER
    if top and (found := from_variable(key)):
        return found
    for file in files:
        for table in (path, ()) if top else (path,):
            for setting in file.settings:
                if setting.table == table and setting.key == key:
                    return setting
    return None


def options_of(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a command by the key that sets them: `time-limit` for --time-limit."""
    found: dict[str, click.Option] = {}
    for param in command.params:
        if isinstance(param, click.Option) and param.expose_value:
            found.setdefault(key_of(param), param)
    return found


def key_of(option: click.Option) -> str:
    return next((name for name in option.opts if name.startswith("--")), option.opts[0]).lstrip("-")


def _was_typed(option: click.Option, typed: click.Context) -> bool:
    source = typed.get_parameter_source(option.name or "")
    return source in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


# --- which keys there are -----------------------------------------------------------------------------------------------


def check_top_level(settings: Iterator[Setting], ctx: click.Context) -> None:
    """Refuse a key of the top level that no command which measures has, and a table of no command."""
    root = ctx.find_root()
    known = top_level_options(root)
    for setting in settings:
        if not setting.table and setting.key not in known and setting.key not in (QUIET, VERBOSE):
            raise unknown_key(setting, [*known, QUIET, VERBOSE])
        if setting.table:
            check_table(setting.table, root, setting.where)


def top_level_options(root: click.Context) -> dict[str, click.Option]:
    """Return what may be set at the top level, each with an option that it sets."""
    found: dict[str, click.Option] = {}
    for path in MEASURES:
        for key, option in options_of(command_at(root, path)).items():
            if key not in TYPED_ONLY:
                found.setdefault(key, option)
    return found


def command_at(root: click.Context, path: Sequence[str]) -> click.Command:
    """Return the command of these words; they are known to be right."""
    command: click.Command = root.command
    for word in path:
        assert isinstance(command, click.Group)
        inner = command.get_command(root, word)
        assert inner is not None, word
        command = inner
    return command


def check_table(table: tuple[str, ...], root: click.Context, where: str) -> None:
    """Refuse a table that is not named after a command with options of its own."""
    group: click.Command = root.command
    for number, word in enumerate(table):
        names = group.list_commands(root) if isinstance(group, click.Group) else []
        if word not in names:
            known = nearest_names(word, names)
            raise SpecError(f"{where}: there is no command {' '.join(table[: number + 1])!r}{known}", hint=TABLES)
        group = command_at(root, table[: number + 1])
    if isinstance(group, click.Group) and not options_of(group):
        below = ", ".join(group.list_commands(root))
        raise SpecError(f"{where}: {' '.join(table)!r} has the commands {below}: name one of them too", hint=TABLES)


TABLES = "a table is named after a command: [compare], [cluster.sweep]"


def unknown_key(setting: Setting, known: list[str]) -> SpecError:
    if setting.key in TYPED_ONLY:
        return SpecError(f"{setting.at}{setting.key} cannot be set, only typed", hint=f"type --{setting.key}")
    table = f"[{'.'.join(setting.table)}]" if setting.table else "the top level"
    of = f"stackmark {' '.join(setting.table)} --help" if setting.table else "stackmark run --help"
    return SpecError(
        f"{setting.at}there is no key {setting.key!r} in {table}{nearest_names(setting.key, known)}",
        hint=f"keys are named like the options: {of}",
    )


# --- what a value must look like ----------------------------------------------------------------------------------------


def checked_value(setting: Setting, option: click.Option, ctx: click.Context) -> Any:
    """Return a value as click takes it for this option, or raise an error with its file and line."""
    value = _as_click_takes_it(setting, option)
    # Not the context of the command that was typed, which is being read without complaint.
    whole = click.Context(ctx.command, info_name=ctx.info_name, parent=ctx.parent)
    try:
        option.process_value(whole, value)
        _check_meaning(option, value)
    except click.BadParameter as error:
        reason = of_click(error.message)
    except SpecError as error:
        reason = error.message
    else:
        return value
    raise SpecError(f"{setting.at}{setting.name} = {setting.value!r}: {reason}", hint=_how(option))


def _as_click_takes_it(setting: Setting, option: click.Option) -> Any:
    value = setting.value
    if option.is_flag:
        return _read_switch(setting)
    if isinstance(value, bool):
        raise SpecError(f"{setting.at}{setting.name} must be a text or a number, got {value}", hint=_how(option))
    if option.multiple:
        if setting.source == "variable":
            return _split(setting)
        return [str(one) for one in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        raise SpecError(f"{setting.at}{setting.name} takes one value, not a list", hint=_how(option))
    return str(value)


def _split(setting: Setting) -> list[str]:
    try:
        return shlex.split(str(setting.value))
    except ValueError as error:
        raise SpecError(f"{setting.at}a quote is not closed in {setting.value!r}") from error


def _read_switch(setting: Setting) -> bool:
    if isinstance(setting.value, bool):
        return setting.value
    text = str(setting.value).lower()
    if setting.source == "variable" and text in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        return text in ("1", "true", "yes", "on")
    raise SpecError(
        f"{setting.at}{setting.name} must be true or false, got {setting.value!r}",
        hint=f"write it like: {setting.key} = true" if setting.source != "variable" else f"{setting.where}=yes",
    )


def _check_meaning(option: click.Option, value: Any) -> None:
    """Read what click takes as text, as the command will."""
    from stackmark.cli.options import parameter_fields, read_margin, read_parameter, seconds_of

    if option.is_flag or option.multiple:
        return
    if option.metavar == "SHARE":
        read_margin(value)
    elif option.name in parameter_fields():
        read_parameter(option.name, value)
    elif option.metavar == "TIME":
        seconds_of(f"--{key_of(option)}", value)


def _how(option: click.Option) -> str:
    text = (option.help or "").partition(" [default: ")[0]
    return f"--{key_of(option)}: {text}"


# --- where it fits ------------------------------------------------------------------------------------------------------


class _Fits:
    """Which options go with the workload and the places that were typed, or that are set."""

    def __init__(self, typed: click.Context, files: Sequence[SettingsFile], path: tuple[str, ...]) -> None:
        self._typed, self._files, self._path = typed, files, path
        self._names = {param.name for param in typed.command.params}

    def leaves_out(self, option: click.Option) -> bool:
        from stackmark.cli.options import parameter_fields, place_fields

        name = option.name or ""
        if name in ("until_decided", "report") and self._typed.params.get("published"):
            return True
        if self._path == ("baseline", "save") and name == "place":
            return not self._workloads()
        if name in place_fields() and {"place", "arms"} & self._names:
            from stackmark.api.options import places_with

            return not {*places_with()[name]} & self._places()
        if name in parameter_fields() and {"workload", "workloads"} & self._names:
            return not self._has_parameter(name)
        return False

    def _workloads(self) -> list[str]:
        from stackmark.workloads.command.definition import OWN_COMMAND

        typed = self._typed.params.get("workload") or self._typed.params.get("workloads") or ()
        texts = [typed] if isinstance(typed, str) else list(typed)
        names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
        if not names and (self._typed.params.get("cmd") or strongest("cmd", self._path, self._files)):
            return [OWN_COMMAND]
        return names

    def _has_parameter(self, name: str) -> bool:
        from stackmark.workloads.registry import find

        try:
            found = [find(workload)[0].params.model_fields for workload in self._workloads()]
        except SpecError:  # an unknown workload, which the command complains about
            return False
        return bool(found) and all(name in fields for fields in found)

    def _places(self) -> set[str]:
        """Return the places that are named by --on or --arm, else those that are set, else the host."""
        for name, key in (("place", "on"), ("arms", "arm")):
            if name not in self._names:
                continue
            option = next(param for param in self._typed.command.params if param.name == name)
            given: object = self._typed.params.get(name)
            if not isinstance(option, click.Option) or not _was_typed(option, self._typed):
                setting = strongest(key, self._path, self._files)
                given = setting.value if setting else given
            texts = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
            if texts:
                return {str(text).partition(",")[0].strip() for text in texts}
        return {"host"}


# --- whom to believe ----------------------------------------------------------------------------------------------------


def needs_trust(option: click.Option, value: Any) -> bool:
    """Tell whether a value could run a program, mount or write files, or send data. What is not known to be harmless could."""
    values = value if isinstance(value, list) else [value]
    if (known := [is_harmless(option.name or "", one) for one in values]) and None not in known:
        return not all(known)
    plain_type = isinstance(option.type, click.Choice | click.types.IntParamType | click.types.FloatParamType)
    return not (option.is_flag or plain_type or option.metavar in HARMLESS_VALUES)


def _require_trust(setting: Setting, option: click.Option, value: Any, files: Sequence[SettingsFile]) -> None:
    if setting.source == "variable" or not needs_trust(option, value):
        return
    file = next(one for one in files if one.source == setting.source)
    if refusal := why_not_trusted(file):
        why, what_to_do = refusal
        raise SpecError(f"{setting.where} sets {setting.key}, {why}", hint=what_to_do)


# --- what is said and stored --------------------------------------------------------------------------------------------


def _words(option: click.Option, value: Any) -> tuple[str, ...]:
    """Return the words that would set it on the command line."""
    name = next((name for name in option.opts if name.startswith("--")), option.opts[0])
    if option.is_flag:
        off = next(iter(option.secondary_opts), "")
        return (name,) if value else (off,) if off else ()
    values = value if isinstance(value, list) else [value]
    return tuple(word for one in values for word in (name, one))


def _pinned(asked: object, words: Sequence[str]) -> object:
    """Add words to the command line as it is stored; before a `--`, after which nothing is an option."""
    if not isinstance(asked, tuple):
        return asked
    at = asked.index("--") if "--" in asked else len(asked)
    return (*asked[:at], *words, *asked[at:])


def _say(taken: Sequence[Default]) -> None:
    """Say what took effect, a line for each file or variable. Where the user keeps all results is not news each time."""
    lines: dict[str, list[str]] = {}
    for default in taken:
        if default.setting.key == LEDGER and default.setting.source == "user":
            continue
        lines.setdefault(default.setting.origin, []).append(shown(default.option, default.value))
    for origin, values in lines.items():
        notice(f"from {origin}: {', '.join(values)}")


def shown(option: click.Option, value: Any) -> str:
    """`margin 2%`; without what is secret in it."""
    key = key_of(option)
    if option.is_flag:
        return f"{key} {'on' if value else 'off'}"
    return f"{key} {hidden(key, value)}"


def hidden(key: str, value: Value) -> str:
    """Return a value as it may be shown: without secrets of an environment, an arm or a URL."""
    from stackmark.secrets_masking import masked_words

    texts = value if isinstance(value, list) else [str(value).lower() if isinstance(value, bool) else str(value)]
    if key == LEDGER and "://" in texts[0]:
        from stackmark.api.options import repeatable  # loads SQLAlchemy, which only a URL needs

        return shlex.split(repeatable(["--ledger", texts[0]]))[-1]
    return " ".join(masked_words([f"--{key}", text])[1] for text in texts)


def source_in(message: str, taken: Sequence[Default]) -> str:
    """Where an error names an option that nobody typed, say where its value comes from."""
    for default in taken:
        key = key_of(default.option)
        values = default.value if isinstance(default.value, list) else [default.value]
        if re.search(rf"(?<![\w-])--{re.escape(key)}(?![\w-])", message) or any(repr(one) in message for one in values):
            return f"{shown(default.option, default.value)} comes from {default.setting.where}"
    return ""
