"""A second process watches a running experiment through the ledger: real drivers, on both databases."""

import json
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from experiment_asking import empty_ledger
from ledger_runs import SPEC, begin
from stackmark.api.watching import follow, progress_of
from stackmark.errors import Exit
from stackmark.events import Phase, Steps
from stackmark.experiments.publishing import Publisher
from stackmark.experiments.watched import ExperimentProgress
from stackmark.ledger import progress
from stackmark.ledger.store import Ledger
from test_claims import answer, driver
from worker_process import eventually

SLOW = ("trick/calm", "--step-s", "0.05", "--warmup-steps", "0", "--runs", "2")


@pytest.fixture(autouse=True)
def _tricks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_ledger(tmp_path, monkeypatch)


def running(book: Ledger) -> ExperimentProgress | None:
    """The experiment, once its first run has told how far it is."""
    if not book.experiments(limit=1):
        return None
    found = progress_of(book)
    return found if found.current else None


def test_a_watcher_sees_the_run_at_hand_and_then_the_end(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as book, driver("run", *SLOW, "--steps", "30", "--ledger", ledger_url) as first:
        eventually(lambda: running(book))
        seen = list(follow("last", book, look_every_s=0.1))
        assert first.wait(timeout=60) == Exit.DONE
    news = [one.current for one in seen if one.current]
    assert seen[0].state == "running"
    assert seen[0].driver_pid == first.pid
    assert {one.of for one in news} == {2}
    assert {one.workload for one in news} == {"trick/calm"}
    end = seen[-1]
    assert (end.state, end.exit_code, end.current) == ("done", Exit.DONE, None)
    assert [row.status for row in end.runs] == ["done", "done"]
    watched = answer("watch", "last", "--json", "--ledger", ledger_url)
    assert watched.code == Exit.DONE
    (line,) = watched.out.splitlines()
    found = json.loads(line)
    assert found["schema"] == "stackmark.progress/1"
    assert (found["state"], found["at_work"], found["exit_code"]) == ("done", False, 0)


def measuring(book: Ledger) -> bool:
    """Whether the steps of a run were told."""
    found = running(book)
    return bool(found and found.current and found.current.phase == "measure" and found.current.steps_done)


def test_a_killed_driver_is_seen_as_such_and_one_that_was_ended_leaves_no_row(tmp_path: Path) -> None:
    ledger_url = str(tmp_path / "own.sqlite3")
    forever = ("--steps", "5000", "--seconds", "250s", "--ledger", ledger_url)
    with Ledger.open(ledger_url) as book:
        with driver("run", *SLOW, *forever) as first:
            eventually(lambda: measuring(book))
            first.kill()
            first.wait()
        lost = progress_of(book)
        assert (lost.state, lost.exit_code) == ("lost", Exit.PLACE_FAILED)
        with driver("run", *SLOW, *forever) as second:
            eventually(lambda: book.experiment("last").id != lost.experiment.id and running(book))
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=60) == Exit.TERMINATED
        ended = progress_of(book)
        assert (ended.state, ended.exit_code) == ("open", Exit.TERMINATED)
        assert progress.read(book, [ended.experiment.id]) == []


def test_a_ledger_that_another_process_holds_delays_no_run(tmp_path: Path) -> None:
    file = tmp_path / "held.sqlite3"
    with Ledger.open(str(file)) as book:
        run_id = begin(book)
        experiment_id = book.run(run_id).experiment_id
        with sqlite3.connect(file, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            publisher = Publisher(book, experiment_id)
            with publisher:
                began_s = time.monotonic()
                publisher.run_begins(run_id, 1, 1, SPEC, label="", block=None)
                publisher.event(Phase(seq=0, t=0.0, phase="measure", state="begin", expected_steps=100))
                publisher.event(Steps(seq=1, t=0.1, phase="measure", first=0, step_s=[0.01] * 10))
                took_s = time.monotonic() - began_s
            assert took_s < 10  # it was not waited for: a driver that waits does so for 15 s
            assert publisher.told is not None
            assert publisher.told.steps_done == 10
            other.execute("ROLLBACK")
