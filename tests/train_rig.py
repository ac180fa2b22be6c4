"""What the tests of the family `train/` share: a rig that records, complete parameters of a small CPU run."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch

from stackmark.ranks import Rank
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl import train
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import TimedSteps, Values

CPU = torch.device("cpu")


class RecordingRig:
    """Remembers the parts of the set-up and the flags."""

    rank = Rank(0, 1, 0, 1)
    repetition = 0

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.flags: list[str] = []

    def part(self, name: str, note: str = "") -> "nullcontext[None]":
        self.parts.append(name)
        return nullcontext()

    def flag(self, sentence: str) -> None:
        self.flags.append(sentence)


def train_params(name: str, **given: Any) -> TrainParams:
    """The plainest run there is, with what is given in its place."""
    plain: dict[str, Any] = {
        "device": "cpu", "seconds": 1.0, "at_least_steps": 0, "warmup_steps": 0, "warmup_seconds": 0.0,
        "batch": 4, "precision": "fp32", "tune": "off", "optimizer": "momentum", "classes": MODELS[name].classes,
        "layout": "nchw", "autotune": False, "fused": False, "cuda_graph": False, "compile": False, "threads": 0,
        "data_workers": 0, "learning_rate": 0.01,
    }  # fmt: skip
    return TrainParams.model_validate({**plain, **given})


@contextmanager
def standing(name: str, rig: RecordingRig | None = None, **given: Any) -> Iterator[TimedSteps]:
    """The workload at its first step; at the end it is let go on to its end, as the worker does."""
    session = train.run(name, train_params(name, **given), rig or RecordingRig())
    try:
        yield next(session)
        next(session, None)
    finally:
        session.close()


def peeked(ready: TimedSteps, steps: int) -> list[Values]:
    """What is read after each of so many steps."""
    assert ready.peek is not None
    found = []
    for _ in range(steps):
        ready.step()
        found.append(ready.peek()())
    return found


def losses(name: str, steps: int, **given: Any) -> list[float]:
    with standing(name, **given) as ready:
        return [values["loss"] for values in peeked(ready, steps)]


@pytest.fixture(autouse=True)
def arithmetic_is_left_as_found() -> Iterator[None]:
    """A run sets the framework's switches for its whole process; one thread, since small tensors gain nothing from two."""
    threads, matmul = torch.get_num_threads(), torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(matmul)
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = cudnn
