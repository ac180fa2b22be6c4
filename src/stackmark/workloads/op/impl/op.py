"""The family `op/`: from complete parameters to a list measured in one process, and its overall figure.

A row of most operators is made in rows.py; the ranks of a collective and a machine's ceilings go their own ways.
"""

import gc
import os
import time
from collections.abc import Callable, Generator, Sequence
from importlib import import_module

import torch

from stackmark.events import Figure, OpRow
from stackmark.medians import median_of
from stackmark.model import JsonValue
from stackmark.ranks import ranks_of_node
from stackmark.spec import AnyParams, Request
from stackmark.workloads.impl.devices import require_device
from stackmark.workloads.op.definition import OpParams, find_operator
from stackmark.workloads.op.impl import pinning
from stackmark.workloads.op.impl.bench import Implementation
from stackmark.workloads.op.impl.choose import choose, problems_of
from stackmark.workloads.op.impl.operands import cache_bytes
from stackmark.workloads.op.impl.rows import OwnRows, Plan, Tell, go_through, stand_of
from stackmark.workloads.op.problem import BYTES_RATE, RATE_SCALE, rate_unit, read_rows
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedRows, WorkloadFailure


def probe(request: Request, _rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    params, reasons = choose(request)
    found = _implementation(request.workload.partition("/")[2])
    if isinstance(found, OwnRows):
        found.check(params, ranks_of_node(os.environ, request.ranks))
    else:
        found.check_precision(stand_of(params))
    return params, reasons


def run(name: str, params: AnyParams, rig: Rig) -> Generator[TimedRows, None, None]:
    assert isinstance(params, OpParams)
    with rig.part("device"):
        require_device(params.device)
        stand = stand_of(params)
        if stand.on_gpu:
            torch.cuda.set_device(stand.device)
        if params.threads:
            torch.set_num_threads(params.threads)
    found = _implementation(name)
    yield _listed(params, found.plan(name, params) if isinstance(found, OwnRows) else _plan(found, name, params))


def _plan(operator: Implementation, name: str, params: OpParams) -> Plan:
    stand = stand_of(params)
    operator.check_precision(stand)
    if operator.machine_problems:
        found = tuple(operator.machine_problems(stand))
        indexes = list(range(len(found)))
    else:
        found = problems_of(name, params)
        indexes = read_rows(params.rows, len(found))
    return Plan(len(indexes), lambda tell: go_through(operator, found, indexes, params, stand, tell))


def _listed(params: OpParams, plan: Plan) -> TimedRows:
    return TimedRows(
        run=lambda tell: _told(plan.go, params, tell), device=params.device, rows=plan.rows, facts=_facts(params)
    )


def _implementation(op: str) -> Implementation | OwnRows:
    """Import what the definition names, and with it what the operator alone needs."""
    module, _, constant = find_operator(op).implementation.partition(":")
    found = getattr(import_module(module), constant)
    assert isinstance(found, Implementation | OwnRows), found
    return found


def _facts(params: OpParams) -> dict[str, JsonValue]:
    device = torch.device(params.device)
    facts: dict[str, JsonValue] = {"cache_bytes": cache_bytes(device)}
    if device.type == "cpu":
        facts |= {"threads": torch.get_num_threads(), "pinned": pinning.said()}
    return facts


def _told(go: Callable[[Tell], None], params: OpParams, tell: Tell) -> TimedFigure:
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
    return TimedFigure(figure_of(good), wall_s, metrics, _memory_peak_mib(params))


def figure_of(rows: Sequence[OpRow]) -> Figure:
    """Compute what the whole list reached: all its operations, or bytes, over the sum of its calls' median times."""
    ceilings = [row for row in rows if row.shape.get("what") == "matrix" and row.shape.get("state") == "sustained"]
    if ceilings:
        rows = ceilings[:1]
    seconds = sum(median_of(row.call_s).value for row in rows)
    operations = sum(row.operations or 0.0 for row in rows) if all(row.operations for row in rows) else None
    unit = rate_unit(operations, rows[0].precision)
    amount = operations or sum(row.least_bytes or 0.0 for row in rows)
    if not amount:
        return Figure(name="calls", value=len(rows) / seconds, unit="calls/s")
    name = "bandwidth over the list" if unit == BYTES_RATE else "arithmetic over the list"
    return Figure(name=name, value=amount / seconds / RATE_SCALE[unit], unit=unit)


def _memory_peak_mib(params: OpParams) -> float | None:
    if params.device == "cpu":
        return None
    return float(round(torch.cuda.max_memory_reserved(params.device) / 2**20, 1))
