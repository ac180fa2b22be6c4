"""Choose the device and the precision it is made for, alike for every family."""

from pathlib import Path

import torch

from stackmark.workloads.workload import WorkloadFailure


def first_device() -> tuple[str, str]:
    """Choose the default device, and say why."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        return "cpu", "no GPU is visible to PyTorch here"
    return "cuda:0", "the only GPU" if count == 1 else f"the first of {count} GPUs"


def require_device(device: str) -> None:
    """Raise a sentence with what there is for a device that does not exist."""
    if device == "cpu":
        return
    if torch.version.cuda is None and torch.version.hip is None:
        raise WorkloadFailure(
            "no_device",
            f"{device} is not available: this PyTorch ({torch.__version__}) was built without CUDA",
            "install a CUDA build of PyTorch (for a pod: use an image with one), or use --device cpu",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = device.removeprefix("cuda").removeprefix(":") or "0"
    if not index.isdecimal():
        raise WorkloadFailure("bad_parameter", f"{device!r} is not a device", "write it like cpu or cuda:0")
    if int(index) >= count:
        seen = ", ".join(f"cuda:{i}" for i in range(count)) or "no CUDA device"
        hint = "CUDA_VISIBLE_DEVICES may hide devices" if count else "or use --device cpu"
        raise WorkloadFailure(
            "no_device", f"{device} is not available: PyTorch sees {seen}", f"see: stackmark facts; {hint}"
        )


def usual_precision(device: str) -> tuple[str, str]:
    """Return the precision that the device's matrix units are made for, and why."""
    if device.startswith("cuda"):
        major, minor = torch.cuda.get_device_capability(device)
        if torch.version.hip or major >= 8:
            return "bf16", f"compute capability {major}.{minor} has bf16 matrix units"
        if major == 7:
            return "fp16", f"compute capability {major}.{minor} has matrix units for fp16 but not for bf16"
        return "fp32", f"compute capability {major}.{minor} has no 16-bit matrix units"
    if cpu_has("amx_bf16"):
        return "bf16", "this CPU has AMX matrix units for bf16"
    return "fp32", "this CPU has no matrix units for bf16 (AMX)"


def cpu_has(flag: str) -> bool:
    try:
        text = Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False
    return any(flag in line.split() for line in text.splitlines() if line.startswith("flags"))
