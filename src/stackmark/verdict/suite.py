"""What a suite shows: a table of cells, one row per comparison and one column per arm, and one sentence over all of them.

Plain data, without a ledger and without a terminal: experiments/suite/ gathers it, `show/` lays it out. All comparisons with a
reference are one family: Holm decides their words together, since of forty cells at 5 % each two would be named by chance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from stackmark.figures import FigureUnit, figure_unit
from stackmark.verdict.cautions import INTERFERENCE
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined, ExaminedArm
from stackmark.verdict.family import holm
from stackmark.verdict.load_curve import LoadCurve
from stackmark.verdict.throughput import Throughput

# disturbed: other programs used the machine. one-run: no spread is known. unusable: its runs differ by a factor. open: runs are
# missing, `resume` makes them. failed: it has no number.
Mark = Literal["disturbed", "one-run", "unusable", "open", "failed"]
# waiting: not begun.
RowState = Literal["done", "open", "failed", "waiting"]
# How many cells the summary names one by one; a longer list is for the table.
NAMED = 3


@dataclass(frozen=True)
class SuiteAxis:
    """One axis of the matrix: `workload`, `place`, or a parameter, with its values as they were written."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class SuiteCell:
    """One arm of one comparison. Without a rate, `failure` says why, or the cell is open."""

    # The value of the compared axis: the column. Empty where nothing is compared.
    arm: str
    throughput: Throughput | None = None
    # As the ledger has it; `figure_unit` is for people.
    unit: str = ""
    # Against the reference; None for the reference itself, and where one of the two has no rate.
    comparison: Comparison | None = None
    is_reference: bool = False
    marks: tuple[Mark, ...] = ()
    failure: str = ""
    failure_kind: str = ""
    hint: str = ""
    chip: str | None = None

    @property
    def figure_unit(self) -> FigureUnit:
        return figure_unit(self.unit)


@dataclass(frozen=True)
class SuiteRow:
    """One comparison: one workload, one value of every other axis, all arms. `cells` are in the order of the columns."""

    number: int
    workload: str
    # By axis, without the compared one: {"precision": "bf16"}; an axis with a single value is there too.
    values: Mapping[str, str]
    cells: tuple[SuiteCell, ...]
    state: RowState
    # The experiment that measured it; None where it was not begun.
    experiment_id: str | None = None
    # For the page of the row; None where it has no run.
    examined: Examined | None = field(default=None, repr=False)

    @property
    def reference(self) -> SuiteCell | None:
        return next((cell for cell in self.cells if cell.is_reference), None)


@dataclass(frozen=True)
class SuiteResult:
    """A suite as it stands. `compared` is the axis that is compared, empty where each cell stands for itself."""

    experiment_id: str
    name: str
    title: str
    command: str
    created_unix_s: float
    ended_unix_s: float | None
    # All axes, `workload` first; those with several values make rows, apart from the compared one, which makes columns.
    axes: tuple[SuiteAxis, ...]
    compared: str
    reference: str
    # The columns: values of the compared axis; one empty text where nothing is compared.
    arms: tuple[str, ...]
    # Axes that the author of the suite wants as columns too (in heat maps and wide tables).
    columns: tuple[str, ...]
    margin: float
    blocks: int
    rows: tuple[SuiteRow, ...]
    # What the suite cannot measure yet, a sentence each.
    missing: tuple[str, ...] = ()
    # Where the suite stopped before its end: the budget.
    stopped: str = ""
    # Of one server under several loads: latency against load.
    loads: LoadCurve | None = None

    @property
    def cells(self) -> list[SuiteCell]:
        return [cell for row in self.rows for cell in row.cells]

    @property
    def comparisons(self) -> list[Comparison]:
        return [cell.comparison for cell in self.cells if cell.comparison]

    @property
    def row_axes(self) -> tuple[str, ...]:
        """Return the axes that tell rows apart, `workload` first: those with several values, without the compared one."""
        several = [axis.name for axis in self.axes if len(axis.values) > 1 and axis.name != self.compared]
        return tuple(several or ["workload"])

    @property
    def is_open(self) -> bool:
        """Whether `resume` would go on."""
        return any(row.state in ("open", "waiting") for row in self.rows)

    def row_name(self, row: SuiteRow) -> str:
        """Return what tells a row apart: `resnet50, bf16`. The family of workloads is left out where all have the same."""
        return self.name_by(row, self.row_axes)

    def name_by(self, row: SuiteRow, axes: Sequence[str]) -> str:
        """Return the name of a row by some of its axes: for a table that has the others as columns."""
        families = {one.workload.partition("/")[0] for one in self.rows}
        workload = row.workload.partition("/")[2] if len(families) == 1 else row.workload
        texts = [workload if name == "workload" else say_value(name, row.values.get(name, "")) for name in axes]
        return ", ".join(text for text in texts if text)

    def cell_name(self, row: SuiteRow, cell: SuiteCell) -> str:
        """Return what tells a cell apart: `resnet50 bf16 in pod`."""
        return _name(self, row, cell)

    def arm_name(self, arm: str) -> str:
        """Return the name of a column: `pod`, `fp16`; a number with its axis, `ranks 2`."""
        return say_value(self.compared, arm)

    @property
    def sentence(self) -> str:
        return summary(self)


def say_value(axis: str, value: str) -> str:
    """Say a value of an axis: a number needs the axis's name, `batch 32`; a word says it itself."""
    return f"{axis.replace('_', '-')} {value}" if value[:1].isdigit() else value


def cells_of(
    examined: Examined, labels: Sequence[str], reference: str, comparisons: Sequence[Comparison] | None = None
) -> tuple[SuiteCell, ...]:
    """Make the cells of an experiment. `labels` are the columns in the order of its arms; `reference` is one of them, or none.

    `comparisons` are those with the reference, after Holm; else they are the experiment's own.
    """
    arms = dict(zip(labels, examined.arms, strict=True))
    base = arms.get(reference)
    pairs = comparisons if comparisons is not None else examined.comparisons
    disturbed = any(getattr(one, "kind", "") == INTERFERENCE for one in examined.warnings)
    return tuple(
        _cell(
            label,
            arm,
            examined,
            _against(arm, base, pairs),
            is_reference=bool(reference) and label == reference,
            disturbed=disturbed,
        )
        for label, arm in arms.items()
    )


def _against(arm: ExaminedArm, base: ExaminedArm | None, pairs: Sequence[Comparison]) -> Comparison | None:
    if base is None or arm.index == base.index:
        return None
    return next((one for one in pairs if (one.a, one.b) == (base.label, arm.label)), None)


def _cell(
    label: str,
    arm: ExaminedArm,
    examined: Examined,
    comparison: Comparison | None,
    *,
    is_reference: bool,
    disturbed: bool,
) -> SuiteCell:
    bad = [run for run in examined.runs if run.arm == arm.index and run.status in ("failed", "invalid")]
    last = bad[-1] if bad and arm.throughput is None else None
    marks: list[Mark] = []
    if arm.throughput is None:
        marks.append("failed" if examined.state != "open" or last else "open")
    else:
        marks += ["unusable"] if arm.unusable else []
        marks += ["disturbed"] if disturbed else []
        marks += ["one-run"] if arm.throughput.runs == 1 else []
        marks += ["open"] if examined.state == "open" else []
    failure = (last.failure_message or last.failure_kind or "") if last else ""
    if not failure and "failed" in marks:
        failure = examined.state_sentence
    return SuiteCell(
        arm=label,
        throughput=arm.throughput,
        unit=arm.unit,
        comparison=comparison if arm.throughput else None,
        is_reference=is_reference,
        marks=tuple(marks),
        failure=failure,
        failure_kind=(last.failure_kind or "") if last else "",
        hint=(last.failure_hint or "") if last else "",
        chip=arm.chip,
    )


def against_reference(examined: Examined, reference: int) -> list[Comparison]:
    """Return the comparisons of all other arms with one of them, the reference as A."""
    label = examined.arms[reference].label
    return [one for one in examined.comparisons if one.a == label]


def decide_together(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Decide the words of a family by Holm, from comparisons that were each judged alone.

    Holm only ever takes a word back. What was inconclusive alone stays so: also where the blocks that other programs disturbed
    are the reason, which no p says.
    """
    decided = holm(comparisons)
    return [
        replace(alone, family=len(comparisons)) if alone.word == "INCONCLUSIVE" and len(comparisons) > 1 else together
        for alone, together in zip(comparisons, decided, strict=True)
    ]


# --- one sentence ---------------------------------------------------------------------------------------------------------


def summary(result: SuiteResult) -> str:
    """Say what the whole table shows: `11 of 12 are equivalent within 1 %, one is slower: vgg16 in pod (−3.1 %)`."""
    parts = [*_compared(result), *_alone(result)] if result.compared else _measured(result)
    failed = [(row, cell) for row in result.rows for cell in row.cells if "failed" in cell.marks]
    if failed:
        parts.append(_counted(len(failed), "failed", [_name(result, row, cell) for row, cell in failed]))
    waiting = sum(len(row.cells) for row in result.rows if row.state in ("open", "waiting"))
    if waiting:
        parts.append(f"{waiting} of {len(result.cells)} cells are not finished")
    return "; ".join(parts) or "nothing was measured"


def _compared(result: SuiteResult) -> list[str]:
    judged = [(row, cell, cell.comparison) for row in result.rows for cell in row.cells if cell.comparison]
    if not judged:
        return []
    whole, margin = len(judged), f"{100 * result.margin:.3g} %"
    same = [one for one in judged if one[2].word == "EQUIVALENT"]
    parts = []
    if same:
        of = f"all {whole}" if len(same) == whole else f"{len(same)} of {whole}"
        alone = f"{_name(result, *judged[0][:2])} is"
        parts.append(f"{of if whole > 1 else alone} equivalent within {margin}")
    groups: dict[str, list[tuple[SuiteRow, SuiteCell, Comparison]]] = {}
    for one in judged:
        if one[2].word != "EQUIVALENT":
            groups.setdefault(one[2].word.lower(), []).append(one)
    # What is worse first: it is what somebody has to look at.
    for word in sorted(groups, key=lambda word: (word == "inconclusive", "slower" not in word and "worse" not in word)):
        ordered = sorted(groups[word], key=lambda one: one[2].ratio)
        names = [f"{_name(result, row, cell)}{_change(pair, word)}" for row, cell, pair in ordered]
        parts.append(_counted(len(names), word, names))
    return [", ".join(parts)]


def _alone(result: SuiteResult) -> list[str]:
    """Name the cells that were measured in a row whose reference was excluded or has no number."""
    rows = [row for row in result.rows if row.state not in ("open", "waiting")]
    rows = [row for row in rows if row.reference is None or row.reference.throughput is None]
    names = [_name(result, row, cell) for row in rows for cell in row.cells if cell.throughput is not None]
    return (
        [_counted(len(names), f"without {result.arm_name(result.reference)} to compare with", names)] if names else []
    )


def _change(pair: Comparison, word: str) -> str:
    if word == "inconclusive":
        return ""
    if not 0.5 < pair.ratio < 2:
        return f" (×{pair.ratio:.3g})"
    return f" ({100 * (pair.ratio - 1):+.1f} %)".replace("-", "\N{MINUS SIGN}")


def _measured(result: SuiteResult) -> list[str]:
    good = sum(cell.throughput is not None for cell in result.cells)
    return [f"{good} of {len(result.cells)} measured"] if good else []


def _name(result: SuiteResult, row: SuiteRow, cell: SuiteCell) -> str:
    # Commas separate names in a sentence, so there is none within a name.
    name = result.row_name(row).replace(", ", " ")
    if result.compared != "place":
        return f"{name} {result.arm_name(cell.arm)}".strip()
    return f"{name} {'on' if cell.arm.partition(',')[0] == 'host' else 'in'} {cell.arm}"


def _counted(number: int, word: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
    return f"{'one' if number == 1 else number} {word}: {shown}"
