"""An operator list for people and for programs: the lines under its table, and everything as JSON.

The lines say what the list came to: the rate of the whole, where the time went, what failed, how it was measured and where.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median

from pydantic import JsonValue
from rich.console import Console
from rich.text import Text

from stackmark.experiments.judging import setup_parts
from stackmark.experiments.list_specs import length_of
from stackmark.experiments.operator_list import ListedRuns, Pass
from stackmark.experiments.result import ListRunResult
from stackmark.ledger.rows import RunRow
from stackmark.medians import median_of
from stackmark.schemas import schema_name
from stackmark.show.facts import say_stack
from stackmark.show.operators import PublishedTimes, bandwidths_over, print_rows
from stackmark.show.result import run_flags, say_chip, say_memory, say_setup, say_throughput, throughput_json
from stackmark.show.safe import safe_line
from stackmark.show.terminal import Line, is_screen, print_lines
from stackmark.spec import Scalar
from stackmark.units import counted, say_rate, say_seconds, scale_rate
from stackmark.verdict.operators import ListRatio, ListResult, RowResult
from stackmark.verdict.throughput import worth_of_runs
from stackmark.workloads.op.definition import say_problem
from stackmark.workloads.op.problem import BYTES_RATE, TYPED
from stackmark.workloads.registry import find

STYLES = {
    "rate": "bold green",
    "failed": "red",
    "not done": "yellow",
    "flag": "yellow",
    "chosen": "dim",
    "published": "dim",
}
REASONED = ("device", "precision", "set")
# The flag that the rows themselves say better.
ROWS_FAILED = "rows-failed"
# At most this many failed rows are named under the table; all of them stand in it.
FAILED_NAMED = 3
BANDWIDTHS = (
    "algorithm: bytes of the array over the time; bus: what each rank's own link carries, to compare with the link; "
    "DeepBench's is bytes × ranks / time, which no link carries"
)
KNOWN_BY = {
    "runs": "of a row: 95 %, Student's over the medians of its runs",
    "samples": "of a row: 95 %, of its median within one process; how far the next process would be is not in it",
}


def print_list(found: ListRunResult, console: Console) -> None:
    """Print the table, then what the list came to."""
    listed = found.listed
    times = PublishedTimes.of(listed, found.published)
    print_rows(listed.result, console, times)
    params = listed.spec.params
    title = f"{listed.spec.workload}  {params.get('set')}  {params.get('precision')}"
    print_below(console, title, _all_lines(found, times), found.repeat)


def print_below(console: Console, title: str, lines: Sequence[Line], command: str) -> None:
    """Print the lines under a table. The command to repeat it stands outside the panel, so that it can be copied.

    The rate comes again as the last line of a screen: what is above the panel's end has scrolled away.
    """
    if is_screen(console):
        print_lines(console, title, lines, STYLES)
        if command:
            console.print(Text(f"repeat: {safe_line(command)}", style="dim"), soft_wrap=True)
        if rate := dict(lines).get("rate"):
            first, _, _ = rate.partition("\n")
            console.print(Text(f"rate: {safe_line(first)}", style=STYLES["rate"]))
        return
    print(file=console.file)
    print_lines(console, title, [*lines, *([("repeat", command)] if command else [])], STYLES)


def _all_lines(found: ListRunResult, times: PublishedTimes) -> list[Line]:
    listed = found.listed
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
    said_params = [f"{name} {_say_value(name, value)}" for name, value in params.items() if value != 0]
    lines.append(("settings", ", ".join([*said_params, *ranks])))
    chosen = [
        f"{name} {params[name]}: {found.choices[name]}"
        for name in REASONED
        if found.choices.get(name) and params.get(name, TYPED) != TYPED
    ]
    if chosen:
        lines.append(("chosen", "\n".join(chosen)))
    lines += _where(listed)
    lines += [("flag", flag) for flag in run_flags(_good_runs(listed), without=ROWS_FAILED)]
    lines += times.lines()
    seen = f"; look at one: stackmark show {listed.runs[-1].id}"
    lines.append(("stored", f"experiment {listed.experiment.id}, {counted(len(listed.runs), 'run')}{seen}"))
    return lines


def _say_value(name: str, value: Scalar) -> str:
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


def list_lines(result: ListResult) -> list[Line]:
    """In the order in which a person asks."""
    lines: list[Line] = [*_rate(result)]
    if len(result.good) > 1:
        lines.append(("rows", _rows(result)))
    known = {row.known_by for row in result.good} - {""}
    lines += [("±", KNOWN_BY[one]) for one in KNOWN_BY if one in known]
    if result.failed:
        lines.append(("failed", _failed(result)))
    lines += _how(result)
    return lines


def _rate(result: ListResult) -> list[Line]:
    if result.aggregate is None:
        return []
    what = "least bytes" if result.unit == BYTES_RATE else "operations"
    every = f"all {what} of {counted(result.counted, 'problem')} over the sum of the times of one call of each"
    if result.counted == 1:
        every = f"its {what} over the time of a call"
    if not result.whole:
        every += "; the list is not whole"
    lines = [("rate", f"{say_throughput(result.aggregate, result.unit)}\n{every}")]
    if 1 < result.aggregate.runs < 5:
        lines.append(("note", worth_of_runs(result.aggregate.runs)))
    return lines


def _rows(result: ListResult) -> str:
    parts = []
    factor, unit = scale_rate(result.unit, result.geometric_mean)
    if result.geometric_mean:
        parts.append(f"geometric mean of their rates {say_rate(factor * result.geometric_mean)} {unit}")
    if found := result.extremes():
        slowest, fastest = (f"{say_rate(factor * (row.rate or 0))} ({_name(row)})" for row in found)
        parts.append(f"from {slowest} to {fastest}")
    longest = result.longest
    if longest and longest.seconds and result.total_s:
        share = f"{100 * longest.seconds / result.total_s:.0f} %"
        parts.append(f"one call of each takes {say_seconds(result.total_s)}, {share} of it {_name(longest)}")
    return "; ".join(parts)


def _failed(result: ListResult) -> str:
    never = [row for row in result.failed if row.seconds is None]
    said = []
    if never:
        named = ", ".join(_name(row) for row in never[:FAILED_NAMED])
        more = f" and {len(never) - FAILED_NAMED} more" if len(never) > FAILED_NAMED else ""
        said.append(f"{counted(len(never), 'problem')} of {len(result.wanted)} gave no number: {named}{more}")
    if now_and_then := len(result.failed) - len(never):
        said.append(f"{counted(now_and_then, 'problem')} failed in one run and not in another")
    hints = dict.fromkeys(row.failure.hint for row in result.failed if row.failure and row.failure.hint)
    return "\n".join(["; ".join(said), *list(hints)[:FAILED_NAMED]])


def _how(result: ListResult) -> list[Line]:
    good = result.good
    if not good:
        return []
    graphs = sum(row.launched == "graph" for row in good)
    launched = "launched one by one"
    if graphs:
        launched = (
            f"recorded as a CUDA graph and replayed: {graphs} of {len(good)}" if graphs < len(good) else "CUDA graphs"
        )
    copies = max(row.copies for row in good)
    turns = f"; up to {copies} sets of operands in turn, so that no call finds its own in a cache" if copies > 1 else ""
    lines = [("launches", f"{launched}{turns}")]
    if any("ranks" in row.shape for row in good):
        lines.append(("bandwidth", BANDWIDTHS))
    if result.first_calls_s:
        slowest = max(good, key=lambda row: row.first_call_s or 0)
        longest = f", the longest {say_seconds(slowest.first_call_s or 0)} ({_name(slowest)})" if len(good) > 1 else ""
        lines.append(("first calls", f"{say_seconds(result.first_calls_s)} in all{longest}: not in the times above"))
    checked = [row for row in good if row.error is not None and row.error_bound]
    if checked:
        worst = max(checked, key=lambda row: (row.error or 0) / (row.error_bound or 1))
        share = f"{100 * (worst.error or 0) / (worst.error_bound or 1):.2g} %"
        lines.append(
            ("checked", f"against float64, and again while and after it was timed; the worst has {share} of the error "
             f"that rounding explains")
        )  # fmt: skip
    elif good[0].checked:
        lines.append(("checked", good[0].checked))
    sums = dict.fromkeys(row.accumulate for row in good if row.accumulate)
    if sums:
        lines.append(("sums", f"in {', '.join(sums)}"))
    return lines


def list_ratio_lines(pairs: Sequence[ListRatio]) -> list[Line]:
    """Say next to a verdict, which is by the list's own rate, how the arms compare problem by problem."""
    lines = []
    for pair in pairs:
        if len(pair.rows) < 2:
            continue
        mean = f"geometric mean of the ratios of {len(pair.rows)} problems {pair.geometric_mean:.4f}"
        lines.append(("rows", f"{pair.b} / {pair.a}: {mean}; {_say_differing(pair)}"))
    return lines


def _say_differing(pair: ListRatio) -> str:
    if not pair.testable:
        return "which of them differ is not known: that takes two blocks or more"
    corrected = "by blocks, Benjamini–Hochberg at 5 %"
    found = sorted(pair.differing, key=lambda row: row.ratio)
    if not found:
        return f"none of them is shown to differ ({corrected})"
    ends = dict.fromkeys((found[0].index, found[-1].index))
    named = ", ".join(
        f"{row.ratio:.4g} ({say_problem(row.op, row.shape)})" for row in (found[0], found[-1])[: len(ends)]
    )
    return f"{len(found)} of them differ ({corrected}), {'from ' if len(ends) > 1 else ''}{named}"


def _name(row: RowResult) -> str:
    return say_problem(row.op, row.shape)


# --- for programs -------------------------------------------------------------------------------------------------------


def list_json(found: ListRunResult) -> dict[str, JsonValue]:
    """All rows with all numbers; `throughput` is the list's own rate, as of any other workload."""
    listed, result = found.listed, found.listed.result
    near = PublishedTimes.of(listed, found.published).json(result)
    made = {
        "schema": schema_name("list"),
        "experiment": listed.experiment.id,
        "workload": listed.spec.workload,
        "spec": listed.spec.model_dump(mode="json"),
        "spec_digest": listed.spec.digest,
        "choices": dict(found.choices),
        "throughput": throughput_json(result.aggregate, result.unit),
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
            {**row_json(row, listed.passes), "published": published}
            for row, published in zip(result.rows, near, strict=True)
        ],
        "runs": [row.model_dump(mode="json") for row in listed.runs],
        "setup_s": dict(setup_parts(listed.events)),
        "facts": listed.facts,
        "command": found.command,
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
