"""What an operator is to the list that is gone through: it prepares a problem on a device, and the rest is the same for all.

An operator lays out its operands (operands.py), says how one call is made and what it writes, and how the result is compared
with float64. It holds no clock (timing.py) and decides nothing about how often it is called.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from stackmark.workloads.op.problem import Problem

Tensor = torch.Tensor
# The type in memory of an operand, by precision.
DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class Compared:
    """The largest difference from the float64 reference, relative to the result's own size; the most it may be; of how much."""

    error: float
    bound: float
    # "all 28,160 elements", "65,536 of 368,640,000 elements"
    elements: str


@dataclass(frozen=True)
class Prepared:
    """A problem whose operands lie on the device, in `copies` sets, so that a call finds none of them in a cache.

    `call(i)` does the problem with set i and overwrites `outputs(i)`; on a GPU it only enqueues. It allocates nothing that it
    does not give back, so that it can be recorded as a CUDA graph, unless `graph` is False.
    """

    call: Callable[[int], object]
    copies: int
    outputs: Callable[[int], Sequence[Tensor]]
    # Compares what the last `call(0)` wrote with a float64 reference.
    compare: Callable[[], Compared]
    accumulate: str = ""
    graph: bool = True
    # Calls whose results differ in their last bits from call to call (sums by atomic addition) are compared by a bound.
    same_bits: bool = True
    # Bytes and operations, where the operator knows better than the formula of counts.py.
    operations: float | None = None
    least_bytes: float | None = None
    # Where it depends on the machine (a link), what its description allows, in bytes or operations a second, and in words.
    limit_per_s: float | None = None
    limit: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Stand:
    """Where a problem is prepared: the device, the precision, the seed of the operands."""

    device: torch.device
    precision: str
    seed: int

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.precision]

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"


class Operator(Protocol):
    """One file each: gemm.py, conv.py … A precision that it cannot do on this device raises WorkloadFailure("bad_parameter")."""

    def check_precision(self, stand: Stand) -> None: ...
    def prepare(self, problem: Problem, stand: Stand) -> Prepared: ...
