"""From what the lab measured to what is shown: the one place that knows both."""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any

from stackmark.errors import StackmarkError
from stackmark.events import Metric, Result
from stackmark.experiments.judging import Facts, setup_parts
from stackmark.experiments.limits import NO_LIMITS, Limits
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.run import Measured
from stackmark.ledger.rows import RunRow
from stackmark.published.lookup import UNCERTAINTY, AgainstPublished, Reference, against, choose, near
from stackmark.published.near import Match
from stackmark.published.table import Published, as_json
from stackmark.show.facts import say_stack
from stackmark.show.result import AgainstLine, Failure, PublishedLine, ResultView, say_flag
from stackmark.show.roofline import standing_json
from stackmark.spec import Request, Spec
from stackmark.workloads.registry import find


@contextmanager
def watching(quiet: bool) -> Iterator[Watcher]:
    """Progress goes to standard error, so that standard output holds the result and nothing else."""
    from stackmark.show.console import is_screen, standard_error
    from stackmark.show.live import LiveBar, Notices, PlainLines

    console = standard_error()
    if is_screen(console):
        with LiveBar(console, unit_of=lambda workload: find(workload)[1].samples) as bar:
            yield bar
    else:
        yield Notices(sys.stderr) if quiet else PlainLines(sys.stderr)


def _middle(rows: list[RunRow], name: str) -> float | None:
    values = [value for row in rows if (value := getattr(row, name)) is not None]
    return median(values) if values else None


def unit_of(workload: str) -> str:
    return find(workload)[1].unit


def published_near(measured: Measured, rows: Sequence[Published]) -> list[Match]:
    any_run = _any_run(measured)
    unit = (any_run.rate_unit if any_run else None) or unit_of(measured.spec.workload)
    chip, framework = (any_run.chip, any_run.framework) if any_run else (None, None)
    return near(measured.spec, unit, chip, framework, rows)


def _any_run(measured: Measured) -> RunRow | None:
    """A run to read the chip and the stack from: one that gave a number, if there is one."""
    return next((row for row in measured.runs if row.status == "done"), next(iter(measured.runs), None))


def _published_line(match: Match) -> PublishedLine:
    return PublishedLine(_say_value(match.row), _say_published(match.row), match.differs)


def _say_value(row: Published) -> str:
    return f"{row.value:,.10g} {row.unit}"


def _say_published(row: Published) -> str:
    what = f"{row.model}, {row.count} × {row.chip}" if row.count != 1 else f"{row.model}, {row.chip}"
    return f"{what}, {row.precision} ({row.source}, {row.date}{', added by you' if row.added else ''})"


def held_against(
    measured: Measured, reference: Reference | None, margin: float | None = None
) -> AgainstPublished | None:
    """The runs against the published row that was asked for; None where none was, or no run gave a number."""
    rates = [row.rate_per_s for row in measured.runs if row.status == "done" and row.rate_per_s]
    any_run = _any_run(measured)
    if reference is None or not rates or any_run is None:
        return None
    match = choose(reference, measured.spec, unit_of(measured.spec.workload), any_run.chip, any_run.framework)
    if match is None:
        return None
    return against("this", rates, match) if margin is None else against("this", rates, match, margin)


def _against_line(found: AgainstPublished) -> AgainstLine:
    match = found.match
    return AgainstLine(
        published=PublishedLine(_say_value(match.row), _say_published(match.row), match.differs),
        sentence=found.comparison.sentence,
        context=found.context,
        sure=found.sure,
    )


def against_json(found: AgainstPublished) -> dict[str, Any]:
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


def result_view(
    measured: Measured,
    repeat: str,
    rows: Sequence[Published],
    held: AgainstPublished | None = None,
    limits: Limits = NO_LIMITS,
) -> ResultView:
    spec = measured.spec
    family, entry = find(spec.workload)
    good = [row for row in measured.runs if row.status == "done"]
    any_row = _any_run(measured)
    result = next((event for event in measured.events if isinstance(event, Result)), None)
    energies = [
        row.energy_j / (row.steps_total * row.batch) for row in good if row.energy_j and row.steps_total and row.batch
    ]
    settings = [
        (name, str(spec.params[name]), measured.choices.get(name, ""))
        for name in family.settings
        if name in spec.params
    ]
    framework = any_row.framework if any_row else None
    chip = any_row.chip if any_row else None
    return ResultView(
        workload=spec.workload,
        title=entry.title,
        chip=say_chip(chip, spec, measured.facts),
        stack=say_stack(measured.facts, framework),
        place=any_row.place if any_row else "host",
        sample=entry.sample,
        unit=(any_row.rate_unit if any_row else None) or "",
        throughput=measured.throughput,
        operations_per_sample=result.operations_per_sample if result else None,
        step_p50_s=_middle(good, "step_p50_s"),
        step_p90_s=_middle(good, "step_p90_s"),
        step_p99_s=_middle(good, "step_p99_s"),
        steady=tuple(Counter(row.steady for row in good if row.steady).items()),
        settings=tuple((name, value, reason if name in ("device", "batch", "precision", "tune") else "")
                       for name, value, reason in settings),
        setup=tuple(setup_parts(measured.events)),
        data_share=_middle(good, "data_share"),
        memory_peak_mib=_middle(good, "memory_peak_mib"),
        energy_j_per_sample=median(energies) if energies else None,
        flags=tuple(run_flags(good)),
        failures=tuple(
            Failure(row.id, row.failure_message or "", row.failure_hint or "") for row in measured.failed
        ),
        published=tuple(_published_line(match) for match in published_near(measured, rows)),
        against=_against_line(held) if held else None,
        limits=limits.sentences,
        repeat=repeat,
        experiment_id=measured.experiment.id,
        run_ids=tuple(row.id for row in measured.runs),
        quality=tuple((event.name.replace("_", " "), event.value) for event in measured.events
                      if isinstance(event, Metric) and event.name in ("top_1_accuracy", "top_5_accuracy")),
    )  # fmt: skip


def run_flags(rows: Sequence[RunRow], without: str = " ") -> list[str]:
    """Each flag once, with how many runs had it. The sentence is the first run's; its numbers differ from run to run.

    `without` is the key of a flag that is said in another way."""
    kinds = [
        {_NUMBERS.sub("#", flag): flag for flag in row.flags if not flag.startswith(f"{without}:")} for row in rows
    ]
    counts = Counter(kind for of_run in kinds for kind in of_run)
    first = {kind: flag for of_run in reversed(kinds) for kind, flag in of_run.items()}
    of = f" of {len(rows)} runs)"
    return [say_flag(first[kind]) + (f"  ({count}{of}" if len(rows) > 1 else "") for kind, count in counts.items()]


_NUMBERS = re.compile(r"[\d.,]+")


def say_chip(chip: str | None, spec: Spec, facts: Facts) -> str:
    """A CPU's name says little without the number of its cores."""
    cores = facts.get("cpu", {}).get("cores") if spec.params.get("device") == "cpu" else None
    return f"{chip or 'unknown'}, {cores} core{'' if cores == 1 else 's'}" if cores else chip or "unknown"


def error_json(request: Request, error: StackmarkError) -> dict[str, Any]:
    return {"request": request.model_dump(mode="json"), "error": error.message, "hint": error.hint}


def result_json(
    measured: Measured,
    repeat: str,
    rows: Sequence[Published],
    held: AgainstPublished | None = None,
    limits: Limits = NO_LIMITS,
) -> dict[str, Any]:
    throughput = measured.throughput
    first = _any_run(measured)
    matches = published_near(measured, rows)
    return {
        "experiment": measured.experiment.id,
        "workload": measured.spec.workload,
        "spec": measured.spec.model_dump(mode="json"),
        "spec_digest": measured.spec.digest,
        "choices": measured.choices,
        "throughput": None
        if throughput is None
        else {
            "rate_per_s": throughput.rate_per_s,
            "low_per_s": throughput.low_per_s,
            "high_per_s": throughput.high_per_s,
            "confidence": 0.95,
            "runs": throughput.runs,
            "cv": throughput.cv,
            "unit": first.rate_unit if first else None,
        },
        "runs": [row.model_dump(mode="json") for row in measured.runs],
        "setup_s": dict(setup_parts(measured.events)),
        "facts": measured.facts,
        "published": [
            {"value": m.row.value, "unit": m.row.unit, "chip": m.row.chip, "count": m.row.count, "model": m.row.model,
             "precision": m.row.precision, "source": m.row.source, "date": m.row.date, "differs": list(m.differs)}
            for m in matches
        ],
        "against_published": against_json(held) if held else None,
        "roofline": standing_json(limits.standing) if limits.standing else None,
        "command": repeat,
    }  # fmt: skip
