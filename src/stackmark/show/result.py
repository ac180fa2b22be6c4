"""The end of a measurement: ten lines (run_summary.py), everything that is known of it (`--details`), and one object for
programs.

What is printed can be recomputed from what is stored; where a number could be doubted, its scope stands next to it. The
command to repeat it is printed in one piece, so that it can be copied.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console

from stackmark.errors import StackmarkError
from stackmark.events import Metric, Result
from stackmark.experiments.fitting import is_censored
from stackmark.experiments.judging import setup_parts
from stackmark.experiments.result import RunResult, flags_of_runs, split_flag
from stackmark.experiments.serving import ServingResult
from stackmark.experiments.surroundings import KEY as SURROUNDINGS
from stackmark.figures import figure_unit, rate_unit_of
from stackmark.ledger.rows import RunRow
from stackmark.published.lookup import UNCERTAINTY, AgainstPublished
from stackmark.published.near import Match
from stackmark.published.table import Published, as_json
from stackmark.schemas import schema_name, with_schema
from stackmark.show.facts import say_chip as say_chip
from stackmark.show.facts import say_stack
from stackmark.show.quality import detailed_lines, quality_json
from stackmark.show.roofline import standing_json
from stackmark.show.run_summary import COMMANDS, UNUSABLE, answer_lines, missed_hint, print_summary, say_group
from stackmark.show.serving import served_lines
from stackmark.show.stacks import say_stack_lines
from stackmark.show.telemetry import telemetry_json, waited_line
from stackmark.show.terminal import Line, answer_last, print_named
from stackmark.show.wording import say_spread, width_style
from stackmark.spec import Request
from stackmark.units import counted, say_count, say_percent, say_seconds, say_size
from stackmark.verdict.cautions import INTERFERENCE
from stackmark.verdict.scaling import GroupTimes
from stackmark.verdict.throughput import Throughput, worth_of_runs
from stackmark.workloads.command.definition import WALL_TIME, metric_name, say_guess
from stackmark.workloads.registry import find

STYLES = {
    UNUSABLE: "bold red",
    "failed": "red",
    "not done": "yellow",
    "warning": "yellow",
    "flag": "yellow",
    "published": "dim",
    "stacks": "dim",
    "chosen": "dim",
    "repeat": "dim",
}
# Of which settings it is said why they were chosen; all settings are in the spec: stackmark show RUN.
REASONED = ("device", "batch", "precision", "tune")
QUALITY = ("top_1_accuracy", "top_5_accuracy")


def print_result(result: RunResult, console: Console, *, details: bool = False, ledger: str = "") -> None:
    """Print the ten lines of a measurement, or everything about it and the rate again.

    `ledger` is the option that names it in commands to type next.
    """
    if not details:
        print_summary(result, console, ledger)
        return
    colour = "bold red" if result.unusable else width_style(result.throughput)
    styles = {**STYLES, "rate": colour, "figure": colour}
    with answer_last(console, lambda: print_named(console, answer_lines(result), styles)):
        head = [("workload", result.measured.spec.workload), *result_lines(result), ("repeat", result.repeat)]
        print_named(console, head, styles, COMMANDS)


def result_lines(result: RunResult) -> list[Line]:
    """Name and text of each line, in the order in which a person asks."""
    measured = result.measured
    lines: list[Line] = [("what", find(measured.spec.workload)[1].title)]
    if result.unusable:
        lines.append((UNUSABLE, result.unusable.text))
    if measured.throughput:
        lines += _rate(result, measured.throughput)
    lines += [("warning", one.text) for one in result.cautions if one.kind == INTERFERENCE]
    if measured.missing:
        go_on = f"go on with: stackmark resume {measured.experiment.id}"
        asked = measured.asked or 0
        lines.append(("not done", f"{asked - measured.missing} of {counted(asked, 'run')} were made; {go_on}"))
    if measured.quality:
        lines += detailed_lines(measured.quality, missed_hint(measured.runs))
    if result.served:
        lines += served_lines(result.served)
    lines += [("failed", _failure(row)) for row in measured.failed if not is_censored(row)]
    lines += _steps(result)
    if result.group:
        lines.append(("ranks", say_group(result.group)))
    quality = [event for event in measured.events if isinstance(event, Metric) and event.name in QUALITY]
    if quality:
        lines.append(
            ("quality", ", ".join(f"{event.name.replace('_', ' ')} {say_percent(event.value, 2)}" for event in quality))
        )
    lines += _settings(result)
    lines += _where(result)
    if setup := setup_parts(measured.events):
        lines.append(("set-up", say_setup(setup)))
    if (peak := result.median_of("memory_peak_mib")) is not None:
        lines.append(("memory", say_memory(peak)))
    if (energy := result.energy_j_per_sample) is not None:
        sample = find(measured.spec.workload)[1].sample
        lines.append(("energy", f"{energy:.3g} J per {sample} (the chip's own counter)"))
    if (energy := result.energy_j_per_run) is not None:
        lines.append(("energy", f"{energy:,.0f} J per run (the chip's own counter)"))
    if (share := result.median_of("data_share")) is not None:
        lines.append(("data", say_data(share)))
    lines += waited_line(list(result.sampled.values()), share)
    lines += [("flag", flag) for flag in run_flags(result.good)]
    if result.against:
        lines.append(("against", _against(result.against)))
    if measured.throughput:
        if result.published or not result.against:
            lines.append(("published", nearest_text(result.published)))
        if result.published_stack:
            lines.append(("stacks", "\n".join(say_stack_lines(result.published_stack))))
    if (took_s := result.took_s) is not None:
        lines.append(("took", say_seconds(took_s)))
    seen = f"; look at one: stackmark show {measured.runs[-1].id}" if measured.runs else ""
    lines.append(("stored", f"experiment {measured.experiment.id}, {counted(len(measured.runs), 'run')}{seen}"))
    return lines


def _rate(result: RunResult, throughput: Throughput) -> list[Line]:
    name, said = rate_line(throughput, result.unit)
    called = metric_name(result.measured.spec.params)
    # Where a program prints only its unit, that is its name too.
    lines = [(name, said if called in ("", WALL_TIME, figure_unit(result.unit).name) else f"{called} {said}")]
    if throughput.runs < 5:
        lines.append(("note", worth_of_runs(throughput.runs)))
    found = next((event for event in result.measured.events if isinstance(event, Result)), None)
    if found and found.operations_per_sample:
        sample = find(result.measured.spec.workload)[1].sample
        flops = say_count(throughput.rate_per_s * found.operations_per_sample)
        counted = say_count(found.operations_per_sample)
        said = f"{flops}FLOP/s of the model's own operations ({counted}FLOP per {sample})"
        lines.append(("arithmetic", "\n".join([said, *result.limits.sentences])))
    return lines


def _failure(row: RunRow) -> str:
    return f"{row.id}: {row.failure_message or ''}" + (f"\n{row.failure_hint}" if row.failure_hint else "")


def _steps(result: RunResult) -> list[Line]:
    lines: list[Line] = []
    p50, p90, p99 = (result.median_of(f"step_{name}_s") for name in ("p50", "p90", "p99"))
    if p50 is not None and p90 is not None and p99 is not None:
        throughput = result.measured.throughput
        of = "  (median over runs)" if throughput and throughput.runs > 1 else ""
        lines.append(("step", say_steps(p50, p90, p99) + of))
    steady = Counter(row.steady for row in result.good if row.steady)
    if steady:
        lines.append(("steadiness", say_steadiness(steady.items())))
    return lines


def _settings(result: RunResult) -> list[Line]:
    params, choices = result.measured.spec.params, result.measured.choices
    family, _ = find(result.spec.workload)
    shown = {name: params[name] for name in family.settings if params.get(name) not in ("", None)}
    lines: list[Line] = [("settings", ", ".join(f"{name} {value}" for name, value in shown.items()))]
    chosen = [f"{name} {shown[name]}: {choices[name]}" for name in REASONED if name in shown and choices.get(name)]
    if guess := say_guess(params, choices):
        chosen.append(guess)
    return [*lines, ("chosen", "\n".join(chosen))] if chosen else lines


def _where(result: RunResult) -> list[Line]:
    run, measured = result.shown_run, result.measured
    return [
        ("chip", say_chip(run.chip if run else None, measured.spec, measured.facts)),
        ("place", run.place if run else "host"),
        ("stack", say_stack(measured.facts, run.framework if run else None)),
    ]


# --- in words -----------------------------------------------------------------------------------------------------------


def rate_line(throughput: Throughput, rate_unit: str | None) -> Line:
    """Make the line of the rate, or of a figure that is not a rate."""
    name = "rate" if figure_unit(rate_unit).higher_is_better else "figure"
    return name, say_throughput(throughput, rate_unit)


def say_throughput(throughput: Throughput, rate_unit: str | None) -> str:
    unit = figure_unit(rate_unit).scaled(throughput.rate_per_s)
    said = f"{unit.say(throughput.rate_per_s)}{unit.direction}"
    if throughput.low_per_s is None or throughput.high_per_s is None:
        return f"{said}  (one run: no interval)"
    bounds = unit.say_bounds(throughput.low_per_s, throughput.high_per_s)
    return f"{said}  {say_spread(throughput)}  (95 % interval {bounds}, {throughput.runs} runs)"


def say_steps(p50_s: float, p90_s: float, p99_s: float) -> str:
    return f"p50 {say_seconds(p50_s)}, p90 {say_seconds(p90_s)}, p99 {say_seconds(p99_s)}"


def say_steadiness(kinds: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} × {kind}" for kind, count in kinds)


def say_setup(parts: Sequence[tuple[str, float]]) -> str:
    total = say_seconds(sum(seconds for _, seconds in parts))
    return f"{total}: {', '.join(f'{name} {say_seconds(seconds)}' for name, seconds in parts)}"


def say_memory(mib: float) -> str:
    return f"{say_size(mib * 2**20)} at its peak"


def group_json(group: GroupTimes | None) -> dict[str, Any] | None:
    """Say where the time of a step of several ranks goes: means over the ranks."""
    return asdict(group) if group else None


def say_data(share: float) -> str:
    return f"{100 * share:.1f} % of the time the loop waited for its next batch"


def say_flag(flag: str) -> str:
    """Return the sentence of a flag for people: some begin with a key for programs."""
    return split_flag(flag)[1]


def run_flags(rows: Sequence[RunRow], without: str = " ") -> list[str]:
    """Return the sentences of runs' flags. `without` is the kind of a flag that is said in another way."""
    return [said for kind, said in flags_of_runs(rows) if kind != without]


def nearest_text(found: Sequence[Match]) -> str:
    """Return the nearest published rows, each with everything that differs."""
    if not found:
        return "nothing near it is in the table that ships with stackmark"
    lines = []
    for match in found:
        lines.append(say_published(match.row))
        if match.differs:
            lines.append(f"  differs: {'; '.join(match.differs)}")
    return "\n".join(lines)


def say_published(row: Published) -> str:
    what = f"{row.model}, {row.count} × {row.chip}" if row.count != 1 else f"{row.model}, {row.chip}"
    whose = f"{row.source}, {row.date}{', added by you' if row.added else ''}"
    return f"{row.value:,.10g} {row.unit}  {what}, {row.precision} ({whose})"


def _against(found: AgainstPublished) -> str:
    """Never a headline: where the recipe differs, that is said before the number."""
    lines = [say_published(found.match.row)]
    if found.context:
        lines.append("another recipe, so this is context and no verdict on this machine:")
    lines.append(found.comparison.sentence)
    if found.match.differs:
        lines.append(f"  differs: {'; '.join(found.match.differs)}")
    lines.append(f"  how sure: {found.sure}")
    return "\n".join(lines)


# --- for programs -------------------------------------------------------------------------------------------------------


def result_json(result: RunResult) -> dict[str, Any]:
    measured, run = result.measured, result.shown_run
    return {
        "schema": schema_name("measurement"),
        "experiment": measured.experiment.id,
        "workload": measured.spec.workload,
        "spec": measured.spec.model_dump(mode="json"),
        "spec_digest": measured.spec.digest,
        "choices": measured.choices,
        "throughput": throughput_json(
            measured.throughput, run.rate_unit if run else None, metric_name(measured.spec.params)
        ),
        "usable": measured.throughput is not None and result.unusable is None,
        "why": why_not(result),
        "cause": result.unusable.cause if result.unusable else None,
        "warnings": [asdict(one) for one in result.cautions],
        "took_s": result.took_s,
        "surroundings": measured.experiment.request.get(SURROUNDINGS),
        "runs": [row.model_dump(mode="json") for row in measured.runs],
        "runs_asked": measured.asked,
        "setup_s": dict(setup_parts(measured.events)),
        "facts": measured.facts,
        "published": [
            {"value": m.row.value, "unit": m.row.unit, "chip": m.row.chip, "count": m.row.count, "model": m.row.model,
             "precision": m.row.precision, "source": m.row.source, "date": m.row.date, "differs": list(m.differs)}
            for m in result.published
        ],
        "against_published": _against_json(result.against) if result.against else None,
        "published_stack": [asdict(line) for line in result.published_stack],
        "roofline": standing_json(result.limits.standing) if result.limits.standing else None,
        **({"group": group_json(result.group)} if measured.spec.ranks > 1 else {}),
        **({"quality": quality_json(measured.quality)} if measured.quality else {}),
        **(
            {"telemetry": [{"run": id_, **telemetry_json(one)} for id_, one in result.sampled.items()]} if result.sampled else {}
        ),
        **({"served": served_json(result.served)} if result.served else {}),
        "command": result.command,
        "repeat": result.repeat,
    }  # fmt: skip


def served_json(found: ServingResult) -> dict[str, Any]:
    metrics = [
        figure_json(
            one.rates, rate_unit_of(one.metric.unit, higher_is_better=one.metric.higher_is_better), one.metric.name
        )
        for one in found.metrics
    ]
    return {
        "metrics": metrics,
        "valid": found.valid,
        "runs": found.runs,
        "rate_fails": found.rate_fails,
        "tests": found.tests or None,
        **({"cached_shares": list(found.cached)} if found.cached else {}),
        **({"client": dict(found.client)} if found.client is not None else {}),
    }


def why_not(result: RunResult) -> str | None:
    """Say why a result is not usable; None where it is."""
    if result.measured.throughput is None:
        if (quality := result.measured.quality) and not any(row.status == "done" for row in result.measured.runs):
            return f"no time to the target: 0 of {counted(quality.reached.of, 'run')} reached it"
        return "no run gave a number"
    return result.unusable.text if result.unusable else None


def throughput_json(throughput: Throughput | None, unit: str | None, name: str = "") -> dict[str, Any] | None:
    if throughput is None:
        return None
    return {
        "rate_per_s": throughput.rate_per_s,
        "low_per_s": throughput.low_per_s,
        "high_per_s": throughput.high_per_s,
        "confidence": 0.95,
        "runs": throughput.runs,
        "cv": throughput.cv,
        "unit": unit,
        "figure": figure_json(throughput, unit, name),
    }


def figure_json(throughput: Throughput | None, rate_unit: str | None, name: str = "") -> dict[str, Any] | None:
    """Make the figure in its own terms, with the ends of its 95 % interval; `name` is that of a user's own metric."""
    if throughput is None:
        return None
    unit, low, high = figure_unit(rate_unit), None, None
    if throughput.low_per_s is not None and throughput.high_per_s is not None:
        low, high = unit.bounds(throughput.low_per_s, throughput.high_per_s)
    told = {"name": name or None, "unit": unit.name, "higher_is_better": unit.higher_is_better}
    return {"value": unit.value(throughput.rate_per_s), "low": low, "high": high, **told}


def _against_json(found: AgainstPublished) -> dict[str, Any]:
    comparison = found.comparison
    return {
        "row": as_json(found.match.row),
        "ratio": comparison.ratio,
        "interval_90": asdict(comparison.interval_90) if comparison.interval_90 else None,
        "interval_95": asdict(comparison.interval_95) if comparison.interval_95 else None,
        "margin": comparison.margin,
        "verdict": comparison.word,
        "difference": comparison.difference,
        "sentence": comparison.sentence,
        "differs": list(found.match.differs),
        "context_only": found.context,
        "uncertainty": UNCERTAINTY,
        "sure": found.sure,
    }


def error_json(request: Request, error: StackmarkError) -> dict[str, Any]:
    told = {"request": request.model_dump(mode="json"), "error": error.message, "hint": error.hint}
    return with_schema("error", told)
