"""What a fault did to a run, from the run's own steps: numbers that are known beforehand, and how often an interval holds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stackmark.events import Event, Phase, Steps
from stackmark.verdict.interruption import interruption, step_ends


def at(steps: list[float], start: float = 0.0) -> list[float]:
    return [start, *(start + np.cumsum(steps)).tolist()]


def steps_event(seq: int, t: float, first: int, step_s: list[float]) -> Steps:
    return Steps(seq=seq, t=t, phase="measure", first=first, step_s=step_s)


def test_steps_that_go_on_as_before_have_no_gap_and_a_ratio_of_one() -> None:
    seen = interruption(at([0.1] * 400), 20.0, 30.0)
    assert seen is not None
    assert seen.longest_gap_s == pytest.approx(seen.usual_gap_s) == pytest.approx(0.1)
    assert seen.during_ratio is not None
    assert seen.during_ratio.ratio == pytest.approx(1.0)
    assert seen.steps_lost == pytest.approx(0.0, abs=1e-6)


def test_a_loop_that_stands_still_shows_its_gap_and_the_steps_that_it_cost() -> None:
    """Ten steps a second; in a fault of ten seconds one step takes four."""
    seen = interruption(at([0.1] * 205 + [4.0] + [0.1] * 400), 20.0, 30.0)
    assert seen is not None
    assert seen.longest_gap_s == pytest.approx(4.0)
    assert seen.longest_gap_at_t == pytest.approx(20.5)
    assert seen.longest_gap_before_s == pytest.approx(0.1)
    assert seen.during is not None
    assert seen.during.steps == pytest.approx(61.0)
    assert seen.during_ratio is not None
    assert seen.during_ratio.ratio == pytest.approx(0.61)
    assert seen.during_ratio.differs is False  # one gap, in one place, says little of the rest
    assert seen.steps_lost == pytest.approx(39.0)
    assert seen.after_ratio is not None
    assert seen.after_ratio.ratio == pytest.approx(1.0)


def test_half_the_rate_during_a_fault_is_seen_as_half_and_as_a_difference() -> None:
    steps = [0.1] * 200 + [0.2] * 100 + [0.1] * 200
    wobble = np.random.default_rng(1).normal(1.0, 0.03, len(steps))
    seen = interruption(at((np.array(steps) * wobble).tolist()), 20.0, 40.0)
    assert seen is not None
    assert seen.during_ratio is not None
    assert seen.during_ratio.ratio == pytest.approx(0.5, rel=0.03)
    assert seen.during_ratio.differs
    assert seen.after_ratio is not None
    assert not seen.after_ratio.differs


def test_a_run_that_dies_in_the_fault_has_no_after() -> None:
    seen = interruption(at([0.1] * 250), 20.0, 60.0)
    assert seen is not None
    assert seen.after is None
    assert seen.during is not None
    assert seen.during.end_t == pytest.approx(25.0)


def test_a_run_that_ended_before_the_fault_was_not_interrupted() -> None:
    seen = interruption(at([0.1] * 100), 20.0, 30.0)
    assert seen is not None
    assert (seen.during, seen.during_ratio, seen.longest_gap_s) == (None, None, None)


def test_without_a_step_before_the_fault_there_is_nothing_to_hold_it_against() -> None:
    assert interruption(at([5.0] * 10), 3.0, 10.0) is None
    assert interruption([], 3.0, 10.0) is None


def test_a_loop_that_stands_still_for_the_whole_fault_has_a_ratio_near_nothing_and_no_nonsense() -> None:
    seen = interruption(at([0.1] * 200 + [30.0] + [0.1] * 200), 20.0, 30.0)
    assert seen is not None
    assert seen.during_ratio is not None
    assert seen.during_ratio.ratio == pytest.approx(1 / 30 / 10, rel=1e-6)
    assert seen.longest_gap_s == pytest.approx(30.0)


@given(st.lists(st.floats(1e-4, 20.0), min_size=2, max_size=60), st.floats(0, 100), st.floats(0, 100))
def test_whatever_the_steps_are_the_numbers_are_finite_and_in_order(
    steps: list[float], begin: float, length: float
) -> None:
    seen = interruption(at(steps, 1.0), begin, begin + length)
    if seen is None:
        return
    for ratio in (seen.during_ratio, seen.after_ratio):
        if ratio is not None and ratio.low is not None and ratio.high is not None:
            assert 0 <= ratio.low <= ratio.ratio <= ratio.high < math.inf
    parts = [span for span in (seen.before, seen.during, seen.after) if span]
    assert sum(span.steps for span in parts) <= len(steps) + 1e-6


def test_the_first_step_begins_where_the_promptest_event_says() -> None:
    """Three batches, written 0.3, 0.02 and 0.5 s after their last step; the loop began at 5.5."""
    events: list[Event] = [
        Phase(seq=0, t=5.0, phase="measure", state="begin"),
        steps_event(1, 6.8, 0, [0.5, 0.5]),
        steps_event(2, 7.52, 2, [0.5, 0.5]),
        steps_event(3, 8.5, 4, [0.5]),
    ]
    assert step_ends(events) == pytest.approx([5.52, 6.02, 6.52, 7.02, 7.52, 8.02])


def test_the_first_step_never_begins_before_the_measured_part() -> None:
    events: list[Event] = [Phase(seq=0, t=5.0, phase="measure", state="begin"), steps_event(1, 5.9, 0, [1.0])]
    assert step_ends(events) == pytest.approx([5.0, 6.0])


def test_steps_of_the_warm_up_are_none_of_it() -> None:
    assert step_ends([Steps(seq=0, t=1.0, phase="warm-up", first=0, step_s=[0.5])]) == []


# How often the 95 % interval of a fault that did nothing holds 1. Simulated with what real loops have: noise of each step, and
# noise that lasts (another process, a clock that moves). With 400 runs the share itself is known to some 2.5 %.
RUNS = 400


@pytest.mark.slow
@pytest.mark.parametrize("fault_s", [5.0, 20.0])
@pytest.mark.parametrize("lasts_s", [0.0, 1.0, 3.0])
def test_the_interval_of_a_fault_that_did_nothing_holds_one_in_about_95_of_100_runs(
    fault_s: float, lasts_s: float
) -> None:
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(RUNS):
        steps = noisy_steps(rng, 20.0 + fault_s + 12.0, lasts_s)
        seen = interruption(at(steps.tolist()), 20.0, 20.0 + fault_s)
        assert seen is not None
        assert seen.during_ratio is not None
        assert seen.during_ratio.low is not None
        assert seen.during_ratio.high is not None
        held += seen.during_ratio.low <= 1.0 <= seen.during_ratio.high
    assert 0.89 <= held / RUNS <= 0.99


def noisy_steps(rng: np.random.Generator, seconds: float, lasts_s: float, step_s: float = 0.1) -> NDArray[np.float64]:
    count = int(seconds / step_s)
    noise = rng.normal(0.0, 0.05, count)
    if lasts_s:
        from scipy.signal import lfilter

        keep = math.exp(-step_s / lasts_s)
        fresh = rng.normal(0.0, 0.05 * math.sqrt(1 - keep**2), count)
        fresh[0] = rng.normal(0.0, 0.05)
        noise += lfilter([1.0], [1.0, -keep], fresh)
    return step_s * np.exp(noise)
