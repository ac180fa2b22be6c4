"""`op/conv`: a convolution forward, backward by inputs, or backward by weights; each pass is a separate row.

The layout in memory is chosen by one rule: channels last (NHWC), but on a GPU in fp32 and fp64 channels first (NCHW). Matrix
units read channels last, and cuDNN turns anything else round before and after. oneDNN reads both; of eight of DeepBench's
layers that were tried both ways on a CPU in fp32 and bf16, most passes took as long or shorter with channels last, up to three
times shorter, and a few longer. DeepBench's own tensors were channels first; every row says its layout.

On a GPU cuDNN tries its algorithms at the first call, which is timed apart, and keeps the fastest. The framework allocates
the result itself. On a GPU that costs nothing (its allocator hands out what it already has); on a CPU a large result is new
memory from the system at each call, which is what it costs in a network too, and the row says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt

import torch

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
from stackmark.workloads.op.impl.checking import SAMPLED, bound_of, relative_error, sample, say_compared
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.operators import conv_output
from stackmark.workloads.op.problem import BACKWARD_INPUTS, BACKWARD_WEIGHTS, FORWARD, Problem
from stackmark.workloads.workload import WorkloadFailure

Shape = tuple[int, int, int, int]


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
            f"use --precision {' or '.join(['fp32', *(name for name in able if able[name])])}",
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
    """Return the operands of the pass, in sets: image and weights; or backward the result's gradient, and weights or image."""
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
    layout = "channels last (NHWC); DeepBench used channels first" if last else "channels first (NCHW), as in DeepBench"
    if stand.on_gpu:
        return (layout, "the fastest algorithm in cuDNN's search, which runs in the first call")
    return (layout, "the framework allocates the result again in each call")


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


# --- the reference ----------------------------------------------------------------------------------------------------
#
# Is a convolution right? Compared with its own definition in float64, on a sample.
#
# The reference takes some positions, among them all corners of the first and the last image, and some channels, and computes
# each pair of the two by the definition: operands gathered one by one, multiplied and summed in float64. No convolution of a
# library has a part in it, so that the same mistake cannot be on both sides.


# This many channels are compared, at as many positions as make up SAMPLED together (of weights: filters, and places in them).
CHANNELS = 64
# But not at more positions, nor at more than these elements allow that the reference gathers; at a few always.
POSITIONS = 4096
GATHERED = {FORWARD: 2**24, BACKWARD_INPUTS: 2**24, BACKWARD_WEIGHTS: 2**26}
LEAST = 16
# Elements that the sum over all images takes at once, in float64.
_AT_ONCE = 2**22
# Winograd's algorithm multiplies sums and differences of the operands, and rounds them. Computed in NumPy for 3×3 filters, 64 and
# 512 channels, its largest error was 0.3, 6 and 10 times that of plain sums in fp32 with tiles of 2, 4 and 6, and with tiles of 4
# whose sums are rounded to fp16 7 times the plain bound. Libraries may take it where the stride is 1, for these precisions.
WINOGRAD = 16.0
WINOGRAD_PRECISIONS = ("fp32", "tf32", "fp16")


@dataclass(frozen=True)
class Geometry:
    """The sizes of a problem, rows (height) before columns (width), as the framework has them."""

    images: int
    channels: int
    filters: int
    size: tuple[int, int]
    filter: tuple[int, int]
    pad: tuple[int, int]
    stride: tuple[int, int]
    result: tuple[int, int]

    @property
    def image_shape(self) -> Shape:
        return (self.images, self.channels, *self.size)

    @property
    def weight_shape(self) -> Shape:
        return (self.filters, self.channels, *self.filter)

    @property
    def result_shape(self) -> Shape:
        return (self.images, self.filters, *self.result)


def geometry_of(problem: Problem) -> Geometry:
    number = problem.number
    width, height = conv_output(problem)
    return Geometry(
        images=number("n"),
        channels=number("c"),
        filters=number("k"),
        size=(number("h"), number("w")),
        filter=(number("filter_h"), number("filter_w")),
        pad=(number("pad_h"), number("pad_w")),
        stride=(number("stride_h"), number("stride_w")),
        result=(height, width),
    )


def compare(got: Tensor, left: Tensor, right: Tensor, problem: Problem, stand: Stand) -> Compared:
    """Compare a sample of the result with its definition in float64; `left` and `right` are the pass's operands."""
    geometry = geometry_of(problem)
    generator = torch.Generator().manual_seed(stand.seed)
    direction = problem.word("pass")
    if direction == BACKWARD_WEIGHTS:
        taken, wanted, terms = _weights_wanted(got, left, right, geometry, generator)
    else:
        taken, wanted, terms = _pixels_wanted(got, left, right, direction, geometry, generator)
    allowed = bound_of(terms, stand)
    winograd = geometry.stride == (1, 1) and min(geometry.filter) > 1 and stand.precision in WINOGRAD_PRECISIONS
    return Compared(
        # Operands have variance 1, so the size of a sum is the root of how many terms it has; at a border it has fewer.
        relative_error(taken, wanted, sqrt(terms)),
        allowed * (WINOGRAD if winograd else 1.0),
        f"{say_compared(wanted.numel(), got.numel())} elements",
    )


@dataclass(frozen=True)
class Taps:
    """Which rows (or columns) of its source each position takes, one for each place in the filter, and which are there."""

    at: Tensor
    there: Tensor

    def count(self) -> Tensor:
        return self.there.sum(1)


def _taps(position: Tensor, place: Tensor, axis: int, direction: str, geometry: Geometry) -> Taps:
    """Forward from the result to the image, or backward from the image to the result."""
    stride, pad = geometry.stride[axis], geometry.pad[axis]
    if direction == BACKWARD_INPUTS:
        shifted, length = position[:, None] + pad - place, geometry.result[axis]
        at, there = shifted // stride, shifted % stride == 0
    else:
        at, length = position[:, None] * stride - pad + place, geometry.size[axis]
        there = torch.ones_like(at, dtype=torch.bool)
    there = there & (at >= 0) & (at < length)
    return Taps(torch.where(there, at, 0), there)


def _pixels_wanted(
    got: Tensor, source: Tensor, weights: Tensor, direction: str, geometry: Geometry, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """What was computed and what is wanted, positions by channels, and of how many terms the longest of these sums is."""
    device = got.device
    by_channel = weights if direction == FORWARD else weights.transpose(0, 1)
    channels = sample(got.shape[1], CHANNELS, generator).to(device)
    most = _positions_for(len(channels), by_channel[0].numel(), direction)
    image, row, column = _positions(got, most, generator)
    rows, columns = (
        _taps(position, torch.arange(geometry.filter[axis], device=device), axis, direction, geometry)
        for axis, position in enumerate((row, column))
    )
    # Positions × filter rows × filter columns × channels of the source.
    gathered = source[image[:, None, None], :, rows.at[:, :, None], columns.at[:, None, :]].double()
    gathered *= (rows.there[:, :, None] & columns.there[:, None, :])[..., None]
    flat = by_channel[channels].double().permute(0, 2, 3, 1).reshape(len(channels), -1)
    wanted = gathered.reshape(len(image), -1) @ flat.t()
    terms = by_channel.shape[1] * int((rows.count() * columns.count()).max())
    return got[image, :, row, column][:, channels], wanted, terms


def _positions_for(channels: int, terms: int, direction: str) -> int:
    return max(LEAST, min(SAMPLED // channels, POSITIONS, GATHERED[direction] // terms))


def _positions(got: Tensor, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Image, row and column of some positions: all corners of the first and the last image, and a draw over everything."""
    images, _, height, width = got.shape
    drawn = sample(images * height * width, most, generator)
    corners = [
        (image * height + row) * width + column
        for image in (0, images - 1)
        for row in (0, height - 1)
        for column in (0, width - 1)
    ]
    flat = torch.cat([drawn, torch.tensor(corners)]).unique().to(got.device)
    return _unravelled(flat, (height, width))


def _weights_wanted(
    got: Tensor, gradient: Tensor, image: Tensor, geometry: Geometry, generator: torch.Generator
) -> tuple[Tensor, Tensor, int]:
    """Some filters by some places in them: each weight's gradient is a sum over all images and all positions of the result."""
    images, (height, width) = geometry.images, geometry.result
    filters = sample(geometry.filters, CHANNELS, generator).to(got.device)
    most = _positions_for(len(filters), images * height * width, BACKWARD_WEIGHTS)
    places = sample(got[0].numel(), most, generator)
    channel, row, column = _unravelled(places, geometry.filter)
    wanted = torch.zeros(len(filters), len(places), dtype=torch.float64, device=got.device)
    at_once = min(images, max(1, _AT_ONCE // (len(places) * height * width)))
    met = torch.empty(len(places), at_once, height, width, dtype=torch.float64, device=got.device)
    for given, seen in zip(gradient.split(at_once), image.split(at_once), strict=True):
        padded = torch.nn.functional.pad(seen, (geometry.pad[1], geometry.pad[1], geometry.pad[0], geometry.pad[0]))
        # What each place in the filter meets as the filter goes over the image.
        for number, (c, r, s) in enumerate(zip(channel.tolist(), row.tolist(), column.tolist(), strict=True)):
            met[number, : len(seen)] = padded[:, c, _stretch(r, 0, geometry), _stretch(s, 1, geometry)]
        some = given[:, filters].double().transpose(0, 1).flatten(1)
        wanted += some @ met[:, : len(seen)].flatten(1).t()
    terms = images * int((_met(row, 0, geometry) * _met(column, 1, geometry)).max())
    return got.flatten(1)[filters][:, places.to(got.device)], wanted, terms


def _stretch(place: int, axis: int, geometry: Geometry) -> slice:
    """The rows (or columns) of a padded image that a place in the filter goes over."""
    stride = geometry.stride[axis]
    return slice(place, place + stride * (geometry.result[axis] - 1) + 1, stride)


def _met(place: Tensor, axis: int, geometry: Geometry) -> Tensor:
    """How many of them are of the image and not of its padding."""
    at = torch.arange(geometry.result[axis]) * geometry.stride[axis] - geometry.pad[axis] + place[:, None]
    return ((at >= 0) & (at < geometry.size[axis])).sum(1)


def _unravelled(flat: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Numbers of elements as which plane, row and column."""
    height, width = size
    return flat // (height * width), flat // width % height, flat % width


CONV = Implementation(check_precision, prepare)
