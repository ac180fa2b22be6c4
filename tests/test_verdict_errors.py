"""How often verdicts are wrong, by simulation: the quick form of benchmarks/verdicts.py. Limits are the promised ones plus three
standard errors of the simulation; the seeds are fixed."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from stackmark.plan.design import order_of
from stackmark.verdict.evidence import (
    Evidence,
    Floats,
    limit_of,
    named_differences,
    paired,
    pooled,
    reach,
    welch,
    words,
)

EXPERIMENTS = 20_000
LIMIT = limit_of(0.01)


def error_of(share: float, experiments: int = EXPERIMENTS) -> float:
    return 3 * math.sqrt(share * (1 - share) / experiments)


def share_of(word: str, evidence: Evidence) -> float:
    return float((words(evidence.mean, reach(evidence, 0.05), LIMIT) == word).mean())


def covered(evidence: Evidence) -> float:
    return float((np.abs(evidence.mean) <= reach(evidence, 0.05)).mean())


def named(evidence: Evidence) -> float:
    return float((named_differences(evidence.mean, reach(evidence, 0.025)) != "").mean())


def gaussian(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.standard_normal(shape)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    return rng.standard_t(3, shape) / math.sqrt(3.0)


@pytest.mark.parametrize(("n", "sd"), [(4, 0.003), (6, 0.01), (20, 0.02)])
def test_the_ninety_percent_interval_covers_the_truth_in_ninety_percent(n: int, sd: float) -> None:
    rng = np.random.default_rng(31)
    share = covered(paired(sd * rng.standard_normal((EXPERIMENTS, n))))
    assert 0.88 <= share <= 0.92
    assert share == pytest.approx(0.9, abs=error_of(0.9))


@pytest.mark.parametrize("noise", [gaussian, heavy_tailed])
@pytest.mark.parametrize(("n", "sd"), [(2, 0.003), (6, 0.003), (20, 0.02)])
def test_false_words_and_false_differences_stay_within_five_percent(
    n: int, sd: float, noise: Callable[[np.random.Generator, tuple[int, int]], Floats]
) -> None:
    rng = np.random.default_rng(32)
    differences = sd * (noise(rng, (EXPERIMENTS, n)) - noise(rng, (EXPERIMENTS, n))) / math.sqrt(2)
    for edge, word in ((-LIMIT, "SLOWER"), (LIMIT, "FASTER")):
        at_the_margin = paired(differences + edge)
        assert share_of("EQUIVALENT", at_the_margin) <= 0.05 + error_of(0.05)
        assert share_of(word, at_the_margin) <= 0.05 + error_of(0.05)
    assert named(paired(differences)) <= 0.05 + error_of(0.05)


def test_the_order_of_the_blocks_makes_a_linear_drift_fall_out() -> None:
    rng = np.random.default_rng(33)
    blocks, sd = 6, 0.003
    # The order as experiments run it; a drift of 3 % over the whole, far more than the spread.
    runs = [(block, arm) for block in range(blocks) for arm in order_of(2, block, seed=4)]
    logs = np.zeros((2, blocks))
    for position, (block, arm) in enumerate(runs):
        logs[arm, block] = -0.03 * position / (len(runs) - 1)
    seen = paired(logs[1] - logs[0] + sd * rng.standard_normal((EXPERIMENTS, blocks)))
    assert float(seen.mean.mean()) == pytest.approx(0.0, abs=3 * sd / math.sqrt(blocks * EXPERIMENTS))
    assert covered(seen) >= 0.88
    assert named(seen) <= 0.05 + error_of(0.05)


def test_pooled_steps_claim_differences_that_are_none_and_runs_do_not() -> None:
    rng = np.random.default_rng(34)
    logs = 0.005 * rng.standard_normal((2, 1000, 5, 1)) + 0.01 * rng.standard_normal((2, 1000, 5, 100))
    steps = logs.reshape(2, 1000, 500)
    assert named(welch(steps[0], steps[1])) == pytest.approx(0.67, abs=error_of(0.67, 1000))
    assert named(welch(logs[0].mean(axis=-1), logs[1].mean(axis=-1))) <= 0.05 + error_of(0.05, 1000)


@pytest.mark.parametrize(("n_a", "n_b"), [(2, 2), (3, 3), (3, 1)])
def test_unpaired_words_stay_within_five_percent_where_both_sides_spread_alike(n_a: int, n_b: int) -> None:
    rng, experiments = np.random.default_rng(35), 2000
    a, b = 0.003 * rng.standard_normal((experiments, n_a)), 0.003 * rng.standard_normal((experiments, n_b))
    by = welch if n_b > 1 else pooled
    assert share_of("EQUIVALENT", by(a, b - LIMIT)) <= 0.05 + error_of(0.05, experiments)
    assert share_of("SLOWER", by(a, b - LIMIT)) <= 0.05 + error_of(0.05, experiments)
    assert named(by(a, b)) <= 0.05 + error_of(0.05, experiments)
