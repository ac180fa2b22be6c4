"""The outlines of objects as COCO has them, and the pixels that they mean: polygons, and run lengths (RLE), plain or as text.

What a polygon covers is computed as pycocotools does it (tested against it, pixel by pixel): its edges are drawn on a grid that
is five times as fine, and each crossing of a column of pixels turns all pixels below it over. Here all edges are drawn at once.

Outlines come from files that anybody may have written: numbers are verified before anything as large as they say is made.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

# Steps of the fine grid in a pixel.
FINE = 5
# An outline of COCO has some thousand steps at the most.
MOST_POINTS = 1 << 22
# Characters of a run: five bits each, and its numbers have 32.
MOST_DIGITS = 7


@dataclass(frozen=True)
class Outlines:
    """The outlines of many objects: the polygons of all in one table, and run lengths of those that have no polygons."""

    # x and y in pixels, one polygon after the other.
    points: Tensor
    # Where each polygon begins among the points, and each object among the polygons; one more at the end.
    polygons: Tensor
    objects: Tensor
    runs: dict[int, Tensor]

    def polygons_of(self, number: int) -> list[Tensor]:
        first, last = self.objects[number : number + 2].tolist()
        ends = self.polygons[first : last + 1].tolist()
        return [self.points[start:end] for start, end in pairwise(ends)]

    def mask(self, number: int, height: int, width: int) -> Tensor:
        """Return the pixels of an object (height, width) in its picture, which has this size."""
        if number in self.runs:
            return mask_of_runs(self.runs[number], height, width)
        return mask_of_polygons(self.polygons_of(number), height, width)

    def in_box(self, number: int, box: Tensor, edge: int, height: int, width: int) -> Tensor:
        """Return what the object covers of its box, on a grid of edge × edge cells."""
        if number not in self.runs:
            scale = edge / (box[2:] - box[:2])
            scaled = [(one - box[:2]) * scale for one in self.polygons_of(number)]
            # A box that is much smaller than its outline would make this one long.
            if sum(map(_steps, scaled)) <= MOST_POINTS:
                return mask_of_polygons(scaled, edge, edge)
        whole = self.mask(number, height, width)
        share = (torch.arange(edge, dtype=torch.float64) + 0.5) / edge
        column, row = (box[:2, None] + (box[2:] - box[:2])[:, None] * share).long()
        return whole[row.clamp(0, height - 1)[:, None], column.clamp(0, width - 1)]


class OutlineReader:
    """Collects the segmentations of annotations; raises ValueError, TypeError or KeyError for what is none."""

    def __init__(self) -> None:
        self._points, self._polygons, self._objects = array("d"), array("q", (0,)), array("q", (0,))
        self._runs: dict[int, Tensor] = {}

    def add(self, segmentation: Any, width: int, height: int) -> None:
        number = len(self._objects) - 1
        if isinstance(segmentation, dict):
            self._runs[number] = read_runs(segmentation, height, width)
        elif isinstance(segmentation, list) and segmentation:
            for polygon in segmentation:
                self._points.extend(_checked(polygon, width, height))
                self._polygons.append(len(self._points) // 2)
        else:
            raise ValueError("an annotation has no segmentation: neither polygons nor run lengths")
        self._objects.append(len(self._polygons) - 1)

    def finish(self) -> Outlines:
        points = torch.tensor(self._points, dtype=torch.float64).view(-1, 2)
        return Outlines(points, torch.tensor(self._polygons), torch.tensor(self._objects), self._runs)


def _checked(polygon: Any, width: int, height: int) -> list[float]:
    """Return a polygon's numbers: pairs, and not so far away from the picture that its edges would take long to draw."""
    if not isinstance(polygon, list) or len(polygon) < 6 or len(polygon) % 2:
        count = len(polygon) if isinstance(polygon, list) else type(polygon).__name__
        raise ValueError(f"a polygon must have three points or more, of two numbers each; got {count}")
    found = [float(one) for one in polygon]
    for numbers, edge in ((found[::2], width), (found[1::2], height)):
        if not all(-edge <= one <= 2 * edge for one in numbers):
            raise ValueError(f"a polygon has a point far outside of its picture of {width} × {height} pixels")
    length = sum(
        max(abs(found[place] - found[place - 2]), abs(found[place + 1] - found[place - 1]))
        for place in range(0, len(found), 2)
    )
    if length * FINE + len(found) > MOST_POINTS:
        raise ValueError(f"a polygon is longer than {MOST_POINTS // FINE} pixels")
    return found


def _steps(points: Tensor) -> float:
    """Return how many steps of the fine grid a polygon's edges take."""
    return FINE * float((points - points.roll(-1, 0)).abs().amax(1).sum()) + len(points)


# --- polygons -----------------------------------------------------------------------------------------------------------


def mask_of_polygons(polygons: Sequence[Tensor], height: int, width: int) -> Tensor:
    """Return the pixels (height, width) that any of the polygons, (points, 2), covers."""
    found = torch.zeros(height, width, dtype=torch.bool)
    for one in polygons:
        found |= _covered(one, height, width)
    return found


def _covered(points: Tensor, height: int, width: int) -> Tensor:
    fine = (points.double() * FINE + 0.5).trunc().long()
    x, y = _drawn(fine, fine.roll(-1, 0))
    across = (x[1:] != x[:-1]).nonzero()[:, 0]
    before, after = x[across], x[across + 1]
    # Only crossings in the middle of a pixel's five steps count.
    column = torch.where(after < before, after, after - 1) - FINE // 2
    real = (column % FINE == 0) & (column >= 0) & (column < width * FINE)
    column = column[real] // FINE
    upper = torch.minimum(y[across], y[across + 1])[real]
    row = ((upper + 0.5) / FINE - 0.5).clamp(0, height).ceil().long()
    turned = torch.bincount(column * height + row, minlength=height * width + 1)[:-1]
    return (turned.cumsum(0) % 2 == 1).view(width, height).T


def _drawn(start: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points on the lines from each start to its end, one line after the other, both ends included."""
    apart = (end - start).abs()
    # A line advances by one step along its longer side, always to the right or downwards; the other side is rounded.
    along = (apart[:, 0] < apart[:, 1]).long()[:, None]
    turned = start.gather(1, along) > end.gather(1, along)
    first, last = torch.where(turned, end, start), torch.where(turned, start, end)
    length = apart.gather(1, along)[:, 0]
    slope = (last - first).gather(1, 1 - along)[:, 0].double() / length
    count = length + 1
    line = torch.arange(len(count)).repeat_interleave(count)
    step = torch.arange(len(line)) - (count.cumsum(0) - count)[line]
    step = torch.where(turned[line, 0], length[line] - step, step)
    main = first.gather(1, along)[line, 0] + step
    # Of a line of a single point the slope is not a number, and nothing is added to its start.
    risen = torch.where(length[line] > 0, slope[line] * step, 0.0)
    other = (first.gather(1, 1 - along)[line, 0] + risen + 0.5).trunc().long()
    steep = along[line, 0] == 1
    return torch.where(steep, other, main), torch.where(steep, main, other)


# --- run lengths --------------------------------------------------------------------------------------------------------


def read_runs(segmentation: dict[str, Any], height: int, width: int) -> Tensor:
    """Return run lengths, of pixels without and with the object in turn, down the columns; verified for a picture's size."""
    size, counts = segmentation["size"], segmentation["counts"]
    if size != [height, width]:
        raise ValueError(f"run lengths are for a picture of the size {size}, and theirs has [{height}, {width}]")
    if not isinstance(counts, str | list) or len(counts) > MOST_DIGITS * (height * width + 1):
        raise ValueError("run lengths are neither a text nor numbers, or more than there are pixels")
    runs = _of_text(counts) if isinstance(counts, str) else [int(one) for one in counts]
    if any(not 0 <= one <= height * width for one in runs) or sum(runs) != height * width:
        raise ValueError(f"run lengths do not add up to the {height * width} pixels of their picture")
    return torch.tensor(runs, dtype=torch.long)


def _of_text(text: str) -> list[int]:
    """Read run lengths as COCO's tools write them: five bits in a character, differences to the run before the last."""
    runs: list[int] = []
    number, digits = 0, 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or digits == MOST_DIGITS:
            raise ValueError("run lengths have a character that none can have")
        number |= (bits & 31) << (5 * digits)
        digits += 1
        if bits & 32:
            continue
        if bits & 16:
            number -= 1 << (5 * digits)
        runs.append(number + (runs[-2] if len(runs) > 2 else 0))
        number = digits = 0
    if digits:
        raise ValueError("run lengths end in the middle of a number")
    return runs


def mask_of_runs(runs: Tensor, height: int, width: int) -> Tensor:
    covered = (torch.arange(len(runs)) % 2 == 1).repeat_interleave(runs)
    return covered.view(width, height).T
