"""Short unmeasured trials of a network: which batch it is fast with, and what LoadGen plans with."""

import math
import statistics
import time
from collections.abc import Sequence

from stackmark.units import say_seconds
from stackmark.workloads.serve.definition import ServeParams
from stackmark.workloads.serve.impl.loadgen import Predict

TRIAL_S, TRIAL_CALLS, WARM_CALLS = 1.0, 200, 3
# On a CPU the batch is a table: other programs disturb a trial by more than batches differ, and 8 samples are computed nearly as
# fast as more of them. It is only the most that a call takes: with little to do, batches are smaller.
CPU_BATCH = 8
# On a GPU these are tried. The first stays unless another is clearly faster: the same command should choose the same batch.
GPU_BATCHES = (256, 64, 128, 512)
CLEARLY = 1.2
# A batch that would take longer is not tried.
LONGEST_CALL_S = 1.0
# In `server` a call may take this share of the bound: what waits for it still needs a call of its own.
SHARE_OF_BOUND = 1 / 3
# As many queries a second reach a network one by one without trouble.
SERVER_PATH_RATE = 5000.0


def seconds_of_call(predict: Predict, samples: int, most: int) -> float:
    """Return the median time of a call, without the first ones."""
    indices = [number % most for number in range(samples)]
    for _ in range(WARM_CALLS):
        predict(indices)
    times: list[float] = []
    end = time.perf_counter() + TRIAL_S
    while len(times) < WARM_CALLS or (len(times) < TRIAL_CALLS and time.perf_counter() < end):
        begin = time.perf_counter()
        predict(indices)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def capacity(predict: Predict, params: ServeParams) -> float:
    """Return the samples per second of full batches, one after the other."""
    return params.batch / seconds_of_call(predict, params.batch, params.library)


def undisturbed_capacity(predict: Predict, batch: int, most: int) -> float:
    """Return the samples per second of the shortest call: for a choice that should not depend on other programs."""
    return batch / _shortest(predict, batch, most)


def best_batch(predict: Predict, batches: Sequence[int], most: int, bound_s: float = 0.0) -> tuple[int, str]:
    """Return the batch with the most samples per second, and why. With a bound, calls must be shorter than a part of it."""
    longest_s = SHARE_OF_BOUND * bound_s if bound_s else math.inf
    tried: dict[int, float] = {}
    for batch in batches:
        if any(known < batch and seconds * batch / known > LONGEST_CALL_S for known, seconds in tried.items()):
            continue  # it would take seconds only to find out
        tried[batch] = _shortest(predict, batch, most)
    allowed = {batch: seconds for batch, seconds in tried.items() if seconds <= longest_s}
    if not allowed:
        batch = min(tried)
        return batch, f"even a call of {batch} takes {say_seconds(tried[batch])}"
    first, best = next(iter(allowed)), max(allowed, key=lambda batch: batch / allowed[batch])
    if best / allowed[best] < CLEARLY * first / allowed[first]:
        best = first
    rates = ", ".join(f"{batch}: {batch / seconds:.3g}/s" for batch, seconds in sorted(tried.items()))
    limit = f", a call within {say_seconds(longest_s)}" if bound_s else ""
    return best, f"the fastest in a trial{limit} ({rates})"


def _shortest(predict: Predict, batch: int, most: int) -> float:
    """Return the shortest of a few calls: what other programs took from the others is not the network's."""
    indices = [number % most for number in range(batch)]
    for _ in range(WARM_CALLS):
        predict(indices)
    found, end = math.inf, time.perf_counter() + TRIAL_S
    for turn in range(TRIAL_CALLS):
        begin = time.perf_counter()
        predict(indices)
        found = min(found, time.perf_counter() - begin)
        if turn + 1 >= WARM_CALLS and time.perf_counter() > end:
            break
    return found


def stable_rate(rate: float) -> float:
    """Return the next lower rate of 1, 2, 5, 10 …: trials on a busy and on an idle machine mostly choose the same one."""
    rate = min(rate, SERVER_PATH_RATE)
    power = 10.0 ** math.floor(math.log10(rate))
    return max(step * power for step in (1, 2, 5) if step * power <= rate * (1 + 1e-9))
