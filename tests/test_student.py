"""Student's t against SciPy and against its closed forms."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stackmark.verdict.student import f_cdf, f_quantile, normal_cdf, normal_quantile, t_cdf, t_quantile

DEGREES = (1, 1.5, 2, 3, 4, 5, 7.3, 10, 20, 39, 40, 41, 100, 1e3, 1e4, 1e5, 1e6)
TAILS = [float(p) for p in np.logspace(-6, math.log10(0.5), 20)]
PROBABILITIES = TAILS + [1 - p for p in TAILS]


@pytest.mark.parametrize("df", DEGREES)
def test_quantiles_agree_with_scipy_to_ten_digits(df: float) -> None:
    ours = [t_quantile(p, df) for p in PROBABILITIES]
    np.testing.assert_allclose(ours, stats.t.ppf(PROBABILITIES, df), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("df", DEGREES)
def test_probabilities_agree_with_scipy_to_ten_digits_in_the_tails_too(df: float) -> None:
    x = stats.t.ppf(PROBABILITIES, df)
    np.testing.assert_allclose([t_cdf(float(value), df) for value in x], stats.t.cdf(x, df), rtol=1e-10)


@pytest.mark.parametrize("p", PROBABILITIES)
def test_one_and_two_degrees_of_freedom_follow_their_closed_forms(p: float) -> None:
    tail = min(p, 1 - p)
    cauchy = math.copysign(1 / math.tan(math.pi * tail), p - 0.5) if tail < 0.5 else 0.0
    assert t_quantile(p, 1) == pytest.approx(cauchy, rel=1e-11, abs=1e-11)
    assert t_quantile(p, 2) == pytest.approx((2 * p - 1) / math.sqrt(2 * p * (1 - p)), rel=1e-11, abs=1e-11)


def test_the_printed_table_of_every_textbook_is_met() -> None:
    table = {1: 12.706, 2: 4.303, 4: 2.776, 9: 2.262, 30: 2.042, 120: 1.980}
    assert {df: round(t_quantile(0.975, df), 3) for df in table} == table


def test_infinite_degrees_of_freedom_are_the_normal_distribution() -> None:
    assert t_quantile(0.975, math.inf) == pytest.approx(1.959963984540054, abs=1e-12)
    assert t_cdf(-5.0, math.inf) == pytest.approx(stats.norm.cdf(-5.0), rel=1e-12)


def test_the_normal_distribution_agrees_with_scipy() -> None:
    np.testing.assert_allclose([normal_quantile(p) for p in PROBABILITIES], stats.norm.ppf(PROBABILITIES), atol=1e-12)
    x = np.linspace(-8, 8, 33)
    np.testing.assert_allclose([normal_cdf(float(value)) for value in x], stats.norm.cdf(x), rtol=1e-11)


@given(p=st.floats(1e-6, 1 - 1e-6), df=st.floats(0.5, 1e5))
def test_quantile_and_probability_undo_each_other(p: float, df: float) -> None:
    assert t_cdf(t_quantile(p, df), df) == pytest.approx(p, rel=1e-9)


@pytest.mark.parametrize("p", [0.0, 1.0, -0.1, math.nan])
def test_a_probability_outside_of_0_and_1_is_refused(p: float) -> None:
    with pytest.raises(ValueError):
        t_quantile(p, 3)


@pytest.mark.parametrize("df", [0.0, -1.0, math.nan])
def test_no_degrees_of_freedom_are_refused(df: float) -> None:
    with pytest.raises(ValueError):
        t_cdf(1.0, df)


@pytest.mark.parametrize("df_1", [1, 2, 4, 9, 30])
@pytest.mark.parametrize("df_2", [1, 3, 5, 20, 100])
def test_fishers_f_agrees_with_scipy(df_1: int, df_2: int) -> None:
    probabilities = (0.001, 0.025, 0.5, 0.9, 0.975, 0.999)
    theirs = stats.f.ppf(probabilities, df_1, df_2)
    np.testing.assert_allclose([f_quantile(p, df_1, df_2) for p in probabilities], theirs, rtol=1e-10)
    np.testing.assert_allclose([f_cdf(float(x), df_1, df_2) for x in theirs], probabilities, rtol=1e-10)
