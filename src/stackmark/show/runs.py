"""Stored runs for people, a line each."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

from stackmark.show.console import is_screen, standard_output
from stackmark.show.table import Column, print_table
from stackmark.units import say_moment, say_rate


class EndedRun(Protocol):
    """What is said of a run that ended; the ledger's row has it."""

    @property
    def id(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def rate_per_s(self) -> float | None: ...
    @property
    def rate_unit(self) -> str | None: ...
    @property
    def steady(self) -> str | None: ...
    @property
    def failure_message(self) -> str | None: ...


class ListedRun(EndedRun, Protocol):
    """What a list says of a run; the ledger's row has it."""

    @property
    def workload(self) -> str: ...
    @property
    def place(self) -> str: ...
    @property
    def started_unix_s(self) -> float: ...
    @property
    def chip(self) -> str | None: ...
    @property
    def precision(self) -> str | None: ...
    @property
    def batch(self) -> int | None: ...
    @property
    def tune(self) -> str | None: ...
    @property
    def failure_kind(self) -> str | None: ...
    @property
    def flags(self) -> Sequence[str]: ...
    @property
    def role(self) -> str: ...


STYLES = {"done": "green", "failed": "red", "invalid": "red", "running": "yellow"}
COLUMNS = (
    Column("run", style="cyan"),
    Column("started", drop=5),
    Column("workload"),
    Column("place", drop=1),
    Column("chip", drop=3),
    Column("batch", right=True, drop=4),
    Column("precision", drop=4),
    Column("tune", drop=2),
    Column("rate", right=True),
    Column("state"),
)
ROWS_FAILED = "rows-failed: "
# Ten characters of an id are its time to the millisecond: with the letter, enough to tell runs apart by.
SHORT_ID = 12


def print_runs(rows: Sequence[ListedRun]) -> None:
    """On a screen ids are as short as they can be; elsewhere they are whole."""
    console = standard_output()
    length = short_length([row.id for row in rows]) if is_screen(console) else None
    cells = [_cells(row, row.id[:length]) for row in rows]
    print_table(console, COLUMNS, cells, [STYLES.get(row.status, "") for row in rows])


def _cells(row: ListedRun, shown_id: str) -> list[str]:
    rate = f"{say_rate(row.rate_per_s)} {row.rate_unit}" if row.rate_per_s is not None else ""
    return [
        shown_id, say_moment(row.started_unix_s), row.workload, row.place, row.chip or "", str(row.batch or ""),
        row.precision or "", row.tune or "", rate, say_state(row),
    ]  # fmt: skip


def say_state(row: ListedRun) -> str:
    if row.failure_kind:
        return f"{row.status}: {row.failure_kind}: {row.failure_message or 'no reason is known'}"
    # A primer is cut short and cold: its rate is no result.
    said = f"{'primer, ' if row.role == 'primer' else ''}{row.steady or row.status}"
    # Of a list: its rate is over the other rows.
    failed = next((flag.removeprefix(ROWS_FAILED) for flag in row.flags if flag.startswith(ROWS_FAILED)), "")
    return f"{said}: {failed}" if failed else said


def short_length(ids: Sequence[str]) -> int:
    """How many characters tell these ids apart."""
    length = SHORT_ID
    for one, other in pairwise(sorted(ids)):
        common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        length = max(length, common + 1)
    return length
