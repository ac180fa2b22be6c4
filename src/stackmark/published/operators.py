"""Look up published times of single operators: those of exactly one problem, to show next to a measurement.

A problem is an operator with its shape; a row has its shape in `extra`, in the names that the problems have. Nothing near is
taken for the same: a product with one more column may run another kernel and take twice the time. The exceptions are sizes that
DeepBench's lists and its sheets spell differently (`Source.spelled` of an operator): these are one problem, and it is said.

A list has hundreds of problems and the table thousands of rows, so rows are put into an index once.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from stackmark.published.chips import Chip, chip_distance, parse_chip
from stackmark.published.table import Published
from stackmark.spec import Scalar
from stackmark.workloads.op.definition import find_operator, known_operator, operator_of
from stackmark.workloads.op.problem import Operator

# How a row's note that speaks of such a size says so.
DRIFT_WORDS = "in DeepBench's list"
# The last part of a note: the precision in the source's own words, and no caveat.
PRINTED_AS = "precision printed as "
_SECONDS = {"ms": 1e-3, "us": 1e-6, "min": 60.0}
# Of each precision, which others say most about it, best first; all others come after.
_NEAREST_PRECISION: dict[str, tuple[str, ...]] = {
    "fp64": ("fp32",),
    "fp32": ("tf32",),
    "tf32": ("fp32", "bf16", "fp16"),
    "bf16": ("fp16", "mixed", "fp32"),
    "fp16": ("bf16", "mixed", "fp32"),
    "fp8": ("int8", "fp16", "bf16"),
    "int8": ("fp8", "fp16"),
}

Key = tuple[Scalar, ...]


@dataclass(frozen=True)
class NearPublished:
    """A published time of the same problem. `caveats` are the reasons why it cannot be compared precisely."""

    chip: str
    seconds: float
    precision: str
    caveats: tuple[str, ...]
    row: Published


class OperatorIndex:
    """Published rows of operators by problem."""

    def __init__(self, rows: Iterable[Published]) -> None:
        self._by_problem: dict[tuple[str, Key], list[Published]] = defaultdict(list)
        for row in rows:
            operator = operator_of(row.workload)
            if operator and (shape := problem_of(row)):
                self._by_problem[operator.name, problem_key(operator.name, shape)].append(row)

    def of(self, op: str, shape: Mapping[str, Scalar]) -> Sequence[Published]:
        """Return the rows of exactly this problem, in the order of their tables."""
        return self._by_problem.get((op, problem_key(op, shape)), ())


def problem_of(row: Published) -> dict[str, Scalar] | None:
    """Return the shape of a row with one problem's time; a user's own row may be a rate, or have no shape."""
    operator = operator_of(row.workload)
    if operator is None or not operator.fields or row.unit not in _SECONDS:
        return None
    shape = shape_of(operator, row)
    return None if None in shape.values() else shape


def seconds_of(row: Published) -> float:
    return row.value * _SECONDS[row.unit]


def shape_of(operator: Operator, row: Published) -> dict[str, Scalar]:
    """Return the sizes of a row in its operator's order, in its own numbers; None for a missing one."""
    values = {name: row.extra.get(name, axis.default) for name, axis in operator.fields.items()}
    return {name: value if isinstance(value, _SCALARS) else None for name, value in values.items()}


_SCALARS = (str, int, float)


def problem_key(op: str, shape: Mapping[str, Scalar]) -> Key:
    """Return a key that is equal for the same problem, in whatever order and spelling."""
    operator = known_operator(op)
    if operator is None:
        return ()
    if not operator.deepbench.spelled:
        return tuple([shape.get(name, axis.default) for name, axis in operator.fields.items()])
    return tuple([as_listed(operator, name, shape.get(name, axis.default)) for name, axis in operator.fields.items()])


def as_listed(operator: Operator, name: str, value: Scalar) -> Scalar:
    """Return a size in the list's own number where sheets have another."""
    return operator.deepbench.spelled.get(name, {}).get(value, value) if isinstance(value, int) else value


def caveats_of(row: Published) -> tuple[str, ...]:
    """Describe what is known to be wrong with a row: its note, without the precision as printed."""
    said = row.note.partition(PRINTED_AS)[0]
    words = [part.strip() for part in said.split(";") if part.strip()]
    place = row.extra.get("place")
    return (*words, f"measured in a {place}") if place and place != "host" else tuple(words)


CHIPS_SHOWN = ("P100", "V100")
# Columns of published times in the table of a list.
COLUMNS_SHOWN = 2


def published_for(
    rows: OperatorIndex | Sequence[Published],
    op: str,
    shape: Mapping[str, Scalar],
    precision: str,
    chip: str | None,
    chips: Sequence[str] = CHIPS_SHOWN,
    limit: int | None = None,
) -> list[NearPublished]:
    """Return published times of exactly this problem next to one measured on `chip`, one per chip.

    The same chip comes first, then those of its vendor and kind, then those of its kind (the only CPU for a CPU), then all
    others; among equals `chips` in their order, so that a list has the same ones in every row as far as they were published,
    and then the newest. As many as `chips`, or two, unless `limit` says otherwise. Of a chip the row with the nearest
    precision is taken, the newest of those. Who asks for many problems makes the index once.
    """
    index = rows if isinstance(rows, OperatorIndex) else OperatorIndex(rows)
    of_chip: dict[Chip, list[Published]] = defaultdict(list)
    for row in sorted(index.of(op, shape), key=lambda row: row.date, reverse=True):
        of_chip[_chip(row.chip)].append(row)
    # The first of equals is the newest; one that was measured in a container or a pod comes after one that was not.
    chosen = [
        min(some, key=lambda row: (_far(precision, row.precision), bool(row.extra.get("place"))))
        for some in of_chip.values()
    ]
    chosen.sort(key=lambda row: row.date, reverse=True)
    chosen.sort(key=lambda row: _distance(row.chip, chip, tuple(chips)))
    most = limit if limit is not None else max(len(chips), 2)
    return [
        NearPublished(row.chip, seconds_of(row), row.precision, tuple(_caveats(row, op, shape, precision)), row)
        for row in chosen[:most]
    ]


def published_for_list(
    index: OperatorIndex,
    op: str,
    shapes: Sequence[Mapping[str, Scalar]],
    precision: str,
    chip: str | None,
) -> tuple[tuple[str, ...], list[dict[str, NearPublished]]]:
    """Return the published times for a list as a table shows them: the chips of its columns, and each row's times.

    Columns are chosen for the whole list, in the order of `published_for`. A chip that has a time for few of the problems (less
    than half as many as the one that has most) comes after all others: a column of a few cells says little of a list.
    """
    of_rows = [published_for(index, op, shape, precision, chip, limit=_ALL) for shape in shapes]
    covered: dict[str, int] = defaultdict(int)
    newest: dict[str, str] = defaultdict(str)
    for found in (one for of_row in of_rows for one in of_row):
        covered[found.chip] += 1
        newest[found.chip] = max(newest[found.chip], found.row.date)
    names = sorted(newest, key=lambda name: newest[name], reverse=True)
    most = max(covered.values(), default=0)
    names.sort(key=lambda name: (2 * covered[name] < most, *_distance(name, chip, CHIPS_SHOWN)))
    columns = {name: _chip(name).short for name in names[:COLUMNS_SHOWN]}
    by_column = [{columns[one.chip]: one for one in of_row if one.chip in columns} for of_row in of_rows]
    return tuple(columns.values()), by_column


# More chips than any problem was published for.
_ALL = 1000


def _far(precision: str, other: str) -> int:
    if precision == other:
        return 0
    near = _NEAREST_PRECISION.get(precision, ())
    return 1 + near.index(other) if other in near else 1 + len(near)


@cache
def _distance(name: str, mine: str | None, wanted: tuple[str, ...]) -> tuple[int, ...]:
    its, here = _chip(name), _chip(mine) if mine else None
    place = next((i for i, asked in enumerate(wanted) if _same_model(_chip(asked), its)), len(wanted))
    if here is None:
        return (1, 1, 1, place)
    kind = its.kind != here.kind
    return (chip_distance(here, its) > 1, kind or its.vendor != here.vendor, kind, place)


def _same_model(one: Chip, other: Chip) -> bool:
    return (one.kind, one.vendor, one.model) == (other.kind, other.vendor, other.model)


def _caveats(row: Published, op: str, shape: Mapping[str, Scalar], precision: str) -> Iterator[str]:
    operator = find_operator(op)
    if row.precision != precision:
        yield f"{row.precision} instead of {precision}"
    if operator.deepbench.caveat:
        yield operator.deepbench.caveat
    said = caveats_of(row)
    its = shape_of(operator, row)
    for name in operator.deepbench.spelled:
        # The row says it itself where its own size is the one that is not the list's.
        if its[name] != shape.get(name) and not any(DRIFT_WORDS in words for words in said):
            yield f"{name} = {its[name]} instead of {shape.get(name)}"
    yield from said


# Few chips have many rows.
_chip = cache(parse_chip)
