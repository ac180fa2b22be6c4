"""Real samples for networks that are served, from folders that `train/` and `fit/` read too, and what is right for them.

All of it happens before the clock starts, as MLPerf's rules allow: decoding, resizing, cropping and normalising of pictures, and
cutting text into tokens. What is chosen of a folder lies evenly over it.
"""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stackmark.workloads.fit.impl.bleu import corpus_bleu, tokens_intl
from stackmark.workloads.fit.impl.boxes import areas
from stackmark.workloads.fit.impl.coco import TEST, Instances, read_instances
from stackmark.workloads.fit.impl.coco_map import Detections, Truth, box_overlaps, judge, mean_average_precision
from stackmark.workloads.fit.impl.text import read_corpus, source_batch
from stackmark.workloads.serve.definition import SERVED
from stackmark.workloads.serve.impl.answering import MOBILENET, image_model, outputs_of
from stackmark.workloads.serve.impl.detectors import DETECTORS, read_detections
from stackmark.workloads.serve.impl.language import TRANSLATORS
from stackmark.workloads.serve.impl.weights import read_weights
from stackmark.workloads.train.impl.data import MEAN, STD
from stackmark.workloads.train.impl.folder import open_folder
from stackmark.workloads.train.impl.pictures import UnreadableImage, require_pillow
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import WorkloadFailure

MOST_READERS = 16
BACKGROUND_FIRST = (1000, 1001)

# Takes all answers in the order of the samples, and returns the qualities of `definition.QUALITIES`, in percent.
Score = Callable[[Tensor], dict[str, float]]


@dataclass(frozen=True)
class RealSamples:
    """A folder. `read` gives some samples, as the network takes them, and how their answers are scored."""

    count: int
    sha256: str
    read: Callable[[Sequence[int]], tuple[Tensor, Score]]

    def spaced(self, library: int) -> list[int]:
        return [number * self.count // library for number in range(library)]


def open_samples(name: str, folder: Path, weights: str) -> RealSamples:
    opened = {"classifier": _images, "detector": _coco, "translator": _text}.get(SERVED[name].kind)
    if opened is None or not SERVED[name].source:
        raise WorkloadFailure(
            "bad_parameter",
            f"serve/{name} reads no data of a folder",
            "leave out --data: its samples are random, and --accuracy judges them by the network's own answers in fp64",
        )
    return opened(name, folder, weights)


def _read_all(read: Callable[[int], Tensor], numbers: Sequence[int]) -> Tensor:
    """Read pictures by threads: Pillow decodes and resizes without Python's lock."""
    readers = min(MOST_READERS, len(os.sched_getaffinity(0)))
    try:
        with ThreadPoolExecutor(readers) as pool:
            return torch.stack(list(pool.map(read, numbers)))
    except UnreadableImage as error:
        raise WorkloadFailure("bad_data", str(error)) from error


def top1(labels: Tensor) -> Score:
    return lambda words: {"top1": 100 * (words[:, 0].long() == labels).double().mean().item()}


def _images(name: str, path: Path, weights: str) -> RealSamples:
    require_pillow()
    model = image_model(name)
    outputs = outputs_of(model, read_weights(Path(weights)) if weights else None)
    # Of the same size, where the network is none of `train/`.
    known = MODELS["resnet50_v1.5" if model is MOBILENET else SERVED[name].source]
    folder = open_folder(path, known, False, outputs)
    if folder.classes > outputs:
        raise WorkloadFailure("bad_data", f"{path} has {folder.classes} classes, but serve/{name} knows {outputs}")
    # TensorFlow's weights for ImageNet have an output more, the first one: "background".
    first = int((folder.classes, outputs) == BACKGROUND_FIRST)
    digest = hashlib.sha256(f"images {len(folder)} {folder.classes}".encode())
    for file in folder.files():
        digest.update(f"\n{os.path.relpath(file, path)} {os.stat(file).st_size}".encode("utf-8", "surrogateescape"))

    def read(numbers: Sequence[int]) -> tuple[Tensor, Score]:
        labels = [0] * len(numbers)

        def one(place: int) -> Tensor:
            image, labels[place] = folder.read(numbers[place], None)
            return image

        pixels = _read_all(one, range(len(numbers))).float()
        if model is MOBILENET:
            return pixels.div_(127.5).sub_(1), top1(torch.tensor(labels) + first)
        mean, std = (torch.tensor(part)[:, None, None] for part in (MEAN, STD))
        return pixels.sub_(mean).div_(std), top1(torch.tensor(labels) + first)

    return RealSamples(len(folder), digest.hexdigest(), read)


# --- detection --------------------------------------------------------------------------------------------------------------


def _coco(name: str, path: Path, _weights: str) -> RealSamples:
    require_pillow()
    model, found = DETECTORS[name], read_instances(path, TEST)
    numbers_of_classes = torch.tensor(found.categories) if model.coco_numbers else torch.arange(1, model.classes)
    if len(found.categories) > len(numbers_of_classes) or int(numbers_of_classes.max()) >= model.classes:
        raise WorkloadFailure(
            "bad_data",
            f"{path} has {len(found.categories)} classes up to number {max(found.categories)}, but serve/{name} knows "
            f"{model.classes - 1}",
        )

    def read(numbers: Sequence[int]) -> tuple[Tensor, Score]:
        pixels = _read_all(lambda number: found.read(number, (model.px, model.px)), numbers).float()
        pixels = pixels.div_(127.5).sub_(1) if model.signed else pixels.div_(255)
        return pixels, _map_of(found, numbers, numbers_of_classes, model.classes)

    return RealSamples(len(found.names), found.sha256, read)


def _map_of(found: Instances, numbers: Sequence[int], numbers_of_classes: Tensor, classes: int) -> Score:
    place = torch.full((len(found.names),), -1)
    place[torch.tensor(numbers)] = torch.arange(len(numbers))
    whole = found.truth()
    image = place[whole.image]
    kept = image >= 0
    truth = Truth(image[kept], numbers_of_classes[whole.label[kept]] - 1, whole.area[kept], whole.crowd[kept])
    return mean_precision(truth, found.boxes[kept], found.sizes[torch.tensor(numbers)], classes)


def mean_precision(truth: Truth, true_boxes: Tensor, sizes: Tensor, classes: int) -> Score:
    """Score detections by COCO's mean average precision, in pixels of pictures with these sizes."""

    def score(words: Tensor) -> dict[str, float]:
        image, boxes, scores, labels = read_detections(words)
        pixels = boxes.double() * sizes[image].repeat(1, 2)
        overlaps = box_overlaps(pixels, true_boxes, truth.crowd)
        judged = judge(Detections(image, labels - 1, areas(pixels), scores), truth, overlaps)
        return {"mAP": 100 * mean_average_precision(judged, truth.positives(classes - 1))}

    return score


# --- translation ------------------------------------------------------------------------------------------------------------


def _text(name: str, path: Path, _weights: str) -> RealSamples:
    size, words, _ = TRANSLATORS[name]
    corpus = read_corpus(path, size.longest, size.longest_tested)
    if max(len(corpus.source), len(corpus.target)) > words:
        raise WorkloadFailure(
            "bad_data", f"{path} has {len(corpus.target):,} pieces, but serve/{name} knows {words:,} words"
        )

    def read(numbers: Sequence[int]) -> tuple[Tensor, Score]:
        references = [corpus.references[number] for number in numbers]

        def score(said: Tensor) -> dict[str, float]:
            texts = [corpus.target.joined(row) for row in said.tolist()]
            return {"BLEU": corpus_bleu(texts, references, lowercase=True, tokenizer=tokens_intl)}

        return source_batch([corpus.test[number] for number in numbers]), score

    return RealSamples(len(corpus.test), corpus.sha256, read)
