"""A sweep of a cluster: in a terminal the answer first, then a line a device; while it works; for programs; and drawn.

Of a thousand devices nobody reads a thousand lines: past a screen only those that are not `ok` are listed, with the slowest of
the others; `--json` has them all.

In the picture a good device is a filled circle, a slow one a triangle on its tip, a suspected one a hollow diamond, one that
failed a cross at the bottom; colour only helps. The scale is the ratio to the cohort's median, in percent; where a cohort holds
two kinds of devices, to that of the fastest, so that the others are seen below it.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn

from stackmark.figures import figure_fields, say_figure
from stackmark.ledger.rows import RunRow
from stackmark.schemas import schema_name
from stackmark.show.junit import Case, Outcome
from stackmark.show.live import ScreenBar
from stackmark.show.plot import WIDTH, png_of, whole
from stackmark.show.report.charts.shapes import (
    Scale,
    axis_left,
    box,
    cross,
    decimals_of,
    fitted,
    line,
    padded,
    round_step,
    sign,
    ticks,
    words,
    wrapped,
)
from stackmark.show.report.markup import Markup, join
from stackmark.show.safe import cut_middle, safe_line
from stackmark.show.terminal import Column, Voice, answer_last, is_screen, print_grid, print_table, standard_error
from stackmark.show.terminal import Line as Said
from stackmark.units import counted
from stackmark.verdict.cohorts import Split, say_cohort
from stackmark.verdict.needed import percent
from stackmark.verdict.swept import Line, Swept, headline, say_split

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
    """Print the answer first, and again at the end where a screen does not hold everything.

    `again` is how to go on where it is not finished.
    """

    def answer() -> None:
        print_grid(console, [("sweep", f"{swept.workload}: {headline(swept)}")], STYLES)

    shown, left = shown_lines(swept)
    styles = [COLOURS[line.state] for line in shown]
    with answer_last(console, answer):
        answer()
        print_table(console, COLUMNS, [cells(line, swept.unit) for line in shown], styles)
        if left:
            said = f"{counted(left, 'further device')} are not listed; --json has them all"
            print_grid(console, [("", said)], STYLES)
        print_grid(console, [*behind(swept), *([("next", again)] if again else [])], STYLES)


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
        say_figure(visit.rate_per_s, unit) if visit.rate_per_s else "",
        f"{100 * at.ratio:.1f} %" if at else "",
        say_p(at.p_adjusted) if at else "",
        say_state(line),
    ]


def say_p(p: float | None) -> str:
    return "" if p is None else "<0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.1 else f"{p:.2f}"


def say_state(line: Line) -> str:
    if line.state == "flagged":
        return f"flagged, {'not confirmed' if line.settled else 'not run again yet'}"
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
        "schema": schema_name("cluster-sweep"),
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
        "devices": [_device_json(line, swept.unit) for line in swept.lines],
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


def _device_json(line: Line, unit: str) -> dict[str, Any]:
    visit, at, seen = line.visit, line.standing, line.comparison
    return {
        "node": visit.node,
        "device": visit.device,
        "run": visit.run_id or None,
        "state": line.state,
        "reason": line.reason or None,
        "hint": visit.hint or None,
        "rate_per_s": visit.rate_per_s,
        **figure_fields(visit.rate_per_s, unit),
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
    for one in swept.lines:
        at = one.standing
        numbers = [f"rate_per_s: {one.visit.rate_per_s}", f"ratio_to_median: {at.ratio}"] if at else []
        made.append(
            Case(
                name=f"{one.visit.node} {one.visit.device}".strip(),
                seconds=0.0,
                outcome=outcomes.get(one.state, "passed"),
                kind=one.state,
                message=one.reason or say_state(one),
                output=[*numbers, *([f"run: {one.visit.run_id}"] if one.visit.run_id else [])],
            )
        )
    return made


# --- while it works -----------------------------------------------------------------------------------------------------


STAGES = {"devices": "measured", "more": "measured again", "again": "confirming"}


def say_landed(name: str, row: RunRow) -> str:
    if row.rate_per_s is None:
        return f"{name}  failed: {safe_line(row.failure_message or 'no reason is known')}"
    return f"{name}  {say_figure(row.rate_per_s, row.rate_unit)}  {row.steady or ''}".rstrip()


class SweepLines(Voice):
    """Plain lines; with `quiet` only what a person must know."""

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        super().__init__(out)
        self._quiet = quiet
        self._what, self._total, self._done = "", 0, 0

    def stage(self, what: str, total: int, done: int) -> None:
        self._what, self._total, self._done = what, total, done

    def in_flight(self, names: Sequence[str], count: int) -> None: ...

    def landed(self, name: str, row: RunRow) -> None:
        self._done += 1
        if not self._quiet:
            self._say(f"{STAGES.get(self._what, self._what)} {self._done}/{self._total}  {say_landed(name, row)}")


class SweepBar(ScreenBar):
    """One bar; what has landed scrolls up as a line."""

    def __init__(self, console: Console) -> None:
        super().__init__(
            console,
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[flying]}", markup=False, style="cyan"),
            TimeElapsedColumn(),
        )
        self._task = self._progress.add_task("", total=None, flying="")

    def stage(self, what: str, total: int, done: int) -> None:
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(STAGES.get(what, what), total=total, completed=done, flying="")

    def in_flight(self, names: Sequence[str], count: int) -> None:
        more = f" and {count - len(names)} more" if count > len(names) else ""
        self._progress.update(self._task, flying=safe_line(", ".join(names) + more))

    def landed(self, name: str, row: RunRow) -> None:
        self._progress.advance(self._task)
        self._line(say_landed(name, row), "green" if row.status == "done" else "red")


@contextmanager
def looking(quiet: bool) -> Iterator[SweepBar | SweepLines]:
    """Progress goes to standard error, so that standard output holds the result and nothing else."""
    import sys

    console = standard_error()
    if is_screen(console):
        with SweepBar(console) as bar:
            yield bar
    else:
        yield SweepLines(sys.stderr, quiet=quiet)


# --- the picture: a dot a device, node by node, around the median, with the margin as a band ----------------------------


LEFT, RIGHT, HEIGHT = 56.0, 14.0, 300.0
# Signs of an arm: circle, diamond, triangle on its tip.
SIGNS = {
    "ok": (0, ""),
    "measured": (0, "hollow"),
    "flagged": (3, "hollow"),
    "SLOW": (4, ""),
    "slow group": (4, "hollow"),
}
LEGEND = {
    "ok": "like the others",
    "measured": "measured, too few to judge",
    "SLOW": "SLOW, confirmed",
    "slow group": "in a slow group",
    "flagged": "flagged, not confirmed",
}
# Names of nodes are written while each has this many pixels.
NAME_PX = 15.0
LONGEST_NAME = 18


def sweep_svg(swept: Swept) -> str:
    parts: list[Markup] = []
    y = 34.0
    colour = "slower" if swept.in_state("SLOW", "slow group") else "same" if swept.in_state("ok") else "open"
    for index, text in enumerate(wrapped(headline(swept), WIDTH, 17)):
        parts.append(words(0, y + 22 * index, text, f"word {colour}", size=17))
        y += 22 if index else 0
    y += 22
    for cohort in swept.cohorts[:4]:
        parts.append(words(0, y, fitted(say_cohort(cohort, swept.unit), WIDTH, 12), "quiet", size=12))
        y += 18
    parts.append(words(0, y, fitted(f"{swept.workload} · {swept.experiment_id}", WIDTH, 11), "quiet", size=11))
    y += 20
    parts.append(_legend(swept, y))
    y += 18
    names = _names_height(swept)
    parts.append(_dots(swept, y, y + HEIGHT))
    return whole(join(parts), y + HEIGHT + names + 14)


def sweep_png(swept: Swept) -> bytes:
    return png_of(sweep_svg(swept))


def _legend(swept: Swept, y: float) -> Markup:
    parts, x = [], 0.0
    for state, said in LEGEND.items():
        if any(found.state == state for found in swept.lines):
            form, kind = SIGNS[state]
            parts += [sign(form, x + 6, y - 4, 5, kind=kind), words(x + 18, y, said, "quiet", size=11)]
            x += 30 + 7 * len(said)
    if swept.in_state("failed"):
        parts += [cross(x + 6, y - 4, 4, "failed"), words(x + 18, y, "failed", "quiet", size=11)]
        x += 80
    parts.append(box(x, y - 10, 18, 10, "margin"))
    parts.append(words(x + 24, y, f"within {percent(swept.margin)} of the median", "quiet", size=11))
    return join(parts)


def _columns(swept: Swept) -> list[tuple[str, list[Line]]]:
    nodes: dict[str, list[Line]] = {}
    for found in swept.lines:
        nodes.setdefault(found.visit.node, []).append(found)
    return list(nodes.items())


def _dots(swept: Swept, top: float, floor: float) -> Markup:
    columns = _columns(swept)
    ratios = [100 * ratio for found in swept.lines if (ratio := swept.of_fastest(found))] or [100.0]
    edges = (100 * (1 - swept.margin), 100 / (1 - swept.margin))
    low, high = padded(min(*ratios, edges[0]), max(*ratios, edges[1]), 0.08, 400 * swept.margin)
    y = Scale(low, high, floor - 22, top + 6)
    x = Scale(0, max(1, len(columns)), LEFT, WIDTH - RIGHT)
    step = round_step(high - low, 6)
    marks = [(tick, f"{tick:.{decimals_of(step)}f} %") for tick in ticks(low, high, 6)]
    parts = [
        box(LEFT, y(edges[1]), WIDTH - RIGHT - LEFT, y(edges[0]) - y(edges[1]), "margin"),
        axis_left(y, LEFT, marks, right=WIDTH - RIGHT),
        line(LEFT, y(100), WIDTH - RIGHT, y(100), "one"),
        line(LEFT, floor - 6, WIDTH - RIGHT, floor - 6, "axis"),
    ]
    wide = x(1) - x(0)
    size = min(4.5, max(1.6, wide / 2.5))
    for number, (node, found) in enumerate(columns):
        if wide >= NAME_PX:
            parts.append(line(x(number), top, x(number), floor - 6, "grid"))
            parts.append(_name(node, (x(number) + x(number + 1)) / 2, floor + 8))
        for index, one in enumerate(found):
            at = x(number + (index + 1) / (len(found) + 1))
            parts.append(_mark(one, swept.of_fastest(one), at, y, floor - 14, size, swept.unit))
    if wide < NAME_PX:
        parts.append(words(LEFT, floor + 10, f"{len(columns)} nodes, in the order of their names", "quiet", size=11))
    return join(parts)


def _mark(found: Line, ratio: float | None, x: float, y: Scale, floor: float, size: float, unit: str) -> Markup:
    visit = found.visit
    if ratio is None:
        return cross(x, floor, min(4.0, size), f"{visit.node} {visit.device}: {say_state(found)}")
    form, kind = SIGNS[found.state]
    rate = say_figure(visit.rate_per_s, unit) if visit.rate_per_s else "no rate"
    about = f"{visit.node} {visit.device}: {rate}, {100 * ratio:.2f} % of the median"
    larger = 1.5 if found.state in ("SLOW", "flagged") else 1.0
    return sign(form, x, y.clipped(100 * ratio), larger * size, kind=kind, about=about)


def _name(node: str, x: float, y: float) -> Markup:
    """Upright to the reader's left: names of nodes are long and columns narrow."""
    said = node if len(node) <= LONGEST_NAME else f"…{node[-LONGEST_NAME + 1 :]}"
    turned = words(0, 0, said, "tick", "end", 11)
    return Markup(turned.replace("<text ", f'<text transform="translate({x:.1f} {y:.1f}) rotate(-40)" ', 1))


def _names_height(swept: Swept) -> float:
    columns: Sequence[tuple[str, list[Line]]] = _columns(swept)
    if (WIDTH - RIGHT - LEFT) / max(1, len(columns)) < NAME_PX:
        return 20.0
    return 18.0 + 4.6 * min(LONGEST_NAME, max((len(node) for node, _ in columns), default=0))
