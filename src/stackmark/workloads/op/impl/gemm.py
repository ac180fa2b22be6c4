"""`op/gemm`: C = op(A)·op(B), laid out in memory as DeepBench lays it out.

DeepBench's matrices are column-major, as BLAS has them. A column-major m×k matrix is a row-major k×m one, so the same product
is Cᵀ = op(B)ᵀ·op(A)ᵀ in the framework's order, and the library below gets the very call that DeepBench makes: its m, n, k and
its transposes. What differs: alpha is 1 and beta 0 (C is written, not added to), as in the layers that these products stand
for; DeepBench passes 1 for both, and by a mistake of its own in CUDA 8 and later reads neither as 1.
"""

import math
from collections.abc import Callable

import torch

from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand, Tensor
from stackmark.workloads.op.impl.checking import SIDE, bound_of, relative_error, sample, say_projected, signs, times
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.impl.precision import PRODUCTS, accumulated_in, require_precision, set_precision
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

# What such products are written as.
EIGHT_BITS = {"fp8": torch.bfloat16, "int8": torch.int32}
# What the framework demands of m and k of 8-bit products on a GPU; kept on a CPU too, so that a list has the same rows there.
EIGHT_BIT_MULTIPLES = {"fp8": 16, "int8": 8}
# And of n on a GPU, in int8.
INT8_LEAST_N = 17
# Of all whole numbers from -127 to 127, drawn evenly.
INT8_VARIANCE = (255**2 - 1) / 12


def check_precision(stand: Stand) -> None:
    require_precision(stand, (*PRODUCTS, *EIGHT_BITS))


def prepare(problem: Problem, stand: Stand) -> Prepared:
    m, n, k = (problem.number(name) for name in ("m", "n", "k"))
    a_t, b_t = bool(problem.shape["a_t"]), bool(problem.shape["b_t"])
    notes: tuple[str, ...] = ()
    set_precision(stand)
    if stand.precision in EIGHT_BITS:
        _require_sizes(problem, stand)
        if (a_t, b_t) != (True, False):
            notes = ("8-bit products are made as TN, whatever the list says: the libraries offer no other",)
        a_t, b_t = True, False
    # Row-major shapes of the column-major matrices.
    left = (k, n) if b_t else (n, k)
    right = (m, k) if a_t else (k, m)
    pieces = [
        Piece(left, stand.dtype),
        Piece(right, stand.dtype),
        Piece((n, m), EIGHT_BITS.get(stand.precision, stand.dtype), random=False),
    ]
    sets = rotated(pieces, stand)
    lefts = [one[0].t() if b_t else one[0] for one in sets]
    rights = [one[1].t() if a_t else one[1] for one in sets]
    results = [one[2] for one in sets]
    multiply = _multiply(stand)
    return Prepared(
        call=lambda i: multiply(lefts[i], rights[i], results[i]),
        copies=len(sets),
        outputs=lambda i: (results[i],),
        compare=lambda: compare_product(results[0], lefts[0], rights[0], stand),
        accumulate=accumulated_in(stand),
        notes=notes,
    )


def _multiply(stand: Stand) -> Callable[[Tensor, Tensor, Tensor], object]:
    if stand.precision == "int8":
        return lambda left, right, out: torch._int_mm(left, right, out=out)
    if stand.precision == "fp8":
        one = torch.ones((), device=stand.device)
        return lambda left, right, out: torch._scaled_mm(
            left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=False, out=out
        )
    return lambda left, right, out: torch.mm(left, right, out=out)


def _require_sizes(problem: Problem, stand: Stand) -> None:
    multiple = EIGHT_BIT_MULTIPLES[stand.precision]
    rule = f"m and k are multiples of {multiple}"
    wrong = [name for name in ("m", "k") if problem.number(name) % multiple]
    if stand.precision == "int8" and stand.on_gpu:
        rule += f" and n is at least {INT8_LEAST_N}"
        wrong += ["n"] if problem.number("n") < INT8_LEAST_N else []
    if wrong:
        raise WorkloadFailure(
            "bad_parameter",
            f"the framework multiplies {stand.precision} only where {rule}: "
            f"{', '.join(f'{name} is {problem.number(name)}' for name in wrong)}",
            "take another --precision for this problem",
        )


def compare_product(got: Tensor, left: Tensor, right: Tensor, stand: Stand) -> Compared:
    """Some elements one by one, and all of them by a random projection (Freivalds): (L·R)·x against L·(R·x)."""
    generator = torch.Generator().manual_seed(stand.seed)
    rows = sample(got.shape[0], SIDE, generator).to(got.device)
    columns = sample(got.shape[1], SIDE, generator).to(got.device)
    wanted = left[rows].double() @ right[:, columns].double()
    terms = left.shape[1]
    # By what the operands are like, and not by what came out: of a result with one row that may be near zero.
    size = math.sqrt(terms) * (INT8_VARIANCE if stand.precision == "int8" else 1.0)
    error = relative_error(got[rows][:, columns], wanted, size)
    x = signs(got.shape[1], generator).to(got.device)
    projected = relative_error(times(got, x), times(left, times(right, x)), size * math.sqrt(got.shape[1]))
    said = say_projected(wanted.numel(), got.numel())
    return Compared(max(error, projected), bound_of(terms, stand), said)
