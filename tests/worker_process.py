"""Real workers for tests: how to start one, and a family of workloads that misbehave on demand.

The family comes in as other people's do, by an entry point, and needs no framework: a worker that runs it is up in a
fraction of a second. Imported by the tests and, in the worker, as the family's module.
"""

import ctypes
import fcntl
import json
import math
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import stackmark
from stackmark.model import Field
from stackmark.spec import Params, Request, Scalar, Spec, Task
from stackmark.workloads.definition import Definition, Family
from stackmark.workloads.workload import Rig, TimedSteps, Values, WorkloadFailure

SOURCE = Path(stackmark.__file__).parents[1]
# Where a workload writes the ids of the processes that it started.
PIDS_VARIABLE = "STACKMARK_TEST_PIDS"
# A whole spec of the smallest network: a step takes a millisecond on any machine.
TRIVIAL: dict[str, Scalar] = {
    "device": "cpu", "seed": 1, "steps": 5, "seconds": 30.0, "at_least_steps": 0, "warmup_steps": 2, "warmup_seconds": 0.0,
    "batch": 2, "precision": "fp32", "tune": "off", "mode": "train", "optimizer": "momentum", "data": "device", "classes": 11,
    "layout": "nchw", "autotune": False, "fused": False, "cuda_graph": False, "compile": False, "threads": 1,
    "data_workers": 0, "learning_rate": 0.005,
}  # fmt: skip


class TrickParams(Params):
    step_s: float = Field(default=0.001, ge=0, description="how long a step takes")
    values_every: int = Field(default=10, ge=1, description="read values every so many steps")


def trick(name: str, **params: Scalar) -> Spec:
    """A spec of the family here."""
    given: dict[str, Scalar] = {"device": "cpu", "steps": 5, "seconds": 1.0, "at_least_steps": 0, "warmup_steps": 1}
    complete = TrickParams.model_validate({**given, "warmup_seconds": 0.0, **params})
    return Spec(workload=f"trick/{name}", params=complete.model_dump(mode="json"))


def train(name: str = "trivial_cifar10", /, **params: Scalar) -> Spec:
    return Spec(workload=f"train/{name}", params={**TRIVIAL, **params})


# Starting one


def install(folder: Path) -> Path:
    """Announces the family here as an installed package would; the folder is to stand in PYTHONPATH."""
    info = folder / "tricks-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tricks\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stackmark.workloads]\ntrick = worker_process:FAMILY\n")
    return folder


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """As ours, with these folders first, then the tests and the package."""
    paths = [*folders, Path(__file__).parent, SOURCE]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("STACKMARK_")}
    return {**clean, "PYTHONPATH": os.pathsep.join(map(str, paths)), **more}


@dataclass(frozen=True)
class Finished:
    """A worker that has ended."""

    code: int
    lines: list[str]
    stderr: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    @property
    def last(self) -> dict[str, Any]:
        return self.events[-1]

    def kinds(self) -> list[str]:
        return [event["event"] for event in self.events]


def start(env: Mapping[str, str], prefix: Sequence[str] = (), **more: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-P", "-m", "stackmark.worker"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, start_new_session=True, bufsize=0, **more,
    )  # fmt: skip


def give(process: subprocess.Popen[bytes], task: Task | bytes) -> None:
    """Writes the task, and leaves standard input open."""
    assert process.stdin is not None
    line = task if isinstance(task, bytes) else task.model_dump_json().encode() + b"\n"
    process.stdin.write(line)
    process.stdin.flush()


def read_until(process: subprocess.Popen[bytes], wanted: Callable[[dict[str, Any]], bool]) -> list[str]:
    """The lines up to the event that is wanted, as they come; what comes after them is left in the pipe."""
    assert process.stdout is not None
    lines = []
    for raw in process.stdout:
        lines.append(raw.decode().rstrip("\n"))
        if wanted(json.loads(raw)):
            return lines
    raise AssertionError(f"the worker ended before: {lines[-1:]} {process.stderr.read() if process.stderr else ''!r}")


def finish(process: subprocess.Popen[bytes], before: list[str] | None = None, timeout_s: float = 180) -> Finished:
    """Waits for its end with the lifeline open, which `communicate` would cut."""
    assert process.stdout is not None
    assert process.stderr is not None
    lifeline, process.stdin = process.stdin, None
    try:
        out, err = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
        process.wait()
        if lifeline:
            lifeline.close()
    return Finished(process.returncode, [*(before or []), *out.decode().splitlines()], err.decode(errors="replace"))


def work(task: Task | bytes, env: Mapping[str, str], **more: Any) -> Finished:
    process = start(env, **more)
    give(process, task)
    return finish(process)


def run_worker(spec: Spec, env: Mapping[str, str], **more: Any) -> Finished:
    return work(Task(do="run", spec=spec), env, **more)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def stands_still(pid: int) -> bool:
    """Whether a process was stopped (SIGSTOP)."""
    return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def gone(pids: list[int], within_s: float = 20) -> bool:
    """Whether these processes end. Waits, since nobody tells us."""
    deadline = time.monotonic() + within_s
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(alive(pid) for pid in pids)


def eventually(found: Callable[[], Any], within_s: float = 30) -> Any:
    """What is found at last, or an AssertionError."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if value := found():
            return value
        time.sleep(0.02)
    raise AssertionError("it did not happen")


@contextmanager
def time_is_up_when(reached: Callable[[], Any]) -> Iterator[None]:
    """Moves this process's clock on by an hour when something is reached: a limit of less then ends a run in this very moment.

    A limit of a few seconds would end a worker that has not begun yet, where the machine has other work.
    """
    real, over = time.monotonic, threading.Event()

    def look() -> None:
        while not over.wait(0.02):
            if reached():
                time.monotonic = lambda: real() + 3600.0
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        time.monotonic = real


def signals_in(pid: int, field: str) -> set[int]:
    """The signals that a process catches (SigCgt) or blocks (SigBlk)."""
    status = (Path("/proc") / str(pid) / "status").read_text()
    mask = int(re.search(rf"(?m)^{field}:\s*([0-9a-f]+)$", status)[1], 16)  # type: ignore[index]
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}


def unread_bytes(process: subprocess.Popen[bytes]) -> int:
    """How much of a worker's output waits in the pipe."""
    assert process.stdout is not None
    answer = fcntl.ioctl(process.stdout, termios.FIONREAD, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


def read_pids(path: Path, count: int) -> list[int]:
    def found() -> list[int] | None:
        pids = path.read_text().split() if path.exists() else []
        return [int(pid) for pid in pids] if len(pids) >= count else None

    pids: list[int] = eventually(found)
    return pids


# The family


def probe(request: Request, _rig: Rig) -> tuple[Params, dict[str, str]]:
    return TrickParams.model_validate({**trick("calm").params, **request.typed()}), {"device": "there is no other"}


def run(name: str, params: Params, rig: Rig) -> Iterator[TimedSteps]:
    assert isinstance(params, TrickParams)
    with rig.part("trick"):
        step = TRICKS[name](params)
    peek = PEEKS.get(name)
    yield TimedSteps(step, "cpu", "step", 1, peek=peek, peek_every=params.values_every)
    if name == "late":
        raise RuntimeError("too late")


def calm(params: TrickParams) -> Callable[[], None]:
    return lambda: time.sleep(params.step_s)


def slow_set_up(params: TrickParams) -> Callable[[], None]:
    time.sleep(60)
    return calm(params)


def loud(params: TrickParams) -> Callable[[], None]:
    """Writes to descriptor 1 in all ways there are, with lines that look like events too."""
    libc = ctypes.CDLL(None)

    def step() -> None:
        print("from Python")
        sys.__stdout__.write("from the first stdout\n")  # type: ignore[union-attr]
        sys.__stdout__.flush()  # type: ignore[union-attr]
        os.write(1, b'{"event":"result","seq":0}\n')
        libc.puts(b"from C")
        libc.fflush(None)
        subprocess.run(["echo", "from a child"], check=True)

    return step


def stuck(_params: TrickParams) -> Callable[[], None]:
    """In C, for a minute, without the interpreter: no Python handler runs in the main thread."""
    libc = ctypes.CDLL(None)

    def step() -> None:
        # sleep() ends when a signal comes, which C code of other people does not.
        until = time.monotonic() + 60
        os.write(2, b"stuck\n")
        blocked = ctypes.create_string_buffer(128)
        libc.sigfillset(blocked)
        libc.pthread_sigmask(signal.SIG_BLOCK, blocked, None)
        while time.monotonic() < until:
            libc.sleep(60)

    return step


def crash(_params: TrickParams) -> NoReturn:
    raise RuntimeError("something nobody foresaw")


def leave(_params: TrickParams) -> NoReturn:
    sys.exit(3)


def segfault(_params: TrickParams) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), signal.SIGSEGV)


def wordy(_params: TrickParams) -> NoReturn:
    raise WorkloadFailure("bad_data", "a name that is no text: \udc80 " + "é" * 20_000, "h" * 20_000)


def no_memory(_params: TrickParams) -> NoReturn:
    raise OSError(12, "Cannot allocate memory")


def missing(_params: TrickParams) -> NoReturn:
    import no_such_package_anywhere  # type: ignore[import-not-found]

    raise AssertionError(no_such_package_anywhere)


def forked(params: TrickParams) -> Callable[[], None]:
    """A child of a pool is told to end, as pools do; that is no signal to us."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.WTERMSIG(status) == signal.SIGTERM
    return calm(params)


def family(params: TrickParams) -> Callable[[], None]:
    """A child in the group, one that left the group, and a grandchild that left the session, holding our output."""
    pids = [os.getpid(), subprocess.Popen(["sleep", "300"]).pid]
    pids.append(subprocess.Popen(["sleep", "300"], start_new_session=True).pid)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, str(os.getpid()).encode())
            time.sleep(300)
        os._exit(0)
    pids.append(int(os.read(reader, 20)))
    Path(os.environ[PIDS_VARIABLE]).write_text(" ".join(map(str, pids)))
    return calm(params)


def orphan(params: TrickParams) -> Callable[[], None]:
    """As `family`, with the lifeline's and the parent's death unnoticed: what is left is for the next command."""
    step = family(params)
    os.kill(os.getpid(), signal.SIGSTOP)
    return step


def greedy(_params: TrickParams) -> Callable[[], None]:
    """Takes memory, and uses it, until there is none."""
    kept = []

    def step() -> None:
        kept.append(b"x" * (16 << 20))

    return step


def values() -> Callable[[], Values]:
    number = time.monotonic()
    return lambda: {"loss": number, "top_1": number / 3, "top_5": number / 7}


def nan() -> Callable[[], Values]:
    return lambda: {"loss": math.nan}


TRICKS: dict[str, Callable[[TrickParams], Callable[[], None]]] = {
    "calm": calm, "slow-set-up": slow_set_up, "loud": loud, "stuck": stuck, "crash": crash, "leave": leave,
    "segfault": segfault, "wordy": wordy, "no-memory": no_memory, "missing": missing, "forked": forked, "family": family,
    "orphan": orphan, "greedy": greedy, "values": calm, "nan": calm, "late": calm,
}  # fmt: skip
PEEKS = {"values": values, "nan": nan}
FAMILY = Family(
    "trick",
    TrickParams,
    "worker_process",
    tuple(Definition(f"trick/{name}", name, "step", 0, 1, 1, 1) for name in TRICKS),
)
