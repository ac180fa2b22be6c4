"""Complete a request: choose each value that was not typed for this device, with its reason.

The rules are few and readable, not clever: a person who disagrees types the value. The only choice that is tried is the batch
on a GPU, since it depends on memory: the largest trial step that runs. On a CPU it is a table's (zoo.py).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from shutil import which
from typing import TypeVar

import torch

from stackmark.model import ValidationError
from stackmark.spec import Request, Scalar, explain
from stackmark.workloads.impl.devices import first_device, require_device, usual_precision
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl.data import describe_folder, is_folder
from stackmark.workloads.train.zoo import Model, cpu_batch
from stackmark.workloads.versions import fused_since, has_torch
from stackmark.workloads.workload import WorkloadFailure

GPU_SECONDS, GPU_STEPS, GPU_WARMUP_STEPS, GPU_WARMUP_S = 10.0, 200, 10, 10.0
CPU_SECONDS, CPU_STEPS, CPU_WARMUP_STEPS, CPU_WARMUP_S = 30.0, 30, 2, 5.0
FUSED = {"sgd", "momentum", "adam", "adamw"}

TrialSeconds = Callable[[TrainParams], float]
_T = TypeVar("_T", bound=Scalar)


@dataclass
class Choices:
    """The typed values, the chosen ones, and why."""

    typed: dict[str, Scalar]
    values: dict[str, Scalar]
    reasons: dict[str, str]

    def take(self, name: str, chosen: _T, reason: str) -> _T:
        if name in self.typed:
            chosen = self.typed[name]  # type: ignore[assignment]
        else:
            self.reasons[name] = reason
        self.values[name] = chosen
        return chosen


def choose(request: Request, model: Model, trial: TrialSeconds) -> tuple[TrainParams, dict[str, str]]:
    typed = request.typed()
    picked = Choices(typed, dict(typed), {})
    device = _device(picked)
    gpu = device.startswith("cuda")
    strategy = _strategy(picked, request.ranks)
    _precision_and_tuning(picked, model, device, several=strategy != "none")
    _length(picked, gpu)
    samples = _data(picked, model)
    picked.take("threads", 0, "the framework's choice")
    if "batch" not in typed:
        usual = model.gpu_batch if gpu else cpu_batch(model)
        most = min(usual, samples) if samples else usual
        if gpu:
            batch, reason = _gpu_batch(_read(picked, batch=most, learning_rate=model.learning_rate), usual, trial)
        else:
            batch, reason = _cpu_batch(most, usual)
        picked.take("batch", batch, reason)
    _learning_rate(picked, model)
    return _read(picked), picked.reasons


def _read(picked: Choices, **more: Scalar) -> TrainParams:
    try:
        return TrainParams.model_validate({**picked.values, **more})
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", explain(error), "see: stackmark run --help") from error


def _device(picked: Choices) -> str:
    asked = picked.typed.get("device")
    if asked == "cuda":
        asked = picked.typed["device"] = "cuda:0"
    if asked is None:
        return picked.take("device", *first_device())
    require_device(str(asked))
    return picked.take("device", str(asked), "")


def _strategy(picked: Choices, ranks: int) -> str:
    if ranks == 1:
        return str(picked.typed.get("strategy", "none"))  # there is nothing to choose
    if picked.typed.get("strategy") == "none":
        raise WorkloadFailure("bad_parameter", f"{ranks} ranks need a strategy", "use --strategy ddp")
    if picked.typed.get("mode") == "forward":
        return str(picked.take("strategy", "independent", "a forward pass has no gradients"))
    return str(picked.take("strategy", "ddp", "all-reduce in buckets, as most training does"))


def _precision_and_tuning(picked: Choices, model: Model, device: str, *, several: bool = False) -> None:
    gpu = device.startswith("cuda")
    precision = picked.take("precision", *usual_precision(device))
    default = ("fast", "it needs no compiler and starts at once")
    if gpu:
        default = ("max", "compiled and replayed as a CUDA graph: what this GPU can do")
    if gpu and not can_compile():
        default = ("fast", "torch.compile needs Triton and a C compiler; at least one is missing")
    if several:
        default = ("fast", "strategies run without torch.compile")
    tune = picked.take("tune", *default)
    why = f"tune {tune}"
    transformer = model.dataset == "text" or model.name == "vit-b16"
    usual = ("adamw", "usual for transformers") if transformer else ("momentum", "usual for convolutional networks")
    optimizer = picked.take("optimizer", *usual)
    images = model.image_px > 0
    channels_last = images and tune != "off" and (not gpu or precision != "fp32")
    picked.take("layout", "nhwc" if channels_last else "nchw", why if images else "not an image")
    picked.take("autotune", gpu and tune != "off", why)
    fusable = optimizer in FUSED and (gpu or precision != "fp16")
    if fusable and not has_torch(since := fused_since(str(optimizer), "cuda" if gpu else "cpu")):
        fused = picked.take("fused", False, f"PyTorch has it for {optimizer} since {since}")
    else:
        fused = picked.take("fused", tune != "off" and fusable, why)
    scaled = precision == "fp16" and not picked.typed.get("loss_scale") and picked.typed.get("mode", "train") == "train"
    graph = gpu and tune != "off" and not picked.typed.get("lr_schedule") and (fused or not scaled)
    if several:
        why = "strategies run without it"
    picked.take("cuda_graph", graph and not several, why)
    picked.take("compile", tune == "max" and not several, why)


def can_compile() -> bool:
    return find_spec("triton") is not None and any(which(name) for name in ("cc", "gcc", "clang"))


def require_compiler(device: str) -> None:
    """Refuse torch.compile without its compiler: C++ for a CPU, and for a GPU Triton kernels with a launcher in C."""
    if device == "cpu" and not any(which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        raise WorkloadFailure(
            "missing_package", "torch.compile needs a C++ compiler on a CPU", "install g++, or use --no-compile"
        )
    if device != "cpu" and not can_compile():
        raise WorkloadFailure(
            "missing_package",
            "torch.compile needs Triton and a C compiler on a GPU",
            "install triton and gcc, or use --tune fast",
        )


def _length(picked: Choices, gpu: bool) -> None:
    seconds, steps = (GPU_SECONDS, GPU_STEPS) if gpu else (CPU_SECONDS, CPU_STEPS)
    kind = "GPU" if gpu else "CPU"
    picked.take("seconds", seconds, f"the default on a {kind}")
    length_typed = "seconds" in picked.typed or "steps" in picked.typed
    picked.take("at_least_steps", 0 if length_typed else steps, "a length is given" if length_typed else f"on a {kind}")
    picked.take("warmup_steps", GPU_WARMUP_STEPS if gpu else CPU_WARMUP_STEPS, f"the default on a {kind}")
    picked.take("warmup_seconds", GPU_WARMUP_S if gpu else CPU_WARMUP_S, f"the default on a {kind}")


def _data(picked: Choices, model: Model) -> int | None:
    """Return the number of samples where it is limited."""
    data = str(picked.values.get("data", "device"))
    if not is_folder(data):
        picked.take("classes", model.classes, f"as {model.name} is usually built")
        picked.take("data_workers", 0, "synthetic data")
        return None
    folder = describe_folder(data, model, training=picked.typed.get("mode") != "eval")
    picked.take("classes", max(folder.classes, 2), f"the folder has {folder.classes} classes")
    workers = min(16, max(1, len(os.sched_getaffinity(0)) - 1))
    picked.take("data_workers", workers, "one per CPU, except one for the loop, at most 16")
    return folder.samples


def _learning_rate(picked: Choices, model: Model) -> None:
    """The classic's rate of the ImageNet ResNets is meant for 256 images a step and goes with the batch."""
    if model.dataset == "imagenet" and model.name.startswith("resnet"):
        batch = _read(picked, learning_rate=0.0).batch
        picked.take(
            "learning_rate", model.learning_rate * batch / 256, f"{model.learning_rate} per 256 samples of the batch"
        )
    else:
        picked.take("learning_rate", model.learning_rate, f"usual for {model.name}")


def _gpu_batch(params: TrainParams, usual: int, trial: TrialSeconds) -> tuple[int, str]:
    """The usual batch, or all there is, halved until a trial step fits into the device's memory."""
    batch = params.batch
    while not _runs(params.model_copy(update={"batch": batch}), trial):
        batch //= 2
        # Only here, when the error and the frames it holds are gone, is the memory of the trial free.
        torch.cuda.empty_cache()
    if batch < params.batch:
        return batch, f"a trial step of {params.batch} did not fit into memory; halved until one did"
    return batch, "the usual size; a trial step fits into memory" if batch == usual else "all available samples"


def _runs(params: TrainParams, trial: TrialSeconds) -> bool:
    try:
        trial(params)
    except torch.cuda.OutOfMemoryError:
        if params.batch == 1:
            raise
        return False
    return True


def _cpu_batch(most: int, usual: int) -> tuple[int, str]:
    """The table's, or the largest power of two with enough samples."""
    if most == usual:
        return usual, "the usual size on a CPU"
    return 1 << (most.bit_length() - 1), "the largest power of two with enough samples"
