"""Workloads of another package that are trained to a quality: learning curves without a network, for the driver's side."""

from stackmark.model import Field
from stackmark.spec import AnyParams
from stackmark.workloads.definition import Definition, Family, MetricType, Ranks

TIME = MetricType("time to target", "min", higher_is_better=False)


class CurveParams(AnyParams):
    seed: int = Field(default=1, ge=0, lt=2**31, description="seed of the first run")
    preset: str = Field(default="tiny", description="which size")
    target: str = Field(description="the quality to reach", json_schema_extra={"auto": True, "plain": True})
    # Of the clock that the curve is told on: nothing is waited for.
    epoch_s: float = Field(default=0.01, gt=0, description="seconds of an epoch")
    epochs: int = Field(default=5, ge=1, description="epochs until all is learned")
    max_epochs: int = Field(default=20, ge=1, description="where a run ends without its target")


FAMILY = Family(
    "curve",
    CurveParams,
    "curves.training",
    (
        Definition(
            "curve/gnmt",
            "A learning curve in BLEU",
            "sample",
            timed="quality",
            metric=TIME,
            qualities=(MetricType("BLEU", ""),),
            ranks=Ranks(1, 4),
        ),
        Definition(
            "curve/maskrcnn",
            "Learning curves of boxes and masks",
            "image",
            timed="quality",
            metric=TIME,
            qualities=(MetricType("box mAP", ""), MetricType("mask mAP", "")),
        ),
    ),
)
TARGETS = {"curve/gnmt": "95", "curve/maskrcnn": "0.5,0.4"}
