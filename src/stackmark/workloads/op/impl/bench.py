"""The interface of an operator: it prepares a problem on a device, and the rest is the same for all operators.

An operator lays out its operands (operands.py), says how one call is made and what it writes, and how the result is compared
with float64. It holds no clock (timing.py) and decides nothing about how often it is called.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

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
    """A problem whose operands are on the device, in `copies` sets, so that a call finds none of them in a cache.

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


@dataclass(frozen=True)
class Implementation:
    """The implementation of an operator; its definition names it by module and constant.

    `check_precision` raises WorkloadFailure("bad_parameter") for a precision that it cannot do on this device.
    """

    check_precision: Callable[[Stand], None]
    prepare: Callable[[Problem, Stand], Prepared]
    # The problems of this machine, for an operator that has no list of them.
    machine_problems: Callable[[Stand], Sequence[Problem]] | None = None


# --- precisions -------------------------------------------------------------------------------------------------------
#
# What a precision means to the framework, and which a device has.
#
# `fp32` is fp32: the framework would use TF32 for some of it by default. Sums of 16-bit products are kept in 32 bits, also where
# a product is cut along its sum and put together again, which the framework would do in 16 bits by default.


# What an operator on floats has; and one that multiplies matrices of them.
FLOATS = ("fp64", "fp32", "bf16", "fp16")
PRODUCTS = (*FLOATS, "tf32")
# The first compute capability of NVIDIA's with matrix units for it, or with the arithmetic at all.
LEAST_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "int8": (7, 5), "fp8": (8, 9)}


def require_precision(stand: Stand, possible: Collection[str]) -> None:
    """Refuse what the operator does not have, or this device cannot do."""
    wanted = stand.precision
    if wanted not in possible:
        raise WorkloadFailure(
            "bad_parameter",
            f"this operator does not support {wanted}",
            f"use --precision {', '.join(sorted(possible))}",
        )
    if stand.on_gpu:
        if torch.version.hip:
            return
        capability = torch.cuda.get_device_capability(stand.device)
        least = LEAST_CAPABILITY.get(wanted, (0, 0))
        if capability < least:
            raise WorkloadFailure(
                "bad_parameter",
                f"this GPU has compute capability {capability[0]}.{capability[1]}, and {wanted} needs "
                f"{least[0]}.{least[1]}",
                "use another --precision, e.g. fp32",
            )
    elif wanted in ("tf32", "fp8"):
        raise WorkloadFailure(
            "bad_parameter",
            f"CPUs do not support {wanted}",
            f"use --precision {' or '.join(name for name in possible if name not in ('tf32', 'fp8'))}",
        )


def set_precision(stand: Stand) -> None:
    """Tell the framework what is meant, for all operators that follow."""
    torch.set_float32_matmul_precision("highest" if stand.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = stand.precision != "fp32"
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def accumulated_in(stand: Stand) -> str:
    """Return the precision of the sums."""
    return {"fp64": "fp64", "int8": "int32"}.get(stand.precision, "fp32")
