"""`stackmark published`: search what others printed, add rows of one's own, say where the rows come from.

Rows that were added are in the ledger; where there is no ledger yet, there are only those that ship.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from stackmark.cli.options import Subverbs, json_option, ledger_option, not_empty
from stackmark.cli.saying import print_json, say
from stackmark.errors import Exit, SpecError
from stackmark.units import counted

if TYPE_CHECKING:
    from stackmark.published.shapes import ShapeQuery
    from stackmark.published.table import Published

F = TypeVar("F", bound=Callable[..., Any])

# What a sentence about a refused file lists; the rest is counted.
SHOWN_FINDINGS = 20
# Rows that are shown: of words, which may mean much; of an operator's sizes, whose table is wanted whole.
SHOWN, SHOWN_SIZES = 20, 200


@click.group(
    "published",
    cls=Subverbs,
    no_args_is_help=False,
    epilog="""\b
Examples:
  stackmark published search resnet50 V100
  stackmark published search "8x H200 llama2" --unit min --json
  stackmark published search op/gemm --m 7680 --n 48000 --k 2560
  stackmark published search op/conv V100 --shape w=14,h=14,c=512,n=16
  stackmark published template > mine.csv
  stackmark published add mine.csv
  stackmark published remove --file mine.csv
""",
)
def command() -> None:
    """What others published: search it, add to it, see its sources."""


def _size(name: str) -> Callable[[F], F]:
    text = f"Of op/gemm and its like: only times of this {name}."
    return click.option(f"--{name}", metavar="N", callback=not_empty, help=text)


@command.command("search")
@click.argument("words", nargs=-1, required=True, callback=not_empty)
@click.option("--unit", metavar="UNIT", callback=not_empty, help="Only numbers in this unit, e.g. images/s.")
@_size("m")
@_size("n")
@_size("k")
@click.option(
    "--shape", metavar="SIZES", callback=not_empty, help="Of an operator: only times of these, e.g. w=56,h=56,c=64."
)
@click.option("--set", "set_name", metavar="SET", callback=not_empty, help="Of an operator: only this list's times.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help=f"How many, best first. [default: {SHOWN}; {SHOWN_SIZES} with sizes]",
)
@ledger_option
@json_option
def search_command(
    words: tuple[str, ...],
    unit: str | None,
    m: str | None,
    n: str | None,
    k: str | None,
    shape: str | None,
    set_name: str | None,
    limit: int | None,
    ledger: str | None,
    as_json: bool,
) -> int:
    """Published rows that fit all WORDS: a model, a chip by any of its names, a precision, a source, a year, `8x`.

    Times of an operator are found by its sizes, or some of them: op/gemm with --m --n --k, any of them with --shape.
    """
    from stackmark.published.search import search, understand, why_nothing
    from stackmark.published.shapes import matching, read_asked, why_none
    from stackmark.show.published import print_found

    words = tuple(part for word in words for part in word.split())
    asked = read_asked(words, {"m": m, "n": n, "k": k}, shape, set_name)
    rows = _known_rows(ledger)
    of_sizes = rows if asked is None else matching(rows, asked)
    text = " ".join(words if asked is None else asked.words)
    query = understand(text, of_sizes, unit=unit)
    hits = [hit.row for hit in search(of_sizes, query)]
    if asked is not None:  # in the order of their sizes: the words only choose among them
        chosen = set(map(id, hits))
        hits = [row for row in of_sizes if id(row) in chosen]
    limit = limit or (SHOWN if asked is None else SHOWN_SIZES)
    if as_json:
        print_json(_search_json(" ".join(words), asked, hits, hits[:limit]))
        return Exit.DONE
    if not hits:
        why = why_nothing(rows, query) if asked is None else why_none(rows, asked)
        say(f"nothing fits {' '.join(words)!r}: {why}")
        return Exit.DONE
    print_found(hits[:limit])
    if len(hits) > limit:
        more = "say more words" if asked is None else "type more sizes"
        click.echo(f"{limit} of {len(hits)}; more with --limit, or {more}", err=True)
    return Exit.DONE


def _search_json(
    text: str, asked: "ShapeQuery | None", hits: "list[Published]", shown: "list[Published]"
) -> dict[str, object]:
    from stackmark.published.operators import caveats_of
    from stackmark.published.table import as_json

    rows = [as_json(row) | ({"caveats": list(caveats_of(row))} if row.task == "operator" else {}) for row in shown]
    about = {} if asked is None else {"operator": f"op/{asked.op}", "sizes": dict(asked.sizes), "set": asked.set_name}
    return {"query": text, **about, "total": len(hits), "rows": rows}


@command.command("add")
@click.argument("file", type=click.Path(path_type=Path), callback=not_empty)
@ledger_option
@json_option
def add_command(file: Path, ledger: str | None, as_json: bool) -> int:
    """Add the rows of FILE, a CSV with the columns that `published template` prints. All of them, or none."""
    from stackmark.ledger.store import Ledger
    from stackmark.published.lookup import add_file

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
    from stackmark.published.file import template

    click.echo(template(), nl=False)
    return Exit.DONE


@command.command("sources")
@ledger_option
@json_option
def sources_command(ledger: str | None, as_json: bool) -> int:
    """List where the rows come from: how many of each source, of what time, in what units."""
    from stackmark.published.lookup import sources

    found = sources(_known_rows(ledger))
    if as_json:
        print_json({"sources": [
            {"source": one.source, "rows": one.rows, "first": one.first, "last": one.last, "units": list(one.units),
             "chips": one.chips, "added": one.added}
            for one in found
        ]})  # fmt: skip
        return Exit.DONE
    from stackmark.show.terminal import Column, print_table, standard_output

    columns = (
        Column("rows", right=True), Column("dates"), Column("chips", right=True, drop=2), Column("units", drop=1),
        Column("source"),
    )  # fmt: skip
    cells = [
        [f"{one.rows:,}", one.first if one.first == one.last else f"{one.first} to {one.last}", str(one.chips),
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
    """Of both tables that ship, and of the ledger where there is one."""
    from stackmark.ledger import added, address
    from stackmark.ledger.store import Ledger
    from stackmark.published.lookup import known_rows

    file = address.find(where).file
    if where is None and file is not None and not file.exists():
        return known_rows(None, operators=True)
    with Ledger.open(where, create=False) as book:
        _, unreadable = added.entries(book)
        if unreadable:
            some = ", ".join(unreadable[:5])
            click.echo(f"{counted(len(unreadable), 'added row')} of another version left out: {some}", err=True)
        return known_rows(book, operators=True)
