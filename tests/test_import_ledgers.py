"""`stackmark import other.sqlite3`: the runs of another ledger come here whole, once, and without its trust or its secrets."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import ledger_runs
import recorded
from asking import ask
from other_days import change
from stackmark.api.importing import import_ledgers
from stackmark.errors import Exit
from stackmark.ledger import copying
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger

NAMES = ("h200_host_container", "h200_gemm_bf16", "made_sweep")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "here.sqlite3"))
    return tmp_path / "here.sqlite3"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    with Ledger.open(str(tmp_path / "other.sqlite3")) as book:
        for name in NAMES:
            recorded.load(book, name)
    return tmp_path / "other.sqlite3"


def content(file: Path, table: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(file)) as connection:
        return sorted(connection.execute(f"SELECT * FROM {table}").fetchall())


def imported(*files: Path | str) -> dict[str, Any]:
    answer = ask("import", *map(str, files), "--json")
    assert answer.code == 0, answer.err
    (found,) = json.loads(answer.out)["ledgers"]
    counts: dict[str, Any] = found
    return counts


def refused(*arguments: str) -> str:
    answer = ask("import", *arguments)
    assert (answer.code, answer.out) == (Exit.WRONG_USE, ""), answer
    assert "Traceback" not in answer.err
    return answer.err


def test_every_run_comes_with_its_id_its_columns_and_its_output(here: Path, other: Path) -> None:
    before = other.read_bytes()
    found = imported(other)
    assert (found["experiments"], found["runs"]) == (len(NAMES), len(content(other, "runs")))
    for table in ("experiments", "runs", "streams"):
        assert content(here, table) == content(other, table)
    # The other ledger is neither migrated nor locked: nothing lies next to it, and no byte of it changed.
    assert other.read_bytes() == before
    assert [path.name for path in other.parent.glob("other*")] == ["other.sqlite3"]
    id_ = recorded.read(NAMES[0])["experiment"]["id"]
    first, second = (ask("verdict", id_, "--ledger", str(file), "--json").out for file in (here, other))
    assert first == second


def test_an_import_that_is_repeated_adds_what_is_new(here: Path, other: Path) -> None:
    first = imported(other)
    with Ledger.open(str(other)) as book:
        ledger_runs.complete(book)
    again = imported(other)
    assert (again["experiments"], again["runs"], again["known_runs"]) == (1, 1, first["runs"])
    assert ask("import", str(other)).code == 0


def test_a_run_that_has_not_ended_there_comes_with_a_later_import(here: Path, other: Path) -> None:
    with Ledger.open(str(other)) as book:
        run_id = ledger_runs.begin(book)
    first = imported(other)
    assert first["running"] == 1
    with Ledger.open(str(here)) as book:
        assert not book.has_run(run_id)
    with Ledger.open(str(other)) as book:
        book.finish(run_id, ledger_runs.DONE, ["a line"])
    again = imported(other)
    assert (again["runs"], again["experiments"], again["running"]) == (1, 0, 0)
    with Ledger.open(str(here)) as book:
        assert book.stream(run_id) == ["a line"]


@pytest.mark.parametrize(
    ("sql", "table"),
    [
        ("UPDATE runs SET rate_per_s = rate_per_s * 2 WHERE rowid = 2", "runs"),
        ("UPDATE experiments SET note = 'another' WHERE rowid = 1", "experiments"),
    ],
)
def test_two_records_with_one_id_are_refused_and_nothing_is_imported(
    here: Path, other: Path, sql: str, table: str
) -> None:
    imported(other)
    change(other, sql)
    with Ledger.open(str(other)) as book:
        ledger_runs.complete(book)
    before = content(here, "runs")
    same = {row[0]: row for row in content(here, table)}
    (changed,) = (row[0] for row in content(other, table) if same.get(row[0], row) != row)
    err = refused(str(other))
    assert changed in err
    assert content(here, "runs") == before


@pytest.mark.parametrize(
    ("sql", "named"),
    [
        ("UPDATE runs SET rate_per_s = 9e999 WHERE rowid = 3", "rate_per_s"),
        ("UPDATE runs SET started_unix_s = 9e99 WHERE rowid = 3", "impossible time"),
        ("UPDATE runs SET spec = '{' WHERE rowid = 3", "cannot be read"),
        ('UPDATE runs SET spec = \'{"workload": "../x"}\' WHERE rowid = 3', "workload"),
        ("UPDATE runs SET status = 'failed' WHERE rowid = 3", "failure_kind"),
        ("UPDATE experiments SET kind = 'magic' WHERE rowid = 2", "kind"),
        ("UPDATE streams SET data = 'text' WHERE rowid = 3", "compressed"),
        ("DROP TABLE streams", "streams"),
        ("DELETE FROM schema_versions WHERE version > 2", "version 2"),
        ("INSERT INTO schema_versions VALUES (99, 'x', 0, 'x')", "version 99"),
        ("PRAGMA application_id = 1", "another program"),
    ],
)
def test_a_ledger_that_was_tampered_with_is_refused_whole(here: Path, other: Path, sql: str, named: str) -> None:
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute(sql)
        connection.commit()
    assert named in refused(str(other))
    with Ledger.open(str(here)) as book:
        assert book.count() == 0


def test_a_view_in_place_of_a_table_is_not_asked(here: Path, other: Path) -> None:
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("ALTER TABLE streams RENAME TO hidden")
        endless = (
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x run_id, x lines, x data FROM n"
        )
        connection.execute(f"CREATE VIEW streams AS {endless}")
        connection.commit()
    assert "streams" in refused(str(other))


def test_a_damaged_file_and_a_database_of_others_are_refused(here: Path, other: Path, tmp_path: Path) -> None:
    whole = other.read_bytes()
    cut, holed, foreign = tmp_path / "cut.sqlite3", tmp_path / "holed.sqlite3", tmp_path / "foreign.sqlite3"
    cut.write_bytes(whole[:6000])
    holed.write_bytes(whole[: len(whole) // 3] + os.urandom(len(whole) // 3) + whole[2 * len(whole) // 3 :])
    with closing(sqlite3.connect(foreign)) as connection:
        connection.execute("CREATE TABLE mine (a)")
    for file in (cut, holed, foreign):
        assert str(file) in refused(str(file))
    with Ledger.open(str(here)) as book:
        assert book.count() == 0


def test_the_good_ledger_of_two_is_imported_and_the_exit_code_says_so(here: Path, other: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.sqlite3").write_bytes(other.read_bytes()[:6000])
    answer = ask("import", str(tmp_path / "cut.sqlite3"), str(other), "--json")
    found = json.loads(answer.out)
    assert (answer.code, len(found["ledgers"]), len(found["refused"])) == (Exit.PART_FAILED, 1, 1)


def test_a_ledger_is_not_imported_into_itself(here: Path, other: Path, tmp_path: Path) -> None:
    (tmp_path / "link.sqlite3").symlink_to(other)
    for name in (str(other), str(tmp_path / "link.sqlite3")):
        assert "import into" in refused(name, "--ledger", str(other))


@pytest.mark.parametrize("words", [("--chip", "T4"), ("--table",), ("--place", "host"), ("--label", "x")])
def test_options_about_logs_are_refused(here: Path, other: Path, words: tuple[str, ...]) -> None:
    assert words[0] in refused(str(other), *words)


def test_a_log_next_to_a_ledger_is_refused(here: Path, other: Path) -> None:
    assert __file__ in refused(str(other), __file__)


def test_secrets_that_stand_in_a_ledger_are_masked_on_the_way(here: Path, tmp_path: Path) -> None:
    file = tmp_path / "theirs.sqlite3"
    secret = "s3cr3t-of-theirs"
    with Ledger.open(str(file)) as book:
        run_id = ledger_runs.complete(book)
        experiment_id = book.run(run_id).experiment_id
    command = f"stackmark run --env HF_TOKEN={secret} --ledger postgresql://me:{secret}@db/x train/lenet"
    change(file, "UPDATE experiments SET command = ?, note = ?, request = ? WHERE id = ?", command,
           f"see https://me:{secret}@host/", json.dumps({"env": [f"HF_TOKEN={secret}", "A=1"]}), experiment_id)  # fmt: skip
    change(file, "UPDATE runs SET place_options = ?", json.dumps({"env": [f"HF_TOKEN={secret}"]}))
    imported(file)
    assert imported(file)["known_runs"] == 1
    with Ledger.open(str(here)) as book:
        found, row = book.experiment(experiment_id), book.run(run_id)
    assert secret not in found.model_dump_json() + row.model_dump_json()
    assert found.request == {"env": ["HF_TOKEN=***", "A=1"]}
    assert "train/lenet" in found.command


def test_logs_that_are_here_already_do_not_count_twice(here: Path, tmp_path: Path) -> None:
    log = str(Path(__file__).parent / "data/logs/tf_cnn/t4_host_1gpu.log")
    theirs = str(tmp_path / "theirs.sqlite3")
    for more in ((), ("--ledger", theirs)):
        assert ask("import", log, *more).code == 0
    assert imported(theirs)["from_known_logs"] == 1
    answer = ask("import", theirs, "--again", "--json")
    assert json.loads(answer.out)["ledgers"][0]["runs"] == 1


def test_a_failure_in_the_middle_leaves_nothing_behind_and_the_next_import_is_whole(
    here: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "_RUNS", 2)
    monkeypatch.setattr(copying, "_EXPERIMENTS", 1)
    whole = copying._run
    seen: list[str] = []

    def cut(columns: dict[str, object]) -> dict[str, object]:
        seen.append(str(columns["id"]))
        if len(seen) == 9:
            raise KeyboardInterrupt
        return whole(columns)

    monkeypatch.setattr(copying, "_run", cut)
    with pytest.raises(KeyboardInterrupt):
        import_ledgers(other, ledger=here)
    assert content(here, "experiments") == content(here, "runs") == []
    monkeypatch.setattr(copying, "_run", whole)
    assert import_ledgers(other, ledger=here).copied[0].runs == len(content(other, "runs"))
    assert content(here, "streams") == content(other, "streams")


def test_an_empty_ledger_brings_nothing(here: Path, tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "empty.sqlite3")):
        pass
    found = imported(tmp_path / "empty.sqlite3")
    assert (found["experiments"], found["runs"]) == (0, 0)


def test_a_ledger_that_is_being_written_is_read_as_it_is(here: Path, other: Path) -> None:
    with Ledger.open(str(other)) as book:
        book.start_experiment(Experiment(id="x-" + "0" * 26, created_unix_s=1.0))
        assert imported(other)["experiments"] == len(NAMES) + 1
