"""All-reduce, all-gather, reduce-scatter, all-to-all and broadcast, on the ranks that were started for it.

A sample is some calls in a row between a barrier and the end of the last one, and its time is that of the slowest rank: nobody
goes on before that. Ranks leave a barrier some tens of microseconds apart, so a sample lasts a hundred times that. DeepBench
waited for the device after every call, which of small arrays times the waiting; calls in a row are what a training step has. So
on GPUs, where the two differ, such rows have the time of calls that are waited for one by one in a note.

All ranks take the same samples of the same number of calls: they are told the same numbers after each (process_group.py), and the
rules are those of timing.py: until the median is known to 1 %, at least ten samples, at most the row's time by rank 0's clock.
What came in is compared exactly, whole, before and after, and one set of buffers after every sample between; one rank's wrong
element is a failed row at all of them.
"""

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from stackmark.events import OpRow
from stackmark.medians import median_of
from stackmark.ranks import bus_factor
from stackmark.units import say_seconds
from stackmark.workloads.op.impl.bench import DTYPES
from stackmark.workloads.op.impl.checking import WRONG_HINT
from stackmark.workloads.op.impl.exchange import Exchange, make_exchange, set_bytes
from stackmark.workloads.op.impl.operands import cache_bytes, copies_for, free_bytes, make_room
from stackmark.workloads.op.impl.process_group import Group, joined, require_group
from stackmark.workloads.op.impl.timing import LEAST_SAMPLES, MOST_CALLS_A_SAMPLE, MOST_SAMPLES, WANTED, say_unknown
from stackmark.workloads.op.params import OpParams
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

PRECISIONS = ("fp32", "fp64", "bf16", "fp16")
# Of buffers that together are a few times the cache; of arrays so small that there would be more, the time is latency.
MOST_SETS = 256
# Two chunks of so many samples that differ by less than this are warm.
CHUNK, STEADY = 5, 0.02
SAMPLE_S = 10e-3
# Samples of calls that are waited for one by one.
WAITED_SAMPLES = 10


def check_ranks(params: OpParams, ranks: int) -> None:
    """Refuses what can be refused by one process, before any rank is started. Devices are counted on this machine."""
    if params.precision not in PRECISIONS:
        raise WorkloadFailure(
            "bad_parameter", f"a collective of {params.precision} is not measured", f"take --precision {PRECISIONS[0]}"
        )
    require_group(torch.device(params.device), ranks)


def run_collectives(
    op: str, problems: Sequence[Problem], params: OpParams, indexes: Sequence[int], tell: Callable[[OpRow], None]
) -> None:
    """Goes through the problems with the group that this process was started for; every rank tells every row."""
    with joined(torch.device(params.device)) as group:
        check_ranks(params, group.rank.local_size)
        if not params.threads and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // group.rank.local_size))
        go_through(group, op, problems, params, indexes, tell)


def go_through(
    group: Group,
    op: str,
    problems: Sequence[Problem],
    params: OpParams,
    indexes: Sequence[int],
    tell: Callable[[OpRow], None],
) -> None:
    for index in indexes:
        floats = problems[index].number("floats")
        row = OpRow(
            index=index,
            op=op,
            shape={**problems[index].shape, "ranks": group.rank.size},
            precision=params.precision,
            least_bytes=float(floats * DTYPES[params.precision].itemsize),
        )
        try:
            row = _row(row, floats, group, params.row_seconds)
        except WorkloadFailure as failure:
            if failure.kind == "lost_rank":
                raise
            said = {"kind": failure.kind, "message": failure.message, "hint": failure.hint}
            row = row.model_copy(update={f"failure_{name}": text for name, text in said.items()})
        tell(row)
        make_room(group.device)


def _row(begun: OpRow, floats: int, group: Group, seconds: float) -> OpRow:
    exchange = _prepared(begun, floats, group)
    sampler = Sampler(group, exchange)
    first = sampler.take(1)
    timed = time_samples(sampler, seconds)
    waited_s = sampler.waited_for(timed.calls_each) if group.device.type == "cuda" and timed.calls_each > 1 else None
    sampler.take(timed.calls_each, every_set=True)
    limit, factor = group.limit(), bus_factor(begun.op, group.rank.size)
    notes = [*group.notes(), *exchange.notes, *limit.notes, *timed.notes]
    if waited_s is not None:
        notes.append(f"a call that is waited for, as DeepBench did after each: {say_seconds(waited_s)}")
    return begun.model_copy(
        update={
            "least_bytes": float(exchange.bytes),
            "call_s": [round(sample, 12) for sample in timed.slowest_s],
            "calls_each": timed.calls_each,
            "own_s": round(median_of(timed.own_s).value, 12),
            "first_call_s": first.slowest_s,
            "copies": exchange.copies,
            "error": 0.0,
            "error_bound": 0.0,
            "checked": f"every element exactly, {sampler.checks} times before, while and after it was timed, at every rank",
            "kernel": group.backend,
            # A rank's link carries `factor` times the array.
            "limit_per_s": limit.bytes_per_s / factor if limit.bytes_per_s else None,
            "limit": limit.words,
            "notes": notes,
        }
    )


def _prepared(begun: OpRow, floats: int, group: Group) -> Exchange:
    """The buffers, or the failure of the first rank that cannot have them, at all ranks."""
    dtype = DTYPES[begun.precision]
    one = set_bytes(begun.op, floats, group.rank.size, dtype.itemsize)
    free = free_bytes(group.device) // (group.rank.local_size if group.device.type == "cpu" else 1)
    # What is contributed and what must come of it are kept beside the sets.
    copies = min(copies_for(one, cache_bytes(group.device), max(0, free - 2 * one)), MOST_SETS)
    fewest = -group.most(-copies)[0]
    exchange, failure = None, None
    try:
        if 3 * one > free:
            raise MemoryError(f"its buffers take {3 * one / 2**30:.3g} GiB, and {free / 2**30:.3g} GiB are free")
        exchange = make_exchange(begun.op, floats, group.rank, dtype, group.device, int(fewest))
    except WorkloadFailure as error:
        failure = error
    except (RuntimeError, MemoryError) as error:
        failure = _no_room(error, group)
    if agreed := group.agreed(failure):
        raise agreed
    assert exchange is not None
    return exchange


def _no_room(error: RuntimeError | MemoryError, group: Group) -> WorkloadFailure:
    kind = "out_of_device_memory" if group.device.type == "cuda" else "out_of_host_memory"
    said = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    return WorkloadFailure(kind, f"it has no room: {said}", "take a smaller problem, or fewer ranks")


@dataclass(frozen=True)
class Taken:
    """A sample, in seconds of a call: the slowest rank's and this rank's own; and rank 0's clock after it."""

    slowest_s: float
    own_s: float
    clock_s: float


class Sampler:
    """Takes samples at all ranks together; raises at all of them when one got something wrong."""

    def __init__(self, group: Group, exchange: Exchange) -> None:
        self._group, self._exchange = group, exchange
        self._on_gpu = group.device.type == "cuda"
        self._next = 0
        self.checks = 0
        self.most_calls = min(exchange.most_calls * exchange.copies, MOST_CALLS_A_SAMPLE)

    def take(self, calls: int, *, every_set: bool = False, waited: bool = False) -> Taken:
        copies = self._exchange.copies
        sets = [(self._next + number) % copies for number in range(calls)]
        self._next = (self._next + calls) % copies
        called = Counter(sets)
        for number in called:
            self._exchange.lay(number)
        if self._on_gpu:
            torch.cuda.synchronize()
        seconds = _seconds_waited if waited else _seconds_on_gpu if self._on_gpu else _seconds_on_cpu
        self._group.barrier()
        own = seconds(self._exchange.call, sets) / calls
        # One set after every sample, another each time.
        looked = called if every_set else {sets[self.checks % calls]: called[sets[self.checks % calls]]}
        wrong = next(filter(None, (self._exchange.wrong(number, times) for number, times in looked.items())), "")
        self.checks += 1
        clock = time.perf_counter() if self._group.rank.number == 0 else -math.inf
        slowest, any_wrong, clock = self._group.most(own, float(bool(wrong)), clock)
        if any_wrong:
            mine = WorkloadFailure("wrong_result", f"{wrong} (sample {self.checks})", WRONG_HINT) if wrong else None
            failure = self._group.agreed(mine)
            assert failure is not None
            raise failure
        return Taken(slowest, own, clock)

    def waited_for(self, calls: int) -> float:
        """The median of calls after each of which the device is waited for."""
        return median_of([self.take(calls, waited=True).slowest_s for _ in range(WAITED_SAMPLES)]).value


@dataclass(frozen=True)
class Timed:
    slowest_s: list[float]
    own_s: list[float]
    calls_each: int
    notes: tuple[str, ...]


def time_samples(sampler: Sampler, seconds: float) -> Timed:
    """Every rank gets the same samples, so that all come to the same decisions."""
    guess = min(sampler.take(1).slowest_s for _ in range(2))
    begin = sampler.take(1)
    calls = max(1, min(math.ceil(SAMPLE_S / max(guess, 1e-7)), sampler.most_calls))
    _warm_up(sampler, calls, begin.clock_s, seconds / 2)
    taken = [sampler.take(calls)]
    while True:
        median = median_of([one.slowest_s for one in taken])
        known = len(taken) >= LEAST_SAMPLES and median.half_width <= WANTED
        if known or len(taken) >= MOST_SAMPLES or taken[-1].clock_s - taken[0].clock_s >= seconds:
            break
        taken.append(sampler.take(calls))
    notes = []
    if not known:
        notes.append(say_unknown([one.slowest_s for one in taken], seconds))
    return Timed([one.slowest_s for one in taken], [one.own_s for one in taken], calls, tuple(notes))


def _warm_up(sampler: Sampler, calls: int, begin_s: float, most_s: float) -> None:
    last = math.inf
    while True:
        chunk: list[Taken] = []
        while len(chunk) < CHUNK:
            chunk.append(sampler.take(calls))
            if chunk[-1].clock_s - begin_s >= most_s:
                return
        now = median_of([one.slowest_s for one in chunk]).value
        if abs(now / last - 1) <= STEADY:
            return
        last = now


def _seconds_on_cpu(call: Callable[[int], object], sets: Sequence[int]) -> float:
    begin = time.perf_counter()
    for number in sets:
        call(number)
    return time.perf_counter() - begin


def _seconds_on_gpu(call: Callable[[int], object], sets: Sequence[int]) -> float:
    before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    before.record()
    for number in sets:
        call(number)
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3


def _seconds_waited(call: Callable[[int], object], sets: Sequence[int]) -> float:
    begin = time.perf_counter()
    for number in sets:
        call(number)
        torch.cuda.synchronize()
    return time.perf_counter() - begin
