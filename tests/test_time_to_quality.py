"""Time to a quality: what a run's curve says, what runs say together, and what two arms say of each other."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from scipy import stats

from stackmark.verdict.ratio import Pair
from stackmark.verdict.survival import Span
from stackmark.verdict.time_to_quality import (
    Evaluation,
    TrainedRun,
    compare_times,
    median_time,
    mlperf_score,
    model_throughput,
    seed_share,
    share_of,
    summed_up,
)

BLEU = {"BLEU": 95.0}


def trained(
    curve: Sequence[float], step_s: float = 10.0, *, target: dict[str, float] | None = None, seed: int | None = None
) -> TrainedRun:
    """A run whose BLEU after each `step_s` is the curve."""
    wanted = target or BLEU
    evaluations = tuple(
        Evaluation(number, float(number), 100 * number, number * step_s, {"BLEU": value}, value >= wanted["BLEU"])
        for number, value in enumerate(curve, 1)
    )
    return TrainedRun("r-1", 0, None, seed, wanted, evaluations)


def timed(seconds: float, seed: int | None = None, *, reached: bool = True) -> TrainedRun:
    """A run that took so long, evaluated every second before."""
    quality = 96.0 if reached else 90.0
    evaluations = (
        Evaluation(1, 1.0, 100, seconds - 1, {"BLEU": 80.0}, False),
        Evaluation(2, 2.0, 200, seconds, {"BLEU": quality}, reached),
    )
    return TrainedRun("r-1", 0, None, seed, BLEU, evaluations)


def test_the_time_lies_between_the_last_two_evaluations() -> None:
    run = trained([40, 80, 96])
    assert (run.reached, run.time_s, run.epochs) == (True, 30.0, 3.0)
    assert run.span == Span(20.0, 30.0)
    assert trained([96]).span == Span(0.0, 10.0)


def test_a_run_without_the_target_is_longer_than_its_last_evaluation() -> None:
    run = trained([40, 80, 94.9])
    assert not run.reached
    assert run.span == Span(30.0, None)
    assert run.crossing_s is None


def test_the_crossing_is_on_the_straight_line_between_below_and_above() -> None:
    # From 80 at 20 s to 100 at 30 s: 95 is three quarters of the way.
    assert trained([40, 80, 100]).crossing_s == pytest.approx(27.5)
    assert trained([40, 80, 95]).crossing_s == pytest.approx(30.0)
    assert trained([96]).crossing_s is None


def test_of_two_targets_the_later_crossing_counts() -> None:
    target = {"box": 0.5, "mask": 0.4}
    evaluations = (
        Evaluation(1, 1.0, 1, 10.0, {"box": 0.55, "mask": 0.2}, False),
        Evaluation(2, 2.0, 2, 20.0, {"box": 0.45, "mask": 0.3}, False),
        Evaluation(3, 3.0, 3, 30.0, {"box": 0.55, "mask": 0.5}, True),
    )
    run = TrainedRun("r-1", 0, None, None, target, evaluations)
    # The box crosses again at 25 s, after half of the last stretch; the mask too.
    assert run.crossing_s == pytest.approx(25.0)
    later = TrainedRun("r-1", 0, None, None, {"box": 0.46, "mask": 0.48}, evaluations)
    assert later.crossing_s == pytest.approx(29.0)


@pytest.mark.parametrize(("count", "of"), [(5, 5), (0, 5), (3, 10), (9, 10)])
def test_the_share_that_reaches_the_target_is_clopper_pearsons(count: int, of: int) -> None:
    found = share_of(count, of)
    theirs = stats.binomtest(count, of).proportion_ci(0.95, method="exact")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-8)


def test_the_median_counts_runs_that_did_not_reach_the_target() -> None:
    good = [timed(seconds).span for seconds in (100, 110, 120, 130)]
    without, censored = median_time(good), median_time([*good, Span(200.0, None)])
    assert without
    assert censored
    assert censored.seconds > without.seconds
    assert without.seconds == pytest.approx(stats.gmean([99.5, 109.5, 119.5, 129.5]), rel=1e-3)


def test_a_censored_arm_has_its_median_as_the_ledger_has_figures() -> None:
    runs = [timed(seconds) for seconds in (60, 66, 72, 78)] + [timed(120, reached=False)]
    found = summed_up("fit/gnmt", {"BLEU": ""}, runs)
    rate = model_throughput(found)
    assert found.median
    assert rate
    assert rate.low_per_s
    assert rate.high_per_s
    assert 60 / rate.rate_per_s == pytest.approx(found.median.seconds)
    assert (60 / rate.high_per_s, 60 / rate.low_per_s) == pytest.approx((found.median.low_s, found.median.high_s))
    assert rate.runs == 5


@pytest.mark.parametrize(
    ("workload", "count", "missed", "tiny", "minutes", "official"),
    [
        ("fit/gnmt", 10, 0, False, True, True),
        ("fit/gnmt", 10, 1, False, True, True),
        ("fit/gnmt", 10, 2, False, False, False),
        ("fit/gnmt", 5, 0, False, True, False),
        ("fit/gnmt", 10, 0, True, True, False),
        ("fit/ncf", 10, 0, False, True, False),
        ("fit/ssd", 1, 1, False, False, False),
    ],
)
def test_the_score_is_official_by_the_rules_alone(
    workload: str, count: int, missed: int, tiny: bool, minutes: bool, official: bool
) -> None:
    runs = [timed(60 + number, reached=number >= missed) for number in range(count)]
    found = mlperf_score(workload, runs, tiny=tiny)
    assert (found.minutes is not None, found.official, bool(found.why)) == (minutes, official, not official)


def test_the_score_drops_the_fastest_and_the_slowest() -> None:
    runs = [timed(seconds) for seconds in (600, 60, 120, 180, 6000)]
    assert mlperf_score("fit/ssd", runs, tiny=False).minutes == pytest.approx(5.0)


def test_the_share_of_the_seed_is_the_variance_component() -> None:
    rng = np.random.default_rng(7)
    runs, groups = [], []
    for seed in range(8):
        level = rng.normal(5, 0.3)
        logs = level + rng.normal(0, 0.1, 4)
        groups.append(logs)
        runs += [timed_exactly(math.exp(log), seed) for log in logs]
    found, why = seed_share(runs)
    assert found
    assert not why
    f = stats.f_oneway(*groups).statistic
    assert found.share == pytest.approx((f - 1) / (f - 1 + 4), rel=1e-6)
    for end, p in ((found.low, 0.975), (found.high, 0.025)):
        ratio = f / stats.f.ppf(p, 7, 24)
        assert end == pytest.approx((ratio - 1) / (ratio - 1 + 4), rel=1e-6)


def timed_exactly(seconds: float, seed: int) -> TrainedRun:
    """A run that crosses its target at the evaluation itself, where the time and its crossing are one."""
    evaluations = (
        Evaluation(1, 1.0, 100, seconds / 2, {"BLEU": 80.0}, False),
        Evaluation(2, 2.0, 200, seconds, {"BLEU": 95.0}, True),
    )
    return TrainedRun("r-1", 0, None, seed, BLEU, evaluations)


def test_the_interval_of_the_seeds_share_holds_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(8)
    held = 0
    for _ in range(300):
        runs = []
        for seed in range(6):
            level = rng.normal(5, 0.2)
            runs += [timed_exactly(math.exp(level + rng.normal(0, 0.2)), seed) for _ in range(3)]
        found, _ = seed_share(runs)
        assert found
        assert found.low is not None
        assert found.high is not None
        held += found.low <= 0.5 <= found.high
    assert abs(held / 300 - 0.95) <= 3 * math.sqrt(0.05 * 0.95 / 300)


@pytest.mark.parametrize(
    ("seeds", "reached"), [([1, 2, 3], True), ([1, 1], True), ([None, None], True), ([1, 1, 2, 2], False)]
)
def test_the_share_of_the_seed_is_refused_with_a_reason(seeds: list[int | None], reached: bool) -> None:
    runs = [timed(60.0 + number, seed, reached=reached or number > 0) for number, seed in enumerate(seeds)]
    found, why = seed_share(runs)
    assert found is None
    assert why


def test_seeds_with_different_numbers_of_runs_have_a_share_without_an_interval() -> None:
    runs = [timed(60, 1), timed(61, 1), timed(80, 2), timed(82, 2), timed(81, 2)]
    found, _ = seed_share(runs)
    assert found
    assert 0.9 < found.share <= 1
    assert (found.low, found.high) == (None, None)


# --- two arms

BLOCKS, RUNS = Pair("host", "slow", "blocks", 6, 6), Pair("host", "slow", "runs", 12, 12)
QUICK = [Span(t, t + 2) for t in (100, 104, 110, 98, 107, 103)]


def test_an_arm_that_misses_its_target_is_slower_though_its_good_runs_are_as_fast() -> None:
    slow = [Span(150 + t, 152 + t) for t in (0, 6, 3, 9)] + [Span(200.0, None)] * 2
    found = compare_times(BLOCKS, QUICK, slow, 0.05)
    assert found.word == "SLOWER"
    assert found.difference == "slower"
    assert found.ratio < 1
    assert found.interval_95
    assert found.interval_95.high < 1
    assert found.p_log_rank == pytest.approx(2 / 2**6)


def test_too_few_runs_for_the_log_rank_test_leave_it_open_whatever_the_model_says() -> None:
    pair = Pair("host", "slow", "blocks", 4, 4)
    found = compare_times(pair, QUICK[:4], [Span(200, 202), Span(208, 210), Span(215, 217), Span(230, None)], 0.05)
    assert found.interval_95
    assert found.interval_95.high < 0.95
    assert found.p_log_rank == pytest.approx(2 / 2**4)
    assert (found.word, found.difference) == ("INCONCLUSIVE", None)
    assert found.needed


def test_below_ten_runs_equivalent_is_not_said_of_censored_runs() -> None:
    same = [*QUICK[:5], Span(103.0, None)]
    found = compare_times(BLOCKS, QUICK, same, 0.2)
    assert found.interval_90
    assert found.interval_90.low > 0.8
    assert found.interval_90.high < 1.25
    assert found.word == "INCONCLUSIVE"


def test_from_ten_runs_on_the_model_says_equivalent() -> None:
    rng = np.random.default_rng(9)
    a, b = ([Span(t, t + 0.5) for t in rng.lognormal(5, 0.03, 12).tolist()] for _ in range(2))
    found = compare_times(RUNS, a, [*b[:11], Span(150.0, None)], 0.1)
    assert found.word == "EQUIVALENT"


def test_an_arm_that_never_reached_its_target_is_slower_by_an_unknown_factor() -> None:
    found = compare_times(BLOCKS, QUICK, [Span(200.0, None)] * 6, 0.05)
    assert (found.word, found.interval_95) == ("SLOWER", None)
    assert "no run of slow" in found.sentence
    other = compare_times(BLOCKS, [Span(200.0, None)] * 6, QUICK, 0.05)
    assert other.word == "FASTER"
    assert other.ratio > 1


def test_both_arms_never_there_are_undecided() -> None:
    never = [Span(200.0, None)] * 6
    assert compare_times(BLOCKS, never, never, 0.05).word == "INCONCLUSIVE"


def test_without_a_difference_a_word_is_rare() -> None:
    rng = np.random.default_rng(10)
    named = 0
    for _ in range(150):
        a, b = (
            [Span(t, t + 5) if t < 130 else Span(130.0, None) for t in rng.lognormal(4.7, 0.25, 8).tolist()]
            for _ in "ab"
        )
        if not all(span.reached for span in (*a, *b)):
            named += compare_times(Pair("a", "b", "runs", 8, 8), a, b, 0.05).word in ("SLOWER", "FASTER")
    assert named / 150 <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 150)
