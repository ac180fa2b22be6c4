"""Runs for the tests of the ledger. Imports little, because the processes that these tests start import it too."""

import os
from pathlib import Path

import stackmark
from stackmark import ids
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.spec import Spec

T0 = 1_760_000_000.0
SPEC = Spec(workload="train/resnet50", params={"device": "cuda:0", "batch": 64, "precision": "bf16", "tune": "fast"})
DONE = RunEnd(
    status="done", ended_unix_s=T0 + 40, chip="NVIDIA H200", chip_uuid="GPU-1", framework="torch 2.13.0",
    rate_per_s=1234.5678901234567, rate_unit="images/s", steps_total=200, steps_used=180, steady="warm-up",
    step_p50_s=0.0123, step_p90_s=0.0125, step_p99_s=0.0131, step_cv=0.01, wall_s=2.5, setup_s=11.25,
    memory_peak_mib=20480.5, energy_j=1750.0, data_share=0.01, flags=["throttled: power cap"],
)  # fmt: skip
FAILED = RunEnd(status="failed", ended_unix_s=T0 + 9, failure_kind="not_finite", failure_message="the loss is NaN")
LINES = ['{"event":"hello","seq":0}', "", "a library's \t print, ½", '{"event":"result","seq":1}']


def id_unix_s(identifier: str) -> float:
    """Read from an id when it was made, to the millisecond."""
    number = 0
    for character in identifier[2:12]:
        number = number << 5 | ids.ALPHABET.index(character)
    return number / 1000


def begin(
    ledger: Ledger, *, at: float = T0, workload: str = "train/resnet50", place: str = "host", experiment: str = "",
    machine: str = "this", boot: str = "now", ranks: int = 1,
) -> str:  # fmt: skip
    """A run that has begun; its id."""
    if not experiment:
        experiment = ids.new_id(ids.EXPERIMENT)
        ledger.start_experiment(Experiment(id=experiment, created_unix_s=at, command="stackmark run"))
    run = RunStart(
        id=ids.new_id(ids.RUN), experiment_id=experiment, spec=SPEC.model_copy(update={"workload": workload, "ranks": ranks}),
        place=place, place_options={"image": "x:1"}, started_unix_s=at, machine_id=machine, boot_id=boot,
        driver_pid=os.getpid(), stackmark_version="0.1.0",
    )  # fmt: skip
    ledger.start(run)
    return run.id


def complete(ledger: Ledger, end: RunEnd = DONE, *, at: float = T0, workload: str = "train/resnet50") -> str:
    run_id = begin(ledger, at=at, workload=workload)
    ledger.finish(run_id, end, LINES)
    return run_id


def our_path() -> dict[str, str]:
    """The environment of a Python that imports the same stackmark as this one, and this module."""
    folders = (Path(stackmark.__file__).parents[1], Path(__file__).parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
