"""`op/layer-norm`: normalises rows to mean 0 and variance 1, scales and shifts; forward, and backward to input, scale and shift.

It moves bytes and hardly computes: its rate is of the memory. The framework allocates each result again and has no call that
writes into given memory, so on a CPU the first touch of new pages is in the time, as it is in anybody's model. Backward takes the
means and deviations that a forward pass kept, as they were rounded then; they are operands like the others. The gradients of
scale and shift are sums over all rows, which a CPU makes in the operands' own precision and a GPU in 32 bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.functional import layer_norm

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
from stackmark.workloads.op.impl.checking import SAMPLED, bound, relative_error, sample, say_compared
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import FORWARD, Problem

EPSILON = 1e-5
NEW_PAGES = "the framework allocates the result again in each call: the time of large results includes first touching their pages"
# Roundings of an element on its way: mean and deviation, normalised, scaled, shifted.
ROUNDINGS = 2
# Columns of the sums over all rows that are compared; and rows that are held in float64 at once.
_COLUMNS, _STRETCH_ELEMENTS = 256, 2**24


def check_precision(stand: Stand) -> None:
    require_precision(stand, FLOATS)


@dataclass(frozen=True)
class NormOperands:
    """One set: input, scale, shift; backward what comes back to the result, and the means and 1/deviations of the rows."""

    x: Tensor
    scale: Tensor
    shift: Tensor
    dy: Tensor | None = None
    mean: Tensor | None = None
    inverse: Tensor | None = None


def prepare(problem: Problem, stand: Stand) -> Prepared:
    rows, width = problem.number("rows"), problem.number("width")
    sets = sets_of(rows, width, stand, backward=problem.word("pass") != FORWARD)
    done: list[tuple[Tensor, ...]] = [() for _ in sets]
    call: Callable[[int], None]
    compare: Callable[[], Compared]
    if problem.word("pass") == FORWARD:

        def call(i: int) -> None:
            one = sets[i]
            done[i] = (layer_norm(one.x, (width,), one.scale, one.shift, EPSILON),)

        def compare() -> Compared:
            return _compare_forward(sets[0], done[0][0], stand)
    else:
        every = [True, True, True]

        def call(i: int) -> None:
            one = sets[i]
            done[i] = torch.ops.aten.native_layer_norm_backward(
                one.dy, one.x, [width], one.mean, one.inverse, one.scale, one.shift, every
            )

        def compare() -> Compared:
            return _compare_backward(sets[0], done[0], stand)

    return Prepared(
        call=call,
        copies=len(sets),
        outputs=lambda i: done[i],
        compare=compare,
        accumulate=accumulated_in(stand),
        notes=() if stand.on_gpu else (NEW_PAGES,),
    )


def sets_of(rows: int, width: int, stand: Stand, *, backward: bool) -> list[NormOperands]:
    matrix = (rows, width)
    pieces = [Piece(shape, stand.dtype) for shape in (matrix, (width,), (width,))]
    # What comes back; or room for the result, which the framework allocates itself.
    pieces += [Piece(matrix, stand.dtype, random=backward)]
    if backward:
        pieces += [Piece(matrix, stand.dtype, random=False)]
    sets = []
    for x, scale, shift, dy, *_ in rotated(pieces, stand):
        if backward:
            _, mean, inverse = torch.native_layer_norm(x, (width,), scale, shift, EPSILON)
            sets.append(NormOperands(x, scale, shift, dy, mean, inverse))
        else:
            sets.append(NormOperands(x, scale, shift))
    return sets


def _bound(terms: int, stand: Stand) -> float:
    return ROUNDINGS * bound(terms, result=stand.precision, sums=accumulated_in(stand))


def _compare_forward(one: NormOperands, got: Tensor, stand: Stand) -> Compared:
    rows, width = one.x.shape
    some = _some_rows(rows, width, stand).to(got.device)
    x = one.x[some].double()
    inverse = (x.var(dim=1, correction=0, keepdim=True) + EPSILON).rsqrt()
    wanted = (x - x.mean(dim=1, keepdim=True)) * inverse * one.scale.double() + one.shift.double()
    error = relative_error(got[some], wanted)
    return Compared(error, _bound(width, stand), f"{say_compared(wanted.numel(), got.numel())} elements")


def _compare_backward(one: NormOperands, got: tuple[Tensor, ...], stand: Stand) -> Compared:
    """Some rows of the input's gradient; of scale and shift some columns, each a sum over all rows."""
    rows, width = one.x.shape
    some = _some_rows(rows, width, stand).to(one.x.device)
    normalised, dy, inverse = _normalised(one, some)
    scaled = dy * one.scale.double()
    shared = scaled.mean(dim=1, keepdim=True) + normalised * (scaled * normalised).mean(dim=1, keepdim=True)
    # Relative to what is subtracted from: of very short rows next to nothing is left.
    size = float((scaled * inverse).square().mean().sqrt())
    of_input = relative_error(got[0][some], (scaled - shared) * inverse, size)
    columns = sample(width, _COLUMNS, torch.Generator().manual_seed(stand.seed)).to(one.x.device)
    of_scale, of_shift = _sums_over_rows(one, columns)
    of_sums = max(relative_error(got[1][columns], of_scale), relative_error(got[2][columns], of_shift))
    in_precision = accumulated_in(stand) if stand.on_gpu else stand.precision
    allowed = bound(rows, result=stand.precision, sums=in_precision), _bound(width, stand)
    compared, of = len(some) * width + 2 * len(columns), sum(tensor.numel() for tensor in got)
    elements = f"{say_compared(compared, of)} elements"
    # The two have different bounds: the one that comes closer to its own is told.
    found = (Compared(of_sums, allowed[0], elements), Compared(of_input, allowed[1], elements))
    return max(found, key=lambda one: one.error / one.bound)


def _sums_over_rows(one: NormOperands, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Some columns of the gradients of scale and shift."""
    rows, width = one.x.shape
    of_scale, of_shift = (torch.zeros(len(columns), dtype=torch.float64, device=one.x.device) for _ in range(2))
    for part in torch.arange(rows, device=one.x.device).split(max(1, _STRETCH_ELEMENTS // width)):
        values, back, _ = _normalised(one, part, columns)
        of_scale += (values * back).sum(dim=0)
        of_shift += back.sum(dim=0)
    return of_scale, of_shift


def _some_rows(rows: int, width: int, stand: Stand) -> Tensor:
    return sample(rows, max(2, SAMPLED // width), torch.Generator().manual_seed(stand.seed))


def _normalised(one: NormOperands, rows: Tensor, columns: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Some rows of the normalised input, of what comes back, and of 1/deviation, in float64."""
    assert one.dy is not None
    assert one.mean is not None
    assert one.inverse is not None
    x, dy = one.x[rows], one.dy[rows]
    if columns is not None:
        x, dy = x[:, columns], dy[:, columns]
    mean, inverse = (kept.reshape(-1, 1)[rows].double() for kept in (one.mean, one.inverse))
    return (x.double() - mean) * inverse, dy.double(), inverse


LAYER_NORM = Implementation(check_precision, prepare)
