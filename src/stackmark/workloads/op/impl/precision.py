"""What a precision means to the framework, and which a device has.

`fp32` is fp32: the framework would use TF32 for some of it by default. Sums of 16-bit products are kept in 32 bits, also where
a product is cut along its sum and put together again, which the framework would do in 16 bits by default.
"""

from collections.abc import Collection

import torch

from stackmark.workloads.op.impl.bench import Stand
from stackmark.workloads.workload import WorkloadFailure

# What an operator on floats has; and one that multiplies matrices of them.
FLOATS = ("fp64", "fp32", "bf16", "fp16")
PRODUCTS = (*FLOATS, "tf32")
# The first compute capability of NVIDIA's with matrix units for it, or with the arithmetic at all.
LEAST_CAPABILITY = {"tf32": (8, 0), "bf16": (8, 0), "fp16": (5, 3), "int8": (7, 5), "fp8": (8, 9)}


def require_precision(stand: Stand, possible: Collection[str]) -> None:
    """Refuses what the operator does not have, or this device cannot do."""
    wanted = stand.precision
    if wanted not in possible:
        raise WorkloadFailure(
            "bad_parameter", f"this operator has no {wanted}", f"take --precision {', '.join(sorted(possible))}"
        )
    if stand.on_gpu:
        if torch.version.hip:
            return
        capability = torch.cuda.get_device_capability(stand.device)
        least = LEAST_CAPABILITY.get(wanted, (0, 0))
        if capability < least:
            raise WorkloadFailure(
                "bad_parameter",
                f"this GPU has no {wanted}: its compute capability is {capability[0]}.{capability[1]}, and {wanted} begins at "
                f"{least[0]}.{least[1]}",
                "take another --precision, e.g. fp32",
            )
    elif wanted in ("tf32", "fp8"):
        raise WorkloadFailure(
            "bad_parameter",
            f"{wanted} is arithmetic of GPUs; no CPU has it",
            f"take --precision {' or '.join(name for name in possible if name not in ('tf32', 'fp8'))}",
        )


def set_precision(stand: Stand) -> None:
    """Tells the framework what is meant, for all operators that follow."""
    torch.set_float32_matmul_precision("highest" if stand.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = stand.precision != "fp32"
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


def accumulated_in(stand: Stand) -> str:
    """The precision of the sums."""
    return {"fp64": "fp64", "int8": "int32"}.get(stand.precision, "fp32")
