"""The bytes that a step of a training workload moves, per sample, from a table and a few formulas; without a framework.

impl/nets/moving.py says what the two numbers are and counts them from the networks; the table traffic.csv keeps what it counted,
for the default number of classes. What is added here is the optimizer: it goes over all parameters once a step, whatever the
batch, with weights, gradients and states of 32 bits.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from stackmark.workloads.train.params import TrainParams
from stackmark.workloads.train.zoo import Model

WORD = 4  # bytes
HALF_PRECISIONS = ("bf16", "fp16")
# Momenta and mean squares that are kept beside a weight.
OPTIMIZER_STATES = {"sgd": 0, "momentum": 1, "rmsprop": 2, "adam": 2, "adamw": 2}
# Words that are read and written for a parameter where each operation is a pass of its own, and what weight decay adds: torch's
# optimizers, step by step, as tests/test_counting_bytes.py counts them.
PASSES = {"sgd": (3, 3), "momentum": (11, 3), "rmsprop": (18, 3), "adam": (18, 3), "adamw": (18, 2)}


@dataclass(frozen=True)
class Bytes:
    """Per sample: at the least, and as the operators are called."""

    least: float
    called: float


@dataclass(frozen=True)
class Counted:
    """A row of the table, in bytes: what grows with the batch and what does not."""

    least_sample: int
    least_step: int
    called_sample: int
    called_step: int


def bytes_of(model: Model, params: TrainParams) -> Bytes | None:
    """None for another last layer than the one that was counted."""
    if params.classes != model.classes:
        return None
    training = params.mode == "train"
    bits = 16 if params.precision in HALF_PRECISIONS else 32
    row = table()[model.name, training, "cpu" if params.device == "cpu" else "cuda", bits]
    least, called = (least_words(params), called_words(params)) if training else (0, 0)
    return Bytes(
        least=row.least_sample + (row.least_step + WORD * least * model.params) / params.batch,
        called=row.called_sample + (row.called_step + WORD * called * model.params) / params.batch,
    )


def least_words(params: TrainParams) -> int:
    """For each parameter and step: weight, gradient and states are read, weight and states written."""
    return 3 + 2 * OPTIMIZER_STATES[params.optimizer]


def called_words(params: TrainParams) -> int:
    plain, decay = PASSES[params.optimizer]
    words = least_words(params) if params.fused else plain + (decay if params.weight_decay else 0)
    # A loss scale is taken out of the gradients in a pass of its own, and so are they clipped.
    return words + 2 * (params.precision == "fp16") + 2 * bool(params.gradient_clip)


@cache
def table() -> dict[tuple[str, bool, str, int], Counted]:
    """By model, whether it is trained, device and bits of the matrix products."""
    text = files("stackmark.workloads.train").joinpath("traffic.csv").read_text(encoding="utf-8")
    return {
        (row["model"], row["mode"] == "train", row["device"], int(row["bits"])): Counted(
            *(int(row[name]) for name in ("least_sample", "least_step", "called_sample", "called_step"))
        )
        for row in csv.DictReader(text.splitlines())
    }
