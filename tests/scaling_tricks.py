"""A family whose ranks take as long as they are told to: for tests of scaling, as rank_tricks.py is of a group that fails.

It needs no framework. A step of several ranks takes its compute, the waiting for the slowest rank and the exchange; one rank has
compute alone. Imported by the tests and, in the worker, as the family's module.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path

from stackmark.model import Field
from stackmark.spec import AUTO, Params, Request, Scalar
from stackmark.workloads.definition import Definition, Family, Ranks
from stackmark.workloads.workload import Metric, Rig, TimedSteps

CHOSEN: dict[str, Scalar] = {
    "device": "cpu", "seconds": 0.3, "at_least_steps": 0, "warmup_steps": 1, "warmup_seconds": 0.0, "batch": 8,
}  # fmt: skip


class GroupParams(Params):
    batch: int = Field(ge=1, le=1_000_000, description="samples per step and rank", json_schema_extra={"auto": True})
    sample_s: float = Field(default=0.001, ge=0, description="what a sample takes")
    exchange_s: float = Field(default=0.001, ge=0, description="what the exchange of several ranks adds to a step")
    straggler_s: float = Field(default=0.0, ge=0, description="what the last rank of several takes longer")
    graph: bool = Field(
        default=False, description="what one rank alone can do", json_schema_extra={"auto": True, "follows": True}
    )


def install(folder: Path) -> Path:
    """Announces the family as an installed package would; the folder is to stand in PYTHONPATH."""
    info = folder / "group-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: group\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stackmark.workloads]\ngroup = scaling_tricks:FAMILY\n")
    return folder


def probe(request: Request, _rig: Rig) -> tuple[Params, dict[str, str]]:
    chosen = {name: value for name, value in request.typed().items() if value != AUTO}
    return GroupParams.model_validate({**CHOSEN, "graph": request.ranks == 1, **chosen}), {}


def run(name: str, params: Params, rig: Rig) -> Iterator[TimedSteps]:
    assert isinstance(params, GroupParams)
    number, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    compute_s = params.batch * params.sample_s
    straggles_s = params.straggler_s if size > 1 else 0.0
    exchange_s = params.exchange_s if size > 1 else 0.0
    last = number == size - 1
    metrics = [
        Metric("compute_step_s", compute_s + straggles_s * last, "s", False),
        Metric("waiting_step_s", straggles_s * (not last), "s", False),
        Metric("exchange_step_s", exchange_s, "s", False),
        Metric("exchanged_bytes_step", 4e6, "B", False),
    ]
    yield TimedSteps(
        step=lambda: time.sleep(compute_s + straggles_s + exchange_s),
        device="cpu",
        sample="image",
        samples_per_step=params.batch * size,
        metrics=lambda: metrics if size > 1 and name == "steps" else [],
    )


FAMILY = Family(
    "group",
    GroupParams,
    "scaling_tricks",
    (
        Definition("group/steps", "steps of a group that says what they are made of", "image", ranks=Ranks(1, 4)),
        Definition("group/silent", "steps of a group that says nothing of them", "image", ranks=Ranks(1, 4)),
        Definition("group/alone", "steps of one process", "image"),
    ),
)
