"""`op/rnn`: one recurrent layer over all its time steps, as the framework runs it: vanilla (relu), LSTM or GRU.

What is timed is torch's layer: cuDNN on a GPU, on a CPU oneDNN's LSTM or the framework's own steps. It differs from DeepBench
in one thing that counts: DeepBench leaves out the product of the input with its weights (cuDNN's CUDNN_SKIP_INPUT), which
torch always does. So a call here does twice the multiplications. `operations` says what was done and a note says what DeepBench
would have counted; subtracting a guess from the time would be neither. The same as there: one layer, one direction, relu
in the vanilla cell, input as wide as the state, two biases, first states that are not zero.

Backward through time. The gradient of the weights needs that of the states first. cuDNN and oneDNN give the gradient of the
input with it whether it is asked for or not, and torch calls them so: `backward-weights` is then both, where DeepBench times the
second half alone (its two times add up to what is here one). The kept forward pass is used again by every call: cuDNN
overwrites what it keeps, so torch copies that first, within the time.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from stackmark.workloads.op.impl.bench import (
    PRODUCTS,
    Compared,
    Implementation,
    Prepared,
    Stand,
    Tensor,
    accumulated_in,
    require_precision,
    set_precision,
)
from stackmark.workloads.op.impl.checking import bound, bound_of, relative_error, sample, say_compared
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.operators import RNN_GATES, rnn_product
from stackmark.workloads.op.problem import BACKWARD, BACKWARD_INPUTS, FORWARD, Problem

# --- the layer --------------------------------------------------------------------------------------------------------
#
# A recurrent layer as the framework has it: its operands as they lie in memory, one call, and which library does it.


@dataclass(frozen=True)
class Layer:
    """One set: input (steps × batch × width), first states (h, and c of an LSTM), weights as torch orders them, dL/dy."""

    cell: str
    x: Tensor
    states: tuple[Tensor, ...]
    weights: tuple[Tensor, ...]
    dy: Tensor | None = None

    def forward(self) -> tuple[Tensor, ...]:
        """Compute the states of all steps, and the last ones. `train` makes cuDNN store what a backward pass needs."""
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
        """Return what a backward pass computes the gradients of."""
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
    """Return the library that will do the backward pass, as the framework names it."""
    return y.grad_fn.name() if y.grad_fn else ""


def is_cudnn(library: str) -> bool:
    return "Cudnn" in library or "Miopen" in library


def does_all(library: str) -> bool:
    """Return whether one backward pass gives all gradients, as oneDNN's LSTM does."""
    return "Mkldnn" in library


# --- the operator -----------------------------------------------------------------------------------------------------


def check_precision(stand: Stand) -> None:
    require_precision(stand, PRODUCTS)


def prepare(problem: Problem, stand: Stand) -> Prepared:
    set_precision(stand)
    # Of bf16, which it lays out for cuDNN in no way: a note of the row says it.
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    layers = layers_of(problem, stand)
    which = problem.word("pass")
    call: Callable[[int], None]
    if which == FORWARD:
        done: list[tuple[Tensor, ...]] = [() for _ in layers]
        library = ""

        def call(i: int) -> None:
            done[i] = layers[i].forward()

        def compare() -> Compared:
            return compare_forward(done[0], layers[0], stand)
    else:
        layers = [layer.with_gradients() for layer in layers]
        kept = [layer.forward()[0] for layer in layers]
        wanted = [layer.asked(which) for layer in layers]
        done = [() for _ in layers]
        library = library_of(kept[0])

        def call(i: int) -> None:
            done[i] = torch.autograd.grad(kept[i], wanted[i], layers[i].dy, retain_graph=True)

        def compare() -> Compared:
            return compare_backward(done[0], kept[0], layers[0], which, stand)

    products = _products(which, library)
    return Prepared(
        call=call,
        copies=len(layers),
        outputs=lambda i: done[i],
        compare=compare,
        accumulate=accumulated_in(stand),
        # A call is hundreds of launches that the library makes by itself, from below Python: that is what is timed.
        graph=False,
        # cuDNN spreads the products of a step over streams, and does not promise the same sums in the same order.
        same_bits=not stand.on_gpu,
        operations=float(products * rnn_product(problem)),
        least_bytes=_least_bytes(problem, stand, products),
        notes=(*_notes(which, library, products), *_weights_note(layers[0])),
    )


def _products(which: str, library: str) -> int:
    """How many such products a call does: input and state forward; the same back to both; and both weights' gradients."""
    if which in (FORWARD, BACKWARD_INPUTS):
        return 4 if which == BACKWARD_INPUTS and does_all(library) else 2
    # The framework's own steps leave out the gradient of the input where only the weights' is asked for.
    return 4 if which == BACKWARD or does_all(library) or is_cudnn(library) else 3


def _notes(which: str, library: str, products: int) -> tuple[str, ...]:
    deepbench = 2 if which == BACKWARD else 1
    notes = [
        f"torch's layer also multiplies its input: {products} products of hidden × hidden per gate and step, all counted; "
        f"DeepBench leaves out the input's and counts {deepbench}"
    ]
    if which == FORWARD:
        notes.append("forward as for inference: nothing is stored for a backward pass")
    elif does_all(library):
        notes.append("oneDNN's LSTM always computes the gradients of inputs and weights in one pass")
    elif is_cudnn(library):
        if which != BACKWARD_INPUTS:
            notes.append(
                "the time includes the gradient of the inputs, which is computed first; DeepBench times only the weights'"
            )
        notes.append("each call copies what the forward pass stored, because cuDNN overwrites it")
    return tuple(notes)


def _weights_note(layer: Layer) -> tuple[str, ...]:
    if layer.x.is_cuda and not torch.backends.cudnn.is_acceptable(layer.weights[0]):
        return ("the framework does not lay out weights of this precision for cuDNN and copies them in each call",)
    return ()


def _least_bytes(problem: Problem, stand: Stand, products: int) -> float:
    """Weights, input and states of all steps once; backward also what the gates were, and every gradient that is written."""
    gates, hidden = RNN_GATES[problem.word("cell")], problem.number("hidden")
    weights = 2 * gates * hidden * (hidden + 1)
    states = hidden * problem.number("batch") * problem.number("timesteps")
    elements = weights + 2 * states
    if problem.word("pass") != FORWARD:
        elements += gates * states
        if products > 2:
            elements += weights + states
    return float(elements * stand.dtype.itemsize)


# --- the reference ----------------------------------------------------------------------------------------------------
#
# Is a recurrent layer right? Done again by its equations in float64, a step at a time, without a layer of the framework's.


# A state is rounded at every step and goes into the next, but with weights of the size that rnn_layer.py gives them less than
# half of an error does; a cell rounds a handful of values (gates, products, sum).
ROUNDINGS_A_STEP = 4
# Elements of the result of which the float64 reference is made: 128 MiB of it.
_MOST_ELEMENTS = 2**24


def compare_forward(got: tuple[Tensor, ...], layer: Layer, stand: Stand) -> Compared:
    """Compare some sequences of a batch, which do not depend on each other."""
    rows = _some_sequences(layer, stand)
    wanted = recurrence(_of_sequences(layer, rows))
    y, *last = got
    made = [y[:, rows], *(state[:, rows] for state in last)]
    return _compared(made, wanted, got, _allowed(layer, stand, FORWARD))


def compare_backward(got: tuple[Tensor, ...], y: Tensor, layer: Layer, which: str, stand: Stand) -> Compared:
    """Compare the gradients: of the weights all, because they are sums over all sequences; of the inputs some."""
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
    """Return where the library's relu lets a gradient pass, by its result and its gradient of the input.

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
    """Compute the layer by its equations, step by step: states of all steps, and the last ones.

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


RNN = Implementation(check_precision, prepare)
