"""What the tests of the family `fit/` share: complete parameters of a run on one thread, and the run itself without a worker."""

from dataclasses import dataclass, field
from typing import Any

import torch

from stackmark.model import JsonValue
from stackmark.workloads.fit.definition import TASKS, FitParams
from stackmark.workloads.fit.impl import fit
from stackmark.workloads.workload import Evaluated, TimedFigure
from train_rig import RecordingRig


def fit_params(task: str, **given: Any) -> FitParams:
    """The preset's values, with what is given in their place, and the hash of the data that they mean."""
    usual: dict[str, Any] = {
        "device": "cpu",
        "precision": "fp32",
        "threads": 1,
        "fused": False,
        "data_sha256": "0" * 64,
    }
    preset = TASKS[task].presets[given.get("preset", "tiny")]
    params = FitParams.model_validate({**preset, **usual, **given})
    sha256 = fit.module_of(TASKS[task]).data_sha256(params)
    return params.model_copy(update={"data_sha256": given.get("data_sha256", sha256)})


class FitRig(RecordingRig):
    def __init__(self, repetition: int = 0) -> None:
        super().__init__()
        self.repetition = repetition


@dataclass
class Course:
    """A training as far as it came: what a worker would have sent on."""

    facts: dict[str, JsonValue] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    evaluations: list[Evaluated] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    told: TimedFigure | None = None


def trained(task: str, params: FitParams, repetition: int = 0, course: Course | None = None) -> Course:
    """Train to the end; a failure is raised, and the course has what came before it."""
    found = Course() if course is None else course
    rig = FitRig(repetition)
    session = fit.run(task, params, rig)
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    try:
        ready = next(session)
        found.facts, found.flags = ready.facts, rig.flags
        found.told = ready.run(found.evaluations.append, found.lines.append)
        next(session, None)
    finally:
        session.close()
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
    return found
