"""Memory that is read, and next to nothing written: a sum. No `op/` of its own, but a row of `op/ceilings`."""

import torch

from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand
from stackmark.workloads.op.impl.checking import bound, relative_error
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import Problem


def check_precision(_stand: Stand) -> None:
    """As for a copy."""


def prepare(problem: Problem, stand: Stand) -> Prepared:
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
