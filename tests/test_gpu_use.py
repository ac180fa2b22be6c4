"""Which GPUs a user's own program used: by NVML's process lists where they can be read, by weaker evidence elsewhere."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from fake_nvml import FakeNvml
from remark_kinds import kinds_of
from stackmark.events import Event, Metric, Result, Stream, gathered_facts
from stackmark.experiments.judging import _about
from stackmark.experiments.verify import chip_for_others
from stackmark.machine import counters, orphans
from stackmark.machine.gpu_use import GpuUse, GpuWatch, ProgramWatch, facts_of, together
from stackmark.machine.orphans import started_by_us
from stackmark.model import JsonValue
from stackmark.places.container.gpus import wanted
from stackmark.places.container.options import ContainerOptions
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import gpus_of
from stackmark.spec import Spec, Task
from stackmark.worker.run import run as run_spec
from stackmark.worker.stream import Emitter
from stackmark.workloads.command.definition import CommandParams

MIB = 2**20
OURS, THEIRS = 4_000_001, 4_000_002  # no such process is here: larger than any number that Linux gives
NAMES = {"gpu0": "NVIDIA H200", "gpu1": "NVIDIA H200", "slice0": "NVIDIA H200 MIG 1g.18gb"}
UUIDS = {"gpu0": "GPU-00000000-0000", "gpu1": "GPU-11111111-1111", "slice0": "MIG-22222222-2222"}


class Machine:
    """Two GPUs whose state a test changes while they are watched."""

    def __init__(self) -> None:
        self.listed: dict[str, dict[int, int | None] | None] = {"gpu0": {}, "gpu1": {}, "slice0": {}}
        self.used_mib = {"gpu0": 500.0, "gpu1": 500.0, "slice0": 50.0}
        self.energy_j = {"gpu0": 1000.0, "gpu1": 2000.0, "slice0": 0.0}
        self.lost: set[str] = set()
        self.cut: set[str] = set()

    def nvml(self) -> FakeNvml:
        return FakeNvml(
            nvmlDeviceGetCount=2,
            nvmlDeviceGetHandleByIndex=lambda index: f"gpu{index}",
            nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
            nvmlDeviceGetName=lambda handle: NAMES[handle],
            nvmlDeviceGetMaxMigDeviceCount=lambda handle: 1 if handle in self.cut else 0,
            nvmlDeviceGetMigDeviceHandleByIndex=lambda _handle, _position: "slice0",
            nvmlDeviceGetComputeRunningProcesses_v3=self._answer(self._processes),
            nvmlDeviceGetMemoryInfo=self._answer(
                lambda handle: SimpleNamespace(total=140_000 * MIB, used=self.used_mib[handle] * MIB)
            ),
            nvmlDeviceGetTotalEnergyConsumption=self._answer(lambda handle: int(self.energy_j[handle] * 1000)),
        )

    def _answer(self, question: Callable[[str], object]) -> Callable[[str], object]:
        def answer(handle: str) -> object:
            if handle in self.lost:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
            return question(handle)

        return answer

    def _processes(self, handle: str) -> object:
        listed = self.listed[handle]
        if listed is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [
            SimpleNamespace(pid=pid, usedGpuMemory=None if held is None else held * MIB) for pid, held in listed.items()
        ]


@pytest.fixture
def machine() -> Machine:
    return Machine()


def seen(
    machine: Machine,
    change: Callable[[], object],
    *,
    container: bool = False,
    pids: Callable[[], set[int]] | None = None,
) -> dict[str, GpuUse]:
    """Watch while something changes; the uses by UUID. The thread's own samples come at any moment: ours makes one sure."""
    watch = GpuWatch(pids or (lambda: {OURS}), machine.nvml(), every_s=0.01, numbers_are_ours=not container)
    with watch:
        change()
        watch.look()
    return {use.uuid: use for use in watch.uses()}


def put(machine: Machine, handle: str, pid: int, held_mib: int | None) -> Callable[[], None]:
    def change() -> None:
        listed = machine.listed[handle]
        assert listed is not None
        listed[pid] = held_mib
        machine.used_mib[handle] += held_mib or 0

    return change


def test_a_program_on_the_second_of_two_gpus_is_seen_there_with_its_memory(machine: Machine) -> None:
    uses = seen(machine, put(machine, "gpu1", OURS, 1200))
    assert uses == {UUIDS["gpu1"]: GpuUse(UUIDS["gpu1"], UUIDS["gpu1"], NAMES["gpu1"], "process list", 1200.0, 0)}


def test_a_program_on_both_gpus_is_seen_on_both(machine: Machine) -> None:
    def both() -> None:
        put(machine, "gpu0", OURS, 700)()
        put(machine, "gpu1", OURS, 900)()

    assert {uuid: use.memory_peak_mib for uuid, use in seen(machine, both).items()} == {
        UUIDS["gpu0"]: 700.0,
        UUIDS["gpu1"]: 900.0,
    }


def test_a_program_that_only_looks_is_seen_nowhere(machine: Machine) -> None:
    assert seen(machine, lambda: None) == {}
    assert seen(machine, lambda: None, container=True) == {}


def test_another_users_process_is_not_ours_and_is_counted_where_ours_runs(machine: Machine) -> None:
    assert seen(machine, put(machine, "gpu0", THEIRS, 5000)) == {}
    (use,) = seen(machine, put(machine, "gpu0", OURS, 300)).values()
    assert (use.memory_peak_mib, use.other_processes) == (300.0, 1)


def test_a_process_of_the_host_that_appears_stands_for_a_program_in_a_container(machine: Machine) -> None:
    put(machine, "gpu0", THEIRS, 5000)()  # there before: not ours
    (use,) = seen(machine, put(machine, "gpu1", OURS, 800), container=True, pids=lambda: {7}).values()
    assert (use.uuid, use.evidence, use.memory_peak_mib, use.other_processes) == (
        UUIDS["gpu1"],
        "new process",
        800.0,
        0,
    )


def test_a_new_process_that_can_be_looked_up_here_is_not_ours(machine: Machine) -> None:
    assert seen(machine, put(machine, "gpu1", os.getpid(), 800), container=True, pids=lambda: {7}) == {}


def rise(machine: Machine, handle: str, by_mib: float) -> Callable[[], None]:
    def change() -> None:
        machine.used_mib[handle] += by_mib

    return change


def test_memory_that_rises_stands_for_a_program_where_no_processes_are_listed(machine: Machine) -> None:
    (use,) = seen(machine, rise(machine, "gpu1", 600), container=True).values()
    assert (use.uuid, use.evidence, use.memory_peak_mib, use.other_processes) == (
        UUIDS["gpu1"],
        "memory rose",
        600.0,
        None,
    )


def test_a_few_mib_more_are_no_program(machine: Machine) -> None:
    assert seen(machine, rise(machine, "gpu1", 8), container=True) == {}


def test_memory_means_nothing_where_the_process_list_can_be_read(machine: Machine) -> None:
    assert seen(machine, rise(machine, "gpu1", 600)) == {}


def test_memory_counts_on_a_host_whose_driver_lists_no_processes(machine: Machine) -> None:
    machine.listed["gpu0"] = machine.listed["gpu1"] = None
    (use,) = seen(machine, rise(machine, "gpu0", 600)).values()
    assert use.evidence == "memory rose"


def test_the_stronger_evidence_decides(machine: Machine) -> None:
    def both() -> None:
        put(machine, "gpu0", OURS, 300)()
        rise(machine, "gpu1", 900)()  # a neighbour's

    assert list(seen(machine, both, container=True)) == [UUIDS["gpu0"]]


def test_a_slice_is_the_chip_and_not_its_gpu(machine: Machine) -> None:
    machine.cut.add("gpu0")
    (use,) = seen(machine, put(machine, "slice0", OURS, 200)).values()
    assert (use.uuid, use.gpu_uuid, use.name) == (UUIDS["slice0"], UUIDS["gpu0"], NAMES["slice0"])


def test_without_a_driver_nothing_is_watched() -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    with GpuWatch(set, FakeNvml(nvmlInit=refuse)) as watch:
        assert watch.visible == ()
    assert watch.problem
    assert watch.uses() == ()


def test_the_processes_are_asked_for_only_when_a_list_shows_an_unknown_one(machine: Machine) -> None:
    asked = []

    def pids() -> set[int]:
        asked.append(1)
        return {OURS}

    put(machine, "gpu0", THEIRS, 100)()
    watch = GpuWatch(pids, machine.nvml(), every_s=60, numbers_are_ours=True)
    with watch:
        for _ in range(20):
            watch.look()
    assert len(asked) <= 2  # ours and the thread's first look may meet


def test_children_of_ours_are_ours_whatever_environment_they_have() -> None:
    import subprocess

    child = subprocess.Popen([shutil.which("env") or "env", "-i", "/bin/sleep", "60"])
    try:
        assert child.pid in started_by_us("")
    finally:
        child.kill()
        child.wait()


# Counters


def watched(machine: Machine, change: Callable[[], object]) -> ProgramWatch:
    watch = ProgramWatch(lambda: {OURS}, machine.nvml())
    watch._watch._numbers_are_ours = True
    with watch:
        change()
        watch._watch.look()
    return watch


@pytest.fixture(autouse=True)
def long_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take energy from windows of any length: no test waits five seconds."""
    monkeypatch.setattr(counters, "ENERGY_WINDOW_S", 0.0)


def test_energy_is_that_of_the_gpus_that_were_used(machine: Machine) -> None:
    def work() -> None:
        put(machine, "gpu1", OURS, 100)()
        machine.energy_j["gpu0"] += 500  # a neighbour's
        machine.energy_j["gpu1"] += 70

    assert watched(machine, work).findings.metrics["energy_j"] == 70


def test_energy_of_several_gpus_is_added_up(machine: Machine) -> None:
    def work() -> None:
        for handle, joules in (("gpu0", 500), ("gpu1", 70)):
            put(machine, handle, OURS, 100)()
            machine.energy_j[handle] += joules

    found = watched(machine, work)
    assert found.findings.metrics["energy_j"] == 570
    assert found.memory_peak_mib == 200
    assert found.findings.metrics["other_gpu_processes"] == 0


def test_a_program_that_used_no_gpu_has_no_numbers_of_one(machine: Machine) -> None:
    found = watched(machine, lambda: machine.energy_j.update(gpu0=5000.0)).findings
    assert not {"energy_j", "other_gpu_processes"} & found.metrics.keys()
    assert found.invalid == ()


def test_a_gpu_that_was_lost_under_the_program_makes_the_run_invalid(machine: Machine) -> None:
    watch = ProgramWatch(lambda: {OURS}, machine.nvml())
    watch._watch._numbers_are_ours = True
    with watch:
        put(machine, "gpu1", OURS, 100)()
        watch._watch.look()
        machine.lost.add("gpu1")
    assert "gpu-lost" in kinds_of(watch.findings.invalid)
    assert [use.uuid for use in watch.uses] == [UUIDS["gpu1"]]


def test_a_lost_gpu_that_was_not_used_is_somebody_elses_trouble(machine: Machine) -> None:
    def work() -> None:
        put(machine, "gpu1", OURS, 100)()
        machine.lost.add("gpu0")

    assert watched(machine, work).findings.invalid == ()


def test_two_slices_of_one_gpu_count_its_energy_once() -> None:
    gpu = counters.GpuCounters(energy_j=0.0)
    before: dict[str | None, counters.Counters] = {
        uuid: counters.Counters(uuid=uuid, gpu=gpu) for uuid in ("MIG-a", "MIG-b")
    }
    after = {uuid: counters.Counters(time_s=9.0, uuid=uuid, gpu=counters.GpuCounters(energy_j=80.0)) for uuid in before}
    uses = [GpuUse(uuid, "GPU-0", "slice", "process list") for uuid in ("MIG-a", "MIG-b")]
    found = together({None: counters.Counters(), **before}, {None: counters.Counters(time_s=9.0), **after}, uses)
    assert found.metrics["energy_j"] == 80


# Facts, and the chip of a run


def about(machine: Machine, uses: list[GpuUse]) -> dict[str, str | None]:
    facts = facts_of(uses, machine.nvml()).facts
    return _about({"cpu": {"model": "Intel Xeon"}, "gpu": {"under_test": None, **facts}, "command": {"words": ["x"]}})


def use(handle: str, of: str | None = None) -> GpuUse:
    return GpuUse(UUIDS[handle], UUIDS[of or handle], NAMES[handle], "process list")


def test_the_chip_is_the_gpu_that_was_used(machine: Machine) -> None:
    found = about(machine, [use("gpu1")])
    assert (found["chip"], found["chip_uuid"]) == (NAMES["gpu1"], UUIDS["gpu1"])


def test_two_gpus_are_counted_and_both_named(machine: Machine) -> None:
    found = about(machine, [use("gpu0"), use("gpu1")])
    assert (found["chip"], found["chip_uuid"]) == ("2 × NVIDIA H200", f"{UUIDS['gpu0']}+{UUIDS['gpu1']}")


def test_a_slice_is_named_as_the_chip(machine: Machine) -> None:
    machine.cut.add("gpu0")
    found = about(machine, [use("slice0", of="gpu0")])
    assert (found["chip"], found["chip_uuid"]) == (NAMES["slice0"], UUIDS["slice0"])


def test_a_gpu_that_is_gone_after_the_run_is_still_named(machine: Machine) -> None:
    gone = GpuUse("GPU-gone", "GPU-gone", "NVIDIA H200", "process list")
    found = about(machine, [gone])
    assert (found["chip"], found["chip_uuid"]) == ("NVIDIA H200", "GPU-gone")


def test_without_a_gpu_in_use_the_chip_is_the_cpu(machine: Machine) -> None:
    assert facts_of([], machine.nvml()).facts == {"chip_by": "none"}
    found = about(machine, [])
    assert (found["chip"], found["chip_uuid"]) == ("Intel Xeon", None)


def ran(machine: Machine, monkeypatch: pytest.MonkeyPatch, **params: Any) -> list[Event]:
    """The events of a worker that runs a command on a machine with the GPUs that we do not have."""
    monkeypatch.setitem(sys.modules, "pynvml", machine.nvml())
    with tempfile.TemporaryFile() as out:
        emitter = Emitter(out.fileno())
        complete = CommandParams(**params).model_dump(mode="json")
        run_spec(Spec(workload="command/own", params=complete), emitter)
        emitter.close()
        out.seek(0)
        stream = Stream()
        for line in out.read().decode().splitlines():
            stream.feed(line)
    return stream.events


def test_a_worker_names_the_gpu_that_its_command_was_seen_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    # This process may have children of other tests.
    before = started_by_us("")

    def listed(handle: str) -> list[SimpleNamespace]:
        """The command's own process, as the driver lists it on the second GPU."""
        children = started_by_us("") - before if handle == "gpu1" else ()
        return [SimpleNamespace(pid=pid, usedGpuMemory=640 * MIB) for pid in children]

    monkeypatch.setattr(machine, "_processes", listed)
    monkeypatch.setattr(orphans, "pid_namespace", lambda: orphans.HOST_PID_NAMESPACE)
    events = ran(machine, monkeypatch, cmd="sleep 1")
    facts = gathered_facts(events)
    assert (facts["gpu"]["under_test"], facts["gpu"]["chip_by"]) == (UUIDS["gpu1"], "process list")
    assert _about(facts)["chip"] == NAMES["gpu1"]
    metrics = {event.name: event.value for event in events if isinstance(event, Metric)}
    assert (metrics["energy_j"], metrics["other_gpu_processes"]) == (0, 0)
    assert isinstance(result := events[-1], Result)
    assert result.memory_peak_mib == 640


def test_a_worker_claims_no_gpu_for_a_command_that_only_looks(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = ran(machine, monkeypatch, cmd="true")
    facts = gathered_facts(events)
    assert (facts["gpu"]["under_test"], facts["gpu"]["chip_by"], facts["gpu"]["count"]) == (None, "none", 2)
    assert _about(facts)["chip_uuid"] is None


def test_a_command_that_says_cpu_is_not_watched(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = gathered_facts(ran(machine, monkeypatch, cmd="true", device="cpu"))
    assert "chip_by" not in facts["gpu"]


# Who gets a GPU


@pytest.fixture
def gpu_host(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    return tmp_path


def own(**params: Any) -> Task:
    return Task(do="run", spec=Spec(workload="command/own", params={"cmd": "x", "device": "auto", **params}))


def test_a_command_gets_the_gpus_of_its_host_unless_it_is_told_not_to(gpu_host: Path, tmp_path_factory: Any) -> None:
    assert wanted(ContainerOptions(), own(), gpu_host)
    assert not wanted(ContainerOptions(), own(), tmp_path_factory.mktemp("no-gpu"))
    assert not wanted(ContainerOptions(gpus="none"), own(), gpu_host)
    assert not wanted(ContainerOptions(), own(device="cpu"), gpu_host)  # also a spec of an older version


def test_a_commands_pod_asks_for_one_gpu_where_the_cluster_has_some() -> None:
    spec = own().spec
    assert gpus_of(PodOptions(), spec, lambda: True) == 1
    assert gpus_of(PodOptions(), spec, lambda: False) == 0
    assert gpus_of(PodOptions(gpus="none"), spec, lambda: True) == 0
    assert gpus_of(PodOptions(gpus="4"), spec, lambda: True) == 4


def test_the_other_arms_follow_a_pod_to_the_only_gpu_that_its_program_can_use() -> None:
    spec = Spec(workload="command/own", params={"cmd": "x", "device": "auto"})
    one: JsonValue = [{"uuid": UUIDS["gpu1"]}]
    two: JsonValue = [{"uuid": UUIDS["gpu0"]}, {"uuid": UUIDS["gpu1"]}]
    assert chip_for_others({"gpu": {"under_test": None, "devices": one}}, spec) == UUIDS["gpu1"]
    assert chip_for_others({"gpu": {"under_test": None, "devices": two}}, spec) is None
    on_cpu = Spec(workload="command/own", params={"cmd": "x", "device": "cpu"})
    assert chip_for_others({"gpu": {"under_test": None, "devices": one}}, on_cpu) is None
