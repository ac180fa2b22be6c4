"""Workloads on a real process group, for tests of the collectives: all five in one group, and ranks that do wrong.

A group with a framework takes seconds to start, so one group goes through everything. Imported in the worker as the family's
module; the tests only need its specs.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import distributed

from stackmark.events import Figure, OpRow
from stackmark.spec import AnyParams, Request, Scalar, Spec
from stackmark.workloads.definition import Definition, Family
from stackmark.workloads.op.definition import OpParams
from stackmark.workloads.op.operators import OPERATORS
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import Rig, TimedFigure, TimedRows

# Of three ranks: parts that are not equal, parts that are, and too few floats for a part of each.
SIZES = {"fp32": (1000, 6, 1), "bf16": (1000,), "fp16": (1000,), "fp64": (1000,)}
HUGE = 10**13
FLIPPED = 1234
BAD = 1
COLLECTIVES = tuple(op for op, one in OPERATORS.items() if one.exchange)


def exchanging(name: str, ranks: int = 2, **params: Scalar) -> Spec:
    given: dict[str, Scalar] = {
        "device": "cpu", "precision": "fp32", "set": "sweep", "rows": "0", "budget": 0.0, "row_seconds": 0.05, "threads": 0,
    }  # fmt: skip
    complete = OpParams.model_validate({**given, **params})
    return Spec(workload=f"exchange/{name}", params=complete.model_dump(mode="json"), ranks=ranks)


def install(folder: Path) -> Path:
    info = folder / "exchange-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exchange\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stackmark.workloads]\nexchange = collective_tricks:FAMILY\n")
    return folder


def probe(_request: Request, _rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    raise NotImplementedError


def run(name: str, params: AnyParams, _rig: Rig) -> Iterator[TimedRows]:
    assert isinstance(params, OpParams)

    def go(tell: Callable[[OpRow], None]) -> TimedFigure:
        TRICKS[name](params, tell)
        return TimedFigure(Figure(name="calls", value=1.0, unit="calls/s"), wall_s=1.0)

    yield TimedRows(run=go, device="cpu", rows=1)


def of(floats: int) -> Problem:
    return Problem("any", {"floats": floats, "ranks": 2})


def all_of_them(params: OpParams, tell: Callable[[OpRow], None]) -> None:
    """Every collective in every precision, at sizes that can and cannot be cut into equal parts."""
    from stackmark.workloads.impl.process_group import joined
    from stackmark.workloads.op.impl.collectives import go_through

    with joined(torch.device("cpu")) as group:
        for precision, sizes in SIZES.items():
            of_precision = params.model_copy(update={"precision": precision, "row_seconds": 0.02})
            problems = [of(floats) for floats in sizes]
            for op in COLLECTIVES:
                go_through(group, op, problems, of_precision, range(len(problems)), tell)


def mixed(params: OpParams, tell: Callable[[OpRow], None]) -> None:
    """Between two that can be done: one that no machine has room for, and one that goes wrong at one rank, once."""
    from stackmark.workloads.impl.process_group import joined
    from stackmark.workloads.op.impl.collectives import go_through

    whole = distributed.all_reduce
    calls = 0

    def flipping(tensor: torch.Tensor, *more: object, **options: object) -> object:
        nonlocal calls
        found = whole(tensor, *more, **options)  # type: ignore[arg-type]
        if tensor.numel() == FLIPPED and int(os.environ["RANK"]) == BAD:
            calls += 1
            if calls == 3:
                tensor[17] += 1  # a bit that flips on the way
        return found

    vars(distributed)["all_reduce"] = flipping
    with joined(torch.device("cpu")) as group:
        problems = [of(100), of(HUGE), of(FLIPPED), of(100)]
        go_through(group, "all-reduce", problems, params, range(4), tell)


def dies(params: OpParams, tell: Callable[[OpRow], None]) -> None:
    """One rank is killed between two rows, while the other waits for it in a collective."""
    from stackmark.workloads.impl.process_group import joined
    from stackmark.workloads.op.impl.collectives import go_through

    def told(row: OpRow) -> None:
        tell(row)
        if int(os.environ["RANK"]) == BAD:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)

    with joined(torch.device("cpu")) as group:
        go_through(group, "all-reduce", [of(1000)] * 2, params, range(2), told)


TRICKS = {"all": all_of_them, "mixed": mixed, "dies": dies}
FAMILY = Family(
    "exchange",
    OpParams,
    "collective_tricks",
    tuple(Definition(f"exchange/{name}", name, "call", timed="rows") for name in TRICKS),
)
