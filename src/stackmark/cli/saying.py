"""How the command line says that something went wrong, how much it says while it works, and how it prints for programs.

`-q` leaves the answer and the errors: no progress and no notices. `-v` says more; what more, each screen decides.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from stackmark.experiments.recorder import Watcher
    from stackmark.show.cluster_checks import CaseBar
    from stackmark.show.cluster_checks import Notices as CaseNotices
    from stackmark.show.sweep import SweepBar, SweepLines
    from stackmark.show.watching import Follower

# In the `meta` of click's context: -1 with -q, 1 with -v, else 0.
VERBOSITY = "stackmark.verbosity"
# There too: the settings of files and variables that took effect (defaults.py).
SETTINGS_TAKEN = "stackmark.settings"


def verbosity() -> int:
    """Return how much to say: -1 with -q, 1 with -v, else 0."""
    context = click.get_current_context(silent=True)
    return int(context.meta.get(VERBOSITY, 0)) if context else 0


def is_quiet() -> bool:
    return verbosity() < 0


def of_click(message: str) -> str:
    """Return a message of click's in one line: the option, the value found and the values allowed, without names of types."""
    message = " ".join(message.split())
    message = re.sub(
        r"^Invalid value for (?:'[^']+' / )*'([^']+)':( it(?= is empty))?",
        lambda m: m[1] if m[2] else f"{m[1]}:",
        message,
    )
    message = re.sub(r"is not in the range (\S+)<=x<=(\S+?)\.?$", r"is not between \1 and \2", message)
    message = re.sub(r"is not in the range x>=(\S+?)\.?$", r"is less than \1", message)
    message = re.sub(r"(is not one of .+?|is not a valid [a-z ]+?)\.$", r"\1", message)
    for name in ("integer range", "float range", "integer", "float"):
        message = message.replace(f"is not a valid {name}", f"is not a {'whole ' if 'integer' in name else ''}number")
    return message


def say(message: str, hint: str | None = None, command: str | None = None) -> None:
    """An error, for people: what is wrong, what to do, the command to see it by hand. Control characters are shown."""
    from stackmark.show.safe import safe

    lines = [
        f"stackmark: {message}",
        *(hint.split("\n") if hint else []),
        *([f"by hand: {command}"] if command else []),
    ]
    red, plain = ("\033[31m", "\033[0m") if sys.stderr.isatty() and not _plain() else ("", "")
    with suppress(OSError):  # nobody reads it: the exit code has to do
        print(f"{red}{safe(lines[0])}{plain}", file=sys.stderr)
        for line in lines[1:]:
            print(f"  {safe(line)}", file=sys.stderr)


def notice(*sentences: str) -> None:
    """Print what a person should know next to the result, on standard error, unless -q was given."""
    context = click.get_current_context(silent=True)
    # What was typed is read twice where a settings file exists, the first time without a word (defaults.py).
    if not is_quiet() and not (context and context.resilient_parsing):
        tell(*sentences)


def tell(*sentences: str) -> None:
    """Print what a person must see on standard error, also with -q: what they are asked about."""
    from stackmark.show.safe import safe_line

    for sentence in sentences:
        print(safe_line(sentence), file=sys.stderr)


@contextmanager
def watching(quiet: bool, *, details: bool = False) -> "Iterator[Watcher]":
    """Show the progress of runs on standard error. `quiet` is for `--json`: notices alone; -q shows nothing. -v and `details`
    show the phases of runs, in a pipe too."""
    from stackmark.show.live import VERBOSE, Notices
    from stackmark.show.live import watching as watching_runs

    if is_quiet():
        with open(os.devnull, "w") as nowhere:
            yield Notices(nowhere)
        return
    with watching_runs(quiet, VERBOSE if details else verbosity()) as watcher:
        yield watcher


@contextmanager
def watching_others(quiet: bool) -> "Iterator[Follower]":
    """Show the progress of runs that another process makes, as `watching` does that of our own."""
    from stackmark.show.watching import Follower

    with watching(quiet) as display:
        yield Follower(display)


@contextmanager
def looking(quiet: bool) -> "Iterator[SweepBar | SweepLines]":
    """Show the progress of a sweep as `watching` does that of runs."""
    from stackmark.show.sweep import SweepLines
    from stackmark.show.sweep import looking as looking_at_sweep

    if is_quiet():
        with open(os.devnull, "w") as nowhere:
            yield SweepLines(nowhere, quiet=True)
        return
    with looking_at_sweep(quiet=quiet) as looker:
        yield looker


@contextmanager
def watching_cases(quiet: bool) -> "Iterator[CaseBar | CaseNotices]":
    """Show the progress of a cluster's tests as `watching` does that of runs."""
    from stackmark.show.cluster_checks import Notices as CaseNotices
    from stackmark.show.cluster_checks import watching_cases as watching_tests

    if is_quiet():
        with open(os.devnull, "w") as nowhere:
            yield CaseNotices(nowhere)
        return
    with watching_tests(quiet=quiet) as watcher:
        yield watcher


def _plain() -> bool:
    return bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"


def print_json_line(data: object) -> None:
    """One object on one line, for a reader that follows."""
    json.dump(data, sys.stdout, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")
    sys.stdout.flush()


def print_json(data: object) -> None:
    """One object. ASCII, so that it is JSON whatever the terminal's encoding and whatever bytes a path holds."""
    json.dump(data, sys.stdout, indent=2, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")
