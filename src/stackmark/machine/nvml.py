"""Wrap NVIDIA's management library: each single call may be unsupported.

Which calls work depends on chip, driver, MIG, virtualisation and permissions, so a call answers with its value or with
None, and nothing here assumes that two calls that work on one machine both work on the next. The library is asked by
name through one function, which also keeps the untyped module out of the rest of the program, and lets a test stand in
for hardware that it does not have.

`nvidia-ml-py` is imported when it is first used: a worker on a machine without a GPU needs no such package.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

# Numbers of the library's ABI (nvml.h), which has kept them since they were introduced.
ERROR_TIMEOUT = 10
TEMPERATURE_GPU = 0
CLOCK_SM, CLOCK_MEMORY = 1, 2
XID_EVENT = 0x8
# A GPU that reports errors without end must not keep a finished run from ending.
MOST_XIDS = 1000
# The fields of a value by its type: double, unsigned int, long, long long, signed long long, int, unsigned short.
VALUE_FIELDS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks",
    0x200: "board limit",
    0x400: "reliability",
}
# By error number; `nvmlInit` says no more than these.
NO_START = {
    9: "the NVIDIA library is installed but the kernel driver is not loaded: try `nvidia-smi`, then `modprobe nvidia`",
    12: "no NVIDIA driver library found (libnvidia-ml.so.1): install the driver, or give the container or pod a GPU",
    18: "the NVIDIA library and the loaded kernel driver are of different versions: reboot, or reload the driver",
}
# After these the GPU answers nothing: lost from the bus, or waiting for a reset.
ERRORS_OF_A_LOST_GPU = (15, 16)


class NoDriver(OSError):
    """There is no NVIDIA driver; the text says what to do about it."""


@dataclass(frozen=True)
class Device:
    """One GPU, or one MIG slice of it. Counters and clocks are the whole GPU's, also for a slice."""

    index: int
    uuid: str
    handle: object
    slice_uuid: str | None = None
    slice_handle: object = None


class Nvml:
    """The open library. `lost` is why a GPU stopped answering, if one did."""

    def __init__(self, module: object) -> None:
        self._module = module
        self._errors = (_error_class(module), _error_class(module, "NVMLLibraryMismatchError"), AttributeError)
        self.lost: str | None = None
        self.last_error = ""
        self.last_error_number: int | None = None

    def ask(self, name: str, *arguments: object) -> object:
        """Return the call's value, or None where this chip, driver or package does not have it."""
        return self._call(name, arguments)[1]

    def do(self, name: str, *arguments: object) -> bool:
        """Make a call without an answer and return whether it worked. `last_error` says why not."""
        return self._call(name, arguments)[0]

    def _call(self, name: str, arguments: tuple[object, ...]) -> tuple[bool, object]:
        try:
            return True, getattr(self._module, name)(*arguments)
        except self._errors as error:
            self.last_error = str(error)
            self.last_error_number = getattr(error, "value", None)
            if self.last_error_number in ERRORS_OF_A_LOST_GPU:
                self.lost = self.last_error
            return False, None

    def count(self, name: str, *arguments: object) -> int | None:
        value = self.ask(name, *arguments)
        return value if isinstance(value, int) else None

    def word(self, name: str, *arguments: object) -> str | None:
        value = self.ask(name, *arguments)
        return value.decode(errors="replace") if isinstance(value, bytes) else value if isinstance(value, str) else None

    def several(self, name: str, *arguments: object) -> list[int]:
        """Make a call that answers with a tuple or list of integers; empty where it fails."""
        value = self.ask(name, *arguments)
        return [int(part) for part in value] if isinstance(value, list | tuple) else []

    def fields(self, handle: object, ids: tuple[int, ...]) -> dict[int, int]:
        """Return field values by id, in one call; without those the driver does not have."""
        answers = self.ask("nvmlDeviceGetFieldValues", handle, list(ids))
        found: dict[int, int] = {}
        for answer in answers if answers is not None else ():  # type: ignore[attr-defined]
            kind = answer.valueType
            if answer.nvmlReturn == 0 and kind < len(VALUE_FIELDS):
                found[int(answer.fieldId)] = int(getattr(answer.value, VALUE_FIELDS[kind]))
        return found

    def temperature_c(self, handle: object) -> int | None:
        newer = self.count("nvmlDeviceGetTemperatureV", handle, TEMPERATURE_GPU)
        return newer if newer is not None else self.count("nvmlDeviceGetTemperature", handle, TEMPERATURE_GPU)

    def reasons(self, handle: object) -> list[str] | None:
        """Return why the clocks are not higher now, in words."""
        bits = self.count("nvmlDeviceGetCurrentClocksEventReasons", handle)
        if bits is None:
            bits = self.count("nvmlDeviceGetCurrentClocksThrottleReasons", handle)
        return None if bits is None else [word for bit, word in REASONS.items() if bits & bit]

    def memory_bytes(self, handle: object) -> tuple[int | None, int | None]:
        """Return total and used bytes."""
        info = self.ask("nvmlDeviceGetMemoryInfo", handle)
        return getattr(info, "total", None), getattr(info, "used", None)

    def processes(self, handle: object) -> list[object] | None:
        """Return those that compute on it; None where the driver does not say."""
        running = self.ask("nvmlDeviceGetComputeRunningProcesses_v3", handle)
        if running is None:
            running = self.ask("nvmlDeviceGetComputeRunningProcesses", handle)
        return running if isinstance(running, list) else None


@contextmanager
def session(module: object = None) -> Iterator[Nvml]:
    """Open the library between its init and shutdown (which count, so sessions may nest). Raises NoDriver."""
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError as error:
            raise NoDriver("reading GPUs needs a Python package: pip install nvidia-ml-py") from error
    try:
        module.nvmlInit()  # type: ignore[attr-defined]
    except _error_class(module) as error:
        number = getattr(error, "value", None)
        raise NoDriver(
            NO_START.get(number or 0, f"the NVIDIA driver did not start: {error}; try `nvidia-smi`")
        ) from error
    nvml = Nvml(module)
    try:
        yield nvml
    finally:
        nvml.do("nvmlShutdown")


def bare(uuid: str) -> str:
    """Return a UUID without `GPU-` or `MIG-`: torch leaves them off, the driver puts them on."""
    return uuid.strip().lower().removeprefix("gpu-").removeprefix("mig-")


def devices(nvml: Nvml) -> list[Device]:
    """Return all GPUs the driver shows here, in its own order (by bus address)."""
    found = []
    for index in range(nvml.count("nvmlDeviceGetCount") or 0):
        handle = nvml.ask("nvmlDeviceGetHandleByIndex", index)
        uuid = nvml.word("nvmlDeviceGetUUID", handle) if handle is not None else None
        if uuid is not None:
            found.append(Device(index, uuid, handle))
    return found


def find(nvml: Nvml, uuid: str) -> Device | None:
    """Find the GPU with this UUID, or the GPU that the MIG slice with this UUID belongs to."""
    everything = devices(nvml)
    for device in everything:
        if bare(device.uuid) == bare(uuid):
            return device
    for device in everything:
        for name, part in slices(nvml, device):
            if bare(name) == bare(uuid):
                return replace(device, slice_uuid=name, slice_handle=part)
    return None


def slices(nvml: Nvml, device: Device) -> Iterator[tuple[str, object]]:
    """Yield UUID and handle of the visible MIG slices of a GPU."""
    for position in range(nvml.count("nvmlDeviceGetMaxMigDeviceCount", device.handle) or 0):
        part = nvml.ask("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, position)
        name = nvml.word("nvmlDeviceGetUUID", part) if part is not None else None
        if name is not None:
            yield name, part


class XidWatch:
    """Collects the XIDs (the driver's error numbers) of one GPU from entry on; the driver keeps no counter of them.

    Where it cannot watch (no driver, MIG, vGPU, no permission) `problem` says so, and the run goes on.
    """

    def __init__(self, uuid: str | None, module: object = None) -> None:
        self._uuid = uuid
        self._module = module
        self._held = ExitStack()
        self._nvml: Nvml | None = None
        self._events: object = None
        self._seen: list[int] = []
        self._watched = False
        self.problem: str | None = "no GPU is under test" if uuid is None else None

    def __enter__(self) -> "Self":
        if self._uuid is None:
            return self
        try:
            nvml = self._held.enter_context(session(self._module))
        except NoDriver as missing:
            self.problem = str(missing)
            return self
        device = find(nvml, self._uuid)
        events = nvml.ask("nvmlEventSetCreate") if device is not None else None
        if device is None:
            self.problem = f"the GPU {self._uuid} is not among those the driver shows"
        elif events is None or not nvml.do("nvmlDeviceRegisterEvents", device.handle, XID_EVENT, events):
            self.problem = f"the driver reports no XIDs here: {nvml.last_error}"
        else:
            self._nvml, self._events, self._watched = nvml, events, True
        if events is not None:
            self._held.callback(nvml.do, "nvmlEventSetFree", events)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._nvml = None
        self._held.close()

    def poll(self) -> tuple[int, ...] | None:
        """Return all XIDs since entry, without waiting. None where they were never watched."""
        if not self._watched:
            return None
        while self._nvml is not None and len(self._seen) < MOST_XIDS:
            event = self._nvml.ask("nvmlEventSetWait_v2", self._events, 0)
            if event is None:
                if self._nvml.last_error_number != ERROR_TIMEOUT:
                    self.problem = f"the watch ended early: {self._nvml.last_error}"
                    self._nvml = None
                break
            if getattr(event, "eventType", 0) & XID_EVENT:
                self._seen.append(int(getattr(event, "eventData", 0)))
        return tuple(self._seen)


def _error_class(module: object, name: str = "NVMLError") -> type[Exception]:
    found = getattr(module, name, None)
    return found if isinstance(found, type) and issubclass(found, Exception) else OSError
