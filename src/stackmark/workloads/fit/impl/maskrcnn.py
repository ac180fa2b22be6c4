"""`fit/maskrcnn`: objects found with their outlines by Mask R-CNN, trained until boxes and masks both reach their precision.

`full` has the network, the hyperparameters and the pictures of MLPerf Training v0.6 (R50-FPN, COCO 2017); `tiny` is the same code
with a small network for scenes of 96 × 96 pixels.

Masks are pasted into their pictures and compared with the true pixels where the model is, picture by picture; only how much each
two share goes on to the mean average precision, since the masks of all pictures would not fit into any memory.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stackmark.ranks import Rank
from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl.backbone_weights import RESNET50
from stackmark.workloads.fit.impl.boxes import areas
from stackmark.workloads.fit.impl.coco_map import (
    Detections,
    Judged,
    Overlaps,
    Truth,
    box_overlaps,
    judge,
    mean_average_precision,
)
from stackmark.workloads.fit.impl.hashing import hashed
from stackmark.workloads.fit.impl.learner import Bench, Supervised, fused_option, share_of_rank
from stackmark.workloads.fit.impl.maskrcnn_data import (
    Outlined,
    OutlinedCoco,
    OutlinedData,
    OutlinedScenes,
    PixelBatch,
    RandomPictures,
    hash_of,
    outlined_garments,
    outlined_scenes,
    plan_by_shape,
)
from stackmark.workloads.fit.impl.maskrcnn_net import Masked, MaskRcnn, NetSize, Stage, weighted_parameters
from stackmark.workloads.fit.impl.regions import resampled
from stackmark.workloads.workload import Values

BOXES, MASKS = "box mAP", "mask mAP"
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-4
# Where the warm-up starts, as a share of the learning rate.
WARMUP_FROM = 1 / 3
MOST_READERS = 32
# Pixels of masks that are pasted together.
PASTED_TOGETHER = 1 << 26


@dataclass(frozen=True)
class Size:
    net: NetSize
    # Edges of the pictures of a folder.
    shortest: int
    longest: int
    # Pictures after which the learning rate is a tenth, and a hundredth.
    decays: tuple[int, ...]
    evaluated_together: int


SIZES = {
    "tiny": Size(
        NetSize(
            stem=16, stages=(Stage(32, 1, 1), Stage(64, 1, 2), Stage(96, 1, 2)), frozen=False, pyramid=32,
            anchors=(16, 32, 48, 64), straddling=True, anchors_drawn=64, before=(100, 60), after=(100, 40), drawn=32,
            most_positive=12, canonical=32, box_cells=5, box_width=128, mask_cells=8, mask_layers=2, mask_width=32,
            most_found=20,
        ),
        96, 96, (), 20,
    ),
    "full": Size(
        NetSize(
            stem=64, stages=(Stage(256, 3, 1), Stage(512, 4, 2), Stage(1024, 6, 2), Stage(2048, 3, 2)), frozen=True,
            pyramid=256, anchors=(32, 64, 128, 256, 512), straddling=False, anchors_drawn=256, before=(2000, 1000),
            after=(2000, 1000), drawn=512, most_positive=128, canonical=56, box_cells=7, box_width=1024, mask_cells=14,
            mask_layers=4, mask_width=256, most_found=100,
        ),
        800, 1333, (60_000 * 16, 80_000 * 16), 4,
    ),
}  # fmt: skip
# Garments are harder: what they are is only learned at a lower rate.
SIZES["real"] = replace(SIZES["tiny"], decays=(5_000, 8_000))


def size_of(params: FitParams) -> Size:
    return SIZES["real" if params.preset == "tiny" and params.source == "real" else params.preset]


def load_data(params: FitParams, rank: Rank) -> OutlinedData:
    if params.preset == "full" and params.data:
        size, threads = SIZES["full"], len(os.sched_getaffinity(0)) // rank.local_size
        return OutlinedCoco(Path(params.data), size.shortest, size.longest, min(MOST_READERS, threads))
    return load_scenes(params).to(torch.device(params.device))


def load_scenes(params: FitParams) -> OutlinedScenes | RandomPictures:
    if params.preset == "full":
        return RandomPictures()
    return outlined_garments(Path(params.data)) if params.data else outlined_scenes()


def data_sha256(params: FitParams) -> str:
    return hash_of(Path(params.data)) if params.preset == "full" and params.data else load_scenes(params).sha256


# --- what was found, and what there is ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What was found in one picture, in its own pixels, and how many pixels each mask shares with each object."""

    image: int
    boxes: Tensor
    labels: Tensor
    scores: Tensor
    pixels: Tensor
    shared: Tensor


def outcomes(masked: Masked, tested: PixelBatch, numbers: Tensor, sizes: Tensor) -> Iterator[Outcome]:
    """Bring what was found in pictures with these numbers into their true sizes, and compare the masks with the objects."""
    found, device = masked.found, masked.masks.device
    counts = (found.scores > 0).sum(1).tolist()
    scales = sizes[numbers].double() / tested.extents.cpu().double()
    for place, (number, count) in enumerate(zip(numbers.tolist(), counts, strict=True)):
        # What is real comes first: the best scores do.
        boxes = found.boxes[place, :count].cpu().double() * scales[place].repeat(2)
        shared, pixels = shared_pixels(masked.masks[place, :count], boxes.float().to(device), tested.pixels[place])
        labels, scores = found.labels[place, :count].cpu() - 1, found.scores[place, :count].cpu()
        yield Outcome(number, boxes, labels, scores, pixels, shared)


def shared_pixels(masks: Tensor, boxes: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Paste masks into a picture; return how many pixels each shares with each object (masks, objects), and how many it has."""
    height, width = pixels.shape[1:]
    true = pixels.to(masks.device).flatten(1).float().T
    window = torch.tensor([0, 0, width, height], device=masks.device, dtype=torch.float32)
    shared, own = [torch.zeros(0, true.shape[1])], [torch.zeros(0)]
    each = max(1, PASTED_TOGETHER // (height * width))
    for some, spans in zip(masks.split(each), boxes.split(each), strict=True):
        pasted = (resampled(some.float(), spans, window.expand(len(some), 4), height, width) >= 0.5).flatten(1)
        own.append(pasted.sum(1).cpu())
        with torch.autocast(masks.device.type, enabled=False):
            shared.append((pasted.float() @ true).cpu())
    return torch.cat(shared).double(), torch.cat(own).double()


def mask_overlaps(found: list[Outcome], truth: Truth, pixels_of_objects: Tensor) -> Overlaps:
    """Overlap masks by intersection over union; with a crowd, by the share of the detection that lies in it.

    The objects of a picture stand together in the truth, in the order in which they were compared.
    """
    images = torch.tensor([one.image for one in found], dtype=torch.long)
    counts = torch.tensor([len(one.scores) for one in found], dtype=torch.long)
    objects = torch.tensor([one.shared.shape[1] for one in found], dtype=torch.long)
    table = torch.cat([torch.zeros(0, dtype=torch.float64), *(one.shared.flatten() for one in found)])
    sizes = counts * objects
    first_object = torch.searchsorted(truth.image, images)
    row = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    starts = (sizes.cumsum(0) - sizes).repeat_interleave(counts) + row * objects.repeat_interleave(counts)
    starts -= first_object.repeat_interleave(counts)
    own = torch.cat([torch.zeros(0, dtype=torch.float64), *(one.pixels for one in found)])

    def overlap(detection: Tensor, thing: Tensor) -> Tensor:
        # What fills up a table of pairs may be of another picture: any number does.
        shared = table[(starts[detection] + thing).clamp(0, len(table) - 1)]
        mine = own[detection]
        union = torch.where(truth.crowd[thing], mine, mine + pixels_of_objects[thing] - shared)
        return shared / union.clamp(min=1)

    return overlap


# --- the task -----------------------------------------------------------------------------------------------------------


class MaskRcnnLearner(Supervised[Outlined]):
    def __init__(self, bench: Bench) -> None:
        params, size = bench.params, size_of(bench.params)
        self.data = load_data(params, bench.rank)
        torch.manual_seed(bench.seed)
        with bench.device:
            net = MaskRcnn(size.net, self.data.classes)
        if params.preset == "full" and params.data and (weights := RESNET50.find(Path(params.data))):
            RESNET50.load(net.backbone, weights)
        if bench.device.type == "cuda":
            net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = torch.optim.SGD(
            weighted_parameters(net, WEIGHT_DECAY), params.learning_rate, MOMENTUM, **fused_option(params)
        )
        super().__init__(
            bench, net, optimizer, self._learning_rate, samples=self.data.samples, data_sha256=self.data.sha256
        )
        self.size, self.network = size, net
        self.logged = {
            "opt_name": "sgd",
            "opt_base_learning_rate": params.learning_rate,
            "opt_weight_decay": WEIGHT_DECAY,
            "opt_learning_rate_warmup_steps": params.warmup_updates,
            "opt_learning_rate_warmup_factor": WARMUP_FROM,
            "num_image_candidates": size.net.after[0],
            "train_samples": self.data.samples,
            "eval_samples": self.data.test_samples,
        }

    def _learning_rate(self, update: int) -> float:
        params = self.bench.params
        seen = update * params.batch * self.bench.rank.size
        rate = params.learning_rate * 0.1 ** sum(seen >= samples for samples in self.size.decays)
        warm = min(1.0, update / max(1, params.warmup_updates))
        return rate * (WARMUP_FROM + (1 - WARMUP_FROM) * warm)

    def batches(self, epoch: int) -> Iterator[tuple[Outlined, int]]:
        rank, epoch_seed = self.bench.rank, int(hashed(self.bench.seed, epoch))
        plan = plan_by_shape(self.data.upright, epoch_seed, self.bench.params.batch, rank.number, rank.size)
        for batch in self.data.train(plan, epoch_seed):
            yield batch.to(self.bench.device), len(batch)

    def loss(self, batch: Outlined) -> Tensor:
        losses: dict[str, Tensor] = self.strategy.net(batch)
        return torch.stack([*losses.values()]).sum()

    def evaluate(self) -> Values:
        mine = share_of_rank(self.data.test_samples, self.bench.rank)
        plan = [*torch.arange(mine.start, mine.stop, mine.step).split(self.size.evaluated_together)]
        found, pixels = list[Outcome](), torch.zeros(len(self.data.truth.image), dtype=torch.float64)
        device = self.bench.device
        with self.evaluating():
            for numbers, tested in zip(plan, self.data.test(plan), strict=True):
                masked = self.network.find(tested.pictures.to(device), tested.extents.to(device))
                found += outcomes(masked, tested, numbers, self.data.sizes)
                for number, true in zip(numbers.tolist(), tested.pixels, strict=True):
                    pixels[self.data.truth.image == number] = true.flatten(1).sum(1).double().cpu()
        judged = self._judged(found, pixels)
        positives = self.data.truth.positives(self.data.classes - 1)
        return {
            name: mean_average_precision(Judged.of(self.bench.gathered(entries)), positives)
            for name, entries in judged.items()
        }

    def _judged(self, found: list[Outcome], pixels: Tensor) -> dict[str, list[Any]]:
        """Compare what this rank found in its pictures with what there is, by boxes and by masks."""
        if not found:
            return {BOXES: [], MASKS: []}
        truth = self.data.truth
        image = torch.cat([torch.full((len(one.scores),), one.image) for one in found])
        label, score = (torch.cat([getattr(one, name) for one in found]) for name in ("labels", "scores"))
        boxes, own = (torch.cat([getattr(one, name) for one in found]) for name in ("boxes", "pixels"))
        return {
            BOXES: judge(
                Detections(image, label, areas(boxes), score),
                truth,
                box_overlaps(boxes, self.data.true_boxes, truth.crowd),
            ).entries(),
            MASKS: judge(Detections(image, label, own, score), truth, mask_overlaps(found, truth, pixels)).entries(),
        }


def build(bench: Bench) -> MaskRcnnLearner:
    return MaskRcnnLearner(bench)
