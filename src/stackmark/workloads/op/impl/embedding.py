"""`op/embedding`: looks up rows of a table by their numbers; backward the dense gradient of the whole table.

The numbers are drawn as words are in a text: the r-th most frequent of V words comes with a probability of about 1/(r·ln V)
(Zipf's law), and the frequent ones lie scattered over the table. So some rows are looked up again and again, as they are in
use: forward they come from a cache, backward many gradients fall on one row. How many different rows there were is said,
and the least bytes count each of them once. Every set has its own numbers; a table that is larger than the cache is shared.

Forward is the framework's `index_select`, which is what its embedding calls, here with a result that is not allocated again.
Backward fills a table with zeros and adds to it; a sum is made in the operands' own precision on a CPU, in 32 bits on a GPU.
"""

import math
from collections.abc import Callable

import torch

from stackmark.units import counted
from stackmark.workloads.op.impl.bench import (
    FLOATS,
    Compared,
    Implementation,
    Prepared,
    Stand,
    Tensor,
    accumulated_in,
    require_precision,
)
from stackmark.workloads.op.impl.checking import SAMPLED, bound, sample, say_compared
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import FORWARD, Problem

# Rows of a table's gradient that are compared besides the most frequent ones; half of them at random, most of those zero.
_ROWS = 512
# Elements that are compared at once.
_STRETCH = 2**24
# No row is left out of a gradient: the framework's mark for padding is not used.
_NO_PADDING = -1
NEW_PAGES = "the framework allocates the gradient again in each call; the time includes the first touch of its pages"


def check_precision(stand: Stand) -> None:
    require_precision(stand, FLOATS)


def prepare(problem: Problem, stand: Stand) -> Prepared:
    return (_forward if problem.word("pass") == FORWARD else _backward)(problem, stand)


def _forward(problem: Problem, stand: Stand) -> Prepared:
    tokens, vocabulary, width = (problem.number(name) for name in ("tokens", "vocabulary", "width"))
    tables = [one[0] for one in rotated([Piece((vocabulary, width), stand.dtype)], stand)]
    results = [one[0] for one in rotated([Piece((tokens, width), stand.dtype, random=False)], stand)]
    numbers = numbers_of(problem, stand, len(results))
    different, note = _different(problem, numbers[0])

    def call(i: int) -> None:
        torch.index_select(tables[i % len(tables)], 0, numbers[i], out=results[i])

    return Prepared(
        call=call,
        copies=len(results),
        outputs=lambda i: (results[i],),
        compare=lambda: _compare_forward(results[0], tables[0], numbers[0]),
        least_bytes=float((different + tokens) * width * stand.dtype.itemsize + tokens * numbers[0].element_size()),
        notes=(note,),
    )


def _backward(problem: Problem, stand: Stand) -> Prepared:
    tokens, vocabulary, width = (problem.number(name) for name in ("tokens", "vocabulary", "width"))
    # The table's gradient is allocated by the framework in each call; it is part of a set.
    pieces = [Piece((tokens, width), stand.dtype), Piece((vocabulary, width), stand.dtype, random=False)]
    coming = [one[0] for one in rotated(pieces, stand)]
    numbers = numbers_of(problem, stand, len(coming))
    done: list[tuple[Tensor, ...]] = [() for _ in coming]
    back: Callable[..., Tensor] = torch.ops.aten.embedding_dense_backward

    def call(i: int) -> None:
        done[i] = (back(coming[i], numbers[i], vocabulary, _NO_PADDING, False),)

    return Prepared(
        call=call,
        copies=len(coming),
        outputs=lambda i: done[i],
        compare=lambda: _compare_backward(done[0][0], coming[0], numbers[0], stand),
        accumulate=_sums(stand),
        # It sorts the numbers, by a library that may wait for the device.
        graph=False,
        notes=(_different(problem, numbers[0])[1], *(() if stand.on_gpu else (NEW_PAGES,))),
    )


def _sums(stand: Stand) -> str:
    return accumulated_in(stand) if stand.on_gpu else stand.precision


def numbers_of(problem: Problem, stand: Stand, count: int) -> list[Tensor]:
    """Draw row numbers by Zipf's law; which rank has which row is the same in all sets."""
    tokens, vocabulary = problem.number("tokens"), problem.number("vocabulary")
    generator = torch.Generator().manual_seed(stand.seed)
    scattered = torch.randperm(vocabulary, generator=generator)
    # The sum of 1/r up to r is about ln(r + 1), so a uniform draw of the logarithm gives the rank.
    uniform = torch.rand((count, tokens), generator=generator, dtype=torch.float64)
    ranks = torch.expm1(uniform * math.log1p(vocabulary)).long().clamp_(max=vocabulary - 1)
    return list(scattered[ranks].to(stand.device))


def _different(problem: Problem, numbers: Tensor) -> tuple[int, str]:
    tokens, vocabulary = problem.number("tokens"), problem.number("vocabulary")
    different = len(numbers.unique())
    return (
        different,
        f"drawn by Zipf's law: {counted(tokens, 'look-up')} of {counted(different, 'row')}, of {vocabulary:,}",
    )


def _compare_forward(got: Tensor, table: Tensor, numbers: Tensor) -> Compared:
    """A copy is right to the bit or wrong."""
    rows = max(1, _STRETCH // got.shape[1])
    wrong = max(
        float((part.double() - table[some].double()).abs().nan_to_num(nan=math.inf).max())
        for part, some in zip(got.split(rows), numbers.split(rows), strict=True)
    )
    return Compared(wrong, 0.0, f"all {got.numel():,} elements")


def _compare_backward(got: Tensor, coming: Tensor, numbers: Tensor, stand: Stand) -> Compared:
    """Some rows of the table: the most frequent, where sums are long, and others, of which many must be zero.

    An error is relative to the root of the number of gradients that fell on the row, since they are random.
    """
    vocabulary, width = got.shape
    counts = torch.bincount(numbers, minlength=vocabulary)
    most = max(1, min(_ROWS, SAMPLED // width))
    frequent = counts.topk(min(most, vocabulary)).indices
    others = sample(vocabulary, 2 * most, torch.Generator().manual_seed(stand.seed)).to(got.device)
    rows = torch.cat([frequent, others]).unique()
    place = torch.full((vocabulary,), -1, device=got.device)
    place[rows] = torch.arange(len(rows), device=got.device)
    wanted = torch.zeros((len(rows), width), dtype=torch.float64, device=got.device)
    for part, some in zip(
        coming.split(max(1, _STRETCH // width)), numbers.split(max(1, _STRETCH // width)), strict=True
    ):
        ours = place[some] >= 0
        wanted.index_add_(0, place[some[ours]], part[ours].double())
    size = counts[rows].clamp(min=1).double().sqrt()[:, None]
    error = float(((got[rows].double() - wanted) / size).abs().nan_to_num(nan=math.inf).max())
    allowed = bound(float(counts.max()), result=stand.precision, sums=_sums(stand))
    return Compared(error, allowed, f"{say_compared(wanted.numel(), got.numel())} elements")


EMBEDDING = Implementation(check_precision, prepare)
