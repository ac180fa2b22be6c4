"""Find published rows that cannot be true or cannot be used, with the reason and the line of each.

Refusing is for what is impossible, not for what is surprising. The one physical check is scaling: n devices that do more
than n times the work of one, in the same table, with the same recipe, mean that one of the two numbers is another thing than
its label says (a table in circulation gives 19.6 times for eight GPUs). It is not applied to times to a target, where another
number of devices is another global batch and so another training, nor to latencies and watts.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from itertools import repeat

from stackmark.published.table import Published

# How far n devices may lie above n times one: caches and clocks give some per cent, a rounded table some more. The most in
# the shipped table is 4.9 %, next to a number printed as 23.
SCALING_TOLERANCE = 0.05
RATES = frozenset({"images/s", "sequences/s", "samples/s", "tokens/s", "queries/s", "samples/query", "TFLOP/s"})
_RECIPE = ("source", "model", "task", "chip", "framework", "precision", "batch", "unit", "data")
# Of `extra`, what makes two rows two things; a submitter's name is one of them.
_DISTINCT = (
    "scenario", "division", "submitter", "category", "sequence_length", "compiler", "layout", "sparsity", "metric",
    "place", "variant", "m", "n", "k", "transpose", "batch_with_accumulation", "global_batch",
)  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """An error in a row: `line` of the file, or 0 where the row came from none."""

    line: int
    reason: str


def too_fast(
    rows: Sequence[Published], others: Iterable[Published] = (), *, lines: Sequence[int] = ()
) -> Iterator[Finding]:
    """Return those of `rows` that are too fast for a row of the same recipe with another number of devices.

    That other row may be one of `rows` or of `others`; where it is the one of `others` that is too fast, the new row is
    refused all the same, since it is the new one that can still be put right.
    """
    recipes: dict[tuple[object, ...], list[Published]] = defaultdict(list)
    older: dict[tuple[object, ...], list[Published]] = defaultdict(list)
    for row in rows:
        recipes[_recipe(row)].append(row)
    for row in others:
        older[_recipe(row)].append(row)
    for row, line in zip(rows, lines or repeat(0), strict=False):
        if row.unit not in RATES:
            continue
        recipe = _recipe(row)
        known = [*recipes[recipe], *older.get(recipe, ())]
        pairs = [(few, row) for few in _best(other for other in known if other.count < row.count)]
        pairs += [(row, many) for many in _best(other for other in older.get(recipe, ()) if other.count > row.count)]
        if pairs:
            few, many = max(pairs, key=lambda pair: _scaling(*pair))
            if _scaling(few, many) > 1 + SCALING_TOLERANCE:
                yield Finding(line, _say(few, many))


def _best(rows: Iterable[Published]) -> list[Published]:
    """Of each number of devices the best: a source may print several runs, and the slow one proves nothing."""
    best: dict[int, Published] = {}
    for row in rows:
        if row.count not in best or row.value > best[row.count].value:
            best[row.count] = row
    return list(best.values())


def _scaling(few: Published, many: Published) -> float:
    """1 where n times the devices do n times the work."""
    return (many.value / many.count) / (few.value / few.count)


def _say(few: Published, many: Published) -> str:
    times, devices = many.value / few.value, many.count / few.count
    return (
        f"{many.value:,.10g} {many.unit} with {many.count} × {many.chip} is {times:.3g} times the {few.value:,.10g} of "
        f"{few.count} ({many.model}, {many.source}): {devices:g} times the devices do not do more than {devices:g} times "
        f"the work ({SCALING_TOLERANCE * 100:g} % more is allowed)"
    )


def _recipe(row: Published) -> tuple[object, ...]:
    return (*(getattr(row, name) for name in _RECIPE), *(str(row.extra.get(name, "")) for name in _DISTINCT))


def date_trouble(text: str, *, now: datetime | None = None) -> str | None:
    """Return why a date (YYYY-MM or YYYY-MM-DD) cannot be that of a publication, or None."""
    try:
        first = date.fromisoformat(text if len(text) > 7 else f"{text}-01")
    except ValueError:
        return f"date {text!r} is not YYYY-MM or YYYY-MM-DD"
    if first.year < 2000:
        return f"date {text!r} is too early: was a clock not set?"
    # Somewhere it is tomorrow already.
    if first > (now or datetime.now(UTC)).date() + timedelta(days=1):
        return f"date {text!r} is in the future"
    return None
