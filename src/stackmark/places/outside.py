"""Watch a user's program in an image from outside: what is observed becomes the events that a worker would have sent.

Nothing of ours runs in the image, so the image may hold a single static binary and nothing else. The engine or the kubelet starts
the program, its output is read from its log, and its time is the engine's own time stamps. Recorder, ledger and verdict read the
same kind of stream as from a worker. All that the program prints becomes `log` events: what looks like an event of ours is text.

What can only be seen from inside (versions of packages, the environment) is marked unknown.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Literal, Self

from stackmark import events
from stackmark.errors import SEE_HELP, SpecError
from stackmark.machine import cgroup, container, host_counters, limits
from stackmark.machine.counters import Findings
from stackmark.machine.facts import COLLECTORS, Collector, Facts, Reading, Subject, collect
from stackmark.machine.gpu_use import ProgramWatch
from stackmark.machine.orphans import start_ticks
from stackmark.machine.reading import Metric
from stackmark.machine.sampler import Sampler, pieces
from stackmark.model import ValidationError
from stackmark.places.place import Handle, Watch
from stackmark.spec import Request, Spec, explain
from stackmark.units import say_percent
from stackmark.version import RELEASE
from stackmark.workloads.command.definition import CommandParams, complete, split_command, variables_in
from stackmark.workloads.command.output import WALL_TIME, ProgramOutput
from stackmark.workloads.registry import is_own_program
from stackmark.workloads.workload import WorkloadFailure

NOT_SEEN = "unknown: the program was watched from outside"
# What the driver reads of its own machine, and what it reads of the container's first process while that runs.
OF_MACHINE = ("host", "cpu", "numa", "memory", "gpu", "gpu_amd", "pci")
OF_PROCESS: Mapping[str, Callable[..., Reading]] = {
    "cgroup": cgroup.read,
    "limits": limits.read,
    "process": limits.read_process,
    "container": container.read_of,
}
FROM_INSIDE = ("software", "packages", "environment")
# How often a container's group is looked at, and how often the engine is asked for its first process until there is one.
SAMPLE_S, ASK_S = 0.5, 0.05
# A time that is known less well than this share of it is flagged.
COARSE = 0.01
LAST_BYTES = 8192


def runs_outside(asked: Spec | Request | None, image: str | None) -> bool:
    """Tell whether a task is a user's program that an image brings, or that is to run in one."""
    return image is not None and asked is not None and is_own_program(asked.workload)


def refuse_worker_options(bind: str, python: str | None) -> None:
    """Refuse what only a worker does where a program is watched from outside: it binds itself, and needs a Python."""
    if python is not None:
        raise SpecError(
            f"python={python} runs stackmark's worker, which does not run in an image with your own program",
            hint=f"leave it out; a program of that Python is --cmd '{python} FILE'",
        )
    if bind != "none":
        raise SpecError(
            f"bind={bind} is done by stackmark's worker, which does not run in an image with your own program",
            hint="leave it out, or name CPUs (for a container: --cpuset 0-3)",
        )


def words_of(params: CommandParams) -> list[str]:
    """Return the program's words; none for the image's entry point."""
    words = split_command(params.cmd) if params.cmd else []
    if names := variables_in(words):
        raise SpecError(
            f"--cmd refers to {{env:{names[0]}}}, which only stackmark's worker replaces; an image runs without it",
            hint=f"let the image's shell replace it: --env {names[0]} --cmd 'sh -c \"… ${names[0]}\"'",
        )
    return words


def read_request(request: Request) -> tuple[CommandParams, dict[str, str]]:
    """Complete the request for a program, and say what was chosen; raise SpecError where it cannot be."""
    try:
        params, choices = complete(request)
    except ValidationError as error:
        raise SpecError(explain(error), hint=SEE_HELP) from error
    words_of(params)
    if params.mlperf_log:
        raise SpecError(
            "--mlperf-log is read by stackmark's worker, which does not run in an image with your own program",
            hint="let the program print its log and import it (stackmark import), or use --metric",
        )
    return params, choices


def params_of(spec: Spec) -> CommandParams:
    return CommandParams.model_validate(spec.params)


def program_code(code: int) -> int:
    """Return a program's exit code; negative where the engine says by it that a signal ended the program."""
    number = code - 128
    return -number if number in {int(one) for one in signal.Signals} else code


def coarse_clock(wall_s: float, tick_s: float, whose: str) -> list[str]:
    """Flag a time that its time stamps do not say well enough."""
    if wall_s * COARSE >= tick_s:
        return []
    share = f", so this time is known to ±{say_percent(tick_s / wall_s, 1)}" if wall_s > tick_s else ""
    return [f"coarse-clock: {whose} time stamps are precise to {tick_s:g} s{share}"]


@dataclass(frozen=True)
class OutsideEnd:
    """A program's end, by the time stamps of the process that started it. A negative code is the signal that ended it."""

    code: int
    wall_s: float
    # The resolution of the time stamps.
    tick_s: float
    metrics: tuple[Metric, ...] = ()
    flags: tuple[str, ...] = ()
    # The GPUs that it was seen on, where the driver is on the machine that has them.
    gpus: ProgramWatch | None = None


class OutsideRun:
    """Writes a run's events to a watch, and reads what the program prints: in bytes, or in lines as a watch itself."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._begin = time.monotonic()
        self._seq = 0
        self._printed: ProgramOutput | None = None
        # The end of what came by standard error: where the program never began, the engine's own words.
        self._last_err = b""
        # What went wrong while the program's output was searched.
        self._failure: WorkloadFailure | None = None

    # As a watch: what the place says of the run goes on, what the program prints is taken in

    def started(self, handle: Handle) -> None:
        self._watch.started(handle)

    def waiting(self, sentence: str) -> None:
        self._watch.waiting(sentence)

    def line(self, text: str) -> None:
        self.out(text.encode(errors="replace") + b"\n")

    def stderr(self, text: str) -> None:
        self.err(text.encode(errors="replace") + b"\n")

    def out(self, data: bytes, end: bool = False) -> None:
        self._take("out", data, end)

    def err(self, data: bytes, end: bool = False) -> None:
        self._last_err = (self._last_err + data)[-LAST_BYTES:]
        self._take("err", data, end)

    def _take(self, stream: Literal["out", "err"], data: bytes, end: bool) -> None:
        if self._printed is None:
            return
        try:
            (self._printed.out if stream == "out" else self._printed.err)(data, end)
        except WorkloadFailure as failure:
            self._failure = failure

    @property
    def last_words(self) -> str:
        """Return the end of what came by standard error."""
        return self._last_err.decode(errors="replace")

    # What a worker would say

    def probe(self, request: Request, facts: Iterable[Subject]) -> None:
        """Answer a probe: nothing about a user's program depends on where it runs."""
        self._hello()
        params, choices = read_request(request)
        spec = Spec(workload=request.workload, params=params.model_dump(mode="json"), ranks=request.ranks)
        self._event(events.Probe, spec=spec, choices=choices)
        self.facts(facts)

    def begin(self, params: CommandParams, facts: Iterable[Subject]) -> None:
        """Say what is known before the program starts; from here on its lines are kept."""
        self._hello()
        self.facts(facts)
        told: Facts = {"words": [*words_of(params)[:100]], "program": None, "cwd": params.cwd, "watched": "outside"}
        self._event(events.Facts, subject="command", facts=told)
        self._event(events.Phase, phase="measure", state="begin")
        self._printed = ProgramOutput(params, lambda line: self._event(events.Log, line=line))

    def facts(self, subjects: Iterable[Subject]) -> None:
        for one in subjects:
            self._event(events.Facts, subject=one.subject, facts=one.facts, problems=list(one.problems))

    def end(self, ended: OutsideEnd) -> None:
        """Say what the run came to."""
        assert self._printed is not None
        self._close()
        try:
            if self._failure:
                raise self._failure
            if ended.code:
                raise self._printed.failure(ended.code)
            figure = self._printed.figure(max(ended.wall_s, ended.tick_s))
            if figure.name == WALL_TIME and ended.wall_s <= ended.tick_s:
                raise WorkloadFailure(
                    "no_figure",
                    f"the program ended within {ended.tick_s:g} s, the resolution of the time stamps it is timed by",
                    "let it run longer, or let it print a figure and use --metric",
                )
        except WorkloadFailure as failure:
            self._event(events.Failed, kind=failure.kind, message=failure.message, hint=failure.hint)
            return
        wall_s = max(ended.wall_s, ended.tick_s)
        findings = ended.gpus.findings if ended.gpus else Findings()
        if ended.gpus and (seen := ended.gpus.facts()):
            self.facts(collect(collectors={"gpu": lambda: seen}))
        for note in findings.notes:
            self._event(events.Log, line=note)
        self._event(events.Steps, phase="measure", first=0, step_s=[wall_s])
        self._event(events.Phase, phase="measure", state="end", seconds=wall_s)
        for metric in (*findings.named_metrics(), *ended.metrics, Metric("command_wall_s", wall_s, "s", False)):
            self._event(events.Metric, **vars(metric))
        self._event(
            events.Result, sample="run", samples_per_step=1, steps=1, wall_s=wall_s, tick_s=ended.tick_s, figure=figure,
            memory_peak_mib=ended.gpus.memory_peak_mib if ended.gpus and ended.gpus.uses else None,
            invalid=list(findings.invalid), flags=[*self._printed.flags(), *findings.flags, *ended.flags],
        )  # fmt: skip

    def samples(self, about: Mapping[str, Any], taken: Iterable[tuple[float, dict[str, float]]]) -> None:
        """Say what was sampled while the program ran, by the machine's monotonic clock."""
        self._event(events.Sampled, **about)
        for at_s, values in pieces(taken):
            self._event(events.Sample, at_s=round(max(0.0, at_s - self._begin), 3), values=values)

    def not_started(self, program: str, why: str) -> None:
        """Say that the program could not be started, as a worker says it."""
        hint = "give its path in the image, or a name that is in the image's PATH"
        message = f"the image cannot start the program {program!r}: {why}"
        self._event(events.Failed, kind="command_failed", message=message, hint=hint)

    def cut_off(self) -> None:
        """Keep the last lines of a program that was not run to its end; the place says why."""
        if self._printed is not None:
            self._close()

    def _close(self) -> None:
        assert self._printed is not None
        self.out(b"", end=True)
        self.err(b"", end=True)
        self._printed.close()

    def _hello(self) -> None:
        # Nobody in the image answers: the process is the driver's own.
        self._event(events.Hello, time_unix_s=time.time(), pid=os.getpid(), versions={"stackmark": RELEASE})

    def _event(self, kind: type[events.Event], /, **fields: Any) -> None:
        made = kind(seq=self._seq, rank=0, t=round(time.monotonic() - self._begin, 6), **fields)
        self._seq += 1
        self._watch.line(events.write_event(made))


# --- Facts without anybody inside -------------------------------------------------------------------------------------


def facts_of_machine() -> Iterator[Subject]:
    """Read what the driver sees of its own machine, on which the program runs."""
    for one in collect(collectors={name: COLLECTORS[name] for name in OF_MACHINE}):
        # The distribution is that of the image, whose files are not read: they may be anything.
        yield one._replace(facts={**one.facts, "distribution": None}) if one.subject == "host" else one


def unknown(*subjects: str) -> Iterator[Subject]:
    """Name subjects that cannot be read."""
    return (Subject(subject, {}, (NOT_SEEN,)) for subject in subjects)


def facts_of_process(pid: int) -> list[Subject]:
    """Read limits and privileges of a container's first process from the machine that it runs on."""
    collectors: dict[str, Collector] = {name: partial(read, process=str(pid)) for name, read in OF_PROCESS.items()}
    return list(collect(collectors=collectors))


def facts_of_container(told: Mapping[str, Any]) -> Subject:
    """Say what the place itself knows of the container."""
    return Subject("container", {"mark": "started by stackmark, watched from outside", **told})


def facts_about_us() -> Subject:
    return Subject("stackmark", {"version": RELEASE, "outside": True})


class ProcessWatch:
    """Observes a container's first process from a thread while it runs: its limits, and the CPU time of its group.

    A program that ends before it could be looked at has unknown limits.
    """

    def __init__(self, pid_of: Callable[[], int | None], sample_hz: float = 0.0) -> None:
        self._pid_of, self._sample_hz = pid_of, sample_hz
        self._sampler: Sampler | None = None
        self._over = threading.Event()
        # The first and the last of them.
        self._samples: list[host_counters.HostCounters] = []
        self._thread = threading.Thread(target=self._look, name="outside", daemon=True)
        self.facts: list[Subject] = []
        # What the sampler said about itself, and its samples; None where nothing was sampled.
        self.sampled: tuple[dict[str, Any], list[tuple[float, dict[str, float]]]] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            with suppress(ValueError):  # its samples are no part of what is measured
                self.sampled = sampler.finish()

    def metrics(self) -> list[Metric]:
        """Return what the group used between the first and the last look, and what others did meanwhile."""
        if len(self._samples) < 2:
            return []
        return host_counters.between(self._samples[0], self._samples[-1])

    def _look(self) -> None:
        while (pid := self._pid_of()) is None:
            if self._over.wait(ASK_S):
                return
        if self._sample_hz > 0:
            with suppress(OSError):
                self._sampler = Sampler(pid, self._sample_hz)
        facts = facts_of_process(pid)
        # A process that ended meanwhile is read in part: as a zombie it has no network namespace any more.
        self.facts = facts if start_ticks(pid) is not None else []
        while True:
            with suppress(OSError, ValueError):  # the group goes with its last process
                sample = host_counters.read_of(str(pid))
                if sample.run_s is not None:
                    self._samples = [*self._samples[:1], sample]
            if self._over.wait(SAMPLE_S):
                return
