"""Which Python of an image runs the worker: the real script, in the shells that images have, over folders of real Pythons."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from leaving_out import leave_out
from pythons import pyenv_python
from stackmark.places.bundle import TARGET
from stackmark.places.image_python import NO_PYTHON_EXIT, image_command
from stackmark.spec import PYTHONS_VARIABLE

SHELLS = (("dash",), ("busybox", "sh"), ("bash", "--posix"), ("dash", "-u"))
# Instead of the worker: which Python ran, what came in, and what it was told.
ZIP = f"""
import os, sys
print(sys.version_info[0:2] >= (3, 10), "%d.%d" % sys.version_info[:2])
print(os.environ.get("STARTED_AS"))
print(sys.stdin.read())
print(os.environ.get("{PYTHONS_VARIABLE}") is not None)
"""


class Folder:
    """A folder of Pythons, in which the script is run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.mkdir()
        self.zip = path.parent / "worker.py"
        self.zip.write_text(ZIP)

    def put(self, name: str, python: str | Path) -> None:
        """Put a real Python there; a link would not find its virtual environment."""
        self.script(name, f'STARTED_AS={name} exec {python} "$@"')

    def script(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def run(self, shell: tuple[str, ...] = ("dash",), **environment: str) -> subprocess.CompletedProcess[str]:
        where = shutil.which(shell[0])
        if where is None:
            leave_out(f"{shell[0]} is not installed")
        _, option, script = image_command()
        script = script.replace(TARGET, str(self.zip)).replace("/opt/", f"{self.path}/opt/")
        argv = [where, *shell[1:], option, script]
        environment = {"PATH": str(self.path), **environment}
        return subprocess.run(
            argv, env=environment, input="the task", capture_output=True, text=True, timeout=60, check=False
        )

    def started(self, shell: tuple[str, ...] = ("dash",), **environment: str) -> list[str]:
        done = self.run(shell, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "pythons")


@pytest.fixture
def new() -> Path:
    return pyenv_python("3.10") / "bin/python"


@pytest.fixture
def old() -> Path:
    return pyenv_python("3.6") / "bin/python"


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_the_python_with_torch_is_taken_wherever_it_lies(folder: Folder, new: Path, shell: tuple[str, ...]) -> None:
    folder.put("python3", new)
    folder.put("opt/conda/bin/python", sys.executable)
    _, name, heard, looked = folder.started(shell)
    assert (name, heard, looked) == ("opt/conda/bin/python", "the task", "False")


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_an_image_without_python_ends_with_a_code_of_its_own(folder: Folder, shell: tuple[str, ...]) -> None:
    done = folder.run(shell)
    assert (done.returncode, done.stdout) == (NO_PYTHON_EXIT, "")
    assert "python3" in done.stderr


def test_the_first_of_two_with_torch_is_taken(folder: Folder) -> None:
    folder.put("python", sys.executable)
    folder.put("opt/venv/bin/python", sys.executable)
    assert folder.started()[1] == "python"


def test_without_torch_the_first_that_is_new_enough_is_taken(folder: Folder, new: Path, old: Path) -> None:
    folder.put("python3", old)
    folder.put("python", new)
    folder.put("opt/venv/bin/python", new)
    assert folder.started()[:2] == ["True 3.10", "python"]


@pytest.mark.parametrize("version", ["2.7", "3.6"])
def test_an_old_python_is_started_so_that_it_says_itself_that_it_is_old(folder: Folder, version: str) -> None:
    folder.script("python3", "echo neither; exit 3")
    folder.put("python", pyenv_python(version) / "bin/python")
    first, name, *_, looked = folder.started()
    assert version in first
    assert (name, looked) == ("python", "True")


def test_a_program_that_is_no_python_is_started_when_there_is_nothing_else(folder: Folder) -> None:
    folder.script("python3", 'echo garbage; [ "$1" = -c ] || exit 5')
    done = folder.run()
    assert (done.returncode, done.stdout) == (5, "garbage\n")


@pytest.mark.parametrize(
    "text", ["echo garbage; exit 0", "yes | head -c 100000; exit 1", "cat; exit 0", "kill -9 $$", "exit 127"]
)
def test_what_prints_garbage_or_fails_is_passed_over(folder: Folder, new: Path, text: str) -> None:
    folder.script("python3", f"PATH=/usr/bin:/bin; {text}")
    folder.put("python", new)
    assert folder.started()[1:3] == ["python", "the task"]


def test_a_file_that_cannot_be_started_is_passed_over(folder: Folder, new: Path) -> None:
    (folder.path / "python3").write_bytes(b"\x7fELF\x02\x01\x01" + bytes(100))
    (folder.path / "python3").chmod(0o644)
    (folder.path / "opt/conda/bin/python").mkdir(parents=True)
    folder.put("python", new)
    assert folder.started()[1] == "python"


def test_a_folder_called_torch_is_not_torch(
    folder: Folder, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "here/torch").mkdir(parents=True)
    (tmp_path / "here/torch/__init__.py").touch()
    monkeypatch.chdir(tmp_path / "here")
    folder.put("python3", new)
    folder.put("python", sys.executable)
    assert folder.started(PYTHONPATH=str(tmp_path))[1] == "python"


def test_without_a_path_the_named_places_are_still_found(folder: Folder) -> None:
    folder.put("opt/venv/bin/python", sys.executable)
    folder.path.chmod(0o555)
    assert folder.started(PATH=os.devnull)[1] == "opt/venv/bin/python"


def test_a_named_python_needs_no_shell() -> None:
    assert image_command("/usr/local/bin/python3.12") == ("/usr/local/bin/python3.12", TARGET)
