"""The design of an experiment: order, whole blocks, and what comes next whatever happened before."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stackmark.plan.design import (
    Arm,
    Assignment,
    Design,
    Done,
    Finished,
    StoppingRule,
    in_whole_designs,
    next_run,
    order_of,
    sequences_of,
    whole,
    whole_blocks,
    williams,
)
from stackmark.spec import Spec

SPEC = Spec(workload="train/resnet20", params={"device": "cpu", "batch": 8})


def a_design(arms: int = 2, blocks: int = 4, **more: object) -> Design:
    return Design.model_validate(
        {"arms": [Arm(label=f"arm {n}", place="host", spec=SPEC) for n in range(arms)], "blocks": blocks, "seed": 7}
        | {"margin": 0.01}
        | more
    )


def made(wanted: Assignment, **more: object) -> Finished:
    return Finished.model_validate(
        {"arm": wanted.arm, "block": wanted.block, "attempt": wanted.attempt, "good": True} | more
    )


def carried_out(design: Design, finished: list[Finished] | None = None) -> list[Finished]:
    """All that is left, without a failure."""
    runs = list(finished or [])
    while isinstance(wanted := next_run(design, runs), Assignment):
        runs.append(made(wanted))
    return runs


def test_two_arms_run_abba() -> None:
    runs = carried_out(a_design(blocks=4))
    first, second = runs[0].arm, runs[1].arm
    assert {first, second} == {0, 1}
    assert [run.arm for run in runs] == [first, second, second, first] * 2


def test_the_seed_decides_which_arm_comes_first() -> None:
    assert {tuple(order_of(2, 0, seed)) for seed in range(20)} == {(0, 1), (1, 0)}
    assert order_of(5, 3, 11) == order_of(5, 3, 11)


@pytest.mark.parametrize("arms", [2, 3, 4, 5, 6, 9])
def test_a_williams_order_is_balanced_for_positions_and_for_what_came_before(arms: int) -> None:
    sequences = williams(arms)
    assert len(sequences) == sequences_of(arms)
    assert all(sorted(sequence) == list(range(arms)) for sequence in sequences)
    positions = Counter((place, arm) for sequence in sequences for place, arm in enumerate(sequence))
    assert set(positions.values()) == {len(sequences) // arms}
    followed = Counter(pair for sequence in sequences for pair in itertools.pairwise(sequence))
    assert len(followed) == arms * (arms - 1)
    assert len(set(followed.values())) == 1


@pytest.mark.parametrize(
    ("arms", "asked", "blocks"), [(1, 3, 3), (2, 1, 2), (2, 6, 6), (2, 7, 8), (3, 1, 6), (4, 5, 8)]
)
def test_blocks_are_rounded_up_to_whole_designs(arms: int, asked: int, blocks: int) -> None:
    assert whole_blocks(arms, asked) == blocks
    assert a_design(arms, blocks).blocks == blocks


def test_a_design_that_is_not_whole_is_refused() -> None:
    with pytest.raises(ValidationError, match="multiple of 2"):
        a_design(2, 3)


def test_the_order_of_a_design_is_the_order_of_its_blocks() -> None:
    design = a_design(3, 6)
    runs = carried_out(design)
    assert [run.arm for run in runs] == [arm for block in range(6) for arm in order_of(3, block, design.seed)]
    assert whole(design, runs) == dict.fromkeys(range(6), 0)


@given(cut=st.integers(0, 8), seed=st.integers(0, 50))
def test_killed_after_any_run_it_goes_on_in_the_same_order(cut: int, seed: int) -> None:
    design = a_design(blocks=4, seed=seed)
    assert carried_out(design, carried_out(design)[:cut]) == carried_out(design)


def test_a_run_that_was_cut_off_with_its_driver_is_made_again_and_uses_up_no_repetition() -> None:
    design = a_design(most_repeats=0)
    first = next_run(design, [])
    assert isinstance(first, Assignment)
    killed = made(first, good=False, cut_off=True)
    assert next_run(design, [killed]) == first
    assert next_run(design, carried_out(design, [killed])) == Done()


def test_a_failed_run_fails_its_block_which_is_repeated_whole_at_the_end_in_its_own_order() -> None:
    design = a_design(blocks=4)
    order = order_of(2, 0, design.seed)
    failed = Finished(arm=order[0], block=0, attempt=0, good=False)
    runs = carried_out(design, [failed])
    assert [(run.block, run.attempt) for run in runs] == [
        (0, 0), (1, 0), (1, 0), (2, 0), (2, 0), (3, 0), (3, 0), (0, 1), (0, 1)
    ]  # fmt: skip
    assert [run.arm for run in runs[-2:]] == order
    assert whole(design, runs) == {0: 1, 1: 0, 2: 0, 3: 0}


def test_a_block_that_keeps_failing_ends_the_experiment_short() -> None:
    design = a_design(blocks=2, most_repeats=2)
    runs: list[Finished] = []
    while isinstance(wanted := next_run(design, runs), Assignment):
        runs.append(made(wanted, good=wanted.block != 1))
    assert wanted.short == "block 2 failed, and 2 repetitions of a block were allowed"
    assert max(run.attempt for run in runs) == 2
    assert whole(design, runs) == {0: 0}


def test_a_block_torn_apart_by_a_reboot_is_repeated_whole() -> None:
    design = a_design(blocks=2)
    order = order_of(2, 0, design.seed)
    runs = [
        Finished(arm=order[0], block=0, attempt=0, good=True, sitting=0),
        Finished(arm=order[1], block=0, attempt=0, good=True, sitting=1),
    ]
    later = [one.model_copy(update={"sitting": 1}) for one in carried_out(design, runs)[2:]]
    assert [(run.block, run.attempt) for run in later] == [(1, 0), (1, 0), (0, 1), (0, 1)]


def test_a_look_comes_only_after_whole_blocks_and_the_rest_waits() -> None:
    rule = StoppingRule(looks=[2, 4], levels=[0.01, 0.045], levels_95=[0.01, 0.045])
    design = a_design(blocks=4, rule=rule)
    runs: list[Finished] = []
    while isinstance(wanted := next_run(design, runs, blocks=2), Assignment):
        runs.append(made(wanted))
    assert len(runs) == 4
    assert next_run(design, runs, blocks=4) == Assignment(arm=order_of(2, 2, design.seed)[0], block=2, attempt=0)


@pytest.mark.parametrize(
    "rule",
    [
        {"looks": [], "levels": [], "levels_95": []},
        {"looks": [2, 4], "levels": [0.01], "levels_95": [0.01, 0.02]},
        {"looks": [4, 2], "levels": [0.01, 0.02], "levels_95": [0.01, 0.02]},
    ],
)
def test_a_stopping_rule_that_is_none_is_refused(rule: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        StoppingRule.model_validate(rule)


def test_the_last_look_is_after_the_last_block() -> None:
    with pytest.raises(ValidationError, match="last look"):
        a_design(blocks=4, rule=StoppingRule(looks=[2], levels=[0.05], levels_95=[0.05]))


def test_a_verdict_rests_on_whole_designs_only() -> None:
    assert in_whole_designs(a_design(blocks=6), {0: 0, 1: 1, 2: 0, 4: 0, 5: 0}) == {0: 0, 1: 1, 4: 0, 5: 0}
    assert in_whole_designs(a_design(3, 6), dict.fromkeys(range(5), 0)) == {}
    assert in_whole_designs(a_design(1, 3), {0: 0, 2: 0}) == {0: 0, 2: 0}
