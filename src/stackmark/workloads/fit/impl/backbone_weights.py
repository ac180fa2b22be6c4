"""Weights that the backbone of a detector starts from: a file in the folder of the data.

Torchvision's files are tensors by the names of layers, which are ours too. Mask R-CNN's reference starts from Detectron's
`R-50.pkl`: arrays of NumPy in a pickle, whose normalisation is a scale and an offset only. It is read by an unpickler that knows
arrays and nothing else, because a pickle from elsewhere could run code.
"""

import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stackmark.workloads.fit.impl.checkpoint import DAMAGE
from stackmark.workloads.workload import WorkloadFailure

# Detectron's file has 102 MB.
MOST_PICKLED_BYTES = 1 << 29


@dataclass(frozen=True)
class WeightsFile:
    """How the files of a backbone are named, and what they have to be."""

    patterns: tuple[str, ...]
    backbone: str
    hint: str

    def find(self, folder: Path) -> Path | None:
        return next((path for pattern in self.patterns for path in sorted(folder.glob(pattern))), None)

    def load(self, net: nn.Module, path: Path) -> None:
        """Start a backbone from a file; of the layers that it does not have nothing is read."""
        try:
            if path.suffix == ".pkl":
                own = _of_blobs(_read_arrays(path), net.state_dict())
            else:
                # Tensors only: a file from elsewhere cannot run code.
                found = torch.load(path, map_location="cpu", weights_only=True)
                own = {name: found[name] for name in net.state_dict()}
            # Not strict: torch adds counts of batches, which our layers do not have.
            net.load_state_dict(own, strict=False)
        except DAMAGE as error:
            raise WorkloadFailure(
                "bad_data", f"{path} does not have the weights of a {self.backbone} ({type(error).__name__})", self.hint
            ) from error


RESNET34 = WeightsFile(
    ("resnet34*.pth",),
    "ResNet-34",
    "it must be torchvision's file, such as resnet34-b627a593.pth; without one the backbone starts at random",
)
RESNET50 = WeightsFile(
    ("R-50*.pkl", "resnet50*.pth"),
    "ResNet-50",
    "it must be Detectron's R-50.pkl, or tensors by torchvision's names of layers; without a file the backbone starts at random",
)


# --- Detectron's file ---------------------------------------------------------------------------------------------------


class _Arrays(pickle.Unpickler):
    """Reads dictionaries, texts, numbers and arrays of NumPy."""

    def find_class(self, module: str, name: str) -> Any:
        import codecs

        import numpy as np

        # NumPy moved the function; an array itself says where it is.
        rebuild = np.zeros(0).__reduce__()[0]
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): rebuild,
            ("numpy._core.multiarray", "_reconstruct"): rebuild,
            ("numpy", "ndarray"): np.ndarray,
            ("numpy", "dtype"): np.dtype,
            ("_codecs", "encode"): codecs.encode,
        }
        if (module, name) not in allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not an array")
        return allowed[module, name]


def _read_arrays(path: Path) -> Mapping[str, Any]:
    if path.stat().st_size > MOST_PICKLED_BYTES:
        raise ValueError("the file is larger than any such file")
    with path.open("rb") as file:
        # Written by Python 2, whose texts are bytes.
        found = _Arrays(file, encoding="latin1").load()
    blobs: Mapping[str, Any] = found.get("blobs", found)
    return blobs


def _of_blobs(blobs: Mapping[str, Any], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values that are wanted, by our names; statistics are part of the scale and the offset already."""
    import numpy as np

    found = {}
    for name, tensor in wanted.items():
        if "running" in name:
            found[name] = torch.full_like(tensor, float(name.endswith("var")))
        else:
            found[name] = torch.from_numpy(np.array(blobs[blob_name(name)], dtype=np.float32))
    return found


def blob_name(name: str) -> str:
    """Return what Detectron calls `layer1.0.conv2.weight`: `res2_0_branch2b_w`."""
    part, _, kind = name.rpartition(".")
    if part in ("conv1", "bn1"):
        return "conv1_w" if part == "conv1" else f"res_conv1_bn_{_KINDS[kind]}"
    stage, block, layer = re.fullmatch(r"layer(\d)\.(\d+)\.(.+)", part).groups()  # type: ignore[union-attr]
    branch = "branch1" if layer.startswith("downsample") else f"branch2{'abc'[int(layer[-1]) - 1]}"
    normalised = layer.startswith("bn") or layer == "downsample.1"
    return f"res{int(stage) + 1}_{block}_{branch}_" + (f"bn_{_KINDS[kind]}" if normalised else "w")


_KINDS = {"weight": "s", "bias": "b"}
