"""`op/batched-gemm`: many products of one shape in one call, each laid out in memory as `op/gemm` lays out its one."""

from math import sqrt

import torch

from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand, Tensor
from stackmark.workloads.op.impl.checking import SAMPLED, bound_of, relative_error, sample, say_projected, signs, times
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.impl.precision import PRODUCTS, accumulated_in, require_precision, set_precision
from stackmark.workloads.op.problem import Problem

# Of so many matrices elements are compared one by one; all of them by projection.
GROUPS = 16
SIDE = int((SAMPLED / GROUPS) ** 0.5)


def check_precision(stand: Stand) -> None:
    # The 8-bit types are op/gemm's: the framework has no batched product of them.
    require_precision(stand, PRODUCTS)


def prepare(problem: Problem, stand: Stand) -> Prepared:
    groups, m, n, k = (problem.number(name) for name in ("groups", "m", "n", "k"))
    a_t, b_t = bool(problem.shape["a_t"]), bool(problem.shape["b_t"])
    set_precision(stand)
    # Row-major shapes of the column-major matrices, and so the right operand first: see gemm.py.
    left = (groups, k, n) if b_t else (groups, n, k)
    right = (groups, m, k) if a_t else (groups, k, m)
    pieces = [Piece(left, stand.dtype), Piece(right, stand.dtype), Piece((groups, n, m), stand.dtype, random=False)]
    sets = rotated(pieces, stand)
    lefts = [one[0].transpose(1, 2) if b_t else one[0] for one in sets]
    rights = [one[1].transpose(1, 2) if a_t else one[1] for one in sets]
    results = [one[2] for one in sets]

    def call(i: int) -> None:
        torch.bmm(lefts[i], rights[i], out=results[i])

    return Prepared(
        call=call,
        copies=len(sets),
        outputs=lambda i: (results[i],),
        compare=lambda: compare_products(results[0], lefts[0], rights[0], stand),
        accumulate=accumulated_in(stand),
    )


def compare_products(got: Tensor, left: Tensor, right: Tensor, stand: Stand) -> Compared:
    """Some elements of some matrices one by one, and all rows of all by a projection: (L·R)·x against L·(R·x)."""
    generator = torch.Generator().manual_seed(stand.seed)
    terms, columns = right.shape[1:]
    some, rows, picked = (
        sample(length, most, generator).to(got.device)
        for length, most in zip(got.shape, (GROUPS, SIDE, SIDE), strict=True)
    )
    taken_left = left[some[:, None], rows].double()
    taken_right = right.transpose(1, 2)[some[:, None], picked].double()
    wanted = taken_left @ taken_right.transpose(1, 2)
    error = relative_error(got[some[:, None, None], rows[:, None], picked], wanted, sqrt(terms))
    x = signs(columns, generator).to(got.device)
    inner = times(right, x)
    projected = relative_error(times(got, x), times(left, inner), sqrt(terms * columns))
    said = say_projected(wanted.numel(), got.numel())
    return Compared(max(error, projected), bound_of(terms, stand), said)
