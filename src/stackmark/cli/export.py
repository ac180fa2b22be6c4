"""`stackmark export`."""

import sys
from pathlib import Path

import click

from stackmark.api.ledgers import FORMATS, export
from stackmark.cli.options import filter_options, ledger_option
from stackmark.cli.results import read_filter


@click.command(
    "export",
    epilog="""\b
Examples:
  stackmark export --format csv > runs.csv
  stackmark export --format parquet -o runs.parquet --since 30d
""",
)
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="What to write.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file. [default: standard output]",
)
@filter_options
@ledger_option
def command(
    form: str,
    output: Path | None,
    workload: str | None,
    since: str | None,
    until: str | None,
    chip: str | None,
    place: str | None,
    status: str | None,
    ledger: str | None,
) -> int:
    """Write stored runs, one row each, to a file or to standard output."""
    wanted = read_filter(workload, since, until, chip, place, status)
    count = export(output or sys.stdout.buffer, format=form, wanted=wanted, ledger=ledger)
    if output:
        click.echo(f"{count} runs written to {output}", err=True)
    return 0
