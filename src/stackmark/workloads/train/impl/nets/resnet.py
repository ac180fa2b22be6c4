"""Residual networks: ImageNet's with bottlenecks (v1, v1.5, v2) and CIFAR-10's with two 3×3 per block (v1, v2).

The three versions differ in where things happen, and people mean different ones by "ResNet-50":
v1 (the paper's, the classic's `resnet50`) strides in a block's first 1×1, v1.5 (torchvision's, MLPerf's) in its 3×3,
which costs 6 % more arithmetic; v2 normalises before the convolutions. Two of the classic's details are kept, since
the parameter counts depend on them: in v2 the normalisation at the head of a block and at the end of the network has
an offset only (epsilon 0.001, decay 0.999), and CIFAR-10's shortcuts pad channels with zeros (the paper's type A).
The max pool after the first convolution pads at the end only (SAME), as the classic's; torchvision pads both sides.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.train.impl.nets.layers import BatchNorm2d, Conv2d, Dense, Mean, SamePool2d, convolution

Version = Literal["v1", "v1.5", "v2"]
DEPTHS: dict[int, tuple[int, int, int, int]] = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def _preactivation(channels: int) -> BatchNorm2d:
    return BatchNorm2d(channels, eps=1e-3, momentum=1e-3, scale=False)


class Bottleneck(nn.Module):
    """1×1, 3×3, 1×1 with a shortcut; v1 and v1.5."""

    def __init__(self, channels: int, out: int, stride: int, version: Version) -> None:
        super().__init__()
        width = out // 4
        first, second = (1, stride) if version == "v1.5" else (stride, 1)
        self.conv1, self.norm1 = Conv2d(channels, width, 1, first), BatchNorm2d(width)
        # Even padding whatever the stride, the classic's SAME_RESNET.
        self.conv2, self.norm2 = Conv2d(width, width, 3, second, padding=(1, 1)), BatchNorm2d(width)
        self.conv3, self.norm3 = Conv2d(width, out, 1), BatchNorm2d(out)
        self.project = None
        if channels != out:
            self.project = nn.Sequential(Conv2d(channels, out, 1, stride), BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        y = self.norm3(self.conv3(y))
        y += x if self.project is None else self.project(x)
        return F.relu(y, inplace=True)


class BottleneckV2(nn.Module):
    """The same with normalisation and ReLU before the convolutions, and nothing after the sum."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        width = out // 4
        self.norm0 = _preactivation(channels)
        self.conv1, self.norm1 = Conv2d(channels, width, 1, stride), BatchNorm2d(width)
        self.conv2, self.norm2 = Conv2d(width, width, 3, padding=(1, 1)), BatchNorm2d(width)
        self.conv3 = Conv2d(width, out, 1)
        self.project = None if channels == out else Conv2d(channels, out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        before = F.relu(self.norm0(x), inplace=True)
        y = F.relu(self.norm1(self.conv1(before)), inplace=True)
        y = F.relu(self.norm2(self.conv2(y)), inplace=True)
        out: Tensor = self.conv3(y)
        out += x if self.project is None else self.project(before)
        return out


def imagenet(depth: int, version: Version, classes: int) -> nn.Module:
    """Build ResNet-50, -101 or -152 for 224×224 images."""
    stem = [Conv2d(3, 64, 7, 2, padding=(3, 3)), BatchNorm2d(64), nn.ReLU(inplace=True), SamePool2d("max", 3, 2)]
    return _bottlenecks(stem, 64, DEPTHS[depth], version, classes)


def narrow(channels: int, width: int, classes: int) -> nn.Module:
    """Build ResNet-50 v1.5 with another width for images of 20 to 40 pixels: one small convolution comes before the blocks."""
    stem = [Conv2d(channels, width, 3, 2, padding=(1, 1)), BatchNorm2d(width), nn.ReLU(inplace=True)]
    return _bottlenecks(stem, width, DEPTHS[50], "v1.5", classes)


def _bottlenecks(
    stem: list[nn.Module], channels: int, depths: tuple[int, ...], version: Version, classes: int
) -> nn.Module:
    """Stack the stages on a stem: the first has four times its channels, each further one twice those of the one before."""
    modules = stem
    width = channels
    for stage, count in enumerate(depths):
        out = 4 * width << stage
        for block in range(count):
            stride = 2 if stage > 0 and block == 0 else 1
            modules.append(
                BottleneckV2(channels, out, stride) if version == "v2" else Bottleneck(channels, out, stride, version)
            )
            channels = out
    if version == "v2":
        modules += [_preactivation(channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*modules, Mean(), Dense.small(channels, classes))


class BasicBlock(nn.Module):
    """CIFAR-10's block: two 3×3 and a shortcut without parameters."""

    def __init__(self, channels: int, out: int, stride: int, preactivated: bool) -> None:
        super().__init__()
        self.stride, self.missing = stride, (out - channels) // 2
        self.norm0 = _preactivation(channels) if preactivated else None
        self.conv1, self.norm1 = convolution(channels, out, 3, stride), BatchNorm2d(out)
        self.conv2 = convolution(out, out, 3)
        self.norm2 = None if preactivated else BatchNorm2d(out)

    def shortcut(self, x: Tensor) -> Tensor:
        if self.missing == 0:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.missing, self.missing))

    def forward(self, x: Tensor) -> Tensor:
        before = x if self.norm0 is None else F.relu(self.norm0(x), inplace=True)
        y: Tensor = self.conv2(F.relu(self.norm1(self.conv1(before)), inplace=True))
        if self.norm2 is None:
            y += self.shortcut(x)
            return y
        y = self.norm2(y)
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


def cifar10(depth: int, preactivated: bool, classes: int) -> nn.Module:
    """Build the 6n+2 layers for 32×32 images: three stages of 16, 32 and 64 channels."""
    # The classic has no ReLU after the first normalisation in v1, and has one in v2.
    modules: list[nn.Module] = [convolution(3, 16, 3), BatchNorm2d(16)]
    modules += [nn.ReLU(inplace=True)] if preactivated else []
    channels = 16
    for stage in range(3):
        out = 16 << stage
        for block in range((depth - 2) // 6):
            modules.append(BasicBlock(channels, out, 2 if stage > 0 and block == 0 else 1, preactivated))
            channels = out
    if preactivated:
        modules += [_preactivation(channels), nn.ReLU(inplace=True)]
    return nn.Sequential(*modules, Mean(), Dense.small(channels, classes))


# --- dense networks ---------------------------------------------------------------------------------------------------
#
# DenseNet for CIFAR-10 as in its paper (arXiv:1608.06993): no bottleneck, no compression.
#
# The classic's three densenets are not reproduced: its transition layers took the wrong width (twice the growth rate
# instead of all channels), which left 0.36 of 1.02 million parameters, and its program could not build them anyway.


class DenseLayer(nn.Module):
    """Adds `growth` channels, computed from all channels there are so far."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        self.norm, self.conv = BatchNorm2d(channels), convolution(channels, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.conv(F.relu(self.norm(x), inplace=True))], 1)


def densenet(depth: int, growth: int, classes: int) -> nn.Module:
    """Build three dense blocks of (depth - 4) / 3 layers, with a transition between two."""
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
