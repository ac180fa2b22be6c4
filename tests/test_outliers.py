"""Which device is slow: the statistics, against SciPy and by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from stackmark.verdict.cohorts import (
    LEAST_DEVICES,
    Cohort,
    Device,
    benjamini_hochberg,
    cohorts,
    confirm,
    device_p,
    is_confirmed,
    reference_for,
    say_cohort,
    seen_from,
    slow_nodes,
)

MARGIN = 0.01
STACK = ("H200", "580.1", "PyTorch 2.11")


def devices_of(logs: list[float], per_node: int = 2, stack: tuple[str, ...] = STACK) -> list[Device]:
    return [
        Device(f"node-{index // per_node + 1}", f"GPU-{index}", float(log), stack) for index, log in enumerate(logs)
    ]


def only(devices: list[Device], margin: float = MARGIN) -> Cohort:
    (cohort,) = cohorts(devices, margin)
    return cohort


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_the_adjusted_p_are_those_of_scipy(count: int) -> None:
    p_values = np.random.default_rng(count).beta(0.3, 1.0, count)
    assert benjamini_hochberg(p_values.tolist()) == pytest.approx(stats.false_discovery_control(p_values), rel=1e-12)


def test_equal_p_are_adjusted_alike() -> None:
    assert benjamini_hochberg([0.02, 0.02, 0.5]) == pytest.approx(stats.false_discovery_control([0.02, 0.02, 0.5]))


def test_median_and_spread_are_those_of_scipy() -> None:
    logs = np.random.default_rng(5).normal(5.0, 0.02, 11)
    cohort = only(devices_of(logs.tolist()))
    assert cohort.log_median == pytest.approx(np.median(logs))
    assert cohort.sd_log == pytest.approx(stats.median_abs_deviation(logs, scale="normal"), rel=1e-4)


@pytest.mark.parametrize("count", [5, 6, 9, 10, 30, 64])
def test_the_p_of_an_ordinary_device_is_as_often_small_as_it_says(count: int) -> None:
    rng = np.random.default_rng(count)
    noise = rng.standard_normal((400_000 // count, count))
    middle = np.median(noise, axis=1, keepdims=True)
    deviations = (noise - middle) / stats.median_abs_deviation(noise, axis=1, scale="normal")[:, None]
    for level in (0.05, 0.05 / count):
        assert device_p(float(np.quantile(deviations, level)), count) == pytest.approx(level, rel=0.2)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "noise"), [(5, 0.05), (10, 0.05), (10, 0.003), (33, 0.02)])
def test_equal_devices_are_rarely_flagged_and_hardly_ever_named(count: int, noise: float) -> None:
    rng = np.random.default_rng(count)
    sweeps, flagged, named = 600, 0, 0
    for _ in range(sweeps):
        cohort = only(devices_of(rng.normal(0, noise, count).tolist()))
        flagged += bool(cohort.flagged)
        named += any(repeated(rng, one.device, cohort, noise, truth=0.0) for one in cohort.flagged)
    # Within three standard errors of the 5 % that Benjamini and Hochberg allow.
    assert flagged / sweeps < 0.05 + 3 * math.sqrt(0.05 * 0.95 / sweeps)
    assert named / sweeps < 0.02


def repeated(rng: np.random.Generator, flagged: Device, cohort: Cohort, noise: float, truth: float) -> bool:
    """Four blocks of fresh runs of the flagged device and of the reference."""
    standing = next(one for one in cohort.standings if one.device == flagged)
    reference = reference_for(standing, cohort)
    assert reference is not None
    slow, good = rng.normal(truth, noise, 4), rng.normal(0, noise, 4)
    return is_confirmed(confirm(flagged, reference, slow.tolist(), good.tolist(), MARGIN))


@pytest.mark.parametrize(
    ("count", "noise", "slower", "power"),
    [(10, 0.06, 0.5, 0.97), (5, 0.03, 0.5, 0.95), (64, 0.005, 0.05, 0.97)],
    ids=["half speed among 10", "half speed among 5", "5 % among 64"],
)
def test_a_slow_device_is_found_and_named(count: int, noise: float, slower: float, power: float) -> None:
    rng = np.random.default_rng(17)
    sweeps, found = 150, 0
    for _ in range(sweeps):
        logs = rng.normal(0, noise, count)
        logs[3] += math.log1p(-slower)
        cohort = only(devices_of(logs.tolist()))
        guilty = [one.device for one in cohort.flagged if one.device.device == "GPU-3"]
        found += bool(guilty) and repeated(rng, guilty[0], cohort, noise, truth=math.log1p(-slower))
    assert found / sweeps >= power


def test_both_devices_of_a_node_at_half_speed_are_named_among_ten_and_no_other() -> None:
    rng = np.random.default_rng(23)
    sweeps, right, wrong = 100, 0, 0
    for _ in range(sweeps):
        logs = rng.normal(0, 0.06, 10)
        logs[4:6] += math.log(0.5)
        cohort = only(devices_of(logs.tolist()))
        truth = {device.device: math.log(0.5) if device.node == "node-3" else 0.0 for device in devices_of([0.0] * 10)}
        named = [
            one.device
            for one in cohort.flagged
            if repeated(rng, one.device, cohort, 0.06, truth=truth[one.device.device])
        ]
        right += slow_nodes([one.device for one in cohort.standings], named).get("node-3") == 2
        wrong += any(device.node != "node-3" for device in named)
    assert right / sweeps >= 0.95
    assert wrong / sweeps <= 0.05


def test_one_slow_device_of_two_is_not_the_node() -> None:
    devices = devices_of([0.0] * 6)
    assert slow_nodes(devices, devices[2:3]) == {}


def test_a_node_with_one_device_is_not_pointed_out_beside_it() -> None:
    devices = devices_of([0.0] * 6, per_node=1)
    assert slow_nodes(devices, devices[2:3]) == {}


def test_below_the_margin_nobody_is_flagged_however_significant() -> None:
    logs = np.random.default_rng(1).normal(0, 0.0006, 30)
    logs[7] = -0.009
    cohort = only(devices_of(logs.tolist()))
    assert cohort.standings[7].p_adjusted is not None
    assert cohort.standings[7].p_adjusted < 0.001
    assert cohort.flagged == ()


def test_what_a_sweep_can_tell_at_all_is_what_it_flags() -> None:
    logs = np.random.default_rng(4).normal(0, 0.02, 30).tolist()
    logs[0] = min(logs)  # the slowest, moved about below
    least = seen_from(only(devices_of(logs)), MARGIN)
    middle = float(np.median(logs))
    for slower, flagged in ((least * 1.02, 1), (least * 0.98, 0)):
        moved = [middle + math.log1p(-slower), *logs[1:]]
        assert sum(one.device.device == "GPU-0" for one in only(devices_of(moved)).flagged) == flagged


def test_a_fast_device_is_not_flagged() -> None:
    logs = [0.001 * (index % 5) for index in range(12)]
    logs[2] = 0.7
    assert only(devices_of(logs)).flagged == ()


def test_devices_that_all_gave_the_same_number_are_all_good() -> None:
    cohort = only(devices_of([3.25] * 40))
    assert cohort.flagged == ()
    assert all(one.ratio == 1 for one in cohort.standings)
    assert "0.05 %" in say_cohort(cohort)


def test_one_slow_among_equal_numbers_is_flagged_by_a_finite_p() -> None:
    cohort = only(devices_of([3.25] * 20 + [3.0]))
    assert [one.device.device for one in cohort.flagged] == ["GPU-20"]
    assert cohort.flagged[0].p is not None
    assert 0 < cohort.flagged[0].p < 1e-6


@pytest.mark.parametrize("count", range(1, LEAST_DEVICES))
def test_a_handful_too_small_says_why_nobody_can_be_named(count: int) -> None:
    cohort = only(devices_of([0.0] * (count - 1) + [-0.7]))
    assert cohort.flagged == ()
    assert str(LEAST_DEVICES) in cohort.cannot
    assert cohort.standings[-1].p is None


def test_devices_of_two_models_do_not_stand_against_each_other() -> None:
    slow_model = devices_of([-0.7 + 0.001 * index for index in range(6)], stack=("A10", "580.1", "PyTorch 2.11"))
    fast_model = devices_of([0.001 * index for index in range(8)])
    found = cohorts([*slow_model, *fast_model], MARGIN)
    assert [len(cohort.standings) for cohort in found] == [8, 6]
    assert not any(cohort.flagged for cohort in found)


def test_the_reference_stands_near_the_median_on_a_node_that_nobody_suspects() -> None:
    logs = [0.0005, 0.02, -0.7, -0.0001, 0.003, -0.004, 0.03, -0.02, 0.01, -0.01]
    cohort = only(devices_of(logs))
    (flagged,) = cohort.flagged
    # GPU-3 is nearest to the median, and shares the node of the flagged one.
    reference = reference_for(flagged, cohort)
    assert reference is not None
    assert (reference.node, reference.device) == ("node-1", "GPU-0")


def test_on_one_node_the_reference_is_its_neighbour() -> None:
    cohort = only(devices_of([0.0, 0.001, 0.002, 0.003, -0.7, -0.001, 0.0015, 0.0005], per_node=8))
    reference = reference_for(cohort.flagged[0], cohort)
    assert reference is not None
    assert reference.device != "GPU-4"


def test_a_repetition_that_does_not_show_it_confirms_nothing() -> None:
    flagged, reference = devices_of([0.0, 0.0])
    assert not is_confirmed(confirm(flagged, reference, [0.0, 0.01, -0.01, 0.0], [0.0, 0.0, 0.01, 0.0], MARGIN))
    assert confirm(flagged, reference, [], [], MARGIN) is None
    assert not is_confirmed(None)


def test_a_confirmed_one_is_said_with_its_interval() -> None:
    flagged, reference = devices_of([-0.7, 0.0], per_node=1)
    found = confirm(flagged, reference, [-0.7, -0.69, -0.71, -0.7], [0.0, 0.01, 0.0, -0.01], MARGIN)
    assert found is not None
    assert is_confirmed(found)
    assert found.sentence.startswith("node-1 GPU-0")
    assert all(named in found.sentence for named in ("SLOWER", "node-2 GPU-1", "1 %", "49."))
