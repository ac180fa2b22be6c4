"""The network of Mask R-CNN: a residual backbone with a feature pyramid, region proposals, and heads for boxes and masks.

`full` is MLPerf's R50-FPN: the stride of a bottleneck is in its first 1 × 1, its normalisation is frozen, and so are the stem and
the first stage. `tiny` is the same code with few and narrow blocks, which learn their normalisation since nobody trained them.

Training happens in `forward`, proposals and all, and returns the losses: what wraps a network to exchange its gradients (DDP)
sees one call. Rows that no object fills are masked instead of left out, so each parameter always has a gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.fit.impl.boxes import Found, best_of_classes, centred, cornered, decode, encode
from stackmark.workloads.fit.impl.maskrcnn_data import Outlined
from stackmark.workloads.fit.impl.proposals import (
    BACKGROUND,
    MOST_GROWTH,
    PLAIN,
    anchors_of,
    clipped,
    draw_regions,
    match_regions,
    propose,
)
from stackmark.workloads.fit.impl.regions import align, levels_of, resampled
from stackmark.workloads.train.impl.nets.layers import BatchNorm2d, Conv2d, fill

# Of COCO's pictures, in the order that the reference's weights expect: blue, green, red.
MEAN = (102.9801, 115.9465, 122.7717)
# What the frozen stem of a backbone without weights divides by: so the maps of the pyramid have a deviation of about one.
STEM_DEVIATION = 450.0
RATIOS = (0.5, 1.0, 2.0)
# Overlaps of anchors and of proposals with an object, from which on they are background, or have to find it.
ANCHOR_LOW, ANCHOR_HIGH, REGION_HIGH = 0.3, 0.7, 0.5
PROPOSALS_SUPPRESSED = 0.7
LEAST_SCORE, SUPPRESSED = 0.05, 0.5
# Where the smooth L1 of proposals becomes a line; that of boxes does at 1.
BEND = 1 / 9


@dataclass(frozen=True)
class Stage:
    out: int
    blocks: int
    stride: int


@dataclass(frozen=True)
class NetSize:
    stem: int
    stages: tuple[Stage, ...]
    # Whether the normalisation, the stem and the first stage keep what they start with.
    frozen: bool
    pyramid: int
    # Edges of the anchors, one for each map: those of the stages, and a coarser one.
    anchors: tuple[int, ...]
    # Whether anchors that reach out of the picture are trained.
    straddling: bool
    # Anchors of a picture that are trained.
    anchors_drawn: int
    # Best boxes of a map, and of all maps: in training, and else.
    before: tuple[int, int]
    after: tuple[int, int]
    # Proposals of a picture that are trained, and how many of them may have an object.
    drawn: int
    most_positive: int
    # Boxes below twice this edge take their features from the first map.
    canonical: float
    box_cells: int
    box_width: int
    mask_cells: int
    mask_layers: int
    mask_width: int
    most_found: int


# --- layers -------------------------------------------------------------------------------------------------------------


class FrozenNorm(nn.Module):
    """Batch normalisation with statistics, scale and offset that are not learned; named as in files of weights."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.ones(channels))
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias)  # type: ignore[arg-type]

    def fill(self) -> None:
        """Nothing: a file of weights is read, or the values of the constructor stay."""


def _norm(channels: int, frozen: bool) -> nn.Module:
    return FrozenNorm(channels) if frozen else BatchNorm2d(channels)


class Bottleneck(nn.Module):
    """1 × 1 with the stride, 3 × 3, 1 × 1 and a shortcut. Parts are named as in torchvision's files of weights."""

    def __init__(self, channels: int, out: int, stride: int, frozen: bool) -> None:
        super().__init__()
        width = out // 4
        self.conv1, self.bn1 = Conv2d(channels, width, 1, stride), _norm(width, frozen)
        self.conv2, self.bn2 = Conv2d(width, width, 3, padding=(1, 1)), _norm(width, frozen)
        self.conv3, self.bn3 = Conv2d(width, out, 1), _norm(out, frozen)
        self.downsample = None
        if channels != out or stride != 1:
            self.downsample = nn.Sequential(Conv2d(channels, out, 1, stride), _norm(out, frozen))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = F.relu(self.bn2(self.conv2(y)), inplace=True)
        y = self.bn3(self.conv3(y))
        y = y + (x if self.downsample is None else self.downsample(x))
        return F.relu(y, inplace=True)


class Backbone(nn.Module):
    def __init__(self, size: NetSize) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv2d(3, size.stem, 7, 2, padding=(3, 3)), _norm(size.stem, size.frozen)
        channels = size.stem
        for number, stage in enumerate(size.stages, 1):
            blocks = [
                Bottleneck(stage.out if block else channels, stage.out, 1 if block else stage.stride, size.frozen)
                for block in range(stage.blocks)
            ]
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
            channels = stage.out
        self.stages = len(size.stages)
        fill(self)
        if size.frozen:
            self._freeze()

    def _freeze(self) -> None:
        for part in (self.conv1, self.get_submodule("layer1")):
            part.requires_grad_(False)
        # Weights of a file replace these. Without one, nothing normalises: the sum of the blocks must not grow on its way.
        assert isinstance(self.bn1, FrozenNorm)
        self.bn1.get_buffer("running_var").fill_(STEM_DEVIATION**2)
        for module in self.modules():
            if isinstance(module, Bottleneck):
                module.bn3.get_buffer("weight").fill_(0.25)

    def forward(self, x: Tensor) -> list[Tensor]:
        """Return the maps of all stages."""
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        maps = []
        for number in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{number}")(x)
            maps.append(x)
        return maps


def _uniform(layer: nn.Conv2d | nn.Linear) -> None:
    nn.init.kaiming_uniform_(layer.weight, a=1)


def _plain(layer: nn.Conv2d | nn.Linear, deviation: float) -> None:
    nn.init.normal_(layer.weight, std=deviation)


class Pyramid(nn.Module):
    """Brings each map to as many channels, and adds to it the next coarser one; one more has every second cell of the last."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Conv2d(one, width, 1) for one in channels)
        self.outer = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in channels)
        for layer in (*self.inner, *self.outer):
            _uniform(layer)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        inner = [layer(one) for layer, one in zip(self.inner, maps, strict=True)]
        for place in range(len(inner) - 2, -1, -1):
            coarse = F.interpolate(inner[place + 1], size=inner[place].shape[2:], mode="nearest")
            inner[place] = inner[place] + coarse
        outer = [layer(one) for layer, one in zip(self.outer, inner, strict=True)]
        return [*outer, F.max_pool2d(outer[-1], 1, 2)]


class Proposer(nn.Module):
    """Says of each anchor whether there is an object, and where."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.score, self.move = nn.Conv2d(width, len(RATIOS), 1), nn.Conv2d(width, 4 * len(RATIOS), 1)
        for layer in (self.conv, self.score, self.move):
            _plain(layer, 0.01)

    def forward(self, maps: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        hidden = [F.relu(self.conv(one), inplace=True) for one in maps]
        return [_by_anchor(self.score(one), 1)[..., 0] for one in hidden], [
            _by_anchor(self.move(one), 4) for one in hidden
        ]


def _by_anchor(x: Tensor, width: int) -> Tensor:
    """Put what a map says into rows of one anchor each: by line, cell and ratio."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, width)


class BoxHead(nn.Module):
    def __init__(self, size: NetSize, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(size.pyramid * size.box_cells**2, size.box_width)
        self.second = nn.Linear(size.box_width, size.box_width)
        self.name, self.move = nn.Linear(size.box_width, classes), nn.Linear(size.box_width, 4 * classes)
        _uniform(self.first)
        _uniform(self.second)
        _plain(self.name, 0.01)
        _plain(self.move, 0.001)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.first(features.flatten(1)), inplace=True)
        x = F.relu(self.second(x), inplace=True)
        return self.name(x), self.move(x).view(len(x), -1, 4)


class MaskHead(nn.Module):
    def __init__(self, size: NetSize, classes: int) -> None:
        super().__init__()
        width = size.mask_width
        self.layers = nn.ModuleList(
            nn.Conv2d(width if layer else size.pyramid, width, 3, padding=1) for layer in range(size.mask_layers)
        )
        self.wide, self.name = nn.ConvTranspose2d(width, width, 2, 2), nn.Conv2d(width, classes, 1)
        for layer in (*self.layers, self.wide, self.name):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, features: Tensor) -> Tensor:
        """Return a mask of twice the edge for each class."""
        x = features
        for layer in self.layers:
            x = F.relu(layer(x), inplace=True)
        found: Tensor = self.name(F.relu(self.wide(x), inplace=True))
        return found


# --- the network --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Masked:
    """What was found in pictures, in pixels of what the network saw, with a mask (pictures, boxes, edge, edge) of each box."""

    found: Found
    masks: Tensor


class MaskRcnn(nn.Module):
    mean: Tensor

    def __init__(self, size: NetSize, classes: int) -> None:
        super().__init__()
        self.size, self.classes = size, classes
        self.backbone = Backbone(size)
        self.pyramid = Pyramid([stage.out for stage in size.stages], size.pyramid)
        self.proposer = Proposer(size.pyramid)
        self.box_head, self.mask_head = BoxHead(size, classes), MaskHead(size, classes)
        for part in (self.pyramid, self.proposer, self.box_head, self.mask_head):
            for name, parameter in part.named_parameters():
                if name.endswith("bias"):
                    nn.init.zeros_(parameter)
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None], persistent=False)
        strides = [4]
        for stage in size.stages[1:]:
            strides.append(strides[-1] * stage.stride)
        self.strides = (*strides, 2 * strides[-1])
        self._anchors: tuple[tuple[int, ...], list[Tensor]] = ((), [])

    def forward(self, batch: Outlined) -> dict[str, Tensor]:
        """Return the losses of a batch, by name."""
        maps = self._maps(batch.pictures, batch.extents)
        anchors = self._anchors_of(maps)
        scores, codes = self.proposer(maps)
        losses = self._proposal_losses(scores, codes, anchors, batch)
        boxes, real = self._propose(scores, codes, anchors, batch.extents, training=True)
        return losses | self._region_losses(maps, boxes, real, batch)

    @torch.no_grad()
    def find(self, pictures: Tensor, extents: Tensor) -> Masked:
        """Return the best boxes of pictures, and their masks."""
        maps = self._maps(pictures, extents)
        scores, codes = self.proposer(maps)
        boxes, real = self._propose(scores, codes, self._anchors_of(maps), extents, training=False)
        logits, moves = self.box_head(self._align(maps, boxes, self.size.box_cells))
        shares = logits.float().softmax(1).view(*real.shape, -1) * real[:, :, None]
        moved = decode(
            moves.float().view(*real.shape, self.classes, 4), centred(boxes)[:, :, None], most_growth=MOST_GROWTH
        )
        each = clipped(moved[:, :, 1:].flatten(1, 2), extents).view(*real.shape, -1, 4)
        found = best_of_classes(
            shares[:, :, 1:].transpose(1, 2), each.transpose(1, 2), least=LEAST_SCORE, threshold=SUPPRESSED,
            most=self.size.most_found, most_of_class=real.shape[1],
        )  # fmt: skip
        masks = self._masks_of(maps, found.boxes, found.labels)
        return Masked(found, masks.sigmoid().view(*found.labels.shape, *masks.shape[1:]))

    def _maps(self, pictures: Tensor, extents: Tensor) -> list[Tensor]:
        """Return the maps of pictures of bytes (red, green, blue), of which what is beyond the extents is filled up."""
        height, width = pictures.shape[2:]
        place = torch.arange(max(height, width), device=pictures.device)
        inside = (place[:height, None] < extents[:, 1, None, None]) & (place[:width] < extents[:, 0, None, None])
        whole = (pictures.flip(1).float() - self.mean) * inside[:, None]
        if pictures.device.type == "cuda":
            whole = whole.contiguous(memory_format=torch.channels_last)
        found: list[Tensor] = self.pyramid(self.backbone(whole))
        return found

    def _anchors_of(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Return the anchors of each map, centred; those of the last shape are kept."""
        shape = tuple(edge for one in maps for edge in one.shape[2:])
        if self._anchors[0] != shape or self._anchors[1][0].device != maps[0].device:
            made = [
                anchors_of(one.shape[2], one.shape[3], stride, edge, RATIOS, one.device)
                for one, stride, edge in zip(maps, self.strides, self.size.anchors, strict=True)
            ]
            self._anchors = (shape, made)
        return self._anchors[1]

    def _propose(
        self,
        scores: Sequence[Tensor],
        codes: Sequence[Tensor],
        anchors: Sequence[Tensor],
        extents: Tensor,
        *,
        training: bool,
    ) -> tuple[Tensor, Tensor]:
        which = 0 if training else 1
        with torch.no_grad():
            return propose(
                [one.detach() for one in scores],
                [one.detach() for one in codes],
                anchors,
                extents,
                before=self.size.before[which],
                after=self.size.after[which],
                threshold=PROPOSALS_SUPPRESSED,
            )

    def _align(self, maps: Sequence[Tensor], boxes: Tensor, cells: int) -> Tensor:
        # The coarsest map is for proposals only.
        levels = len(maps) - 1
        return align(maps[:levels], self.strides[:levels], boxes, levels_of(boxes, self.size.canonical, levels), cells)

    def _masks_of(self, maps: Sequence[Tensor], boxes: Tensor, labels: Tensor) -> Tensor:
        """Return the logits (boxes, edge, edge) of the masks of boxes for their own classes."""
        masks = self.mask_head(self._align(maps, boxes, self.size.mask_cells)).float()
        own: Tensor = masks[torch.arange(len(masks), device=masks.device), labels.flatten()]
        return own

    # What is wrong

    def _proposal_losses(
        self, scores: Sequence[Tensor], codes: Sequence[Tensor], anchors: Sequence[Tensor], batch: Outlined
    ) -> dict[str, Tensor]:
        every, real = torch.cat(tuple(anchors)), batch.labels > 0
        corners = cornered(every)
        number = match_regions(corners, batch.boxes, real, ANCHOR_LOW, ANCHOR_HIGH, favourites=True)
        trained = torch.ones_like(number, dtype=torch.bool)
        if not self.size.straddling:
            trained = (corners >= 0).all(1) & (corners[:, 2:] <= batch.extents[:, None]).all(2)
        drawn = draw_regions(
            (number >= 0) & trained,
            (number == BACKGROUND) & trained,
            self.size.anchors_drawn,
            self.size.anchors_drawn // 2,
        )
        chosen = drawn.number
        said = torch.cat(tuple(scores), 1).gather(1, chosen).float()
        count = drawn.real.sum().clamp(min=1)
        wrong = F.binary_cross_entropy_with_logits(said, drawn.positive.float(), reduction="none")
        boxes = _of_rows(batch.boxes, number.gather(1, chosen).clamp(min=0))
        own = every[chosen]
        # Where there is no object nothing is to be said, and no logarithm of zero is taken.
        wanted = encode(torch.where(drawn.positive[:, :, None], boxes, cornered(own)), own, PLAIN)
        moved = _of_rows(torch.cat(tuple(codes), 1), chosen).float()
        apart = F.smooth_l1_loss(moved, wanted, reduction="none", beta=BEND).sum(2)
        return {
            "objects": (wrong * drawn.real).sum() / count,
            "proposals": (apart * drawn.positive).sum() / count,
        }

    def _region_losses(self, maps: Sequence[Tensor], boxes: Tensor, real: Tensor, batch: Outlined) -> dict[str, Tensor]:
        size = self.size
        there = batch.labels > 0
        # The objects themselves are proposals too: the heads learn before the proposals are good.
        boxes, real = torch.cat((boxes, batch.boxes), 1), torch.cat((real, there), 1)
        number = match_regions(boxes, batch.boxes, there, REGION_HIGH, REGION_HIGH)
        drawn = draw_regions((number >= 0) & real, (number < 0) & real, size.drawn, size.most_positive)
        boxes, number = _of_rows(boxes, drawn.number), number.gather(1, drawn.number).clamp(min=0)
        labels = batch.labels.gather(1, number) * drawn.positive
        logits, moves = self.box_head(self._align(maps, boxes, size.box_cells))
        count = drawn.real.sum().clamp(min=1)
        named = F.cross_entropy(logits.float(), labels.flatten(), reduction="none") * drawn.real.flatten()
        own = moves.float()[torch.arange(len(moves), device=moves.device), labels.flatten()].view_as(boxes)
        default = torch.where(drawn.positive[:, :, None], centred(boxes), 1.0)
        true = torch.where(drawn.positive[:, :, None], _of_rows(batch.boxes, number), cornered(default))
        apart = F.smooth_l1_loss(own, encode(true, default), reduction="none").sum(2)
        # Those with an object come first.
        some = slice(0, min(size.most_positive, labels.shape[1]))
        return {
            "classes": named.sum() / count,
            "boxes": (apart * drawn.positive).sum() / count,
            "masks": self._mask_loss(maps, boxes[:, some], labels[:, some], number[:, some], batch),
        }

    def _mask_loss(
        self, maps: Sequence[Tensor], boxes: Tensor, labels: Tensor, number: Tensor, batch: Outlined
    ) -> Tensor:
        said = self._masks_of(maps, boxes, labels)
        with torch.no_grad():
            own = (torch.arange(len(boxes), device=boxes.device)[:, None], number)
            true, spans = batch.masks[own].flatten(0, 1).float(), batch.boxes[own].flatten(0, 1)
            edge = said.shape[1]
            wanted = (resampled(true, spans, boxes.flatten(0, 1), edge, edge) >= 0.5).float()
        wrong = F.binary_cross_entropy_with_logits(said, wanted, reduction="none").mean((1, 2))
        positive = labels.flatten() > 0
        return (wrong * positive).sum() / positive.sum().clamp(min=1)


def _of_rows(boxes: Tensor, number: Tensor) -> Tensor:
    """Return of each picture the boxes with these numbers."""
    return boxes.gather(1, number[:, :, None].expand(-1, -1, 4))


def weighted_parameters(net: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Return the groups of the optimizer: what is added (biases) is learned at twice the rate and does not decay."""
    learned = [(name, one) for name, one in net.named_parameters() if one.requires_grad]
    return [
        {"params": [one for name, one in learned if not name.endswith("bias")], "weight_decay": weight_decay},
        {"params": [one for name, one in learned if name.endswith("bias")], "weight_decay": 0.0, "rate_factor": 2.0},
    ]
