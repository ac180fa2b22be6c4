"""What a suite shows, as data: the words of a family by Holm, the cells of an experiment, the sentence over the whole."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest
from scipy.stats import t as student

import examined_sample as sample
import suite_sample
from naming import missing
from stackmark.remarks import Remark
from stackmark.verdict.cautions import INTERFERENCE, RunEvidence, find_unusable
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.suite import SuiteResult, cells_of, decide_together, summary

ALPHA = 0.05


def drawn(count: int, seed: int, spread: float = 0.006) -> list[Comparison]:
    """Comparisons of six blocks each, of which some differ truly and many are near the margin."""
    dice = random.Random(seed)
    found = []
    for _ in range(count):
        shift = dice.choice((0.0, 0.0, -0.009, 0.012, -0.02, 0.03))
        logs = [shift + dice.gauss(0, spread) for _ in range(6)]
        found.append(compare_blocks("host", "pod", [5.0] * 6, [5.0 + one for one in logs], 0.01))
    return found


def adjusted(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p: the largest of (k − i) times the sorted p up to each. The code under test steps down instead."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    found, highest = [0.0] * len(p_values), 0.0
    for step, index in enumerate(order):
        highest = max(highest, (len(p_values) - step) * p_values[index])
        found[index] = min(1.0, highest)
    return found


def known(values: Sequence[float | None]) -> list[float]:
    assert all(value is not None for value in values)
    return [value for value in values if value is not None]


@pytest.mark.parametrize("seed", range(12))
def test_the_words_of_a_family_are_those_of_holms_adjusted_p(seed: int) -> None:
    alone = drawn(12, seed)
    together = decide_together(alone)
    same = adjusted(known([one.p_equivalence for one in alone]))
    outside = adjusted(known([one.p_outside for one in alone]))
    for before, after, p_same, p_outside in zip(alone, together, same, outside, strict=True):
        expected = "INCONCLUSIVE"
        if p_same <= ALPHA:
            expected = "EQUIVALENT"
        elif p_outside <= ALPHA:
            expected = "SLOWER" if before.ratio < 1 else "FASTER"
        assert after.word == (expected if before.word != "INCONCLUSIVE" else "INCONCLUSIVE")
        assert (after.ratio, after.interval_95, after.family) == (before.ratio, before.interval_95, 12)


def test_a_family_takes_words_back_and_never_gives_one() -> None:
    taken = 0
    for seed in range(40):
        alone = drawn(12, seed)
        for before, after in zip(alone, decide_together(alone), strict=True):
            assert after.word in (before.word, "INCONCLUSIVE")
            taken += after.word != before.word
    assert taken > 10, "else this test would pass without Holm"


def test_a_word_that_a_family_takes_back_is_told_once() -> None:
    blocks = ([4.6, 5.0, 4.68, 4.92, 4.84, 4.76], [5.0, 4.8] * 3, [4.8, 5.0] * 3)
    alone = [compare_blocks("host", "pod", [5.0] * 6, rates, 0.01) for rates in blocks]
    assert [one.word for one in alone] == ["SLOWER", "INCONCLUSIVE", "INCONCLUSIVE"]
    decided = decide_together(alone)[0]
    assert (decided.word, decided.difference) == ("INCONCLUSIVE", None)
    assert [note for note in decided.notes if note.startswith("alone")] == ["alone it would be SLOWER"]


def test_what_disturbed_blocks_made_inconclusive_stays_so_whatever_its_p() -> None:
    clear = compare_blocks("host", "pod", [5.0] * 6, [4.9, 4.901, 4.899, 4.9, 4.902, 4.898], 0.01)
    assert clear.word == "SLOWER"
    doubted = replace(clear, word="INCONCLUSIVE", caveats=("clean blocks say something else",))
    decided = decide_together([doubted, clear])
    assert [one.word for one in decided] == ["INCONCLUSIVE", "SLOWER"]
    assert [one.family for one in decided] == [2, 2]


def test_a_single_comparison_is_a_family_of_its_own() -> None:
    alone = drawn(1, 3)
    assert decide_together(alone) == alone


# The cells of an experiment


def test_the_rate_of_a_recorded_cell_is_the_mean_of_the_logarithms_of_its_runs(tmp_path: Path) -> None:
    (examined,) = suite_sample.recorded(tmp_path, ["h200_host_container_pod"])
    cells = cells_of(examined, suite_sample.PLACES, "host")
    assert [(cell.arm, cell.is_reference, cell.marks) for cell in cells] == [
        ("host", True, ()), ("container", False, ()), ("pod", False, ()),
    ]  # fmt: skip
    for index, cell in enumerate(cells):
        rates = [run.rate_per_s for run in examined.runs if run.arm == index and run.counted and run.rate_per_s]
        logs = [math.log(rate) for rate in rates]
        reach = float(student.ppf(0.975, len(logs) - 1)) * stdev(logs) / math.sqrt(len(logs))
        assert cell.throughput is not None
        assert cell.throughput.rate_per_s == pytest.approx(math.exp(mean(logs)))
        assert cell.throughput.low_per_s == pytest.approx(math.exp(mean(logs) - reach))
        assert cell.throughput.high_per_s == pytest.approx(math.exp(mean(logs) + reach))


def test_each_cell_is_compared_with_the_reference_over_the_blocks_that_both_have(tmp_path: Path) -> None:
    (examined,) = suite_sample.recorded(tmp_path, ["h200_images"])
    reference, *others = cells_of(examined, suite_sample.PLACES, "host")
    assert reference.comparison is None
    rates = {(run.arm, run.block): run.rate_per_s for run in examined.runs if run.counted and run.rate_per_s}
    blocks = sorted({block for _, block in rates if block is not None})
    for arm, cell in enumerate(others, 1):
        ratios = [math.log(rates[arm, block] / rates[0, block]) for block in blocks]
        assert cell.comparison is not None
        assert cell.comparison.ratio == pytest.approx(math.exp(mean(ratios)))


def test_a_cell_that_other_programs_disturbed_or_that_has_one_run_is_marked() -> None:
    busy = replace(sample.one_arm(runs=1), warnings=(Remark("other programs kept a core busy", INTERFERENCE),))
    (cell,) = cells_of(busy, ["host"], "")
    assert cell.marks == ("disturbed", "one-run")
    assert cell.comparison is None


def test_a_cell_whose_runs_differ_by_a_factor_is_marked_as_not_usable() -> None:
    examined = sample.one_arm()
    why = find_unusable([RunEvidence(10.0), RunEvidence(25.0)])
    (cell,) = cells_of(replace(examined, arms=(replace(examined.arms[0], unusable=why),)), ["host"], "")
    assert cell.marks == ("unusable",)


def test_a_cell_without_a_number_has_the_reason_of_its_last_run() -> None:
    examined = sample.nothing_measured()
    cells = cells_of(examined, [arm.label for arm in examined.arms], examined.arms[0].label)
    bad = [run for run in examined.runs if run.status in ("failed", "invalid")]
    assert bad
    for cell, arm in zip(cells, examined.arms, strict=True):
        assert cell.throughput is None
        assert cell.comparison is None
        mine = [run for run in bad if run.arm == arm.index]
        if mine:
            assert cell.marks == ("failed",)
            assert cell.failure_kind == mine[-1].failure_kind
            assert cell.failure == mine[-1].failure_message


# The sentence


def test_the_sentence_counts_the_words_and_names_what_differs() -> None:
    result = suite_sample.twelve()
    words = [one.word for one in result.comparisons]
    said = summary(result)
    assert (
        missing(said, f"{words.count('EQUIVALENT')} of {len(words)}", "1 %", "vgg16 bf16 in pod", "−3.1 %", "+3.4 %")
        == []
    )
    assert said.index("slower") < said.index("faster") < said.index("inconclusive")


def test_the_sentence_names_a_single_comparison() -> None:
    assert missing(summary(suite_sample.two()), "resnet50 in container", "1 %") == []


def test_the_sentence_names_a_few_cells_and_counts_the_others() -> None:
    said = summary(suite_sample.forty())
    slower = sum(one.is_slower for one in suite_sample.forty().comparisons)
    assert missing(said, f"{slower} slower", f"{slower - 3} more") == []


def test_the_sentence_says_what_failed_and_what_is_not_finished(tmp_path: Path) -> None:
    result = suite_sample.recorded_suite(tmp_path)
    assert missing(summary(result), "all 4", "2 failed", "vgg16 stackmark in pod", "6 of 15") == []
    assert result.is_open
    assert not suite_sample.twelve().is_open


def test_a_suite_that_compares_nothing_says_how_many_cells_have_a_number() -> None:
    assert missing(summary(suite_sample.uncompared()), "5 of 6", "batch 1024 fp32") == []


def test_rows_are_named_by_the_axes_that_have_several_values() -> None:
    result = suite_sample.twelve()
    assert result.row_axes == ("workload", "precision")
    assert result.row_name(result.rows[0]) == "resnet50, bf16"
    assert result.name_by(result.rows[0], ["precision"]) == "bf16"
    assert suite_sample.two().row_axes == ("workload",)
    loose = suite_sample.chips()
    assert loose.row_name(loose.rows[0]) == "fit/ssd", "families differ"


def test_an_arm_that_is_a_number_is_named_with_its_axis() -> None:
    result = suite_sample.made(["train/resnet50"], {"1": 1.0, "2": 1.9}, compared="ranks")
    assert [result.arm_name(arm) for arm in result.arms] == ["ranks 1", "ranks 2"]
    assert missing(summary(result), "resnet50 ranks 2") == []


def test_a_large_change_is_said_as_a_factor() -> None:
    result = suite_sample.chips()
    ratio = suite_sample.comparison_of(result, 0, 1).ratio
    assert f"×{ratio:.3g}" in summary(result)


def test_the_sentence_names_cells_whose_reference_is_missing() -> None:
    result = suite_sample.two()
    row = result.rows[0]
    _, container = row.cells
    excluded = replace(result, rows=(replace(row, cells=(replace(container, comparison=None),)),))
    assert missing(summary(excluded), "one without host", "resnet50 in container") == []


def test_nothing_measured_has_a_sentence_too() -> None:
    result: SuiteResult = suite_sample.two()
    empty = replace(result, rows=(replace(result.rows[0], cells=(), state="done"),))
    assert summary(empty)
