"""Reports for people: one HTML file (html.py), Markdown (markdown.py), PDF (pdf.py), of one experiment, of several
(study.py) or of a suite (suite.py).

All of it is made from Examined experiments, which are plain data: whoever has them can make a report, without a ledger.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from stackmark.errors import SpecError
from stackmark.show.report.heading import NO_HEADING
from stackmark.show.report.heading import Heading as Heading
from stackmark.show.writing import STANDARD_OUTPUT, check_writable, write_whole
from stackmark.verdict.examined import Examined
from stackmark.verdict.suite import SuiteResult
from stackmark.version import version

Format = Literal["html", "markdown", "pdf"]
SUFFIXES: dict[str, Format] = {
    ".html": "html", ".htm": "html", ".md": "markdown", ".markdown": "markdown", ".pdf": "pdf"
}  # fmt: skip
STUDY = "stackmark-study"


def format_of(output: str | None) -> Format:
    """Return what a file of that name holds; HTML where there is none, and on standard output."""
    if output is None or output == "-":
        return "html"
    name = Path(output).name
    found = SUFFIXES.get(Path(output).suffix.lower())
    if found is None:
        raise SpecError(
            f"from the name {name!r} it cannot be told what to write",
            hint="end it in .html, .md or .pdf, or give --format html, --format markdown or --format pdf",
        )
    return found


def check_target(output: str) -> None:
    """Refuse a file that no report could be written to: for a command that measures first."""
    check_format(format_of(output))
    check_writable(Path(output))


def check_format(form: Format) -> None:
    """Refuse PDF where there is no browser to print it."""
    if form == "pdf":
        from stackmark.show.report.pdf import find_browser

        find_browser()


def write_report(
    found: Examined | Sequence[Examined],
    output: str | None,
    form: Format | None = None,
    heading: Heading = NO_HEADING,
) -> Path:
    """Write the report of one experiment, or of several in one file, and return where.

    Without a file Markdown goes to standard output, HTML and PDF to a file named for the experiment.
    """
    experiments = [found] if isinstance(found, Examined) else list(found)
    name = f"stackmark-{experiments[0].experiment_id}" if len(experiments) == 1 else STUDY
    return _write(
        output,
        form,
        name=name,
        markdown=lambda: _markdown(experiments, heading),
        html=lambda _: _html(experiments, heading),
    )


def write_suite_report(
    result: SuiteResult, output: str | None, form: Format | None = None, heading: Heading = NO_HEADING
) -> Path:
    """Write the report of a suite, and return where. What it is without a file is as for an experiment."""
    from stackmark.show.report.suite import MOST_PRINTED, render_suite_html, render_suite_markdown

    return _write(
        output,
        form,
        name=f"stackmark-{result.experiment_id}",
        markdown=lambda: render_suite_markdown(result, heading),
        html=lambda chosen: render_suite_html(
            result,
            generated_unix_s=time.time(),
            version=version(),
            heading=heading,
            most_pages=MOST_PRINTED if chosen == "pdf" else None,
        ),
    )


def _write(
    output: str | None, form: Format | None, *, name: str, markdown: Callable[[], str], html: Callable[[Format], str]
) -> Path:
    chosen = form or format_of(output)
    if chosen == "markdown":
        path = Path(output or STANDARD_OUTPUT)
        data = markdown().encode()
    else:
        check_format(chosen)
        path = Path(output or f"{name}.{chosen}")
        data = html(chosen).encode()
        if chosen == "pdf":
            from stackmark.show.report.pdf import render_pdf

            check_writable(path)
            data = render_pdf(data.decode())
    write_whole(path, data)
    return path


def _markdown(experiments: Sequence[Examined], heading: Heading) -> str:
    if len(experiments) > 1:
        from stackmark.show.report.study import render_study_markdown

        return render_study_markdown(experiments, heading)
    from stackmark.show.report.markdown import render_markdown

    return render_markdown(experiments[0], heading)


def _html(experiments: Sequence[Examined], heading: Heading) -> str:
    now = time.time()
    if len(experiments) > 1:
        from stackmark.show.report.study import render_study_html

        return render_study_html(experiments, generated_unix_s=now, version=version(), heading=heading)
    from stackmark.show.report.html import render_html

    return render_html(experiments[0], generated_unix_s=now, version=version(), heading=heading)
