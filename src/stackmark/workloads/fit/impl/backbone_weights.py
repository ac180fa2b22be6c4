"""Weights that the backbone of a detector starts from: a file in the folder of the data."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from stackmark.workloads.fit.impl.checkpoint import DAMAGE
from stackmark.workloads.workload import WorkloadFailure


@dataclass(frozen=True)
class WeightsFile:
    """How the files of a backbone are named, and what they have to be."""

    pattern: str
    backbone: str
    hint: str

    def find(self, folder: Path) -> Path | None:
        return next(iter(sorted(folder.glob(self.pattern))), None)

    def load(self, net: nn.Module, path: Path) -> None:
        """Start a backbone from a file; of the layers that it does not have nothing is read."""
        try:
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
    "resnet34*.pth",
    "ResNet-34",
    "it must be torchvision's file, such as resnet34-b627a593.pth; without one the backbone starts at random",
)
RESNET50 = WeightsFile(
    "resnet50*.pth",
    "ResNet-50",
    "it must have torchvision's names of layers; without a file the backbone starts at random",
)
