"""The verdict on an efficiency: one-sided, against SciPy's t; what is lost, what is expected, what is questioned."""

import math

import pytest
from scipy.stats import t as student

from stackmark.verdict.comparison import Comparison
from stackmark.verdict.family import holm
from stackmark.verdict.interference import Disturbed, combined
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.scaling import (
    RankTimes,
    expected,
    group_times,
    is_questioned,
    losses,
    shared_devices,
)
from stackmark.verdict.unpaired import KnownSpread, RunSpread, compare_runs

# Of blocks: their mean is 0 and their standard deviation 1.
NOISE = (-1.336306, -0.801784, -0.267261, 0.267261, 0.801784, 1.336306)


def efficient(efficiency: float, sd: float = 0.002, margin: float = 0.1) -> Comparison:
    ones = [0.0] * len(NOISE)
    return compare_blocks(
        "1 rank", "4 ranks", ones, [math.log(efficiency) + sd * one for one in NOISE], margin, terms="efficiency"
    )


@pytest.mark.parametrize(
    ("efficiency", "word"),
    [(0.97, "SCALES"), (0.91, "SCALES"), (0.90, "INCONCLUSIVE"), (0.89, "FALLS SHORT"), (0.5, "FALLS SHORT")],
)
def test_the_word_says_on_which_side_of_the_margin_the_interval_lies(efficiency: float, word: str) -> None:
    assert efficient(efficiency).word == word


def test_an_efficiency_above_one_scales_however_high_it_is() -> None:
    assert efficient(1.5).word == "SCALES"
    assert efficient(1.5, sd=0.2).word == "SCALES"


def test_the_interval_and_the_p_of_the_one_side_are_those_of_scipy() -> None:
    found = efficient(0.93, sd=0.03)
    error, df = 0.03 / math.sqrt(6), 5
    assert found.interval_90
    assert found.interval_90.low == pytest.approx(math.exp(math.log(0.93) - student.ppf(0.95, df) * error), rel=1e-4)
    at = (math.log(0.93) - math.log(0.9)) / error
    assert found.p_equivalence == pytest.approx(student.sf(at, df), rel=1e-3)
    assert found.p_outside is not None
    assert found.p_outside > 0.9


def test_a_named_difference_is_not_said_of_an_efficiency() -> None:
    assert efficient(0.97).difference is None


def test_falling_short_counts_as_slower_and_scaling_as_neither() -> None:
    assert efficient(0.7).is_slower
    assert not efficient(0.97).is_slower
    assert not efficient(1.2).is_faster


def test_holm_decides_over_the_rank_counts() -> None:
    # Alone the second has p = 0.04, which Holm holds against 0.025 where the other is decided neither.
    error = 0.05 / math.sqrt(6)
    close = efficient(0.9 * math.exp(-student.ppf(0.04, 5) * error), sd=0.05)
    open_one = efficient(0.9, sd=0.05)
    assert close.p_equivalence == pytest.approx(0.04, rel=0.01)
    assert close.word == "SCALES"
    assert [one.word for one in holm([open_one, close])] == ["INCONCLUSIVE", "INCONCLUSIVE"]


def test_disturbed_blocks_do_not_take_back_an_efficiency_that_they_lower() -> None:
    every, clean = efficient(0.93), efficient(0.93, sd=0.2)
    assert clean.word == "INCONCLUSIVE"
    assert combined(clean, every, Disturbed(6, 2, 0)).word == "SCALES"


def test_words_that_differ_with_and_without_disturbed_blocks_are_inconclusive() -> None:
    found = combined(efficient(0.95), efficient(0.8), Disturbed(6, 2, 0))
    assert found.word == "INCONCLUSIVE"
    assert "FALLS SHORT with them and SCALES without them" in found.sentence


def test_a_question_that_is_open_says_what_would_decide_it() -> None:
    found = efficient(0.93, sd=0.05)
    assert found.word == "INCONCLUSIVE"
    assert found.needed is not None


def test_above_one_beyond_the_interval_is_questioned() -> None:
    assert is_questioned(efficient(1.05))
    assert not is_questioned(efficient(1.05, sd=0.1))
    assert not is_questioned(efficient(0.99))


def test_one_run_a_side_without_a_known_spread_is_inconclusive() -> None:
    found = compare_runs("1 rank", "2 ranks", [0.0], [math.log(0.97)], 0.1, terms="efficiency")
    assert (found.word, found.interval_90) == ("INCONCLUSIVE", None)
    assert found.ratio == pytest.approx(0.97)


def test_one_run_a_side_of_a_known_spread_is_decided_by_it() -> None:
    known = KnownSpread("train/resnet50 on a chip", 0.005, 12)
    found = compare_runs(
        "1 rank", "2 ranks", [0.0], [math.log(0.97)], 0.1, spread=RunSpread(known, known), terms="efficiency"
    )
    assert (found.word, found.assumed) == ("SCALES", True)
    assert found.p_equivalence is not None
    assert found.p_equivalence < 0.001


def test_a_far_efficiency_of_one_run_a_side_is_no_certain_word() -> None:
    found = compare_runs("1 rank", "64 ranks", [0.0], [math.log(0.05)], 0.1, terms="efficiency")
    assert found.word == "INCONCLUSIVE"


# --- what is lost -------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_step_are_the_mean_over_the_ranks_and_the_slowest_compute() -> None:
    found = group_times([RankTimes(0.010, 0.002, 0.003, 4e6), RankTimes(0.012, 0.0, 0.003, 4e6)])
    assert found is not None
    assert (found.slowest_compute_s, found.exchanged_bytes) == (0.012, 4e6)
    assert found.compute_s == pytest.approx(0.011)
    assert found.waiting_s == pytest.approx(0.001)
    assert found.exchange_s == pytest.approx(0.003)
    assert found.step_s == pytest.approx(0.015)  # as each rank's own three parts add up to


def test_a_rank_that_says_nothing_leaves_the_parts_out() -> None:
    assert group_times([RankTimes(0.010, 0.0, 0.003), RankTimes()]) is None
    assert group_times([]) is None


def test_the_losses_add_up_to_what_the_efficiency_lacks() -> None:
    # One rank takes 10 ms a step. Of two, one takes 11 and one 13, and 2 ms of exchange follow: 15 ms.
    both = group_times([RankTimes(0.011, 0.002, 0.002), RankTimes(0.013, 0.0, 0.002)])
    assert both is not None
    found = losses([both], 10 / 15)
    assert found is not None
    assert found.communication == pytest.approx(2 / 15)
    assert found.stragglers == pytest.approx(1 / 15)
    assert found.other == pytest.approx(2 / 15)  # 12 ms of compute on average, where one rank takes 10


def test_without_times_there_are_no_losses() -> None:
    assert losses([], 0.9) is None


def test_the_expected_exchange_follows_the_ring() -> None:
    # 100 MB at 50 GB/s over four ranks: 2·3/4 of the array over each link, 3 ms.
    found = expected(4, 100e6, 50.0, ideal_s=0.027, compute_s=0.027, run_id="r-1", array_bytes=128e6)
    assert found.exchange_s == pytest.approx(0.003)
    assert found.efficiency_low == pytest.approx(0.9)
    assert found.efficiency_high == 1.0


def test_an_exchange_longer_than_the_compute_cannot_be_hidden() -> None:
    found = expected(2, 100e6, 1.0, ideal_s=0.05, compute_s=0.05, run_id="r-1", array_bytes=128e6)
    assert found.efficiency_high == pytest.approx(0.5)


# --- what is called scaling ---------------------------------------------------------------------------------------------


def test_ranks_with_one_uuid_share_a_device() -> None:
    said = shared_devices(["GPU-a", "GPU-a"])
    assert "share one GPU (GPU-a)" in said
    assert "not scaling" in said


@pytest.mark.parametrize("chips", [["GPU-a", "GPU-b"], [None, None], [], ["GPU-a", None]])
def test_ranks_with_devices_of_their_own_and_ranks_on_a_cpu_do_not(chips: list[str | None]) -> None:
    assert shared_devices(chips) == ""
