"""The question before a stored command is run that was not typed here."""

import sys
from collections.abc import Sequence

import click

from stackmark.api.stored import Confirm, Part, allow, remember, unknown
from stackmark.cli.saying import say, tell
from stackmark.errors import Exit, SpecError

# Of a spec with a long command: what a person reads before they answer. The rest is counted.
MOST_LINES = 40


def confirm_trust(trusted: bool) -> Confirm:
    """Ask before anything of a ledger runs that this user did not type on this machine. `trusted` is --trust-ledger."""

    def confirm(parts: Sequence[Part], where: str) -> None:
        if trusted:
            allow(parts)
        if new := unknown(parts):
            _ask(new, where)

    return confirm


def _ask(new: Sequence[Part], where: str) -> None:
    """Ask on the terminal; without one, refuse."""
    lines = [line for part in new for line in part.lines()]
    asks = f"the ledger {where} asks to run what you did not type on this machine"
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise SpecError(
            f"{asks}: {'; '.join(line.strip() for line in lines[:MOST_LINES])}",
            hint="whoever may write that ledger chose it: look at it, then answer on a terminal, or give --trust-ledger",
        )
    tell(f"{asks}:", *(f"  {line}" for line in lines[:MOST_LINES]))
    if len(lines) > MOST_LINES:
        tell(f"  … and {len(lines) - MOST_LINES} more lines")
    if not click.confirm("Run it?", err=True):
        say("nothing was run")
        raise click.exceptions.Exit(Exit.DONE)
    remember(new)
