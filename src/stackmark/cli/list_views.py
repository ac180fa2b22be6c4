"""From a list's experiment, or one run of it, to what is shown and what programs get: the one place that knows both."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

from pydantic import JsonValue

from stackmark.cli.views import run_flags, say_chip
from stackmark.experiments.judging import setup_parts
from stackmark.experiments.list_specs import length_of
from stackmark.experiments.operator_list import ListedRuns, Pass
from stackmark.ledger.rows import RunRow
from stackmark.medians import median_of
from stackmark.published.operators import BesidePublished, OperatorIndex, beside_list
from stackmark.show.facts import say_stack
from stackmark.show.lines import Line
from stackmark.show.list_lines import list_lines
from stackmark.show.operators import Beside, ListView, RowView, bandwidths_over
from stackmark.show.result import say_memory, say_setup
from stackmark.spec import Scalar
from stackmark.units import counted, say_seconds
from stackmark.verdict.operators import ListResult, RowResult
from stackmark.workloads.op.problem import TYPED
from stackmark.workloads.registry import find

REASONED = ("device", "precision", "set")
# The flag that the rows themselves say better.
ROWS_FAILED = "rows-failed"


def list_view(
    listed: ListedRuns, repeat: str, known: OperatorIndex, choices: Mapping[str, str] | None = None
) -> ListView:
    near = Near.of(listed, known)
    return ListView(
        workload=_title(listed),
        result=listed.result,
        rows=tuple(near.views(listed.result)),
        published=tuple(near.columns.values()),
        lines=tuple(_lines(listed, choices or {}, near)),
        repeat=repeat,
    )


@dataclass(frozen=True)
class Near:
    """What was published for the problems of a list: the columns by their chips' short names, and what each row has."""

    columns: Mapping[str, str]
    found: Sequence[Mapping[str, BesidePublished]]

    @classmethod
    def of(cls, listed: ListedRuns, known: OperatorIndex) -> "Near":
        shown = listed.result.rows
        if not shown:
            return cls({}, [{} for _ in shown])
        run, first = listed.shown_run(), shown[0]
        chips, found = beside_list(
            known, first.op, [row.shape for row in shown], first.precision, run.chip if run else None
        )
        columns = {}
        for chip in chips:
            precisions = {of_row[chip].precision for of_row in found if chip in of_row}
            name = chip.removeprefix("Intel ").removeprefix("AMD ")  # a column has little room for its head
            columns[chip] = f"{name} {precisions.pop()}" if len(precisions) == 1 else name
        return cls(columns, found)

    def views(self, result: ListResult) -> Iterator[RowView]:
        for row, of_row in zip(result.rows, self.found, strict=True):
            yield RowView(row, {self.columns[chip]: _beside(one, self.columns[chip]) for chip, one in of_row.items()})

    def lines(self) -> list[Line]:
        """Whose they are."""
        said = []
        for chip, column in self.columns.items():
            rows = [of_row[chip].row for of_row in self.found if chip in of_row]
            sources = dict.fromkeys(
                f"{row.source}, {row.date}, {row.framework or 'library not stated'}" for row in rows
            )
            said.append(f"{column}: {len(rows)} of {len(self.found)} problems; {'; '.join(sources)}")
        context = "beside each time, how many times as fast this is; another recipe, so it is context"
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


def _beside(one: BesidePublished, column: str) -> Beside:
    """The head of its column has the precision, where all rows of it have the same."""
    said = f"{one.precision} instead of"
    known = column.endswith(one.precision)
    return Beside(one.seconds, tuple(caveat for caveat in one.caveats if not (known and caveat.startswith(said))))


def _title(listed: ListedRuns) -> str:
    params = listed.spec.params
    return f"{listed.spec.workload}  {params.get('set')}  {params.get('precision')}"


def _lines(listed: ListedRuns, choices: Mapping[str, str], near: "Near") -> list[Line]:
    family, definition = find(listed.spec.workload)
    lines: list[Line] = [("what", definition.title)]
    if said := say_subset(listed):
        lines.append(("problems", said))
    lines += list_lines(listed.result)
    lines += _runs(listed)
    params = {
        name: value for name in family.settings if (value := listed.spec.params.get(name)) not in (None, "", False)
    }
    ranks = [f"ranks {listed.spec.ranks}"] if listed.spec.ranks > 1 else []
    said_params = [f"{name} {_say(name, value)}" for name, value in params.items() if value != 0]
    lines.append(("settings", ", ".join([*said_params, *ranks])))
    chosen = [
        f"{name} {params[name]}: {choices[name]}"
        for name in REASONED
        if choices.get(name) and params.get(name, TYPED) != TYPED
    ]
    if chosen:
        lines.append(("chosen", "\n".join(chosen)))
    lines += _where(listed)
    lines += [("flag", flag) for flag in run_flags(_good_runs(listed), without=ROWS_FAILED)]
    lines += near.lines()
    seen = f"; look at one: stackmark show {listed.runs[-1].id}"
    lines.append(("stored", f"experiment {listed.experiment.id}, {counted(len(listed.runs), 'run')}{seen}"))
    return lines


def _say(name: str, value: Scalar) -> str:
    return say_seconds(float(str(value))) if name == "row_seconds" else str(value)


def say_subset(listed: ListedRuns) -> str:
    """`27 of 160 problems`, where a budget or a person chose some of a list."""
    length, wanted = length_of(listed.spec), len(listed.wanted)
    if length is None or wanted >= length:
        return ""
    params = listed.experiment.request.get("params")
    if isinstance(params, dict) and params.get("rows"):
        return f"{wanted} of {length}: --rows {params['rows']}"
    budget = say_seconds(float(str(listed.spec.params.get("budget") or 0)))
    if wanted == 1:
        return f"1 of {length}: a budget of {budget} has no room for a second one; all: --budget 0"
    return f"{wanted} of {length}: what fits into {budget}, spread evenly over their sizes; all: --budget 0"


def _runs(listed: ListedRuns) -> list[Line]:
    """What is missing, which passes were made in pieces, and why runs failed."""
    lines: list[Line] = []
    if not listed.whole and listed.result.good:
        lines.append(("not done", say_missing(listed)))
    for one in listed.passes:
        if len(one.pieces) > 1:
            ids = ", ".join(piece.run.id for piece in one.pieces)
            lines.append(
                ("pieces", f"run {one.number + 1} of {listed.asked} was made in {len(one.pieces)} pieces: {ids}")
            )
        for piece in one.pieces:
            run = piece.run
            if run.status != "done" and (one.missing(listed.wanted) or not piece.rows):
                hint = f"\n{run.failure_hint}" if run.failure_hint else ""
                lines.append(("failed", f"{run.id}: {run.failure_message or run.failure_kind or run.status}{hint}"))
    return lines


def say_missing(listed: ListedRuns) -> str:
    """Pass by pass, and how to go on."""
    parts = [
        f"{counted(len(missing), 'problem')} of run {one.number + 1}"
        for one in listed.passes
        if (missing := one.missing(listed.wanted))
    ]
    if (not_begun := listed.asked - len(listed.passes)) > 0:
        parts.append(f"{counted(not_begun, 'run')} of {listed.asked}")
    return f"{', '.join(parts)}; go on with: stackmark resume {listed.experiment.id}"


def _where(listed: ListedRuns) -> list[Line]:
    run = listed.shown_run()
    lines: list[Line] = [("chip", say_chip(run.chip if run else None, listed.spec, listed.facts))]
    op = listed.facts.get("op", {})
    if op.get("threads"):
        lines.append(("threads", f"{op['threads']}, {op.get('pinned') or 'pinned or not is not known'}"))
    lines.append(("place", run.place if run else "host"))
    if stack := say_stack(listed.facts, run.framework if run else None):
        lines.append(("stack", stack))
    if setup := setup_parts(listed.events):
        lines.append(("set-up", say_setup(setup)))
    peaks = [run.memory_peak_mib for run in _good_runs(listed) if run.memory_peak_mib]
    return [*lines, *([("memory", say_memory(median(peaks)))] if peaks else [])]


def _good_runs(listed: ListedRuns) -> list[RunRow]:
    return [run for run in listed.runs if run.status == "done"]


# --- for programs -------------------------------------------------------------------------------------------------------


def list_json(
    listed: ListedRuns, repeat: str, known: OperatorIndex, choices: Mapping[str, str] | None = None
) -> dict[str, JsonValue]:
    """All rows with all numbers; `throughput` is the list's own rate, as of any other workload."""
    result, over = listed.result, listed.result.aggregate
    made = {
        "experiment": listed.experiment.id,
        "workload": listed.spec.workload,
        "spec": listed.spec.model_dump(mode="json"),
        "spec_digest": listed.spec.digest,
        "choices": dict(choices or {}),
        "throughput": None
        if over is None
        else {
            "rate_per_s": over.rate_per_s,
            "low_per_s": over.low_per_s,
            "high_per_s": over.high_per_s,
            "confidence": 0.95,
            "runs": over.runs,
            "cv": over.cv,
            "unit": result.unit,
        },
        "list": {
            "problems": len(result.wanted),
            "of": length_of(listed.spec),
            "counted": result.counted,
            "failed": [row.index for row in result.failed],
            "missing": list(result.missing),
            "whole_runs": result.whole,
            "asked_runs": listed.asked,
            "geometric_mean": result.geometric_mean,
            "unit": result.unit,
            "total_s": result.total_s,
            "first_calls_s": result.first_calls_s,
        },
        "rows": [
            {**row_json(row, listed.passes), "published": near}
            for row, near in zip(result.rows, Near.of(listed, known).json(result), strict=True)
        ],
        "runs": [row.model_dump(mode="json") for row in listed.runs],
        "setup_s": dict(setup_parts(listed.events)),
        "facts": listed.facts,
        "command": repeat,
    }
    plain: dict[str, JsonValue] = json.loads(json.dumps(made, allow_nan=False))
    return plain


def row_json(row: RowResult, passes: Sequence[Pass] = ()) -> dict[str, object]:
    return {
        **asdict(row),
        "unit": row.unit,
        "rate": row.rate,
        "tflop_per_s": row.tflop_per_s,
        "gb_per_s": row.gb_per_s,
        "limit_share": row.limit_share,
        "bandwidths": asdict(over) if (over := bandwidths_over(row)) else None,
        "by_run": [
            {
                "run": piece.run.id,
                "median_s": median_of(one.call_s).value if one.call_s else None,
                "low_s": median_of(one.call_s).low if one.call_s else None,
                "high_s": median_of(one.call_s).high if one.call_s else None,
                "samples": len(one.call_s),
                "failure_kind": one.failure_kind,
            }
            for of_pass in passes
            for piece in of_pass.pieces
            for one in piece.rows
            if one.index == row.index
        ],
    }
