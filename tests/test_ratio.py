"""Two arms from paired blocks: against SciPy, at the edges, and in words."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from naming import missing
from stackmark.experiments.design import check_margin
from stackmark.verdict.comparison import MOST_MARGIN, Comparison, Needed
from stackmark.verdict.evidence import limit_of, paired, reach, words
from stackmark.verdict.needed import FORECAST_LEVEL, Pilot, count_needed, needed, sd_upper, smallest_margin
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.sentence import NORMAL_NOISE

SPREADS = st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=12).filter(lambda d: np.std(d) > 1e-6)


def blocks(differences: list[float], margin: float = 0.01, a: str = "host", b: str = "container") -> Comparison:
    logs_a = [5.0 + 0.01 * (i % 3) for i in range(len(differences))]
    return compare_blocks(a, b, logs_a, [x + d for x, d in zip(logs_a, differences, strict=True)], margin)


def around(mean: float, sd: float, n: int = 6) -> list[float]:
    """n differences with exactly this mean and standard deviation."""
    x = np.linspace(-1, 1, n)
    return [float(mean + sd * value) for value in x / x.std(ddof=1)]


@given(SPREADS)
def test_intervals_are_those_of_scipy(d: list[float]) -> None:
    result = blocks(d)
    for interval, confidence in ((result.interval_90, 0.90), (result.interval_95, 0.95)):
        assert interval is not None
        low, high = stats.t.interval(confidence, len(d) - 1, loc=np.mean(d), scale=stats.sem(d))
        assert (interval.low, interval.high) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-9)
        assert interval.confidence == confidence
    assert result.ratio == pytest.approx(math.exp(np.mean(d)))


@given(SPREADS)
def test_p_values_are_those_of_scipys_paired_tests(d: list[float]) -> None:
    a = np.linspace(0, 1, len(d))
    result = compare_blocks("a", "b", list(a), list(a + d), 0.02)
    limit = -math.log(0.98)
    assert result.p_difference == pytest.approx(stats.ttest_rel(a + d, a).pvalue, rel=1e-6, abs=1e-12)
    below = stats.ttest_1samp(d, limit, alternative="less").pvalue
    above = stats.ttest_1samp(d, -limit, alternative="greater").pvalue
    assert result.p_equivalence == pytest.approx(max(below, above), rel=1e-6, abs=1e-12)
    slower = stats.ttest_1samp(d, -limit, alternative="less").pvalue
    faster = stats.ttest_1samp(d, limit, alternative="greater").pvalue
    beyond = max(min(slower, faster), stats.ttest_rel(a + d, a).pvalue)
    assert result.p_outside == pytest.approx(beyond, rel=1e-6, abs=1e-12)


@given(SPREADS, st.floats(0.001, 0.3))
def test_word_interval_and_p_value_never_contradict_each_other(d: list[float], margin: float) -> None:
    result = blocks(d, margin)
    assert result.interval_90
    assert result.interval_95
    assert result.p_equivalence is not None
    assert result.p_outside is not None
    assert result.p_difference is not None
    low, high = 1 - margin, 1 / (1 - margin)
    assert (result.word == "EQUIVALENT") == (low <= result.interval_90.low and result.interval_90.high <= high)
    assert (result.word == "SLOWER") == (result.interval_90.high < low and result.interval_95.high < 1)
    assert (result.word == "FASTER") == (result.interval_90.low > high and result.interval_95.low > 1)
    if abs(result.p_equivalence - 0.05) > 1e-9:
        assert (result.word == "EQUIVALENT") == (result.p_equivalence < 0.05)
    if abs(result.p_outside - 0.05) > 1e-9:
        assert (result.word in ("SLOWER", "FASTER")) == (result.p_outside < 0.05)
    if abs(result.p_difference - 0.05) > 1e-9:
        assert (result.difference is not None) == (result.p_difference < 0.05)
    assert (result.needed is not None) == (result.word == "INCONCLUSIVE")


@given(SPREADS)
def test_whoever_is_compared_with_whom_the_answer_is_the_same(d: list[float]) -> None:
    one, other = blocks(d), blocks([-x for x in d])
    opposite = {"SLOWER": "FASTER", "FASTER": "SLOWER"}
    assert other.word == opposite.get(one.word, one.word)
    assert other.ratio == pytest.approx(1 / one.ratio)


def test_the_first_figures_by_hand_are_equivalent_at_one_percent() -> None:
    # container/host 0.9983, 90 % interval 0.9965 to 1.0002 from five blocks
    half = (math.log(1.0002) - math.log(0.9965)) / 2
    result = blocks(around((math.log(0.9965) + math.log(1.0002)) / 2, half * math.sqrt(5) / stats.t.ppf(0.95, 4), n=5))
    assert result.word == "EQUIVALENT"
    told = ("container", "EQUIVALENT", "host", "1 %", "0.9983", "90 %", "0.9965", "1.0002", "5 blocks")
    assert missing(result.sentence, *told) == []


def test_a_small_real_difference_is_named_beside_equivalent() -> None:
    result = blocks(around(-0.0025, 0.0015))
    assert (result.word, result.difference) == ("EQUIVALENT", "slower")
    assert missing(result.sentence, "6 blocks", "slower", "0.1", "0.4 %") == []


def test_a_real_difference_about_as_large_as_the_margin_is_left_open() -> None:
    result = blocks(around(-0.0115, 0.0043))
    assert (result.word, result.difference) == ("INCONCLUSIVE", "slower")
    assert missing(result.sentence, "container", "host", "slower", "0.7", "1.6 %", "1 %") == []


def test_a_difference_beyond_the_margin_is_slower() -> None:
    result = blocks(around(math.log(0.97), 0.004))
    assert (result.word, result.difference) == ("SLOWER", "slower")
    assert missing(result.sentence, "container", "SLOWER", "host", "1 %", "0.9700", "90 %") == []


def test_a_gpu_against_a_cpu_is_so_many_times_as_fast() -> None:
    result = blocks(around(math.log(40), 0.05))
    assert result.interval_95
    # As factors, not as percentages of thousands.
    ends = [f"{end:.4g}" for end in (result.interval_95.low, result.interval_95.high)]
    assert missing(result.sentence, "FASTER", "40.00", *ends) == []


@pytest.mark.parametrize("mean", [0.0, -0.002, -0.009, 0.0101, 0.03])
@pytest.mark.parametrize("sd", [1e-6, 0.001, 0.01, 0.1, 1.0])
def test_no_sentence_calls_two_arms_the_same(mean: float, sd: float) -> None:
    result = blocks(around(mean, sd))
    said = " ".join([result.sentence, *result.notes, result.needed.sentence if result.needed else ""])
    assert not re.search(r"\b(the same|no difference|identical|nan|inf)\b", said)
    assert not re.search(r"\bby 0\.0\b", said)


def test_one_block_has_a_ratio_and_no_interval() -> None:
    result = blocks([0.03])
    assert (result.word, result.interval_90, result.p_equivalence) == ("INCONCLUSIVE", None, None)
    assert result.ratio == pytest.approx(math.exp(0.03))
    assert missing(result.sentence, "1 block", f"{result.ratio:.4f}") == []
    assert (len(result.notes), result.needed and result.needed.count) == (1, None)


@pytest.mark.parametrize(("rate", "word"), [(100.0, "EQUIVALENT"), (103.0, "FASTER")])
def test_blocks_without_any_spread_say_that_it_proves_nothing(rate: float, word: str) -> None:
    result = compare_blocks("a", "b", [math.log(100.0)] * 3, [math.log(rate)] * 3, 0.01)
    assert result.word == word
    assert result.p_equivalence is None
    assert "prove" in result.sentence
    assert len(result.notes) == 1


def test_a_difference_of_rounding_alone_is_not_named() -> None:
    result = compare_blocks("a", "b", [1.0] * 4, [1.0 + 1e-15] * 4, 0.01)
    assert result.difference is None


def test_levels_of_a_look_widen_both_intervals() -> None:
    d = around(0.0, 0.003)
    wide = compare_blocks("a", "b", [0.0] * 6, d, 0.01, levels=(0.01, 0.02))
    low, _ = stats.t.interval(0.98, 5, loc=np.mean(d), scale=stats.sem(d))
    assert wide.interval_90
    assert wide.interval_95
    assert wide.interval_90.low == pytest.approx(math.exp(low))
    assert wide.interval_95.low == pytest.approx(wide.interval_90.low)


@pytest.mark.parametrize(
    ("logs_a", "logs_b", "margin", "named"),
    [
        ([1.0, 2.0], [1.0], 0.01, ("2", "1")),
        ([], [], 0.01, ("host",)),
        ([1.0, math.nan], [1.0, 1.0], 0.01, ("host",)),
        ([1.0, 1.0], [1.0, -math.inf], 0.01, ("pod",)),
        ([1.0, 2.0], [1.0, 2.0], 0.0, ("margin",)),
        ([1.0], [1.0], 1.5, ("margin", "1.5")),
        ([1.0, 2.0], [1.0, 2.0], math.nan, ("margin", "nan")),
    ],
)
def test_what_cannot_be_compared_is_refused_with_a_sentence(
    logs_a: list[float], logs_b: list[float], margin: float, named: tuple[str, ...]
) -> None:
    with pytest.raises(ValueError) as refused:
        compare_blocks("host", "pod", logs_a, logs_b, margin)
    assert missing(str(refused.value), *named) == []


@pytest.mark.parametrize("d", [[700.0, -700.0], [1e3, -1e3, 5e2], [0.0, 1e-11], [1e-9, 2e-9, -1e-9]])
def test_wild_numbers_still_give_finite_intervals(d: list[float]) -> None:
    result = blocks(d)
    assert result.interval_95
    assert 0 < result.interval_95.low <= result.interval_95.high < math.inf
    assert result.sentence


def test_an_interval_that_ends_at_the_margin_is_inside_it() -> None:
    limit = limit_of(0.01)
    reach = np.array([limit, limit])
    assert words(np.array([0.0, -2 * limit]), reach, limit, reach_95=reach).tolist() == ["EQUIVALENT", "INCONCLUSIVE"]


@pytest.mark.parametrize(("sd", "count"), [(0.005, 5), (0.01, 13), (0.02, 45), (0.07, 527)])
def test_blocks_needed_are_those_of_the_method(sd: float, count: int) -> None:
    assert count_needed(0.0, sd, 0.01) == count


@pytest.mark.parametrize("mean", [0.0, 0.005, -0.02])
def test_so_many_blocks_have_the_power_that_was_asked(mean: float) -> None:
    n = count_needed(mean, 0.025, 0.01)
    assert n is not None
    rng = np.random.default_rng(5)
    x = mean + 0.025 * rng.standard_normal((10_000, n))
    half = stats.t.ppf(0.95, n - 1) * x.std(axis=1, ddof=1) / math.sqrt(n)
    limit = -math.log(0.99)
    decided = np.abs(x.mean(axis=1)) + half <= limit if abs(mean) < limit else np.abs(x.mean(axis=1)) - half > limit
    assert decided.mean() == pytest.approx(0.9, abs=0.015)


def test_never_fewer_blocks_are_asked_for_than_were_run_and_whole_designs_only() -> None:
    result = needed(Pilot("blocks", 0.0, 0.003, df=11, ran=12, block_s=60.0), 0.01, multiple=6)
    assert (result.count, result.seconds) == (18, 360.0)
    assert missing(result.sentence, "18 blocks", "6 more", "6 min") == []
    assert result.practical


def kinds(result: Needed | None) -> list[str]:
    assert result is not None
    return [one.kind for one in result.advice]


def test_advice_begins_with_what_costs_least_and_all_of_it_is_said() -> None:
    result = needed(Pilot("blocks", 0.0, 0.02, df=5, ran=6, block_s=60.0), 0.01)
    assert kinds(result) == ["longer-runs", "wider-margin", "more-blocks"]
    places = [result.sentence.index(one.words) for one in result.advice]
    assert places == sorted(places)
    few = needed(Pilot("blocks", 0.0, 0.02, df=1, ran=2), 0.01)
    assert (few.count, kinds(few)) == (None, ["longer-runs", "wider-margin", "more-blocks"])


@pytest.mark.parametrize(
    ("sd", "block_s", "many", "practical"),
    [
        (0.02, 60.0, False, True),
        (0.02, 3600.0, False, False),
        (0.05, 60.0, True, False),
        (0.05, None, True, False),
        (0.05, 2.0, True, True),
    ],
)
def test_more_than_a_hundred_blocks_or_a_day_are_no_advice_unless_an_hour_is_enough(
    sd: float, block_s: float | None, many: bool, practical: bool
) -> None:
    result = needed(Pilot("blocks", 0.0, sd, df=11, ran=12, block_s=block_s), 0.01)
    assert result.count is not None
    assert (result.count > 100) == many
    assert result.practical == practical
    assert kinds(result)[-1] == ("more-blocks" if practical else "not-by-blocks")


@given(st.floats(-0.5, 0.5), st.floats(1e-4, 0.5), st.integers(4, 40), st.sampled_from([0.005, 0.01, 0.1, 0.3]))
def test_no_margin_is_proposed_that_compare_refuses(mean: float, sd: float, ran: int, margin: float) -> None:
    result = needed(Pilot("blocks", mean, sd, df=ran - 1, ran=ran), margin)
    for one in result.advice:
        if one.kind == "wider-margin":
            proposed = float(one.words.split(" %")[0].split()[-1]) / 100
            assert margin < proposed < MOST_MARGIN
            check_margin(proposed)


def test_a_ratio_at_the_margin_is_called_undecidable_and_another_margin_is_offered() -> None:
    result = blocks(around(-0.0099, 0.004))
    assert result.needed is not None
    assert result.needed.count is None
    assert missing(result.needed.sentence, "1 %", "2 %") == []


def test_a_machine_too_noisy_for_any_number_of_blocks_is_told_so() -> None:
    result = blocks(around(0.0, 0.28))
    assert result.needed is not None
    assert result.needed.count is None
    assert missing(result.needed.sentence, "28 %", "30 %") == []


def test_the_smallest_margin_is_the_one_whose_blocks_these_are() -> None:
    for n in (4, 6, 20):
        margin = smallest_margin(0.004, n)
        assert count_needed(0.0, 0.004, margin * 1.0001) == n


def test_a_word_needs_evidence_of_a_difference() -> None:
    # The 90 % interval lies beyond the margin of 1 %, and the 95 % interval holds 1.
    result = blocks([math.log1p(share) for share in (0.025, 0.03, 0.085, 0.11)])
    assert result.interval_90
    assert result.interval_95
    assert result.interval_90.low > 1 / 0.99
    assert result.interval_95.low < 1
    assert (result.word, result.difference) == ("INCONCLUSIVE", None)
    assert missing(result.sentence, "95 %") == []


def test_by_the_first_rules_the_ninety_percent_interval_decided_alone() -> None:
    logs = [math.log1p(share) for share in (0.025, 0.03, 0.085, 0.11)]
    assert compare_blocks("a", "b", [0.0] * 4, logs, 0.01, rules=1).word == "FASTER"


def test_from_six_blocks_on_a_noisy_word_is_compared_with_the_signs_of_the_blocks() -> None:
    clear = blocks(around(math.log(0.8), 0.04))
    assert (clear.word, clear.p_sign_flip) == ("SLOWER", 2 / 64)
    assert missing(clear.sentence, "0.031") == []
    assert NORMAL_NOISE not in clear.sentence
    # One block on the other side: 4 of the 64 ways to give the signs are as far out.
    unclear = blocks([-0.09, -0.1, -0.11, -0.1, -0.09, 0.004], margin=0.001)
    assert (unclear.word, unclear.p_sign_flip) == ("SLOWER", 4 / 64)
    assert NORMAL_NOISE in unclear.sentence


def test_four_noisy_blocks_cannot_be_compared_with_their_signs() -> None:
    result = blocks(around(math.log(0.5), 0.04, n=4))
    assert (result.word, result.p_sign_flip) == ("SLOWER", None)
    assert NORMAL_NOISE in result.sentence
    quiet = blocks(around(math.log(0.5), 0.02, n=4))
    assert NORMAL_NOISE not in quiet.sentence


def test_equivalence_of_noisy_blocks_is_compared_with_their_signs_too() -> None:
    result = blocks(around(0.0, 0.04, n=8), margin=0.1)
    d = np.array(around(0.0, 0.04, n=8))
    theirs = [
        stats.permutation_test(
            (d + side * limit_of(0.1),), np.mean, permutation_type="samples", alternative=which
        ).pvalue
        for side, which in ((1, "greater"), (-1, "less"))
    ]
    assert result.word == "EQUIVALENT"
    assert result.p_sign_flip == pytest.approx(max(theirs))


@pytest.mark.parametrize("df", [3, 5, 20])
def test_the_upper_bound_of_a_spread_is_that_of_the_chi_square(df: int) -> None:
    for level in (0.05, FORECAST_LEVEL):
        assert sd_upper(1.0, df, level) == pytest.approx(math.sqrt(df / stats.chi2.ppf(level, df)), rel=0.04)
    assert sd_upper(1.0, 2) is None


@pytest.mark.slow
@pytest.mark.parametrize(("sd", "margin"), [(0.01, 0.01), (0.05, 0.02)])
def test_a_forecast_of_nine_in_ten_comes_true_in_88_percent_or_more(sd: float, margin: float) -> None:
    """Six blocks that decide nothing, the number that they ask for, and whether so many new blocks decide."""
    rng = np.random.default_rng(8)
    kept: list[bool] = []
    while len(kept) < 100:
        seen = sd * rng.standard_normal(6)
        pilot = Pilot("blocks", float(seen.mean()), float(seen.std(ddof=1)), df=5, ran=6)
        count = needed(pilot, margin, multiple=2).count
        if count is not None:
            new = paired(sd * rng.standard_normal(count))
            word = words(new.mean, reach(new, 0.05), limit_of(margin), reach_95=reach(new, 0.025))
            kept.append(str(word) != "INCONCLUSIVE")
    assert np.mean(kept) >= 0.88
