"""Images with labels, for classification: generated, of Fashion-MNIST's files, of an ImageNet folder, or random.

Generated images are digits of 24×24 pixels, turned, sheared, scaled and shifted, in noise. They follow from a hash of the seed
and their number, computed in integers: any of them can be made without the others, and all machines make the same ones. Small
sets lie in the memory of the device, where they are shifted and flipped. Images of a folder are decoded and cropped by processes
that are ahead of the step.

What is drawn for an image in an epoch depends on the seed, the epoch and the image's number, and not on the batch or the rank
that it is in, nor on the process that reads it.
"""

import ctypes
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from stackmark.ranks import Rank
from stackmark.workloads.fit.impl.fashion_mnist import CLASSES, read_garments
from stackmark.workloads.fit.impl.hashing import hashed
from stackmark.workloads.train.impl.data import MEAN, STD
from stackmark.workloads.train.zoo import MODELS

if TYPE_CHECKING:
    # Imported when a folder is read: it needs numpy, which an image may not have.
    from stackmark.workloads.train.impl.folder import Folder

DATA_SEED = 20190710
# The two sides of a set share no image.
TRAIN, TEST = 1, 2
# Generated, small.
TINY_PX, TINY_CLASSES, TINY_TRAIN, TINY_TEST = 24, 10, 2000, 500
# Synthetic, of ImageNet's shape: four steps of 1664 images. The few that differ fit into a GPU's memory next to any batch.
FULL_PX, FULL_CLASSES, FULL_TRAIN, FULL_TEST, FULL_DISTINCT = 224, 1000, 6656, 1000, 256
# Further reading processes for one rank wait for each other: all of them hand over to one.
MOST_READERS = 16


@dataclass(frozen=True)
class Draw:
    """Which random crops and flips are drawn: those of one epoch of a run."""

    seed: int
    epoch: int


Batch = tuple[Tensor, Tensor]


class Images(Protocol):
    """One side of a set."""

    def __len__(self) -> int: ...

    def batches(self, plan: list[list[int]], draw: Draw | None, device: torch.device) -> Iterator[Batch]:
        """Yield the images with these numbers as bytes, and their labels, on the device; distorted where there is a draw."""


@dataclass(frozen=True)
class ImageSet:
    train: Images
    test: Images
    classes: int
    # Of the bytes of each channel.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    sha256: str


def plan_steps(order: list[int], batch: int, rank: Rank) -> list[list[int]]:
    """Cut an order that all ranks have alike into this rank's batches, all of one size: the last step begins the order again.

    Two ranks see together in a step what one with twice the batch sees.
    """
    together = batch * rank.size
    steps = -(-len(order) // together)
    whole = [*order]
    while len(whole) < steps * together:
        whole += order
    return [whole[start : start + batch] for start in range(rank.number * batch, steps * together, together)]


# --- in memory ----------------------------------------------------------------------------------------------------------


class Held:
    """Images in memory, as bytes (n, channels, height, width). They are shifted by up to `shift` pixels, and half are flipped."""

    def __init__(self, images: Tensor, labels: Tensor, *, shift: int = 0, flip: bool = False) -> None:
        self.images, self.labels, self._shift, self._flip = images, labels, shift, flip

    def __len__(self) -> int:
        return len(self.labels)

    def batches(self, plan: list[list[int]], draw: Draw | None, device: torch.device) -> Iterator[Batch]:
        # No copy after the first epoch.
        self.images, self.labels = self.images.to(device), self.labels.to(device)
        for numbers in plan:
            chosen = torch.tensor(numbers, device=device)
            images = self.images[chosen]
            if draw is not None:
                images = self._distorted(images, chosen, draw)
            yield images, self.labels[chosen]

    def _distorted(self, images: Tensor, numbers: Tensor, draw: Draw) -> Tensor:
        device, places = images.device, 2 * self._shift + 1
        top, left, flipped = (hashed(draw.seed, draw.epoch, numbers, part)[:, None] for part in range(3))
        rows = top % places + torch.arange(images.shape[2], device=device)
        columns = left % places + torch.arange(images.shape[3], device=device)
        if self._flip:
            columns = torch.where(flipped % 2 == 1, columns.flip(1), columns)
        padded = F.pad(images, (self._shift,) * 4)
        which = torch.arange(len(numbers), device=device)[:, None, None]
        # Rows and columns are looked up together, which puts the channels last.
        return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Repeated:
    """Random images of the full shape with random labels: a few in the memory of the device, each under many numbers."""

    def __init__(self, count: int, side: int) -> None:
        self._count, self._side = count, side
        self._distinct: Tensor | None = None

    def __len__(self) -> int:
        return self._count

    def batches(self, plan: list[list[int]], draw: Draw | None, device: torch.device) -> Iterator[Batch]:
        if self._distinct is None:
            # By the CPU: the same images on all devices.
            generator = torch.Generator().manual_seed(DATA_SEED + self._side)
            shape = (FULL_DISTINCT, 3, FULL_PX, FULL_PX)
            self._distinct = torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(device)
        for numbers in plan:
            chosen = torch.tensor(numbers, device=device)
            yield self._distinct[chosen % FULL_DISTINCT], hashed(DATA_SEED, self._side, chosen) % FULL_CLASSES


def synthetic_images() -> ImageSet:
    said = f"synthetic {FULL_PX} {FULL_CLASSES} {FULL_TRAIN} {FULL_TEST} {FULL_DISTINCT}"
    sha256 = hashlib.sha256(said.encode()).hexdigest()
    return ImageSet(Repeated(FULL_TRAIN, TRAIN), Repeated(FULL_TEST, TEST), FULL_CLASSES, MEAN, STD, sha256)


def _sha256(kind: str, *sides: Held) -> str:
    digest = hashlib.sha256(kind.encode())
    for side in sides:
        digest.update(f" {[*side.images.shape]}".encode())
        # Without numpy, which an image may lack, a tensor's bytes are read at their address.
        for whole in (side.images.contiguous(), side.labels.to(torch.uint8)):
            digest.update((ctypes.c_char * whole.numel()).from_address(whole.data_ptr()))
    return digest.hexdigest()


# --- generated ----------------------------------------------------------------------------------------------------------

# Digits of 5×7 cells, next to each other.
DIGITS = """
.###. ..#.. .###. ##### ...#. ##### ..##. ##### .###. .###.
#...# .##.. #...# ...#. ..##. #.... .#... ....# #...# #...#
#..## ..#.. ....# ..#.. .#.#. ####. #.... ...#. #...# #...#
#.#.# ..#.. ...#. ...#. #..#. ....# ####. ..#.. .###. .####
##..# ..#.. ..#.. ....# ##### ....# #...# .#... #...# ....#
#...# ..#.. .#... #...# ...#. #...# #...# .#... #...# ...#.
.###. .###. ##### .###. ...#. .###. .###. .#... .###. .##..
"""
# A cell in units, and the units of a pixel: a digit is 18 pixels high.
CELL, PIXEL = 256, 98
# How far each goes to either side, in these units: of a pixel's steps (turned by up to 25°), and of the place.
ZOOM, TURN, SHEAR, SHIFT = 20, 45, 15, 200
BACKGROUND, LEAST_CONTRAST, NOISE = 40, 120, 80
# Of the pixels of a generated set.
TINY_MEAN, TINY_STD = (80.0,), (60.0,)
GENERATED_TOGETHER = 1000


def generate_images(seed: int = DATA_SEED, train: int = TINY_TRAIN, test: int = TINY_TEST) -> ImageSet:
    trained = Held(*_digits(seed, TRAIN, range(train)), shift=2)
    tested = Held(*_digits(seed, TEST, range(test)))
    return ImageSet(trained, tested, TINY_CLASSES, TINY_MEAN, TINY_STD, _sha256("generated", trained, tested))


def _digits(seed: int, side: int, numbers: range) -> Batch:
    parts = [
        digits(seed, side, torch.tensor(numbers[start : start + GENERATED_TOGETHER]))
        for start in range(0, len(numbers), GENERATED_TOGETHER)
    ]
    images, labels = zip(*parts, strict=True)
    return torch.cat(images), torch.cat(labels)


def digits(seed: int, side: int, numbers: Tensor) -> Batch:
    """Draw the digits with these numbers, in whole numbers throughout."""
    number = numbers[:, None, None]

    def drawn(part: int, most: int) -> Tensor:
        """Return a number from -most to most for each image."""
        return hashed(seed, side, part, number) % (2 * most + 1) - most

    labels = hashed(seed, side, 0, numbers) % TINY_CLASSES
    # Twice the distance from the middle, which is between two pixels.
    place = 2 * torch.arange(TINY_PX) - (TINY_PX - 1)
    x, y = place, place[:, None]
    turn, shear = drawn(1, TURN), drawn(2, SHEAR)
    # Where a pixel lies in the cells: 2, 3 is the middle one.
    across = 2 * CELL + drawn(3, SHIFT) + (((PIXEL + drawn(4, ZOOM)) * x + (shear - turn) * y) >> 1)
    down = 3 * CELL + drawn(5, SHIFT) + (((PIXEL + drawn(6, ZOOM)) * y + (shear + turn) * x) >> 1)
    value = _interpolated(labels[:, None, None], across, down)
    contrast = LEAST_CONTRAST + hashed(seed, side, 7, number) % (256 - LEAST_CONTRAST)
    pixel = torch.arange(TINY_PX**2).view(TINY_PX, TINY_PX)
    bits = hashed(seed, side, 8, number, pixel)
    # The sum of four random bytes is about normally distributed, with a deviation of 148.
    noise = sum(((bits >> shift) & 0xFF for shift in (0, 8, 16, 24)), torch.tensor(-510))
    image = BACKGROUND + (value * contrast >> 8) + (noise * NOISE >> 8)
    return image.clamp(0, 255).to(torch.uint8)[:, None], labels


def _interpolated(label: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Return 0 to 256 between the four cells around each place; what is outside is empty."""
    cells = _cells()
    rows, columns = cells.shape[1:]
    near = [(at >> 8, (at >> 8) + 1) for at in (down, across)]
    (top, bottom), (left, right) = (
        [(one + 1).clamp(0, most - 1) for one in pair] for pair, most in zip(near, (rows, columns), strict=True)
    )
    low, high = across & 0xFF, down & 0xFF
    upper = cells[label, top, left] * (CELL - low) + cells[label, top, right] * low
    lower = cells[label, bottom, left] * (CELL - low) + cells[label, bottom, right] * low
    return (upper * (CELL - high) + lower * high) >> 8


def _cells() -> Tensor:
    """Return the digits as zeros and ones, each with an empty border."""
    rows = [line.split() for line in DIGITS.split("\n") if line]
    found = torch.zeros((TINY_CLASSES, len(rows) + 2, 7), dtype=torch.long)
    for y, row in enumerate(rows):
        for label, cells in enumerate(row):
            found[label, 1 + y, 1:-1] = torch.tensor([cell == "#" for cell in cells])
    return found


# --- Fashion-MNIST ------------------------------------------------------------------------------------------------------

FASHION_MEAN, FASHION_STD = (72.94,), (90.02,)


def read_fashion(folder: Path) -> ImageSet:
    (images, labels), (test_images, test_labels) = (read_garments(folder, training=side) for side in (True, False))
    train = Held(images[:, None], labels, shift=2, flip=True)
    test = Held(test_images[:, None], test_labels)
    return ImageSet(train, test, CLASSES, FASHION_MEAN, FASHION_STD, _sha256("idx", train, test))


# --- ImageNet -----------------------------------------------------------------------------------------------------------


class InFolder:
    """Images of files, each decoded where it is needed, by processes that are a few batches ahead."""

    def __init__(self, folder: "Folder", readers: int) -> None:
        self._folder, self._readers = folder, readers

    def __len__(self) -> int:
        return len(self._folder)

    def batches(self, plan: list[list[int]], draw: Draw | None, device: torch.device) -> Iterator[Batch]:
        from torch.utils.data import DataLoader

        from stackmark.workloads.train.impl.folder import begin_worker, read_ahead

        loader: DataLoader[tuple[Tensor, int]] = DataLoader(
            _Read(self._folder, draw),  # type: ignore[arg-type]
            batch_sampler=plan,
            num_workers=min(self._readers, len(plan)),
            pin_memory=device.type == "cuda",
            worker_init_fn=begin_worker,
            # Its own draws would disturb those of the epoch.
            generator=torch.Generator(),
        )
        for images, labels in read_ahead(loader, "give it more memory and a larger /dev/shm, or a smaller --batch"):
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


class _Read:
    """What a reading process is given; torch's loader takes anything that has a length and entries."""

    def __init__(self, folder: "Folder", draw: Draw | None) -> None:
        self._folder, self._draw = folder, draw

    def __len__(self) -> int:
        return len(self._folder)

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        draw = self._draw
        return self._folder.read(number, Random(f"{draw.seed} {draw.epoch} {number}") if draw else None)


def open_imagenet(path: Path, rank: Rank) -> ImageSet:
    """Open a tree of images or TFRecord shards, with the crops of `train/`: random ones in training, 224 of 256 else."""
    from stackmark.workloads.train.impl.folder import open_folder

    model = MODELS["resnet50_v1.5"]
    train = open_folder(path, model, True)
    # Shards count their labels from 1, so they need 1001 outputs.
    classes = max(FULL_CLASSES, train.classes)
    test = open_folder(path, model, False, classes)
    readers = min(MOST_READERS, max(1, len(os.sched_getaffinity(0)) // rank.local_size))
    sha256 = _files_sha256(path, (train.files(), test.files()))
    return ImageSet(InFolder(train, readers), InFolder(test, readers), classes, MEAN, STD, sha256)


def _files_sha256(path: Path, sides: Sequence[Sequence[str]]) -> str:
    """Return a hash of the files' names and sizes: to read all of ImageNet for it would take minutes."""
    digest = hashlib.sha256(b"folder")
    for files in sides:
        digest.update(f"{len(files)}\n".encode())
        for file in files:
            said = f"{os.path.relpath(file, path)} {os.stat(file).st_size}\n"
            digest.update(said.encode(errors="surrogateescape"))
    return digest.hexdigest()
