"""`op/conv`: a convolution forward, backward by inputs, or backward by weights; each pass is a row of its own.

The layout in memory is chosen by one rule: channels last (NHWC), but on a GPU in fp32 and fp64 channels first (NCHW). Matrix
units read channels last, and cuDNN turns anything else round before and after. oneDNN reads both; of eight of DeepBench's
layers that were tried both ways on a CPU in fp32 and bf16, most passes took as long or shorter with channels last, up to three
times shorter, and a few longer. DeepBench's own tensors were channels first; every row says its layout.

On a GPU cuDNN tries its algorithms at the first call, which is timed apart, and keeps the fastest. The framework allocates
the result itself. On a GPU that costs nothing (its allocator hands out what it already has); on a CPU a large result is new
memory from the system at each call, which is what it costs in a network too, and the row says so.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from stackmark.workloads.op.impl.bench import Prepared, Stand, Tensor
from stackmark.workloads.op.impl.conv_reference import Shape, compare, geometry_of
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.impl.precision import PRODUCTS, accumulated_in, require_precision, set_precision
from stackmark.workloads.op.problem import BACKWARD_INPUTS, BACKWARD_WEIGHTS, FORWARD, Problem
from stackmark.workloads.workload import WorkloadFailure


def check_precision(stand: Stand) -> None:
    require_precision(stand, PRODUCTS)
    if stand.on_gpu or stand.precision not in ("bf16", "fp16"):
        return
    able = {
        "bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported(),
        "fp16": torch.ops.mkldnn._is_mkldnn_fp16_supported(),
    }
    if not able[stand.precision]:
        # The framework has a fallback without the library, which shows neither what the chip can do nor what people run.
        raise WorkloadFailure(
            "bad_parameter",
            f"oneDNN has no {stand.precision} convolution for this CPU",
            f"take --precision {' or '.join(['fp32', *(name for name in able if able[name])])}",
        )


def prepare(problem: Problem, stand: Stand) -> Prepared:
    direction = problem.word("pass")
    last = channels_last(stand)
    set_precision(stand)
    torch.backends.cudnn.benchmark = True
    operands = operands_of(problem, stand)
    results = [torch.empty(0, dtype=stand.dtype, device=stand.device) for _ in operands]
    convolve = _pass(problem, stand)

    def call(i: int) -> None:
        results[i] = convolve(*operands[i])

    return Prepared(
        call=call,
        copies=len(operands),
        # In the order of memory, so that whoever reads all of it need not make a copy.
        outputs=lambda i: (results[i].permute(0, 2, 3, 1) if last else results[i],),
        compare=lambda: compare(results[0], *operands[0], problem, stand),
        accumulate=accumulated_in(stand),
        # cuDNN may add up the parts of a gradient by atomic addition.
        same_bits=not stand.on_gpu or direction == FORWARD,
        notes=_notes(stand, last),
    )


def operands_of(problem: Problem, stand: Stand) -> list[tuple[Tensor, Tensor]]:
    """What the pass takes, in sets: image and weights; or backward the result's gradient, and weights or image."""
    last = channels_last(stand)
    left, right, result = (Piece(_stored(shape, last), stand.dtype) for shape in _shapes(problem))
    # The result is asked for so that it is counted, and let go: the convolution allocates its own.
    sets = rotated([left, right, replace(result, random=False)], stand)
    return [(_seen(left, last), _seen(right, last)) for left, right, _ in sets]


def _shapes(problem: Problem) -> tuple[Shape, Shape, Shape]:
    """What a pass takes, and what it gives."""
    geometry = geometry_of(problem)
    image, weights, result = geometry.image_shape, geometry.weight_shape, geometry.result_shape
    by_pass = {
        FORWARD: (image, weights, result),
        BACKWARD_INPUTS: (result, weights, image),
        BACKWARD_WEIGHTS: (result, image, weights),
    }
    return by_pass[problem.word("pass")]


def channels_last(stand: Stand) -> bool:
    return not (stand.on_gpu and stand.precision in ("fp32", "fp64"))


def _notes(stand: Stand, last: bool) -> tuple[str, ...]:
    layout = (
        "channels last (NHWC); DeepBench's were channels first" if last else "channels first (NCHW), as DeepBench's"
    )
    if stand.on_gpu:
        return (layout, "the algorithm that was fastest in cuDNN's own search, which is in the first call")
    return (layout, "the framework takes new memory for the result at each call")


def _stored(shape: Shape, last: bool) -> Shape:
    """A shape in the order of memory."""
    first, channels, rows, columns = shape
    return (first, rows, columns, channels) if last else shape


def _seen(tensor: Tensor, last: bool) -> Tensor:
    """A tensor as the framework counts its axes, in whichever order it lies."""
    return tensor.permute(0, 3, 1, 2) if last else tensor


def _pass(problem: Problem, stand: Stand) -> Callable[[Tensor, Tensor], Tensor]:
    """What one call does with the two operands."""
    geometry, direction, last = geometry_of(problem), problem.word("pass"), channels_last(stand)
    how = (list(geometry.stride), list(geometry.pad), [1, 1], False, [0, 0], 1)
    if direction == FORWARD:
        return lambda image, weights: torch.convolution(image, weights, None, *how)
    backward = torch.ops.aten.convolution_backward.default
    # The framework wants the third tensor too, for its sizes and its layout; its values are not read.
    unread = _seen(torch.empty(_stored(_shapes(problem)[2], last), dtype=stand.dtype, device=stand.device), last)

    def by_inputs(gradient: Tensor, weights: Tensor) -> Tensor:
        made: Tensor = backward(gradient, unread, weights, None, *how, (True, False, False))[0]
        return made

    def by_weights(gradient: Tensor, image: Tensor) -> Tensor:
        made: Tensor = backward(gradient, image, unread, None, *how, (False, True, False))[1]
        return made

    return by_inputs if direction == BACKWARD_INPUTS else by_weights
