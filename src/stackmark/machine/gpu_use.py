"""Find the GPUs that a program used, from outside while it runs, and read their counters.

A user's own program says nothing of its GPU, so NVML's lists of processes are sampled in a thread, and compared with the
program's own processes. Where those lists show other numbers than ours (a container that sees the host's) or nothing (most
containers), a process or memory that appeared while the program ran stands in for it, and the evidence says so. A
neighbour's process must never become the chip of a run: where its number can be looked up here, it is known not to be ours.

Which GPU it will be is known only afterwards, so the counters of all that are visible are read before and after. The worker
uses this around a program inside, the driver around one that it watches from outside.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from stackmark.machine import counters, gpu, orphans
from stackmark.machine.nvml import NoDriver, Nvml, XidWatch, devices, session, slices
from stackmark.machine.reading import Json, Reading, mib
from stackmark.remarks import Remark

if TYPE_CHECKING:
    from typing_extensions import Self

# Four times a second: a program that uses a GPU needs longer than that to load CUDA, and one look costs milliseconds.
EVERY_S = 0.25
# A CUDA context takes more than this on every chip of the last ten years; a driver's own bookkeeping takes less.
RISE_MIB = 64.0

Evidence = Literal["process list", "new process", "memory rose"]
# From strong to weak. Where one GPU has strong evidence, weaker evidence on another one is somebody else's.
STRENGTH: tuple[Evidence, ...] = ("process list", "new process", "memory rose")


@dataclass(frozen=True)
class GpuUse:
    """One GPU, or one MIG slice, that the program was seen on."""

    uuid: str  # the slice's, where it is one
    gpu_uuid: str
    name: str | None
    evidence: Evidence
    # Of the program's processes; where they cannot be distinguished, by how much the memory in use rose.
    memory_peak_mib: float | None = None
    # The most programs that were there at once and are not ours; None where it is unknown.
    other_processes: int | None = None


@dataclass
class _Unit:
    """A GPU or a slice, and what was seen on it so far."""

    uuid: str
    gpu_uuid: str
    name: str | None
    handle: object
    used_before_mib: float | None = None
    listed_before: frozenset[int] = frozenset()
    ours: set[int] = field(default_factory=set)
    new: set[int] = field(default_factory=set)
    says_processes: bool = False
    listed_any: bool = False
    own_peak_mib: float | None = None
    used_peak_mib: float | None = None
    others: int = 0

    def use(self, *, numbers_are_ours: bool) -> GpuUse | None:
        """Return how the program was seen here. `numbers_are_ours` tells whether the driver's process numbers are those of
        this PID namespace, so that a list without ours means that the program was not there."""
        rise = None
        if self.used_peak_mib is not None and self.used_before_mib is not None:
            rise = round(max(0.0, self.used_peak_mib - self.used_before_mib), 1)
        found = GpuUse(self.uuid, self.gpu_uuid, self.name, "process list", rise, self.others)
        if self.ours:
            return replace(found, memory_peak_mib=self.own_peak_mib or rise)
        if self.new:
            # Which of the new ones is ours cannot be told: one is.
            return replace(found, evidence="new process", other_processes=max(0, self.others - 1))
        silent = not self.says_processes or not (self.listed_any or numbers_are_ours)
        if silent and rise is not None and rise >= RISE_MIB:
            return replace(found, evidence="memory rose", other_processes=None)
        return None


class GpuWatch:
    """Samples the GPUs' process lists from entry to exit, in a separate thread.

    `pids` returns the numbers of the program's processes as of now; it is asked only when a list shows one that was not
    seen before. Without a driver nothing is started, and `problem` says why.
    """

    def __init__(
        self,
        pids: Callable[[], Collection[int]],
        module: object = None,
        every_s: float = EVERY_S,
        numbers_are_ours: bool | None = None,
    ) -> None:
        self._pids = pids
        self._module = module
        self._every_s = every_s
        here = orphans.pid_namespace() == orphans.HOST_PID_NAMESPACE
        self._numbers_are_ours = here if numbers_are_ours is None else numbers_are_ours
        self._held = ExitStack()
        self._nvml: Nvml | None = None
        self._units: list[_Unit] = []
        self._foreign: set[int] = set()
        self._looking = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None

    @property
    def visible(self) -> tuple[str, ...]:
        """Return the UUIDs of all GPUs and slices that are watched."""
        return tuple(unit.uuid for unit in self._units)

    def __enter__(self) -> "Self":
        try:
            self._nvml = self._held.enter_context(session(self._module))
        except NoDriver as missing:
            self.problem = str(missing)
            return self
        self._units = list(_units(self._nvml))
        if not self._units:
            self.problem = "the NVIDIA driver shows no GPU here"
            return self
        for unit in self._units:
            listed = self._nvml.processes(unit.handle)
            unit.listed_before = frozenset(_pid(process) for process in listed or ())
            unit.used_before_mib = mib(self._nvml.memory_bytes(unit.handle)[1])
        self._thread = threading.Thread(target=self._watch, name="gpu-use", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        self._held.close()
        self._nvml = None

    def _watch(self) -> None:
        self.look()
        while not self._over.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Take one sample of all GPUs."""
        assert self._nvml is not None
        with self._looking:
            for unit in self._units:
                listed = self._nvml.processes(unit.handle)
                if listed is not None:
                    unit.says_processes = True
                    self._sort(unit, {_pid(process): process for process in listed})
                used = mib(self._nvml.memory_bytes(unit.handle)[1])
                unit.used_peak_mib = _larger(unit.used_peak_mib, used)

    def _sort(self, unit: _Unit, listed: Mapping[int, object]) -> None:
        """Tell the program's processes from others'."""
        unit.listed_any = unit.listed_any or bool(listed)
        unknown = listed.keys() - unit.ours - unit.new - self._foreign
        if unknown:
            own = unknown & set(self._pids())
            unit.ours |= own
            for pid in unknown - own:
                appeared = pid not in unit.listed_before
                if appeared and not self._numbers_are_ours and not (orphans.PROC / str(pid)).exists():
                    unit.new.add(pid)
                else:
                    self._foreign.add(pid)
        mine = listed.keys() & unit.ours
        unit.others = max(unit.others, len(listed) - len(mine))
        held = [value for pid in mine if (value := getattr(listed[pid], "usedGpuMemory", None)) is not None]
        if held:
            unit.own_peak_mib = _larger(unit.own_peak_mib, mib(sum(held)))

    def uses(self) -> tuple[GpuUse, ...]:
        """Return the GPUs that the program was seen on, with the strongest evidence there is."""
        found = [use for unit in self._units if (use := unit.use(numbers_are_ours=self._numbers_are_ours))]
        best = next((kind for kind in STRENGTH if any(use.evidence == kind for use in found)), None)
        return tuple(use for use in found if use.evidence == best)


class ProgramWatch:
    """Surrounds a program: the counters of all visible GPUs before and after, and `GpuWatch` in between.

    After exit `uses` says which GPUs it used, and `findings` what happened to those and to the host.
    """

    def __init__(self, pids: Callable[[], Collection[int]], module: object = None) -> None:
        self._module = module
        self._watch = GpuWatch(pids, module)
        self._held = ExitStack()
        self._xids: dict[str | None, XidWatch | None] = {}
        self._before: dict[str | None, counters.Counters] = {}
        self.uses: tuple[GpuUse, ...] = ()
        self.findings = counters.Findings()
        self.problem: str | None = None

    def __enter__(self) -> "Self":
        self._held.enter_context(self._watch)
        for uuid in self._watch.visible:
            self._xids[uuid] = self._held.enter_context(XidWatch(uuid, self._module))
        self._xids[None] = None  # the host's own, without a GPU
        self._before = self._read()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        after = self._read() if error is None else {}
        self._held.close()
        self.uses, self.problem = self._watch.uses(), self._watch.problem
        if after:
            self.findings = together(self._before, after, self.uses)

    def _read(self) -> dict[str | None, counters.Counters]:
        return {uuid: counters.read(uuid, watch, module=self._module) for uuid, watch in self._xids.items()}

    @property
    def memory_peak_mib(self) -> float | None:
        """Return the sum over the GPUs that were used; None where one of them did not say."""
        peaks = [use.memory_peak_mib for use in self.uses]
        known = [peak for peak in peaks if peak is not None]
        return round(sum(known), 1) if known and len(known) == len(peaks) else None

    def facts(self) -> Reading | None:
        """Return the facts about the GPUs that replace those from before the run; None where there is no GPU."""
        return None if self.problem else facts_of(self.uses, self._module)


def facts_of(uses: Sequence[GpuUse], module: object = None) -> Reading:
    """Return the facts of the subject `gpu` after a program ran: which were used, and by what evidence that is known."""
    if not uses:
        return Reading({"chip_by": "none"})
    facts, problems = gpu.read(None, uses[0].uuid, module=module)
    if not facts.get("under_test"):
        # Lost by now: what is known of it is its name.
        facts = {"under_test": uses[0].uuid, "devices": [{"uuid": uses[0].uuid, "name": uses[0].name}]}
    used: list[Json] = [{"uuid": use.uuid, "name": use.name} for use in uses]
    return Reading({**facts, "chip_by": uses[0].evidence, "used": used}, problems)


def together(
    before: Mapping[str | None, counters.Counters],
    after: Mapping[str | None, counters.Counters],
    uses: Iterable[GpuUse],
) -> counters.Findings:
    """Join what happened to the host with what happened to each GPU that was used: energy is added up, of the rest the worst."""
    host = counters.compare(before[None], after[None])
    invalid, flags, notes = list(host.invalid), list(host.flags), list(host.notes)
    metrics = dict(host.metrics)
    by_gpu = {use.gpu_uuid: use for use in uses}  # the counters of a slice are the whole GPU's: once each
    for number, use in enumerate(by_gpu.values()):
        # The host's part was compared above.
        first = replace(before[use.uuid], cpu=counters.CpuCounters())
        last = replace(after[use.uuid], cpu=counters.CpuCounters())
        found = counters.compare(first, last)
        who = f"{use.name or 'GPU'} {use.gpu_uuid}: " if len(by_gpu) > 1 else ""
        for remarks, more in ((invalid, found.invalid), (flags, found.flags), (notes, found.notes)):
            remarks += [Remark(f"{who}{text}", _kind_of(text)) for text in more]
        own = {**found.metrics}
        own.pop("other_gpu_processes", None)  # it counts on a process of ours, which is not there before and after
        if use.other_processes is not None:
            own["other_gpu_processes"] = use.other_processes
        for name, value in own.items():
            metrics[name] = value if number == 0 or name not in metrics else _joined(name, metrics[name], value)
    return counters.Findings(tuple(invalid), tuple(flags), metrics, tuple(notes))


def _kind_of(text: str) -> str:
    return text.kind if isinstance(text, Remark) else ""


def _joined(name: str, one: float, other: float) -> float:
    if name in ("energy_j", "ecc_corrected_volatile", "pcie_replays") or name.startswith("power_"):
        return one + other
    return min(one, other) if name.startswith("clock_") else max(one, other)


def _units(nvml: Nvml) -> Iterable[_Unit]:
    """Each slice of a GPU that is cut, else the GPU."""
    for device in devices(nvml):
        for uuid, handle in [*slices(nvml, device)] or [(device.uuid, device.handle)]:
            yield _Unit(uuid, device.uuid, nvml.word("nvmlDeviceGetName", handle), handle)


def _pid(process: object) -> int:
    return int(getattr(process, "pid", 0))


def _larger(one: float | None, other: float | None) -> float | None:
    return one if other is None else other if one is None else max(one, other)
