"""A probe and a run as a worker does them, in this process: a fresh one costs ten seconds of imports a test."""

import json
import tempfile
from typing import Any

import torch

from stackmark.spec import Request, Spec
from stackmark.worker.run import Bench, device_trouble
from stackmark.worker.run import run as run_spec
from stackmark.worker.stream import Emitter
from stackmark.workloads.registry import find
from stackmark.workloads.workload import WorkloadFailure

SHORT = {"steps": 20, "warmup_steps": 3, "warmup_seconds": 0.0}


def run(workload: str, **params: Any) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    """How it ended, its last event, and all of them."""
    ended = "done"
    with tempfile.TemporaryFile() as out:
        emitter = Emitter(out.fileno())
        try:
            with device_trouble():
                short = SHORT if workload.startswith("train/") else {}
                request = Request(workload=workload, params={**short, **params})
                complete, _ = find(workload)[0].load().probe(request, Bench(emitter))
                run_spec(Spec(workload=workload, params=complete.model_dump(mode="json")), emitter)
        except WorkloadFailure as failure:
            ended = f"{failure.kind}: {failure.message} ({failure.hint})"
        emitter.close()
        out.seek(0)
        events = [json.loads(line) for line in out.read().splitlines()]
    torch.cuda.empty_cache()
    return ended, events[-1], events
