"""The median's interval, held against SciPy and against its own promise."""

import math
import random

import pytest
from scipy.stats import binom

from stackmark.medians import LEAST_SAMPLES, interval_rank, median_of


@pytest.mark.parametrize("count", range(LEAST_SAMPLES, 300))
def test_the_interval_is_the_narrowest_pair_of_order_statistics_that_holds_95_percent(count: int) -> None:
    rank = interval_rank(count)
    assert rank is not None
    assert 1 - 2 * binom.cdf(rank, count, 0.5) >= 0.95 - 1e-12
    assert 1 - 2 * binom.cdf(rank + 1, count, 0.5) < 0.95


def test_five_samples_have_a_median_and_no_interval() -> None:
    found = median_of([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found.value, found.low, found.high, found.samples) == (3.0, None, None, 5)
    assert found.half_width == math.inf


def test_six_samples_are_enclosed_by_their_smallest_and_largest() -> None:
    found = median_of([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    assert (found.value, found.low, found.high) == (3.5, 1.0, 6.0)


def test_the_interval_holds_the_true_median_of_a_skewed_distribution_as_often_as_it_says() -> None:
    draw = random.Random(1)
    hits = 0
    for _ in range(2000):
        found = median_of([draw.expovariate(1) for _ in range(25)])
        assert found.low is not None
        assert found.high is not None
        hits += found.low <= math.log(2) <= found.high
    assert 0.94 < hits / 2000 < 0.98  # exactly 95.7 % by the binomial


def test_there_is_no_median_of_nothing() -> None:
    with pytest.raises(ValueError):
        median_of([])
