"""NVML with the answers of GPUs that we do not have."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pynvml

MIB = 2**20
UUID = "GPU-33333333-3333"


class FakeNvml:
    """A driver with the GPUs we do not have. What it was not told to answer is not supported, as in old drivers."""

    NVMLError = pynvml.NVMLError

    def __init__(self, **answers: object) -> None:
        self.answers: dict[str, object] = {"nvmlInit": None, "nvmlShutdown": None, **answers}

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if name not in self.answers:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            answer = self.answers[name]
            return answer(*arguments) if callable(answer) else answer

        return call


def driver_that_lists(*words: str) -> FakeNvml:
    """A driver with one GPU, on whose list are the real processes of this machine that have this command line."""
    command, asked = b"\0".join(word.encode() for word in words) + b"\0", count()

    def listed(_handle: str) -> list[SimpleNamespace]:
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if path.read_bytes() == command:
                    found.append(SimpleNamespace(pid=int(path.parent.name), usedGpuMemory=700 * MIB))
            except OSError:
                continue
        return found

    return FakeNvml(
        nvmlDeviceGetCount=1,
        nvmlDeviceGetHandleByIndex="gpu",
        nvmlDeviceGetHandleByUUID="gpu",
        nvmlDeviceGetUUID=UUID,
        nvmlDeviceGetName="NVIDIA H200",
        nvmlDeviceGetMaxMigDeviceCount=0,
        nvmlDeviceGetComputeRunningProcesses_v3=listed,
        nvmlDeviceGetMemoryInfo=lambda _handle: SimpleNamespace(total=140_000 * MIB, used=500 * MIB),
        # 100 J more each time it is read.
        nvmlDeviceGetTotalEnergyConsumption=lambda _handle: 100_000 * next(asked),
    )
