"""The matrix rate in one state of the chip, cold or sustained: which size of square products is best, and a stretch of it."""

import time
from collections.abc import Sequence
from statistics import median

from stackmark.events import OpRow
from stackmark.workloads.op.impl import gemm
from stackmark.workloads.op.impl.bench import Prepared, Stand
from stackmark.workloads.op.impl.checking import Guard, refuse_wrong
from stackmark.workloads.op.impl.operands import make_room
from stackmark.workloads.op.impl.stretch import MOST_SAMPLES, Look, Stretch, counted_of, samples, wait, work
from stackmark.workloads.op.impl.timing import first_call_s
from stackmark.workloads.op.problem import Problem, read_problem
from stackmark.workloads.workload import WorkloadFailure

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
    """On a GPU the size with the best rate; on a CPU the largest whose call leaves room for several."""
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
    prepared = gemm.prepare(_product(size, stand), stand)
    prepared.call(0)
    wait(stand)
    time.sleep(trial.rest_s)
    call_s = median(counted_of(samples(prepared, stand, trial.seconds, 3, 1), trial.counted))
    del prepared
    make_room(stand.device)
    return call_s


def _product(size: int, stand: Stand) -> Problem:
    # The libraries offer 8-bit products with the left operand transposed, and no others.
    eight_bits = stand.precision in gemm.EIGHT_BITS
    return read_problem("gemm", {"m": size, "n": size, "k": size, "a_t": eight_bits, "b_t": False})


def matrix_row(stand: Stand, sizes: Sizes, wanted: Stretch, look: Look, row: OpRow) -> OpRow:
    size = sizes.of(stand, cold=row.shape["state"] == "cold")
    prepared = gemm.prepare(_product(size, stand), stand)
    first_s = first_call_s(prepared, stand.device)
    compared = prepared.compare()
    refuse_wrong(compared)
    guard = Guard(prepared, compared.bound, stand.device)
    guard.remember(lambda sets: _call_sets(prepared, sets))
    call_s = min(sample.call_s for sample in samples(prepared, stand, 0.0, 2, 1))
    each = max(1, round(wanted.seconds / MOST_SAMPLES / call_s))
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
