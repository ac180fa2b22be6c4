"""Store published rows that a user added, next to the runs that they are compared with.

A row's id is made from what it says, so that the same row is the same row, whoever adds it and however often; two people who
share a ledger cannot add it twice. What is stored is the row's cells as the table writes them, and they are checked again
when they are read: a ledger outlives the program that wrote it. A row that this version cannot read (a unit that a newer one
knows) is left out, because published rows are context, and no reason to refuse a measurement.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, insert, select

from stackmark import ids
from stackmark.errors import SpecError
from stackmark.ledger import queries
from stackmark.ledger.rows import storable
from stackmark.ledger.schema import published
from stackmark.ledger.store import Ledger
from stackmark.published.table import FIELDS, Published, row_of

LETTER = "p"
# How many ids an ambiguous prefix is answered with, and into how many rows one statement is cut.
_CANDIDATES = 5
_BATCH = 500


@dataclass(frozen=True)
class Added:
    """A row of the ledger; its id is in `row.added`."""

    row: Published
    added_unix_s: float
    file: str


def cells_of(row: Published) -> list[str]:
    """Format the row as the table does: a value as short as possible without changing it."""
    value = str(int(row.value)) if row.value.is_integer() and row.value < 1e15 else repr(row.value)
    extra = json.dumps(dict(row.extra), sort_keys=True, ensure_ascii=False) if row.extra else ""
    other = {"value": value, "extra": extra, "batch": "" if row.batch is None else str(row.batch)}
    return [other[name] if name in other else str(getattr(row, name)) for name in FIELDS]


def id_of(row: Published) -> str:
    digest = hashlib.sha256(json.dumps(cells_of(row)).encode()).digest()
    number = int.from_bytes(digest[:17], "big") >> 6  # 130 bits: 26 letters of five
    return f"{LETTER}-" + "".join(ids.ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def entries(ledger: Ledger) -> tuple[list[Added], list[str]]:
    """Return all added rows, the oldest first, and the ids of unreadable ones."""

    def work(connection: Connection) -> tuple[list[Added], list[str]]:
        query = select(published).order_by(published.c.added_unix_s, published.c.id)
        found: list[Added] = []
        unreadable: list[str] = []
        for stored in connection.execute(query).mappings():
            row = _read(stored["id"], stored["entry"])
            if row is None:
                unreadable.append(stored["id"])
            else:
                found.append(Added(row, stored["added_unix_s"], stored["file"]))
        return found, unreadable

    return ledger.reading(work)


def rows(ledger: Ledger) -> tuple[Published, ...]:
    return tuple(entry.row for entry in entries(ledger)[0])


def _read(identifier: str, entry: object) -> Published | None:
    if not isinstance(entry, dict):
        return None
    try:
        return replace(row_of([str(entry.get(name, "")) for name in FIELDS]), added=identifier)
    except ValueError:
        return None


def add(ledger: Ledger, new: Sequence[Published], file: str) -> int:
    """Store rows, all of them or none; return how many were new."""
    by_id = {id_of(row): row for row in new}
    now = time.time()

    def work(connection: Connection) -> int:
        present: set[str] = set()
        wanted = list(by_id)
        for start in range(0, len(wanted), _BATCH):
            there = select(published.c.id).where(published.c.id.in_(wanted[start : start + _BATCH]))
            present |= {row.id for row in connection.execute(there)}
        values = [
            {"id": identifier, "added_unix_s": now, "file": storable(file),
             "entry": dict(zip(FIELDS, cells_of(row), strict=True))}
            for identifier, row in by_id.items() if identifier not in present
        ]  # fmt: skip
        if values:
            connection.execute(insert(published), values)
        return len(values)

    return ledger.writing(work)


def find(ledger: Ledger, prefixes: Sequence[str]) -> list[str]:
    """Find the ids that start with these; raise a sentence for one that matches none or several."""

    def work(connection: Connection) -> list[str]:
        return list(dict.fromkeys(_one(connection, text, ledger.where) for text in prefixes))

    return ledger.reading(work)


def _one(connection: Connection, text: str, where: str) -> str:
    prefix = ids.as_prefix(text, LETTER)
    found: list[str] = []
    if prefix is not None:
        query = select(published.c.id).where(queries.starts_with(published.c.id, prefix)).order_by(published.c.id)
        found = [str(row.id) for row in connection.execute(query.limit(_CANDIDATES + 1))]
    if not found:
        raise SpecError(
            f"the ledger {where} has no added row {text!r}",
            hint="only rows that were added can be removed; `stackmark published search` shows their ids",
        )
    if len(found) > 1:
        some = ", ".join(found[:_CANDIDATES]) + (", …" if len(found) > _CANDIDATES else "")
        raise SpecError(f"{text!r} matches several rows: {some}", hint="use a longer id")
    return found[0]


def remove(ledger: Ledger, identifiers: Sequence[str]) -> int:
    def work(connection: Connection) -> int:
        gone = 0
        for start in range(0, len(identifiers), _BATCH):
            some = identifiers[start : start + _BATCH]
            gone += connection.execute(delete(published).where(published.c.id.in_(some))).rowcount
        return gone

    return ledger.writing(work)


def of_file(ledger: Ledger, name: str) -> list[str]:
    """Return the ids of all rows from a file of this name."""
    query = select(published.c.id).where(published.c.file == storable(name)).order_by(published.c.id)
    return ledger.reading(lambda connection: [str(row.id) for row in connection.execute(query)])
