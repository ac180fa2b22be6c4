"""Several comparisons at once, decided by Holm."""

import math

import numpy as np
import pytest

from stackmark.verdict.comparison import Comparison
from stackmark.verdict.family import holm, rejected
from stackmark.verdict.ratio import compare_blocks


def pair(mean: float, sd: float, n: int = 6) -> Comparison:
    x = np.linspace(-1, 1, n)
    return compare_blocks("a", "b", [0.0] * n, list(mean + sd * x / x.std(ddof=1)), 0.01)


def test_holms_own_steps() -> None:
    # By hand: sorted 0.005, 0.011, 0.02, 0.04 against 0.0125, 0.0167, 0.025, 0.05: all four are rejected.
    assert rejected([0.02, 0.005, 0.04, 0.011], 0.05) == [True, True, True, True]
    # 0.03 > 0.05/2 stops it, and 0.04 is not looked at though it is below 0.05.
    assert rejected([0.03, 0.005, 0.04], 0.05) == [False, True, False]
    assert rejected([0.04, None], 0.05) == [False, False]


def test_a_single_comparison_stays_as_it_is() -> None:
    one = pair(0.0, 0.003)
    assert holm([one]) == (one,)
    assert holm([]) == ()


def test_a_word_that_holds_alone_but_not_in_the_family_becomes_inconclusive_and_says_so() -> None:
    weak = pair(0.0, 0.0105, n=6)
    weak_alone = pair(0.0, 0.0102, n=6)
    assert weak_alone.word == "EQUIVALENT"
    assert weak.word in ("EQUIVALENT", "INCONCLUSIVE")
    decided = holm([weak_alone, pair(0.0098, 0.004), pair(-0.0098, 0.004)])[0]
    assert (decided.word, decided.family) == ("INCONCLUSIVE", 3)
    assert decided.interval_90 == weak_alone.interval_90
    assert decided.sentence.startswith("INCONCLUSIVE")
    assert decided.needed is not None
    assert any("EQUIVALENT" in note for note in decided.notes)
    assert len(decided.notes) > len(weak_alone.notes) + 1


def test_strong_words_survive_the_family() -> None:
    decided = holm([pair(0.0, 0.001), pair(-0.05, 0.002), pair(0.05, 0.002)])
    assert [one.word for one in decided] == ["EQUIVALENT", "SLOWER", "FASTER"]
    assert [one.difference for one in decided] == [None, "slower", "faster"]


def test_a_difference_that_holds_alone_only_is_not_named() -> None:
    alone = pair(-0.003, 0.0028)
    assert alone.difference == "slower"
    decided = holm([alone, pair(0.0, 0.002), pair(0.0005, 0.002)])[0]
    assert decided.difference is None
    assert "though" not in decided.sentence


def test_a_comparison_without_an_interval_stands_in_the_family_as_it_is() -> None:
    lone = compare_blocks("a", "b", [0.0], [0.5], 0.01)
    decided = holm([lone, pair(0.0, 0.001)])
    assert (decided[0].word, decided[0].family, decided[1].word) == ("INCONCLUSIVE", 2, "EQUIVALENT")


@pytest.mark.slow
@pytest.mark.parametrize("claim", ["EQUIVALENT", "SLOWER", "difference"])
def test_any_false_claim_at_all_stays_within_five_percent(claim: str) -> None:
    experiments, rng = 400, np.random.default_rng(21)
    truth = 0.0 if claim == "difference" else math.log(0.99)
    false = 0
    for _ in range(experiments):
        arms = 0.002 * rng.standard_normal((5, 6))
        family = holm([compare_blocks("a", "b", list(arms[0]), list(truth + arm), 0.01) for arm in arms[1:]])
        false += any(claim in (one.word, "difference" if one.difference else "") for one in family)
    assert false / experiments <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / experiments)
