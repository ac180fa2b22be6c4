"""Defaults that last: `stackmark.toml` in the working folder and in the user's folder, and `STACKMARK_…` variables.

This chapter finds the files, reads them, says where each value stands, and edits them. Which keys exist, and what a value must
look like, is decided by the options of the commands (cli/defaults.py), so that no second list of options has to be kept.

A file in the working folder may come from somebody else: a cloned repository, an unpacked archive, a shared folder. Its owner
says nothing, because `git clone` makes files of the user's own. So a value of it that could run a program, mount or write files
or send data takes effect only after the user has trusted that very text (`stackmark config trust`). What was trusted is noted as
a digest, next to what was typed (experiments/trust.py). The file in the user's folder is believed where nobody else can write it.
"""

import hashlib
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import tomllib

from stackmark.errors import SpecError
from stackmark.experiments.toml_files import parse_toml

if TYPE_CHECKING:
    from stackmark.experiments.trust import Part

NAME = "stackmark.toml"
PREFIX = "STACKMARK_"
# A file of settings has some lines; whatever is longer is something else.
MOST_BYTES = 1 << 20
# What we tell workers and pods by variables of these names is not meant as an option of a command that runs there.
NOT_OPTIONS = frozenset(
    {"STACKMARK_NODE", "STACKMARK_NAMESPACE", "STACKMARK_RUN", "STACKMARK_COMMAND", "STACKMARK_PLACE"}
)

Value = str | int | float | bool | list[str]
# From the strongest to the weakest. What was typed is stronger than all of them.
Source = Literal["variable", "here", "user"]


@dataclass(frozen=True)
class Setting:
    """One value that is set. `table` names the command it is for; at the top level it is empty."""

    table: tuple[str, ...]
    key: str
    value: Value
    source: Source
    # `./stackmark.toml:3` or `STACKMARK_MARGIN`.
    where: str

    @property
    def name(self) -> str:
        """`margin`, or `compare.margin`."""
        return ".".join((*self.table, self.key))

    @property
    def at(self) -> str:
        """Return how an error about it begins: `./stackmark.toml:3: `; not where it is being set on the command line."""
        return f"{self.where}: " if self.where != self.name else ""

    @property
    def origin(self) -> str:
        """Where it stands, without the line: what one sentence can say of several settings."""
        return self.where.rpartition(":")[0] or self.where


@dataclass(frozen=True)
class SettingsFile:
    """A file as it was read. `settings` are in the order of the file."""

    path: Path
    source: Source
    settings: tuple[Setting, ...] = ()
    exists: bool = False
    text: str = ""
    # Of its text; what `stackmark config trust` notes.
    digest: str = ""
    # How messages name it.
    shown: str = ""


def settings_files(environment: Mapping[str, str] | None = None) -> dict[Source, Path]:
    """Return where the two files are, whether they exist or not. Without a home folder there is no user's file."""
    environment = os.environ if environment is None else environment
    found: dict[Source, Path] = {"here": Path(NAME)}
    folder = Path(environment.get("XDG_CONFIG_HOME", ""))
    if not folder.is_absolute():  # the XDG specification says to ignore such a path
        home = Path(environment.get("HOME", ""))
        if not home.is_absolute():
            return found
        folder = home / ".config"
    return {**found, "user": folder / "stackmark" / NAME}


def is_anything_set(environment: Mapping[str, str] | None = None) -> bool:
    """Tell quickly whether any file or variable could hold a setting: every command asks."""
    environment = os.environ if environment is None else environment
    return any(name.startswith(PREFIX) for name in environment) or any(
        os.path.lexists(path) for path in settings_files(environment).values()
    )


def read_settings(environment: Mapping[str, str] | None = None) -> list[SettingsFile]:
    """Read both files, the working folder's first."""
    return [read_settings_file(path, source) for source, path in settings_files(environment).items()]


def read_settings_file(path: Path, source: Source) -> SettingsFile:
    """Read one file. One that is missing has no settings; one that cannot be read, or is not TOML, is an error with its line."""
    shown = shown_path(path, source)
    data = _read_bytes(path, shown)
    if data is None:
        return SettingsFile(path, source, shown=shown)
    text, tables = parse_toml(data, shown, 'write it like: margin = "2%"')
    lines = _lines_of(text)
    settings = tuple(
        Setting(table, key, value, source, f"{shown}:{lines.get((*table, key), 1)}")
        for table, key, value in _flat(tables, (), shown, lines)
    )
    return SettingsFile(path, source, settings, True, text, hashlib.sha256(data).hexdigest(), shown)


def shown_path(path: Path, source: Source) -> str:
    """`./stackmark.toml`, or the user's file with `~` for the home folder."""
    if source == "here":
        return f"./{path}" if not path.is_absolute() else str(path)
    home = os.environ.get("HOME", "")
    text = str(path)
    return f"~{text[len(home) :]}" if home and home != "/" and text.startswith(f"{home}/") else text


def _read_bytes(path: Path, shown: str) -> bytes | None:
    try:
        # Not blocking: something else than a file may have this name, and a pipe would be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SpecError(f"{shown} cannot be read: {error.strerror}", hint="make it readable, or remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SpecError(f"{shown} is not a file", hint="remove it, or give it another name")
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise SpecError(f"{shown} is longer than 1 MiB", hint="a file of settings has a line for each of them")
    return data


def _flat(
    values: Mapping[str, object], table: tuple[str, ...], shown: str, lines: Mapping[tuple[str, ...], int]
) -> list[tuple[tuple[str, ...], str, Value]]:
    found: list[tuple[tuple[str, ...], str, Value]] = []
    for raw, value in values.items():
        key = raw.replace("_", "-")
        if isinstance(value, Mapping):
            found += _flat(value, (*table, key), shown, lines)
        elif isinstance(value, str | int | float):
            found.append((table, key, value))
        elif isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
            found.append((table, key, [_text(one) for one in value]))
        else:
            line = lines.get((*table, key), 1)
            raise SpecError(
                f"{shown}:{line}: {'.'.join((*table, key))} must be a text, a number, true or false, or a list of them",
                hint='write it like: margin = "2%"',
            )
    return found


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_TABLE = re.compile(r"^\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_KEY = re.compile(r"^\s*([\w.\"'-]+)\s*=")


def _lines_of(text: str) -> dict[tuple[str, ...], int]:
    """Return on which line each key stands. It only serves messages: a key inside of a text of several lines is found too."""
    found: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.split("\n"), 1):
        if head := _TABLE.match(line):
            table = _path(head[1])
        elif key := _KEY.match(line):
            found.setdefault((*table, *_path(key[1])), number)
    return found


def _path(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip().strip("\"'").replace("_", "-") for part in dotted.split("."))


def variable_of(key: str) -> str:
    """`STACKMARK_TIME_LIMIT` for `time-limit`."""
    return PREFIX + key.upper().replace("-", "_")


def from_variable(key: str, environment: Mapping[str, str] | None = None) -> Setting | None:
    """Return what the variable of a key says, if it is set and not empty."""
    environment = os.environ if environment is None else environment
    name = variable_of(key)
    text = environment.get(name, "")
    return Setting((), key, text, "variable", name) if text and name not in NOT_OPTIONS else None


# --- whom to believe ----------------------------------------------------------------------------------------------------


def why_not_trusted(file: SettingsFile) -> tuple[str, str] | None:
    """Return why what could do harm is not taken from a file, and what to do; None where it is."""
    if file.source == "here":
        if _is_known(file):
            return None
        return (
            "which needs your trust: the file may come from somebody else",
            "look at it, then: stackmark config trust",
        )
    try:
        for seen in (os.stat(file.path), os.lstat(file.path), os.stat(file.path.parent)):
            if seen.st_uid not in (os.getuid(), 0) or (seen.st_mode & 0o022 and not stat.S_ISLNK(seen.st_mode)):
                return ("and others can write that file", f"chmod go-w {file.path.parent} {file.path}")
    except OSError as error:
        return (f"and its owner is not known: {error.strerror}", "look at it")
    return None


def trust_file(file: SettingsFile) -> None:
    """Note that this user believes this text at this path."""
    from stackmark.experiments.trust import remember

    remember([_part(file)])


def _is_known(file: SettingsFile) -> bool:
    from stackmark.experiments.trust import unknown

    return not unknown([_part(file)])


def _part(file: SettingsFile) -> "Part":
    from stackmark.experiments.trust import Part

    return Part("", NAME, {"path": os.path.realpath(file.path), "sha256": file.digest})


def is_harmless(option: str, value: str | int | float) -> bool | None:
    """Tell whether a parameter or an option of a place can run, mount, write or send nothing; None: it is neither of the two."""
    from stackmark.experiments.trust import is_harmless as is_harmless_option

    return is_harmless_option(option, value)


# --- editing ------------------------------------------------------------------------------------------------------------


def with_setting(text: str, table: tuple[str, ...], key: str, value: Value | None) -> str | None:
    """Return the text of a file with one value set, or removed (None); comments and order stay.

    Lines are edited, so a value that stands on several lines, or in a table that is written in line, is out of reach: the
    result is read again, and where it does not say what was meant, there is none.
    """
    before = tomllib.loads(text)
    wanted = _changed(before, table, key, value)
    lines = text.removesuffix("\n").split("\n") if text else []
    line = f"{key} = {_toml(value)}" if value is not None else None
    at = _lines_of(text).get((*table, key))
    if at is not None:
        comment = re.search(r"\s+#[^\"']*$", lines[at - 1])
        lines[at - 1 : at] = [line + (comment[0] if comment else "")] if line is not None else []
    elif line is not None:
        _insert(lines, table, line)
    after = "\n".join(lines) + "\n" if lines else ""
    try:
        return after if _without_empty(tomllib.loads(after)) == wanted else None
    except tomllib.TOMLDecodeError:
        return None


def _insert(lines: list[str], table: tuple[str, ...], line: str) -> None:
    heads = [(number, _path(head[1])) for number, text in enumerate(lines) if (head := _TABLE.match(text))]
    if table and not any(path == table for _, path in heads):
        lines += [*([""] if lines and lines[-1].strip() else []), f"[{'.'.join(table)}]", line]
        return
    start = next((number + 1 for number, path in heads if path == table), 0)
    end = next((number for number, _ in heads if number >= start), len(lines))
    while end > start and not lines[end - 1].strip():
        end -= 1
    lines.insert(end, line)


def _changed(data: dict[str, object], table: tuple[str, ...], key: str, value: Value | None) -> dict[str, object]:
    """Return the data as they should read afterwards, by dashed names, without empty tables."""
    wanted = _without_empty(data)
    inner = wanted
    for name in table:
        below = inner.setdefault(name, {})
        assert isinstance(below, dict)
        inner = below
    inner.pop(key, None)
    if value is not None:
        inner[key] = value
    return _without_empty(wanted)


def _without_empty(data: Mapping[str, object]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in data.items():
        kept = _without_empty(value) if isinstance(value, Mapping) else value
        if kept != {}:
            found[name.replace("_", "-")] = kept
    return found


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    if isinstance(value, int | float):
        return str(value)
    import json

    # The escapes of JSON are those of TOML, apart from DEL, which TOML wants written out.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
