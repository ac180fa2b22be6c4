"""Layers as tf_cnn_benchmarks defines them, and the table language that most of its networks are written in.

Why not torch's own layers: TensorFlow's SAME padding depends on the input's size and is uneven where a stride of 2
meets an even size; its average pool does not count the padding; Inception's batch normalisation has an offset but no
scale. Each changes the numbers, and the last one the parameter count, so each has its own small class here.

Networks are built on the meta device, given storage, and then filled once (`fill`). A module therefore says how its
values start in a method `fill` and never in its constructor. Built the usual way, VGG's 138 million weights would be
drawn twice, the first time for nothing; and counting parameters would cost memory.

Weights start normal: with He's variance 2 / fan-in where a normalisation follows, with the classic's 1 / fan-in where
none does (with He's, VGG's max pools let the signal grow, and three steps at the classic's learning rate end in a loss
of hundreds). Biases start from zero, the last layer small (`Dense.small`), so that the loss starts at ln(classes).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name everybody uses

Pad = Literal["same", "valid"]
Norm = Literal["none", "offset", "scale"]
"""What follows a convolution: a bias alone, batch normalisation with an offset only, or with scale and offset."""


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Return TensorFlow's SAME padding, before and after: ceil(size / stride) outputs, the odd zero at the end."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


class Conv2d(nn.Conv2d):
    """A convolution whose weights start normal: a bias means that no normalisation follows."""

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: tuple[int, int] = (0, 0),
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, padding, groups=groups, bias=bias)

    def fill(self) -> None:
        nn.init.normal_(self.weight, std=math.sqrt((2 if self.bias is None else 1) / self.weight[0].numel()))
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class SameConv2d(Conv2d):
    """A strided convolution with TensorFlow's SAME padding, which torch's convolution cannot express when uneven."""

    def forward(self, x: Tensor) -> Tensor:
        top, bottom = same_padding(x.shape[2], self.kernel_size[0], self.stride[0])
        left, right = same_padding(x.shape[3], self.kernel_size[1], self.stride[1])
        if (top, left) == (bottom, right):  # even: no copy of the input is needed
            return F.conv2d(x, self.weight, self.bias, self.stride, (top, left), self.dilation, self.groups)
        padded = F.pad(x, (left, right, top, bottom))
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)


def convolution(
    channels_in: int,
    channels_out: int,
    kernel: int | tuple[int, int],
    stride: int = 1,
    pad: Pad = "same",
    groups: int = 1,
    bias: bool = False,
) -> Conv2d:
    """Return the plainest module that computes this convolution with TensorFlow's padding."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    if pad == "valid" or height == width == 1:
        return Conv2d(channels_in, channels_out, (height, width), stride, groups=groups, bias=bias)
    if stride == 1:
        half = (height // 2, width // 2)
        return Conv2d(channels_in, channels_out, (height, width), padding=half, groups=groups, bias=bias)
    return SameConv2d(channels_in, channels_out, (height, width), stride, groups=groups, bias=bias)


class BatchNorm2d(nn.BatchNorm2d):
    """Batch normalisation, optionally without a trainable scale, and without torch's count of batches.

    The count is used only by a cumulative average, which nobody here asks for, and costs a kernel launch a layer.
    The missing scale is a constant 1 and not None: cuDNN's kernels want one.
    """

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, scale: bool = True) -> None:
        super().__init__(channels, eps=eps, momentum=momentum)
        self.num_batches_tracked = None
        if not scale:
            del self.weight
            self.register_buffer("weight", torch.ones(channels))

    def fill(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)


class SamePool2d(nn.Module):
    """A pool with TensorFlow's SAME padding, none of which an average counts.

    Rounding the output's size up (`ceil_mode`) clips the last window at the edge, which is what the uneven padding
    of SAME does: no padded copy is needed.
    """

    def __init__(self, kind: Literal["max", "avg"], kernel: int, stride: int) -> None:
        super().__init__()
        self.kind, self.kernel, self.stride = kind, kernel, stride

    def forward(self, x: Tensor) -> Tensor:
        pad = (
            same_padding(x.shape[2], self.kernel, self.stride)[0],
            same_padding(x.shape[3], self.kernel, self.stride)[0],
        )
        if self.kind == "max":
            return F.max_pool2d(x, self.kernel, self.stride, pad, ceil_mode=True)
        return F.avg_pool2d(x, self.kernel, self.stride, pad, ceil_mode=True, count_include_pad=False)


class Dense(nn.Linear):
    """A linear layer that knows the spread its weights start with."""

    def __init__(self, fan_in: int, out: int, std: float, bias: bool = True) -> None:
        super().__init__(fan_in, out, bias)
        self.std = std

    @classmethod
    def usual(cls, fan_in: int, out: int) -> Dense:
        return cls(fan_in, out, 1 / math.sqrt(fan_in))

    @classmethod
    def small(cls, fan_in: int, out: int) -> Dense:
        """Initialise the last layer with a tenth of the usual spread, so that all classes start about equally likely."""
        return cls(fan_in, out, 0.1 / math.sqrt(fan_in))

    def fill(self) -> None:
        nn.init.normal_(self.weight, std=self.std)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Conv(NamedTuple):
    """A row of a table: a convolution, its normalisation and a ReLU."""

    out: int
    kernel: int | tuple[int, int]
    stride: int = 1
    pad: Pad = "same"


class Pool(NamedTuple):
    """A row of a table: a pool."""

    kind: Literal["max", "avg"]
    kernel: int
    stride: int
    pad: Pad = "valid"


class Response(NamedTuple):
    """A row of a table: local response normalisation over `width` channels, x / (1 + alpha · mean of squares)^¾."""

    width: int
    alpha: float


@dataclass(frozen=True)
class Fork:
    """A row of a table: columns that read the same input and whose outputs are joined along the channels."""

    columns: tuple[Column, ...]


Row = Conv | Pool | Response | Fork
Column = tuple[Row, ...]


class Forked(nn.Module):
    def __init__(self, columns: Sequence[nn.Module]) -> None:
        super().__init__()
        self.columns = nn.ModuleList(columns)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([column(x) for column in self.columns], 1)


def unit(channels_in: int, row: Conv, norm: Norm) -> list[nn.Module]:
    """Return the modules of one `Conv` row."""
    conv = convolution(channels_in, row.out, row.kernel, row.stride, row.pad, bias=norm == "none")
    if norm == "none":
        return [conv, nn.ReLU(inplace=True)]
    if norm == "offset":  # the classic's defaults: decay 0.999, epsilon 0.001, no scale
        return [conv, BatchNorm2d(row.out, eps=1e-3, momentum=1e-3, scale=False), nn.ReLU(inplace=True)]
    return [conv, BatchNorm2d(row.out), nn.ReLU(inplace=True)]


def column(rows: Column, channels: int, norm: Norm = "none") -> tuple[nn.Sequential, int]:
    """Build a table; returns it with the number of channels it puts out."""
    modules: list[nn.Module] = []
    for row in rows:
        if isinstance(row, Conv):
            modules += unit(channels, row, norm)
            channels = row.out
        elif isinstance(row, Fork):
            built = [column(inner, channels, norm) for inner in row.columns]
            modules.append(Forked([module for module, _ in built]))
            channels = sum(out for _, out in built)
        elif isinstance(row, Response):
            modules.append(nn.LocalResponseNorm(row.width, row.alpha, beta=0.75, k=1.0))
        elif row.pad == "same":
            modules.append(SamePool2d(row.kind, row.kernel, row.stride))
        else:
            modules.append((nn.MaxPool2d if row.kind == "max" else nn.AvgPool2d)(row.kernel, row.stride))
    return nn.Sequential(*modules), channels


def size_after(rows: Column, px: int) -> int:
    """Compute the edge of the feature map that a table makes of square images.

    A pass on the meta device would say the same, and would import torch's symbolic shapes: 500 modules.
    """
    for row in rows:
        if isinstance(row, Fork):
            px = size_after(row.columns[0], px)
        elif isinstance(row, Conv | Pool):
            kernel = row.kernel if isinstance(row.kernel, int) else row.kernel[0]
            px = -(-px // row.stride) if row.pad == "same" else (px - kernel) // row.stride + 1
    return px


class Mean(nn.Module):
    """The mean over height and width."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def fill(net: nn.Module) -> None:
    """Initialise every parameter and buffer of a network from the device's random numbers."""
    with torch.no_grad():
        for module in net.modules():
            filler = getattr(module, "fill", None)
            if callable(filler):
                filler()
