"""Which blocks were disturbed, and what moved with the ratio: against numbers by hand and SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from stackmark.verdict.interference import Load, allowance_cpus, association, disturbances, most_extra_blocks


def loads(*values: tuple[float | None, float | None]) -> list[Load]:
    """Blocks of two arms, in order."""
    return [Load(arm, block, 0, pair[arm]) for block, pair in enumerate(values) for arm in (0, 1)]


def blocks_of(found: list[Load], cores: int = 2, idle: float | None = 0.0) -> list[tuple[int, int]]:
    return [(one.block, one.arm) for one in disturbances(found, cores, idle)]


def test_a_quarter_of_a_cpu_or_two_per_cent_of_the_cores_is_allowed() -> None:
    assert allowance_cpus(2) == 0.25
    assert allowance_cpus(100) == 2.0


def test_a_run_beyond_its_arm_s_own_median_is_disturbed() -> None:
    assert blocks_of(loads((0.1, 0.1), (0.1, 0.9), (0.1, 0.1), (0.1, 0.1))) == [(1, 1)]


def test_a_load_that_is_always_there_is_usual() -> None:
    assert blocks_of(loads((0.9, 0.9), (0.9, 1.0), (1.0, 0.9), (0.9, 0.9))) == []


def test_an_arm_that_causes_load_itself_is_held_against_itself() -> None:
    assert blocks_of(loads((0.0, 0.5), (0.0, 0.5), (0.0, 0.5), (0.0, 0.5))) == []


def test_the_idle_machine_is_usual_before_an_arm_has_three_runs() -> None:
    assert blocks_of(loads((0.9, 0.1)), idle=0.05) == [(0, 0)]
    assert blocks_of(loads((0.9, 0.1)), idle=None) == [(0, 0)]
    assert blocks_of([Load(0, 0, 0, 0.9)], idle=None) == []


def test_nobody_is_disturbed_by_what_nobody_measured() -> None:
    assert blocks_of(loads((None, None), (None, 0.9)), idle=0.0) == [(1, 1)]
    assert blocks_of(loads((None, None)), idle=0.0) == []


def test_another_program_on_the_gpu_disturbs_whatever_the_cpus_do() -> None:
    (found,) = disturbances([Load(0, 3, 0, 0.0, 2.0), Load(1, 3, 0, 0.0, 0.0)], 2, 0.0)
    assert (found.block, found.arm) == (3, 0)
    assert "GPU" in found.sentence


def test_half_as_many_blocks_may_be_repeated() -> None:
    assert [most_extra_blocks(n) for n in (1, 2, 6, 7)] == [0, 1, 3, 3]


def test_the_line_through_the_blocks_is_scipy_s() -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=12)
    d = 0.02 - 0.3 * x + 0.01 * rng.normal(size=12)
    found = association(d.tolist(), x.tolist())
    line = stats.linregress(x, d)
    reach = stats.t.ppf(0.975, 10) * line.stderr
    assert found is not None
    assert found.slope == pytest.approx(line.slope)
    assert [found.slope_low, found.slope_high] == pytest.approx([line.slope - reach, line.slope + reach])
    assert found.correlation == pytest.approx(line.rvalue)
    assert math.log(found.adjusted) == pytest.approx(line.intercept)
    reach = stats.t.ppf(0.975, 10) * line.intercept_stderr
    assert math.log(found.adjusted_high) == pytest.approx(line.intercept + reach)
    assert found.clear


def test_few_blocks_or_a_covariate_that_stands_still_have_no_line() -> None:
    assert association([0.1] * 7, list(range(7))) is None
    assert association([0.1, 0.2] * 4, [1410.0] * 8) is None
    assert association([0.1, 0.2] * 4, [math.nan] * 8) is None
