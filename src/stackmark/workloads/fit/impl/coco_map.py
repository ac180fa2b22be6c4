"""COCO's mean average precision, as pycocotools computes it (tested against it), for all classes and thresholds together.

In each image and class, detections take objects in the order of their scores: the one they overlap most, by no less than the
threshold, that no better detection has taken. What is matched with a crowd, or is of another size than is asked for, counts
neither way. How two things overlap is a function: of boxes here (`box_overlaps`), of masks as well.

An image is judged alone, so ranks judge their own images, and only the judgements (`Judged`) are brought together.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.boxes import areas, intersections

# To the last bit as numpy.linspace makes them: recalls are compared with quotients of whole numbers.
THRESHOLDS = (*(0.5 + step * ((0.95 - 0.5) / 9) for step in range(9)), 0.95)
RECALLS = tuple(step * 0.01 for step in range(101))
MOST_DETECTIONS = 100
ALL_SIZES = (0.0, math.inf)
# Pairs of a detection and an object that are looked at together.
LOOKED_AT_TOGETHER = 1 << 18

# Takes the numbers of detections and of objects, of shapes that broadcast, and returns how much each pair overlaps.
Overlaps = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Truth:
    """The objects of all images. Classes are counted from 0."""

    image: Tensor
    label: Tensor
    area: Tensor
    crowd: Tensor

    def positives(self, classes: int, sizes: tuple[float, float] = ALL_SIZES) -> Tensor:
        """Return how many objects of each class there are to be found."""
        return torch.bincount(self.label[~self.ignored(sizes)], minlength=classes)

    def ignored(self, sizes: tuple[float, float]) -> Tensor:
        return self.crowd | _outside(self.area, sizes)


@dataclass(frozen=True)
class Detections:
    image: Tensor
    label: Tensor
    area: Tensor
    score: Tensor


@dataclass(frozen=True)
class Judged:
    """Detections with what each is at each threshold: a hit or not, and whether it counts."""

    image: Tensor
    label: Tensor
    score: Tensor
    hit: Tensor
    ignored: Tensor

    def entries(self) -> list[list[Any]]:
        """Return them as what JSON can hold, with the thresholds as the bits of a number."""
        bits = 1 << torch.arange(len(THRESHOLDS))
        columns = (self.image, self.label, self.score, (self.hit * bits).sum(1), (self.ignored * bits).sum(1))
        return [list(row) for row in zip(*(column.tolist() for column in columns), strict=True)]

    @staticmethod
    def of(entries: list[list[Any]]) -> "Judged":
        image, label, score, hit, ignored = zip(*entries, strict=True) if entries else ((),) * 5
        bits = 1 << torch.arange(len(THRESHOLDS))
        return Judged(
            torch.tensor(image, dtype=torch.long),
            torch.tensor(label, dtype=torch.long),
            torch.tensor(score, dtype=torch.float64),
            (torch.tensor(hit, dtype=torch.long)[:, None] & bits) > 0,
            (torch.tensor(ignored, dtype=torch.long)[:, None] & bits) > 0,
        )


def box_overlaps(found: Tensor, true: Tensor, crowd: Tensor) -> Overlaps:
    """Overlap boxes by intersection over union; with a crowd, by the share of the detection that lies in it."""
    found, true = found.double(), true.double()
    found_areas, true_areas = areas(found), areas(true)

    def overlap(detection: Tensor, thing: Tensor) -> Tensor:
        shared = intersections(found[detection], true[thing])
        own = found_areas[detection]
        union = torch.where(crowd[thing], own, own + true_areas[thing] - shared)
        return shared / union.clamp(min=torch.finfo(torch.float64).tiny)

    return overlap


def _outside(area: Tensor, sizes: tuple[float, float]) -> Tensor:
    return (area < sizes[0]) | (area > sizes[1])


# --- which detection finds what -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Groups:
    """Rows that are sorted by image and class: where each group begins, and how many it has."""

    keys: Tensor
    starts: Tensor
    counts: Tensor

    @staticmethod
    def of(sorted_keys: Tensor) -> "_Groups":
        keys, counts = sorted_keys.unique_consecutive(return_counts=True)
        return _Groups(keys, counts.cumsum(0) - counts, counts)

    def of_keys(self, keys: Tensor) -> Tensor:
        """Return the numbers of the groups with these keys, which it has."""
        return torch.searchsorted(self.keys, keys)

    def table(self, which: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of some groups, one group in a line, and which of the line are the group's."""
        place = torch.arange(int(self.counts[which].max()))
        real = place < self.counts[which, None]
        return (self.starts[which, None] + place).masked_fill_(~real, 0), real


def judge(
    detections: Detections,
    truth: Truth,
    overlaps: Overlaps,
    *,
    sizes: tuple[float, float] = ALL_SIZES,
    most: int = MOST_DETECTIONS,
) -> Judged:
    """Find out what each detection is. Of an image and class, the `most` with the highest scores are looked at."""
    classes = 1 + max((int(part.max()) for part in (detections.label, truth.label) if len(part)), default=0)
    order = (-detections.score).argsort(stable=True)
    order = order[(detections.image * classes + detections.label)[order].argsort(stable=True)]
    keys = (detections.image * classes + detections.label)[order]
    found = _Groups.of(keys)
    rank = torch.arange(len(keys)) - found.starts.repeat_interleave(found.counts)
    order, keys = order[rank < most], keys[rank < most]
    found = _Groups.of(keys)

    ignored = truth.ignored(sizes)
    things = ((truth.image * classes + truth.label) * 2 + ignored.long()).argsort(stable=True)
    wanted = _Groups.of((truth.image * classes + truth.label)[things])

    hit = torch.zeros((len(order), len(THRESHOLDS)), dtype=torch.bool)
    unasked = _outside(detections.area[order], sizes)[:, None].repeat(1, len(THRESHOLDS))
    both = wanted.keys[torch.isin(wanted.keys, found.keys)]
    # Alike ones together, so that tables have few gaps.
    both = both[wanted.counts[wanted.of_keys(both)].argsort(stable=True)]
    for some in _stretches(both, found, wanted):
        rows, real_rows = found.table(found.of_keys(some))
        columns, real_columns = wanted.table(wanted.of_keys(some))
        number = things[columns]
        overlap = overlaps(order[rows][:, :, None], number[:, None]).masked_fill_(~real_columns[:, None], -1)
        hits, ignores = _taken(overlap, real_rows, truth.crowd[number], ignored[number])
        hit[rows[real_rows]] = hits[real_rows]
        unasked[rows[real_rows]] = torch.where(hits, ignores, unasked[rows])[real_rows]
    return Judged(detections.image[order], detections.label[order], detections.score[order].double(), hit, unasked)


def _stretches(keys: Tensor, found: _Groups, wanted: _Groups) -> list[Tensor]:
    """Cut groups into stretches with tables of some size, each ordered from the group with the most detections."""
    if not len(keys):
        return []
    counts = found.counts[found.of_keys(keys)]
    sizes = (counts + len(THRESHOLDS)) * wanted.counts[wanted.of_keys(keys)]
    lengths = torch.unique_consecutive(sizes.cumsum(0) // LOOKED_AT_TOGETHER, return_counts=True)[1].tolist()
    parts = zip(keys.split(lengths), counts.split(lengths), strict=True)
    return [some[count.argsort(descending=True, stable=True)] for some, count in parts]


def _taken(overlap: Tensor, real: Tensor, crowd: Tensor, ignored: Tensor) -> tuple[Tensor, Tensor]:
    """Let detections (groups, detections) take objects (groups, objects), one after the other in all groups at once.

    An object that counts goes before one that is ignored; of equal overlaps the last one is taken; a crowd is never used up.
    Groups with more detections come first: those that are through are looked at no more.
    """
    groups, detections, objects = overlap.shape
    least = torch.tensor(THRESHOLDS, dtype=torch.float64).clamp(max=1 - 1e-10)[:, None]
    taken = torch.zeros((groups, len(THRESHOLDS), objects), dtype=torch.bool)
    hits = torch.zeros((groups, detections, len(THRESHOLDS)), dtype=torch.bool)
    ignores = torch.zeros_like(hits)
    place = torch.arange(objects)
    for number, left in enumerate(real.sum(0).tolist()):
        own = overlap[:left, number, None]
        free = (own >= least) & (~taken[:left] | crowd[:left, None])
        counts = free & ~ignored[:left, None]
        free = torch.where(counts.any(2, keepdim=True), counts, free)
        best = torch.where(free, own, -1.0).amax(2, keepdim=True)
        chosen = torch.where(free & (own == best), place, -1).amax(2)
        hits[:left, number] = chosen >= 0
        ignores[:left, number] = ignored[:left].gather(1, chosen.clamp(min=0)) & (chosen >= 0)
        taken[:left] |= place == chosen[:, :, None]
    return hits, ignores


# --- precision and recall -----------------------------------------------------------------------------------------------


def average_precision(judged: Judged, positives: Tensor) -> Tensor:
    """Return the average precision by threshold and class; NaN for a class of which there is nothing to be found."""
    # Of equal scores in the order of the images, and in each of what was detected.
    order = judged.image.argsort(stable=True)
    order = order[(-judged.score[order]).argsort(stable=True)]
    order = order[judged.label[order].argsort(stable=True)]
    groups = _Groups.of(judged.label[order])
    found = torch.zeros((len(THRESHOLDS), len(positives)), dtype=torch.float64)
    wanted = torch.tensor(RECALLS, dtype=torch.float64).repeat(len(THRESHOLDS), 1)
    for label, start, count in zip(
        *(part.tolist() for part in (groups.keys, groups.starts, groups.counts)), strict=True
    ):
        if not positives[label]:
            continue
        rows = order[start : start + count]
        counted = ~judged.ignored[rows].T
        right = (judged.hit[rows].T & counted).cumsum(1).double()
        wrong = (~judged.hit[rows].T & counted).cumsum(1)
        precision = right / (right + wrong + torch.finfo(torch.float64).eps)
        # The best precision at this recall or a higher one.
        precision = precision.flip(1).cummax(1).values.flip(1)
        reached = torch.searchsorted((right / positives[label]).contiguous(), wanted)
        # Beyond the highest recall the precision is 0.
        found[:, label] = torch.nn.functional.pad(precision, (0, 1)).gather(1, reached).mean(1)
    return found.masked_fill_(positives == 0, math.nan)


def mean_average_precision(judged: Judged, positives: Tensor) -> float:
    """Return COCO's first number: the mean over thresholds from 0.5 to 0.95 and over classes; 0 where nothing is to be found."""
    return float(average_precision(judged, positives)[:, positives > 0].mean()) if bool(positives.any()) else 0.0
