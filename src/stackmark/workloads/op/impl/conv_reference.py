"""Is a convolution right? Compared with its own definition in float64, on a sample.

The reference takes some positions, among them all corners of the first and the last image, and some channels, and computes
each pair of the two by the definition: operands gathered one by one, multiplied and summed in float64. No convolution of a
library has a part in it, so that the same mistake cannot be on both sides.
"""

from dataclasses import dataclass
from math import sqrt

import torch

from stackmark.workloads.op.impl.bench import Compared, Stand, Tensor
from stackmark.workloads.op.impl.checking import SAMPLED, bound_of, relative_error, sample, say_compared
from stackmark.workloads.op.problem import BACKWARD_INPUTS, BACKWARD_WEIGHTS, FORWARD, Problem, conv_output

# So many channels are compared, at as many positions as make up SAMPLED together (of weights: filters, and places in them).
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

Shape = tuple[int, int, int, int]


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
    """A sample of the result against its definition in float64; `left` and `right` are what the pass took."""
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
