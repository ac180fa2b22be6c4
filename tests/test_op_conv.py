"""`op/conv`: every pass against NumPy's own sums, and what the comparison with float64 finds.

The reference here goes over the places of the filter and adds up shifted images: neither a library's convolution nor the
gathering of conv.py.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch

from refusing import fails_as
from stackmark.workloads.op.definition import read_problem
from stackmark.workloads.op.impl import conv
from stackmark.workloads.op.impl.bench import Stand
from stackmark.workloads.op.impl.checking import refuse_wrong
from stackmark.workloads.op.impl.conv import channels_last, check_precision, compare, operands_of, prepare
from stackmark.workloads.op.problem import BACKWARD_INPUTS, BACKWARD_WEIGHTS, FORWARD, Problem

Array = npt.NDArray[np.float64]
CPU = torch.device("cpu")
PASSES = (FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS)
SHAPES = {
    "3 by 3": "w=9,h=9,c=8,n=3,k=16,filter_w=3,filter_h=3,pad_w=1,pad_h=1",
    "1 by 1": "w=7,h=5,c=16,n=2,k=8,filter_w=1,filter_h=1",
    "1 by 1 with strides, which leave inputs without a gradient": (
        "w=8,h=6,c=8,n=2,k=8,filter_w=1,filter_h=1,stride_w=2,stride_h=3"
    ),
    "all odd and unequal": "w=13,h=11,c=3,n=1,k=5,filter_w=5,filter_h=2,pad_w=2,pad_h=1,stride_w=3,stride_h=2",
    "one channel, as speech": "w=41,h=17,c=1,n=4,k=6,filter_w=20,filter_h=5,stride_w=2,stride_h=2",
    "padding only to one side's axis": "w=6,h=12,c=4,n=2,k=4,filter_w=4,filter_h=3,pad_w=3,pad_h=0",
    "one output": "w=3,h=3,c=2,n=1,k=1,filter_w=3,filter_h=3",
    "one of everything": "w=1,h=1,c=1,n=1,k=1,filter_w=1,filter_h=1",
}


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few sets of operands, so that a test is about its own shape."""
    monkeypatch.setattr("stackmark.workloads.op.impl.operands.cache_bytes", lambda _device: 16_384)


def problem_of(shape: str, direction: str) -> Problem:
    typed = dict(part.split("=") for part in shape.split(","))
    return read_problem("conv", {**typed, "pass": direction})


def stand(precision: str) -> Stand:
    return Stand(CPU, precision, seed=3)


def by_numpy(problem: Problem, left: torch.Tensor, right: torch.Tensor) -> Array:
    """The pass in float64, from the names of the problem: a sum over the places in the filter."""
    size = problem.number
    rows, columns = size("h") + 2 * size("pad_h"), size("w") + 2 * size("pad_w")
    high, wide = (rows - size("filter_h")) // size("stride_h") + 1, (columns - size("filter_w")) // size("stride_w") + 1
    padded = np.zeros((size("n"), size("c"), rows, columns))
    inner = np.s_[:, :, size("pad_h") : size("pad_h") + size("h"), size("pad_w") : size("pad_w") + size("w")]
    direction = problem.word("pass")
    weights = np.zeros((size("k"), size("c"), size("filter_h"), size("filter_w")))
    result = np.zeros((size("n"), size("k"), high, wide))
    first, second = (tensor.double().numpy() for tensor in (left, right))
    if direction == FORWARD:
        padded[inner], weights[:] = first, second
    elif direction == BACKWARD_INPUTS:
        result[:], weights[:] = first, second
    else:
        result[:], padded[inner] = first, second
    for r in range(size("filter_h")):
        for s in range(size("filter_w")):
            seen = np.s_[
                :, :,
                r : r + (high - 1) * size("stride_h") + 1 : size("stride_h"),
                s : s + (wide - 1) * size("stride_w") + 1 : size("stride_w"),
            ]  # fmt: skip
            if direction == FORWARD:
                result += np.einsum("nchw,kc->nkhw", padded[seen], weights[:, :, r, s])
            elif direction == BACKWARD_INPUTS:
                padded[seen] += np.einsum("nkhw,kc->nchw", result, weights[:, :, r, s])
            else:
                weights[:, :, r, s] = np.einsum("nkhw,nchw->kc", result, padded[seen])
    return {FORWARD: result, BACKWARD_INPUTS: padded[inner], BACKWARD_WEIGHTS: weights}[direction]


def called(problem: Problem, precision: str) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """What the operator computes, with its axes as the problem counts them, and of what: a seed draws the same again."""
    prepared = prepare(problem, stand(precision))
    prepared.call(0)
    (output,) = prepared.outputs(0)
    return output.permute(0, 3, 1, 2), operands_of(problem, stand(precision))[0]


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize(("precision", "allowed"), [("fp64", 1e-14), ("fp32", 1e-5), ("bf16", 0.03)])
def test_a_pass_computes_what_numpy_does(direction: str, shape: str, precision: str, allowed: float) -> None:
    problem = problem_of(shape, direction)
    got, operands = called(problem, precision)
    wanted = by_numpy(problem, *operands)
    assert tuple(got.shape) == wanted.shape
    assert np.abs(got.double().numpy() - wanted).max() <= allowed * max(1.0, np.sqrt((wanted**2).mean()))
    compared = compare(got, *operands, problem, stand(precision))
    assert compared.error <= compared.bound
    assert compared.elements == f"all {wanted.size:,} elements"


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_the_reference_is_numpys_to_the_last_digits(direction: str, shape: str) -> None:
    problem = problem_of(shape, direction)
    operands = operands_of(problem, stand("fp32"))[0]
    wanted = torch.from_numpy(by_numpy(problem, *operands))
    assert compare(wanted, *operands, problem, stand("fp32")).error < 1e-14


@pytest.mark.parametrize("direction", PASSES)
def test_every_set_has_operands_and_results_of_its_own(direction: str) -> None:
    prepared = prepare(problem_of(SHAPES["3 by 3"], direction), stand("fp32"))
    assert prepared.copies > 1
    for number in (0, 1, 0):
        prepared.call(number)
    (first,), (second,) = prepared.outputs(0), prepared.outputs(1)
    assert first.data_ptr() != second.data_ptr()
    assert not torch.equal(first, second)
    assert prepared.compare().error <= prepared.compare().bound
    assert first.is_contiguous()  # in the order of memory: read without a copy


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("at", [0, -1])
def test_an_element_that_is_off_by_a_hundredth_is_found_in_fp32(direction: str, at: int) -> None:
    problem = problem_of(SHAPES["3 by 3"], direction)
    prepared = prepare(problem, stand("fp32"))
    prepared.call(0)
    refuse_wrong(prepared.compare())
    (output,) = prepared.outputs(0)
    flat = output.view(-1)
    # Of a usual size: a hundredth of nearly nothing is nearly nothing.
    usual = (flat.abs() > flat.abs().median()).nonzero().flatten()
    flat[usual[at]] *= 1.01
    with fails_as("wrong_result"):
        refuse_wrong(prepared.compare())


SQUARE = "w=8,h=8,c=12,n=2,k=12,filter_w=3,filter_h=3,pad_w=1,pad_h=1"
MISTAKES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows and columns changed places": lambda tensor: tensor.transpose(2, 3),
    "channels last read as channels first": lambda tensor: tensor.permute(0, 2, 3, 1).reshape(tensor.shape),
    "channels shifted by one": lambda tensor: tensor.roll(1, dims=1),
    "images changed places": lambda tensor: tensor.flip(0),
    "a border that was left out": lambda tensor: torch.nn.functional.pad(tensor[..., :-1], (0, 1)),
    "a NaN": lambda tensor: torch.cat([tensor[:1], torch.full_like(tensor[1:], float("nan"))]),
}


@pytest.mark.parametrize("direction", PASSES)
@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES.keys())
def test_a_wrong_layout_is_found_in_bf16(direction: str, mistake: Callable[[torch.Tensor], torch.Tensor]) -> None:
    problem = problem_of(SQUARE, direction)
    got, operands = called(problem, "bf16")
    refuse_wrong(compare(got, *operands, problem, stand("bf16")))
    with fails_as("wrong_result"):
        refuse_wrong(compare(mistake(got), *operands, problem, stand("bf16")))


@pytest.mark.parametrize("direction", PASSES)
def test_of_a_large_result_a_sample_with_its_corners_is_compared(
    direction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conv, "POSITIONS", 40)
    monkeypatch.setattr(conv, "CHANNELS", 4)
    monkeypatch.setattr(conv, "_AT_ONCE", 2**10)
    problem = problem_of("w=12,h=10,c=8,n=5,k=8,filter_w=3,filter_h=3,pad_w=1,pad_h=1", direction)
    got, operands = called(problem, "fp32")
    compared = compare(got, *operands, problem, stand("fp32"))
    assert compared.error <= compared.bound
    assert " of " in compared.elements
    for corner in ((0, 0, 0, 0), (-1, -1, -1, -1)):
        wrong = got.clone()
        wrong[corner] += 1.0
        with fails_as("wrong_result", compared.elements):
            refuse_wrong(compare(wrong, *operands, problem, stand("fp32")))


def test_the_bound_is_wider_only_where_a_library_may_take_winograds_algorithm() -> None:
    plain, wide = (
        compare(got, *operands, problem, stand("fp32")).bound
        for problem in (problem_of(SQUARE + more, FORWARD) for more in (",stride_w=2,stride_h=2", ""))
        for got, operands in [called(problem, "fp32")]
    )
    assert wide == pytest.approx(conv.WINOGRAD * plain)


def test_the_layout_is_channels_last_but_for_plain_arithmetic_on_a_gpu() -> None:
    gpu = torch.device("cuda:0")
    assert channels_last(stand("fp32"))
    assert channels_last(stand("bf16"))
    assert [name for name in ("fp64", "fp32", "tf32", "bf16", "fp16") if channels_last(Stand(gpu, name, 1))] == [
        "tf32",
        "bf16",
        "fp16",
    ]
    prepared = prepare(problem_of(SQUARE, FORWARD), stand("fp32"))
    assert "NHWC" in prepared.notes[0]
    assert prepared.same_bits
    assert prepared.accumulate == "fp32"


@pytest.mark.parametrize("precision", ["tf32", "fp8", "int8"])
def test_a_precision_that_cannot_be_had_is_a_sentence(precision: str) -> None:
    with fails_as("bad_parameter", precision, "--precision"):
        check_precision(stand(precision))


@pytest.mark.skipif(torch.ops.mkldnn._is_mkldnn_fp16_supported(), reason="this CPU has fp16")
def test_a_cpu_without_fp16_says_what_it_has() -> None:
    with fails_as("bad_parameter", "oneDNN", "fp16", "--precision fp32"):
        check_precision(stand("fp16"))


def test_operands_that_do_not_fit_are_a_failure_with_their_size() -> None:
    huge = "w=100000,h=100000,c=1000,n=100,k=1,filter_w=1,filter_h=1"
    with fails_as("out_of_host_memory", "GiB"):
        prepare(problem_of(huge, FORWARD), stand("fp32"))
