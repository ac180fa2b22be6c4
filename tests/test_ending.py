"""How a command and its worker end: a closed terminal, a worker that says nothing, one that stood still."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, Answer, ask, environment
from stackmark.events import Phase, Result, Stream
from stackmark.machine.orphans import marked
from stackmark.places import process as places_process
from stackmark.places.host import HostPlace
from stackmark.places.place import Handle
from stackmark.spec import Spec, Task
from stackmark.worker.measure import Heartbeat
from worker_process import environment as worker_environment
from worker_process import eventually, install, trick


def only_run(ledger: Path) -> dict[str, Any]:
    (run,) = json.loads(ask("results", "--json", "--ledger", str(ledger)).out)["runs"]
    return dict(run)


def running(ledger: Path) -> str:
    """The id of the run, as soon as its program runs."""

    def found() -> str | None:
        if not ledger.exists():
            return None
        runs = json.loads(ask("results", "--json", "--ledger", str(ledger)).out)["runs"]
        return runs[0]["id"] if runs and len(marked(runs[0]["id"])) > 1 else None

    return str(eventually(found))


def of_a_terminal() -> None:
    """In the child: the terminal on standard output becomes the one that it is controlled by.

    Tests that run under nohup ignore SIGHUP, and children inherit that.
    """
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(1, termios.TIOCSCTTY, 0)


class Shown(threading.Thread):
    """Reads what a terminal shows, so that nobody who writes to it has to wait."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor, self._over = descriptor, threading.Event()
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            if select.select([self._descriptor], [], [], 0.05)[0]:
                os.read(self._descriptor, 1 << 16)

    def stop(self) -> None:
        self._over.set()
        self.join()


def test_a_closed_terminal_ends_a_run_as_cleanly_as_sigterm(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    ours, theirs = pty.openpty()
    driver = subprocess.Popen(
        [*COMMAND, "run", "--cmd", "sleep 60", "--runs", "1"], env=environment(ledger), stdin=theirs, stdout=theirs,
        stderr=theirs, start_new_session=True, preexec_fn=of_a_terminal,
    )  # fmt: skip
    os.close(theirs)
    shown = Shown(ours)
    run_id = running(ledger)
    shown.stop()
    os.close(ours)  # the kernel sends SIGHUP, and each write is an error from now on
    assert driver.wait(timeout=60) == 129
    run = only_run(ledger)
    assert (run["id"], run["status"], run["failure_kind"]) == (run_id, "failed", "terminated")
    assert marked(run_id) == []


def test_under_nohup_a_closed_terminal_is_not_heeded(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    heard = tmp_path / "heard"
    program = f"sh -c 'until [ -e {heard} ]; do sleep 0.1; done'"
    with subprocess.Popen(
        ["nohup", *COMMAND, "run", "--cmd", program, "--runs", "1"], env=environment(ledger), stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
    ) as driver:  # fmt: skip
        running(ledger)
        driver.send_signal(signal.SIGHUP)
        heard.touch()
        driver.communicate(timeout=60)
    assert driver.returncode == 0
    assert only_run(ledger)["status"] == "done"


# A worker that says nothing


def own_program(ledger: Path, program: str, *more: str) -> Answer:
    return ask("run", "--cmd", program, "--runs", "1", "--json", "--ledger", str(ledger), *more)


def test_a_silent_worker_is_ended_without_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places_process, "PROGRAM_SILENCE_S", 1.5)
    answer = own_program(tmp_path / "ledger.sqlite3", "sleep 60")
    assert answer.code == 3
    run = only_run(tmp_path / "ledger.sqlite3")
    assert run["failure_kind"] == "silent"
    assert "--time-limit none" in run["failure_hint"]


@pytest.mark.parametrize("limit", ["none", "1h"])
def test_a_time_limit_of_the_user_s_comes_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    monkeypatch.setattr(places_process, "PROGRAM_SILENCE_S", 0.0)
    answer = own_program(tmp_path / "ledger.sqlite3", "sleep 0.5", "--time-limit", limit)
    assert answer.code == 0, answer.err


def test_how_long_a_worker_may_say_nothing_follows_from_what_it_does() -> None:
    short = Task(do="run", spec=Spec(workload="train/trivial", params={"seconds": 30.0, "warmup_seconds": 5}))
    long = Task(do="run", spec=Spec(workload="train/trivial", params={"seconds": 3600.0}))
    program = Task(do="run", spec=Spec(workload="command/own", params={"cmd": "sleep 9"}))
    assert places_process.silence_limit_s(short, None) == 1800
    assert places_process.silence_limit_s(long, None) == 5 * 3600
    assert places_process.silence_limit_s(program, None) == 24 * 3600
    assert places_process.silence_limit_s(short, 10.0) is None


# A worker that stood still


class Stopping:
    """A watch that stops the worker's processes for a while, half a second after it began to measure."""

    def __init__(self, mark: str, seconds: float) -> None:
        self._mark, self._seconds = mark, seconds
        self.stream = Stream()

    def started(self, handle: Handle) -> None: ...

    def waiting(self, sentence: str) -> None: ...

    def stderr(self, text: str) -> None: ...

    def line(self, text: str) -> None:
        event = self.stream.feed(text)
        if isinstance(event, Phase) and (event.phase, event.state) == ("measure", "begin") and self._seconds:
            threading.Timer(0.5, self._stop).start()

    def _stop(self) -> None:
        pids = marked(self._mark)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(self._seconds)
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def pauses_of(tmp_path: Path, spec: Spec, stopped_s: float) -> list[str]:
    mark = f"r-stopped-{os.getpid()}-{time.monotonic_ns()}"
    watch = Stopping(mark, stopped_s)
    place = HostPlace(environment=worker_environment(install(tmp_path)))
    outcome = place.run(Task(do="run", spec=spec), watch, mark=mark, time_limit_s=100)
    assert outcome.failure is None
    (result,) = [event for event in watch.stream.events if isinstance(event, Result)]
    return [flag for flag in result.flags if flag.startswith("paused:")]


SLEEPER = Spec(workload="command/own", params={"cmd": "sleep 1.5", "cwd": "."})


@pytest.mark.parametrize("spec", [trick("calm", steps=300, step_s=0.005), SLEEPER], ids=["steps", "program"])
def test_a_worker_that_was_stopped_says_for_how_long(tmp_path: Path, spec: Spec) -> None:
    (flag,) = pauses_of(tmp_path, spec, 2.0)
    assert float(re.findall(r"([\d.]+) s\b", flag)[0]) >= 1.5


def test_a_worker_that_was_not_stopped_says_nothing_of_it(tmp_path: Path) -> None:
    assert pauses_of(tmp_path, trick("calm", steps=100, step_s=0.005), 0.0) == []


@pytest.mark.slow
def test_a_thread_that_holds_python_s_lock_is_no_pause() -> None:
    """One call of C code: no other thread of Python runs meanwhile, and the process is at work."""
    begin = time.perf_counter()
    sum(range(2_000_000))
    numbers = int(2_000_000 * 2.0 / (time.perf_counter() - begin))
    with Heartbeat() as heart:
        time.sleep(0.3)
        sum(range(numbers))
    assert heart.late_s == []


def test_a_late_beat_without_a_long_step_is_no_pause_of_the_measured_steps() -> None:
    heart = Heartbeat(late_s=[5.0])
    assert heart.flags([0.1] * 100) == []
    assert "4.9 s" in heart.flags([0.1] * 50 + [5.0] + [0.1] * 50)[0]
    assert "5.0 s" in heart.flags()[0]  # nothing to hold it against
    assert "60.0 s" in Heartbeat(suspended_s=60.0).flags([0.1] * 100)[0]
