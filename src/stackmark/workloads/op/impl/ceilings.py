"""`op/ceilings`: what this machine can do at most: matrix rate by precision, memory, the way to the host, launches.

The matrix rate is that of large square products (the best of three sizes on a GPU), which a library does at its best. It is
given twice. *Cold*: the chip rested and then worked so shortly that nothing held its clock back yet. A GPU's power limit does
so after 40 to 80 ms at full load (an H200), so there it is 20 ms, three times over; on a CPU 0.3 s. *Sustained*: it worked for
five seconds (three on a CPU), and the last half counts; by then the power limit and the temperature have taken their part. All
cold rates are measured before the first sustained one, so that none of them is had from a chip that was just at full power.

Memory is copied (bytes read and written) and summed up (bytes read), in pieces that no cache holds.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch

from stackmark.events import OpRow
from stackmark.spec import Scalar
from stackmark.workloads.impl.devices import cpu_has
from stackmark.workloads.op.impl import copy, gemm, launches, sums, transfer
from stackmark.workloads.op.impl.bench import Operator, Stand
from stackmark.workloads.op.impl.driver import driver
from stackmark.workloads.op.impl.matrix_rate import Sizes, matrix_row
from stackmark.workloads.op.impl.operands import cache_bytes, free_bytes, make_room
from stackmark.workloads.op.impl.rows import Tell, attempted, go_through, stand_of
from stackmark.workloads.op.impl.stretch import Look, Stretch
from stackmark.workloads.op.params import OpParams
from stackmark.workloads.op.problem import Problem, read_rows
from stackmark.workloads.workload import WorkloadFailure

Shape = dict[str, Scalar]
# What `--set` may be: everything that the device has, or the matrix rate of --precision alone beside the rest.
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
    """How long a chip rests, how long it works for a cold rate and how often, how long for a sustained one."""

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
        look = Look(nvml, copy.gpu_uuid(stand.device) if stand.on_gpu else "")
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
    """Those of which the device has matrix products."""
    if params.set not in (EVERYTHING, ONE_PRECISION):
        raise WorkloadFailure(
            "bad_parameter", f"op/ceilings has no set {params.set!r}", f"its sets are {EVERYTHING}, {ONE_PRECISION}"
        )
    if params.set == ONE_PRECISION:
        gemm.check_precision(stand)
        return [params.precision]
    found = []
    for precision in GPU_PRECISIONS if stand.on_gpu else CPU_PRECISIONS:
        if precision == "fp16" and not stand.on_gpu and not any(cpu_has(flag) for flag in FP16_FLAGS):
            continue
        try:
            gemm.check_precision(Stand(stand.device, precision, stand.seed))
        except WorkloadFailure:
            continue
        found.append(precision)
    return found


def rows_planned(params: OpParams) -> int:
    """How many rows there will be, for a progress bar."""
    stand = stand_of(params)
    return 2 * len(precisions(params, stand)) + (6 if stand.on_gpu else 3)


def pace_of(params: OpParams, count: int) -> tuple[Pace, str]:
    """The usual pace, or a shorter one where a budget does not allow it, which the rows then say."""
    usual = PACES["cpu" if params.device == "cpu" else "cuda"]
    # About half of a run is neither rest nor stretch: operands, their float64 reference, memory.
    share = params.budget / (2 * count * usual.all_s)
    if not params.budget or share >= 1:
        return usual, ""
    pace = usual.shorter(share)
    return pace, f"a stretch of {pace.sustained_s:.2g} s for want of budget: {usual.sustained_s:g} s are usual"


class _Rows:
    """Numbers the rows, hands those on that are wanted, and turns trouble into a row with a reason."""

    def __init__(self, stand: Stand, tell: Tell, note: str, wanted: Container[int]) -> None:
        self._stand, self._tell, self._note, self._wanted = stand, tell, note, wanted
        self._next = 0

    def passed_over(self) -> bool:
        """Whether the next row is one that nobody wants; then it is counted."""
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

    def one(operator: Operator, problem: Problem, shape: Shape) -> None:
        def ours(row: OpRow) -> None:
            rows.hand_on(row.model_copy(update={"shape": {**shape, "bytes": row.shape["bytes"]}}))

        if not rows.passed_over():
            go_through(operator, [problem], [0], fp32, place, ours)

    one(copy, line, {"what": "copy"})
    one(sums, line, {"what": "read"})
    if stand.on_gpu:
        to, back = transfer.to_and_from(stand.device)
        one(transfer, to, {"what": "transfer", "state": "host to device"})
        one(transfer, back, {"what": "transfer", "state": "device to host"})
        transfer.bind_to(None)


def memory_bytes(device: torch.device) -> int:
    """A power of two that no cache holds, as far as memory allows."""
    wanted = max(LEAST_MEMORY_BYTES[device.type], TIMES_THE_CACHE * cache_bytes(device))
    size = 1 << (wanted - 1).bit_length()
    while size > free_bytes(device) // 8 and size > 2**20:
        size //= 2
    return size


def _launches(stand: Stand, rows: _Rows) -> None:
    tiny = launches.tiny_operator(stand)
    eager = partial(_launch, launches.eager, tiny, stand, "eager")
    rows.attempt({"what": "launch", "state": "eager"}, "fp32", eager)
    if stand.on_gpu:
        graph = partial(_launch, launches.graph, tiny, stand, "graph")
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
            "calls_each": launches.LAUNCHES,
            "launched": launched,
            "checked": "nothing to compare: a number is added to another",
        }
    )
