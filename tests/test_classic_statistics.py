"""The classic line: its formulas against an independent source, its shape against what the program printed."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from stackmark.workloads.train.classic import ClassicStats, classic_line_stats, classic_row

# Printed by tf_cnn_benchmarks: ResNet-50 on one T4 (TensorFlow 2.3), and the CPU part of a V100 report.
PRINTED = """\
1\timages/sec: 129.2 +/- 0.0 (jitter = 0.0)\t7.608
10\timages/sec: 128.7 +/- 0.4 (jitter = 0.9)\t7.849
20\timages/sec: 128.4 +/- 0.2 (jitter = 1.1)\t8.013
90\timages/sec: 127.3 +/- 0.1 (jitter = 1.4)\t7.842
100\timages/sec: 127.1 +/- 0.1 (jitter = 1.4)\t8.090
20\timages/sec: 2.2 +/- 0.0 (jitter = 0.0)\t7.983
"""
ROW = re.compile(r"(\d+)\timages/sec: (\d+\.\d) \+/- (\d+\.\d) \(jitter = (\d+\.\d)\)\t(-?\d+\.\d{3})")
TEN_STEPS = [0.10] * 8 + [0.11, 0.20]


@pytest.mark.parametrize("line", PRINTED.splitlines())
def test_a_printed_row_comes_out_byte_for_byte(line: str) -> None:
    match = ROW.fullmatch(line)
    assert match is not None
    step, mean, uncertainty, jitter, loss = match.groups()
    assert classic_row(int(step), ClassicStats(float(mean), float(uncertainty), float(jitter)), float(loss)) == line


def test_the_projects_own_parser_reads_our_row() -> None:
    """Its test_util splits at white space: 9 fields, the loss in the last; 11 with accuracies."""
    row = classic_row(10, classic_line_stats(TEN_STEPS, 64), 8.1371)
    assert row == "10\timages/sec: 576.6 +/- 30.2 (jitter = 0.0)\t8.137"
    assert len(row.split()) == 9
    assert row.split()[8] == "8.137"
    assert len(classic_row(10, classic_line_stats(TEN_STEPS, 64), 8.137, (0.1, 0.25)).split()) == 11


def test_accuracies_follow_the_loss_with_three_digits() -> None:
    row = classic_row(1, ClassicStats(2.0, 0.0, 0.0), 0.0, (0.001, 0.0051))
    assert row == "1\timages/sec: 2.0 +/- 0.0 (jitter = 0.0)\t0.000\t0.001\t0.005"


def test_a_few_slow_steps_move_the_rate_and_not_the_jitter() -> None:
    """Ten steps of 0.10 s, one of them 0.11 and one 0.20, batch 64."""
    classic = classic_line_stats(TEN_STEPS, 64)
    assert round(classic.speed_mean, 1) == 576.6
    assert classic.jitter == pytest.approx(0.0, abs=1e-9)


def test_the_first_row_has_no_spread() -> None:
    assert classic_line_stats([0.5], 64) == (128.0, 0.0, 0.0)


@given(steps=st.lists(st.floats(1e-3, 10), min_size=3, max_size=50), batch=st.integers(1, 1024))
def test_the_three_statistics_agree_with_scipys(steps: list[float], batch: int) -> None:
    speeds = batch / np.array(steps)
    mean, uncertainty, jitter = classic_line_stats(steps, batch)
    assert mean == pytest.approx(stats.hmean(speeds), rel=1e-9)
    assert uncertainty == pytest.approx(stats.sem(speeds, ddof=0), rel=1e-9, abs=1e-9)
    assert jitter == pytest.approx(1.4826 * stats.median_abs_deviation(speeds), rel=1e-9, abs=1e-9)


def test_the_weighted_mean_follows_the_usual_recursion_for_a_long_past() -> None:
    """m ← (1-a)·m + a·t, which the normalised weights (1-a)^(n-1..0) tend to."""
    steps = [float(step) for step in np.random.default_rng(1).gamma(100, 0.001, 400)]
    recursive = steps[0]
    for step in steps[1:]:
        recursive = 0.9 * recursive + 0.1 * step
    assert classic_line_stats(steps, 64, ewma=0.1).speed_mean == pytest.approx(64 / recursive, rel=1e-9)


def test_a_weight_of_one_shows_the_latest_step_and_none_or_zero_the_plain_mean() -> None:
    assert classic_line_stats(TEN_STEPS, 64, ewma=1.0).speed_mean == pytest.approx(64 / 0.20)
    assert classic_line_stats(TEN_STEPS, 64, ewma=0.0) == classic_line_stats(TEN_STEPS, 64)


@pytest.mark.parametrize(
    ("steps", "batch", "ewma"), [([], 1, None), ([0.1, 0.0], 1, None), ([0.1], 0, None), ([0.1], 1, 1.5)]
)
def test_what_has_no_rate_is_refused(steps: list[float], batch: int, ewma: float | None) -> None:
    with pytest.raises(ValueError):
        classic_line_stats(steps, batch, ewma)
