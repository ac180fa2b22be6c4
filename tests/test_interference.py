"""Which blocks were disturbed, and what moved with the ratio: against numbers by hand and SciPy."""

import math

import numpy as np
import pytest
from scipy import stats

from stackmark.experiments.design import (
    Arm,
    Assignment,
    Design,
    Done,
    Finished,
    next_run,
    order_of,
    whole,
    whole_attempts,
)
from stackmark.spec import Spec
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.covariates import association
from stackmark.verdict.interference import Disturbed, Load, advise_freeing, allowance_cpus, combined, disturbances
from stackmark.verdict.ratio import compare_blocks


def loads(*values: tuple[float | None, float | None]) -> list[Load]:
    """Blocks of two arms, in order."""
    return [Load(arm, block, 0, pair[arm]) for block, pair in enumerate(values) for arm in (0, 1)]


def blocks_of(found: list[Load], idle: float | None = 0.0) -> list[tuple[int, int]]:
    return [(one.block, one.arm) for one in disturbances(found, idle)]


def test_a_quarter_of_a_cpu_or_two_per_cent_of_the_cores_is_allowed() -> None:
    assert allowance_cpus(2) == 0.25
    assert allowance_cpus(100) == 2.0


def test_a_run_beyond_what_its_arm_usually_meets_is_disturbed() -> None:
    assert blocks_of(loads((0.1, 0.1), (0.1, 0.9), (0.1, 0.1), (0.1, 0.1))) == [(1, 1)]


def test_a_neighbour_that_is_busy_half_of_the_time_is_not_usual() -> None:
    half = loads((0.9, 0.1), (0.1, 0.9), (0.9, 0.1), (0.1, 0.9), (0.9, 0.9), (0.1, 0.1))
    assert blocks_of(half) == [(0, 0), (1, 1), (2, 0), (3, 1), (4, 0), (4, 1)]


def test_an_arm_that_met_the_neighbour_in_all_runs_but_one_is_compared_with_the_other_arm() -> None:
    unlucky = loads((0.9, 0.1), (0.9, 0.1), (0.1, 0.1), (0.9, 0.1), (0.9, 0.1), (0.9, 0.1))
    assert blocks_of(unlucky) == [(0, 0), (1, 0), (3, 0), (4, 0), (5, 0)]


def test_a_load_that_is_always_there_is_usual() -> None:
    assert blocks_of(loads((0.9, 0.9), (0.9, 1.0), (1.0, 0.9), (0.9, 0.9))) == []


def test_an_arm_that_causes_load_itself_is_compared_with_itself() -> None:
    assert blocks_of(loads((0.0, 0.5), (0.0, 0.5), (0.0, 0.5), (0.0, 0.5))) == []


def test_the_idle_machine_is_usual_before_an_arm_has_three_runs() -> None:
    assert blocks_of(loads((0.9, 0.1)), idle=0.05) == [(0, 0)]
    assert blocks_of(loads((0.9, 0.1)), idle=None) == [(0, 0)]
    assert blocks_of([Load(0, 0, 0, 0.9)], idle=None) == []


def test_nobody_is_disturbed_by_what_nobody_measured() -> None:
    assert blocks_of(loads((None, None), (None, 0.9)), idle=0.0) == [(1, 1)]
    assert blocks_of(loads((None, None)), idle=0.0) == []


def test_another_program_on_the_gpu_disturbs_whatever_the_cpus_do() -> None:
    (found,) = disturbances([Load(0, 3, 0, 0.0, 2.0), Load(1, 3, 0, 0.0, 0.0)], 0.0)
    assert (found.block, found.arm) == (3, 0)
    assert "GPU" in found.sentence


def test_a_run_of_a_few_ticks_says_nothing_of_the_others() -> None:
    quick = [Load(arm, 0, 0, 1.9, seconds=0.02) for arm in (0, 1)]
    assert blocks_of(quick) == []


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


# What a design does with disturbed blocks


def a_design(blocks: int = 4, **more: object) -> Design:
    arms = [Arm(label=label, place="host", spec=Spec(workload="train/lenet", params={})) for label in ("a", "b")]
    made = {
        "arms": arms,
        "blocks": blocks,
        "seed": 1,
        "margin": 0.01,
        "ordering": 2,
        "rules": 2,
        "repeats_disturbed": True,
    }
    return Design.model_validate({**made, **more})


def ended(block: int, attempt: int = 0, *, disturbed: bool = False, good: bool = True) -> list[Finished]:
    return [
        Finished(arm=arm, block=block, attempt=attempt, good=good, disturbed=disturbed and arm == 0) for arm in (0, 1)
    ]


def test_a_disturbed_block_is_measured_again_in_its_own_order_when_all_are_there() -> None:
    design = a_design()
    first = [*ended(0), *ended(1, disturbed=True), *ended(2)]
    assert next_run(design, first) == Assignment(arm=order_of(design, 3)[0], block=3, attempt=0)
    again = next_run(design, [*first, *ended(3)])
    assert again == Assignment(arm=order_of(design, 1)[0], block=1, attempt=1)
    done = [*first, *ended(3), *ended(1, 1)]
    assert next_run(design, done) == Done()
    assert whole(design, done) == {0: 0, 1: 1, 2: 0, 3: 0}


def test_half_as_many_blocks_as_planned_are_repeated_and_no_more() -> None:
    design = a_design()
    made = [run for block in range(4) for run in ended(block, disturbed=True)]
    repeats = []
    while isinstance(step := next_run(design, made), Assignment):
        repeats.append(step.block)
        made += ended(step.block, step.attempt, disturbed=True)
    assert repeats == [0, 1]
    assert sum(whole_attempts(design, made).values()) == 6


def test_an_older_design_repeats_nothing_for_it() -> None:
    made = [run for block in range(4) for run in ended(block, disturbed=True)]
    assert next_run(a_design(repeats_disturbed=False), made) == Done()


def test_a_repetition_that_fails_leaves_the_disturbed_block_as_it_was() -> None:
    design = a_design(most_repeats=0)
    made = [*ended(0, disturbed=True), *ended(1), *ended(2), *ended(3), *ended(0, 1, good=False)]
    step = next_run(design, made)
    assert step == Assignment(arm=order_of(design, 0)[0], block=0, attempt=2)
    assert whole(design, made)[0] == 0


# What a verdict says of them


def compared(shift: float, spread: float = 0.001) -> Comparison:
    logs = [spread * (-1) ** block for block in range(6)]
    return compare_blocks("a", "b", [0.0] * 6, [shift + log for log in logs], 0.01)


def test_a_difference_that_only_the_clean_or_only_all_blocks_have_is_not_said() -> None:
    said = combined(compared(0.0), compared(0.05), Disturbed(6, 1, 1))
    assert (said.word, said.difference) == ("INCONCLUSIVE", None)
    assert "2 of 6" in said.sentence.partition(";")[0]
    assert said.sentence.index("FASTER") < said.sentence.index("EQUIVALENT")
    assert combined(compared(0.05), compared(0.0), Disturbed(6, 1, 1)).word == "INCONCLUSIVE"
    assert combined(None, compared(0.05), Disturbed(6, 6, 0)).word == "INCONCLUSIVE"


def test_blocks_that_were_measured_again_are_said_next_to_the_disturbed_ones() -> None:
    """Without it a sentence names 4 blocks and 6 of them."""
    for every in (compared(0.05), compared(0.0)):
        said = combined(None, every, Disturbed(4, 1, 2, again=2)).sentence
        assert said.partition("3 of 4 blocks (2 ")[2]


def test_equivalent_over_all_blocks_stands_where_the_clean_ones_are_too_few_to_decide() -> None:
    for clean in (None, compared(0.0, spread=0.05)):
        said = combined(clean, compared(0.0), Disturbed(6, 4, 0))
        assert (said.word, said.difference, said.ratio) == ("EQUIVALENT", None, compared(0.0).ratio)
        assert "4 of 6" in said.sentence


def test_below_eight_blocks_the_load_s_part_is_called_not_separable() -> None:
    few, enough = (combined(compared(0.0), compared(0.0), Disturbed(blocks, 1, 0)).notes for blocks in (6, 8))
    assert len(few) == len(enough) + 1
    assert "6 blocks" in few[-1]


def test_clean_blocks_that_were_left_out_for_balance_are_counted() -> None:
    said = combined(compared(0.0), compared(0.0), Disturbed(6, 2, 0, unbalanced=1))
    assert "2 of 6" in said.sentence
    assert "1 more" in said.sentence


def test_where_other_programs_disturbed_it_the_first_advice_is_to_end_them() -> None:
    wide = compare_blocks("a", "b", [0.0] * 6, [-0.03, 0.02, 0.04, -0.02, 0.03, -0.04], 0.01)
    for clean, every in ((wide, wide), (None, wide)):
        found = combined(clean, every, Disturbed(blocks=6, left=1, repeated=0)).needed
        assert found is not None
        assert found.advice[0].kind == "free-machine"
        assert found.advice[0].words in found.sentence
    assert wide.needed is not None
    assert "free-machine" not in {one.kind for one in wide.needed.advice}


def test_on_a_busy_machine_the_first_advice_is_to_free_it_and_stands_there_once() -> None:
    wide = compare_blocks("a", "b", [0.0] * 6, [-0.03, 0.02, 0.04, -0.02, 0.03, -0.04], 0.01)
    found = advise_freeing(advise_freeing(wide)).needed
    assert found is not None
    assert [one.kind for one in found.advice].count("free-machine") == 1
    assert found.advice[0].kind == "free-machine"
    assert found.advice[0].words in found.sentence
    decided = compared(0.0)
    assert advise_freeing(decided) == decided


def test_disturbed_blocks_that_are_left_stand_in_the_sentence() -> None:
    said = combined(compared(0.0), compared(0.001), Disturbed(6, 2, 0))
    assert said.word == "EQUIVALENT"
    assert "2 of 6" in said.sentence
    repeated = combined(compared(0.0), compared(0.001), Disturbed(6, 0, 2))
    assert repeated.sentence == compared(0.0).sentence
    assert any(note.startswith("2 ") for note in repeated.notes)
