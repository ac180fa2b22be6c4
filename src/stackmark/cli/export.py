"""`stackmark export`."""

import sys
from pathlib import Path

import click

from stackmark.api.ledgers import FORMATS, export, export_format, views
from stackmark.cli.options import filter_options, ledger_option
from stackmark.cli.results import read_filter
from stackmark.cli.saying import notice
from stackmark.errors import SpecError
from stackmark.show.writing import write_whole
from stackmark.units import counted


@click.command(
    "export",
    epilog="""\b
Examples:
  stackmark export -o runs.csv
  stackmark export -o runs.parquet --since 30d
  stackmark export --samples -o samples.parquet --since 1d
  stackmark export --format jsonl --workload 'train/*' | jq .rate_per_s
  stackmark export --views > views.sql
""",
)
@click.option("--format", "form", type=click.Choice(FORMATS), help="What to write. [default: by the ending of FILE]")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file. [default: standard output]",
)
@click.option(
    "--samples", is_flag=True, help="Write what was sampled next to the runs: one row for each quantity and moment."
)
@click.option("--views", "as_views", is_flag=True, help="Write SQL views for a copy of the ledger's file, and no runs.")
@filter_options
@ledger_option
def command(
    form: str | None,
    output: Path | None,
    samples: bool,
    as_views: bool,
    workload: str | None,
    since: str | None,
    until: str | None,
    chip: str | None,
    place: str | None,
    status: str | None,
    ledger: str | None,
) -> int:
    """Write stored runs, one row each, to a file or to standard output: CSV, JSON, JSON lines or Parquet."""
    if as_views:
        others = (form, samples, workload, since, until, chip, place, status)
        if any(others):
            raise SpecError(
                "--views takes no other option than -o", hint="the views read all runs of a copy of the ledger"
            )
        _write_views(output)
        return 0
    output = None if output == Path("-") else output
    chosen = export_format(form, output)
    wanted = read_filter(workload, since, until, chip, place, status)
    count = export(output or sys.stdout.buffer, format=chosen, wanted=wanted, samples=samples, ledger=ledger)
    if output:
        notice(f"{counted(count, 'value' if samples else 'run')} written to {output} as {chosen}")
    return 0


def _write_views(output: Path | None) -> None:
    if output is None or output == Path("-"):
        click.echo(views(), nl=False)
        return
    write_whole(output, views().encode())
    notice(f"SQL views written to {output}")
