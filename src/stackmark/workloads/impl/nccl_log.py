"""Read NCCL's own words about what it chose: its network, its channels, and the transport to each peer.

NCCL says it while it sets up, at level INFO, in lines that are made for people and differ between versions: what is not
understood is left out. No framework is imported here.
"""

import re
from collections import Counter
from collections.abc import Iterator

from stackmark.model import JsonValue

# `Channel 00/0 : 1[1] -> 0[0] [send] via NET/IB/0/GDRDMA`; older versions say `Ring 00 : 35 -> 34 [send] via NET/Socket/0`.
_PEER = re.compile(
    r"(?:Channel|Ring) (?P<channel>\d+)(?:/\d+)? : (?P<mine>\d+)(?:\[\w+\])? -> (?P<other>\d+)(?:\[\w+\])?"
    r"(?: \[(?P<way>send|receive)\])? via (?P<transport>(?:P2P|SHM|NET|COLLNET|NVLS)(?:/[A-Za-z]+)*(?:/\d+)?(?:/[A-Za-z]+)*)"
)
_NETWORK = re.compile(r"NCCL INFO Using network (?P<name>[\w .-]+)")
_DEVICES = re.compile(r"NCCL INFO NET/(?P<kind>IB|Socket) : Using (?P<devices>.+?)(?:; OOB|$)", re.MULTILINE)
_VERSION = re.compile(r"NCCL version (?P<version>[\w.+-]+)")
_CHANNELS = re.compile(
    r"(?P<coll>\d+) coll channels, (?:(?P<collnet>\d+) collnet channels, )?(?:(?P<nvls>\d+) nvls channels, )?"
)
# Peers of a rank that are kept: a ring and a tree have a few, an all-to-all all of them.
PEERS_KEPT = 16
SHORT = 120


def transports(log: str) -> list[str]:
    """Return the transports of NCCL's channels, each once: `via P2P/CUMEM`, `via SHM/direct`."""
    return [f"via {way}" for way in dict.fromkeys(_without_device(found["transport"]) for found in _PEER.finditer(log))]


def read_choice(log: str) -> dict[str, JsonValue]:
    """Return what NCCL chose, as facts; empty where it says nothing."""
    peers: Counter[tuple[str, str]] = Counter()
    channels: set[int] = set()
    for found in _PEER.finditer(log):
        channels.add(int(found["channel"]))
        peers[f"{found['mine']} -> {found['other']}", found["transport"]] += 1
    facts: dict[str, JsonValue] = {name: value for name, value in _said(log) if value}
    if peers:
        facts["channels"] = facts.get("channels") or len(channels)
        facts["transports"] = [way.removeprefix("via ") for way in transports(log)]
        facts["peers"] = [f"{pair} via {way}" for (pair, way), _ in peers.most_common(PEERS_KEPT)]
    return facts


def _said(log: str) -> Iterator[tuple[str, JsonValue]]:
    if found := _VERSION.search(log):
        yield "version", found["version"][:SHORT]
    if found := _NETWORK.search(log):
        yield "network", found["name"].strip()[:SHORT]
    for found in _DEVICES.finditer(log):
        yield f"devices_{found['kind'].lower()}", found["devices"].strip()[:SHORT]
    if found := _CHANNELS.search(log):
        yield "channels", int(found["coll"])
        yield "nvls_channels", int(found["nvls"] or 0)


def _without_device(transport: str) -> str:
    """`NET/IB/0/GDRDMA` without the number of its device."""
    return re.sub(r"/\d+", "", transport)


def is_socket(log: str) -> bool:
    """Whether ranks exchange through plain sockets."""
    return any("NET/Socket" in way for way in transports(log))
