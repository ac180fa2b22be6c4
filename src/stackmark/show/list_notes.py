"""A list as it is shown, and the sentences that bear on its rows: each once, below the table, by a number.

Notes that differ in numbers only are one, in the words of the first. What bears on every row has no number: it would stand at
the end of each.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from stackmark.show.lines import Line
from stackmark.verdict.operators import ListResult, RowResult

_NUMBERS = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True)
class Beside:
    """What somebody published for the same problem, and what one has to know of it."""

    seconds: float
    caveats: tuple[str, ...] = ()


@dataclass(frozen=True)
class RowView:
    """`beside` has a published time by the name of its column."""

    result: RowResult
    beside: Mapping[str, Beside] = field(default_factory=dict)


@dataclass(frozen=True)
class ListView:
    workload: str
    result: ListResult
    rows: tuple[RowView, ...]
    # Published columns, nearest first.
    published: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    repeat: str = ""


class Notes:
    """`sentences` are numbered from 1; `of_all` bear on every row."""

    def __init__(self, rows: Sequence[RowView]) -> None:
        words: dict[str, list[str]] = {}
        for row in rows:
            for key, sentence in _about(row).items():
                words.setdefault(key, []).append(sentence)
        of = len(rows)
        self.of_all = [_first_of(said, of) for said in words.values() if len(said) == of > 1]
        numbered = {key: said for key, said in words.items() if not len(said) == of > 1}
        self.sentences = [_first_of(said, of) for said in numbered.values()]
        self._numbers = {key: number for number, key in enumerate(numbered, start=1)}

    def of(self, row: RowView) -> str:
        return " ".join(map(str, sorted(self._numbers[key] for key in _about(row) if key in self._numbers)))


def _about(row: RowView) -> dict[str, str]:
    """Each sentence by its words without the numbers; a caveat with the columns that it is about."""
    limit = [f"limit: {row.result.limit}"] if row.result.limit else []
    columns: dict[str, list[str]] = {}
    for column, beside in row.beside.items():
        for caveat in beside.caveats:
            columns.setdefault(caveat, []).append(column)
    caveats = [f"{' and '.join(of)}: {caveat}" for caveat, of in columns.items()]
    found: dict[str, str] = {}
    for sentence in (*row.result.notes, *limit, *caveats):
        found.setdefault(_NUMBERS.sub("#", sentence), sentence)
    return found


def _first_of(said: Sequence[str], of: int) -> str:
    return f"{said[0]} ({len(said)} of {of} rows; the first is shown)" if len(set(said)) > 1 else said[0]
