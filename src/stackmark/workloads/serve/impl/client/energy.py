"""Joules of the GPUs that serve, by their own counters, where the server runs on this machine. A watt is never computed.

The counters are read while the server idles, before the load, and four times a second during it, by this process, which sends
nothing itself. The energy is that of the very window in which output tokens are counted, on whose ends the readings are
interpolated. What idling costs is measured, subtracted as a second number, and has an error of its own.

Not tried on a GPU: the calls are those that machine/counters.py makes at both ends of a run.
"""

import ipaddress
import math
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import fmean, stdev

from stackmark.machine.nvml import Device, NoDriver, Nvml, devices, session, slices
from stackmark.machine.reading import ROOT
from stackmark.machine.telemetry_gpu import NVIDIA_NODES
from stackmark.units import counted, say_seconds
from stackmark.workloads.serve.endpoint import Address, gpu_ids
from stackmark.workloads.workload import Metric

# Energy is taken from no shorter window, and from none in which an update of the counter is more than this share.
LEAST_S, MOST_SHARE = 5.0, 0.005
# How long the server rests before its idle power is measured, how long that takes, and how often the counter is looked at then.
SETTLE_S, IDLE_S, POLL_S = 1.0, 5.0, 0.005
# The parts of the idle time whose spread is the error; Student's 97.5 % quantile for one part less.
PARTS, QUANTILE = 5, 2.776
EVERY_S = 0.25
# One moment, and the joules of each GPU at it.
Reading = tuple[int, tuple[float, ...]]


class Refused(Exception):
    """Energy cannot be given, and why."""


def is_this_machine(address: Address) -> bool:
    """Tell whether an address is one of this machine's own. Nothing is sent."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)}
    except OSError:
        return False
    return bool(found) and all(_is_own(str(one), address.port) for one in found)


def _is_own(text: str, port: int) -> bool:
    address = ipaddress.ip_address(text.partition("%")[0])
    if address.is_loopback or address.is_unspecified:
        return True
    try:
        with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as asking:
            asking.connect((text, port))
            # The kernel sends to an address of this machine from that address.
            return ipaddress.ip_address(str(asking.getsockname()[0]).partition("%")[0]) == address
    except OSError:
        return False


@dataclass(frozen=True)
class Idle:
    """The power of all GPUs together without a load, and what it may be off by (95 %)."""

    power_w: float
    error_w: float


class Meter:
    """Reads the energy counters of the GPUs that serve."""

    def __init__(self, nvml: Nvml, gpus: Sequence[Device]) -> None:
        self._nvml, self._gpus = nvml, gpus
        self._readings: list[Reading] = []
        self._problem = ""
        # How long the slowest counter stands still between two updates; 0 until it was seen.
        self.resolution_s = 0.0
        self.idle: Idle | None = None
        # Why there is no idle power.
        self.not_idle = ""

    @property
    def names(self) -> str:
        return "+".join(str(gpu.index) for gpu in self._gpus)

    def read(self) -> Reading:
        """Return the joules of each GPU at one moment; raise Refused."""
        joules = []
        began = time.monotonic_ns()
        for gpu in self._gpus:
            value = self._nvml.count("nvmlDeviceGetTotalEnergyConsumption", gpu.handle)
            if value is None:
                raise Refused(f"the energy counter of GPU {gpu.index} cannot be read: {self._nvml.last_error}")
            joules.append(value / 1000)
        return (began + time.monotonic_ns()) // 2, tuple(joules)

    def rest(self) -> None:
        """Watch the counters while the server idles: how often they move, and the power; raise Refused."""
        self.read()
        time.sleep(SETTLE_S)
        moves: list[list[tuple[int, float]]] = [[] for _ in self._gpus]
        at_ns, last = self.read()
        end_ns, busy, looked_ns = at_ns + round(IDLE_S * 1e9), self._busy(), at_ns
        while at_ns < end_ns:
            time.sleep(POLL_S)
            at_ns, joules = self.read()
            for of_gpu, before, now in zip(moves, last, joules, strict=True):
                if now != before:
                    of_gpu.append((at_ns, now))
            last = joules
            if at_ns - looked_ns > 1e9:
                busy, looked_ns = busy or self._busy(), at_ns
        for gpu, of_gpu in zip(self._gpus, moves, strict=True):
            if len(of_gpu) < 2:
                raise Refused(f"the energy counter of GPU {gpu.index} stood still for {say_seconds(IDLE_S)}")
            gap_s = (of_gpu[-1][0] - of_gpu[0][0]) * 1e-9 / (len(of_gpu) - 1)
            self.resolution_s = max(self.resolution_s, round(gap_s, 2))
        self.not_idle = busy or self._busy() or self._shared()
        if not self.not_idle:
            self.idle = idle_power(moves)

    def _busy(self) -> str:
        for gpu in self._gpus:
            use = getattr(self._nvml.ask("nvmlDeviceGetUtilizationRates", gpu.handle), "gpu", None)
            if use is None or use > 0:
                said = "does not say whether it rests" if use is None else f"was busy ({use} %) without our load"
                return f"GPU {gpu.index} {said}"
        return ""

    def _shared(self) -> str:
        for gpu in self._gpus:
            running = self._nvml.processes(gpu.handle) or ()
            if len(running) > 1:
                return f"{len(running)} programs have GPU {gpu.index}, and which is the server is not known"
        return ""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read the counters in a thread."""
        over = threading.Event()

        def read_on() -> None:
            while not self._problem:
                self._note()
                if over.wait(EVERY_S):
                    return

        thread = threading.Thread(target=read_on, name="energy", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _note(self) -> None:
        try:
            self._readings.append(self.read())
        except Refused as refused:
            self._problem = str(refused)

    def joules(self, start_ns: int, end_ns: int) -> tuple[float, ...]:
        """Return what each GPU used in a window; raise Refused where the counters do not show it."""
        time.sleep(max(0.0, (end_ns - time.monotonic_ns()) * 1e-9))
        self._note()
        if self._problem:
            raise Refused(self._problem)
        window_s, needed_s = (end_ns - start_ns) * 1e-9, max(LEAST_S, self.resolution_s / MOST_SHARE)
        if window_s + 1e-6 < needed_s:
            raise Refused(
                f"requests were sent for {say_seconds(window_s)}, and the counter, which moves every "
                f"{say_seconds(self.resolution_s)}, needs {say_seconds(needed_s)}: give more --seconds"
            )
        if self._readings[0][0] > start_ns or any(
            any(map(float.__lt__, after[1], before[1]))
            for before, after in zip(self._readings, self._readings[1:], strict=False)
        ):
            raise Refused("a counter went back, or was not read from the start")
        ends = [_at([(at_ns, joules) for at_ns, joules in self._readings], moment) for moment in (start_ns, end_ns)]
        return tuple(last - first for first, last in zip(*ends, strict=True))

    def per_token(self, start_ns: int, end_ns: int, tokens: float) -> tuple[list[Metric], list[str]]:
        """Return joules per output token, gross and without what idling costs; and flags."""
        try:
            used = self.joules(start_ns, end_ns)
        except Refused as refused:
            return [], [no_energy(str(refused))]
        metrics = [Metric("energy_per_output_token", sum(used) / tokens, "J", False)]
        flags = []
        if self.idle:
            seconds = (end_ns - start_ns) * 1e-9
            net = sum(used) - self.idle.power_w * seconds
            metrics += [
                Metric("energy_per_output_token_net", net / tokens, "J", False),
                Metric("energy_per_output_token_net_error", self.idle.error_w * seconds / tokens, "J", False),
                Metric("idle_power", self.idle.power_w, "W", False),
                Metric("idle_power_error", self.idle.error_w, "W", False),
            ]
        else:
            flags.append(f"no-idle-power: energy is given gross only: {self.not_idle}")
        return [*metrics, *(Metric(f"energy_gpu{gpu.index}", one, "J", False) for gpu, one in self._each(used))], flags

    def _each(self, used: Sequence[float]) -> Iterator[tuple[Device, float]]:
        return zip(self._gpus, used, strict=True)


def no_energy(why: str) -> str:
    return f"no-energy: energy is not given: {why}"


def idle_power(moves: Sequence[Sequence[tuple[int, float]]]) -> Idle:
    """Compute the power of all GPUs from the moments at which each one's counter moved, and its error from parts of the time."""
    parts = [0.0] * PARTS
    for of_gpu in moves:
        first, last = of_gpu[0][0], of_gpu[-1][0]
        ends = [first + (last - first) * number // PARTS for number in range(PARTS + 1)]
        known = [_at([(at_ns, (joules,)) for at_ns, joules in of_gpu], end)[0] for end in ends]
        for number in range(PARTS):
            parts[number] += (known[number + 1] - known[number]) / ((ends[number + 1] - ends[number]) * 1e-9)
    power = fmean(parts)
    # Each end of the whole is seen up to one look late.
    late = 2 * POLL_S / IDLE_S * power
    return Idle(power, math.hypot(QUANTILE * stdev(parts) / math.sqrt(PARTS), late))


def _at(readings: Sequence[Reading], moment_ns: int) -> tuple[float, ...]:
    """Interpolate between the readings before and after a moment."""
    place = min(max(1, bisect_left(readings, moment_ns, key=lambda one: one[0])), len(readings) - 1)
    (before_ns, before), (after_ns, after) = readings[place - 1], readings[place]
    share = min(1.0, max(0.0, (moment_ns - before_ns) / (after_ns - before_ns)))
    return tuple(first + share * (last - first) for first, last in zip(before, after, strict=True))


def open_meter(address: Address, asked: str, held: ExitStack, module: object = None) -> Meter | None:
    """Return a meter of the GPUs that serve, open as long as `held` is; None where they are not ours; raise Refused.

    `asked` names GPUs by the driver's numbers; empty: all on which a program computes. Where a GPU was asked for, what speaks
    against it is said; else a server elsewhere, or a machine without NVIDIA's driver, is no cause for a sentence.
    """
    if not is_this_machine(address):
        if asked:
            raise Refused(f"{address.shown_host} is not this machine, so its GPUs cannot be read here")
        return None
    if module is None and not any((ROOT / node).exists() for node in NVIDIA_NODES):
        if asked:
            raise Refused("there is no NVIDIA driver where the client runs")
        return None
    try:
        nvml = held.enter_context(session(module))
    except NoDriver as missing:
        raise Refused(str(missing)) from missing
    return Meter(nvml, _chosen(nvml, asked))


def _chosen(nvml: Nvml, asked: str) -> list[Device]:
    every = devices(nvml)
    if asked:
        by_index = {gpu.index: gpu for gpu in every}
        if missing := [index for index in gpu_ids(asked) if index not in by_index]:
            raise Refused(f"there is no GPU {missing[0]} here; the driver shows {counted(len(every), 'GPU')}")
        chosen = [by_index[index] for index in gpu_ids(asked)]
    else:
        chosen = [gpu for gpu in every if nvml.processes(gpu.handle)]
    if not chosen:
        raise Refused("no GPU here shows a program that computes: name the server's with --server-gpu-ids 0+1")
    for gpu in chosen:
        if any(slices(nvml, gpu)):
            raise Refused(f"GPU {gpu.index} is cut into MIG slices, and its counter is that of all of them")
    return chosen
