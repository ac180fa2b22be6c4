"""The bare host: the worker as a child of ours, in a process group of its own.

Its standard input is a lifeline: it stays open while we live, and the kernel closes it when we die, even by kill -9. Its
output is read as it comes. It is ended as a group: politely first, so that it can say its last event, then for good.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from pydantic import JsonValue

from stackmark.errors import PlaceError, Terminated
from stackmark.places.place import STDERR_LINES_KEPT, Outcome, PlaceFailure, Watch
from stackmark.spec import SPEC_VARIABLE, Task
from stackmark.strays import MARK_VARIABLE, end_marked, start_ticks

# The worker says goodbye within its own grace of 5 s; then a little for the pipes.
POLITE_S = 7.0
# A worker that is gone may have left a child that holds its output open: how long to wait for the rest of it.
DRAIN_S = 0.5
LINE_LIMIT_BYTES = 64 * 1024
PACKAGE_ROOT = Path(__file__).resolve().parents[2]


class HostPlace:
    name = "host"

    def __init__(self, python: str = sys.executable, environment: Mapping[str, str] | None = None) -> None:
        self._python = python
        self._environment = dict(os.environ if environment is None else environment)

    def options(self) -> dict[str, JsonValue]:
        return {}

    def command(self) -> list[str]:
        # -P: a file of the working folder that is named like a module must not stand in for it.
        return [self._python, "-P", "-m", "stackmark.worker"]

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        oom_before = _oom_kills()
        process = self._start(mark)
        reading = _Reading(process, watch)
        interruption: BaseException | None = None
        in_time = True
        try:
            watch.started({"pid": process.pid, "start_ticks": start_ticks(process.pid)})
            _send(process, task)
            in_time = reading.until_exit(time_limit_s)
        except (KeyboardInterrupt, Terminated) as error:
            interruption = error
        finally:
            try:
                polite = signal.SIGINT if isinstance(interruption, KeyboardInterrupt) else signal.SIGTERM
                _end(process, reading, polite)
            finally:
                end_marked(mark)
        failure = None
        if interruption is not None:
            kind = "interrupted" if isinstance(interruption, KeyboardInterrupt) else "terminated"
            failure = PlaceFailure(kind, f"the run was {kind}")
        elif not in_time:
            failure = PlaceFailure(
                "timeout", f"the run took longer than its limit of {time_limit_s:g} s", "raise --time-limit"
            )
        elif process.returncode < 0:
            failure = _killed(-process.returncode, _oom_kills() > oom_before)
        return Outcome(process.returncode, failure, tuple(reading.stderr_lines), interruption)

    def _start(self, mark: str) -> subprocess.Popen[bytes]:
        environment = {**self._environment, MARK_VARIABLE: mark}
        environment.pop(SPEC_VARIABLE, None)
        if not PACKAGE_ROOT.name.endswith("-packages"):
            # A checkout. Where we are installed the worker finds us, and the folder would come before Python's own.
            paths = [str(PACKAGE_ROOT), *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
        try:
            return subprocess.Popen(
                self.command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            raise PlaceError(
                f"no worker could be started on the host: {error}", command=" ".join(self.command())
            ) from error


def _send(process: subprocess.Popen[bytes], task: Task) -> None:
    assert process.stdin is not None
    # A worker that is gone already says more by its exit code than our broken pipe would.
    with suppress(BrokenPipeError):
        process.stdin.write(task.model_dump_json().encode() + b"\n")


class _Reading:
    """Reads a worker's two streams line by line until it is gone."""

    def __init__(self, process: subprocess.Popen[bytes], watch: Watch) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.stderr_lines: deque[str] = deque(maxlen=STDERR_LINES_KEPT)

        def stderr(text: str) -> None:
            self.stderr_lines.append(text)
            watch.stderr(text)

        self._selector = selectors.DefaultSelector()
        for stream, take in ((process.stdout, watch.line), (process.stderr, stderr)):
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, _Lines(stream, take))

    def until_exit(self, limit_s: float | None) -> bool:
        """True when the worker ended by itself, False when its time was up."""
        deadline = None if limit_s is None else time.monotonic() + limit_s
        while self._process.poll() is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
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
            if not key.data.read():
                self._selector.unregister(key.fileobj)
                key.data.finish()


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


def _end(process: subprocess.Popen[bytes], reading: _Reading, polite: signal.Signals) -> None:
    """Ends the group: it is asked, its last words are read, then it is killed. A second Ctrl-C skips the asking."""
    try:
        if process.poll() is None:
            process.send_signal(polite)
            reading.until_exit(POLITE_S)
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


def _killed(number: int, oom: bool) -> PlaceFailure:
    name = signal.Signals(number).name if number in {int(s) for s in signal.Signals} else f"signal {number}"
    if number == signal.SIGKILL and oom:
        return PlaceFailure(
            "out_of_host_memory", "the kernel's OOM killer ended the worker: the host, or its control group, ran out of memory",
            "take a smaller --batch, fewer --data-workers, or give it more memory",
        )  # fmt: skip
    hints = {
        signal.SIGKILL: "somebody sent kill -9, or a limit of the system did",
        signal.SIGSEGV: "a library crashed; try --tune off, and see the log: stackmark show RUN --log",
        signal.SIGBUS: "shared memory may be too small: df -h /dev/shm",
    }
    hint = hints.get(signal.Signals(number), "") if name.startswith("SIG") else ""
    return PlaceFailure("killed", f"the worker was ended by {name}", hint)


def _oom_kills() -> int:
    """How often the kernel's OOM killer struck since boot, on the whole machine."""
    try:
        text = Path("/proc/vmstat").read_text()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), 0)
