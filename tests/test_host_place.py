"""The host as a place: real workers, real drivers, real kills. Nothing is left running, and the ledger says what happened."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import JsonValue

from fake_nvml import FakeNvml
from refusing import refused
from stackmark.errors import LedgerError, PlaceError
from stackmark.events import LINE_LIMIT_BYTES
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.machine.orphans import MARK_VARIABLE, end_marked, marked, start_ticks
from stackmark.places import process as worker_as_process
from stackmark.places.host import HostOptions, HostPlace
from stackmark.places.place import STDERR_LINES_KEPT, Handle, Outcome
from stackmark.places.registry import find_place
from stackmark.spec import Spec, Task
from worker_process import (
    PIDS_VARIABLE,
    alive,
    environment,
    eventually,
    gone,
    install,
    read_pids,
    stands_still,
    time_is_up_when,
    trick,
)  # fmt: skip

MARK = f"r-test-{os.getpid()}"


class Notes:
    """A watch that writes down what it sees."""

    def __init__(self) -> None:
        self.handle: Handle = {}
        self.lines: list[str] = []
        self.err: list[str] = []
        self.running_at_first_line: bool | None = None

    @property
    def pid(self) -> int:
        pid = self.handle["pid"]
        assert isinstance(pid, int)
        return pid

    def started(self, handle: Handle) -> None:
        self.handle = handle

    def line(self, text: str) -> None:
        if self.running_at_first_line is None:
            self.running_at_first_line = alive(self.pid)
        self.lines.append(text)

    def measuring(self) -> bool:
        return any('"phase":"measure"' in line for line in self.lines)

    def waiting(self, sentence: str) -> None: ...

    def stderr(self, text: str) -> None:
        self.err.append(text)


class Killing(Notes):
    """Kills the worker when it measures."""

    def line(self, text: str) -> None:
        super().line(text)
        if '"phase":"measure"' in text:
            os.kill(self.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(install(tmp_path_factory.mktemp("tricks")))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert marked(MARK) == []


def run(spec: Spec, env: dict[str, str], notes: Notes, limit_s: float | None = None) -> Outcome:
    return HostPlace(environment=env).run(Task(do="run", spec=spec), notes, mark=MARK, time_limit_s=limit_s)


# A worker's life


def test_events_are_handed_on_while_the_worker_runs(env: dict[str, str]) -> None:
    notes = Notes()
    outcome = run(trick("calm", steps=100), env, notes)
    assert (outcome.exit_code, outcome.failure, outcome.interruption) == (0, None, None)
    assert notes.running_at_first_line
    assert '"event":"hello"' in notes.lines[0]
    assert '"event":"result"' in notes.lines[-1]
    assert not alive(notes.pid)


def test_a_worker_leads_a_group_of_its_own_and_carries_its_mark(env: dict[str, str]) -> None:
    class Looking(Notes):
        group, marks = 0, [0]

        def line(self, text: str) -> None:
            if not self.lines:
                self.group, self.marks = os.getpgid(self.pid), marked(MARK)
            super().line(text)

    notes = Looking()
    run(trick("calm"), env, notes)
    assert notes.group == notes.pid
    assert notes.marks == [notes.pid]


def test_standard_error_is_handed_on_and_its_end_is_kept(env: dict[str, str]) -> None:
    notes = Notes()
    outcome = run(trick("loud", steps=200, step_s=0), env, notes)
    assert len(notes.err) > STDERR_LINES_KEPT
    assert outcome.stderr == tuple(notes.err[-STDERR_LINES_KEPT:])


def test_a_run_past_its_time_ends_with_all_its_processes(env: dict[str, str], tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    notes = Notes()
    with time_is_up_when(notes.measuring):
        outcome = run(trick("family", steps=10_000_000), {**env, PIDS_VARIABLE: str(pids)}, notes, limit_s=600)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.failure.hint) == ("timeout", "raise --time-limit")
    assert '"kind":"terminated"' in notes.lines[-1]
    assert eventually(lambda: not any(map(alive, read_pids(pids, 4))))  # a killed process ends a moment later


def test_a_worker_that_does_not_answer_is_killed(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still, so that nothing in it hears of a signal."""
    monkeypatch.setattr(worker_as_process, "POLITE_S", 0.3)
    pids = tmp_path / "pids"
    with time_is_up_when(lambda: pids.exists() and stands_still(read_pids(pids, 4)[0])):
        outcome = run(trick("orphan"), {**env, PIDS_VARIABLE: str(pids)}, Notes(), limit_s=600)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.exit_code) == ("timeout", -signal.SIGKILL)
    assert eventually(lambda: not any(map(alive, read_pids(pids, 4))))  # a killed process ends a moment later


def test_children_that_hold_the_output_open_do_not_hold_up_the_run(env: dict[str, str], tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    notes = Notes()
    outcome = run(trick("family"), {**env, PIDS_VARIABLE: str(pids)}, notes, limit_s=60)
    assert (outcome.exit_code, outcome.failure) == (0, None)
    assert '"event":"result"' in notes.lines[-1]
    assert eventually(lambda: not any(map(alive, read_pids(pids, 4))))  # a killed process ends a moment later


def test_a_worker_that_was_killed_is_said_to_be(env: dict[str, str]) -> None:
    outcome = run(trick("calm", steps=1_000_000), env, Killing())
    assert outcome.failure is not None
    assert (outcome.failure.kind, "SIGKILL" in outcome.failure.message) == ("killed", True)
    assert "kill -9" in outcome.failure.hint


def test_a_worker_that_crashed_in_c_is_said_to_have(env: dict[str, str]) -> None:
    outcome = run(trick("segfault"), env, Notes())
    assert outcome.failure is not None
    assert (outcome.failure.kind, "SIGSEGV" in outcome.failure.message) == ("killed", True)


@pytest.mark.parametrize("trouble", [LedgerError("locked"), BrokenPipeError(32, "Broken pipe")])
@pytest.mark.parametrize("when", ["started", "line"])
def test_a_listener_that_breaks_does_not_leave_a_worker_behind(
    env: dict[str, str], trouble: Exception, when: str
) -> None:
    class Breaking(Notes):
        def started(self, handle: Handle) -> None:
            super().started(handle)
            if when == "started":
                raise trouble

        def line(self, text: str) -> None:
            raise trouble

    notes = Breaking()
    with pytest.raises(type(trouble)):
        run(trick("calm", steps=1_000_000), env, notes)
    assert not alive(notes.pid)


# What is no worker


def program(path: Path, text: str) -> str:
    path.write_text(f"#!{sys.executable}\n{text}")
    path.chmod(0o755)
    return str(path)


def test_a_python_that_is_not_there_is_a_sentence_with_the_command() -> None:
    place = HostPlace(python="/nowhere/python3")
    with pytest.raises(PlaceError) as caught:
        place.run(Task(do="facts"), Notes(), mark=MARK)
    assert str(caught.value.command).split() == ["/nowhere/python3", "-P", "-m", "stackmark.worker"]


@pytest.mark.parametrize("gpus", ["998", "998,999", "GPU-00000000-0000-0000", 99])
def test_a_gpu_that_is_not_there_is_refused_before_a_worker_takes_the_cpu(gpus: str | int) -> None:
    """On any machine: none has 998 GPUs."""
    place = HostPlace(python="/nowhere/python3", options=HostOptions(gpus=gpus))
    with pytest.raises(PlaceError, match="--gpu") as caught:
        place.run(Task(do="facts"), Notes(), mark=MARK)
    assert caught.value.command is None, "no worker was started"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("gpus", "visible", "seen"),
    [
        (1, None, "0"),
        (2, None, "0,1"),
        (2, "3,1,2", "3,1"),
        ("1", "3,1,2", "1"),
        ("none", "3", ""),
        ("all", "3,1", "3,1"),
    ],
)
def test_a_count_takes_the_first_of_the_visible_gpus(
    gpus: str | int, visible: str | None, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = tmp_path / "worker"
    worker.write_text('#!/bin/sh\necho "sees $CUDA_VISIBLE_DEVICES" >&2\n')
    worker.chmod(0o700)
    monkeypatch.setitem(sys.modules, "pynvml", gpus_of_a_machine(4))
    around = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    place = HostPlace(python=str(worker), environment=around, options=HostOptions(gpus=gpus))
    outcome = place.run(Task(do="facts"), Notes(), mark=MARK)
    assert outcome.stderr == (f"sees {seen}",)


@pytest.mark.parametrize(("gpus", "visible", "named"), [(5, None, "GPU 4"), (2, "3", "1 GPU"), (1, "", "0 GPUs")])
def test_more_gpus_than_are_visible_are_refused(
    gpus: int, visible: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", gpus_of_a_machine(4))
    around = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    place = HostPlace(python="/nowhere/python3", environment=around, options=HostOptions(gpus=gpus))
    with pytest.raises(PlaceError, match=f"--gpus {gpus}: .*{named}"):
        place.run(Task(do="facts"), Notes(), mark=MARK)


def gpus_of_a_machine(count: int) -> FakeNvml:
    return FakeNvml(
        nvmlDeviceGetCount=count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-0000000{handle}-0000",
        nvmlDeviceGetName="NVIDIA H200",
        nvmlDeviceGetMaxMigDeviceCount=0,
    )


@pytest.mark.parametrize("gpus", ["auto", "none"])
def test_a_host_without_gpus_measures_where_none_is_asked_for(env: dict[str, str], gpus: str) -> None:
    outcome = HostPlace(environment=env, options=HostOptions(gpus=gpus)).run(Task(do="facts"), Notes(), mark=MARK)
    assert (outcome.exit_code, outcome.failure) == (0, None)


def facts_with(environment: dict[str, str], *variables: str) -> dict[str, object]:
    """What a worker says of its environment, on a host with these variables."""
    notes = Notes()
    HostPlace(environment=environment, options=HostOptions(env=variables)).run(Task(do="facts"), notes, mark=MARK)
    said = [json.loads(line) for line in notes.lines if line.startswith("{")]
    return {
        name: value
        for event in said
        if event["event"] == "facts" and event.get("subject") == "environment"
        for name, value in event["facts"].items()
    }


def test_variables_that_were_typed_reach_the_worker_and_stand_in_its_facts(env: dict[str, str]) -> None:
    facts = facts_with(env | {"BY_NAME": "x"}, "OMP_NUM_THREADS=1", "MY_FLAG=a b", "HF_TOKEN=abc", "BY_NAME")
    assert (facts["OMP_NUM_THREADS"], facts["MY_FLAG"]) == ("1", "a b")
    assert not {"HF_TOKEN", "BY_NAME"} & facts.keys(), "neither a secret nor a value that was not typed is stored"
    assert "MY_FLAG" not in facts_with(env | {"MY_FLAG": "1", "STACKMARK_TYPED": "MY_FLAG"})


def test_the_options_of_a_host_hold_no_secret() -> None:
    place = HostPlace(environment={}, options=HostOptions(env=("HF_TOKEN=abc", "OMP_NUM_THREADS=1")))
    assert place.options() == {"env": ["HF_TOKEN=***", "OMP_NUM_THREADS=1"]}


@pytest.mark.parametrize(
    "options",
    [
        {"env": ["NOT_SET_HERE"]},
        {"env": ["STACKMARK_SPEC=x"]},
        {"env": ["1=2"]},
        {"env": ["CUDA_VISIBLE_DEVICES=1"], "gpus": "0"},
    ],
)
def test_a_variable_that_cannot_be_set_on_the_host_is_refused(options: dict[str, JsonValue]) -> None:
    with refused("env"):
        find_place("host", options)


def test_ten_megabytes_without_a_newline_are_handed_on_in_pieces(tmp_path: Path) -> None:
    garbage = program(tmp_path / "python", "import sys\nsys.stdout.buffer.write(b'\\xff\\0' * 5_000_000)\n")
    notes = Notes()
    outcome = HostPlace(python=garbage).run(Task(do="facts"), notes, mark=MARK)
    assert (outcome.exit_code, outcome.failure) == (0, None)
    assert sum(map(len, notes.lines)) == 10_000_000
    assert max(map(len, notes.lines)) < 3 * LINE_LIMIT_BYTES


def test_an_endless_flood_of_lines_ends_with_its_time(tmp_path: Path) -> None:
    flood = program(tmp_path / "python", "while True:\n    print('x' * 200)\n")

    class Deaf(Notes):
        def line(self, text: str) -> None: ...

    outcome = HostPlace(python=flood).run(Task(do="facts"), Deaf(), mark=MARK, time_limit_s=0.5)
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout"


def test_a_worker_that_ends_before_it_reads_its_task_is_its_exit_code(tmp_path: Path) -> None:
    early = program(tmp_path / "python", "import sys\nprint('no such module', file=sys.stderr)\nsys.exit(1)\n")
    outcome = HostPlace(python=early).run(Task(do="facts"), Notes(), mark=MARK)
    assert (outcome.exit_code, outcome.failure, outcome.stderr) == (1, None, ("no such module",))


def test_the_working_folder_s_files_do_not_stand_in_for_modules(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "queue", "pydantic", "stackmark"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('the wrong one')\n")
    monkeypatch.chdir(tmp_path)
    assert run(trick("calm"), env, Notes()).exit_code == 0


def test_a_task_of_ours_in_the_environment_is_not_the_worker_s(env: dict[str, str]) -> None:
    outcome = run(trick("calm"), {**env, "STACKMARK_SPEC": "{}"}, Notes())
    assert outcome.exit_code == 0


# Orphans


def test_a_process_is_named_by_its_pid_and_its_beginning() -> None:
    child = subprocess.Popen(["sleep", "60"])
    ticks = start_ticks(child.pid)
    assert ticks is not None
    assert ticks == start_ticks(child.pid)
    mine = start_ticks(os.getpid())
    assert mine is not None
    assert mine <= ticks
    child.kill()
    eventually(lambda: not alive(child.pid))
    assert start_ticks(child.pid) is None  # a zombie: dead, and not yet asked after
    child.wait()
    assert start_ticks(child.pid) is None


def test_a_command_named_with_brackets_and_bytes_does_not_confuse_it(tmp_path: Path) -> None:
    strange = os.fsencode(tmp_path) + b"/) Z \xff("
    os.symlink("/bin/sleep", strange)
    child = subprocess.Popen([strange, b"60"])
    mine = start_ticks(os.getpid())
    ticks = start_ticks(child.pid)
    assert mine is not None
    assert ticks is not None
    assert ticks >= mine
    child.kill()
    child.wait()


def test_marked_processes_are_found_and_ended_and_others_are_not() -> None:
    ours = [subprocess.Popen(["sleep", "60"], env={MARK_VARIABLE: MARK}, start_new_session=True) for _ in range(3)]
    other = subprocess.Popen(["sleep", "60"], env={MARK_VARIABLE: f"{MARK}0"})
    eventually(lambda: len(marked(MARK)) == 3)
    assert end_marked(MARK) == 3
    for child in ours:
        assert child.wait() == -signal.SIGKILL
    assert other.poll() is None
    other.kill()
    other.wait()


# Drivers that are killed


def driver(env: dict[str, str], ledger: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "stackmark", "run", *arguments, "--runs", "1", "--ledger", str(ledger)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )


def results(env: dict[str, str], ledger: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "stackmark", "results", "--ledger", str(ledger)]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True)


def only_row(ledger: Path) -> RunRow:
    with Ledger.open(str(ledger), create=False) as book:
        (row,) = book.runs()
        return row


@pytest.mark.parametrize(
    ("number", "kind", "code"), [(signal.SIGINT, "interrupted", 130), (signal.SIGTERM, "terminated", 143)]
)
def test_a_signal_to_the_driver_ends_the_worker_and_is_stored(
    env: dict[str, str], tmp_path: Path, number: signal.Signals, kind: str, code: int
) -> None:
    ledger, file = tmp_path / "ledger.sqlite3", tmp_path / "pids"
    process = driver({**env, PIDS_VARIABLE: str(file)}, ledger, "trick/family", "--steps", "10000000")
    pids = read_pids(file, 4)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == code, out
    assert b"Traceback" not in out
    assert eventually(lambda: not any(map(alive, pids)))
    row = only_row(ledger)
    assert (row.status, row.failure_kind, row.rate_per_s) == ("failed", kind, None)
    with Ledger.open(str(ledger)) as book:
        assert any(f'"kind":"{kind}"' in line for line in book.stream(row.id))


def test_a_killed_driver_leaves_nothing_running_and_the_next_command_says_so(
    env: dict[str, str], tmp_path: Path
) -> None:
    """The worker notices by its lifeline and takes its children along, also those that left its group and its session."""
    ledger, file = tmp_path / "ledger.sqlite3", tmp_path / "pids"
    process = driver({**env, PIDS_VARIABLE: str(file)}, ledger, "trick/family", "--steps", "10000000")
    pids = read_pids(file, 4)
    process.kill()
    assert gone(pids)
    process.communicate()
    row = only_row(ledger)
    assert row.status == "running"
    said = results(env, ledger)
    assert f"{row.id} (trick/family)" in said.stderr
    lost = only_row(ledger)
    assert (lost.status, lost.failure_kind) == ("failed", "lost")
    assert results(env, ledger).stderr == ""


def test_what_a_killed_driver_s_worker_cannot_end_the_next_command_ends(env: dict[str, str], tmp_path: Path) -> None:
    """The worker stands still and notices nothing."""
    ledger, file = tmp_path / "ledger.sqlite3", tmp_path / "pids"
    # A sampler would be one process more, if it began yet.
    words = ("trick/orphan", "--steps", "10000000", "--sample-hz", "0")
    process = driver({**env, PIDS_VARIABLE: str(file)}, ledger, *words)
    pids = read_pids(file, 4)
    process.kill()
    process.communicate()
    assert all(map(alive, pids))
    assert "4 processes" in results(env, ledger).stderr
    assert eventually(lambda: not any(map(alive, pids)))
    assert only_row(ledger).failure_kind == "lost"


def test_a_driver_that_lives_is_not_called_lost(env: dict[str, str], tmp_path: Path) -> None:
    ledger, file = tmp_path / "ledger.sqlite3", tmp_path / "pids"
    process = driver({**env, PIDS_VARIABLE: str(file)}, ledger, "trick/family", "--steps", "10000000")
    pids = read_pids(file, 4)
    assert results(env, ledger).stderr == ""
    assert only_row(ledger).status == "running"
    assert all(map(alive, pids))
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_a_killed_worker_is_a_failed_run_that_names_the_signal(env: dict[str, str], tmp_path: Path) -> None:
    ledger, file = tmp_path / "ledger.sqlite3", tmp_path / "pids"
    process = driver({**env, PIDS_VARIABLE: str(file)}, ledger, "trick/family", "--steps", "10000000")
    pids = read_pids(file, 4)
    os.kill(pids[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 3, out
    assert eventually(lambda: not any(map(alive, pids)))
    row = only_row(ledger)
    assert (row.status, row.failure_kind) == ("failed", "killed")
    assert row.failure_message is not None
    assert "SIGKILL" in row.failure_message


def test_the_processes_that_read_data_go_with_a_killed_driver(env: dict[str, str], tmp_path: Path) -> None:
    """A real network, fed from CIFAR-10's files by two loader processes."""
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(bytes([number]) + bytes(3072))
    ledger = tmp_path / "ledger.sqlite3"
    process = driver(
        env, ledger, "train/trivial_cifar10", "--data", str(tmp_path), "--data-workers", "2", "--batch", "2",
        "--device", "cpu", "--tune", "off", "--seconds", "600", "--warmup-seconds", "0",
    )  # fmt: skip

    def family() -> list[int] | None:
        if process.poll() is not None:
            raise AssertionError(process.communicate()[0])
        if not ledger.exists():
            return None
        with Ledger.open(str(ledger)) as book:
            rows = book.runs()
        pids = marked(rows[0].id) if rows else []
        return pids if len(pids) >= 3 else None

    pids: list[int] = eventually(family)
    process.kill()
    assert gone(pids)
    process.communicate()
    lost = only_row(ledger)
    assert lost.id in results(env, ledger).stderr
    assert only_row(ledger).failure_kind == "lost"
