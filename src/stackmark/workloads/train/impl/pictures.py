"""One image, from whatever holds it to the bytes that a network takes: decoded by Pillow, cropped, flipped, resized.

Pillow and NumPy are imported where an image is read: an image of a container may have PyTorch without them, and only needs
them here.
"""

import math
import struct
import sys
from random import Random
from typing import BinaryIO

import torch
from torch import Tensor

from stackmark.workloads.workload import WorkloadFailure

# Of the random crop, as in the Inception paper and everywhere since.
CROP_AREA, CROP_ASPECT = (0.08, 1.0), (3 / 4, 4 / 3)


class UnreadableImage(Exception):
    """Raised in a data worker; the loader raises it again in ours, from one text with the traceback before it."""


def require_pillow() -> None:
    try:
        import numpy  # noqa: F401
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise WorkloadFailure(
            "missing_package",
            "images from a folder need Pillow and NumPy",
            f"install both for the Python that runs the worker, {sys.executable}: pip install pillow numpy",
        ) from error


def read_picture(source: str | BinaryIO, name: str, px: int, chance: Random | None) -> Tensor:
    """Return an image as bytes, 3 × px × px; cropped and flipped by chance where one is given. A failure begins with `name`."""
    import numpy as np
    from PIL import Image

    try:
        with Image.open(source) as image:
            picture = image.convert("RGB")
    except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
        # All that Pillow raises for bad files.
        raise UnreadableImage(f"{name} cannot be read: {error}") from error
    width, height = picture.size
    box = _random_box(width, height, chance) if chance else _centre_box(width, height)
    picture = picture.resize((px, px), Image.Resampling.BILINEAR, box=box)
    if chance and chance.random() < 0.5:
        picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def _random_box(width: int, height: int, chance: Random) -> tuple[float, float, float, float]:
    for _ in range(10):
        area = width * height * chance.uniform(*CROP_AREA)
        aspect = math.exp(chance.uniform(math.log(CROP_ASPECT[0]), math.log(CROP_ASPECT[1])))
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, top = chance.uniform(0, width - w), chance.uniform(0, height - h)
            return left, top, left + w, top + h
    return _centre_box(width, height)


def _centre_box(width: int, height: int) -> tuple[float, float, float, float]:
    """The middle seven eighths of the short side: 224 of 256, as everybody validates."""
    side = min(width, height) * 0.875
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side
