"""What ranks communicate by: NCCL's own words, and the kernel's files of adapters that we do not have."""

import socket
from pathlib import Path
from typing import Any

import pytest
import torch

from stackmark.machine.network import active_infiniband, gloo_interface, interface_with, read
from stackmark.ranks import Rank
from stackmark.workloads.impl import process_group
from stackmark.workloads.impl.nccl_log import is_socket, read_choice
from stackmark.workloads.impl.process_group import NcclLog

# Lines as people have posted them (NVIDIA/nccl, issues 226, 707, 1038, 1412, 1814).
OVER_INFINIBAND = """
host-2:38610:38610 [0] NCCL INFO Bootstrap : Using enp179s0f0:198.18.2.2<0>
host-2:38610:38610 [0] NCCL INFO NCCL version 2.18.3+cuda12.2
host-2:38610:38610 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB enp179s0f0:198.18.2.2<0>
host-2:38610:38610 [0] NCCL INFO Using network IB
10-90-43-152:120890:121563 [3] NCCL INFO Channel 01 : 3[ca000] -> 2[c7000] [send] via NET/IB/2/GDRDMA
10-90-43-152:120890:121563 [3] NCCL INFO Channel 02 : 3[ca000] -> 0[87000] [send] via NET/IB/0/GDRDMA
gpu-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM
hostname-test:983:1261 [3] NCCL INFO 16 coll channels, 0 collnet channels, 16 nvls channels, 16 p2p channels
swat1-04:2017630:2017675 [6] NCCL INFO ncclCommInitRank comm 0x8ec0ac0 rank 6 nranks 16 cudaDev 6 - Init COMPLETE
"""
OVER_SOCKETS = """
ip-172-31-0-119:45328:45333 [0] NCCL INFO Ring 00 : 35 -> 34 [send] via NET/Socket/0
ip-172-31-5-237:45266:45271 [0] NCCL INFO Trees [0] 22->23->-1/-1/-1
ip-172-31-5-41:45516:45521 [0] NCCL INFO Ring 00 : 34 -> 33 [receive] via NET/Socket/0
"""


def test_what_nccl_chose_is_read_from_its_log() -> None:
    found = read_choice(OVER_INFINIBAND)
    assert (found["version"], found["network"], found["devices_ib"]) == (
        "2.18.3+cuda12.2",
        "IB",
        "[0]mlx5_0:1/RoCE [RO]",
    )
    assert (found["channels"], found["nvls_channels"]) == (16, 16)
    assert found["transports"] == ["NET/IB/GDRDMA", "P2P/CUMEM"]
    assert "3 -> 2 via NET/IB/2/GDRDMA" in found["peers"]  # type: ignore[operator]


def test_sockets_are_recognised_in_old_and_new_words() -> None:
    assert is_socket(OVER_SOCKETS)
    assert is_socket("NCCL INFO Channel 00/0 : 1[1] -> 0[0] [send] via NET/Socket/0")
    assert not is_socket(OVER_INFINIBAND)
    assert read_choice(OVER_SOCKETS)["peers"] == ["35 -> 34 via NET/Socket/0", "34 -> 33 via NET/Socket/0"]


@pytest.mark.parametrize("log", ["", "no line of NCCL", "NCCL INFO Channel 00/0 : 1[1] -> via", "via " * 1000])
def test_a_log_that_says_nothing_gives_no_facts(log: str) -> None:
    assert read_choice(log) == {}


def adapter(root: Path, name: str, link_layer: str, state: str) -> None:
    port = root / "sys/class/infiniband" / name / "ports/1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text(f"{link_layer}\n")
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")


def test_connected_infiniband_ports_are_found_and_others_are_not(tmp_path: Path) -> None:
    adapter(tmp_path, "mlx5_0", "InfiniBand", "4: ACTIVE")
    adapter(tmp_path, "mlx5_1", "InfiniBand", "1: DOWN")
    adapter(tmp_path, "mlx5_2", "Ethernet", "4: ACTIVE")
    assert active_infiniband(tmp_path) == ["mlx5_0/1"]
    ports = read(tmp_path).facts["rdma_ports"]
    assert isinstance(ports, list)
    assert ports[0] == {
        "port": "mlx5_0/1",
        "link_layer": "InfiniBand",
        "state": "ACTIVE",
        "rate": "400 Gb/sec (4X NDR)",
    }
    assert len(ports) == 3


def test_interfaces_that_are_up_are_said_with_their_speed(tmp_path: Path) -> None:
    for name, state, speed in (
        ("eth0", "up", "100000"),
        ("eth1", "down", "-1"),
        ("lo", "unknown", ""),
        ("veth1", "up", "-1"),
    ):
        folder = tmp_path / "sys/class/net" / name
        folder.mkdir(parents=True)
        (folder / "operstate").write_text(state)
        (folder / "speed").write_text(speed)
        (folder / "mtu").write_text("1500")
    found = read(tmp_path).facts["interfaces"]
    assert isinstance(found, list)
    assert [(one["name"], one["speed_mbit_per_s"]) for one in found if isinstance(one, dict)] == [
        ("eth0", 100000),
        ("veth1", None),
    ]


def test_gloo_uses_the_interface_that_it_is_told_or_that_of_the_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gloo_interface({"GLOO_SOCKET_IFNAME": "eth7"}) == "eth7"
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.1.1")
    assert gloo_interface({}) == "lo"
    # An address of documentation's, which no machine has.
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "192.0.2.1")
    assert gloo_interface({}) is None

    def unknown(name: str) -> str:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "gethostbyname", unknown)
    assert gloo_interface({}) is None


def test_the_loopback_has_its_address() -> None:
    assert interface_with("127.0.0.1") == "lo"


class Log(NcclLog):
    """A log that NCCL would have written elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__("none")
        self._text = text

    def read(self) -> str:
        return self._text


@pytest.mark.parametrize(
    ("log", "ports", "local_size", "warned"),
    [
        (OVER_SOCKETS, ["mlx5_0/1"], 1, True),
        (OVER_SOCKETS, [], 1, False),
        (OVER_SOCKETS, ["mlx5_0/1"], 2, False),  # all ranks on one machine
        (OVER_INFINIBAND, ["mlx5_0/1"], 1, False),
    ],
)
def test_sockets_where_infiniband_is_connected_are_a_warning(
    log: str, ports: list[str], local_size: int, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "active_infiniband", lambda: ports)
    control: Any = None
    group = process_group.Group(Rank(0, 2, 0, local_size), torch.device("cuda:0"), "nccl", control, Log(log))
    assert (
        (group.slow_network() or "").startswith("slow-network: ") and "mlx5_0/1" in (group.slow_network() or "")
    ) is warned
