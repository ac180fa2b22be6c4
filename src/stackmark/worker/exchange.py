"""Where the time of a group's step goes: each rank's own work, waiting for the slowest rank, and the exchange.

A rank that waits looks as slow as the one that it waits for, so the step times of ranks that exchange are alike. After the
measured part the ranks do some steps more, without their exchange: then each one's time is its own. In each of these steps
one rank is the slowest, and an exchange would have waited for it: the median of those slowest times is where waiting ends.
What a measured step takes past it is the exchange that is not hidden behind the work. It may come out below zero, where
steps without exchange happened to be slower. The weights of the ranks drift apart meanwhile, and nothing is measured afterwards.
"""

from collections.abc import Callable
from statistics import median

from stackmark import events
from stackmark.worker.clock import Stretch, marks_for
from stackmark.worker.stream import Emitter
from stackmark.workloads.workload import TimedSteps, Together

# Long enough for a median, short against a run.
ALONE_S = 1.0
MOST_STEPS, LEAST_STEPS = 100, 5
# The first step without exchange may allocate.
BEFORE = 2
# Steps that take longer are not done again for this.
LONGEST_STEP_S = 5.0


# Each meeting of the ranks narrows the bounds of their clocks' offset; a meeting takes a millisecond or less.
MEETINGS = 20
# Says nothing in a search for the largest.
NOTHING = -1e300


def align(together: Together, first: bool, now: Callable[[], float]) -> tuple[float, float]:
    """Return by how many seconds this rank's clock is ahead of the first rank's, and how uncertain that is.

    The ranks meet some times, and each notes when it came and when it left. Nobody leaves before all have come: so the offset
    is at least (came here - left there) and at most (left here - came there), at each meeting. The bounds hold whatever the
    network does; they are as far apart as the shortest meeting was long.
    """
    came, left = [], []
    for _ in range(MEETINGS):
        came.append(now())
        together.most(0.0)
        left.append(now())
    told = together.most(*(came + left if first else [NOTHING] * (2 * MEETINGS)))
    low = max(mine - other for mine, other in zip(came, told[MEETINGS:], strict=True))
    high = min(mine - other for mine, other in zip(left, told[:MEETINGS], strict=True))
    return (low + high) / 2, abs(high - low) / 2


def emit_exchange(emitter: Emitter, ready: TimedSteps, together: Together, stretch: Stretch) -> None:
    """Do some steps without exchange, and emit how a step of this rank is made up."""
    emitter(
        events.Metric, name="exchanged_bytes_step", value=together.exchanged_bytes, unit="B", higher_is_better=False
    )
    (step_s,) = together.most(median(stretch.step_s))
    if together.alone is None or step_s > LONGEST_STEP_S:
        return
    count = max(LEAST_STEPS, min(MOST_STEPS, int(ALONE_S / max(step_s, 1e-6))))
    with emitter.part("alone", "steps without exchange"), together.alone:
        own_s = _own(ready, count)
    slowest_s = together.most(*own_s)
    compute_s, most_s = median(own_s), median(slowest_s)
    values = {
        "compute_step_s": compute_s,
        "waiting_step_s": most_s - compute_s,
        "exchange_step_s": step_s - most_s,
    }
    for name, seconds in values.items():
        emitter(events.Metric, name=name, value=seconds, unit="s", higher_is_better=False)
    slowest = sum(own >= most for own, most in zip(own_s, slowest_s, strict=True))
    emitter(events.Metric, name="slowest_steps", value=slowest, unit="steps", higher_is_better=False)
    emitter(events.Metric, name="alone_steps", value=count, unit="steps", higher_is_better=True)


def _own(ready: TimedSteps, count: int) -> list[float]:
    for _ in range(BEFORE):
        ready.step()
    marks = marks_for(ready.device, count)
    marks.begin()
    for boundary in range(1, count + 1):
        ready.step()
        marks.mark(boundary)
    marks.finish(count)
    return marks.seconds(0, count)
