"""The five classes of a run, on series whose truth is known because they were made."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stackmark.verdict.steady import MIN_SEGMENT, _cuts, change_points, find_steady

Floats = NDArray[np.float64]
TICK_S = 0.5e-6
STEP_S = 0.02


def noisy(course: Floats, cv: float, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    return STEP_S * course * (1 + cv * rng.standard_normal(course.size))


def course(steps: int, *parts: tuple[float, float]) -> Floats:
    """A course of levels: course(100, (0.2, 1.1), (1.0, 1.0)) is 1.1 up to step 20 and 1.0 up to the end."""
    values = np.ones(steps)
    begin = 0
    for until, level in parts:
        values[begin : int(until * steps)] = level
        begin = int(until * steps)
    return values


def test_equal_noise_is_flat_and_all_of_it_is_measured() -> None:
    steady = find_steady(noisy(np.ones(1000), 0.01, seed=1), TICK_S)
    assert (steady.kind, steady.first_step, len(steady.segments)) == ("flat", 0, 1)


def test_a_slow_first_fifth_is_a_warm_up_and_is_left_out() -> None:
    steady = find_steady(noisy(course(1000, (0.2, 1.1), (1.0, 1.0)), 0.01, seed=2), TICK_S)
    assert steady.kind == "warm-up"
    assert abs(steady.first_step - 200) <= 2
    assert steady.segments[0].level_s / steady.segments[1].level_s == pytest.approx(1.1, abs=0.005)


def test_a_gradual_warm_up_ends_where_it_is_within_the_tolerance() -> None:
    at = np.arange(1000)
    steady = find_steady(noisy(1 + 0.2 * np.exp(-at / 50), 0.005, seed=3), TICK_S)
    assert steady.kind == "warm-up"
    assert 100 <= steady.first_step <= 300  # 0.2·exp(-at/50) is 2.7 % at 100, 1 % at 150, 0.05 % at 300


def test_throttling_in_the_first_half_is_a_slow_down_and_the_throttled_part_is_measured() -> None:
    steady = find_steady(noisy(course(1000, (0.3, 1.0), (1.0, 1.05)), 0.01, seed=4), TICK_S)
    assert steady.kind == "slow-down"
    assert abs(steady.first_step - 300) <= 2
    assert steady.segments[0].level_s / steady.segments[1].level_s == pytest.approx(1 / 1.05, abs=0.003)
    assert steady.note


def test_a_slow_down_near_the_end_leaves_no_steady_state_and_the_whole_run_is_measured() -> None:
    steady = find_steady(noisy(course(1000, (0.7, 1.0), (1.0, 1.05)), 0.01, seed=5), TICK_S)
    assert (steady.kind, steady.first_step) == ("no steady state", 0)
    assert "30 %" in steady.note


def test_a_drift_from_beginning_to_end_is_no_steady_state() -> None:
    steady = find_steady(noisy(np.linspace(1.0, 1.1, 1000), 0.01, seed=6), TICK_S)
    assert (steady.kind, steady.first_step) == ("no steady state", 0)


def test_a_change_within_the_tolerance_is_flat_though_it_is_seen() -> None:
    steady = find_steady(noisy(course(1000, (0.5, 1.005), (1.0, 1.0)), 0.001, seed=7), TICK_S)
    assert (steady.kind, steady.first_step, len(steady.segments)) == ("flat", 0, 2)


def test_a_bump_whose_edges_cancel_is_found() -> None:
    """Binary segmentation would stop before it began: no single cut is worth its price. Two together are."""
    steps = noisy(course(1000, (0.46, 1.0), (0.54, 1.022), (1.0, 1.0)), 0.01, seed=8)
    gains = [
        1000 * math.log(steps.var()) - cut * math.log(steps[:cut].var()) - (1000 - cut) * math.log(steps[cut:].var())
        for cut in range(10, 991)
    ]
    assert max(gains) < 15 * math.log(1000)
    found = change_points(steps, TICK_S)
    assert len(found) == 2
    assert abs(found[0] - 460) <= 5
    assert abs(found[1] - 540) <= 5


def test_a_change_of_spread_alone_is_no_change_of_level() -> None:
    rng = np.random.default_rng(9)
    steps = STEP_S * (1 + np.where(np.arange(1000) < 500, 0.05, 0.005) * rng.standard_normal(1000))
    assert len(_cuts(steps, TICK_S)) == 3  # the search sees it
    assert find_steady(steps, TICK_S).kind == "flat"


@pytest.mark.parametrize("steps", [1, 2, 3, 30, 199])
def test_under_200_steps_the_second_half_is_measured_and_it_is_said(steps: int) -> None:
    steady = find_steady(noisy(np.ones(steps), 0.01, seed=10), TICK_S)
    assert (steady.kind, steady.first_step) == ("too short to tell", steps // 2)
    assert "200" in steady.note


def test_200_steps_are_enough() -> None:
    assert find_steady(noisy(np.ones(200), 0.01, seed=11), TICK_S).kind == "flat"


@pytest.mark.parametrize("at", [10, 57, 500, 995, 999])
@pytest.mark.parametrize("times", [2.0, 10.0, 1000.0])
def test_one_long_step_does_not_make_a_class(at: int, times: float) -> None:
    steps = noisy(np.ones(1000), 0.01, seed=12)
    steps[at] *= times
    steady = find_steady(steps, TICK_S)
    assert (steady.kind, steady.first_step) == ("flat", 0)
    assert steady.segments[0].level_s == pytest.approx(STEP_S, rel=0.002)


def test_one_long_step_does_not_hide_a_warm_up() -> None:
    steps = noisy(course(300, (0.2, 1.1), (1.0, 1.0)), 0.01, seed=13)
    steps[200] *= 10
    steady = find_steady(steps, TICK_S)
    assert steady.kind == "warm-up"
    assert abs(steady.first_step - 60) <= 2


def test_a_long_pause_every_hundred_steps_is_flat() -> None:
    steps = noisy(np.ones(2000), 0.01, seed=14)
    steps[50::100] *= 5
    assert find_steady(steps, TICK_S).kind == "flat"


@pytest.mark.parametrize("period", [4, 8, 16])
def test_regular_stalls_that_end_are_a_warm_up_though_no_median_moves(period: int) -> None:
    steps = noisy(np.ones(1000), 0.01, seed=15)
    steps[0:300:period] *= 3
    steady = find_steady(steps, TICK_S)
    assert steady.kind == "warm-up"
    assert 280 <= steady.first_step <= 310


@pytest.mark.parametrize("times", [1.5, 10.0])
def test_a_long_first_step_is_a_warm_up_of_ten_steps(times: float) -> None:
    steps = noisy(np.ones(1000), 0.01, seed=16)
    steps[0] *= times
    steady = find_steady(steps, TICK_S)
    assert (steady.kind, steady.first_step) == ("warm-up", 10)


def test_five_slow_first_steps_are_a_warm_up() -> None:
    steps = noisy(np.ones(1000), 0.01, seed=17)
    steps[:5] *= 2
    steady = find_steady(steps, TICK_S)
    assert steady.kind == "warm-up"
    assert steady.first_step == MIN_SEGMENT


@pytest.mark.parametrize("tick_s", [0.0, TICK_S])
def test_steps_of_exactly_equal_length_are_flat(tick_s: float) -> None:
    assert find_steady(np.full(1000, 0.01), tick_s).kind == "flat"


def test_steps_that_jump_by_a_tick_of_the_clock_are_flat() -> None:
    rng = np.random.default_rng(18)
    boundaries = np.floor(np.cumsum(np.full(1001, 25.2e-6) + 1e-9 * rng.standard_normal(1001)) / TICK_S) * TICK_S
    assert find_steady(np.diff(boundaries), TICK_S).kind == "flat"


def test_a_step_change_without_any_noise_is_found_on_the_step() -> None:
    assert change_points(np.repeat([0.011, 0.010], [60, 240]), TICK_S) == (60,)


@pytest.mark.parametrize("steps", [1_237, 20_001])
def test_beyond_500_steps_a_cut_is_still_placed_on_the_step(steps: int) -> None:
    """With more steps than places for a cut the coarse places must be refined."""
    change = steps // 3
    values = noisy(np.where(np.arange(steps) < change, 1.2, 1.0), 0.01, seed=19)
    assert change_points(values, TICK_S) == (change,)


def _exhaustive(values: Floats) -> list[int]:
    """The cheapest cut by plain recursion over every place, written independently of the code under test."""
    n = values.size
    best: list[tuple[float, list[int]]] = [(-15 * math.log(n), [0])]
    for stop in range(1, n + 1):
        options = [
            (best[start][0] + (stop - start) * math.log(float(np.var(values[start:stop]))) + 15 * math.log(n), start)
            for start in range(stop - 9)
            if math.isfinite(best[start][0])
        ]
        cost, start = min(options, default=(math.inf, 0))
        best.append((cost, [*best[start][1], stop]))
    return best[n][1]


@pytest.mark.parametrize("seed", range(4))
def test_the_cut_is_the_cheapest_of_all(seed: int) -> None:
    values = noisy(course(120, (0.3, 1.0), (0.55, 1.06), (0.8, 1.0), (1.0, 1.1)), 0.01, seed)
    expected = _exhaustive(values)
    assert len(expected) > 3
    assert _cuts(values, 0.0) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "least", "most"), [(30, 0.0, 0.0), (100, 0.02, 0.12), (300, 0.99, 1.0)])
def test_a_warm_up_of_10_percent_at_5_percent_spread_is_found_as_often_as_the_method_says(
    steps: int, least: float, most: float
) -> None:
    """METHOD: 0 % of runs of 30 steps, 7 % at 100, 100 % at 300; this is why 200 steps are asked for."""
    found = sum(
        bool(change_points(noisy(course(steps, (0.2, 1.1), (1.0, 1.0)), 0.05, seed), 1e-9)) for seed in range(300)
    )
    assert least <= found / 300 <= most


def _gaussian(rng: np.random.Generator, n: int) -> Floats:
    return rng.standard_normal(n)


def _autocorrelated(rng: np.random.Generator, n: int) -> Floats:
    values = rng.standard_normal(n)
    for i in range(1, n):
        values[i] = 0.5 * values[i - 1] + math.sqrt(0.75) * values[i]
    return values


def _heavy_tailed(rng: np.random.Generator, n: int) -> Floats:
    return rng.standard_t(3, n) / math.sqrt(3)


@pytest.mark.slow
@pytest.mark.parametrize("cv", [0.005, 0.01, 0.05])
@pytest.mark.parametrize("noise", [_gaussian, _autocorrelated, _heavy_tailed])
def test_flat_runs_are_called_flat(noise: Callable[[np.random.Generator, int], Floats], cv: float) -> None:
    """Up to 2 in 100 may be wrong here. Strong autocorrelation (AR(1) 0.9) does worse: the benchmark prints it."""
    rng = np.random.default_rng(20)
    wrong = sum(
        find_steady(STEP_S * np.maximum(1 + cv * noise(rng, 1000), 0.3), TICK_S).kind != "flat" for _ in range(100)
    )
    assert wrong <= 2


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    power=st.integers(-20, 20),
    kind=st.sampled_from([(1.0, 1.0), (1.1, 1.0), (1.0, 1.05)]),
    steps=st.integers(1, 700),
)
def test_the_class_does_not_depend_on_the_unit_of_time(
    seed: int, power: int, kind: tuple[float, float], steps: int
) -> None:
    """Powers of two, so that scaling is exact and a tie cannot be broken another way by rounding."""
    values = noisy(course(steps, (0.3, kind[0]), (1.0, kind[1])), 0.02, seed)
    one, other = find_steady(values, TICK_S), find_steady(values * 2.0**power, TICK_S * 2.0**power)
    assert (one.kind, one.first_step, one.note) == (other.kind, other.first_step, other.note)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=400).filter(any), st.sampled_from([0.0, 1e-9, TICK_S]))
def test_any_step_times_get_a_class_and_segments_that_cover_them(values: list[float], tick_s: float) -> None:
    steady = find_steady(values, tick_s)
    assert [steady.segments[0].start, *(s.stop for s in steady.segments)] == [
        *(s.start for s in steady.segments),
        len(values),
    ]
    assert steady.segments[0].start == 0
    assert 0 <= steady.first_step <= len(values) // 2


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ([], ""),
        ([0.1, math.nan], "step 1"),
        ([math.inf], "step 0"),
        ([0.1, 0.1, -0.1], "step 2"),
        ([0.0, 0.0], "zero"),
    ],
)
def test_times_that_cannot_be_are_refused(values: list[float], named: str) -> None:
    with pytest.raises(ValueError) as caught:
        find_steady(values, TICK_S)
    assert named in str(caught.value)


@pytest.mark.parametrize("steps", [200, 1000, 2000])
@pytest.mark.parametrize("cv", [0.005, 0.05])
@pytest.mark.parametrize(("every", "times"), [(50, 3.0), (50, 10.0), (20, 3.0)])
def test_a_pause_every_so_many_steps_is_flat_and_reported(steps: int, cv: float, every: int, times: float) -> None:
    """A checkpoint every 50 steps: with means as levels nearly all such runs of 2000 steps had no steady state."""
    values = noisy(np.ones(steps), cv, seed=every)
    values[every - 1 :: every] *= times
    steady = find_steady(values, TICK_S)
    assert steady.kind == "flat"
    assert steady.pauses is not None
    assert (steady.pauses.count, steady.pauses.every) == (steps // every, every)
    assert steady.pauses.share == pytest.approx((times - 1) / (times - 1 + every), rel=0.1)
    assert f"one every {every} steps" in steady.note


def test_a_pause_that_falls_into_the_first_ten_steps_as_into_all_others_is_no_warm_up() -> None:
    values = noisy(np.ones(1000), 0.01, seed=31)
    values[5::50] *= 3
    assert find_steady(values, TICK_S).kind == "flat"


def test_pauses_that_begin_half_way_are_not_steady() -> None:
    values = noisy(np.ones(1000), 0.01, seed=32)
    values[600::20] *= 3
    steady = find_steady(values, TICK_S)
    assert steady.kind == "no steady state"


def test_a_warm_up_is_found_under_pauses() -> None:
    values = noisy(course(1000, (0.2, 1.1), (1.0, 1.0)), 0.01, seed=33)
    values[49::50] *= 5
    steady = find_steady(values, TICK_S)
    assert steady.kind == "warm-up"
    assert abs(steady.first_step - 200) <= 3


def test_noise_with_heavy_tails_is_not_reported_as_pauses() -> None:
    rng = np.random.default_rng(34)
    steady = find_steady(STEP_S * (1 + 0.01 * _heavy_tailed(rng, 2000)), TICK_S)
    assert (steady.kind, steady.pauses) == ("flat", None)
