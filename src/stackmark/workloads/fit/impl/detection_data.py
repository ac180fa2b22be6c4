"""Pictures with labelled boxes for the detection tasks: what a data set offers, and one that lies in memory.

Boxes are shares of the picture's width and height, so that a picture may have any size. Classes are counted from 1; a label of 0
fills up the rows of pictures that have fewer boxes than others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.boxes import areas
from stackmark.workloads.fit.impl.coco_map import Truth
from stackmark.workloads.fit.impl.hashing import sha256_of


@dataclass(frozen=True)
class Labelled:
    """Pictures (n, 3, height, width) as bytes, boxes (n, most, 4) and labels (n, most)."""

    pictures: Tensor
    boxes: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.pictures)

    def to(self, device: torch.device) -> "Labelled":
        return Labelled(*(part.to(device, non_blocking=True) for part in (self.pictures, self.boxes, self.labels)))

    def rows(self, numbers: Tensor) -> "Labelled":
        return Labelled(self.pictures[numbers], self.boxes[numbers], self.labels[numbers])


class DetectionData(Protocol):
    # With the background.
    classes: int
    samples: int
    test_samples: int
    sha256: str
    # Of the pictures of the test: their objects, in pixels, and their widths and heights.
    truth: Truth
    true_boxes: Tensor
    sizes: Tensor

    def train(self, plan: Sequence[Tensor], epoch_seed: int) -> Iterator[Labelled]:
        """Yield batches of an epoch: of each, the numbers of its pictures. They may lie on any device."""

    def test(self, plan: Sequence[Tensor]) -> Iterator[Tensor]:
        """Yield the pictures of each batch."""


class InMemory:
    """Data on the device itself: nothing is read or sent in a step."""

    def __init__(self, train: Labelled, test: Labelled, classes: int, kind: str) -> None:
        """Take both sets as they are on the CPU; `kind` says what they are, for the hash."""
        self.classes, self.samples, self.test_samples = classes, len(train), len(test)
        self.sha256 = sha256_of(
            kind, *(part for one in (train, test) for part in (one.pictures, one.boxes, one.labels))
        )
        self._train, self._test = train, test
        height, width = test.pictures.shape[2:]
        self.sizes = torch.tensor([width, height]).expand(len(test), 2)
        image, place = test.labels.nonzero(as_tuple=True)
        self.true_boxes = test.boxes[image, place].double() * torch.tensor([width, height] * 2)
        label = test.labels[image, place] - 1
        self.truth = Truth(image, label, areas(self.true_boxes), torch.zeros_like(label, dtype=torch.bool))

    def to(self, device: torch.device) -> "InMemory":
        self._train, self._test = self._train.to(device), self._test.to(device)
        return self

    def train(self, plan: Sequence[Tensor], epoch_seed: int) -> Iterator[Labelled]:
        for numbers in plan:
            yield self._train.rows(numbers.to(self._train.pictures.device))

    def test(self, plan: Sequence[Tensor]) -> Iterator[Tensor]:
        for numbers in plan:
            yield self._test.pictures[numbers.to(self._test.pictures.device)]


def plan_of_rank(order: Tensor, batch: int, number: int, size: int) -> list[Tensor]:
    """Cut an order that all ranks have into batches, and each batch into equal parts; return the parts of one rank.

    Up to size − 1 samples are left out at the end, so that all ranks do as many steps.
    """
    found = []
    for whole in order.split(batch * size):
        each = len(whole) // size
        if each:
            found.append(whole[number * each : (number + 1) * each])
    return found
