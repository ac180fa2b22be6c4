"""The worker's zip file: its bytes, what is in it, and the command that writes it."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import stackmark as sm
from asking import ask
from stackmark.errors import Exit
from stackmark.places.bundle import LIMIT_BYTES, SUFFIXES, worker_bundle

ROOT = Path(__file__).parents[1]
# Imports every module of the zip file, in an interpreter without packages; prints those that ask for a package.
IMPORT_ALL = """
import importlib, json, sys, zipfile
sys.path.insert(0, sys.argv[1])
found = {}
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    if not name.endswith(".py") or name.endswith("__main__.py"):
        continue
    module = name[:-3].replace("/", ".")
    module = module[:-9] if module.endswith(".__init__") else module
    try:
        importlib.import_module(module)
        found[module] = None
    except ImportError as error:
        found[module] = error.name
print(json.dumps(found))
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return worker_bundle().write(tmp_path / "worker.pyz")


def packed_elsewhere(folder: Path, hash_seed: int, umask: int) -> str:
    """The hash of a file that a process of its own packs, in another folder and with other settings."""
    folder.mkdir()
    code = "import stackmark, sys; sys.stdout.buffer.write(stackmark.bundle().content)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": str(hash_seed), "TZ": f"UTC{hash_seed}"},
        cwd=folder, umask=umask, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    return hashlib.sha256(done.stdout).hexdigest()


def test_the_same_sources_give_the_same_bytes(tmp_path: Path) -> None:
    first = packed_elsewhere(tmp_path / "a", 1, 0o022)
    assert packed_elsewhere(tmp_path / "b", 2, 0o077) == first == sm.bundle().sha256


def test_a_config_map_holds_it() -> None:
    assert len(sm.bundle().content) < LIMIT_BYTES


def test_what_a_checkout_holds_beside_the_sources_is_not_packed(tmp_path: Path) -> None:
    package = tmp_path / "stackmark"
    for name in ("machine/a.py", "worker/zip_main.py", "workloads/data/t.csv"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("")
    clean = worker_bundle(package).sha256
    for name in ("machine/.a.py", "machine/a.py.orig", "machine/__pycache__/a.cpython-311.pyc", "workloads/data/N.md"):
        (package / name).parent.mkdir(exist_ok=True)
        (package / name).write_text("")
    worker_bundle.cache_clear()
    assert worker_bundle(package).sha256 == clean


def test_every_file_of_the_worker_is_packed(bundle: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", *(f"src/stackmark/{layer}" for layer in ("machine", "worker", "workloads"))],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    packed = set(zipfile.ZipFile(bundle).namelist())
    left_out = {name for name in listed if (ROOT / name).exists() and name.removeprefix("src/") not in packed}
    assert {Path(name).suffix for name in left_out} <= {".md"}, f"packed are files that end in {SUFFIXES}"


def test_it_needs_the_standard_library_and_in_implementations_torch(bundle: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(bundle)], capture_output=True, text=True, check=True
    )
    found: dict[str, str | None] = json.loads(done.stdout)
    assert {"stackmark.worker.run", "stackmark.events", "pynvml"} <= {name for name in found if found[name] is None}
    assert {asked for name, asked in found.items() if ".impl" not in name} == {None}
    # Images are read from a folder with numpy and Pillow, where a user asks for that.
    del found["stackmark.workloads.train.impl.folder"]
    assert set(found.values()) == {None, "torch"}
    assert {name.split(".")[1] for name in found if name.count(".") > 1} == {"machine", "worker", "workloads"}


def test_the_licence_of_nvidias_module_travels_with_it(bundle: Path) -> None:
    head = zipfile.ZipFile(bundle).read("pynvml.py")[:2000].decode()
    assert "NVIDIA Corporation" in head
    assert "Redistributions of source code must retain" in head


# --- stackmark bundle


def test_the_command_writes_the_file_that_the_function_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answer = ask("bundle", "--json")
    assert answer.code == Exit.DONE
    content = Path("worker.pyz").read_bytes()
    assert content == sm.bundle().content
    assert json.loads(answer.out) == {"path": "worker.pyz", **sm.bundle().to_dict()}
    made = sm.bundle().to_dict()
    assert made == {
        "schema": "stackmark.bundle/1", "size_bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()
    }  # fmt: skip


def test_the_command_writes_to_standard_output(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-m", "stackmark", "bundle", "-o", "-"], capture_output=True, check=True)
    assert done.stdout == sm.bundle().content


@pytest.mark.parametrize(
    ("words", "said"), [(("bundle", "-o", ""), "--output is empty"), (("published", "add", ""), "FILE is empty")]
)
def test_an_empty_name_is_told_as_one_and_not_as_the_working_folder(words: tuple[str, ...], said: str) -> None:
    answer = ask(*words)
    assert answer.code == Exit.WRONG_USE
    assert said in answer.err


@pytest.mark.parametrize(
    ("output", "code"),
    [(".", Exit.WRONG_USE), ("none/worker.pyz", Exit.WRONG_USE), ("/dev/full", Exit.PLACE_FAILED)],
)
def test_a_file_that_cannot_be_written_is_an_error(
    output: str, code: Exit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ask("bundle", "-o", output).code == code
    assert list(tmp_path.iterdir()) == []
