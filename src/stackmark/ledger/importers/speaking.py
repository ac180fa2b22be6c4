"""Write a log's result as worker events, so that the same code judges, stores and compares it.

Where the log has no time of every step, the measured part stands as one step of its whole length, or of one sample where
not even that is known; the figure is the rate in either case. Rows that the program displayed become samples: they are its
own running averages, which are no step times.
"""

from collections.abc import Iterator

from pydantic import JsonValue

from stackmark.events import Event, Facts, Failed, Figure, Hello, Metric, Result, Sample, Steps, write_event
from stackmark.ledger.importers.found import Found
from stackmark.ledger.rows import IMPORT

# Step times of one event: some twenty bytes each, within the limit of a line.
_STEPS_A_LINE = 300
# No log has a clock that is finer.
_TICK_S = 1e-9


def spoken(found: Found, facts: dict[str, JsonValue]) -> list[str]:
    """Write the lines of a worker that had run this. Its time is 0 where the log does not have it."""
    events = _events(found, facts)
    return [write_event(event.model_copy(update={"seq": seq})) for seq, event in enumerate(events)]


def _events(found: Found, facts: dict[str, JsonValue]) -> Iterator[Event]:
    yield Hello(seq=0, t=0, time_unix_s=found.when_unix_s or 0.0, pid=0, ranks=found.ranks)
    yield Facts(seq=0, t=0, subject=IMPORT, facts=facts)
    for row in found.rows:
        yield Sample(seq=0, t=0, values=row)
    for said in found.said:
        yield Metric(
            seq=0, t=0, name=said.name, value=said.value, unit=said.unit, higher_is_better=said.higher_is_better
        )
    if found.failure:
        failure = found.failure
        yield Failed(seq=0, t=0, kind=failure.kind, message=failure.message, hint=failure.hint)
        return
    assert found.figure is not None
    steps, samples = _measured(found, found.figure)
    for first in range(0, len(steps), _STEPS_A_LINE):
        yield Steps(seq=0, t=0, phase="measure", first=first, step_s=list(steps[first : first + _STEPS_A_LINE]))
    yield Result(
        seq=0,
        t=0,
        sample=found.sample,
        samples_per_step=samples,
        steps=len(steps),
        wall_s=sum(steps),
        tick_s=_TICK_S,
        operations_per_sample=found.operations_per_sample,
        figure=found.figure,
        invalid=list(found.invalid),
        flags=list(found.flags),
    )


def _measured(found: Found, figure: Figure) -> tuple[tuple[float, ...], int]:
    """The steps, and the samples in each."""
    if found.step_s:
        return found.step_s, found.samples_per_step
    if found.wall_s:
        return (found.wall_s,), max(round(figure.value * found.wall_s), 1) if figure.unit.endswith("s/s") else 1
    return (1.0 / figure.value,), 1
