"""The five collectives as one rank does them: its buffers, one call, and whether what came back is right.

Every rank's contribution is its own, and what it must become is known without asking anybody: element i of rank r is
1 + r + (i mod m), whole numbers that a float holds exactly, and so do their sums, in whatever order a library adds. So a result
is compared exactly and whole, not within a bound, and a part that was counted twice, left out or put elsewhere is seen. m is a
prime: no cut of a buffer into halves and chunks falls together with it.

An all-reduce works in place, and what it gave is what the next call adds up: after k calls every element is its sum times
n^(k-1). That stays exact while the whole number has room; where n is a power of two it only moves the exponent, as long as
the sums on the way there, up to n - 1 times an element, have room. So often is a set of buffers called before its
contribution is laid anew, outside of what is timed. The other four have buffers of their own for what comes in.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from stackmark.ranks import Rank
from stackmark.workloads.op.impl.bench import Tensor
from stackmark.workloads.workload import WorkloadFailure

# Of m: small sums leave an all-reduce room to grow, and a longer wave sees more.
LARGEST_PERIOD = 61
SMALLEST_PERIOD = 5
# Compared in stretches, so that the comparison costs no second copy of a large buffer.
STRETCH = 2**22
NO_LIMIT = 2**30


@dataclass(frozen=True)
class Exchange:
    """A problem at one rank, in `copies` sets of buffers."""

    copies: int
    # Bytes of the whole array, as nccl-tests count it.
    bytes: int
    # Does it with set i; on a GPU it only enqueues.
    call: Callable[[int], object]
    # Lays the own contribution anew, and spoils what came in before.
    lay: Callable[[int], None]
    # What is wrong with set i after so many calls since it was laid; empty: nothing.
    wrong: Callable[[int, int], str]
    # How often a set may be called before it is laid anew.
    most_calls: int = NO_LIMIT
    notes: tuple[str, ...] = ()


def set_bytes(op: str, floats: int, size: int, item: int) -> int:
    """Of one set: what is sent, and where that is another buffer, what comes in."""
    part, whole = floats // size * item, floats * item
    return {"all-reduce": whole, "broadcast": whole, "all-to-all": 2 * whole}.get(op, whole + part)


def make_exchange(op: str, floats: int, rank: Rank, dtype: torch.dtype, device: torch.device, copies: int) -> Exchange:
    period = period_of(rank.size, dtype)
    part = floats // rank.size
    if op in _PARTED and part == 0:
        raise WorkloadFailure(
            "bad_parameter", f"{floats} floats cannot be cut into a part for each of {rank.size} ranks"
        )
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
    """What a rank contributes, and what all of them add up to, at any place of the array."""

    def __init__(self, period: int, rank: Rank, dtype: torch.dtype, device: torch.device) -> None:
        self.period, self.rank, self.dtype, self.device = period, rank, dtype, device

    def of(self, number: int, first: int, length: int) -> Tensor:
        """The contribution of a rank from element `first` on."""
        return self._wave(first, length).add_(1 + number)

    def total(self, first: int, length: int) -> Tensor:
        size = self.rank.size
        return self._wave(first, length).mul_(size).add_(size + size * (size - 1) // 2)

    def _wave(self, first: int, length: int) -> Tensor:
        period = torch.arange(self.period, dtype=self.dtype, device=self.device).roll(-(first % self.period))
        return period.repeat(-(-length // self.period))[:length]


def period_of(size: int, dtype: torch.dtype) -> int:
    """A prime for which the sum over all ranks is exact, and if that can be had, also what an all-reduce makes of it."""
    for room in (_exact(dtype) // (size - 1), _exact(dtype)):
        most = min(LARGEST_PERIOD, (room - size * (size - 1) // 2) // size)
        for period in range(most, SMALLEST_PERIOD - 1, -1):
            if all(period % divisor for divisor in range(2, int(period**0.5) + 1)):
                return period
    raise WorkloadFailure(
        "bad_parameter", f"{str(dtype).removeprefix('torch.')} cannot hold the sums of {size} ranks exactly",
        "take --precision fp32, or fewer ranks",
    )  # fmt: skip


def exact_calls(size: int, period: int, dtype: torch.dtype) -> int:
    """How often an all-reduce may be called on its own result, in whatever order it adds."""
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
    """The first element that is not exactly what it must be, and how many there are; empty: none."""
    count, first = 0, ""
    for begin in range(0, got.numel(), STRETCH):
        here = got[begin : begin + STRETCH]
        there = wanted[begin : begin + STRETCH] * times
        if torch.equal(here, there):
            continue
        places = (here != there).nonzero().flatten()
        place = int(places[0])
        first = first or f"element {begin + place:,} is {float(here[place]):g} and must be {float(there[place]):g}"
        count += places.numel()
    return f"{count:,} of {got.numel():,} elements are wrong: {first}" if count else ""
