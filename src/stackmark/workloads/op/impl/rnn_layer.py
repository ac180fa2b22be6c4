"""A recurrent layer as the framework has it: its operands as they lie in memory, one call, and which library does it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from stackmark.workloads.op.counts import RNN_GATES
from stackmark.workloads.op.impl.bench import Stand, Tensor
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import BACKWARD, BACKWARD_INPUTS, FORWARD, Problem


@dataclass(frozen=True)
class Layer:
    """One set: input (steps × batch × width), first states (h, and c of an LSTM), weights as torch orders them, dL/dy."""

    cell: str
    x: Tensor
    states: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    dy: Tensor | None = None

    def forward(self) -> tuple[Tensor, ...]:
        """The states of all steps, and the last ones. `train` has cuDNN keep what a backward pass needs."""
        with_bias, layers, dropout, train = True, 1, 0.0, self.x.requires_grad
        more = (with_bias, layers, dropout, train, False, False)
        if self.cell == "lstm":
            return tuple(torch.lstm(self.x, self.states, self.weights, *more))
        function = torch.gru if self.cell == "gru" else torch.rnn_relu
        return tuple(function(self.x, self.states[0], self.weights, *more))

    def with_gradients(self) -> "Layer":
        leaves = [[tensor.detach().requires_grad_() for tensor in some] for some in (self.states, self.weights)]
        x = self.x.detach().requires_grad_()
        return replace(self, x=x, states=tuple(leaves[0]), weights=tuple(leaves[1]))

    def asked(self, which: str) -> tuple[Tensor, ...]:
        """Of what a backward pass gives the gradients."""
        inputs = (self.x, *self.states)
        if which == BACKWARD_INPUTS:
            return inputs
        return (*inputs, *self.weights) if which == BACKWARD else self.weights


def layers_of(problem: Problem, stand: Stand) -> list[Layer]:
    cell, hidden = problem.word("cell"), problem.number("hidden")
    batch, steps = problem.number("batch"), problem.number("timesteps")
    backward = problem.word("pass") != FORWARD
    rows = RNN_GATES[cell] * hidden
    sizes = [(rows, hidden), (rows, hidden), (rows,), (rows,)]
    first = 2 if cell == "lstm" else 1
    pieces = [Piece(size, stand.dtype) for size in sizes]
    pieces += [Piece((1, batch, hidden), stand.dtype)] * first
    # Input and what comes back to the output; without a backward pass the second is only room for the result.
    pieces += [Piece((steps, batch, hidden), stand.dtype), Piece((steps, batch, hidden), stand.dtype, random=backward)]
    if backward:
        # The gates of all steps, which the forward pass keeps: they are part of a set, and not ours to lay out.
        pieces += [Piece((steps, batch, rows), stand.dtype, random=False)]
    layers = []
    for tensors in rotated(pieces, stand):
        x, dy = tensors[4 + first : 6 + first]
        weights = _flat([tensor.mul_(hidden**-0.5) for tensor in tensors[:4]], cell, hidden, stand)
        layers.append(Layer(cell, x, tuple(tensors[4 : 4 + first]), weights, dy if backward else None))
    return layers


def _flat(values: Sequence[Tensor], cell: str, hidden: int, stand: Stand) -> tuple[Tensor, ...]:
    """On a GPU in one stretch of memory, as cuDNN wants them: else torch would copy them in every call."""
    if not stand.on_gpu:
        return tuple(values)
    kinds: dict[str, Callable[..., nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "vanilla": nn.RNN}
    relu = {"nonlinearity": "relu"} if cell == "vanilla" else {}
    module = kinds[cell](hidden, hidden, device=stand.device, dtype=stand.dtype, **relu).requires_grad_(False)
    for parameter, value in zip(module.parameters(), values, strict=True):
        parameter.copy_(value)
    return tuple(parameter.detach() for parameter in module.parameters())


def library_of(y: Tensor) -> str:
    """Which library will do the backward pass, as the framework names it."""
    return y.grad_fn.name() if y.grad_fn else ""


def is_cudnn(library: str) -> bool:
    return "Cudnn" in library or "Miopen" in library


def does_all(library: str) -> bool:
    """oneDNN's LSTM has one backward pass, which gives the gradients of everything."""
    return "Mkldnn" in library
