"""The ledger keeps what was run: every test here runs on SQLite and on PostgreSQL."""

import csv
import io
import json
import multiprocessing
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy import Double, Float, Text, inspect
from sqlalchemy.exc import SQLAlchemyError

from ledger_runs import DONE, FAILED, LINES, SPEC, T0, begin, complete, id_unix_s, our_path
from stackmark import ids
from stackmark.errors import LedgerError, SpecError
from stackmark.ledger import address, queries, schema
from stackmark.ledger.export import COLUMNS, Format, export_to_file, export_to_stream
from stackmark.ledger.rows import Experiment, RunEnd, RunFilter, RunRow, RunStart, storable
from stackmark.ledger.store import Ledger, NotOpen
from stackmark.spec import Spec


@pytest.fixture
def ledger(ledger_url: str) -> Iterator[Ledger]:
    with Ledger.open(ledger_url) as opened:
        yield opened


def listed(ledger: Ledger, **wanted: object) -> list[str]:
    return [run.id for run in ledger.runs(RunFilter.model_validate(wanted))]


# A run's life


def test_a_run_that_has_begun_is_a_row_running(ledger: Ledger) -> None:
    run = ledger.run(begin(ledger))
    assert (run.status, run.rate_per_s, run.ended_unix_s, run.flags) == ("running", None, None, [])


def test_columns_that_repeat_the_spec_come_from_the_spec(ledger: Ledger) -> None:
    run = ledger.run(begin(ledger))
    assert (run.workload, run.device, run.batch, run.precision, run.tune) == (
        "train/resnet50", "cuda:0", 64, "bf16", "fast",
    )  # fmt: skip
    assert (run.spec, run.spec_digest) == (SPEC, SPEC.digest)


def test_a_workload_without_batch_and_precision_leaves_those_columns_empty(ledger: Ledger) -> None:
    start = RunStart(
        id=ids.new_id("r"), experiment_id=ids.new_id("x"), spec=Spec(workload="op/copy", params={"batch": True}),
        place="host", started_unix_s=T0, machine_id="m", boot_id="b", driver_pid=1, stackmark_version="0",
    )  # fmt: skip
    ledger.start_experiment(Experiment(id=start.experiment_id, created_unix_s=T0))
    ledger.start(start)
    run = ledger.run(start.id)
    assert (run.batch, run.precision, run.device) == (None, None, None)


def test_a_finished_run_gives_back_what_was_stored_to_the_last_bit(ledger: Ledger) -> None:
    run = ledger.run(complete(ledger))
    assert {name: getattr(run, name) for name in RunEnd.model_fields} == DONE.model_dump()


def test_a_stream_comes_back_line_by_line(ledger: Ledger) -> None:
    assert ledger.stream(complete(ledger)) == LINES


@pytest.mark.parametrize("lines", [[], [""], ["", ""], ["\udcff half a surrogate", "a NUL \0", "\r"]])
def test_odd_output_survives(ledger: Ledger, lines: list[str]) -> None:
    run_id = begin(ledger)
    ledger.finish(run_id, DONE, lines)
    assert ledger.stream(run_id) == lines


def test_a_failure_message_that_no_database_takes_is_stored_readably(ledger: Ledger) -> None:
    run_id = begin(ledger)
    end = RunEnd(
        status="failed", ended_unix_s=T0, failure_kind="crash", failure_message="core\0dump \udc80", flags=["\0"]
    )
    ledger.finish(run_id, end, [])
    run = ledger.run(run_id)
    assert (run.failure_message, run.flags) == ("core\ufffddump \\udc80", ["\0"])


def test_a_handle_can_be_set_while_the_run_runs(ledger: Ledger) -> None:
    run_id = begin(ledger)
    ledger.set_handle(run_id, {"pid": 17, "start_ticks": 12345678901})
    assert ledger.run(run_id).handle == {"pid": 17, "start_ticks": 12345678901}


def test_a_handle_of_a_run_that_has_ended_is_refused(ledger: Ledger) -> None:
    run_id = complete(ledger)
    with pytest.raises(LedgerError) as caught:
        ledger.set_handle(run_id, {"pid": 17})
    assert run_id in caught.value.message
    assert ledger.run(run_id).handle == {}


def test_the_same_end_may_be_written_twice(ledger: Ledger) -> None:
    run_id = complete(ledger)
    ledger.finish(run_id, DONE, LINES)
    assert ledger.stream(run_id) == LINES


def test_another_end_is_refused_and_changes_nothing(ledger: Ledger) -> None:
    run_id = complete(ledger)
    with pytest.raises(NotOpen) as caught:
        ledger.finish(run_id, FAILED, [])
    assert [word for word in (run_id, "done") if word not in caught.value.message] == []
    assert (ledger.run(run_id).status, ledger.stream(run_id)) == ("done", LINES)


def test_a_run_that_was_deleted_meanwhile_is_said_when_it_ends(ledger: Ledger) -> None:
    run_id = begin(ledger)
    ledger.delete([run_id], force=True)
    with pytest.raises(NotOpen) as caught:
        ledger.finish(run_id, DONE, LINES)
    assert run_id in caught.value.message


def test_a_run_needs_an_experiment(ledger: Ledger) -> None:
    with pytest.raises(LedgerError):
        begin(ledger, experiment=ids.new_id("x"))
    assert ledger.count() == 0


def test_a_failure_is_never_a_number() -> None:
    with pytest.raises(ValidationError) as caught:
        RunEnd(status="failed", ended_unix_s=T0, failure_kind="crash", rate_per_s=1.0)
    assert "rate_per_s" in caught.value.errors()[0]["msg"]
    with pytest.raises(ValidationError) as caught:
        RunEnd(status="failed", ended_unix_s=T0)
    assert "failure_kind" in caught.value.errors()[0]["msg"]
    with pytest.raises(ValidationError) as caught:
        RunEnd(status="done", ended_unix_s=T0, rate_per_s=float("nan"))
    assert [(one["loc"], one["type"]) for one in caught.value.errors()] == [(("rate_per_s",), "finite_number")]


# Runs whose process is gone


def test_a_run_whose_process_is_dead_is_abandoned_and_a_living_one_is_not(ledger: Ledger) -> None:
    dead, living = begin(ledger), begin(ledger)
    complete(ledger)
    found = ledger.abandoned(machine_id="this", alive=lambda run: run.id == living)
    assert [run.id for run in found] == [dead]


def test_a_run_on_another_machine_is_not_ours_to_call_abandoned(ledger: Ledger) -> None:
    begin(ledger, machine="another", boot="its own")
    assert ledger.abandoned(machine_id="this", alive=lambda run: False) == []


def test_a_lost_run_is_marked_once(ledger: Ledger) -> None:
    run_id = begin(ledger)
    assert ledger.mark_lost(run_id, "killed")
    assert not ledger.mark_lost(run_id, "killed again")
    run = ledger.run(run_id)
    assert (run.status, run.failure_kind, run.failure_message) == ("failed", "lost", "killed")
    assert run.ended_unix_s is not None


def test_a_run_that_was_called_lost_and_ends_after_all_is_believed(ledger: Ledger) -> None:
    run_id = begin(ledger)
    ledger.mark_lost(run_id, "thought to be dead")
    ledger.finish(run_id, DONE, LINES)
    run = ledger.run(run_id)
    assert (run.status, run.failure_kind, run.failure_message) == ("done", None, None)
    assert ledger.stream(run_id) == LINES


_WRITER = """
import sys
from ledger_runs import DONE, LINES, begin
from stackmark.ledger.store import Ledger
with Ledger.open(sys.argv[1]) as ledger:
    while True:
        run_id = begin(ledger)
        ledger.finish(run_id, DONE, LINES * 1000)
        print(run_id, flush=True)
"""


def test_kill_9_at_any_moment_loses_no_run_that_was_stored(ledger_url: str) -> None:
    Ledger.open(ledger_url).close()
    reported: list[str] = []
    for pause_s in (0.0, 0.011, 0.023):
        arguments = [sys.executable, "-c", _WRITER, ledger_url]
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=our_path()) as writer:
            assert writer.stdout is not None
            reported += [writer.stdout.readline().strip() for _ in range(3)]
            time.sleep(pause_s)
            writer.send_signal(signal.SIGKILL)
            reported += writer.stdout.read().split()
    with Ledger.open(ledger_url) as ledger:
        stored = {run.id: run.status for run in ledger.runs(limit=10_000)}
        assert len(reported) >= 9
        assert {stored.get(run_id) for run_id in reported} == {"done"}
        assert all(ledger.stream(run_id) == LINES * 1000 for run_id in reported)
        assert all(len(ledger.stream(run_id)) == (4000 if status == "done" else 0) for run_id, status in stored.items())
        assert sum(status == "running" for status in stored.values()) <= 3


# Lists


def test_runs_are_listed_newest_first(ledger: Ledger) -> None:
    middle, newest, oldest = (complete(ledger, at=T0 + seconds) for seconds in (50, 99, 3))
    assert listed(ledger) == [newest, middle, oldest]


def test_pages_follow_each_other_without_a_gap_even_within_one_instant(ledger: Ledger) -> None:
    everything = {complete(ledger, at=T0 + number // 4) for number in range(10)}
    seen: list[RunRow] = []
    while page := ledger.runs(limit=3, before=seen[-1].cursor if seen else None):
        seen += page
    assert [run.cursor for run in seen] == sorted((run.cursor for run in seen), reverse=True)
    assert len(seen) == 10
    assert {run.id for run in seen} == everything


def test_a_page_may_be_filtered_by_a_glob_and_continued(ledger: Ledger) -> None:
    names = ["train/a", "op/x", "train/b", "train/a", "op/x", "train/c", "train/b"]
    made = [complete(ledger, at=T0 + number, workload=name) for number, name in enumerate(names)]
    wanted = RunFilter(workload="train/*")
    first = ledger.runs(wanted, limit=3)
    rest = ledger.runs(wanted, limit=3, before=first[-1].cursor)
    assert [run.id for run in first + rest] == [made[number] for number in (6, 5, 3, 2, 0)]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"workload": "train/resnet50"}, "ad"), ({"workload": "train/*"}, "abd"), ({"workload": "*"}, "abcd"),
        ({"workload": "train/[rv]*"}, "abd"), ({"workload": "Train/*"}, ""), ({"workload": "train"}, ""),
        ({"status": "failed"}, "b"), ({"status": "running"}, "d"), ({"chip": "NVIDIA H200"}, "ac"),
        ({"chip": "*H200"}, "ac"), ({"place": "container"}, "d"), ({"since_unix_s": T0 + 2}, "cd"),
        ({"until_unix_s": T0 + 2}, "ab"), ({"chip": "*H200*", "since_unix_s": T0 + 1, "workload": "o?/*"}, "c"),
        ({"workload": "train/*", "place": "h*", "status": "done"}, "a"), ({"chip": "%"}, ""),
    ],
)  # fmt: skip
def test_filters_hold_together_and_count_what_they_list(
    ledger: Ledger, wanted: dict[str, object], expected: str
) -> None:
    runs = {
        "a": complete(ledger, at=T0),
        "b": complete(ledger, FAILED, at=T0 + 1, workload="train/vgg16"),
        "c": complete(ledger, at=T0 + 2, workload="op/gemm"),
        "d": begin(ledger, at=T0 + 3, place="container"),
    }
    assert listed(ledger, **wanted) == [runs[name] for name in reversed(expected)]
    assert ledger.count(RunFilter.model_validate(wanted)) == len(expected)


def test_the_runs_of_an_experiment_are_found_by_it(ledger: Ledger) -> None:
    first = begin(ledger)
    experiment = ledger.run(first).experiment_id
    second = begin(ledger, experiment=experiment, at=T0 + 1)
    begin(ledger)
    assert listed(ledger, experiment_id=experiment) == [second, first]


def test_an_experiment_comes_back_with_its_request(ledger: Ledger) -> None:
    made = Experiment(
        id=ids.new_id("x"), created_unix_s=T0, command="stackmark run", request={"runs": 3}, note="½ done"
    )
    ledger.start_experiment(made)
    assert ledger.experiment(made.id[:20]) == made == ledger.experiment("last")


def test_experiments_are_listed_newest_first_with_what_their_runs_say(ledger: Ledger) -> None:
    first = begin(ledger, place="host")
    experiment = ledger.run(first).experiment_id
    ledger.finish(first, DONE, LINES)
    ledger.finish(begin(ledger, experiment=experiment, place="pod"), FAILED, LINES)
    empty = ids.new_id("x")
    ledger.start_experiment(Experiment(id=empty, created_unix_s=T0))
    found = ledger.experiments()
    assert [row.experiment.id for row in found] == [empty, experiment]
    assert found[1].workloads == ("train/resnet50",)
    assert found[1].places == ("host", "pod")
    assert found[1].runs == {"done": 1, "failed": 1}
    assert found[1].stored_bytes > 0
    assert (found[0].workloads, found[0].runs, found[0].stored_bytes) == ((), {}, 0)
    assert [row.experiment.id for row in ledger.experiments(limit=1)] == [empty]


@pytest.mark.parametrize("few", [1, 1000])  # runs of a workload that are too many to be read first, and few
def test_experiments_are_filtered_by_workload(ledger: Ledger, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_FEW_RUNS", few)
    wanted = [ledger.run(complete(ledger, workload=name)).experiment_id for name in ("train/vgg16", "op/gemm")]
    assert [row.experiment.id for row in ledger.experiments(workload="train/*")] == wanted[:1]
    assert [row.experiment.id for row in ledger.experiments(workload="op/gemm")] == wanted[1:]
    assert ledger.experiments(workload="op/none") == []


# Names


def test_a_run_is_found_by_any_unique_prefix_however_it_is_typed(ledger: Ledger) -> None:
    run_id = complete(ledger)
    for typed in (run_id, run_id[:8], run_id.upper(), run_id[2:], f" {run_id[:6]} ", run_id.replace("0", "O")):
        assert ledger.run(typed).id == run_id


def test_last_is_the_newest_run(ledger: Ledger) -> None:
    newest = complete(ledger, at=T0 + 5)
    complete(ledger)
    assert ledger.run("last").id == newest


def test_last_of_an_empty_ledger_is_said(ledger: Ledger) -> None:
    with pytest.raises(SpecError) as caught:
        ledger.run("last")
    assert ledger.where in caught.value.message


def test_an_ambiguous_prefix_is_answered_with_the_candidates(ledger: Ledger) -> None:
    made = [complete(ledger) for _ in range(3)]
    with pytest.raises(SpecError) as caught:
        ledger.run("r-0")
    assert all(run_id in caught.value.message for run_id in made)


@pytest.mark.parametrize("typed", ["r-zzzz", "", "hello world", "x-0", "%", "r-0'; --"])
def test_an_unknown_name_is_wrong_use(ledger: Ledger, typed: str) -> None:
    if typed == "":
        complete(ledger), complete(ledger)
    with pytest.raises(SpecError) as caught:
        ledger.run(typed)
    assert caught.value.hint


def test_ids_increase_within_a_process_and_tell_their_time() -> None:
    made = [ids.new_id("r") for _ in range(2000)]
    assert made == sorted(set(made))
    assert all(len(one) == 28 for one in made)
    assert abs(id_unix_s(made[0]) - time.time()) < 60


def test_ids_increase_even_when_the_clock_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ids.new_id("r")
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    assert ids.new_id("r") > before


def test_an_id_is_a_ulid_as_its_specification_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # The specification's own example: 01ARZ3NDEKTSV4RRFFQ69G5FAV was made at 1469922850259 ms.
    monkeypatch.setattr(time, "time_ns", lambda: 1469922850259 * 1_000_000)
    monkeypatch.setattr(ids, "_last", 0)
    assert ids.new_id("r").startswith("r-" + "01ARZ3NDEK".lower())
    assert id_unix_s("r-01arz3ndektsv4rrffq69g5fav") == 1469922850.259


def _hand_over(queue: "multiprocessing.SimpleQueue[str]") -> None:
    queue.put(ids.new_id("r"))


def test_a_forked_process_does_not_repeat_the_ids_of_its_parent() -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.SimpleQueue[str] = context.SimpleQueue()
    ids.new_id("r")
    children = [context.Process(target=_hand_over, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    made = {queue.get(), queue.get(), ids.new_id("r")}
    for child in children:
        child.join()
    assert len(made) == 3


# Deleting


def test_deleting_a_run_deletes_its_stream_and_an_experiment_left_empty(ledger: Ledger) -> None:
    run_id = complete(ledger)
    experiment = ledger.run(run_id).experiment_id
    assert ledger.delete([run_id, run_id]) == 1
    assert (ledger.count(), ledger.stream(run_id)) == (0, [])
    with pytest.raises(SpecError):
        ledger.experiment(experiment)


def test_an_experiment_with_runs_left_is_kept(ledger: Ledger) -> None:
    run_id = complete(ledger)
    experiment = ledger.run(run_id).experiment_id
    begin(ledger, experiment=experiment)
    ledger.delete([run_id])
    assert ledger.experiment(experiment).id == experiment


def test_a_running_run_is_deleted_only_by_force_and_then_nothing_else_was(ledger: Ledger) -> None:
    done, running = complete(ledger), begin(ledger)
    with pytest.raises(SpecError) as caught:
        ledger.delete([done, running])
    assert running in caught.value.message
    assert ledger.count() == 2
    assert ledger.delete([done, running], force=True) == 2


# The schema


def test_an_experiment_is_deleted_with_its_runs_and_nothing_else(ledger: Ledger) -> None:
    first, kept = complete(ledger), complete(ledger)
    experiment = ledger.run(first).experiment_id
    ledger.finish(begin(ledger, experiment=experiment), FAILED, LINES)
    empty = ids.new_id("x")
    ledger.start_experiment(Experiment(id=empty, created_unix_s=T0))
    assert ledger.delete_together([], [experiment, empty]) == 2
    assert [row.experiment.id for row in ledger.experiments()] == [ledger.run(kept).experiment_id]
    assert listed(ledger) == [kept]


def test_an_experiment_with_a_running_run_is_not_deleted_and_neither_is_any_other(ledger: Ledger) -> None:
    done, running = complete(ledger), begin(ledger)
    wanted = [ledger.run(run_id).experiment_id for run_id in (done, running)]
    with pytest.raises(SpecError):
        ledger.delete_together([], wanted)
    assert set(listed(ledger)) == {done, running}


def test_the_tables_in_the_program_are_those_that_the_migrations_make(ledger: Ledger) -> None:
    inspector = inspect(ledger._engine)
    place = None if ledger._engine.dialect.name == "sqlite" else address.POSTGRES_SCHEMA
    assert set(inspector.get_table_names(schema=place)) == set(schema.metadata.tables)
    for name, table in schema.metadata.tables.items():
        made = {column["name"]: column for column in inspector.get_columns(name, schema=place)}
        assert list(made) == [column.name for column in table.c]
        for column in table.c:
            declared = Text if isinstance(column.type, schema.JsonText) else type(column.type)
            assert isinstance(made[column.name]["type"], Float if declared is Double else declared), column
            assert made[column.name]["nullable"] == column.nullable, column


def test_a_row_is_what_the_table_holds() -> None:
    assert set(RunRow.model_fields) - {"ranks"} == {column.name for column in schema.runs.c} - {"spec"}


def test_the_ranks_of_a_run_are_those_of_its_spec_in_lists_and_exports(ledger: Ledger, tmp_path: Path) -> None:
    four, one = begin(ledger, ranks=4), begin(ledger)
    assert {row.id: row.ranks for row in ledger.runs()} == {four: 4, one: 1}
    assert (ledger.run(four).ranks, ledger.run(one).ranks) == (4, 1)
    export_to_file(ledger, RunFilter(), "csv", tmp_path / "runs.csv")
    rows = list(csv.DictReader((tmp_path / "runs.csv").read_text().splitlines()))
    assert {row["id"]: row["ranks"] for row in rows} == {four: "4", one: "1"}


def test_an_older_ledger_is_migrated_with_its_runs_and_is_then_newer_than_the_program(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        run_id = complete(ledger)
        newest = len(schema.migrations())
        later = schema.Migration(
            newest + 1, "9999_colour", "ALTER TABLE runs ADD COLUMN colour TEXT;\nUPDATE runs SET colour = 'red';\n"
        )
        with ledger._engine.connect().execution_options(writes=True) as connection, connection.begin():
            assert schema.migrate(connection, "it", [*schema.migrations(), later]) == [newest + 1]
        with ledger._engine.connect() as connection:
            colours = connection.exec_driver_sql("SELECT id, colour FROM runs").all()
            assert [tuple(row) for row in colours] == [(run_id, "red")]
            assert schema.version_of(connection, "it") == newest + 1
    with pytest.raises(LedgerError) as caught:
        Ledger.open(ledger_url)
    assert [number for number in (newest + 1, newest) if not re.search(rf"\b{number}\b", caught.value.message)] == []


def test_a_ledger_of_the_first_version_is_migrated_and_its_runs_are_plain_runs(ledger_url: str) -> None:
    first = schema.migrations()[0]
    where = address.find(ledger_url)
    engine = address.make_engine(where)
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        assert schema.migrate(connection, "it", [first]) == [1]
        connection.exec_driver_sql("INSERT INTO experiments VALUES ('x-1', 1.0, 'stackmark run', '', '{}')")
        connection.exec_driver_sql(
            "INSERT INTO runs (id, experiment_id, position, workload, status, started_unix_s, place, machine_id, boot_id,"
            " driver_pid, stackmark_version, spec_digest, flags, place_options, handle, spec) VALUES"
            " ('r-1', 'x-1', 0, 'train/vgg16', 'done', 1.0, 'host', 'm', 'b', 1, '0.1', 'd', '[]', '{}', '{}',"
            """ '{"workload":"train/vgg16","params":{}}')"""
        )
    engine.dispose()
    with Ledger.open(ledger_url) as ledger:
        (row,) = ledger.runs()
        assert (row.arm, row.block, row.attempt, row.role) == (0, None, 0, "measured")
        assert ledger.run("r-1").spec.workload == "train/vgg16"


# Of each kind that had borrowed them, how its runs stood in `arm`, `block` and `attempt`, and where they stand now.
BORROWED = {
    ("sweep", 3, "NULL", 0): {"slot": 3, "pass_number": 0},
    ("sweep", 3, "NULL", 2): {"slot": 3, "pass_number": 2},
    ("sweep", 4, "1", 6): {"slot": 4, "suspect": 5, "block": 1},
    ("run", 0, "2", 1): {"pass_number": 2, "piece": 1},
    ("run", 0, "NULL", 0): {},
    ("compare", 1, "2", 1): {"arm": 1, "block": 2, "attempt": 1},
}


@pytest.mark.parametrize(("kind", "arm", "block", "attempt"), BORROWED)
def test_a_kind_that_borrowed_the_columns_of_a_comparison_gets_its_own_and_the_json_stays(
    ledger_url: str, kind: str, arm: int, block: str, attempt: int
) -> None:
    engine = address.make_engine(address.find(ledger_url))
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        assert schema.migrate(connection, "it", schema.migrations()[:3]) == [1, 2, 3]
        connection.exec_driver_sql(
            f"INSERT INTO experiments VALUES ('x-1', 1.0, 'stackmark', '', '{{}}', '{kind}', 'null')"
        )
        connection.exec_driver_sql(
            "INSERT INTO runs (id, experiment_id, position, workload, status, started_unix_s, place, machine_id, boot_id,"
            " driver_pid, stackmark_version, spec_digest, flags, place_options, handle, spec, arm, block, attempt) VALUES"
            " ('r-1', 'x-1', 0, 'op/gemm', 'done', 1.0, 'host', 'm', 'b', 1, '0.1', 'd', '[]', '{}', '{}',"
            f""" '{{"workload":"op/gemm","params":{{}}}}', {arm}, {block}, {attempt})"""
        )
    engine.dispose()
    with Ledger.open(ledger_url) as ledger:
        row = ledger.run("r-1")
    none = {"arm": 0, "block": None, "attempt": 0, "slot": None, "suspect": None, "pass_number": None, "piece": None}
    assert {name: getattr(row, name) for name in none} == {**none, **BORROWED[kind, arm, block, attempt]}
    shown = row.model_dump(mode="json")
    assert [shown[name] for name in ("arm", "block", "attempt")] == [
        arm,
        None if block == "NULL" else int(block),
        attempt,
    ]
    assert not {"slot", "suspect", "pass_number", "piece"} & {*shown}


def test_a_migration_that_fails_leaves_the_ledger_as_it_was(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as ledger:
        run_id = complete(ledger)
        broken = schema.Migration(
            len(schema.migrations()) + 1,
            "9999_broken",
            "ALTER TABLE runs ADD COLUMN colour TEXT;\nUPDATE nothing SET x = 1;\n",
        )
        with pytest.raises(SQLAlchemyError):  # noqa: SIM117
            with ledger._engine.connect().execution_options(writes=True) as connection, connection.begin():
                schema.migrate(connection, "it", [*schema.migrations(), broken])
        assert "colour" not in {column["name"] for column in inspect(ledger._engine).get_columns("runs")}
    with Ledger.open(ledger_url) as ledger:
        assert ledger.run(run_id).status == "done"


def test_numbered_files_are_read_in_order_in_the_words_of_the_database(tmp_path: Path) -> None:
    (tmp_path / "0002_b.sql").write_text(
        "-- a note; with a semicolon;\nCREATE TABLE b (\n  x $blob\n);\n\nDROP TABLE a;\n"
    )
    (tmp_path / "0001_a.sql").write_text("CREATE TABLE a (x $real);\n")
    first, second = schema.migrations(tmp_path)
    assert (first.number, first.name) == (1, "0001_a")
    table = "CREATE TABLE b (\n  x {}\n)"
    assert second.statements("sqlite") == [table.format("BLOB"), "DROP TABLE a"]
    assert second.statements("postgresql")[0] == table.format("BYTEA")


_OPENER = """
import sys
from ledger_runs import complete
from stackmark.ledger.store import Ledger
sys.stdin.readline()
with Ledger.open(sys.argv[1]) as ledger:
    print(complete(ledger))
"""


def test_many_processes_may_make_the_ledger_at_the_same_moment(ledger_url: str) -> None:
    arguments = [sys.executable, "-c", _OPENER, ledger_url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    openers = [subprocess.Popen(arguments, text=True, env=our_path(), **pipes) for _ in range(4)]  # type: ignore[call-overload]
    answers = []
    for opener in openers:  # all have imported what they need only when the last was started: they wait for a line
        opener.stdin.write("go\n")
        opener.stdin.flush()
    for opener in openers:
        out, err = opener.communicate(timeout=60)
        assert opener.returncode == 0, err
        answers.append(out.strip())
    with Ledger.open(ledger_url) as ledger:
        assert sorted(listed(ledger)) == sorted(answers)
        with ledger._engine.connect() as connection:
            assert len(connection.execute(schema.versions.select()).all()) == len(schema.migrations())


# Exports


def exported(ledger: Ledger, form: Format, **wanted: object) -> bytes:
    out = io.BytesIO()
    export_to_stream(ledger, RunFilter.model_validate(wanted), form, out)
    return out.getvalue()


def test_an_exported_json_array_holds_every_column_with_specs_as_objects(ledger: Ledger) -> None:
    run_id = complete(ledger)
    (row,) = json.loads(exported(ledger, "json"))
    assert list(row) == ["schema", *COLUMNS]
    assert (row["id"], row["spec"], row["rate_per_s"]) == (run_id, SPEC.model_dump(), DONE.rate_per_s)


def test_exports_are_oldest_first_and_filtered(ledger: Ledger) -> None:
    newer, older = complete(ledger, at=T0 + 9), complete(ledger)
    complete(ledger, workload="op/gemm")
    lines = exported(ledger, "jsonl", workload="train/*").decode().splitlines()
    assert [json.loads(line)["id"] for line in lines] == [older, newer]


@pytest.mark.parametrize(("form", "empty"), [("json", []), ("jsonl", None), ("csv", None)])
def test_an_empty_export_is_still_the_format(ledger: Ledger, form: Format, empty: object) -> None:
    data = exported(ledger, form)
    if form == "json":
        assert json.loads(data) == empty
    else:
        assert data.decode().split() == ([",".join(COLUMNS)] if form == "csv" else [])


def test_an_exported_parquet_file_has_types(ledger: Ledger, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    run_id = complete(ledger)
    complete(ledger, FAILED, at=T0 + 1)
    assert export_to_file(ledger, RunFilter(), "parquet", tmp_path / "runs.parquet") == 2
    table = parquet.read_table(tmp_path / "runs.parquet")
    assert table.column_names == COLUMNS
    assert (str(table.schema.field("rate_per_s").type), str(table.schema.field("batch").type)) == ("double", "int64")
    first, second = table.to_pylist()
    assert (first["id"], first["rate_per_s"], second["rate_per_s"]) == (run_id, DONE.rate_per_s, None)
    assert json.loads(first["spec"]) == SPEC.model_dump()


nasty = st.text(alphabet=st.one_of(st.sampled_from("\n\r\t\",;'\\\0 =+@-"), st.characters()), min_size=1)


@given(messages=st.lists(nasty, min_size=1, max_size=20))
@settings(max_examples=20, deadline=None)
def test_newlines_and_quotes_survive_a_round_trip_through_csv(
    tmp_path_factory: pytest.TempPathFactory, messages: list[str]
) -> None:
    with Ledger.open(str(tmp_path_factory.mktemp("csv") / "l.sqlite3")) as ledger:
        for number, message in enumerate(messages):
            end = RunEnd(status="failed", ended_unix_s=T0, failure_kind="crash", failure_message=message)
            complete(ledger, end, at=T0 + number)
        data = exported(ledger, "csv").decode()
    read = [row["failure_message"] for row in csv.DictReader(io.StringIO(data, newline=""))]
    # docs/ledger.md: a quote before what a spreadsheet would run as a formula comes off again.
    unquoted = [text[1:] if re.match(r"'+[=+\-@\t\r\n]", text) else text for text in read]
    assert unquoted == [storable(message) for message in messages]
