"""The design of an experiment: order, whole blocks, and what comes next whatever happened before."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stackmark.experiments.design import (
    SHUFFLED,
    Arm,
    Assignment,
    Design,
    Done,
    Finished,
    StoppingRule,
    balanced,
    imbalance,
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
        | {"margin": 0.01, "ordering": SHUFFLED}
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


def orders_of(design: Design) -> list[tuple[int, ...]]:
    return [tuple(order_of(design, block)) for block in range(design.blocks)]


@pytest.mark.slow
@given(seed=st.integers(0, 10_000), halves=st.integers(1, 10))
def test_half_of_the_blocks_run_ab_and_half_ba(seed: int, halves: int) -> None:
    assert Counter(orders_of(a_design(blocks=2 * halves, seed=seed))) == {(0, 1): halves, (1, 0): halves}


def test_the_order_is_drawn_and_the_seed_repeats_it() -> None:
    drawn = {tuple(orders_of(a_design(blocks=4, seed=seed))) for seed in range(200)}
    # Of four blocks there are six orders with two of each, AB BA AB BA among them.
    assert len(drawn) == 6
    assert orders_of(a_design(5, 10, seed=3)) == orders_of(a_design(5, 10, seed=3))
    assert orders_of(a_design(5, 10, seed=3)) != orders_of(a_design(5, 10, seed=4))


@given(arms=st.integers(2, 5), seed=st.integers(0, 1000), squares=st.integers(1, 3))
def test_every_arm_stands_at_every_place_and_follows_every_other_equally_often(
    arms: int, seed: int, squares: int
) -> None:
    orders = orders_of(a_design(arms, squares * sequences_of(arms), seed=seed))
    places = Counter((place, arm) for order in orders for place, arm in enumerate(order))
    followed = Counter(pair for order in orders for pair in itertools.pairwise(order))
    assert (len(places), len(set(places.values()))) == (arms**2, 1)
    assert (len(followed), len(set(followed.values()))) == (arms * (arms - 1), 1)


@given(seed=st.integers(0, 1000))
def test_the_order_is_balanced_at_every_look(seed: int) -> None:
    rule = StoppingRule(looks=[4, 6, 10], levels=[0.01, 0.02, 0.03], levels_95=[0.01, 0.02, 0.03])
    design = a_design(blocks=10, seed=seed, rule=rule)
    assert [imbalance(design, range(look)) for look in (4, 6, 10)] == [0, 0, 0]


# As experiments were stored before the order was shuffled: there is no word of an ordering or of rules in it.
STORED = {
    "arms": [
        {"label": name, "place": "host", "spec": {"workload": "train/resnet20", "params": {"batch": 8}}}
        for name in ("host", "container", "pod")
    ],
    "blocks": 6, "seed": 7, "margin": 0.01, "most_repeats": 2, "pause_s": 0.0, "primers": True, "rule": None,
}  # fmt: skip


def test_a_stored_design_goes_on_in_the_order_it_was_made_with() -> None:
    two = Design.model_validate(STORED | {"arms": STORED["arms"][:2]})  # type: ignore[index]
    assert (two.ordering, two.rules) == (1, 1)
    first = order_of(two, 0)
    assert orders_of(two) == [tuple(first), tuple(first[::-1])] * 3
    begun = [Finished(arm=arm, block=0, attempt=0, good=True) for arm in first]
    assert next_run(two, begun) == Assignment(arm=first[1], block=1, attempt=0)
    # Written down from the version that made such designs.
    three = Design.model_validate(STORED)
    assert orders_of(three) == [(0, 1, 2), (0, 2, 1), (1, 2, 0), (2, 1, 0), (2, 0, 1), (1, 0, 2)]
    assert Design.model_validate_json(three.model_dump_json()) == three


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
    with pytest.raises(ValidationError):
        a_design(2, 3)
    assert a_design(2, 4).blocks == 4


def test_the_order_of_a_design_is_the_order_of_its_blocks() -> None:
    design = a_design(3, 6)
    runs = carried_out(design)
    assert [run.arm for run in runs] == [arm for block in range(6) for arm in order_of(design, block)]
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
    order = order_of(design, 0)
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
    assert "block 2" in wanted.short
    assert max(run.attempt for run in runs) == 2
    assert whole(design, runs) == {0: 0}


def test_a_block_torn_apart_by_a_reboot_is_repeated_whole() -> None:
    design = a_design(blocks=2)
    order = order_of(design, 0)
    runs = [
        Finished(arm=order[0], block=0, attempt=0, good=True, series=0),
        Finished(arm=order[1], block=0, attempt=0, good=True, series=1),
    ]
    later = [one.model_copy(update={"series": 1}) for one in carried_out(design, runs)[2:]]
    assert [(run.block, run.attempt) for run in later] == [(1, 0), (1, 0), (0, 1), (0, 1)]


def test_a_look_comes_only_after_whole_blocks_and_the_rest_waits() -> None:
    rule = StoppingRule(looks=[2, 4], levels=[0.01, 0.045], levels_95=[0.01, 0.045])
    design = a_design(blocks=4, rule=rule)
    runs: list[Finished] = []
    while isinstance(wanted := next_run(design, runs, blocks=2), Assignment):
        runs.append(made(wanted))
    assert len(runs) == 4
    assert next_run(design, runs, blocks=4) == Assignment(arm=order_of(design, 2)[0], block=2, attempt=0)


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
    with pytest.raises(ValidationError):
        a_design(blocks=4, rule=StoppingRule(looks=[2], levels=[0.05], levels_95=[0.05]))
    assert a_design(blocks=4, rule=StoppingRule(looks=[4], levels=[0.05], levels_95=[0.05])).rule


def test_an_alternating_design_is_judged_by_whole_squares_only() -> None:
    def old(arms: int, blocks: int) -> Design:
        return a_design(arms, blocks, ordering=1)

    assert balanced(old(2, 6), {0: 0, 1: 1, 2: 0, 4: 0, 5: 0}) == {0: 0, 1: 1, 4: 0, 5: 0}
    assert balanced(old(3, 6), dict.fromkeys(range(5), 0)) == {}
    assert balanced(old(1, 3), {0: 0, 2: 0}) == {0: 0, 2: 0}


@given(arms=st.integers(2, 4), seed=st.integers(0, 200), data=st.data())
def test_a_shuffled_design_is_judged_with_an_imbalance_of_one_at_most(
    arms: int, seed: int, data: st.DataObject
) -> None:
    design = a_design(arms, 2 * sequences_of(arms), seed=seed)
    there = data.draw(st.sets(st.integers(0, design.blocks - 1), min_size=1))
    kept = balanced(design, dict.fromkeys(there, 0))
    assert kept.keys() <= there
    assert kept
    assert imbalance(design, kept) <= 1
    if imbalance(design, there) <= 1:
        assert kept.keys() == there


def test_one_failed_block_of_six_leaves_five_that_count() -> None:
    design = a_design(blocks=6)
    assert len(balanced(design, dict.fromkeys(range(5), 0))) == 5
