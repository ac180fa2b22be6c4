"""The rule for stopping early: its levels against a textbook, its error rates by simulation, its looks."""

import math

import numpy as np
import pytest
from scipy import stats

from refusing import refused
from stackmark.verdict.evidence import Floats, limit_of, named_differences, paired, reach, words
from stackmark.verdict.sequential import Spending, first_look, planned_looks, stopping_rule

LIMIT = limit_of(0.01)
EVERY_TWO = tuple(range(4, 21, 2))
EXPERIMENTS = 20_000


def within(alpha: float) -> float:
    """An error rate of alpha, plus three standard errors of the simulation."""
    return alpha + 3 * math.sqrt(alpha * (1 - alpha) / EXPERIMENTS)


def ended(
    differences: Floats, looks: tuple[int, ...], levels: tuple[tuple[float, float], ...]
) -> tuple[Floats, Floats]:
    word = np.full(len(differences), "INCONCLUSIVE", dtype="<U12")
    ever = np.zeros(len(differences), dtype=bool)
    for look, (one_sided, two_sided) in zip(looks, levels, strict=True):
        seen = paired(differences[:, :look])
        now = words(seen.mean, reach(seen, one_sided), LIMIT, reach_95=reach(seen, two_sided / 2))
        word = np.where(word == "INCONCLUSIVE", now, word)
        ever |= named_differences(seen.mean, reach(seen, two_sided / 2)) != ""
    return word, ever


@pytest.mark.slow
@pytest.mark.parametrize("spending", ["pocock", "obrien-fleming"])
@pytest.mark.parametrize("looks", [EVERY_TWO, planned_looks(40), (2, 4, 8, 16)])
def test_error_rates_hold_however_early_the_rule_stops(looks: tuple[int, ...], spending: Spending) -> None:
    rule = stopping_rule(looks, spending=spending)
    levels = tuple(zip(rule.one_sided, rule.two_sided, strict=True))
    noise = 0.003 * np.random.default_rng(11).standard_normal((EXPERIMENTS, looks[-1]))
    word, _ = ended(noise - LIMIT, looks, levels)
    assert (word == "EQUIVALENT").mean() <= within(0.05)
    assert (word == "SLOWER").mean() <= within(0.05)
    # Even if the difference were looked at after each look, and kept.
    _, named = ended(noise, looks, levels)
    assert named.mean() <= within(0.05)


def test_the_rule_spends_what_it_may_and_not_less() -> None:
    rule = stopping_rule(EVERY_TWO)
    noise = 0.001 * np.random.default_rng(12).standard_normal((EXPERIMENTS, 20))
    word, _ = ended(noise - LIMIT, EVERY_TWO, tuple(zip(rule.one_sided, rule.two_sided, strict=True)))
    assert (word == "EQUIVALENT").mean() >= 0.05 - 3 * math.sqrt(0.05 * 0.95 / EXPERIMENTS)


def test_without_a_rule_the_same_looks_err_three_times_as_often() -> None:
    noise = 0.003 * np.random.default_rng(13).standard_normal((EXPERIMENTS, 20))
    word, _ = ended(noise - LIMIT, EVERY_TWO, ((0.05, 0.05),) * len(EVERY_TWO))
    assert (word == "EQUIVALENT").mean() > 0.12


def test_one_look_is_no_look_ahead() -> None:
    rule = stopping_rule([6])
    assert rule.one_sided[0] == pytest.approx(0.05, rel=1e-3)
    assert rule.two_sided[0] == pytest.approx(0.05, rel=1e-3)


@pytest.mark.slow
def test_the_levels_of_many_blocks_are_the_textbooks_for_a_known_spread() -> None:
    # Lan and DeMets' O'Brien–Fleming spending, five equal looks, one-sided 0.025: Jennison and Turnbull (2000), from
    # z = 4.877, 3.357, 2.680, 2.290, 2.031. With 20 blocks to a look, t is nearly normal.
    rule = stopping_rule([20, 40, 60, 80, 100], spending="obrien-fleming")
    z = [stats.norm.isf(level / 2) for level in rule.two_sided]
    assert z[1:] == pytest.approx([3.357, 2.680, 2.290, 2.031], abs=0.02)


@pytest.mark.slow
def test_the_first_crossings_are_those_of_simulated_t_statistics() -> None:
    """An independent way to the same numbers: draw the blocks, form t by SciPy's formula, count first crossings."""
    looks = (4, 6, 10)
    rule = stopping_rule(looks)
    x = np.random.default_rng(14).standard_normal((200_000, 10))
    crossed = np.zeros(len(x), dtype=bool)
    budget = np.diff(0.05 * np.log1p((math.e - 1) * np.array(looks) / 10), prepend=0.0)
    for look, level, allowed in zip(looks, rule.one_sided, budget, strict=True):
        t = stats.ttest_1samp(x[:, :look], 0.0, axis=1).statistic
        first = ~crossed & (t > stats.t.isf(level, look - 1))
        assert first.mean() == pytest.approx(allowed, abs=4 * math.sqrt(allowed / len(x)))
        crossed |= first


def test_several_comparisons_share_what_may_be_spent() -> None:
    assert stopping_rule([4, 8], comparisons=3).one_sided == stopping_rule([4, 8], alpha=0.05 / 3).one_sided


def test_looks_come_after_whole_designs_and_end_where_they_were_asked_to() -> None:
    assert first_look() == 4
    assert first_look(6) == 6
    assert planned_looks(20) == (4, 6, 8, 10, 14, 20)
    assert planned_looks(3) == (4,)
    for most, multiple in ((7, 2), (40, 2), (100, 2), (30, 6), (25, 4)):
        looks = planned_looks(most, multiple)
        assert looks[-1] == -(-most // multiple) * multiple
        assert all(look % multiple == 0 for look in looks)
        assert list(looks) == sorted(set(looks))


@pytest.mark.parametrize("looks", [[], [4, 4], [6, 4], [1, 4], [0]])
def test_looks_that_are_none_are_refused(looks: list[int]) -> None:
    with pytest.raises(ValueError):
        stopping_rule(looks)


def test_more_blocks_than_a_rule_is_made_for_are_refused_with_what_to_do() -> None:
    with refused("400", "--margin"):
        stopping_rule([4, 1000])
