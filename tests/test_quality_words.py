"""Figures that are neither rates nor times: WORSE and BETTER in every kind of comparison, by the same statistics."""

import json
from math import log
from pathlib import Path
from typing import get_args

import pytest

from asking import ask
from experiment_asking import empty_ledger
from stackmark.show.sections import SIGNS
from stackmark.show.verdict import COLOURS
from stackmark.verdict.comparison import Comparison, Word
from stackmark.verdict.family import holm
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.series import compare_series, judge_nights
from stackmark.verdict.unpaired import compare_runs

A = [log(100 + x) for x in (0.0, 0.1, -0.1, 0.05)]
LESS = [log(90 + x) for x in (0.1, 0.0, -0.1, 0.05)]
MORE = [log(110 + x) for x in (0.1, 0.0, -0.1, 0.05)]
SERIES = [[one] for one in A]


def both(comparison: Comparison, speed: Comparison) -> None:
    """The words differ, and nothing else does that is a number."""
    assert (comparison.ratio, comparison.interval_90, comparison.p_outside) == (
        speed.ratio, speed.interval_90, speed.p_outside
    )  # fmt: skip
    assert comparison.is_slower == speed.is_slower
    assert comparison.is_faster == speed.is_faster
    for word in ("SLOWER", "FASTER", "slower", "faster", "fast"):
        assert word not in comparison.sentence


@pytest.mark.parametrize(("other", "word", "difference"), [(LESS, "WORSE", "worse"), (MORE, "BETTER", "better")])
def test_blocks_runs_and_series_say_worse_and_better(other: list[float], word: str, difference: str) -> None:
    pairs = [
        (compare_blocks("a", "b", A, other, 0.01, terms="quality"), compare_blocks("a", "b", A, other, 0.01)),
        (compare_runs("a", "b", A, other, 0.01, terms="quality"), compare_runs("a", "b", A, other, 0.01)),
        (
            compare_series("a", "b", SERIES, [[x] for x in other], 0.01, terms="quality"),
            compare_series("a", "b", SERIES, [[x] for x in other], 0.01),
        ),
    ]
    for quality, speed in pairs:
        assert (quality.word, quality.difference) == (word, difference)
        both(quality, speed)


def test_holm_keeps_the_words_of_the_figure() -> None:
    found = holm([compare_blocks("a", "b", A, other, 0.01, terms="quality") for other in (LESS, MORE)])
    assert [one.word for one in found] == ["WORSE", "BETTER"]


def test_a_likely_word_and_an_alarm_are_said_in_the_terms_of_the_figure() -> None:
    deep = [[one - 1 for one in A]] * 2
    found = judge_nights("before", [A], deep, 0.01, terms="quality")
    assert (found.tonight.word, found.alarm.rings) == ("LIKELY WORSE", True)
    assert "worse" in found.alarm.sentence


def test_every_word_has_a_sign_and_a_colour() -> None:
    assert set(get_args(Word)) == set(SIGNS) == set(COLOURS)


def test_compare_says_worse_and_either_name_fails_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_ledger(tmp_path, monkeypatch)
    typed = ("compare", "--cmd", "echo accuracy: 90", "--metric", "accuracy: ([0-9.]+)", "--unit", "%", "--blocks", "2")
    arms = ("--arm", "host", "--arm", "host,cmd=echo accuracy: 45")
    done = ask(*typed, *arms, "--json", "--fail-on", "worse")
    assert done.code == 8
    (found,) = json.loads(done.out)["comparisons"]
    assert (found["word"], found["difference"], found["terms"], found["worse"]) == ("WORSE", "worse", "quality", True)
    for named, code in (("slower", 8), ("worse", 8), ("different", 8), ("inconclusive", 0)):
        assert ask("verdict", "last", "--fail-on", named).code == code
    assert "SLOWER" not in ask("verdict", "last").out
    report = tmp_path / "report.html"
    assert ask("report", "last", "-o", str(report)).code == 0
    assert "WORSE" in report.read_text()
