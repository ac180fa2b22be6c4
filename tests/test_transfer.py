"""Links and the memory behind them: what a generation and a width allow, who says it, and copies that are compared bit by bit."""

import os
import re
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest
import torch

from asking import ask
from fake_nvml import FakeNvml
from stackmark.workloads.impl import links
from stackmark.workloads.impl.links import Pcie, host_limit, pcie_limit, pcie_of_kernel, peer_limit
from stackmark.workloads.op.definition import read_problem
from stackmark.workloads.op.impl import copies
from stackmark.workloads.op.impl.bench import Stand
from stackmark.workloads.op.impl.checking import refuse_wrong
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

CPU = Stand(torch.device("cpu"), "fp32", 1)
ADDRESS, UUID, OTHER = "0000:0f:00.0", "GPU-1111", "GPU-2222"
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")


# --- what a link allows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "width", "gb_per_s"),
    # PCI-SIG's own rounded figures for a direction, and the ones that everybody quotes.
    [(1, 16, 4.0), (2, 16, 8.0), (3, 16, 15.754), (4, 16, 31.508), (5, 16, 63.015), (3, 1, 0.985), (6, 16, 121.0)],
)
def test_a_direction_of_pcie_gives_its_transfers_less_its_encoding(
    generation: int, width: int, gb_per_s: float
) -> None:
    assert links.pcie_bytes_per_s(generation, width) / 1e9 == pytest.approx(gb_per_s, rel=1e-3)


def test_packets_of_256_bytes_leave_nine_tenths_of_it_and_are_said_apart() -> None:
    limit = pcie_limit(Pcie(5, 16, 5, 16))
    assert links.after_packets(63.0e9) == pytest.approx(57.6e9)
    assert limit.bytes_per_s == pytest.approx(63.015e9, rel=1e-4)
    assert [word for word in ("PCIe 5.0 ×16", "63.0 GB/s", "57.6", "256") if word not in limit.words] == []
    assert limit.notes == ()
    assert "256" not in pcie_limit(Pcie(6, 16)).words


def test_both_directions_allow_twice_as_much() -> None:
    one_way = pcie_limit(Pcie(4, 16))
    limit = one_way.both_ways()
    assert limit.bytes_per_s == pytest.approx(2 * 31.508e9, rel=1e-3)
    assert one_way.words in limit.words != one_way.words


def test_a_link_below_its_generation_or_width_is_a_note() -> None:
    notes = pcie_limit(Pcie(3, 8, 5, 16)).notes
    assert [re.findall(r"\d+", note) for note in notes] == [["3", "5"], ["8", "16"]]


# --- who says it ----------------------------------------------------------------------------------------------------


def two_gpus(**more: object) -> FakeNvml:
    """As an H200 answers; the PCIe values are recorded from one (driver 580.159)."""
    answers: dict[str, object] = {
        "nvmlDeviceGetCount": 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: (UUID, OTHER)[handle],
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetCudaComputeCapability": (9, 0),
        "nvmlDeviceGetCurrPcieLinkGeneration": 5,
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetPciInfo": lambda handle: SimpleNamespace(busId=f"00000000:{handle:02X}:00.0"),
        "nvmlDeviceGetMemoryBusWidth": 6144,
        "nvmlDeviceGetMaxClockInfo": lambda _handle, kind: 3201 if kind == 2 else 1980,
    }
    return FakeNvml(**(answers | more))


def no_driver() -> None:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


def bus_of(root: Path, now: str, width: str, most: str = "16.0 GT/s PCIe", widest: str = "16") -> Path:
    folder = root / "sys/bus/pci/devices" / ADDRESS
    folder.mkdir(parents=True)
    files = {"current_link_speed": now, "current_link_width": width, "max_link_speed": most, "max_link_width": widest}
    for name, text in files.items():
        (folder / name).write_text(f"{text}\n")
    return root


def test_the_driver_tells_how_the_link_runs() -> None:
    limit = host_limit(UUID, "", module=two_gpus())
    assert limit.words == pcie_limit(Pcie(5, 16)).words
    assert host_limit(UUID.removeprefix("GPU-"), "", module=two_gpus()) == limit


def test_without_a_driver_the_kernel_tells_it(tmp_path: Path) -> None:
    root = bus_of(tmp_path, "8.0 GT/s PCIe", "8")
    limit = host_limit(UUID, ADDRESS, root, FakeNvml(nvmlInit=no_driver))
    assert limit.bytes_per_s == pytest.approx(7.877e9, rel=1e-3)
    assert len(limit.notes) == 2


@pytest.mark.parametrize(("now", "width"), [("Unknown", "16"), ("2.5 GT/s", "0"), ("16.0 GT/s PCIe", "63"), ("", "")])
def test_a_link_that_the_kernel_cannot_read_has_no_limit(tmp_path: Path, now: str, width: str) -> None:
    assert pcie_of_kernel(ADDRESS, bus_of(tmp_path, now, width)) is None


def test_where_nobody_tells_the_row_says_so(tmp_path: Path) -> None:
    limit = host_limit(UUID, "", tmp_path, FakeNvml(nvmlInit=no_driver))
    assert (limit.bytes_per_s, limit.words, len(limit.notes)) == (None, "", 1)


def test_an_older_kernel_writes_the_speed_without_its_bus(tmp_path: Path) -> None:
    assert pcie_of_kernel(ADDRESS, bus_of(tmp_path, "8 GT/s", "16", "16 GT/s")) == Pcie(3, 16, 4, 16)


def test_a_chip_on_the_same_package_as_its_host_is_not_compared_with_pcie() -> None:
    limit = host_limit(UUID, "", module=two_gpus(nvmlDeviceGetName="NVIDIA GH200 480GB"))
    assert limit.bytes_per_s == 450e9
    assert limit.words.startswith("NVLink-C2C")


def eighteen_links(_handle: object, link: int) -> int:
    if link >= 18:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return 1


def test_links_through_a_switch_lead_to_every_gpu() -> None:
    module = two_gpus(nvmlDeviceGetNvLinkState=eighteen_links, nvmlDeviceGetNvLinkRemoteDeviceType=2)
    limit = peer_limit(UUID, OTHER, True, module)
    assert limit.bytes_per_s == 450e9  # NVIDIA: 900 GB/s both ways
    assert limit.words.startswith("18 NVLinks ")


def test_links_that_end_at_another_gpu_do_not_count_for_this_one() -> None:
    def far(_handle: object, link: int) -> object:
        return SimpleNamespace(busId=b"00000000:01:00.0" if link < 2 else b"00000000:07:00.0")

    module = two_gpus(
        nvmlDeviceGetNvLinkState=lambda handle, link: eighteen_links(handle, link + 12),
        nvmlDeviceGetNvLinkRemotePciInfo=far,
        nvmlDeviceGetNvLinkRemoteDeviceType=0,
        nvmlDeviceGetCudaComputeCapability=(7, 0),
    )
    limit = peer_limit(UUID, OTHER, True, module)
    assert limit.bytes_per_s == 2 * 25e9


def test_without_links_of_their_own_two_gpus_have_the_slower_pcie() -> None:
    module = two_gpus(nvmlDeviceGetCurrPcieLinkGeneration=lambda handle: 5 - handle)
    straight, around = (peer_limit(UUID, OTHER, peer, module) for peer in (True, False))
    assert straight.bytes_per_s == around.bytes_per_s == pytest.approx(31.508e9, rel=1e-3)
    assert [way.words.count("PCIe 4.0") for way in (straight, around)] == [1, 1]
    assert straight.words != around.words


def test_memory_allows_what_its_bus_and_clock_give() -> None:
    limit = links.memory_limit(UUID, two_gpus())
    assert limit.bytes_per_s == pytest.approx(4917e9, rel=1e-3)
    assert [word for word in ("6144", "3201 MHz", "4917 GB/s") if word not in limit.words] == []


# --- nodes ----------------------------------------------------------------------------------------------------------


def two_nodes(root: Path) -> Path:
    for node, cpus in ((0, "0-3,8-11"), (1, "4-7,12-15"), (2, "")):
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{cpus}\n")
    return root


def test_only_nodes_on_which_we_may_run_count(tmp_path: Path) -> None:
    root = two_nodes(tmp_path)
    everywhere = links.nodes(root, frozenset(range(16)))
    assert {node: len(cpus) for node, cpus in everywhere.items()} == {0: 8, 1: 8}  # node 2 has memory alone
    assert links.nodes(root, frozenset({5, 6})) == {1: frozenset({5, 6})}
    assert links.nodes(tmp_path / "none", frozenset({0})) == {0: frozenset({0})}


@pytest.mark.parametrize(("written", "node"), [("1", 1), ("-1", 0), ("2", 0), ("", 0)])
def test_a_gpu_that_the_kernel_cannot_place_is_near_the_first_node(tmp_path: Path, written: str, node: int) -> None:
    root = bus_of(two_nodes(tmp_path), "16.0 GT/s PCIe", "16")
    (root / "sys/bus/pci/devices" / ADDRESS / "numa_node").write_text(written)
    assert links.near_node(ADDRESS, links.nodes(root, frozenset(range(16))), root) == node


def test_pages_are_found_by_the_mapping_that_holds_an_address(tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/numa_maps").write_text(
        "7f0000000000 default anon=10 dirty=10 N0=10 kernelpagesize_kB=4\n"
        "7f1000000000 default anon=100 dirty=100 active=0 N0=4 N1=96 kernelpagesize_kB=4\n"
        "7f2000000000 default file=/lib/x.so mapped=3 N1=3\n"
    )
    assert links.pages_by_node(0x7F1000000200, tmp_path) == {0: 4, 1: 96}
    assert links.pages_by_node(0x10, tmp_path) == {}


def test_a_buffer_is_touched_by_the_thread_that_asked_for_it() -> None:
    """On a machine with one node, all of it lies there; that it is on the node which was asked for shows on several."""
    before = os.sched_getaffinity(0)
    node, cpus = next(iter(links.nodes().items()))
    try:
        copies.bind_to(node)
        buffer = copies.HostBuffer(2**20, pinned=False, seed=7)
        assert os.sched_getaffinity(0) == cpus or os.sched_getaffinity(0) <= cpus
    finally:
        os.sched_setaffinity(0, before)
    assert copies._misplaced(buffer.tensor, node) == ()
    assert buffer.tensor.unique().numel() > 200  # random bytes
    assert not copies.HostBuffer(2**20, pinned=False, seed=None).tensor.any()


def test_a_node_that_is_not_ours_is_refused() -> None:
    with pytest.raises(WorkloadFailure) as failure:
        copies.bind_to(99)
    assert "99" in failure.value.message


# --- without a GPU --------------------------------------------------------------------------------------------------


@needs_no_gpu
def test_without_a_gpu_there_is_no_link_to_measure(tmp_path: Path) -> None:
    with pytest.raises(WorkloadFailure) as failure:
        copies.prepare_transfer(
            Problem("transfer", {"bytes": 8, "from": "node0", "to": "cuda:0", "how": "pinned"}), CPU
        )
    assert failure.value.kind == "no_device"
    answer = ask("run", "op/transfer", "--ledger", str(tmp_path / "l.sqlite3"))
    assert answer.code == 3
    assert failure.value.message in answer.err


# --- with one -------------------------------------------------------------------------------------------------------


needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible here")


@needs_a_gpu
def test_every_way_to_a_gpu_and_back_carries_every_byte() -> None:
    stand = Stand(torch.device("cuda:0"), "fp32", 1)
    torch.cuda.set_device(stand.device)
    found = copies.machine_problems(stand)
    assert len(found) >= 5
    before = os.sched_getaffinity(0)
    try:
        for problem in found:
            small = Problem("transfer", {**problem.shape, "bytes": 3 * 2**20 + 5})
            prepared = copies.prepare_transfer(small, stand)
            for number in range(prepared.copies):
                prepared.call(number)
            compared = prepared.compare()
            assert compared.error == 0, problem
            ways = 2 if problem.shape["how"] == copies.BOTH_WAYS else 1
            assert prepared.least_bytes == ways * (3 * 2**20 + 5)
            assert prepared.limit or prepared.notes, problem
    finally:
        os.sched_setaffinity(0, before)


@needs_a_gpu
def test_pinned_memory_is_pinned_and_is_let_go() -> None:
    buffer = copies.HostBuffer(2**20, pinned=True, seed=1)
    assert buffer.tensor.is_pinned()
    kept = buffer.tensor
    del buffer
    assert not kept.is_pinned()


# --- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [4, 4096, 1_000_003])
def test_a_copy_is_compared_bit_by_bit(size: int) -> None:
    prepared = copies.prepare_copy(read_problem("copy", {"bytes": size}), CPU)
    for number in range(min(prepared.copies, 3)):
        prepared.call(number)
    compared = prepared.compare()
    assert (compared.error, compared.bound) == (0.0, 0.0)
    assert compared.elements == f"all {size:,} bytes"
    assert prepared.least_bytes == 2 * size
    refuse_wrong(compared)


def test_one_wrong_bit_of_a_copy_is_found() -> None:
    prepared = copies.prepare_copy(read_problem("copy", {"bytes": 4096}), CPU)
    prepared.call(0)
    prepared.outputs(0)[0].view(torch.uint8)[1234] ^= 1
    compared = prepared.compare()
    assert compared.error == 1 / 4096
    with pytest.raises(WorkloadFailure) as failure:
        refuse_wrong(compared)
    assert failure.value.kind == "wrong_result"


def test_copies_of_nan_are_equal_if_their_bits_are() -> None:
    line = torch.tensor([float("nan"), 1.0])
    assert copies.compare_bits(line.clone(), line).error == 0.0
