"""Which folders of the host a user's own program sees in a container, which of them it may write to, and what is left."""

import os
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from asking import COMMAND, ask, environment
from stackmark.places.folders import private_folder, remove_forgotten


def run_own(folder: Path, program: str, *more: str) -> tuple[int, str]:
    """Run a shell's program in `folder`; exit code, and what was said of it."""
    answer = ask(
        "run", "--cmd", f"sh -c {shlex.quote(program)}", "--cwd", str(folder), "--runs", "1",
        "--ledger", str(folder.parent / "ledger.sqlite3"), *more,
    )  # fmt: skip
    return answer.code, answer.out + answer.err


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "input").write_text("42\n")
    return folder


def test_in_a_container_the_working_folder_is_read_only_and_the_scratch_folder_is_not(
    work: Path, podman_reach: dict[str, str]
) -> None:
    out = work.parent / "out"
    out.mkdir()
    program = (
        'test "$(cat input)" = 42; ! touch here 2>&1; touch "$STACKMARK_SCRATCH/there"; test "$STACKMARK_SCRATCH" = /scratch; '
        f"! touch {work.parent}/above 2>&1; touch {out}/written"
    )
    code, said = run_own(work, f"set -e; {program}", "--on", "container", "--mount", f"{out}:{out}:rw")
    assert code == 0, said
    assert sorted(path.name for path in work.iterdir()) == ["input"]
    assert [path.name for path in out.iterdir()] == ["written"]
    code, said = run_own(work, f"touch {out}/again", "--on", "container", "--mount", f"{out}:{out}")
    assert code == 3  # a mount is read-only unless it says rw
    assert "--mount SRC:DST:rw" in said


def test_on_the_host_too_the_scratch_folder_is_there_and_is_deleted(work: Path) -> None:
    code, said = run_own(work, f'echo $STACKMARK_SCRATCH > {work}/where; touch "$STACKMARK_SCRATCH/there"')
    assert code == 0, said
    scratch = Path((work / "where").read_text().strip())
    assert scratch.name == "scratch"
    assert not scratch.parent.exists()


@pytest.mark.parametrize("where", ["home", "above"])
def test_a_home_folder_is_not_mounted_without_being_asked(
    tmp_path: Path, podman_reach: dict[str, str], monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    home = tmp_path / "people" / "me"
    home.mkdir(parents=True)
    (home / "input").write_text("42\n")
    monkeypatch.setenv("HOME", str(home))
    folder = home if where == "home" else home.parent
    code, said = run_own(folder, "true", "--on", "container")
    assert code == 2
    assert "--mount" in said
    if where == "home":  # asked for by hand
        code, said = run_own(folder, "cat input", "--on", "container", "--mount", f"{folder}:{folder}")
        assert code == 0, said


def test_the_folder_of_a_killed_probe_is_removed_by_the_next_command(
    tmp_path: Path, podman_reach: dict[str, str]
) -> None:
    """kill -9 of a driver in a probe leaves its folder; a probe has no row in the ledger."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    arguments = ["run", "--cmd", "true", "--cwd", str(tmp_path), "--on", "container", "--runs", "1"]
    ledger = tmp_path / "ledger.sqlite3"
    with subprocess.Popen(
        [*COMMAND, *arguments],
        env=environment(ledger, TMPDIR=str(temporary)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as driver:
        deadline = time.monotonic() + 60
        while not list(temporary.glob("stackmark-r-*")):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        driver.send_signal(signal.SIGKILL)
    assert list(temporary.glob("stackmark-r-*"))
    ours = temporary / "stackmark-r-01m7fb9g1zpv4gkm46npd7yjhf-mine"
    ours.mkdir()  # not of this shape: somebody else's
    done = subprocess.run(
        [*COMMAND, "results"], env=environment(ledger, TMPDIR=str(temporary)), capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(temporary.glob("stackmark-r-*")) == [ours]


def test_the_folder_of_a_living_driver_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with private_folder("r-01m7fb9g1zpv4gkm46npd7yjhf") as mine:
        assert remove_forgotten() == 0
        assert mine.is_dir()
        elsewhere = tmp_path / mine.name.replace(f"-{os.stat('/proc/self/ns/pid').st_ino}.", "-1.")
        elsewhere.mkdir()  # of another pid namespace: whether it lives cannot be seen from here
        dead = tmp_path / mine.name.replace(f".{os.getpid()}.", ".999999999.")
        dead.mkdir()
        monkeypatch.setattr(os, "getuid", lambda: 4711)
        assert remove_forgotten() == 0  # another user's
        monkeypatch.undo()
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        assert remove_forgotten() == 1
        assert elsewhere.is_dir()
        assert not dead.exists()
    assert not mine.exists()
