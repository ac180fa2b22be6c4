"""The implementation of `sort/`, imported by a worker alone."""

from collections.abc import Iterator

import numpy

from my_package import SortParams
from stackmark.spec import AnyParams, Request
from stackmark.workloads.workload import Rig, TimedSteps


def probe(request: Request, rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    chosen = {"device": "cpu", "seconds": 10.0, "at_least_steps": 30, "warmup_steps": 2, "warmup_seconds": 5.0}
    return SortParams.model_validate({**chosen, **request.typed()}), {}


def run(name: str, params: AnyParams, rig: Rig) -> Iterator[TimedSteps]:
    assert isinstance(params, SortParams)
    with rig.part("data"):
        numbers = numpy.random.default_rng(params.seed).random(params.size)
    yield TimedSteps(step=lambda: numbers.copy().sort(), device="cpu", sample="number", samples_per_step=params.size)
