"""Tries inputs on a target, within limits of time and memory, and keeps what breaks it.

A finding is any exception that is not a StackmarkError, an input that takes longer than `HANG_S`, memory past `MEMORY_BYTES`
above what the process needs before the first input, or an answer of the command line that says that stackmark itself failed.
"""

import hashlib
import io
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from fuzz.mutate import mutated
from stackmark.errors import Exit, StackmarkError

FOLDER = Path(__file__).parent
# Of the processor; by the clock, for an input that waits, it may be six times as long, since a machine may have other work.
HANG_S = 10.0
MEMORY_BYTES = 500 * 2**20
Try = Callable[[bytes], None]


@dataclass(frozen=True)
class Target:
    """`prepare` gets an empty folder and returns what tries one input; `make` makes one, where mutated bytes would not do."""

    name: str
    prepare: Callable[[Path], Try]
    make: Callable[[random.Random, Sequence[bytes]], bytes] = mutated


@dataclass
class Tried:
    target: str
    inputs: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    findings: list[str] = field(default_factory=list)


class Wrong(AssertionError):
    """An answer that must not be given."""


class Hang(BaseException):
    """An input took too long. Not an Exception: the command line's border must not catch it."""


def corpus(target: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((FOLDER / "corpus" / target).iterdir())}


def fuzz(target: Target, folder: Path, *, seed: int, iterations: int | None, seconds: float | None) -> Tried:
    """Try the corpus, then mutated inputs, so many or for so long."""
    seeds = corpus(target.name)
    attempt = target.prepare(folder)
    tried = Tried(target.name)
    began = time.monotonic()
    with _limits():
        for data in seeds.values():
            _one(attempt, data, tried)
        number = 0
        while number < (iterations or 0) or (seconds is not None and time.monotonic() - began < seconds):
            rng = random.Random(f"{seed} {target.name} {number}")
            _one(attempt, target.make(rng, list(seeds.values())), tried)
            number += 1
            if number % 1000 == 0:
                print(f"{target.name}: {number} inputs, {len(tried.findings)} findings", file=sys.stderr, flush=True)
    tried.seconds = time.monotonic() - began
    return tried


def _one(attempt: Try, data: bytes, tried: Tried) -> None:
    tried.inputs += 1
    began = time.monotonic()
    _set_alarms(HANG_S)
    try:
        attempt(data)
    except StackmarkError:
        pass
    except (Exception, Hang) as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        _set_alarms(0)
        tried.findings.append(_kept(tried.target, data, error))
    finally:
        _set_alarms(0)
        tried.slowest_s = max(tried.slowest_s, time.monotonic() - began)


def _set_alarms(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 6 * seconds)


def _kept(target: str, data: bytes, error: BaseException) -> str:
    """Write the input down, with what it did; the name of its file."""
    folder = FOLDER / "findings" / target
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:12]
    path.write_bytes(data)
    said = "".join(traceback.format_exception(error)[-12:])
    path.with_suffix(".txt").write_text(said, encoding="utf-8", errors="backslashreplace")
    return f"{path.relative_to(FOLDER)}: {type(error).__name__}: {str(error)[:300]}"


@contextmanager
def _limits() -> Iterator[None]:
    """Memory, and an alarm for what hangs."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"not done after {HANG_S:g} s")

    handlers = {number: signal.signal(number, ring) for number in (signal.SIGALRM, signal.SIGPROF)}
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def answer(*arguments: str) -> str:
    """Ask the command line; what it wrote to standard output. An answer that must not be is a finding."""
    from stackmark.cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="") for _ in range(2))
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(arguments))
    said, wrong = (_text(stream) for stream in (out, err))
    if "itself failed" in wrong or "Traceback" in wrong:
        raise Wrong(f"{arguments[0]}: {wrong[-1500:]}")
    if code not in set(Exit):
        raise Wrong(f"{arguments[0]}: the exit code {code} is not documented")
    if code and not wrong.strip():
        raise Wrong(f"{arguments[0]}: the exit code is {code}, and nothing says why")
    for text in (wrong,) if arguments[0] == "export" else (said, wrong):  # an export is data, and for no terminal
        odd = next((char for char in text if ord(char) < 32 and char not in "\n\r\t"), None)
        if odd is not None:
            raise Wrong(f"{arguments[0]}: the control character {odd!r} reaches the terminal")
    return said


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode("utf-8", "backslashreplace")
