"""Carry out a worker's task: run a workload, resolve a request, or collect facts."""

import errno
import math
import os
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from stackmark import events
from stackmark.errors import StreamError
from stackmark.machine import counters, host_counters, network
from stackmark.machine.binding import shares
from stackmark.machine.facts import Collector, collect
from stackmark.machine.gpu import under_test
from stackmark.machine.gpu_use import ProgramWatch
from stackmark.machine.nvml import NoDriver, devices, session
from stackmark.machine.orphans import MARK_VARIABLE, started_by_us
from stackmark.machine.reading import cpu_list
from stackmark.model import ValidationError
from stackmark.ranks import Rank, own_rank
from stackmark.spec import AUTO, BIND_VARIABLE, SPEC_VARIABLE, AnyParams, Params, Request, Spec, Task, explain
from stackmark.worker.clock import CpuMarks, Stretch
from stackmark.worker.exchange import align, emit_exchange
from stackmark.worker.first import worker_command
from stackmark.worker.kernels import emit_kernels
from stackmark.worker.measure import Heartbeat, measure, warm_up
from stackmark.worker.ranks import devices_of_ranks
from stackmark.worker.sampling import Sampling
from stackmark.worker.stream import Emitter
from stackmark.workloads.definition import Family
from stackmark.workloads.registry import find
from stackmark.workloads.versions import explain_lack, refuse_old_torch
from stackmark.workloads.workload import (
    Evaluated,
    Metric,
    TimedFigure,
    TimedRows,
    TimedSteps,
    TimedTraining,
    TimedWhole,
    Workload,
    WorkloadFailure,
)

# --- A request resolved where it will run, by a worker of its own: a trial step leaves memory, caches and settings
# behind in its
#
# process, and what is measured runs in a fresh one, as everywhere else.


def resolved(request: Request) -> events.Probe:
    """Return a probe's answer to the request, or raise its failure as ours."""
    task = Task(do="probe", request=request, lifeline=False)
    done = subprocess.run(
        worker_command(),
        env={**os.environ, SPEC_VARIABLE: task.model_dump_json()},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=False,
    )
    stream = events.Stream()
    try:
        for line in done.stdout.decode(errors="replace").splitlines():
            stream.feed(line)
    except StreamError as error:
        raise WorkloadFailure("bad_output", f"the probe's events cannot be read: {error.message}") from error
    closed = stream.ended()
    if isinstance(closed, events.Failed):
        raise WorkloadFailure(closed.kind, closed.message, closed.hint)
    found = next((event for event in stream.events if isinstance(event, events.Probe)), None)
    if found is None:
        raise WorkloadFailure("crash", f"the probe ended with code {done.returncode} without an answer")
    return found


ALONE = Rank(0, 1, 0, 1)


class Bench:
    """The worker's services for a workload (workload.Rig)."""

    def __init__(
        self, emitter: Emitter, rank: Rank = ALONE, repetition: int = 0, sampling: Sampling | None = None
    ) -> None:
        self._emitter = emitter
        self.rank = rank
        self.sampling = sampling or Sampling(emitter, 0.0)
        self.repetition = repetition
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
    elif task.spec is not None:
        run(task.spec, emitter, task.repetition, task.sample_hz)
    else:
        assert task.request is not None
        with emitter.part("probe"):
            found = resolved(task.request)
        emitter(events.Probe, spec=found.spec, choices=found.choices)
        run(found.spec, emitter, task.repetition, task.sample_hz)


def probe(request: Request, emitter: Emitter) -> None:
    family, _ = find(request.workload)
    with emitter.part("import"):
        workload = load(family)
    params, choices = workload.probe(request, Bench(emitter))
    spec = Spec(workload=request.workload, params=params.model_dump(mode="json"), ranks=request.ranks)
    emitter(events.Probe, spec=spec, choices=choices)
    emit_facts(emitter, params.device)


def load(family: Family) -> Workload:
    """Import the implementation, and refuse a framework that is too old for it."""
    try:
        workload = family.load()
    except (AttributeError, ImportError):
        refuse_old_torch()
        raise
    refuse_old_torch()
    return workload


def run(spec: Spec, emitter: Emitter, repetition: int = 0, sample_hz: float = 0.0) -> None:
    # Of a run of one it is nobody's business whether it was started inside somebody's job.
    rank = (own_rank(os.environ) if spec.ranks > 1 else None) or ALONE
    # One sampler on each machine. It is started before this process is bound to CPUs, and may use the others.
    with Sampling(emitter, sample_hz if rank.local_number == 0 else 0.0) as sampling:
        _run(spec, emitter, Bench(emitter, rank, repetition, sampling))


def _run(spec: Spec, emitter: Emitter, bench: Bench) -> None:
    family, entry = find(spec.workload)
    params = read_params(family, spec)
    bind(emitter, spec, bench)
    with emitter.part("import"):
        workload = load(family)
    course = workload.run(entry.name.partition("/")[2], params, bench)
    try:
        ready = next(course)
        emit_facts(emitter, params.device, {"network": network.read} if spec.ranks > 1 else None)
        if isinstance(ready, TimedWhole):
            _measured_whole(emitter, ready, bench)
        elif isinstance(ready, TimedRows):
            _measured_list(emitter, ready, bench)
        elif isinstance(ready, TimedTraining):
            _measured_training(emitter, ready, bench)
        else:
            assert isinstance(params, Params)
            _measured(emitter, ready, params, bench)
        next(course, None)
    finally:
        course.close()


def bind(emitter: Emitter, spec: Spec, bench: Bench) -> None:
    """Bind this process to CPUs, where the place was asked for it: before a framework is imported and makes its threads."""
    kind = os.environ.pop(BIND_VARIABLE, None)
    if kind is None:
        return
    before = os.sched_getaffinity(0)
    share = shares(kind, devices_of_ranks(spec, bench.rank.local_size), os.environ)[bench.rank.local_number]
    try:
        os.sched_setaffinity(0, share.cpus)
    except OSError as error:
        message = f"bind={kind}: the worker cannot bind itself to the CPUs {cpu_list(share.cpus)}: {error.strerror}"
        raise WorkloadFailure("bad_parameter", message, "leave out --bind") from error
    facts = {"bind": kind, "cpus": cpu_list(share.cpus), "processes": share.sharing, "allowed": cpu_list(before)}
    emitter(events.Facts, subject="binding", facts=facts, problems=list(share.problems))
    for problem in share.problems:
        bench.flag(f"binding: {problem}")


def read_params(family: Family, spec: Spec) -> AnyParams:
    """Validate a spec: what is missing in it, unknown or out of range is an error."""
    try:
        return family.params.model_validate(spec.params)
    except ValidationError as error:
        raise WorkloadFailure("bad_parameter", f"{spec.workload}: {explain(error)}") from error


def _measured(emitter: Emitter, ready: TimedSteps, params: Params, bench: Bench) -> None:
    uuid = device_uuid(params.device)
    if ready.together:
        offset_s, uncertain_s = align(ready.together, emitter.rank == 0, emitter.now)
        clock = {"clock_offset_s": round(offset_s, 6), "clock_uncertainty_s": round(uncertain_s, 6)}
        emitter(events.Facts, subject="ranks", facts={**ready.together.facts, **clock})
    step_s = warm_up(emitter, ready, params, lambda: _clock_mhz(uuid))
    ready.reset()
    waited_before = ready.data_wait_s()
    with watching(uuid) as watched:
        stretch = measure(emitter, ready, params, step_s)
    bench.sampling.finish()
    _check_loss(stretch, ready)
    _emit_metrics(emitter, watched, ready.metrics())
    result = {
        "sample": ready.sample,
        "samples_per_step": ready.samples_per_step,
        "steps": len(stretch.step_s),
        "wall_s": stretch.wall_s,
        "tick_s": stretch.marks.tick_s,
        "operations_per_sample": ready.operations_per_sample,
        "least_bytes_per_sample": ready.least_bytes_per_sample,
        "called_bytes_per_sample": ready.called_bytes_per_sample,
        "memory_peak_mib": memory_peak_mib(params.device),
        "data_wait_s": ready.data_wait_s() - waited_before,
        "invalid": list(watched.findings.invalid),
        "flags": [*bench.flags, *watched.findings.flags, *watched.heart.flags(stretch.step_s)],
    }
    # All numbers are read: more steps change none of them.
    step_s = stretch.wall_s / max(1, stretch.done)
    if ready.together:
        emit_exchange(emitter, ready, ready.together, stretch)
        # The profiled step has an exchange: all ranks do it, or none.
        (step_s,) = ready.together.most(step_s)
    emit_kernels(emitter, ready, step_s)
    emitter(events.Result, **result)


def _measured_whole(emitter: Emitter, whole: TimedWhole, bench: Bench) -> None:
    """What cannot be cut into steps is one step, without a warm-up; its rate is its own figure."""
    uuid = device_uuid(whole.device)
    if uuid is None and whole.device not in ("cpu", AUTO):
        raise WorkloadFailure("no_device", f"{whole.device} is not visible here: {_driver_uuid(whole.device)[1]}")
    emitter(events.Facts, subject=whole.subject, facts=whole.facts)
    emitter(events.Phase, phase="measure", state="begin")
    program = ProgramWatch(_own_pids) if whole.device == AUTO else None
    with watching(uuid, program) as watched, want_of_memory():
        try:
            told = whole.run(lambda line: emitter(events.Log, line=line))
        except WorkloadFailure as failure:
            for metric in failure.metrics:
                emitter(events.Metric, **vars(metric))
            raise
    if program is not None:
        told = _with_gpus(emitter, told, program)
    _emit_told(emitter, told, watched, bench, bench.flags)


def _own_pids() -> set[int]:
    return started_by_us(os.environ.get(MARK_VARIABLE, ""))


def _with_gpus(emitter: Emitter, told: TimedFigure, program: ProgramWatch) -> TimedFigure:
    """Emit which GPUs a program was seen on; where it used one, its memory is the GPU's, as of our own workloads."""
    reading = program.facts()
    if reading is not None:
        for subject in collect(None, None, {"gpu": lambda: reading}):
            emitter(events.Facts, subject=subject.subject, facts=subject.facts, problems=list(subject.problems))
    if not program.uses:
        return told
    metrics = told.metrics
    if told.memory_peak_mib is not None:
        metrics = (*metrics, Metric("host_memory_peak_mib", told.memory_peak_mib, "MiB", False))
    return replace(told, memory_peak_mib=program.memory_peak_mib, metrics=metrics)


def _measured_list(emitter: Emitter, listed: TimedRows, bench: Bench) -> None:
    """Each row goes out as it is done, so that one that was cut off keeps what it had."""
    rows: list[events.OpRow] = []

    def done(row: events.OpRow) -> None:
        rows.append(row)
        emitter(events.Row, row=row, done=len(rows), of=max(listed.rows, len(rows)))
        emitter.rest()  # so that no thread of ours writes while the next row is timed

    emitter(events.Facts, subject="op", facts=listed.facts)
    emitter(events.Phase, phase="measure", state="begin", expected_steps=listed.rows)
    with watching(device_uuid(listed.device)) as watched:
        told = listed.run(done)
    failed = [row for row in rows if row.failure_kind]
    flags = [f"rows-failed: {len(failed)} of {len(rows)} rows gave no number"] if failed else []
    _emit_told(emitter, told, watched, bench, [*bench.flags, *flags], rows=len(rows), rows_failed=len(failed))


def _measured_training(emitter: Emitter, training: TimedTraining, bench: Bench) -> None:
    """Each evaluation goes out when it is done, so that a run that was cut off, or never gets there, keeps its curve."""
    count = 0

    def evaluated(one: Evaluated) -> None:
        nonlocal count
        count += 1
        emitter(
            events.Evaluation,
            number=count,
            epoch=one.epoch,
            samples=one.samples,
            clock_s=round(one.clock_s, 6),
            quality={name: _finite(value) for name, value in one.quality.items()},
            target=one.target,
            reached=one.reached,
        )

    emitter(events.Facts, subject="fit", facts=training.facts)
    emitter(events.Phase, phase="measure", state="begin", expected_steps=training.evaluations)
    with watching(device_uuid(training.device)) as watched:
        told = training.run(evaluated, lambda line: emitter(events.Log, line=line))
    told = replace(told, memory_peak_mib=memory_peak_mib(training.device))
    _emit_told(emitter, told, watched, bench, bench.flags)


def _finite(value: float) -> float:
    """Return a quality as an event can hold it; one that is not finite fails the run."""
    if not math.isfinite(value):
        raise WorkloadFailure(
            "not_finite",
            "the quality of the model is not a finite number",
            "try a smaller --learning-rate, another --seed, or --precision fp32",
        )
    return value


def _emit_told(
    emitter: Emitter, told: TimedFigure, watched: "Watched", bench: Bench, flags: Sequence[str], **more: int
) -> None:
    """The end of what has no steps: one step, and a figure of its own."""
    emitter.steps("measure", 0, [told.wall_s], [])
    emitter(events.Phase, phase="measure", state="end", seconds=round(told.wall_s, 6))
    bench.sampling.finish()
    _emit_metrics(emitter, watched, told.metrics)
    for histogram in told.histograms:
        emitter.histogram(histogram)
    emitter(
        events.Result,
        sample="run",
        samples_per_step=1,
        steps=1,
        wall_s=told.wall_s,
        tick_s=CpuMarks.tick_s,
        memory_peak_mib=told.memory_peak_mib,
        figure=told.figure,
        invalid=list(watched.findings.invalid),
        flags=[*flags, *watched.findings.flags, *watched.heart.flags()],
        **more,
    )


@dataclass
class Watched:
    """The counters' findings about the measured part; complete when it is over."""

    findings: counters.Findings = field(default_factory=counters.Findings)
    host: list[Metric] = field(default_factory=list)
    heart: Heartbeat = field(default_factory=Heartbeat)


@contextmanager
def watching(uuid: str | None, program: ProgramWatch | None = None) -> Iterator[Watched]:
    """Read the counters before and after: of one GPU, or of those that a program turns out to use."""
    watched = Watched()
    if program is not None:
        host = host_counters.read()
        with program, watched.heart:
            yield watched
        watched.host = host_counters.between(host, host_counters.read())
        watched.findings = program.findings
        return
    with counters.XidWatch(uuid) as watch:
        host, before = host_counters.read(), counters.read(uuid, watch)
        with watched.heart:
            yield watched
        after = counters.read(uuid, watch)
    watched.host = host_counters.between(host, host_counters.read())
    watched.findings = counters.compare(before, after)


@contextmanager
def want_of_memory() -> Iterator[None]:
    """Explain a child that the kernel killed by the control group's counter; the child itself cannot."""
    before = counters.read().cpu.oom_kills or 0
    try:
        yield
    except WorkloadFailure as failure:
        if (counters.read().cpu.oom_kills or 0) <= before:
            raise
        message = f"{failure.message}: the kernel killed it, or one of its processes, because memory ran out"
        raise WorkloadFailure("out_of_host_memory", message, "give it more memory, or less work") from failure


def _emit_metrics(emitter: Emitter, watched: Watched, own: Sequence[Metric]) -> None:
    """What the workload says of itself goes before what was seen from outside under the same name."""
    for note in watched.findings.notes:
        emitter(events.Log, line=note)
    said = {metric.name for metric in own}
    host = (metric for metric in watched.host if metric.name not in said)
    for metric in (*watched.findings.named_metrics(), *host, *own):
        emitter(events.Metric, **vars(metric))


def _clock_mhz(uuid: str | None) -> float | None:
    gpu = counters.read(uuid).gpu if uuid else None
    return gpu.clock_sm_mhz if gpu else None


def _check_loss(stretch: Stretch, ready: TimedSteps) -> None:
    if stretch.not_finite_at is not None:
        raise WorkloadFailure(
            "not_finite",
            f"the loss was not finite at step {stretch.not_finite_at + 1}",
            "try a smaller --learning-rate, another --seed, or --precision bf16 instead of fp16",
        )
    ready.check()


def emit_facts(emitter: Emitter, device: str | None, more: Mapping[str, Collector] | None = None) -> None:
    """Emit what the stack is. Facts about the network are only of a group: they differ wherever a container has its own."""
    uuid = device_uuid(device) if device else None
    for subject in (*collect(device, uuid), *(collect(None, None, more) if more else ())):
        emitter(events.Facts, subject=subject.subject, facts=subject.facts, problems=list(subject.problems))


def device_uuid(device: str) -> str | None:
    """Return the GPU's own name, by which NVML knows it whatever CUDA_VISIBLE_DEVICES says."""
    if not device.startswith("cuda"):
        return None
    torch = _torch()
    if torch is None:  # a user's own program, which has a framework of its own or none
        return _driver_uuid(device)[0]
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    return f"GPU-{uuid}" if uuid else _driver_uuid(device)[0]  # PyTorch says it since 2.3


def _driver_uuid(device: str) -> tuple[str | None, str]:
    """The GPU that CUDA means by `cuda:N`, by the driver alone; where that cannot be said, why."""
    try:
        with session() as nvml:
            shown = devices(nvml)
            found, problems = under_test(nvml, shown, device, None, os.environ)
            if found is None:
                return None, "; ".join(problems) or f"the driver shows {len(shown)} GPUs"
            return found.slice_uuid or found.uuid, ""
    except NoDriver as missing:
        return None, str(missing)


def memory_peak_mib(device: str) -> float | None:
    """Return on a GPU the most that the allocator took from the device; on a CPU the largest resident set."""
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
    """Distinguish out of memory, on the device or on the host, and a framework that is too old, from a crash."""
    try:
        yield
    except AttributeError as error:
        if failure := explain_lack(error):
            raise failure from error
        raise
    except (MemoryError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        raise WorkloadFailure("out_of_host_memory", "the host ran out of memory", "use a smaller --batch") from error
    except RuntimeError as error:
        kind = _memory_kind(error)
        if kind is None:
            raise
        where = "device" if kind == "out_of_device_memory" else "host"
        message = f"the {where} ran out of memory: {str(error).splitlines()[0][:300]}"
        raise WorkloadFailure(kind, message, "use a smaller --batch, or a --precision with fewer bits") from error


def _memory_kind(error: RuntimeError) -> str | None:
    torch = _torch()
    text = str(error)
    if torch is not None and isinstance(error, torch.cuda.OutOfMemoryError):
        return "out_of_device_memory"
    if "CUDA" in text and "out of memory" in text:
        return "out_of_device_memory"
    if "DefaultCPUAllocator" in text or "can't allocate memory" in text or "std::bad_alloc" in text:
        return "out_of_host_memory"
    return None
