"""`op/copy`: memory of the device copied to memory of the device. Read and written bytes are both counted.

A copy moves bits, whatever they mean, so any precision may be asked for. Values are random: memory behind a compressing
cache would copy zeros faster.

A large copy that is replayed from a CUDA graph has two thirds of the rate of one that is launched on an H200, where it is
probably done by the copy engines; so small copies are recorded, and large ones launched. On a CPU a copy that does not write past
its caches also reads what it is about to overwrite; that third of the traffic is not counted, here as in STREAM, so a CPU's
figure is at most two thirds of what its memory moves.
"""

import torch

from stackmark.workloads.op.impl import links
from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand, Tensor
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import Problem

# Larger copies are launched, as a program launches them; at this size that costs a hundredth of the time.
RECORDED_BYTES = 2**28


def check_precision(_stand: Stand) -> None:
    """Bits are copied alike in every precision."""


def prepare(problem: Problem, stand: Stand) -> Prepared:
    size = problem.number("bytes")
    sets = rotated([_piece(size, random=True), _piece(size, random=False)], stand)
    limit = links.memory_limit(gpu_uuid(stand.device)) if stand.on_gpu else links.Limit(None, "")

    def call(number: int) -> None:
        source, target = sets[number]
        target.copy_(source)

    return Prepared(
        call=call,
        copies=len(sets),
        outputs=lambda number: [sets[number][1]],
        compare=lambda: compare_bits(sets[0][1], sets[0][0]),
        graph=size <= RECORDED_BYTES,
        least_bytes=2.0 * size,
        limit_per_s=limit.bytes_per_s,
        limit=limit.words,
        notes=limit.notes,
    )


def _piece(size: int, *, random: bool) -> Piece:
    """Four bytes an element where the size allows it: what copies of tensors are made for."""
    if size % 4:
        return Piece((size,), torch.int8, random)
    return Piece((size // 4,), torch.float32, random)


def compare_bits(got: Tensor, wanted: Tensor) -> Compared:
    """All of it; the error is the share of bytes that differ, and none may."""
    here, there = (tensor.reshape(-1).view(torch.uint8) for tensor in (got.to(wanted.device), wanted))
    count = there.numel()
    whole = count // 8 * 8  # eight at a time, which is several times as fast
    if torch.equal(here[:whole].view(torch.int64), there[:whole].view(torch.int64)) and torch.equal(
        here[whole:], there[whole:]
    ):
        return Compared(0.0, 0.0, f"all {count:,} bytes")
    wrong = int((here != there).sum())
    return Compared(wrong / count, 0.0, f"all {count:,} bytes")


def gpu_uuid(device: torch.device) -> str:
    return str(torch.cuda.get_device_properties(device).uuid)
