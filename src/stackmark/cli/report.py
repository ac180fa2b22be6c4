"""`stackmark report`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from stackmark import __version__
from stackmark.cli.options import ledger_option, not_empty, read_margin
from stackmark.errors import SpecError

if TYPE_CHECKING:
    from stackmark.show.report import Examined

Format = Literal["html", "markdown"]
SUFFIXES: dict[str, Format] = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


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
def command(experiment: str, output: str | None, form: Format | None, margin: str | None, ledger: str | None) -> int:
    """Make a report of a stored EXPERIMENT: one HTML file with pictures, or Markdown for a pull request.

    EXPERIMENT is an id, any unique beginning of one, or `last`. Everything is computed from the ledger; nothing is run.
    """
    from stackmark.experiments.examine import examine
    from stackmark.ledger.store import Ledger

    chosen = read_margin(margin) if margin is not None else None
    written = form or _format_of(output)
    with Ledger.open(ledger, create=False) as book:
        examined = examine(book, book.experiment(experiment).id, margin=chosen)
    write_report(examined, output, written)
    return 0


def check_target(output: str) -> None:
    """Whether a report could be written there: for a command that measures first."""
    from stackmark.cli.writing import check_writable

    _format_of(output)
    check_writable(Path(output))


def write_report(examined: "Examined", output: str | None, form: Format | None = None) -> None:
    """Writes it, and says where. Without a file Markdown goes to standard output, HTML to a file named for the experiment."""
    from stackmark.cli.writing import STANDARD_OUTPUT, write_whole

    if (form or _format_of(output)) == "markdown":
        from stackmark.show.report.markdown import render_markdown

        page, path = render_markdown(examined), Path(output or STANDARD_OUTPUT)
    else:
        from stackmark.show.report.html import render_html

        page = render_html(examined, generated_unix_s=time.time(), version=__version__)
        path = Path(output or f"stackmark-{examined.experiment_id}.html")
    write_whole(path, page.encode())
    if path != STANDARD_OUTPUT:
        click.echo(f"report of {examined.experiment_id} written to {path}", err=True)


def _format_of(output: str | None) -> Format:
    if output is None or output == "-":
        return "html"
    name = Path(output).name
    found = SUFFIXES.get(Path(output).suffix.lower())
    if found is None:
        raise SpecError(
            f"from the name {name!r} it cannot be told what to write",
            hint="end it in .html or .md, or give --format html or --format markdown",
        )
    return found
