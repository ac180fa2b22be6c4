"""Workloads of another package: definitions, which import no framework."""

from collections.abc import Iterator

from stackmark.model import Field
from stackmark.spec import Params
from stackmark.workloads.definition import Definition, Family
from stackmark.workloads.op.operators import ELEMENT_BYTES
from stackmark.workloads.op.problem import Axis, ListRow, Operator, Problem


class SortParams(Params):  # device, seed, steps, seconds … come from Params
    size: int = Field(default=1_000_000, ge=1, description="numbers to sort", json_schema_extra={"group": "Sorting"})


QUICK = Definition("sort/quick", "NumPy's quicksort", "number", samples_per_step="size")
FAMILY = Family("sort", SortParams, "my_package.sorting", (QUICK,))


def axpy_bytes(problem: Problem, precision: str) -> int:
    return 3 * problem.number("elements") * ELEMENT_BYTES[precision]


def axpy_rows() -> Iterator[ListRow]:
    for power in range(16, 25, 4):
        yield f"2^{power} elements", {"elements": 2**power}


AXPY = Operator(
    name="axpy",
    title="A vector times a number, added to another",
    implementation="my_package.axpy:AXPY",
    fields={"elements": Axis()},
    sets={"powers": axpy_rows},
    least_bytes=axpy_bytes,
    say=lambda shape: f"{shape['elements']} elements",
)
