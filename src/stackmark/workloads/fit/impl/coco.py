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
from stackmark.workloads.train.impl.pictures import UnreadableImage
from stackmark.workloads.workload import WorkloadFailure

TRAIN, TEST = "train2017", "val2017"
# Batches that are read while one is trained.
AHEAD = 3

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

    def truth(self) -> Truth:
        image = torch.arange(len(self.names)).repeat_interleave(self.counts)
        return Truth(image, self.labels - 1, self.areas, self.crowds)

    def read(self, number: int, px: int, part: tuple[float, float, float, float]) -> Tensor:
        """Return a part of a picture, given in shares of it, as bytes, 3 × px × px."""
        import numpy as np
        from PIL import Image

        path, size = self.folder / self.names[number], tuple(self.sizes[number].tolist())
        try:
            with Image.open(path) as file:
                if file.size != size:
                    raise ValueError(f"it has {file.size} pixels, and by the annotations {size}")
                whole = file.convert("RGB")
        except (OSError, SyntaxError, ValueError, EOFError, struct.error, Image.DecompressionBombError) as error:
            # All that Pillow raises for bad files.
            raise UnreadableImage(f"the image {path} cannot be read: {error}") from error
        left, top, right, bottom = part
        box = (left * whole.width, top * whole.height, right * whole.width, bottom * whole.height)
        resized = whole.resize((px, px), Image.Resampling.BILINEAR, box=box)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous()


def read_instances(folder: Path, part: str) -> Instances:
    """Read the annotations of one part, without boxes that are empty, and find its pictures."""
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
        return _instances(folder / part, json.loads(raw), hashlib.sha256(raw))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        said = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise WorkloadFailure(
            "bad_data", f"{path} cannot be used as annotations of COCO: {said}", "is the file complete? get it again"
        ) from error


def _instances(folder: Path, found: dict[str, Any], digest: "hashlib._Hash") -> Instances:
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
        digest.hexdigest(),
    )  # fmt: skip


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
