"""Regions of pictures, for whole batches: features of boxes (RoIAlign), and masks that are brought from one box into another.

Both are written as sums with weights that libraries compute fast on any device, forwards and backwards: a feature of a box is a
weighted sum of 16 cells (`embedding_bag`), a mask in another box two products of matrices. Nothing depends on how many boxes are
real, so a GPU is not waited for.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

# Points that are sampled in a cell along each axis.
SAMPLED = 2
SMALLEST = 1e-6


def levels_of(boxes: Tensor, canonical: float, levels: int) -> Tensor:
    """Return the map for each box: the first one for boxes below twice the `canonical` edge, the next one for each doubling."""
    edge = ((boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])).clamp(min=SMALLEST).sqrt()
    return (edge / canonical).log2().floor().clamp(0, levels - 1).long()


def align(maps: Sequence[Tensor], strides: Sequence[int], boxes: Tensor, level: Tensor, size: int) -> Tensor:
    """Return the features of boxes, (pictures · boxes, channels, size, size): RoIAlign on several maps.

    `maps` (pictures, channels, height, width) have cells of `strides` pixels; `boxes` (pictures, boxes, 4) are in pixels, and
    each takes its features from the map `level`. Points are between centres of cells (the half pixel that Detectron2 added). The
    gradient goes to the maps, not to the boxes.
    """
    pictures, channels = maps[0].shape[:2]
    cells = torch.cat([one.permute(0, 2, 3, 1).reshape(-1, channels) for one in maps]).float()
    shape = [(*one.shape[2:], stride) for one, stride in zip(maps, strides, strict=True)]
    starts = [0]
    for height, width, _ in shape[:-1]:
        starts.append(starts[-1] + pictures * height * width)
    table = torch.tensor([(start, *one) for start, one in zip(starts, shape, strict=True)], device=boxes.device)
    start, height, width, stride = table[level].unbind(-1)
    corners = boxes.float() / stride[..., None] - 0.5
    rows, row_weights = _points(corners[..., 1], corners[..., 3], height, size)
    columns, column_weights = _points(corners[..., 0], corners[..., 2], width, size)
    picture = torch.arange(pictures, device=boxes.device)[:, None]
    first = (start + picture * height * width)[..., None, None, None, None]
    # Of each box: cells downwards, cells across, and of a cell its points in both directions.
    index = first + rows[:, :, :, None, :, None] * width[..., None, None, None, None] + columns[:, :, None, :, None, :]
    weight = row_weights[:, :, :, None, :, None] * column_weights[:, :, None, :, None, :]
    together = (2 * SAMPLED) ** 2
    found = F.embedding_bag(
        index.reshape(-1, together), cells, mode="sum", per_sample_weights=weight.reshape(-1, together)
    )
    return found.view(-1, size, size, channels).permute(0, 3, 1, 2)


def _points(first: Tensor, last: Tensor, count: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the neighbours of the points along an axis, (pictures, boxes, size, 2 · sampled), and their weights."""
    points = size * SAMPLED
    share = (torch.arange(points, device=first.device) + 0.5) / points
    place = first[..., None] + (last - first)[..., None] * share
    most = (count - 1)[..., None]
    outside = (place < -1) | (place > most + 1)
    place = torch.minimum(place.clamp(min=0), most.float())
    low = place.floor()
    beyond = place - low
    near = torch.stack((low.long(), torch.minimum(low.long() + 1, most)), -1)
    weight = torch.stack((1 - beyond, beyond), -1).masked_fill_(outside[..., None], 0) / SAMPLED
    return near.view(*first.shape, size, -1), weight.view(*first.shape, size, -1)


def resampled(masks: Tensor, boxes: Tensor, windows: Tensor, height: int, width: int) -> Tensor:
    """Return masks (n, edge, edge), each spread over its box, at the centres of height × width cells of its window.

    Points between the centres of a mask's cells are interpolated; outside of its box a mask is 0. So a mask is pasted into a
    picture (the window is the picture), and what is seen of an object in a proposal is cut out (the window is the proposal).
    """
    rows = _tents(boxes[:, 1::2], windows[:, 1::2], height, masks.shape[1])
    columns = _tents(boxes[:, ::2], windows[:, ::2], width, masks.shape[2])
    # What is asked of a mask is whether it is above a half: not with bfloat16's two digits.
    with torch.autocast(masks.device.type, enabled=False):
        return rows @ masks @ columns.transpose(1, 2)


def _tents(spans: Tensor, windows: Tensor, count: int, cells: int) -> Tensor:
    """Return how much each of `count` places in a window takes of each cell of a span, (n, count, cells)."""
    first, last = spans[:, :1], spans[:, 1:]
    share = (torch.arange(count, device=spans.device) + 0.5) / count
    place = (windows[:, :1] + (windows[:, 1:] - windows[:, :1]) * share - first) / (last - first).clamp(min=SMALLEST)
    apart = (place * cells - 0.5)[:, :, None] - torch.arange(cells, device=spans.device)
    return (1 - apart.abs_()).clamp_(min=0)


def fitted(width: int, height: int, shortest: int, longest: int) -> tuple[int, int]:
    """Return the size of a picture whose shorter side is scaled to `shortest`, unless the longer one would exceed `longest`."""
    scale = min(shortest / min(width, height), longest / max(width, height))
    return max(1, math.floor(width * scale + 0.5)), max(1, math.floor(height * scale + 0.5))
