"""Feed samples from the device's memory, the host's memory, or a folder on disk.

Every feed fills the same tensors on the device, so that a step looks alike whatever feeds it (and a CUDA graph, which
replays addresses, can be fed at all). On a GPU the copy of the next batch runs on its own stream next to the step.
"""

import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
from torch import Tensor

from stackmark.ranks import Rank
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl import nets
from stackmark.workloads.train.zoo import Model
from stackmark.workloads.workload import WorkloadFailure

if TYPE_CHECKING:
    # Imported when a folder is read: it needs numpy, which an image may not have.
    from stackmark.workloads.train.impl.folder import Folder, Source

# Distinct batches in the host's memory, so that the copy is not served from a cache that training would not have.
HOST_BATCHES = 4
# Larger than any number of batches that are made from consecutive seeds.
SEEDS_BETWEEN_RANKS = 1_000_003
ALONE = Rank(0, 1, 0, 1)
# Of ImageNet, in 0 … 255, as everybody uses them.
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)


class Feed(Protocol):
    """Fills `target` with the next batch; `wait_s` is how long the loop waited for one."""

    target: nets.Sample
    wait_s: float

    def fill(self) -> None: ...
    def close(self) -> None:
        """End the processes that read for it."""


def is_folder(data: str) -> bool:
    return data not in ("device", "host")


class Description(NamedTuple):
    classes: int
    samples: int


def describe_folder(data: str, model: Model, training: bool) -> Description:
    from stackmark.workloads.train.impl.folder import open_folder

    folder = open_folder(Path(data), model, training)
    return Description(folder.classes, len(folder))


def samples_in_epoch(params: TrainParams, model: Model) -> int:
    """Return the folder's size, or that of the data set that the synthetic one represents; for schedules by epoch."""
    if is_folder(params.data):
        return describe_folder(params.data, model, params.mode != "eval").samples
    return {"imagenet": 1_281_167, "cifar10": 50_000}.get(model.dataset, 1_000_000)


def open_feed(params: TrainParams, model: Model, device: torch.device, rank: Rank = ALONE) -> Feed:
    """Open the feed of one rank. Each has samples of its own; the weights have the seed itself."""
    seed = params.seed + rank.number * SEEDS_BETWEEN_RANKS
    target = nets.synthetic(model, params.batch, params.classes, device, seed)
    if params.layout == "nhwc" and model.image_px:
        images = target.inputs[0].contiguous(memory_format=torch.channels_last)
        target = nets.Sample((images, *target.inputs[1:]), target.targets)
    if params.data == "device":
        return DeviceFeed(target)
    if params.data == "host":
        return CopyFeed(target, _host_batches(params, model, seed), device, bytes_as_images=False)
    from stackmark.workloads.train.impl.folder import batches, open_folder

    folder = open_folder(Path(params.data), model, training=params.mode != "eval", outputs=params.classes)
    _check_fits(folder, params, rank)
    source = batches(folder, params, pin=device.type == "cuda", rank=rank)
    return CopyFeed(target, source, device, bytes_as_images=True)


def _check_fits(folder: "Folder", params: TrainParams, rank: Rank) -> None:
    if folder.classes > params.classes:
        raise WorkloadFailure(
            "bad_data",
            f"{params.data} has {folder.classes} classes, but the model has {params.classes} outputs",
            f"use --classes {folder.classes}, or leave it out",
        )
    own = len(folder) // rank.size
    if own < params.batch:
        each = f" for each of {rank.size} ranks" if rank.size > 1 else ""
        raise WorkloadFailure(
            "bad_data", f"{params.data} has {own} samples{each}, less than one batch of {params.batch}",
            f"use --batch {own} or less",
        )  # fmt: skip


def _host_batches(params: TrainParams, model: Model, seed: int) -> "Source":
    made = []
    for index in range(HOST_BATCHES):
        sample = nets.synthetic(model, params.batch, params.classes, torch.device("cpu"), seed + index)
        if params.device != "cpu":
            sample = nets.Sample(_pinned(sample.inputs), _pinned(sample.targets))
        if params.layout == "nhwc" and model.image_px:
            image = sample.inputs[0].contiguous(memory_format=torch.channels_last)
            image = image.pin_memory() if params.device != "cpu" else image
            sample = nets.Sample((image, *sample.inputs[1:]), sample.targets)
        made.append(sample)
    while True:
        yield from made


def _pinned(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(t.pin_memory() for t in tensors)


class DeviceFeed:
    """Synthetic samples that stay on the device: only the step is measured."""

    def __init__(self, target: nets.Sample) -> None:
        self.target = target
        self.wait_s = 0.0

    def fill(self) -> None:
        pass

    def close(self) -> None:
        pass


class CopyFeed:
    """Batches from the host. On a GPU the next one is copied during the step, from pinned memory, on its own stream."""

    def __init__(self, target: nets.Sample, source: "Source", device: torch.device, bytes_as_images: bool) -> None:
        self.target = target
        self.wait_s = 0.0
        self._source = source
        self._bytes_as_images = bytes_as_images
        self._gpu = device.type == "cuda"
        if bytes_as_images:
            shape = (1, 3, 1, 1)
            self._mean = torch.tensor(MEAN, device=device).view(shape)
            self._std = torch.tensor(STD, device=device).view(shape)
        if self._gpu:
            self._stream = torch.cuda.Stream(device)
            self._staged, self._taken = torch.cuda.Event(), torch.cuda.Event()
            self._staging = tuple(t.to(device, non_blocking=True) for t in self._next())
            torch.cuda.synchronize(device)
            self._taken.record()
            self._stage()

    def _next(self) -> tuple[Tensor, ...]:
        begin = time.perf_counter()
        sample = next(self._source)
        self.wait_s += time.perf_counter() - begin
        return (*sample.inputs, *sample.targets)

    def _stage(self) -> None:
        batch = self._next()
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(self._taken)
            for staging, tensor in zip(self._staging, batch, strict=True):
                staging.copy_(tensor, non_blocking=True)
            self._staged.record()

    def fill(self) -> None:
        """Put the next batch into the target; images that came as bytes are normalised there."""
        if self._gpu:
            torch.cuda.current_stream().wait_event(self._staged)
            self._put(self._staging)
            self._taken.record()
            self._stage()
        else:
            self._put(self._next())

    def close(self) -> None:
        self._source.close()

    def _put(self, batch: tuple[Tensor, ...]) -> None:
        for place, tensor in zip((*self.target.inputs, *self.target.targets), batch, strict=True):
            place.copy_(tensor)
        if self._bytes_as_images:
            self.target.inputs[0].sub_(self._mean).div_(self._std)
