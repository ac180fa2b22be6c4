"""A ledger that somebody else wrote does not decide what runs here: each test is a command on a file that was changed."""

import json
import os
import pty
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, Answer, ask
from experiment_asking import empty_ledger
from ledger_runs import begin
from stackmark.cli.main import ITSELF_FAILED
from stackmark.errors import Exit
from stackmark.experiments import driver, trust
from stackmark.ledger.store import Ledger
from worker_process import TRIVIAL

Json = dict[str, Any]
HARMLESS = "sh -c 'echo rate: 2'"
OWN = ("--cmd", HARMLESS, "--metric", "rate: ([0-9.]+)")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No ledger yet, and nothing typed on this machine so far."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    yield empty_ledger(tmp_path, monkeypatch)
    trust._allowed.clear()


def answer(*arguments: str) -> Answer:
    """In a process of its own, which was told nothing before."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, env=os.environ, timeout=120, stdin=subprocess.DEVNULL
    )
    return Answer(done.returncode, done.stdout, done.stderr)


def change(file: Path, table: str, column: str, changed: Callable[[Json], object]) -> None:
    """As whoever may write the ledger can."""
    with closing(sqlite3.connect(file)) as hand, hand:
        for number, stored in hand.execute(f"SELECT rowid, {column} FROM {table}").fetchall():
            data = json.loads(stored)
            changed(data)
            hand.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (json.dumps(data), number))


def saved(file: Path) -> None:
    assert answer("baseline", "save", "before", *OWN, "--runs", "1").code == Exit.DONE


def open_again(file: Path) -> str:
    """A comparison with one run missing; its id."""
    made = answer("compare", *OWN, "--arm", "host", "--arm", "host", "--blocks", "2", "--no-primers", "--json")
    assert made.code == Exit.DONE, made.err
    with closing(sqlite3.connect(file)) as hand, hand:
        hand.execute("PRAGMA foreign_keys = ON")
        hand.execute("DELETE FROM runs WHERE id = (SELECT max(id) FROM runs)")
    return str(json.loads(made.out)["experiment_id"])


def test_what_was_typed_here_is_checked_and_saved_again_without_a_question(file: Path) -> None:
    saved(file)
    assert answer("check", "before").code == Exit.DONE
    assert answer("baseline", "save", "before").code == Exit.DONE
    noted = file.parent / "state" / "stackmark" / "trusted"
    assert (noted.stat().st_mode & 0o777, noted.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert "rate" not in noted.read_text()


def test_a_command_that_was_changed_in_the_ledger_is_not_run_by_check(file: Path, tmp_path: Path) -> None:
    saved(file)
    evil = tmp_path / "evil"
    change(file, "runs", "spec", lambda spec: spec["params"].update(cmd=f"sh -c 'echo rate: 2; touch {evil}'"))
    for command in (("check", "before"), ("baseline", "save", "before")):
        refused = answer(*command)
        assert refused.code == Exit.WRONG_USE
        assert "--trust-ledger" in refused.err
        assert f"touch {evil}" in refused.err
        assert not evil.exists()
    assert answer("check", "before", "--trust-ledger").code == Exit.DONE
    assert evil.exists()


def test_a_command_that_came_with_an_imported_ledger_is_not_run(file: Path, tmp_path: Path) -> None:
    experiment = open_again(file)
    evil = tmp_path / "evil"

    def put(design: Json) -> None:
        for arm in design["arms"]:
            arm["spec"]["params"]["cmd"] = f"touch {evil}"

    change(file, "experiments", "design", put)
    ours = str(tmp_path / "ours.sqlite3")
    assert answer("import", str(file), "--ledger", ours).code == Exit.DONE
    refused = answer("resume", experiment, "--ledger", ours)
    assert refused.code == Exit.WRONG_USE
    assert "--trust-ledger" in refused.err
    assert not evil.exists()


def test_resume_runs_what_was_typed_here_and_not_a_command_that_was_changed(file: Path, tmp_path: Path) -> None:
    experiment = open_again(file)
    evil = tmp_path / "evil"

    def put(design: Json, command: str) -> None:
        for arm in design["arms"]:
            arm["spec"]["params"]["cmd"] = command

    change(file, "experiments", "design", lambda design: put(design, f"touch {evil}"))
    refused = answer("resume", experiment)
    assert refused.code == Exit.WRONG_USE
    assert "--trust-ledger" in refused.err
    assert not evil.exists()
    change(file, "experiments", "design", lambda design: put(design, HARMLESS))
    assert answer("resume", experiment).code == Exit.DONE


@pytest.mark.parametrize(
    ("place", "options"),
    [
        ("container", {"image": "example.org/evil"}),
        ("host", {"env": ["LD_PRELOAD=/x"]}),
        ("host", {"env": ["OMP_NUM_THREADS=1"]}),
        ("container", {"env": ["LD_PRELOAD=/x"]}),
        ("container", {"mount": ["/etc:/host"]}),
        ("pod", {"mount": ["claim:secrets:/host"]}),
        ("container", {"privileged": True}),
        ("container", {"cap_add": ["SYS_ADMIN"]}),
        ("container", {"rootfs": True}),
        ("pod", {"kubeconfig": "/tmp/evil"}),
        ("pod", {"patch": "/tmp/evil.yaml"}),
        ("pod", {"host_network": True}),
        ("pod", {"service_account": "admin"}),
    ],
)
def test_rights_images_and_files_of_a_place_are_asked_about(file: Path, place: str, options: Json) -> None:
    change(
        stored(file),
        "experiments",
        "design",
        lambda design: design["arms"][0].update(place=place, place_options=options),
    )
    refused = ask("resume", "last")
    assert refused.code == Exit.WRONG_USE
    assert next(iter(options)) in refused.err
    assert "--trust-ledger" in refused.err


def stored(file: Path) -> Path:
    """An open comparison of somebody else's, without anything that needs trust."""
    spec = {"schema_version": 1, "workload": "train/trivial_cifar10", "params": dict(TRIVIAL), "ranks": 1}
    arm = {"label": "a", "place": "host", "place_options": {}, "typed": {}, "spec": spec}
    design = {"arms": [arm, arm], "blocks": 2, "seed": 1, "margin": 0.01}
    Ledger.open(str(file)).close()
    with closing(sqlite3.connect(file)) as hand, hand:
        values = ("x-" + "0" * 26, 1.0, "", "", "{}", "compare", json.dumps(design))
        hand.execute(
            "INSERT INTO experiments (id, created_unix_s, command, note, request, kind, design) VALUES (?,?,?,?,?,?,?)",
            values,
        )
    return file


@pytest.mark.parametrize("name", ["checkpoint_dir", "trace_file", "data"])
def test_a_path_among_the_parameters_is_asked_about(file: Path, name: str) -> None:
    change(
        stored(file), "experiments", "design", lambda design: design["arms"][1]["spec"]["params"].update({name: "/etc"})
    )
    refused = ask("resume", "last")
    assert refused.code == Exit.WRONG_USE
    assert f"{name}: /etc" in refused.err


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        (lambda design: design["arms"][0]["spec"]["params"].update(batch=-1), Exit.WRONG_USE),
        (lambda design: design["arms"][0]["spec"]["params"].update(unheard="x"), Exit.WRONG_USE),
        (lambda design: design["arms"][0]["spec"].update(workload="train/nothing"), Exit.WRONG_USE),
        (lambda design: design.update(arms=[]), Exit.LEDGER_FAILED),
        (lambda design: design.update(blocks=2_000_000_000), Exit.LEDGER_FAILED),
        (lambda design: design.update(seed="'; DROP TABLE runs; --"), Exit.LEDGER_FAILED),
        (lambda design: design.clear(), Exit.LEDGER_FAILED),
    ],
)
def test_a_design_that_cannot_be_is_a_sentence(file: Path, changed: Callable[[Json], object], code: Exit) -> None:
    change(stored(file), "experiments", "design", changed)
    for command in (("resume", "last"), ("resume", "last", "--trust-ledger")):
        refused = ask(*command)
        assert refused.code == code, refused.err
        assert ITSELF_FAILED not in refused.err


def test_on_a_terminal_it_is_asked_once(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    saved(file)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "another-user"))
    assert on_terminal("n", "check", "before") == (Exit.DONE, b"")
    code, out = on_terminal("y", "check", "before")
    assert (code, b"command/own" in out) == (Exit.DONE, True)
    assert answer("check", "before").code == Exit.DONE


def on_terminal(typed: str, *arguments: str) -> tuple[int, bytes]:
    """A command with a terminal for what it says and reads: its exit code, and its standard output."""
    ours, theirs = pty.openpty()
    os.write(ours, f"{typed}\n".encode())
    process = subprocess.Popen([*COMMAND, *arguments], stdin=theirs, stderr=theirs, stdout=subprocess.PIPE)
    os.close(theirs)
    reader = threading.Thread(target=drained, args=[ours])
    reader.start()
    out, _ = process.communicate(timeout=120)
    reader.join()
    os.close(ours)
    return process.returncode, out


def drained(terminal: int) -> None:
    """Reads until nobody has the terminal open any more: a full one would stop who writes to it."""
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_a_list_that_others_may_write_is_not_believed(file: Path, mode: int) -> None:
    saved(file)
    (file.parent / "state" / "stackmark" / "trusted").chmod(mode)
    assert answer("check", "before").code == Exit.WRONG_USE


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users:
- name: u
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, interactiveMode: Never, command: touch, args: [EVIL]}}
"""


def test_cleaning_up_takes_no_kubeconfig_from_the_ledger(file: Path, tmp_path: Path) -> None:
    evil, config = tmp_path / "evil", tmp_path / "config"
    config.write_text(KUBECONFIG.replace("EVIL", str(evil)))
    with Ledger.open(str(file)) as book:
        begin(book, place="pod", machine=driver.machine_name(), boot=driver.boot_name())
    ours = {"driver_start_ticks": 1, "pid_namespace": driver.pid_namespace()}
    handle = {**ours, "namespace": "default", "job": "j", "context": "c", "kubeconfig": str(config)}
    change(file, "runs", "handle", lambda stored: stored.update(handle))
    assert answer("results").code == 0
    with Ledger.open(str(file)) as book:
        assert [row.failure_kind for row in book.runs()] == ["lost"]
    assert not evil.exists()
