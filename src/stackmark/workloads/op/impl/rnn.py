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

import warnings
from collections.abc import Callable

import torch

from stackmark.workloads.op.counts import RNN_GATES, rnn_product
from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand, Tensor
from stackmark.workloads.op.impl.precision import PRODUCTS, accumulated_in, require_precision, set_precision
from stackmark.workloads.op.impl.rnn_layer import Layer, does_all, is_cudnn, layers_of, library_of
from stackmark.workloads.op.impl.rnn_reference import compare_backward, compare_forward
from stackmark.workloads.op.problem import BACKWARD, BACKWARD_INPUTS, FORWARD, Problem


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
        f"torch's layer multiplies its input too: {products} products of hidden × hidden a gate and step, counted as done; "
        f"DeepBench leaves the input's out and counts {deepbench}"
    ]
    if which == FORWARD:
        notes.append("forward as for inference: nothing is kept for a backward pass")
    elif does_all(library):
        notes.append("oneDNN's LSTM gives the gradients of inputs and weights in one pass, whichever is asked for")
    elif is_cudnn(library):
        if which != BACKWARD_INPUTS:
            notes.append(
                "the gradient of the inputs is computed first and is in the time; DeepBench times the weights' alone"
            )
        notes.append("each call copies what the forward pass kept, because cuDNN overwrites it")
    return tuple(notes)


def _weights_note(layer: Layer) -> tuple[str, ...]:
    if layer.x.is_cuda and not torch.backends.cudnn.is_acceptable(layer.weights[0]):
        return (
            "the framework lays out no weights of this precision for cuDNN: where it calls it, it copies them first",
        )
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
