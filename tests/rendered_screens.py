"""Screens that no command can show without measuring, or without a cluster, made from samples: their wording is golden too."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

import check_sample
import examined_sample as sample
import scaling_sample
import suite_sample
from doctor_sample import WISH, node, of, on_bus, real_visit, seen, stand_in
from fault_sample import a_finding
from ledger_runs import SPEC
from result_sample import MEASURED, RESULT, events_of_a_run, row
from stackmark.cluster.doctor.diagnosing import make_report
from stackmark.cluster.doctor.evidence import RIGHTS, NodeVisit
from stackmark.cluster.doctor.results import Report
from stackmark.events import Probe
from stackmark.experiments.estimate import Estimate
from stackmark.experiments.limits import Limits
from stackmark.experiments.result import RunResult, flags_of_runs
from stackmark.experiments.sweep.sweep import examine
from stackmark.ledger.store import Ledger
from stackmark.show.check import print_check
from stackmark.show.doctor import print_doctor
from stackmark.show.faults import print_fault
from stackmark.show.live import LiveBar, PlainLines
from stackmark.show.plot import plot_svg
from stackmark.show.report.markdown import render_markdown
from stackmark.show.report.suite import render_suite_markdown, suite_markdown
from stackmark.show.result import print_result
from stackmark.show.suite import print_suite
from stackmark.show.suite_plot import suite_plot_svg
from stackmark.show.sweep import print_sweep
from stackmark.show.trend import print_trends, trends_svg
from stackmark.show.verdict import print_verdict
from stackmark.spec import Request
from stackmark.verdict.cautions import INTERFERENCE, RunEvidence, caution, find_unusable, in_order
from stackmark.verdict.ceilings import Ceilings, Rate
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.interruption import DiskSeen, FaultFinding, LogSeen
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.roofline import Work, doubts, say_standing, stand
from stackmark.verdict.swept import Swept
from stackmark.verdict.throughput import throughput_over_runs
from sweep_runs import Sweep, slow_sweep


def rendered() -> Iterator[tuple[str, str]]:
    """Each by its name, as it looks today."""
    for name, examined in _examined().items():
        yield f"sample-verdict-{name}-why.pipe", _in_pipe(partial(print_verdict, examined, details=True))
        yield from _on_screens(f"sample-verdict-{name}", partial(print_verdict, examined))
        if name in ("slower-times", "failed-run", "one-arm", "open", "nothing"):
            yield f"sample-report-{name}.md", render_markdown(examined)
    yield from _scaling()
    for name, result in _results().items():
        yield f"sample-result-{name}-details.pipe", _in_pipe(partial(print_result, result, details=True))
        yield f"sample-result-{name}.pipe", _in_pipe(partial(print_result, result))
        yield from _on_screens(f"sample-result-{name}", partial(print_result, result))
    for name, report in _diagnoses().items():
        yield f"sample-doctor-{name}.pipe", _in_pipe(partial(print_doctor, report))
        if name in ("fit", "several-nodes"):
            yield from _on_screens(f"sample-doctor-{name}", partial(print_doctor, report))
    for name, found in _faults().items():
        yield f"sample-fault-{name}.pipe", _in_pipe(partial(_fault, found))
    for name, swept in _sweeps().items():
        yield f"sample-sweep-{name}.pipe", _in_pipe(partial(print_sweep, swept))
        if name in ("slow", "equal"):
            yield from _on_screens(f"sample-sweep-{name}", partial(print_sweep, swept))
    for name, checked in check_sample.checks().items():
        show = partial(print_check, checked, again=f"stackmark check {check_sample.NAME}")
        yield f"sample-check-{name}.pipe", _in_pipe(show)
        for width in (60, 80, 120):
            yield f"sample-check-{name}.{width}", _on_screen(show, width)
    trends = (check_sample.trend(),)
    for width in (60, 80, 120):
        yield f"sample-trend.{width}", _on_screen(partial(print_trends, check_sample.NAME, trends), width)
    yield "sample-trend.svg", trends_svg(check_sample.NAME, trends)
    yield "sample-progress.pipe", _progress()
    yield "sample-progress-phases.pipe", _progress(phases=True)
    yield from ((f"sample-progress.{width}", _bar(width)) for width in WIDTHS)
    yield from _suites()
    yield "sample-sentences-ratio", "\n\n".join(map(_said_of_ratio, _ratios()))
    yield "sample-sentences-roofline", "\n\n".join(_said_of_limits())


WIDTHS = (60, 80, 120)


def _scaling() -> Iterator[tuple[str, str]]:
    """Measurements of scaling; the largest on every screen, the others on one."""
    whole = scaling_sample.short()
    yield from _on_screens("sample-scale-short", partial(print_verdict, whole))
    yield "sample-scale-short.pipe", _in_pipe(partial(print_verdict, whole))
    yield "sample-scale-short.svg", plot_svg(whole)
    for name, examined in scaling_sample.others().items():
        yield f"sample-scale-{name}.80", _on_screen(partial(print_verdict, examined), 80)
    yield "sample-scale-scales-why.pipe", _in_pipe(partial(print_verdict, scaling_sample.scales(), details=True))


def _suites() -> Iterator[tuple[str, str]]:
    """Suites of several sizes; the recorded one in the folder in which the screens are made."""
    recorded = suite_sample.recorded_suite(Path())
    widths = {"recorded": WIDTHS, "two": WIDTHS, "uncompared": WIDTHS, "twelve": (120,)}
    made = {"two": suite_sample.two(), "uncompared": suite_sample.uncompared(), "twelve": suite_sample.twelve()}
    for name, result in {"recorded": recorded, **made}.items():
        for width in widths[name]:
            yield f"sample-suite-{name}.{width}", _on_screen(partial(print_suite, result), width)
        yield f"sample-suite-{name}.md", suite_markdown(result)
    details = partial(print_suite, recorded, details=True, ledger="--ledger other.sqlite3")
    yield "sample-suite-recorded-details.pipe", _in_pipe(details)
    yield "sample-suite-recorded-report.md", render_suite_markdown(recorded)
    yield "sample-suite-twelve-heatmap.svg", suite_plot_svg(made["twelve"], "heatmap")
    yield "sample-suite-twelve-bars.svg", suite_plot_svg(made["twelve"], "bars")


def _on_screens(name: str, show: Callable[[Console], None]) -> Iterator[tuple[str, str]]:
    """What a terminal of each width shows, and whether it holds the answer when the command ends is seen at 24 lines."""
    for width in WIDTHS:
        console = _screen(width)
        show(console)
        assert isinstance(console.file, io.StringIO)
        yield f"{name}.{width}", console.file.getvalue()


def _screen(width: int) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, height=24, color_system=None, legacy_windows=False,
        highlight=False, emoji=False,
    )  # fmt: skip


def _in_pipe(show: Callable[[Console], None]) -> str:
    out = io.StringIO()
    show(Console(file=out, force_terminal=False, width=100))
    return out.getvalue()


def _on_screen(show: Callable[[Console], None], width: int) -> str:
    """Show it as a terminal of this width would, without colours."""
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=True, color_system=None, highlight=False, emoji=False,
        _environ={"TERM": "xterm"},
    )  # fmt: skip
    show(console)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _examined() -> dict[str, Examined]:
    two = (sample.compared("host", sample.HOST[:2], "host (2)", sample.CONTAINER[:2], 0.01),)
    return {
        "slower": sample.slower_examined(),
        "slower-times": _in_seconds(sample.slower_examined()),
        "inconclusive": sample.inconclusive(),
        "three-arms": sample.three_arms(),
        "failed-run": sample.with_failed_run(),
        "one-arm": sample.one_arm(),
        "one-run": sample.one_arm(runs=1),
        "open": sample.open_experiment(),
        "nothing": sample.nothing_measured(),
        "noise": sample.aa(),
        "noise-of-two-blocks": sample.aa(comparisons=two),
    }


def _in_seconds(examined: Examined) -> Examined:
    """The same numbers as those of a program whose figure is its time."""
    arms = [
        replace(
            arm, unit="1/s", throughput=arm.throughput and throughput_over_runs([arm.throughput.rate_per_s / 1000] * 2)
        )
        for arm in examined.arms
    ]
    runs = [replace(run, rate_per_s=run.rate_per_s and run.rate_per_s / 1000) for run in examined.runs]
    return replace(examined, arms=tuple(arms), runs=tuple(runs))


def _results() -> dict[str, RunResult]:
    failed = row(status="failed", rate_per_s=None, failure_kind="oom", failure_message="MESSAGE", failure_hint="HINT")
    times = {"throughput": throughput_over_runs([4.9, 4.95, 5.0]), "runs": (row(rate_per_s=4.95, rate_unit="1/s"),)}
    busy = caution(INTERFERENCE, "other programs kept 1.4 of 2 cores busy, and more in 2 of 5 runs")
    found = [caution(kind, said) for kind, said in flags_of_runs(RESULT.good)]
    apart = (7000.0, 7010.0, 2990.0, 7005.0, 6995.0)
    unusable = find_unusable([RunEvidence(rate) for rate in apart], busy.text)
    standing = stand(Work(7000.0, 24.3e9, "bf16", 1e8, 4e8), H200)
    return {
        "runs": replace(RESULT, cautions=in_order(found), limits=Limits(standing=standing)),
        "unusable": replace(
            _measured(throughput=throughput_over_runs(apart)), cautions=in_order([*found, busy]), unusable=unusable
        ),
        "out-of-date": replace(RESULT, limits=Limits(standing=stand(Work(70000.0, 24.3e9, "bf16", 1e8, 4e8), H200))),
        "unfinished": _measured(experiment=MEASURED.experiment.model_copy(update={"request": {"runs": 8}})),
        "times": _measured(**times),
        "few-runs": _measured(throughput=throughput_over_runs([10.0, 10.1, 10.2])),
        "unpublished": replace(RESULT, published=()),
        "failed": _measured(throughput=None, runs=(failed,)),
    }


def _measured(**changes: object) -> RunResult:
    return replace(RESULT, measured=replace(RESULT.measured, **changes))  # type: ignore[arg-type]


def _diagnoses() -> dict[str, Report]:
    poor = tuple(replace(right, allowed=right.right.verb not in ("create", "delete")) for right in RIGHTS)
    bare, gone, cordoned = node(like="not-allocatable"), node(), node()
    gone["status"]["allocatable"]["nvidia.com/gpu"] = "0"
    cordoned["spec"] |= {"unschedulable": True, "taints": [{"key": "team", "value": "x", "effect": "NoSchedule"}]}
    plain = real_visit().plain
    assert plain is not None
    facts = {**(plain.facts or {}), "pci": on_bus(None, None)}
    return {
        "fit": of(node(like="whole"), real_visit()),
        "stand-ins": of(node(), stand_in()),
        "no-driver": of(bare, NodeVisit(plain=replace(plain, facts=facts))),
        "no-pods": of(node(like="time-slicing")),
        "more-seen": of(node(like="whole"), real_visit(shown=2)),
        "no-plugin": of(gone),
        "cordoned": of(cordoned),
        "no-rights": of(node(), rights=poor, user="system:serviceaccount:default:poor"),
        "no-nodes": make_report(seen(), WISH, {}),
        "api-away": make_report(seen(trouble="MESSAGE", trouble_hint="HINT", nodes=None), WISH, {}),
        "several-nodes": make_report(seen(node("a"), node("b", like="whole"), node("c", like="mig-mixed")), WISH, {}),
    }


def _faults() -> dict[str, FaultFinding]:
    dead = a_finding(
        run_status="failed", failure="MESSAGE", final_step=123, log=LogSeen(30, 100, False, 0, 0.0, "REASON"),
        disk=DiskSeen(True, 123, 23), healthy=False, healthy_after_s=None, sick="node-2 is not ready",
    )  # fmt: skip
    return {"survived": a_finding(), "died": dead, "without-steps": a_finding(interruption=None, step_ends_t=())}


def _fault(found: FaultFinding, console: Console) -> None:
    print_fault(console, found)


def _sweeps() -> dict[str, Swept]:
    """In a ledger of the folder in which the screens are made."""
    with Ledger.open("sweeps.sqlite3") as book:
        slow, equal, groups, few, begun = (
            slow_sweep(book),
            Sweep(book),
            Sweep(book, nodes=4),
            Sweep(book, nodes=2),
            Sweep(book),
        )
        equal.first_pass()
        for slot in range(8):
            groups.run(slot, (90 if slot < 5 else 100) * (1 + 0.001 * (slot % 3)))
        few.first_pass()
        begun.run(0, 100)
        made = {"slow": slow, "equal": equal, "slow-group": groups, "few": few, "begun": begun}
        return {name: examine(book, sweep.experiment) for name, sweep in made.items()}


def _bar(width: int) -> str:
    """What is above the bar in the middle of the second run, and the bar."""
    console, now = _screen(width), [1000.0]
    bar = LiveBar(console, unit_of=lambda _: "images", clock=lambda: now[0])
    bar.notice("1.9 of 2 cores are busy: python 92 %")
    bar.probing(Request(workload="train/resnet50"))
    bar.probed(Probe(seq=0, t=0, spec=SPEC))
    bar.expects(Estimate(190.0, 5, {"": 38.0}, measured_before=True))
    bar.run_begins("r-1", 1, 5, SPEC)
    now[0] += 38.0
    bar.run_ended(row(), 1, 5)
    bar.run_begins("r-2", 2, 5, SPEC)
    now[0] += 19.0
    for event in events_of_a_run():
        bar.event(event)
    console.print(bar._progress.get_renderable())
    assert isinstance(console.file, io.StringIO)
    # A wheel that turns, and the time since it began, which is not that of the clock above.
    return re.sub(r"[\u2800-\u28ff]", "⠋", re.sub(r"\d:\d\d:\d\d", "0:00:57", console.file.getvalue()))


def _progress(*, phases: bool = False) -> str:
    out = io.StringIO()
    lines = PlainLines(out, phases=phases)
    lines.notice("1.9 of 2 cores are busy: python 92 %")
    lines.probing(Request(workload="train/resnet50"))
    lines.probed(Probe(seq=0, t=0, spec=SPEC))
    lines.expects(Estimate(190.0, 2, {"": 95.0}, measured_before=True))
    lines.run_begins("r-1", 1, 2, SPEC)
    for event in events_of_a_run():
        lines.event(event)
    lines.run_ended(row(status="invalid", failure_message="XID 79"), 1, 2)
    lines.run_begins("r-2", 2, 2, SPEC)
    lines.run_ended(row(status="failed", rate_per_s=None, failure_message="MESSAGE"), 2, 2)
    lines.experiment_begins(["host", "container"], 12)
    lines.run_begins("r-1", 1, 26, SPEC, label="host", block=None)
    lines.run_ended(row(), 1, 26)
    lines.run_begins("r-2", 3, 26, SPEC, label="container", block=9)
    lines.run_ended(row(), 3, 26)
    return out.getvalue()


# A ratio from blocks: the mean of its logarithms, their standard deviation, how many there are, and the margin.
BLOCKS = (
    (-0.0017, 0.002, 5, 0.01),
    (-0.0025, 0.0015, 6, 0.01),
    (-0.0115, 0.0043, 6, 0.01),
    (-0.0305, 0.004, 6, 0.01),
    (3.69, 0.05, 6, 0.01),
    (0.0, 0.015, 6, 0.01),
    (-0.0099, 0.004, 6, 0.01),
    (0.0, 0.28, 6, 0.01),
    (0.06, 0.042, 4, 0.01),
    (-0.22, 0.04, 6, 0.01),
    (-0.69, 0.04, 4, 0.01),
    (0.0, 0.0, 3, 0.01),
    (0.03, 0.0, 1, 0.01),
)


def _ratios() -> Iterator[Comparison]:
    for mean, sd, count, margin in BLOCKS:
        yield compare_blocks(
            "host", "container", [5.0] * count, [5.0 + one for one in _around(mean, sd, count)], margin
        )


def _around(mean: float, sd: float, count: int) -> Sequence[float]:
    """Numbers at equal distances with this mean and standard deviation."""
    width = sd * (12 / (count * (count + 1))) ** 0.5
    return [mean + width * (number - (count - 1) / 2) for number in range(count)]


def _said_of_ratio(found: Comparison) -> str:
    needed = [f"needed: {found.needed.sentence}"] if found.needed else []
    return "\n".join([found.sentence, *needed, *(f"note: {note}" for note in found.notes)])


H200 = Ceilings(
    matrix={"bf16": Rate(790e12, 665e12)}, copy_bytes_per_s=4.3e12, chip="NVIDIA H200", device="cuda:0",
    measured_unix_s=1.7631e9, run_id="r-01k9",
)  # fmt: skip
# Shares of the matrix rate and of the copy bandwidth, at the least and as called; and whether it was compiled.
SHARES: tuple[tuple[float, float | None, float | None, bool], ...] = (
    (0.26, 0.22, 0.70, False),
    (0.26, 0.22, 0.70, True),
    (0.50, 0.10, 0.60, True),
    (0.60, 0.10, 0.40, False),
    (0.20, 0.05, 0.10, False),
    (0.20, 0.93, None, False),
    (1.10, 0.10, 0.20, False),
    (1.30, 0.10, 0.20, False),
    (0.30, 1.20, 3.00, False),
    (0.30, 0.80, 1.24, True),
    (0.30, None, None, False),
)


def _said_of_limits() -> Iterator[str]:
    for matrix, least, called, compiled in SHARES:
        least_bytes, called_bytes = (None if share is None else 4.3e12 * share for share in (least, called))
        work = Work(1.0, 665e12 * matrix, "bf16", least_bytes, called_bytes, compiled)
        for ceilings in (H200, replace(H200, matrix={}), replace(H200, copy_bytes_per_s=None)):
            standing = stand(work, ceilings)
            yield "\n".join([say_standing(standing), *(f"{doubt.kind}: {doubt.what}" for doubt in doubts(standing))])
            if matrix != SHARES[0][0]:
                break  # that a ceiling is missing is said once
