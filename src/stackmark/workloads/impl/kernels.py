"""Record what one step calls: the device's kernels, or on a CPU the framework's operators, with the framework's profiler.

A CUDA graph is seen too: the profiler watches the device and not the host. On a CPU the libraries below the operators
(oneDNN, OpenMP) choose code of their own, which no profiler of the framework shows: there the names say less.
"""

import os
from collections.abc import Callable, Iterable

import torch
from torch._C._autograd import DeviceType
from torch.autograd.profiler import profile
from torch.autograd.profiler_util import FunctionEvent

from stackmark.workloads.workload import Kernel

# Copies are named by where from and where to, which the data's way decides and not a choice of kernels.
NO_KERNELS = ("Memcpy", "Memset")
# The engine's own brackets around an operator of the backward pass.
NO_OPERATORS = ("autograd::engine::", "torch::autograd::")


def profile_step(step: Callable[[], object], device: str) -> list[Kernel]:
    gpu = device != "cpu"
    # Its library writes two lines about itself to standard error at each use, at any lower level.
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    # torch.profiler is a shell around this one, which imports the framework's compiler first (five seconds).
    # acc_events only says that events are kept over cycles, of which there is one: without it a warning is printed.
    with profile(use_kineto=True, use_device="cuda" if gpu else None, use_cpu=not gpu, acc_events=True) as profiler:
        step()
        if gpu:
            torch.cuda.synchronize(device)
    return gathered(profiler.function_events or (), gpu)


def gathered(found: Iterable[FunctionEvent], gpu: bool) -> list[Kernel]:
    """Return names with their calls and seconds, on a GPU without those of the host."""
    calls: dict[str, int] = {}
    microseconds: dict[str, float] = {}
    for event in found:
        name = event.name
        if gpu:
            wanted = event.device_type == DeviceType.CUDA and not name.startswith(NO_KERNELS)
            spent = event.time_range.elapsed_us()
        else:
            wanted = "::" in name and not name.startswith(NO_OPERATORS)
            spent = event.self_cpu_time_total
        if wanted and not event.is_user_annotation:
            calls[name] = calls.get(name, 0) + 1
            microseconds[name] = microseconds.get(name, 0.0) + spent
    return [Kernel(name, count, microseconds[name] / 1e6) for name, count in calls.items()]
