"""The family `op/`: goes through a list of problems in one process, one row each.

For each row: operands are laid out, the first call is timed by itself, its result compared with float64, then calls are timed,
and what they wrote is compared again. A row that cannot be done is a row with a reason, and the next one is tried.
"""

import gc
import math
import time
from collections.abc import Callable, Generator, Sequence
from functools import partial
from importlib import import_module
from typing import cast

import torch
from pydantic import JsonValue

from stackmark.events import Figure, OpRow
from stackmark.medians import median_of
from stackmark.spec import AnyParams, Request
from stackmark.units import counted
from stackmark.workloads.devices import require_device
from stackmark.workloads.kernels import profile_step
from stackmark.workloads.op import pinning
from stackmark.workloads.op.bench import Operator, Prepared, Stand
from stackmark.workloads.op.checking import Guard, refuse_wrong
from stackmark.workloads.op.choose import choose, problems_of
from stackmark.workloads.op.counts import least_bytes, operations
from stackmark.workloads.op.operands import cache_bytes
from stackmark.workloads.op.params import OpParams
from stackmark.workloads.op.problem import COLLECTIVES, Problem, read_rows
from stackmark.workloads.op.timing import WANTED, first_call_s, make_rounds, time_rounds
from stackmark.workloads.workload import Listed, Metric, Rig, Told, WorkloadFailure

Tell = Callable[[OpRow], None]
# By an operator's name its module, which is imported when it is asked for.
OPERATOR_MODULES = {
    name: f"stackmark.workloads.op.{name.replace('-', '_')}"
    for name in (
        "gemm", "batched-gemm", "grouped-gemm", "sparse-gemm", "conv", "rnn", "attention", "layer-norm", "embedding",
        "optimizer", "copy", "transfer",
    )
}  # fmt: skip
NAME_CHARACTERS = 160
# Of a row's share of the budget, what its samples may take: the rest is for operands, references and warm-up.
TIMED_SHARE = 0.4
LEAST_ROW_S = 0.05


def probe(request: Request, _rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    params, reasons = choose(request)
    op = request.workload.partition("/")[2]
    if op in OPERATOR_MODULES:
        _operator(op).check_precision(_stand(params))
    if op == "ceilings":
        from stackmark.workloads.op.ceilings import precisions

        precisions(params, _stand(params))
    if op in COLLECTIVES:
        from stackmark.workloads.op.collectives import check_ranks

        check_ranks(params, request.ranks)
    return params, reasons


def run(name: str, params: AnyParams, rig: Rig) -> Generator[Listed, None, None]:
    assert isinstance(params, OpParams)
    with rig.part("device"):
        require_device(params.device)
        stand = _stand(params)
        if stand.on_gpu:
            torch.cuda.set_device(stand.device)
        if params.threads:
            torch.set_num_threads(params.threads)
    if name in COLLECTIVES:
        from stackmark.workloads.op.collectives import run_collectives

        found = problems_of(name, params)
        indexes = read_rows(params.rows, len(found))
        yield _listed(params, len(indexes), lambda tell: run_collectives(name, found, params, indexes, tell))
        return
    if name == "ceilings":
        from stackmark.workloads.op.ceilings import rows_planned, run_ceilings

        yield _listed(params, rows_planned(params), lambda tell: run_ceilings(params, tell))
        return
    operator = _operator(name)
    operator.check_precision(stand)
    if name == "transfer":
        from stackmark.workloads.op.transfer import machine_problems

        found = tuple(machine_problems(stand, params))
        indexes = list(range(len(found)))
    else:
        found = problems_of(name, params)
        indexes = read_rows(params.rows, len(found))
    yield _listed(params, len(indexes), lambda tell: go_through(operator, found, indexes, params, stand, tell))


def _listed(params: OpParams, rows: int, go: Callable[[Tell], None]) -> Listed:
    return Listed(run=lambda tell: _told(go, params, tell), device=params.device, rows=rows, facts=_facts(params))


def _stand(params: OpParams) -> Stand:
    return Stand(torch.device(params.device), params.precision, params.seed)


def _operator(name: str) -> Operator:
    return cast(Operator, import_module(OPERATOR_MODULES[name]))


def _facts(params: OpParams) -> dict[str, JsonValue]:
    device = torch.device(params.device)
    facts: dict[str, JsonValue] = {"cache_bytes": cache_bytes(device)}
    if device.type == "cpu":
        facts |= {"threads": torch.get_num_threads(), "pinned": pinning.said()}
    return facts


def _told(go: Callable[[Tell], None], params: OpParams, tell: Tell) -> Told:
    rows: list[OpRow] = []

    def done(row: OpRow) -> None:
        rows.append(row)
        tell(row)

    begin = time.perf_counter()
    # What is there by now (the framework's modules) stays: looking for garbage in it after each row takes 140 ms.
    gc.collect()
    gc.freeze()
    try:
        go(done)
    finally:
        gc.unfreeze()
    wall_s = time.perf_counter() - begin
    good = [row for row in rows if not row.failure_kind]
    if not good:
        first = rows[0] if rows else None
        kind, message = (first.failure_kind, first.failure_message) if first else ("no_device", "the list is empty")
        raise WorkloadFailure(kind, f"no row gave a number; the first: {message}", first.failure_hint if first else "")
    first_s = sum(row.first_call_s or 0.0 for row in good)
    metrics = (Metric("first_calls_s", first_s, "s", False), Metric("rows_done", float(len(good)), "rows", True))
    return Told(figure_of(good), wall_s, metrics, _memory_peak_mib(params))


def figure_of(rows: Sequence[OpRow]) -> Figure:
    """What the list as a whole reached: all its operations, or bytes, by the sum of its calls' median times."""
    ceilings = [row for row in rows if row.shape.get("what") == "matrix" and row.shape.get("state") == "sustained"]
    if ceilings:
        rows = ceilings[:1]
    seconds = sum(median_of(row.call_s).value for row in rows)
    count = "operations"
    if not all(row.operations for row in rows):
        count = "least_bytes"
    amount = sum(getattr(row, count) or 0.0 for row in rows)
    if not amount:
        return Figure(name="calls", value=len(rows) / seconds, unit="calls/s")
    if count == "operations":
        unit = "TOP/s" if rows[0].precision == "int8" else "TFLOP/s"
        return Figure(name="arithmetic over the list", value=amount / seconds / 1e12, unit=unit)
    return Figure(name="bandwidth over the list", value=amount / seconds / 1e9, unit="GB/s")


def _memory_peak_mib(params: OpParams) -> float | None:
    if params.device == "cpu":
        return None
    return float(round(torch.cuda.max_memory_reserved(params.device) / 2**20, 1))


def go_through(
    operator: Operator, found: Sequence[Problem], indexes: Sequence[int], params: OpParams, stand: Stand, tell: Tell
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
        try:
            row = _row(operator, found[index], begun, row_s, stand)
        except WorkloadFailure as failure:
            row = failed_row(begun, failure.kind, failure.message, failure.hint)
        except (RuntimeError, MemoryError) as error:
            row = failed_row(begun, *row_trouble(error, begun, stand))
        tell(row)
        # The next row's operands need the room of this one's; what the allocator keeps is of the wrong sizes.
        gc.collect()
        if stand.on_gpu:
            torch.cuda.empty_cache()


def failed_row(begun: OpRow, kind: str, message: str, hint: str) -> OpRow:
    return begun.model_copy(update={"failure_kind": kind, "failure_message": message, "failure_hint": hint})


def _row(operator: Operator, problem: Problem, begun: OpRow, row_s: float, stand: Stand) -> OpRow:
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
        known = median_of(timed.call_s).half_width
        said = f"known to {known:.1%}" if known < 1 else "without an interval"
        notes.append(f"not known to {WANTED:.0%} in {row_s:.2g} s: {said} ({counted(len(timed.call_s), 'sample')})")
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


def row_trouble(error: RuntimeError | MemoryError, begun: OpRow, stand: Stand) -> tuple[str, str, str]:
    """Why a row could not be done: kind, sentence, hint. A device that is broken for good ends the run."""
    said = str(error).splitlines()[0][:300] if str(error) else type(error).__name__
    if isinstance(error, torch.OutOfMemoryError) or "out of memory" in said:
        size = (begun.least_bytes or 0.0) / 2**30
        return "out_of_device_memory", f"the device ran out of memory ({size:.3g} GiB at the least): {said}", _SMALLER
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in said or "can't allocate memory" in said:
        return "out_of_host_memory", f"the host ran out of memory: {said}", _SMALLER
    if stand.on_gpu:
        torch.cuda.synchronize(
            stand.device
        )  # raises again where the device's context is lost: nothing more can be timed
    if isinstance(error, NotImplementedError) or "not implemented" in said or "not supported" in said.lower():
        return (
            "bad_parameter",
            f"the library has no such operator in {begun.precision}: {said}",
            "take another --precision",
        )
    return "crash", f"{type(error).__name__}: {said}", "try this problem alone: --rows"


_SMALLER = "take a smaller problem, or a --precision with fewer bits"
