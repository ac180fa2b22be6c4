"""op/rnn: the layers are those of the framework in float64, a wrong element is found, and what is counted is what was done."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from refusing import fails_as
from stackmark.workloads.op.definition import operations, read_problem
from stackmark.workloads.op.impl import rnn
from stackmark.workloads.op.impl.bench import Prepared, Stand
from stackmark.workloads.op.impl.checking import Guard
from stackmark.workloads.op.impl.rnn import Layer, layers_of
from stackmark.workloads.op.problem import Problem

CPU = torch.device("cpu")
CELLS = ["vanilla", "lstm", "gru"]
PASSES = ["forward", "backward-inputs", "backward-weights", "backward"]
HIDDEN, BATCH, STEPS = 12, 3, 5


@pytest.fixture(autouse=True)
def _small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that tiny problems need few sets."""
    monkeypatch.setattr("stackmark.workloads.op.impl.operands.cache_bytes", lambda _device: 2**14)


def problem_of(cell: str, which: str, hidden: int = HIDDEN, batch: int = BATCH, steps: int = STEPS) -> Problem:
    return read_problem("rnn", {"cell": cell, "hidden": hidden, "batch": batch, "timesteps": steps, "pass": which})


def called(cell: str, which: str, precision: str = "fp32") -> Prepared:
    prepared = rnn.prepare(problem_of(cell, which), Stand(CPU, precision, 5))
    prepared.call(0)
    return prepared


def of_the_framework(cell: str, which: str) -> list[torch.Tensor]:
    """The same layer as one of torch.nn, in float64."""
    layer = layers_of(problem_of(cell, which), Stand(CPU, "fp32", 5))[0]
    kinds: dict[str, Any] = {"vanilla": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
    options = {"nonlinearity": "relu"} if cell == "vanilla" else {}
    module = kinds[cell](HIDDEN, HIDDEN, dtype=torch.float64, **options)
    for parameter, value in zip(module.parameters(), layer.weights, strict=True):
        parameter.data.copy_(value)
    x, *states = (tensor.double().requires_grad_() for tensor in (layer.x, *layer.states))
    y, last = module(x, tuple(states) if cell == "lstm" else states[0])
    if which == "forward":
        return [y, *(last if cell == "lstm" else [last])]
    assert layer.dy is not None
    inputs, weights = [x, *states], list(module.parameters())
    asked = {"backward-inputs": inputs, "backward-weights": weights, "backward": inputs + weights}[which]
    return list(torch.autograd.grad(y, asked, layer.dy.double()))


@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("cell", CELLS)
def test_a_layer_gives_what_the_frameworks_own_gives_in_float64(cell: str, which: str) -> None:
    got = called(cell, which).outputs(0)
    wanted = of_the_framework(cell, which)
    assert len(got) == len(wanted)
    for made, right in zip(got, wanted, strict=True):
        torch.testing.assert_close(made.double(), right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("cell", CELLS)
def test_a_right_result_is_within_the_bound(cell: str, which: str, precision: str) -> None:
    prepared = called(cell, which, precision)
    compared = prepared.compare()
    assert compared.error <= compared.bound
    assert compared.bound < 0.6
    assert compared.elements == f"all {sum(tensor.numel() for tensor in prepared.outputs(0)):,} elements"


@pytest.mark.parametrize("cell", CELLS)
def test_the_reference_is_the_frameworks_layer(cell: str) -> None:
    """The equations that the check is made by, against torch.nn: both in float64, so to the last digits."""
    layer = layers_of(problem_of(cell, "forward"), Stand(CPU, "fp64", 5))[0]
    for made, right in zip(rnn.recurrence(layer), layer.forward(), strict=True):
        torch.testing.assert_close(made, right, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("which", PASSES)
@pytest.mark.parametrize("cell", CELLS)
def test_one_wrong_element_of_any_result_is_found(cell: str, which: str, precision: str) -> None:
    prepared = called(cell, which, precision)
    for tensor in prepared.outputs(0):
        for at in (0, tensor.numel() // 2, tensor.numel() - 1):
            kept = tensor.flatten()[at].clone()
            tensor.view(-1)[at] += 4 * tensor.double().abs().max().item()
            compared = prepared.compare()
            assert compared.error > compared.bound
            tensor.view(-1)[at] = kept
    assert prepared.compare().error <= prepared.compare().bound


def test_a_result_that_is_not_a_number_is_found() -> None:
    prepared = called("lstm", "forward")
    prepared.outputs(0)[0].view(-1)[7] = float("nan")
    assert prepared.compare().error == float("inf")


@pytest.mark.parametrize("cell", CELLS)
def test_a_kept_forward_pass_can_be_gone_back_through_again_and_again(cell: str) -> None:
    prepared = called(cell, "backward")
    guard = Guard(prepared, prepared.compare().bound, CPU)

    def again(sets: Sequence[int]) -> None:
        for i in sets:
            prepared.call(i)

    guard.remember(again)
    again(range(prepared.copies))
    guard.check()
    assert guard.same_bits


@pytest.mark.parametrize("cell", ["vanilla", "gru"])
@pytest.mark.parametrize("which", PASSES)
def test_the_operations_are_those_that_the_framework_counts(cell: str, which: str) -> None:
    prepared = called(cell, which)
    with FlopCounterMode(display=False) as counter:
        prepared.call(0)
    # The framework leaves out the step before the first, whose gradient only the first state would get.
    counted, unit = counter.get_total_flops(), operations(problem_of(cell, "forward"))
    assert unit is not None
    assert prepared.operations is not None
    assert abs(prepared.operations - counted) <= unit / STEPS


def test_the_row_says_how_deepbench_counts() -> None:
    prepared = called("gru", "forward")
    assert prepared.operations == 2 * (operations(problem_of("gru", "forward")) or 0)
    counts, keeps = prepared.notes[:2]
    assert "DeepBench" in counts
    assert "inference" in keeps


def test_of_oneDNNs_lstm_either_gradient_is_all_of_them() -> None:  # noqa: N802
    prepared = called("lstm", "backward-inputs")
    unit = operations(problem_of("lstm", "forward")) or 0
    if "oneDNN" in " ".join(prepared.notes):
        assert prepared.operations == 4 * unit
    else:  # a build of the framework without it
        assert prepared.operations == 2 * unit


def test_of_a_large_result_some_sequences_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rnn, "_MOST_ELEMENTS", 2 * STEPS * HIDDEN)
    prepared = called("lstm", "forward")
    compared = prepared.compare()
    assert compared.error <= compared.bound
    one = STEPS * HIDDEN + 2 * HIDDEN
    assert compared.elements == f"{2 * one:,} of {BATCH * one:,} elements"


def test_a_layer_of_one_step_and_one_unit_is_a_layer() -> None:
    for cell in CELLS:
        for which in PASSES:
            prepared = rnn.prepare(problem_of(cell, which, hidden=1, batch=1, steps=1), Stand(CPU, "fp32", 5))
            prepared.call(0)
            assert prepared.compare().error <= prepared.compare().bound


@pytest.mark.parametrize("precision", ["fp8", "int8", "tf32"])
def test_a_precision_that_it_has_not_is_refused(precision: str) -> None:
    with fails_as("bad_parameter", precision, "--precision"):
        rnn.check_precision(Stand(CPU, precision, 1))


def test_a_relu_that_lets_gradients_pass_at_zero_is_followed_and_nothing_else_is() -> None:
    problem = read_problem("rnn", {"cell": "vanilla", "hidden": 96, "batch": 6, "timesteps": 7, "pass": "backward"})
    layer = layers_of(problem, Stand(CPU, "fp64", 3))[0]
    y = layer.forward()[0]
    # As a library would that takes these for zeros: sums that are next to zero, and below it.
    strict = y > 0
    near = _just_below_zero(layer, 0.02)
    assert 3 <= int(near.sum()) < 100
    for wanted in (strict, strict | near):
        leaf = layer.with_gradients()
        (dx,) = torch.autograd.grad(rnn.recurrence(leaf, wanted)[0], leaf.x, leaf.dy)
        assert torch.equal(rnn.passing(layer, y, dx, 0.02), wanted)
        # What is further away than the bound stays cut, whatever the gradient says.
        assert torch.equal(rnn.passing(layer, y, dx, 0.0), strict)


def _just_below_zero(layer: Layer, distance: float) -> torch.Tensor:
    of_input, of_state, bias_input, bias_state = layer.weights
    before = torch.cat([layer.states[0], layer.forward()[0][:-1]])
    summed = layer.x @ of_input.t() + bias_input + before @ of_state.t() + bias_state
    return (summed <= 0) & (summed > -distance)
