"""Detectors that are served: SSD on ResNet-34 at 1200 × 1200, SSD on MobileNet v1 at 300 × 300, and a small one.

What follows the network is part of the answer, and so of the measured path: boxes are decoded, suppressed by class, and the best
ones kept, for all samples of a batch at once. Thresholds are those of MLPerf's reference (ssd_r34.py, ssd_mobilenet_v1.py).

With random weights no box would have a score worth keeping, and suppression would cost nothing. So the last layers are scaled and
shifted, by what they say of the first samples, until about two of a hundred default boxes get over the least score.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.fit.impl import ssd
from stackmark.workloads.fit.impl.boxes import Found, best_of_classes, decode
from stackmark.workloads.serve.impl.answering import Answering, Setup, random_images
from stackmark.workloads.train.impl.nets import build_with, layers
from stackmark.workloads.train.impl.nets.mobile import mobilenet_v1_layers

# Of a detection: left, top, right and bottom as shares of the picture, the score, and the class from 1.
ROW = 6
# Of default boxes, with random weights.
KEPT_SHARE = 0.02
LOGIT_SPREAD = 2.0
LOOKED_AT, LOOKED_AT_PIXELS = 4, 4 * 300 * 300

Codes = tuple[Tensor, Tensor]


# --- SSD-MobileNet v1 -----------------------------------------------------------------------------------------------------

# Channels within and after each pair of convolutions on top of the backbone.
EXTRAS = ((256, 512), (128, 256), (128, 256), (64, 128))
# Of the six maps: channels, cells along an edge, default boxes of a cell.
MAPS = ((512, 19, 3), (1024, 10, 6), (512, 5, 6), (256, 3, 6), (256, 2, 6), (128, 1, 6))
FIRST_MAP = 11
SCALES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 1.0)
RATIOS = (1.0, 2.0, 1 / 2, 3.0, 1 / 3)


class SsdMobileNet(nn.Module):
    """SSD on MobileNet v1: maps of the layers 11 and 13 and of four pairs on top, and 1 × 1 convolutions for the boxes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes = classes
        self.backbone = nn.ModuleList(mobilenet_v1_layers())
        channels = MAPS[1][0]
        extras: list[nn.Module] = []
        for narrow, out in EXTRAS:
            first = layers.convolution(channels, narrow, 1, bias=True)
            second = layers.convolution(narrow, out, 3, 2, bias=True)
            extras.append(nn.Sequential(first, nn.ReLU6(inplace=True), second, nn.ReLU6(inplace=True)))
            channels = out
        self.extras = nn.ModuleList(extras)
        self.movers = nn.ModuleList(layers.convolution(width, 4 * boxes, 1, bias=True) for width, _, boxes in MAPS)
        self.namers = nn.ModuleList(
            layers.convolution(width, classes * boxes, 1, bias=True) for width, _, boxes in MAPS
        )

    def forward(self, x: Tensor) -> Codes:
        """Return codes (n, default boxes, 4) and logits (n, default boxes, classes) of pictures between -1 and 1."""
        maps = []
        for number, layer in enumerate(self.backbone):
            x = layer(x)
            if number == FIRST_MAP:
                maps.append(x)
        maps.append(x)
        for extra in self.extras:
            maps.append(extra(maps[-1]))

        def rows(heads: nn.ModuleList, width: int) -> Tensor:
            said = (head(one).permute(0, 2, 3, 1) for head, one in zip(heads, maps, strict=True))
            return torch.cat([one.reshape(len(x), -1, width) for one in said], 1)

        return rows(self.movers, 4), rows(self.namers, self.classes)


def mobilenet_boxes() -> Tensor:
    """Return the 1,917 default boxes, centred, as shares of the picture."""
    found = []
    for number, (_, cells, _) in enumerate(MAPS):
        edge, between = SCALES[number], math.sqrt(SCALES[number] * SCALES[number + 1])
        pairs = [(0.1, 1.0), (edge, 2.0), (edge, 0.5)] if number == 0 else [(edge, ratio) for ratio in RATIOS]
        shapes = [(scale * math.sqrt(ratio), scale / math.sqrt(ratio)) for scale, ratio in pairs]
        shapes += [(between, between)] if number else []
        for line in range(cells):
            for cell in range(cells):
                found += [((cell + 0.5) / cells, (line + 0.5) / cells, *shape) for shape in shapes]
    return torch.tensor(found)


# --- which detectors there are ----------------------------------------------------------------------------------------------


# SSD-ResNet34 as MLPerf Inference has it: the network of training with larger pictures, and convolutions for the boxes that take
# every third cell.
LARGE = replace(
    ssd.SIZES["full"],
    px=1200,
    extras=(
        ssd.Extra(256, 512, 2, 1), ssd.Extra(256, 512, 2, 1), ssd.Extra(128, 256, 2, 1), ssd.Extra(128, 256, 2, 0),
        ssd.Extra(128, 256, 1, 0),
    ),
    cells=(50, 25, 13, 7, 3, 3),
    steps=(24, 48, 92, 171, 400, 400),
    scales=(84, 180, 396, 612, 828, 1044, 1260),
    head_stride=3,
)  # fmt: skip


@dataclass(frozen=True)
class DetectorModel:
    build: Callable[[], nn.Module]
    defaults: Callable[[], Tensor]
    px: int
    classes: int
    # Scores of a class by itself (sigmoid), or of all classes together (softmax).
    independent: bool
    least: float
    suppressed: float
    most: int
    # Real pictures are between 0 and 1, or between -1 and 1.
    signed: bool
    # Whether classes are numbered as COCO does, with its gaps.
    coco_numbers: bool


def _ssd(size: ssd.Size, classes: int) -> DetectorModel:
    return DetectorModel(
        partial(ssd.Ssd, size, classes), partial(ssd.default_boxes, size), size.px, classes, False, ssd.LEAST_SCORE,
        ssd.SUPPRESSED, ssd.MOST_FOUND, False, False,
    )  # fmt: skip


DETECTORS = {
    "ssd-resnet34": _ssd(LARGE, 81),
    "ssd-tiny": _ssd(ssd.SIZES["tiny"], 4),
    "ssd-mobilenet": DetectorModel(
        partial(SsdMobileNet, 91), mobilenet_boxes, 300, 91, True, 0.3, 0.6, 100, True, True
    ),
}


class Detector(Answering):
    """Answers with the detections of each picture, the best first; rows of zeros fill up."""

    pictures = True

    def __init__(self, setup: Setup) -> None:
        self.model = model = DETECTORS[setup.name]
        with setup.device:
            # The one of `fit` fills itself where it is built.
            self.net = model.build() if not model.independent else build_with(model.build)
        self.samples = random_images(setup, model.px) if setup.samples is None else setup.samples
        self.defaults = model.defaults().to(setup.device)

    def compute(self, batch: Tensor) -> Tensor:
        codes, logits = self.net(batch)
        return detection_words(self.find(codes.float(), logits.float()), self.model.most)

    def find(self, codes: Tensor, logits: Tensor) -> Found:
        model, boxes = self.model, decode(codes, self.defaults).clamp_(0, 1)
        scores = (logits.sigmoid() if model.independent else logits.softmax(2))[:, :, 1:].transpose(1, 2)
        return best_of_classes(
            scores,
            boxes[:, None],
            least=model.least,
            threshold=model.suppressed,
            most=model.most,
            most_of_class=model.most,
        )

    @torch.inference_mode()
    def spread(self) -> None:
        looked_at = max(1, min(LOOKED_AT, LOOKED_AT_PIXELS // self.model.px**2))
        codes, logits = self.net.eval()(self.samples[:looked_at].float())
        named = LOGIT_SPREAD / logits.std()
        assert isinstance(self.net, ssd.Ssd | SsdMobileNet)
        for heads, factor in ((self.net.movers, 1 / codes.std()), (self.net.namers, named)):
            for parameter in heads.parameters():
                parameter.mul_(factor)
        shift = self._shift(logits * named)
        for head in self.net.namers.children():
            assert isinstance(head, nn.Conv2d)
            assert head.bias is not None
            biases = head.bias.view(-1, self.model.classes)
            shifted = biases[:, 1:] if self.model.independent else biases[:, :1]
            shifted += shift

    def _shift(self, logits: Tensor) -> Tensor:
        """Return what to add to all classes, or to the background, so that the wanted share of boxes has a high score."""
        least, best = self.model.least, logits[:, :, 1:].max(2).values
        if self.model.independent:
            return math.log(least / (1 - least)) - best.flatten().quantile(1 - KEPT_SHARE)
        # A score is over the least while the background's part of the sum is below what is left by the other classes.
        room = best.exp() / least - logits[:, :, 1:].exp().sum(2)
        return (room.clamp(min=1e-9).log() - logits[:, :, 0]).flatten().quantile(1 - KEPT_SHARE)


def detection_words(found: Found, most: int) -> Tensor:
    """Return the bits of detections, (pictures, most × 6)."""
    parts = (found.boxes, found.scores[:, :, None], found.labels[:, :, None] * (found.scores[:, :, None] > 0))
    rows = torch.cat([part.float() for part in parts], 2)
    return F.pad(rows, (0, 0, 0, most - rows.shape[1])).flatten(1).contiguous().view(torch.int32)


def read_detections(words: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return of all detections the number of their picture, boxes, scores and labels (from 1)."""
    rows = words.contiguous().view(torch.float32).view(len(words), -1, ROW)
    picture, place = (rows[:, :, 4] > 0).nonzero(as_tuple=True)
    kept = rows[picture, place]
    return picture, kept[:, :4], kept[:, 4], kept[:, 5].long()
