"""`stackmark delete`."""

import sys

import click

from stackmark.cli.options import ledger_option, not_empty
from stackmark.cli.saying import notice
from stackmark.errors import Exit, SpecError
from stackmark.lab.cleaning import clean_up
from stackmark.ledger.store import Ledger
from stackmark.show.safe import safe_line
from stackmark.units import counted


@click.command("delete", epilog="\b\nExamples:\n  stackmark delete r-01k9a\n  stackmark delete last --yes")
@click.argument("runs", nargs=-1, required=True, callback=not_empty)
@click.option("--yes", is_flag=True, help="Do not ask.")
@ledger_option
def command(runs: tuple[str, ...], yes: bool, ledger: str | None) -> int:
    """Delete stored RUNS with their events, for good. Each is an id, any unique beginning of one, or `last`."""
    with Ledger.open(ledger, create=False) as book:
        notice(clean_up(book))
        rows = {row.id: row for row in (book.run(run) for run in runs)}
        if not yes:
            if not sys.stdin.isatty():
                raise SpecError("deleting asks first, and there is nobody to ask", hint="say --yes")
            for row in rows.values():
                click.echo(safe_line(f"{row.id}  {row.workload}  {row.status}"))
            if not click.confirm(f"Delete {counted(len(rows), 'run')} for good?"):
                click.echo("nothing was deleted")
                return Exit.DONE
        click.echo(f"{counted(book.delete(list(rows)), 'run')} deleted")
    return Exit.DONE
