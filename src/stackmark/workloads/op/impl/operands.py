"""Make random operands, in enough sets that a call finds none of its own in a cache.

A GPU's last cache holds 50 MB and a large CPU's hundreds: a small product that is repeated on the same operands times the
cache and not the memory that a network's next layer has to come from. So each problem has sets of operands that together are
several times as large as the cache, and the calls go round them. All sets are cut from few large pieces of memory, each
filled by one call, because hundreds of small fillings would take longer than the timing.

Values are normal with variance 1, never zeros: multiplying zeros takes less power, and lets a chip clock higher than it
would in any real use (DeepBench's own 16-bit operands were nearly all zero, which made a V100 up to 15 % faster).
"""

import gc
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from stackmark.workloads.op.impl.bench import Stand, Tensor
from stackmark.workloads.workload import WorkloadFailure

# The sets are together at least this many times the last cache: what was used one round ago is gone.
TIMES_THE_CACHE = 3
# Beyond this the sets' own book-keeping costs more than the cache would hide; such problems are microseconds of pure latency.
MOST_COPIES = 1024
# Of the device's free memory, the most that the sets of a problem of several sets may take.
SHARE_OF_MEMORY = 0.25
# Where the system does not say how large the last cache is.
UNKNOWN_CACHE_BYTES = 64 * 2**20
# The beginning of each tensor, for libraries that are faster on aligned addresses.
ALIGNMENT_BYTES = 256


@dataclass(frozen=True)
class Piece:
    """One tensor of a set: its shape, its type, and whether it is filled with random values or only written to."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    random: bool = True

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        size = self.elements * self.dtype.itemsize
        return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def rotated(pieces: Sequence[Piece], stand: Stand) -> list[list[Tensor]]:
    """Make as many sets of these tensors as needed; `sets[i][j]` is piece j of set i."""
    one = sum(piece.bytes for piece in pieces)
    free = free_bytes(stand.device)
    if one > free:
        raise WorkloadFailure(
            "out_of_device_memory" if stand.on_gpu else "out_of_host_memory",
            f"its operands take {one / 2**30:.3g} GiB, but {free / 2**30:.3g} GiB are free",
            "use a smaller problem, or a --precision with fewer bits",
        )
    copies = copies_for(one, cache_bytes(stand.device), free)
    generator = torch.Generator(device=stand.device).manual_seed(stand.seed)
    by_piece = [_slab(piece, copies, stand.device, generator) for piece in pieces]
    return [[tensors[i] for tensors in by_piece] for i in range(copies)]


def copies_for(one_bytes: int, cached_bytes: int, free: int) -> int:
    """Return how many sets: enough to be several times the cache, as far as memory and book-keeping allow."""
    wanted = math.ceil(TIMES_THE_CACHE * cached_bytes / max(one_bytes, 1))
    return max(1, min(wanted, MOST_COPIES, int(SHARE_OF_MEMORY * free // max(one_bytes, 1))))


def _slab(piece: Piece, copies: int, device: torch.device, generator: torch.Generator) -> list[Tensor]:
    stride = piece.bytes // piece.dtype.itemsize
    slab = torch.empty(copies * stride, dtype=piece.dtype, device=device)
    if piece.random:
        fill(slab, generator)
    return [slab[i * stride : i * stride + piece.elements].view(piece.shape) for i in range(copies)]


# Filled in stretches, so that a type without a generator of its own costs no second copy of a large tensor.
_STRETCH = 2**26


def fill(tensor: Tensor, generator: torch.Generator) -> None:
    """Fill with random values in place: normal, or for 8-bit integers all of -127 to 127."""
    for part in tensor.view(-1).split(_STRETCH):
        if tensor.dtype == torch.int8:
            part.random_(-127, 128, generator=generator)
        elif tensor.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            part.copy_(torch.empty(part.shape, dtype=torch.float16, device=tensor.device).normal_(generator=generator))
        else:
            part.normal_(generator=generator)


def make_room(device: torch.device) -> None:
    """Free memory for the next operands; what the allocator keeps is of the wrong sizes."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        # What the allocator holds and does not use is free to us.
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    return min(_available_bytes(), _group_bytes())


def _available_bytes() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 2**62


def _group_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """What a container's limit leaves: going past it would end the whole run, and not this row."""
    try:
        limit = (root / "memory.max").read_text().strip()
        return 2**62 if limit == "max" else int(limit) - int((root / "memory.current").read_text())
    except (OSError, ValueError):
        return 2**62


@cache
def cache_bytes(device: torch.device) -> int:
    """Return the size of the last cache before memory: a GPU's L2, a CPU's L3."""
    if device.type == "cuda":
        return int(getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0)) or UNKNOWN_CACHE_BYTES
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        if text[:-1].isdigit():
            sizes.append(int(text[:-1]) * {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1], 1))
    return max(sizes, default=UNKNOWN_CACHE_BYTES)
