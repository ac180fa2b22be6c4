"""Sweeps of a cluster in a ledger, run by run, without a cluster."""

from typing import Any

from stackmark.experiments.sweep.plan import Slot, SweepPlan
from stackmark.experiments.sweep.rows import blocks_left
from stackmark.ids import new_id
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.spec import Spec

SPEC = Spec(workload="train/resnet20", params={"device": "cpu", "batch": 2, "seconds": 2.0})
WHY, HINT = "its pod was evicted", "free the node"


class Sweep:
    """A sweep in a ledger, run by run."""

    def __init__(
        self, book: Ledger, nodes: int = 5, per_node: int = 2, confirm_blocks: int = 4, more_runs: int = 0
    ) -> None:
        self.book, self.position = book, 0
        slots = [
            Slot(number=n * per_node + i, node=f"node-{n + 1}", index=i, machine="one")
            for n in range(nodes)
            for i in range(per_node)
        ]
        self.plan = SweepPlan(
            spec=SPEC, gpus=1, slots=slots, confirm_blocks=confirm_blocks, per_machine=1, more_runs=more_runs
        )
        self.experiment = Experiment(
            id=new_id("x"), created_unix_s=1e9, command="stackmark cluster sweep", kind="sweep",
            design=self.plan.model_dump(mode="json"),
        )  # fmt: skip
        book.start_experiment(self.experiment)

    def run(self, slot: int, rate: float | None, *, block: int | None = None, suspect: int | None = None,
            device: str | None = None, why: str = WHY, number: int = 0,
            facts: dict[str, str] | None = None) -> None:  # fmt: skip
        run_id = new_id("r")
        handle: dict[str, Any] = {
            "device": device or f"GPU-{slot}", "gpu_driver": None, "node": self.plan.slots[slot].node, "speed_facts": facts or {}
        }  # fmt: skip
        self.book.start(
            RunStart(
                id=run_id, experiment_id=self.experiment.id, position=self.position, slot=slot, block=block,
                suspect=suspect, pass_number=number if suspect is None else None, spec=SPEC, place="pod",
                started_unix_s=1e9 + self.position,
                machine_id="m", boot_id="b", driver_pid=1, handle=handle, stackmark_version="0",
            )
        )  # fmt: skip
        self.position += 1
        ended = {"ended_unix_s": 1e9 + self.position, "chip": "EPYC", "framework": "PyTorch 2.11"}
        end = (
            RunEnd(status="done", rate_per_s=rate, rate_unit="images/s", **ended)
            if rate
            else RunEnd(status="failed", failure_kind="evicted", failure_message=why, failure_hint=HINT, **ended)
        )
        self.book.finish(run_id, end, [])

    def first_pass(self, slow: tuple[int, ...] = (), failed: tuple[int, ...] = ()) -> None:
        for slot in range(len(self.plan.slots)):
            rate = (50 if slot in slow else 100) * (1 + 0.002 * (slot % 3))
            self.run(slot, None if slot in failed else rate)

    def again(self, suspect: int, reference: int, ratio: float) -> None:
        for block in range(self.plan.confirm_blocks):
            self.run(suspect, 100 * ratio * (1 + 0.001 * block), block=block, suspect=suspect)
            self.run(reference, 100, block=block, suspect=suspect)


def slow_sweep(book: Ledger) -> Sweep:
    sweep = Sweep(book)
    sweep.first_pass(slow=(4, 5), failed=(9,))
    for suspect, reference in {(s, r) for s, r, _ in blocks_left(sweep.plan, book.runs_of(sweep.experiment.id))}:
        sweep.again(suspect, reference, 0.5)
    return sweep
