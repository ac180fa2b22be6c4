"""The family `check/`: its parameters, the device and the amount of work."""

from stackmark.model import Field
from stackmark.spec import AnyParams
from stackmark.workloads.definition import Definition, Family, MetricType

VECTOR_ADD = MetricType("vector add", "GB/s")
CHECK = {"group": "Verification of a device (check/vector-add)"}


class CheckParams(AnyParams):
    seed: int = Field(default=1, ge=0, lt=2**31, description="random seed of the vectors' values")
    # 2^24 of four bytes are 64 MiB: past every cache but a few, and small enough for a tenth of a shared GPU.
    elements: int = Field(
        default=2**24,
        ge=1,
        le=2**31,
        description="length of the longest vectors; shorter ones are also added",
        json_schema_extra=CHECK,
    )
    every_gpu: bool = Field(
        default=False,
        description="use every visible GPU, not only --device",
        json_schema_extra=CHECK,
    )


FAMILY = Family(
    "check",
    CheckParams,
    "stackmark.workloads.check.impl.vector_add",
    (
        Definition(
            "check/vector-add",
            "Add two vectors on the device and compare each sum with the host's",
            "run",
            timed="whole",
            metric=VECTOR_ADD,
        ),
    ),
    shown=("device",),
)
