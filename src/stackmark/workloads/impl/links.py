"""Compute the limits of a GPU's links: to the host (PCIe) and to other GPUs (NVLink), by their generation and width.

The driver's library is asked first and the kernel's files after it; neither may be there. A GPU that rests lowers the
generation of its link, so whoever asks keeps it busy meanwhile. Per direction, PCIe gives its transfers a second times its
lanes less its encoding (8b/10b up to generation 2, 128b/130b from 3 on, 242 of 256 bytes of a flit in 6); what packets cost
besides is said apart, because it depends on the payload that two partners agreed on, which is 256 bytes on nearly all
servers and which only root can read.

No framework is imported here, so that the arithmetic can be tested, and used, where there is none.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from stackmark.machine.memory import nodes as nodes
from stackmark.machine.nvml import NoDriver, Nvml, bare, devices, session
from stackmark.machine.reading import ROOT, number, text

# --- the driver's library ---------------------------------------------------------------------------------------------


@contextmanager
def driver(module: object = None) -> Iterator[Nvml | None]:
    """Open the driver's library; None where there is no driver, or no package to use it with."""
    with ExitStack() as stack:
        try:
            nvml = stack.enter_context(session(module))
        except NoDriver:
            nvml = None
        yield nvml


def gpu_of(nvml: Nvml | None, uuid: str) -> object:
    """Return the handle of the GPU with this UUID, with or without `GPU-`; None for a slice, whose links are its GPU's."""
    found = devices(nvml) if nvml else ()
    return next((device.handle for device in found if bare(device.uuid) == bare(uuid)), None)


# --- the kernel's files -----------------------------------------------------------------------------------------------
#
# What the kernel's files say of this machine: its NUMA nodes, their CPUs, near which a GPU hangs, and where pages lie.


def near_node(address: str, among: Mapping[int, frozenset[int]], root: Path = ROOT) -> int:
    """Return the node that a GPU is attached to; the first where the kernel does not know (-1) or we may not run there."""
    node = number(root / "sys/bus/pci/devices" / (address or "none") / "numa_node")
    return node if node is not None and node in among else min(among)


def pages_by_node(start: int, root: Path = ROOT) -> dict[int, int]:
    """Return where the pages of the mapping at this address are, as far as the kernel reports it."""
    best: tuple[int, str] | None = None
    for line in (text(root / "proc/self/numa_maps") or "").splitlines():
        begin = int(line.partition(" ")[0], 16)
        if begin <= start and (best is None or begin > best[0]):
            best = begin, line
    words = best[1].split() if best else []
    counts = (word.partition("=") for word in words if word.startswith("N") and "=" in word)
    return {int(name[1:]): int(value) for name, _, value in counts if name[1:].isdigit() and value.isdigit()}


# --- what a link allows -----------------------------------------------------------------------------------------------

# Transfers a second of a lane by generation, and how much of them is data.
GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
ENCODING = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
# A packet: framing and sequence number 4, header with a 64-bit address 16, check sum 4; and the payload that is usual.
PACKET_BYTES, PAYLOAD_BYTES = 24, 256
# Of one NVLink in one direction, as published, by compute capability: the library's own numbering of versions changed its
# meaning between drivers. Hopper has generation 4 at the rate of 2 and 3, with more links; consumer Ampere has slower ones.
NVLINK_BYTES_PER_S = {
    (6, 0): 20e9,
    (7, 0): 25e9,
    (7, 5): 25e9,
    (8, 0): 25e9,
    (8, 6): 14.0625e9,
    (9, 0): 25e9,
    (10, 0): 50e9,
    (10, 3): 50e9,
}
# Chips that reach their own host by NVLink-C2C and not by PCIe, with the published rate of a direction.
CHIP_TO_CHIP = {"GH200": 450e9, "GB200": None, "GB300": None}
SWITCH = 2  # the kind of a link's other end, by the library's ABI
MOST_LINKS = 36


@dataclass(frozen=True)
class Limit:
    """The limit of a link in one direction, in bytes per second and in words; None where unknown."""

    bytes_per_s: float | None
    words: str
    notes: tuple[str, ...] = ()

    def both_ways(self) -> "Limit":
        if self.bytes_per_s is None:
            return self
        return Limit(2 * self.bytes_per_s, f"both directions of {self.words}", self.notes)


@dataclass(frozen=True)
class Pcie:
    """A link as it runs, and its maximum on this board."""

    generation: int
    width: int
    generation_max: int | None = None
    width_max: int | None = None

    @property
    def bytes_per_s(self) -> float:
        return pcie_bytes_per_s(self.generation, self.width)


def pcie_bytes_per_s(generation: int, width: int) -> float:
    """Return the bandwidth of one direction, after encoding."""
    return GIGATRANSFERS[generation] * 1e9 * width * ENCODING[generation] / 8


def after_packets(bytes_per_s: float) -> float:
    """Return what remains for data where packets carry the usual 256 bytes."""
    return bytes_per_s * PAYLOAD_BYTES / (PAYLOAD_BYTES + PACKET_BYTES)


def pcie_limit(pcie: Pcie | None) -> Limit:
    if pcie is None:
        return Limit(None, "", ("neither the driver nor the kernel reports the link's speed",))
    rate = pcie.bytes_per_s
    usual = after_packets(rate) if pcie.generation < 6 else rate  # a flit's headers are in its encoding
    words = f"PCIe {pcie.generation}.0 ×{pcie.width}: {rate / 1e9:.1f} GB/s per direction after encoding"
    if usual < rate:
        words += f", about {usual / 1e9:.1f} with packets of {PAYLOAD_BYTES} bytes"
    notes = []
    if pcie.generation_max and pcie.generation < pcie.generation_max:
        notes.append(
            f"the link runs at generation {pcie.generation} under load, but supports {pcie.generation_max}: "
            "look at the slot, a riser, or the board's settings"
        )
    if pcie.width_max and pcie.width < pcie.width_max:
        notes.append(
            f"the link has {pcie.width} of {pcie.width_max} lanes: look at the slot, how the GPU is seated, the board's settings"
        )
    return Limit(rate, words, tuple(notes))


def nvlinks_limit(links: int, capability: tuple[int, int]) -> Limit:
    """Return what this many links of a GPU allow together."""
    rate = NVLINK_BYTES_PER_S.get(capability)
    if rate is None:
        return Limit(None, f"{links} NVLinks of unknown rate")
    words = f"{links} NVLinks of {rate / 1e9:.4g} GB/s per direction, as published: {links * rate / 1e9:.4g} GB/s"
    return Limit(links * rate, words)


def host_limit(uuid: str, address: str, root: Path = ROOT, module: object = None) -> Limit:
    """Return what the link between a GPU and its host allows, as it is now."""
    with driver(module) as nvml:
        handle = gpu_of(nvml, uuid)
        if nvml and handle is not None:
            name = nvml.word("nvmlDeviceGetName", handle) or ""
            for chip, rate in CHIP_TO_CHIP.items():
                if chip in name:
                    said = f": {rate / 1e9:.0f} GB/s per direction, as published" if rate else ""
                    return Limit(rate, f"NVLink-C2C{said}")
            found = _pcie_of_driver(nvml, handle)
            if found:
                return pcie_limit(found)
    return pcie_limit(pcie_of_kernel(address, root))


def _pcie_of_driver(nvml: Nvml, handle: object) -> Pcie | None:
    generation = nvml.count("nvmlDeviceGetCurrPcieLinkGeneration", handle)
    width = nvml.count("nvmlDeviceGetCurrPcieLinkWidth", handle)
    if generation not in GIGATRANSFERS or not width:
        return None
    return Pcie(
        generation,
        width,
        nvml.count("nvmlDeviceGetMaxPcieLinkGeneration", handle),
        nvml.count("nvmlDeviceGetMaxPcieLinkWidth", handle),
    )


def pcie_of_kernel(address: str, root: Path = ROOT) -> Pcie | None:
    """Read the kernel's files of a device: `16.0 GT/s PCIe` and `16`."""
    folder = root / "sys/bus/pci/devices" / address
    now, most = (_generation(text(folder / f"{which}_link_speed") or "") for which in ("current", "max"))
    width, widest = (number(folder / f"{which}_link_width") for which in ("current", "max"))
    # The kernel writes 0 lanes, or 63 or 255, for a link that it cannot read.
    if not address or now is None or not width or width > 32:
        return None
    return Pcie(now, width, most, widest if widest and widest <= 32 else None)


def _generation(speed: str) -> int | None:
    try:
        wanted = float(speed.partition(" ")[0])
    except ValueError:
        return None
    return next((generation for generation, rate in GIGATRANSFERS.items() if rate == wanted), None)


def peer_limit(uuid: str, other: str, peer_access: bool, module: object = None) -> Limit:
    """Return what the link between two GPUs allows: NVLinks, or PCIe, directly or through the host's memory."""
    with driver(module) as nvml:
        here, there = gpu_of(nvml, uuid), gpu_of(nvml, other)
        if nvml is None or here is None or there is None:
            return Limit(None, "", ("the driver does not report how the GPUs are linked",))
        links = _nvlinks_to(nvml, here, _bus(nvml.ask("nvmlDeviceGetPciInfo", there)))
        if links and peer_access:
            return nvlinks_limit(links, _capability(nvml, here))
        slower = min(
            (pcie for handle in (here, there) if (pcie := _pcie_of_driver(nvml, handle))),
            key=lambda pcie: pcie.bytes_per_s,
            default=None,
        )
    limit = pcie_limit(slower)
    way = "directly over" if peer_access else "through the host's memory, over"
    return Limit(limit.bytes_per_s, f"{way} {limit.words}" if limit.words else "", limit.notes)


def _nvlinks_to(nvml: Nvml, handle: object, bus: str) -> int:
    """Active links that end at that GPU, or at a switch, which leads to all."""
    count = 0
    for link in range(MOST_LINKS):
        active = nvml.count("nvmlDeviceGetNvLinkState", handle, link)
        if active is None:
            break
        if not active:
            continue
        far = _bus(nvml.ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
        count += far == bus or nvml.count("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == SWITCH
    return count


def _capability(nvml: Nvml, handle: object) -> tuple[int, int]:
    value = nvml.ask("nvmlDeviceGetCudaComputeCapability", handle)
    return (int(value[0]), int(value[1])) if isinstance(value, tuple | list) and len(value) == 2 else (0, 0)


def memory_limit(uuid: str, module: object = None) -> Limit:
    """Return what a GPU's own memory allows by its bus and its highest clock; two transfers per clock, as the driver counts."""
    with driver(module) as nvml:
        handle = gpu_of(nvml, uuid)
        if nvml is None or handle is None:
            return Limit(None, "")
        bits = nvml.count("nvmlDeviceGetMemoryBusWidth", handle)
        mhz = nvml.count("nvmlDeviceGetMaxClockInfo", handle, 2)
    if not bits or not mhz:
        return Limit(None, "")
    rate = bits / 8 * mhz * 1e6 * 2
    return Limit(rate, f"memory of {bits} bits at {mhz} MHz, twice a clock: {rate / 1e9:.0f} GB/s")


def _bus(info: object) -> str:
    """The library pads the domain to eight digits; the kernel has four."""
    bus = getattr(info, "busId", None)
    bus = bus.decode() if isinstance(bus, bytes) else bus
    return bus.lower()[-12:] if isinstance(bus, str) else ""
