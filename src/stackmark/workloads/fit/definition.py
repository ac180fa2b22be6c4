"""The family `fit/`: tasks that are trained until they reach a quality. No framework; each task is a module of impl/.

A task has two presets, which share all code: `tiny` trains to its target in seconds to minutes on two cores, `full` has the
architecture, the hyperparameters and the data formats of MLPerf Training v0.6. A preset is a table of values for parameters that
nobody typed, so that a spec says what was done, and the name of the preset only who chose it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from stackmark.events import MOST_EVALUATIONS
from stackmark.model import Field
from stackmark.ranks import MOST_RANKS
from stackmark.spec import AnyParams, Scalar
from stackmark.workloads.definition import Definition, Family, MetricType, Ranks

AUTO = {"auto": True}
FOLLOWS = {"auto": True, "follows": True}
TRAINING = {"group": "Training to a quality (fit/)"}
# What MLPerf's logs are imported as: the two are compared.
TIME_TO_TARGET = MetricType("time to target", "min", higher_is_better=False)
Preset = Literal["tiny", "full"]


class FitParams(AnyParams):
    preset: Preset = Field(
        default="tiny",
        description="tiny: seconds to minutes on two cores; full: the model and hyperparameters of MLPerf",
        json_schema_extra=TRAINING,
    )
    source: Literal["generated", "real"] = Field(
        default="generated",
        description="data of the preset tiny: generated, or real data in the folder --data; fit/minigo: GNU Go is the opponent",
        json_schema_extra=TRAINING,
    )
    data: str = Field(
        default="",
        description="folder with the data; empty: generated, which the preset full cannot learn to its target",
        json_schema_extra=TRAINING,
    )
    target: str = Field(
        pattern=r"^\s*[0-9.]{1,20}(\s*,\s*[0-9.]{1,20})*\s*$",
        description="quality to reach; of several metrics one number each, with commas",
        json_schema_extra={**AUTO, **TRAINING, "plain": True, "one_value": True},
    )
    batch: int = Field(
        ge=1,
        le=10_000_000,
        description="samples per step and device (fit/transformer: tokens); auto: the preset's, which ranks of tiny share",
        json_schema_extra=AUTO,
    )
    precision: Literal["fp32", "tf32", "bf16"] = Field(
        description="arithmetic of the matrix products; bf16 by autocast, weights stay fp32", json_schema_extra=AUTO
    )
    learning_rate: float = Field(gt=0, le=1e6, description="peak learning rate", json_schema_extra={**AUTO, **TRAINING})
    warmup_updates: int = Field(
        ge=0, le=10_000_000, description="updates until the learning rate is at its peak",
        json_schema_extra={**AUTO, **TRAINING},
    )  # fmt: skip
    most_epochs: int = Field(
        ge=1,
        le=MOST_EVALUATIONS,
        description="give up after this many epochs (fit/minigo: generations)",
        json_schema_extra={**AUTO, **TRAINING},
    )
    most_seconds: float = Field(
        default=0.0,
        ge=0,
        le=366 * 86_400,
        description="give up at the first evaluation after this long on the clock; 0: only --most-epochs",
        json_schema_extra={**TRAINING, "quantity": "seconds"},
    )
    evaluate_every: int = Field(
        ge=1, le=MOST_EVALUATIONS, description="epochs from one evaluation to the next",
        json_schema_extra={**AUTO, **TRAINING},
    )  # fmt: skip
    seed: int = Field(
        default=1, ge=0, lt=2**31, description="random seed; each run of an experiment adds its number to it",
        json_schema_extra=TRAINING,
    )  # fmt: skip
    threads: int = Field(
        ge=0, le=4096, description="intra-op threads; 0: the framework's choice", json_schema_extra=FOLLOWS
    )
    fused: bool = Field(description="one kernel for the whole optimizer step", json_schema_extra=FOLLOWS)
    data_sha256: str = Field(
        pattern=r"^[0-9a-f]{64}$",
        description="SHA-256 of the data: runs with other data do not compare",
        json_schema_extra={**AUTO, **TRAINING, "plain": True},
    )
    checkpoint_dir: str = Field(
        default="",
        description="write a checkpoint here after each evaluation, and go on from one that is there",
        json_schema_extra={"group": "Files"},
    )

    def _validate(self) -> None:
        if self.precision == "tf32" and self.device == "cpu":
            raise ValueError("tf32 needs an NVIDIA GPU; on a CPU use fp32 or bf16")
        if self.fused and self.device == "cpu":
            raise ValueError("fused needs --device cuda")
        if not all(map(_is_number, self.targets)):
            raise ValueError(f"target must be numbers with commas between them, got {self.target!r}")

    @property
    def targets(self) -> list[str]:
        return [part.strip() for part in self.target.split(",")]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def targets_of(qualities: tuple[MetricType, ...], target: str) -> dict[str, float]:
    """Return what each metric must reach; raise ValueError where there are more or fewer numbers than metrics."""
    numbers = [float(part) for part in target.split(",")]
    if len(numbers) != len(qualities):
        names = ", ".join(one.name for one in qualities)
        raise ValueError(f"target must have one number for each of: {names}; got {target!r}")
    return {one.name: number for one, number in zip(qualities, numbers, strict=True)}


@dataclass(frozen=True)
class FitTask:
    """One task. `presets` has the values of parameters that nobody typed."""

    name: str
    title: str
    sample: str
    qualities: tuple[MetricType, ...]
    module: str
    presets: Mapping[Preset, Mapping[str, Scalar]]
    # Values that real data of the preset tiny has otherwise.
    real: Mapping[str, Scalar]
    # What MLPerf's logs call the benchmark.
    benchmark: str
    # What MLPerf's logs call the qualities, where there are several.
    logged_as: tuple[str, ...] = ()
    # Whether `--source real` is a folder with data; else it is a program.
    real_in_folder: bool = True


_IMPL = "stackmark.workloads.fit.impl"

TASKS = {
    task.name: task
    for task in (
        FitTask(
            "transformer",
            "Translate with a Transformer until its BLEU is reached (MLPerf: Transformer big, WMT17 En-De)",
            "sentence pair",
            (MetricType("BLEU", ""),),
            f"{_IMPL}.transformer",
            {
                "tiny": {
                    "target": "95", "batch": 256, "learning_rate": 2e-3, "warmup_updates": 300, "most_epochs": 20,
                    "evaluate_every": 1,
                },
                "full": {
                    "target": "25", "batch": 5120, "learning_rate": 1.976e-3, "warmup_updates": 1000, "most_epochs": 10,
                    "evaluate_every": 1,
                },
            },
            {"target": "20", "most_epochs": 30},
            "transformer",
        ),
        FitTask(
            "gnmt",
            "Translate with recurrent layers until their BLEU is reached (MLPerf: GNMT v2, WMT16 En-De)",
            "sentence pair",
            (MetricType("BLEU", ""),),
            f"{_IMPL}.gnmt",
            {
                "tiny": {
                    "target": "95", "batch": 64, "learning_rate": 4e-3, "warmup_updates": 50, "most_epochs": 20,
                    "evaluate_every": 1,
                },
                # A step has 2,048 sentence pairs with eight ranks, for which the learning rate is.
                "full": {
                    "target": "24", "batch": 256, "learning_rate": 2e-3, "warmup_updates": 200, "most_epochs": 8,
                    "evaluate_every": 1,
                },
            },
            {"target": "20", "most_epochs": 30},
            "gnmt",
        ),
        FitTask(
            "ssd",
            "Detect objects with SSD until its mAP is reached (MLPerf: SSD-ResNet34, COCO 2017)",
            "picture",
            (MetricType("mAP", ""),),
            f"{_IMPL}.ssd",
            {
                "tiny": {
                    "target": "0.75", "batch": 16, "learning_rate": 0.02, "warmup_updates": 40, "most_epochs": 40,
                    "evaluate_every": 1,
                },
                # By the reference's rule 0.0025 for 32 pictures.
                "full": {
                    "target": "0.23", "batch": 120, "learning_rate": 9.375e-3, "warmup_updates": 300, "most_epochs": 80,
                    "evaluate_every": 5,
                },
            },
            {"target": "0.4", "most_epochs": 30},
            "ssd",
        ),
        FitTask(
            "maskrcnn",
            "Detect objects and their masks with Mask R-CNN until both mAPs are reached (MLPerf: R50-FPN, COCO 2017)",
            "picture",
            (MetricType("box mAP", ""), MetricType("mask mAP", "")),
            f"{_IMPL}.maskrcnn",
            {
                "tiny": {
                    "target": "0.7,0.75", "batch": 6, "learning_rate": 0.02, "warmup_updates": 50, "most_epochs": 30,
                    "evaluate_every": 1,
                },
                # By the reference's rule 0.02 for 16 pictures, after 500 steps of them.
                "full": {
                    "target": "0.377,0.339", "batch": 4, "learning_rate": 5e-3, "warmup_updates": 2000, "most_epochs": 20,
                    "evaluate_every": 1,
                },
            },
            {"target": "0.45,0.4", "most_epochs": 30},
            "maskrcnn",
            logged_as=("BBOX", "SEGM"),
        ),
        FitTask(
            "resnet",
            "Classify images with ResNet-50 v1.5 until its top-1 accuracy is reached (MLPerf: ImageNet)",
            "image",
            (MetricType("top-1", ""),),
            f"{_IMPL}.resnet",
            {
                "tiny": {
                    "target": "0.9", "batch": 64, "learning_rate": 0.1, "warmup_updates": 64, "most_epochs": 12,
                    "evaluate_every": 1,
                },
                # Of NVIDIA's DGX-1: learning rate and warm-up are for 8 ranks, 1664 images a step.
                "full": {
                    "target": "0.759", "batch": 208, "learning_rate": 5.0, "warmup_updates": 3850, "most_epochs": 72,
                    "evaluate_every": 4,
                },
            },
            {"target": "0.88", "batch": 128, "learning_rate": 0.2, "warmup_updates": 500, "most_epochs": 6},
            "resnet",
        ),
        FitTask(
            "ncf",
            "Recommend items with NeuMF until its hit rate is reached (MLPerf v0.5: NCF, MovieLens 20M)",
            "user-item pair",
            (MetricType("HR@10", ""),),
            f"{_IMPL}.ncf",
            {
                "tiny": {
                    "target": "0.8", "batch": 1024, "learning_rate": 2e-3, "warmup_updates": 0, "most_epochs": 20,
                    "evaluate_every": 1,
                },
                # The target is that of v0.5; v0.6 suspended the benchmark.
                "full": {
                    "target": "0.635", "batch": 65536, "learning_rate": 1e-3, "warmup_updates": 0, "most_epochs": 30,
                    "evaluate_every": 1,
                },
            },
            {"target": "0.65", "most_epochs": 30},
            "ncf",
        ),
        FitTask(
            "minigo",
            "Learn Go by self-play until a win rate is reached (MLPerf: MiniGo, 9 x 9)",
            "position",
            (MetricType("win rate", ""),),
            f"{_IMPL}.minigo",
            {
                "tiny": {
                    "target": "0.85", "batch": 128, "learning_rate": 0.05, "warmup_updates": 0, "most_epochs": 30,
                    "evaluate_every": 1,
                },
                "full": {
                    "target": "0.95", "batch": 4096, "learning_rate": 0.16, "warmup_updates": 0, "most_epochs": 50,
                    "evaluate_every": 1,
                },
            },
            # An evaluation takes as long as a generation: GNU Go is asked after every third one.
            {"target": "0.1", "most_epochs": 60, "evaluate_every": 3},
            "minigo",
            real_in_folder=False,
        ),
    )
}  # fmt: skip


def _definition(task: FitTask) -> Definition:
    return Definition(
        f"fit/{task.name}",
        task.title,
        task.sample,
        timed="quality",
        metric=TIME_TO_TARGET,
        qualities=task.qualities,
        ranks=Ranks(1, MOST_RANKS),
    )


FAMILY = Family(
    "fit",
    FitParams,
    f"{_IMPL}.fit",
    tuple(map(_definition, TASKS.values())),
    shown=("device", "preset", "source", "target", "batch", "precision", "learning_rate"),
)
