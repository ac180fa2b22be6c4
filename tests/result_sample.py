"""A measured run as people see it: its row, its result, and its events while it runs."""

from stackmark.events import Event, Phase, Result, Steps
from stackmark.experiments.result import RunResult
from stackmark.experiments.run import Measured
from stackmark.ledger.rows import Experiment, RunRow
from stackmark.published.near import Match
from stackmark.published.table import Published
from stackmark.spec import Spec
from stackmark.verdict.throughput import throughput_over_runs


def row(**more: object) -> RunRow:
    values: dict[str, object] = dict.fromkeys(RunRow.model_fields) | {"ranks": 1}
    values |= {"id": "r-01m7f0pez5fsz8m2ew96aq60wk", "experiment_id": "x", "position": 0, "workload": "train/resnet50"}
    values |= {"spec_digest": "", "place": "host", "place_options": {}, "status": "done", "started_unix_s": 1.0}
    values |= {"machine_id": "", "boot_id": "", "driver_pid": 1, "handle": {}, "flags": [], "stackmark_version": ""}
    values |= {"arm": 0, "attempt": 0, "role": "measured"}
    values |= {"rate_per_s": 7087.4, "rate_unit": "images/s", "steady": "flat"}
    return RunRow.model_validate(values | more)


RATES = (7000.0, 7010.0, 6990.0, 7005.0, 6995.0)
RUN: dict[str, object] = {
    "chip": "NVIDIA H200", "framework": "PyTorch 2.13.0", "step_p50_s": 0.0731, "step_p90_s": 0.0735,
    "step_p99_s": 0.0801, "data_share": 0.0123, "memory_peak_mib": 20480.0, "batch": 512, "steps_total": 100,
    "energy_j": 0.0912 * 51200, "ended_unix_s": 41.0,
}  # fmt: skip
LIMITED = "the GPU's clocks were held down by the power limit"
EVENTS: tuple[Event, ...] = (
    *(Phase(seq=0, t=0, phase=name, state="end", seconds=s) for name, s in (("import", 4.2), ("model", 0.8), ("compile", 61))),
    Result(seq=1, t=0, sample="image", samples_per_step=512, steps=100, wall_s=7, tick_s=1e-6, operations_per_sample=24.3e9),
)  # fmt: skip
PUBLISHED = Match(
    Published(
        "train/resnet50", "resnet50", "training", "NVIDIA H200", "", 1, "", "fp16", 256, 3079.0, "images/s", "", "2025",
        "Lambda", "", "", {},
    ),
    ("fp16 instead of bf16",),
    (0.0,),
)  # fmt: skip
COMMAND = "stackmark run train/resnet50 --batch 512 --precision bf16 --tune max --runs 5 --seconds 30 --device cuda:0"
MEASURED = Measured(
    experiment=Experiment(id="x-01m7f0pez3azxgfv3vqk4d82x7", created_unix_s=1.0),
    spec=Spec(workload="train/resnet50", params={"batch": 512, "precision": "bf16", "tune": "max"}),
    choices={"batch": "it fits into memory", "precision": "it has units for it"},
    facts={"software": {"cuda": "13.0"}},
    runs=tuple(
        row(**RUN, rate_per_s=rate, steady="flat" if number < 4 else "warm-up", flags=[LIMITED])
        for number, rate in enumerate(RATES)
    ),
    throughput=throughput_over_runs(RATES),
    events=EVENTS,
)
RESULT = RunResult(MEASURED, COMMAND, (PUBLISHED,))


def events_of_a_run() -> list[Event]:
    return [
        Phase(seq=0, t=0, phase="compile", state="begin"),
        Phase(seq=1, t=9, phase="compile", state="end", seconds=9.0),
        Phase(seq=2, t=9, phase="warm-up", state="begin", expected_s=10.0),
        Steps(seq=3, t=10, phase="warm-up", first=0, step_s=[0.1] * 10),
        Phase(seq=4, t=10, phase="warm-up", state="end", seconds=1.0, note="still moved"),
        Phase(seq=5, t=10, phase="measure", state="begin", expected_s=10.0, expected_steps=100),
        Steps(seq=6, t=11, phase="measure", first=0, step_s=[0.1] * 25),
    ]
