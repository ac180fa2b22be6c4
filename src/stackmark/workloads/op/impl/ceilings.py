"""`op/ceilings`: measures this machine's limits: matrix rate by precision, memory, link to the host, launches.

The matrix rate is that of large square products (the best of three sizes on a GPU), which a library does at its best. It is
given twice. *Cold*: the chip rested and then worked so shortly that nothing held its clock back yet. A GPU's power limit does
so after 40 to 80 ms at full load (an H200), so there it is 20 ms, three times over; on a CPU 0.3 s. *Sustained*: it worked for
five seconds (three on a CPU), and the last half counts; by then the power limit and the temperature have taken their part. All
cold rates are measured before the first sustained one, so that none of them is had from a chip that was just at full power.

Memory is copied (bytes read and written) and summed up (bytes read), in pieces that no cache holds.
"""

import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Literal

import torch

from stackmark.events import OpRow
from stackmark.spec import Scalar
from stackmark.workloads.impl.devices import cpu_has
from stackmark.workloads.impl.links import driver
from stackmark.workloads.op.definition import OpParams, read_problem
from stackmark.workloads.op.impl import copies, matrix
from stackmark.workloads.op.impl.bench import Implementation, Prepared, Stand
from stackmark.workloads.op.impl.checking import Guard, refuse_wrong
from stackmark.workloads.op.impl.operands import cache_bytes, free_bytes, make_room
from stackmark.workloads.op.impl.rows import OwnRows, Plan, Tell, attempted, go_through, stand_of
from stackmark.workloads.op.impl.timing import (
    STRETCH_MOST_SAMPLES,
    Look,
    Stretch,
    counted_of,
    first_call_s,
    samples,
    wait,
    work,
)
from stackmark.workloads.op.problem import Problem, read_rows
from stackmark.workloads.workload import WorkloadFailure

# --- the matrix rate --------------------------------------------------------------------------------------------------
#
# The matrix rate in one state of the chip, cold or sustained: which size of square products is best, and a stretch of it.


GPU_SIZES = (4096, 8192, 16384)
CPU_SIZES = (256, 512, 1024, 2048, 4096, 8192)
CPU_FIRST_SIZE = 512
# A call that takes longer leaves too few of them in a stretch.
LONGEST_CALL_S = 0.25
# How each size is tried on a GPU: for a sustained rate so long that the clock has fallen in its second half; for a cold one
# after a rest, for as many calls as make a burst.
SUSTAINED_TRIAL, COLD_TRIAL = Stretch(0.3, counted=0.5), Stretch(0.02, rest_s=0.2)


class Sizes:
    """The best size of each precision: of a GPU for each state, of a CPU one for both."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, bool], int] = {}

    def of(self, stand: Stand, cold: bool) -> int:
        key = (stand.precision, cold and stand.on_gpu)
        if key not in self._found:
            self._found[key] = best_size(stand, cold)
        return self._found[key]


def best_size(stand: Stand, cold: bool) -> int:
    """Return on a GPU the size with the best rate; on a CPU the largest whose call leaves time for several."""
    sizes = GPU_SIZES if stand.on_gpu else CPU_SIZES
    at = 0 if stand.on_gpu else CPU_SIZES.index(CPU_FIRST_SIZE)
    trial = Stretch(0.0) if not stand.on_gpu else COLD_TRIAL if cold else SUSTAINED_TRIAL
    call_s = _trial_s(sizes[at], stand, trial)
    if trial is SUSTAINED_TRIAL:  # once more: the first had a chip that rested
        call_s = _trial_s(sizes[at], stand, trial)
    while call_s > LONGEST_CALL_S and at > 0:  # a CPU without instructions for it
        at -= 1
        call_s = _trial_s(sizes[at], stand, trial)
    best, best_rate = sizes[at], sizes[at] ** 3 / call_s
    # Twice the size is eight times the work.
    while at + 1 < len(sizes) and 8 * call_s <= LONGEST_CALL_S:
        at += 1
        try:
            call_s = _trial_s(sizes[at], stand, trial)
        except WorkloadFailure:  # it does not fit into memory
            break
        rate = sizes[at] ** 3 / call_s
        if rate > best_rate or not stand.on_gpu:
            best, best_rate = sizes[at], rate
    return best


def _trial_s(size: int, stand: Stand, trial: Stretch) -> float:
    prepared = matrix.prepare_gemm(_product(size, stand), stand)
    prepared.call(0)
    wait(stand)
    time.sleep(trial.rest_s)
    call_s = median(counted_of(samples(prepared, stand, trial.seconds, 3, 1), trial.counted))
    del prepared
    make_room(stand.device)
    return call_s


def _product(size: int, stand: Stand) -> Problem:
    # The libraries offer 8-bit products with the left operand transposed, and no others.
    eight_bits = stand.precision in matrix.EIGHT_BITS
    return read_problem("gemm", {"m": size, "n": size, "k": size, "a_t": eight_bits, "b_t": False})


def matrix_row(stand: Stand, sizes: Sizes, wanted: Stretch, look: Look, row: OpRow) -> OpRow:
    size = sizes.of(stand, cold=row.shape["state"] == "cold")
    prepared = matrix.prepare_gemm(_product(size, stand), stand)
    first_s = first_call_s(prepared, stand.device)
    compared = prepared.compare()
    refuse_wrong(compared)
    guard = Guard(prepared, compared.bound, stand.device)
    guard.remember(lambda sets: _call_sets(prepared, sets))
    call_s = min(sample.call_s for sample in samples(prepared, stand, 0.0, 2, 1))
    each = max(1, round(wanted.seconds / STRETCH_MOST_SAMPLES / call_s))
    worked = work(prepared, stand, wanted, each, look)
    guard.check()
    return row.model_copy(
        update={
            "shape": {**row.shape, "m": size, "n": size, "k": size},
            "accumulate": prepared.accumulate,
            "operations": 2.0 * size**3,
            "call_s": [float(f"{seconds:.6g}") for seconds in worked.call_s],
            "calls_each": each,
            "first_call_s": first_s,
            "copies": prepared.copies,
            "error": compared.error,
            "error_bound": compared.bound,
            "checked": f"{compared.elements}; {guard.said()}",
            "notes": [*prepared.notes, *worked.notes],
        }
    )


def _call_sets(prepared: Prepared, sets: Sequence[int]) -> None:
    for number in sets:
        prepared.call(number)


# --- launches ---------------------------------------------------------------------------------------------------------
#
# What a launch costs: one tiny operator, many times.
#
# Eager is the host's time to enqueue one (on a CPU, to do one). In a graph it is the device's time of one of many that were
# recorded once, each of which waits for the one before: what is left when the host is out of the way.


# Few enough for the device's queue, which holds about a thousand: past it the host would wait for the device.
LAUNCHES, SAMPLES = 200, 50


def tiny_operator(stand: Stand) -> Callable[[], None]:
    line = torch.zeros(1, device=stand.device)

    def add() -> None:
        line.add_(1.0)

    for _ in range(LAUNCHES):
        add()
    wait(stand)
    return add


def launch_eager(tiny: Callable[[], None], stand: Stand) -> list[float]:
    taken = []
    for _ in range(SAMPLES):
        wait(stand)
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            tiny()
        taken.append((time.perf_counter() - begin) / LAUNCHES)
    return taken


def launch_graph(tiny: Callable[[], None], stand: Stand) -> list[float]:
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for _ in range(LAUNCHES):
            tiny()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(SAMPLES + 1)]
    recorded.replay()
    marks[0].record()
    for mark in marks[1:]:
        recorded.replay()
        mark.record()
    wait(stand)
    return [before.elapsed_time(after) / 1e3 / LAUNCHES for before, after in pairwise(marks)]


# --- all ceilings -----------------------------------------------------------------------------------------------------


Shape = dict[str, Scalar]
# What `--set` may be: everything that the device has, or the matrix rate of --precision only, with the rest.
EVERYTHING, ONE_PRECISION = "machine", "one_precision"
# The precision that networks are trained in comes first: its sustained rate is the run's own figure.
GPU_PRECISIONS = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
CPU_PRECISIONS = ("fp32", "bf16", "fp16", "fp64", "int8")
# A CPU that computes 16-bit floats says so; one that does not takes a hundred times as long as with 32 bits.
FP16_FLAGS = ("avx512_fp16", "amx_fp16", "asimdhp")
# More rows than any machine has: what a spec says where all are meant.
MOST_ROWS = 1000
# Memory is copied in pieces of several times the last cache, and no smaller than a clock reads well.
TIMES_THE_CACHE, LEAST_MEMORY_BYTES = 4, {"cuda": 2**32, "cpu": 2**26}


@dataclass(frozen=True)
class Pace:
    """How long a chip rests, how long it works for a cold rate and how often, and how long for a sustained one."""

    rest_s: float
    cold_s: float
    cold_times: int
    sustained_s: float

    @property
    def all_s(self) -> float:
        return self.cold_times * (self.rest_s + self.cold_s) + self.sustained_s

    def shorter(self, share: float) -> "Pace":
        return Pace(self.rest_s * share, self.cold_s * share, self.cold_times, self.sustained_s * share)


PACES = {"cuda": Pace(0.4, 0.02, 3, 5.0), "cpu": Pace(0.5, 0.3, 1, 3.0)}


def run_ceilings(params: OpParams, tell: Tell) -> None:
    stand = stand_of(params)
    stands = [Stand(stand.device, precision, stand.seed) for precision in precisions(params, stand)]
    pace, note = pace_of(params, len(stands))
    rows = _Rows(stand, tell, note, set(read_rows(params.rows, MOST_ROWS)))
    sizes = Sizes()
    with driver() as nvml:
        look = Look(nvml, copies.gpu_uuid(stand.device) if stand.on_gpu else "")
        for one in stands:
            rested = Stretch(pace.cold_s, rest_s=pace.rest_s, times=pace.cold_times)
            row: Shape = {"what": "matrix", "state": "cold"}
            rows.attempt(row, one.precision, partial(matrix_row, one, sizes, rested, look))
        _memory(params, stand, rows)
        _launches(stand, rows)
        for one in stands:
            last_half = Stretch(pace.sustained_s, counted=0.5)
            row = {"what": "matrix", "state": "sustained"}
            rows.attempt(row, one.precision, partial(matrix_row, one, sizes, last_half, look))


def precisions(params: OpParams, stand: Stand) -> list[str]:
    """Return the precisions in which the device has matrix products."""
    if params.set not in (EVERYTHING, ONE_PRECISION):
        raise WorkloadFailure(
            "bad_parameter", f"op/ceilings has no set {params.set!r}", f"its sets are {EVERYTHING}, {ONE_PRECISION}"
        )
    if params.set == ONE_PRECISION:
        matrix.check_gemm(stand)
        return [params.precision]
    found = []
    for precision in GPU_PRECISIONS if stand.on_gpu else CPU_PRECISIONS:
        if precision == "fp16" and not stand.on_gpu and not any(cpu_has(flag) for flag in FP16_FLAGS):
            continue
        try:
            matrix.check_gemm(Stand(stand.device, precision, stand.seed))
        except WorkloadFailure:
            continue
        found.append(precision)
    return found


def rows_planned(params: OpParams) -> int:
    """Return how many rows there will be, for a progress bar."""
    stand = stand_of(params)
    return 2 * len(precisions(params, stand)) + (6 if stand.on_gpu else 3)


def plan(_op: str, params: OpParams) -> Plan:
    return Plan(rows_planned(params), lambda tell: run_ceilings(params, tell))


def pace_of(params: OpParams, count: int) -> tuple[Pace, str]:
    """Return the usual pace, or a shorter one where the budget requires it, which the rows then say."""
    usual = PACES["cpu" if params.device == "cpu" else "cuda"]
    # About half of a run is neither rest nor stretch: operands, their float64 reference, memory.
    share = params.budget / (2 * count * usual.all_s)
    if not params.budget or share >= 1:
        return usual, ""
    pace = usual.shorter(share)
    return pace, f"measured for {pace.sustained_s:.2g} s, short of time budget: {usual.sustained_s:g} s are usual"


class _Rows:
    """Numbers the rows, hands those on that are wanted, and turns trouble into a row with a reason."""

    def __init__(self, stand: Stand, tell: Tell, note: str, wanted: Container[int]) -> None:
        self._stand, self._tell, self._note, self._wanted = stand, tell, note, wanted
        self._next = 0

    def passed_over(self) -> bool:
        """Skip and count the next row where it is not wanted; return whether it was skipped."""
        unwanted = self._next not in self._wanted
        self._next += unwanted
        return unwanted

    def attempt(self, shape: Shape, precision: str, make: Callable[[OpRow], OpRow]) -> None:
        if self.passed_over():
            return
        begun = OpRow(index=self._next, op="ceilings", shape=shape, precision=precision)
        self.hand_on(attempted(make, begun, self._stand))

    def hand_on(self, row: OpRow) -> None:
        notes = [*row.notes, self._note] if self._note and row.shape.get("what") == "matrix" else row.notes
        self._tell(row.model_copy(update={"index": self._next, "op": "ceilings", "notes": notes}))
        self._next += 1
        make_room(self._stand.device)


def _memory(params: OpParams, stand: Stand, rows: _Rows) -> None:
    """Copies, sums, and the way to the host and back: short rows, timed like any other."""
    line = Problem("copy", {"bytes": memory_bytes(stand.device)})
    fp32 = params.model_copy(update={"precision": "fp32"})
    place = Stand(stand.device, "fp32", stand.seed)

    def one(operator: Implementation, problem: Problem, shape: Shape) -> None:
        def ours(row: OpRow) -> None:
            rows.hand_on(row.model_copy(update={"shape": {**shape, "bytes": row.shape["bytes"]}}))

        if not rows.passed_over():
            go_through(operator, [problem], [0], fp32, place, ours)

    one(copies.COPY, line, {"what": "copy"})
    one(copies.SUM, line, {"what": "read"})
    if stand.on_gpu:
        to, back = copies.to_and_from(stand.device)
        one(copies.TRANSFER, to, {"what": "transfer", "state": "host to device"})
        one(copies.TRANSFER, back, {"what": "transfer", "state": "device to host"})
        copies.bind_to(None)


def memory_bytes(device: torch.device) -> int:
    """Return a power of two larger than any cache, as far as memory allows."""
    wanted = max(LEAST_MEMORY_BYTES[device.type], TIMES_THE_CACHE * cache_bytes(device))
    size = 1 << (wanted - 1).bit_length()
    while size > free_bytes(device) // 8 and size > 2**20:
        size //= 2
    return size


def _launches(stand: Stand, rows: _Rows) -> None:
    tiny = tiny_operator(stand)
    eager = partial(_launch, launch_eager, tiny, stand, "eager")
    rows.attempt({"what": "launch", "state": "eager"}, "fp32", eager)
    if stand.on_gpu:
        graph = partial(_launch, launch_graph, tiny, stand, "graph")
        rows.attempt({"what": "launch", "state": "graph"}, "fp32", graph)


def _launch(
    take: Callable[[Callable[[], None], Stand], list[float]],
    tiny: Callable[[], None],
    stand: Stand,
    launched: Literal["eager", "graph"],
    row: OpRow,
) -> OpRow:
    taken = [float(f"{seconds:.6g}") for seconds in take(tiny, stand)]
    return row.model_copy(
        update={
            "call_s": taken,
            "calls_each": LAUNCHES,
            "launched": launched,
            "checked": "nothing to compare: it adds two numbers",
        }
    )


CEILINGS = OwnRows(check=lambda params, _ranks: precisions(params, stand_of(params)), plan=plan)
