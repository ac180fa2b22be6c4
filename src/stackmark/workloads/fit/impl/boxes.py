"""Boxes of detectors, for whole batches: overlaps, matches with default boxes, codes, suppression, and the best of each class.

A box is (left, top, right, bottom). Everything here is vectorised: no loop runs over boxes, classes or images, so that a GPU does
in a few calls what a loop would do in thousands.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Codes are offsets divided by these: of the centre, and of the logarithm of the size.
VARIANCES = (0.1, 0.2)
# Pairs of boxes that are compared together in a suppression: little memory, few calls.
COMPARED_TOGETHER = 1 << 24


def areas(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def intersections(one: Tensor, other: Tensor) -> Tensor:
    """Return the area that two boxes share; the shapes before the last dimension are broadcast."""
    width = torch.minimum(one[..., 2], other[..., 2]) - torch.maximum(one[..., 0], other[..., 0])
    height = torch.minimum(one[..., 3], other[..., 3]) - torch.maximum(one[..., 1], other[..., 1])
    return width.clamp_(min=0).mul_(height.clamp_(min=0))


def iou(one: Tensor, other: Tensor) -> Tensor:
    """Return the intersection over union of two boxes; the shapes before the last dimension are broadcast."""
    shared = intersections(one, other)
    return shared / (areas(one) + areas(other) - shared).clamp_(min=torch.finfo(shared.dtype).tiny)


def centred(boxes: Tensor) -> Tensor:
    """Return boxes as (centre x, centre y, width, height)."""
    first, last = boxes[..., :2], boxes[..., 2:]
    return torch.cat(((first + last) / 2, last - first), -1)


def cornered(boxes: Tensor) -> Tensor:
    """Return (centre x, centre y, width, height) as boxes."""
    centre, half = boxes[..., :2], boxes[..., 2:] / 2
    return torch.cat((centre - half, centre + half), -1)


def encode(boxes: Tensor, defaults: Tensor, variances: tuple[float, float] = VARIANCES) -> Tensor:
    """Return what a network has to say of default boxes (centred) so that `decode` finds the boxes."""
    wanted = centred(boxes)
    centre = (wanted[..., :2] - defaults[..., :2]) / defaults[..., 2:] / variances[0]
    return torch.cat((centre, (wanted[..., 2:] / defaults[..., 2:]).log() / variances[1]), -1)


def decode(
    codes: Tensor, defaults: Tensor, variances: tuple[float, float] = VARIANCES, most_growth: float = math.inf
) -> Tensor:
    """Return the boxes that codes of default boxes (centred) mean. A side grows by e^`most_growth` at the most."""
    centre = defaults[..., :2] + codes[..., :2] * variances[0] * defaults[..., 2:]
    growth = (codes[..., 2:] * variances[1]).clamp(max=most_growth)
    return cornered(torch.cat((centre, defaults[..., 2:] * growth.exp()), -1))


def match(defaults: Tensor, boxes: Tensor, real: Tensor, threshold: float) -> Tensor:
    """Return for each image and default box the number of the box that it has to find, or -1.

    A default box finds the box that it overlaps most, if by more than the threshold. The default box that overlaps a box most
    finds that box in any case; of several such boxes, the last one. `defaults` (defaults, 4) are corners like `boxes` (images,
    most boxes, 4), of which those that are not `real` fill up the rows.
    """
    images, most = real.shape
    overlap = iou(boxes[:, :, None], defaults).masked_fill_(~real[:, :, None], -1)
    best, number = overlap.max(1)
    found = number.masked_fill_(best <= threshold, -1)
    favourite = overlap.argmax(2).masked_fill_(~real, len(defaults))
    forced = torch.full((images, len(defaults) + 1), -1, device=boxes.device)
    forced.scatter_reduce_(1, favourite, torch.arange(most, device=boxes.device).expand(images, most), "amax")
    return torch.where(forced[:, :-1] >= 0, forced[:, :-1], found)


def suppress(boxes: Tensor, real: Tensor, threshold: float) -> Tensor:
    """Tell which boxes of each group remain: a box goes if one that remains overlaps it by more than the threshold.

    `boxes` (groups, boxes, 4) are ordered from the best one. Which remain is found for all at once: a box that no better one
    overlaps remains, and what it overlaps goes; this is repeated until nothing changes. The n-th box is right after n rounds at
    the latest, and a few rounds are usual.
    """
    groups, count = real.shape
    together = max(1, COMPARED_TOGETHER // max(1, count * count))
    if groups > together:
        parts = zip(boxes.split(together), real.split(together), strict=True)
        return torch.cat([suppress(some, some_real, threshold) for some, some_real in parts])
    better = torch.ones((count, count), dtype=torch.bool, device=boxes.device).tril_(-1)
    overlapped = (iou(boxes[:, :, None], boxes[:, None]) > threshold) & better
    remain = real
    while True:
        after = real & ~(overlapped & remain[:, None]).any(2)
        if torch.equal(after, remain):
            return remain
        remain = after


@dataclass(frozen=True)
class Found:
    """Of each picture the best boxes with their classes from 1; a score of 0 fills up the rows."""

    boxes: Tensor
    labels: Tensor
    scores: Tensor


def best_of_classes(
    scores: Tensor, boxes: Tensor, *, least: float, threshold: float, most: int, most_of_class: int
) -> Found:
    """Suppress by class, and keep the `most` boxes with the highest scores of each picture.

    `scores` (pictures, classes, boxes) leave out the background. `boxes` (pictures, classes or 1, boxes, 4) may be other ones for
    each class. Of a class, the `most_of_class` best ones with a score above `least` are looked at.
    """
    pictures, classes, count = scores.shape
    best, number = scores.masked_fill(scores <= least, 0).topk(min(most_of_class, count), 2)
    # Few classes of a picture have as many boxes as are allowed.
    longest = max(1, int((best > 0).sum(2).max()))
    best, number = best[:, :, :longest].flatten(0, 1), number[:, :, :longest, None].expand(-1, -1, -1, 4)
    chosen = boxes.expand(-1, classes, -1, -1).gather(2, number).flatten(0, 1)
    best = (best * suppress(chosen, best > 0, threshold)).view(pictures, -1)
    top, place = best.topk(min(most, best.shape[1]), 1)
    kept = chosen.view(pictures, -1, 4).gather(1, place[:, :, None].expand(-1, -1, 4))
    return Found(kept, place // longest + 1, top)
