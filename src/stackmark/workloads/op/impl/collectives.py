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
import torch.distributed as dist

from stackmark.events import OpRow
from stackmark.medians import median_of
from stackmark.ranks import Rank
from stackmark.units import say_seconds
from stackmark.workloads.impl.process_group import Group, joined, require_group
from stackmark.workloads.op.definition import OpParams, bus_factor
from stackmark.workloads.op.impl.bench import DTYPES, Tensor
from stackmark.workloads.op.impl.checking import WRONG_HINT
from stackmark.workloads.op.impl.choose import problems_of
from stackmark.workloads.op.impl.operands import cache_bytes, copies_for, free_bytes, make_room
from stackmark.workloads.op.impl.rows import OwnRows, Plan
from stackmark.workloads.op.impl.timing import LEAST_SAMPLES, MOST_CALLS_A_SAMPLE, MOST_SAMPLES, WANTED, say_unknown
from stackmark.workloads.op.problem import Problem, read_rows
from stackmark.workloads.workload import WorkloadFailure

# --- one exchange at one rank -----------------------------------------------------------------------------------------
#
# The five collectives as one rank does them: its buffers, one call, and whether what came back is right.
#
# Every rank's contribution is its own, and what it must become is known without asking anybody: element i of rank r is
# 1 + r + (i mod m), whole numbers that a float holds exactly, and so do their sums, in whatever order a library adds. So a result
# is compared exactly and whole, not within a bound, and a part that was counted twice, left out or put elsewhere is seen. m is a
# prime: no cut of a buffer into halves and chunks falls together with it.
#
# An all-reduce works in place, and what it gave is what the next call adds up: after k calls every element is its sum times
# n^(k-1). That stays exact while the whole number has room; where n is a power of two it only moves the exponent, as long as
# the sums on the way there, up to n - 1 times an element, have room. So often is a set of buffers called before its
# contribution is laid again, outside of what is timed. The other four have buffers of their own for what comes in.


# Of m: small sums leave an all-reduce room to grow, and a longer wave sees more.
LARGEST_PERIOD = 61
SMALLEST_PERIOD = 5
# Compared in stretches, so that the comparison costs no second copy of a large buffer.
STRETCH = 2**22
NO_LIMIT = 2**30


@dataclass(frozen=True)
class Exchange:
    """A problem on one rank, in `copies` sets of buffers."""

    copies: int
    # Bytes of the whole array, as nccl-tests count it.
    bytes: int
    # Does it with set i; on a GPU it only enqueues.
    call: Callable[[int], object]
    # Lays the own contribution again, and spoils what came in before.
    lay: Callable[[int], None]
    # What is wrong with set i after this many calls since it was laid; empty: nothing.
    wrong: Callable[[int, int], str]
    # How often a set may be called before it is laid again.
    most_calls: int = NO_LIMIT
    notes: tuple[str, ...] = ()


def set_bytes(op: str, floats: int, size: int, item: int) -> int:
    """Return the bytes of one set: what is sent and, in a separate buffer, what is received."""
    part, whole = floats // size * item, floats * item
    return {"all-reduce": whole, "broadcast": whole, "all-to-all": 2 * whole}.get(op, whole + part)


def make_exchange(op: str, floats: int, rank: Rank, dtype: torch.dtype, device: torch.device, copies: int) -> Exchange:
    period = period_of(rank.size, dtype)
    part = floats // rank.size
    if op in _PARTED and part == 0:
        raise WorkloadFailure("bad_parameter", f"{floats} floats cannot be divided among {rank.size} ranks")
    pattern = Pattern(period, rank, dtype, device)
    if op not in _PARTED:
        return _IN_PLACE[op](pattern, floats, copies)
    used = part * rank.size
    made = _PARTED[op](pattern, part, copies)
    if used == floats:
        return made
    note = f"{used:,} of its {floats:,} floats: the parts of {rank.size} ranks are equal"
    return Exchange(made.copies, made.bytes, made.call, made.lay, made.wrong, made.most_calls, (note,))


class Pattern:
    """A rank's contribution and the sum over all ranks, at any index of the array."""

    def __init__(self, period: int, rank: Rank, dtype: torch.dtype, device: torch.device) -> None:
        self.period, self.rank, self.dtype, self.device = period, rank, dtype, device

    def of(self, number: int, first: int, length: int) -> Tensor:
        """Return the contribution of a rank from element `first` on."""
        return self._wave(first, length).add_(1 + number)

    def total(self, first: int, length: int) -> Tensor:
        size = self.rank.size
        return self._wave(first, length).mul_(size).add_(size + size * (size - 1) // 2)

    def _wave(self, first: int, length: int) -> Tensor:
        period = torch.arange(self.period, dtype=self.dtype, device=self.device).roll(-(first % self.period))
        return period.repeat(-(-length // self.period))[:length]


def period_of(size: int, dtype: torch.dtype) -> int:
    """Return a prime for which the sum over all ranks is exact, and if possible also what an all-reduce makes of it."""
    for room in (_exact(dtype) // (size - 1), _exact(dtype)):
        most = min(LARGEST_PERIOD, (room - size * (size - 1) // 2) // size)
        for period in range(most, SMALLEST_PERIOD - 1, -1):
            if all(period % divisor for divisor in range(2, int(period**0.5) + 1)):
                return period
    raise WorkloadFailure(
        "bad_parameter", f"{str(dtype).removeprefix('torch.')} cannot hold the sums of {size} ranks exactly",
        "use --precision fp32, or fewer ranks",
    )  # fmt: skip


def exact_calls(size: int, period: int, dtype: torch.dtype) -> int:
    """Return how often an all-reduce may be called on its own result, in any order of adding."""
    largest = size * period + size * (size - 1) // 2
    only_exponent = size & (size - 1) == 0 and largest * (size - 1) <= _exact(dtype)
    room = torch.finfo(dtype).max if only_exponent else float(_exact(dtype))
    calls = 1
    while largest * float(size) ** calls <= room:
        calls += 1
    return calls


def _exact(dtype: torch.dtype) -> int:
    """Up to here every whole number is exact."""
    return round(2 / torch.finfo(dtype).eps)


def _all_reduce(pattern: Pattern, floats: int, copies: int) -> Exchange:
    mine, total = pattern.of(pattern.rank.number, 0, floats), pattern.total(0, floats)
    buffers = [torch.empty_like(mine) for _ in range(copies)]
    size = pattern.rank.size
    return Exchange(
        copies,
        mine.nbytes,
        call=lambda i: dist.all_reduce(buffers[i]),
        lay=lambda i: _laid(buffers[i], mine),
        wrong=lambda i, calls: differences(buffers[i], total, float(size) ** (calls - 1)),
        most_calls=exact_calls(size, pattern.period, pattern.dtype),
    )


def _broadcast(pattern: Pattern, floats: int, copies: int) -> Exchange:
    mine, root = pattern.of(pattern.rank.number, 0, floats), pattern.of(0, 0, floats)
    buffers = [torch.empty_like(mine) for _ in range(copies)]
    return Exchange(
        copies,
        mine.nbytes,
        call=lambda i: dist.broadcast(buffers[i], src=0),
        lay=lambda i: _laid(buffers[i], mine),
        wrong=lambda i, _calls: differences(buffers[i], root),
        notes=("from rank 0",),
    )


def _renamed(now: str, before: str) -> Callable[[Tensor, Tensor], object]:
    """Torch 2.13 has new names for two of them, and warns of the old."""
    found: Callable[[Tensor, Tensor], object] = getattr(dist, now, None) or getattr(dist, before)
    return found


def _all_gather(pattern: Pattern, part: int, copies: int) -> Exchange:
    size, own = pattern.rank.size, pattern.rank.number
    wanted = torch.cat([pattern.of(number, number * part, part) for number in range(size)])
    collective = _renamed("all_gather_single", "all_gather_into_tensor")
    return _apart(copies, wanted.nbytes, pattern.of(own, own * part, part), wanted, collective)


def _reduce_scattered(pattern: Pattern, part: int, copies: int) -> Exchange:
    size, own = pattern.rank.size, pattern.rank.number
    mine = pattern.of(own, 0, size * part)
    collective = _renamed("reduce_scatter_single", "reduce_scatter_tensor")
    return _apart(copies, mine.nbytes, mine, pattern.total(own * part, part), collective)


def _all_to_all(pattern: Pattern, part: int, copies: int) -> Exchange:
    size, own = pattern.rank.size, pattern.rank.number
    wanted = torch.cat([pattern.of(number, own * part, part) for number in range(size)])
    return _apart(copies, wanted.nbytes, pattern.of(own, 0, size * part), wanted, dist.all_to_all_single)


def _apart(
    copies: int, whole_bytes: int, mine: Tensor, wanted: Tensor, collective: Callable[[Tensor, Tensor], object]
) -> Exchange:
    """What comes in has a buffer of its own."""
    sent = [mine.clone() for _ in range(copies)]
    came = [torch.empty_like(wanted) for _ in range(copies)]
    return Exchange(
        copies,
        whole_bytes,
        call=lambda i: collective(came[i], sent[i]),
        lay=lambda i: _laid(came[i], -1.0),
        wrong=lambda i, _calls: differences(came[i], wanted),
    )


_IN_PLACE = {"all-reduce": _all_reduce, "broadcast": _broadcast}
_PARTED = {"all-gather": _all_gather, "reduce-scatter": _reduce_scattered, "all-to-all": _all_to_all}


def _laid(buffer: Tensor, value: Tensor | float) -> None:
    if isinstance(value, float):
        buffer.fill_(value)
    else:
        buffer.copy_(value)


def differences(got: Tensor, wanted: Tensor, times: float = 1.0) -> str:
    """Return the first wrong element and how many there are; empty: none."""
    count, first = 0, ""
    for begin in range(0, got.numel(), STRETCH):
        here = got[begin : begin + STRETCH]
        there = wanted[begin : begin + STRETCH] * times
        if torch.equal(here, there):
            continue
        places = (here != there).nonzero().flatten()
        place = int(places[0])
        first = first or f"element {begin + place:,} is {float(here[place]):g}, expected {float(there[place]):g}"
        count += places.numel()
    return f"{count:,} of {got.numel():,} elements are wrong: {first}" if count else ""


# --- rows of exchanges ------------------------------------------------------------------------------------------------


PRECISIONS = ("fp32", "fp64", "bf16", "fp16")
# Of buffers that together are a few times the cache; of arrays so small that there would be more, the time is latency.
MOST_SETS = 256
# Two chunks of this many samples that differ by less than this are warm.
CHUNK, STEADY = 5, 0.02
SAMPLE_S = 10e-3
# Samples of calls that are waited for one by one.
WAITED_SAMPLES = 10


def check_ranks(params: OpParams, ranks: int) -> None:
    """Refuse what one process can refuse before any rank is started. Devices are counted on this machine."""
    if params.precision not in PRECISIONS:
        raise WorkloadFailure(
            "bad_parameter", f"collectives do not support {params.precision}", f"use --precision {PRECISIONS[0]}"
        )
    require_group(torch.device(params.device), ranks)


def plan(op: str, params: OpParams) -> Plan:
    found = problems_of(op, params)
    indexes = read_rows(params.rows, len(found))
    return Plan(len(indexes), lambda tell: run_collectives(op, found, params, indexes, tell))


def run_collectives(
    op: str, problems: Sequence[Problem], params: OpParams, indexes: Sequence[int], tell: Callable[[OpRow], None]
) -> None:
    """Measure the problems with the group that this process was started for; every rank reports every row."""
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
    slow = group.slow_network()
    notes = [*([slow] if slow else []), *group.notes(), *exchange.notes, *limit.notes, *timed.notes]
    if waited_s is not None:
        notes.append(f"a call with a wait after it, as in DeepBench: {say_seconds(waited_s)}")
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
            "checked": f"every element exactly, {sampler.checks} times before, during and after timing, on every rank",
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
    # What is contributed and what must come of it are kept next to the sets.
    copies = min(copies_for(one, cache_bytes(group.device), max(0, free - 2 * one)), MOST_SETS)
    fewest = -group.most(-copies)[0]
    exchange, failure = None, None
    try:
        if 3 * one > free:
            raise MemoryError(f"its buffers take {3 * one / 2**30:.3g} GiB, but {free / 2**30:.3g} GiB are free")
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
    return WorkloadFailure(kind, f"not enough memory: {said}", "use a smaller problem, or fewer ranks")


@dataclass(frozen=True)
class RankSample:
    """A sample, in seconds of a call: the slowest rank's and this rank's own; and rank 0's clock after it."""

    slowest_s: float
    own_s: float
    clock_s: float


class Sampler:
    """Takes samples on all ranks together; raises on all of them when one got a wrong result."""

    def __init__(self, group: Group, exchange: Exchange) -> None:
        self._group, self._exchange = group, exchange
        self._on_gpu = group.device.type == "cuda"
        self._next = 0
        self.checks = 0
        self.most_calls = min(exchange.most_calls * exchange.copies, MOST_CALLS_A_SAMPLE)

    def take(self, calls: int, *, every_set: bool = False, waited: bool = False) -> RankSample:
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
        return RankSample(slowest, own, clock)

    def waited_for(self, calls: int) -> float:
        """Return the median of calls with a wait for the device after each."""
        return median_of([self.take(calls, waited=True).slowest_s for _ in range(WAITED_SAMPLES)]).value


@dataclass(frozen=True)
class Timed:
    slowest_s: list[float]
    own_s: list[float]
    calls_each: int
    notes: tuple[str, ...]


def time_samples(sampler: Sampler, seconds: float) -> Timed:
    """Time samples; every rank gets the same, so that all decide alike."""
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
        chunk: list[RankSample] = []
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


COLLECTIVE = OwnRows(check=check_ranks, plan=plan)
