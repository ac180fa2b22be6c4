"""Complete a request: choose the list, the precision, and which of its problems fit into the budget.

On two cores DeepBench's largest product takes a minute a call, so a list is shortened there: problems that would take a good
part of the budget alone are left out, and of the others as many as fit, spread evenly over their sizes, so that a small, a
middling and a large one are always among them. What was left out is said, and is part of the spec: all runs do the same rows.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch

from stackmark.errors import SpecError
from stackmark.model import ValidationError
from stackmark.spec import Request, Scalar, explain
from stackmark.workloads.impl.devices import first_device, require_device, usual_precision
from stackmark.workloads.op.definition import (
    OpParams,
    find_operator,
    least_bytes,
    operations,
    problems,
    sets_of,
    typed_problem,
)
from stackmark.workloads.op.problem import TYPED, Operator, Problem, read_rows, say_rows
from stackmark.workloads.workload import WorkloadFailure

T = TypeVar("T")
GPU_ROW_S, CPU_ROW_S = 0.5, 1.0
CPU_BUDGET_S = 60.0
# A problem that would take more than this share of the budget alone is left out.
LARGEST_SHARE = 0.25
# What a row costs besides its calls: operands, the float64 reference, a graph.
ROW_OVERHEAD_S = 0.3
# Calls that a row takes at the least: the first, those that are remembered, the estimate, warm-up, ten samples.
CALLS_A_ROW = 24


def choose(request: Request) -> tuple[OpParams, dict[str, str]]:
    op = request.workload.partition("/")[2]
    operator = find_operator(op)
    values: dict[str, Scalar] = dict(request.typed())
    reasons: dict[str, str] = {}

    def take(name: str, value: Scalar, reason: str) -> None:
        if name not in values:
            values[name], reasons[name] = value, reason

    if values.get("device") == "cuda":
        values["device"] = "cuda:0"
    take("device", *first_device())
    device = str(values["device"])
    require_device(device)
    gpu = device != "cpu"
    take("precision", *_precision(operator, device))
    take("row_seconds", GPU_ROW_S if gpu else CPU_ROW_S, "or until the median is known to 1 %")
    take("budget", 0.0 if gpu or operator.by_machine else CPU_BUDGET_S, "the whole list" if gpu else "a CPU")
    take("threads", 0, "the framework's choice")
    typed = _refuse(partial(typed_problem, op, values))
    take(
        "set",
        TYPED if typed else sets_of(op)[0],
        "one problem's sizes are given" if typed else "the first of this operator",
    )
    if typed and values["set"] != TYPED:
        raise WorkloadFailure(
            "bad_parameter", "give the sizes of one problem or --set, not both", "leave one of them out"
        )
    if operator.by_machine:
        # How many there are is seen where they are run; all of them.
        take("rows", "0-999", "depends on the machine")
    else:
        found = [typed] if typed else list(_problems(op, str(values["set"])))
        take("rows", *_rows(found, str(values["precision"]), device, float(str(values["budget"]))))
        _refuse(partial(read_rows, str(values["rows"]), len(found)))
    try:
        return OpParams.model_validate(values), reasons
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error


def problems_of(op: str, params: OpParams) -> tuple[Problem, ...]:
    """Return the whole list that the parameters name."""
    typed = _refuse(partial(typed_problem, op, params.model_dump()))
    return (typed,) if typed else _problems(op, params.set)


def _problems(op: str, name: str) -> tuple[Problem, ...]:
    return _refuse(partial(problems, op, name))


def _refuse(read: Callable[[], T]) -> T:
    """What is wrong with a shape, a set or rows is the person's parameter."""
    try:
        return read()
    except SpecError as error:
        raise WorkloadFailure("bad_parameter", error.message, error.hint or "") from error


def _precision(operator: Operator, device: str) -> tuple[str, str]:
    if operator.moves:
        return "fp32", "moving data needs hardly any arithmetic"
    return usual_precision(device)


def _rows(found: Sequence[Problem], precision: str, device: str, budget_s: float) -> tuple[str, str]:
    everything = say_rows(range(len(found)))
    if not budget_s or len(found) == 1:
        return everything, f"all {len(found)}"
    costs = _costs(found, precision, device)
    chosen = representative(costs, [_size(problem, precision) for problem in found], budget_s)
    if len(chosen) == len(found):
        return everything, f"all {len(found)} fit into {budget_s:g} s"
    if len(chosen) == 1:
        return say_rows(chosen), f"{budget_s:g} s suffice for only one of the {len(found)} problems"
    large = sum(cost > LARGEST_SHARE * budget_s for cost in costs)
    said = f"{len(chosen)} of {len(found)} problems fit into {budget_s:g} s, spread evenly over their sizes"
    return say_rows(chosen), said + (f"; {large} would take more than a quarter of it alone" if large else "")


def representative(costs_s: Sequence[float], sizes: Sequence[float], budget_s: float) -> list[int]:
    """Choose the most rows that fit, evenly spread over their sizes; at least the cheapest one."""
    allowed = [i for i, cost in enumerate(costs_s) if cost <= LARGEST_SHARE * budget_s]
    if not allowed:
        return [min(range(len(costs_s)), key=lambda i: costs_s[i])]
    ordered = sorted(allowed, key=lambda i: (sizes[i], i))
    for count in range(len(ordered), 0, -1):
        last = len(ordered) - 1
        picked = {ordered[round(place * last / max(count - 1, 1))] for place in range(count)}
        if sum(costs_s[i] for i in picked) <= budget_s:
            return sorted(picked)
    return [min(ordered, key=lambda i: costs_s[i])]


def _size(problem: Problem, precision: str) -> float:
    return operations(problem) or least_bytes(problem, precision)


def _costs(found: Sequence[Problem], precision: str, device: str) -> list[float]:
    """About how long each row takes at the least, by what this device does in a quick trial."""
    rate, bandwidth = _trial(torch.device(device))
    costs = []
    for problem in found:
        moved = least_bytes(problem, precision) / bandwidth
        call_s = find_operator(problem.op).work * (operations(problem) or 0.0) / rate + moved
        # Operands are drawn and compared at some tens of times the cost of moving them.
        costs.append(ROW_OVERHEAD_S + 20 * moved + CALLS_A_ROW * call_s)
    return costs


def _trial(device: torch.device) -> tuple[float, float]:
    """Operations and bytes a second of a product of middling size and of a copy: a guess that is right within a factor."""
    matrix = torch.randn(512, 512, device=device)
    line = torch.randn(2**22, device=device)
    target = torch.empty_like(line)
    product_s = min(_seconds(lambda: torch.mm(matrix, matrix), device) for _ in range(3))
    copy_s = min(_seconds(lambda: target.copy_(line), device) for _ in range(3))
    return 2 * 512**3 / product_s, 2 * line.numel() * line.element_size() / copy_s


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    begin = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return max(time.perf_counter() - begin, 1e-6)
