"""Every border is fuzzed for a few seconds, from the corpus and a fixed seed; `make fuzz` goes on for as long as one likes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.harness import FOLDER, Target, fuzz
from fuzz.targets import TARGETS

ROOT = Path(__file__).parent.parent
# Inputs of each target: the quick ones get more.
INPUTS = {"stream": 200, "spec": 200, "options": 50, "patch": 40, "ledger": 8, "published": 10}
USUAL = 15


def test_every_target_has_a_corpus() -> None:
    assert sorted(path.name for path in (FOLDER / "corpus").iterdir()) == sorted(TARGETS)


@pytest.mark.parametrize("number", [0, 1])
def test_no_input_breaks_a_border(number: int) -> None:
    """In a process of its own, whose memory is limited."""
    names = list(TARGETS)[number::2]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OPENBLAS_NUM_THREADS": "1"}
    script = "import sys; from fuzz.__main__ import try_each; sys.exit(try_each(eval(sys.argv[1])))"
    asked = repr({name: INPUTS.get(name, USUAL) for name in names})
    done = subprocess.run(
        [sys.executable, "-c", script, asked], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-2000:]}"
    assert done.stdout.count(" inputs ") == len(names)


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    "attempt",
    [lambda data: _raise(ValueError("x")), lambda data: _raise(MemoryError()), lambda data: data.decode("ascii")],
    ids=["an exception", "no memory", "some inputs only"],
)
def test_what_breaks_is_found(attempt: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus" / "broken").mkdir(parents=True)
    (tmp_path / "corpus" / "broken" / "one").write_bytes(b"\xff")
    monkeypatch.setattr("fuzz.harness.FOLDER", tmp_path)
    target = Target("broken", lambda _folder: attempt)  # type: ignore[arg-type, return-value]
    tried = fuzz(target, tmp_path, seed=1, iterations=20, seconds=None)
    assert tried.inputs == 21
    assert tried.findings
    assert list((tmp_path / "findings" / "broken").glob("*.txt"))


def test_what_hangs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus" / "slow").mkdir(parents=True)
    (tmp_path / "corpus" / "slow" / "one").write_bytes(b"x")
    monkeypatch.setattr("fuzz.harness.FOLDER", tmp_path)
    monkeypatch.setattr("fuzz.harness.HANG_S", 0.2)

    def attempt(_data: bytes) -> None:
        while True:
            pass

    tried = fuzz(Target("slow", lambda _folder: attempt), tmp_path, seed=1, iterations=0, seconds=None)
    assert [finding for finding in tried.findings if "Hang" in finding]
