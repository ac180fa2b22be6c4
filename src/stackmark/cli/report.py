"""`stackmark report`."""

from typing import Literal

import click

from stackmark.cli.options import ledger_option, not_empty, read_margin


@click.command(
    "report",
    epilog="""\b
Examples:
  stackmark report last -o report.html
  stackmark report x-01k9 --format markdown
  stackmark report x-01k9 --margin 2% -o report.md
""",
)
@click.argument("experiment", callback=not_empty)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=not_empty,
    help="The file; - is standard output. [default: stackmark-ID.html; standard output for Markdown]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "markdown"]),
    help="What to write. [default: by the file's name, or html]",
)
@click.option("--margin", metavar="SHARE", help="What counts as a difference. [default: as it was asked, or 1%]")
@ledger_option
def command(
    experiment: str,
    output: str | None,
    form: Literal["html", "markdown"] | None,
    margin: str | None,
    ledger: str | None,
) -> int:
    """Make a report of a stored EXPERIMENT: one HTML file with pictures, or Markdown for a pull request.

    EXPERIMENT is an id, any unique beginning of one, or `last`. Everything is computed from the ledger; nothing is run.
    """
    from stackmark.api.ledgers import Ledger
    from stackmark.api.stored import load
    from stackmark.cli.comparing import say_written
    from stackmark.show.report import format_of, write_report

    chosen = read_margin(margin) if margin is not None else None
    written = form or format_of(output)
    with Ledger.open(ledger, create=False) as book:
        found = load(experiment, book).verdict(chosen)
    say_written(found, write_report(found.examined, output, written))
    return 0
