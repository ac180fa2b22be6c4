"""The family `train/`: its parameters, and the bytes that a step moves. No framework; the networks are in zoo.py.

A parameter marked auto is chosen by the probe (choose.py) for the device, and its reason is said. `tune` is only
a name for a set of choices: the choices themselves (layout, autotune, fused, cuda_graph, compile) are parameters too, so
that a spec says what was done and not what it was called.

impl/nets/moving.py says what the two counts of bytes are and counts them from the networks; the table traffic.csv keeps what
it counted, for the default number of classes. What is added here is the optimizer: it goes over all parameters once a step,
whatever the batch, with weights, gradients and states of 32 bits.
"""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from typing import Literal

from stackmark.model import Field, ValidationError
from stackmark.ranks import MOST_RANKS
from stackmark.spec import Params, Scalar
from stackmark.workloads.definition import Definition, Family, Ranks, SampleBytes
from stackmark.workloads.train.zoo import MODELS, WITH_BLOCKS, Model

AUTO = {"auto": True}
FOLLOWS = {"auto": True, "follows": True}
CLASSIC = {"group": "Optimizer and schedule, as tf_cnn_benchmarks names them"}
OUTPUT = {"group": "Files"}
RANKS = {"group": "Several ranks", "auto": True, "later": True}


class TrainParams(Params):
    batch: int = Field(ge=1, le=1_000_000, description="samples per step and device", json_schema_extra=AUTO)
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = Field(
        description="arithmetic of the matrix products; bf16 and fp16 by autocast, weights stay fp32",
        json_schema_extra=AUTO,
    )
    tune: Literal["off", "fast", "max"] = Field(
        description="off: the framework's defaults; fast: layout, autotune, fused optimizer, CUDA graph; max: also torch.compile",
        json_schema_extra=AUTO,
    )
    mode: Literal["train", "forward", "eval"] = Field(
        default="train",
        description="train; forward: no loss and no backward pass; eval: the quality of a checkpoint on validation data",
    )
    optimizer: Literal["sgd", "momentum", "rmsprop", "adam", "adamw"] = Field(
        description="optimizer; momentum is Nesterov's, as in tf_cnn_benchmarks", json_schema_extra=AUTO
    )
    data: str = Field(
        default="device",
        min_length=1,
        description="device: synthetic, on the device; host: synthetic, copied each step; or a folder "
        "(ImageFolder, TFRecord, CIFAR-10)",
        json_schema_extra={"plain": ["device", "host"]},
    )
    classes: int = Field(ge=1, le=1_000_000, description="outputs of the last layer", json_schema_extra=AUTO)

    layout: Literal["nchw", "nhwc"] = Field(description="order of an image's axes in memory", json_schema_extra=FOLLOWS)
    autotune: bool = Field(description="let cuDNN time its algorithms and keep the fastest", json_schema_extra=FOLLOWS)
    fused: bool = Field(description="one kernel for the whole optimizer step", json_schema_extra=FOLLOWS)
    cuda_graph: bool = Field(description="record the whole step once and replay it", json_schema_extra=FOLLOWS)
    compile: bool = Field(description="torch.compile the model", json_schema_extra=FOLLOWS)
    threads: int = Field(
        ge=0, le=4096, description="intra-op threads; 0: the framework's choice", json_schema_extra=FOLLOWS
    )
    data_workers: int = Field(
        ge=0, le=1024, description="processes that read and decode a folder", json_schema_extra=FOLLOWS
    )
    distortions: bool = Field(default=True, description="random crop and flip of images from a folder")

    learning_rate: float = Field(
        ge=0, description="learning rate at the first step", json_schema_extra={**AUTO, **CLASSIC}
    )
    lr_schedule: str = Field(
        default="",
        description="learning rates by epoch: LR0;E1;LR1;…;En;LRn",
        json_schema_extra={**CLASSIC, "plain": True},
    )
    momentum: float = Field(
        default=0.9, ge=0, lt=1, description="momentum of the momentum optimizer", json_schema_extra=CLASSIC
    )
    weight_decay: float = Field(default=4e-5, ge=0, description="L2 regularisation", json_schema_extra=CLASSIC)
    gradient_clip: float = Field(
        default=0.0, ge=0, description="clip gradients by value; 0: off", json_schema_extra=CLASSIC
    )
    rmsprop_decay: float = Field(default=0.9, ge=0, lt=1, description="decay of rmsprop", json_schema_extra=CLASSIC)
    rmsprop_momentum: float = Field(
        default=0.9, ge=0, lt=1, description="momentum of rmsprop", json_schema_extra=CLASSIC
    )
    rmsprop_epsilon: float = Field(default=1.0, ge=0, description="epsilon of rmsprop", json_schema_extra=CLASSIC)
    adam_beta1: float = Field(
        default=0.9, ge=0, lt=1, description="beta 1 of adam and adamw", json_schema_extra=CLASSIC
    )
    adam_beta2: float = Field(
        default=0.999, ge=0, lt=1, description="beta 2 of adam and adamw", json_schema_extra=CLASSIC
    )
    adam_epsilon: float = Field(default=1e-8, ge=0, description="epsilon of adam and adamw", json_schema_extra=CLASSIC)
    loss_scale: float = Field(
        default=0.0,
        ge=0,
        description="constant loss scale of fp16; 0: adjusted automatically",
        json_schema_extra=CLASSIC,
    )

    loss_every: int = Field(default=10, ge=1, description="read the loss at the first step and then every N steps")
    accuracy: bool = Field(default=False, description="also compute top-1 and top-5 in every step")
    checkpoint_dir: str = Field(
        default="", description="write checkpoints here; eval reads them", json_schema_extra=OUTPUT
    )
    checkpoint_every: int = Field(
        default=0, ge=0, description="write one every N steps; 0: only at the end", json_schema_extra=OUTPUT
    )
    checkpoint_keep: int = Field(default=5, ge=1, description="number of checkpoints to keep", json_schema_extra=OUTPUT)
    trace_file: str = Field(
        default="", description="write a Chrome trace of one warm-up step here", json_schema_extra=OUTPUT
    )

    strategy: Literal["none", "ddp", "fsdp", "parameter-server", "independent"] = Field(
        default="none",
        description="how ranks exchange gradients: ddp (all-reduce in buckets), fsdp (weights sharded, transformers only), "
        "parameter-server, independent (no exchange); with one rank: none",
        json_schema_extra=RANKS,
    )
    server_device: Literal["cpu", "gpu"] = Field(
        default="cpu",
        description="where strategy parameter-server keeps and updates the weights: in host memory, or on rank 0's GPU",
        json_schema_extra={"group": "Several ranks", "later": True},
    )
    share_gpus: bool = Field(
        default=False,
        description="all ranks of a machine use one GPU and exchange through host memory: a trial, not scaling",
        json_schema_extra={"group": "Several ranks", "later": True},
    )

    def _validate(self) -> None:
        self._validate_strategy()
        if self.precision == "fp16" and self.device == "cpu" and self.mode == "train":
            raise ValueError("fp16 training needs a GPU; on a CPU use bf16 or fp32")
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("tf32 needs an NVIDIA GPU; on a CPU use fp32 or bf16")
        if self.cuda_graph and self.device == "cpu":
            raise ValueError("a CUDA graph needs a CUDA device")
        if self.cuda_graph and self.lr_schedule:
            raise ValueError("a CUDA graph replays one learning rate; use --no-cuda-graph with a schedule")
        if self.fused and self.optimizer == "rmsprop":
            raise ValueError("rmsprop has no fused kernel; use --no-fused")
        scaled = self.precision == "fp16" and self.mode == "train" and not self.loss_scale
        if self.cuda_graph and scaled and not self.fused:
            raise ValueError("a CUDA graph with an adjusted loss scale needs a fused optimizer; set --loss-scale")
        if self.mode == "eval" and not self.checkpoint_dir:
            raise ValueError("eval needs the checkpoint_dir that a training run wrote")

    def _validate_strategy(self) -> None:
        if self.strategy == "none":
            return
        if self.mode == "eval":
            raise ValueError("mode eval runs as one rank; use strategy none")
        if self.mode == "forward" and self.strategy != "independent":
            raise ValueError("mode forward has no gradients to exchange; use strategy independent")
        if self.compile or self.cuda_graph:
            raise ValueError("strategies run without compile and cuda_graph; use --no-compile --no-cuda-graph")
        if self.precision == "fp16" and not self.loss_scale and self.strategy in ("fsdp", "parameter-server"):
            raise ValueError(f"strategy {self.strategy} with fp16 needs a constant --loss-scale, or use bf16")
        if self.checkpoint_dir and self.strategy != "ddp":
            raise ValueError(f"strategy {self.strategy} writes no checkpoints; use ddp, or no --checkpoint-dir")
        if self.strategy == "parameter-server" and self.server_device == "gpu" and self.device == "cpu":
            raise ValueError("server_device gpu needs --device cuda")


# --- bytes ----------------------------------------------------------------------------------------------------------------

WORD = 4  # bytes
HALF_PRECISIONS = ("bf16", "fp16")
# Momenta and mean squares that are kept next to a weight.
OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "rmsprop": 2, "adam": 2, "adamw": 2}
# Words that are read and written for a parameter where each operation is a pass of its own, and what weight decay adds: torch's
# optimizers, step by step, as tests/test_counting_bytes.py counts them.
PASSES = {"sgd": (3, 3), "momentum": (11, 3), "rmsprop": (18, 3), "adam": (18, 3), "adamw": (18, 2)}


@dataclass(frozen=True)
class Counted:
    """A row of the table, in bytes: what grows with the batch and what does not."""

    least_sample: int
    least_step: int
    called_sample: int
    called_step: int


def bytes_of(model: Model, params: TrainParams) -> SampleBytes | None:
    """Count the bytes of a sample; None for another last layer than the one in the table."""
    if params.classes != model.classes:
        return None
    training = params.mode == "train"
    bits = 16 if params.precision in HALF_PRECISIONS else 32
    row = table()[model.name, training, "cpu" if params.device == "cpu" else "cuda", bits]
    least, called = (least_words(params), called_words(params)) if training else (0, 0)
    return SampleBytes(
        least=row.least_sample + (row.least_step + WORD * least * model.params) / params.batch,
        called=row.called_sample + (row.called_step + WORD * called * model.params) / params.batch,
    )


def least_words(params: TrainParams) -> int:
    """Count for each parameter and step: weight, gradient and states are read, weight and states written."""
    return 3 + 2 * OPTIMIZER_STATES[params.optimizer]


def called_words(params: TrainParams) -> int:
    plain, decay = PASSES[params.optimizer]
    words = least_words(params) if params.fused else plain + (decay if params.weight_decay else 0)
    # A loss scale is taken out of the gradients in a pass of its own, and so are they clipped.
    return words + 2 * (params.precision == "fp16") + 2 * bool(params.gradient_clip)


@cache
def table() -> dict[tuple[str, bool, str, int], Counted]:
    """Read the table: by model, whether it is trained, device and bits of the matrix products."""
    text = files("stackmark.workloads.train").joinpath("traffic.csv").read_text(encoding="utf-8")
    return {
        (row["model"], row["mode"] == "train", row["device"], int(row["bits"])): Counted(
            *(int(row[name]) for name in ("least_sample", "least_step", "called_sample", "called_step"))
        )
        for row in csv.DictReader(text.splitlines())
    }


# --- the workloads ------------------------------------------------------------------------------------------------------


def _sample_bytes(model: Model, params: Mapping[str, Scalar]) -> SampleBytes | None:
    try:
        return bytes_of(model, TrainParams.model_validate(params))
    except ValidationError:  # of another version
        return None


def _refuses(model: Model, typed: Mapping[str, Scalar]) -> str:
    if typed.get("strategy") == "fsdp" and model.name not in WITH_BLOCKS:
        return "strategy fsdp shards the blocks of a transformer, and this network has none; use --strategy ddp"
    return ""


def _definition(model: Model) -> Definition:
    return Definition(
        f"train/{model.name}",
        model.title,
        model.sample,
        model.sequence_tokens,
        model.params,
        model.forward_macs,
        model.training_flops,
        ranks=Ranks(1, MOST_RANKS),
        samples_per_step="batch",
        sample_bytes=partial(_sample_bytes, model),
        refuses=partial(_refuses, model),
        published_as=(f"infer/{model.name}",),
    )


FAMILY = Family(
    "train",
    TrainParams,
    "stackmark.workloads.train.impl.train",
    tuple(map(_definition, MODELS.values())),
    shown=(
        "device",
        "batch",
        "precision",
        "tune",
        "layout",
        "optimizer",
        "data",
        "strategy",
        "server_device",
        "share_gpus",
    ),
    # A compiler's choices differ from process to process; what a container costs does not need one.
    compared_with={"tune": "fast"},
)
