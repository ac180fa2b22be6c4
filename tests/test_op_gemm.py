"""op/gemm: DeepBench's product, in every precision that a CPU has, and what is refused."""

import pytest
import torch

from refusing import fails_as
from stackmark.workloads.op.definition import read_problem
from stackmark.workloads.op.impl import matrix, operands
from stackmark.workloads.op.impl.bench import Stand

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def a_small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sets of operands, where the machine's own cache would take a hundred megabytes of them."""
    monkeypatch.setattr(operands, "cache_bytes", lambda _device: 2**16)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16", "int8"])
@pytest.mark.parametrize(("a_t", "b_t"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_a_product_is_right_in_every_layout(precision: str, a_t: int, b_t: int) -> None:
    problem = read_problem("gemm", {"m": 48, "n": 32, "k": 80, "a_t": a_t, "b_t": b_t})
    prepared = matrix.prepare_gemm(problem, Stand(CPU, precision, 5))
    prepared.call(0)
    (result,) = prepared.outputs(0)
    assert tuple(result.shape) == (32, 48)  # a column-major 48×32
    compared = prepared.compare()
    assert compared.error <= compared.bound
    assert "1,536" in compared.elements


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_one_wrong_element_is_found(precision: str) -> None:
    prepared = matrix.prepare_gemm(read_problem("gemm", {"m": 64, "n": 64, "k": 64}), Stand(CPU, precision, 5))
    prepared.call(0)
    (result,) = prepared.outputs(0)
    result[17, 3] += 0.01 * 8 if precision == "fp32" else 8
    compared = prepared.compare()
    assert compared.error > compared.bound


def test_a_wrong_element_that_no_sample_holds_is_found_by_the_projection() -> None:
    prepared = matrix.prepare_gemm(read_problem("gemm", {"m": 1500, "n": 1200, "k": 16}), Stand(CPU, "fp32", 5))
    prepared.call(0)
    (result,) = prepared.outputs(0)
    compared = prepared.compare()
    assert compared.elements.startswith("65,536 of")
    assert "1,800,000" in compared.elements
    assert compared.error <= compared.bound
    found = []
    for row, column in ((3, 5), (611, 907), (1111, 1301)):
        kept = result[row, column].clone()
        result[row, column] += 1.0
        found.append(prepared.compare().error > compared.bound)
        result[row, column] = kept
    assert all(found)


def test_eight_bits_want_sizes_that_libraries_multiply() -> None:
    with fails_as("bad_parameter", "int8", "8", "m is 33"):
        matrix.prepare_gemm(read_problem("gemm", {"m": 33, "n": 32, "k": 32}), Stand(CPU, "int8", 5))


def test_eight_bit_products_say_that_they_are_made_in_one_layout() -> None:
    prepared = matrix.prepare_gemm(read_problem("gemm", {"m": 32, "n": 32, "k": 32}), Stand(CPU, "int8", 5))
    (note,) = prepared.notes
    assert "TN" in note
    assert prepared.accumulate == "int32"


@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_a_right_product_of_one_row_is_never_called_wrong(precision: str) -> None:
    narrow = 16 if precision == "int8" else 1
    for seed in range(60):
        problem = read_problem("gemm", {"m": 512, "n": narrow, "k": 256})
        prepared = matrix.prepare_gemm(problem, Stand(CPU, precision, seed))
        prepared.call(0)
        compared = prepared.compare()
        assert compared.error <= compared.bound
