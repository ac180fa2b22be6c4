"""`stackmark delete`."""

import sys

import click

from stackmark.api.ledgers import Ledger, clean_up
from stackmark.cli.options import ledger_option, not_empty
from stackmark.cli.saying import notice
from stackmark.errors import Exit, LedgerError, SpecError
from stackmark.show.safe import safe_line
from stackmark.units import counted


@click.command("delete", epilog="\b\nExamples:\n  stackmark delete r-01k9a\n  stackmark delete last --yes")
@click.argument("runs", nargs=-1, required=True, callback=not_empty)
@click.option("--yes", is_flag=True, help="Do not ask.")
@ledger_option
def command(runs: tuple[str, ...], yes: bool, ledger: str | None) -> int:
    """Delete stored RUNS with their events, for good. Each is an id, any unique beginning of one, or `last`."""
    with Ledger.open(ledger, create=False) as book:
        notice(*clean_up(book))
        found = list(dict.fromkeys(book.run_id(run) for run in runs))
        if not yes:
            if not sys.stdin.isatty():
                raise SpecError("deleting asks first, and there is nobody to ask", hint="say --yes")
            for run_id in found:
                click.echo(safe_line(_line(book, run_id)))
            if not click.confirm(f"Delete {counted(len(found), 'run')} for good?"):
                click.echo("nothing was deleted")
                return Exit.DONE
        click.echo(f"{counted(book.delete(found), 'run')} deleted")
    return Exit.DONE


def _line(book: Ledger, run_id: str) -> str:
    try:
        row = book.run(run_id)
    except LedgerError as error:
        return f"{run_id}  {error.message}"
    return f"{row.id}  {row.workload}  {row.status}"
