"""Ask a worker before anything is measured: what a request means in its place, and what the stack there is.

A probe turns the request, in which values may be `auto`, into the spec that is frozen for all runs. Its answer is verified
(verify.py) before anything is decided by it.
"""

import time
from dataclasses import dataclass

from stackmark.errors import PlaceError, SpecError, WorkerError, nearest_names
from stackmark.events import Facts as FactsEvent
from stackmark.events import Failed, Probe, Stream, gathered_facts
from stackmark.experiments.judging import Facts
from stackmark.experiments.list_specs import check_list
from stackmark.experiments.recorder import Listener, Silent, Watcher, all_stored
from stackmark.experiments.verify import completed, folder_in, verified_spec
from stackmark.failures import LOG_INCOMPLETE, PlaceFailure
from stackmark.ids import new_id
from stackmark.places.place import Handle, Outcome, Place
from stackmark.spec import Request, Spec, Task
from stackmark.workloads.command.definition import GUESSED, guessed_params
from stackmark.workloads.registry import check_ranks, check_request, is_own_program

# A probe builds a model and tries a step or two; a minute is usual on a slow machine, this is where it is stuck.
PROBE_LIMIT_S = 900.0
FACTS_LIMIT_S = 120.0


@dataclass(frozen=True)
class Resolved:
    """A spec verified against its request, with the worker's reasons and facts, and what the place knows about it."""

    spec: Spec
    choices: dict[str, str]
    facts: Facts
    handle: Handle
    # What the probe took: loading the framework and building the model, as every run does.
    took_s: float = 0.0


def resolve(request: Request, place: Place, watcher: Watcher) -> Resolved:
    """Ask a worker in that place what the request means there, and verify its answer."""
    check_request(request)
    check_ranks(request)
    check_list(request)
    guessed = guessed_params(request.typed()) if is_own_program(request.workload) else {}
    request = completed(request, folder_in(place))
    watcher.probing(request)
    began_s = time.monotonic()
    listener, outcome = _probe(request, place, watcher)
    if lost := _lost_end(outcome):
        watcher.notice(f"repeating the probe: {lost.message}")
        listener, outcome = _probe(request, place, watcher)
    if _lost_end(outcome):
        raise _probe_failed(listener.stream, outcome)
    if listener.broken:
        raise listener.broken
    probe = next((event for event in listener.stream.events if isinstance(event, Probe)), None)
    if probe is None:
        raise _probe_failed(listener.stream, outcome)
    choices = {**probe.choices, **dict.fromkeys(guessed, GUESSED)}
    probe = probe.model_copy(update={"spec": verified_spec(request, probe.spec), "choices": choices})
    watcher.probed(probe)
    facts = gathered_facts(listener.stream.events)
    return Resolved(probe.spec, probe.choices, facts, listener.handle, time.monotonic() - began_s)


def _probe(request: Request, place: Place, watcher: Watcher) -> tuple[Listener, Outcome]:
    listener, mark = Listener(watcher), new_id("r")
    outcome = place.run(Task(do="probe", request=request), listener, mark=mark, time_limit_s=PROBE_LIMIT_S)
    all_stored(place, mark, watcher)
    if outcome.interruption:
        raise outcome.interruption
    return listener, outcome


def _lost_end(outcome: Outcome) -> PlaceFailure | None:
    """The failure of a worker that ended well and whose last lines are lost: another try may keep them."""
    return outcome.failure if outcome.failure and outcome.failure.kind == LOG_INCOMPLETE else None


def _probe_failed(stream: Stream, outcome: Outcome) -> Exception:
    if outcome.failure:
        failure = outcome.failure
        return PlaceError(f"the probe failed: {failure.message}", hint=failure.hint or None, kind=failure.kind)
    closed = stream.ended()
    if isinstance(closed, Failed):
        error = SpecError if closed.kind in ("bad_parameter", "bad_task") else WorkerError
        return error(closed.message, hint=closed.hint or None, kind=closed.kind)
    last = " ".join(outcome.stderr[-3:])
    return PlaceError(f"the probe ended with code {outcome.exit_code} without an answer: {last}", kind="cut_off")


@dataclass(frozen=True)
class StackFacts:
    """The stack as a worker in a place sees it, and what it could not find out."""

    facts: Facts
    problems: list[str]


def look(place: Place, subjects: tuple[str, ...] = ()) -> StackFacts:
    """Ask a worker in that place for its facts: all subjects, or those that were named."""
    listener, mark = Listener(Silent()), new_id("r")
    outcome = place.run(Task(do="facts"), listener, mark=mark, time_limit_s=FACTS_LIMIT_S)
    all_stored(place, mark, Silent())
    if outcome.interruption:
        raise outcome.interruption
    failed = next((event for event in listener.stream.events if isinstance(event, Failed)), None)
    if failed is not None:
        raise WorkerError(failed.message, hint=failed.hint or None, kind=failed.kind)
    facts = gathered_facts(listener.stream.events)
    if listener.broken or not facts:
        raise PlaceError(f"the worker reported no facts: {listener.broken or ' '.join(outcome.stderr[-3:])}")
    unknown = [name for name in subjects if name not in facts]
    if unknown:
        raise SpecError(
            f"unknown subject {unknown[0]!r}{nearest_names(unknown[0], list(facts))}", hint=", ".join(facts)
        )
    problems = [
        problem
        for event in listener.stream.events
        if isinstance(event, FactsEvent) and (not subjects or event.subject in subjects)
        for problem in event.problems
    ]
    return StackFacts({name: facts[name] for name in subjects or facts}, problems)
