"""A fault: what would be done, and afterwards what it did to the loop, the pod, the log and the cluster, in words and drawn."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from rich.console import Console

from stackmark.errors import SpecError
from stackmark.schemas import with_schema
from stackmark.show.plot import png_of, whole
from stackmark.show.report.charts.shapes import (
    Scale,
    axis_below,
    axis_left,
    factor_ticks,
    fitted,
    picture,
    ticks,
    words,
)
from stackmark.show.report.markup import Markup, element, join, number
from stackmark.show.terminal import Line, print_lines
from stackmark.units import counted, say_seconds
from stackmark.verdict.interruption import DiskSeen, FaultFinding, Interruption, LogSeen, NewPod, Ratio

STYLES = {"loop": "bold", "sick": "red", "note": "yellow", "warning": "yellow", "lacks": "red"}
# An interval from a tenth to ten times says nothing that a person could use.
VAGUE = 100.0
CAVEAT = "of this one run, from stretches of a second or more, corrected for what one tells of the next; without slower drifts"


def print_plan(console: Console, title: str, lines: Sequence[Line]) -> None:
    print_lines(console, title, lines, STYLES)


def print_fault(console: Console, found: FaultFinding) -> None:
    print_lines(console, _title(found), fault_lines(found), STYLES)


def _title(found: FaultFinding) -> str:
    return f"{say_part(found)} while {found.workload}"


def say_part(found: FaultFinding) -> str:
    return f"{found.part} on {found.node}" if found.node else found.part


def fault_lines(found: FaultFinding) -> list[Line]:
    lasted = "it was not applied" if found.fault_s is None else f"gone for {say_seconds(found.fault_s)}"
    lines: list[Line] = [
        ("fault", f"{say_part(found)} by {found.means}: {lasted} ({say_seconds(found.asked_s)} asked)")
    ]
    lines += _loop(found.interruption) if found.interruption else [("loop", _no_loop(found))]
    lines.append(("pod", _pod(found)))
    lines.append(("log", say_log(found.log)))
    if found.disk is not None:
        lines.append(("disk", say_disk(found.disk)))
    lines.append(("devices", say_devices(found)))
    if found.new_pod is not None:
        lines.append(("new pod", say_new_pod(found.new_pod)))
    lines.append(("cluster", _cluster(found)))
    if found.sick:
        lines.append(("sick", found.sick))
    lines += [("note", note) for note in found.notes]
    lines.append(("stored", f"{found.experiment_id}, run {found.run_id}; again: stackmark show {found.experiment_id}"))
    return lines


def _no_loop(found: FaultFinding) -> str:
    if not found.step_ends_t:
        return "no step was measured"
    return "the fault came before the loop had made a step, or was not applied: nothing to hold it against"


def _loop(seen: Interruption) -> list[Line]:
    if seen.during is None:
        return [("loop", "the run had ended before the fault came")]
    lines: list[Line] = [("loop", say_gap(seen))]
    lines.append(("rate", f"before {seen.before.steps_per_s:.4g} steps/s; {_ratios(seen)}"))
    lines.append(("", f"(95 % intervals, {CAVEAT})"))
    lost = say_lost(seen)
    return [*lines, ("steps", lost)] if lost else lines


def say_gap(seen: Interruption) -> str:
    """The longest gap from the fault's beginning on, against what was usual before."""
    if seen.longest_gap_s is None:
        return "no step ended after the fault began"
    times = seen.longest_gap_s / seen.usual_gap_s
    return (
        f"longest gap between steps {say_seconds(seen.longest_gap_s)} ({times:.3g} times the usual "
        f"{say_seconds(seen.usual_gap_s)}); the longest before the fault was {say_seconds(seen.longest_gap_before_s)}"
    )


def _ratios(seen: Interruption) -> str:
    parts = []
    for name, span, ratio in (("during", seen.during, seen.during_ratio), ("after", seen.after, seen.after_ratio)):
        parts.append(f"{name} × {say_ratio(ratio)}" if span and ratio else f"{name}: the run had ended")
    return ", ".join(parts)


def say_ratio(ratio: Ratio | None) -> str:
    """`0.997 (0.985–1.010)`"""
    if ratio is None:
        return "none"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.ratio:.3f} (too short for an interval)"
    if ratio.high > VAGUE * ratio.low:
        return f"{ratio.ratio:.3f} (too unsteady for an interval)"
    return f"{ratio.ratio:.3f} ({ratio.low:.3f}–{ratio.high:.3f})"


def say_lost(seen: Interruption) -> str:
    """Steps that the rate before would have made in the fault's time, and were not."""
    if seen.steps_lost is None or seen.during_ratio is None:
        return ""
    if not seen.during_ratio.differs:
        return "none lost that can be told from noise"
    lost = abs(seen.steps_lost)
    word = "fewer" if seen.steps_lost > 0 else "more"
    return f"{lost:.3g} {word} than at the rate before, in {say_seconds(seen.during.seconds if seen.during else 0)}"


def _pod(found: FaultFinding) -> str:
    same = "the same pod to the end" if found.same_pod else "another pod in its place"
    parts = [same, counted(found.restarts, "restart"), f"last step {found.final_step:,}"]
    if found.run_status != "done":
        parts.append(f"the run {found.run_status}: {found.failure}")
    return ", ".join(parts)


def say_log(log: LogSeen) -> str:
    whole = "every event exactly once" if log.complete else f"not whole: {log.why or 'it ended without a result'}"
    outage = f"longest outage {say_seconds(log.longest_outage_s)}" if log.longest_outage_s else "no outage"
    return f"{whole} ({log.events:,} events, {log.steps:,} steps); {counted(log.reconnects, 'reconnect')}, {outage}"


def say_disk(disk: DiskSeen) -> str:
    if not disk.read:
        return f"the copy on the node could not be read: {disk.why}"
    missing = f"{disk.not_in_log:,} of them never reached the log" if disk.not_in_log else "all of them in the log"
    return f"{disk.steps:,} steps on the node's disk, {missing}"


def say_devices(found: FaultFinding) -> str:
    if found.devices_before is None:
        return f"the node offers no {found.resource}"
    if found.devices_away_s is None:
        return f"{found.devices_before} {found.resource} allocatable all the time, as the API showed it"
    back = (
        f"all back {say_seconds(found.devices_back_after_s)} after the fault's end"
        if found.devices_back_after_s is not None
        else "not all back"
    )
    return (
        f"allocatable {found.resource} went from {found.devices_before} to {found.devices_lowest}, "
        f"for {say_seconds(found.devices_away_s)}; {back}"
    )


def say_new_pod(pod: NewPod) -> str:
    what = f"with {counted(pod.gpus, 'GPU')}" if pod.gpus else "without a GPU"
    before = f" ({say_seconds(pod.before_s)} before the fault)" if pod.before_s is not None else ""
    if pod.after_s is None:
        return f"one {what} did not start: {pod.why}{before}"
    since = f", {say_seconds(pod.since_end_s)} after the fault's end" if pod.since_end_s is not None else ""
    return f"one {what} ran {say_seconds(pod.after_s)} after it was asked for{before}{since}"


def _cluster(found: FaultFinding) -> str:
    parts = []
    if found.api_away_s:
        parts.append(f"the API did not answer for {say_seconds(found.api_away_s)}")
    if found.node_not_ready_s:
        parts.append(f"the node was NotReady for {say_seconds(found.node_not_ready_s)}")
    if found.healthy_after_s is not None:
        parts.append(f"healthy again {say_seconds(max(0.0, found.healthy_after_s))} after the fault's end")
    else:
        parts.append(f"not seen healthy within {say_seconds(found.recover_s)}")
    return "; ".join(parts)


def fault_json(found: FaultFinding) -> dict[str, Any]:
    """All of it; the ends of the steps are in the run's events, and are left out."""
    told = asdict(found)
    del told["step_ends_t"]
    return with_schema("cluster-fault", told)


# --- the picture: step times over time, with the time of the fault shaded -----------------------------------------------


WIDTH, HEIGHT = 860.0, 300.0
LEFT, RIGHT, TOP, FLOOR = 70.0, 838.0, 10.0, 262.0
# More steps than this are drawn as the longest and shortest of each column of pixels.
MOST_POINTS = 1500
SHADE = "#fbe3c8"


def fault_svg(found: FaultFinding) -> str:
    if len(found.step_ends_t) < 2:
        raise SpecError("there is no picture: no step was measured")
    head = [words(0, 30, f"{say_part(found)} while {found.workload}", "strong", size=16)]
    y = 52.0
    for line in _said(found):
        head.append(words(0, y, fitted(line, WIDTH), size=12))
        y += 18
    drawn = Markup(steps_over_time(found).replace("<svg ", f'<svg y="{number(y)}" ', 1))
    return whole(join([*head, drawn]), y + HEIGHT + 12)


def fault_png(found: FaultFinding) -> bytes:
    return png_of(fault_svg(found))


def _said(found: FaultFinding) -> list[str]:
    seen = found.interruption
    lines = []
    if found.fault_s is not None:
        lines.append(f"shaded: the {found.part} was gone for {say_seconds(found.fault_s)} (by {found.means})")
    if seen is not None:
        lines.append(say_gap(seen))
        lines.append(f"rate against before: during {say_ratio(seen.during_ratio)}, after {say_ratio(seen.after_ratio)}")
    return [*lines, say_log(found.log)]


def steps_over_time(found: FaultFinding) -> Markup:
    """Each step at the moment it ended, by its length; seconds count from the first measured step."""
    ends = found.step_ends_t
    start, last = ends[0], ends[-1]
    lengths = [(b - start, b - a) for a, b in pairwise(ends)]
    shown = _thinned(lengths)
    low, high = min(s for _, s in shown), max(s for _, s in shown)
    until = max(last, found.end_t or last) - start
    x = Scale(0.0, max(until, 1e-9), LEFT, RIGHT)
    y = Scale(low * 0.8, max(high, low * 1.5) * 1.25, FLOOR, TOP, log=True)
    shade: list[Markup] = []
    if found.begin_t is not None and found.end_t is not None:
        begin, end = x.clipped(found.begin_t - start), x.clipped(found.end_t - start)
        shade = [
            element("rect", x=begin, y=TOP, width=max(end - begin, 1.0), height=FLOOR - TOP, fill=SHADE),
            words(begin + 4, TOP + 14, fitted(found.part, max(end - begin, 60.0)), "quiet", size=11),
        ]
    marks = [(tick, say_seconds(tick)) for tick in factor_ticks(y.low, y.high)]
    times = [(tick, f"{tick:g} s") for tick in ticks(x.low, x.high, 8)]
    # A step is as wide as it is long, so that a gap is seen as the time that nothing happened in.
    path = "M" + "L".join(
        f"{x.clipped(at - seconds):.1f} {y.clipped(seconds):.1f}L{x(at):.1f} {y.clipped(seconds):.1f}"
        for at, seconds in shown
    )
    return picture(
        WIDTH,
        HEIGHT,
        f"Step times of {found.workload} while {found.part} was gone",
        f"{len(lengths)} steps, the longest took {say_seconds(high)}",
        *shade,
        axis_left(y, LEFT, marks, right=RIGHT),
        axis_below(x, FLOOR, times),
        element("path", class_="steps a0", d=path, fill="none"),
        words(
            LEFT,
            HEIGHT - 4,
            "seconds since the first measured step; the height is how long a step took",
            "tick",
            size=10,
        ),
    )


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of many steps the shortest and the longest of each small stretch: no spike is lost."""
    if len(points) <= MOST_POINTS:
        return points
    size = -(-2 * len(points) // MOST_POINTS)
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        part = points[first : first + size]
        kept += sorted({min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])})
    return kept
