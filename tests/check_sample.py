"""Checks and trends as samples: every line that their screens can have, without measuring."""

from math import log

from stackmark.errors import Exit
from stackmark.experiments.baseline import Trouble
from stackmark.experiments.check import Checked, EarlierChecks, Rate
from stackmark.experiments.trend import Trend, TrendPoint
from stackmark.figures import figure_unit
from stackmark.remarks import Remark
from stackmark.verdict.comparison import Word
from stackmark.verdict.examined import FactDifference
from stackmark.verdict.fact_values import StackChange
from stackmark.verdict.series import judge_nights
from stackmark.verdict.throughput import throughput_over_runs

NAME = "before-driver-580"
DRIVER = (StackChange("NVIDIA driver", "570.86.15", "580.95.05"),)
THREE = ((100.3, 100.2), (99.8, 99.9), (100.0, 100.1))
DAY_S = 86_400.0
FIRST_UNIX_S = 1_763_000_000.0


def a_check(
    label: str,
    before: tuple[tuple[float, ...], ...],
    nights: tuple[tuple[float, ...], ...],
    unit: str = "images/s",
    **more: object,
) -> Checked:
    """A check whose last night is now; the others are earlier checks on other days."""
    found = judge_nights(
        NAME, [[log(rate) for rate in series] for series in before], [[log(rate) for rate in night] for night in nights], 0.01,
        terms=figure_unit(unit).terms,
    )  # fmt: skip
    latest = nights[found.left_out :]
    rates = {
        "before": _rate(before),
        "now": _rate(nights[-1:]),
        "comparison": found.tonight,
        "lately": _rate(latest) if found.lately else None,
        "lately_comparison": found.lately,
        "alarm": found.alarm,
        "stack_changed": DRIVER,
    }
    return Checked(label, label.split()[0], "host", unit, 61.5, **{**rates, **more})  # type: ignore[arg-type]


def _rate(series: tuple[tuple[float, ...], ...]) -> Rate:
    means = [throughput_over_runs(list(one)).rate_per_s for one in series]
    return Rate(throughput_over_runs(means).rate_per_s, len(series), sum(map(len, series)))


def checks() -> dict[str, list[Checked]]:
    likely = a_check("train/resnet20", ((100.1, 99.9, 100.0),), ((40.1, 39.9, 40.0),))
    same = a_check("train/resnet50", THREE, ((100.1, 99.9),))
    slow = a_check(
        "train/gpt2 on container", THREE, ((100.1, 99.9), (97.9, 98.0), (98.1, 98.0)),
        changed=(FactDifference("cpu", "governor", ("performance", "powersave"), "a slower clock", 90),),
        doubts=(Remark("other programs used 1.6 of 2 CPUs during this check", "busy-machine"),),
    )  # fmt: skip
    failed = Checked(
        "train/vgg16", "train/vgg16", "host", "images/s", 3.0, before=Rate(50.0, 3, 9),
        trouble=Trouble("run r-1: it ran out of memory", "look at it: stackmark show r-1 --log", Exit.RUN_FAILED),
    )  # fmt: skip
    return {
        "likely-slower": [likely],
        "earlier": [a_check("train/resnet20", THREE, ((100.0, 100.1),), same_series=EarlierChecks(99.95, 2, 6))],
        "several": [same, likely, slow, failed],
        "times": [a_check("command/own (latency)", ((1 / 0.2, 1 / 0.201),), ((1 / 0.4, 1 / 0.402),), "1/s")],
        "worse": [a_check("command/own (accuracy)", ((90.0, 90.2),), ((45.0, 45.1),), "%")],
    }


def trend() -> Trend:
    """Three series of a baseline, four checks, of which the last two are slower."""
    words: list[Word | None] = [None, None, None, "EQUIVALENT", "INCONCLUSIVE", "SLOWER", "SLOWER"]
    rates = [*THREE, (100.1, 99.9), (99.5, 99.3), (97.0, 97.2), (96.8, 96.9)]
    means = [throughput_over_runs(list(one)) for one in rates]
    baseline = throughput_over_runs([one.rate_per_s for one in means[:3]])
    points = [
        TrendPoint(
            "check" if word else "baseline", FIRST_UNIX_S + 3 * DAY_S * number, (f"x-{number}",), mean,
            mean.rate_per_s / means[0].rate_per_s, mean.rate_per_s / baseline.rate_per_s, word,
        )
        for number, (mean, word) in enumerate(zip(means, words, strict=True))
    ]  # fmt: skip
    return Trend("train/resnet20", "train/resnet20", "host", "images/s", 0.01, baseline, tuple(points))
