"""A list of problems in a terminal: a line each, then what the list came to.

A row that failed stands in its place, with its sentence where the numbers would be. On a screen as many columns are shown as
there is room for, the least important left out first; in a pipe all of them, a row a line. Caveats that bear on a row are
numbers at its end, and sentences below the table, each once.
"""

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from stackmark.experiments.operator_list import ListedRuns
from stackmark.published.operators import NearPublished, OperatorIndex, published_for_list
from stackmark.show.safe import safe_line
from stackmark.show.terminal import GAP, Column, Line, fitting, is_screen, print_left_out
from stackmark.units import say_rate, say_seconds, scale_rate
from stackmark.verdict.collectives import ALGORITHM, BUS, DEEPBENCH, Bandwidths, bandwidths
from stackmark.verdict.operators import ListResult, RowResult
from stackmark.workloads.op.definition import say_problem
from stackmark.workloads.op.problem import BYTES_RATE, RATE_SCALE

# Of a kernel's name on a screen: templates have hundreds of characters.
KERNEL_CHARACTERS = 36
# A sentence that is folded under its row has at least this room; on a narrower screen it begins at the margin.
SENTENCE_AT_LEAST = 24
# From here on a share is no way to say it.
WIDE = 0.5
# Two runs that differ by a third give such a factor: it says that nothing is known.
UNKNOWN = 100
_NUMBERS = re.compile(r"\d[\d.,]*")


@dataclass(frozen=True)
class PublishedTimes:
    """What was published for the problems of a list: the head of the column of each chip, and what each row has by chip."""

    columns: Mapping[str, str] = field(default_factory=dict)
    found: Sequence[Mapping[str, NearPublished]] = ()

    @classmethod
    def of(cls, listed: ListedRuns, known: OperatorIndex) -> "PublishedTimes":
        shown = listed.result.rows
        if not shown:
            return cls({}, [{} for _ in shown])
        run, first = listed.shown_run(), shown[0]
        chips, found = published_for_list(
            known, first.op, [row.shape for row in shown], first.precision, run.chip if run else None
        )
        columns = {}
        for chip in chips:
            precisions = {of_row[chip].precision for of_row in found if chip in of_row}
            name = chip.removeprefix("Intel ").removeprefix("AMD ")  # a column has little room for its head
            columns[chip] = f"{name} {precisions.pop()}" if len(precisions) == 1 else name
        return cls(columns, found)

    def rows(self, result: ListResult) -> list["_Row"]:
        """Return each row with what its columns have."""
        found = self.found or [{} for _ in result.rows]
        return [
            _Row(row, {self.columns[chip]: one for chip, one in of_row.items()})
            for row, of_row in zip(result.rows, found, strict=True)
        ]

    def lines(self) -> list[Line]:
        """Whose they are."""
        said = []
        for chip, column in self.columns.items():
            rows = [of_row[chip].row for of_row in self.found if chip in of_row]
            sources = dict.fromkeys(
                f"{row.source}, {row.date}, {row.framework or 'library not stated'}" for row in rows
            )
            said.append(f"{column}: {len(rows)} of {len(self.found)} problems; {'; '.join(sources)}")
        context = "next to each time, how many times as fast this is; another recipe, so it is context"
        return [("published", "\n".join([*said, context]))] if said else []

    def json(self, result: ListResult) -> list[list[dict[str, JsonValue]]]:
        return [
            [
                {
                    "chip": one.chip, "seconds": one.seconds, "precision": one.precision, "caveats": list(one.caveats),
                    "times_as_fast": one.seconds / row.seconds if row.seconds else None, "source": one.row.source,
                    "date": one.row.date, "framework": one.row.framework,
                }
                for one in of_row.values()
            ]
            for row, of_row in zip(result.rows, self.found, strict=True)
        ]  # fmt: skip


def caveats_of(one: NearPublished, column: str) -> tuple[str, ...]:
    """What one has to know of it. The head of its column has the precision, where all rows of it have the same."""
    said = f"{one.precision} instead of"
    known = column.endswith(one.precision)
    return tuple(caveat for caveat in one.caveats if not (known and caveat.startswith(said)))


NO_TIMES = PublishedTimes()


# --- the table ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    """A row, and what was published for it by the head of its column."""

    result: RowResult
    published: Mapping[str, NearPublished]


@dataclass(frozen=True)
class _Shown:
    """A column with how its cell is made; `style` is the column's."""

    column: Column
    cell: Callable[[_Row], str]


def print_rows(result: ListResult, console: Console, times: PublishedTimes = NO_TIMES) -> None:
    rows = times.rows(result)
    notes = _Notes(rows)
    shown = [*_columns(result, times), _Shown(Column("notes"), notes.of)]
    if not notes.sentences:
        shown.pop()
    screen = is_screen(console)
    cells = [[safe_line(one.cell(row)) for one in shown] for row in rows]
    columns = [one.column for one in shown]
    widths = [max(map(cell_len, (column.name, *texts))) for column, *texts in zip(columns, *cells, strict=True)]
    if screen:
        widths = [
            min(width, KERNEL_CHARACTERS) if c.name == "kernel" else width
            for c, width in zip(columns, widths, strict=True)
        ]
    everything = list(range(len(columns)))
    never = [i for i in everything if not columns[i].drop]
    kept = (fitting(columns, widths, console.width) or never) if screen else everything
    _line(console, columns, widths, kept, [column.name for column in columns], head=True)
    for row, texts in zip(rows, cells, strict=True):
        if row.result.seconds is None:
            _failure(console, widths, row, texts)
        else:
            _line(console, columns, widths, kept, texts)
            if row.result.failure:
                _failure(console, widths, row, texts, again=True)
    left_out = [column.name for index, column in enumerate(columns) if index not in kept]
    if left_out:
        print_left_out(console, left_out)
    for sentence in notes.of_all:
        _note(console, "", safe_line(sentence))
    for number, sentence in enumerate(notes.sentences, start=1):
        _note(console, str(number), safe_line(sentence))


def _columns(result: ListResult, times: PublishedTimes) -> list[_Shown]:
    rows = result.rows
    factor, unit = scale_rate(result.unit, result.geometric_mean)
    shown = [
        _Shown(Column("#", right=True, style="dim"), lambda row: str(row.result.index)),
        _Shown(Column("problem", style="cyan"), lambda row: say_problem(row.result.op, row.result.shape)),
        _Shown(Column("time", right=True), lambda row: _seconds(row.result.seconds)),
        _Shown(Column("±", right=True, drop=7), lambda row: say_half_width(row.result)),
    ]
    if any("ranks" in row.shape for row in rows):
        # Three figures that are all called a bandwidth, each under its own name.
        shown += [
            _Shown(Column(name, right=True, drop=drop, style="bold green" if not drop else ""), _bandwidth(name))
            for name, drop in ((ALGORITHM, 0), (BUS, 8), (DEEPBENCH, 3))
        ]
    else:
        shown.append(_Shown(Column(unit, right=True, style="bold green"), lambda row: _rate(row.result.rate, factor)))
    if len({row.precision for row in rows}) > 1:
        shown.insert(2, _Shown(Column("precision", drop=8), lambda row: row.result.precision))
    if any(row.limit_share for row in rows):
        shown.append(_Shown(Column("limit", right=True, drop=5), lambda row: _limit(row.result, factor)))
        shown.append(_Shown(Column("of limit", right=True, drop=6), lambda row: _share(row.result.limit_share)))
    shown += [
        _Shown(Column(name, right=True, drop=max(6 - place, 4)), _published(name))
        for place, name in enumerate(times.columns.values())
    ]
    if result.unit != BYTES_RATE:
        shown.append(_Shown(Column("GB/s", right=True, drop=2), lambda row: _rate(row.result.gb_per_s)))
    if any(row.error is not None for row in rows):
        shown.append(_Shown(Column("error", right=True, drop=3), lambda row: _error(row.result)))
    shown.append(_Shown(Column("first call", right=True, drop=1), lambda row: _seconds(row.result.first_call_s)))
    if any(row.kernels for row in rows):
        shown.append(_Shown(Column("kernel", drop=1), lambda row: ", ".join(row.result.kernels)))
    return shown


def _bandwidth(name: str) -> Callable[[_Row], str]:
    def cell(row: _Row) -> str:
        found = bandwidths_over(row.result)
        return say_rate(found.by_name()[name]) if found else ""

    return cell


def bandwidths_over(row: RowResult) -> Bandwidths | None:
    """Of a collective, over its runs."""
    ranks = row.shape.get("ranks")
    if not isinstance(ranks, int) or not row.seconds or not row.least_bytes:
        return None
    return bandwidths(row.op, ranks, row.least_bytes, row.seconds, row.limit_per_s, row.limit)


def _published(name: str) -> Callable[[_Row], str]:
    """`207 ms 12.3×`: the published time, and how many times as fast this is."""

    def cell(row: _Row) -> str:
        found = row.published.get(name)
        if found is None:
            return ""
        ratio = f" {say_times(found.seconds / row.result.seconds):>6}" if row.result.seconds else ""
        return f"{say_seconds(found.seconds)}{ratio}"

    return cell


def say_times(ratio: float) -> str:
    """`0.0052×`, `0.31×`, `12.3×`, `140×`."""
    if ratio < 0.095:
        return f"{ratio:.2g}×"
    return f"{ratio:.0f}×" if ratio >= 99.5 else f"{ratio:.1f}×" if ratio >= 9.95 else f"{ratio:.2f}×"


def say_half_width(row: RowResult) -> str:
    """Half of the interval; of one that reaches as far as the time itself, the factor by which it may be off."""
    if row.half_width is None or row.seconds is None or row.high_s is None:
        return ""
    if row.half_width >= WIDE:
        factor = row.high_s / row.seconds
        return f"×{factor:.2g}" if factor < UNKNOWN else f">×{UNKNOWN}"
    return f"{100 * row.half_width:.2g} %"


def _seconds(seconds: float | None) -> str:
    return say_seconds(seconds) if seconds is not None else ""


def _rate(rate: float | None, factor: float = 1.0) -> str:
    return say_rate(factor * rate) if rate is not None else ""


def _share(share: float | None) -> str:
    return f"{100 * share:.0f} %" if share is not None else ""


def _limit(row: RowResult, factor: float) -> str:
    return say_rate(factor * row.limit_per_s / RATE_SCALE[row.unit]) if row.limit_per_s else ""


def _error(row: RowResult) -> str:
    return f"{row.error:.1e}" if row.error is not None else ""


def _line(
    console: Console,
    columns: Sequence[Column],
    widths: Sequence[int],
    kept: Sequence[int],
    texts: Sequence[str],
    *,
    head: bool = False,
) -> None:
    line = Text()
    for i in kept:
        text = texts[i] if cell_len(texts[i]) <= widths[i] else f"{texts[i][: widths[i] - 1]}…"
        space = " " * (widths[i] - cell_len(text))
        line.append(" " * GAP if line.plain else "")
        line.append(space + text if columns[i].right else text + space, style="bold" if head else columns[i].style)
    _print(console, line)


def _failure(console: Console, widths: Sequence[int], row: _Row, texts: Sequence[str], *, again: bool = False) -> None:
    """Number and problem, as in the other lines, and the sentence; under a row that has a time, indented."""
    failure = row.result.failure
    said = safe_line(failure.message or failure.kind) if failure else "no reason is known"
    of = f" in {row.result.failed_runs} of {row.result.failed_runs + row.result.runs} runs" if again else ""
    head = "" if again else f"{texts[0]:>{widths[0]}}{' ' * GAP}{texts[1]:<{widths[1]}}{' ' * GAP}"
    indent = cell_len(head) if head else widths[0] + GAP
    sentence = f"failed{of}: {said}"
    if is_screen(console) and console.width - indent >= SENTENCE_AT_LEAST:
        folded = textwrap.wrap(sentence, console.width - indent) or [""]
    else:
        folded = [sentence]
    for number, part in enumerate(folded):
        line = Text(head if number == 0 and head else " " * indent)
        line.append(part, style="red")
        _print(console, line)


def _print(console: Console, line: Text) -> None:
    if is_screen(console):
        line.rstrip()
        console.print(line, soft_wrap=True)
    else:
        print(line.plain.rstrip(), file=console.file)


def _note(console: Console, number: str, sentence: str) -> None:
    """Without a number it is of all rows."""
    if not is_screen(console):
        print(f"note {number or 'of all rows'}: {sentence}", file=console.file)
        return
    for place, part in enumerate(textwrap.wrap(sentence, max(console.width - 5, SENTENCE_AT_LEAST))):
        console.print(Text(f"{(number or 'all') if place == 0 else '':>3}  {part}", style="dim"), soft_wrap=True)


# --- the notes below it -------------------------------------------------------------------------------------------------


class _Notes:
    """The sentences that bear on rows, each once, below the table, by a number from 1; `of_all` bear on every row.

    Notes that differ in numbers only are one, in the words of the first. What bears on every row has no number: it would
    stand at the end of each.
    """

    def __init__(self, rows: Sequence[_Row]) -> None:
        words: dict[str, list[str]] = {}
        for row in rows:
            for key, sentence in _about(row).items():
                words.setdefault(key, []).append(sentence)
        of = len(rows)
        self.of_all = [_first_of(said, of) for said in words.values() if len(said) == of > 1]
        numbered = {key: said for key, said in words.items() if not len(said) == of > 1}
        self.sentences = [_first_of(said, of) for said in numbered.values()]
        self._numbers = {key: number for number, key in enumerate(numbered, start=1)}

    def of(self, row: _Row) -> str:
        return " ".join(map(str, sorted(self._numbers[key] for key in _about(row) if key in self._numbers)))


def _about(row: _Row) -> dict[str, str]:
    """Each sentence by its words without the numbers; a caveat with the columns that it is about."""
    limit = [f"limit: {row.result.limit}"] if row.result.limit else []
    columns: dict[str, list[str]] = {}
    for column, near in row.published.items():
        for caveat in caveats_of(near, column):
            columns.setdefault(caveat, []).append(column)
    caveats = [f"{' and '.join(of)}: {caveat}" for caveat, of in columns.items()]
    found: dict[str, str] = {}
    for sentence in (*row.result.notes, *limit, *caveats):
        found.setdefault(_NUMBERS.sub("#", sentence), sentence)
    return found


def _first_of(said: Sequence[str], of: int) -> str:
    return f"{said[0]} ({len(said)} of {of} rows; the first is shown)" if len(set(said)) > 1 else said[0]
