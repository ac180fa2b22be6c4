"""Measure one row after another: lay out operands, time the first call, compare its result with float64, then calls
are timed, and what they wrote is compared again. A row that cannot be done is a row with a reason, and the next one is tried.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from stackmark.events import OpRow
from stackmark.workloads.impl.kernels import profile_step
from stackmark.workloads.op.definition import OpParams, least_bytes, operations
from stackmark.workloads.op.impl.bench import Implementation, Prepared, Stand
from stackmark.workloads.op.impl.checking import Guard, refuse_wrong
from stackmark.workloads.op.impl.operands import make_room
from stackmark.workloads.op.impl.timing import first_call_s, make_rounds, say_unknown, time_rounds
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.versions import explain_lack
from stackmark.workloads.workload import WorkloadFailure

Tell = Callable[[OpRow], None]


@dataclass(frozen=True)
class Plan:
    """How many rows there will be, for a progress bar, and the function that goes through them."""

    rows: int
    go: Callable[[Tell], None]


@dataclass(frozen=True)
class OwnRows:
    """An operator that times its rows by itself: the ranks of a collective, a machine's ceilings.

    `check` gets the parameters and the number of ranks, and raises WorkloadFailure before any row is tried.
    """

    check: Callable[[OpParams, int], object]
    plan: Callable[[str, OpParams], Plan]


NAME_CHARACTERS = 160
# Of a row's share of the budget, what its samples may take: the rest is for operands, references and warm-up.
TIMED_SHARE = 0.4
LEAST_ROW_S = 0.05


def stand_of(params: OpParams) -> Stand:
    return Stand(torch.device(params.device), params.precision, params.seed)


def go_through(
    operator: Implementation,
    found: Sequence[Problem],
    indexes: Sequence[int],
    params: OpParams,
    stand: Stand,
    tell: Tell,
) -> None:
    begin = time.perf_counter()
    for number, index in enumerate(indexes):
        left_s = params.budget - (time.perf_counter() - begin) if params.budget else math.inf
        row_s = min(params.row_seconds, max(LEAST_ROW_S, TIMED_SHARE * left_s / (len(indexes) - number)))
        begun = OpRow(
            index=index,
            op=found[index].op,
            shape=dict(found[index].shape),
            precision=params.precision,
            operations=operations(found[index]),
            least_bytes=least_bytes(found[index], params.precision),
        )
        tell(attempted(partial(_row, operator, found[index], row_s, stand), begun, stand))
        make_room(stand.device)


def attempted(make: Callable[[OpRow], OpRow], begun: OpRow, stand: Stand) -> OpRow:
    """Return the finished row, or the begun one with the reason why it failed."""
    try:
        return make(begun)
    except WorkloadFailure as failure:
        return _failed_row(begun, failure.kind, failure.message, failure.hint)
    except AttributeError as error:
        lack = explain_lack(error)
        if lack is None:
            raise
        return _failed_row(begun, lack.kind, lack.message, lack.hint)
    except (RuntimeError, MemoryError) as error:
        return _failed_row(begun, *_trouble(error, begun, stand))


def _failed_row(begun: OpRow, kind: str, message: str, hint: str) -> OpRow:
    return begun.model_copy(update={"failure_kind": kind, "failure_message": message, "failure_hint": hint})


def _row(operator: Implementation, problem: Problem, row_s: float, stand: Stand, begun: OpRow) -> OpRow:
    prepared = operator.prepare(problem, stand)
    first_s = first_call_s(prepared, stand.device)
    compared = prepared.compare()
    refuse_wrong(compared)
    rounds = make_rounds(prepared, stand.device)
    guard = Guard(prepared, compared.bound, stand.device)
    guard.remember(rounds.once)
    timed = time_rounds(rounds, stand.device, row_s, guard.check)
    if timed.launched == "graph":
        # What was recorded is another launch than the one that was compared.
        compared = max(compared, prepared.compare(), key=lambda one: one.error)
        refuse_wrong(compared)
    notes = list(prepared.notes)
    if not timed.known:
        notes.append(say_unknown(timed.call_s, row_s))
    return begun.model_copy(
        update={
            "accumulate": prepared.accumulate,
            "operations": prepared.operations or begun.operations,
            "least_bytes": prepared.least_bytes or begun.least_bytes,
            "call_s": [round(seconds, 12) for seconds in timed.call_s],
            "calls_each": timed.calls_each,
            "first_call_s": first_s,
            "launched": timed.launched,
            "copies": prepared.copies,
            "error": compared.error,
            "error_bound": compared.bound,
            "checked": f"{compared.elements}; {guard.said()}",
            "kernel": _kernel(prepared, stand),
            "limit_per_s": prepared.limit_per_s,
            "limit": prepared.limit,
            "notes": notes,
        }
    )


def _kernel(prepared: Prepared, stand: Stand) -> str:
    """On a GPU the kernel that took most of the time, by the framework's profiler; a CPU's libraries do not tell."""
    if not stand.on_gpu:
        return ""
    try:
        found = profile_step(partial(prepared.call, 0), str(stand.device))
    except (RuntimeError, AssertionError, OSError):
        return ""  # a name is missing, and no number
    return max(found, key=lambda kernel: kernel.seconds).name[:NAME_CHARACTERS] if found else ""


def _trouble(error: RuntimeError | MemoryError, begun: OpRow, stand: Stand) -> tuple[str, str, str]:
    """Why a row could not be done: kind, sentence, hint. A device that is broken for good ends the run."""
    said = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    if isinstance(error, torch.cuda.OutOfMemoryError) or "out of memory" in said:
        size = (begun.least_bytes or 0.0) / 2**30
        return (
            "out_of_device_memory",
            f"the device ran out of memory (at least {size:.3g} GiB needed): {said}",
            _SMALLER,
        )
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in said or "can't allocate memory" in said:
        return "out_of_host_memory", f"the host ran out of memory: {said}", _SMALLER
    if stand.on_gpu:
        # Raises again where the device's context is lost: nothing more can be timed.
        torch.cuda.synchronize(stand.device)
    if isinstance(error, NotImplementedError) or "not implemented" in said or "not supported" in said.lower():
        return (
            "bad_parameter",
            f"the library does not support this operator in {begun.precision}: {said}",
            "use another --precision",
        )
    return "crash", f"{type(error).__name__}: {said}", "try this problem alone: --rows"


_SMALLER = "use a smaller problem, or a --precision with fewer bits"
