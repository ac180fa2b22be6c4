"""A report of one experiment, for people: one HTML file (html.py), Markdown (markdown.py), pictures (charts/).

All of it is made from an Examined, which is plain data: whoever has one can make a report, without a ledger.
"""

import time
from pathlib import Path
from typing import Literal

from stackmark import __version__
from stackmark.errors import SpecError
from stackmark.show.writing import STANDARD_OUTPUT, check_writable, write_whole
from stackmark.verdict.examined import Examined

Format = Literal["html", "markdown"]
SUFFIXES: dict[str, Format] = {".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown"}


def format_of(output: str | None) -> Format:
    """Return what a file of that name holds; HTML where there is none, and on standard output."""
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


def check_target(output: str) -> None:
    """Refuse a file that no report could be written to: for a command that measures first."""
    format_of(output)
    check_writable(Path(output))


def write_report(examined: Examined, output: str | None, form: Format | None = None) -> Path:
    """Write the report, and return where. Without a file Markdown goes to standard output, HTML to a file named for the
    experiment."""
    if (form or format_of(output)) == "markdown":
        from stackmark.show.report.markdown import render_markdown

        page, path = render_markdown(examined), Path(output or STANDARD_OUTPUT)
    else:
        from stackmark.show.report.html import render_html

        page = render_html(examined, generated_unix_s=time.time(), version=__version__)
        path = Path(output or f"stackmark-{examined.experiment_id}.html")
    write_whole(path, page.encode())
    return path
