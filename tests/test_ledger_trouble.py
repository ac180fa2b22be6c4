"""Whatever happens to the ledger, it is said in a sentence with a remedy, and what was stored stays stored."""

import os
import re
import resource
import socket
import sqlite3
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import event, select

import stackmark
from asking import ask
from ledger_runs import DONE, FAILED, LINES, T0, begin, complete, our_path
from naming import missing
from postgres import PASSWORD, PostgresServer
from stackmark.cli.main import ITSELF_FAILED
from stackmark.errors import Exit, LedgerError, SpecError
from stackmark.ledger import address, schema, store
from stackmark.ledger.export import export_to_file, export_to_stream
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A ledger with one run."""
    path = tmp_path / "ledger.sqlite3"
    with Ledger.open(str(path)) as ledger:
        complete(ledger)
    return path


def refusal(where: Path | str) -> LedgerError:
    with pytest.raises(LedgerError) as caught:
        Ledger.open(str(where), busy_s=0.05)
    assert caught.value.exit_code == Exit.LEDGER_FAILED
    return caught.value


# Files that are not a ledger


def test_random_bytes_are_not_a_ledger_and_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    noise = os.urandom(8192)
    path.write_bytes(noise)
    error = refusal(path)
    assert error.kind == "damaged"
    assert ".recover" in (error.hint or "")
    assert path.read_bytes() == noise


@pytest.mark.parametrize("kept_bytes", [50, 1000, 4096, 12_288])
def test_a_truncated_ledger_is_damaged(file: Path, kept_bytes: int) -> None:
    with file.open("r+b") as handle:
        handle.truncate(kept_bytes)
    assert refusal(file).kind == "damaged"


def test_damage_inside_is_found_when_it_is_read(file: Path) -> None:
    data = bytearray(file.read_bytes())
    for page in range(2, len(data) // 4096):  # all but the schema
        data[page * 4096 : page * 4096 + 4096] = b"\xff" * 4096
    file.write_bytes(data)
    with pytest.raises(LedgerError) as caught, Ledger.open(str(file)) as ledger:
        ledger.runs()
    assert caught.value.kind == "damaged"


def test_a_spec_changed_by_hand_is_said(file: Path) -> None:
    with closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("UPDATE runs SET spec = 'half a {'")
    with Ledger.open(str(file)) as ledger, pytest.raises(LedgerError) as caught:
        ledger.run("last")
    assert caught.value.kind == "unreadable-row"


def test_a_stream_changed_by_hand_is_said(file: Path) -> None:
    with closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("UPDATE streams SET data = x'00ff'")
    with Ledger.open(str(file)) as ledger, pytest.raises(LedgerError) as caught:
        ledger.stream(ledger.run("last").id)
    assert caught.value.kind == "unreadable-row"


@pytest.mark.slow
@pytest.mark.parametrize(("byte", "mib"), [(b"x", 1000), (b"\n", 100)])
def test_a_stream_that_unpacks_to_far_more_than_a_run_prints_is_a_sentence(file: Path, byte: bytes, mib: int) -> None:
    squeeze = zlib.compressobj(1)
    bomb = b"".join(squeeze.compress(byte * (1 << 20)) for _ in range(mib)) + squeeze.flush()
    with closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("UPDATE streams SET data = ?", (bomb,))
    # The kernel's figure of this process: what wait4 tells of a child begins with the size of whoever forked it.
    peak = "import sys; from stackmark.cli.main import main; code = main(sys.argv[1:]); "
    peak += "print(open('/proc/self/status').read(), file=sys.stderr); sys.exit(code)"
    command = [sys.executable, "-c", peak, "show", "last", "--log", "--ledger", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == Exit.LEDGER_FAILED
    assert "stackmark delete" in done.stderr
    found = re.search(r"VmHWM:\s+(\d+) kB", done.stderr)
    assert found is not None
    assert int(found[1]) < 500 * 1024
    assert ask("results", "--ledger", str(file), "--json").code == Exit.DONE


@pytest.mark.parametrize("kept", [0, 1, 20])
def test_a_stream_that_is_cut_off_is_said(file: Path, kept: int) -> None:
    with closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("UPDATE streams SET data = substr(data, 1, ?)", (kept,))
    with Ledger.open(str(file)) as ledger, pytest.raises(LedgerError) as caught:
        ledger.stream(ledger.run("last").id)
    assert caught.value.kind == "unreadable-row"


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("experiments", "request", "[]"),
        ("experiments", "request", '{"runs": {}, "params": [1], "workload": 5}'),
        ("experiments", "design", '"text"'),
        ("experiments", "kind", "'; DROP TABLE runs; --"),
        ("experiments", "created_unix_s", "soon"),
        ("runs", "place_options", "5"),
        ("runs", "handle", "[" * 100_000),
        ("runs", "flags", "{}"),
        ("runs", "arm", -7),
        ("runs", "spec", '{"workload": "train/resnet50", "params": {"batch": [1]}}'),
        ("streams", "lines", "many"),
        ("streams", "data", "text"),
    ],
)
def test_a_row_that_was_changed_by_hand_is_answered_with_a_sentence(
    file: Path, table: str, column: str, value: object
) -> None:
    with closing(sqlite3.connect(file)) as hand, hand:
        hand.execute(f"UPDATE {table} SET {column} = ?", (value,))
    for command in (["results"], ["show", "last", "--log"], ["resume", "last"], ["verdict", "last"], ["export"]):
        answer = ask(*command, "--ledger", str(file))
        assert ITSELF_FAILED not in answer.err, command
        assert answer.code in (Exit.DONE, Exit.WRONG_USE, Exit.RUN_FAILED, Exit.LEDGER_FAILED), command


def test_another_programs_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "places.sqlite"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    assert refusal(path).kind == "foreign"
    assert path.read_bytes() == before


def test_another_programs_database_with_our_table_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    with closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE schema_versions (version INTEGER)")
    assert refusal(path).kind == "foreign"


def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger").touch()
    with Ledger.open(str(tmp_path / "ledger")) as ledger:
        assert ledger.count() == 0


def test_a_newer_ledger_is_refused_and_left_alone(file: Path) -> None:
    with closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("INSERT INTO schema_versions VALUES (99, '0099_future', 0, '9.0')")
    error = refusal(file)
    assert error.kind == "newer"
    assert missing(error.message, "99", stackmark.__version__) == []
    assert "install -U stackmark" in (error.hint or "")


def test_a_folder_is_not_a_ledger(tmp_path: Path) -> None:
    assert refusal(tmp_path).kind == "cannot-open"


# Files that cannot be written


def test_a_missing_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b c" / "100% ?" / "ledger#1.sqlite3"
    Ledger.open(str(path)).close()
    assert path.stat().st_size > 0


def modes(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())}


def test_a_new_ledger_and_its_folder_are_its_owner_s_alone(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "new" / "ledger.sqlite3")) as ledger:
        complete(ledger)
        assert modes(tmp_path / "new") == {
            "new": 0o700, "ledger.sqlite3": 0o600, "ledger.sqlite3-wal": 0o600, "ledger.sqlite3-shm": 0o600,
        }  # fmt: skip


def test_a_ledger_of_before_is_closed_in_the_default_place_and_left_as_it_is_elsewhere(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STACKMARK_LEDGER", raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    default = tmp_path / "stackmark" / "ledger.sqlite3"
    default.parent.mkdir(mode=0o755)
    default.write_bytes(file.read_bytes())
    default.chmod(0o644)
    file.chmod(0o644)
    assert ask("results").code == Exit.DONE
    assert ask("results", "--ledger", str(file)).code == Exit.DONE
    assert default.stat().st_mode & 0o777 == 0o600
    assert default.parent.stat().st_mode & 0o777 == 0o755, "a folder may hold other things"
    assert file.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    error = refusal(tmp_path / "file" / "ledger.sqlite3")
    assert error.kind == "cannot-open"
    assert missing(error.message, tmp_path / "file" / "ledger.sqlite3") == []


def test_a_reader_does_not_make_a_ledger_by_a_mistyped_name(tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as caught:
        Ledger.open(str(tmp_path / "typo.sqlite3"), create=False)
    assert caught.value.kind == "no-ledger"
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_locked_by_another_process_is_said_and_nothing_is_lost(file: Path) -> None:
    holder = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.execute('BEGIN IMMEDIATE'); print(); sys.stdin.read()"
    )
    with Ledger.open(str(file), busy_s=0.05) as ledger:
        run_id = begin(ledger)
        arguments = [sys.executable, "-c", holder, str(file)]
        with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
            assert other.stdin is not None
            assert other.stdout is not None
            other.stdout.readline()
            with pytest.raises(LedgerError) as caught:
                ledger.finish(run_id, DONE, LINES)
            assert caught.value.kind == "locked"
            assert ledger.count() == 2, "a reader does not wait for a writer"
            other.stdin.close()
            other.wait()
        ledger.finish(run_id, DONE, LINES)
        assert ledger.run(run_id).status == "done"


def test_a_writer_waits_for_another_that_is_quick(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        threading.Timer(0.2, other.execute, ["COMMIT"]).start()
        with Ledger.open(str(file)) as ledger:
            complete(ledger)
            assert ledger.count() == 2


def without_root(program: str, path: Path) -> str:
    """What a Python program prints that is bound by file permissions, as root is not unless it drops the capability."""
    drop = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.getuid() == 0 else []
    command = [*drop, sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env=our_path(), timeout=60)
    assert done.stderr == ""
    return done.stdout


@pytest.fixture
def protected(file: Path) -> Iterator[Path]:
    """The ledger with one run, which nobody may write, nor its folder."""
    file.chmod(0o444)
    file.parent.chmod(0o555)
    yield file
    file.parent.chmod(0o755)


_SAY = """
import sys
from ledger_runs import begin
from stackmark.errors import LedgerError
from stackmark.ledger.store import Ledger
try:
    with Ledger.open(sys.argv[1]) as ledger:
        print(ledger.read_only, ledger.run("last").status, len(ledger.stream(ledger.run("last").id)))
        begin(ledger)
except LedgerError as error:
    print(error.kind, error.message)
"""


def test_a_read_only_ledger_can_be_read_and_says_so_when_written(protected: Path) -> None:
    before, after = without_root(_SAY, protected).splitlines()
    assert before.split() == ["True", "done", str(len(LINES))]
    assert after.split()[0] == "read-only"
    assert missing(after, protected) == []


def test_a_read_only_ledger_can_be_read_while_its_owner_writes(protected: Path) -> None:
    with Ledger.open(str(protected)) as owner:
        complete(owner, at=T0 + 1)
        if owner.read_only:
            pytest.skip("without root the owner cannot write it either")
        assert without_root(_SAY, protected).split()[:3] == ["True", "done", str(len(LINES))]


def test_a_new_ledger_in_a_read_only_folder_is_said(protected: Path) -> None:
    assert without_root(_SAY, protected.with_name("new.sqlite3")).split()[0] == "cannot-open"


def test_a_read_only_ledger_that_is_older_cannot_be_migrated_and_is_said(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = schema.migrations()
    later = [*known, schema.Migration(len(known) + 1, "9999_later", "ALTER TABLE runs ADD COLUMN colour TEXT;\n")]
    monkeypatch.setattr(address, "is_read_only", lambda path: True)
    monkeypatch.setattr(schema, "migrations", lambda: later)
    assert refusal(file).kind == "read-only"


# Full disks


_FILL = """
import resource, sys
from asking import COMMAND, ask
from ledger_runs import DONE, begin
from stackmark.errors import LedgerError
from stackmark.ledger.store import Ledger
import random
noise = [format(random.getrandbits(4096), "x") for _ in range(300)]
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])))
stored = []
try:
    with Ledger.open(sys.argv[1]) as ledger:
        while len(stored) < 100:
            run_id = begin(ledger)
            ledger.finish(run_id, DONE, noise)
            stored.append(run_id)
except LedgerError as error:
    print(" ".join(stored))
    print(error.kind)
    print(error.hint)
"""


def test_a_file_that_may_not_grow_keeps_every_run_that_was_stored(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    arguments = [sys.executable, "-c", _FILL, str(path), str(1024 * 1024)]
    done = subprocess.run(arguments, capture_output=True, text=True, env=our_path(), timeout=60)
    assert done.stderr == ""
    stored, kind, hint = done.stdout.splitlines()
    assert kind == "disk"
    assert "ulimit -f" in hint
    assert_kept(path, stored.split())


def test_a_full_disk_is_said_and_keeps_every_run_that_was_stored(tmp_path: Path) -> None:
    # A tmpfs of 2 MiB in a mount namespace of its own: it is gone with the process, so the shell copies the ledger out.
    inside = tmp_path / "small"
    inside.mkdir()
    script = 'mount -t tmpfs -o size=2m none "$1" && "$2" -c "$3" "$1/ledger.sqlite3"; cp "$1"/ledger.sqlite3* "$4"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", str(inside), sys.executable, _FILL, str(tmp_path)]
    trial = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs none {inside}"]
    if os.getuid() != 0 or subprocess.run(trial, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small file system")
    done = subprocess.run(command, capture_output=True, text=True, env=our_path(), timeout=60)
    assert done.stderr == ""
    stored, kind, hint = done.stdout.splitlines()
    assert kind == "full"
    assert "df -h" in hint
    assert_kept(tmp_path / "ledger.sqlite3", stored.split())


def assert_kept(path: Path, stored: list[str]) -> None:
    assert stored
    with closing(sqlite3.connect(path)) as independent:
        assert independent.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    with Ledger.open(str(path)) as ledger:
        assert {ledger.run(run_id).status for run_id in stored} == {"done"}
        assert all(len(ledger.stream(run_id)) == 300 for run_id in stored)
        assert ledger.count(RunFilter(status="done")) == len(stored)


# Addresses


def test_the_default_is_in_the_data_folder_of_the_xdg_specification() -> None:
    assert address.find(None, {"XDG_DATA_HOME": "/data", "HOME": "/h"}).file == Path("/data/stackmark/ledger.sqlite3")
    for ignored in ("", "relative"):
        found = address.find(None, {"XDG_DATA_HOME": ignored, "HOME": "/h"})
        assert found.file == Path("/h/.local/share/stackmark/ledger.sqlite3")


def test_the_option_comes_before_the_variable_and_the_variable_before_the_default() -> None:
    environment = {"STACKMARK_LEDGER": "/v", "HOME": "/h"}
    assert address.find("/o", environment).shown == "/o"
    assert address.find(None, environment).shown == "/v"
    assert address.find(None, {"STACKMARK_LEDGER": "", "XDG_DATA_HOME": "/d"}).shown == "/d/stackmark/ledger.sqlite3"


def test_sqlite_may_be_written_as_a_url() -> None:
    assert address.find("sqlite:////srv/l.db", {}).file == Path("/srv/l.db")


@pytest.mark.parametrize("where", ["mysql://me@host/db", "sqlite://", ":memory:", "postgresql://host:port/db", "://"])
def test_a_wrong_address_is_wrong_use_with_the_right_forms(where: str) -> None:
    with pytest.raises(SpecError) as caught:
        address.find(where, {})
    assert "PostgreSQL" in (caught.value.hint or "") or "postgresql://" in (caught.value.hint or "")


def test_a_password_is_never_shown() -> None:
    found = address.find("postgres://me:secret@host/db", {})
    assert found.shown == "postgresql://me:***@host/db"
    assert "secret" not in repr(found)


def test_a_missing_driver_is_said_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(LedgerError) as caught:
        Ledger.open("postgresql://me@host/db")
    assert caught.value.kind == "no-driver"
    assert "'stackmark[postgres]'" in (caught.value.hint or "")


# PostgreSQL


def test_a_server_that_does_not_answer_is_said() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        error = refusal(f"postgresql://me:secret@127.0.0.1:{closed.getsockname()[1]}/db")
    assert error.kind == "unreachable"
    assert "secret" not in error.message
    assert "pg_isready" in (error.hint or "")


def test_a_wrong_password_is_said_and_not_shown(postgres_server: PostgresServer) -> None:
    error = refusal(postgres_server.tcp_url("postgres", "wrong-one"))
    assert error.kind == "login"
    assert "wrong-one" not in error.message


def test_the_right_password_with_a_space_works(postgres_server: PostgresServer) -> None:
    postgres_server.emptied_database()
    with Ledger.open(postgres_server.tcp_url("shared", PASSWORD)) as ledger:
        assert ledger.count() == 0


def test_a_database_that_does_not_exist_is_said(postgres_server: PostgresServer) -> None:
    error = refusal(postgres_server.url("nowhere"))
    assert error.kind == "no-database"
    assert "createdb" in (error.hint or "")


def test_a_user_who_may_not_make_the_schema_is_told_what_to_ask_for(postgres_server: PostgresServer) -> None:
    url = postgres_server.emptied_database()
    postgres_server.sql("DROP ROLE IF EXISTS guest; CREATE ROLE guest LOGIN")
    error = refusal(url.replace("postgres@", "guest@"))
    assert error.kind == "no-right"
    assert "AUTHORIZATION" in (error.hint or "")
    postgres_server.sql("CREATE SCHEMA stackmark AUTHORIZATION guest", "shared")
    with Ledger.open(url.replace("postgres@", "guest@")) as ledger:
        complete(ledger)
        assert ledger.count() == 1
    postgres_server.sql("DROP OWNED BY guest", "shared")


def test_other_tables_of_the_same_database_are_not_touched(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    name = url.split("/")[3].split("?")[0]
    postgres_server.sql("CREATE TABLE runs (mine TEXT); INSERT INTO runs VALUES ('kept')", name)
    with Ledger.open(url) as ledger:
        complete(ledger)
    kept, ours = "SELECT mine FROM public.runs", "SELECT count(*) FROM stackmark.runs"
    assert [postgres_server.sql(query, name) for query in (kept, ours)] == ["kept", "1"]


def test_another_programs_schema_of_our_name_is_refused(postgres_server: PostgresServer) -> None:
    url = postgres_server.emptied_database()
    postgres_server.sql("CREATE SCHEMA stackmark; CREATE TABLE stackmark.theirs (x TEXT)", "shared")
    assert refusal(url).kind == "foreign"


HANG_UP = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = 'shared' AND pid <> pg_backend_pid()"
)


def test_a_server_that_hung_up_between_two_writes_is_called_again(postgres_server: PostgresServer) -> None:
    with Ledger.open(postgres_server.emptied_database()) as ledger:
        run_id = begin(ledger)
        assert postgres_server.sql(HANG_UP, "shared") != "0"
        ledger.finish(run_id, DONE, LINES)
        assert (ledger.run(run_id).status, ledger.stream(run_id)) == ("done", LINES)


def test_a_server_that_hangs_up_in_the_middle_of_a_transaction_is_called_again(postgres_server: PostgresServer) -> None:
    with Ledger.open(postgres_server.emptied_database()) as ledger:
        run_id = begin(ledger)
        hung_up: list[str] = []

        def hang_up(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
            if "INSERT INTO streams" in statement and not hung_up:
                hung_up.append(postgres_server.sql(HANG_UP, "shared"))

        event.listen(ledger._engine, "before_cursor_execute", hang_up)
        ledger.finish(run_id, DONE, LINES)
        assert hung_up == ["1"]
        assert (ledger.run(run_id).status, ledger.stream(run_id)) == ("done", LINES)


def test_a_server_that_hangs_up_every_time_is_said_and_the_run_is_as_it_was(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 0.5)
    with Ledger.open(postgres_server.emptied_database()) as ledger:
        run_id = begin(ledger)

        def hang_up(_c: object, _cursor: object, statement: str, *_rest: object) -> None:
            if "INSERT INTO streams" in statement:
                postgres_server.sql(HANG_UP, "shared")

        event.listen(ledger._engine, "before_cursor_execute", hang_up)
        with pytest.raises(LedgerError) as caught:
            ledger.finish(run_id, DONE, LINES)
        assert caught.value.kind == "unreachable"
        event.remove(ledger._engine, "before_cursor_execute", hang_up)
        assert (ledger.run(run_id).status, ledger.stream(run_id)) == ("running", [])
        ledger.finish(run_id, FAILED, [])


# Exports


def test_an_export_that_cannot_be_written_leaves_no_file(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "runs.csv"
    with Ledger.open(str(file)) as ledger, pytest.raises(SpecError) as caught:
        export_to_file(ledger, RunFilter(), "csv", target)
    assert missing(caught.value.message, target) == []
    assert missing(caught.value.hint or "", "-o") == []
    assert not target.exists()


def test_an_export_that_breaks_keeps_the_file_that_was_there(file: Path, tmp_path: Path) -> None:
    target = tmp_path / "runs.json"
    target.write_text("old")
    with closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("UPDATE runs SET flags = 'half a ['")
    with Ledger.open(str(file)) as ledger, pytest.raises(LedgerError) as caught:
        export_to_file(ledger, RunFilter(), "json", target)
    assert caught.value.kind == "unreadable-row"
    assert target.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_an_export_past_the_end_of_the_disk_is_said_and_leaves_no_file(file: Path, tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Ledger.open(str(file)) as ledger:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
        try:
            with pytest.raises(LedgerError) as caught:
                export_to_file(ledger, RunFilter(), "csv", tmp_path / "out" / ".." / "runs.csv")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.kind == "full"
    assert not (tmp_path / "runs.csv").exists()


def test_parquet_goes_through_a_pipe(file: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    read, write = os.pipe()
    with Ledger.open(str(file)) as ledger, open(write, "wb") as out:
        assert export_to_stream(ledger, RunFilter(), "parquet", out) == 1
    with open(read, "rb") as source:
        (tmp_path / "runs.parquet").write_bytes(source.read())
    assert parquet.read_table(tmp_path / "runs.parquet").num_rows == 1


def test_missing_pyarrow_is_said_with_the_command_that_installs_it(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with Ledger.open(str(file)) as ledger, pytest.raises(SpecError) as caught:
        export_to_file(ledger, RunFilter(), "parquet", tmp_path / "runs.parquet")
    assert "'stackmark[parquet]'" in (caught.value.hint or "")


# Durability


def test_sqlite_is_in_wal_mode_and_waits_for_the_disk(file: Path) -> None:
    with Ledger.open(str(file)) as ledger, ledger._engine.connect() as connection:
        pragmas = {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "application_id")
        }
        full = 2
        assert pragmas == {
            "journal_mode": "wal", "synchronous": full, "foreign_keys": 1, "application_id": schema.APPLICATION_ID,
        }  # fmt: skip


def test_opening_reads_before_it_writes(file: Path) -> None:
    before = file.read_bytes()
    with Ledger.open(str(file)) as ledger, ledger._engine.connect() as connection:
        assert len(connection.execute(select(schema.runs.c.id)).all()) == 1
    assert file.read_bytes() == before


def test_the_ledger_needs_neither_torch_nor_numpy_nor_psycopg_until_used() -> None:
    heavy = {"torch", "numpy", "psycopg", "pyarrow"}
    program = f"import sys, stackmark.ledger.store; print({heavy} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=our_path(), check=True)
    assert done.stdout.strip() == "set()"
