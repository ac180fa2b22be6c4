"""Stored results next to published numbers, as one chart over several experiments."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from stackmark.api.ledgers import LedgerLike, opened
from stackmark.api.stored import verdicts_of
from stackmark.errors import SpecError
from stackmark.experiments.against_published import operator_pairs
from stackmark.schemas import with_schema
from stackmark.show.published_chart import published_png, published_svg, title_of_pairs
from stackmark.show.report.charts.published import drawn_pairs
from stackmark.show.writing import check_picture, write_picture
from stackmark.verdict.examined import Examined
from stackmark.verdict.published_pairs import PublishedPair


@dataclass(frozen=True)
class PublishedChart:
    """Benchmarks next to published numbers of the same metric; `missing` names those that have none."""

    pairs: tuple[PublishedPair, ...]
    missing: tuple[str, ...] = ()
    # Stands above the picture; by default it names the benchmark, or says how many there are.
    title: str = ""

    @property
    def drawn(self) -> int:
        """Return how many benchmarks the picture has room for; the others are only in `to_dict`."""
        return len(drawn_pairs(self.pairs))

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Draw it: SVG or PNG, by the name of the file."""
        target = Path(path)
        check_picture(target, "study.png")
        title = self.title or title_of_pairs(self.pairs)
        return write_picture(
            target,
            lambda: published_svg(self.pairs, title, self.missing),
            lambda: published_png(self.pairs, title, self.missing),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the figures, the differences and the sources for programs."""
        pairs = [asdict(one) | {"difference": one.difference} for one in self.pairs]
        return with_schema("published-chart", {"pairs": pairs, "missing": list(self.missing)})


def published_chart(experiments: str | Sequence[str] = "last", ledger: LedgerLike = None) -> PublishedChart:
    """Put the benchmarks of stored experiments next to the published numbers that come nearest.

    Raise an error where none of them has one of the same metric.
    """
    names = [experiments] if isinstance(experiments, str) else list(experiments)
    found = [one.examined for one in verdicts_of(names, ledger=ledger)]
    with opened(ledger) as book:
        pairs = [one.published_pairs or operator_pairs(book, one) for one in found]
    missing = tuple(_name(one) for one, of_it in zip(found, pairs, strict=True) if not of_it)
    if not any(pairs):
        raise SpecError(
            f"no published number of the same metric for {', '.join(missing)}",
            hint="search the table: stackmark published search WORDS; add a row: stackmark published add FILE.csv",
        )
    return PublishedChart(_distinguished([one.experiment_id for one in found], pairs), missing)


def _name(examined: Examined) -> str:
    return f"{examined.workload} ({examined.experiment_id})"


def _distinguished(names: Sequence[str], pairs: Sequence[Sequence[PublishedPair]]) -> tuple[PublishedPair, ...]:
    """Return all pairs; those of one name in several experiments carry the experiment's id."""
    every = [(name, pair) for name, of_it in zip(names, pairs, strict=True) for pair in of_it]
    counts = Counter(pair.benchmark for _, pair in every)
    return tuple(
        replace(pair, benchmark=f"{pair.benchmark}, {name}") if counts[pair.benchmark] > 1 and len(names) > 1 else pair
        for name, pair in every
    )
