"""The worker, as a real process: a task in, events out, and a reason for every end."""

import errno
import json
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stackmark.events import EVENT_LIMIT_BYTES, FAILURE_EXIT_CODES, Stream
from stackmark.places.bundle import worker_bundle
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.worker import home
from worker_process import (
    Finished,
    alive,
    environment,
    eventually,
    finish,
    give,
    gone,
    install,
    read_pids,
    read_until,
    run_worker,
    signals_in,
    start,
    train,
    trick,
    unread_bytes,
    work,
)

NAMELESS = 54_321
# Of a pipe of 64 KiB that nobody reads: a page holds whole lines only, so that it is full earlier.
FULL_BYTES = 32_000


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(install(tmp_path_factory.mktemp("tricks")))


@pytest.fixture(scope="module")
def trained(env: dict[str, str]) -> Finished:
    """A real network, trained for five steps."""
    return run_worker(train(), env)


def failed(finished: Finished, kind: str) -> dict[str, Any]:
    """The run ended with this failure, in words, numbers and exit code; its stream is whole."""
    assert finished.kinds().count("failed") == 1, finished.stderr
    last = finished.last
    assert (last["event"], last["kind"]) == ("failed", kind), last
    assert finished.code == FAILURE_EXIT_CODES[kind]
    check_stream(finished)
    return last


def check_stream(finished: Finished) -> None:
    assert finished.kinds()[0] == "hello"
    assert [event["seq"] for event in finished.events] == list(range(len(finished.lines)))
    assert max(map(len, finished.lines)) < EVENT_LIMIT_BYTES
    stream = Stream()
    for line in finished.lines:
        assert stream.feed(line) is not None


def phase(event: dict[str, Any], name: str, state: str = "begin") -> bool:
    return bool(event["event"] == "phase" and (event["phase"], event["state"]) == (name, state))


# A run


def test_a_run_is_a_whole_stream_that_ends_with_its_result(trained: Finished) -> None:
    check_stream(trained)
    assert trained.code == 0
    result = trained.last
    assert (result["event"], result["steps"], result["samples_per_step"], result["sample"]) == ("result", 5, 2, "image")
    measured = [e for e in trained.events if e["event"] == "steps" and e["phase"] == "measure"]
    assert sum(len(e["step_s"]) for e in measured) == 5


def test_set_up_is_timed_by_part(trained: Finished) -> None:
    ends = [e for e in trained.events if e["event"] == "phase" and e["state"] == "end"]
    assert [e["phase"] for e in ends] == [
        "import",
        "device",
        "data",
        "model",
        "first step",
        "warm-up",
        "measure",
        "kernels",
    ]
    assert all(e["seconds"] >= 0 for e in ends)
    assert sum(e["seconds"] for e in ends) <= trained.last["t"]


def test_facts_come_before_the_steps(trained: Finished) -> None:
    kinds = trained.kinds()
    assert kinds.index("facts") < kinds.index("steps")
    subjects = {e["subject"] for e in trained.events if e["event"] == "facts"}
    assert {"host", "cpu", "memory", "software", "stackmark"} <= subjects


def test_a_task_in_the_environment_does_the_same(env: dict[str, str]) -> None:
    """As a pod gets it: standard input is empty, and there is no lifeline."""
    task = Task(do="run", spec=trick("calm")).model_dump_json()
    command = [sys.executable, "-P", "-m", "stackmark.worker"]
    done = subprocess.run(
        command,
        env={**env, "STACKMARK_SPEC": task},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    finished = Finished(done.returncode, done.stdout.splitlines(), done.stderr)
    check_stream(finished)
    assert (finished.code, finished.last["event"]) == (0, "result")


def test_children_of_a_worker_do_not_inherit_its_task(env: dict[str, str], tmp_path: Path) -> None:
    """A workload that is itself a stackmark would otherwise run the task again."""
    task = Task(do="run", spec=trick("family")).model_dump_json()
    pids = tmp_path / "pids"
    process = start({**env, "STACKMARK_SPEC": task, "STACKMARK_TEST_PIDS": str(pids)})
    read_until(process, lambda event: phase(event, "measure"))
    child = int(pids.read_text().split()[1])
    assert b"STACKMARK_SPEC=" not in Path(f"/proc/{child}/environ").read_bytes()
    for pid in map(int, pids.read_text().split()[1:]):
        os.kill(pid, signal.SIGKILL)
    finish(process)


def test_a_probe_answers_with_a_whole_spec_that_runs(env: dict[str, str], trained: Finished) -> None:
    typed: dict[str, Scalar] = {"device": "cpu", "batch": 2, "steps": 3, "warmup_seconds": 0, "tune": "off"}
    finished = work(Task(do="probe", request=Request(workload="train/trivial_cifar10", params=typed)), env)
    check_stream(finished)
    assert finished.code == 0
    (probe,) = [e for e in finished.events if e["event"] == "probe"]
    spec = Spec.model_validate(probe["spec"])
    assert {name: spec.params[name] for name in typed} == {**typed, "warmup_seconds": 0.0}
    assert "batch" not in probe["choices"]
    assert "precision" in probe["choices"]


def test_a_request_to_run_is_resolved_on_the_spot_and_then_run(env: dict[str, str], trained: Finished) -> None:
    typed: dict[str, Scalar] = {"device": "cpu", "batch": 2, "steps": 3, "warmup_seconds": 0, "tune": "off"}
    task = Task(do="run", request=Request(workload="train/trivial_cifar10", params=typed), lifeline=False)
    finished = finish(start({**env, "STACKMARK_SPEC": task.model_dump_json()}))
    check_stream(finished)
    kinds = finished.kinds()
    assert (kinds[0], kinds[-1], kinds.count("probe"), kinds.count("hello")) == ("hello", "result", 1, 1)
    probe = finished.events[kinds.index("probe")]
    assert {name: probe["spec"]["params"][name] for name in typed} == {**typed, "warmup_seconds": 0.0}
    assert "precision" in probe["choices"]
    assert finished.last["steps"] == 3
    # The trial ran in a process of its own: this one set itself up once, as a run with a spec does.
    parts = [e["phase"] for e in finished.events if phase(e, e.get("phase", ""), "end")]
    assert parts.count("import") == 1
    assert parts[0] == "probe"
    assert [part for part in parts if part != "probe"] == [
        e["phase"] for e in trained.events if phase(e, e.get("phase", ""), "end")
    ]


def test_a_request_that_cannot_be_resolved_fails_as_its_probe_does(env: dict[str, str]) -> None:
    for typed, kind in (({"batch": -1}, "bad_parameter"), ({"device": "cuda:99"}, "no_device")):
        request = Request(workload="train/trivial_cifar10", params=typed)
        told = failed(work(Task(do="run", request=request), env), kind)
        probed = failed(work(Task(do="probe", request=request), env), kind)
        assert (told["message"], told["hint"]) == (probed["message"], probed["hint"])


def test_a_worker_that_is_ended_while_it_resolves_takes_the_probe_with_it(env: dict[str, str]) -> None:
    process = start(env)
    give(process, Task(do="run", request=Request(workload="train/resnet50", params={"device": "cpu"})))
    before = read_until(process, lambda event: phase(event, "probe"))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 30
    while not (pids := [int(pid) for pid in children.read_text().split()]) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    finished = finish(process, before)
    assert finished.last["kind"] == "terminated"
    assert pids
    assert gone(pids)


def test_facts_alone_need_no_framework(env: dict[str, str]) -> None:
    finished = work(Task(do="facts"), env)
    check_stream(finished)
    assert finished.code == 0
    assert "steps" not in finished.kinds()


def test_loss_and_accuracy_at_every_step_stay_within_the_limit(env: dict[str, str]) -> None:
    finished = run_worker(trick("values", steps=1000, step_s=0, values_every=1), env)
    check_stream(finished)
    read = [e for e in finished.events if e["event"] == "steps" and e["phase"] == "measure"]
    assert [i for e in read for i, _ in e["losses"]] == list(range(1000))
    assert finished.last["event"] == "result"


# The stream is guarded


def test_whatever_writes_to_descriptor_one_goes_to_standard_error(env: dict[str, str]) -> None:
    finished = run_worker(trick("loud", steps=2), env)
    check_stream(finished)
    assert finished.last["event"] == "result"
    for what in ("from Python", "from the first stdout", '{"event":"result","seq":0}', "from C", "from a child"):
        assert finished.stderr.count(what) == 3


def test_a_worker_does_not_wait_for_its_reader_before_it_is_done(env: dict[str, str]) -> None:
    """Nobody reads for a while: all 20,000 steps are measured meanwhile, and all their events come afterwards."""
    process = start(env)
    give(process, Task(do="run", spec=trick("values", steps=20_000, step_s=0, values_every=1)))
    eventually(lambda: unread_bytes(process) >= FULL_BYTES)
    finished = finish(process)
    check_stream(finished)
    assert (finished.code, finished.last["event"], finished.last["steps"]) == (0, "result", 20_000)


def test_a_reader_that_never_reads_does_not_keep_a_worker_from_ending(env: dict[str, str]) -> None:
    process = start(env)
    give(process, Task(do="run", spec=trick("values", steps=20_000, step_s=0, values_every=1)))
    eventually(lambda: unread_bytes(process) >= FULL_BYTES)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == FAILURE_EXIT_CODES["terminated"]
    finish(process)


def test_a_reader_that_goes_away_ends_the_worker(env: dict[str, str]) -> None:
    process = start(env)
    assert process.stdout is not None
    give(process, Task(do="run", spec=trick("calm", steps=1_000_000)))
    process.stdout.close()
    assert process.wait(timeout=30) == FAILURE_EXIT_CODES["lost_driver"]
    assert process.stderr is not None
    with process.stderr as stderr:
        assert os.strerror(errno.EPIPE) in stderr.read().decode()
    assert process.stdin is not None
    process.stdin.close()


# A strange home


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become a user without a name")
def test_a_user_without_a_name_and_with_a_read_only_home_can_compile(tmp_path: Path) -> None:
    """OpenShift's way: torch.compile asks for the user's name, and keeps its cache in the home folder."""
    if shutil.which("g++") is None or shutil.which("setpriv") is None:
        pytest.skip("torch.compile on a CPU needs g++, and becoming somebody else needs setpriv")
    # It may read everything, since this checkout may lie in somebody's home; it may write nothing that is not its own.
    nameless = ["setpriv", f"--reuid={NAMELESS}", f"--regid={NAMELESS}", "--clear-groups",
                "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]  # fmt: skip
    read_only, temporary = tmp_path / "home", tmp_path / "tmp"
    read_only.mkdir(mode=0o555)
    temporary.mkdir()
    temporary.chmod(0o1777)
    clean = {k: v for k, v in environment().items() if k not in ("USER", "LOGNAME", "LNAME", "USERNAME")}
    finished = run_worker(
        train("trivial_cifar10", compile=True, tune="max", mode="forward"),
        # The last spares the compiler seconds of trying out what the processor can do.
        {**clean, "HOME": str(read_only), "TMPDIR": str(temporary), "TORCHINDUCTOR_VEC_ISA_OK": "1"},
        prefix=nameless,
        cwd="/",
    )
    assert finished.last["event"] == "result", (finished.last, finished.stderr[-2000:])
    said = [e["line"] for e in finished.events if e["event"] == "log"]
    assert any(f"uid-{NAMELESS}" in line for line in said)
    caches = temporary / f"stackmark-{NAMELESS}"
    assert any(str(caches) in line for line in said)
    assert any((caches / "inductor").iterdir())
    assert list(read_only.iterdir()) == []


def test_a_home_that_can_be_written_is_left_alone(tmp_path: Path) -> None:
    environ = {"USER": "somebody", "HOME": str(tmp_path)}
    assert home.settle(environ) == []
    assert environ == {"USER": "somebody", "HOME": str(tmp_path)}


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_cache_below_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    """An experiment's shared cache lies in the driver's home, which another user of a container may not even look into."""
    closed = Path(tempfile.mkdtemp(dir="/tmp"))  # mode 0700
    # The bundle is a file that anybody can read; the checkout may not be.
    bundle = worker_bundle().write(Path(tempfile.mkdtemp(dir="/tmp")) / "worker.pyz")
    bundle.parent.chmod(0o755)
    try:
        done = subprocess.run(
            ["/usr/bin/env", "-i", f"CUDA_CACHE_PATH={closed}/cache/cuda", "USER=x", "HOME=/", "python3", str(bundle)],
            input=b'{"do":"facts","lifeline":false}\n', user=NAMELESS, group=NAMELESS, extra_groups=[],
            capture_output=True, check=False, cwd="/",
        )  # fmt: skip
    finally:
        shutil.rmtree(closed)
        shutil.rmtree(bundle.parent)
    lines = done.stdout.decode().splitlines()
    assert (done.returncode, lines[0].startswith('{"event":"hello"')) == (0, True), done.stderr


def test_without_any_folder_to_write_a_worker_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod with a read-only root and no temporary folder."""

    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    environ = {"USER": "somebody", "HOME": str(tmp_path / "missing")}
    (said,) = home.settle(environ)
    assert str(tmp_path / "missing") in said
    assert "TRITON_CACHE_DIR" not in environ


@pytest.mark.parametrize("trap", ["file", "link"])
def test_a_cache_folder_that_somebody_else_prepared_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    theirs = tmp_path / f"stackmark-{os.getuid()}"
    if trap == "file":
        theirs.touch()
    else:
        (tmp_path / "elsewhere").mkdir()
        theirs.symlink_to(tmp_path / "elsewhere")
    environ = {"USER": "somebody", "HOME": str(tmp_path / "missing")}
    home.settle(environ)
    ours = Path(environ["TRITON_CACHE_DIR"]).parent
    assert ours.parent == tmp_path
    assert ours != theirs
    assert stat.S_IMODE(ours.stat().st_mode) == 0o700


def test_caches_that_somebody_chose_are_left_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = str(tmp_path / "mine")
    environ = {"USER": "somebody", "HOME": str(tmp_path / "missing"), "TRITON_CACHE_DIR": mine}
    home.settle(environ)
    assert environ["TRITON_CACHE_DIR"] == mine
    assert environ["CUDA_CACHE_PATH"] != mine


def test_a_chosen_cache_that_cannot_be_written_is_replaced_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environ = {"USER": "somebody", "HOME": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": "/proc/caches"}
    (said,) = home.settle(environ)
    assert "/proc/caches" in said
    assert environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
    assert "TRITON_CACHE_DIR" not in environ


# Signals


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
@pytest.mark.parametrize("moment", ["set-up", "measure", "before the task"])
def test_a_signal_is_a_failure_with_its_kind(
    env: dict[str, str], number: signal.Signals, kind: str, moment: str
) -> None:
    process = start(env)
    lines: list[str] = []
    if moment == "before the task":
        # It is up and waits for its task; before it is, the signal's own way is the right one.
        eventually(lambda: signal.SIGTERM in signals_in(process.pid, "SigCgt"))
    else:
        name, wanted = ("slow-set-up", "trick") if moment == "set-up" else ("calm", "measure")
        give(process, Task(do="run", spec=trick(name, steps=1_000_000)))
        lines = read_until(process, lambda event: phase(event, wanted))
    process.send_signal(number)
    failed(finish(process, lines), kind)


def test_a_second_signal_does_not_disturb_the_goodbye(env: dict[str, str]) -> None:
    process = start(env)
    give(process, Task(do="run", spec=trick("calm", steps=1_000_000)))
    lines = read_until(process, lambda event: phase(event, "measure"))
    for _ in range(20):
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
    finished = finish(process, lines)
    check_stream(finished)
    assert (finished.last["event"], finished.code) == ("failed", FAILURE_EXIT_CODES[finished.last["kind"]])
    assert "Traceback" not in finished.stderr


def test_signals_never_tear_the_stream(env: dict[str, str]) -> None:
    """At whatever moment between the events the signal comes, the last word is read, and has its own number."""

    def once(delay_s: float) -> None:
        process = start(env)
        give(process, Task(do="run", spec=trick("values", steps=100_000, step_s=0, values_every=1)))
        lines = read_until(process, lambda event: phase(event, "measure", "end") or event["event"] == "steps")
        time.sleep(delay_s)
        process.send_signal(signal.SIGTERM)
        finished = finish(process, lines)
        check_stream(finished)
        assert finished.last["event"] in ("failed", "result")

    for number in range(4):
        once(0.02 * number)


def test_a_worker_that_is_stuck_in_c_ends_within_its_grace(env: dict[str, str]) -> None:
    process = start(env)
    give(process, Task(do="run", spec=trick("stuck")))
    assert process.stderr is not None
    assert process.stderr.readline() == b"stuck\n"
    eventually(lambda: signal.SIGTERM in signals_in(process.pid, "SigBlk"))  # it says so before it goes there
    process.send_signal(signal.SIGTERM)
    finished = finish(process, timeout_s=30)
    failed(finished, "terminated")


def test_a_signal_to_a_forked_child_is_none_to_the_worker(env: dict[str, str]) -> None:
    """They share the wake-up pipe: the worker would end itself after the grace."""
    finished = run_worker(trick("forked", seconds=6.0, steps=0), env)
    assert (finished.code, finished.last["event"]) == (0, "result")


def test_the_end_of_the_lifeline_ends_the_worker_and_its_children(env: dict[str, str], tmp_path: Path) -> None:
    pids_file = tmp_path / "pids"
    process = start({**env, "STACKMARK_TEST_PIDS": str(pids_file), "STACKMARK_RUN": f"r-{tmp_path.name}-{os.getpid()}"})
    give(process, Task(do="run", spec=trick("family", steps=1_000_000)))
    lines = read_until(process, lambda event: phase(event, "measure"))
    assert process.stdin is not None
    process.stdin.close()
    finished = finish(process, lines, timeout_s=30)
    assert finished.last["kind"] == "lost_driver"
    assert not any(alive(int(pid)) for pid in pids_file.read_text().split())


DYING_DRIVER = """
import os, subprocess, sys, time
reader, writer = os.pipe()
worker = subprocess.Popen([sys.executable, "-P", "-m", "stackmark.worker"], stdin=reader, start_new_session=True,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.write(writer, sys.argv[1].encode() + b"\\n")
holder = subprocess.Popen(["sleep", "300"], pass_fds=[writer], stdout=subprocess.DEVNULL)
while not os.path.exists(os.environ["STACKMARK_TEST_PIDS"]):
    time.sleep(0.01)
print(holder.pid, flush=True)
os._exit(0)
"""


def test_a_worker_dies_with_its_parent_though_somebody_else_holds_the_lifeline(
    env: dict[str, str], tmp_path: Path
) -> None:
    pids_file, mark = tmp_path / "pids", f"r-{tmp_path.name}-{os.getpid()}"
    task = Task(do="run", spec=trick("family", steps=10_000_000)).model_dump_json()
    driver = subprocess.run(
        [sys.executable, "-c", DYING_DRIVER, task],
        env={**env, "STACKMARK_TEST_PIDS": str(pids_file), "STACKMARK_RUN": mark},
        capture_output=True,
        check=True,
        timeout=60,
    )
    holder = int(driver.stdout)
    try:
        assert gone(read_pids(pids_file, 4))
    finally:
        with suppress(ProcessLookupError):
            os.kill(holder, signal.SIGKILL)


def test_without_a_lifeline_the_end_of_standard_input_means_nothing(env: dict[str, str]) -> None:
    process = start(env)
    give(process, Task(do="run", spec=trick("calm", steps=300), lifeline=False))
    assert process.stdin is not None
    process.stdin.close()
    finished = finish(process)
    assert (finished.code, finished.last["event"]) == (0, "result")


# Failures


def test_a_loss_that_is_not_finite_fails_the_run(env: dict[str, str]) -> None:
    """A real network whose learning rate is beyond all measure."""
    finished = run_worker(train(learning_rate=1e30, steps=50, warmup_steps=5), env)
    assert "--learning-rate" in failed(finished, "not_finite")["hint"]


def test_a_loss_that_breaks_while_it_is_measured_is_named_with_its_step(env: dict[str, str]) -> None:
    assert "step 1" in failed(run_worker(trick("nan"), env), "not_finite")["message"]


def test_a_device_that_is_not_there_is_named(env: dict[str, str]) -> None:
    last = failed(run_worker(train(device="cuda:99"), env), "no_device")
    assert "cuda:99" in last["message"]
    assert last["hint"]


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"bach": 2}, "bach"), ({"batch": 0}, "batch"), ({"batch": "many"}, "batch"), ({"device": "tpu"}, "device"),
        ({"precision": "fp8"}, "precision"), ({"precision": "tf32"}, "tf32"), ({"seconds": -1.0}, "seconds"),
    ],
)  # fmt: skip
def test_a_parameter_that_cannot_be_is_named(env: dict[str, str], params: dict[str, Scalar], named: str) -> None:
    assert named in failed(run_worker(train(**params), env), "bad_parameter")["message"]


def test_a_parameter_that_is_missing_from_a_spec_is_named(env: dict[str, str]) -> None:
    spec = Spec(workload="train/lenet", params={"device": "cpu"})
    assert "batch" in failed(run_worker(spec, env), "bad_parameter")["message"]


def test_a_workload_nobody_knows_is_answered_with_the_nearest(env: dict[str, str]) -> None:
    assert "train/resnet50" in failed(run_worker(train("resnet5"), env), "bad_parameter")["message"]


@pytest.mark.parametrize(
    "task", [b"\n", b"{\n", b"\xff\xfe\n", b"[" * 90_000 + b"\n", b"x" * 200_000 + b"\n", b'{"do":"run"}\n'],
    ids=["empty", "cut off", "no text", "nested", "endless", "without a spec"],
)  # fmt: skip
def test_a_task_that_cannot_be_read_is_a_failure(env: dict[str, str], task: bytes) -> None:
    finished = work(task, env)
    failed(finished, "bad_task")
    assert "Traceback" not in finished.stderr


def test_a_task_in_the_environment_that_is_no_text_is_a_failure(env: dict[str, str]) -> None:
    finished = work(b"", {**env, "STACKMARK_SPEC": os.fsdecode(b'{"do":"facts\xff"}')})
    failed(finished, "bad_task")


def test_too_large_a_batch_runs_out_of_the_host_s_memory(env: dict[str, str]) -> None:
    """A million images of 224 × 224 are 600 GB: the allocator refuses, before the kernel has to.

    Not where memory is overcommitted without end, as a kubelet sets it for its whole machine: hence a limit.
    """
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (100 * 2**30, before[1]))
    try:
        finished = run_worker(train("resnet50", batch=1_000_000, classes=1001), env)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    last = failed(finished, "out_of_host_memory")
    assert "--batch" in last["hint"]


def test_a_system_call_without_memory_is_out_of_memory_too(env: dict[str, str]) -> None:
    failed(run_worker(trick("no-memory"), env), "out_of_host_memory")


def test_a_missing_framework_is_named_with_how_to_install_it(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    finished = run_worker(train(), {**env, "PYTHONPATH": f"{tmp_path}{os.pathsep}{env['PYTHONPATH']}"})
    assert "'stackmark[torch]'" in failed(finished, "missing_package")["hint"]


def test_any_other_missing_package_is_named(env: dict[str, str]) -> None:
    assert "no_such_package_anywhere" in failed(run_worker(trick("missing"), env), "missing_package")["message"]


def test_a_crash_is_a_failure_with_its_traceback_on_standard_error(env: dict[str, str]) -> None:
    finished = run_worker(trick("crash"), env)
    assert failed(finished, "crash")["message"] == "RuntimeError: something nobody foresaw"
    assert "Traceback" in finished.stderr
    assert "worker_process.py" in finished.stderr


def test_a_library_that_calls_exit_crashed(env: dict[str, str]) -> None:
    assert failed(run_worker(trick("leave"), env), "crash")["message"] == "SystemExit: 3"


def test_what_fails_after_the_result_fails_the_run(env: dict[str, str]) -> None:
    finished = run_worker(trick("late"), env)
    assert "result" in finished.kinds()
    failed(finished, "crash")


def test_a_message_of_any_length_and_letters_is_an_event(env: dict[str, str]) -> None:
    last = failed(run_worker(trick("wordy"), env), "bad_data")
    assert last["message"].startswith("a name that is no text: \udc80 ééé")


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before


def test_the_recorded_environment_is_json(trained: Finished) -> None:
    for line in trained.lines:
        json.loads(line)
