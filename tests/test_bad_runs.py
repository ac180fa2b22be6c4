"""Runs that are slow now and then: how many were seen, how many there may be, and whether arms differ in them."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stackmark.verdict.bad_runs import LEVEL, BadRuns, count_bad_runs, fisher_p, say_bad_runs, share_at_most


def arms_with(*bad: int, runs: int = 6, slow: float = 0.8) -> tuple[BadRuns, ...]:
    """Arms of which so many runs are slow; the others spread by some tenths of a per cent."""
    logs = [
        [0.001 * ((run * 7 + arm) % 5 - 2) + (math.log(slow) if run < count else 0.0) for run in range(runs)]
        for arm, count in enumerate(bad)
    ]
    return count_bad_runs([f"arm {number}" for number in range(len(bad))], logs, 0.01)


@given(runs=st.integers(1, 60), data=st.data())
def test_the_upper_bound_is_that_of_clopper_and_pearson(runs: int, data: st.DataObject) -> None:
    bad = data.draw(st.integers(0, runs))
    exact = stats.binomtest(bad, runs).proportion_ci(0.90, method="exact").high
    assert share_at_most(bad, runs) == pytest.approx(exact, abs=1e-6)


@given(st.tuples(st.integers(1, 30), st.integers(1, 30)), st.data())
def test_two_arms_are_compared_by_fishers_exact_test(runs: tuple[int, int], data: st.DataObject) -> None:
    bad = [data.draw(st.integers(0, count)) for count in runs]
    table = [[seen, count - seen] for seen, count in zip(bad, runs, strict=True)]
    one, other = (BadRuns("x", seen, count, 0.0) for seen, count in zip(bad, runs, strict=True))
    assert fisher_p(one, other) == pytest.approx(stats.fisher_exact(table).pvalue)


def test_six_clean_runs_still_allow_39_percent_to_be_bad() -> None:
    clean = arms_with(0, 0)
    assert [(arm.bad, arm.runs) for arm in clean] == [(0, 6), (0, 6)]
    assert clean[0].share_most == pytest.approx(1 - 0.05 ** (1 / 6))
    assert "39 %" in say_bad_runs(clean, None)


def test_a_slow_run_is_counted_in_its_arm_and_the_arms_are_compared() -> None:
    found = arms_with(0, 1)
    assert [arm.bad for arm in found] == [0, 1]
    several = arms_with(0, 6, runs=14)
    assert fisher_p(*several) <= LEVEL < fisher_p(*found)
    for arms in (found, several):
        assert f"p = {fisher_p(*arms):.2g}" in say_bad_runs(arms, fisher_p(*arms))
    below, at, above = (say_bad_runs(found, p).replace(f"{p:.2g}", "") for p in (LEVEL / 2, LEVEL, 2 * LEVEL))
    assert below == at != above


def test_a_run_within_the_margin_or_a_fast_one_is_not_bad() -> None:
    assert [arm.bad for arm in arms_with(0, 1, slow=0.995)] == [0, 0]
    assert [arm.bad for arm in arms_with(0, 1, slow=1.3)] == [0, 0]


def test_noise_alone_makes_a_bad_run_in_one_experiment_of_twenty_at_most() -> None:
    draws = 0.02 * np.random.default_rng(4).standard_normal((1000, 2, 6))
    wrong = np.mean([any(arm.bad for arm in count_bad_runs("ab", one.tolist(), 0.01)) for one in draws])
    assert wrong <= 0.05
