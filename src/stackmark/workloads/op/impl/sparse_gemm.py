"""`op/sparse-gemm`: a sparse matrix times a dense one, by the framework's sparse library (cuSPARSE, MKL).

The sparse matrix is in compressed rows (CSR) with 32-bit indices: a value is there with the probability that the problem's
sparsity leaves, independently of all others, as DeepBench draws it. How many there are is counted and goes into the row's
operations and bytes. All sets have the same pattern, each in memory of its own, and values of their own.

The dense matrices are row-major, the order for which the libraries have their faster kernels; DeepBench's are column-major. With
b_t the dense operand lies transposed, which is column-major; the result is row-major always.
"""

import warnings
from math import sqrt

import torch

from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand, Tensor
from stackmark.workloads.op.impl.checking import SIDE, bound_of, relative_error, sample, say_projected, signs, times
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.impl.precision import FLOATS, accumulated_in, require_precision, set_precision
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

INDEX_BYTES = torch.int32.itemsize
# A little below what 32 bits count, since how many are drawn varies.
MOST_VALUES = 2**31 - 2**20
# Places whose coin is tossed at once.
_TOSSED = 2**24


def check_precision(stand: Stand) -> None:
    require_precision(stand, FLOATS)
    if not stand.on_gpu and stand.precision in ("bf16", "fp16"):
        raise WorkloadFailure(
            "bad_parameter",
            f"the framework's sparse library for CPUs (MKL) has no {stand.precision}",
            "take --precision fp32 or fp64",
        )


def prepare(problem: Problem, stand: Stand) -> Prepared:
    m, n, k = (problem.number(name) for name in ("m", "n", "k"))
    b_t = bool(problem.shape["b_t"])
    set_precision(stand)
    starts, columns = pattern(m, k, float(problem.shape["sparsity"] or 0), stand)
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
            f"compressed rows (CSR, 32-bit indices) of {values:,} values, {values / (m * k):.2%}",
            f"dense operand {'column' if b_t else 'row'}-major, result row-major; DeepBench's were column-major",
        ),
    )


def pattern(m: int, k: int, sparsity: float, stand: Stand) -> tuple[Tensor, Tensor]:
    """Where each row begins, and the columns of its values in rising order; on the device."""
    if (expected := m * k * (1 - sparsity)) > MOST_VALUES:
        raise WorkloadFailure(
            "bad_parameter", f"{expected:,.0f} values are more than 32-bit indices can count", "take a smaller matrix"
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
            "bad_parameter", f"of {m}×{k} values none is left at a sparsity of {sparsity:g}", "take a larger matrix"
        )
    return starts.int(), torch.cat(columns)


def compare_sparse(got: Tensor, sparse: Tensor, dense: Tensor, stand: Stand) -> Compared:
    """Some rows made dense and multiplied, and all rows by a projection: (S·D)·x against S·(D·x)."""
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
