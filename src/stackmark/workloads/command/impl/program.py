"""Run a user's program as a child: without a shell, in its own group, ended with everything that it started.

Its standard input is empty, and its output comes through two pipes that are read as it runs. Its end is seen by a thread
that waits without reaping, so that the time is that of its end and not of our looking, and so that its number cannot be
given to another process before the rest of its group was ended. What left the group carries a mark in its environment.
"""

import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import stackmark
from stackmark.machine.orphans import COMMAND_VARIABLE, MARK_VARIABLE, end_marked
from stackmark.workloads.workload import WorkloadFailure

if TYPE_CHECKING:
    from typing_extensions import Self

# Within the worker's own grace of 5 s.
POLITE_S = 2.0
# What the program left behind may hold its output open: how long to wait for the rest of it.
DRAIN_S = 0.5
READ_BYTES = 1 << 16
# A group of its own, by the older way where Python does not know the newer one.
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}

Take = Callable[[bytes, bool], None]


@dataclass(frozen=True)
class Exit:
    """The end of a program. `code` is negative where a signal ended it. Memory is that of its largest process, if known."""

    code: int
    wall_s: float
    user_s: float
    system_s: float
    memory_peak_mib: float | None
    involuntary_switches: int
    left_behind: int


def environment() -> dict[str, str]:
    """Return our environment without the path that we ourselves need: the program runs as it would without us."""
    inherited = dict(os.environ)
    ours = str(Path(stackmark.__file__).resolve().parents[1])
    paths = inherited.get("PYTHONPATH", "").split(os.pathsep)
    if ours in paths:
        paths.remove(ours)
        inherited["PYTHONPATH"] = os.pathsep.join(paths)
        if not paths:
            del inherited["PYTHONPATH"]
    return inherited


class Program:
    """A running program; leaving the context ends whatever is left of it."""

    def __init__(self, words: Sequence[str], cwd: str, take_out: Take, take_err: Take) -> None:
        # Where nobody marked our run, we do: an orphaned worker ends what carries its mark.
        os.environ.setdefault(MARK_VARIABLE, f"worker-{os.getpid()}-{time.time_ns()}")
        self._mark = f"{os.getpid()}-{time.time_ns()}"
        self._takes = (take_out, take_err)
        self._ended_s: float | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._own_peak_kib = 0
        self._words, self._cwd = words, cwd

    def __enter__(self) -> "Self":
        try:
            self._start({**environment(), COMMAND_VARIABLE: self._mark})
        except BaseException:
            # A signal may come between its start and our hearing of it.
            end_marked(self._mark, variable=COMMAND_VARIABLE)
            raise
        return self

    def _start(self, env: Mapping[str, str]) -> None:
        self._selector = selectors.DefaultSelector()
        self._own_peak_kib = _own_peak_kib()
        self._begin_s = time.perf_counter()
        try:
            self._process = subprocess.Popen(
                self._words,
                cwd=self._cwd or None,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                **_OWN_GROUP,
                bufsize=0,
            )
        except OSError as error:
            raise _not_started(self._words[0], self._cwd, error) from error
        for stream, take in zip((self._process.stdout, self._process.stderr), self._takes, strict=True):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, take)
        self._bell, bell = os.pipe()
        self._selector.register(self._bell, selectors.EVENT_READ, None)
        threading.Thread(target=self._wait, args=(self._process.pid, bell), name="command", daemon=True).start()

    def _wait(self, pid: int, bell: int) -> None:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        self._ended_s = time.perf_counter()
        os.close(bell)

    def run(self) -> Exit:
        """Read what it prints until it ends."""
        while self._ended_s is None:
            self._read(None)
        return self._finish()

    @property
    def running(self) -> bool:
        return self._ended_s is None

    @property
    def code(self) -> int | None:
        """Return its exit code, or the negative number of the signal that ended it, once it was left."""
        return self._process.returncode if self._process else None

    def read(self, timeout_s: float) -> None:
        """Read what it prints for at most this long, or until something came."""
        self._read(timeout_s)

    def _read(self, timeout_s: float | None) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._selector.unregister(key.fileobj)
                os.close(self._bell)
                continue
            data = os.read(key.fd, READ_BYTES)
            if not data:
                self._selector.unregister(key.fileobj)
            key.data(data, not data)

    def _finish(self) -> Exit:
        """What is left of its output is read, what is left of its processes is ended, and it is asked how it went."""
        assert self._process is not None
        assert self._ended_s is not None
        self._drain(time.monotonic() + DRAIN_S)
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                key.data(b"", True)
        left = end_marked(self._mark, variable=COMMAND_VARIABLE)
        self._kill(signal.SIGKILL)
        _, status, usage = os.wait4(self._process.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        # The kernel counts what the process had before it became the program, which is what we have: below that it is ours.
        known = usage.ru_maxrss > self._own_peak_kib
        return Exit(
            code=self._process.returncode,
            wall_s=self._ended_s - self._begin_s,
            user_s=usage.ru_utime,
            system_s=usage.ru_stime,
            memory_peak_mib=round(usage.ru_maxrss / 1024, 1) if known else None,
            involuntary_switches=usage.ru_nivcsw,
            left_behind=left,
        )

    def _drain(self, deadline_s: float) -> None:
        while (
            any(key.data for key in self._selector.get_map().values()) and (left := deadline_s - time.monotonic()) > 0
        ):
            self._read(left)

    def _kill(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            # It is asked first, so that it can put away its files; its last words are read meanwhile.
            self._kill(signal.SIGTERM)
            deadline_s = time.monotonic() + POLITE_S
            try:
                while self._ended_s is None and (left := deadline_s - time.monotonic()) > 0:
                    self._read(left)
            finally:
                self._kill(signal.SIGKILL)
                while self._ended_s is None:
                    time.sleep(0.01)
                self._finish()
        for stream in (self._process.stdout, self._process.stderr):
            if stream:
                stream.close()
        self._selector.close()


def _own_peak_kib() -> int:
    """Of our memory as it is now, which a child begins with; getrusage would tell that of whoever became us, too."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _not_started(program: str, cwd: str, error: OSError) -> WorkloadFailure:
    if cwd and not os.path.isdir(cwd):
        return WorkloadFailure(
            "command_failed",
            f"the folder {cwd!r} does not exist here",
            "set another --cwd; in a container or a pod mount the folder, or use --cwd .",
        )
    if isinstance(error, FileNotFoundError):
        return WorkloadFailure(
            "command_failed",
            f"the program {program!r} was not found",
            "give its path, or a name that is in PATH; without a shell, ~ and $HOME are not expanded",
        )
    return WorkloadFailure("command_failed", f"the program {program!r} cannot be started: {error.strerror}")
