"""A suite for other programs: JSON, CSV with a line for each cell, and JUnit XML with a case for each cell.

Numbers are as they were computed, without rounding. The Markdown for a pull request is in report/suite.py, next to the report.
"""

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import asdict

from pydantic import JsonValue

from stackmark.ledger.export import not_a_formula
from stackmark.schemas import with_schema
from stackmark.show.junit import Case, Outcome, render_junit
from stackmark.show.load_curve import curve_json
from stackmark.show.result import figure_json
from stackmark.show.sections import NO_REASON
from stackmark.show.suite_sections import SuiteSections
from stackmark.show.verdict import comparison_json, plain_json
from stackmark.show.wording import say_in_own_terms
from stackmark.units import say_moment
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.suite import SuiteCell, SuiteResult, SuiteRow

NO_VERDICT = "NO VERDICT"


# --- JSON --------------------------------------------------------------------------------------------------------------------


def suite_json(result: SuiteResult) -> dict[str, JsonValue]:
    """Return what `--json` prints of a suite."""
    sections = SuiteSections(result)
    words = [one.word for one in result.comparisons]
    made = plain_json(
        with_schema(
            "suite",
            {
                "experiment_id": result.experiment_id,
                "name": result.name,
                "title": result.title,
                "command": result.command,
                "created_unix_s": result.created_unix_s,
                "ended_unix_s": result.ended_unix_s,
                "state": "open" if result.is_open else "done",
                "sentence": result.sentence,
                "axes": [{"name": axis.name, "values": list(axis.values)} for axis in result.axes],
                "compared": result.compared or None,
                "reference": result.reference or None,
                "arms": list(result.arms),
                "columns": list(result.columns),
                "margin": result.margin,
                "blocks": result.blocks,
                "family": len(words),
                "words": {word: words.count(word) for word in dict.fromkeys(words)},
                "failed": sum("failed" in cell.marks for cell in result.cells),
                "rows": [_row_json(result, row) for row in result.rows],
                "warnings": [asdict(one) for one in sections.cautions],
                "scope": sections.scopes,
                "method": sections.method,
                "missing": list(result.missing),
                "stopped": result.stopped or None,
                **({"loads": curve_json(result.loads)} if result.loads else {}),
            },
        )
    )
    assert isinstance(made, dict)
    return made


def _row_json(result: SuiteResult, row: SuiteRow) -> dict[str, object]:
    return {
        "number": row.number,
        "name": result.row_name(row),
        "workload": row.workload,
        "values": dict(row.values),
        "state": row.state,
        "experiment_id": row.experiment_id,
        "cells": [_cell_json(cell) for cell in row.cells],
    }


def _cell_json(cell: SuiteCell) -> dict[str, object]:
    failure = {"kind": cell.failure_kind or None, "message": cell.failure or NO_REASON, "hint": cell.hint or None}
    return {
        "arm": cell.arm or None,
        "is_reference": cell.is_reference,
        "throughput": asdict(cell.throughput) if cell.throughput else None,
        "unit": cell.unit or None,
        "figure": figure_json(cell.throughput, cell.unit),
        "comparison": comparison_json(cell.comparison),
        "marks": list(cell.marks),
        "failure": failure if "failed" in cell.marks else None,
        "chip": cell.chip,
    }


# --- CSV ---------------------------------------------------------------------------------------------------------------------


_COLUMNS = (
    "arm", "is_reference", "state", "rate_per_s", "low_per_s", "high_per_s", "runs", "unit", "figure_value", "figure_unit",
    "higher_is_better", "ratio", "ratio_low_95", "ratio_high_95", "word", "p_equivalence", "p_outside", "p_difference", "family",
    "margin", "marks", "failure_kind", "failure", "hint", "chip", "experiment_id",
)  # fmt: skip


def suite_csv(result: SuiteResult) -> str:
    """Return a line for each cell: its axes, then its numbers. A text that a spreadsheet would run as a formula is quoted.

    Lines end in CR LF, as RFC 4180 says.
    """
    axes = [axis.name for axis in result.axes if axis.name not in ("workload", result.compared)]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerow([not_a_formula(name) for name in ("workload", *(f"axis_{name}" for name in axes), *_COLUMNS)])
    for row in result.rows:
        for cell in row.cells:
            values = [row.workload, *(row.values.get(name, "") for name in axes), *_numbers(row, cell)]
            writer.writerow([not_a_formula(value) for value in values])
    return out.getvalue()


def _numbers(row: SuiteRow, cell: SuiteCell) -> Iterator[object]:
    rate, pair = cell.throughput, cell.comparison
    interval = pair.interval_95 if pair else None
    unit = cell.figure_unit
    yield from (cell.arm, cell.is_reference, row.state)
    yield from (rate.rate_per_s, rate.low_per_s, rate.high_per_s, rate.runs) if rate else ("", "", "", 0)
    yield cell.unit
    yield from (unit.value(rate.rate_per_s), unit.name, unit.higher_is_better) if rate else ("", "", "")
    yield from (
        (pair.ratio, interval.low if interval else "", interval.high if interval else "") if pair else ("", "", "")
    )
    yield from (
        (pair.word, pair.p_equivalence, pair.p_outside, pair.p_difference, pair.family, pair.margin)
        if pair
        else [""] * 6
    )
    yield from (" ".join(cell.marks), cell.failure_kind, cell.failure, cell.hint, cell.chip, row.experiment_id)


# --- JUnit -------------------------------------------------------------------------------------------------------------------


def suite_junit(result: SuiteResult, is_named: Callable[[Comparison], bool]) -> str:
    """Render a suite: a case for each cell. `is_named` decides which verdicts are failures.

    A cell that failed, or that could not be compared, is an error: it was not checked. A cell that is not finished is skipped.
    """
    cases = [_case(result, row, index, is_named) for row in result.rows for index in range(len(row.cells))]
    properties = [
        ("experiment", result.experiment_id), ("command", result.command), ("margin", f"{result.margin:g}"),
        ("state", "open" if result.is_open else "done"), ("family", str(len(result.comparisons))),
        *(("warning", one.text) for one in SuiteSections(result).cautions),
    ]  # fmt: skip
    when = say_moment(result.created_unix_s, "%Y-%m-%dT%H:%M:%S", utc=True)
    return render_junit(f"stackmark suite {result.name}", cases, properties, when)


def _case(result: SuiteResult, row: SuiteRow, index: int, is_named: Callable[[Comparison], bool]) -> Case:
    cell = row.cells[index]
    name = f"{result.row_name(row)}: {result.arm_name(cell.arm)}" if cell.arm else result.row_name(row)
    outcome, kind, message = _outcome(result, cell, is_named)
    output = [f"experiment: {row.experiment_id}"] if row.experiment_id else []
    if cell.throughput:
        rate = cell.throughput.rate_per_s
        output.append(f"{cell.figure_unit.scaled(rate).say(rate)}{cell.figure_unit.direction}")
    if pair := cell.comparison:
        output.append(f"ratio: {pair.ratio:.6f}")
        output += [f"90 % interval: {one.low:.6f} to {one.high:.6f}" for one in [pair.interval_90] if one]
        output += [f"note: {note}" for note in pair.notes]
    output += [f"marked: {mark}" for mark in cell.marks]
    return Case(name, _seconds(row, index), outcome, kind, message, output)


def _outcome(result: SuiteResult, cell: SuiteCell, is_named: Callable[[Comparison], bool]) -> tuple[Outcome, str, str]:
    if "failed" in cell.marks:
        hint = f" ({cell.hint})" if cell.hint else ""
        return "error", cell.failure_kind or "failed", f"{cell.failure or NO_REASON}{hint}"
    if "open" in cell.marks or cell.throughput is None:
        return "skipped", "open", f"not finished: stackmark resume {result.experiment_id}"
    if pair := cell.comparison:
        return "failure" if is_named(pair) else "passed", pair.word, say_in_own_terms(pair, cell.figure_unit)
    if result.compared and not cell.is_reference:
        return "error", NO_VERDICT, f"it was measured, but not compared with {result.reference}"
    return "passed", "measured", "the reference" if cell.is_reference else "measured"


def _seconds(row: SuiteRow, index: int) -> float:
    """Add up the time that the runs of a cell took. Cells that were left out before the first run have no arm."""
    if row.examined is None:
        return 0.0
    begun = [cell for cell in row.cells if cell.throughput or cell.chip]
    whole = row.cells if len(row.cells) == len(row.examined.arms) else begun
    if len(whole) != len(row.examined.arms) or row.cells[index] not in whole:
        return 0.0
    arm = row.examined.arms[whole.index(row.cells[index])].index
    return sum(
        run.ended_unix_s - run.started_unix_s for run in row.examined.runs if run.arm == arm and run.ended_unix_s
    )
