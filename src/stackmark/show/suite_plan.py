"""A suite before it runs: its axes, its cells, and how long it takes."""

import re
from collections.abc import Sequence

from pydantic import JsonValue
from rich.console import Console
from rich.text import Text

from stackmark.experiments.suite.forecast import SuiteForecast
from stackmark.experiments.suite.plan import SuitePlan
from stackmark.schemas import with_schema
from stackmark.show.live import say_about
from stackmark.show.safe import safe, safe_line
from stackmark.show.terminal import Line, grid, is_screen, print_grid
from stackmark.units import counted, say_seconds

# Of the values of an axis; the file has the rest.
VALUES = 8


def say_forecast(expected: SuiteForecast) -> str:
    """`about 2 h 10 min (a guess: 8 of 12 cells were never run here)`."""
    if expected.unknown == expected.cells:
        return "how long it takes is not known before a first run"
    hours = expected.seconds / 3600
    about = f"about {hours:,.0f} hours" if hours > 99 else say_about(expected.seconds)
    guessed = expected.cells - expected.unknown - expected.measured_before
    notes = []
    if guessed:
        which = "no cell was" if guessed == expected.cells else f"{guessed} of {expected.cells} cells were never"
        notes.append(f"a guess: {which} run here before")
    if expected.unknown:
        notes.append(f"without {counted(expected.unknown, 'cell')} whose time is not known before a first run")
    return f"{about} ({'; '.join(notes)})" if notes else f"{about}, as long as before on this machine"


def print_plan(plan: SuitePlan, expected: SuiteForecast, console: Console, *, about: bool = False) -> None:
    """Print what would be measured; with `about` also what the suite is for."""
    title = f"{plan.name}: {safe_line(plan.title)}" if plan.title else plan.name
    console.print(Text(title, style="bold"), soft_wrap=not is_screen(console))
    lines: list[Line] = []
    for axis in plan.axes:
        values = ", ".join(safe_line(value) for value in axis.values[:VALUES] if value)
        more = f" and {len(axis.values) - VALUES} more" if len(axis.values) > VALUES else ""
        compared = f"  (compared with {safe_line(plan.reference)})" if axis.name == plan.compare else ""
        lines.append((axis.name.replace("_", "-"), f"{values}{more}{compared}"))
    lines += [("cells", _cells(plan, expected)), ("time", say_forecast(expected))]
    if plan.budget_s is not None:
        short = ", which is less" if plan.budget_s < expected.seconds else ""
        lines.append(("budget", f"{say_seconds(plan.budget_s)}{short}; no block begins after it"))
    print_grid(console, lines, {})
    if about and plan.about:
        _print_about(plan.about, console)
    for said in plan.missing:
        console.print(Text(f"not measured: {safe_line(said)}", style="yellow"))


def _print_about(about: str, console: Console) -> None:
    """Print prose as wide as the screen, whatever the width of the file. Indented lines are commands and stay as they are."""
    console.print()
    for paragraph in re.split(r"\n[ \t]*\n", safe(about).strip("\n")):
        lines = paragraph.splitlines()
        if all(line.startswith((" ", "\t")) for line in lines):
            console.print(Text(paragraph), soft_wrap=not is_screen(console))
        else:
            console.print(Text(" ".join(paragraph.split())))
        console.print()


def _cells(plan: SuitePlan, expected: SuiteForecast) -> str:
    each = expected.runs // expected.cells if expected.cells else 0
    kinds = f" in {counted(len(plan.rows), 'comparison')}" if plan.compare else ""
    return f"{plan.cells:,}{kinds}, {counted(each, 'run')} each: {counted(expected.runs, 'run')}"


def plan_json(plan: SuitePlan, expected: SuiteForecast) -> dict[str, JsonValue]:
    """Return the plan with its forecast, for `--json`."""
    return with_schema(
        "suite-plan",
        {
            **plan.model_dump(mode="json", exclude={"seed"}),
            "cells": plan.cells,
            "runs": expected.runs,
            "expected_s": expected.seconds,
            "cells_measured_before": expected.measured_before,
            "cells_of_unknown_time": expected.unknown,
        },
    )


def print_suites(suites: Sequence[tuple[str, str, int]], console: Console) -> None:
    """Print the suites that ship."""
    lines = [(name, f"{title} ({counted(cells, 'cell')})") for name, title, cells in suites]
    if is_screen(console):
        console.print(grid(lines, {}))
    else:
        width = max((len(name) for name, _ in lines), default=0)
        for name, said in lines:
            console.print(Text(f"{name:<{width}}  {said}"), soft_wrap=True)
    console.print(Text("see one:        stackmark suite show NAME", style="dim"))
    console.print(Text("start your own: stackmark suite show NAME --toml > mine.toml", style="dim"))
