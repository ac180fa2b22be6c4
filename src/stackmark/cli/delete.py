"""`stackmark delete`."""

import sys

import click

from stackmark.api.ledgers import Ledger, RunFilter, clean_up
from stackmark.cli.options import ledger_option, not_empty
from stackmark.cli.saying import notice
from stackmark.errors import Exit, LedgerError, SpecError
from stackmark.show.safe import safe_line
from stackmark.units import counted


@click.command(
    "delete",
    epilog="\b\nExamples:\n  stackmark delete r-01k9a\n  stackmark delete last --yes\n  stackmark delete x-01k9a",
)
@click.argument("runs", nargs=-1, required=True, callback=not_empty)
@click.option("--yes", is_flag=True, help="Do not ask.")
@ledger_option
def command(runs: tuple[str, ...], yes: bool, ledger: str | None) -> int:
    """Delete stored RUNS with their events, for good. Each is an id, any unique beginning of one, or `last`.

    The id of an experiment (x-…) deletes the experiment with all its runs.
    """
    with Ledger.open(ledger, create=False) as book:
        notice(*clean_up(book))
        whole = [name for name in runs if name.lower().startswith("x-")]
        experiments = list(dict.fromkeys(book.experiment_id(name) for name in whole))
        found = list(dict.fromkeys(book.run_id(run) for run in runs if run not in whole))
        if not yes:
            if not sys.stdin.isatty():
                raise SpecError("deleting asks first, and standard input is not a terminal", hint="say --yes")
            for run_id in found:
                click.echo(safe_line(_line(book, run_id)))
            for experiment_id in experiments:
                click.echo(safe_line(f"{experiment_id}  {counted(book.count(of(experiment_id)), 'run')}"))
            if not click.confirm(f"Delete {_said(len(found), len(experiments))} for good?"):
                click.echo("nothing was deleted")
                return Exit.DONE
        deleted = book.delete_together(found, experiments)
        click.echo(f"{_said(deleted, len(experiments))} deleted")
    return Exit.DONE


def of(experiment_id: str) -> RunFilter:
    return RunFilter(experiment_id=experiment_id)


def _said(runs: int, experiments: int) -> str:
    parts = [counted(experiments, "experiment")] if experiments else []
    return " and ".join([*parts, counted(runs, "run")] if runs or not parts else parts)


def _line(book: Ledger, run_id: str) -> str:
    try:
        row = book.run(run_id)
    except LedgerError as error:
        return f"{run_id}  {error.message}"
    return f"{row.id}  {row.workload}  {row.status}"
