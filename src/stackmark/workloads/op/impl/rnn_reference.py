"""Is a recurrent layer right? Done again by its equations in float64, a step at a time, without a layer of the framework's."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.utils.checkpoint import checkpoint

from stackmark.workloads.op.impl.bench import Compared, Stand, Tensor
from stackmark.workloads.op.impl.checking import bound, bound_of, relative_error, sample, say_compared
from stackmark.workloads.op.impl.rnn_layer import Layer, does_all, is_cudnn, library_of
from stackmark.workloads.op.problem import BACKWARD_INPUTS, FORWARD

# A state is rounded at every step and goes into the next, but with weights of the size that rnn_layer.py gives them less than
# half of an error does; a cell rounds a handful of values (gates, products, sum).
ROUNDINGS_A_STEP = 4
# Elements of the result of which the float64 reference is made: 128 MiB of it.
_MOST_ELEMENTS = 2**24


def compare_forward(got: tuple[Tensor, ...], layer: Layer, stand: Stand) -> Compared:
    """Sequences of a batch do not meet: some of them are done again."""
    rows = _some_sequences(layer, stand)
    wanted = recurrence(_of_sequences(layer, rows))
    y, *last = got
    made = [y[:, rows], *(state[:, rows] for state in last)]
    return _compared(made, wanted, got, _allowed(layer, stand, FORWARD))


def compare_backward(got: tuple[Tensor, ...], y: Tensor, layer: Layer, which: str, stand: Stand) -> Compared:
    """The gradients of the weights are sums over all sequences, so all of them are done again; of the inputs some suffice."""
    rows = _some_sequences(layer, stand) if which == BACKWARD_INPUTS else torch.arange(y.shape[1], device=y.device)
    alike = _of_sequences(layer, rows)
    cut = None
    if layer.cell == "vanilla":
        (dx,) = torch.autograd.grad(y, layer.x, layer.dy, retain_graph=True)
        cut = passing(alike, y.detach()[:, rows], dx[:, rows], _allowed(layer, stand, FORWARD))
    reference = alike.with_gradients()
    assert reference.dy is not None
    outputs = recurrence(reference, cut)[0]
    wanted = torch.autograd.grad(outputs, reference.asked(which), reference.dy)
    made = [tensor[:, rows] for tensor in got] if which == BACKWARD_INPUTS else list(got)
    return _compared(made, wanted, got, _allowed(layer, stand, which, library_of(y)))


def _compared(made: Sequence[Tensor], wanted: Sequence[Tensor], got: Sequence[Tensor], allowed: float) -> Compared:
    error = max(relative_error(one, right) for one, right in zip(made, wanted, strict=True))
    compared, of = sum(one.numel() for one in made), sum(one.numel() for one in got)
    return Compared(error, allowed, f"{say_compared(compared, of)} elements")


def _allowed(layer: Layer, stand: Stand, which: str, library: str = "") -> float:
    steps, batch, hidden = layer.x.shape
    allowed = ROUNDINGS_A_STEP * bound_of(2 * hidden, stand)
    if which in (FORWARD, BACKWARD_INPUTS):
        return allowed
    if does_all(library) or is_cudnn(library):
        return allowed + bound_of(steps * batch, stand)
    # The framework's own steps add the gradients of the weights up in the operands' precision, a step at a time.
    return allowed + bound(steps, result=stand.precision, sums=stand.precision)


def _some_sequences(layer: Layer, stand: Stand) -> Tensor:
    steps, batch, hidden = layer.x.shape
    most = max(1, _MOST_ELEMENTS // (steps * hidden))
    return sample(batch, most, torch.Generator().manual_seed(stand.seed))[:most].to(layer.x.device)


def _of_sequences(layer: Layer, rows: Tensor) -> Layer:
    """These sequences of a set, in float64."""
    return replace(
        layer,
        x=layer.x.detach()[:, rows].double(),
        states=tuple(state.detach()[:, rows].double() for state in layer.states),
        weights=tuple(weight.detach().double() for weight in layer.weights),
        dy=None if layer.dy is None else layer.dy[:, rows].double(),
    )


def passing(layer: Layer, y: Tensor, dx: Tensor, near: float) -> Tensor:
    """Where the library's relu lets a gradient pass, by its result and its gradient of the input.

    Next to zero a rounding decides what relu does, and a gradient that passes or does not is no rounding error. Where the
    result is above zero it passes. Where it is zero it does not, unless the sum itself was: in 16 bits that is one in some
    thousands, and there cuDNN lets it pass, and the framework not. Such places (within `near` of zero) are known by the
    gradient of the input at this step: what one of them would add to it is there, or is not.
    """
    of_input, of_state, bias_input, bias_state = layer.weights
    assert layer.dy is not None
    passed = y > 0
    unclear = torch.empty_like(passed)
    state = layer.states[0][0]
    for step, entering in enumerate(layer.x):
        summed = entering @ of_input.t() + bias_input + state @ of_state.t() + bias_state
        unclear[step] = ~passed[step] & (summed.abs() <= near)
        state = summed * passed[step]
    squares = of_input.square().sum(1)
    back = torch.zeros_like(state)
    for step in reversed(range(len(y))):
        arriving = layer.dy[step] + back @ of_state
        missing = dx[step].double() - (arriving * passed[step]) @ of_input
        share = missing @ of_input.t() / (arriving * squares)
        passed[step] |= unclear[step] & (share > 0.5)
        back = arriving * passed[step]
    return passed


def recurrence(layer: Layer, cut: Tensor | None = None) -> tuple[Tensor, ...]:
    """The layer by its equations, a step at a time: states of all steps, and the last ones.

    Where `cut` is given, relu lets through what it says. In a backward pass the steps between are computed again.
    """
    length = len(layer.x)
    stretch = math.isqrt(length - 1) + 1 if layer.x.requires_grad else length
    states = tuple(state[0] for state in layer.states)
    outputs = []
    for begin in range(0, length, stretch):
        part = slice(begin, begin + stretch)
        arguments = (layer.cell, layer.x[part], None if cut is None else cut[part], states, layer.weights)
        if layer.x.requires_grad:
            made, states = checkpoint(_steps, *arguments, use_reentrant=False, preserve_rng_state=False)
        else:
            made, states = _steps(*arguments)
        outputs.append(made)
    return (torch.cat(outputs), *(state[None] for state in states))


def _steps(
    cell: str, x: Tensor, cut: Tensor | None, states: tuple[Tensor, ...], weights: tuple[Tensor, ...]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    of_input, of_state, bias_input, bias_state = weights
    made = []
    for step, entering in enumerate(x @ of_input.t() + bias_input):
        fed = states[0] @ of_state.t() + bias_state
        if cell == "vanilla":
            summed = entering + fed
            states = (summed * (summed > 0 if cut is None else cut[step]),)
        elif cell == "lstm":
            i, f, g, o = (entering + fed).chunk(4, dim=-1)
            c = f.sigmoid() * states[1] + i.sigmoid() * g.tanh()
            states = (o.sigmoid() * c.tanh(), c)
        else:
            (r, z, n), (fed_r, fed_z, fed_n) = entering.chunk(3, dim=-1), fed.chunk(3, dim=-1)
            kept = (z + fed_z).sigmoid()
            states = ((1 - kept) * (n + (r + fed_r).sigmoid() * fed_n).tanh() + kept * states[0],)
        made.append(states[0])
    return torch.stack(made), states
