"""Times known to lie between two evaluations, or to be longer than a limit: against SciPy, closed forms and simulation."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import optimize, stats

from stackmark.verdict.survival import (
    Span,
    difference_of_logs,
    log_rank_p,
    log_rank_scores,
    mean_difference,
    mean_log,
)

# Eight and six ln times, drawn once.
A = (2.10, 1.84, 2.31, 1.95, 2.22, 2.05, 1.70, 2.40)
B = (2.45, 2.20, 2.60, 2.15, 2.35, 2.50)


def exact(logs: Sequence[float]) -> list[Span]:
    """Spans so narrow that the times are as good as known."""
    return [Span(math.exp(log) * (1 - 1e-7), math.exp(log) * (1 + 1e-7)) for log in logs]


def observed(logs: Sequence[float], step: float, limit: float) -> list[Span]:
    found = []
    for log in logs:
        count = math.ceil(math.exp(log) / step)
        found.append(Span(limit, None) if count * step > limit else Span((count - 1) * step, count * step))
    return found


def ends(spans: Sequence[Span]) -> tuple[np.ndarray, np.ndarray]:
    lows = np.log([span.low_s for span in spans])
    return lows, np.array([math.log(span.high_s) if span.high_s else np.inf for span in spans])


def likelihood(spans: Sequence[Span], mean: float, spread: float) -> float:
    lows, highs = ends(spans)
    return float(np.log(stats.norm.cdf(highs, mean, spread) - stats.norm.cdf(lows, mean, spread)).sum())


def test_times_known_exactly_give_the_usual_t_interval() -> None:
    found = mean_log(exact(A))
    assert found
    low, high = stats.t.interval(0.95, len(A) - 1, np.mean(A), stats.sem(A))
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(A), low, high), abs=1e-5)


def test_two_arms_known_exactly_give_students_interval_and_p() -> None:
    found = difference_of_logs(exact(A), exact(B))
    assert found
    theirs = stats.ttest_ind(B, A)
    low, high = theirs.confidence_interval(0.95)
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(B) - np.mean(A), low, high), abs=1e-5)
    p = 2 * min(found.profile.p_below(0), found.profile.p_above(0))
    assert p == pytest.approx(theirs.pvalue, rel=1e-4)


def test_pairs_known_exactly_give_the_paired_interval() -> None:
    found = mean_difference(list(zip(exact(A[:6]), exact(B), strict=True)))
    assert found
    differences = np.subtract(B, A[:6])
    low, high = stats.t.interval(0.95, 5, differences.mean(), stats.sem(differences))
    assert (found.mean, found.low, found.high) == pytest.approx((differences.mean(), low, high), abs=1e-5)


def test_the_peak_of_the_likelihood_is_that_of_scipys_minimiser() -> None:
    spans = observed(A, 1.5, 9.0)
    assert 0 < sum(not span.reached for span in spans) < len(spans)
    found = mean_log(spans)
    best = optimize.minimize(
        lambda at: -likelihood(spans, at[0], math.exp(at[1])), [2.0, -1.0], method="Nelder-Mead",
        options={"xatol": 1e-10, "fatol": 1e-13},
    )  # fmt: skip
    assert found
    assert found.spread
    assert (found.mean, found.spread) == pytest.approx((best.x[0], math.exp(best.x[1])), rel=1e-6)


def test_the_ends_of_the_interval_have_the_stated_profile_deviance() -> None:
    spans = observed(A, 1.5, 9.0)
    found = mean_log(spans)
    assert found
    assert found.low
    assert found.high
    assert found.spread
    events = sum(span.reached for span in spans)
    allowed = events * math.log1p(stats.t.ppf(0.975, events - 1) ** 2 / (events - 1))
    peak = likelihood(spans, found.mean, found.spread)
    for end in (found.low, found.high):
        at_end = optimize.minimize_scalar(
            lambda log, end=end: -likelihood(spans, end, math.exp(log)), bounds=(-4, 2), method="bounded",
            options={"xatol": 1e-10},
        )  # fmt: skip
        assert 2 * (peak + at_end.fun) == pytest.approx(allowed, rel=1e-5)


def test_scipys_censored_fit_of_the_log_normal_agrees() -> None:
    spans = observed(A, 0.5, 9.0)
    lows, highs = ends(spans)
    data = stats.CensoredData(interval=[(low, high) for low, high in zip(lows, highs, strict=True) if math.isfinite(high)],
                              right=[low for low, high in zip(lows, highs, strict=True) if not math.isfinite(high)])  # fmt: skip
    mean, spread = stats.norm.fit(data)
    found = mean_log(spans)
    assert found
    assert found.spread
    assert (found.mean, found.spread) == pytest.approx((mean, spread), rel=1e-3)


def test_runs_of_one_evaluation_interval_have_that_interval_and_no_spread() -> None:
    found = mean_log([Span(30, 40)] * 5)
    assert found
    assert found.low
    assert found.high
    assert found.spread is None
    assert (math.exp(found.low), math.exp(found.high)) == pytest.approx((30, 40), rel=1e-4)


def test_a_limit_that_a_run_did_not_reach_moves_the_mean_up() -> None:
    without, with_it = mean_log(exact(A)), mean_log([*exact(A), Span(15.0, None)])
    assert without
    assert with_it
    assert with_it.low
    assert without.low
    assert with_it.mean > without.mean


def test_no_estimate_where_nothing_bounds_it() -> None:
    never = [Span(10.0, None)] * 6
    assert mean_log(never) is None
    assert mean_log([Span(5, 6), *never]) is None
    assert difference_of_logs(exact(A), never) is None
    assert mean_difference([(one, Span(10.0, None)) for one in exact(A)]) is None
    assert mean_log([Span(0, 6)] * 5) is None


def test_a_run_that_was_never_evaluated_says_nothing() -> None:
    one, other = mean_log(exact(A)), mean_log([*exact(A), Span(0.0, None)])
    assert one
    assert other
    assert one.mean == pytest.approx(other.mean)
    pairs = list(zip(exact(A[:6]), exact(B), strict=True))
    paired, more = mean_difference(pairs), mean_difference([*pairs, (Span(0.0, None), Span(5, 6))])
    assert paired
    assert more
    assert paired.mean == pytest.approx(more.mean)


@pytest.mark.parametrize("bad", [(-1.0, 2.0), (2.0, 2.0), (3.0, 2.0), (math.nan, 2.0), (math.inf, None)])
def test_an_impossible_span_is_refused(bad: tuple[float, float | None]) -> None:
    with pytest.raises(ValueError, match="span"):
        Span(*bad)


def test_the_log_rank_statistic_is_scipys() -> None:
    a, b = observed(A, 1.0, 9.0), observed(B, 1.0, 9.0)
    times = [span.high_s or span.low_s for span in (*a, *b)]
    reached = [span.reached for span in (*a, *b)]

    def censored(spans: Sequence[Span]) -> stats.CensoredData:
        return stats.CensoredData(uncensored=[span.high_s for span in spans if span.high_s],
                                  right=[span.low_s for span in spans if not span.high_s])  # fmt: skip

    scores = log_rank_scores(times, reached)
    assert scores.sum() == pytest.approx(0, abs=1e-12)
    theirs = stats.logrank(censored(a), censored(b))
    # Reached less expected of A, over the square root of the hypergeometric variance.
    variance = 0.0
    for moment in {time for time, event in zip(times, reached, strict=True) if event}:
        at_risk = [time >= moment for time in times]
        n, n_a = sum(at_risk), sum(at_risk[: len(a)])
        d = sum(time == moment and event for time, event in zip(times, reached, strict=True))
        if n > 1:
            variance += d * (n_a / n) * (1 - n_a / n) * (n - d) / (n - 1)
    assert abs(scores[: len(a)].sum()) / math.sqrt(variance) == pytest.approx(abs(theirs.statistic), rel=1e-9)


def test_the_permutation_p_counts_all_ways() -> None:
    early, never = [Span(time, time + 1) for time in (1, 2, 3)], [Span(9.0, None)] * 3
    assert log_rank_p(early, never, paired=False) == pytest.approx(2 / math.comb(6, 3))
    assert log_rank_p(early, never, paired=True) == pytest.approx(2 / 2**3)
    assert log_rank_p(early, early, paired=True) == 1.0


def test_without_a_difference_the_log_rank_test_is_wrong_in_at_most_five_percent() -> None:
    rng = np.random.default_rng(5)
    false = 0
    for _ in range(300):
        a, b = (observed(rng.normal(0, 0.3, 6).tolist(), 0.1, 1.2) for _ in range(2))
        false += log_rank_p(a, b, paired=False) <= 0.05
    assert false / 300 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize("limit", [math.inf, 1.41, 1.21])
def test_the_interval_of_the_mean_holds_the_truth_as_often_as_it_says(limit: float) -> None:
    rng = np.random.default_rng(6)
    held = 0
    for _ in range(200):
        found = mean_log(observed(rng.normal(0, 0.3, 10).tolist(), 0.2, limit))
        assert found
        assert found.low is not None
        held += found.low <= 0 <= (math.inf if found.high is None else found.high)
    assert 0.95 - 3 * math.sqrt(0.05 * 0.95 / 200) <= held / 200
