"""An experiment by its id: shown again, its runs listed, deleted; an interrupted `run` goes on."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, ask, environment
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


# The second run waits until somebody ends it, and what was ended once waits no more.
WAITS = """sh -c 'if [ -e first ] && [ ! -e second ]; then touch second; sleep 60; fi; touch first; echo rate: 12.5'"""


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_interrupted_run_shows_what_it_has_and_is_resumed(
    ledger_file: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    words = ("run", "--cmd", WAITS, *METRIC, "--runs", "3", *options)
    env = {**environment(ledger_file), "XDG_STATE_HOME": str(tmp_path / "state")}
    with subprocess.Popen(
        [*COMMAND, *words], env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "second").exists():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED, err
    (experiment,) = experiments(ledger_file)
    assert (out + err).decode().count(f"stackmark resume {experiment[:12]}") == 1
    if options:
        shown = json.loads(out)["results"][0]
        assert (shown["runs_asked"], [row["status"] for row in shown["runs"]]) == (3, ["done"])
    else:
        assert b"1 of 3" in out
    listed = json.loads(ask("experiments", "--json").out)["experiments"][0]
    assert (listed["state"], listed["runs_asked"], listed["runs"]) == ("open", 3, {"done": 1, "failed": 1})
    assert json.loads(ask("verdict", experiment, "--json").out)["state"] == "open"

    resumed = ask("resume", experiment, "--json")
    assert resumed.code == Exit.DONE, resumed
    whole = json.loads(resumed.out)["results"][0]
    assert [row["status"] for row in whole["runs"]] == ["done"] * 3
    assert whole["throughput"]["runs"] == 3
    assert json.loads(ask("experiments", "--json").out)["experiments"][0]["state"] == "done"
    assert json.loads(ask("verdict", experiment, "--json").out)["state"] == "done"
    again = ask("resume", experiment, "--json")
    assert json.loads(again.out)["results"][0]["runs"] == whole["runs"]


def test_after_a_first_run_that_failed_nothing_is_missing_and_not_all_was_made(ledger_file: Path) -> None:
    assert ask("run", "--cmd", "false", "--runs", "3").code == Exit.RUN_FAILED
    one = json.loads(ask("experiments", "--json").out)["experiments"][0]
    assert (one["state"], one["runs_asked"], one["runs"]) == ("failed", 3, {"failed": 1})
    assert json.loads(ask("verdict", one["id"], "--json").out)["state"] == "short"
    assert ask("resume", one["id"]).code == Exit.RUN_FAILED
    assert len(json.loads(ask("results", "--json").out)["runs"]) == 1


def test_a_run_of_another_machine_is_resumed_only_anyway(ledger_file: Path) -> None:
    found = measured("--runs", "2")
    with Ledger.open(str(ledger_file)) as book:
        book.delete([found["runs"][1]["id"]])
        book.writing(lambda connection: connection.exec_driver_sql("UPDATE runs SET machine_id = 'other'"))
    assert ask("resume", found["experiment"]).code == Exit.WRONG_USE
    assert ask("resume", found["experiment"], "--anyway").code == Exit.DONE
    assert len(json.loads(ask("results", "--json").out)["runs"]) == 2


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
