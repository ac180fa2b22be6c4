"""A container as a place, with the real podman and the real docker: real limits, real kills, and nothing left."""

import json
import os
import resource
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from remark_kinds import kinds_of
from stackmark.errors import PlaceError
from stackmark.events import Event, Hello, Stream, gathered_facts
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.run import measure
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.machine.orphans import marked
from stackmark.places import process as worker_as_process
from stackmark.places.bundle import worker_bundle
from stackmark.places.container import bare_image
from stackmark.places.container.engine import Engine, find_engine
from stackmark.places.container.launch import driver_name
from stackmark.places.container.options import ContainerOptions
from stackmark.places.container.place import ContainerPlace, remove_abandoned, remove_left
from stackmark.places.host import HostPlace
from stackmark.places.place import Facts, Handle, Outcome, Place
from stackmark.places.registry import find_place
from stackmark.spec import Request, Scalar, Spec, Task
from worker_process import PIDS_VARIABLE, environment, eventually, gone, install, read_pids, time_is_up_when, trick

MARK = f"r-test-{os.getpid()}"


class Notes:
    """A watch that writes down what it sees."""

    def __init__(self) -> None:
        self.handle: Handle = {}
        self.lines: list[str] = []
        self.err: list[str] = []

    def started(self, handle: Handle) -> None:
        self.handle = handle

    def line(self, text: str) -> None:
        self.lines.append(text)

    def waiting(self, sentence: str) -> None: ...

    def stderr(self, text: str) -> None:
        self.err.append(text)

    @property
    def events(self) -> list[Event]:
        stream = Stream()
        for line in self.lines:
            stream.feed(line)
        return list(stream.events)

    @property
    def facts(self) -> Facts:
        return gathered_facts(self.events)


@dataclass(frozen=True)
class Rig:
    """An engine that works here, and the environment in which its containers are started."""

    engine: Engine
    env: dict[str, str]

    def place(
        self, *, cache: Path | None = None, around: dict[str, str] | None = None, **options: Any
    ) -> ContainerPlace:
        """`around` is added to the host's environment."""
        read = ContainerOptions.model_validate({"engine": self.engine.kind, **options})
        return ContainerPlace(read, cache, environment={**self.env, **(around or {})})

    def run(
        self, spec: Spec, limit_s: float | None = 60, around: dict[str, str] | None = None, notes: Notes | None = None,
        **options: Any,
    ) -> tuple[Outcome, Notes]:  # fmt: skip
        notes = notes or Notes()
        return self.place(around=around, **options).run(
            Task(do="run", spec=spec), notes, mark=MARK, time_limit_s=limit_s
        ), notes


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = install(tmp_path_factory.mktemp("tricks"))
    folder.chmod(0o755)  # for a worker that is not root
    return environment(folder)


@pytest.fixture(params=["podman", "docker"])
def rig(request: pytest.FixtureRequest, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    reach: dict[str, str] = request.getfixturevalue(f"{request.param}_reach")
    for name, value in reach.items():
        monkeypatch.setenv(name, value)
    engine = find_engine(request.param, {**env, **reach})
    yield Rig(engine, {**env, **reach})
    assert engine.containers(MARK) == []
    assert marked(MARK) == []


@pytest.fixture
def podman(podman_reach: dict[str, str], env: dict[str, str]) -> Rig:
    return Rig(find_engine("podman", {**env, **podman_reach}), {**env, **podman_reach})


# A worker's life


def test_a_worker_runs_in_a_container_of_the_host_s_own_software(rig: Rig) -> None:
    outcome, notes = rig.run(trick("calm", steps=20))
    assert (outcome.exit_code, outcome.failure, outcome.interruption) == (0, None, None)
    assert '"event":"hello"' in notes.lines[0]
    assert '"event":"result"' in notes.lines[-1]
    inside = notes.facts["container"]
    assert (inside["engine"], inside["software"], inside["engine_version"]) == (
        rig.engine.kind,
        "host",
        rig.engine.version,
    )
    assert notes.facts["software"]["executable"] == sys.executable


def test_what_ran_is_in_the_handle(rig: Rig) -> None:
    _, notes = rig.run(trick("calm"))
    command = notes.handle["command"]
    assert isinstance(command, list)
    assert {"--rm", "--interactive", f"--label=stackmark.run={MARK}"} <= {str(word) for word in command}
    assert str(notes.handle["image_digest"]).startswith("sha256:")
    assert notes.handle["image_digest"] == notes.facts["container"]["image_digest"]
    hello = next(event for event in notes.events if isinstance(event, Hello))
    launched = notes.handle["launched_unix_s"]
    assert isinstance(launched, float)
    assert launched < hello.time_unix_s


def test_no_value_of_the_environment_is_in_the_command(rig: Rig) -> None:
    place = rig.place(around={"OMP_NUM_THREADS": "7", "AWS_SECRET_ACCESS_KEY": "hush"})
    notes = Notes()
    place.run(Task(do="run", spec=trick("calm")), notes, mark=MARK)
    assert notes.facts["environment"]["OMP_NUM_THREADS"] == "7"
    command = json.dumps(notes.handle["command"])
    assert '--env=OMP_NUM_THREADS"' in command
    assert "hush" not in command
    assert "AWS_SECRET_ACCESS_KEY" not in command


def test_standard_error_stays_apart(rig: Rig) -> None:
    outcome, notes = rig.run(trick("loud", steps=3))
    assert outcome.exit_code == 0
    assert len(notes.events) == len(notes.lines)
    assert "from C" in notes.err


def test_the_worker_is_not_process_one_and_a_crash_in_c_is_said(rig: Rig) -> None:
    """The kernel keeps a signal like this one from process 1."""
    outcome, notes = rig.run(trick("segfault"))
    assert next(event.pid for event in notes.events if isinstance(event, Hello)) != 1
    assert outcome.failure is not None
    assert (outcome.failure.kind, "SIGSEGV" in outcome.failure.message) == ("killed", True)


def test_a_run_past_its_time_says_goodbye(rig: Rig) -> None:
    notes = Notes()
    with time_is_up_when(lambda: any('"phase":"measure"' in line for line in notes.lines)):
        outcome, _ = rig.run(trick("calm", steps=10_000_000), limit_s=600, notes=notes)
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout"
    assert '"kind":"terminated"' in notes.lines[-1]


def test_a_worker_that_does_not_answer_is_removed(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_as_process, "POLITE_S", 0.3)
    pids = tmp_path / "pids"
    with time_is_up_when(lambda: pids.exists() and pids.read_text()):
        outcome, _ = rig.run(
            trick("orphan"), limit_s=600, mount=[f"{tmp_path}:{tmp_path}:rw"], around={PIDS_VARIABLE: str(pids)}
        )
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout"


# What was asked for


def test_limits_are_read_back_from_inside(rig: Rig) -> None:
    place = rig.place(
        cpus="1.5", cpuset="0", memory="256m", shm="128MiB", ulimit=["nofile=1000:2000"], cap_drop=["CHOWN"]
    )
    notes = Notes()
    outcome = place.run(Task(do="run", spec=trick("calm")), notes, mark=MARK)
    assert outcome.exit_code == 0
    assert notes.facts["cgroup"]["cpu_limit_cpus"] == 1.5
    assert notes.facts["cgroup"]["memory_limit_mib"] == 256
    assert notes.facts["process"]["cpus"] == "0"
    assert notes.facts["limits"]["shm_mib"] == 128
    ulimits = notes.facts["limits"]["ulimits"]
    assert isinstance(ulimits, dict)
    assert ulimits["nofile"] == "1000:2000"
    assert notes.facts["container"]["network"] is False
    assert place.not_enforced(trick("calm"), notes.facts) == []


def test_what_was_not_done_is_said(env: dict[str, str]) -> None:
    """The facts of the bare host, held against what a container was asked for."""
    notes = Notes()
    HostPlace(environment=env).run(Task(do="run", spec=trick("calm")), notes, mark=MARK)
    asked = ContainerOptions(
        cpus="0.5", cpuset="77", memory="100m", shm="10m", ulimit=("nofile=12",), gpus="all", cap_add=("SYS_RESOURCE",)
    )
    facts: Facts = {**notes.facts, "container": {"engine": "none", "network": True}, "host": {"boot_id": "x"}}
    said = ContainerPlace(asked).not_enforced(trick("calm"), facts)
    found = dict(zip(kinds_of(said), said, strict=True))
    asked_for = {
        "cpus": "0.5", "cpuset": "77", "memory": "100 MiB", "shm": "10.0 MiB", "ulimit": "nofile=12:12", "gpus": "",
        "network": "", "no-container": "", "other-machine": "",
    }  # fmt: skip
    assert [kind for kind, value in asked_for.items() if value not in found[kind]] == []
    assert kinds_of(ContainerPlace(asked).not_enforced(trick("calm"), {}))[0] == "missing-facts"


def test_seccomp_and_capabilities_are_as_asked(rig: Rig) -> None:
    place = rig.place(seccomp="unconfined", cap_drop=["ALL"], user="1234:1234")
    notes = Notes()
    outcome = place.run(Task(do="run", spec=trick("calm")), notes, mark=MARK)
    assert outcome.exit_code == 0
    assert (notes.facts["limits"]["seccomp"], notes.facts["limits"]["capabilities"]) == ("off", "none")
    assert notes.facts["process"]["uid"] == 1234
    assert place.not_enforced(trick("calm"), notes.facts) == []


def test_the_host_s_network_is_there_when_it_is_asked_for(rig: Rig) -> None:
    _, notes = rig.run(trick("calm"), network="host")
    assert notes.facts["container"]["network"] is True


def test_memory_that_was_not_enough_is_said_with_the_limit(rig: Rig) -> None:
    outcome, _ = rig.run(trick("greedy", steps=1000, step_s=0), memory="128m")
    assert outcome.failure is not None
    assert outcome.failure.kind == "out_of_host_memory"
    assert "128m" in outcome.failure.message


def test_kill_9_is_not_taken_for_want_of_memory(rig: Rig) -> None:
    class Killing(Notes):
        def line(self, text: str) -> None:
            super().line(text)
            if '"phase":"measure"' in text:
                for pid in marked(MARK):
                    # The client, which carries the mark too, is in our pid namespace. Others may end meanwhile.
                    with suppress(FileNotFoundError, ProcessLookupError):
                        if os.stat(f"/proc/{pid}/ns/pid").st_ino != os.stat("/proc/self/ns/pid").st_ino:
                            os.kill(pid, signal.SIGKILL)

    outcome = rig.place(memory="1g").run(
        Task(do="run", spec=trick("calm", steps=1_000_000)), Killing(), mark=MARK, time_limit_s=60
    )
    assert outcome.failure is not None
    assert (outcome.failure.kind, "SIGKILL" in outcome.failure.message) == ("killed", True)


def test_mounts_variables_and_the_shared_cache_are_there(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    pids = tmp_path / "cache" / "pids"
    place = rig.place(
        cache=tmp_path / "cache",
        around={PIDS_VARIABLE: str(pids)},
        env=["OMP_NUM_THREADS=5"],
        mount=[f"{tmp_path}:/data:ro"],
    )
    notes = Notes()
    outcome = place.run(Task(do="run", spec=trick("family")), notes, mark=MARK, time_limit_s=60)
    assert outcome.exit_code == 0
    assert len(pids.read_text().split()) == 4  # written from inside
    assert notes.facts["environment"]["CUDA_CACHE_PATH"] == str(tmp_path / "cache" / "cuda")
    assert notes.facts["environment"]["OMP_NUM_THREADS"] == "5"
    assert notes.facts["container"]["mounts"] == {"/data": "read-only"}


def test_a_mount_is_verified_from_inside(rig: Rig, tmp_path: Path) -> None:
    place = rig.place(mount=[f"{tmp_path}:/in", f"hostpath:{tmp_path}:/out:rw"])
    notes = Notes()
    place.run(Task(do="run", spec=trick("calm", steps=2)), notes, mark=MARK, time_limit_s=60)
    assert notes.facts["container"]["mounts"] == {"/in": "read-only", "/out": "writable"}
    assert "mount" not in kinds_of(place.not_enforced(trick("calm"), notes.facts))
    swapped = rig.place(mount=[f"{tmp_path}:/in:rw", f"{tmp_path}:/elsewhere"])
    assert kinds_of(swapped.not_enforced(trick("calm"), notes.facts)).count("mount") == 2


def test_data_are_read_where_they_were_mounted(podman: Rig) -> None:
    shards = Path(__file__).parent / "data/tfrecord"
    params: dict[str, Scalar] = {
        "device": "cpu", "batch": 2, "data": "/data", "data_workers": 1, "steps": 2, "warmup_steps": 0, "warmup_seconds": 0,
    }  # fmt: skip
    place, notes = podman.place(mount=[f"{shards}:/data"]), Notes()
    asked = Request(workload="train/resnet20", params=params)
    place.run(Task(do="run", request=asked), notes, mark=MARK, time_limit_s=120)
    assert '"event":"result"' in notes.lines[-1], notes.lines[-3:]


# What is refused


def test_a_user_s_program_is_the_same_one_in_the_container(rig: Rig, tmp_path: Path) -> None:
    """A `python` of the user's own, which is neither ours nor /usr's; and a script that lies elsewhere."""
    venv.create(tmp_path / "theirs", symlinks=True, with_pip=False)
    (tmp_path / "work").mkdir()
    (tmp_path / "code").mkdir()
    (tmp_path / "code/train.py").write_text("import sys; print('prefix', sys.prefix); print('speed: 7')")
    params = {"cmd": "python ../code/train.py", "cwd": str(tmp_path / "work"), "metric": "speed: ([0-9]+)"}
    params |= {"device": "cpu", "metric_unit": "x"}
    around = {"PATH": f"{tmp_path}/theirs/bin:{os.environ['PATH']}"}
    outcome, notes = rig.run(Spec(workload="command/own", params=params), around=around)
    assert outcome.exit_code == 0, notes.lines
    assert any(f"prefix {tmp_path}/theirs" in line for line in notes.lines)


def test_an_image_that_is_not_here_is_a_sentence_with_the_next_command(rig: Rig) -> None:
    with pytest.raises(PlaceError) as caught:
        rig.run(trick("calm"), image="localhost/no-such-image:1")
    assert f"{rig.engine.kind} pull localhost/no-such-image:1" in str(caught.value.hint)


def test_gpus_that_cannot_be_had_are_a_sentence(rig: Rig) -> None:
    with pytest.raises(PlaceError) as caught:
        rig.run(trick("calm"), gpus="all")
    assert "GPU" in caught.value.message
    assert "gpus=none" in str(caught.value.hint)
    assert caught.value.command is not None


@pytest.mark.skipif(resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] == -1, reason="locked memory is unlimited here")
def test_a_limit_that_may_not_be_set_is_named(rig: Rig) -> None:
    with pytest.raises(PlaceError) as caught:
        rig.run(trick("calm"), ulimit=["memlock=-1"])
    assert "memlock" in caught.value.message
    assert "ulimit=memlock=" in str(caught.value.hint)


def test_no_engine_is_a_sentence_with_what_to_install(tmp_path: Path) -> None:
    place = ContainerPlace(environment={"PATH": str(tmp_path)})
    with pytest.raises(PlaceError) as caught:
        place.run(Task(do="facts"), Notes(), mark=MARK)
    assert "podman" in caught.value.message
    assert "docker" in caught.value.message
    assert "apt-get install" in str(caught.value.hint)


def test_a_daemon_that_does_not_run_is_a_sentence(docker_reach: dict[str, str], tmp_path: Path) -> None:
    place = ContainerPlace(
        ContainerOptions(engine="docker"), environment={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    )
    with pytest.raises(PlaceError) as caught:
        place.prepare()
    assert "DOCKER_HOST" in caught.value.message
    assert "engine=podman" in str(caught.value.hint)


# Images


def test_an_image_of_somebody_s_runs_our_code_mounted_into_it(rig: Rig) -> None:
    """The image is the bare one, made somebody's by mounting a Python into it; the workload is another package's."""
    bare = bare_image.made(rig.engine)
    folders = rig.place().prepare()[1].software
    assert folders is not None
    mounts = [f"{folder}:{folder}:ro" for folder in folders.folders]
    tricks = rig.env["PYTHONPATH"].partition(os.pathsep)[0]
    paths = [f"PATH={Path(sys.executable).parent}:/usr/bin", f"PYTHONPATH={Path(__file__).parent}:{tricks}"]
    place = rig.place(image=bare, mount=mounts, env=paths)
    notes = Notes()
    outcome = place.run(Task(do="run", spec=trick("calm")), notes, mark=MARK)
    assert (outcome.exit_code, notes.facts["container"]["software"]) == (0, "image")
    assert notes.facts["stackmark"]["bundle_sha256"] == worker_bundle().sha256
    assert place.not_enforced(trick("calm"), notes.facts) == []


def test_the_bare_image_is_made_once_and_small(rig: Rig) -> None:
    first = bare_image.made(rig.engine)
    told = rig.engine.need("image", "inspect", "--format", "{{.Id}} {{.Size}}", first).split()
    assert bare_image.made(rig.engine) == first
    assert rig.engine.need("image", "inspect", "--format", "{{.Id}}", first) == told[0]
    loader = Path("/etc/ld.so.cache")
    assert int(told[1]) < 32 * 1024 + (loader.stat().st_size if loader.exists() else 0)


def test_the_whole_host_can_be_the_root_and_stays_untouched(podman: Rig, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    outcome, notes = podman.run(trick("family"), rootfs=True, around={PIDS_VARIABLE: str(pids)})
    assert outcome.exit_code == 0
    assert notes.facts["container"]["software"] == "rootfs"
    assert notes.facts["host"]["machine_id"] is not None
    assert not pids.exists()  # it was written, on top


def test_a_gpu_is_given_by_cdi(podman: Rig) -> None:
    """A specification whose GPU is another device: its node appears, and is seen from inside."""
    folder, device = Path("/etc/cdi"), Path("/dev/fuse")
    if os.getuid() != 0 or not device.exists() or any(folder.glob("*nvidia*")):
        pytest.skip("needs root, /dev/fuse, and a machine without NVIDIA's own specification")
    spec = folder / "stackmark-test.yaml"
    made = not folder.exists()
    folder.mkdir(exist_ok=True)
    node = f"deviceNodes: [{{path: /dev/nvidia0, hostPath: {device}}}]"
    spec.write_text(f"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    {node}\n")
    try:
        place = podman.place(gpus="all")
        notes = Notes()
        outcome = place.run(Task(do="run", spec=trick("calm")), notes, mark=MARK)
    finally:
        spec.unlink()
        if made:
            folder.rmdir()
    assert outcome.exit_code == 0
    assert (notes.facts["gpu"]["device_nodes"], notes.handle["gpus_by"]) == (["/dev/nvidia0"], "cdi")
    assert place.not_enforced(trick("calm"), notes.facts) == []


# Drivers and clients that are killed

DRIVER = """
import signal, sys
from stackmark.errors import Terminated
from stackmark.places.registry import find_place
from stackmark.experiments.run import measure
from stackmark.ledger.store import Ledger
from stackmark.spec import Request

def terminated(*_):
    raise Terminated

signal.signal(signal.SIGTERM, terminated)
book, workload, engine, folder = sys.argv[1:]
with Ledger.open(book) as ledger:
    place = find_place("container", {"engine": engine, "mount": [f"{folder}:{folder}:rw"]})
    measure(Request(workload=workload, params={"steps": 10_000_000}), place=place, ledger=ledger, runs=1)
"""


def driver(rig: Rig, workload: str, folder: Path) -> subprocess.Popen[bytes]:
    env = {**rig.env, PIDS_VARIABLE: str(folder / "pids")}
    argv = [sys.executable, "-c", DRIVER, str(folder / "book"), workload, rig.engine.kind, str(folder)]
    return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def only_row(folder: Path) -> RunRow:
    with Ledger.open(str(folder / "book"), create=False) as book:
        (row,) = book.runs()
        return row


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_to_the_driver_ends_the_container(rig: Rig, tmp_path: Path, number: signal.Signals, kind: str) -> None:
    process = driver(rig, "trick/family", tmp_path)
    read_pids(tmp_path / "pids", 4)
    process.send_signal(number)
    process.communicate(timeout=60)
    row = only_row(tmp_path)
    assert (row.status, row.failure_kind) == ("failed", kind)
    assert rig.engine.containers(row.id) == []
    with Ledger.open(str(tmp_path / "book")) as book:
        assert any(f'"kind":"{kind}"' in line for line in book.stream(row.id))


def test_a_killed_driver_leaves_no_container(rig: Rig, tmp_path: Path) -> None:
    process = driver(rig, "trick/family", tmp_path)
    read_pids(tmp_path / "pids", 4)
    run_id = only_row(tmp_path).id
    pids = marked(run_id)
    process.kill()
    process.communicate()
    assert gone(pids)
    assert eventually(lambda: rig.engine.containers(run_id) == [])
    with Ledger.open(str(tmp_path / "book")) as book:
        (said,) = clean_up(book)
        assert run_id in said
        # Nothing of it was there to be removed.
        assert rig.engine.kind not in said
        assert book.run(run_id).failure_kind == "lost"


def test_what_a_killed_driver_s_worker_cannot_end_the_next_command_removes(rig: Rig, tmp_path: Path) -> None:
    """The worker stands still and notices nothing."""
    process = driver(rig, "trick/orphan", tmp_path)
    read_pids(tmp_path / "pids", 4)
    process.kill()
    process.communicate()
    row = only_row(tmp_path)
    assert len(rig.engine.containers(row.id)) == 1
    with Ledger.open(str(tmp_path / "book")) as book:
        (said,) = clean_up(book)
    assert row.id in said
    assert rig.engine.kind in said
    assert rig.engine.containers(row.id) == []
    assert not Path(str(row.handle["folder"])).exists()


def test_a_killed_client_is_said_and_leaves_no_container(rig: Rig) -> None:
    class Killing(Notes):
        def line(self, text: str) -> None:
            super().line(text)
            if '"phase":"measure"' in text:
                assert isinstance(self.handle["pid"], int)
                os.kill(self.handle["pid"], signal.SIGKILL)

    notes = Killing()
    outcome = rig.place().run(Task(do="run", spec=trick("calm", steps=1_000_000)), notes, mark=MARK, time_limit_s=60)
    assert outcome.failure is not None
    assert outcome.failure.kind == "killed"
    # The engine's client, and not the worker.
    assert rig.engine.kind in outcome.failure.message
    assert "SIGKILL" in outcome.failure.message


def test_containers_of_dead_drivers_go_and_those_of_living_ones_stay(rig: Rig) -> None:
    image = bare_image.made(rig.engine)
    dead = driver_name().rpartition(":")[0] + ":1"  # the same pid, which began at another time
    limits = ["--ulimit=nofile=1000:1000", "--ulimit=nproc=1000:1000"]
    names = {}
    for name in (dead, driver_name()):
        labels = ["--label", f"stackmark.driver={name}", "--label", f"stackmark.run={MARK}"]
        names[name] = rig.engine.need(
            "create", "--pull=never", "--network=none", *limits, *labels, image, "/usr/bin/true"
        )
    assert remove_abandoned(rig.engine) >= 1
    assert rig.engine.containers(MARK) == [names[driver_name()]]
    (left,) = remove_left(MARK, {"engine": rig.engine.kind})
    assert rig.engine.kind in left


# A real network


def test_a_network_is_trained_in_a_container_from_a_folder_of_the_host(podman: Rig, tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for number in range(1, 6):
        (folder / f"data_batch_{number}.bin").write_bytes(bytes([number]) + bytes(3072))
    place: Place = find_place("container", {"engine": "podman", "shm": "256m"}, tmp_path / "cache")
    params: dict[str, str | int | float | bool | None] = {
        "data": str(tmp_path), "data_workers": 1, "batch": 2, "device": "cpu", "tune": "off", "steps": 20, "warmup_seconds": 0.0,
    }  # fmt: skip
    with Ledger.open(str(tmp_path / "book")) as book:
        measured = measure(Request(workload="train/trivial_cifar10", params=params), place=place, ledger=book, runs=1)
    (row,) = measured.runs
    assert (row.status, row.place, row.place_options["shm"]) == ("done", "container", "256m")
    assert row.rate_per_s is not None
    assert measured.facts["container"]["engine"] == "podman"
