"""Asking the command line, in this process or in its own."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import stackmark
from stackmark.cli.main import main

ESC = "\x1b"


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str


def ask(*arguments: str) -> Answer:
    """In this process: quick, and without a terminal."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(arguments))
    return Answer(int(code), _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def environment(ledger: Path | str, **more: str) -> dict[str, str]:
    """Of a process of its own: it imports the same stackmark as this one, and its output is not coloured by chance."""
    kept = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS")}
    return {
        **kept,
        "PYTHONPATH": str(Path(stackmark.__file__).parents[1]),
        "STACKMARK_LEDGER": str(ledger),
        "TERM": "xterm-256color",
        **more,
    }


COMMAND = (sys.executable, "-m", "stackmark")


def ask_process(ledger: Path | str, *arguments: str, **more: str) -> Answer:
    done = subprocess.run(
        [*COMMAND, *arguments], env=environment(ledger, **more), capture_output=True, timeout=280, check=False
    )
    return Answer(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))
