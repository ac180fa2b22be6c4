"""How often verdicts are wrong, by simulation: the quick form of benchmarks/verdicts.py. Limits are the promised ones plus three
standard errors of the simulation; the seeds are fixed."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from stackmark.experiments.design import SHUFFLED, Arm, Design, order_of
from stackmark.spec import Spec
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

pytestmark = pytest.mark.slow  # simulations

EXPERIMENTS = 20_000
LIMIT = limit_of(0.01)


def error_of(share: float, experiments: int = EXPERIMENTS) -> float:
    return 3 * math.sqrt(share * (1 - share) / experiments)


def share_of(word: str, evidence: Evidence) -> float:
    found = words(evidence.mean, reach(evidence, 0.05), LIMIT, reach_95=reach(evidence, 0.025))
    return float((found == word).mean())


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


def shuffled(blocks: int, seed: int) -> list[tuple[int, int]]:
    """The runs of a design as experiments make them: block and arm, in their order."""
    arms = [Arm(label=name, place="host", spec=Spec(workload="trick/calm", params={})) for name in "ab"]
    design = Design(arms=arms, blocks=blocks, seed=seed, margin=0.01, ordering=SHUFFLED)
    return [(block, arm) for block in range(blocks) for arm in order_of(design, block)]


def disturbed(load: Floats, seeds: int, blocks: int, sd: float) -> Evidence:
    """What a disturbance, one value a run, does to A/A experiments whose order is drawn anew each time."""
    rng = np.random.default_rng(33)
    differences = sd * rng.standard_normal((seeds, blocks))
    for seed in range(seeds):
        for position, (block, arm) in enumerate(shuffled(blocks, seed)):
            differences[seed, block] += load[position] if arm else -load[position]
    return paired(differences)


def test_a_linear_drift_cancels_in_expectation_and_its_remainder_is_inside_the_interval() -> None:
    seen = disturbed(-0.03 * np.arange(12) / 11, 3000, 6, 0.003)
    assert float(seen.mean.mean()) == pytest.approx(0.0, abs=2e-4)
    assert covered(seen) >= 0.88
    assert named(seen) <= 0.05 + error_of(0.05, 3000)


@pytest.mark.parametrize(("blocks", "most"), [(6, 0.12), (10, 0.1)])
def test_a_load_with_a_period_of_four_runs_is_a_difference_only_where_the_draw_is_unlucky(
    blocks: int, most: float
) -> None:
    load = 0.01 * np.cos(2 * math.pi * (np.arange(2 * blocks) + 0.5) / 4)
    # Two of the 20 orders of six blocks go with the load.
    assert named(disturbed(load, 3000, blocks, 0.003)) <= most
    # In the order AB BA AB BA the same load is a difference in every experiment.
    noise = 0.003 * np.random.default_rng(1).standard_normal((3000, blocks))
    alternating = np.array([load[1] - load[0], load[2] - load[3]] * (blocks // 2))
    assert named(paired(alternating + noise)) > 0.99


@pytest.mark.parametrize("n", [4, 6, 10])
def test_a_noisy_machine_gets_a_word_in_an_a_a_in_five_percent_at_most(n: int) -> None:
    rng = np.random.default_rng(36)
    same = paired(0.05 * math.sqrt(2) * rng.standard_normal((EXPERIMENTS, n)))
    assert share_of("SLOWER", same) + share_of("FASTER", same) + share_of("EQUIVALENT", same) <= 0.05 + error_of(0.05)


def test_large_and_small_true_differences_are_found() -> None:
    rng = np.random.default_rng(37)
    half = paired(math.log(0.5) + 0.05 * math.sqrt(2) * rng.standard_normal((EXPERIMENTS, 4)))
    assert share_of("SLOWER", half) >= 0.99
    slower = paired(math.log(0.98) + 0.005 * math.sqrt(2) * rng.standard_normal((EXPERIMENTS, 6)))
    assert share_of("SLOWER", slower) >= 0.9


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
