"""The end of a measurement: one table that a person can defend before an expert.

What is printed can be recomputed from what is stored; where a number could be doubted, its scope stands beside it. The
command to repeat it stands outside the panel, in one piece, so that it can be copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from stackmark.show.console import is_screen
from stackmark.show.lines import Line, print_lines
from stackmark.show.report.wording import say_spread
from stackmark.show.safe import safe_line
from stackmark.units import counted, say_count, say_rate, say_seconds, say_size
from stackmark.verdict.throughput import Throughput, worth_of_runs

STYLES = {"rate": "bold green", "failed": "red", "flag": "yellow", "published": "dim", "chosen": "dim"}


@dataclass(frozen=True)
class PublishedLine:
    value: str
    what: str
    differs: tuple[str, ...]


@dataclass(frozen=True)
class AgainstLine:
    """The published row that was asked for, and how the runs compare with it; `context`: its recipe is another."""

    published: PublishedLine
    sentence: str
    context: bool
    sure: str


@dataclass(frozen=True)
class Failure:
    run_id: str
    message: str
    hint: str


@dataclass(frozen=True)
class ResultView:
    """What is shown of one experiment of one arm. A setting is a name, a value and why it was chosen, or nothing."""

    workload: str
    title: str
    chip: str
    stack: str
    place: str
    sample: str
    throughput: Throughput | None
    operations_per_sample: float | None
    step_p50_s: float | None
    step_p90_s: float | None
    step_p99_s: float | None
    steady: tuple[tuple[str, int], ...]
    settings: tuple[tuple[str, str, str], ...]
    setup: tuple[tuple[str, float], ...]
    data_share: float | None
    memory_peak_mib: float | None
    energy_j_per_sample: float | None
    flags: tuple[str, ...]
    failures: tuple[Failure, ...]
    published: tuple[PublishedLine, ...]
    repeat: str
    experiment_id: str
    run_ids: tuple[str, ...]
    # What an evaluation found: a name and a share of one.
    quality: tuple[tuple[str, float], ...] = ()
    # Of a rate that is not counted in samples: a program's own figure.
    unit: str = ""
    against: AgainstLine | None = None
    # How far it is from the limits of its machine, a sentence each.
    limits: tuple[str, ...] = ()


def print_result(view: ResultView, console: Console) -> None:
    repeat = safe_line(view.repeat)
    if is_screen(console):
        print_lines(console, view.workload, rows(view), STYLES)
        console.print(Text(f"repeat: {repeat}", style="dim"), soft_wrap=True)
    else:
        print_lines(console, view.workload, [*rows(view), ("repeat", repeat)], STYLES)


def rows(view: ResultView) -> list[Line]:
    """Name and text of each line, in the order in which a person asks."""
    lines: list[Line] = [("what", view.title)]
    if view.throughput:
        lines += _rate(view, view.throughput)
    lines += [("failed", f"{f.run_id}: {f.message}" + (f"\n{f.hint}" if f.hint else "")) for f in view.failures]
    if view.step_p50_s is not None and view.step_p90_s is not None and view.step_p99_s is not None:
        of = "  (median over runs)" if view.throughput and view.throughput.runs > 1 else ""
        lines.append(("step", say_steps(view.step_p50_s, view.step_p90_s, view.step_p99_s) + of))
    if view.steady:
        lines.append(("steadiness", ", ".join(f"{count} × {kind}" for kind, count in view.steady)))
    if view.quality:
        lines.append(("quality", ", ".join(f"{name} {share:.2%}" for name, share in view.quality)))
    lines.append(("settings", ", ".join(f"{name} {value}" for name, value, _ in view.settings)))
    chosen = [f"{name} {value}: {reason}" for name, value, reason in view.settings if reason]
    if chosen:
        lines.append(("chosen", "\n".join(chosen)))
    lines += [("chip", view.chip), ("place", view.place), ("stack", view.stack)]
    if view.setup:
        lines.append(("set-up", say_setup(view.setup)))
    if view.memory_peak_mib is not None:
        lines.append(("memory", say_memory(view.memory_peak_mib)))
    if view.energy_j_per_sample is not None:
        lines.append(("energy", f"{view.energy_j_per_sample:.3g} J per {view.sample} (the chip's own counter)"))
    if view.data_share is not None:
        lines.append(("data", say_data(view.data_share)))
    lines += [("flag", flag) for flag in view.flags]
    if view.against:
        lines.append(("against", _against(view.against)))
    if view.throughput:
        lines.append(("published", _published(view.published)))
    seen = f"; look at one: stackmark show {view.run_ids[-1]}" if view.run_ids else ""
    lines.append(("stored", f"experiment {view.experiment_id}, {counted(len(view.run_ids), 'run')}{seen}"))
    return lines


def _rate(view: ResultView, throughput: Throughput) -> list[Line]:
    unit = view.unit or f"{view.sample}s/s"
    lines = [("rate", say_throughput(throughput, unit))]
    if unit.startswith("1/"):
        figure = say_rate(1 / throughput.rate_per_s)
        lines.insert(
            0, ("figure", f"{figure} {unit.removeprefix('1/')}, better when lower: its reciprocal is the rate")
        )
    if throughput.runs < 5:
        lines.append(("note", worth_of_runs(throughput.runs)))
    if view.operations_per_sample:
        flops = say_count(throughput.rate_per_s * view.operations_per_sample)
        counted = say_count(view.operations_per_sample)
        said = f"{flops}FLOP/s of the model's own operations ({counted}FLOP per {view.sample})"
        lines.append(("arithmetic", "\n".join([said, *view.limits])))
    return lines


def say_throughput(throughput: Throughput, unit: str) -> str:
    if throughput.low_per_s is None or throughput.high_per_s is None:
        return f"{say_rate(throughput.rate_per_s)} {unit}  (one run: no interval)"
    low, high = say_rate(throughput.low_per_s), say_rate(throughput.high_per_s)
    interval = f"(95 % interval {low} to {high}, {throughput.runs} runs)"
    return f"{say_rate(throughput.rate_per_s)} {unit}  {say_spread(throughput)}  {interval}"


def say_steps(p50_s: float, p90_s: float, p99_s: float) -> str:
    return f"p50 {say_seconds(p50_s)}, p90 {say_seconds(p90_s)}, p99 {say_seconds(p99_s)}"


def say_setup(parts: Sequence[tuple[str, float]]) -> str:
    total = say_seconds(sum(seconds for _, seconds in parts))
    return f"{total}: {', '.join(f'{name} {say_seconds(seconds)}' for name, seconds in parts)}"


def say_memory(mib: float) -> str:
    return f"{say_size(mib * 2**20)} at its peak"


def say_data(share: float) -> str:
    return f"{100 * share:.1f} % of the time the loop waited for its next batch"


def say_flag(flag: str) -> str:
    """Some flags begin with a key for programs, `clocks-disagree: …`; people get the sentence."""
    key, colon, sentence = flag.partition(": ")
    return sentence if colon and " " not in key and sentence else flag


def _published(found: Sequence[PublishedLine]) -> str:
    if not found:
        return "nothing near it is in the table that ships with stackmark"
    lines = []
    for line in found:
        lines.append(f"{line.value}  {line.what}")
        if line.differs:
            lines.append(f"  differs: {'; '.join(line.differs)}")
    return "\n".join(lines)


def _against(line: AgainstLine) -> str:
    """Never a headline: where the recipe differs, that is said before the number."""
    lines = [f"{line.published.value}  {line.published.what}"]
    if line.context:
        lines.append("another recipe, so this is context and no verdict on this machine:")
    lines.append(line.sentence)
    if line.published.differs:
        lines.append(f"  differs: {'; '.join(line.published.differs)}")
    lines.append(f"  how sure: {line.sure}")
    return "\n".join(lines)
