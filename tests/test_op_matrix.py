"""Batched, grouped and sparse products: against NumPy in float64, and what their comparison finds."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from stackmark.errors import SpecError
from stackmark.spec import Scalar
from stackmark.workloads.op.definition import least_bytes, operations, read_problem
from stackmark.workloads.op.impl import checking, matrix
from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand
from stackmark.workloads.op.impl.checking import refuse_wrong, signs, times
from stackmark.workloads.op.impl.matrix import (
    compare_groups,
    compare_products,
    compare_sparse,
    rows_of_groups,
    sparse_pattern,
)
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

CPU = torch.device("cpu")
# The largest error against NumPy, relative to the result's size: the sums' rounding, and the result's.
ALLOWED = {"fp64": 1e-14, "fp32": 1e-5, "bf16": 0.03, "fp16": 0.004}


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sets of operands, so that a test is about its own shape."""
    monkeypatch.setattr("stackmark.workloads.op.impl.operands.cache_bytes", lambda _device: 2**15)


def stand(precision: str) -> Stand:
    return Stand(CPU, precision, seed=5)


def done(prepared: Prepared) -> torch.Tensor:
    """The result of the first set, found right."""
    prepared.call(0)
    refuse_wrong(prepared.compare())
    (output,) = prepared.outputs(0)
    return output


def off_by(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Of the reference's own size."""
    return float((got.double() - wanted).abs().max() / wanted.square().mean().sqrt())


def a_usual_element(tensor: torch.Tensor) -> tuple[int, ...]:
    """Not nearly zero: a hundredth of that would be nothing."""
    rows = (tensor.abs() > tensor.abs().double().quantile(0.5)).nonzero()
    return tuple(int(number) for number in rows[len(rows) // 2])


# --- batched ------------------------------------------------------------------------------------------------------------


def column_major(memory: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Matrices as BLAS reads them from memory: down the columns."""
    return memory.reshape(-1).as_strided((memory.shape[0], rows, columns), (rows * columns, 1, rows)).double()


@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize(("a_t", "b_t"), [(False, False), (True, False), (False, True), (True, True)])
def test_batched_products_are_those_of_column_major_matrices(precision: str, a_t: bool, b_t: bool) -> None:
    groups, m, n, k = 5, 7, 11, 33
    problem = read_problem("batched-gemm", {"groups": groups, "m": m, "n": n, "k": k, "a_t": a_t, "b_t": b_t})
    got = done(matrix.prepare_batched(problem, stand(precision)))
    # Drawn once more, in the order in which they are laid out.
    dtype = stand(precision).dtype
    shapes = [(groups, n * k), (groups, m * k), (groups, n * m)]
    pieces = [Piece(shape, dtype, random=number < 2) for number, shape in enumerate(shapes)]
    b_memory, a_memory, _ = rotated(pieces, stand(precision))[0]
    a = column_major(a_memory, k, m).transpose(1, 2) if a_t else column_major(a_memory, m, k)
    b = column_major(b_memory, n, k).transpose(1, 2) if b_t else column_major(b_memory, k, n)
    wanted = torch.from_numpy(np.matmul(a.numpy(), b.numpy()))
    assert off_by(column_major(got, m, n), wanted) < ALLOWED[precision]


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 1, 1, 200), (40, 3, 90, 2), (2, 130, 1, 17)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_batched_products_of_odd_shapes_are_right(shape: tuple[int, int, int, int], precision: str) -> None:
    problem = read_problem("batched-gemm", dict(zip(("groups", "m", "n", "k"), shape, strict=True)))
    done(matrix.prepare_batched(problem, stand(precision)))


def is_wrong(compared: Compared) -> bool:
    with pytest.raises(WorkloadFailure) as failure:
        refuse_wrong(compared)
    return failure.value.kind == "wrong_result"


BATCH = read_problem("batched-gemm", {"groups": 20, "m": 70, "n": 70, "k": 12})


def test_an_element_that_is_off_by_a_hundredth_is_found_in_any_of_the_matrices() -> None:
    prepared = matrix.prepare_batched(BATCH, stand("fp32"))
    got = done(prepared)
    for group in range(20):
        at = (group, *a_usual_element(got[group]))
        before = got[at].clone()
        got[at] *= 1.01
        assert is_wrong(prepared.compare())
        got[at] = before
    refuse_wrong(prepared.compare())


@pytest.mark.parametrize(
    "mistake",
    [lambda got: got.transpose(1, 2), lambda got: got.roll(1, 0), lambda got: torch.full_like(got, float("nan"))],
    ids=["transposed", "the next matrix's", "not numbers"],
)
def test_a_wrong_layout_is_found_in_bf16(mistake: Callable[[torch.Tensor], torch.Tensor]) -> None:
    left, right = torch.randn(4, 16, 24).bfloat16(), torch.randn(4, 24, 16).bfloat16()
    got = torch.bmm(left, right)
    refuse_wrong(compare_products(got, left, right, stand("bf16")))
    assert is_wrong(compare_products(mistake(got), left, right, stand("bf16")))


def test_a_projection_is_a_product_in_float64_however_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "_STRIPE_ELEMENTS", 50)
    matrices, vector = torch.randn(7, 5, 6), signs(6, torch.Generator().manual_seed(1))
    assert set(vector.tolist()) == {-1.0, 1.0}
    assert torch.equal(times(matrices, vector), matrices.double() @ vector)
    assert torch.equal(times(matrices[0], vector), matrices[0].double() @ vector)
    own = torch.randn(7, 6, dtype=torch.float64)
    assert torch.allclose(times(matrices, own), torch.einsum("gnk,gk->gn", matrices.double(), own), rtol=1e-14)


# --- grouped ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "groups"), [(1000, 8), (6400, 64), (3, 8), (1, 1), (256, 256), (17, 5)])
def test_rows_fall_to_groups_unevenly_and_none_is_lost(tokens: int, groups: int) -> None:
    counts = rows_of_groups(tokens, groups)
    assert len(counts) == groups
    assert sum(counts) == tokens
    assert min(counts) >= 0
    assert counts == rows_of_groups(tokens, groups)  # the same on every machine


def test_the_largest_groups_are_as_large_as_is_said() -> None:
    # By hand: 10 rows as 1 : 0.707 : 0.577 : 0.5 are 3.59, 2.54, 2.07, 1.80; the largest remainders are rounded up.
    assert sorted(rows_of_groups(10, 4), reverse=True) == [4, 2, 2, 2]
    assert sorted(rows_of_groups(3, 8), reverse=True) == [1, 1, 1, 0, 0, 0, 0, 0]
    assert max(rows_of_groups(80_000, 8)) / 10_000 == pytest.approx(1.8, abs=0.05)
    many = rows_of_groups(64_000, 64)
    assert max(many) / 1000 == pytest.approx(4.4, abs=0.05)
    assert min(many) / 1000 == pytest.approx(0.5, abs=0.06)
    assert many != sorted(many)
    assert many != sorted(many, reverse=True)


GROUPED: dict[str, Scalar] = {"groups": 6, "tokens": 50, "n": 24, "k": 16}


def grouped_operands(precision: str) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """Rows, matrices of k × n as views of n × k, and how many rows each of them gets."""
    counts = rows_of_groups(50, 6)
    dtype = stand(precision).dtype
    return torch.randn(50, 16).to(dtype), torch.randn(6, 24, 16).to(dtype).transpose(1, 2), counts


def grouped_by_numpy(rows: torch.Tensor, weights: torch.Tensor, counts: list[int]) -> torch.Tensor:
    group_of = np.repeat(np.arange(len(counts)), counts)
    each = [rows[i].double().numpy() @ weights[group].double().numpy() for i, group in enumerate(group_of)]
    return torch.from_numpy(np.stack(each))


@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize(
    "shape", [GROUPED, {"groups": 9, "tokens": 4, "n": 5, "k": 7}, {"groups": 1, "tokens": 1, "n": 1, "k": 1}]
)
def test_each_row_is_multiplied_by_its_own_groups_matrix(precision: str, shape: dict[str, Scalar]) -> None:
    problem = read_problem("grouped-gemm", shape)
    prepared = matrix.prepare_grouped(problem, stand(precision))
    got = done(prepared)
    tokens, groups, n, k = (problem.number(name) for name in ("tokens", "groups", "n", "k"))
    dtype = stand(precision).dtype
    pieces = [Piece((tokens, k), dtype), Piece((groups, n, k), dtype), Piece((tokens, n), dtype, random=False)]
    rows, weights, _ = rotated(pieces, stand(precision))[0]
    wanted = grouped_by_numpy(rows, weights.transpose(1, 2), rows_of_groups(tokens, groups))
    assert off_by(got, wanted) < ALLOWED[precision]


def test_the_notes_say_how_the_groups_were_multiplied_and_bytes_are_of_the_matrices_that_are_read() -> None:
    problem = read_problem("grouped-gemm", {"groups": 9, "tokens": 4, "n": 5, "k": 7})
    prepared = matrix.prepare_grouped(problem, stand("fp32"))
    counts = rows_of_groups(4, 9)
    used = sum(count > 0 for count in counts)
    assert used < 9
    spread, way = prepared.notes
    assert f" 0 to {max(counts)} " in spread
    assert f" {used} " in way
    assert prepared.least_bytes == 4 * (4 * 7 + used * 5 * 7 + 4 * 5)
    assert prepared.operations is None  # as counted from the shape


def test_the_one_kernel_for_all_groups_gives_what_the_loop_gives() -> None:
    rows, weights, counts = grouped_operands("bf16")
    results = [torch.empty(0)]
    try:
        matrix._one_kernel([(rows, weights)], results, counts)(0)
    except (RuntimeError, AttributeError) as error:
        pytest.skip(f"this PyTorch has no grouped_mm on a CPU: {error}")
    refuse_wrong(compare_groups(results[0], rows, weights, counts, stand("bf16")))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_row_that_went_to_the_next_group_is_found(precision: str) -> None:
    rows, weights, counts = grouped_operands(precision)
    right = grouped_by_numpy(rows, weights, counts)
    refuse_wrong(compare_groups(right.to(rows.dtype), rows, weights, counts, stand(precision)))
    moved = [counts[0] - 1, counts[1] + 1, *counts[2:]]
    wrong = grouped_by_numpy(rows, weights, moved).to(rows.dtype)
    assert is_wrong(compare_groups(wrong, rows, weights, counts, stand(precision)))


def test_an_element_that_is_off_by_a_hundredth_is_found_in_any_of_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "SIDE", 4)  # so that most elements are reached by the projection alone
    rows, weights, counts = grouped_operands("fp32")
    right = grouped_by_numpy(rows, weights, counts).float()
    assert " 1,200 " in compare_groups(right, rows, weights, counts, stand("fp32")).elements
    for row in range(50):
        wrong = right.clone()
        wrong[row, a_usual_element(right[row])[0]] *= 1.01
        assert is_wrong(compare_groups(wrong, rows, weights, counts, stand("fp32")))


# --- sparse -------------------------------------------------------------------------------------------------------------


def sparse_problem(**shape: Scalar) -> Problem:
    return read_problem("sparse-gemm", {"m": 60, "n": 9, "k": 40, "sparsity": 0.8, **shape})


def compared_with(wrong: torch.Tensor, precision: str) -> tuple[Compared, torch.Tensor]:
    """A result of a sparse product with something added to it, compared; and the right one."""
    generator = torch.Generator().manual_seed(2)
    dtype = stand(precision).dtype
    left = torch.randn(60, 40, generator=generator) * (torch.rand(60, 40, generator=generator) > 0.8)
    right = torch.randn(40, 9, generator=generator).to(dtype)
    starts = torch.cat([torch.zeros(1), (left != 0).sum(1)]).cumsum(0).int()
    sparse = torch.sparse_csr_tensor(
        starts, left.nonzero()[:, 1].int(), left[left != 0].to(dtype), (60, 40), check_invariants=True
    )
    wanted = torch.from_numpy(left.to(dtype).double().numpy() @ right.double().numpy())
    return compare_sparse((wanted + wrong).to(dtype), sparse, right, stand(precision)), wanted


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize(
    "shape", [{}, {"n": 1}, {"b_t": True}, {"m": 1, "k": 300}, {"m": 301, "n": 2, "k": 7, "sparsity": 0.95}]
)
def test_a_sparse_product_is_that_of_its_values(precision: str, shape: dict[str, Scalar]) -> None:
    problem = sparse_problem(**shape)
    prepared = matrix.prepare_sparse(problem, stand(precision))
    got = done(prepared)
    m, n, k = (problem.number(name) for name in ("m", "n", "k"))
    starts, columns = sparse_pattern(m, k, float(str(problem.shape["sparsity"])), stand(precision))
    dtype = stand(precision).dtype
    indices = (Piece((columns.numel(),), torch.int32, random=False), Piece((m + 1,), torch.int32, random=False))
    pieces = [Piece((columns.numel(),), dtype), *indices, Piece((k * n,), dtype), Piece((m, n), dtype, random=False)]
    values, _, _, right, _ = rotated(pieces, stand(precision))[0]
    left = np.zeros((m, k))
    left[np.repeat(np.arange(m), np.diff(starts.numpy())), columns.numpy()] = values.double().numpy()
    dense = right.double().view(n, k).t() if problem.shape["b_t"] else right.double().view(k, n)
    assert off_by(got, torch.from_numpy(left @ dense.numpy())) < ALLOWED[precision]
    assert prepared.operations == 2 * len(values) * n


def test_a_random_pattern_has_the_share_of_values_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sparse_pattern(500, 400, 0.95, stand("fp32"))
    monkeypatch.setattr(matrix, "_TOSSED", 10_000)
    starts, columns = sparse_pattern(500, 400, 0.95, stand("fp32"))
    assert torch.equal(starts, whole[0])  # however many rows are drawn at once
    assert torch.equal(columns, whole[1])
    assert len(columns) == int(starts[-1]) == pytest.approx(0.05 * 500 * 400, rel=0.05)
    inside = torch.ones(len(columns), dtype=torch.bool)
    inside[starts[:-1][starts.diff() > 0].long()] = False
    assert bool((columns.diff()[inside[1:]] > 0).all())  # rising within each row


def test_what_is_counted_is_near_what_the_shape_says() -> None:
    problem = sparse_problem(m=500, k=400, n=3)
    prepared = matrix.prepare_sparse(problem, stand("fp32"))
    assert prepared.operations == pytest.approx(operations(problem), rel=0.05)
    assert prepared.least_bytes == pytest.approx(least_bytes(problem, "fp32"), rel=0.05)
    assert not prepared.graph
    assert "CSR" in prepared.notes[0]


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("side", [256, 4])
def test_an_element_that_is_off_by_a_hundredth_is_found_in_a_sparse_product(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(matrix, "SIDE", side)
    nothing = torch.zeros(60, 9)
    compared, wanted = compared_with(nothing, "fp32")
    refuse_wrong(compared)
    for row in range(0, 60, 7):
        wrong = nothing.clone()
        column = a_usual_element(wanted[row])[0]
        wrong[row, column] = 0.01 * float(wanted[row, column])
        assert is_wrong(compared_with(wrong, "fp32")[0])


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
def test_rows_that_changed_places_are_found_in_bf16() -> None:
    compared, wanted = compared_with(torch.zeros(60, 9), "bf16")
    refuse_wrong(compared)
    assert is_wrong(compared_with(wanted.roll(1, 0) - wanted, "bf16")[0])


# --- what cannot be had -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [matrix.BATCHED_GEMM, matrix.GROUPED_GEMM, matrix.SPARSE_GEMM])
@pytest.mark.parametrize("precision", ["tf32", "fp8", "int8"])
def test_a_precision_that_cannot_be_had_on_a_cpu_is_a_sentence(operator: object, precision: str) -> None:
    check = getattr(operator, "check_precision")  # noqa: B009
    with pytest.raises(WorkloadFailure) as failure:
        check(stand(precision))
    assert failure.value.kind == "bad_parameter"
    assert precision in failure.value.message
    assert "--precision" in failure.value.hint
    check(stand("fp32"))


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_sparse_product_in_16_bits_is_refused_on_a_cpu(precision: str) -> None:
    with pytest.raises(WorkloadFailure) as failure:
        matrix.check_sparse(stand(precision))
    assert precision in failure.value.message
    assert [word for word in ("--precision", "fp32", "fp64") if word not in failure.value.hint] == []


def test_a_sparse_matrix_is_not_transposed_and_not_empty() -> None:
    with pytest.raises(SpecError) as refused:
        sparse_problem(a_t=True)
    assert "a_t" in f"{refused.value.message} {refused.value.hint}"
    with pytest.raises(WorkloadFailure) as failure:
        matrix.prepare_sparse(sparse_problem(m=1, k=1, sparsity=0.999), stand("fp32"))
    assert (failure.value.kind, "0.999" in failure.value.message) == ("bad_parameter", True)
    with pytest.raises(WorkloadFailure) as failure:
        matrix.prepare_sparse(sparse_problem(m=10**6, k=10**6), stand("fp32"))
    assert (failure.value.kind, "200,000,000,000" in failure.value.message) == ("bad_parameter", True)


def test_operands_that_do_not_fit_are_a_failure_with_their_size() -> None:
    for operator, problem in (
        (matrix.BATCHED_GEMM, read_problem("batched-gemm", {"groups": 10**6, "m": 4096, "n": 4096, "k": 4096})),
        (matrix.GROUPED_GEMM, read_problem("grouped-gemm", {"groups": 10**4, "tokens": 10, "n": 10**5, "k": 10**5})),
    ):
        with pytest.raises(WorkloadFailure) as failure:
            operator.prepare(problem, stand("fp32"))
        assert (failure.value.kind, " GiB" in failure.value.message) == ("out_of_host_memory", True)
