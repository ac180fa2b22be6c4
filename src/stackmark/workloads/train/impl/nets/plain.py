"""Networks defined by one table: AlexNet, OverFeat, VGG, LeNet, GoogLeNet, Inception v3 and v4, trivial.

Layers, padding and the order of columns follow tf_cnn_benchmarks (tensorflow/benchmarks, scripts/tf_cnn_benchmarks/
models at 8fb7907), because its results are what people compare with. So: no grouped convolutions and no response
normalisation in AlexNet ("one weird trick"), no auxiliary heads in GoogLeNet and Inception, no batch normalisation
in VGG and GoogLeNet.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from stackmark.workloads.train.impl.nets.layers import (
    Column,
    Conv,
    Dense,
    Fork,
    Mean,
    Norm,
    Pool,
    Response,
    column,
    size_after,
)


@dataclass(frozen=True)
class Plain:
    """A network that is a table: feature rows, then fully connected layers, then the classes."""

    rows: Column
    hidden: tuple[int, ...] = ()
    norm: Norm = "none"
    mean: bool = False  # average the last feature map over space; else flatten it
    dropout: float = 0.0  # after each hidden layer, or, where there is none, before the classes


def _vgg(counts: tuple[int, int, int, int, int]) -> Plain:
    rows: Column = ()
    for width, count in zip((64, 128, 256, 512, 512), counts, strict=True):
        rows += (Conv(width, 3),) * count + (Pool("max", 2, 2),)
    return Plain(rows, hidden=(4096, 4096), dropout=0.5)


def _inception1(a: int, b1: int, b3: int, c1: int, c5: int, d: int) -> Fork:
    return Fork(
        (
            (Conv(a, 1),),
            (Conv(b1, 1), Conv(b3, 3)),
            (Conv(c1, 1), Conv(c5, 5)),
            (Pool("max", 3, 1, "same"), Conv(d, 1)),
        )
    )


GOOGLENET: Column = (
    Conv(64, 7, 2),
    Pool("max", 3, 2, "same"),
    Conv(64, 1),
    Conv(192, 3),
    Pool("max", 3, 2, "same"),
    _inception1(64, 96, 128, 16, 32, 32),
    _inception1(128, 128, 192, 32, 96, 64),
    Pool("max", 3, 2, "same"),
    _inception1(192, 96, 208, 16, 48, 64),
    _inception1(160, 112, 224, 24, 64, 64),
    _inception1(128, 128, 256, 24, 64, 64),
    _inception1(112, 144, 288, 32, 64, 64),
    _inception1(256, 160, 320, 32, 128, 128),
    Pool("max", 3, 2, "same"),
    _inception1(256, 160, 320, 32, 128, 128),
    _inception1(384, 192, 384, 48, 128, 128),
)

_HALVE = Pool("max", 3, 2)
_SMOOTH = Pool("avg", 3, 1, "same")


def _inception3_a(pooled: int) -> Fork:
    return Fork(
        (
            (Conv(64, 1),),
            (Conv(48, 1), Conv(64, 5)),
            (Conv(64, 1), Conv(96, 3), Conv(96, 3)),
            (_SMOOTH, Conv(pooled, 1)),
        )
    )


def _inception3_c(n: int) -> Fork:
    return Fork(
        (
            (Conv(192, 1),),
            (Conv(n, 1), Conv(n, (1, 7)), Conv(192, (7, 1))),
            (Conv(n, 1), Conv(n, (7, 1)), Conv(n, (1, 7)), Conv(n, (7, 1)), Conv(192, (1, 7))),
            (_SMOOTH, Conv(192, 1)),
        )
    )


def _inception3_e(pool: Pool) -> Fork:
    split = Fork(((Conv(384, (1, 3)),), (Conv(384, (3, 1)),)))
    return Fork(((Conv(320, 1),), (Conv(384, 1), split), (Conv(448, 1), Conv(384, 3), split), (pool, Conv(192, 1))))


INCEPTION3: Column = (
    Conv(32, 3, 2, "valid"),
    Conv(32, 3, 1, "valid"),
    Conv(64, 3),
    _HALVE,
    Conv(80, 1),
    Conv(192, 3, 1, "valid"),
    _HALVE,
    _inception3_a(32),
    _inception3_a(64),
    _inception3_a(64),
    Fork(((Conv(384, 3, 2, "valid"),), (Conv(64, 1), Conv(96, 3), Conv(96, 3, 2, "valid")), (_HALVE,))),
    _inception3_c(128),
    _inception3_c(160),
    _inception3_c(160),
    _inception3_c(192),
    Fork(
        (
            (Conv(192, 1), Conv(320, 3, 2, "valid")),
            (Conv(192, 1), Conv(192, (1, 7)), Conv(192, (7, 1)), Conv(192, 3, 2, "valid")),
            (_HALVE,),
        )
    ),
    _inception3_e(_SMOOTH),
    _inception3_e(Pool("max", 3, 1, "same")),
)

_INCEPTION4_A = Fork(
    (
        (_SMOOTH, Conv(96, 1)),
        (Conv(96, 1),),
        (Conv(64, 1), Conv(96, 3)),
        (Conv(64, 1), Conv(96, 3), Conv(96, 3)),
    )
)
_INCEPTION4_B = Fork(
    (
        (_SMOOTH, Conv(128, 1)),
        (Conv(384, 1),),
        (Conv(192, 1), Conv(224, (1, 7)), Conv(256, (7, 1))),
        (Conv(192, 1), Conv(192, (1, 7)), Conv(224, (7, 1)), Conv(224, (1, 7)), Conv(256, (7, 1))),
    )
)
_INCEPTION4_C = Fork(
    (
        (_SMOOTH, Conv(256, 1)),
        (Conv(256, 1),),
        (Conv(384, 1), Fork(((Conv(256, (1, 3)),), (Conv(256, (3, 1)),)))),
        (
            Conv(384, 1),
            Conv(448, (1, 3)),
            Conv(512, (3, 1)),
            Fork(((Conv(256, (3, 1)),), (Conv(256, (1, 3)),))),
        ),
    )
)
INCEPTION4: Column = (
    Conv(32, 3, 2, "valid"),
    Conv(32, 3, 1, "valid"),
    Conv(64, 3),
    Fork(((_HALVE,), (Conv(96, 3, 2, "valid"),))),
    Fork(
        (
            (Conv(64, 1), Conv(96, 3, 1, "valid")),
            (Conv(64, 1), Conv(64, (7, 1)), Conv(64, (1, 7)), Conv(96, 3, 1, "valid")),
        )
    ),
    Fork(((Conv(192, 3, 2, "valid"),), (_HALVE,))),
    *(_INCEPTION4_A,) * 4,
    Fork(((_HALVE,), (Conv(384, 3, 2, "valid"),), (Conv(192, 1), Conv(224, 3), Conv(256, 3, 2, "valid")))),
    *(_INCEPTION4_B,) * 7,
    Fork(
        (
            (_HALVE,),
            (Conv(192, 1), Conv(192, 3, 2, "valid")),
            (Conv(256, 1), Conv(256, (1, 7)), Conv(320, (7, 1)), Conv(320, 3, 2, "valid")),
        )
    ),
    *(_INCEPTION4_C,) * 3,
)

PLAIN: dict[str, Plain] = {
    "trivial": Plain((), hidden=(1, 4096)),
    "trivial_cifar10": Plain((), hidden=(1, 4096)),
    "lenet": Plain((Conv(32, 5), Pool("max", 2, 2), Conv(64, 5), Pool("max", 2, 2)), hidden=(512,)),
    "alexnet": Plain(
        (
            Conv(64, 11, 4, "valid"),
            _HALVE,
            Conv(192, 5),
            _HALVE,
            Conv(384, 3),
            Conv(384, 3),
            Conv(256, 3),
            _HALVE,
        ),
        hidden=(4096, 4096),
        dropout=0.5,
    ),
    # The classic sums squares over 9 channels with alpha 0.001 / 9; torch takes their mean, hence alpha 0.001.
    "alexnet_cifar10": Plain(
        (
            Conv(64, 5),
            Pool("max", 3, 2, "same"),
            Response(9, 0.001),
            Conv(64, 5),
            Response(9, 0.001),
            Pool("max", 3, 2, "same"),
        ),
        hidden=(384, 192),
    ),
    "overfeat": Plain(
        (
            Conv(96, 11, 4, "valid"),
            Pool("max", 2, 2),
            Conv(256, 5, 1, "valid"),
            Pool("max", 2, 2),
            Conv(512, 3),
            Conv(1024, 3),
            Conv(1024, 3),
            Pool("max", 2, 2),
        ),
        hidden=(3072, 4096),
        dropout=0.5,
    ),
    "vgg11": _vgg((1, 1, 2, 2, 2)),
    "vgg16": _vgg((2, 2, 3, 3, 3)),
    "vgg19": _vgg((2, 2, 4, 4, 4)),
    "googlenet": Plain(GOOGLENET, mean=True),
    "inception3": Plain(INCEPTION3, norm="offset", mean=True),
    "inception4": Plain(INCEPTION4, norm="offset", mean=True, dropout=0.2),
}


class PlainNet(nn.Module):
    """The network of one table."""

    def __init__(self, table: Plain, image_px: int, classes: int) -> None:
        super().__init__()
        self.features, width = column(table.rows, 3, table.norm)
        self.join: nn.Module = Mean() if table.mean else nn.Flatten(1)
        if not table.mean:
            width *= size_after(table.rows, image_px) ** 2
        head: list[nn.Module] = []
        for hidden in table.hidden:
            head += [Dense.usual(width, hidden), nn.ReLU(inplace=True)]
            head += [nn.Dropout(table.dropout)] if table.dropout else []
            width = hidden
        if table.dropout and not table.hidden:
            head.append(nn.Dropout(table.dropout))
        self.head = nn.Sequential(*head, Dense.small(width, classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.join(self.features(images)))
        return logits
