"""A ledger that fails at the end of a run costs no measurement: the next command stores it, and says what is true."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import COMMAND, Answer, ask
from leaving_out import leave_out
from ledger_runs import DONE, LINES, begin
from postgres import PACKAGES, PostgresServer, find_binaries, running_server
from stackmark.cli.main import ITSELF_FAILED
from stackmark.errors import Exit, LedgerError
from stackmark.ledger import rescue, store
from stackmark.ledger.store import Ledger

METRIC = ("--metric", "rate: ([0-9.]+)", "--runs", "1")


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that is stopped and started again."""
    binaries = find_binaries()
    if binaries is None:
        leave_out(f"PostgreSQL's server is not installed (apt-get install {PACKAGES})")
    with running_server(binaries) as server:
        yield server


def program(server: PostgresServer, then: str = "echo rate: 2") -> str:
    """A user's program during which the server goes away."""
    pid = server.folder / "data" / "postmaster.pid"
    return f"sh -c 'kill -INT $(head -1 {pid}); while [ -e {pid} ]; do sleep 0.05; done; {then}'"


def test_a_server_that_comes_back_is_waited_for(own_server: PostgresServer) -> None:
    url = own_server.emptied_database()
    command = [*COMMAND, "run", "--cmd", program(own_server), *METRIC, "--ledger", url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        own_server.start()
        out, err = process.communicate(timeout=60)
    assert process.returncode == Exit.DONE, err
    assert json.loads(out)["results"][0]["runs"][0]["status"] == "done"


def test_a_server_that_stays_away_costs_no_run(
    own_server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "PATIENCE_S", 0.5)
    url = own_server.emptied_database()
    failed = ask("run", "--cmd", program(own_server), *METRIC, "--ledger", url)
    assert failed.code == Exit.LEDGER_FAILED
    assert "trying again" in failed.err
    (saved,) = (tmp_path / "data" / "stackmark" / "rescued").iterdir()
    assert str(saved) in failed.err
    assert (saved.stat().st_mode & 0o777, saved.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    own_server.start()
    is_stored(ask("results", "--ledger", url, "--json"))
    assert not saved.exists()


def is_stored(answer: Answer) -> None:
    assert answer.code == Exit.DONE, answer.err
    (row,) = json.loads(answer.out)["runs"]
    assert (row["status"], row["rate_per_s"]) == ("done", 2.0)
    assert row["id"] in answer.err


def test_a_full_disk_costs_no_run(tmp_path: Path) -> None:
    # A small tmpfs in a mount namespace of its own, which the measured program fills.
    small = tmp_path / "small"
    small.mkdir()
    trial = ["unshare", "-m", "sh", "-c", f"mount -t tmpfs none {small}"]
    if os.getuid() != 0 or subprocess.run(trial, capture_output=True).returncode != 0:
        pytest.skip("only root may mount a small file system")
    fill = f"sh -c 'cat /dev/zero > {small}/fill; echo rate: 2'"
    script = (
        'mount -t tmpfs -o size=2m none "$1" && shift && "$@"; echo $? > code; ls -A small data/stackmark/rescued > seen; '
        f"rm small/fill; {sys.executable} -m stackmark results --json"
    )
    command = ["run", "--cmd", fill, *METRIC, "--json"]
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(small), *COMMAND, *command],
        capture_output=True, text=True, cwd=tmp_path, timeout=120,
        env={**os.environ, "STACKMARK_LEDGER": str(small / "ledger.sqlite3")},
    )  # fmt: skip
    assert (tmp_path / "code").read_text() == f"{Exit.LEDGER_FAILED}\n", done.stderr
    assert "r-" in (tmp_path / "seen").read_text()
    is_stored(Answer(done.returncode, done.stdout[done.stdout.index("{") :], done.stderr))


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a run whose ledger could not be written."""
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        run_id = begin(book)
        with monkeypatch.context() as patch:
            patch.setattr(book, "finish", no_room)
            with pytest.raises(LedgerError):
                rescue.finish_or_rescue(book, run_id, DONE, [*LINES, "half of a pair \udc80"])
    return tmp_path / "ledger.sqlite3.rescued" / f"{run_id}.jsonl"


def no_room(*_anything: object) -> None:
    raise LedgerError("the disk is full")


def test_recover_stores_what_waits(waiting: Path, tmp_path: Path) -> None:
    answer = ask("recover", "--ledger", str(tmp_path / "ledger.sqlite3"), "--json")
    assert answer.code == Exit.DONE
    assert [one["run"] for one in json.loads(answer.out)["stored"]] == [waiting.stem]
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        assert book.run(waiting.stem).rate_per_s == DONE.rate_per_s
        assert book.stream(waiting.stem) == [*LINES, "half of a pair \udc80"]
    again = ask("recover", "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert (again.code, again.out) == (Exit.DONE, "")


def test_recover_takes_a_file_that_was_moved(waiting: Path, tmp_path: Path) -> None:
    moved = waiting.rename(tmp_path / "moved.jsonl")
    assert ask("recover", str(moved), "--ledger", str(tmp_path / "ledger.sqlite3")).code == Exit.DONE
    assert not moved.exists()


@pytest.mark.parametrize("name", ["missing.jsonl", "."])
def test_a_file_that_is_not_there_is_a_sentence(waiting: Path, tmp_path: Path, name: str) -> None:
    answer = ask("recover", str(tmp_path / name), "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert answer.code == Exit.LEDGER_FAILED
    assert ITSELF_FAILED not in answer.err


@pytest.mark.parametrize("content", ["", "{}\n", "no json", '{"stackmark_rescue": 1}\n', "header\n5\n", "header\n[\n"])
def test_a_file_that_cannot_be_read_is_kept_and_said(waiting: Path, tmp_path: Path, content: str) -> None:
    header = waiting.read_text().splitlines()[0]
    waiting.write_text(content.replace("header", header))
    answer = ask("recover", "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert answer.code == Exit.LEDGER_FAILED
    assert str(waiting) in answer.err
    assert ITSELF_FAILED not in answer.err
    assert waiting.exists()


def test_a_folder_that_others_may_write_is_not_searched(waiting: Path, tmp_path: Path) -> None:
    waiting.parent.chmod(0o777)
    answer = ask("results", "--ledger", str(tmp_path / "ledger.sqlite3"), "--json")
    assert [run["status"] for run in json.loads(answer.out)["runs"]] != ["done"]
    assert waiting.exists()


def test_a_run_that_was_deleted_leaves_its_file_to_its_owner(waiting: Path, tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        book.delete([waiting.stem], force=True)
    answer = ask("recover", str(waiting), "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert answer.code == Exit.LEDGER_FAILED
    assert waiting.exists()
