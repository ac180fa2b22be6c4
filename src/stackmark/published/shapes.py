"""Search published times of operators by their sizes, as in `published search op/gemm --m 7680 …`, and show a table.

Sizes that were not typed may be anything, so that the three of a matrix product find it with either operand transposed. What
all rows of the answer have in common is said once, above the table; what they differ in stands in a column.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from stackmark.errors import SpecError
from stackmark.published.chips import parse_chip
from stackmark.published.operators import as_listed, caveats_of, problem_of, seconds_of
from stackmark.published.table import Published
from stackmark.spec import Scalar
from stackmark.units import counted
from stackmark.workloads.op.definition import (
    NAME,
    check_set,
    find_operator,
    operator_of,
    read_problem,
    read_values,
    sets_of,
)
from stackmark.workloads.op.problem import Operator

EXAMPLE = "stackmark published search op/gemm --m 7680 --n 48000 --k 2560"
_ROOM = 2**40
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ShapeQuery:
    """An operator, some of its sizes, a set; `words` are the other words typed."""

    op: str
    sizes: Mapping[str, Scalar]
    set_name: str | None
    words: tuple[str, ...]


def read_asked(
    words: Sequence[str], sizes: Mapping[str, str | None], shape: str | None, set_name: str | None
) -> ShapeQuery | None:
    """Read sizes and set; None where none was typed: then it is a search by words. Raise a sentence for errors."""
    typed: dict[str, Scalar] = {name: value for name, value in sizes.items() if value is not None}
    if not typed and shape is None and set_name is None:
        return None
    named = next((word for word in words if word.startswith(f"{NAME}/")), None)
    if named is None:
        raise SpecError("sizes and sets need an operator", hint=f"for example: {EXAMPLE}")
    op = named.removeprefix(f"{NAME}/")
    check_set(op, set_name if set_name is not None else sets_of(op)[0])
    fields = find_operator(op).fields
    if not fields:
        raise SpecError(f"op/{op} has no sizes to search for")
    values = read_values(op, shape or "")
    if shape is not None and not values:
        raise SpecError("--shape must not be empty", hint=f"sizes of op/{op} are {', '.join(fields)}")
    for name, value in values.items():
        if name in typed:
            raise SpecError(f"{name} is given twice: --{name} {typed[name]} and --shape {name}={value}")
        typed[name] = value
    return ShapeQuery(op, _checked(op, typed), set_name, tuple(word for word in words if word != named))


def _checked(op: str, typed: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The sizes as a problem has them. The others are filled with what fits to any: an image with room for every filter."""
    fields = find_operator(op).fields
    filled = {name: 1 for name, size in fields.items() if size.default is None}
    filled |= {name: _ROOM for name in ("w", "h", "pad_w", "pad_h") if name in fields}
    shape = read_problem(op, {**filled, **typed}).shape
    return {name: shape[name] for name in fields if name in typed}


def matching(rows: Iterable[Published], asked: ShapeQuery) -> list[Published]:
    """Return the times of these sizes by shape, newest first, shortest first."""
    operator = find_operator(asked.op)
    wanted = {name: as_listed(operator, name, value) for name, value in asked.sizes.items()}
    found: list[tuple[tuple[str, ...], Published]] = []
    for row in rows:
        shape = problem_of(row) if row.workload == f"{NAME}/{asked.op}" else None
        if shape is None or (asked.set_name is not None and row.extra.get("set") != asked.set_name):
            continue
        if all(as_listed(operator, name, shape[name]) == value for name, value in wanted.items()):
            found.append((tuple(f"{value:>20}" for value in shape.values()), row))
    found.sort(key=lambda one: seconds_of(one[1]))
    found.sort(key=lambda one: one[1].date, reverse=True)
    found.sort(key=lambda one: one[0])
    return [row for _, row in found]


def why_none(rows: Iterable[Published], asked: ShapeQuery) -> str:
    """Say what there is, where no row has these sizes or none of them matches the words."""
    if of_sizes := matching(rows, asked):
        return f"of the {counted(len(of_sizes), 'row')} of these sizes, none fits {' '.join(asked.words)!r}"
    of_op = matching(rows, replace(asked, sizes={}))
    if not of_op:
        its_set = f", set {asked.set_name}," if asked.set_name else ""
        return f"the table has no times for op/{asked.op}{its_set}"
    alone = {name: len(matching(of_op, replace(asked, sizes={name: value}))) for name, value in asked.sizes.items()}
    missing = [name for name, number in alone.items() if not number]
    if not missing:
        counts = (f"{name}={_say(asked.sizes[name])} {counted(number, 'row')}" for name, number in alone.items())
        return f"no row of op/{asked.op} has all of these sizes; separately: {', '.join(counts)}"
    said = [f"{name}={_say(asked.sizes[name])}{_nearest(name, asked.sizes[name], of_op)}" for name in missing]
    return f"no row of op/{asked.op} has {' or '.join(said)}"


def _nearest(name: str, value: Scalar, rows: Iterable[Published]) -> str:
    """The numbers that there are below and above."""
    there = {shape[name] for row in rows if (shape := problem_of(row))}
    if isinstance(value, str | bool | None):
        return ""
    numbers = sorted(number for number in there if isinstance(number, int | float))
    near = [
        *[number for number in numbers if number < value][-1:],
        *[number for number in numbers if number > value][:1],
    ]
    return f" (the nearest: {' and '.join(map(str, near))})" if near else ""


# --- the table ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """One time in words: in milliseconds, on which chip, and which of the table's notes apply."""

    ms: str
    chip: str
    precision: str
    sizes: str
    notes: str
    date: str
    framework: str
    source: str
    added: bool


@dataclass(frozen=True)
class OperatorTable:
    """A table of times. `title` says what all rows have in common; `notes` are letters and their meanings."""

    title: str
    lines: tuple[Line, ...]
    notes: tuple[tuple[str, str], ...]


def is_timing(row: Published) -> bool:
    return problem_of(row) is not None


def table_of(rows: Sequence[Published]) -> OperatorTable:
    """Make a table of the rows of one operator."""
    operator = operator_of(rows[0].workload)
    assert operator is not None, rows[0].workload
    shapes = [problem_of(row) or {} for row in rows]
    together = [
        names for names in _together(operator) if len({tuple(shape[name] for name in names) for shape in shapes}) == 1
    ]
    same = {name for names in together for name in names}
    letters: dict[str, str] = {}
    lines = []
    for row, shape in zip(rows, shapes, strict=True):
        words = caveats_of(row)
        for one in words:
            letters.setdefault(one, _LETTERS[len(letters)] if len(letters) < len(_LETTERS) else f"{len(letters)}")
        chip = parse_chip(row.chip).short
        lines.append(
            Line(
                ms=f"{seconds_of(row) * 1000:,.10g}",
                chip=f"{row.count} × {chip}" if row.count > 1 else chip,
                precision=row.precision,
                sizes=_say_sizes(operator, {name: value for name, value in shape.items() if name not in same}),
                notes=" ".join(sorted(letters[one] for one in words)),
                date=row.date,
                framework=row.framework,
                source=row.source + (f" (added by you, {row.added})" if row.added else ""),
                added=bool(row.added),
            )
        )
    common = _say_sizes(operator, {name: value for name, value in shapes[0].items() if name in same})
    return OperatorTable(
        f"{rows[0].workload} {common}".strip(), tuple(lines), tuple((letter, one) for one, letter in letters.items())
    )


# Sizes that are said as one: `TN`, `filter 5×5`, `pad 2`.
_PAIRS = {
    ("a_t", "b_t"): "",
    ("filter_w", "filter_h"): "filter",
    ("pad_w", "pad_h"): "pad",
    ("stride_w", "stride_h"): "stride",
}


def _together(operator: Operator) -> list[tuple[str, ...]]:
    """The names of an operator's sizes, those that are said as one in one."""
    paired = {name: pair for pair in _PAIRS for name in pair}
    return list(dict.fromkeys(paired.get(name, (name,)) for name in operator.fields))


def _say_sizes(operator: Operator, shape: Mapping[str, Scalar]) -> str:
    """`512×24000×1530 TN`, `k=48 filter 5×5 pad 2 forward`: a word stands for itself."""
    said = []
    first = operator.product
    if first and shape.keys() >= set(first):
        said.append("×".join(f"{shape[name]}" for name in first))
        shape = {name: value for name, value in shape.items() if name not in first}
    for names in _together(operator):
        if not shape.keys() >= set(names):
            continue
        values = [shape[name] for name in names]
        if names == ("a_t", "b_t"):
            said.append("".join("T" if value else "N" for value in values))
        elif names in _PAIRS:
            said.append(
                f"{_PAIRS[names]} " + "×".join(map(str, values if names[0] == "filter_w" else dict.fromkeys(values)))
            )
        else:
            said.append(values[0] if isinstance(values[0], str) else f"{names[0]}={_say(values[0])}")
    return " ".join(said)


def _say(value: Scalar) -> str:
    return f"{value:d}" if isinstance(value, bool) else f"{value}"
