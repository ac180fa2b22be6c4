"""What the stack is, as a worker in some place sees it."""

from dataclasses import dataclass

from stackmark.errors import PlaceError, SpecError, nearest_names
from stackmark.events import Facts as FactsEvent
from stackmark.events import gathered_facts
from stackmark.experiments.judging import Facts
from stackmark.experiments.run import Listener
from stackmark.experiments.watching import Silent
from stackmark.ids import new_id
from stackmark.places.place import Place
from stackmark.spec import Task

LIMIT_S = 120.0


@dataclass(frozen=True)
class Seen:
    facts: Facts
    problems: list[str]


def look(place: Place, subjects: tuple[str, ...] = ()) -> Seen:
    """All subjects, or those that were named."""
    listener = Listener(Silent())
    outcome = place.run(Task(do="facts"), listener, mark=new_id("r"), time_limit_s=LIMIT_S)
    if outcome.interruption:
        raise outcome.interruption
    facts = gathered_facts(listener.stream.events)
    if listener.broken or not facts:
        raise PlaceError(f"the worker told no facts: {listener.broken or ' '.join(outcome.stderr[-3:])}")
    unknown = [name for name in subjects if name not in facts]
    if unknown:
        raise SpecError(
            f"there is no subject {unknown[0]!r}{nearest_names(unknown[0], list(facts))}", hint=", ".join(facts)
        )
    problems = [
        problem
        for event in listener.stream.events
        if isinstance(event, FactsEvent) and (not subjects or event.subject in subjects)
        for problem in event.problems
    ]
    return Seen({name: facts[name] for name in subjects or facts}, problems)
