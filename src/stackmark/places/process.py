"""Run a worker as our child process, whatever it is wrapped in: read its output as it comes, and end it as a group.

The bare host starts the worker itself, a container's place starts an engine's client; from there on both are the same: two
pipes that are read line by line, a lifeline, and an end that is polite first, so that the worker can say its last event, and
then for good.
"""

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from stackmark.errors import Terminated, how_ended
from stackmark.events import LINE_LIMIT_BYTES
from stackmark.failures import PlaceFailure
from stackmark.places.place import STDERR_LINES_KEPT, Handle, Watch
from stackmark.spec import LEDGER_VARIABLE, LOG_VARIABLE, SPEC_VARIABLE, Task
from stackmark.units import say_seconds
from stackmark.workloads.registry import is_own_program

# The worker says goodbye within its own grace of 5 s; then a little for the pipes.
POLITE_S = 7.0
# A worker that is gone may have left a child that holds its output open: how long to wait for the rest of it.
DRAIN_S = 0.5
# Without a time limit of the user's, a worker that says nothing for so long is ended. Ours say something at least at each
# part of their set-up and each second that they measure; the longest silence is a compiler's, of minutes.
SILENCE_S = 30 * 60.0
# Of a user's own program only what it prints is heard, and some print at their end alone.
PROGRAM_SILENCE_S = 24 * 3600.0
# A spec that asks for longer stretches gets more: this many times the seconds that it asks for.
SILENCE_TIMES = 5.0
_SPANS = ("seconds", "warmup_seconds", "timeout")
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def worker_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which a worker of this Python finds the same stackmark as we are."""
    made = {
        name: value for name, value in environment.items() if name not in (SPEC_VARIABLE, LEDGER_VARIABLE, LOG_VARIABLE)
    }
    if not PACKAGE_ROOT.name.endswith("-packages"):
        # A checkout. Where we are installed the worker finds us, and the folder would come before Python's own.
        paths = [str(PACKAGE_ROOT), *filter(None, [made.get("PYTHONPATH")])]
        made["PYTHONPATH"] = os.pathsep.join(paths)
    return made


def start(argv: Sequence[str], environment: Mapping[str, str], folder: Path | None = None) -> subprocess.Popen[bytes]:
    """Start a worker, or a client that runs one, as a group of its own with three pipes."""
    return subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=folder,
        start_new_session=True,
        bufsize=0,
    )


class TakesLines(Protocol):
    """Takes the lines of a process as they come."""

    def line(self, text: str) -> None: ...
    def stderr(self, text: str) -> None: ...


class RawWatch(Protocol):
    """Reads a program's output as it comes, without looking for lines, so that a flood of output does not block the program."""

    def out(self, data: bytes) -> None: ...
    def err(self, data: bytes) -> None: ...


@dataclass(frozen=True)
class Ended:
    """A worker's end. `failure` says why, if we ended it."""

    reading: "Reading"
    failure: PlaceFailure | None
    interruption: BaseException | None


def supervise(
    process: subprocess.Popen[bytes],
    task: Task,
    watch: Watch,
    handle: Callable[[], Handle],
    *,
    ask: Callable[[signal.Signals], bool],
    clean_up: Callable[[], object],
    time_limit_s: float | None,
    again_s: float | None = None,
    raw: RawWatch | None = None,
) -> Ended:
    """Hand the task to a worker and its lines to `watch`, until it ends, its time is up or we are interrupted.

    `ask` sends it a signal (see `end`); `clean_up` removes what is left of it, also when all else fails. With `raw` it is not
    a worker of ours: it is sent nothing, and its output is handed on in bytes.
    """
    silence_s = silence_limit_s(task, time_limit_s)
    reading = Reading(process, watch, silence_s, raw)
    interruption: BaseException | None = None
    in_time = True
    try:
        watch.started(handle())
        if raw is None:
            _send(process, task)
        in_time = reading.until_exit(time_limit_s)
    except (KeyboardInterrupt, Terminated) as error:
        interruption = error
    finally:
        try:
            end_group(process, reading, lambda: ask(polite_signal(interruption)), again_s)
        finally:
            clean_up()
    failure = ended_from_outside(interruption, in_time, time_limit_s, silence_s if reading.silent else None)
    return Ended(reading, failure, interruption)


def _send(process: subprocess.Popen[bytes], task: Task) -> None:
    assert process.stdin is not None
    # A worker that is gone already says more by its exit code than our broken pipe would.
    with suppress(BrokenPipeError):
        process.stdin.write(task.model_dump_json().encode() + b"\n")


def silence_limit_s(task: Task, time_limit_s: float | None) -> float | None:
    """Return how long a worker may be silent; None where the user set a time limit, or none."""
    if time_limit_s is not None:
        return None
    asked = task.spec or task.request
    if asked is not None and is_own_program(asked.workload):
        return PROGRAM_SILENCE_S
    spans = [asked.params.get(name) for name in _SPANS] if asked is not None else []
    known = sum(float(span) for span in spans if isinstance(span, int | float))
    return max(SILENCE_S, SILENCE_TIMES * known)


class Reading:
    """Reads a worker's two streams line by line until it ended, was silent for too long, or its time is up."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        watch: TakesLines,
        silence_s: float | None = None,
        raw: RawWatch | None = None,
    ) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._silence_s = silence_s
        self._heard_s = time.monotonic()
        # Whether it was ended since it said nothing.
        self.silent = False
        self.stderr_lines: deque[str] = deque(maxlen=STDERR_LINES_KEPT)

        def stderr(text: str) -> None:
            self.stderr_lines.append(text)
            watch.stderr(text)

        self._selector = selectors.DefaultSelector()
        readers: list[_Lines | _Bytes] = (
            [_Bytes(process.stdout, raw.out), _Bytes(process.stderr, raw.err)]
            if raw
            else [_Lines(process.stdout, watch.line), _Lines(process.stderr, stderr)]
        )
        for stream, reader in zip((process.stdout, process.stderr), readers, strict=True):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, reader)

    def expect(self, silence_s: float | None) -> None:
        """From now on, end a worker that is silent for so long."""
        self._silence_s, self._heard_s = silence_s, time.monotonic()

    def until_exit(self, limit_s: float | None) -> bool:
        """Wait for the worker: True when it ended by itself, False when its time was up or it was silent for too long."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while self._process.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self._silence_s is not None and time.monotonic() - self._heard_s > self._silence_s:
                self.silent = True
                return False
            # The exit of a worker whose child holds its pipes shows only in poll(): look ten times a second.
            self._read(0.1 if left is None else min(0.1, left))
        self.drain(DRAIN_S)
        return True

    def drain(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._selector.get_map() and (left := deadline - time.monotonic()) > 0:
            self._read(left)

    def finish(self) -> None:
        for key in list(self._selector.get_map().values()):
            key.data.finish()
        self._selector.close()

    def _read(self, timeout_s: float) -> None:
        if not self._selector.get_map():
            time.sleep(min(timeout_s, 0.01))
            return
        for key, _ in self._selector.select(timeout_s):
            self._heard_s = time.monotonic()
            if not key.data.read():
                self._selector.unregister(key.fileobj)
                key.data.finish()


class _Bytes:
    """Hands on what was read at once."""

    def __init__(self, stream: IO[bytes], take: Callable[[bytes], None]) -> None:
        self._stream, self._take = stream, take

    def read(self) -> bool:
        data = os.read(self._stream.fileno(), 1 << 16)
        if data:
            self._take(data)
        return bool(data)

    def finish(self) -> None: ...


class _Lines:
    """Bytes in, whole lines out. A line without an end is handed on in pieces, so that it cannot fill the memory."""

    def __init__(self, stream: IO[bytes], take: Callable[[str], None]) -> None:
        self._stream, self._take, self._rest = stream, take, b""

    def read(self) -> bool:
        data = os.read(self._stream.fileno(), 1 << 16)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_LIMIT_BYTES:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            self._take(line.decode("utf-8", "replace").rstrip("\r"))
        return bool(data)

    def finish(self) -> None:
        if self._rest:
            self._take(self._rest.decode("utf-8", "replace"))
            self._rest = b""


def end_group(
    process: subprocess.Popen[bytes], reading: Reading, ask: Callable[[], bool], again_s: float | None = None
) -> None:
    """End the group: it is asked, its last words are read, then it is killed. A second Ctrl-C skips the asking.

    `ask` says whether there was somebody to ask; with `again_s` it is called so often until there is an answer.
    """
    deadline = time.monotonic() + POLITE_S
    try:
        while process.poll() is None and (left := deadline - time.monotonic()) > 0 and ask():
            reading.until_exit(min(left, again_s or left))
    except (KeyboardInterrupt, Terminated):
        pass
    finally:
        # The leader may be gone while its children live on: the group keeps its number as long as one of them does.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        try:
            reading.drain(DRAIN_S)
            reading.finish()
        finally:
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream:
                    stream.close()


def ended_from_outside(
    interruption: BaseException | None, in_time: bool, time_limit_s: float | None, silence_s: float | None = None
) -> PlaceFailure | None:
    """Return why we ended the worker, if we did. `silence_s` is how long it had been silent, where that was the reason."""
    if interruption is not None:
        return PlaceFailure(*how_ended(interruption))
    if silence_s is not None:
        return PlaceFailure(
            "silent",
            f"the worker was silent for {say_seconds(silence_s)} and was killed",
            "allow more time with --time-limit 2d, or unlimited time with --time-limit none",
        )
    if not in_time:
        return PlaceFailure(
            "timeout", f"the run took longer than its limit of {time_limit_s:g} s", "raise --time-limit"
        )
    return None


def polite_signal(interruption: BaseException | None) -> signal.Signals:
    """Return the signal that asks a worker to end: what was a person's Ctrl-C is Ctrl-C to the worker too."""
    return signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM


def oom_kills() -> int:
    """Return how many processes the kernel's OOM killer has ended since boot, on the whole machine."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)
