"""Fashion-MNIST's files (idx, as published; Debian's dataset-fashion-mnist has them): 70,000 garments of 28 × 28 pixels."""

import gzip
import zlib
from pathlib import Path

import torch
from torch import Tensor

from stackmark.workloads.workload import WorkloadFailure

EDGE, CLASSES = 28, 10
# A damaged file must not fill the memory.
MOST_BYTES = 1 << 28
HINT = "install the package dataset-fashion-mnist and use --data /usr/share/datasets/fashion-mnist"


def read_garments(folder: Path, *, training: bool) -> tuple[Tensor, Tensor]:
    """Return the pictures of one set, and their classes from 1."""
    name = "train" if training else "t10k"
    pictures = _read(folder, f"{name}-images-idx3-ubyte", 3)
    labels = _read(folder, f"{name}-labels-idx1-ubyte", 1)
    if pictures.shape[1:] != (EDGE, EDGE) or not len(labels) or int(labels.max()) >= CLASSES:
        raise WorkloadFailure("bad_data", f"{folder} has other pictures than Fashion-MNIST's", HINT)
    if len(pictures) != len(labels):
        raise WorkloadFailure("bad_data", f"{folder} has {len(pictures)} pictures and {len(labels)} labels", HINT)
    return pictures, labels.long() + 1


def _read(folder: Path, name: str, dimensions: int) -> Tensor:
    """Read one file, compressed or not: two zeros, the type (8: bytes), the number of dimensions, their sizes, the data."""
    path = next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)
    if path is None:
        raise WorkloadFailure("bad_data", f"{folder} has no {name}.gz", HINT)
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            data = file.read(MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise WorkloadFailure("bad_data", f"{path} cannot be read: {error}", HINT) from error
    head = 4 + 4 * dimensions
    sizes = [int.from_bytes(data[place : place + 4], "big") for place in range(4, head, 4)]
    expected = 1
    for size in sizes:
        expected *= size
    if data[:4] != bytes((0, 0, 8, dimensions)) or len(data) - head != expected or not expected:
        raise WorkloadFailure("bad_data", f"{path} is not one of Fashion-MNIST's files, or was cut off", HINT)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8, offset=head).view(sizes)
