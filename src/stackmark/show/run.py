"""One stored run, whole: what it came to, what it ran on, all its settings, and where to look for more."""

from collections.abc import Mapping, Sequence
from typing import Any

from stackmark.show.console import standard_output
from stackmark.show.facts import Facts, say_stack
from stackmark.show.lines import Line, print_lines
from stackmark.show.result import say_data, say_flag, say_memory, say_setup, say_steps
from stackmark.show.runs import STYLES
from stackmark.units import say_moment, say_rate, say_seconds

Row = Mapping[str, Any]


def print_run(
    row: Row, setup: Sequence[tuple[str, float]], facts: Facts, doubts: Sequence[str] = (), arithmetic: str = ""
) -> None:
    """`doubts` is what could not be read of the run's stream, or does not agree with what is stored; `arithmetic` how far it
    is from its machine's limits."""
    styles = {"rate": "bold green", "state": STYLES.get(row["status"], ""), "flag": "yellow", "doubt": "red"}
    lines = [*_outcome(row), *([("arithmetic", arithmetic)] if arithmetic else []), *_where(row, facts)]
    if setup:
        lines.append(("set-up", say_setup(setup)))
    lines += [("flag", say_flag(flag)) for flag in row["flags"]]
    lines += [("doubt", doubt) for doubt in doubts]
    params = row["spec"]["params"]
    lines.append(
        ("settings", ", ".join(f"{name} {value}" for name, value in params.items() if value not in ("", None)))
    )
    lines += [*_names(row), ("more", f"stackmark show {row['id']} --events, --log, --spec, or --json with all facts")]
    print_lines(standard_output(), row["workload"], lines, styles)


def _outcome(row: Row) -> list[Line]:
    lines: list[Line] = []
    if row["rate_per_s"] is not None:
        lines.append(("rate", f"{say_rate(row['rate_per_s'])} {row['rate_unit']}  (one run: no interval)"))
    state = row["status"]
    if row["failure_kind"]:
        state += f": {row['failure_kind']}: {row['failure_message'] or 'no reason is known'}"
        state += f"\n{row['failure_hint']}" if row["failure_hint"] else ""
    lines.append(("state", state))
    if row["step_p50_s"] is not None:
        lines.append(("step", say_steps(row["step_p50_s"], row["step_p90_s"], row["step_p99_s"])))
    if row["steady"]:
        spread = f", which vary by {100 * row['step_cv']:.2g} %" if row["step_cv"] is not None else ""
        lines.append(("steadiness", f"{row['steady']}; {row['steps_used']} of {row['steps_total']} steps used{spread}"))
    if row["memory_peak_mib"] is not None:
        lines.append(("memory", say_memory(row["memory_peak_mib"])))
    if row["energy_j"] is not None:
        lines.append(("energy", f"{row['energy_j']:,.0f} J in the measured part"))
    if row["data_share"] is not None:
        lines.append(("data", say_data(row["data_share"])))
    return lines


def _where(row: Row, facts: Facts) -> list[Line]:
    uuid = f", {row['chip_uuid']}" if row["chip_uuid"] else ""
    lines = [*_when(row, facts), ("place", row["place"])]
    device = f" ({row['device']}{uuid})" if row["device"] else ""
    lines.append(("chip", f"{row['chip'] or 'unknown'}{device}"))
    stack = say_stack(facts, row["framework"])
    return [*lines, ("stack", stack)] if stack else lines


def _when(row: Row, facts: Facts) -> list[Line]:
    """Of a run from somebody's log it is known when it was imported, and from where."""
    if log := facts.get("import"):
        where = f"{log.get('file')}, lines {log.get('first_line')} to {log.get('last_line')}, by {log.get('program')}"
        said = [("it says", str(log["figure"]))] if log.get("figure") else []
        return [*said, ("imported", say_moment(row["started_unix_s"])), ("from", where)]
    took = f", for {say_seconds(row['ended_unix_s'] - row['started_unix_s'])}" if row["ended_unix_s"] else ""
    return [("started", f"{say_moment(row['started_unix_s'])}{took}")]


def _names(row: Row) -> list[Line]:
    machine, boot = row["machine_id"] or "unknown", f"boot {row['boot_id'] or 'unknown'}"
    return [
        ("run", f"{row['id']}, number {row['position'] + 1} of experiment {row['experiment_id']}"),
        ("spec", f"SHA-256 {row['spec_digest']}"),
        # A machine without an id (a container image) is known by its boot.
        ("machine", boot if machine == boot else f"{machine}, {boot}"),
        ("by", f"stackmark {row['stackmark_version']}"),
    ]
