"""What is said of a suite, decided once: each cell in words, what failed, what to beware of, what to do, the method.

The terminal (suite.py), the page and the Markdown (report/suite.py) and the pictures (report/charts/) lay the same texts out.
Ratios in a table are of rates, so that more is better in every row, also where the figure is a time. Their intervals are the 95 %
intervals, as those of the rates next to them.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from stackmark.figures import FigureUnit
from stackmark.show.safe import short_id
from stackmark.show.sections import NO_REASON, SIGNS, Headline, Sections
from stackmark.show.wording import say_spread, signed
from stackmark.units import counted, say_multiple, say_span
from stackmark.verdict.cautions import INTERFERENCE, Caution, caution, in_order
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.needed import percent
from stackmark.verdict.suite import NAMED, Mark, SuiteCell, SuiteResult, SuiteRow

# A mark as it stands next to a number, and what it means.
MARKS: Mapping[Mark, tuple[str, str]] = {
    "disturbed": ("~", "other programs used the machine"),
    "one-run": ("¹", "one run: no interval"),
    "unusable": ("!", "not usable: its runs differ by a factor"),
    "open": ("…", "not finished"),
    "failed": ("×", "failed"),
}
# Up to this factor a ratio is a difference in per cent.
MOST_PER_CENT = 2.0
# Half of an interval in per cent up to which it is written with ±; a wider one is not symmetric any more.
MOST_HALF = 20.0
# Kinds of warnings that marks say already.
MARKED_KINDS = (INTERFERENCE, "few-runs", "not-usable")
# Stands in a column that a row has no cell for.
EXCLUDED = "–"
# What the worst word of a suite is called where nothing is judged.
FAILED, UNFINISHED, MEASURED, NOTHING_MEASURED = "FAILED", "NOT FINISHED", "MEASURED", "NO RESULT"


@dataclass(frozen=True)
class CellText:
    """A cell in words; a text is empty where there is no such number."""

    cell: SuiteCell
    # `4,799 images/s`, without its unit `4,799`, and `± 0.05 %`; instead of them `state` says why there is no number.
    figure: str = ""
    number: str = ""
    spread: str = ""
    state: str = ""
    # Against the reference: `−3.1 ± 0.3 %`, `▼`, `SLOWER`, and the name of its colour.
    change: str = ""
    sign: str = ""
    word: str = ""
    colour: str = "plain"
    marks: str = ""

    @property
    def rate(self) -> str:
        """The rate with its interval and its marks, or what there is instead."""
        return _together(self.figure, self.spread, self.marks) if self.figure else _together(self.marks, self.state)

    @property
    def bare_rate(self) -> str:
        """As `rate`, where the unit stands elsewhere."""
        return _together(self.number, self.spread, self.marks) if self.figure else _together(self.marks, self.state)

    @property
    def verdict(self) -> str:
        """`▼ −3.1 ± 0.3 % SLOWER`."""
        return _together(self.sign, self.change, self.word)


@dataclass(frozen=True)
class FailedCells:
    """Cells that failed for the same reason, in the same words."""

    names: tuple[str, ...]
    kind: str
    message: str
    hint: str


def _together(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def say_shift(comparison: Comparison) -> str:
    """Say a ratio with its 95 % interval: `−3.1 ± 0.3 %`, `+10 % (−50 to +62)`, `×2.41 ± 1.2 %`."""
    change, interval = shift_parts(comparison)
    # One sign of per cent is enough for both.
    return _together(change.removesuffix(" %") if interval.startswith("±") else change, interval)


def shift_parts(comparison: Comparison) -> tuple[str, str]:
    """Say a ratio and, apart from it, its 95 % interval: `−3.1 %` and `± 0.3 %`. Without an interval the second is empty."""
    ratio, interval = comparison.ratio, comparison.interval_95
    if not 1 / MOST_PER_CENT < ratio < MOST_PER_CENT:
        return f"×{say_multiple(ratio)}", _say_factor(math.sqrt(interval.high / interval.low)) if interval else ""
    change = 100 * (ratio - 1)
    if interval is None:
        return f"{signed(change, 1)} %", ""
    half = 50 * (interval.high - interval.low)
    if half > MOST_HALF:
        low, high = (signed(100 * (end - 1), 0) for end in (interval.low, interval.high))
        return f"{signed(change, 0)} %", f"({low} to {high})"
    decimals = _decimals(half)
    return f"{signed(change, decimals)} %", f"± {half:.{decimals}f} %"


def _decimals(half: float) -> int:
    """As many decimals as tell the first figure of the interval's half: 0 from 10 % on, at most 3."""
    if half >= 10:
        return 0
    return min(3, max(1, -math.floor(math.log10(half)))) if half > 0 else 2


def _say_factor(factor: float) -> str:
    return f"± {100 * (factor - 1):.2g} %" if factor < 1.2 else f"within a factor of {say_multiple(factor)}"


class SuiteSections:
    """The texts about one suite, each made when a renderer comes to it."""

    def __init__(self, result: SuiteResult) -> None:
        self.result = result

    # The answer

    @cached_property
    def headline(self) -> Headline:
        """The worst there is, which colours the sentence over the whole."""
        result = self.result
        words = [one.word for one in result.comparisons]
        worst = min(words, key=_badness, default=None)
        failed = any("failed" in cell.marks for cell in result.cells)
        if worst and _badness(worst) == 0:
            return Headline(worst, *SIGNS[worst], result.sentence)
        if failed:
            return Headline(FAILED, "×", "slower", result.sentence)
        if worst == "INCONCLUSIVE":
            return Headline(worst, *SIGNS[worst], result.sentence)
        if result.is_open:
            return Headline(UNFINISHED, "…", "open", result.sentence)
        if worst:
            return Headline(worst, *SIGNS[worst], result.sentence)
        if any(cell.throughput for cell in result.cells):
            return Headline(MEASURED, "•", "plain", result.sentence)
        return Headline(NOTHING_MEASURED, "×", "slower", result.sentence)

    @cached_property
    def words(self) -> str:
        """How many comparisons came to which word, the worst first, and how many cells failed: `1 SLOWER, 11 EQUIVALENT`."""
        counts = Counter(one.word for one in self.result.comparisons)
        parts = [f"{counts[word]} {word}" for word in sorted(counts, key=_badness)]
        marks = Counter(mark for cell in self.result.cells for mark in cell.marks)
        parts += [f"{marks['failed']} {FAILED}"] if marks["failed"] else []
        return ", ".join(parts) or self.headline.word

    @cached_property
    def title(self) -> str:
        return self.result.title or self.result.name

    @cached_property
    def reference(self) -> str:
        """The name of the column that the others are compared with."""
        return self.result.arm_name(self.result.reference)

    @cached_property
    def family(self) -> int:
        """Over how many comparisons Holm decided."""
        return max((one.family for one in self.result.comparisons), default=1)

    @cached_property
    def worst_row(self) -> SuiteRow | None:
        """The row to look into first: that with the worst word, and of several the one furthest from 1."""
        judged = [
            (row, cell.comparison)
            for row in self.result.rows
            for cell in row.cells
            if cell.comparison and row.experiment_id
        ]
        if not judged:
            return None
        return min(judged, key=lambda one: (_badness(one[1].word), -abs(math.log(one[1].ratio))))[0]

    # The cells

    def unit(self, row: SuiteRow) -> FigureUnit:
        """The unit of a row, with the prefix that suits its largest rate: its cells are read next to each other."""
        known = [cell for cell in row.cells if cell.throughput]
        if not known:
            return FigureUnit("")
        most = max(cell.throughput.rate_per_s for cell in known if cell.throughput)
        return known[0].figure_unit.scaled(most)

    def cell(self, row: SuiteRow, cell: SuiteCell) -> CellText:
        marks = "".join(MARKS[mark][0] for mark in cell.marks)
        if cell.throughput is None:
            return CellText(cell, state=_state(row, cell), marks=marks, colour=_colour(cell))
        same = {one.unit for one in row.cells if one.throughput}
        rate = cell.throughput.rate_per_s
        unit = self.unit(row) if len(same) == 1 else cell.figure_unit.scaled(rate)
        made = CellText(
            cell, figure=unit.say(rate), number=unit.number(rate), spread=say_spread(cell.throughput), marks=marks
        )
        if cell.comparison is None:
            return made
        sign, colour = SIGNS[cell.comparison.word]
        return CellText(
            cell,
            made.figure,
            made.number,
            made.spread,
            change=say_shift(cell.comparison),
            sign=sign,
            word=cell.comparison.word,
            colour=colour,
            marks=marks,
        )

    def line(self, row: SuiteRow) -> list[CellText]:
        """Return a text for every column. A cell that the suite excludes is a dash."""
        found = {cell.arm: self.cell(row, cell) for cell in row.cells}
        return [found.get(arm) or CellText(SuiteCell(arm), state=EXCLUDED) for arm in self.result.arms]

    @cached_property
    def legend(self) -> list[tuple[str, str]]:
        """The marks that are in this table, with what they mean."""
        found = {mark for cell in self.result.cells for mark in cell.marks}
        return [MARKS[mark] for mark in MARKS if mark in found]

    @cached_property
    def reading(self) -> str:
        """How the numbers are read."""
        if not self.result.comparisons:
            return "± is the 95 % interval over runs"
        lower = any(not cell.figure_unit.higher_is_better for cell in self.result.cells if cell.throughput)
        direction = "; changes are of speed: plus is better" if lower else ""
        return f"changes are against {self.reference}; ± is the 95 % interval{direction}"

    # What there is besides

    @cached_property
    def failures(self) -> list[FailedCells]:
        """The cells that failed, those with one reason together."""
        groups: dict[tuple[str, str, str], list[str]] = {}
        for row, cell in self._marked("failed"):
            reason = (cell.failure_kind, cell.failure or NO_REASON, cell.hint)
            groups.setdefault(reason, []).append(self.result.cell_name(row, cell))
        return [FailedCells(tuple(names), *reason) for reason, names in groups.items()]

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """What speaks against the table, interference first: the marks in words, then the warnings of the rows."""
        return in_order([*self._marks_in_words(), *self._warnings_of_rows()])

    def _marks_in_words(self) -> Iterator[Caution]:
        # Interference is seen over a whole comparison, so its rows are named, not its cells.
        disturbed = [self._row_name(row) for row in self.result.rows if _any(row, "disturbed")]
        if disturbed:
            of = f"{len(disturbed)} of {counted(len(self.result.rows), 'row')}"
            yield caution(INTERFERENCE, f"other programs used the machine in {of}: {shortened(disturbed)}")
        if names := self._names("unusable"):
            yield caution("not-usable", f"the runs of a cell differ by a factor of 2 or more: {shortened(names)}")
        if names := self._names("one-run"):
            several = "1 cell rests on one run" if len(names) == 1 else f"{len(names)} cells rest on one run each"
            yield caution("one-run", f"{several}, so no spread is known: {shortened(names)}")

    def _warnings_of_rows(self) -> Iterator[Caution]:
        """Warnings that several rows share come once, with the names of the rows."""
        rows: dict[Caution, list[str]] = {}
        for row in self.result.rows:
            for one in Sections(row.examined).cautions if row.examined else ():
                if one.kind not in MARKED_KINDS:
                    rows.setdefault(one, []).append(self._row_name(row))
        for one, names in rows.items():
            everywhere = len(names) == len(self.result.rows) > 1
            who = "all rows" if everywhere else shortened(names)
            yield Caution(one.kind, one.severity, f"{who}: {one.text}")

    def _marked(self, mark: Mark) -> list[tuple[SuiteRow, SuiteCell]]:
        return [(row, cell) for row in self.result.rows for cell in row.cells if mark in cell.marks]

    def _row_name(self, row: SuiteRow) -> str:
        """The name of a row in a sentence, where commas separate names."""
        return self.result.row_name(row).replace(", ", " ")

    def _names(self, mark: Mark) -> list[str]:
        return [self.result.cell_name(row, cell) for row, cell in self._marked(mark)]

    @cached_property
    def scopes(self) -> list[str]:
        """Where and when the rows were measured, each scope once."""
        return list(
            dict.fromkeys(row.examined.scope for row in self.result.rows if row.examined and row.examined.scope)
        )

    @cached_property
    def scope(self) -> str:
        """The scope in one line: the chips, and the time from the first run to the last."""
        if len(self.scopes) == 1:
            return self.scopes[0]
        chips = dict.fromkeys(cell.chip for cell in self.result.cells if cell.chip)
        times = [one.examined for one in self.result.rows if one.examined]
        if not times:
            return ""
        first = min(one.created_unix_s for one in times)
        last = max(one.ended_unix_s or one.created_unix_s for one in times)
        return _together(
            f"{', '.join(chips)};" if chips else "", f"{say_span(first, last)}; each row has its own hours"
        )

    @cached_property
    def method(self) -> list[str]:
        """How it was measured, a sentence each."""
        result = self.result
        arms = len(result.arms)
        blocks = counted(result.blocks, "block") if result.blocks else "blocks"
        runs = counted(result.blocks, "run") if result.blocks else "several runs"
        said = []
        if result.compared:
            said += [
                f"Each row is one comparison: {blocks} of one run of each of {arms} arms, in a "
                "shuffled order, so that a drift of the machine meets all arms alike. Each run is a fresh process.",
                f"The ratio of two arms is the mean over blocks of the logarithm of the rates' ratio, with Student's interval. "
                f"EQUIVALENT, SLOWER and FASTER compare the 90 % interval with a margin of {percent(result.margin)}; "
                "SLOWER and FASTER also need a 95 % interval without 1 in it.",
            ]
        else:
            said.append(
                f"Each cell is {runs}, each a fresh process, interleaved with those of the other cells. "
                " Nothing is compared: the intervals are those of each cell over its own runs."
            )
        if self.family > 1:
            said.append(
                f"Holm's procedure decided the words of all {self.family} comparisons with {self.reference} together, so "
                "that the chance of any false word in the table stays within 5 %. The intervals are not adjusted for it."
            )
        said.append(
            "A failed cell has no number; a cell that other programs disturbed, or that rests on one run, is marked."
        )
        return said

    @cached_property
    def what_to_do(self) -> str:
        """Say what follows, with the command where there is one, between backticks."""
        result = self.result
        said = []
        if result.is_open:
            said.append(f"Finish it: `stackmark resume {result.experiment_id}`.")
        if self.failures:
            said.append("See below why cells failed, and what to do about it.")
        worst = self.worst_row
        if worst and any(c.is_slower or c.is_faster for c in result.comparisons):
            said.append(f"Look at what explains the difference: `stackmark verdict {worst.experiment_id} --why`.")
        undecided = sum(map(_is_undecided, result.cells))
        if undecided:
            free = all("disturbed" in cell.marks for cell in self.result.cells if _is_undecided(cell))
            ways = "a machine without other programs" if free else "more blocks, longer runs or a wider margin"
            which = "One comparison is open" if undecided == 1 else f"{undecided} comparisons are open"
            said.append(f"{which}: {ways} may decide {'it' if undecided == 1 else 'them'}.")
        if not said and result.comparisons:
            return "Nothing: use any of them."
        return " ".join(said)

    def commands(self, ledger: str = "") -> list[str]:
        """Return what one would type next. `ledger` is the option that names the ledger."""
        result = self.result
        there = f" {ledger}" if ledger else ""
        id_ = short_id(result.experiment_id)
        name = _file_name(result.name)
        typed = [f"stackmark resume {id_}{there}"] if result.is_open else []
        typed.append(f"stackmark report {id_} -o {name}.html{there}")
        if any(cell.throughput for cell in result.cells):
            typed.append(f"stackmark plot {id_} -o {name}.svg{there}")
        if self.worst_row and self.worst_row.experiment_id:
            typed.append(f"stackmark verdict {short_id(self.worst_row.experiment_id)} --why{there}")
        return typed


def shortened(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _badness(word: str) -> int:
    """What somebody has to look at comes first."""
    if "SLOWER" in word or "WORSE" in word:
        return 0
    return {"INCONCLUSIVE": 1, "EQUIVALENT": 3}.get(word, 2)


def _is_undecided(cell: SuiteCell) -> bool:
    return cell.comparison is not None and cell.comparison.word == "INCONCLUSIVE"


def _any(row: SuiteRow, mark: Mark) -> bool:
    return any(mark in cell.marks for cell in row.cells)


def _state(row: SuiteRow, cell: SuiteCell) -> str:
    if "failed" in cell.marks:
        return f"failed: {cell.failure_kind}" if cell.failure_kind else "failed"
    return "not begun" if row.state == "waiting" else "not finished"


def _colour(cell: SuiteCell) -> str:
    return "slower" if "failed" in cell.marks else "open"


def _file_name(name: str) -> str:
    """A file name that needs no quotes in a shell."""
    kept = "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in name)
    return kept.strip("-.")[:60] or "suite"
