"""Files with weights: a state dict of PyTorch, or safetensors, whose format is read here.

A file may come from anywhere, so only tensors are read from it, and nothing is believed that it says of itself: the header of
safetensors (eight bytes with its length, then JSON: names with a type, a shape and the place of the data) is bounded and
verified before memory is taken for what it promises.
"""

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stackmark.workloads.fit.impl.checkpoint import DAMAGE
from stackmark.workloads.workload import WorkloadFailure

NAMED_WRONG = 3
SUFFIX = ".safetensors"
READ_BYTES = 1 << 24
# The limits of the format's own reader.
LONGEST_HEADER = 100_000_000
MOST_DIMENSIONS = 64
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
HINT = "name a file that torch.save(net.state_dict(), FILE) wrote, or one of safetensors"


def sha256_of_file(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while part := file.read(READ_BYTES):
                digest.update(part)
    except OSError as error:
        raise WorkloadFailure("bad_data", f"--weights {path} cannot be read: {error.strerror}", HINT) from error
    return digest.hexdigest()


def read_weights(path: Path) -> dict[str, Tensor]:
    return read_safetensors(path) if path.suffix == SUFFIX else _read_state(path)


def load_weights(net: nn.Module, path: Path) -> None:
    """Load the weights of a file into a network with the same names and shapes."""
    fill_with(net, read_weights(path), path)


def fill_with(net: nn.Module, found: dict[str, Tensor], path: Path) -> None:
    wanted = net.state_dict()
    wrong = [
        f"{name} is {tuple(found[name].shape)} instead of {tuple(tensor.shape)}"
        if name in found
        else f"{name} is missing"
        for name, tensor in wanted.items()
        if name not in found or found[name].shape != tensor.shape
    ]
    wrong += [f"{name[:80]} is not known" for name in found if name not in wanted]
    if wrong:
        more = f" and {len(wrong) - NAMED_WRONG} more" if len(wrong) > NAMED_WRONG else ""
        raise WorkloadFailure(
            "bad_data", f"--weights {path} does not fit the network: {'; '.join(wrong[:NAMED_WRONG])}{more}", HINT
        )
    # Names and shapes are verified: strict, PyTorch would ask for counts of batches where a file says no version.
    net.load_state_dict(found, strict=False)


def _read_state(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except DAMAGE as error:
        # PyTorch's own sentence advises to read the file without the protection against code in it.
        said = error.strerror if isinstance(error, OSError) else "it is not a state dict of PyTorch, or it is damaged"
        raise WorkloadFailure("bad_data", f"--weights {path} cannot be read: {said}", HINT) from error
    if not isinstance(found, dict) or not all(isinstance(one, Tensor) for one in found.values()):
        raise WorkloadFailure("bad_data", f"--weights {path} is not a state dict: names with tensors", HINT)
    return {str(name): one for name, one in found.items()}


# --- safetensors ------------------------------------------------------------------------------------------------------------


def read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(LONGEST_HEADER, size - 8):
                raise ValueError(f"its header would have {length} bytes, and the file has {size}")
            header = json.loads(file.read(length))
            places = _places(header, size - 8 - length)
            data = bytearray(size - 8 - length)
            if file.readinto(data) != len(data):
                raise ValueError("it ended early")
    except (OSError, ValueError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else str(error)[:200]
        raise WorkloadFailure("bad_data", f"--weights {path} cannot be read as safetensors: {said}", HINT) from error
    return {
        name: torch.frombuffer(data, dtype=kind, count=math.prod(shape), offset=begin).view(shape)
        if math.prod(shape)
        else torch.empty(shape, dtype=kind)
        for name, (kind, shape, begin) in places.items()
    }


def _places(header: object, size: int) -> dict[str, tuple[torch.dtype, list[int], int]]:
    """Verify a header against the size of the data: the tensors lie one after the other and fill them."""
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    found: dict[str, tuple[torch.dtype, list[int], int]] = {}
    taken: list[tuple[int, int]] = []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        kind, shape, begin, end = _entry(name, entry)
        bytes_ = math.prod(shape) * kind.itemsize
        if not 0 <= begin <= end <= size or end - begin != bytes_:
            raise ValueError(f"{name[:80]!r} needs {bytes_} bytes and has those from {begin} to {end} of {size}")
        found[name] = (kind, shape, begin)
        taken.append((begin, end))
    last = 0
    for begin, end in sorted(taken):
        if begin != last:
            raise ValueError("its tensors overlap, or leave gaps")
        last = end
    if last != size:
        raise ValueError(f"its tensors have {last} bytes, and the data {size}")
    return found


def _entry(name: str, entry: Any) -> tuple[torch.dtype, list[int], int, int]:
    try:
        kind, shape, (begin, end) = TYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        numbers = [*shape, begin, end]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the entry of {name[:80]!r} lacks a known type, a shape or two places") from error
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS or not all(type(one) is int for one in numbers):
        raise ValueError(f"the shape or the places of {name[:80]!r} are not whole numbers")
    if min(shape, default=0) < 0:
        raise ValueError(f"the shape of {name[:80]!r} has a negative number")
    return kind, shape, begin, end
