"""Verify what a worker says before anything is decided by it.

A worker may run in an image that nobody here has read, and its output is input like any other. Four things that it says reach
a decision, and each is verified in this file:

- the spec of a probe, which all arms run, the bare host among them: `verified_spec`;
- the facts that name a GPU for the other arms (`chip_for_others`); those that show what a place enforced are verified by the
  place itself (`not_enforced`);
- the result: what was counted, and in how much time (`impossible_result`), the evaluations of a model that was trained to a
  quality, by which its time is known (`impossible_training`), and the latencies of a load (verify_latencies.py);
- the kind of a failure, which decides what is repeated: `known_kind`.

Everything else a worker says is stored and shown, and decides nothing. docs/security.md has the table.
"""

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence

from stackmark.errors import WorkerError
from stackmark.events import (
    FAILURE_EXIT_CODES,
    Evaluation,
    Event,
    OpRow,
    Result,
    Row,
    Steps,
    Stream,
    gathered_facts,
)
from stackmark.experiments.list_specs import length_of, problem_of, rows_of_spec
from stackmark.experiments.typed import extra_of
from stackmark.experiments.verify_latencies import impossible_load
from stackmark.model import FieldInfo, JsonValue, ValidationError
from stackmark.places.place import OwnFiles, Place
from stackmark.spec import AUTO, Request, Scalar, Spec, explain
from stackmark.workloads.command.definition import guessed_params
from stackmark.workloads.definition import Definition, MetricType
from stackmark.workloads.op.definition import operations, say_problem
from stackmark.workloads.registry import find, is_own_program, known

Facts = Mapping[str, Mapping[str, JsonValue]]
GPU_UUID = re.compile(r"(GPU|MIG)-[0-9a-fA-F-]{8,40}")
# Two clocks of one second, and a place's own time to notice that a worker has ended.
CLOCK_SLACK_S = 1.0
CLOCK_SLACK = 0.01
# An implementation may count what it really does: all products of a recurrent layer are three times the definition's.
COUNTS_DIFFER = 4.0
# A time may be rounded to milliseconds, or to six digits of minutes.
ROUNDED_S, ROUNDED_SHARE = 1e-3, 1e-5
_DISTRUST = "the image is not what it should be: build it again from a recipe that you trust, or do not use it"


def folder_in(place: Place) -> str:
    """Return the folder that a program runs in unless one is typed: ours, or the place's own where ours is not there."""
    return "." if isinstance(place, OwnFiles) and place.has_own_files() else os.getcwd()


def completed(request: Request, cwd: str = "") -> Request:
    """Fill in what a worker must not choose for a user's own program: its folder, the unit and direction of its figure."""
    if not is_own_program(request.workload):
        return request
    typed = {name: value for name, value in request.typed().items() if value != ""}
    own: dict[str, Scalar] = {"cwd": cwd} if cwd else {}
    return request.model_copy(update={"params": {**own, **guessed_params(typed), **typed}})


def verified_spec(request: Request, spec: Spec) -> Spec:
    """Return the spec that a probe sent, if the request allows it; nothing of it is believed before that.

    A worker decides only what the definition leaves to it (fields marked `auto`) and nobody typed. So a path, a command or
    an environment, which no definition leaves to a worker, is always the one that was typed here.
    """
    if (spec.workload, spec.ranks) != (request.workload, request.ranks):
        raise _refused(
            f"it answered for {spec.workload} with {spec.ranks} ranks, but {request.workload} with {request.ranks} was requested"
        )
    model = find(request.workload)[0].params
    if unknown := sorted(set(spec.params) - set(model.model_fields)):
        raise _refused(f"{request.workload} has no parameter {unknown[0][:80]!r}")
    try:
        sent = model.model_validate(spec.params)
    except ValidationError as error:
        raise _refused(explain(error)) from error
    params = sent.model_dump(mode="json")
    for name, field in model.model_fields.items():
        # A field that the spec leaves out has its default, which is verified too.
        value = params.get(name, field.default)
        wanted = _typed_value(field, request, name)
        if wanted is None and extra_of(field).get("auto"):
            continue
        expected = field.get_default() if wanted is None else wanted
        if not _same(value, expected):
            asked = "the default is" if wanted is None else "the request is"
            raise _refused(f"it chose {name} {str(value)[:80]!r}, but {asked} {expected!r}")
    return Spec(workload=spec.workload, params=params, ranks=spec.ranks)


def _refused(what: str) -> WorkerError:
    return WorkerError(f"the probe's answer was refused: {what}; nothing was run", hint=_DISTRUST)


def _typed_value(field: FieldInfo, request: Request, name: str) -> Scalar:
    """Return what a person typed, as the definition reads it; None where it was left open."""
    typed = request.typed().get(name)
    if typed is None:
        return None
    if name == "device" and typed == "cuda":
        return "cuda:0"
    value: Scalar = field.validate(typed)
    return value


def _same(one: Scalar, other: Scalar) -> bool:
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def chip_for_others(facts: Facts, spec: Spec) -> str | None:
    """Return the UUID of the GPU that the other arms shall use, as the first one's worker names it.

    A user's own program names none before it runs: where only one GPU is there to be used, it will be that one.
    """
    chip = facts.get("gpu", {}).get("under_test")
    shown = facts.get("gpu", {}).get("devices")
    if chip is None and spec.params.get("device") == AUTO and isinstance(shown, list) and len(shown) == 1:
        only = shown[0]
        chip = only.get("uuid") if isinstance(only, dict) else None
    if chip is None:
        return None
    if not isinstance(chip, str) or not GPU_UUID.fullmatch(chip):
        raise WorkerError(f"the worker named a GPU by {str(chip)[:80]!r}, which is not a UUID", hint=_DISTRUST)
    return chip


def known_kind(kind: str) -> str:
    """Return the kind of a failure as a worker may say it. Other kinds are the driver's and the places' own."""
    return kind if kind in FAILURE_EXIT_CODES else "unknown_failure"


def impossible_result(stream: Stream, spec: Spec | None, observed_s: float | None) -> str | None:
    """Return why a result cannot be: too much time, another unit of work, rows that were not requested. None where it can.

    `observed_s` is how long the worker was there by the driver's own clock (or the cluster's). Within that time a program that
    lies can still claim any rate; what it cannot do is to have measured longer than it ran.
    """
    results = [event for event in stream.events if isinstance(event, Result)]
    if observed_s is not None and (said := _too_long(stream, results, observed_s)):
        return said
    if spec is None:
        return None
    return (
        _other_work(spec, results)
        or _other_rows(spec, stream.events)
        or impossible_training(stream, spec, observed_s)
        or impossible_load(stream, spec, observed_s)
    )


def _too_long(stream: Stream, results: Sequence[Result], observed_s: float) -> str | None:
    events = stream.events
    most_s = observed_s * (1 + CLOCK_SLACK) + CLOCK_SLACK_S
    claims = [("a last event", max((event.t for event in events), default=0.0))]
    claims += [("a measured part", result.wall_s) for result in results]
    for rank in {event.rank for event in events}:
        own = [event for event in events if event.rank == rank]
        claims.append(("steps", math.fsum(_step_seconds(own))))
        claims.append(("steps", math.fsum(stream.measured_steps(rank))))  # also those whose events are not kept
        claims.append(("calls", math.fsum(_call_seconds(event.row for event in own if isinstance(event, Row)))))
    what, claimed_s = max(claims, key=lambda claim: claim[1])
    if claimed_s <= most_s:
        return None
    return f"the worker claims {what} of {claimed_s:.3g} s, but ran for {observed_s:.3g} s by the driver's clock"


def _step_seconds(events: Iterable[Event]) -> Iterable[float]:
    return (seconds for event in events if isinstance(event, Steps) for seconds in event.step_s)


def _call_seconds(rows: Iterable[OpRow]) -> Iterable[float]:
    # Of a collective the samples are the slowest rank's, which this rank waited for too.
    return (seconds * row.calls_each for row in rows for seconds in row.call_s)


def _other_work(spec: Spec, results: Sequence[Result]) -> str | None:
    """Hold the unit of a result against its definition: the rate is counted in it."""
    definition = known(spec.workload)
    if definition is None:
        return None
    for result in results:
        if said := _other_metric(definition, spec, result) or _other_samples(definition, spec, result):
            return said
    return None


def _other_metric(definition: Definition, spec: Spec, result: Result) -> str | None:
    metric, figure = definition.metric or definition.metric_by(spec.params), result.figure
    if metric is None or (figure and metric == MetricType(figure.name, figure.unit, figure.higher_is_better)):
        return None
    sent = f"{figure.name[:40]!r} in {figure.unit[:40]!r}" if figure else "none"
    return f"the figure of {definition.name} is {metric.name!r} in {metric.unit}, but the worker sent {sent}"


def _other_samples(definition: Definition, spec: Spec, result: Result) -> str | None:
    if not definition.samples_per_step:
        return None
    count = spec.params.get(definition.samples_per_step)
    if isinstance(count, int):
        count *= spec.ranks  # each rank counts the step of the whole group
    if result.figure is not None:
        return f"{spec.workload} counts {definition.samples} in timed steps, but the worker sent its own figure"
    if (result.sample, result.samples_per_step) != (definition.sample, count):
        return (
            f"a step of {spec.workload} has {count} {definition.samples}, but the worker counted "
            f"{result.samples_per_step} of {result.sample[:40]!r}"
        )
    return None


def _other_rows(spec: Spec, events: Sequence[Event]) -> str | None:
    """Hold the rows of an operator list against the list: each is the problem that its number stands for."""
    if length_of(spec) is None:
        return None
    wanted = set(rows_of_spec(spec))
    for event in events:
        if not isinstance(event, Row):
            continue
        row = event.row
        if row.index not in wanted:
            return f"row {row.index} was not requested"
        problem = problem_of(spec, row.index)
        shape = {**problem.shape, **({"ranks": spec.ranks} if "ranks" in problem.shape else {})}
        if row.op != problem.op or dict(row.shape) != shape:
            return f"row {row.index} is {say_problem(problem.op, problem.shape)}, but the worker timed another problem"
        if row.precision != spec.params.get("precision"):
            return f"row {row.index} was requested in {spec.params.get('precision')}, but the worker timed {row.precision[:40]!r}"
        counted = operations(problem)
        if row.operations and counted and not counted / COUNTS_DIFFER <= row.operations <= counted * COUNTS_DIFFER:
            return f"row {row.index} has about {counted:.3g} operations, but the worker counted {row.operations:.3g}"
    return None


def targets_of(spec: Spec) -> dict[str, float] | None:
    """Return what a spec asks of each quality; None where it is of a workload that is not trained to a quality."""
    definition = known(spec.workload)
    if definition is None or definition.timed != "quality":
        return None
    texts = str(spec.params.get("target", "")).split(",")
    try:
        return {one.name: float(text) for one, text in zip(definition.qualities, texts, strict=True)}
    except ValueError:
        return {}


def impossible_training(stream: Stream, spec: Spec, observed_s: float | None) -> str | None:
    """Return why the evaluations of a run cannot be; None where they can, or where a run is of no such workload.

    It is asked of runs that reached their target, and of those that ended at their limit: both are data of a verdict.
    """
    target = targets_of(spec)
    if target is None:
        return None
    evaluations = evaluations_in(stream)
    if not target:
        return f"the targets of the spec, {str(spec.params.get('target'))[:80]!r}, are not one number for each quality"
    if said := _impossible_curve(evaluations, target):
        return said
    if said := _too_late(stream, evaluations, observed_s):
        return said
    result = stream.ended()
    if isinstance(result, Result):
        return _other_time(evaluations, result)
    if evaluations and evaluations[-1].reached:
        return "the worker claims that the target was not reached, but its last evaluation reached it"
    return None


def evaluations_in(stream: Stream) -> list[Evaluation]:
    """Return the evaluations of a run: the first rank speaks for its group."""
    return [event for event in stream.of(0) if isinstance(event, Evaluation)]


def _impossible_curve(evaluations: Sequence[Evaluation], target: Mapping[str, float]) -> str | None:
    clock_s = 0.0
    for number, one in enumerate(evaluations, 1):
        if one.number != number:
            return f"evaluation {number} calls itself {one.number}"
        if one.clock_s <= clock_s:
            return (
                f"evaluation {number} is at {one.clock_s:.6g} s of the run's clock, which is not after {clock_s:.6g} s"
            )
        clock_s = one.clock_s
        if dict(one.target) != target:
            return f"the target of evaluation {number} is {_say(one.target)}, but the spec asks for {_say(target)}"
        if missing := [name for name in target if name not in one.quality]:
            return f"evaluation {number} does not say {missing[0][:40]!r}"
        if one.reached != all(one.quality[name] >= least for name, least in target.items()):
            return f"evaluation {number} claims that the target is {'' if one.reached else 'not '}reached at {_say(one.quality)}"
        if one.reached and number < len(evaluations):
            return f"evaluation {number} reached the target, but {number + 1} follows it"
    return None


def _say(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name[:40]} {value:g}" for name, value in [*values.items()][:4])


def _other_time(evaluations: Sequence[Evaluation], result: Result) -> str | None:
    """The figure is the clock of the evaluation that reached the target; digits may have been rounded."""
    if not evaluations or not evaluations[-1].reached:
        return "the worker claims a time to the target, but no evaluation reached it"
    seconds = 60 * result.figure.value if result.figure else 0.0
    clock_s = evaluations[-1].clock_s
    if abs(seconds - clock_s) > ROUNDED_S + ROUNDED_SHARE * clock_s:
        return f"the worker claims {seconds:.6g} s to the target, but the evaluation that reached it was at {clock_s:.6g} s"
    return None


def _too_late(stream: Stream, evaluations: Sequence[Evaluation], observed_s: float | None) -> str | None:
    """No evaluation is later than the run lasted. One that went on from a checkpoint has what was before on its clock too."""
    if observed_s is None or not evaluations:
        return None
    facts = gathered_facts(stream.events).get("fit", {})
    before_s = sum(
        float(value)
        for name in ("resumed_at_s", "lost_s")
        if isinstance(value := facts.get(name), int | float) and 0 <= value < math.inf
    )
    most_s = (observed_s + before_s) * (1 + CLOCK_SLACK) + CLOCK_SLACK_S
    if evaluations[-1].clock_s <= most_s:
        return None
    return (
        f"the worker claims an evaluation after {evaluations[-1].clock_s:.3g} s, but ran for {observed_s:.3g} s by the driver's "
        "clock"
    )
