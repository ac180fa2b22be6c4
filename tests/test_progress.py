"""The plan, the stopping rule and the ledger's rows put together: what a look shows, and whether it goes on."""

import math
from collections.abc import Sequence

from stackmark.experiments.design import Arm, Design, Done, StoppingRule
from stackmark.experiments.progress import Progress, comparisons, progress
from stackmark.ledger.rows import RunRow
from stackmark.spec import Spec
from stackmark.verdict.sequential import stopping_rule

UNCLEAR = (0.0, 0.02, -0.02, 0.03, 0.01, -0.03, 0.02, 0.0)
CLEAR = (0.001, -0.001, 0.0005, 0.0)


def a_design() -> Design:
    levels = stopping_rule([4, 6, 8])
    rule = StoppingRule(
        kind=levels.kind,
        alpha=levels.alpha,
        looks=list(levels.looks),
        levels=list(levels.one_sided),
        levels_95=list(levels.two_sided),
    )
    arms = [Arm(label=label, place="host", spec=Spec(workload="trick/calm", params={})) for label in ("a", "b")]
    return Design(arms=arms, blocks=8, seed=1, margin=0.01, rule=rule)


def rows_of(differences: Sequence[float]) -> list[RunRow]:
    """A run of each arm for each block, of which b is faster than a by so much of a logarithm."""
    blank = dict.fromkeys(RunRow.model_fields) | {"ranks": 1} | {
        "experiment_id": "x", "position": 0, "workload": "trick/calm", "spec_digest": "", "place": "host",
        "place_options": {}, "status": "done", "machine_id": "m", "boot_id": "b", "driver_pid": 1, "handle": {},
        "flags": [], "stackmark_version": "0", "attempt": 0, "role": "measured",
    }  # fmt: skip
    return [
        RunRow.model_validate(
            {**blank, "id": f"{block}{arm}", "block": block, "arm": arm, "rate_per_s": math.exp(difference * arm),
             "started_unix_s": float(block), "ended_unix_s": float(block)}
        )
        for block, difference in enumerate(differences)
        for arm in (0, 1)
    ]  # fmt: skip


def at(differences: Sequence[float]) -> Progress:
    return progress(a_design(), rows_of(differences))


def test_before_the_first_look_nothing_is_judged() -> None:
    now = at(UNCLEAR[:3])
    assert (now.open, now.look, now.levels) == (True, 0, None)


def test_a_look_that_decides_nothing_goes_on_to_the_next() -> None:
    now = at(UNCLEAR[:4])
    assert (now.open, now.look) == (True, 4)


def test_a_look_that_decides_ends_it() -> None:
    now = at(CLEAR)
    assert (now.next, now.look) == (Done(), 4)
    rule = a_design().rule
    assert rule is not None
    assert now.levels == (rule.levels[0], rule.levels_95[0])
    (pair,) = comparisons(a_design(), rows_of(CLEAR), now.blocks.items(), now.levels)
    assert pair.word == "EQUIVALENT"


def test_an_experiment_stops_by_the_rules_it_was_made_under_and_is_judged_by_those_of_today() -> None:
    # At the level of the first look the narrow interval lies beyond the margin, and the wide one holds 1.
    noisy = (0.0326, 0.0775, 0.1225, 0.1674)
    assert progress(a_design().model_copy(update={"rules": 2}), rows_of(noisy)).open
    now = progress(a_design(), rows_of(noisy))
    assert (a_design().rules, now.next, now.look) == (1, Done(), 4)
    (pair,) = comparisons(a_design(), rows_of(noisy), now.blocks.items(), now.levels)
    assert pair.word == "INCONCLUSIVE"


def test_a_pair_carries_its_bad_runs_and_what_a_block_takes() -> None:
    rows = rows_of((0.0, 0.001, -0.001, -0.2, 0.0005, 0.0, 0.0, 0.001))
    rows = [row.model_copy(update={"ended_unix_s": row.started_unix_s + 0.25 * (1 + row.arm)}) for row in rows]
    (pair,) = comparisons(a_design(), rows, dict.fromkeys(range(8), 0).items(), None)
    assert [(arm.arm, arm.bad, arm.runs) for arm in pair.bad_runs] == [("a", 0, 8), ("b", 1, 8)]
    assert pair.p_bad_runs == 1.0
    # Half a second of runs, and half a second to the next block.
    assert pair.block_s == 1.0


def test_after_the_last_look_it_ends_undecided() -> None:
    now = at(UNCLEAR)
    assert (now.next, now.look) == (Done(), 8)


def test_blocks_between_two_looks_wait_for_the_next() -> None:
    now = at((*UNCLEAR[:4], 9.0))
    assert (now.open, now.look) == (True, 4)
    assert set(now.blocks) == {0, 1, 2, 3, 4}


def test_a_design_that_was_stored_stops_as_the_one_it_came_from() -> None:
    again = Design.model_validate_json(a_design().model_dump_json())
    for count in range(len(UNCLEAR) + 1):
        rows = rows_of(UNCLEAR[:count])
        assert progress(again, rows) == progress(a_design(), rows)
