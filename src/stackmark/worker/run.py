"""What a worker does with its task: run a workload, resolve a request, or look at the stack."""

import errno
import resource
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from pydantic import ValidationError

from stackmark import events
from stackmark.spec import Params, Request, Spec, Task, explain
from stackmark.worker import counters
from stackmark.worker.clock import Stretch
from stackmark.worker.facts import collect
from stackmark.worker.measure import measure, warm_up
from stackmark.worker.stream import Emitter
from stackmark.workloads.catalog import Family, find
from stackmark.workloads.workload import Ready, WorkloadFailure

UNITS = {"j": "J", "w": "W", "c": "°C", "mhz": "MHz", "mib": "MiB"}


class Bench:
    """What the worker offers to a workload (workload.Rig)."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self.flags: list[str] = []

    def part(self, name: str, note: str = "") -> AbstractContextManager[None]:
        return self._emitter.part(name, note)

    def flag(self, sentence: str) -> None:
        if sentence not in self.flags:
            self.flags.append(sentence)


def perform(task: Task, emitter: Emitter) -> None:
    if task.do == "facts":
        emit_facts(emitter, None)
    elif task.do == "probe":
        assert task.request is not None
        probe(task.request, emitter)
    else:
        assert task.spec is not None
        run(task.spec, emitter)


def probe(request: Request, emitter: Emitter) -> None:
    family, _ = find(request.workload)
    with emitter.part("import"):
        workload = family.load()
    params, choices = workload.probe(request, Bench(emitter))
    spec = Spec(workload=request.workload, params=params.model_dump(mode="json"), ranks=request.ranks)
    emitter(events.Probe, spec=spec, choices=choices)
    emit_facts(emitter, params.device)


def run(spec: Spec, emitter: Emitter) -> None:
    family, entry = find(spec.workload)
    params = read_params(family, spec)
    with emitter.part("import"):
        workload = family.load()
    bench = Bench(emitter)
    session = workload.run(entry.name.partition("/")[2], params, bench)
    try:
        ready = next(session)
        emit_facts(emitter, params.device)
        _measured(emitter, ready, params, bench)
        next(session, None)
    finally:
        session.close()


def read_params(family: Family, spec: Spec) -> Params:
    """A spec is complete: what is missing in it, unknown or out of range is somebody's mistake."""
    try:
        return family.params.model_validate(spec.params)
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", f"{spec.workload}: {explain(error)}") from error


def _measured(emitter: Emitter, ready: Ready, params: Params, bench: Bench) -> None:
    uuid = device_uuid(params.device)
    step_s = warm_up(emitter, ready, params, lambda: _clock_mhz(uuid))
    ready.reset()
    waited_before = ready.data_wait_s()
    with counters.XidWatch(uuid) as watch:
        before = counters.read(uuid, watch)
        stretch = measure(emitter, ready, params, step_s)
        after = counters.read(uuid, watch)
    _check_loss(stretch, ready)
    findings = counters.compare(before, after)
    for note in findings.notes:
        emitter(events.Log, line=note)
    for name, value in findings.metrics.items():
        # Units stand in names; a metric's unit is as people write it.
        unit = name.rpartition("_")[2]
        emitter(events.Metric, name=name, value=value, unit=UNITS.get(unit, unit), higher_is_better=False)
    for metric in ready.metrics():
        emitter(events.Metric, **vars(metric))
    emitter(
        events.Result,
        sample=ready.sample,
        samples_per_step=ready.samples_per_step,
        steps=len(stretch.step_s),
        wall_s=stretch.wall_s,
        tick_s=stretch.marks.tick_s,
        operations_per_sample=ready.operations_per_sample,
        least_bytes_per_sample=ready.least_bytes_per_sample,
        memory_peak_mib=memory_peak_mib(params.device),
        data_wait_s=ready.data_wait_s() - waited_before,
        invalid=list(findings.invalid),
        flags=[*bench.flags, *findings.flags],
    )


def _clock_mhz(uuid: str | None) -> float | None:
    gpu = counters.read(uuid).gpu if uuid else None
    return gpu.clock_sm_mhz if gpu else None


def _check_loss(stretch: Stretch, ready: Ready) -> None:
    if stretch.not_finite_at is not None:
        raise WorkloadFailure(
            "not_finite",
            f"the loss was not finite at step {stretch.not_finite_at + 1}",
            "try a smaller --learning-rate, another --seed, or --precision bf16 instead of fp16",
        )
    ready.check()


def emit_facts(emitter: Emitter, device: str | None) -> None:
    uuid = device_uuid(device) if device else None
    for subject in collect(device, uuid):
        emitter(events.Facts, subject=subject.subject, facts=subject.facts, problems=list(subject.problems))


def device_uuid(device: str) -> str | None:
    """The GPU's own name, by which NVML knows it whatever CUDA_VISIBLE_DEVICES says."""
    torch = _torch()
    if not device.startswith("cuda") or torch is None:
        return None
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def memory_peak_mib(device: str) -> float | None:
    """On a GPU what the allocator took from the device at its highest; on a CPU the resident set at its highest."""
    torch = _torch()
    if device.startswith("cuda") and torch is not None:
        return float(round(torch.cuda.max_memory_reserved(device) / 2**20, 1))
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(peak_kib / 1024, 1) if peak_kib > 0 else None


def _torch() -> Any:
    """Torch if the workload imported it; the worker itself does not need it."""
    return sys.modules.get("torch")


@contextmanager
def device_trouble() -> Iterator[None]:
    """Tells running out of memory, on the device or on the host, from a crash."""
    try:
        yield
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise WorkloadFailure("out_of_host_memory", "the host ran out of memory", "take a smaller --batch") from error
    except RuntimeError as error:
        kind = _memory_kind(error)
        if kind is None:
            raise
        where = "device" if kind == "out_of_device_memory" else "host"
        message = f"the {where} ran out of memory: {str(error).splitlines()[0][:300]}"
        raise WorkloadFailure(kind, message, "take a smaller --batch, or a --precision with fewer bits") from error


def _memory_kind(error: RuntimeError) -> str | None:
    torch = _torch()
    text = str(error)
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return "out_of_device_memory"
    if "CUDA" in text and "out of memory" in text:
        return "out_of_device_memory"
    if "DefaultCPUAllocator" in text or "can't allocate memory" in text or "std::bad_alloc" in text:
        return "out_of_host_memory"
    return None
