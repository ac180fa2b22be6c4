"""`stackmark export`."""

import sys
from pathlib import Path
from typing import cast

import click

from stackmark.cli.options import filter_options, ledger_option
from stackmark.cli.results import read_filter
from stackmark.ledger.export import Format, export_to_file, export_to_stream
from stackmark.ledger.store import Ledger


@click.command(
    "export",
    epilog="""\b
Examples:
  stackmark export --format csv > runs.csv
  stackmark export --format parquet -o runs.parquet --since 30d
""",
)
@click.option(
    "--format", "form", type=click.Choice(["csv", "json", "jsonl", "parquet"]), required=True, help="What to write."
)
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
    with Ledger.open(ledger, create=False) as book:
        if output:
            count = export_to_file(book, wanted, cast(Format, form), output)
            click.echo(f"{count} runs written to {output}", err=True)
        else:
            export_to_stream(book, wanted, cast(Format, form), sys.stdout.buffer)
    return 0
