"""`stackmark delete`."""

import sys

import click

from stackmark.cli.options import ledger_option, not_empty
from stackmark.errors import Exit, SpecError
from stackmark.lab.cleaning import clean_up
from stackmark.ledger.store import Ledger
from stackmark.show.safe import safe_line


@click.command("delete", epilog="\b\nExamples:\n  stackmark delete r-01k9a\n  stackmark delete last --yes")
@click.argument("runs", nargs=-1, required=True, callback=not_empty)
@click.option("--yes", is_flag=True, help="Do not ask.")
@ledger_option
def command(runs: tuple[str, ...], yes: bool, ledger: str | None) -> int:
    """Delete stored RUNS with their events, for good. Each is an id, any unique beginning of one, or `last`."""
    with Ledger.open(ledger, create=False) as book:
        for sentence in clean_up(book):
            click.echo(sentence, err=True)
        rows = {row.id: row for row in (book.run(run) for run in runs)}
        if not yes:
            if not sys.stdin.isatty():
                raise SpecError("deleting asks first, and there is nobody to ask", hint="say --yes")
            for row in rows.values():
                click.echo(safe_line(f"{row.id}  {row.workload}  {row.status}"))
            if not click.confirm(f"Delete {_runs(len(rows))} for good?"):
                click.echo("nothing was deleted")
                return Exit.DONE
        click.echo(f"{_runs(book.delete(list(rows)))} deleted")
    return Exit.DONE


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
