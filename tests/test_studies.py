"""docs/studies.md: its commands import the original logs in tests/data, and print what the page shows."""

import json
import re
import shlex
from pathlib import Path

import pytest

from asking import ask
from stackmark.experiments.suite.plan import named_suites

ROOT = Path(__file__).parents[1]
LOGS = ROOT / "tests" / "data" / "logs"
PAGE = (ROOT / "docs" / "studies.md").read_text()
# A command, and below it what it prints.
SHOWN = dict(re.findall(r"^```\n\$ stackmark ((?:import|mlperf) .+)\n((?:.+\n)+)```$", PAGE, re.MULTILINE))


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(LOGS)
    return str(tmp_path / "ledger.sqlite3")


def test_the_page_shows_each_study_that_has_logs() -> None:
    assert len(SHOWN) == 5


@pytest.mark.parametrize("command", SHOWN, ids=lambda command: command.split()[1])
def test_a_command_of_the_page_prints_what_the_page_shows(
    command: str, ledger: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STACKMARK_LEDGER", ledger)
    answer = ask(*shlex.split(command))
    assert answer.code == 0, answer.err
    printed = [set(line.split()) for line in (answer.out + answer.err).splitlines()]
    # The page leaves columns out, so a line of it is a part of a line that was printed.
    for line in SHOWN[command].splitlines():
        assert any(set(line.split()) <= words for words in printed), line


ORIGINAL = {
    "t4_": [124.77, 125.76, 242.60, 241.52, 126.95, 125.07, 240.64, 236.72],
    "v100_report": [2.24, 325.03],
    "reference_app": [163.51, 10.18, 67.94],
    "p4x4": [433.8],
}


@pytest.mark.parametrize("log", ORIGINAL)
def test_the_imported_runs_have_the_figures_that_the_originals_printed(log: str, ledger: str) -> None:
    (command,) = (one for one in SHOWN if log in one)
    assert ask(*shlex.split(command), "--ledger", ledger, "--json").code == 0
    runs = json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"]
    assert sorted(run["rate_per_s"] for run in runs) == pytest.approx(sorted(ORIGINAL[log]))


def test_every_study_that_ships_has_a_section_with_its_command() -> None:
    studies = {name for name in named_suites() if name.startswith("study-")}
    assert set(re.findall(r"^    stackmark suite run (study-\S+)$", PAGE, re.MULTILINE)) == studies
