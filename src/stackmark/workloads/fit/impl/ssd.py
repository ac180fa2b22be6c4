"""`fit/ssd`: object detection with SSD, trained until its mean average precision is reached.

The model is that of MLPerf's reference: the first three stages of a ResNet-34, the third without its stride, five more pairs of
convolutions on top, and on each of the six maps two convolutions that say for every default box how it should move and what it
shows. `full` has its size (8,732 default boxes of 300 × 300 pixels, 81 classes); `tiny` is the same code with a small backbone
and three maps.

Matching, encoding and the choice of hard negatives are done for a batch at once where the model is.
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.ranks import Rank
from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl.backbone_weights import RESNET34
from stackmark.workloads.fit.impl.boxes import Found, areas, best_of_classes, cornered, decode, encode, match
from stackmark.workloads.fit.impl.coco_map import (
    Detections,
    Judged,
    box_overlaps,
    judge,
    mean_average_precision,
)
from stackmark.workloads.fit.impl.detection_data import DetectionData, InMemory, Labelled, plan_of_rank
from stackmark.workloads.fit.impl.hashing import hashed
from stackmark.workloads.fit.impl.learner import Bench, Supervised, fused_option, share_of_rank
from stackmark.workloads.fit.impl.scenes import garment_scenes, generated_scenes, random_pictures
from stackmark.workloads.fit.impl.ssd_data import TRIES, CocoFolder, flip, hash_of, recolour
from stackmark.workloads.train.impl.nets.layers import BatchNorm2d, Conv2d, fill
from stackmark.workloads.workload import Values

QUALITY = "mAP"
MATCHED, NEGATIVES = 0.5, 3
LEAST_SCORE, SUPPRESSED, MOST_FOUND = 0.05, 0.5, 200
MOMENTUM = 0.9
# ImageNet's, which weights of the backbone were trained with.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EVALUATED_TOGETHER = 32
MOST_READERS = 32


@dataclass(frozen=True)
class Extra:
    """Two convolutions on top of a map: 1 × 1 to a few channels, 3 × 3 to the channels of the next map."""

    narrow: int
    out: int
    stride: int
    padding: int


@dataclass(frozen=True)
class Size:
    px: int
    # The first convolution, and the channels, blocks and stride of each stage.
    stem: int
    stages: tuple[tuple[int, int, int], ...]
    extras: tuple[Extra, ...]
    # Of each map: cells along an edge, pixels from one to the next, and the aspect ratios of its default boxes.
    cells: tuple[int, ...]
    steps: tuple[int, ...]
    ratios: tuple[tuple[int, ...], ...]
    # Edges of default boxes in pixels; one more than there are maps.
    scales: tuple[int, ...]
    weight_decay: float
    # Pictures after which the learning rate is a tenth, and a hundredth.
    decays: tuple[int, ...]
    # Whether colours are changed.
    recoloured: bool
    # Of the convolutions that move and name default boxes.
    head_stride: int = 1


SIZES = {
    "tiny": Size(
        96, 16, ((16, 1, 1), (32, 1, 2), (64, 1, 1)), (Extra(32, 64, 2, 1), Extra(32, 64, 2, 1)), (12, 6, 3), (8, 16, 32),
        ((2,), (2,), (2,)), (20, 32, 48, 64), 5e-4, (), False,
    ),
    "full": Size(
        300, 64, ((64, 3, 1), (128, 4, 2), (256, 6, 1)),
        (Extra(256, 512, 2, 1), Extra(256, 512, 2, 1), Extra(128, 256, 2, 1), Extra(128, 256, 1, 0), Extra(128, 256, 1, 0)),
        (38, 19, 10, 5, 3, 1), (8, 16, 32, 64, 100, 300), ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,)),
        (21, 45, 99, 153, 207, 261, 315), 5e-4, (160_000 * 32, 200_000 * 32), True,
    ),
}  # fmt: skip


# Garments are harder: what they are is only learned at a lower rate.
SIZES["real"] = replace(SIZES["tiny"], decays=(12_000, 18_000))


def size_of(params: FitParams) -> Size:
    return SIZES["real" if params.preset == "tiny" and params.source == "real" else params.preset]


def load_data(params: FitParams, rank: Rank) -> DetectionData:
    if params.preset == "full" and params.data:
        threads = len(os.sched_getaffinity(0)) // rank.local_size
        return CocoFolder(Path(params.data), size_of(params).px, min(MOST_READERS, threads))
    return load_scenes(params).to(torch.device(params.device))


def load_scenes(params: FitParams) -> InMemory:
    if params.preset == "full":
        return random_pictures(px=SIZES["full"].px)
    return garment_scenes(Path(params.data)) if params.data else generated_scenes()


def data_sha256(params: FitParams) -> str:
    return hash_of(Path(params.data)) if params.preset == "full" and params.data else load_scenes(params).sha256


# --- the model ----------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """ResNet-34's block: two 3 × 3 and a shortcut. Parts are named as in torchvision's files of weights."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv2d(channels, out, 3, stride, padding=(1, 1)), BatchNorm2d(out)
        self.conv2, self.bn2 = Conv2d(out, out, 3, padding=(1, 1)), BatchNorm2d(out)
        self.downsample = None
        if channels != out or stride != 1:
            self.downsample = nn.Sequential(Conv2d(channels, out, 1, stride), BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class Backbone(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.conv1, self.bn1 = Conv2d(3, size.stem, 7, 2, padding=(3, 3)), BatchNorm2d(size.stem)
        channels = size.stem
        for number, (out, blocks, stride) in enumerate(size.stages, 1):
            stage = [
                Block(channels if block == 0 else out, out, stride if block == 0 else 1) for block in range(blocks)
            ]
            self.add_module(f"layer{number}", nn.Sequential(*stage))
            channels = out
        self.channels, self.stages = channels, len(size.stages)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for number in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{number}")(x)
        return x


class Ssd(nn.Module):
    mean: Tensor
    deviation: Tensor

    def __init__(self, size: Size, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.backbone = Backbone(size)
        channels = [self.backbone.channels, *(extra.out for extra in size.extras)]
        self.extras = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, extra.narrow, 1),
                nn.ReLU(inplace=True),
                nn.Conv2d(extra.narrow, extra.out, 3, extra.stride, extra.padding),
                nn.ReLU(inplace=True),
            )
            for before, extra in zip(channels, size.extras, strict=False)
        )
        each = [2 + 2 * len(ratios) for ratios in size.ratios]
        pairs = list(zip(channels, each, strict=True))
        step = size.head_stride
        self.movers = nn.ModuleList(nn.Conv2d(width, 4 * boxes, 3, step, padding=1) for width, boxes in pairs)
        self.namers = nn.ModuleList(nn.Conv2d(width, classes * boxes, 3, step, padding=1) for width, boxes in pairs)
        self.register_buffer("mean", torch.tensor(MEAN)[:, None, None], persistent=False)
        self.register_buffer("deviation", torch.tensor(DEVIATION)[:, None, None], persistent=False)
        fill(self.backbone)
        for part in (self.extras, self.movers, self.namers):
            for module in part.modules():
                if isinstance(module, nn.Conv2d):
                    nn.init.xavier_uniform_(module.weight)
                    assert module.bias is not None
                    nn.init.zeros_(module.bias)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Return codes (n, default boxes, 4) and logits (n, default boxes, classes) of pictures between 0 and 1."""
        x = self.backbone((pictures - self.mean) / self.deviation)
        maps = [x]
        for extra in self.extras:
            maps.append(extra(maps[-1]))
        codes = [_by_box(mover(one), 4) for mover, one in zip(self.movers, maps, strict=True)]
        logits = [_by_box(namer(one), self.classes) for namer, one in zip(self.namers, maps, strict=True)]
        return torch.cat(codes, 1), torch.cat(logits, 1)


def _by_box(x: Tensor, width: int) -> Tensor:
    """Put what a map says into rows of one default box each: by line, cell and default box of the cell."""
    return x.permute(0, 2, 3, 1).reshape(len(x), -1, width)


def default_boxes(size: Size) -> Tensor:
    """Return the default boxes, centred, as shares of the picture, in the order of `_by_box`."""
    found = []
    for number, (cells, step, ratios) in enumerate(zip(size.cells, size.steps, size.ratios, strict=True)):
        edge, next_edge = size.scales[number] / size.px, size.scales[number + 1] / size.px
        between = math.sqrt(edge * next_edge)
        shapes = [(edge, edge), (between, between)]
        for ratio in ratios:
            wide, narrow = edge * math.sqrt(ratio), edge / math.sqrt(ratio)
            shapes += [(wide, narrow), (narrow, wide)]
        for line in range(cells):
            for cell in range(cells):
                x, y = ((place + 0.5) * step / size.px for place in (cell, line))
                found += [(x, y, *shape) for shape in shapes]
    return torch.tensor(found).clamp_(0, 1)


# --- the loss -----------------------------------------------------------------------------------------------------------


def detection_loss(codes: Tensor, logits: Tensor, wanted: Tensor, labels: Tensor) -> Tensor:
    """Return the mean over pictures of what is wrong with codes and classes, for each default box that has a box to find.

    Of the others the hardest count, three for each that has one; which they are changes nothing but their sum, so one sort does.
    """
    positive = labels > 0
    count = positive.sum(1)
    moved = (F.smooth_l1_loss(codes, wanted, reduction="none").sum(2) * positive).sum(1)
    wrong = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
    hardest = wrong.masked_fill(positive, 0).sort(1, descending=True).values
    chosen = torch.arange(labels.shape[1], device=labels.device) < NEGATIVES * count[:, None]
    named = (wrong * positive).sum(1) + (hardest * chosen).sum(1)
    return ((moved + named) / count.clamp(min=1) * (count > 0)).mean()


# --- what is found ------------------------------------------------------------------------------------------------------


def find(codes: Tensor, logits: Tensor, defaults: Tensor) -> Found:
    """Decode, suppress by class, and keep the 200 boxes with the highest scores, as shares of their pictures."""
    boxes = decode(codes.float(), defaults).clamp_(0, 1)
    scores = logits.float().softmax(2)[:, :, 1:].transpose(1, 2)
    return best_of_classes(
        scores, boxes[:, None], least=LEAST_SCORE, threshold=SUPPRESSED, most=MOST_FOUND, most_of_class=MOST_FOUND
    )


# --- the task -----------------------------------------------------------------------------------------------------------


class SsdLearner(Supervised[Labelled]):
    def __init__(self, bench: Bench) -> None:
        params, size = bench.params, size_of(bench.params)
        self.data = load_data(params, bench.rank)
        torch.manual_seed(bench.seed)
        with bench.device:
            net = Ssd(size, self.data.classes)
        if params.preset == "full" and params.data and (weights := RESNET34.find(Path(params.data))):
            RESNET34.load(net.backbone, weights)
        if bench.device.type == "cuda":
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(
            net.parameters(), params.learning_rate, MOMENTUM, weight_decay=size.weight_decay, **fused_option(params)
        )
        super().__init__(
            bench, net, optimizer, self._learning_rate, samples=self.data.samples, data_sha256=self.data.sha256
        )
        self.size = size
        self.defaults = default_boxes(size).to(bench.device)
        self.logged = {
            "opt_name": "sgd",
            "opt_base_learning_rate": params.learning_rate,
            "opt_weight_decay": size.weight_decay,
            "opt_learning_rate_warmup_steps": params.warmup_updates,
            "opt_learning_rate_warmup_factor": 0,
            "max_samples": TRIES,
            "model_bn_span": params.batch,
            "train_samples": self.data.samples,
            "eval_samples": self.data.test_samples,
        }

    def _learning_rate(self, update: int) -> float:
        params = self.bench.params
        seen = update * params.batch * self.bench.rank.size
        rate = params.learning_rate * 0.1 ** sum(seen >= samples for samples in self.size.decays)
        return rate * min(1.0, (update + 1) / max(1, params.warmup_updates))

    def batches(self, epoch: int) -> Iterator[tuple[Labelled, int]]:
        """Yield batches of one order that all ranks draw alike."""
        rank, epoch_seed = self.bench.rank, int(hashed(self.bench.seed, epoch))
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(epoch_seed))
        plan = plan_of_rank(order, self.bench.params.batch, rank.number, rank.size)
        for batch in self.data.train(plan, epoch_seed):
            yield flip(batch.to(self.bench.device)), len(batch)

    def _input(self, pictures: Tensor) -> Tensor:
        whole = pictures.to(self.bench.device, non_blocking=True).float().div_(255)
        return whole.contiguous(memory_format=torch.channels_last) if self.bench.device.type == "cuda" else whole

    def targets(self, batch: Labelled) -> tuple[Tensor, Tensor]:
        """Return what the network should say: codes and classes of all default boxes."""
        number = match(cornered(self.defaults), batch.boxes, batch.labels > 0, MATCHED)
        which = number.clamp(min=0)
        labels = batch.labels.gather(1, which) * (number >= 0)
        boxes = batch.boxes.gather(1, which[:, :, None].expand(-1, -1, 4))
        # A default box without a box is its own: nothing to say, and no logarithm of zero.
        boxes = torch.where((number >= 0)[:, :, None], boxes, cornered(self.defaults))
        return encode(boxes, self.defaults), labels

    def loss(self, batch: Labelled) -> Tensor:
        pictures = self._input(batch.pictures)
        if self.size.recoloured:
            with torch.autocast(pictures.device.type, enabled=False):
                pictures = recolour(pictures)
        codes, logits = self.strategy.net(pictures)
        return detection_loss(codes.float(), logits.float(), *self.targets(batch))

    def evaluate(self) -> Values:
        mine = share_of_rank(self.data.test_samples, self.bench.rank)
        numbers = torch.arange(mine.start, mine.stop, mine.step)
        plan = list(numbers.split(EVALUATED_TOGETHER))
        with self.evaluating():
            said = (self.net(self._input(one)) for one in self.data.test(plan))
            found = [find(codes, logits, self.defaults) for codes, logits in said]
        judged = Judged.of(self.bench.gathered(self._judged(plan, found)))
        return {QUALITY: mean_average_precision(judged, self.data.truth.positives(self.data.classes - 1))}

    def _judged(self, plan: Sequence[Tensor], found: Sequence[Found]) -> list[Any]:
        """Compare what this rank found in its pictures with what there is, in pixels of the pictures."""
        if not found:
            return []
        scores = [one.scores.cpu() for one in found]
        real = [one.nonzero(as_tuple=True) for one in scores]
        image = torch.cat([numbers[row] for numbers, (row, _) in zip(plan, real, strict=True)])
        label = torch.cat([one.labels.cpu()[rows] - 1 for one, rows in zip(found, real, strict=True)])
        boxes = torch.cat([one.boxes.cpu()[rows] for one, rows in zip(found, real, strict=True)]).double()
        boxes *= self.data.sizes[image].repeat(1, 2)
        score = torch.cat([one[rows] for one, rows in zip(scores, real, strict=True)])
        truth = self.data.truth
        overlaps = box_overlaps(boxes, self.data.true_boxes, truth.crowd)
        return judge(Detections(image, label, areas(boxes), score), truth, overlaps).entries()


def build(bench: Bench) -> SsdLearner:
    return SsdLearner(bench)
