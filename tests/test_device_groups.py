"""Two kinds of devices under one name, and several runs a device: the rules, on devices whose truth is known."""

import math
import re

import numpy as np
import pytest

from stackmark.verdict.cohorts import find_split, spread_of
from stackmark.verdict.swept import Blocks, Repetition, Visit, judge_devices, lines_of, open_cohorts, suspicions

MARGIN = 0.01
BLOCKS = Blocks(4, 12)


def visit(slot: int, logs: list[float], **facts: str) -> Visit:
    log = float(np.mean(logs))
    return Visit(
        slot, f"node-{slot // 2}", f"GPU-{slot}", math.exp(log), log, ("H200",), logs=tuple(map(float, logs)), facts=facts
    )  # fmt: skip


def swept(
    truth: list[float], noise: float, seed: int, runs: int = 4, facts: dict[str, list[str]] | None = None
) -> list[Visit]:
    rng = np.random.default_rng(seed)
    return [
        visit(
            slot, list(log + noise * rng.standard_normal(runs)), **{key: of[slot] for key, of in (facts or {}).items()}
        )
        for slot, log in enumerate(truth)
    ]


def slower(count: int, of: int, by: float) -> list[float]:
    return [math.log1p(-by) if i < count else 0.0 for i in range(of)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "of", "by"), [(5, 8, 0.10), (3, 6, 0.10), (4, 8, 0.05), (30, 64, 0.03), (450, 1000, 0.1)]
)
def test_a_slow_group_is_found_though_it_may_be_the_majority(count: int, of: int, by: float) -> None:
    noise = 0.01 if of < 20 else 0.005
    found = 0
    for seed in range(20 if of < 100 else 3):
        visits = swept(slower(count, of, by), noise, seed)
        lines, _, _ = lines_of(visits, {}, MARGIN)
        found += [line.visit.slot for line in lines if line.state == "slow group"] == list(range(count))
        assert not any(line.state == "SLOW" for line in lines)
    assert found >= (17 if of < 50 else 14 if of < 100 else 3)


def test_groups_that_differ_in_a_fact_are_populations_and_nobody_is_slow() -> None:
    limits = ["500 W"] * 4 + ["700 W"] * 4
    visits = swept(slower(4, 8, 0.05), 0.01, 1, facts={"power limit": limits})
    lines, judged, _ = lines_of(visits, {}, MARGIN)
    ((stack, split),) = judged.splits
    assert (stack, split.fact) == (("H200",), "power limit")
    assert [(part.label, part.members) for part in split.parts] == [
        ("power limit 700 W", (4, 5, 6, 7)),
        ("power limit 500 W", (0, 1, 2, 3)),
    ]
    assert math.exp(split.log_ratio) == pytest.approx(0.95, abs=0.01)
    assert {line.state for line in lines} == {"measured"}


def test_a_fact_that_changes_nothing_parts_nobody() -> None:
    visits = swept([0.0] * 12, 0.01, 2, facts={"memory": ["80 GiB"] * 6 + ["96 GiB"] * 6})
    assert judge_devices(visits, MARGIN).splits == ()


def test_a_slow_device_within_a_population_is_suspected_there() -> None:
    truth = slower(8, 16, 0.10)
    truth[2] += math.log(0.8)
    visits = swept(truth, 0.003, 3, facts={"power limit": ["500 W"] * 8 + ["700 W"] * 8})
    (suspect,) = suspicions(visits, MARGIN, BLOCKS)
    assert suspect.flagged == 2
    assert suspect.reference in range(8)


def test_two_slow_of_ten_are_suspects_and_no_group() -> None:
    visits = swept(slower(2, 10, 0.2), 0.005, 4)
    assert judge_devices(visits, MARGIN).splits == ()
    assert [one.flagged for one in suspicions(visits, MARGIN, BLOCKS)] == [0, 1]


@pytest.mark.parametrize(("noise", "lottery"), [(0.01, 0.0), (0.003, 0.005), (0.05, 0.0)])
def test_devices_of_one_kind_are_rarely_split(noise: float, lottery: float) -> None:
    rng = np.random.default_rng(5)
    splits = 0
    for _ in range(200):
        logs = lottery * rng.standard_normal(8)
        visits = swept(list(logs), noise, int(rng.integers(1 << 30)))
        splits += bool(judge_devices(visits, MARGIN).splits)
    assert splits <= 6  # 1 % of 200 are 2; 6 are three standard errors more


def test_five_devices_are_not_split() -> None:
    assert find_split([0.0, 0.0, -0.1, -0.1, -0.1], [{}] * 5, MARGIN) is None


def test_the_spread_of_runs_is_pooled_over_devices() -> None:
    spread = spread_of([[0.0, 0.02], [0.1, 0.12], [0.5]])
    assert spread is not None
    assert spread.sd_log == pytest.approx(math.sqrt(2e-4))
    assert spread.df == 2
    assert spread_of([[0.0], [0.1]]) is None


def test_a_second_pass_is_made_where_the_first_leaves_it_open_and_only_there() -> None:
    quiet = swept([0.0] * 8, 0.002, 6, runs=1)
    noisy = swept([0.0] * 8, 0.02, 6, runs=1)
    clear = swept(slower(1, 10, 0.5), 0.002, 6, runs=1)
    grouped = swept(slower(5, 8, 0.1), 0.002, 6, runs=1)
    assert [bool(open_cohorts(visits, MARGIN)) for visits in (quiet, noisy, clear, grouped)] == [
        False,
        True,
        False,
        True,
    ]
    many = swept([0.0] * 100, 0.02, 6, runs=1)
    assert not open_cohorts(many, MARGIN)
    assert open_cohorts(many, MARGIN, most=None)


def test_repeated_runs_show_a_device_that_is_three_percent_slower() -> None:
    """With one run of each it is flagged in some 15 of 100 sweeps."""
    sweeps, flagged, false = 60, 0, 0
    for seed in range(sweeps):
        found = {one.flagged for one in suspicions(swept(slower(1, 8, 0.03), 0.01, seed), MARGIN, BLOCKS)}
        flagged += 0 in found
        false += bool(found - {0})
    assert flagged >= 0.85 * sweeps
    assert false <= 0.15 * sweeps


def test_more_blocks_confirm_where_runs_spread_more_and_never_fewer_than_asked() -> None:
    far = suspicions(swept(slower(1, 8, 0.2), 0.005, 7), MARGIN, BLOCKS)
    near = suspicions(swept(slower(1, 8, 0.03), 0.01, 3), MARGIN, BLOCKS)
    assert [(one.flagged, one.blocks) for one in far] == [(0, 4)]
    assert [one.flagged for one in near] == [0]
    assert near[0].blocks in (6, 8, 10, 12)
    (fixed,) = suspicions(swept(slower(1, 8, 0.03), 0.01, 3), MARGIN, Blocks(6, 6))
    assert fixed.blocks == 6


def test_holm_decides_over_all_suspects() -> None:
    """Each alone would be SLOWER; over seven suspects none of the four-block repetitions is enough."""
    visits = swept(slower(7, 40, 0.05), 0.002, 9)
    suspects = suspicions(visits, MARGIN, Blocks(4, 4))
    assert len(suspects) == 7
    slow, good = (-0.03, -0.06, -0.02, -0.05), (0.0, 0.0, 0.0, 0.0)
    alone = suspects[0]
    lines, _, _ = lines_of(visits, {alone.flagged: Repetition(alone.reference or 0, slow, good)}, MARGIN)
    assert lines[alone.flagged].state == "SLOW"
    again = {one.flagged: Repetition(one.reference or 0, slow, good) for one in suspects}
    lines, _, _ = lines_of(visits, again, MARGIN)
    assert [lines[one.flagged].state for one in suspects] == ["flagged"] * 7


def test_a_slow_device_is_named_with_the_fact_in_which_it_differs() -> None:
    visits = swept(slower(1, 8, 0.3), 0.002, 10, facts={"PCIe lanes": ["4"] + ["16"] * 7})
    (suspect,) = suspicions(visits, MARGIN, BLOCKS)
    again = {0: Repetition(suspect.reference or 0, (-0.35, -0.36, -0.35, -0.36), (0.0, 0.001, 0.0, 0.001))}
    lines, _, _ = lines_of(visits, again, MARGIN)
    assert lines[0].state == "SLOW"
    assert re.findall(r"PCIe lanes (\d+).*\b(\d+)", lines[0].reason) == [("4", "16")]
