"""`stackmark published`: search what others printed, add rows of one's own, say where the rows come from.

Rows that were added are in the ledger; where there is no ledger yet, there are only those that ship.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stackmark.cli.options import Subverbs, json_option, ledger_option, not_empty
from stackmark.cli.saying import print_json, say
from stackmark.errors import Exit, SpecError
from stackmark.units import counted

if TYPE_CHECKING:
    from stackmark.ledger.published import Published

# What a sentence about a refused file lists; the rest is counted.
SHOWN_FINDINGS = 20


@click.group(
    "published",
    cls=Subverbs,
    no_args_is_help=False,
    epilog="""\b
Examples:
  stackmark published search resnet50 V100
  stackmark published search "8x H200 llama2" --unit min --json
  stackmark published template > mine.csv
  stackmark published add mine.csv
  stackmark published remove --file mine.csv
""",
)
def command() -> None:
    """What others published: search it, add to it, see its sources."""


@command.command("search")
@click.argument("words", nargs=-1, required=True, callback=not_empty)
@click.option("--unit", metavar="UNIT", callback=not_empty, help="Only numbers in this unit, e.g. images/s.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), metavar="N", default=20, help="How many, best first. [default: 20]"
)
@ledger_option
@json_option
def search_command(words: tuple[str, ...], unit: str | None, limit: int, ledger: str | None, as_json: bool) -> int:
    """Published rows that fit all WORDS: a model, a chip by any of its names, a precision, a source, a year, `8x`."""
    from stackmark.ledger.published import as_json as row_json
    from stackmark.ledger.published_search import search, understand, why_nothing

    rows = _known_rows(ledger)
    text = " ".join(words)
    query = understand(text, rows, unit=unit)
    hits = search(rows, query)
    shown = [hit.row for hit in hits[:limit]]
    if as_json:
        print_json({"query": text, "total": len(hits), "rows": [row_json(row) for row in shown]})
        return Exit.DONE
    if not hits:
        say(f"nothing fits {text!r}: {why_nothing(rows, query)}")
        return Exit.DONE
    _print_rows(shown)
    if len(hits) > limit:
        click.echo(f"{limit} of {len(hits)}; more with --limit, or say more words", err=True)
    return Exit.DONE


@command.command("add")
@click.argument("file", type=click.Path(path_type=Path), callback=not_empty)
@ledger_option
@json_option
def add_command(file: Path, ledger: str | None, as_json: bool) -> int:
    """Add the rows of FILE, a CSV with the columns that `published template` prints. All of them, or none."""
    from stackmark.lab.published import add_file
    from stackmark.ledger.store import Ledger

    with Ledger.open(ledger) as book:
        report = add_file(file, book)
    if as_json:
        refused = [{"line": finding.line, "reason": finding.reason} for finding in report.findings]
        print_json({"added": report.added, "already_there": report.duplicates, "refused": refused})
    if report.findings:
        some = [f"line {finding.line}: {finding.reason}" for finding in report.findings[:SHOWN_FINDINGS]]
        more = len(report.findings) - len(some)
        lines = len({finding.line for finding in report.findings})
        raise SpecError(
            f"{file}: {counted(lines, 'row')} refused; nothing was added",
            hint="\n".join([*some, *([f"and {more} more"] if more else [])]),
        )
    if not as_json:
        already = f", {counted(report.duplicates, 'row')} were there already" if report.duplicates else ""
        click.echo(f"{counted(report.added, 'row')} added{already}".replace("1 row were", "1 row was"))
    return Exit.DONE


@command.command("template")
def template_command() -> int:
    """Print the header and an example row of a file for `published add`."""
    from stackmark.ledger.published_file import template

    click.echo(template(), nl=False)
    return Exit.DONE


@command.command("sources")
@ledger_option
@json_option
def sources_command(ledger: str | None, as_json: bool) -> int:
    """List where the rows come from: how many of each source, of what time, in what units."""
    from stackmark.lab.published import sources

    found = sources(_known_rows(ledger))
    if as_json:
        print_json({"sources": [
            {"source": one.source, "rows": one.rows, "first": one.first, "last": one.last, "units": list(one.units),
             "chips": one.chips, "added": one.added}
            for one in found
        ]})  # fmt: skip
        return Exit.DONE
    from stackmark.show.console import standard_output
    from stackmark.show.table import Column, print_table

    columns = (
        Column("rows", right=True), Column("dates"), Column("chips", right=True, drop=2), Column("units", drop=1),
        Column("source"),
    )  # fmt: skip
    cells = [
        [str(one.rows), one.first if one.first == one.last else f"{one.first} to {one.last}", str(one.chips),
         ", ".join(one.units), one.source + (" (added by you)" if one.added else "")]
        for one in found
    ]  # fmt: skip
    print_table(standard_output(), columns, cells)
    click.echo(f"{sum(one.rows for one in found):,} rows", err=True)
    return Exit.DONE


@command.command("remove")
@click.argument("rows", nargs=-1, callback=not_empty)
@click.option("--file", metavar="NAME", callback=not_empty, help="All rows that came from the file of this name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@ledger_option
def remove_command(rows: tuple[str, ...], file: str | None, yes: bool, ledger: str | None) -> int:
    """Remove ROWS that were added, each an id (p-…) or any unique beginning of one. Rows that ship stay."""
    from stackmark.ledger import added
    from stackmark.ledger.store import Ledger

    if not rows and file is None:
        raise SpecError(
            "which rows?", hint="name their ids, as `stackmark published search` shows them, or --file NAME"
        )
    with Ledger.open(ledger, create=False) as book:
        found = added.find(book, rows)
        if file is not None:
            of_file = added.of_file(book, Path(file).name)
            if not of_file:
                raise SpecError(f"no row in the ledger {book.where} came from a file named {Path(file).name!r}")
            found = list(dict.fromkeys([*found, *of_file]))
        if not yes:
            if not sys.stdin.isatty():
                raise SpecError("removing asks first, and there is nobody to ask", hint="say --yes")
            if not click.confirm(f"Remove {counted(len(found), 'row')} for good?"):
                click.echo("nothing was removed")
                return Exit.DONE
        click.echo(f"{counted(added.remove(book, found), 'row')} removed")
    return Exit.DONE


def _known_rows(where: str | None) -> "tuple[Published, ...]":
    from stackmark.lab.published import known_rows
    from stackmark.ledger import added, address
    from stackmark.ledger.store import Ledger

    file = address.find(where).file
    if where is None and file is not None and not file.exists():
        return known_rows(None)
    with Ledger.open(where, create=False) as book:
        _, unreadable = added.entries(book)
        if unreadable:
            some = ", ".join(unreadable[:5])
            click.echo(f"{counted(len(unreadable), 'added row')} of another version left out: {some}", err=True)
        return known_rows(book)


def _print_rows(rows: "list[Published]") -> None:
    from stackmark.show.console import standard_output
    from stackmark.show.table import Column, print_table

    columns = (
        Column("value", right=True), Column("unit"), Column("what"), Column("chip"), Column("precision", drop=4),
        Column("batch", right=True, drop=3), Column("framework", drop=1), Column("date", drop=2), Column("source"),
    )  # fmt: skip
    cells = [
        [f"{row.value:,.10g}", row.unit, _what(row), f"{row.count} × {row.chip}" if row.count > 1 else row.chip,
         row.precision, str(row.batch or ""), row.framework, row.date, _source(row)]
        for row in rows
    ]  # fmt: skip
    print_table(standard_output(), columns, cells, ["yellow" if row.added else "" for row in rows])


def _what(row: "Published") -> str:
    """Our name where the row has one: it says which ResNet-50, and whether it was trained."""
    return row.workload if row.workload and row.task != "operator" else f"{row.model}, {row.task}"


def _source(row: "Published") -> str:
    who = row.extra.get("submitter")
    more = [str(who)] if who else []
    more += [f"added by you, {row.added}"] if row.added else []
    return row.source + (f" ({', '.join(more)})" if more else "")
