"""The implementation of `curve/`: the quality grows by the same amount each epoch, faster with some seeds than with others."""

from collections.abc import Callable, Iterator

from curves import TARGETS, TIME, CurveParams
from stackmark.events import Figure
from stackmark.model import JsonValue
from stackmark.spec import AnyParams, Request
from stackmark.workloads.workload import Evaluated, Rig, TimedFigure, TimedTraining, WorkloadFailure

SAMPLES = 1000


def probe(request: Request, rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    values = {"device": "cpu", "target": TARGETS[request.workload], **request.typed()}
    return CurveParams.model_validate(values), {"target": "the target of the preset"}


def learned(epoch: int, epochs: int, seed: int) -> float:
    """The share of everything that is known after an epoch: seeds 0, 5, 10 … need as many as is said, others up to 40 % more."""
    return min(1.0, epoch / (epochs * (1 + 0.1 * (seed % 5))))


def run(name: str, params: AnyParams, rig: Rig) -> Iterator[TimedTraining]:
    assert isinstance(params, CurveParams)
    seed = params.seed + rig.repetition
    targets = [float(text) for text in params.target.split(",")]
    names, best = (["BLEU"], [100.0]) if name == "gnmt" else (["box mAP", "mask mAP"], [0.6, 0.5])
    target = dict(zip(names, targets, strict=True))

    def train(evaluated: Callable[[Evaluated], None], _say: Callable[[str], None]) -> TimedFigure:
        for epoch in range(1, params.max_epochs + 1):
            quality = {one: most * learned(epoch, params.epochs, seed) for one, most in zip(names, best, strict=True)}
            # Not quite alike in all runs, as no clock is.
            clock_s = epoch * params.epoch_s * (1 + 0.001 * (seed % 7))
            one = Evaluated(epoch, epoch * SAMPLES, clock_s, quality, target)
            evaluated(one)
            if one.reached:
                figure = Figure(name=TIME.name, value=clock_s / 60, unit=TIME.unit, higher_is_better=False)
                return TimedFigure(figure, clock_s, ())
        raise WorkloadFailure(
            "target_not_reached",
            f"the target was not reached in {params.max_epochs} epochs",
            "give it more with --max-epochs",
        )

    facts: dict[str, JsonValue] = {"seed": seed, "train_samples": SAMPLES}
    yield TimedTraining(run=train, device="cpu", evaluations=params.max_epochs, facts=facts)
