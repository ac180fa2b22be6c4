"""A suite on real workers: its order, what fails in it, what is left after a kill, and where it begins again."""

import os
import sqlite3
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import COMMAND
from experiment_asking import empty_ledger
from stackmark.experiments.recorder import SUITE_KEY, Silent
from stackmark.experiments.suite import carry_out as engine
from stackmark.experiments.suite.examine import examine_suite
from stackmark.experiments.suite.forecast import forecast
from stackmark.experiments.suite.plan import SuitePlan, expand, parse
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.verdict.suite import SuiteResult
from worker_process import eventually

COMPARED = """
workloads = ["trick/calm", "trick/values"]
compare = "place"
margin = "20%"
blocks = 2
[axes]
place = ["host", "host,step_s=0.004"]
[options]
steps = 4
warmup_steps = 0
"""
SINGLE = """
workloads = ["trick/calm"]
runs = 2
[axes]
step_s = [0.001, 0.002, 0.003]
[options]
steps = 4
warmup_steps = 0
"""


@pytest.fixture
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_ledger(tmp_path, monkeypatch)


@pytest.fixture
def book(ledger_file: Path) -> Iterator[Ledger]:
    with Ledger.open(str(ledger_file)) as ledger:
        yield ledger


def plan_of(text: str, **changes: object) -> SuitePlan:
    return expand(parse(text.encode(), "study.toml"), "study.toml", "study").model_copy(
        update={"seed": 5, "primers": False, **changes}
    )


def measured(book: Ledger, suite: Experiment) -> list[tuple[Experiment, list[RunDetail]]]:
    return [
        (one, [row for row in book.runs_of(one.id) if row.role == "measured"]) for one in book.experiments_of(suite.id)
    ]


def carried_out(book: Ledger, plan: SuitePlan) -> tuple[Experiment, SuiteResult]:
    suite = engine.start(plan, book, "stackmark suite run study.toml")
    engine.carry_out(suite, book, Silent())
    return suite, examine_suite(book, suite)


def test_each_row_is_a_comparison_of_its_own_and_all_words_are_one_family(book: Ledger) -> None:
    suite, result = carried_out(book, plan_of(COMPARED))
    rows = measured(book, suite)
    assert [one.kind for one, _ in rows] == ["compare", "compare"]
    assert {one.suite_id for one, _ in rows} == {suite.id}
    assert [len(runs) for _, runs in rows] == [4, 4]
    # One row after the other: no run of the first row is later than the first run of the second.
    assert max(run.started_unix_s for run in rows[0][1]) < min(run.started_unix_s for run in rows[1][1])
    assert [one.family for one in result.comparisons] == [2, 2]
    assert [row.state for row in result.rows] == ["done", "done"]
    assert all(cell.throughput and cell.throughput.runs == 2 for cell in result.cells)


def test_rows_without_a_comparison_are_interleaved_round_by_round(book: Ledger) -> None:
    suite, result = carried_out(book, plan_of(SINGLE))
    runs = sorted((run.started_unix_s, one.id) for one, rows in measured(book, suite) for run in rows)
    order = [experiment for _, experiment in runs]
    assert len(order) == 6
    assert len(set(order[:3])) == len(set(order[3:])) == 3
    assert [row.values["step_s"] for row in result.rows] == ["0.001", "0.002", "0.003"]
    rates = [row.cells[0].throughput.rate_per_s for row in result.rows if row.cells[0].throughput]
    assert len(rates) == 3
    assert not result.comparisons
    assert not any(cell.is_reference for cell in result.cells)


def test_the_last_experiment_of_a_suite_is_the_suite_and_lists_leave_its_rows_out(book: Ledger) -> None:
    suite, _ = carried_out(book, plan_of(SINGLE))
    assert book.experiment("last").id == suite.id
    assert [row.experiment.id for row in book.experiments()] == [suite.id]
    assert book.delete_together([], [suite.id]) == 6
    assert book.experiments_of(suite.id) == []


def test_an_arm_that_cannot_start_is_a_failed_cell_and_the_others_are_measured(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    text = COMPARED.replace('"host,step_s=0.004"]', '"host,step_s=0.004", "pod"]')
    suite, result = carried_out(book, plan_of(text))
    for row in result.rows:
        host, slow, pod = row.cells
        assert pod.marks == ("failed",)
        assert "pod" in pod.failure
        assert host.throughput
        assert slow.comparison
        assert row.state == "done"
    # Two arms are left, and two arms are balanced in two blocks.
    assert [len(runs) for _, runs in measured(book, suite)] == [4, 4]


def test_an_arm_that_fails_in_its_first_run_is_left_out_and_the_row_goes_on(book: Ledger) -> None:
    text = COMPARED.replace('"trick/calm", "trick/values"', '"trick/calm", "trick/nan"')
    _, result = carried_out(book, plan_of(text, primers=True))
    calm, nan = result.rows
    assert calm.state == "done"
    assert nan.state == "failed"
    assert all("failed" in cell.marks and cell.failure for cell in nan.cells)
    assert len(result.comparisons) == 1


def test_a_row_of_one_arm_that_fails_is_a_failed_cell(book: Ledger) -> None:
    text = SINGLE.replace('"trick/calm"', '"trick/nan", "trick/calm"')
    _, result = carried_out(book, plan_of(text))
    states = Counter((row.workload, row.state) for row in result.rows)
    assert states == {("trick/nan", "failed"): 3, ("trick/calm", "done"): 3}
    assert all(row.cells[0].failure_kind for row in result.rows if row.state == "failed")


def test_a_budget_that_is_spent_begins_no_other_block_and_the_rest_can_be_resumed(book: Ledger) -> None:
    suite = engine.start(plan_of(COMPARED, budget_s=0.001), book, "")
    assert "budget" in engine.carry_out(suite, book, Silent())
    assert {row.state for row in examine_suite(book, suite).rows} <= {"waiting", "open"}
    whole = suite.model_copy(update={"design": {**(suite.design or {}), "budget_s": None}})
    assert engine.carry_out(whole, book, Silent()) == ""
    assert {row.state for row in examine_suite(book, suite).rows} == {"done"}


def driver(ledger_file: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*COMMAND, *arguments, "--ledger", str(ledger_file)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=os.environ,
    )  # fmt: skip


def killed_after(ledger_file: Path, runs: int, *arguments: str) -> None:
    """Starts a command, and kills it with -9 while a run is on its way, after this many are done in all."""
    process = driver(ledger_file, *arguments)

    def is_running() -> bool:
        if not ledger_file.exists():
            return False
        with sqlite3.connect(ledger_file) as connection:
            try:
                states = Counter(status for (status,) in connection.execute("SELECT status FROM runs"))
            except sqlite3.OperationalError:
                return False
        return states["done"] >= runs and states["running"] == 1

    eventually(is_running, within_s=60)
    process.kill()
    process.wait()


def test_killed_twice_it_is_resumed_and_every_run_is_in_it_once(tmp_path: Path, ledger_file: Path) -> None:
    study = tmp_path / "study.toml"
    text = COMPARED.replace('["trick/calm", "trick/values"]', '["trick/calm"]').replace("steps = 4", "steps = 30")
    study.write_text(text.replace("[axes]", "[axes]\nseed = [1, 2, 3]"))
    killed_after(ledger_file, 4, "suite", "run", str(study))
    killed_after(ledger_file, 9, "resume", "last")
    assert driver(ledger_file, "resume", "last").wait(timeout=120) == 0
    with Ledger.open(str(ledger_file)) as book:
        suite = book.experiment("last")
        result = examine_suite(book, suite)
        rows = measured(book, suite)
    assert [row.state for row in result.rows] == ["done"] * 3
    assert len(rows) == 3
    for _, runs in rows:
        good = Counter((run.arm, run.block) for run in runs if run.status == "done")
        assert good == dict.fromkeys([(arm, block) for arm in (0, 1) for block in (0, 1)], 1)
    assert sum(run.failure_kind == "lost" for _, runs in rows for run in runs) <= 2


def test_on_another_machine_a_whole_row_stays_and_an_open_one_begins_again(book: Ledger, ledger_file: Path) -> None:
    suite, _ = carried_out(book, plan_of(COMPARED))
    first, second = (one.id for one, _ in measured(book, suite))
    with sqlite3.connect(ledger_file) as connection:
        connection.execute("UPDATE runs SET machine_id = 'another'")
        connection.execute("DELETE FROM runs WHERE experiment_id = ? AND block = 1", (second,))
    engine.carry_out(suite, book, Silent())
    rows = measured(book, suite)
    assert [one.id for one, _ in rows][:2] == [first, second]
    assert len(rows) == 3
    assert rows[2][0].request[SUITE_KEY] == {"row": 1, "left_out": {}}
    result = examine_suite(book, suite)
    assert [row.experiment_id for row in result.rows] == [first, rows[2][0].id]
    assert [row.state for row in result.rows] == ["done", "done"]
    assert len(rows[2][1]) == 4


def test_failed_cells_are_tried_again_only_when_asked(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere/config")
    suite, _ = carried_out(book, plan_of(COMPARED.replace('"host,step_s=0.004"]', '"host,step_s=0.004", "pod"]')))
    made = len(book.experiments_of(suite.id))
    engine.carry_out(suite, book, Silent())
    assert len(book.experiments_of(suite.id)) == made
    engine.carry_out(suite, book, Silent(), failed=True)
    assert len(book.experiments_of(suite.id)) == 2 * made


def test_two_drivers_do_not_carry_out_one_suite(book: Ledger, ledger_file: Path, tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(SINGLE.replace("steps = 4", "steps = 3000"))
    process = driver(ledger_file, "suite", "run", str(study))
    try:
        eventually(lambda: book.runs(limit=1), within_s=60)
        assert driver(ledger_file, "resume", "last").wait(timeout=60) == 5
    finally:
        process.kill()
        process.wait()


def test_the_time_is_forecast_from_runs_before_and_a_guess_without(book: Ledger) -> None:
    plan = plan_of(COMPARED)
    before = forecast(plan, book)
    assert (before.cells, before.runs, before.measured_before, before.unknown) == (4, 8, 0, 4)
    seconds = plan_of(COMPARED.replace("steps = 4", "seconds = 1"))
    guessed = forecast(seconds, book)
    assert (guessed.measured_before, guessed.unknown) == (0, 0)
    assert guessed.seconds > 8
    began = time.monotonic()
    carried_out(book, plan)
    known = forecast(plan, book)
    assert (known.measured_before, known.unknown) == (4, 0)
    assert known.seconds < 40 * (time.monotonic() - began)
