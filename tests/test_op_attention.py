"""op/attention: what the framework's kernels give is what plain sums give in float64; a wrong element is found."""

from collections.abc import Mapping, Sequence

import pytest
import torch

from refusing import fails_as, refused
from stackmark.spec import Scalar
from stackmark.workloads.op.definition import operations, read_problem
from stackmark.workloads.op.impl import attention
from stackmark.workloads.op.impl.bench import Prepared, Stand
from stackmark.workloads.op.impl.checking import Guard
from stackmark.workloads.op.problem import Problem

CPU = torch.device("cpu")
PASSES = ["forward", "backward"]
SHAPES: dict[str, dict[str, Scalar]] = {
    "plain": {"batch": 2, "heads": 2, "length": 9, "head": 8},
    "causal": {"batch": 1, "heads": 3, "length": 16, "head": 8, "causal": 1},
    "grouped": {"batch": 2, "heads": 6, "kv_heads": 2, "length": 10, "head": 16, "causal": 1},
    "decoding": {"batch": 2, "heads": 4, "kv_heads": 2, "length": 1, "kv_length": 50, "head": 8},
    "one": {"batch": 1, "heads": 1, "length": 1, "head": 1},
}
Shape = Mapping[str, Scalar]


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tiny problems need few sets."""
    monkeypatch.setattr("stackmark.workloads.op.impl.operands.cache_bytes", lambda _device: 2**14)


def problem_of(shape: Shape, which: str) -> Problem:
    return read_problem("attention", {**shape, "pass": which})


def called(shape: Shape, which: str, precision: str = "fp32") -> Prepared:
    prepared = attention.prepare(problem_of(shape, which), Stand(CPU, precision, 5))
    prepared.call(0)
    return prepared


def by_plain_sums(problem: Problem, precision: str) -> list[torch.Tensor]:
    """Result, or gradients, of everything at once in float64, by products, a softmax and the framework's derivatives of them."""
    one = attention.operands_of(problem, Stand(CPU, precision, 5))[0]
    q, k, v = (tensor.detach().double().requires_grad_() for tensor in (one.q, one.k, one.v))
    keys, values = (tensor.repeat_interleave(one.group, dim=1) for tensor in (k, v))
    scores = q @ keys.mT / q.shape[3] ** 0.5
    if one.causal:
        scores = scores + torch.full(scores.shape[2:], float("-inf"), dtype=torch.float64).triu(1)
    result = scores.softmax(dim=-1) @ values
    if one.do is None:
        return [result]
    return list(torch.autograd.grad(result, (q, k, v), one.do.double()))


def results_of(prepared: Prepared, problem: Problem) -> list[torch.Tensor]:
    """What was computed; of a causal backward pass it is handed on times the root of its position."""
    tensors = list(prepared.outputs(0))
    if problem.word("pass") == "forward" or not problem.shape["causal"]:
        return tensors
    return [tensor / torch.arange(1, tensor.shape[2] + 1).sqrt()[:, None] for tensor in tensors]


@pytest.mark.parametrize(("precision", "close"), [("fp64", 1e-12), ("fp32", 1e-5), ("bf16", 4e-2), ("fp16", 5e-3)])
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_gives_what_plain_sums_give(shape: Shape, which: str, precision: str, close: float) -> None:
    problem = problem_of(shape, which)
    prepared = called(shape, which, precision)
    for made, right in zip(results_of(prepared, problem), by_plain_sums(problem, precision), strict=True):
        torch.testing.assert_close(made.double(), right, rtol=close, atol=close)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_right_result_is_within_the_bound(shape: Shape, which: str, precision: str) -> None:
    prepared = called(shape, which, precision)
    compared = prepared.compare()
    assert compared.error <= compared.bound < 0.2
    assert compared.elements == f"all {sum(tensor.numel() for tensor in prepared.outputs(0)):,} elements"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("name", ["plain", "grouped", "decoding"])
def test_one_wrong_element_of_any_result_is_found(name: str, which: str, precision: str) -> None:
    stand = Stand(CPU, precision, 5)
    one = attention.operands_of(problem_of(SHAPES[name], which), stand)[0]
    result = one.attend()
    got = (result.detach(),) if one.do is None else torch.autograd.grad(result, (one.q, one.k, one.v), one.do)
    right = attention.compare(one, got, stand)
    assert right.error <= right.bound
    for number, tensor in enumerate(got):
        for at in (0, tensor.numel() // 2, tensor.numel() - 1):
            wrong = [other.clone(memory_format=torch.contiguous_format) for other in got]
            wrong[number].view(-1)[at] += tensor.double().abs().max().item()
            assert attention.compare(one, tuple(wrong), stand).error > right.bound
    broken = [other.clone() for other in got]
    broken[-1].fill_(float("nan"))
    assert attention.compare(one, tuple(broken), stand).error == float("inf")


@pytest.mark.parametrize("which", PASSES)
def test_of_long_sequences_some_positions_are_compared_with_all_the_others(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In stretches, since all scores at once would not fit into memory; the sum over stretches is the same."""
    shape: Shape = {"batch": 2, "heads": 4, "kv_heads": 2, "length": 200, "head": 16, "causal": 1}
    prepared = called(shape, which)
    whole = prepared.compare()
    positions = attention.POSITIONS * 16 * (16 // 2 if which == "forward" else 16)
    of = sum(tensor.numel() for tensor in prepared.outputs(0))
    assert whole.elements == f"{positions:,} of {of:,} elements"
    monkeypatch.setattr(attention, "_STRETCH", 1000)
    assert prepared.compare().error == pytest.approx(whole.error, rel=1e-6)
    monkeypatch.setattr(attention, "_MOST_SCORES", 1)
    fewer = prepared.compare()
    assert fewer.error <= fewer.bound
    if which == "backward":
        assert fewer.elements == f"{positions // 4:,} of {of:,} elements"


def test_a_late_position_of_a_causal_mask_is_not_hidden_by_an_early_one() -> None:
    stand = Stand(CPU, "fp32", 5)
    shape: Shape = {"batch": 1, "heads": 1, "length": 400, "head": 16, "causal": 1}
    one = attention.operands_of(problem_of(shape, "forward"), stand)[0]
    wrong = one.attend()
    wrong[0, 0, -1] *= 1.01
    compared = attention.compare(one, (wrong,), stand)
    assert compared.error > compared.bound


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_operations_are_those_of_the_pairs_that_meet(shape: Shape, which: str) -> None:
    problem = problem_of(shape, which)
    length = problem.number("length")
    keys = problem.number("kv_length") or length
    pairs = sum(not problem.shape["causal"] or key <= query for query in range(length) for key in range(keys))
    one = 2 * pairs * problem.number("batch") * problem.number("heads") * problem.number("head")
    prepared = called(shape, which)
    assert prepared.operations == one * (2 if which == "forward" else 5)
    if not problem.shape["causal"]:
        assert prepared.operations == operations(problem)


def test_the_row_says_which_kernel_it_was() -> None:
    prepared = called(SHAPES["causal"], "forward")
    kernel, operations = prepared.notes
    assert "flash" in kernel
    assert "causal" in operations
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        (kernel,) = called(SHAPES["plain"], "forward").notes
    assert "flash" not in kernel


@pytest.mark.parametrize("which", PASSES)
def test_calls_give_the_same_bits_again_and_again(which: str) -> None:
    prepared = called(SHAPES["grouped"], which)
    guard = Guard(prepared, prepared.compare().bound, CPU)

    def again(sets: Sequence[int]) -> None:
        for i in sets:
            prepared.call(i)

    guard.remember(again)
    again(range(prepared.copies))
    guard.check()
    assert guard.same_bits


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"heads": 6, "kv_heads": 4}, ["6", "4"]),
        ({"causal": 1, "length": 1, "kv_length": 7}, ["causal", "1", "7"]),
    ],
)
def test_a_shape_that_means_nothing_is_refused(more: Shape, named: list[str]) -> None:
    with refused(*named):
        problem_of({**SHAPES["plain"], **more}, "forward")


@pytest.mark.parametrize("precision", ["tf32", "fp8", "int8"])
def test_a_precision_that_it_has_not_is_refused(precision: str) -> None:
    with fails_as("bad_parameter", precision, "--precision"):
        attention.check_precision(Stand(CPU, precision, 1))
