"""COCO's data as published: `annotations/instances_train2017.json`, `train2017/*.jpg`, and the same of `val2017`.

Pictures are read by threads, some batches ahead of the step: Pillow decodes and resizes without Python's lock.
"""

import hashlib
import json
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.coco_map import Truth
from stackmark.workloads.fit.impl.outlines import OutlineReader, Outlines
from stackmark.workloads.train.impl.pictures import UnreadableImage, require_pillow
from stackmark.workloads.workload import WorkloadFailure

TRAIN, TEST = "train2017", "val2017"
# Batches that are read while one is trained.
AHEAD = 3

# Left, top, right and bottom as shares of the picture.
Crop = tuple[float, float, float, float]
WHOLE: Crop = (0.0, 0.0, 1.0, 1.0)
READ_BYTES = 1 << 24
# Of the objects of one picture together, for their masks; 655 objects of COCO's largest picture.
MOST_MASK_PIXELS = 1 << 28

One = TypeVar("One")
Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Instances:
    """The pictures of one part in the order of their ids, and their objects in the order of the pictures."""

    folder: Path
    names: list[str]
    # Width and height of each picture, and how many objects it has.
    sizes: Tensor
    counts: Tensor
    # Of each object: left, top, right and bottom in pixels, its class from 1, its area, and whether it is a crowd.
    boxes: Tensor
    labels: Tensor
    areas: Tensor
    crowds: Tensor
    # The ids of COCO in the order of our classes: there are gaps between them.
    categories: tuple[int, ...]
    sha256: str
    # In the order of the objects, where they were asked for.
    outlines: Outlines | None = None

    def usable(self) -> Tensor:
        """Return the numbers of the pictures with objects to train: crowds are none."""
        picture = torch.arange(len(self.names)).repeat_interleave(self.counts)
        found: Tensor = picture[~self.crowds].unique()
        return found

    def truth(self) -> Truth:
        image = torch.arange(len(self.names)).repeat_interleave(self.counts)
        return Truth(image, self.labels - 1, self.areas, self.crowds)

    def read(self, number: int, size: tuple[int, int], part: Crop = WHOLE) -> Tensor:
        """Return a part of a picture, given in shares of it, as bytes (3, height, width) of a size (width, height)."""
        import numpy as np
        from PIL import Image

        path, expected = self.folder / self.names[number], tuple(self.sizes[number].tolist())
        try:
            with Image.open(path) as file:
                if file.size != expected:
                    raise ValueError(f"it has {file.size} pixels, and by the annotations {expected}")
                whole = file.convert("RGB")
        except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
            # All that Pillow raises for bad files.
            raise UnreadableImage(f"the image {path} cannot be read: {error}") from error
        left, top, right, bottom = part
        box = (left * whole.width, top * whole.height, right * whole.width, bottom * whole.height)
        resized = whole.resize(size, Image.Resampling.BILINEAR, box=box)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()


def read_parts(folder: Path, *, outlined: bool = False) -> tuple[Instances, Instances]:
    """Read what is trained and what is tested, and require objects in both."""
    require_pillow()
    train, test = (read_instances(folder, part, outlined=outlined) for part in (TRAIN, TEST))
    if train.categories != test.categories:
        raise WorkloadFailure("bad_data", f"{folder} has other categories in {TRAIN} than in {TEST}")
    if not len(train.usable()) or bool(test.crowds.all()):
        raise WorkloadFailure("bad_data", f"{folder} has no objects to train, or none to test")
    return train, test


def hash_of_parts(train: Instances, test: Instances, weights: Path | None) -> str:
    digest = hashlib.sha256(f"coco {train.sha256} {test.sha256}".encode())
    if weights:
        with weights.open("rb") as file:
            while part := file.read(READ_BYTES):
                digest.update(part)
    return digest.hexdigest()


def read_instances(folder: Path, part: str, *, outlined: bool = False) -> Instances:
    """Read the annotations of one part, without boxes that are empty, and find its pictures; with `outlined`, also masks."""
    path = folder / "annotations" / f"instances_{part}.json"
    if not path.is_file():
        raise WorkloadFailure(
            "bad_data",
            f"{path} does not exist",
            "the folder must have COCO's annotations/instances_train2017.json, annotations/instances_val2017.json, "
            "train2017/ and val2017/",
        )
    try:
        raw = path.read_bytes()
        return _instances(folder / part, json.loads(raw), hashlib.sha256(raw), outlined)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise WorkloadFailure(
            "bad_data", f"{path} cannot be used as annotations of COCO: {said}", "is the file complete? get it again"
        ) from error


def _instances(folder: Path, found: dict[str, Any], digest: "hashlib._Hash", outlined: bool) -> Instances:
    categories = tuple(sorted({int(one["id"]) for one in found["categories"]}))
    class_of = {number: place for place, number in enumerate(categories, 1)}
    images = sorted(found["images"], key=lambda one: int(one["id"]))
    names = [str(one["file_name"]) for one in images]
    place_of = {int(one["id"]): place for place, one in enumerate(images)}
    if not images or len(place_of) < len(images):
        raise ValueError("it has no images, or two with one id")
    sizes = torch.tensor([[int(one["width"]), int(one["height"])] for one in images])
    for name, size in zip(names, sizes.tolist(), strict=True):
        if os.path.basename(name) != name or name in ("", ".", "..") or min(size) < 1:
            raise ValueError(f"an image has the name {name!r} and the size {size}")
    annotations = found["annotations"]
    boxes = torch.tensor([one["bbox"] for one in annotations], dtype=torch.float64).view(-1, 4)
    areas = torch.tensor([float(one["area"]) for one in annotations], dtype=torch.float64)
    if not bool(boxes.isfinite().all() & areas.isfinite().all()):
        raise ValueError("an annotation has a number that is not finite")
    picture = torch.tensor([place_of[int(one["image_id"])] for one in annotations], dtype=torch.long)
    labels = torch.tensor([class_of[int(one["category_id"])] for one in annotations], dtype=torch.long)
    crowds = torch.tensor([bool(one.get("iscrowd", 0)) for one in annotations], dtype=torch.bool)
    order = picture.argsort(stable=True)
    order = order[(boxes[order, 2:] > 0).all(1)]
    boxes[:, 2:] += boxes[:, :2]
    counts = torch.bincount(picture[order], minlength=len(names))
    # To read the 19 GB of the pictures would take minutes.
    for name in names:
        digest.update(f"{name} {_bytes(folder / name)}\n".encode())
    return Instances(
        folder, names, sizes, counts, boxes[order], labels[order], areas[order], crowds[order], categories,
        digest.hexdigest(), _outlines(annotations, order, picture[order], sizes) if outlined else None,
    )  # fmt: skip


def _outlines(annotations: list[dict[str, Any]], order: Tensor, picture: Tensor, sizes: Tensor) -> Outlines:
    """Read the segmentations of annotations in an order, each of a picture that has a size."""
    pixels = sizes.double().prod(1)
    for number, count in enumerate(torch.bincount(picture, minlength=len(sizes)).tolist()):
        if float(pixels[number]) * max(1, count) > MOST_MASK_PIXELS:
            width, height = sizes[number].tolist()
            raise ValueError(
                f"a picture of {width} × {height} pixels has {count} objects: their masks would be too large"
            )
    reader = OutlineReader()
    for place, (width, height) in zip(order.tolist(), sizes[picture].tolist(), strict=True):
        try:
            reader.add(annotations[place].get("segmentation"), width, height)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"annotation {annotations[place].get('id')}: {said}") from error
    return reader.finish()


def _bytes(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError as error:
        raise WorkloadFailure("bad_data", f"the image {path} cannot be read: {error.strerror}") from error


def read_ahead(
    read: Callable[[int], One], join: Callable[[list[One]], Batch], plan: Sequence[Tensor], threads: int
) -> Iterator[Batch]:
    """Yield the batches of a plan; the next ones are read and joined meanwhile."""
    left = iter(plan)
    waiting: deque[Future[Batch]] = deque()
    with ThreadPoolExecutor(max(1, threads)) as readers, ThreadPoolExecutor(1) as joiner:

        def begin(count: int) -> None:
            for numbers in islice(left, count):
                ones = [readers.submit(read, number) for number in numbers.tolist()]
                waiting.append(joiner.submit(lambda ones=ones: join([one.result() for one in ones])))  # type: ignore[misc]

        try:
            begin(AHEAD)
            while waiting:
                batch = waiting.popleft().result()
                begin(1)
                yield batch
        except UnreadableImage as error:
            raise WorkloadFailure("bad_data", str(error)) from error
        finally:
            readers.shutdown(wait=False, cancel_futures=True)
            joiner.shutdown(wait=False, cancel_futures=True)
