"""DenseNet for CIFAR-10 as in its paper (arXiv:1608.06993): no bottleneck, no compression.

The classic's three densenets are not reproduced: its transition layers took the wrong width (twice the growth rate
instead of all channels), which left 0.36 of 1.02 million parameters, and its program could not build them anyway.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.train.impl.nets.layers import BatchNorm2d, Dense, Mean, convolution


class DenseLayer(nn.Module):
    """Adds `growth` channels, computed from all channels there are so far."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = BatchNorm2d(channels), convolution(channels, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x), inplace=True))], 1)


def densenet(depth: int, growth: int, classes: int) -> nn.Module:
    """Builds three dense blocks of (depth - 4) / 3 layers, with a transition between two."""
    modules: list[nn.Module] = [convolution(3, 16, 3)]
    channels = 16
    for block in range(3):
        for _ in range((depth - 4) // 3):
            modules.append(DenseLayer(channels, growth))
            channels += growth
        modules += [BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if block < 2:
            modules += [convolution(channels, channels, 1), nn.AvgPool2d(2, 2)]
    return nn.Sequential(*modules, Mean(), Dense.small(channels, classes))
