"""An experiment by its id: shown again, its runs listed, deleted; an interrupted `run` goes on."""

import json
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from recorded import load
from stackmark.errors import Exit
from stackmark.ledger.store import Ledger

METRIC = ("--metric", "rate: ([0-9.]+)")
OWN = ("run", "--cmd", "echo rate: 12.5", *METRIC)


@pytest.fixture
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    return tmp_path / "ledger.sqlite3"


def measured(*options: str) -> dict[str, Any]:
    answer = ask(*OWN, "--json", *options)
    assert answer.code == Exit.DONE, answer
    found: dict[str, Any] = json.loads(answer.out)["results"][0]
    return found


def experiments(ledger_file: Path) -> list[str]:
    with Ledger.open(str(ledger_file)) as book:
        return [row.experiment.id for row in book.experiments()]


def test_what_run_printed_is_printed_again(ledger_file: Path) -> None:
    first = ask(*OWN, "--runs", "2")
    (experiment,) = experiments(ledger_file)
    again = ask("show", experiment)
    assert (first.code, again.code) == (Exit.DONE, Exit.DONE)
    assert again.out == first.out


def test_the_verdict_of_a_comparison_is_printed_again(ledger_file: Path) -> None:
    with Ledger.open(str(ledger_file)) as book:
        experiment = load(book, "h200_host_container")
    assert ask("show", experiment).out == ask("verdict", experiment).out


def test_runs_of_several_specs_are_listed_and_not_averaged(ledger_file: Path) -> None:
    first = measured("--runs", "1")["runs"][0]
    other = ask("run", "--cmd", "echo rate: 13", *METRIC, "--runs", "1", "--json")
    second = json.loads(other.out)["results"][0]["runs"][0]
    with Ledger.open(str(ledger_file)) as book:
        book.writing(
            lambda connection: connection.exec_driver_sql(
                "UPDATE runs SET experiment_id = ? WHERE id = ?", (first["experiment_id"], second["id"])
            )
        )
    shown = ask("show", first["experiment_id"])
    assert shown.code == Exit.DONE
    assert first["id"] in shown.out
    assert second["id"] in shown.out


def test_the_runs_of_one_experiment_are_listed(ledger_file: Path) -> None:
    first, second = measured("--runs", "2")["experiment"], measured("--runs", "1")["experiment"]
    for named, wanted, runs in ((first, first, 2), ("last", second, 1)):
        listed = json.loads(ask("results", "--experiment", named, "--json").out)["runs"]
        assert [row["experiment_id"] for row in listed] == [wanted] * runs
    assert second in ask("results").out


def test_an_experiment_is_deleted_with_its_runs(ledger_file: Path) -> None:
    first, second = measured("--runs", "2"), measured("--runs", "1")
    unasked = ask("delete", first["experiment"])
    assert unasked.code == Exit.WRONG_USE
    assert len(experiments(ledger_file)) == 2
    assert ask("delete", first["experiment"], "--yes").code == Exit.DONE
    assert experiments(ledger_file) == [second["experiment"]]
    assert ask("show", first["runs"][0]["id"]).code == Exit.WRONG_USE
