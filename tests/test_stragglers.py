"""Which rank the others wait for."""

from math import comb

import pytest

from stackmark.verdict.stragglers import RankSteps, at_least, stragglers


def test_the_chance_is_that_of_the_binomial_distribution() -> None:
    for count, trials, chance in ((3, 10, 0.25), (10, 10, 0.5), (60, 100, 0.5), (0, 5, 0.1)):
        exact = sum(comb(trials, k) * chance**k * (1 - chance) ** (trials - k) for k in range(count, trials + 1))
        assert at_least(count, trials, chance) == pytest.approx(exact, rel=1e-9)


def test_a_rank_that_is_slow_in_most_steps_is_named_with_its_node() -> None:
    ranks = {0: RankSteps(0.100, 5, 100), 1: RankSteps(0.120, 90, 100, "node-2, GPU-1"), 2: RankSteps(0.101, 5, 100)}
    (flag,) = stragglers(ranks)
    assert flag.startswith("stragglers: rank 1 (node-2, GPU-1)")
    assert "90 of 100" in flag


@pytest.mark.parametrize(
    "slow",
    [
        RankSteps(0.120, 36, 100),  # as often as chance has it, among three
        RankSteps(0.104, 95, 100),  # often, and hardly slower
        RankSteps(0.120, 2, 2),  # too few steps to tell
    ],
)
def test_a_rank_that_may_be_slow_by_chance_is_not_named(slow: RankSteps) -> None:
    others = RankSteps(0.100, (slow.steps - slow.slowest) // 2, slow.steps)
    assert stragglers({0: others, 1: slow, 2: others}) == []


def test_one_rank_alone_is_no_straggler() -> None:
    assert stragglers({0: RankSteps(0.1, 5, 5)}) == []
