"""Scenes for small detectors: figures on a noisy canvas, with exact boxes and pixels.

A scene is a function of (seed, index), made of whole numbers only, so that all machines make the same bytes. The figures are
squares, discs and triangles, or garments of Fashion-MNIST: real pixels, whose boxes are known because they were put there. They
do not overlap, so each is seen whole; its box is that of the pixels that it has.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.detection_data import InMemory, Labelled
from stackmark.workloads.fit.impl.fashion_mnist import CLASSES, read_garments
from stackmark.workloads.fit.impl.hashing import hashed, uniform

SEED = 20190710
PX = 96
MOST_FIGURES, TRIES = 3, 8
# Edges of a figure's picture. A garment is smaller than its picture, most of all trousers.
EDGES, GARMENT_EDGES = (20, 48), (40, 64)
# Pixels of a figure that are darker than this belong to the canvas.
DARKEST = 24
TRAINED, TESTED = 600, 100
# Garments look less alike than squares.
GARMENTS_TRAINED, GARMENTS_TESTED = 2000, 200
# Where the indices of the test begin: no scene is in both sets.
FIRST_TESTED = 1 << 24
# Scenes that are drawn together: little memory.
DRAWN_TOGETHER = 100
# Random data of the full shape, for the speed of the full model without its data.
FULL_PX, FULL_TRAINED, FULL_TESTED, FULL_CLASSES, FULL_BOXES = 300, 1024, 128, 81, 8


@dataclass(frozen=True)
class Figures:
    """Grey pictures of figures (count, edge, edge), the class of each, from 1, and how small and large they are drawn."""

    pictures: Tensor
    labels: Tensor
    edges: tuple[int, int] = EDGES


def plain_figures(edge: int = 64) -> Figures:
    """Return a square, a disc and a triangle."""
    middle = 2 * torch.arange(edge) + 1 - edge
    x, y = middle, middle[:, None]
    shapes = ((x + 0 * y).abs() <= edge, x**2 + y**2 <= edge**2, 2 * x.abs() <= y + edge)
    return Figures(torch.stack(shapes).byte() * 255, torch.arange(1, 4))


def draw_scenes(figures: Figures, first: int, count: int, seed: int = SEED) -> Labelled:
    return _joined([labelled for labelled, _ in _parts(figures, first, count, seed)])


def draw_outlined(figures: Figures, first: int, count: int, seed: int = SEED) -> tuple[Labelled, Tensor]:
    """Return scenes with the pixels of each figure (scenes, figures, height, width)."""
    labelled, pixels = zip(*_parts(figures, first, count, seed), strict=True)
    return _joined([*labelled]), torch.cat(pixels)


def _parts(figures: Figures, first: int, count: int, seed: int) -> Iterator[tuple[Labelled, Tensor]]:
    for start in range(first, first + count, DRAWN_TOGETHER):
        yield _draw(figures, torch.arange(start, min(start + DRAWN_TOGETHER, first + count)), seed)


def _joined(parts: list[Labelled]) -> Labelled:
    return Labelled(
        torch.cat([one.pictures for one in parts]),
        torch.cat([one.boxes for one in parts]),
        torch.cat([one.labels for one in parts]),
    )


def _draw(figures: Figures, index: Tensor, seed: int) -> tuple[Labelled, Tensor]:
    count, edge = len(index), figures.pictures.shape[1]
    slot = torch.arange(MOST_FIGURES)
    which = hashed(seed, 1, index[:, None], slot) % len(figures.labels)
    smallest, largest = figures.edges
    size = smallest + hashed(seed, 2, index[:, None], slot) % (largest - smallest + 1)
    left, top, placed = _placed(index, size, seed)
    placed &= slot <= (hashed(seed, 3, index) % MOST_FIGURES)[:, None]
    canvas = _canvas(index, seed)
    # At least half as bright as the figure is in one of the three colours.
    colour = 64 + hashed(seed, 4, index[:, None, None], slot[:, None], torch.arange(3)) % 192
    colour.scatter_(2, (hashed(seed, 5, index[:, None], slot) % 3)[:, :, None], 255)
    pixels = torch.zeros(count, MOST_FIGURES, PX, PX, dtype=torch.bool)
    boxes = torch.zeros(count, MOST_FIGURES, 4)
    place = torch.arange(PX)
    for number in range(MOST_FIGURES):
        x = (place - left[:, number, None]) * edge // size[:, number, None]
        y = (place - top[:, number, None]) * edge // size[:, number, None]
        inside = ((x >= 0) & (x < edge))[:, None, :] & ((y >= 0) & (y < edge))[:, :, None]
        shade = figures.pictures[
            which[:, number, None, None], y.clamp(0, edge - 1)[:, :, None], x.clamp(0, edge - 1)[:, None, :]
        ]
        seen = inside & (shade >= DARKEST) & placed[:, number, None, None]
        painted = shade[:, None].long() * colour[:, number, :, None, None] // 255
        canvas = torch.where(seen[:, None], painted, canvas)
        boxes[:, number], pixels[:, number] = _extents(seen), seen
    seen_at_all = (boxes[:, :, 2] > boxes[:, :, 0]) & placed
    return Labelled(canvas.byte(), boxes / PX, figures.labels[which] * seen_at_all), pixels


def _placed(index: Tensor, size: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Try a few places for each figure, and take the first where it touches none before it; tell which found one."""
    count = len(index)
    left, top = torch.zeros(count, MOST_FIGURES, dtype=torch.long), torch.zeros(count, MOST_FIGURES, dtype=torch.long)
    placed = torch.zeros(count, MOST_FIGURES, dtype=torch.bool)
    for number in range(MOST_FIGURES):
        own = size[:, number, None]
        for attempt in range(TRIES):
            x, y = (hashed(seed, axis, index, number, attempt)[:, None] % (PX - own + 1) for axis in (6, 7))
            apart = (x + own < left) | (left + size < x) | (y + own < top) | (top + size < y) | ~placed
            free = apart.all(1) & ~placed[:, number]
            left[:, number] = torch.where(free, x[:, 0], left[:, number])
            top[:, number] = torch.where(free, y[:, 0], top[:, number])
            placed[:, number] |= free
    return left, top, placed


def _canvas(index: Tensor, seed: int) -> Tensor:
    """Return noise, darker than most of a figure: three colours from one number for each pixel."""
    bits = hashed(seed, 8, index[:, None], torch.arange(PX * PX)).view(-1, 1, PX, PX)
    base = hashed(seed, 9, index[:, None], torch.arange(3)) % 64
    return base[:, :, None, None] + torch.cat([bits >> shift & 63 for shift in (0, 8, 16)], 1)


def _extents(seen: Tensor) -> Tensor:
    """Return the boxes around pixels (n, height, width); of no pixels, an empty one."""
    place = torch.arange(PX)
    columns, rows = seen.any(1), seen.any(2)
    sides = [torch.where(line, place, PX).amin(1) for line in (columns, rows)]
    ends = [torch.where(line, place + 1, 0).amax(1) for line in (columns, rows)]
    return torch.stack((*sides, *ends), 1) * seen.any(2).any(1)[:, None]


# --- data sets ----------------------------------------------------------------------------------------------------------


def generated_scenes() -> InMemory:
    figures = plain_figures()
    train, test = draw_scenes(figures, 0, TRAINED), draw_scenes(figures, FIRST_TESTED, TESTED)
    return InMemory(train, test, 1 + int(figures.labels.max()), "generated scenes")


def garment_scenes(folder: Path) -> InMemory:
    """Compose scenes of garments; those of the test are other garments than those that are trained."""
    train, test = (
        draw_scenes(garment_figures(folder, training), first, count)
        for training, first, count in ((True, 0, GARMENTS_TRAINED), (False, FIRST_TESTED, GARMENTS_TESTED))
    )
    return InMemory(train, test, 1 + CLASSES, "scenes of garments")


def garment_figures(folder: Path, training: bool) -> Figures:
    """Read garments as figures, whose classes count from 1: class 0 is the background."""
    images, labels = read_garments(folder, training=training)
    return Figures(images, labels + 1, GARMENT_EDGES)


def random_pictures(
    trained: int = FULL_TRAINED, tested: int = FULL_TESTED, px: int = FULL_PX, classes: int = FULL_CLASSES
) -> InMemory:
    """Return noise with random boxes and classes: of it nothing can be learned."""
    train, test = (_random(first, count, px, classes) for first, count in ((0, trained), (FIRST_TESTED, tested)))
    return InMemory(train, test, classes, "random pictures")


def _random(first: int, count: int, px: int, classes: int) -> Labelled:
    index, slot = torch.arange(first, first + count), torch.arange(FULL_BOXES)
    # One picture of noise, turned: to draw each of a thousand would take minutes.
    noise = (hashed(SEED, 10, torch.arange(3 * px * px)) & 255).byte().view(3, px, px)
    pictures = torch.stack([noise.roll((7 * int(one), 3 * int(one)), (1, 2)) for one in index % (px * px)])
    size = 0.05 + 0.6 * uniform(SEED, 11, index[:, None, None], slot[:, None], torch.arange(2)) ** 2
    corner = (1 - size) * uniform(SEED, 12, index[:, None, None], slot[:, None], torch.arange(2))
    labels = 1 + hashed(SEED, 13, index[:, None], slot) % (classes - 1)
    real = slot <= (hashed(SEED, 14, index) % FULL_BOXES)[:, None]
    return Labelled(pictures, torch.cat((corner, corner + size), 2).float() * real[:, :, None], labels * real)
