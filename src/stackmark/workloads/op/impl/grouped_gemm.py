"""`op/grouped-gemm`: the products of a mixture of experts. Rows (tokens) lie in order of the expert that they fell to, each
expert has a matrix of its own, and how many rows it gets is known only when the network runs.

How rows fall to experts decides how fast it is, so it is one rule for all runs and machines, without a draw: the shares of the
experts, from the largest to the smallest, are as 1/√1, 1/√2, 1/√3 … and the experts stand in an order that is shuffled once,
always in the same way. Of eight experts the largest gets 1.8 times the mean, of 64 it gets 4.4 times, the smallest half of it:
routers with a balancing loss are flatter, and those without one steeper. An expert may get nothing; its matrix is not read.
"""

from collections.abc import Callable
from itertools import pairwise
from math import sqrt

import torch

from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand, Tensor
from stackmark.workloads.op.impl.checking import SIDE, bound_of, relative_error, sample, say_projected, signs, times
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.impl.precision import PRODUCTS, accumulated_in, require_precision, set_precision
from stackmark.workloads.op.problem import Problem

# The framework's one kernel for all groups: for bf16, since NVIDIA's compute capability 9.0 (an H100), rows aligned to 16 bytes.
ONE_KERNEL_CAPABILITY = (9, 0)
ONE_KERNEL_MULTIPLE = 8


def check_precision(stand: Stand) -> None:
    require_precision(stand, PRODUCTS)


def rows_of_groups(tokens: int, groups: int) -> list[int]:
    """How many rows each group gets, by the rule above; whole numbers that add up, the largest remainders rounded up."""
    weights = [1 / sqrt(rank) for rank in range(1, groups + 1)]
    shares = [tokens * weight / sum(weights) for weight in weights]
    counts = [int(share) for share in shares]
    for rank in sorted(range(groups), key=lambda rank: counts[rank] - shares[rank])[: tokens - sum(counts)]:
        counts[rank] += 1
    order = torch.randperm(groups, generator=torch.Generator().manual_seed(0)).tolist()
    return [counts[rank] for rank in order]


def prepare(problem: Problem, stand: Stand) -> Prepared:
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
    """Some elements one by one, the ends of the groups among them, and all rows by a projection."""
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
