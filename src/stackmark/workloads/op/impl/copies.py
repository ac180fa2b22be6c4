"""Copies: within a device's memory, between host and device, and between devices.

`op/copy` is memory of the device copied to memory of the device. Read and written bytes are both counted.

A copy moves bits, whatever they mean, so any precision may be asked for. Values are random: memory behind a compressing
cache would copy zeros faster.

A large copy that is replayed from a CUDA graph has two thirds of the rate of one that is launched on an H200, where it is
probably done by the copy engines; so small copies are recorded, and large ones launched. On a CPU a copy that does not write past
its caches also reads what it is about to overwrite; that third of the traffic is not counted, here as in STREAM, so a CPU's
figure is at most two thirds of what its memory moves.
"""

import ctypes
import math
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch

from stackmark.units import say_percent
from stackmark.workloads.impl import links
from stackmark.workloads.impl.links import Limit, near_node, nodes, pages_by_node
from stackmark.workloads.op.impl import pinning
from stackmark.workloads.op.impl.bench import Compared, Implementation, Prepared, Stand, Tensor
from stackmark.workloads.op.impl.checking import bound, relative_error
from stackmark.workloads.op.impl.operands import Piece, cache_bytes, rotated
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

# --- op/copy ----------------------------------------------------------------------------------------------------------


# Larger copies are launched, as a program launches them; at this size that costs a hundredth of the time.
RECORDED_BYTES = 2**28


def check_copy(_stand: Stand) -> None:
    """Accept every precision: bits are copied alike."""


def prepare_copy(problem: Problem, stand: Stand) -> Prepared:
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
    """Compare all of it; the error is the share of bytes that differ, and none may differ."""
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
    """Return the GPU's own name; empty where this framework does not tell."""
    return str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))


# --- sums, for op/ceilings --------------------------------------------------------------------------------------------
#
# Memory that is read, and next to nothing written: a sum. No `op/` of its own, but a row of `op/ceilings`.


def prepare_sum(problem: Problem, stand: Stand) -> Prepared:
    elements = problem.number("bytes") // 4
    sets = rotated([Piece((elements,), torch.float32), Piece((1,), torch.float32, random=False)], stand)

    def call(number: int) -> None:
        values, total = sets[number]
        torch.sum(values, dim=0, keepdim=True, out=total)

    def compare() -> Compared:
        values, total = sets[0]
        wanted = torch.stack([part.double().sum() for part in values.split(2**24)]).sum()
        # The sum of n values around 0 is about √n large, and so are the sums on the way.
        error = relative_error(total, wanted, elements**0.5)
        return Compared(error, bound(elements, result="fp32", sums="fp32"), f"the sum of {elements:,} values")

    return Prepared(
        call=call,
        copies=len(sets),
        outputs=lambda number: [sets[number][1]],
        compare=compare,
        accumulate="fp32",
        least_bytes=float(elements * 4),
    )


# --- op/transfer ------------------------------------------------------------------------------------------------------
#
# `op/transfer`: host to GPU and back, from each NUMA node, and GPU to GPU, each next to what the link allows.
#
# Host memory lies where the thread that first touches it runs. So before a row's buffers are allocated the thread is bound to
# the CPUs of the row's node, touches every page itself (no pool of threads has a hand in it), and stays there while the row is
# timed: a pageable copy is made by this very thread, through a small pinned buffer of the driver's. Pinned memory is such
# memory registered with the driver, and not the framework's pinned pool, which gives freed blocks of one node out again for
# another. Where the kernel says that the pages lie elsewhere, the row says so.
#
# Buffers go round, so that no row is served from the host's last cache. A row's rate counts every byte once, on its way; of
# both directions at once, both. What the link allows is read while it is busy, since a GPU that rests lowers its link's
# generation.


PINNED, PAGEABLE, BOTH_WAYS, PEER, THROUGH_HOST = "pinned", "pageable", "pinned, both ways", "peer", "through the host"
# Large enough that a launch is negligible (5 ms on PCIe 5.0), small enough for eight GPUs' worth of them in turn.
ROW_BYTES = 256 * 2**20
# Sets of buffers: together twice the host's last cache, as long as that is not absurd.
TIMES_THE_CACHE, MOST_SETS = 2, 8
# Of the pages of a buffer, at least this share must lie on the node that the row names.
ON_ITS_NODE = 0.95


def check_transfer(stand: Stand) -> None:
    """Refuse a precision, which bytes do not have, and a machine without a link or a GPU's clock."""
    if not torch.cuda.is_available():
        raise WorkloadFailure(
            "no_device",
            "no GPU is visible, so there is no link to measure",
            "to measure memory only: stackmark run op/copy",
        )
    if not stand.on_gpu:
        raise WorkloadFailure("bad_parameter", "op/transfer needs a GPU", "leave out --device, or use --device cuda:0")


def machine_problems(stand: Stand) -> list[Problem]:
    """Return for each GPU the copies from each NUMA node (pinned, pageable, both ways at once), then every GPU to every other."""
    check_transfer(stand)
    gpus = range(torch.cuda.device_count())
    found = []
    for gpu in gpus:
        for node in nodes(allowed=pinning.ALLOWED):
            for how in (PINNED, PAGEABLE):
                found.append(_problem(f"node{node}", f"cuda:{gpu}", how))
                found.append(_problem(f"cuda:{gpu}", f"node{node}", how))
            found.append(_problem(f"node{node}", f"cuda:{gpu}", BOTH_WAYS))
    for gpu in gpus:
        for other in gpus:
            if gpu != other:
                how = PEER if torch.cuda.can_device_access_peer(gpu, other) else THROUGH_HOST
                found.append(_problem(f"cuda:{gpu}", f"cuda:{other}", how))
    return found


def _problem(source: str, target: str, how: str, size: int = ROW_BYTES) -> Problem:
    return Problem("transfer", {"bytes": size, "from": source, "to": target, "how": how})


def to_and_from(device: torch.device) -> tuple[Problem, Problem]:
    """Return pinned copies from the GPU's own node, and back: the most that its link to the host gives."""
    near = near_node(gpu_address(device), nodes(allowed=pinning.ALLOWED))
    return (
        _problem(f"node{near}", str(device), PINNED, ROW_BYTES),
        _problem(str(device), f"node{near}", PINNED, ROW_BYTES),
    )


def prepare_transfer(problem: Problem, stand: Stand) -> Prepared:
    check_transfer(stand)
    source, target = problem.word("from"), problem.word("to")
    if source.startswith("cuda") and target.startswith("cuda"):
        return _between_gpus(problem, torch.device(source), torch.device(target), stand)
    return _with_host(problem, stand)


@dataclass(frozen=True)
class _Lane:
    """One direction of a row: sets of buffers on both sides, copied on a stream of the GPU's own."""

    sources: Sequence[Tensor]
    targets: Sequence[Tensor]
    stream: torch.cuda.Stream
    # Whose end would end the buffers.
    hosts: Sequence["HostBuffer"] = ()

    def enqueue(self, number: int) -> None:
        with torch.cuda.stream(self.stream):
            self.targets[number].copy_(self.sources[number], non_blocking=True)


def _enqueue(lanes: Sequence[_Lane], number: int, here: torch.cuda.Stream) -> None:
    """All lanes begin together, after what is on this stream, and what comes after waits for all of them."""
    for lane in lanes:
        lane.stream.wait_stream(here)
    for lane in lanes:
        lane.enqueue(number)
    for lane in lanes:
        here.wait_stream(lane.stream)


def _with_host(problem: Problem, stand: Stand) -> Prepared:
    inwards = problem.word("to").startswith("cuda")
    gpu = torch.device(problem.word("to" if inwards else "from"))
    node = int(problem.word("from" if inwards else "to").removeprefix("node"))
    both = problem.word("how") == BOTH_WAYS
    size, pinned = problem.number("bytes"), problem.word("how") != PAGEABLE
    sets = min(MOST_SETS, max(1, math.ceil(TIMES_THE_CACHE * cache_bytes(torch.device("cpu")) / size)))
    bind_to(node)
    lanes = []
    if inwards or both:
        hosts = [HostBuffer(size, pinned, stand.seed + number) for number in range(sets)]
        targets = [_on_gpu(size, gpu) for _ in hosts]
        lanes.append(_Lane([host.tensor for host in hosts], targets, torch.cuda.Stream(gpu), hosts))
    if not inwards or both:
        sources = [_on_gpu(size, gpu, seed=stand.seed + 100 + number) for number in range(sets)]
        hosts = [HostBuffer(size, pinned, None) for _ in sources]
        lanes.append(_Lane(sources, [host.tensor for host in hosts], torch.cuda.Stream(gpu), hosts))
    notes = _misplaced(lanes[0].hosts[0].tensor, node)
    limit = _busy(lanes, stand, lambda: links.host_limit(gpu_uuid(gpu), gpu_address(gpu)))
    return _prepared(lanes, size, stand, limit.both_ways() if both else limit, notes)


def _between_gpus(problem: Problem, source: torch.device, target: torch.device, stand: Stand) -> Prepared:
    size = problem.number("bytes")
    bind_to(None)
    lane = _Lane([_on_gpu(size, source, seed=stand.seed)], [_on_gpu(size, target)], torch.cuda.Stream(source))
    peer = problem.word("how") == PEER
    limit = _busy([lane], stand, lambda: links.peer_limit(gpu_uuid(source), gpu_uuid(target), peer))
    return _prepared([lane], size, stand, limit, ())


def _prepared(lanes: Sequence[_Lane], size: int, stand: Stand, limit: Limit, notes: tuple[str, ...]) -> Prepared:
    def call(number: int) -> None:
        _enqueue(lanes, number, torch.cuda.current_stream(stand.device))

    def outputs(number: int) -> list[Tensor]:
        # The host's memory knows of no stream: what is read of it must have arrived.
        torch.cuda.synchronize(stand.device)
        return [lane.targets[number].to(stand.device) for lane in lanes]

    def worst() -> Compared:
        torch.cuda.synchronize(stand.device)
        return max((compare_bits(lane.targets[0], lane.sources[0]) for lane in lanes), key=lambda one: one.error)

    return Prepared(
        call=call,
        copies=len(lanes[0].sources),
        outputs=outputs,
        compare=worst,
        graph=False,
        least_bytes=float(size * len(lanes)),
        limit_per_s=limit.bytes_per_s,
        limit=limit.words,
        notes=(*notes, *limit.notes),
    )


def _busy(lanes: Sequence[_Lane], stand: Stand, ask: Callable[[], Limit]) -> Limit:
    """Asks while the link is at work: it goes up within milliseconds, and down again after a rest."""
    here = torch.cuda.current_stream(stand.device)
    for _ in range(10):
        _enqueue(lanes, 0, here)
    found = ask()
    torch.cuda.synchronize(stand.device)
    return found


def bind_to(node: int | None) -> None:
    """Bind this thread to the CPUs of a node; to all that it may use where none is named."""
    among = nodes(allowed=pinning.ALLOWED)
    if node is not None and node not in among:
        raise WorkloadFailure(
            "bad_parameter",
            f"this process may not run on NUMA node {node}, only on {', '.join(map(str, among))}",
        )
    os.sched_setaffinity(0, pinning.ALLOWED if node is None else among[node])


class HostBuffer:
    """Memory of the node that this thread is bound to, random or zero; pinned means registered with the driver.

    It is unregistered when nobody holds the buffer any more, and only then given back to the system.
    """

    def __init__(self, size: int, pinned: bool, seed: int | None) -> None:
        self.tensor = torch.empty(size, dtype=torch.uint8)
        ctypes.memset(self.tensor.data_ptr(), 0, size)
        if seed is not None:
            _draw(self.tensor, torch.Generator().manual_seed(seed))
        if pinned:
            _register(self.tensor)
            weakref.finalize(self, _unregister, self.tensor).atexit = False


def _register(tensor: Tensor) -> None:
    code = int(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.numel(), 0))
    if code != 0:
        raise WorkloadFailure(
            "out_of_host_memory",
            f"{tensor.numel() / 2**20:.0f} MiB of host memory cannot be pinned (the driver's error {code})",
            "give the process, container or pod more memory, or allow it to lock memory: ulimit -l",
        )


def _unregister(tensor: Tensor) -> None:
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaHostUnregister(tensor.data_ptr())


def _misplaced(tensor: Tensor, node: int) -> tuple[str, ...]:
    pages = pages_by_node(tensor.data_ptr())
    total = sum(pages.values())
    share = pages.get(node, 0) / total if total else 1.0
    if share >= ON_ITS_NODE:
        return ()
    return (f"only {say_percent(share, 0)} of the host's buffer is on node {node}: is memory free on that node?",)


def _on_gpu(size: int, gpu: torch.device, seed: int | None = None) -> Tensor:
    tensor = torch.empty(size, dtype=torch.uint8, device=gpu)
    if seed is not None:
        _draw(tensor, torch.Generator(device=gpu).manual_seed(seed))
    return tensor


def _draw(tensor: Tensor, generator: torch.Generator) -> None:
    """Random bytes, eight at a time: a host draws a quarter of a gigabyte of single ones for seconds."""
    whole = tensor.numel() // 8 * 8
    tensor[:whole].view(torch.int64).random_(generator=generator)
    tensor[whole:].random_(generator=generator)


@cache
def gpu_address(device: torch.device) -> str:
    """Return the address as the kernel writes it; empty where this framework does not report it."""
    about = torch.cuda.get_device_properties(device)
    domain, bus, slot = (getattr(about, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    return "" if None in (domain, bus, slot) else f"{domain:04x}:{bus:02x}:{slot:02x}.0"


COPY = Implementation(check_copy, prepare_copy)
SUM = Implementation(check_copy, prepare_sum)
TRANSFER = Implementation(check_transfer, prepare_transfer, machine_problems)
