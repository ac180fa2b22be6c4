"""Experiments by the command line, for tests: where they are kept, and how their answer is read."""

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from asking import Answer
from stackmark.cli.main import ITSELF_FAILED
from stackmark.errors import Exit
from stackmark.ledger.rows import RunDetail
from stackmark.ledger.store import Ledger
from worker_process import environment, install

# A person's own program, with quotes and spaces in it; quick, and no shell but the one it asks for.
OWN = (
    "compare",
    "--metric",
    "rate: ([0-9.]+)",
    "--cmd",
    """sh -c 'sleep "$1"; echo "it'"'"'s a rate: 12.5"' sh 0.01""",
)
# Verbs whose options are made from all families that there are when their file is imported.
OF_FAMILIES = [f"stackmark.cli.{name}" for name in ("run", "compare", "noise", "scale", "baseline")]


def empty_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty place for a ledger and for caches, and the trick family where driver, worker and command line find it."""
    for name in OF_FAMILIES:
        # Imported anew in the test and forgotten after it, whoever imported it before.
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
        monkeypatch.delitem(sys.modules, name)
    env = environment(install(tmp_path / "tricks"))
    monkeypatch.setenv("PYTHONPATH", env["PYTHONPATH"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    monkeypatch.syspath_prepend(str(tmp_path / "tricks"))
    return tmp_path / "ledger.sqlite3"


def ledger_of_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The same around a command that is asked in this process: SIGTERM is ours again afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    yield empty_ledger(tmp_path, monkeypatch)
    signal.signal(signal.SIGTERM, before)


def rows_of(ledger_file: Path, role: str = "measured") -> list[RunDetail]:
    """The runs of the latest experiment, in the order in which they were made."""
    with Ledger.open(str(ledger_file)) as book:
        return [row for row in book.runs_of(book.experiment("last").id) if row.role == role]


def is_a_sentence(answer: Answer, code: Exit) -> None:
    assert answer.code == code, answer
    assert answer.out == ""
    assert answer.err.startswith("stackmark: ")
    assert "Traceback" not in answer.err
    assert ITSELF_FAILED not in answer.err
