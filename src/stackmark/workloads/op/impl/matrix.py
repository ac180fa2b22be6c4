"""Matrix products: one, many of one shape, many of uneven shapes, and with a sparse matrix.

`op/gemm` is C = op(A)·op(B), laid out in memory as DeepBench lays it out.

DeepBench's matrices are column-major, as BLAS has them. A column-major m×k matrix is a row-major k×m one, so the same product
is Cᵀ = op(B)ᵀ·op(A)ᵀ in the framework's order, and the library below gets the very call that DeepBench makes: its m, n, k and
its transposes. What differs: alpha is 1 and beta 0 (C is written, not added to), as in the layers that these products stand
for; DeepBench passes 1 for both, and by a mistake of its own in CUDA 8 and later reads neither as 1.
"""

import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from math import sqrt

import torch

from stackmark.units import say_percent
from stackmark.workloads.op.impl.bench import (
    FLOATS,
    PRODUCTS,
    Compared,
    Implementation,
    Prepared,
    Stand,
    Tensor,
    accumulated_in,
    require_precision,
    set_precision,
)
from stackmark.workloads.op.impl.checking import (
    SAMPLED,
    SIDE,
    bound_of,
    relative_error,
    sample,
    say_projected,
    signs,
    times,
)
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

# --- op/gemm ----------------------------------------------------------------------------------------------------------


# What such products are written as.
EIGHT_BITS = {"fp8": torch.bfloat16, "int8": torch.int32}
# What the framework demands of m and k of 8-bit products on a GPU; kept on a CPU too, so that a list has the same rows there.
EIGHT_BIT_MULTIPLES = {"fp8": 16, "int8": 8}
# And of n on a GPU, in int8.
INT8_LEAST_N = 17
# Of all whole numbers from -127 to 127, drawn evenly.
INT8_VARIANCE = (255**2 - 1) / 12


def check_gemm(stand: Stand) -> None:
    require_precision(stand, (*PRODUCTS, *EIGHT_BITS))


def prepare_gemm(problem: Problem, stand: Stand) -> Prepared:
    m, n, k = (problem.number(name) for name in ("m", "n", "k"))
    a_t, b_t = bool(problem.shape["a_t"]), bool(problem.shape["b_t"])
    notes: tuple[str, ...] = ()
    set_precision(stand)
    if stand.precision in EIGHT_BITS:
        _require_sizes(problem, stand)
        if (a_t, b_t) != (True, False):
            notes = ("8-bit products are computed as TN, the only layout that the libraries support",)
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
            f"the framework multiplies {stand.precision} only if {rule}: "
            f"{', '.join(f'{name} is {problem.number(name)}' for name in wrong)}",
            "use another --precision for this problem",
        )


def compare_product(got: Tensor, left: Tensor, right: Tensor, stand: Stand) -> Compared:
    """Compare some elements one by one, and all by a random projection (Freivalds): (L·R)·x against L·(R·x)."""
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


# --- op/batched-gemm --------------------------------------------------------------------------------------------------
#
# `op/batched-gemm`: many products of one shape in one call, each laid out in memory as `op/gemm` lays out its one.


# Of this many matrices elements are compared one by one; all of them by projection.
GROUPS = 16
BATCHED_SIDE = int((SAMPLED / GROUPS) ** 0.5)


def check_batched(stand: Stand) -> None:
    # The 8-bit types are op/gemm's: the framework has no batched product of them.
    require_precision(stand, PRODUCTS)


def prepare_batched(problem: Problem, stand: Stand) -> Prepared:
    groups, m, n, k = (problem.number(name) for name in ("groups", "m", "n", "k"))
    a_t, b_t = bool(problem.shape["a_t"]), bool(problem.shape["b_t"])
    set_precision(stand)
    # Row-major shapes of the column-major matrices, and so the right operand first: see above.
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
    """Compare some elements of some matrices one by one, and all rows of all by a projection: (L·R)·x against L·(R·x)."""
    generator = torch.Generator().manual_seed(stand.seed)
    terms, columns = right.shape[1:]
    some, rows, picked = (
        sample(length, most, generator).to(got.device)
        for length, most in zip(got.shape, (GROUPS, BATCHED_SIDE, BATCHED_SIDE), strict=True)
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


# --- op/grouped-gemm --------------------------------------------------------------------------------------------------
#
# `op/grouped-gemm`: the products of a mixture of experts. Rows (tokens) lie in order of the expert that they fell to, each
# expert has a matrix of its own, and how many rows it gets is known only when the network runs.
#
# How rows fall to experts decides how fast it is, so it is one rule for all runs and machines, without a draw: the shares of the
# experts, from the largest to the smallest, are as 1/√1, 1/√2, 1/√3 … and the experts stand in an order that is shuffled once,
# always in the same way. Of eight experts the largest gets 1.8 times the mean, of 64 it gets 4.4 times, the smallest half of it:
# routers with a balancing loss are flatter, and those without one steeper. An expert may get nothing; its matrix is not read.


# The framework's one kernel for all groups: for bf16, since NVIDIA's compute capability 9.0 (an H100), rows aligned to 16 bytes.
ONE_KERNEL_CAPABILITY = (9, 0)
ONE_KERNEL_MULTIPLE = 8


def check_grouped(stand: Stand) -> None:
    require_precision(stand, PRODUCTS)


def rows_of_groups(tokens: int, groups: int) -> list[int]:
    """Return how many rows each group gets, by the rule above; whole numbers that add up, the largest remainders rounded up."""
    weights = [1 / sqrt(rank) for rank in range(1, groups + 1)]
    shares = [tokens * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    for rank in sorted(range(groups), key=lambda rank: counts[rank] - shares[rank])[: tokens - sum(counts)]:
        counts[rank] += 1
    order = torch.randperm(groups, generator=torch.Generator().manual_seed(0)).tolist()
    return [counts[rank] for rank in order]


def prepare_grouped(problem: Problem, stand: Stand) -> Prepared:
    groups, tokens, n, k = (problem.number(name) for name in ("groups", "tokens", "n", "k"))
    set_precision(stand)
    counts = rows_of_groups(tokens, groups)
    together = _in_one_kernel(problem, stand)
    # A group's matrix lies as a linear layer's weights do: n rows of k.
    pieces = [
        Piece((tokens, k), stand.dtype),
        Piece((groups, n, k), stand.dtype),
        Piece((tokens, n), stand.dtype, random=False),
    ]
    sets = rotated(pieces, stand)
    operands = [(rows, weights.transpose(1, 2)) for rows, weights, _ in sets]
    results = [result for _, _, result in sets]
    used = sum(count > 0 for count in counts)
    size = stand.dtype.itemsize
    return Prepared(
        call=_one_kernel(operands, results, counts) if together else _one_by_one(operands, results, counts),
        copies=len(sets),
        outputs=lambda i: (results[i],),
        compare=lambda: compare_groups(results[0], *operands[0], counts, stand),
        accumulate=accumulated_in(stand),
        least_bytes=float((tokens * k + used * k * n + tokens * n) * size),
        notes=(
            f"a group gets {min(counts)} to {max(counts)} rows",
            "one kernel for all groups (grouped_mm)" if together else f"one product after another, {used} in a call",
        ),
    )


def _in_one_kernel(problem: Problem, stand: Stand) -> bool:
    return (
        stand.on_gpu
        and stand.precision == "bf16"
        and torch.version.hip is None
        and hasattr(torch, "_grouped_mm")
        and torch.cuda.get_device_capability(stand.device) >= ONE_KERNEL_CAPABILITY
        and all(problem.number(name) % ONE_KERNEL_MULTIPLE == 0 for name in ("n", "k"))
    )


def _one_kernel(
    operands: list[tuple[Tensor, Tensor]], results: list[Tensor], counts: list[int]
) -> Callable[[int], None]:
    """The kernel reads on the device where each group ends: nothing waits for the host. It allocates its result."""
    ends = torch.tensor(counts).cumsum(0).to(operands[0][0].device, torch.int32)

    def call(i: int) -> None:
        results[i] = torch._grouped_mm(*operands[i], offs=ends)

    return call


def _one_by_one(
    operands: list[tuple[Tensor, Tensor]], results: list[Tensor], counts: list[int]
) -> Callable[[int], None]:
    """Views are made beforehand, so that a call does nothing but multiply."""
    parts = [
        [
            (rows[first:last], weights[group], result[first:last])
            for group, first, last in _stretches(counts)
        ]
        for (rows, weights), result in zip(operands, results, strict=True)
    ]  # fmt: skip

    def call(i: int) -> None:
        for rows, weights, result in parts[i]:
            torch.mm(rows, weights, out=result)

    return call


def _stretches(counts: list[int]) -> list[tuple[int, int, int]]:
    """Which group has which rows, from and to; without those that have none."""
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    return [(group, first, last) for group, (first, last) in enumerate(pairwise(ends)) if last > first]


def compare_groups(got: Tensor, rows: Tensor, weights: Tensor, counts: list[int], stand: Stand) -> Compared:
    """Compare some elements one by one, the ends of the groups among them, and all rows by a projection."""
    generator = torch.Generator().manual_seed(stand.seed)
    tokens, columns = got.shape
    terms = rows.shape[1]
    stretches = _stretches(counts)
    ends = [row for _, first, last in stretches for row in (first, last - 1)]
    taken = torch.cat([sample(tokens, SIDE, generator), torch.tensor(ends)]).unique()
    picked = sample(columns, SIDE, generator).to(got.device)
    x = signs(columns, generator).to(got.device)
    worst = 0.0
    for group, first, last in stretches:
        own = taken[(taken >= first) & (taken < last)].to(got.device)
        wanted = rows[own].double() @ weights[group][:, picked].double()
        worst = max(worst, relative_error(got[own][:, picked], wanted, sqrt(terms)))
        projected = times(rows[first:last], times(weights[group], x))
        worst = max(worst, relative_error(times(got[first:last], x), projected, sqrt(terms * columns)))
    said = say_projected(len(taken) * len(picked), got.numel())
    return Compared(worst, bound_of(terms, stand), said)


# --- op/sparse-gemm ---------------------------------------------------------------------------------------------------
#
# `op/sparse-gemm`: a sparse matrix times a dense one, by the framework's sparse library (cuSPARSE, MKL).
#
# The sparse matrix is in compressed rows (CSR) with 32-bit indices: a value is there with the probability that the problem's
# sparsity leaves, independently of all others, as DeepBench draws it. How many there are is counted and goes into the row's
# operations and bytes. All sets have the same pattern, each in memory of its own, and values of their own.
#
# The dense matrices are row-major, the order for which the libraries have their faster kernels; DeepBench's are column-major.
# With b_t the dense operand lies transposed, which is column-major; the result is row-major always.


INDEX_BYTES = torch.int32.itemsize
# A little below what 32 bits count, since how many are drawn varies.
MOST_VALUES = 2**31 - 2**20
# Places whose coin is tossed at once.
_TOSSED = 2**24


def check_sparse(stand: Stand) -> None:
    require_precision(stand, FLOATS)
    if not stand.on_gpu and stand.precision in ("bf16", "fp16"):
        raise WorkloadFailure(
            "bad_parameter",
            f"the framework's sparse library for CPUs (MKL) has no {stand.precision}",
            "use --precision fp32 or fp64",
        )


def prepare_sparse(problem: Problem, stand: Stand) -> Prepared:
    m, n, k = (problem.number(name) for name in ("m", "n", "k"))
    b_t = bool(problem.shape["b_t"])
    set_precision(stand)
    starts, columns = sparse_pattern(m, k, float(problem.shape["sparsity"] or 0), stand)
    values = columns.numel()
    pieces = [
        Piece((values,), stand.dtype),
        Piece((values,), torch.int32, random=False),
        Piece((m + 1,), torch.int32, random=False),
        Piece((n, k) if b_t else (k, n), stand.dtype),
        Piece((m, n), stand.dtype, random=False),
    ]
    sets = rotated(pieces, stand)
    for one in sets:
        one[1].copy_(columns)
        one[2].copy_(starts)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support is in beta|invariant checks are)")
        sparse = [torch.sparse_csr_tensor(one[2], one[1], one[0], (m, k), check_invariants=False) for one in sets]
    dense = [one[3].t() if b_t else one[3] for one in sets]
    results = [one[4] for one in sets]

    def call(i: int) -> None:
        torch.mm(sparse[i], dense[i], out=results[i])

    return Prepared(
        call=call,
        copies=len(sets),
        outputs=lambda i: (results[i],),
        compare=lambda: compare_sparse(results[0], sparse[0], dense[0], stand),
        accumulate=accumulated_in(stand),
        # The library takes a workspace and makes descriptors on the host at each call.
        graph=False,
        # cuSPARSE may add in another order at each call.
        same_bits=not stand.on_gpu,
        operations=2.0 * values * n,
        least_bytes=float(values * (stand.dtype.itemsize + INDEX_BYTES) + (m + 1) * INDEX_BYTES)
        + float((k * n + m * n) * stand.dtype.itemsize),
        notes=(
            f"compressed rows (CSR, 32-bit indices) of {values:,} values, {say_percent(values / (m * k), 2)}",
            f"dense operand {'column' if b_t else 'row'}-major, result row-major; DeepBench used column-major",
        ),
    )


def sparse_pattern(m: int, k: int, sparsity: float, stand: Stand) -> tuple[Tensor, Tensor]:
    """Return where each row begins, and the columns of its values in rising order; on the device."""
    if (expected := m * k * (1 - sparsity)) > MOST_VALUES:
        raise WorkloadFailure(
            "bad_parameter", f"{expected:,.0f} values are more than 32-bit indices can count", "use a smaller matrix"
        )
    generator = torch.Generator(device=stand.device).manual_seed(stand.seed)
    counts, columns = [], []
    at_once = max(1, _TOSSED // k)
    for first in range(0, m, at_once):
        rows = min(at_once, m - first)
        there = torch.rand(rows, k, generator=generator, device=stand.device) >= sparsity
        counts.append(there.sum(1))
        columns.append(there.nonzero()[:, 1].int())
    starts = torch.cat([torch.zeros(1, dtype=torch.int64, device=stand.device), *counts]).cumsum(0)
    if not int(starts[-1]):
        raise WorkloadFailure(
            "bad_parameter", f"a sparsity of {sparsity:g} leaves none of {m}×{k} values", "use a larger matrix"
        )
    return starts.int(), torch.cat(columns)


def compare_sparse(got: Tensor, sparse: Tensor, dense: Tensor, stand: Stand) -> Compared:
    """Compare some rows, made dense and multiplied, and all rows by a projection: (S·D)·x against S·(D·x)."""
    generator = torch.Generator().manual_seed(stand.seed)
    starts, columns, values = sparse.crow_indices().long(), sparse.col_indices().long(), sparse.values()
    rows, picked = (sample(length, SIDE, generator).to(got.device) for length in got.shape)
    left = torch.zeros(len(rows), sparse.shape[1], dtype=torch.float64, device=got.device)
    for number, (first, last) in enumerate(zip(starts[rows].tolist(), starts[rows + 1].tolist(), strict=True)):
        left[number, columns[first:last]] = values[first:last].double()
    wanted = left @ dense[:, picked].double()
    lengths = starts.diff()
    # Operands have variance 1: the size of a sum is the root of how many values its row has, here of the longest.
    terms = int(lengths.max())
    size = sqrt(terms)
    error = relative_error(got[rows][:, picked], wanted, size)
    x = signs(got.shape[1], generator).to(got.device)
    row_of = torch.repeat_interleave(torch.arange(len(lengths), device=got.device), lengths)
    summed = torch.zeros(len(lengths), dtype=torch.float64, device=got.device)
    summed.index_add_(0, row_of, values.double() * times(dense, x)[columns])
    projected = relative_error(times(got, x), summed, size * sqrt(got.shape[1]))
    said = say_projected(wanted.numel(), got.numel())
    return Compared(max(error, projected), bound_of(terms, stand), said)


GEMM = Implementation(check_gemm, prepare_gemm)
BATCHED_GEMM = Implementation(check_batched, prepare_batched)
GROUPED_GEMM = Implementation(check_grouped, prepare_grouped)
SPARSE_GEMM = Implementation(check_sparse, prepare_sparse)
