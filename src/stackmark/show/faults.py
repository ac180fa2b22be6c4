"""A fault in words: what would be done, and afterwards what it did to the loop, the pod, the log and the cluster."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stackmark.show.lines import Line, print_lines
from stackmark.units import counted, say_seconds
from stackmark.verdict.fault import DiskSeen, FaultFinding, LogSeen, NewPod
from stackmark.verdict.interruption import Interruption, Ratio

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
    return told
