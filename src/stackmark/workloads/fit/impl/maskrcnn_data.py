"""Pictures with outlined objects: scenes in memory, COCO's folder, and random pictures of its shape.

What is trained has boxes in pixels, and of each object what it covers of its own box, on a grid: so it can be sent to a device,
flipped and cut out again without its outline. What is tested has the true pixels of each object.

Whether a picture is flipped depends on the seed, the epoch and the picture's number.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.backbone_weights import RESNET50
from stackmark.workloads.fit.impl.coco import Instances, hash_of_parts, read_ahead, read_parts
from stackmark.workloads.fit.impl.coco_map import Truth
from stackmark.workloads.fit.impl.detection_data import InMemory, Labelled, plan_of_rank
from stackmark.workloads.fit.impl.hashing import hashed, sha256_of, uniform
from stackmark.workloads.fit.impl.regions import fitted, resampled
from stackmark.workloads.fit.impl.scenes import (
    FIRST_TESTED,
    SEED,
    Figures,
    draw_outlined,
    garment_figures,
    plain_figures,
)

# Cells along an edge of what is kept of an object: four for each of the mask's, which has 28; scenes are small.
CELLS, SCENE_CELLS = 112, 48
TRAINED, TESTED = 300, 60
GARMENTS_TRAINED, GARMENTS_TESTED = 1000, 200
# The sides of pictures are filled up to multiples of this: each map of the pyramid has half of the one before.
MULTIPLE = 32
# Random pictures of the full shape.
RANDOM_SIZE, RANDOM_TRAINED, RANDOM_TESTED, RANDOM_CLASSES, RANDOM_BOXES = (1333, 800), 256, 16, 81, 8


@dataclass(frozen=True)
class Outlined:
    """Pictures (n, 3, height, width) as bytes, filled up on the right and below; widths and heights of what is real (n, 2); boxes
    (n, most, 4) in pixels, labels (n, most) from 1, and what each object covers of its box (n, most, cells, cells)."""

    pictures: Tensor
    extents: Tensor
    boxes: Tensor
    labels: Tensor
    masks: Tensor

    def __len__(self) -> int:
        return len(self.pictures)

    def to(self, device: torch.device) -> "Outlined":
        return Outlined(
            *(
                part.to(device, non_blocking=True)
                for part in (self.pictures, self.extents, self.boxes, self.labels, self.masks)
            )
        )


@dataclass(frozen=True)
class PixelBatch:
    """Pictures with their extents, and of each picture the true pixels (objects, height, width) in its own size."""

    pictures: Tensor
    extents: Tensor
    pixels: list[Tensor]


class OutlinedData(Protocol):
    # With the background.
    classes: int
    samples: int
    test_samples: int
    sha256: str
    # Of the pictures that are trained: whether they are higher than wide.
    upright: Tensor
    # Of the pictures of the test: their objects, in pixels, and their widths and heights.
    truth: Truth
    true_boxes: Tensor
    sizes: Tensor

    def train(self, plan: Sequence[Tensor], epoch_seed: int) -> Iterator[Outlined]:
        """Yield batches of an epoch: of each, the numbers of its pictures. They may lie on any device."""

    def test(self, plan: Sequence[Tensor]) -> Iterator[PixelBatch]:
        """Yield the pictures of each batch."""


def plan_by_shape(upright: Tensor, epoch_seed: int, batch: int, number: int, size: int) -> list[Tensor]:
    """Return a rank's batches of an epoch in an order that all ranks draw alike: a batch has upright pictures, or none.

    So few pictures are filled up much. Of a batch with too few pictures for all ranks some are left out, as in `plan_of_rank`.
    """
    generator = torch.Generator().manual_seed(epoch_seed)
    order = torch.randperm(len(upright), generator=generator)
    plan = [
        part for shape in (False, True) for part in plan_of_rank(order[upright[order] == shape], batch, number, size)
    ]
    return [plan[place] for place in torch.randperm(len(plan), generator=generator).tolist()]


def flip_boxes(boxes: Tensor, width: Tensor) -> Tensor:
    left, top, right, bottom = boxes.unbind(-1)
    return torch.stack((width - right, top, width - left, bottom), -1)


# --- scenes -------------------------------------------------------------------------------------------------------------


class OutlinedScenes:
    """Scenes on the device itself, all of one size."""

    def __init__(self, train: tuple[Labelled, Tensor], test: tuple[Labelled, Tensor], classes: int, kind: str) -> None:
        """Take both sets, with the pixels of their objects, as they are on the CPU."""
        boxes = InMemory(train[0], test[0], classes, kind)
        self.classes, self.samples, self.test_samples = classes, boxes.samples, boxes.test_samples
        self.sha256 = sha256_of(boxes.sha256, train[1], test[1])
        self.truth, self.true_boxes, self.sizes = boxes.truth, boxes.true_boxes, boxes.sizes
        self.upright = torch.zeros(self.samples, dtype=torch.bool)
        labelled, pixels = train
        edge = torch.tensor([*pixels.shape[2:]]).flip(0)
        own = labelled.boxes * edge.repeat(2)
        whole = torch.cat((torch.zeros(2), edge)).expand(own.flatten(0, 1).shape)
        covered = resampled(pixels.flatten(0, 1).float(), whole, own.flatten(0, 1), SCENE_CELLS, SCENE_CELLS) >= 0.5
        extents = edge.expand(self.samples, 2)
        self._train = Outlined(
            labelled.pictures, extents, own, labelled.labels, covered.view(*pixels.shape[:2], *covered.shape[1:])
        )
        self._pictures = test[0].pictures
        self._pixels = [test[1][number][test[0].labels[number] > 0] for number in range(self.test_samples)]

    def to(self, device: torch.device) -> "OutlinedScenes":
        self._train, self._pictures = self._train.to(device), self._pictures.to(device)
        return self

    def train(self, plan: Sequence[Tensor], epoch_seed: int) -> Iterator[Outlined]:
        whole = self._train
        for numbers in plan:
            rows = numbers.to(whole.pictures.device)
            flipped = hashed(epoch_seed, rows) % 2 == 1
            pictures, boxes, masks = whole.pictures[rows], whole.boxes[rows], whole.masks[rows]
            extents = whole.extents[rows]
            yield Outlined(
                torch.where(flipped[:, None, None, None], pictures.flip(3), pictures),
                extents,
                torch.where(flipped[:, None, None], flip_boxes(boxes, extents[:, :1]), boxes),
                whole.labels[rows],
                torch.where(flipped[:, None, None, None], masks.flip(3), masks),
            )

    def test(self, plan: Sequence[Tensor]) -> Iterator[PixelBatch]:
        for numbers in plan:
            pictures = self._pictures[numbers.to(self._pictures.device)]
            extents = self.sizes[numbers].to(pictures.device)
            yield PixelBatch(pictures, extents, [self._pixels[number] for number in numbers.tolist()])


def outlined_scenes() -> OutlinedScenes:
    figures = plain_figures()
    train, test = draw_outlined(figures, 0, TRAINED), draw_outlined(figures, FIRST_TESTED, TESTED)
    return OutlinedScenes(train, test, 1 + int(figures.labels.max()), "outlined scenes")


def outlined_garments(folder: Path) -> OutlinedScenes:
    """Compose scenes of garments; those of the test are other garments than those that are trained."""
    figures: list[Figures] = [garment_figures(folder, training) for training in (True, False)]
    train = draw_outlined(figures[0], 0, GARMENTS_TRAINED)
    test = draw_outlined(figures[1], FIRST_TESTED, GARMENTS_TESTED)
    return OutlinedScenes(train, test, 1 + int(figures[0].labels.max()), "outlined scenes of garments")


# --- random pictures ----------------------------------------------------------------------------------------------------


class RandomPictures:
    """Noise with random boxes of random classes, in each of which an ellipse is the object: of it nothing can be learned.

    One picture of noise is turned for each number, so that the pictures need no memory and no time worth mentioning.
    """

    def __init__(
        self, trained: int = RANDOM_TRAINED, tested: int = RANDOM_TESTED, size: tuple[int, int] = RANDOM_SIZE
    ) -> None:
        self.classes, self.samples, self.test_samples = RANDOM_CLASSES, trained, tested
        self._size, self._device = size, torch.device("cpu")
        said = f"random pictures {SEED} {trained} {tested} {size} {RANDOM_CLASSES} {RANDOM_BOXES} {CELLS}"
        self.sha256 = hashlib.sha256(said.encode()).hexdigest()
        width, height = size
        self.upright = torch.full((trained,), height > width)
        self._noise = (hashed(SEED, 20, torch.arange(3 * width * height)) & 255).byte().view(3, height, width)
        place = 2 * torch.arange(CELLS) + 1 - CELLS
        self._ellipse = place**2 + place[:, None] ** 2 <= CELLS**2
        boxes, labels = self._objects(torch.arange(FIRST_TESTED, FIRST_TESTED + tested))
        image, number = labels.nonzero(as_tuple=True)
        self.true_boxes = boxes[image, number].double()
        sides = self.true_boxes[:, 2:] - self.true_boxes[:, :2]
        crowds = torch.zeros(len(image), dtype=torch.bool)
        self.truth = Truth(image, labels[image, number] - 1, sides.prod(1) * torch.pi / 4, crowds)
        self.sizes = torch.tensor(size).expand(tested, 2)

    def to(self, device: torch.device) -> "RandomPictures":
        self._device, self._noise, self._ellipse = device, self._noise.to(device), self._ellipse.to(device)
        return self

    def _objects(self, index: Tensor) -> tuple[Tensor, Tensor]:
        slot = torch.arange(RANDOM_BOXES)
        parts = (index[:, None, None], slot[:, None], torch.arange(2))
        share = 0.05 + 0.6 * uniform(SEED, 21, *parts) ** 2
        corner = (1 - share) * uniform(SEED, 22, *parts)
        labels = 1 + hashed(SEED, 23, index[:, None], slot) % (self.classes - 1)
        real = slot <= (hashed(SEED, 24, index) % RANDOM_BOXES)[:, None]
        boxes = torch.cat((corner, corner + share), 2) * torch.tensor(self._size).repeat(2)
        return boxes.float() * real[:, :, None], labels * real

    def _pictures(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        turned = [self._noise.roll((7 * one, 3 * one), (1, 2)) for one in numbers.tolist()]
        pictures = filled_up(turned)
        return pictures, torch.tensor(self._size, device=self._device).expand(len(numbers), 2)

    def train(self, plan: Sequence[Tensor], epoch_seed: int) -> Iterator[Outlined]:
        for numbers in plan:
            boxes, labels = (part.to(self._device) for part in self._objects(numbers))
            yield Outlined(*self._pictures(numbers), boxes, labels, self._ellipse.expand(*labels.shape, -1, -1))

    def test(self, plan: Sequence[Tensor]) -> Iterator[PixelBatch]:
        for numbers in plan:
            pixels = []
            for number in numbers.tolist():
                boxes = self.true_boxes[self.truth.image == number].float().to(self._device)
                masks = self._ellipse.float().expand(len(boxes), -1, -1)
                window = torch.tensor([0, 0, *self._size], device=self._device).expand(len(boxes), 4)
                pixels.append(resampled(masks, boxes, window, self._size[1], self._size[0]) >= 0.5)
            yield PixelBatch(*self._pictures(FIRST_TESTED + numbers), pixels)


def filled_up(pictures: Sequence[Tensor]) -> Tensor:
    """Put pictures of several sizes into one tensor, with zeros on the right and below."""
    height, width = (-(-max(one.shape[side] for one in pictures) // MULTIPLE) * MULTIPLE for side in (1, 2))
    found = pictures[0].new_zeros((len(pictures), 3, height, width))
    for place, one in zip(found, pictures, strict=True):
        place[:, : one.shape[1], : one.shape[2]] = one
    return found


# --- COCO ---------------------------------------------------------------------------------------------------------------


class OutlinedCoco:
    """COCO's two parts, each picture as large as fits into `shortest` and `longest`. Crowds are not trained."""

    def __init__(self, folder: Path, shortest: int, longest: int, threads: int) -> None:
        train, test = read_parts(folder, outlined=True)
        self._train, self._test, self._threads = train, test, threads
        self._shortest, self._longest = shortest, longest
        self._usable = train.usable()
        sizes = train.sizes[self._usable]
        self.upright = sizes[:, 1] > sizes[:, 0]
        self.truth, self.true_boxes, self.sizes = test.truth(), test.boxes, test.sizes
        self.classes = 1 + len(train.categories)
        self.samples, self.test_samples = len(self._usable), len(test.names)
        self.sha256 = hash_of_parts(train, test, RESNET50.find(folder))
        self._starts = {part: one.counts.cumsum(0) - one.counts for part, one in (("train", train), ("test", test))}

    def train(self, plan: Sequence[Tensor], epoch_seed: int) -> Iterator[Outlined]:
        def read(number: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            return self._read(number, flipped=int(hashed(epoch_seed, number)) % 2 == 1)

        yield from read_ahead(read, _joined, [self._usable[numbers] for numbers in plan], self._threads)

    def test(self, plan: Sequence[Tensor]) -> Iterator[PixelBatch]:
        yield from read_ahead(self._read_test, _tested, plan, self._threads)

    def _picture(self, part: Instances, number: int) -> Tensor:
        width, height = part.sizes[number].tolist()
        return part.read(number, fitted(width, height, self._shortest, self._longest))

    def _objects(self, part: Instances, name: str, number: int) -> list[int]:
        first = int(self._starts[name][number])
        return [*range(first, first + int(part.counts[number]))]

    def _read(self, number: int, *, flipped: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        part, picture = self._train, self._picture(self._train, number)
        width, height = part.sizes[number].tolist()
        own = [one for one in self._objects(part, "train", number) if not part.crowds[one]]
        boxes = part.boxes[own].clamp(min=0).minimum(part.sizes[number].repeat(2).double())
        real = (boxes[:, 2:] > boxes[:, :2]).all(1)
        boxes, own = boxes[real], [one for one, there in zip(own, real.tolist(), strict=True) if there]
        assert part.outlines is not None
        masks = [part.outlines.in_box(one, box, CELLS, height, width) for one, box in zip(own, boxes, strict=True)]
        covered = torch.stack(masks) if masks else torch.zeros(0, CELLS, CELLS, dtype=torch.bool)
        scale = torch.tensor([picture.shape[2] / width, picture.shape[1] / height]).repeat(2)
        scaled = (boxes * scale).float()
        if flipped:
            picture, covered = picture.flip(2), covered.flip(2)
            scaled = flip_boxes(scaled, torch.tensor(picture.shape[2]))
        return picture, scaled, part.labels[own], covered

    def _read_test(self, number: int) -> tuple[Tensor, Tensor]:
        part = self._test
        width, height = part.sizes[number].tolist()
        assert part.outlines is not None
        pixels = torch.zeros(int(part.counts[number]), height, width, dtype=torch.bool)
        for place, one in zip(pixels, self._objects(part, "test", number), strict=True):
            place |= part.outlines.mask(one, height, width)
        return self._picture(part, number), pixels


def _extents(pictures: Sequence[Tensor]) -> Tensor:
    return torch.tensor([(one.shape[2], one.shape[1]) for one in pictures])


def _joined(read: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Outlined:
    pictures, *objects = (list(part) for part in zip(*read, strict=True))
    padded = [torch.nn.utils.rnn.pad_sequence(part, batch_first=True) for part in objects]
    if not padded[0].shape[1]:
        # All objects lie outside of their pictures: a row of nothing keeps the shapes.
        padded = [torch.cat((one, one.new_zeros(len(one), 1, *one.shape[2:])), 1) for one in padded]
    boxes, labels, masks = padded
    return Outlined(filled_up(pictures), _extents(pictures), boxes, labels, masks)


def _tested(read: Sequence[tuple[Tensor, Tensor]]) -> PixelBatch:
    pictures = [one for one, _ in read]
    return PixelBatch(filled_up(pictures), _extents(pictures), [pixels for _, pixels in read])


def hash_of(folder: Path) -> str:
    return hash_of_parts(*read_parts(folder, outlined=True), RESNET50.find(folder))
