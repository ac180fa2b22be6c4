"""`check/vector-add`: adds two vectors on the device, and compares every element with the host's own sum.

A sum of two 32-bit numbers is rounded in one way only (IEEE 754), on every chip: so the comparison is for equality of bits, and
one wrong element of sixteen million is a failure. It is the smallest thing that needs the whole way down: driver, library,
kernel, memory to and fro. The figure next to it is the rate of the longest addition, not a benchmark of the memory.
"""

import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import torch

from stackmark.events import Figure
from stackmark.spec import AnyParams, Request
from stackmark.workloads.check.definition import VECTOR_ADD, CheckParams
from stackmark.workloads.impl.devices import first_device, require_device
from stackmark.workloads.workload import Metric, Rig, TimedFigure, TimedWhole, WorkloadFailure

Tensor = torch.Tensor
Add = Callable[[Tensor, Tensor], Tensor]
# One element, less than a block, one past a power of two: where a kernel's last threads go wrong.
LENGTHS = (1, 1000, 65_537)
DTYPES = (torch.float32, torch.int32)
# Enough to be read from a clock; the first of them is not counted.
REPEATS = 20
VECTORS = 3


@dataclass(frozen=True)
class Added:
    """The result of adding on one device."""

    device: str
    elements: int
    gb_per_s: float


def probe(request: Request, _rig: Rig) -> tuple[AnyParams, dict[str, str]]:
    values, choices = dict(request.typed()), {}
    if "device" not in values:
        values["device"], choices["device"] = first_device()
    params = CheckParams.model_validate(values)
    devices_of(params)
    return params, choices


def run(_name: str, params: AnyParams, rig: Rig) -> Generator[TimedWhole, None, None]:
    assert isinstance(params, CheckParams)
    with rig.part("device"):
        devices = devices_of(params)
    yield TimedWhole(run=lambda _log: _run(params, devices), device=params.device)


def devices_of(params: CheckParams) -> list[str]:
    """Return the devices to add on; raise a sentence for one that does not exist."""
    require_device(params.device)
    if params.device == "cpu":
        return ["cpu"]
    count, index = torch.cuda.device_count(), int(params.device.partition(":")[2] or 0)
    return [f"cuda:{number}" for number in range(count)] if params.every_gpu else [f"cuda:{index}"]


def _run(params: CheckParams, devices: Sequence[str]) -> TimedFigure:
    begin = time.perf_counter()
    added = [add_on(device, params.elements, params.seed) for device in devices]
    wall_s = time.perf_counter() - begin
    slowest = min(added, key=lambda one: one.gb_per_s)
    metrics = [Metric("elements_checked", float(sum(one.elements for one in added)), "elements", True)]
    metrics += [Metric("devices_checked", float(len(added)), "devices", True)]
    figure = Figure(name=VECTOR_ADD.name, value=slowest.gb_per_s, unit=VECTOR_ADD.unit)
    return TimedFigure(figure, wall_s, tuple(metrics))


def add_on(device: str, elements: int, seed: int, add: Add = torch.add) -> Added:
    """Add vectors of several lengths and types on the device. Raises WorkloadFailure where a sum is wrong."""
    lengths = sorted({min(length, elements) for length in (*LENGTHS, elements)})
    generator = torch.Generator().manual_seed(seed)
    for dtype in DTYPES:
        for length in lengths:
            left, right = (_vector(length, dtype, generator) for _ in range(2))
            got = add(left.to(device), right.to(device)).cpu()
            compare(got, left + right, device)
    rate = _rate(left.to(device), right.to(device), device)
    return Added(device, len(DTYPES) * sum(lengths), rate)


def compare(got: Tensor, wanted: Tensor, device: str) -> None:
    """Compare bits element by element; a NaN would equal nothing."""
    if got.shape != wanted.shape:
        raise WorkloadFailure(
            "wrong_result", f"{device} returned {got.numel()} of {wanted.numel()} sums: it computes wrongly"
        )
    wrong = (got.view(torch.int32) != wanted.view(torch.int32)).nonzero().flatten()
    if not wrong.numel():
        return
    first = int(wrong[0])
    raise WorkloadFailure(
        "wrong_result",
        f"{device} returned {wrong.numel():,} wrong sums of {wanted.numel():,}: element {first} is {got[first].item()!r}"
        f", expected {wanted[first].item()!r}",
        "take the device out of service and look for its errors: nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep -i xid",
    )


def _vector(length: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    if dtype == torch.int32:
        # Halves of the range, so that no sum overflows: what happens then is nobody's promise.
        return torch.randint(-(2**30), 2**30, (length,), dtype=dtype, generator=generator)
    return torch.randn(length, dtype=dtype, generator=generator)


def _rate(left: Tensor, right: Tensor, device: str) -> float:
    """Bytes read and written a second, in GB."""
    out = torch.empty_like(left)

    def wait() -> None:
        if device != "cpu":
            torch.cuda.synchronize(device)

    torch.add(left, right, out=out)
    wait()
    begin = time.perf_counter()
    for _ in range(REPEATS):
        torch.add(left, right, out=out)
    wait()
    seconds = max(time.perf_counter() - begin, 1e-9)
    return VECTORS * left.numel() * left.element_size() * REPEATS / seconds / 1e9
