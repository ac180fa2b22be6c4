"""A process group, from joining it to leaving it, and the messages that its ranks exchange outside the timed part.

gloo on the CPU, NCCL on GPUs. Besides the group that is timed there is a second one of gloo, by which the ranks wait for each
other and agree: what is measured is then all that the first one does. The ranks decide nothing by themselves. After each sample
they exchange one message, the largest of each of a few numbers, and all of them compute the same next step from it; time is
what rank 0's clock says. So all of them make the same calls, without which a collective never ends.

A rank that lost another is told by its library in many words; it says `lost_rank` here, and whoever started the group knows
which one died, and of what.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from inspect import signature
from typing import Any

import torch

from stackmark.machine.network import active_infiniband, gloo_interface
from stackmark.model import JsonValue
from stackmark.ranks import STORE_VARIABLE, Rank, own_rank
from stackmark.workloads.impl import links
from stackmark.workloads.impl.links import driver
from stackmark.workloads.impl.nccl_log import is_socket, read_choice, transports
from stackmark.workloads.workload import WorkloadFailure

# The longest that any call waits for the others. A collective of a gigabyte takes seconds; a rank may come a minute late,
# from a cold disk. Whoever wants it shorter has --time-limit.
TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Group:
    rank: Rank
    device: torch.device
    backend: str
    # For messages: never timed.
    control: "torch.distributed.ProcessGroup"
    log: "NcclLog"

    def barrier(self) -> None:
        torch.distributed.barrier(group=self.control)

    def most(self, *numbers: float) -> list[float]:
        """Return the largest of each over all ranks; every rank gets the same."""
        told = torch.tensor(numbers, dtype=torch.float64)
        torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX, group=self.control)
        return [float(number) for number in told.tolist()]

    def all_say(self, mine: Sequence[object]) -> list[list[Any]]:
        """Return what each rank says. PyTorch's own exchange of objects needs numpy, which an image may lack."""
        data = json.dumps(mine).encode()
        size = int(self.most(len(data))[0])
        told = torch.tensor(list(data.ljust(size)), dtype=torch.uint8)
        heard = [torch.zeros(size, dtype=torch.uint8) for _ in range(self.rank.size)]
        torch.distributed.all_gather(heard, told, group=self.control)
        return [json.loads(bytes(one.tolist())) for one in heard]

    def agreed(self, failure: WorkloadFailure | None) -> WorkloadFailure | None:
        """Return the failure of the first rank that has one, to every rank: then none of them starts."""
        mine = (failure.kind, failure.message, failure.hint) if failure else ()
        for number, found in enumerate(self.all_say(mine)):
            if found:
                kind, message, hint = found
                return WorkloadFailure(kind, f"rank {number}: {message}", hint)
        return None

    def notes(self) -> list[str]:
        """Describe how the ranks are placed and communicate, as far as is known."""
        rank = self.rank
        if rank.size == 1:
            lie = "one rank alone"
        elif rank.local_size == rank.size:
            lie = f"{rank.size} ranks on this machine"
        else:
            lie = f"{rank.size} ranks, {rank.local_size} of them on the machine of rank 0"
        if self.device.type == "cuda" and self.backend == "gloo":
            return [f"gloo through the host's memory: ranks share GPUs, so this measures no scaling; {lie}"]
        if self.device.type == "cuda":
            version = ".".join(map(str, torch.cuda.nccl.version()))
            way = ", ".join(transports(self.log.read())) or "by an unreported transport"
            return [f"NCCL {version} {way}", f"{lie}, a GPU each"]
        interface = gloo_interface(os.environ)
        # Ranks that are bound to CPUs have a part of what their agent has.
        cores = len(os.sched_getaffinity(os.getppid()))
        threads = torch.get_num_threads()
        return [
            f"gloo by TCP{f' over {interface}' if interface else ''}",
            f"{lie}, {threads} of its {cores} cores for each{_crowded(rank.local_size * threads, cores)}",
        ]

    def facts(self) -> dict[str, JsonValue]:
        """Return what the ranks communicate by, for the facts of a run."""
        found: dict[str, JsonValue] = {"backend": self.backend, "notes": list(self.notes())}
        if self.backend == "nccl":
            return {**found, "nccl": read_choice(self.log.read())}
        return {**found, "interface": gloo_interface(os.environ)}

    def slow_network(self) -> str | None:
        """Return a warning where ranks use plain sockets though InfiniBand is there."""
        ports = active_infiniband()
        if not ports or self.rank.local_size == self.rank.size or not is_socket(self.log.read()):
            return None
        return (
            f"slow-network: ranks exchange through plain sockets, though InfiniBand is connected ({', '.join(ports[:4])}); "
            "see NCCL_IB_DISABLE, NCCL_NET and whether the container has /dev/infiniband"
        )

    def limit(self) -> links.Limit:
        """Return what each rank's own link allows in one direction: the least of all ranks."""
        if self.device.type == "cpu":
            where = "through this machine's memory" if self.rank.local_size == self.rank.size else "through a network"
            return links.Limit(None, f"{where}: no link to compare it with")
        own = link_of(self.device)
        said = self.all_say((own.bytes_per_s, own.words, own.notes))
        known = [links.Limit(bytes_per_s, words, tuple(notes)) for bytes_per_s, words, notes in said]
        if any(limit.bytes_per_s is None for limit in known):
            return links.Limit(None, "the driver does not report how all GPUs are linked")
        return min(known, key=lambda limit: limit.bytes_per_s or 0.0)


def _crowded(threads: int, cores: int) -> str:
    return f" (together {threads} threads: more than the machine has cores)" if threads > cores else ""


@contextmanager
def joined(device: torch.device) -> Iterator[Group]:
    """Join the group of several ranks that this process was started for."""
    rank = own_rank(os.environ)
    if rank is None or rank.size < 2:
        raise WorkloadFailure("bad_parameter", "a collective needs several ranks", "use --ranks 2")
    with joined_as(rank, device) as group:
        yield group


@contextmanager
def joined_as(rank: Rank, device: torch.device, *, shared: bool = False) -> Iterator[Group]:
    """Join a group as this rank; a group of one needs nobody else. `shared`: ranks may have one GPU, then gloo exchanges."""
    backend = "gloo" if shared else require_group(device, rank.local_size)
    log = NcclLog(backend)
    with lost_ranks():
        _join(backend, rank, device)
        control = torch.distributed.new_group(backend="gloo", timeout=timedelta(seconds=TIMEOUT_S))
        yield Group(rank, device, backend, control, log)
        # Rank 0 keeps the store: it goes last. After a failure nobody waits, and the process ends without ceremony.
        torch.distributed.barrier(group=control)
        torch.distributed.destroy_process_group()


def require_group(device: torch.device, local_size: int) -> str:
    """Return the backend of a group on such devices; raise a sentence where there is none."""
    distributed = torch.distributed
    if not distributed.is_available():
        raise WorkloadFailure(
            "missing_package", f"this PyTorch ({torch.__version__}) was built without torch.distributed",
            "install a build that has it: pip install 'stackmark[torch]'",
        )  # fmt: skip
    if device.type == "cpu":
        if not distributed.is_gloo_available():
            raise WorkloadFailure("missing_package", f"this PyTorch ({torch.__version__}) was built without gloo")
        return "gloo"
    count = torch.cuda.device_count()
    if local_size > count:
        raise WorkloadFailure(
            "no_device", f"{local_size} ranks need one GPU each, but PyTorch sees {count}",
            f"use --ranks {count}, or --device cpu" if count > 1 else "use --device cpu",
        )  # fmt: skip
    if not distributed.is_nccl_available():
        raise WorkloadFailure("missing_package", f"this PyTorch ({torch.__version__}) was built without NCCL")
    return "nccl"


def _join(backend: str, rank: Rank, device: torch.device) -> None:
    timeout = timedelta(seconds=TIMEOUT_S)
    # Told its device, NCCL connects at once: else the first collective would guess, and pay for it.
    # PyTorch takes it since 2.3.
    known = "device_id" in signature(torch.distributed.init_process_group).parameters
    bound: dict[str, Any] = {"device_id": device} if backend == "nccl" and known else {}
    if rank.size == 1:
        own = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group(backend, store=own, rank=0, world_size=1, timeout=timeout, **bound)
        return
    listening = os.environ.get(STORE_VARIABLE)
    if listening is None:
        # Another launcher, who says it all in the environment.
        torch.distributed.init_process_group(backend, timeout=timeout, **bound)
        return
    store = torch.distributed.TCPStore(  # type: ignore[attr-defined]
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        rank.size,
        is_master=rank.number == 0,
        timeout=timeout,
        master_listen_fd=int(listening) if listening else None,
    )
    torch.distributed.init_process_group(
        backend, store=store, rank=rank.number, world_size=rank.size, timeout=timeout, **bound
    )


@contextmanager
def lost_ranks() -> Iterator[None]:
    """Distinguish the loss of another rank from an error of this one."""
    try:
        yield
    except RuntimeError as error:  # DistError and its like are RuntimeErrors too
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        if not _is_loss(error, said):
            raise
        raise WorkloadFailure(
            "lost_rank", f"another rank ended, or did not answer within {TIMEOUT_S:g} s: {said[:300]}",
            "see the output of the other ranks: stackmark show RUN --log",
        ) from error  # fmt: skip


def _is_loss(error: RuntimeError, said: str) -> bool:
    """gloo names the file of its transport, NCCL the kind of its error; the store has an error of its own."""
    distributed = torch.distributed
    if isinstance(error, distributed.DistNetworkError | distributed.DistStoreError):
        return True
    return any(mark in said for mark in ("gloo/transport", "ncclRemoteError", "Timed out", "timed out"))


class NcclLog:
    """NCCL's messages about its channels during set-up, read from memory: they show the transport of each.

    A person who asked for NCCL's log gets it where they asked for it, and then the way is not told here.
    """

    def __init__(self, backend: str) -> None:
        self._descriptor: int | None = None
        if backend != "nccl" or any(name in os.environ for name in ("NCCL_DEBUG", "NCCL_DEBUG_FILE")):
            return
        self._descriptor = os.memfd_create("nccl-log")
        os.environ |= {
            "NCCL_DEBUG": "INFO",
            "NCCL_DEBUG_SUBSYS": "INIT",
            "NCCL_DEBUG_FILE": f"/proc/self/fd/{self._descriptor}",
        }

    def read(self) -> str:
        if self._descriptor is None:
            return ""
        size = os.fstat(self._descriptor).st_size
        return os.pread(self._descriptor, size, 0).decode("utf-8", "replace")


def link_of(device: torch.device) -> links.Limit:
    """Return what a GPU can send to the others: all its active NVLinks together, or its PCIe where it has none."""
    properties = torch.cuda.get_device_properties(device)
    # Without its name, which PyTorch says since 2.3, no link is known.
    return outside_limit(f"GPU-{getattr(properties, 'uuid', '')}", (properties.major, properties.minor))


def outside_limit(uuid: str, capability: Sequence[int], module: object = None) -> links.Limit:
    with driver(module) as nvml:
        handle = links.gpu_of(nvml, uuid)
        active = 0
        if nvml and handle is not None:
            states = (nvml.count("nvmlDeviceGetNvLinkState", handle, link) for link in range(links.MOST_LINKS))
            active = sum(state or 0 for state in states)
    if not active:
        return links.host_limit(uuid, "", module=module)
    limit = links.nvlinks_limit(active, (capability[0], capability[1]))
    if limit.bytes_per_s is None:
        return limit
    # In NVSwitch's own reductions an all-reduce sends each byte once, and not twice.
    return replace(limit, notes=("a switch that adds by itself (NVLS) can exceed it in an all-reduce",))
