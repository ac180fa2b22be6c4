"""Answer a shell that asks what may come next on a command line.

A person waits for it at every TAB, so this file imports the standard library only, and reads the commands with their options from
a table in the user's cache folder. The table is made from the commands themselves (completion.py) when there is none, or when
stackmark or a package that adds to it has changed: about a second, once. A look into the ledger is bounded (ledger/glance.py).
Whatever goes wrong is silent: a message in the middle of a line that is being typed helps nobody.

A shell's script calls `stackmark` with two variables: `_STACKMARK_COMPLETE` names the shell, `_STACKMARK_LINE` is the line up to
the cursor. The answer is a line for each candidate: its kind, the text, and a word about it.
"""

import json
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

SHELL_VARIABLE = "_STACKMARK_COMPLETE"
LINE_VARIABLE = "_STACKMARK_LINE"
BREAKS_VARIABLE = "_STACKMARK_BREAKS"
# Nobody waits longer for a completion. The table is made once, on a busy machine too.
LIMIT_S, TABLE_LIMIT_S = 3.0, 30.0
HELP_AT_MOST = 60
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# What the table is made from.
SOURCES = ("", "cli", "workloads", "places")
ANYWHERE = ("-q", "--quiet", "-v", "--verbose", "--debug")
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Candidate:
    """What may stand at the cursor. A `part` goes on without a space; of a `file` or `folder` the shell knows the names."""

    text: str
    about: str = ""
    kind: Literal["word", "part", "file", "folder"] = "word"


def answer(environment: Mapping[str, str]) -> int:
    """Print the candidates for the line that the shell gives."""
    signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    with suppress(Exception):
        words, incomplete, quoted = split_line(environment.get(LINE_VARIABLE, ""))
        cut = 0
        if environment.get(SHELL_VARIABLE) == "bash" and not quoted:
            # bash replaces what follows the last of these characters only: `cuda:0`, `shm=1g`.
            breaks = [mark for mark in "=:" if mark in environment.get(BREAKS_VARIABLE, "")]
            cut = max((incomplete.rfind(mark) + 1 for mark in breaks), default=0)
        lines = [_line(one, cut) for one in candidates(words, incomplete, load_table(_take_longer))]
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
    return 0


def _line(candidate: Candidate, cut: int) -> str:
    about = " ".join("".join(char if char.isprintable() else " " for char in candidate.about).split())
    about = about if len(about) <= HELP_AT_MOST else f"{about[: HELP_AT_MOST - 1]}…"
    return f"{candidate.kind}\t{candidate.text[cut:]}\t{about}\n"


def split_line(line: str) -> tuple[list[str], str, bool]:
    """Return the words after the program's name, the one at the cursor, and whether it stands in quotes that are still open."""
    lexer = shlex.shlex(line, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    quoted = False
    try:
        words += iter(lexer)
    except ValueError:  # a quote or an escape that is not closed yet
        quoted = True
        words.append(lexer.token or "")
    if not quoted and (not line or line[-1].isspace()):
        words.append("")
    while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0], re.DOTALL):  # FOO=1 stackmark …
        words.pop(0)
    return words[1:-1], words[-1] if len(words) > 1 else "", quoted


@dataclass
class Typed:
    """What stands before the cursor: the command, its arguments, the values of its options, and an option that wants a value."""

    command: str = ""
    arguments: list[str] = field(default_factory=list)
    values: dict[str, list[str]] = field(default_factory=dict)
    waiting: str = ""
    ended: bool = False


def read_typed(words: Sequence[str], table: Table) -> Typed:
    typed = Typed()
    for word in words:
        entry = table["commands"][typed.command]
        if typed.waiting:
            typed.values.setdefault(typed.waiting, []).append(word)
            typed.waiting = ""
        elif word == "--":
            typed.ended = True
        elif word in ANYWHERE and not typed.ended:
            continue
        elif word.startswith("-") and len(word) > 1 and not typed.ended:
            name, equals, value = word.partition("=")
            option = entry["options"].get(entry["names"].get(name, name))
            own = entry["names"].get(name, name)
            typed.values.setdefault(own, []).extend([value] if equals else [])
            if option and option["takes"] and not equals:
                typed.waiting = own
        elif word in entry["below"] and not typed.arguments:
            typed.command = f"{typed.command} {word}".strip()
        else:
            typed.arguments.append(word)
    return typed


def candidates(words: Sequence[str], incomplete: str, table: Table) -> list[Candidate]:
    """Return what may stand at the cursor, and begins with what is there already."""
    typed = read_typed(words, table)
    entry = table["commands"][typed.command]
    if typed.waiting:
        found = _values(_of_family(typed.waiting, entry, typed, table), incomplete, typed, table)
    elif incomplete.startswith("--") and "=" in incomplete and not typed.ended:
        name, _, value = incomplete.partition("=")
        own = entry["names"].get(name, name)
        known = own in entry["options"]
        inner = _values(_of_family(own, entry, typed, table), value, typed, table) if known else iter(())
        found = (Candidate(f"{name}={one.text}" if one.text else "", one.about, one.kind) for one in inner)
    elif incomplete.startswith("-") and not typed.ended:
        found = _options(entry, typed)
    elif entry["below"] and not typed.arguments:
        found = (Candidate(name, about) for name, about in entry["below"].items())
    else:
        found = _argument(entry, incomplete, typed, table)
    return [one for one in found if one.kind in ("file", "folder") or one.text.startswith(incomplete)]


def _of_family(name: str, entry: Mapping[str, Any], typed: Typed, table: Table) -> Mapping[str, Any]:
    """Return an option; of a parameter that several families have, with the words of the family that was typed alone."""
    option: Mapping[str, Any] = entry["options"][name]
    words = _parameters(typed, table).get(name.removeprefix("--")) if typed.arguments else None
    return {**option, "words": words} if option["takes"] == "words" and words else option


def _options(entry: Mapping[str, Any], typed: Typed, *, asked: bool = True) -> Iterator[Candidate]:
    """Yield options that may still be given; where no `-` asked for them, only those of the short help."""
    for name, option in entry["options"].items():
        if (name not in typed.values or option["several"]) and (asked or option["important"]):
            yield Candidate(name, option["about"])
            yield from (Candidate(other, option["about"]) for other in option["off"])
    if not typed.command:
        yield from (Candidate(name) for name in ANYWHERE if name.startswith("--"))


def _argument(entry: Mapping[str, Any], incomplete: str, typed: Typed, table: Table) -> Iterator[Candidate]:
    arguments = entry["arguments"]
    if not arguments:
        return _options(entry, typed, asked=False) if not incomplete else iter(())
    number = len(typed.arguments)
    if number < len(arguments):
        return _values(arguments[number], incomplete, typed, table)
    if arguments[-1]["several"]:
        return _values(arguments[-1], incomplete, typed, table)
    return _options(entry, typed, asked=False) if not incomplete else iter(())


# --- values, by what they are -------------------------------------------------------------------------------------------


def _values(option: Mapping[str, Any], incomplete: str, typed: Typed, table: Table) -> Iterator[Candidate]:
    kind = option["takes"]
    if kind == "words":
        # A list has commas: bf16,fp32.
        before = incomplete[: incomplete.rfind(",") + 1]
        return (Candidate(before + word) for word in option["words"])
    if kind in ("file", "folder"):
        return iter((Candidate("", kind=kind),))
    make = KINDS.get(kind)
    return make(incomplete, typed, table) if make else iter(())


def _workloads(incomplete: str, _typed: Typed, table: Table) -> Iterator[Candidate]:
    before = incomplete[: incomplete.rfind(",") + 1]
    begun = incomplete[len(before) :]
    if "/" in begun:
        yield from (Candidate(before + name, about) for name, about in table["workloads"].items())
        return
    families = dict.fromkeys(name.partition("/")[0] for name in table["workloads"])
    yield from (Candidate(f"{before}{family}/", "", "part") for family in families)


def _places(_incomplete: str, _typed: Typed, table: Table) -> Iterator[Candidate]:
    return (Candidate(place) for place in table["places"])


def _on(incomplete: str, typed: Typed, table: Table) -> Iterator[Candidate]:
    return _place_with_keys(incomplete, typed, table, {})


def _arms(incomplete: str, typed: Typed, table: Table) -> Iterator[Candidate]:
    return _place_with_keys(incomplete, typed, table, _parameters(typed, table))


def _place_with_keys(
    incomplete: str, typed: Typed, table: Table, parameters: Mapping[str, list[str]]
) -> Iterator[Candidate]:
    """Yield `container`, then `container,shm=`, then the values of a key that has a few."""
    if "," not in incomplete:
        yield from _places(incomplete, typed, table)
        return
    before, _, begun = incomplete.rpartition(",")
    place = incomplete.partition(",")[0].strip()
    keys: dict[str, list[str]] = {**table["places"].get(place, {}), **parameters}
    key, equals, _ = begun.partition("=")
    if equals:
        yield from (Candidate(f"{before},{key}={word}") for word in keys.get(key, ()))
        return
    typed_keys = {piece.partition("=")[0].strip() for piece in before.split(",")[1:]}
    yield from (Candidate(f"{before},{key}=", "", "part") for key in keys if key not in typed_keys)


def _parameters(typed: Typed, table: Table) -> dict[str, list[str]]:
    """Return the parameters of the family of the workload that was typed, else those of all families."""
    workload = typed.arguments[0] if typed.arguments else ""
    if "--cmd" in typed.values and not workload:
        workload = "command/"
    families: Mapping[str, dict[str, list[str]]] = table["families"]
    own = families.get(workload) or families.get(workload.partition("/")[0])
    chosen = [own] if own else list(families.values())
    return {key: words for one in chosen for key, words in one.items()}


def _experiments(incomplete: str, typed: Typed, _table: Table) -> Iterator[Candidate]:
    from stackmark.api.glances import glance_at_experiments

    yield Candidate("last", "the newest")
    if "last".startswith(incomplete) and incomplete:
        return
    for name, command in glance_at_experiments(_ledger(typed), incomplete or "x-"):
        yield Candidate(name, command.removeprefix("stackmark "))


def _runs(incomplete: str, typed: Typed, table: Table) -> Iterator[Candidate]:
    """Experiments too: each command that takes a run takes them. Runs, of which there are many, once `r` is typed."""
    if not incomplete.startswith("r"):
        yield from _experiments(incomplete, typed, table)
        return
    from stackmark.api.glances import glance_at_runs

    yield from (Candidate(name, about) for name, about in glance_at_runs(_ledger(typed), incomplete))


def _baselines(incomplete: str, typed: Typed, _table: Table) -> Iterator[Candidate]:
    from stackmark.api.glances import glance_at_baselines

    yield from (Candidate(name, about) for name, about in glance_at_baselines(_ledger(typed), incomplete))


def _topics(_incomplete: str, _typed: Typed, table: Table) -> Iterator[Candidate]:
    yield from (Candidate(name, about) for name, about in table["topics"].items())
    yield from (Candidate(name, about) for name, about in table["commands"][""]["below"].items())


def _keys(incomplete: str, _typed: Typed, table: Table) -> Iterator[Candidate]:
    """Yield what may be set for all commands, or behind the name of a command what may be set for it."""
    before = incomplete[: incomplete.rfind(".") + 1]
    entry = table["commands"].get(before.replace(".", " ").strip())
    if not before or entry is None:
        return (Candidate(key) for key in table["keys"])
    return (Candidate(before + name.lstrip("-")) for name in entry["options"] if name not in ("-h", "--help"))


def _suites(_incomplete: str, _typed: Typed, table: Table) -> Iterator[Candidate]:
    """Yield the suites that ship, and files."""
    yield from (Candidate(name, about) for name, about in table["suites"].items())
    yield Candidate("", kind="file")


KINDS: Mapping[str, Callable[[str, Typed, Table], Iterator[Candidate]]] = {
    "workload": _workloads, "place": _places, "on": _on, "arm": _arms, "experiment": _experiments, "run": _runs,
    "baseline": _baselines, "topic": _topics, "key": _keys, "suite": _suites,
}  # fmt: skip


def _ledger(typed: Typed) -> str | None:
    """Return the ledger that the command would open: typed, by the variable, or set in a file."""
    if given := typed.values.get("--ledger"):
        return given[-1]
    from stackmark.spec import LEDGER_VARIABLE

    if os.environ.get(LEDGER_VARIABLE):
        return None  # it is looked up there
    from stackmark.api.settings import is_anything_set, read_settings, why_not_trusted

    for file in read_settings() if is_anything_set() else ():
        for setting in file.settings:
            if setting.name == "ledger" and not why_not_trusted(file):
                return str(setting.value)
    return None


# --- the table ----------------------------------------------------------------------------------------------------------


def _take_longer() -> None:
    signal.setitimer(signal.ITIMER_REAL, TABLE_LIMIT_S)


def load_table(before_making: Callable[[], None] = lambda: None) -> Table:
    """Return the table from the cache, or make it and keep it there."""
    key, path = table_key(), table_path()
    with suppress(OSError, ValueError):
        with open(path, encoding="utf-8") as file:
            kept = json.load(file)
        if kept["key"] == key:
            found: Table = kept["table"]
            return found
    before_making()
    return make_and_keep_table(key, path)


def make_and_keep_table(key: str, path: str) -> Table:
    """Make the table from the commands, and keep it where that is possible."""
    from stackmark.cli.completion import make_table

    table = make_table()
    with suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=os.path.dirname(path))
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"key": key, "table": table}, file)
        os.replace(name, path)
    return table


def table_path() -> str:
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):
        folder = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(folder, "stackmark", "completion.json")


def table_key() -> str:
    """Return what changes when the table must be made again: our sources, and what other packages announce."""
    from stackmark.extensions import announcing_text
    from stackmark.version import RELEASE

    newest = max(_mtimes(), default=0)
    return f"{RELEASE} {PACKAGE} {newest} {announcing_text()}"


def _mtimes() -> Iterator[int]:
    for name in SOURCES:
        for folder, _, files in os.walk(os.path.join(PACKAGE, name)) if name else [(PACKAGE, [], os.listdir(PACKAGE))]:
            yield os.stat(folder).st_mtime_ns
            yield from (
                os.stat(os.path.join(folder, file)).st_mtime_ns for file in files if file.endswith((".py", ".txt"))
            )
