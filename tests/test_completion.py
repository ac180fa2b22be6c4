"""Completion: what is offered, how quickly it is found, and that real shells put it on their line."""

import json
import os
import pty
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from asking import COMMAND, ask, environment
from leaving_out import leave_out
from recorded import load
from stackmark.cli.completing import Table, candidates, load_table, split_line, table_key, table_path
from stackmark.cli.completion import make_table
from stackmark.ledger.glance import glance_at_baselines, glance_at_experiments, glance_at_runs
from stackmark.ledger.store import Ledger

TAB = b"\t"
EXPERIMENT = "x-01m7fa3ecghx2qyvqdmn749k0t"


@pytest.fixture(scope="module")
def table() -> Table:
    return make_table()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with one comparison and a baseline of it."""
    ledger = tmp_path_factory.mktemp("ledger") / "ledger.sqlite3"
    with Ledger.open(str(ledger)) as book:
        assert load(book, "h200_host_container") == EXPERIMENT
    with closing(sqlite3.connect(ledger)) as database, database:
        for name in ("before-upgrade", "x; touch pwned"):
            database.execute("INSERT INTO baselines VALUES (?, ?, 1.0)", (name, EXPERIMENT))
    return ledger


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.getbasetemp() / "completion-cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


def offered(line: str, table: Table) -> list[str]:
    words, incomplete, _ = split_line(line)
    return [one.text for one in candidates(words, incomplete, table)]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("stackmark comp", ["compare", "completion"]),
        ("stackmark -q comp", ["compare", "completion"]),
        ("FOO=1 stackmark comp", ["compare", "completion"]),
        ("stackmark cluster sw", ["sweep"]),
        ("stackmark run tr", ["train/"]),
        ("stackmark run train/resnet50_", ["train/resnet50_v1.5", "train/resnet50_v2"]),
        ("stackmark run train/lenet,train/resnet50_v2", ["train/lenet,train/resnet50_v2"]),
        ("stackmark run --on con", ["container"]),
        ("stackmark run --on container,sh", ["container,shm="]),
        ("stackmark run --on=container,sh", ["--on=container,shm="]),
        ("stackmark run --on container,shm=1g,cpus", ["container,shm=1g,cpus=", "container,shm=1g,cpuset="]),
        ("stackmark run --on container,shm=1g,sh", []),
        ("stackmark compare train/lenet --arm host,prec", ["host,precision="]),
        ("stackmark compare train/lenet --arm host,precision=bf", ["host,precision=bf16"]),
        ("stackmark compare op/gemm --arm host,bat", []),
        ("stackmark compare --cmd x --arm host,metric-t", ["host,metric-take="]),
        ("stackmark run train/lenet --precision bf16,fp3", ["bf16,fp32"]),
        ("stackmark run train/lenet --precision fp", ["fp32", "fp16"]),
        ("stackmark run train/lenet --precision=fp8", []),
        ("stackmark run op/gemm --precision fp8", ["fp8"]),
        ("stackmark run --precision fp8", ["fp8"]),
        ("stackmark run train/lenet --until", []),
        ("stackmark compare train/lenet --until", ["--until-decided"]),
        ("stackmark compare train/lenet --primers --prim", []),
        ("stackmark compare --fail-on s", ["slower"]),
        ("stackmark export --format p", ["parquet"]),
        ("stackmark completion z", ["zsh"]),
        ("stackmark help exit", ["exit-codes"]),
        ("stackmark config set marg", ["margin"]),
        ("stackmark config set cluster.sweep.marg", ["cluster.sweep.margin"]),
        ("stackmark results --place p", ["pod"]),
        ("stackmark workloads -- --js", []),
        ("stackmark no-such-command x", []),
    ],
)
def test_what_is_offered(line: str, wanted: list[str], table: Table) -> None:
    assert offered(line, table) == wanted


@pytest.mark.parametrize("line", ["stackmark compare --report ", "stackmark run --ledger x", "stackmark import "])
def test_files_are_left_to_the_shell(line: str, table: Table) -> None:
    words, incomplete, _ = split_line(line)
    assert [one.kind for one in candidates(words, incomplete, table)] == ["file"]


def test_options_are_offered_unasked_only_where_nothing_else_fits(table: Table) -> None:
    unasked, asked = offered("stackmark run train/lenet ", table), offered("stackmark run train/lenet -", table)
    assert {"--on", "--runs"} <= {*unasked} < {*asked}
    assert len(unasked) < 20 < len(asked)


def test_stored_names_are_offered(table: Table, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACKMARK_LEDGER", str(recorded))
    assert offered("stackmark show ", table) == ["last", EXPERIMENT]
    assert offered("stackmark resume l", table) == ["last"]
    assert offered("stackmark report x-01m7f", table) == [EXPERIMENT]
    assert offered("stackmark report x-zz", table) == []
    assert len(offered("stackmark show r-", table)) > 4
    assert offered("stackmark check ", table) == ["before-upgrade"]
    monkeypatch.setenv("STACKMARK_LEDGER", "none.sqlite3")
    assert offered("stackmark check ", table) == []
    assert offered(f"stackmark check --ledger {recorded} ", table) == ["before-upgrade"]


def test_a_look_into_the_ledger_leaves_nothing_behind(recorded: Path) -> None:
    before = {path.name: path.read_bytes() for path in recorded.parent.iterdir()}
    assert glance_at_experiments(str(recorded))
    assert {path.name: path.read_bytes() for path in recorded.parent.iterdir()} == before


def test_a_ledger_that_is_being_written_is_read(recorded: Path, tmp_path: Path) -> None:
    copy = tmp_path / "ledger.sqlite3"
    shutil.copy(recorded, copy)
    with Ledger.open(str(copy)) as book:
        load(book, "h200_noise")
        assert len(glance_at_experiments(str(copy), "x-")) == 2


@pytest.mark.parametrize(
    "where", ["postgresql://nowhere.invalid/x", "none.sqlite3", "/dev/null", "/", "~nobody-here/x"]
)
def test_a_ledger_that_cannot_be_read_offers_nothing(where: str) -> None:
    assert glance_at_experiments(where) == glance_at_runs(where) == glance_at_baselines(where) == []


def test_a_database_of_something_else_offers_nothing(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite3"
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("CREATE TABLE experiments (id BLOB)")
    assert glance_at_experiments(str(file)) == []
    file.write_bytes(b"not a database" * 1000)
    assert glance_at_experiments(str(file)) == []


def test_a_name_that_a_shell_would_run_is_not_offered(recorded: Path) -> None:
    assert [name for name, _ in glance_at_baselines(str(recorded))] == ["before-upgrade"]


def answered(line: str, shell: str = "zsh", **more: str) -> str:
    done = subprocess.run(
        COMMAND, env=environment("none.sqlite3", _STACKMARK_COMPLETE=shell, _STACKMARK_LINE=line, **more),
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout


def test_the_table_is_kept_and_made_anew_when_the_program_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = load_table()
    kept = json.loads(Path(table_path()).read_text())
    assert (kept["key"], kept["table"]) == (table_key(), json.loads(json.dumps(made)))
    kept["table"]["places"] = {"moon": {}}
    Path(table_path()).write_text(json.dumps(kept))
    assert [*load_table()["places"]] == ["moon"]
    Path(table_path()).write_text(json.dumps({**kept, "key": "older"}))
    assert "host" in load_table()["places"]
    Path(table_path()).write_text("{")
    assert "host" in load_table()["places"]


def test_where_no_table_can_be_kept_it_is_made_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/x")
    assert "host" in load_table()["places"]


def test_making_the_table_for_a_command_leaves_a_timer_of_its_process_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before_s, _ = signal.setitimer(signal.ITIMER_REAL, 900)
    try:
        load_table()
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 600
    finally:
        signal.setitimer(signal.ITIMER_REAL, before_s)


def test_completion_with_its_table_imports_no_package() -> None:
    load_table()
    code = (
        "import sys; from stackmark.__main__ import main; main()\n"
        "print(*sorted({'click', 'pydantic', 'rich', 'sqlalchemy', 'numpy', 'torch'} & {*sys.modules}), file=sys.stderr)"
    )
    variables = {"_STACKMARK_COMPLETE": "zsh", "_STACKMARK_LINE": "stackmark show "}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment("none.sqlite3", **variables),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.split() == []
    assert done.stdout.startswith("word\tlast\t")


@pytest.mark.parametrize(
    "line", ["", "stackmark", "stackmark 'ru", 'stackmark --arm "a', "stackmark \\", "stackmark \x00\x1b["]
)
def test_whatever_stands_on_the_line_is_answered_silently(line: str) -> None:
    answered(line.replace("\x00", ""))


def test_bash_is_given_what_follows_its_word_breaks() -> None:
    line = "stackmark compare train/lenet --arm host,precision=b"
    assert answered(line, "bash", _STACKMARK_BREAKS="=:").split("\t")[1] == "bf16"
    assert answered(line, "bash", _STACKMARK_BREAKS="").split("\t")[1] == "host,precision=bf16"
    assert answered(line, "zsh", _STACKMARK_BREAKS="=:").split("\t")[1] == "host,precision=bf16"


# In the shells themselves


SHELLS = {
    "bash": ("bash", "--noprofile", "--rcfile", "SCRIPT", "-i"),
    "zsh": ("zsh", "-i"),
    "fish": ("fish", "--no-config", "--interactive", "--init-command", "source SCRIPT"),
}


class Shell:
    """An interactive shell on a terminal of its own, with `stackmark` in its PATH and its completion loaded."""

    def __init__(self, kind: str, folder: Path, ledger: Path) -> None:
        script = folder / f"completion.{kind}"
        script.write_text(ask("completion", kind).out)
        program = folder / "bin" / "stackmark"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m stackmark "$@"\n')
        program.chmod(0o755)
        (folder / ".zshrc").write_text(
            f"autoload -U compinit; compinit -u -d {folder}/dump; source {script}\nPS1='> '\n"
        )
        variables = environment(
            ledger, HOME=str(folder), ZDOTDIR=str(folder), PATH=f"{program.parent}:{os.environ['PATH']}", PS1="> ",
            COLUMNS="200", LINES="50",
        )  # fmt: skip
        argv = [word.replace("SCRIPT", str(script)) for word in SHELLS[kind]]
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            os.chdir(folder)
            os.execvpe(argv[0], argv, variables)

    def type_until(self, keys: bytes, wanted: str, limit_s: float = 60.0) -> str:
        """Type, and read the terminal until a text that fits the pattern is there; what was read."""
        os.write(self._terminal, keys)
        seen, end_s = "", time.monotonic() + limit_s
        while not re.search(wanted, seen) and time.monotonic() < end_s:
            if select.select([self._terminal], [], [], 0.2)[0]:
                with suppress(OSError):
                    seen += os.read(self._terminal, 65536).decode(errors="replace")
        return seen

    def close(self) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.close(self._terminal)
        os.waitpid(self._pid, 0)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path, recorded: Path) -> Iterator[Shell]:
    kind: str = request.param
    if shutil.which(kind) is None:
        leave_out(f"{kind} is not installed")
    started = Shell(kind, tmp_path, recorded)
    # Until its prompt stands there, what is typed may be lost.
    started.type_until(b"echo rea''dy\r", "ready\r")
    yield started
    started.close()


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("stackmark clus", "cluster "),
        ("stackmark run --on container,sh", "container,shm="),
        ("stackmark run --on=container,netw", "--on=container,network="),
        ("stackmark compare train/lenet --arm host,precision=b", "host,precision=bf16 "),
        ("stackmark report x-", f"{EXPERIMENT} "),
        ("stackmark check b", "before-upgrade "),
        ("stackmark suite run gpu", "gpu-server "),
    ],
)
def test_a_shell_completes(shell: Shell, typed: str, completed: str) -> None:
    # Shells draw their line in pieces; so what stands on it is printed, by an `echo` around it. zsh takes its space back.
    line = typed[: typed.rindex(" ") + 1] + completed
    wanted = f"{re.escape(line.rstrip())} ?\r\n"
    seen = shell.type_until(typed.encode() + TAB + b"\x01echo '\x05'\r", wanted)
    assert re.search(wanted, seen)
