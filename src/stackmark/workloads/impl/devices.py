"""Which device, and which precision it is made for: the same answer for every family."""

from pathlib import Path

import torch

from stackmark.workloads.workload import WorkloadFailure


def first_device() -> tuple[str, str]:
    """The device to take where nobody typed one, and why."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return "cpu", "no GPU is visible to PyTorch here"
    return "cuda:0", "the only GPU" if count == 1 else f"the first of {count} GPUs"


def require_device(device: str) -> None:
    """A device that is not there is a sentence that says what is."""
    if device == "cpu":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise WorkloadFailure(
            "no_device",
            f"there is no {device}: this PyTorch ({torch.__version__}) was built without CUDA",
            "install a CUDA build of PyTorch (for a pod: take an image with one), or take --device cpu",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.removeprefix("cuda").removeprefix(":") or "0"
    if not index.isdecimal():
        raise WorkloadFailure("bad_parameter", f"{device!r} is not a device", "write it like cpu or cuda:0")
    if int(index) >= count:
        seen = ", ".join(f"cuda:{i}" for i in range(count)) or "no CUDA device"
        hint = "CUDA_VISIBLE_DEVICES may hide devices" if count else "or take --device cpu"
        raise WorkloadFailure(
            "no_device", f"there is no {device}: PyTorch sees {seen}", f"see: stackmark facts; {hint}"
        )


def usual_precision(device: str) -> tuple[str, str]:
    """What the device's matrix units are made for, and why."""
    if device.startswith("cuda"):
        major, minor = torch.cuda.get_device_capability(device)
        if torch.version.hip or major >= 8:
            return "bf16", f"compute capability {major}.{minor} has bf16 matrix units"
        if major == 7:
            return "fp16", f"compute capability {major}.{minor} has fp16 matrix units and none for bf16"
        return "fp32", f"compute capability {major}.{minor} has no matrix units of 16 bits"
    if cpu_has("amx_bf16"):
        return "bf16", "this CPU has AMX matrix units for bf16"
    return "fp32", "this CPU has no matrix units for bf16 (AMX)"


def cpu_has(flag: str) -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False
    return any(flag in line.split() for line in text.splitlines() if line.startswith("flags"))
