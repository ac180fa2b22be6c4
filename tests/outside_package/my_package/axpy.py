"""The implementation of `op/axpy`, imported by a worker alone."""

import torch

from stackmark.workloads.op.impl.bench import FLOATS, Compared, Implementation, Prepared, Stand, require_precision
from stackmark.workloads.op.impl.checking import bound, relative_error, say_compared
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import Problem


def check_precision(stand: Stand) -> None:
    require_precision(stand, FLOATS)


def prepare(problem: Problem, stand: Stand) -> Prepared:
    length = problem.number("elements")
    operand, result = Piece((length,), stand.dtype), Piece((length,), stand.dtype, random=False)
    sets = rotated([operand, operand, result], stand)

    def call(i: int) -> None:
        x, y, out = sets[i]
        torch.add(y, x, alpha=2.0, out=out)

    def compare() -> Compared:
        x, y, out = sets[0]
        error = relative_error(out, y.double() + 2.0 * x.double())
        allowed = bound(2, result=stand.precision, sums=stand.precision)
        return Compared(error, allowed, f"{say_compared(length, length)} elements")

    return Prepared(call=call, copies=len(sets), outputs=lambda i: (sets[i][2],), compare=compare)


AXPY = Implementation(check_precision, prepare)
