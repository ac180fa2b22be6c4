"""A sweep in a terminal: the answer first, then a line a device, then what stands behind it.

Of a thousand devices nobody reads a thousand lines: past a screen only those that are not `ok` are listed, with the slowest of
the others; `--json` has them all.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stackmark.show.console import is_screen
from stackmark.show.junit import Case, Outcome
from stackmark.show.lines import NAME_WIDTH, grid
from stackmark.show.lines import Line as Said
from stackmark.show.safe import cut_middle, safe_line
from stackmark.show.table import Column, print_table
from stackmark.units import counted, say_rate
from stackmark.verdict.device_groups import Split
from stackmark.verdict.needed import percent
from stackmark.verdict.outliers import say_cohort
from stackmark.verdict.swept import Line, Swept, headline, say_split

SCHEMA = 1
COLUMNS = (
    Column("node", style="cyan"),
    Column("device"),
    Column("rate", right=True, drop=2),
    Column("of median", right=True),
    Column("p (BH)", right=True, drop=1),
    Column("state"),
)
COLOURS = {
    "ok": "green",
    "measured": "",
    "SLOW": "bold red",
    "slow group": "red",
    "flagged": "yellow",
    "failed": "red",
    "missing": "dim",
}
STYLES = {
    "groups": "bold red",
    "slow": "bold red",
    "node": "bold red",
    "flagged": "yellow",
    "failed": "red",
    "next": "dim",
    "note": "yellow",
}
# A screen or two; more rows than that are a file to be searched.
ALL_UP_TO, SLOWEST_SHOWN = 64, 10
# A GPU's UUID has 40 characters, and its beginning tells it apart.
DEVICE_WIDTH = 24
REASONS_SHOWN = 20


def print_sweep(swept: Swept, console: Console, again: str = "") -> None:
    """`again` is how to go on where it is not finished."""
    _print(console, [("sweep", f"{swept.workload}: {headline(swept)}")])
    shown, left = shown_lines(swept)
    print_table(console, COLUMNS, [cells(line, swept.unit) for line in shown], [COLOURS[line.state] for line in shown])
    if left:
        _print(console, [("", f"{counted(left, 'further device')} are not listed; --json has them all")])
    _print(console, [*behind(swept), *([("next", again)] if again else [])])


def shown_lines(swept: Swept) -> tuple[list[Line], int]:
    """Those that are listed, and how many are not."""
    if len(swept.lines) <= ALL_UP_TO:
        return list(swept.lines), 0
    odd = [line for line in swept.lines if line.state not in ("ok", "measured")]
    good = sorted(swept.in_state("ok", "measured"), key=lambda line: line.standing.ratio if line.standing else 1.0)
    return [*odd, *good[:SLOWEST_SHOWN]], max(0, len(good) - SLOWEST_SHOWN)


def cells(line: Line, unit: str) -> list[str]:
    visit, at = line.visit, line.standing
    return [
        visit.node,
        "" if visit.device == visit.node else cut_middle(visit.device, DEVICE_WIDTH),
        f"{say_rate(visit.rate_per_s)} {unit}".rstrip() if visit.rate_per_s else "",
        f"{100 * at.ratio:.1f} %" if at else "",
        say_p(at.p_adjusted) if at else "",
        say_state(line),
    ]


def say_p(p: float | None) -> str:
    return "" if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.1 else f"{p:.2f}"


def say_state(line: Line) -> str:
    if line.state == "flagged":
        return (
            f"flagged, {'not confirmed' if line.comparison or 'not confirmed' in line.reason else 'not run again yet'}"
        )
    if line.state == "failed":
        return f"failed: {line.reason}"
    return "not visited yet" if line.state == "missing" else line.state


def behind(swept: Swept) -> list[Said]:
    """What the table has no room for."""
    said: list[Said] = [("groups", say_split(stack, split, swept.unit)) for stack, split in swept.splits]
    said += [("slow", line.reason) for line in swept.in_state("SLOW")]
    said += [
        (
            "node",
            f"all {count} devices of {node} are slow: it is the node (power, cooling, clocks, its CPU), not one device",
        )
        for node, count in swept.slow_nodes
    ]
    said += [("flagged", f"{line.visit.node} {line.visit.device}: {line.reason}") for line in swept.in_state("flagged")]
    hints = dict.fromkeys(line.visit.hint for line in swept.in_state("failed") if line.visit.hint)
    said += [("failed", hint) for hint in list(hints)[:REASONS_SHOWN]]
    for cohort in swept.cohorts:
        said.append(("cohort", say_cohort(cohort, swept.unit)))
        if cohort.cannot:
            said.append(("note", cohort.cannot))
    if any(not cohort.cannot for cohort in swept.cohorts):
        rule = f"flagged: more than {percent(swept.margin)} below the median, and significant at 5 % after Benjamini and Hochberg"
        said.append(("rule", f"{rule}; SLOW: a repetition together with a good device confirmed it"))
    said += [("note", note) for note in swept.notes]
    if swept.at_once:
        said.append(("at once", swept.at_once))
    said.append(("stored", swept.experiment_id))
    return said


def sweep_json(swept: Swept) -> dict[str, Any]:
    """Everything, under names that stay."""
    return {
        "schema": SCHEMA,
        "experiment": swept.experiment_id,
        "workload": swept.workload,
        "unit": swept.unit,
        "margin": swept.margin,
        "finished": swept.finished,
        "headline": headline(swept),
        "at_once": swept.at_once,
        "command": swept.command,
        "created_unix_s": swept.created_unix_s,
        "ended_unix_s": swept.ended_unix_s,
        "devices": [_device_json(line) for line in swept.lines],
        "slow_nodes": [{"node": node, "devices": count} for node, count in swept.slow_nodes],
        "groups": [_split_json(stack, split) for stack, split in swept.splits],
        "seen_from": swept.seen_from,
        "cohorts": [
            {
                "stack": [part for part in cohort.stack if part],
                "devices": len(cohort.standings),
                "median_per_s": math.exp(cohort.log_median),
                "sd_log": cohort.sd_log,
                "cannot_name": cohort.cannot or None,
            }
            for cohort in swept.cohorts
        ],
        "notes": list(swept.notes),
    }


def _split_json(stack: tuple[str, ...], split: Split) -> dict[str, Any]:
    """Two kinds of devices in a cohort: `populations` where a fact parts them, else a fast and a slow group."""
    return {
        "stack": [part for part in stack if part],
        "kind": "populations" if split.fact else "slow group",
        "fact": split.fact or None,
        "ratio": math.exp(split.log_ratio),
        "p": split.p,
        "parts": [
            {"label": part.label, "devices": len(part.members), "median_per_s": math.exp(part.log_median)}
            for part in split.parts
        ],
    }


def _device_json(line: Line) -> dict[str, Any]:
    visit, at, seen = line.visit, line.standing, line.comparison
    return {
        "node": visit.node,
        "device": visit.device,
        "run": visit.run_id or None,
        "state": line.state,
        "reason": line.reason or None,
        "hint": visit.hint or None,
        "rate_per_s": visit.rate_per_s,
        "runs": len(visit.logs),
        "group": at.device.stack[-1] if at and at.device.stack != visit.stack else None,
        "ratio_to_median": at.ratio if at else None,
        "deviations": at.deviations if at else None,
        "p": at.p if at else None,
        "p_adjusted": at.p_adjusted if at else None,
        "flagged": bool(at and at.flagged),
        "repeated": None
        if seen is None
        else {
            "reference": seen.a,
            "blocks": seen.count_b,
            "ratio": seen.ratio,
            "interval_90": asdict(seen.interval_90) if seen.interval_90 else None,
            "interval_95": asdict(seen.interval_95) if seen.interval_95 else None,
            "verdict": seen.word,
            "sentence": seen.sentence,
        },
    }


def junit_cases(swept: Swept) -> list[Case]:
    """A case a device: slow is a failure; one that was not measured is an error, since it was not checked."""
    outcomes: dict[str, Outcome] = {"SLOW": "failure", "slow group": "failure", "failed": "error", "missing": "error"}
    made = []
    for line in swept.lines:
        at = line.standing
        numbers = [f"rate_per_s: {line.visit.rate_per_s}", f"ratio_to_median: {at.ratio}"] if at else []
        made.append(
            Case(
                name=f"{line.visit.node} {line.visit.device}".strip(),
                seconds=0.0,
                outcome=outcomes.get(line.state, "passed"),
                kind=line.state,
                message=line.reason or say_state(line),
                output=[*numbers, *([f"run: {line.visit.run_id}"] if line.visit.run_id else [])],
            )
        )
    return made


def _print(console: Console, lines: Sequence[Said]) -> None:
    if not is_screen(console):
        for name, text in lines:
            print(f"{name:<{NAME_WIDTH}}{safe_line(text)}".rstrip(), file=console.file)
        return
    console.print(grid(lines, STYLES))
