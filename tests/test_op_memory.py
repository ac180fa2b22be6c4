"""op/layer-norm, op/embedding, op/optimizer: right by an independent float64 computation, and a wrong element is found."""

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.nn.functional import layer_norm as framework_norm

from stackmark.errors import SpecError
from stackmark.events import OpRow
from stackmark.spec import Scalar
from stackmark.workloads.op.definition import OpParams, read_problem
from stackmark.workloads.op.impl import embedding, layer_norm, optimizer
from stackmark.workloads.op.impl.bench import Implementation, Prepared, Stand
from stackmark.workloads.op.impl.checking import Guard
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.impl.rows import go_through
from stackmark.workloads.workload import WorkloadFailure

CPU = torch.device("cpu")
OPERATORS = {
    "layer-norm": layer_norm.LAYER_NORM,
    "embedding": embedding.EMBEDDING,
    "optimizer": optimizer.OPTIMIZER,
}
PRECISIONS = ["fp64", "fp32", "bf16", "fp16"]
PASSES = ["forward", "backward"]


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tiny problems need few sets."""
    monkeypatch.setattr("stackmark.workloads.op.impl.operands.cache_bytes", lambda _device: 2**14)


def called(name: str, precision: str, **shape: Scalar) -> Prepared:
    prepared: Prepared = OPERATORS[name].prepare(read_problem(name, shape), Stand(CPU, precision, 5))
    prepared.call(0)
    return prepared


def assert_wrong_elements_are_found(prepared: Prepared) -> None:
    assert prepared.compare().error <= prepared.compare().bound
    for tensor in prepared.outputs(0):
        for at in (0, tensor.numel() // 2, tensor.numel() - 1):
            kept = tensor.flatten()[at].clone()
            tensor.view(-1)[at] += 8 * tensor.double().abs().max().item()
            compared = prepared.compare()
            assert compared.error > compared.bound
            tensor.view(-1)[at] = kept


def watched(prepared: Prepared, calls: int = 3) -> Guard:
    guard = Guard(prepared, prepared.compare().bound, CPU)

    def again(sets: Sequence[int]) -> None:
        for i in sets:
            prepared.call(i)

    guard.remember(again)
    for _ in range(calls):
        again(range(prepared.copies))
    return guard


# --- layer norm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(("rows", "width"), [(7, 12), (1, 2), (300, 33)])
def test_a_norm_is_the_frameworks_in_float64(rows: int, width: int, which: str) -> None:
    one = layer_norm.sets_of(rows, width, Stand(CPU, "fp32", 5), backward=which == "backward")[0]
    x, scale, shift = (tensor.double().requires_grad_() for tensor in (one.x, one.scale, one.shift))
    wanted = framework_norm(x, (width,), scale, shift, 1e-5)
    right = [wanted] if one.dy is None else torch.autograd.grad(wanted, (x, scale, shift), one.dy.double())
    prepared = called("layer-norm", "fp32", rows=rows, width=width, **{"pass": which})
    for made, exact in zip(prepared.outputs(0), right, strict=True):
        torch.testing.assert_close(made.double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize(("rows", "width"), [(7, 12), (1, 2), (300, 33), (2000, 8)])
def test_a_right_norm_is_within_the_bound(rows: int, width: int, which: str, precision: str) -> None:
    prepared = called("layer-norm", precision, rows=rows, width=width, **{"pass": which})
    compared = prepared.compare()
    assert compared.error <= compared.bound
    assert compared.elements == f"all {sum(tensor.numel() for tensor in prepared.outputs(0)):,} elements"
    assert watched(prepared).same_bits


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("which", PASSES)
def test_one_wrong_element_of_a_norm_is_found(which: str, precision: str) -> None:
    assert_wrong_elements_are_found(called("layer-norm", precision, rows=40, width=24, **{"pass": which}))


@pytest.mark.parametrize("which", PASSES)
def test_of_a_large_norm_some_rows_and_columns_are_compared(which: str) -> None:
    prepared = called("layer-norm", "fp32", rows=500, width=600, **{"pass": which})
    compared = prepared.compare()
    assert compared.error <= compared.bound
    rows = 65_536 // 600 * 600
    said = {"forward": f"{rows:,} of 300,000 elements", "backward": f"{rows + 2 * 256:,} of 301,200 elements"}
    assert compared.elements == said[which]


def test_a_row_of_one_element_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        called("layer-norm", "fp32", rows=3, width=1)
    assert "width" in str(caught.value.hint)
    called("layer-norm", "fp32", rows=3, width=2)


# --- embedding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", PRECISIONS)
def test_looked_up_rows_are_those_of_the_table(precision: str) -> None:
    shape: dict[str, Scalar] = {"tokens": 60, "vocabulary": 40, "width": 6}
    stand = Stand(CPU, precision, 5)
    table = rotated([Piece((40, 6), stand.dtype)], stand)[0][0]
    prepared = called("embedding", precision, **shape)
    numbers = embedding.numbers_of(read_problem("embedding", shape), stand, prepared.copies)[0]
    assert torch.equal(prepared.outputs(0)[0], torch.nn.functional.embedding(numbers, table))
    compared = prepared.compare()
    assert (compared.error, compared.bound) == (0.0, 0.0)
    assert "360" in compared.elements


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("tokens", "vocabulary"), [(60, 40), (1, 1), (3000, 7), (5, 100)])
def test_the_gradient_of_a_table_is_the_sum_over_look_ups(tokens: int, vocabulary: int, precision: str) -> None:
    shape: dict[str, Scalar] = {"tokens": tokens, "vocabulary": vocabulary, "width": 6, "pass": "backward"}
    stand = Stand(CPU, precision, 5)
    pieces = [Piece((tokens, 6), stand.dtype), Piece((vocabulary, 6), stand.dtype, random=False)]
    coming = rotated(pieces, stand)[0][0].double()
    prepared = called("embedding", precision, **shape)
    numbers = embedding.numbers_of(read_problem("embedding", shape), stand, prepared.copies)[0]
    one_hot = torch.nn.functional.one_hot(numbers, vocabulary).double()
    compared = prepared.compare()
    most = one_hot.sum(dim=0).max().sqrt()
    torch.testing.assert_close(
        prepared.outputs(0)[0].double(), one_hot.t() @ coming, rtol=0, atol=float(compared.bound * most)
    )
    assert compared.error <= compared.bound
    assert compared.elements == f"all {vocabulary * 6:,} elements"
    assert watched(prepared).same_bits


@pytest.mark.parametrize("which", PASSES)
def test_one_wrong_element_of_an_embedding_is_found(which: str) -> None:
    assert_wrong_elements_are_found(called("embedding", "bf16", tokens=60, vocabulary=40, width=6, **{"pass": which}))


def test_a_row_that_nobody_looked_up_has_no_gradient() -> None:
    shape: dict[str, Scalar] = {"tokens": 5, "vocabulary": 100, "width": 4, "pass": "backward"}
    prepared = called("embedding", "fp32", **shape)
    (gradient,) = prepared.outputs(0)
    unused = int((gradient.abs().sum(dim=1) == 0).nonzero()[0])
    gradient[unused, 2] = 1e-3
    assert prepared.compare().error > prepared.compare().bound


def test_the_words_of_a_text_are_as_frequent_as_zipf_says() -> None:
    problem = read_problem("embedding", {"tokens": 100_000, "vocabulary": 5000, "width": 1})
    numbers = embedding.numbers_of(problem, Stand(CPU, "fp32", 5), 1)[0]
    counts = torch.bincount(numbers, minlength=5000).sort(descending=True).values
    assert int(numbers.min()) >= 0
    assert int(numbers.max()) < 5000
    for rank in (1, 10, 100):
        wanted = 100_000 * math.log1p(1 / rank) / math.log(5001)
        assert float(counts[rank - 1]) == pytest.approx(wanted, rel=0.25)
    # Not in the order of the table.
    assert int(torch.bincount(numbers, minlength=5000).argmax()) != 0


def test_least_bytes_count_a_row_once_however_often_it_is_looked_up() -> None:
    prepared = called("embedding", "fp32", tokens=3000, vocabulary=7, width=6)
    assert prepared.least_bytes == (7 + 3000) * 6 * 4 + 3000 * 8
    (note,) = prepared.notes
    assert re.findall(r"[\d,]*\d", note) == ["3,000", "7", "7"]


# --- optimizer ----------------------------------------------------------------------------------------------------------


def of_the_framework(kind: str, parameters: int, steps: int) -> list[torch.Tensor]:
    """The same state, stepped by torch.optim in float64: the first half's parameters and moments."""
    state = optimizer.states_of(parameters, kind, Stand(CPU, "fp32", 5))[0]
    parameter = state.parameters[0].double().requires_grad_()
    parameter.grad = state.gradients[0].double()
    moments = [moment[0].double() for moment in state.moments]
    made: Any
    names: tuple[str, ...]
    if kind == "adamw":
        made = torch.optim.AdamW([parameter])
        names = ("exp_avg", "exp_avg_sq")
        made.state[parameter] = {"step": torch.tensor(float(optimizer.STEPS_BEFORE))}
    else:
        made = torch.optim.SGD([parameter], momentum=0.9)
        names = ("momentum_buffer",)
    made.state[parameter].update(zip(names, moments, strict=False))
    for _ in range(steps):
        made.step()
    return [parameter.detach(), *(made.state[parameter][name] for name in names)]


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
@pytest.mark.parametrize("parameters", [2, 3, 1001])
def test_steps_are_those_of_the_frameworks_optimizer_in_float64(
    kind: str, parameters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = of_the_framework(kind, parameters, 3)
    found: dict[str, list[optimizer.State]] = {}
    real = optimizer.states_of
    monkeypatch.setattr(optimizer, "states_of", lambda *asked: found.setdefault("states", real(*asked)))
    prepared = called("optimizer", "fp32", parameters=parameters, kind=kind)
    prepared.call(0)
    prepared.call(0)
    state = found["states"][0]
    for kinds, right in zip((state.parameters, *state.moments), wanted, strict=True):
        for half in kinds[:2]:
            torch.testing.assert_close(half.double(), right, rtol=1e-5, atol=1e-6)
    assert sum(len(tensor) for tensor in state.parameters) == parameters


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_a_right_step_is_within_the_bound_whatever_went_before(kind: str) -> None:
    prepared = called("optimizer", "fp32", parameters=1001, kind=kind)
    for calls in (0, 1, 300):
        for _ in range(calls):
            prepared.call(0)
        compared = prepared.compare()
        assert compared.error <= compared.bound < 1e-5
        assert "1,001" in compared.elements


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_one_wrong_bit_in_any_timed_step_is_found_after_many_more(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, list[optimizer.State]] = {}
    real = optimizer.states_of
    monkeypatch.setattr(optimizer, "states_of", lambda *asked: found.setdefault("states", real(*asked)))
    prepared = called("optimizer", "fp32", parameters=1001, kind=kind)
    guard = watched(prepared)
    guard.check()
    assert guard.same_bits
    found["states"][0].parameters[1].view(torch.int32)[123] ^= 1 << 10
    for _ in range(20):
        prepared.call(0)
    with pytest.raises(WorkloadFailure) as failure:
        guard.check()
    assert failure.value.kind == "wrong_result"
    assert prepared.compare().error == math.inf


@pytest.mark.parametrize("kind", ["adamw", "momentum"])
def test_a_step_that_is_wrong_in_both_halves_is_found_by_the_formula(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = called("optimizer", "fp32", parameters=1001, kind=kind)
    assert prepared.compare().error <= prepared.compare().bound
    monkeypatch.setattr(optimizer, "LEARNING_RATE", 2e-3)
    step = optimizer._adamw if kind == "adamw" else optimizer._momentum
    right = getattr(optimizer, f"{step.__name__}_formula")

    def with_another_rate(*asked: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(optimizer, "LEARNING_RATE", 1e-3)
            return right(*asked)

    monkeypatch.setattr(optimizer, f"{step.__name__}_formula", with_another_rate)
    compared = prepared.compare()
    assert compared.bound < compared.error < math.inf


def test_large_parameters_are_cut_and_some_of_them_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer, "LARGEST", 30_000)
    prepared = called("optimizer", "fp32", parameters=200_001, kind="adamw")
    assert re.findall(r"[\d,]*\d", prepared.notes[0]) == ["9", "30,000"]
    compared = prepared.compare()
    assert compared.error <= compared.bound
    assert re.findall(r"\d+,\d+", compared.elements) == ["65,537", "200,001"]


def test_one_parameter_is_refused() -> None:
    with pytest.raises(WorkloadFailure) as failure:
        called("optimizer", "fp32", parameters=1, kind="adamw")
    assert failure.value.kind == "bad_parameter"


# --- all of them --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
@pytest.mark.parametrize("precision", ["tf32", "fp8", "int8"])
def test_a_precision_that_it_has_not_is_refused(operator: Implementation, precision: str) -> None:
    with pytest.raises(WorkloadFailure) as failure:
        operator.check_precision(Stand(CPU, precision, 1))
    assert failure.value.kind == "bad_parameter"
    assert precision in failure.value.message
    assert "--precision" in failure.value.hint


def test_an_optimizer_keeps_32_bits() -> None:
    with pytest.raises(WorkloadFailure) as failure:
        optimizer.check_precision(Stand(CPU, "bf16", 1))
    assert (failure.value.kind, "bf16" in failure.value.message) == ("bad_parameter", True)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_row_is_timed_and_checked(name: str) -> None:
    shapes: dict[str, list[dict[str, Scalar]]] = {
        "layer-norm": [{"rows": 64, "width": 32, "pass": which} for which in PASSES],
        "embedding": [{"tokens": 64, "vocabulary": 100, "width": 32, "pass": which} for which in PASSES],
        "optimizer": [{"parameters": 5001, "kind": kind} for kind in ("adamw", "momentum")],
    }
    found = [read_problem(name, shape) for shape in shapes[name]]
    params = OpParams(device="cpu", precision="fp32", set="typed", rows="0", budget=0.0, row_seconds=0.05, threads=0)
    rows: list[OpRow] = []
    go_through(OPERATORS[name], found, [0, 1], params, Stand(CPU, "fp32", 1), rows.append)
    for row in rows:
        assert row.failure_message == ""
        assert row.call_s
        assert row.error is not None
        assert "same bits" in row.checked
