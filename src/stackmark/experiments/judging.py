"""Judge a run: from the worker's events and the place's observations to the row in the ledger.

Everything derived here can be derived again: the stream is stored whole, and `judged_again` does just that.
"""

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from pydantic import JsonValue, ValidationError

from stackmark import model
from stackmark.errors import StreamError
from stackmark.events import Event, Failed, Hello, Metric, Phase, Result, Row, Stream, by_rank, gathered_facts
from stackmark.experiments.verify import impossible_result, impossible_training, known_kind, targets_of
from stackmark.failures import TARGET_NOT_REACHED, PlaceFailure
from stackmark.figures import rate_of, rate_unit_of
from stackmark.ledger.rows import IMPORT, RunEnd
from stackmark.places.place import Outcome, missing_facts
from stackmark.ranks import DID_NOT_STOP
from stackmark.spec import SCHEMA_VERSION, Spec, explain
from stackmark.verdict.collectives import rows_apart, steps_apart
from stackmark.verdict.steady import checked_steps
from stackmark.verdict.stragglers import RankSteps, stragglers
from stackmark.verdict.throughput import RunVerdict, TimedRun, judge_run

# How a line of standard error stands in a stored stream, between the lines of standard output.
STDERR_PREFIX = "stderr\t"
_NUMBERS = re.compile(r"\d[\d.,]*")
# Steps that ranks do without exchange, as far as a worker is believed.
MOST_ALONE = 10_000
# A message names at most this number of ranks that hung.
DEAF_NAMED = 4
Facts = dict[str, dict[str, JsonValue]]


def judge(
    stream: Stream,
    outcome: Outcome,
    broken: StreamError | None = None,
    not_enforced: Sequence[str] = (),
    *,
    spec: Spec | None = None,
    observed_s: float | None = None,
) -> RunEnd:
    """Judge the end of a run. A failure that the place saw comes first: it is why the worker could not report.

    A run in a place that did not do what was asked of it measured something else, so it is a failure too. A live run has a
    `spec`, and the time in which it was `observed`: what it claims is compared with both.
    """
    facts = gathered_facts(stream.events)
    about = {**_about(facts), "ended_unix_s": time.time(), "setup_s": setup_seconds(stream.events)}
    failure = _failure(stream, outcome, broken, live=spec is not None)
    if failure is None and not_enforced:
        failure = PlaceFailure("not_enforced", "; ".join(not_enforced))
    why = (
        impossible_result(stream, spec, observed_s)
        if failure is None
        else _impossible_end(failure, stream, spec, observed_s)
    )
    if why:
        failure = PlaceFailure("impossible_result", why, "the worker is not stackmark's, or its clock is wrong")
    if failure:
        hint = failure.hint or None
        return RunEnd(
            status="failed", failure_kind=failure.kind, failure_message=failure.message, failure_hint=hint, **about
        )
    result = stream.ended()
    assert isinstance(result, Result)
    try:
        end = _end_with_numbers(stream, result, about)
    except (ValueError, OverflowError) as error:
        what = explain(error) if isinstance(error, ValidationError | model.ValidationError) else str(error)
        message = f"the worker reported impossible numbers: {what}"
        return RunEnd(status="failed", failure_kind="broken_stream", failure_message=message, **about)
    if spec is not None and (said := missing_facts(facts)):
        end = end.model_copy(update={"flags": [*end.flags, *(f"no-facts: {sentence}" for sentence in said)]})
    return end


def _impossible_end(failure: PlaceFailure, stream: Stream, spec: Spec | None, observed_s: float | None) -> str | None:
    """Return why a worker cannot have missed its target as it claims: such a run is a result too, a time that is longer."""
    if failure.kind != TARGET_NOT_REACHED or spec is None:
        return None
    if targets_of(spec) is None:
        return f"{spec.workload} is not trained to a target, but the worker claims that it was not reached"
    return impossible_training(stream, spec, observed_s)


def _end_with_numbers(stream: Stream, result: Result, about: dict[str, str | float | None]) -> RunEnd:
    verdict = judge_run(stream.measured_steps(), result.samples_per_step, result.wall_s, result.tick_s)
    # A single step under a figure is not a step: nobody timed one, and its shape says nothing.
    flags = [*(() if _untimed(result) else verdict.flags), *_said_by_ranks(stream, "flags"), *_stragglers(stream)]
    invalid = _said_by_ranks(stream, "invalid")
    flags += [
        f"not-settled: {event.note}"
        for event in stream.of(0)
        if isinstance(event, Phase) and event.phase == "warm-up" and event.state == "end" and event.note
    ]
    hello = next((event for event in stream.events if isinstance(event, Hello)), None)
    if hello and hello.schema_version > SCHEMA_VERSION:
        flags.append(
            f"newer-worker: its events have version {hello.schema_version}, this stackmark knows {SCHEMA_VERSION}"
        )
    if stream.foreign_count:
        flags.append(f"foreign-lines: {stream.foreign_count} lines of the worker's output were not events")
    return RunEnd(
        status="invalid" if invalid else "done",
        failure_kind=_invalid_kind(stream.events) if invalid else None,
        failure_message="; ".join(invalid) or None,
        flags=flags,
        **_numbers(result, verdict, stream.events),
        **about,
    )


def _said_by_ranks(stream: Stream, field: Literal["flags", "invalid"]) -> list[str]:
    """The first rank's sentences, and those that only others have, with the number of the rank.

    Ranks of one machine see the same things, each with numbers of its own: sentences that differ in numbers alone are one.
    """
    results = sorted((event for event in stream.events if isinstance(event, Result)), key=lambda event: event.rank)
    said: list[str] = list(getattr(results[0], field))
    known = {_NUMBERS.sub("", text) for text in said}
    for result in results[1:]:
        for text in getattr(result, field):
            if (words := _NUMBERS.sub("", text)) not in known:
                known.add(words)
                said.append(f"{text} (rank {result.rank})")
    return said


def _stragglers(stream: Stream) -> list[str]:
    if stream.ranks == 1:
        return []
    spoke = by_rank(stream.events)
    rows = {rank: [event.row for event in events if isinstance(event, Row)] for rank, events in spoke.items()}
    if any(rows.values()):
        return rows_apart(rows)
    if own := _own_steps(spoke):
        return stragglers(own)
    return steps_apart({rank: stream.measured_steps(rank) for rank in spoke})


def _own_steps(spoke: Mapping[int, list[Event]]) -> dict[int, RankSteps]:
    """Read what ranks that exchange say of their steps without exchange; nothing unless all of them say it."""
    found: dict[int, RankSteps] = {}
    for rank, events in spoke.items():
        values = {event.name: event.value for event in events if isinstance(event, Metric)}
        own = [values.get(name) for name in ("compute_step_s", "slowest_steps", "alone_steps")]
        if any(value is None for value in own):
            return {}
        compute_s, slowest, steps = (value or 0.0 for value in own)
        if not 0 <= slowest <= steps <= MOST_ALONE:
            return {}
        facts = gathered_facts(events, rank)
        gpu = facts.get("gpu", {}).get("under_test")
        node = facts.get("container", {}).get("node") or facts.get("host", {}).get("hostname")
        where = ", ".join(str(name)[:80] for name in (node, gpu) if name)
        found[rank] = RankSteps(compute_s, int(slowest), int(steps), where)
    return found


def _numbers(result: Result, verdict: RunVerdict, events: Sequence[Event]) -> dict[str, float | int | str | None]:
    energy_j = _energy_j(events)
    rate_per_s, unit = _rate(result, verdict)
    rate: dict[str, float | int | str | None] = {"rate_per_s": rate_per_s, "rate_unit": unit, "wall_s": result.wall_s}
    if _untimed(result):
        return {**rate, "memory_peak_mib": result.memory_peak_mib, "energy_j": energy_j}
    return {
        **rate,
        "steps_total": verdict.steps_total,
        "steps_used": verdict.steps_used,
        "steady": verdict.steady.kind,
        "step_p50_s": verdict.step_p50_s,
        "step_p90_s": verdict.step_p90_s,
        "step_p99_s": verdict.step_p99_s,
        "step_cv": verdict.cv,
        "memory_peak_mib": result.memory_peak_mib,
        "energy_j": energy_j,
        "data_share": min(1.0, result.data_wait_s / result.wall_s) if result.data_wait_s is not None else None,
    }


def _energy_j(events: Sequence[Event]) -> float | None:
    """Of all devices: a GPU is its rank's alone, while ranks on CPUs all read the one counter of their machine."""
    by_device: dict[str, float] = {}
    for rank, spoken in by_rank(events).items():
        energy = next((event for event in spoken if isinstance(event, Metric) and event.name == "energy_j"), None)
        if energy is not None:
            device = gathered_facts(spoken, rank).get("gpu", {}).get("under_test")
            by_device.setdefault(str(device), energy.value)
    return sum(by_device.values()) if by_device else None


def _untimed(result: Result) -> bool:
    """Whether there is a figure and no times of steps to go with it."""
    return result.figure is not None and result.steps == 1


def _invalid_kind(events: Sequence[Event]) -> str:
    """Of a live run it is the hardware's error; of a log, what the program that wrote it says of its own result."""
    return "not_valid" if IMPORT in gathered_facts(list(events)) else "hardware_error"


def _rate(result: Result, verdict: RunVerdict) -> tuple[float, str]:
    figure = result.figure
    if figure is None:
        return verdict.rate_per_s, f"{result.sample}s/s"
    higher = figure.higher_is_better
    return rate_of(figure.value, higher_is_better=higher), rate_unit_of(figure.unit, higher_is_better=higher)


def _failure(stream: Stream, outcome: Outcome, broken: StreamError | None, *, live: bool = True) -> PlaceFailure | None:
    """Why there is no result; None where there is one. A log's kinds are its importer's, which is ours."""
    closed = stream.ended()
    if outcome.failure:
        # Before a broken stream: whoever is killed in the middle of a line leaves half a line.
        return _with_hung_ranks(outcome.failure, stream, outcome)
    if broken:
        return PlaceFailure("broken_stream", broken.message, broken.hint or "the worker's version may differ from ours")
    if isinstance(closed, Failed):
        # A log of another program has many ranks and one speaker, so its rank says nothing.
        speakers = live or len({event.rank for event in stream.events}) > 1
        who = f"{_rank(closed.rank, stream, outcome)}: " if stream.ranks > 1 and speakers else ""
        kind = known_kind(closed.kind) if live else closed.kind
        who += f"{closed.kind[:40]}: " if kind != closed.kind else ""
        return PlaceFailure(kind, who + closed.message, closed.hint)
    if closed is None:
        last = next((line for line in reversed(outcome.stderr) if line.strip()), "")
        said = f"; its last output was: {last[:300]}" if last else ""
        return PlaceFailure("cut_off", f"the worker ended with code {outcome.exit_code} without a result{said}")
    steps = len(stream.measured_steps())
    if steps != closed.steps:
        return PlaceFailure("broken_stream", f"the worker measured {closed.steps} steps, but {steps} were received")
    if outcome.exit_code:
        return PlaceFailure("crash", f"the worker ended with code {outcome.exit_code} after reporting its result")
    return None


def _rank(number: int, stream: Stream, outcome: Outcome) -> str:
    """Name a rank: `rank 1 of 2`, and where it was if the group was on several nodes."""
    at = outcome.locations.get(number)
    return f"rank {number} of {stream.ranks}{f', {at}' if at else ''}"


def _with_hung_ranks(failure: PlaceFailure, stream: Stream, outcome: Outcome) -> PlaceFailure:
    """Name the ranks that did not hear the request to end when the time of their group was up."""
    if failure.kind not in ("timeout", "silent") or stream.ranks == 1:
        return failure
    deaf = [event.rank for event in stream.events if isinstance(event, Failed) and event.message == DID_NOT_STOP]
    if not deaf:
        return failure
    names = " and ".join(_rank(number, stream, outcome) for number in sorted(deaf)[:DEAF_NAMED])
    more = f" and {len(deaf) - DEAF_NAMED} more" if len(deaf) > DEAF_NAMED else ""
    return replace(failure, message=f"{failure.message}; {names}{more} did not stop on request")


def _about(facts: Facts) -> dict[str, str | None]:
    """What the run ran on, for the columns of a list; the facts themselves are in the stream."""
    gpu, cpu, software = facts.get("gpu", {}), facts.get("cpu", {}), facts.get("software", {})
    chip, uuid = _gpus(gpu)
    if uuid is None and cpu.get("model"):
        chip = str(cpu["model"])
    torch = software.get("torch")
    version = torch.get("version") if isinstance(torch, dict) else torch
    if "command" in facts or software.get("torch_loaded") is False:
        version = None  # it is installed next to the worker, and what was measured did not use it
    # Of another program's run these are names that a log or a person gave.
    named = {name: text for name, text in facts.get(IMPORT, {}).items() if isinstance(text, str)}
    return {
        "chip": chip or named.get("chip"),
        "chip_uuid": uuid,
        "framework": f"PyTorch {version}" if version else named.get("framework"),
    }


def chip_in(facts: Facts) -> str | None:
    """Return the name of the chip that a worker would measure on."""
    return _about(facts)["chip"]


def _gpus(gpu: Mapping[str, JsonValue]) -> tuple[str | None, str | None]:
    """Return name and UUID of the GPU under test; of several that a program used all of them, each model with its count."""
    uuid = gpu.get("under_test")
    if not uuid:
        return None, None
    used = [part for part in _records(gpu.get("used")) if part.get("uuid")]
    if len(used) > 1:
        models = Counter(str(part.get("name") or "unknown GPU") for part in used)
        names = [f"{count} × {name}" if count > 1 else name for name, count in models.items()]
        return " + ".join(names), "+".join(str(part["uuid"]) for part in used)
    # A slice of a GPU is a chip of its own: it has its own name and UUID, and its own speed.
    shown = [
        part
        for device in _records(gpu.get("devices"))
        for part in (device, *_records([device.get("mig_device")]))
        if part.get("uuid") == uuid and part.get("name")
    ]
    return (str(shown[-1]["name"]) if shown else None), str(uuid)


def _records(value: JsonValue) -> list[dict[str, JsonValue]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []


def setup_seconds(events: Sequence[Event]) -> float | None:
    """Return the time from the worker's first event to the start of warm-up, or of the measurement without one."""
    begins = (event.t for event in events if _begins(event) and event.rank == 0)
    return next(begins, None)


def _begins(event: Event) -> bool:
    return isinstance(event, Phase) and event.phase in ("warm-up", "measure")


def setup_parts(events: Sequence[Event]) -> list[tuple[str, float]]:
    """Return set-up by part, in order: what ended before warm-up and measurement started."""
    parts = []
    for event in (event for event in events if event.rank == 0):
        if _begins(event):
            break
        if isinstance(event, Phase) and event.state == "end" and event.seconds is not None:
            parts.append((event.phase, event.seconds))
    return parts


class Stored(NamedTuple):
    """A stored stream: its events and foreign lines, as far as they can be read, and the lines of standard error."""

    stream: Stream
    stderr: list[str]
    # Where it breaks: a run may have failed because of just that.
    broken: StreamError | None


def read_lines(lines: Iterable[str]) -> tuple[Stream, StreamError | None]:
    """Read a worker's lines up to the one where they break, if one does."""
    stream = Stream()
    for line in lines:
        try:
            stream.feed(line)
        except StreamError as error:
            return stream, error
    return stream, None


def read_stored(lines: Iterable[str]) -> Stored:
    stderr = []

    def output() -> Iterator[str]:
        for line in lines:
            if line.startswith(STDERR_PREFIX):
                stderr.append(line.removeprefix(STDERR_PREFIX))
            else:
                yield line

    every = output()
    stream, broken = read_lines(every)
    for _ in every:  # standard error also of what follows a broken line
        pass
    return Stored(stream, stderr, broken)


def timed_run(stream: Stream) -> TimedRun | None:
    """Return the steps of a run whose rate is computed from them; None for a figure, or a run without a result."""
    result = stream.ended()
    steps = stream.measured_steps()
    if not isinstance(result, Result) or result.figure is not None or not steps:
        return None
    steady = judge_run(steps, result.samples_per_step, result.wall_s, result.tick_s).steady
    share = steady.pauses.share if steady.pauses else 0.0
    return TimedRun(checked_steps(steps), steady.kind, steady.settled_step, result.samples_per_step, share)


def judged_again(stream: Stream) -> float | None:
    """Compute the rate of a stored run from its events only."""
    result = stream.ended()
    if not isinstance(result, Result):
        return None
    try:
        verdict = judge_run(stream.measured_steps(), result.samples_per_step, result.wall_s, result.tick_s)
    except (ValueError, OverflowError):
        return None
    return _rate(result, verdict)[0]
