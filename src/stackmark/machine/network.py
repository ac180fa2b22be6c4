"""Collect what a group of ranks can communicate by: network interfaces, and InfiniBand or RoCE ports.

From /sys alone, so that it works in any container; what a container does not show is not there for its ranks either.
"""

import fcntl
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from stackmark.machine.reading import ROOT, Json, Reading, number, text

# More than a machine has; a node with a thousand containers has as many virtual ones.
MOST_INTERFACES, MOST_PORTS = 32, 64
# Linux's request for the address of an interface, and where it stands in the answer.
_SIOCGIFADDR, _ADDRESS = 0x8915, slice(20, 24)


def read(root: Path = ROOT) -> Reading:
    """Return interfaces that are up, and ports of adapters that do RDMA."""
    interfaces: list[Json] = list(islice(_interfaces(root), MOST_INTERFACES))
    ports: list[Json] = list(islice(rdma_ports(root), MOST_PORTS))
    return Reading({"interfaces": interfaces, "rdma_ports": ports})


def _interfaces(root: Path) -> Iterator[dict[str, Json]]:
    for folder in sorted((root / "sys/class/net").glob("*")):
        if folder.name == "lo" or text(folder / "operstate") not in ("up", "unknown"):
            continue
        speed = number(folder / "speed")
        yield {
            "name": folder.name,
            # A virtual interface has none, or says -1.
            "speed_mbit_per_s": speed if speed and speed > 0 else None,
            "mtu": number(folder / "mtu"),
            "driver": _driver(folder),
        }


def _driver(folder: Path) -> str | None:
    link = folder / "device/driver"
    return link.resolve().name if link.exists() else None


def rdma_ports(root: Path = ROOT) -> Iterator[dict[str, Json]]:
    """Yield each port: `mlx5_0/1`, its link layer (InfiniBand, or Ethernet for RoCE), state and rate, as the kernel says them."""
    for device in sorted((root / "sys/class/infiniband").glob("*")):
        for port in sorted((device / "ports").glob("*")):
            yield {
                "port": f"{device.name}/{port.name}",
                "link_layer": text(port / "link_layer"),
                # `4: ACTIVE`
                "state": (text(port / "state") or "").rpartition(": ")[2] or None,
                "rate": text(port / "rate"),
            }


def active_infiniband(root: Path = ROOT) -> list[str]:
    """Return the InfiniBand ports that are connected."""
    return [
        str(one["port"]) for one in rdma_ports(root) if one["link_layer"] == "InfiniBand" and one["state"] == "ACTIVE"
    ]


def gloo_interface(environ: Mapping[str, str]) -> str | None:
    """Return the interface that gloo uses: the one that it is told, else that of the address which the host's name leads to."""
    if told := environ.get("GLOO_SOCKET_IFNAME"):
        return told
    with suppress(OSError):
        return interface_with(socket.gethostbyname(socket.gethostname()))
    return None


def interface_with(address: str) -> str | None:
    """Return the interface that has this IPv4 address."""
    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # one without an address
                if (
                    fcntl.ioctl(asking.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))[_ADDRESS]
                    == wanted
                ):
                    return name
    # All of 127.0.0.0/8 is the loopback, whose address is one of them.
    return "lo" if wanted[0] == 127 else None
