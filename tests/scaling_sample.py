"""Measurements of scaling as the engine would hand them over: rates are made up, words and intervals are computed from them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import examined_sample as sample
from stackmark.experiments.design import williams
from stackmark.remarks import Remark
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.family import holm
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.scaling import (
    MARGIN,
    Expected,
    Losses,
    Mode,
    PublishedScaling,
    Scaling,
    ScalingPoint,
    is_questioned,
    question,
    shared_devices,
)
from stackmark.verdict.throughput import throughput_over_runs

# What one block is from another, for each number of ranks: six blocks, spread by about half a percent.
NOISE: Mapping[int, Sequence[float]] = {
    1: (0.002, -0.004, 0.003, -0.001, 0.004, -0.003),
    2: (-0.005, 0.002, 0.001, 0.004, -0.003, 0.000),
    4: (0.003, 0.005, -0.004, -0.002, 0.001, -0.003),
    8: (-0.002, 0.004, -0.001, 0.003, -0.005, 0.001),
}
ONE_PER_S = 4737.0
PUBLISHED = (
    PublishedScaling(4, 852 / (4 * 219), 219, 852, "images/s", "resnet50, 4 × NVIDIA P100, batch 64", "TensorFlow 1.x",
                     "synthetic", "TensorFlow performance guide", "2017-05"),
)  # fmt: skip
ROTATED = "the one rank took cuda:0 to cuda:3 in turn, one per block"
NO_RATE = "stackmark run op/all-reduce --ranks 4 --shape floats=25600000"


def label(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks > 1 else ''}"


def made(
    efficiencies: Mapping[int, float],
    losses: Mapping[int, Losses] | None = None,
    *,
    spread: float = 1.0,
    mode: Mode = "weak",
    refused: Mapping[int, str] | None = None,
    expected: Mapping[int, Expected] | None = None,
    devices: str = ROTATED,
    missing: str = "",
) -> Examined:
    """One H200 and several, by the efficiency of each number of ranks."""
    counts = sorted(efficiencies)
    rates = {
        ranks: [ONE_PER_S * ranks * efficiencies[ranks] * math.exp(spread * noise) for noise in NOISE[ranks]]
        for ranks in counts
    }
    pairs: list[Comparison] = []
    for ranks in counts[1:]:
        if not (refused and ranks in refused):
            one, several = ([math.log(rate / n) for rate in rates[n]] for n in (1, ranks))
            pairs.append(compare_blocks(label(1), label(ranks), one, several, MARGIN, block_s=62.0, terms="efficiency"))
    pairs = list(holm(pairs))
    by_label = {pair.b: pair for pair in pairs}
    arms = tuple(sample.arm(index, "host", rates[ranks], label(ranks)) for index, ranks in enumerate(counts))
    points = []
    for ranks in counts:
        pair = by_label.get(label(ranks))
        efficiency = pair.ratio if pair else 1.0 if ranks == 1 else None
        interval = pair.interval_95 if pair else None
        throughput = throughput_over_runs(rates[ranks])
        points.append(
            ScalingPoint(
                label=label(ranks),
                ranks=ranks,
                batch=256 // ranks if mode == "strong" else 256,
                rate_per_s=throughput.rate_per_s,
                speedup=ranks * efficiency if efficiency else None,
                efficiency=efficiency,
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                losses=losses.get(ranks) if losses else None,
                expected=expected.get(ranks) if expected else None,
                refused=(refused or {}).get(ranks, ""),
                missing=missing if ranks > 1 else "",
            )
        )
    rows = (williams(len(counts)) * 6)[:6]
    runs = tuple(
        sample.run(index, block, rates[counts[index]][block], "host", block * len(counts) + turn)
        for block, row in enumerate(rows)
        for turn, index in enumerate(row)
    )
    base = sample.sample_examined()
    return replace(
        base, kind="scale", experiment_id="x-01m8sca1ec0nta1nerv5h0st01", margin=MARGIN, arms=arms, runs=runs,
        order=tuple(map(tuple, rows)), comparisons=tuple(pairs), differences=(), covariates=(), published=(),
        command=f"stackmark scale train/resnet50_v1.5 --ranks {','.join(map(str, counts))}" + " --strong" * (mode == "strong"),
        warnings=tuple(Remark(question(pair), "above-linear") for pair in pairs if is_questioned(pair)),
        scaling=Scaling(mode, tuple(points), devices, tuple(one for one in PUBLISHED if one.ranks in counts)),
    )  # fmt: skip


def expectation(ranks: int, low: float, high: float) -> Expected:
    return Expected(
        102.4e6, 180.0, 2 * (ranks - 1) / ranks * 102.4e6 / 180e9, low, high, "r-01m7r9g07d31mv0qb1s27c6tpr", 128e6
    )


def scales() -> Examined:
    """Everything is known, and both groups are good."""
    parts = {2: Losses(0.012, 0.004, 0.009), 4: Losses(0.026, 0.011, 0.008)}
    exchange = {2: expectation(2, 0.989, 1.0), 4: expectation(4, 0.984, 1.0)}
    return made({1: 1.0, 2: 0.975, 4: 0.955}, parts, expected=exchange)


def short() -> Examined:
    """Eight ranks wait for a slow one; what the exchange should take was not measured."""
    parts = {2: Losses(0.02, 0.003, 0.007), 4: Losses(0.05, 0.03, 0.01), 8: Losses(0.08, 0.19, 0.03)}
    return made({1: 1.0, 2: 0.97, 4: 0.905, 8: 0.70}, parts, missing=NO_RATE)


def strong() -> Examined:
    """Two ranks with half of the batch each; the runs spread, and the workload says nothing of its steps."""
    return made({1: 1.0, 2: 0.91}, mode="strong", spread=5.0, devices="")


def questioned() -> Examined:
    """The one rank was held back."""
    return made({1: 1.0, 2: 1.08}, devices="the cluster's scheduler chose the device of the one rank")


def sharing() -> Examined:
    """Two ranks, one GPU."""
    return made({1: 1.0, 2: 0.52}, refused={2: shared_devices([sample.UUID, sample.UUID])}, devices="")


def others() -> dict[str, Examined]:
    return {
        "scales": scales(), "strong": strong(), "questioned": questioned(), "sharing": sharing(),
    }  # fmt: skip
