"""Fashion-MNIST's files (idx, as published; Debian's dataset-fashion-mnist has them): 70,000 garments of 28 × 28 pixels."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import torch
from torch import Tensor

from stackmark.workloads.workload import WorkloadFailure

EDGE, CLASSES = 28, 10
# A damaged file must not fill the memory: the largest has 60,000 images of 784 bytes.
MOST_BYTES = 1 << 28
# Two zero bytes, the type of the values, the number of dimensions; then their sizes.
HEADER, UNSIGNED_BYTES = struct.Struct(">HBB"), 8
HINT = "install the package dataset-fashion-mnist and use --data /usr/share/datasets/fashion-mnist"


def read_garments(folder: Path, *, training: bool) -> tuple[Tensor, Tensor]:
    """Return the images of one side as bytes (n, 28, 28), and their classes from 0."""
    name = "train" if training else "t10k"
    images = _read(folder, f"{name}-images-idx3-ubyte", 3)
    labels = _read(folder, f"{name}-labels-idx1-ubyte", 1)
    if len(images) != len(labels) or not len(labels) or int(labels.max()) >= CLASSES:
        raise WorkloadFailure(
            "bad_data",
            f"{folder} has {len(images)} images and {len(labels)} labels in its files {name}-*; there must be an equal "
            f"number of both, and labels from 0 to {CLASSES - 1}",
            HINT,
        )
    if images.shape[1:] != (EDGE, EDGE):
        raise WorkloadFailure("bad_data", f"the images in {folder} do not have {EDGE} × {EDGE} pixels", HINT)
    return images, labels.long()


def _read(folder: Path, name: str, dimensions: int) -> Tensor:
    """Read one file of unsigned bytes, compressed or not."""
    path = next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)
    if path is None:
        raise WorkloadFailure("bad_data", f"{folder} has no {name}.gz", HINT)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadFailure("bad_data", f"{path} cannot be read, or is not complete: {error}", HINT) from error
    begin = HEADER.size + 4 * dimensions
    if len(data) < begin or HEADER.unpack_from(data) != (0, UNSIGNED_BYTES, dimensions):
        raise WorkloadFailure("bad_data", f"{path} is not an idx file of {dimensions} dimensions of bytes", HINT)
    sizes = struct.unpack_from(f">{dimensions}I", data, HEADER.size)
    if math.prod(sizes) != len(data) - begin:
        raise WorkloadFailure(
            "bad_data", f"{path} is not complete: it claims {math.prod(sizes)} bytes and has {len(data) - begin}", HINT
        )
    # One byte more: torch makes no tensor of an empty buffer.
    return torch.frombuffer(bytearray(data[begin:] + b"\0"), dtype=torch.uint8)[: math.prod(sizes)].view(sizes)
