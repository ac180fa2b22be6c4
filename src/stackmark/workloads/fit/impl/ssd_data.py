"""COCO's pictures as SSD takes them: one size, and in training a crop that keeps enough of the objects, a flip, other colours.

The crop is drawn before the picture is decoded, so that only what is needed is resized. Flips and colours are made for a whole
batch where the model is.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.backbone_weights import RESNET34
from stackmark.workloads.fit.impl.boxes import areas, intersections, iou
from stackmark.workloads.fit.impl.coco import WHOLE, Crop, hash_of_parts, read_ahead, read_parts
from stackmark.workloads.fit.impl.detection_data import Labelled
from stackmark.workloads.fit.impl.hashing import hashed

# The least overlap of the crop with each object; None: the whole picture.
LEAST_OVERLAPS = (None, 0.1, 0.3, 0.5, 0.7, 0.9, 0.0)
SMALLEST, MOST_ASPECT = 0.3, 2.0
# Crops that are tried for one draw of the overlap, and draws after which the whole picture is taken.
TRIES, MOST_DRAWS = 1, 100
BRIGHTNESS, CONTRAST, SATURATION, HUE = 0.125, 0.5, 0.5, 0.05
# The rows are how bright a colour is, and two that say which colour it is (NTSC's YIQ).
TO_YIQ = torch.tensor(((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112)))
# Once and on the CPU: a GPU would have to be waited for.
FROM_YIQ = torch.linalg.inv(TO_YIQ)


# --- the folder ---------------------------------------------------------------------------------------------------------


class CocoFolder:
    """COCO's two parts. Crowds are not trained: a default box cannot find one."""

    def __init__(self, folder: Path, px: int, threads: int) -> None:
        train, test = read_parts(folder)
        self._train, self._test, self._px, self._threads = train, test, px, threads
        self._ends = train.counts.cumsum(0).tolist()
        self._usable = train.usable()
        self.truth, self.true_boxes, self.sizes = test.truth(), test.boxes, test.sizes
        self.classes = 1 + len(train.categories)
        self.samples, self.test_samples = len(self._usable), len(test.names)
        self.sha256 = hash_of_parts(train, test, RESNET34.find(folder))

    def train(self, plan: Sequence[Tensor], epoch_seed: int) -> Iterator[Labelled]:
        def read(number: int) -> tuple[Tensor, Tensor, Tensor]:
            chance = Random(int(hashed(epoch_seed, number)))
            crop, boxes, labels = draw_crop(*self._objects(number), chance)
            return self._train.read(number, (self._px, self._px), crop), boxes, labels

        yield from read_ahead(read, _joined, [self._usable[numbers] for numbers in plan], self._threads)

    def test(self, plan: Sequence[Tensor]) -> Iterator[Tensor]:
        def read(number: int) -> Tensor:
            return self._test.read(number, (self._px, self._px))

        yield from read_ahead(read, torch.stack, plan, self._threads)

    def _objects(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the boxes of a picture as shares of it, and their classes."""
        own = slice(self._ends[number] - int(self._train.counts[number]), self._ends[number])
        kept = ~self._train.crowds[own]
        size = self._train.sizes[number].repeat(2)
        return (self._train.boxes[own][kept] / size).clamp(0, 1).float(), self._train.labels[own][kept]


def _joined(read: Sequence[tuple[Tensor, Tensor, Tensor]]) -> Labelled:
    pictures, boxes, labels = (list(part) for part in zip(*read, strict=True))
    pad = torch.nn.utils.rnn.pad_sequence
    return Labelled(torch.stack(pictures), pad(boxes, batch_first=True), pad(labels, batch_first=True))


def hash_of(folder: Path) -> str:
    return hash_of_parts(*read_parts(folder), RESNET34.find(folder))


# --- crop, flip, colours ------------------------------------------------------------------------------------------------


def draw_crop(boxes: Tensor, labels: Tensor, chance: Random) -> tuple[Crop, Tensor, Tensor]:
    """Return a crop, the boxes as shares of it, and their labels: the objects whose centres are in it, cut at its sides."""
    for _ in range(MOST_DRAWS):
        least = chance.choice(LEAST_OVERLAPS)
        if least is None:
            break
        for _ in range(TRIES):
            width, height = chance.uniform(SMALLEST, 1), chance.uniform(SMALLEST, 1)
            left, top = chance.uniform(0, 1 - width), chance.uniform(0, 1 - height)
            if not 1 / MOST_ASPECT <= width / height <= MOST_ASPECT:
                continue
            crop = torch.tensor([left, top, left + width, top + height])
            if bool((iou(boxes, crop) < least).any()):
                continue
            centres = (boxes[:, :2] + boxes[:, 2:]) / 2
            inside = ((centres > crop[:2]) & (centres < crop[2:])).all(1) & (intersections(boxes, crop) > 0)
            if not bool(inside.any()):
                continue
            kept = boxes[inside].clamp(crop[:2].repeat(2), crop[2:].repeat(2))
            size = torch.tensor([width, height] * 2)
            return (left, top, left + width, top + height), (kept - crop[:2].repeat(2)) / size, labels[inside]
    real = areas(boxes) > 0
    return WHOLE, boxes[real], labels[real]


def flip(batch: Labelled) -> Labelled:
    """Flip half of the pictures and their boxes from left to right."""
    flipped = torch.rand(len(batch), device=batch.pictures.device) < 0.5
    pictures = torch.where(flipped[:, None, None, None], batch.pictures.flip(3), batch.pictures)
    left, top, right, bottom = batch.boxes.unbind(2)
    boxes = torch.where(flipped[:, None, None], torch.stack((1 - right, top, 1 - left, bottom), 2), batch.boxes)
    return Labelled(pictures, boxes, batch.labels)


def recolour(pictures: Tensor) -> Tensor:
    """Change brightness, contrast, saturation and hue of each picture (n, 3, height, width; 0 to 1) by chance.

    Together they are one matrix and one offset for each picture. The hue is turned in the plane of YIQ, and colours are cut to
    what there is once, at the end.
    """
    count, device = len(pictures), pictures.device

    def drawn(spread: float) -> Tensor:
        return (2 * torch.rand(count, device=device) - 1) * spread

    bright, contrast, saturation = 1 + drawn(BRIGHTNESS), 1 + drawn(CONTRAST), 1 + drawn(SATURATION)
    angle = drawn(HUE) * 2 * math.pi
    to_yiq, from_yiq = TO_YIQ.to(device), FROM_YIQ.to(device)
    turn = torch.zeros(count, 3, 3, device=device)
    turn[:, 0, 0] = 1
    turn[:, 1, 1] = turn[:, 2, 2] = saturation * angle.cos()
    turn[:, 2, 1] = saturation * angle.sin()
    turn[:, 1, 2] = -turn[:, 2, 1]
    matrix = from_yiq @ turn @ to_yiq * (bright * contrast)[:, None, None]
    # Contrast is about the mean brightness of the picture.
    grey = (pictures.mean((2, 3)) @ to_yiq[0]) * bright * (1 - contrast)
    changed = torch.einsum("nij,njhw->nihw", matrix, pictures) + grey[:, None, None, None]
    return changed.clamp_(0, 1)
