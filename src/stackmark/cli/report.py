"""`stackmark report`."""

from typing import Literal

import click

from stackmark.cli.options import ledger_option, not_empty, read_margin


@click.command(
    "report",
    epilog="""\b
Examples:
  stackmark report last -o report.html
  stackmark report last -o report.pdf --author "Ada" --note "before the driver upgrade"
  stackmark report x-01k9 x-01ka -o study.html --title "Containers on our H200"
  stackmark report x-01k9 --format markdown
""",
)
@click.argument("experiments", metavar="EXPERIMENT…", nargs=-1, required=True, callback=not_empty)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    callback=not_empty,
    help="The file; - is standard output. [default: stackmark-ID.html, stackmark-study.html for several; standard output for "
    "Markdown]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "markdown", "pdf"]),
    help="What to write. PDF needs Chromium. [default: by the file's name, or html]",
)
@click.option("--title", metavar="TEXT", callback=not_empty, help="The title. [default: from the question]")
@click.option("--note", metavar="TEXT", callback=not_empty, help="Shown below the title; may have several lines.")
@click.option("--author", metavar="NAME", callback=not_empty, help="Who made it; shown below the title.")
@click.option("--margin", metavar="SHARE", help="What counts as a difference. [default: as it was asked, or 1%]")
@ledger_option
def command(
    experiments: tuple[str, ...],
    output: str | None,
    form: Literal["html", "markdown", "pdf"] | None,
    title: str | None,
    note: str | None,
    author: str | None,
    margin: str | None,
    ledger: str | None,
) -> int:
    """Make a report of one EXPERIMENT or several: one HTML file with pictures, a PDF, or Markdown for a pull request.

    EXPERIMENT is an id, any unique beginning of one, or `last`. Everything is computed from the ledger; nothing is run. Title,
    note and author are written into the file and stored nowhere else.
    """
    from stackmark.api.ledgers import Ledger
    from stackmark.api.stored import SUITE, load, verdicts_of
    from stackmark.api.suites import read_suite
    from stackmark.show.report import Heading, check_format, format_of, write_report, write_suite_report
    from stackmark.show.writing import STANDARD_OUTPUT

    chosen = read_margin(margin) if margin is not None else None
    written = form or format_of(output)
    check_format(written)
    with Ledger.open(ledger, create=False) as book:
        heading = Heading.made(title, note, author)
        stored = load(experiments[0], book) if len(experiments) == 1 else None
        if stored and stored.kind() is SUITE:
            ids = [stored.id]
            path = write_suite_report(read_suite(stored, chosen).result, output, written, heading)
        else:
            found = [one.examined for one in verdicts_of(experiments, chosen, book)]
            ids = [one.experiment_id for one in found]
            path = write_report(found, output, written, heading)
    if path != STANDARD_OUTPUT:
        click.echo(f"report of {', '.join(ids)} written to {path}", err=True)
    return 0
