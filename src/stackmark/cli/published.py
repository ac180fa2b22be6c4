"""`stackmark published`: search what others printed, add rows of one's own, say where the rows come from."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from stackmark.cli.options import Subverbs, json_option, ledger_option, not_empty
from stackmark.cli.saying import notice, print_json, say
from stackmark.errors import Exit, SpecError
from stackmark.units import counted

F = TypeVar("F", bound=Callable[..., Any])

# What a sentence about a refused file lists; the rest is counted.
SHOWN_FINDINGS = 20


@click.group(
    "published",
    cls=Subverbs,
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
    """Search what others published, add to it, list its sources."""


def _size(name: str) -> Callable[[F], F]:
    text = f"op/gemm and its like: only times of this {name}."
    return click.option(f"--{name}", metavar="N", callback=not_empty, help=text)


@command.command("search")
@click.argument("words", nargs=-1, required=True, callback=not_empty)
@click.option("--unit", metavar="UNIT", callback=not_empty, help="Only numbers in this unit, e.g. images/s.")
@_size("m")
@_size("n")
@_size("k")
@click.option(
    "--shape", metavar="SIZES", callback=not_empty, help="Operators: only times of these sizes, e.g. w=56,h=56,c=64."
)
@click.option("--set", "set_name", metavar="SET", callback=not_empty, help="Operators: only times of this list.")
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    metavar="N",
    help="How many, best first. [default: 20; 200 with sizes]",
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
    """Search published rows that fit all WORDS: a model, a chip by any of its names, a precision, a source, a year, `8x`.

    Times of an operator are found by its sizes, or some of them: op/gemm with --m --n --k, any of them with --shape.
    """
    from stackmark.api.published import search_published
    from stackmark.show.published import print_found

    found = search_published(
        words, unit=unit, sizes={"m": m, "n": n, "k": k}, shape=shape, set_name=set_name, limit=limit, ledger=ledger,
        notice=notice,
    )  # fmt: skip
    if as_json:
        print_json(found.to_dict())
    elif not found.rows:
        say(f"nothing fits {found.text!r}: {found.why}")
    else:
        print_found(found.rows)
        if found.total > len(found.rows):
            more = "say more words" if found.asked is None else "type more sizes"
            notice(f"{len(found.rows)} of {found.total}; more with --limit, or {more}")
    return Exit.DONE


@command.command("add")
@click.argument("file", callback=not_empty)
@ledger_option
@json_option
def add_command(file: str, ledger: str | None, as_json: bool) -> int:
    """Add the rows of FILE, a CSV with the columns that `published template` prints. All of them, or none."""
    from stackmark.api.published import add_published

    found = add_published(Path(file), ledger=ledger)
    if as_json:
        print_json(found.to_dict())
    report = found.report
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
    from stackmark.api.published import template

    click.echo(template(), nl=False)
    return Exit.DONE


@command.command("sources")
@ledger_option
@json_option
def sources_command(ledger: str | None, as_json: bool) -> int:
    """List where the rows come from: how many of each source, of what time, in what units."""
    from stackmark.api.published import published_sources
    from stackmark.show.published import print_sources
    from stackmark.show.terminal import standard_output

    found = published_sources(ledger=ledger, notice=notice)
    if as_json:
        print_json(found.to_dict())
    else:
        print_sources(found.sources, standard_output())
        notice(f"{sum(one.rows for one in found.sources):,} rows")
    return Exit.DONE


@command.command("remove")
@click.argument("rows", nargs=-1, callback=not_empty)
@click.option("--file", metavar="NAME", callback=not_empty, help="All rows that came from the file of this name.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@ledger_option
def remove_command(rows: tuple[str, ...], file: str | None, yes: bool, ledger: str | None) -> int:
    """Remove ROWS that were added, each an id (p-…) or any unique beginning of one. Rows that ship stay."""
    from stackmark.api.ledgers import Ledger
    from stackmark.api.published import find_added, remove_added

    if not rows and file is None:
        raise SpecError(
            "which rows?", hint="name their ids, as `stackmark published search` shows them, or --file NAME"
        )
    with Ledger.open(ledger, create=False) as book:
        found = find_added(book, rows, file)
        if not yes:
            if not sys.stdin.isatty():
                raise SpecError("removing asks first, and standard input is not a terminal", hint="say --yes")
            if not click.confirm(f"Remove {counted(len(found), 'row')} for good?"):
                click.echo("nothing was removed")
                return Exit.DONE
        click.echo(f"{counted(remove_added(book, found), 'row')} removed")
    return Exit.DONE
