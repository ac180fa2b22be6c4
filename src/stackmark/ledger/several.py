"""Read several ledgers as one: the runs of two machines whose ledgers were never joined.

Ids are unique, so a run is found in whichever ledger has it. The same run in two ledgers, as after an import, counts once; where
the two copies differ, one of them was changed, and nothing tells which.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from stackmark.errors import SpecError
from stackmark.ledger.rows import Experiment, RunDetail, RunFilter
from stackmark.ledger.store import Ledger


class StreamSource(Protocol):
    """What has the output of stored runs: a ledger, or several."""

    def stream(self, run_id: str) -> list[str]: ...


class SeveralLedgers:
    """Open ledgers, searched in the order in which they were named. They are closed by whoever opened them."""

    def __init__(self, books: Sequence[Ledger]) -> None:
        assert books
        self.books = tuple(books)
        self._of_run: dict[str, Ledger] = {}

    @property
    def first(self) -> Ledger:
        return self.books[0]

    @property
    def where(self) -> str:
        return ", ".join(book.where for book in self.books)

    def stream(self, run_id: str) -> list[str]:
        book = self._of_run.get(run_id) or next((one for one in self.books if one.has_run(run_id)), self.first)
        return book.stream(run_id)

    def run(self, name: str) -> RunDetail:
        """Return the run whose id starts like this, from the ledger that has it."""
        found = [(book, row) for book in self.books if (row := self._try_run(book, name))]
        (_, first), *others = found or [(self.first, self.first.run(name))]
        for book, row in others:
            self._refuse_two(first, row, book)
        self._of_run[first.id] = found[0][0] if found else self.first
        return first

    def experiment(self, name: str) -> tuple[Experiment, list[RunDetail]]:
        """Return the experiment whose id starts like this, with its runs."""
        if len(self.books) > 1 and name.strip().lower() == "last":
            raise SpecError("`last` is not clear with several ledgers", hint="name the experiment by its id x-…")
        *others, last = self.books
        for book in others:
            try:
                return self._with_runs(book, name)
            except SpecError:
                continue
        return self._with_runs(last, name)

    def values_of(self, column: str) -> list[str]:
        """Return the values that the runs have in an indexed column (workload, chip, place), sorted."""
        return sorted({value for book in self.books for value in book.values_of(column)})

    def every(self, within: Mapping[str, Sequence[str]], wanted: RunFilter) -> Iterator[Mapping[str, object]]:
        """Yield the columns of runs whose indexed columns have one of these values, ledger by ledger; a run may come twice."""
        for book in self.books:
            yield from book.every(wanted, within=within)

    def details(self, columns: Iterable[Mapping[str, object]]) -> list[RunDetail]:
        """Return the runs that these columns are of, each once; refuse two runs with one id."""
        found: dict[str, RunDetail] = {}
        for one in columns:
            row = RunDetail.model_validate(dict(one))
            if (known := found.setdefault(row.id, row)) is not row:
                self._refuse_two(known, row, self.books[-1])
        return list(found.values())

    def _with_runs(self, book: Ledger, name: str) -> tuple[Experiment, list[RunDetail]]:
        experiment = book.experiment(name)
        rows = book.runs_of(experiment.id)
        self._of_run |= {row.id: book for row in rows}
        return experiment, rows

    def _try_run(self, book: Ledger, name: str) -> RunDetail | None:
        if len(self.books) == 1:
            return book.run(name)
        try:
            return book.run(name)
        except SpecError:
            return None

    def _refuse_two(self, one: RunDetail, other: RunDetail, book: Ledger) -> None:
        if one == other:
            return
        if one.id != other.id:
            raise SpecError(f"{one.id} and {other.id} both begin like this", hint="use a longer id")
        raise two_versions(one.id, self.first.where, book.where)


def two_versions(id_: str, where: str, other: str) -> SpecError:
    """Refuse two different records under one id."""
    return SpecError(
        f"{id_} is in {where} and in {other}, but the two copies differ",
        hint=f"one of them was edited: look at both with `stackmark show {id_} --json --ledger …`, and delete the wrong one",
    )
