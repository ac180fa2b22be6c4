"""Runs that were not paired, series before and after, a published constant."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stackmark.verdict.comparison import Comparison
from stackmark.verdict.series import History, allowance, compare_series, history_of
from stackmark.verdict.unpaired import (
    NOT_INTERLEAVED,
    NOT_THE_SAME_RECIPE,
    ONE_SERIES,
    KnownSpread,
    RunSpread,
    beyond_any_series,
    compare_published,
    compare_runs,
    say_by_factor,
    series_of,
)

SAMPLES = st.lists(st.floats(-0.5, 0.5), min_size=2, max_size=8).filter(lambda x: np.std(x) > 1e-6)


def logs(*rates: float) -> list[float]:
    return [math.log(rate) for rate in rates]


@given(SAMPLES, SAMPLES)
def test_runs_are_compared_as_scipys_welch_does(a: list[float], b: list[float]) -> None:
    result = compare_runs("a", "b", a, b, 0.02)
    theirs = stats.ttest_ind(b, a, equal_var=False)
    assert result.p_difference == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    interval = theirs.confidence_interval(0.90)
    assert result.interval_90
    assert math.log(result.interval_90.low) == pytest.approx(interval.low, rel=1e-6, abs=1e-9)
    assert math.log(result.interval_90.high) == pytest.approx(interval.high, rel=1e-6, abs=1e-9)
    assert result.ratio == pytest.approx(math.exp(np.mean(b) - np.mean(a)))


@pytest.mark.parametrize(
    ("host", "container", "ratio"),
    [((124.77, 125.76), (126.95, 125.07), 1.0059), ((242.60, 241.52), (240.64, 236.72), 0.9860)],
)
def test_two_runs_an_arm_of_the_field_report_decide_nothing(
    host: tuple[float, float], container: tuple[float, float], ratio: float
) -> None:
    result = compare_runs("host", "container", logs(*host), logs(*container), 0.01)
    theirs = stats.ttest_ind(logs(*container), logs(*host), equal_var=False).confidence_interval(0.90)
    assert result.ratio == pytest.approx(ratio, abs=1e-4)
    assert result.interval_90
    assert (result.interval_90.low, result.interval_90.high) == pytest.approx(
        (math.exp(theirs.low), math.exp(theirs.high))
    )
    assert (result.word, result.count_a, result.count_b) == ("INCONCLUSIVE", 2, 2)
    # Two runs tell next to nothing of how they spread, so nothing is promised.
    assert result.needed is not None
    assert result.needed.count is None


def test_runs_that_were_not_interleaved_are_called_that() -> None:
    result = compare_runs("a", "b", [0.0, 0.001, 0.002], [0.0, 0.001, 0.0005], 0.01)
    assert (result.word, result.notes) == ("EQUIVALENT", (NOT_INTERLEAVED,))


def test_a_single_run_on_one_side_says_how_far_runs_would_have_to_differ() -> None:
    result = compare_runs("old", "new", [0.0, 0.001, 0.002], [0.05], 0.01)
    assert (result.word, result.interval_90) == ("INCONCLUSIVE", None)
    # Only the side with one run is named.
    assert "new" in result.notes[0].split()
    assert "old" not in result.notes[0].split()
    star = (0.049 + math.log(0.99)) / (1.6449 * math.sqrt(1 + 1 / 3))
    assert f"{math.exp(star):.2g}" in result.sentence.split()


def test_one_run_a_side_at_a_factor_of_ten_is_a_word_with_its_condition() -> None:
    result = compare_runs("cpu", "gpu", [0.0], [math.log(145)], 0.01, spread=RunSpread(largest_factor=1.5))
    assert (result.word, result.interval_90, result.needed) == ("FASTER", None, None)
    # The ratio, by how much one run would have to differ from the next for it to be chance, and the most that the ledger saw.
    assert re.findall(r"\d[\d.]*\d", result.sentence) == ["145", "8.5", "1.5"]
    assert NOT_THE_SAME_RECIPE in result.sentence.lower()
    assert compare_runs("cpu", "gpu", [0.0], [math.log(9.9)], 0.01).word == "INCONCLUSIVE"
    assert compare_runs("gpu", "cpu", [0.0], [-math.log(145)], 0.01).word == "SLOWER"


def test_one_run_a_side_inside_the_margin_proves_nothing() -> None:
    result = compare_runs("a", "b", [0.0], [0.001], 0.01)
    assert result.word == "INCONCLUSIVE"
    assert len(result.notes) == 2


@pytest.mark.parametrize(("ratio", "word"), [(0.9, "SLOWER"), (1.0, "EQUIVALENT"), (0.985, "INCONCLUSIVE")])
def test_a_spread_that_the_ledger_knows_gives_an_assumed_interval(ratio: float, word: str) -> None:
    known = KnownSpread("train/resnet50 on T4", 0.003, 12)
    result = compare_runs("a", "b", [0.0], [math.log(ratio)], 0.01, spread=RunSpread(known, known))
    half = stats.norm.ppf(0.95) * 0.003 * math.sqrt(2)
    assert result.assumed
    assert result.interval_90
    assert (math.log(result.interval_90.low), math.log(result.interval_90.high)) == pytest.approx(
        (math.log(ratio) - half, math.log(ratio) + half)
    )
    assert result.word == word
    assert " 90 % " in result.sentence
    assert "12 runs" in result.notes[0]
    assert NOT_THE_SAME_RECIPE in result.notes


def test_two_chips_are_assumed_to_spread_each_by_its_own_bound() -> None:
    slow, fast = KnownSpread("x on P100", 0.02, 6), KnownSpread("x on V100", 0.005, 9)
    result = compare_runs("P100", "V100", [0.0], [math.log(1.7)], 0.01, spread=RunSpread(slow, fast))
    error = math.hypot(0.02, 0.005)
    assert result.interval_90
    assert math.log(result.interval_90.high / 1.7) == pytest.approx(stats.norm.ppf(0.95) * error)
    assert (result.word, result.difference) == ("FASTER", "faster")
    assert result.p_difference == pytest.approx(2 * stats.norm.sf(math.log(1.7) / error))
    assert result.p_outside == pytest.approx(stats.norm.sf((math.log(1.7) + math.log(0.99)) / error), abs=1e-12)


def test_a_spread_that_is_known_for_one_chip_only_gives_no_interval() -> None:
    spread = RunSpread(b=KnownSpread("x on V100", 0.005, 9))
    result = compare_runs("P100", "V100", [0.0], [math.log(1.7)], 0.01, spread=spread)
    assert (result.word, result.interval_90, result.assumed) == ("INCONCLUSIVE", None, False)
    assert result.chance_factor == pytest.approx(
        math.exp((math.log(1.7) + math.log(0.99)) / (1.6449 * math.sqrt(2))), rel=1e-3
    )


@pytest.mark.parametrize(("factor", "word"), [(5.0, "LIKELY FASTER"), (20.0, "FASTER"), (0.05, "SLOWER")])
def test_no_change_between_series_explains_a_factor_of_ten(factor: float, word: str) -> None:
    first, second = [[0.0, 0.001, 0.002]], [[math.log(factor), math.log(factor) + 0.001]]
    assert beyond_any_series(compare_series("a", "b", first, second, 0.01)).word == word


@pytest.mark.parametrize("shift", [0.0, 0.05])
def test_undated_logs_get_no_word_beyond_these_logs(shift: float) -> None:
    dated = compare_runs("a", "b", [0.0, 0.001, 0.002], [shift, shift + 0.001, shift + 0.0005], 0.01)
    result = compare_runs("a", "b", [0.0, 0.001, 0.002], [shift, shift + 0.001, shift + 0.0005], 0.01, undated=True)
    assert dated.word == ("FASTER" if shift else "EQUIVALENT")
    assert (result.word, result.difference, result.interval_90) == ("INCONCLUSIVE", None, dated.interval_90)
    assert result.word_in_logs == dated.word
    assert result.sentence.startswith("INCONCLUSIVE ")
    assert result.sentence.endswith(dated.sentence)
    assert result.notes[-1] == ONE_SERIES


def test_undated_logs_that_differ_by_a_factor_of_ten_do_differ() -> None:
    result = compare_runs("a", "b", [0.0, 0.001], [3.0, 3.001], 0.01, undated=True)
    assert (result.word, result.notes[-1]) == ("FASTER", ONE_SERIES)


def test_two_sides_without_spread_say_so_and_do_not_divide_by_zero() -> None:
    result = compare_runs("a", "b", logs(100, 100), logs(100, 100), 0.01)
    assert (result.p_equivalence, result.sd_log) == (None, 0.0)


def test_one_side_without_spread_has_the_others_degrees_of_freedom() -> None:
    result = compare_runs("a", "b", [0.0, 0.0, 0.0], [0.01, 0.02, 0.03, 0.02], 0.01)
    theirs = stats.ttest_1samp([0.01, 0.02, 0.03, 0.02], 0.0)
    assert result.p_difference == pytest.approx(theirs.pvalue)


def three(centre: float) -> list[list[float]]:
    return [logs(centre, centre * 1.001), logs(centre * 1.002), logs(centre * 0.999, centre * 0.999, centre * 0.998)]


def test_series_count_once_each_however_many_runs_they_have() -> None:
    result = compare_series("before", "after", three(100), three(97), 0.01)
    means = [[np.mean(one) for one in three(centre)] for centre in (100, 97)]
    theirs = stats.ttest_ind(means[1], means[0], equal_var=False)
    assert result.p_difference == pytest.approx(theirs.pvalue)
    assert (result.word, result.count_a, result.count_b) == ("SLOWER", 3, 3)
    assert result.notes == ()


def test_one_series_a_side_that_differs_by_less_than_series_may_is_inconclusive() -> None:
    result = compare_series("before", "after", [logs(100, 100.1, 99.9)], [logs(95, 95.1, 94.9)], 0.01)
    assert (result.word, result.difference, result.p_equivalence) == ("INCONCLUSIVE", None, None)
    assert result.interval_90
    assert result.interval_90.high < 0.96
    assert result.needed
    assert result.needed.count == 3


@pytest.mark.parametrize(("rate", "word"), [(80.0, "LIKELY SLOWER"), (125.0, "LIKELY FASTER"), (91.0, "INCONCLUSIVE")])
def test_beyond_the_allowance_one_series_a_side_is_likely_slower_or_faster(rate: float, word: str) -> None:
    result = compare_series("before", "after", [logs(100, 100.1)], [logs(rate, rate * 1.001)], 0.01)
    assert result.word == word
    assert (result.is_slower, result.is_faster) == (word == "LIKELY SLOWER", word == "LIKELY FASTER")
    assert compare_series("before", "after", [logs(100)], [logs(rate)], 0.01).word == word


def test_a_difference_that_the_runs_do_not_show_is_not_likely() -> None:
    assert compare_series("before", "after", [logs(100, 60)], [logs(60, 80)], 0.01).word == "INCONCLUSIVE"


def test_the_allowance_is_that_of_the_machines_history() -> None:
    before, after = [logs(100, 100.1)], [logs(94, 94.1)]
    quiet = compare_series("before", "after", before, after, 0.01, History(0.005, 8, 7))
    assert quiet.word == "LIKELY SLOWER"
    # 95 % of differences, with the upper bound of the spread.
    allowed = 1.96 * 0.005 * math.sqrt(7 / stats.chi2.ppf(0.05, 7)) * math.sqrt(2)
    assert allowance(History(0.005, 8, 7), 1, 1) == pytest.approx(allowed, rel=0.01)
    assert compare_series("before", "after", before, after, 0.01, History(0.03, 8, 7)).word == "INCONCLUSIVE"
    # A quieter history than the margin does not make a word of less than the margin.
    near = compare_series("before", "after", before, [logs(99.5, 99.6)], 0.01, History(0.0001, 8, 7))
    assert near.word == "INCONCLUSIVE"


def test_a_machine_that_stays_slow_does_not_widen_its_own_allowance() -> None:
    """One series at 100, then every night at 40: the change is not spread."""
    nights = [math.log(rate) for rate in (100.0, 40.0, 40.1, 39.9, 40.05, 39.95)]
    history = history_of(nights)
    assert history is not None
    assert (history.series, history.df) == (6, 4)
    assert history.sd == pytest.approx(np.std(nights[1:], ddof=1))
    assert compare_series("before", "now", [logs(100, 100.1)], [logs(40, 40.1)], 0.01, history).word == "LIKELY SLOWER"
    steady = history_of([math.log(rate) for rate in (100.0, 101.0, 99.0, 100.5, 99.5)])
    assert steady is not None
    assert steady.df == 4
    assert history_of(nights[:4]) is None


def test_the_allowance_of_a_parted_history_is_false_in_five_percent_at_most() -> None:
    """By simulation, where nothing changed: one series before, eight in the history, series spread by 3 %."""
    draws = np.random.default_rng(20261118).normal(0.0, 0.03, (1000, 9))
    histories = [history_of([float(value) for value in one[:8]]) for one in draws]
    wrong = [abs(one[8] - one[0]) > allowance(known, 1, 1) for one, known in zip(draws, histories, strict=True)]
    assert np.mean(wrong) <= 0.05


def test_one_series_after_three_borrows_their_spread_and_says_so() -> None:
    result = compare_series("before", "after", three(100), [logs(96, 96.1)], 0.01)
    means = [np.mean(one) for one in three(100)]
    theirs = stats.ttest_ind([np.mean(logs(96, 96.1))], means, equal_var=True)
    assert result.p_difference == pytest.approx(theirs.pvalue)
    assert result.word == "SLOWER"
    (note,) = result.notes
    # How many series after, too few, and how many before, whose spread it borrows.
    assert re.findall(r"\d+", note) == ["1", "3"]


def test_two_series_before_are_too_few_for_a_verdict() -> None:
    assert compare_series("before", "after", three(100)[:2], [logs(95, 95.1)], 0.01).word == "INCONCLUSIVE"
    assert compare_series("before", "after", three(100)[:2], three(95), 0.01).word == "INCONCLUSIVE"
    assert compare_series("before", "after", three(100)[:2], three(80), 0.01).word == "LIKELY SLOWER"


@pytest.mark.parametrize(("a", "b"), [([], [[1.0]]), ([[1.0]], []), ([[1.0], []], [[1.0]]), ([[math.nan]], [[1.0]])])
def test_series_without_runs_are_refused(a: list[list[float]], b: list[list[float]]) -> None:
    with pytest.raises(ValueError):
        compare_series("before", "after", a, b, 0.01)


def test_a_reboot_or_an_hours_pause_begins_a_new_series() -> None:
    runs = [(0.0, 10.0, "x"), (20.0, 30.0, "x"), (3629.0, 3640.0, "x"), (7240.0, 7250.0, "x"), (7251.0, 7260.0, "y")]
    assert series_of(runs) == [0, 0, 0, 1, 2]


def test_a_series_ends_after_a_day_unless_a_block_is_asked_about() -> None:
    half_hours = [(1800.0 * number, 1800.0 * number + 1700.0, "x") for number in range(60)]
    assert series_of(half_hours) == [0] * 48 + [1] * 12
    assert series_of(half_hours, longest_s=math.inf) == [0] * 60


def test_series_are_numbered_by_time_and_given_in_the_order_asked() -> None:
    assert series_of([(9000.0, 9001.0, "x"), (0.0, 1.0, "x"), (2.0, None, "x")]) == [1, 0, 0]


def test_two_machines_that_measure_at_once_have_a_series_each() -> None:
    runs = [(0.0, 9.0, "x"), (1.0, 9.0, "y"), (10.0, 19.0, "x"), (11.0, 19.0, "y")]
    assert series_of(runs) == [0, 1, 0, 1]


def test_no_pause_is_seen_behind_a_run_that_outlasts_the_next() -> None:
    assert series_of([(0.0, 9000.0, "x"), (10.0, 20.0, "x"), (9100.0, 9200.0, "x")]) == [0, 0, 0]


def test_no_runs_have_no_series() -> None:
    assert series_of([]) == []


@given(SAMPLES, st.floats(0.5, 2.0))
def test_a_published_value_is_a_constant_as_in_scipys_one_sample_test(x: list[float], value: float) -> None:
    result = compare_published("host", x, value, what="somebody's H200")
    theirs = stats.ttest_1samp(x, math.log(value))
    assert result.p_difference == pytest.approx(theirs.pvalue, rel=1e-6, abs=1e-12)
    assert result.ratio == pytest.approx(math.exp(np.mean(x)) / value)
    assert (result.a, result.kind, result.margin) == ("somebody's H200", "published", 0.05)


def published(*rates: float) -> Comparison:
    return compare_published("host", logs(*rates), 3000.0, what="NVIDIA, H200, 3,000 images/s")


def test_a_published_value_that_is_reached_within_five_percent() -> None:
    result = published(2900, 2910, 2905)
    assert (result.word, result.difference, result.kind, result.count_b) == ("EQUIVALENT", "slower", "published", 3)


def test_one_run_against_a_published_value_is_a_ratio_only() -> None:
    result = published(2900)
    assert (result.word, result.interval_90) == ("INCONCLUSIVE", None)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_a_published_value_that_is_no_rate_is_refused(value: float) -> None:
    with pytest.raises(ValueError) as caught:
        compare_published("host", [1.0, 2.0], value)
    assert str(value) in str(caught.value)


@pytest.mark.parametrize(
    ("factor", "said"), [(1.0021, "0.21 %"), (1.19, "19 %"), (1.5, "1.5"), (8.0, "8"), (31.3, "31.3")]
)
def test_a_factor_near_one_is_said_in_percent(factor: float, said: str) -> None:
    assert say_by_factor(factor).endswith(said)
