"""The parameters of `op/…`: which list, or which single problem, in which precision, and how long.

A spec names the rows of its list one by one (`rows`), so that all runs of an experiment do the same ones, whatever the
budget was that chose them, and so that a run after one that was cut off can do just the missing ones.
"""

from typing import Literal

from pydantic import Field
from pydantic.config import JsonDict

from stackmark.spec import AnyParams

GROUP = "Operators (op/…)"
OP: JsonDict = {"group": GROUP}
OP_AUTO: JsonDict = {"group": GROUP, "auto": True}
OP_FOLLOWS: JsonDict = {"group": GROUP, "auto": True, "follows": True}

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
# A list of numbers and ranges: 0-159, or 0,8,16-23.
ROWS_PATTERN = r"^\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*$"


class OpParams(AnyParams):
    seed: int = Field(default=1, ge=0, lt=2**31, description="of the operands' values")
    precision: Precision = Field(
        description="of the operands; tf32: fp32 operands, multiplied with 10 bits; sums have 32 bits or more",
        json_schema_extra={"auto": True},
    )
    set: str = Field(
        description="which list of problems: training, inference_server, inference_device, transformer, sweep; "
        "typed: the one problem of --m --n --k or --shape",
        pattern=r"^[a-z][a-z_]{0,30}$",
        json_schema_extra=OP_AUTO,
    )
    rows: str = Field(
        description="which of the list's problems, by number from 0, e.g. 0-9,40",
        pattern=ROWS_PATTERN,
        json_schema_extra={**OP_AUTO, "one_value": True},
    )
    m: int = Field(default=0, ge=0, le=2**31 - 1, description="of op/gemm: rows of the result", json_schema_extra=OP)
    n: int = Field(default=0, ge=0, le=2**31 - 1, description="of op/gemm: columns of the result", json_schema_extra=OP)
    k: int = Field(default=0, ge=0, le=2**31 - 1, description="of op/gemm: length of the sums", json_schema_extra=OP)
    a_t: bool = Field(default=False, description="of op/gemm: the left operand is transposed", json_schema_extra=OP)
    b_t: bool = Field(default=False, description="of op/gemm: the right operand is transposed", json_schema_extra=OP)
    shape: str = Field(
        default="",
        description="one problem by its names, e.g. --shape w=56,h=56,c=64,n=16,k=64,filter_w=3,filter_h=3",
        json_schema_extra={**OP, "plain": True},
    )
    budget: float = Field(
        ge=0,
        le=86_400,
        description="a run takes about this long: fewer problems, spread over the list; 0: all; 60 on a CPU, 0 on a GPU",
        json_schema_extra={**OP_FOLLOWS, "quantity": "seconds"},
    )
    row_seconds: float = Field(
        gt=0,
        le=3600,
        description="time one problem for at most this long, or until its median is known to 1 %",
        json_schema_extra={**OP_FOLLOWS, "quantity": "seconds"},
    )
    threads: int = Field(
        ge=0,
        le=4096,
        description="intra-op threads; 0: the framework's choice",
        json_schema_extra={"auto": True, "follows": True},
    )
