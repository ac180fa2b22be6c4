"""Stored runs: many of them a line each, and one of them whole, for people and for programs."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

from pydantic import JsonValue
from rich.console import Console

from stackmark.experiments.result import StoredRun
from stackmark.figures import name_of_figures, say_figure
from stackmark.ledger.rows import RunDetail, RunRow
from stackmark.schemas import with_schema
from stackmark.show.facts import Facts, say_stack
from stackmark.show.lists import row_json
from stackmark.show.operators import print_rows
from stackmark.show.quality import evaluation_lines
from stackmark.show.result import (
    group_json,
    rate_line,
    say_data,
    say_flag,
    say_memory,
    say_setup,
    say_steps,
    served_json,
)
from stackmark.show.roofline import say_limits, standing_json
from stackmark.show.run_summary import say_group
from stackmark.show.safe import SHORT_ID
from stackmark.show.serving import served_lines
from stackmark.show.telemetry import telemetry_json, telemetry_lines
from stackmark.show.terminal import Column, Line, answer_last, is_screen, print_named, print_table, standard_output
from stackmark.spec import AUTO
from stackmark.units import say_local, say_moment, say_percent, say_seconds, say_zone
from stackmark.verdict.throughput import throughput_over_runs
from stackmark.workloads.command.definition import telling_params

# Of a run on many nodes.
PODS_SHOWN = 8
STYLES = {"done": "green", "failed": "red", "invalid": "red", "running": "yellow"}
COLUMNS = (
    Column("run", style="cyan"),
    Column("experiment", drop=5),
    Column("started", drop=6),
    Column("workload"),
    Column("place", drop=1),
    Column("chip", drop=3),
    Column("ranks", right=True, drop=2),
    Column("batch", right=True, drop=4),
    Column("precision", drop=4),
    Column("tune", drop=2),
    Column("rate", right=True),
    Column("state"),
)
ROWS_FAILED = "rows-failed: "


def print_runs(rows: Sequence[RunRow]) -> None:
    """On a screen ids are as short as they can be; elsewhere they are whole."""
    console = standard_output()
    length = short_length([row.id for row in rows]) if is_screen(console) else None
    whole = short_length(sorted({row.experiment_id for row in rows})) if is_screen(console) else None
    cells = [_cells(row, row.id[:length], row.experiment_id[:whole]) for row in rows]
    name = name_of_figures([row.rate_unit for row in rows])
    zone = say_zone(max((row.started_unix_s for row in rows), default=0.0))
    names = {"rate": name, "started": f"started ({zone})" if zone else "started"}
    # Most lists have only runs of one rank, and then the column says nothing.
    shown = [i for i, one in enumerate(COLUMNS) if one.name != "ranks" or any(row.ranks > 1 for row in rows)]
    columns = [replace(COLUMNS[i], name=names.get(COLUMNS[i].name, COLUMNS[i].name)) for i in shown]
    print_table(
        console, columns, [[row[i] for i in shown] for row in cells], [STYLES.get(row.status, "") for row in rows]
    )


def _cells(row: RunRow, shown_id: str, experiment_id: str) -> list[str]:
    rate = say_figure(row.rate_per_s, row.rate_unit) if row.rate_per_s else ""
    return [
        shown_id, experiment_id, say_moment(row.started_unix_s), row.workload, row.place, row.chip or "", str(row.ranks),
        str(row.batch or ""),
        row.precision or "", row.tune or "", rate, say_state(row),
    ]  # fmt: skip


def say_state(row: RunRow) -> str:
    if row.failure_kind:
        return f"{row.status}: {row.failure_kind}: {row.failure_message or 'no reason is known'}"
    # A primer is cut short and cold: its rate is no result.
    said = f"{'primer, ' if row.role == 'primer' else ''}{row.steady or row.status}"
    # Of a list: its rate is over the other rows.
    failed = next((flag.removeprefix(ROWS_FAILED) for flag in row.flags if flag.startswith(ROWS_FAILED)), "")
    return f"{said}: {failed}" if failed else said


def short_length(ids: Sequence[str]) -> int:
    """How many characters tell these ids apart."""
    length = SHORT_ID
    for one, other in pairwise(sorted(ids)):
        common = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), len(one))
        length = max(length, common + 1)
    return length


# --- one run, whole -----------------------------------------------------------------------------------------------------


def print_run(run: StoredRun, console: Console) -> None:
    """Print a run, of an operator list its table first; where a screen does not hold it, its rate and state again."""
    row = run.row
    styles = {"state": STYLES.get(row.status, ""), "flag": "yellow", "doubt": "red"}
    lines = run_lines(run)
    answer = [line for line in lines if line[0] in ("rate", "figure", "state")]
    with answer_last(console, lambda: print_named(console, answer, styles)):
        if run.listed:
            print_rows(run.listed, console)
            print(file=console.file)
        print_named(console, [("workload", row.workload), *lines], styles)


def run_lines(run: StoredRun) -> list[Line]:
    row = run.row
    lines = _outcome(row)
    if run.served:
        lines += served_lines(run.served)
    if arithmetic := say_limits(run.limits.work, run.limits.sentences):
        lines.append(("arithmetic", arithmetic))
    lines += _where(row, run.facts)
    if run.evaluations:
        lines.append(("quality", "\n".join(evaluation_lines(run.evaluations))))
    if run.group:
        lines.append(("ranks", say_group(run.group)))
    if run.sampled:
        lines += telemetry_lines(run.sampled)
    if run.setup:
        lines.append(("set-up", say_setup(run.setup)))
    lines += [("flag", say_flag(flag)) for flag in row.flags]
    lines += [("doubt", doubt) for doubt in run.doubts]
    params = telling_params(row.spec.params)
    lines.append(("settings", ", ".join(f"{name} {value}" for name, value in params.items())))
    return [
        *lines,
        *_names(row),
        ("more", f"stackmark show {row.id} --events, --log, --spec, or --json with all facts"),
    ]


def run_json(run: StoredRun) -> dict[str, Any]:
    standing = standing_json(run.limits.standing) if run.limits.standing else None
    shown = with_schema("stored-run", {"run": run.row.model_dump(mode="json"), "setup_s": dict(run.setup)})
    shown |= {"facts": run.facts, "doubts": list(run.doubts), "roofline": standing}
    if run.row.ranks > 1:
        shown["group"] = group_json(run.group)
    if run.sampled:
        shown["telemetry"] = telemetry_json(run.sampled)
    if run.served:
        shown["served"] = served_json(run.served)
    if run.evaluations:
        shown["evaluations"] = [asdict(one) for one in run.evaluations]
    return {**shown, "rows": [row_json(one) for one in run.listed.rows]} if run.listed else shown


def _outcome(row: RunDetail) -> list[Line]:
    lines: list[Line] = []
    if row.rate_per_s:
        lines.append(rate_line(throughput_over_runs([row.rate_per_s]), row.rate_unit))
    state: str = row.status
    if row.failure_kind:
        state += f": {row.failure_kind}: {row.failure_message or 'no reason is known'}"
        state += f"\n{row.failure_hint}" if row.failure_hint else ""
    lines.append(("state", state))
    if row.step_p50_s is not None and row.step_p90_s is not None and row.step_p99_s is not None:
        lines.append(("step", say_steps(row.step_p50_s, row.step_p90_s, row.step_p99_s)))
    if row.steady:
        spread = f", which vary by {say_percent(row.step_cv, figures=2)}" if row.step_cv is not None else ""
        lines.append(("steadiness", f"{row.steady}; {row.steps_used} of {row.steps_total} steps used{spread}"))
    if row.memory_peak_mib is not None:
        lines.append(("memory", say_memory(row.memory_peak_mib)))
    if row.energy_j is not None:
        lines.append(("energy", f"{row.energy_j:,.0f} J in the measured part"))
    if row.data_share is not None:
        lines.append(("data", say_data(row.data_share)))
    return lines


def _where(row: RunDetail, facts: Facts) -> list[Line]:
    lines = [*_when(row, facts), ("place", row.place), *_pods(row)]
    asked = "" if row.device == AUTO else row.device or ""
    device = f" ({', '.join(filter(None, (asked, row.chip_uuid)))})" if asked or row.chip_uuid else ""
    lines.append(("chip", f"{row.chip or 'unknown'}{device}"))
    stack = say_stack(facts, row.framework)
    return [*lines, ("stack", stack)] if stack else lines


def _pods(row: RunDetail) -> list[Line]:
    """Of a run on several nodes: which ranks were in which pod."""
    pods = row.handle.get("pods")
    found = [pod for pod in pods if isinstance(pod, dict)] if isinstance(pods, list) else []
    said = [f"{_ranks_in(pod.get('ranks'))}: {pod.get('pod')} on {pod.get('node')}" for pod in found[:PODS_SHOWN]]
    more = [f"and {len(found) - PODS_SHOWN} more: --json"] if len(found) > PODS_SHOWN else []
    return [("pods", "\n".join([*said, *more]))] if said else []


def _ranks_in(ranks: JsonValue) -> str:
    if not isinstance(ranks, list) or not ranks:
        return "no rank"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"


def _when(row: RunDetail, facts: Facts) -> list[Line]:
    """Of a run from somebody's log it is known when it was imported, and from where."""
    if log := facts.get("import"):
        where = f"{log.get('file')}, lines {log.get('first_line')} to {log.get('last_line')}, by {log.get('program')}"
        numbers = str(log.get("numbers") or "").split("; ")
        said = [("it says", "\n".join(filter(None, (str(log["figure"]), *numbers))))] if log.get("figure") else []
        return [*said, ("imported", say_local(row.started_unix_s)), ("from", where)]
    took = f", for {say_seconds(row.ended_unix_s - row.started_unix_s)}" if row.ended_unix_s else ""
    return [("started", f"{say_local(row.started_unix_s)}{took}")]


def _names(row: RunDetail) -> list[Line]:
    machine, boot = row.machine_id or "unknown", f"boot {row.boot_id or 'unknown'}"
    return [
        ("run", f"{row.id}, number {row.position + 1} of experiment {row.experiment_id}"),
        ("spec", f"SHA-256 {row.spec_digest}"),
        # A machine without an id (a container image) is known by its boot.
        ("machine", boot if machine == boot else f"{machine}, {boot}"),
        ("by", f"stackmark {row.stackmark_version}"),
    ]
