"""Published results: search them, add to them, list their sources.

Rows that were added are in the ledger; where there is no ledger yet, there are only those that ship.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stackmark.api.ledgers import Ledger, LedgerLike, Notice, opened, silent
from stackmark.errors import SpecError
from stackmark.ledger import added, address
from stackmark.published.file import template as template
from stackmark.published.lookup import AddReport, Source, add_file, known_rows, sources
from stackmark.published.operators import caveats_of
from stackmark.published.scaling import published_scaling
from stackmark.published.search import search, understand, why_nothing
from stackmark.published.shapes import ShapeQuery, matching, read_asked, why_none
from stackmark.published.table import Published as Published
from stackmark.published.table import as_json
from stackmark.schemas import with_schema
from stackmark.units import counted
from stackmark.verdict.scaling import PublishedScaling

# Rows that are shown: of words, which may mean much; of an operator's sizes, whose table is wanted whole.
SHOWN, SHOWN_SIZES = 20, 200
# What a sentence about rows of another version lists; the rest is counted.
NAMED_ROWS = 5


@dataclass(frozen=True)
class PublishedSearch:
    """The rows that match all words, best first; for an operator's sizes, in the order of their sizes."""

    text: str
    rows: tuple[Published, ...]
    # How many rows fit, also those past the limit.
    total: int
    # Why no row fits; empty where one does.
    why: str = ""
    # The operator and the sizes that were asked for.
    asked: ShapeQuery | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark published search --json` prints."""
        asked = self.asked
        about = (
            {} if asked is None else {"operator": f"op/{asked.op}", "sizes": dict(asked.sizes), "set": asked.set_name}
        )
        rows = [
            as_json(row) | ({"caveats": list(caveats_of(row))} if row.task == "operator" else {}) for row in self.rows
        ]
        return with_schema("published-rows", {"query": self.text, **about, "total": self.total, "rows": rows})


def search_published(
    words: str | Sequence[str],
    *,
    unit: str | None = None,
    sizes: Mapping[str, str | None] | None = None,
    shape: str | None = None,
    set_name: str | None = None,
    limit: int | None = None,
    ledger: LedgerLike = None,
    notice: Notice = silent,
) -> PublishedSearch:
    """Find published rows that fit all words: a model, a chip by any of its names, a precision, a source, a year, `8x`.

    Times of an operator are found by its sizes: `search_published("op/gemm", sizes={"m": "7680"})`, or any of them with
    `shape="w=56,h=56"`.
    """
    said = tuple(part for word in ([words] if isinstance(words, str) else words) for part in word.split())
    asked = read_asked(said, dict(sizes or {}), shape, set_name)
    rows = _known(ledger, notice)
    of_sizes = rows if asked is None else matching(rows, asked)
    query = understand(" ".join(said if asked is None else asked.words), of_sizes, unit=unit)
    hits = [hit.row for hit in search(of_sizes, query)]
    if asked is not None:  # in the order of their sizes: the words only choose among them
        chosen = set(map(id, hits))
        hits = [row for row in of_sizes if id(row) in chosen]
    limit = limit or (SHOWN if asked is None else SHOWN_SIZES)
    why = ""
    if not hits:
        why = why_nothing(rows, query) if asked is None else why_none(rows, asked)
    return PublishedSearch(" ".join(said), tuple(hits[:limit]), len(hits), why, asked)


@dataclass(frozen=True)
class PublishedScalings:
    """Efficiencies that follow from published rates, the largest groups of devices last."""

    text: str
    rows: tuple[PublishedScaling, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark scale --published … --json` prints."""
        return with_schema("published-scaling", {"query": self.text, "rows": [asdict(row) for row in self.rows]})


def published_scalings(text: str, *, ledger: LedgerLike = None, notice: Notice = silent) -> PublishedScalings:
    """Find published rates of one device and of several of one recipe, by the words of `search_published`."""
    rows = _known(ledger, notice)
    query = understand(text, rows)
    hits = [hit.row for hit in search(rows, query)]
    if not hits:
        raise SpecError(f"--published {text!r} finds no row: {why_nothing(rows, query)}")
    found = [one for one, _ in published_scaling(hits)]
    if not found:
        raise SpecError(
            f"--published {text!r} finds no rate of one device next to one of several",
            hint="say fewer words, without a number of devices: stackmark scale --published resnet50",
        )
    return PublishedScalings(
        text, tuple(sorted(found, key=lambda one: (one.source, _recipe(one), one.data, one.ranks)))
    )


def _recipe(one: PublishedScaling) -> str:
    return one.what.replace(f", {one.ranks} × ", ", ")


def _known(ledger: LedgerLike, notice: Notice) -> tuple[Published, ...]:
    """Return the rows of both tables that ship, and of the ledger where there is one."""
    if ledger is None:
        file = address.find(None).file
        if file is not None and not file.exists():
            return known_rows(None, operators=True)
    with opened(ledger) as book:
        _, unreadable = added.entries(book)
        if unreadable:
            some = ", ".join(unreadable[:NAMED_ROWS])
            notice(f"{counted(len(unreadable), 'added row')} of another version left out: {some}")
        return known_rows(book, operators=True)


@dataclass(frozen=True)
class AddedRows:
    """The result of adding a file: how many rows are new and how many were known, or what was refused."""

    report: AddReport

    @property
    def added(self) -> int:
        return self.report.added

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark published add --json` prints."""
        refused = [{"line": finding.line, "reason": finding.reason} for finding in self.report.findings]
        added = {"added": self.report.added, "already_there": self.report.duplicates, "refused": refused}
        return with_schema("published-added", added)


def add_published(file: str | os.PathLike[str], *, ledger: LedgerLike = None) -> AddedRows:
    """Add the rows of a CSV file to the ledger, all of them or none: nothing where `report.findings` has any."""
    with opened(ledger, create=True) as book:
        return AddedRows(add_file(Path(file), book))


@dataclass(frozen=True)
class PublishedSources:
    """The sources of the rows, the largest first."""

    sources: tuple[Source, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return what `stackmark published sources --json` prints."""
        listed = [
            {"source": one.source, "rows": one.rows, "first": one.first, "last": one.last, "units": list(one.units),
             "chips": one.chips, "added": one.added}
            for one in self.sources
        ]  # fmt: skip
        return with_schema("published-sources", {"sources": listed})


def published_sources(*, ledger: LedgerLike = None, notice: Notice = silent) -> PublishedSources:
    """List the sources of all rows: how many of each, of what time, in what units."""
    return PublishedSources(tuple(sources(_known(ledger, notice))))


def find_added(ledger: Ledger, rows: Sequence[str], file: str | None = None) -> list[str]:
    """Return the ids of rows that were added: those that begin like `rows`, and all that came from a file of this name."""
    found = added.find(ledger, rows)
    if file is not None:
        of_file = added.of_file(ledger, Path(file).name)
        if not of_file:
            raise SpecError(f"no row in the ledger {ledger.where} came from a file named {Path(file).name!r}")
        found = list(dict.fromkeys([*found, *of_file]))
    return found


def remove_added(ledger: Ledger, rows: Sequence[str]) -> int:
    """Remove rows that were added, by their ids, and return how many. Rows that ship stay."""
    return added.remove(ledger, rows)
