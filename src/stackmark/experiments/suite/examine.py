"""Gather what a suite shows, from the ledger: any time, at any margin, without running anything."""

from collections.abc import Sequence
from dataclasses import replace

from stackmark.experiments.design import check_margin
from stackmark.experiments.examine import examine
from stackmark.experiments.suite.carry_out import BegunRow, Reason, begun_rows, is_open, plan_of
from stackmark.experiments.suite.loads import curve_of
from stackmark.experiments.suite.plan import PlannedRow, SuitePlan
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.suite import (
    RowState,
    SuiteAxis,
    SuiteCell,
    SuiteResult,
    SuiteRow,
    against_reference,
    cells_of,
    decide_together,
)


def examine_suite(ledger: Ledger, suite: Experiment, margin: float | None = None, stopped: str = "") -> SuiteResult:
    """Return the whole table. The words of all comparisons with the reference are decided together, by Holm."""
    if margin is not None:
        check_margin(margin)
    plan, begun = plan_of(suite), begun_rows(ledger, suite)
    wanted = plan.margin if margin is None else margin
    seen = [_examined(ledger, begun.get(number), wanted) for number in range(len(plan.rows))]
    decided = _decided(plan, begun, seen)
    rows = tuple(
        _row(ledger, plan, number, begun.get(number), examined, pairs)
        for number, (examined, pairs) in enumerate(zip(seen, decided, strict=True))
    )
    return SuiteResult(
        experiment_id=suite.id,
        name=plan.name,
        title=plan.title,
        command=suite.command,
        created_unix_s=suite.created_unix_s,
        ended_unix_s=max((one.ended_unix_s for one in seen if one and one.ended_unix_s), default=None),
        axes=tuple(SuiteAxis(axis.name, tuple(axis.values)) for axis in plan.axes),
        compared=plan.compare,
        reference=plan.reference,
        arms=plan.arms,
        columns=tuple(plan.columns),
        margin=wanted,
        blocks=max((one.blocks_planned or 0 for one in seen if one), default=0) or plan.blocks or 0,
        rows=rows,
        missing=tuple(plan.missing),
        stopped=stopped,
        loads=curve_of(ledger, rows),
    )


def _examined(ledger: Ledger, begun: BegunRow | None, margin: float) -> Examined | None:
    if begun is None or not ledger.runs_of(begun.experiment.id):
        return None
    return examine(ledger, begun.experiment.id, margin, each_alone=True)


def _decided(plan: SuitePlan, begun: dict[int, BegunRow], seen: Sequence[Examined | None]) -> list[list[Comparison]]:
    """Return the comparisons of each row with the reference, after Holm over all of them."""
    alone: list[list[Comparison]] = []
    for number, examined in enumerate(seen):
        has = examined is not None and _labels(plan.rows[number], begun[number])[:1] == [plan.reference]
        alone.append(against_reference(examined, 0) if examined is not None and has and plan.compare else [])
    together = iter(decide_together([one for row in alone for one in row]))
    return [[next(together) for _ in row] for row in alone]


def _labels(row: PlannedRow, begun: BegunRow) -> list[str]:
    """Return the columns of the arms that were measured, in the order of the row's experiment."""
    return [arm.label for arm in row.arms if arm.label not in begun.left_out]


def _row(
    ledger: Ledger,
    plan: SuitePlan,
    number: int,
    begun: BegunRow | None,
    examined: Examined | None,
    pairs: Sequence[Comparison],
) -> SuiteRow:
    row = plan.rows[number]
    cells: dict[str, SuiteCell] = {}
    if begun is not None:
        cells = {label: _left_out(plan, label, reason) for label, reason in begun.left_out.items()}
    if begun is not None and examined is not None:
        labels = _labels(row, begun)
        if len(labels) == len(examined.arms):
            cells |= {cell.arm: cell for cell in cells_of(examined, labels, plan.reference, pairs)}
    for arm in row.arms:
        cells.setdefault(arm.label, SuiteCell(arm.label, is_reference=_is_reference(plan, arm.label), marks=("open",)))
    ordered = tuple(cells[label] for label in plan.arms if label in cells)
    # The page of a row says the words of the suite's family.
    shown = replace(examined, comparisons=_with(examined.comparisons, pairs)) if examined else None
    return SuiteRow(
        number=number,
        workload=row.workload,
        values={name: value for name, value in row.values.items() if name != "workload"},
        cells=ordered,
        state=_state(ledger, begun, ordered),
        experiment_id=begun.experiment.id if begun else None,
        examined=shown,
    )


def _with(every: Sequence[Comparison], decided: Sequence[Comparison]) -> tuple[Comparison, ...]:
    by_pair = {(one.a, one.b): one for one in decided}
    return tuple(by_pair.get((one.a, one.b), one) for one in every)


def _is_reference(plan: SuitePlan, label: str) -> bool:
    return bool(plan.compare) and label == plan.reference


def _left_out(plan: SuitePlan, label: str, reason: Reason) -> SuiteCell:
    return SuiteCell(
        label,
        is_reference=_is_reference(plan, label),
        marks=("failed",),
        failure=reason.message,
        failure_kind=reason.kind,
        hint=reason.hint,
    )


def _state(ledger: Ledger, begun: BegunRow | None, cells: Sequence[SuiteCell]) -> RowState:
    if begun is None:
        return "waiting"
    if is_open(ledger, begun):
        return "open"
    return "failed" if all("failed" in cell.marks for cell in cells) else "done"
