"""Processes bound to CPUs: how nodes and cores are divided, and real workers that run on what they were given."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from fake_nvml import FakeNvml
from rank_tricks import install as install_ranked
from rank_tricks import ranked
from refusing import refused
from stackmark import events
from stackmark.errors import SpecError
from stackmark.events import Failed, Result, Stream, gathered_facts
from stackmark.machine.binding import Share, cores_of, divide, shares
from stackmark.machine.reading import cpu_list, told_cpus
from stackmark.places.container import checks as container_checks
from stackmark.places.container.options import ContainerOptions
from stackmark.places.host import HostOptions, HostPlace
from stackmark.places.outside import refuse_worker_options
from stackmark.places.place import Facts, not_bound
from stackmark.places.slurm.options import SlurmOptions
from stackmark.places.slurm.place import not_enforced as slurm_not_enforced
from stackmark.spec import BIND_VARIABLE, Task
from test_host_place import Notes
from worker_process import Finished, environment, install, trick, work

# Two nodes of four cores with two hardware threads each.
NODES = {0: frozenset({0, 1, 2, 3, 8, 9, 10, 11}), 1: frozenset({4, 5, 6, 7, 12, 13, 14, 15})}
CORES = [frozenset({cpu, cpu + 8}) for cpu in range(8)]


def lists(found: Sequence[Share]) -> list[str]:
    return [cpu_list(share.cpus) for share in found]


# How they are divided


@pytest.mark.parametrize(
    ("near", "cpus", "threads"),
    [
        ([None], ["0-3,8-11"], [8]),
        ([1], ["4-7,12-15"], [8]),
        ([None, None], ["0-3,8-11", "4-7,12-15"], [8, 8]),
        ([None] * 4, ["0-3,8-11", "0-3,8-11", "4-7,12-15", "4-7,12-15"], [4, 4, 4, 4]),
        ([1, 1, 1, 0], ["4-7,12-15", "4-7,12-15", "4-7,12-15", "0-3,8-11"], [2, 2, 2, 8]),
    ],
)
def test_numa_gives_the_node_of_the_gpu_or_deals_the_nodes_out(
    near: list[int | None], cpus: list[str], threads: list[int]
) -> None:
    found = divide("numa", near, NODES, CORES)
    assert lists(found) == cpus
    assert [share.threads for share in found] == threads
    assert not any(share.problems for share in found)


@pytest.mark.parametrize(
    ("near", "cpus"),
    [
        ([None], ["0-7"]),
        ([1], ["4-7"]),
        ([None, None], ["0-3", "4-7"]),
        ([1, 0], ["4-7", "0-3"]),
        ([1, 1], ["4-5", "6-7"]),
        ([None] * 3, ["0-1", "2-3", "4-5"]),
        ([1] * 5, ["0", "1", "2", "3", "4"]),
    ],
)
def test_cores_gives_each_process_one_thread_of_cores_of_its_own(near: list[int | None], cpus: list[str]) -> None:
    found = divide("cores", near, NODES, CORES)
    assert lists(found) == cpus
    assert [share.threads for share in found] == [len(share.cpus) for share in found]


def test_a_single_process_gets_the_node_with_most_cpus() -> None:
    assert lists(divide("numa", [None], {0: frozenset({0}), 1: frozenset({4, 5, 6})}, CORES)) == ["4-6"]


def test_a_gpu_on_a_node_that_is_out_of_bounds_is_a_problem_and_not_an_error() -> None:
    (found,) = divide("numa", [1], {0: frozenset({0, 1})}, CORES)
    assert cpu_list(found.cpus) == "0-1"
    assert "node 1" in found.problems[0]


def test_one_node_is_said_to_change_nothing() -> None:
    (found,) = divide("numa", [None], {0: frozenset({0, 1})}, CORES)
    assert found.problems


def test_more_processes_than_cores_are_refused() -> None:
    with pytest.raises(SpecError, match="2 processes"):
        divide("cores", [None, None], {0: frozenset({0, 8})}, [frozenset({0, 8})])


def test_an_unknown_word_is_refused() -> None:
    with pytest.raises(SpecError, match="'socket'"):
        divide("socket", [None], NODES, CORES)


def machine(root: Path) -> Path:
    """The files of a kernel for NODES and CORES, and two GPUs: the first on node 1, the second on node 0."""
    for node, cpus in NODES.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpu_list(cpus) + "\n")
    for core in CORES:
        for cpu in core:
            folder = root / f"sys/devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "core_cpus_list").write_text(cpu_list(core) + "\n")
    for bus, node in (("0000:18:00.0", 1), ("0000:9a:00.0", 0)):
        folder = root / "sys/bus/pci/devices" / bus
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
    return root


class PciInfo:
    def __init__(self, bus: str) -> None:
        self.busId = bus


def two_gpus(second: str = "H200") -> FakeNvml:
    return FakeNvml(
        nvmlDeviceGetCount=2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda handle: f"GPU-0000000{handle}-0000-0000-0000-000000000000",
        nvmlDeviceGetName=lambda handle: ("H200", second)[handle],
        nvmlDeviceGetPciInfo_v3=lambda handle: PciInfo(("00000000:18:00.0", "00000000:9A:00.0")[handle]),
    )


def test_each_rank_is_near_its_own_gpu(tmp_path: Path) -> None:
    found = shares(
        "numa", ["cuda:0", "cuda:1"], {}, allowed=range(16), root=machine(tmp_path), module=two_gpus()
    )  # fmt: skip
    assert lists(found) == ["4-7,12-15", "0-3,8-11"]
    assert not any(share.problems for share in found)


def test_the_second_of_the_visible_gpus_is_found(tmp_path: Path) -> None:
    (found,) = shares(
        "cores", ["cuda:0"], {"CUDA_VISIBLE_DEVICES": "1"}, allowed=range(16), root=machine(tmp_path), module=two_gpus()
    )
    assert cpu_list(found.cpus) == "0-3"


def test_among_two_models_the_order_is_not_guessed(tmp_path: Path) -> None:
    (found,) = shares(
        "numa", ["cuda:0"], {}, allowed=range(16), root=machine(tmp_path), module=two_gpus("T4")
    )  # fmt: skip
    assert "CUDA_DEVICE_ORDER" in found.problems[0]


def test_only_allowed_cpus_are_given(tmp_path: Path) -> None:
    root = machine(tmp_path)
    assert lists(shares("numa", ["cpu"], {}, allowed=[5, 12, 13], root=root)) == ["5,12-13"]
    assert lists(shares("cores", ["cpu"], {}, allowed=[5, 12, 13], root=root)) == ["5,12"]


def test_a_kernel_without_topology_has_cores_of_one_cpu(tmp_path: Path) -> None:
    assert cores_of([0, 1], tmp_path) == [frozenset({0}), frozenset({1})]


# What a place says of it


def test_a_worker_that_did_not_bind_itself_or_lies_about_it_is_not_believed() -> None:
    bound: Facts = {"binding": {"bind": "numa", "cpus": "0-3"}, "process": {"cpus": "0-3"}}
    assert not_bound("numa", bound) == []
    assert not_bound("none", {}) == []
    assert not_bound("numa", {"process": {"cpus": "0-3"}})
    assert not_bound("cores", bound)
    assert not_bound("numa", {**bound, "process": {"cpus": "0-7"}})
    assert not_bound("numa", {**bound, "process": {"cpus": 7}})
    assert told_cpus("0-999999999999999") == set()


def test_a_place_is_held_to_the_cpus_that_it_gave_and_not_to_those_that_were_taken_of_them() -> None:
    container = ContainerOptions(cpuset="0-3", bind="cores")
    slurm = SlurmOptions(cpus="4", bind="cores")
    for allowed, complaints in (("0-3", 0), ("0-1", 1)):
        facts: Facts = {
            "binding": {"bind": "cores", "cpus": "0-1", "allowed": allowed},
            "process": {"cpus": "0-1", "cpus_usable": 2},
            "container": {"slurm_job_id": "1"},
        }
        assert (
            len([one for one in container_checks.not_enforced(container, False, facts) if "0-3" in one]) == complaints
        )
        assert len(list(slurm_not_enforced(slurm, (True, True), facts))) == complaints


def test_a_program_that_is_watched_from_outside_cannot_be_bound() -> None:
    refuse_worker_options("none", None)
    with refused("bind=cores"):
        refuse_worker_options("cores", None)


# Real workers


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(install_ranked(tmp_path_factory.mktemp("ranked")), install(tmp_path_factory.mktemp("tricks")))


def read(finished: Finished) -> Stream:
    stream = Stream()
    for line in finished.lines:
        stream.feed(line)
    return stream


def test_ranks_have_cores_of_their_own(env: dict[str, str]) -> None:
    if len(cores_of(os.sched_getaffinity(0))) < 2:
        pytest.skip("this machine has one core")
    stream = read(work(Task(do="run", spec=ranked("calm")), {**env, BIND_VARIABLE: "cores"}))
    assert isinstance(stream.ended(), Result)
    facts = [gathered_facts(events.by_rank(stream.events)[rank], rank) for rank in (0, 1)]
    cpus = [told_cpus(one["process"]["cpus"]) for one in facts]
    assert cpus == [told_cpus(one["binding"]["cpus"]) for one in facts]
    assert cpus[0]
    assert len(cpus[0]) == len(cpus[1])
    assert not cpus[0] & cpus[1]
    assert {one["environment"].get("OMP_NUM_THREADS") for one in facts} == {str(len(cpus[0]))}


def test_ranks_without_a_core_of_their_own_fail_with_a_sentence(env: dict[str, str]) -> None:
    ranks = len(os.sched_getaffinity(0)) + 1
    finished = work(Task(do="run", spec=ranked("calm", ranks=ranks)), {**env, BIND_VARIABLE: "cores"})
    closed = read(finished).ended()
    assert isinstance(closed, Failed)
    assert closed.kind == "bad_parameter"
    assert f"{ranks} processes" in closed.message


def test_the_host_binds_a_single_process_and_does_not_inherit_it(env: dict[str, str]) -> None:
    spec = trick("calm")
    for options, bound in ((HostOptions(bind="numa"), True), (HostOptions(), False)):
        place, notes = HostPlace(environment={**env, BIND_VARIABLE: "cores"}, options=options), Notes()
        place.run(Task(do="run", spec=spec), notes, mark=f"r-binding-{os.getpid()}")
        stream = Stream()
        for line in notes.lines:
            stream.feed(line)
        assert isinstance(stream.ended(), Result)
        facts = gathered_facts(stream.events)
        assert ("binding" in facts) is bound
        assert place.not_enforced(spec, facts) == []
        if bound:
            assert facts["binding"]["bind"] == "numa"
