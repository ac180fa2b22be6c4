"""JUnit XML of a verdict: a case for each pair of arms, read by a parser."""

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from asking import ask
from examined_sample import hostile, nothing_measured, one_arm, slower_examined, three_arms, with_failed_run
from experiment_asking import ledger_of_a_command
from stackmark.api.verdicts import Verdict
from stackmark.errors import Exit
from stackmark.verdict.examined import Examined

FIGURES = ("compare", "--cmd", "echo rate: 10", "--metric", "rate: ([0-9.]+)", "--blocks", "2", "--no-primers")
SLOWER = (*FIGURES, "--arm", "host", "--arm", "host,cmd=echo rate: 5")


@pytest.fixture(autouse=True)
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from ledger_of_a_command(tmp_path, monkeypatch)


def outcomes(text: str) -> list[tuple[str | None, str, str | None]]:
    """Of each case its name, what became of it, and its word."""
    root = ElementTree.fromstring(text)
    found = []
    for case in root.iter("testcase"):
        first = case[0]
        found.append((case.get("name"), "passed" if first.tag == "system-out" else first.tag, first.get("type")))
    assert int(root.get("tests", "")) == len(found)
    return found


def test_a_slower_arm_is_a_failure_without_fail_on_too() -> None:
    (case,) = outcomes(Verdict(slower_examined()).junit())
    assert case[1:] == ("failure", "SLOWER")


def test_only_words_that_fail_on_names_are_failures() -> None:
    verdict = Verdict(slower_examined())
    assert [case[1] for case in outcomes(verdict.junit(["inconclusive"]))] == ["passed"]
    assert [case[1] for case in outcomes(verdict.junit(["different"]))] == ["failure"]


def test_each_pair_of_three_arms_is_a_case() -> None:
    examined = three_arms()
    cases = outcomes(Verdict(examined).junit())
    assert [name for name, _, _ in cases] == [f"{one.b} against {one.a}" for one in examined.comparisons]


@pytest.mark.parametrize("examined", [nothing_measured(), with_failed_run(comparisons=())])
def test_a_pair_without_a_verdict_is_an_error(examined: Examined) -> None:
    cases = outcomes(Verdict(examined).junit())
    assert cases
    assert {case[1] for case in cases} == {"error"}


def test_an_experiment_that_ended_early_is_an_error_next_to_its_verdict() -> None:
    cases = outcomes(Verdict(slower_examined()).junit(trouble="the disk is full"))
    assert [case[1] for case in cases] == ["failure", "error"]


def test_text_from_outside_is_escaped() -> None:
    assert outcomes(Verdict(hostile()).junit())


def test_one_arm_has_no_case() -> None:
    assert outcomes(Verdict(one_arm()).junit()) == []


def test_compare_and_verdict_write_the_same_file(tmp_path: Path) -> None:
    first, again = tmp_path / "compare.xml", tmp_path / "verdict.xml"
    assert ask(*SLOWER, "--junit", str(first)).code == Exit.DONE
    assert [case[1:] for case in outcomes(first.read_text())] == [("failure", "SLOWER")]
    assert ask("verdict", "last", "--junit", str(again), "--fail-on", "slower").code == Exit.VERDICT_NAMED
    assert again.read_text() == first.read_text()


def test_arms_that_fail_are_errors_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "compare.xml"
    answer = ask(*FIGURES, "--arm", "host", "--arm", "host,cmd=false", "--repeats", "0", "--junit", str(file))
    assert answer.code == Exit.RUN_FAILED
    assert "error" in [case[1] for case in outcomes(file.read_text())]


@pytest.mark.parametrize("file", ["-", "none/compare.xml"])
def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(file: str, ledger_file: Path) -> None:
    assert ask(*SLOWER, "--junit", file).code == Exit.WRONG_USE
    assert not ledger_file.exists()


def test_a_verdict_of_one_arm_has_no_file(tmp_path: Path) -> None:
    assert ask("run", "--cmd", "true", "--runs", "1").code == Exit.DONE
    assert ask("verdict", "last", "--junit", str(tmp_path / "v.xml")).code == Exit.WRONG_USE
