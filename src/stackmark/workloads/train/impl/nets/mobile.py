"""Networks for phones: MobileNet v1 and v2 (width 1.0) and NASNet-A mobile. Most of their layers are depthwise.

MobileNet v1 is the one of MLPerf Inference: TensorFlow's, with its uneven padding. MobileNetV2 is torchvision's, padding
included: the classic's copy padded unevenly and put a second layer of 1001 classes on top of the first, which nobody else does.
NASNet-A follows the classic (and Keras) in its cells, paddings and filter counts, without the auxiliary head.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.train.impl.nets.layers import BatchNorm2d, Conv2d, Dense, Mean, SamePool2d, convolution

# Channels and stride of each depthwise separable layer: table 1 of arXiv:1704.04861.
MOBILENET_V1 = (
    (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (512, 1), (512, 1), (512, 1), (512, 1), (1024, 2),
    (1024, 1),
)  # fmt: skip
MOBILENET_V1_EPS = 1e-3
# Expansion, channels, blocks, stride of the first block: table 2 of arXiv:1801.04381.
MOBILENET_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _relu6(channels_in: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = Conv2d(channels_in, out, kernel, stride, padding=(kernel // 2, kernel // 2), groups=groups)
    return [conv, BatchNorm2d(out), nn.ReLU6(inplace=True)]


def _same_relu6(channels_in: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    conv = convolution(channels_in, out, kernel, stride, "same", groups)
    return [conv, BatchNorm2d(out, MOBILENET_V1_EPS), nn.ReLU6(inplace=True)]


def mobilenet_v1_layers() -> list[nn.Sequential]:
    """Build the convolutions of MobileNet v1, one module for each row of its table."""
    found, channels = [nn.Sequential(*_same_relu6(3, 32, 3, 2))], 32
    for out, stride in MOBILENET_V1:
        depthwise = _same_relu6(channels, channels, 3, stride, groups=channels)
        found.append(nn.Sequential(*depthwise, *_same_relu6(channels, out, 1)))
        channels = out
    return found


def mobilenet_v1(classes: int) -> nn.Module:
    """Build MobileNet v1 1.0 for 224×224 images."""
    return nn.Sequential(*mobilenet_v1_layers(), Mean(), Dense.small(MOBILENET_V1[-1][0], classes))


class InvertedResidual(nn.Module):
    """Widen, filter each channel by itself, narrow again without a ReLU."""

    def __init__(self, channels: int, out: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = channels * expansion
        widen = _relu6(channels, width, 1) if expansion > 1 else []
        narrow = [Conv2d(width, out, 1), BatchNorm2d(out)]
        self.body = nn.Sequential(*widen, *_relu6(width, width, 3, stride, groups=width), *narrow)
        self.residual = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


def mobilenet_v2(classes: int) -> nn.Module:
    """Build MobileNetV2 1.0 for 224×224 images."""
    modules, channels = _relu6(3, 32, 3, 2), 32
    for expansion, out, count, stride in MOBILENET_V2:
        for block in range(count):
            modules.append(InvertedResidual(channels, out, stride if block == 0 else 1, expansion))
            channels = out
    return nn.Sequential(*modules, *_relu6(channels, 1280, 1), Mean(), nn.Dropout(0.2), Dense.small(1280, classes))


# A cell adds pairs of operations on two earlier states; states 0 and 1 are the cell's input and the one before it.
# (operation, state), (operation, state) of states 2 to 6; then the states that are joined to the cell's output.
# Figure 4 of arXiv:1707.07012, in the classic's numbering.
NORMAL = (
    (("separable5", 0), ("separable3", 1)),
    (("separable5", 1), ("separable3", 1)),
    (("avg", 0), ("none", 1)),
    (("avg", 1), ("avg", 1)),
    (("separable3", 0), ("none", 0)),
)
NORMAL_OUT = (1, 2, 3, 4, 5, 6)
REDUCTION = (
    (("separable5", 0), ("separable7", 1)),
    (("max", 0), ("separable7", 1)),
    (("avg", 0), ("separable5", 1)),
    (("none", 3), ("avg", 2)),
    (("separable3", 2), ("max", 0)),
)
REDUCTION_OUT = (3, 4, 5, 6)


def _norm(channels: int) -> BatchNorm2d:
    return BatchNorm2d(channels, eps=1e-3, momentum=3e-4)


def _squeeze(channels: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.ReLU(), Conv2d(channels, out, 1), _norm(out))


def _separable(channels: int, out: int, kernel: int, stride: int) -> nn.Sequential:
    """Twice: ReLU, a depthwise and a 1×1 convolution, normalisation; the first ReLU must not change its shared input."""
    return nn.Sequential(
        nn.ReLU(),
        convolution(channels, channels, kernel, stride, groups=channels),
        Conv2d(channels, out, 1),
        _norm(out),
        nn.ReLU(inplace=True),
        convolution(out, out, kernel, groups=out),
        Conv2d(out, out, 1),
        _norm(out),
    )


class FactorizedReduction(nn.Module):
    """Halves height and width: two 1×1 convolutions, on the even and on the odd pixels."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.even, self.odd, self.norm = Conv2d(channels, out // 2, 1), Conv2d(channels, out // 2, 1), _norm(out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        shifted = F.pad(x, (-1, 1, -1, 1))  # one row and column off at the start, one of zeros on at the end
        y: Tensor = self.norm(torch.cat([self.even(x[:, :, ::2, ::2]), self.odd(shifted[:, :, ::2, ::2])], 1))
        return y


class Cell(nn.Module):
    """One cell of NASNet-A. `before` is the output of the cell before the last, larger if `halved`."""

    def __init__(self, channels: int, before: int, filters: int, halved: bool, reduction: bool, first: bool) -> None:
        super().__init__()
        self.pairs = REDUCTION if reduction else NORMAL
        self.out: tuple[int, ...] = REDUCTION_OUT if reduction else NORMAL_OUT
        self.squeeze = _squeeze(channels, filters)
        adjusted = filters
        if first:  # nothing comes before the first cell: it sees its input twice, once as it is
            self.adjust: nn.Module = nn.Identity()
            adjusted = before
        elif halved:
            self.adjust = FactorizedReduction(before, filters)
        else:
            self.adjust = nn.Identity() if before == filters else _squeeze(before, filters)
        stride = 2 if reduction else 1
        self.left = nn.ModuleList(self._operation(pair[0], adjusted, filters, stride) for pair in self.pairs)
        self.right = nn.ModuleList(self._operation(pair[1], adjusted, filters, stride) for pair in self.pairs)

    @staticmethod
    def _operation(operation: tuple[str, int], adjusted: int, filters: int, stride: int) -> nn.Module:
        kind, state = operation
        stride = stride if state < 2 else 1  # only the cell's own inputs are still large
        if kind == "none":
            return nn.Identity()
        if kind == "max":
            return SamePool2d("max", 3, stride)
        if kind == "avg":
            return SamePool2d("avg", 3, stride)
        return _separable(adjusted if state == 1 else filters, filters, int(kind[-1]), stride)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        states = [self.squeeze(x), self.adjust(before)]
        for (left, right), do_left, do_right in zip(self.pairs, self.left, self.right, strict=True):
            states.append(do_left(states[left[1]]) + do_right(states[right[1]]))
        return torch.cat([states[index] for index in self.out], 1)


class NASNet(nn.Module):
    """NASNet-A (4 @ 1056): two stem reductions, then three times four normal cells with a reduction between."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 32, 3, 2, "valid"), _norm(32))
        cells: list[Cell] = []
        plan = [(11, True), (22, True)]
        for filters in (44, 88, 176):
            plan += [(filters, True)] if filters > 44 else []
            plan += [(filters, False)] * 4
        channels = before = 32
        previous_reduced = False
        for number, (filters, reduction) in enumerate(plan):
            cells.append(Cell(channels, before, filters, previous_reduced, reduction, first=number == 0))
            before, channels = channels, filters * (4 if reduction else 6)
            previous_reduced = reduction
        self.cells = nn.ModuleList(cells)
        self.head = nn.Sequential(nn.ReLU(), Mean(), Dense.small(channels, classes))

    def forward(self, images: Tensor) -> Tensor:
        x = before = self.stem(images)
        for cell in self.cells:
            x, before = cell(x, before), x
        logits: Tensor = self.head(x)
        return logits
