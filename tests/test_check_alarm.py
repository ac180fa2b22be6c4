"""From a baseline to an alarm, at the command line: a program of the user's own whose figure the test decides."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from asking import ask
from experiment_asking import empty_ledger
from other_days import on_another_day
from stackmark.ledger import baselines
from stackmark.ledger.store import Ledger


class Machine:
    """A ledger, and programs that print the figures that are written into files."""

    def __init__(self, folder: Path, ledger: Path) -> None:
        self.folder, self.ledger = folder, ledger

    def prints(self, *figures: float, name: str = "rate", text: str = "speed: {}") -> Path:
        """Let the program print one of the figures at each run, in turn."""
        file = self.folder / name
        file.write_text("".join(f"{text.format(figure)}\n" for figure in figures))
        script = self.folder / f"{name}.sh"
        # Its first line is what it prints; the lines go round, so that runs differ a little, as real ones do.
        script.write_text(
            f"head -n 1 {file}; {{ tail -n +2 {file}; head -n 1 {file}; }} > {file}.new; mv {file}.new {file}\n"
        )
        return script

    def save(
        self,
        *figures: float,
        name: str = "rate",
        text: str = "speed: {}",
        metric: str = "speed: ([0-9.]+)",
        **more: str,
    ) -> None:
        script = self.prints(*figures, name=name, text=text)
        typed = [part for option, value in more.items() for part in (f"--{option.replace('_', '-')}", value)]
        done = ask("baseline", "save", "before", "--cmd", f"sh {script}", "--metric", metric, "--runs", "3", *typed)
        assert done.code == 0, done.err

    def check(self, *typed: str) -> tuple[int, list[Any]]:
        answer = ask("check", "before", "--json", *typed)
        return answer.code, json.loads(answer.out)["workloads"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, empty_ledger(tmp_path, monkeypatch))


GOOD = (100.1, 99.9, 100.0)
SLOW = (40.1, 39.9, 40.0)


def test_a_drop_from_100_to_40_is_likely_slower_in_table_json_junit_and_exit_code(
    machine: Machine, tmp_path: Path
) -> None:
    machine.save(*GOOD)
    machine.prints(*SLOW)
    junit = tmp_path / "check.xml"
    answer = ask("check", "before", "--fail-on", "slower", "--junit", str(junit))
    assert answer.code == 8
    lines = answer.out.splitlines()
    (row,) = (line for line in lines if line.startswith("command/own"))
    assert row.endswith("LIKELY SLOWER")
    assert "40.00 speed" in row
    for line in (lines[0], lines[-1]):
        assert line.split()[:7] == ["verdict", "LIKELY", "SLOWER:", "command/own", "(speed)", "−60.0", "%,"]
    # What would prove it is a command that can be typed.
    assert any(line.startswith("to prove it") and "stackmark baseline save before" in line for line in lines)
    root = ElementTree.parse(junit).getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("1", "1", "0")
    (failure,) = root.iter("failure")
    assert failure.get("type") == "LIKELY SLOWER"
    (case,) = root.iter("system-out")
    assert "stackmark baseline save before" in (case.text or "")
    code, (found,) = machine.check("--fail-on", "slower")
    assert code == 8
    verdict = found["verdict"]
    assert (verdict["word"], verdict["likely_slower"], verdict["likely_faster"]) == ("LIKELY SLOWER", True, False)
    assert (verdict["worse"], verdict["better"], verdict["terms"]) == (True, False, "speed")
    assert verdict["ratio"] == pytest.approx(0.4, rel=1e-5)
    assert verdict["needed"]["count"] == 3


def test_junit_alone_has_the_failure_and_the_command_ends_well(machine: Machine, tmp_path: Path) -> None:
    machine.save(*GOOD)
    machine.prints(*SLOW)
    junit = tmp_path / "check.xml"
    assert ask("check", "before", "--junit", str(junit)).code == 0
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    assert ask("check", "before", "--junit", str(junit), "--fail-on", "inconclusive").code == 0
    assert ElementTree.parse(junit).getroot().get("failures") == "0"


def test_a_rise_is_likely_faster_and_fails_nothing(machine: Machine, tmp_path: Path) -> None:
    machine.save(*GOOD)
    machine.prints(*(2 * figure for figure in GOOD))
    junit = tmp_path / "check.xml"
    code, (found,) = machine.check("--fail-on", "slower", "--junit", str(junit))
    assert (code, found["verdict"]["word"], found["verdict"]["better"]) == (0, "LIKELY FASTER", True)
    assert ElementTree.parse(junit).getroot().get("failures") == "0"


def test_one_of_two_workloads_is_named_and_the_other_counted(machine: Machine) -> None:
    machine.save(*GOOD)
    machine.save(*GOOD, name="other")
    machine.prints(*SLOW)
    answer = ask("check", "before", "--fail-on", "slower")
    assert answer.code == 8
    last = answer.out.splitlines()[-1]
    assert last.startswith("verdict     1 of 2 workloads LIKELY SLOWER: command/own")
    assert "rate.sh −60.0 %; 1 INCONCLUSIVE: command/own" in last


def test_checks_of_the_same_hour_are_a_line_of_their_own_and_in_no_number(machine: Machine, tmp_path: Path) -> None:
    """A good check a minute ago does not make the slow one now look better, nor the other way round."""
    machine.save(*GOOD)
    machine.check()
    machine.prints(*SLOW)
    code, (found,) = machine.check("--fail-on", "slower")
    assert (code, found["verdict"]["word"]) == (8, "LIKELY SLOWER")
    assert found["now"]["rate_per_s"] == pytest.approx(40.0, rel=1e-4)
    assert (found["now"]["runs"], found["now"]["series"], found["lately"]) == (3, 1, None)
    same = found["same_series"]
    assert (same["checks"], same["runs"]) == (1, 3)
    assert same["rate_per_s"] == pytest.approx(100.0, rel=1e-4)
    machine.prints(*GOOD)
    answer = ask("check", "before")
    rows = [line for line in answer.out.splitlines() if line.startswith(("command/own", "  earlier"))]
    assert "100.0 speed" in rows[0]
    assert rows[0].endswith("INCONCLUSIVE")
    assert rows[1].endswith("not counted")
    assert "2 checks" in rows[1]


def test_a_machine_that_stays_slow_stays_likely_slower(machine: Machine) -> None:
    """Its own slow nights are no measure of how far nights of an unchanged machine differ."""
    machine.save(*GOOD)
    with Ledger.open(str(machine.ledger)) as book:
        (saved,) = baselines.experiments_of(book, "before")
    on_another_day(machine.ledger, saved, 20)
    machine.prints(*SLOW)
    words = []
    for night in range(8):
        _, (found,) = machine.check()
        words.append(found["verdict"]["word"])
        on_another_day(machine.ledger, found["experiment"], 10 - night)
    assert words == ["LIKELY SLOWER"] * 8


@pytest.mark.parametrize(
    ("text", "metric", "unit", "worse", "better"),
    [
        ("accuracy: {}", "accuracy: ([0-9.]+)", "%", (45.0, 44.9, 45.1), (95.0, 94.9, 95.1)),
        ("energy {} J", "energy ([0-9.]+) J", "J", (95.0, 94.9, 95.1), (45.0, 44.9, 45.1)),
        ("cost: {}", "cost: ([0-9.]+)", "USD", (95.0, 94.9, 95.1), (45.0, 44.9, 45.1)),
    ],
)
def test_a_quality_or_a_cost_is_worse_or_better(
    machine: Machine, tmp_path: Path, text: str, metric: str, unit: str,
    worse: tuple[float, ...], better: tuple[float, ...],
) -> None:  # fmt: skip
    machine.save(70.0, 70.1, 69.9, text=text, metric=metric, unit=unit)
    junit = tmp_path / "check.xml"
    machine.prints(*worse, text=text)
    for named in ("worse", "slower"):
        code, (found,) = machine.check("--fail-on", named, "--junit", str(junit))
        assert (code, found["verdict"]["word"], found["verdict"]["terms"]) == (8, "LIKELY WORSE", "quality")
        assert (found["verdict"]["worse"], found["verdict"]["likely_slower"]) == (True, True)
    (failure,) = ElementTree.parse(junit).getroot().iter("failure")
    assert failure.get("type") == "LIKELY WORSE"
    assert "SLOWER" not in ask("check", "before").out
    machine.prints(*better, text=text)
    code, (found,) = machine.check("--fail-on", "worse")
    assert (code, found["verdict"]["word"], found["verdict"]["better"]) == (0, "LIKELY BETTER", True)


def test_a_series_that_departs_from_the_baseline_is_named_when_it_is_saved(machine: Machine) -> None:
    machine.save(*GOOD)
    with Ledger.open(str(machine.ledger)) as book:
        (first,) = baselines.experiments_of(book, "before")
    on_another_day(machine.ledger, first, 2)
    machine.prints(*SLOW)
    answer = ask("baseline", "save", "before")
    with Ledger.open(str(machine.ledger)) as book:
        last = baselines.experiments_of(book, "before")[-1]
    assert f"stackmark delete {last}" in answer.out
    on_another_day(machine.ledger, last, 1)
    machine.prints(*GOOD)
    assert ask("delete", last, "--yes").code == 0
    assert "stackmark delete" not in ask("baseline", "save", "before").out
