"""Anchors and proposals of two-stage detectors, for whole batches: where objects may be, and which of these places are trained.

All shapes are fixed: what is not there is masked, so that no step waits for a GPU to count. The only exception is suppression.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.boxes import decode, iou, suppress

# Marks of what has no object: the background, and what is too near to an object for it.
BACKGROUND, BETWEEN = -1, -2
# Codes of the region proposal network are plain offsets; a side grows to 1000 / 16 of the anchor's at the most.
PLAIN, MOST_GROWTH = (1.0, 1.0), math.log(1000 / 16)
# Pairs of an object and an anchor that are compared together.
COMPARED_TOGETHER = 1 << 26


def anchors_of(
    height: int, width: int, stride: int, edge: float, ratios: Sequence[float], device: torch.device
) -> Tensor:
    """Return the anchors of a map, centred, by line, cell and ratio (height over width); each has an area of edge²."""
    shapes = torch.tensor([(edge / math.sqrt(ratio), edge * math.sqrt(ratio)) for ratio in ratios], device=device)
    y, x = (((torch.arange(count, device=device) + 0.5) * stride) for count in (height, width))
    centre = torch.stack((x.expand(height, width), y[:, None].expand(height, width)), -1)
    whole = (height, width, len(ratios), 2)
    return torch.cat((centre[:, :, None].expand(whole), shapes.expand(whole)), -1).reshape(-1, 4)


def match_regions(
    regions: Tensor, boxes: Tensor, real: Tensor, low: float, high: float, *, favourites: bool = False
) -> Tensor:
    """Return for each region the number of the box that it has to find, `BACKGROUND` or `BETWEEN`.

    A region finds the box that it overlaps most if that is at least `high`, and is background below `low`. With `favourites`, the
    regions that overlap a box most find something in any case. `regions` are (regions, 4), or (pictures, regions, 4); `boxes`
    (pictures, most, 4), of which those that are not `real` fill up the rows.
    """
    pictures, most = real.shape
    together = max(1, COMPARED_TOGETHER // max(1, most * regions.shape[-2]))
    if pictures > together:
        regions = regions.expand(pictures, *regions.shape[-2:])
        parts = zip(regions.split(together), boxes.split(together), real.split(together), strict=True)
        return torch.cat([match_regions(*some, low, high, favourites=favourites) for some in parts])
    each = regions if regions.ndim == 3 else regions[None]
    overlap = iou(boxes[:, :, None], each[:, None]).masked_fill_(~real[:, :, None], 0)
    best, number = overlap.max(1)
    found = torch.where(best >= high, number, torch.where(best < low, BACKGROUND, BETWEEN))
    if favourites:
        top = overlap.amax(2, keepdim=True)
        found = torch.where(((overlap == top) & (top > 0)).any(1), number, found)
    return found


@dataclass(frozen=True)
class Drawn:
    """Numbers of regions (pictures, count), those with an object first, which of them are real, and which have an object."""

    number: Tensor
    real: Tensor
    positive: Tensor


def draw_regions(positive: Tensor, negative: Tensor, count: int, most_positive: int) -> Drawn:
    """Draw `count` regions of each picture at random, of which at most `most_positive` have an object."""
    key = torch.rand(positive.shape, device=positive.device)
    top = torch.where(positive, key, -1.0).topk(min(most_positive, key.shape[1]), 1)
    keys = torch.where(negative, key, -1.0)
    keys.scatter_(1, top.indices, torch.where(top.values >= 0, top.values + 1, keys.gather(1, top.indices)))
    best = keys.topk(min(count, key.shape[1]), 1)
    return Drawn(best.indices, best.values >= 0, best.values >= 1)


def clipped(boxes: Tensor, extents: Tensor) -> Tensor:
    """Cut boxes (pictures, boxes, 4) at the sides of their pictures, whose widths and heights are `extents`."""
    most = extents.repeat(1, 2)[:, None].to(boxes.dtype)
    return torch.minimum(boxes.clamp(min=0), most)


def propose(
    scores: Sequence[Tensor],
    codes: Sequence[Tensor],
    anchors: Sequence[Tensor],
    extents: Tensor,
    *,
    before: int,
    after: int,
    threshold: float,
) -> tuple[Tensor, Tensor]:
    """Return the best boxes of each picture (pictures, boxes, 4), and which of them are real.

    Of each map, given by its scores (pictures, anchors) and codes (pictures, anchors, 4), the `before` best ones are decoded and
    suppressed; of those that remain on all maps, the `after` best ones are taken.
    """
    longest = min(before, max(one.shape[1] for one in scores))
    found, ranked = [], []
    for score, code, anchor in zip(scores, codes, anchors, strict=True):
        best, number = score.float().topk(min(before, score.shape[1]), 1)
        chosen = code.float().gather(1, number[:, :, None].expand(-1, -1, 4))
        boxes = clipped(decode(chosen, anchor[number], PLAIN, MOST_GROWTH), extents)
        pad = longest - best.shape[1]
        found.append(torch.nn.functional.pad(boxes, (0, 0, 0, pad)))
        ranked.append(torch.nn.functional.pad(best, (0, pad), value=-math.inf))
    boxes, best = torch.stack(found, 1), torch.stack(ranked, 1)
    real = (boxes[..., 2:] > boxes[..., :2]).all(-1) & (best > -math.inf)
    # Entries that are not boxes fill up the end of a map; suppression leaves them out.
    real = (real.flatten(0, 1) & suppress(boxes.flatten(0, 1), real.flatten(0, 1), threshold)).view_as(real)
    best = best.masked_fill(~real, -math.inf).flatten(1)
    top, place = best.topk(min(after, best.shape[1]), 1)
    return boxes.flatten(1, 2).gather(1, place[:, :, None].expand(-1, -1, 4)), top > -math.inf
