"""The family `fit/`: trains a task until it reaches its quality. See workload.Workload for the contract.

The clock is MLPerf's: it ends when the target is known to be reached, evaluations included. With data in files it starts before
the first of them is read, and the system's cache has been told to forget them, as the rules ask; the model is built on the
clock then. Generated data are made before it starts. They lie in memory, which the rules forbid: such a run is not a
submission, and its log does not claim to be one (`cache_clear` is false, the division is open).
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

import torch

from stackmark.events import MOST_EVALUATIONS, Figure
from stackmark.model import JsonValue, ValidationError
from stackmark.ranks import MOST_RANKS
from stackmark.spec import AnyParams, Request, Scalar, explain
from stackmark.units import counted
from stackmark.workloads.fit.definition import TASKS, TIME_TO_TARGET, FitParams, FitTask, targets_of
from stackmark.workloads.fit.impl.checkpoint import DAMAGE, Checkpoints, Saved
from stackmark.workloads.fit.impl.learner import Bench, Learner
from stackmark.workloads.fit.impl.mlperf_log import END, START, Division, MlperfLog
from stackmark.workloads.impl.devices import first_device, require_device, usual_precision
from stackmark.workloads.impl.process_group import joined_as
from stackmark.workloads.workload import (
    Evaluated,
    Metric,
    Rig,
    TimedFigure,
    TimedTraining,
    Values,
    WorkloadFailure,
)

SHORTEST_MIN = 1e-9


class TaskModule(Protocol):
    """A module of one task."""

    def build(self, bench: Bench) -> Learner: ...

    def data_sha256(self, params: FitParams) -> str:
        """Return the hash of the data that these parameters mean."""


def module_of(task: FitTask) -> TaskModule:
    return cast(TaskModule, import_module(task.module))


# --- the probe ----------------------------------------------------------------------------------------------------------


def probe(request: Request, rig: Rig) -> tuple[FitParams, dict[str, str]]:
    """Fill in the preset's values, and the hash of the data."""
    task = TASKS[request.workload.partition("/")[2]]
    values, reasons = dict(request.typed()), dict[str, str]()

    def take(name: str, value: Scalar, reason: str) -> Scalar:
        if name not in values:
            values[name], reasons[name] = value, reason
        return values[name]

    if values.get("device") == "cuda":
        values["device"] = "cuda:0"
    device = str(take("device", *first_device()))
    require_device(device)
    preset = str(values.get("preset", "tiny"))
    if preset not in task.presets:
        raise WorkloadFailure("bad_parameter", f"preset must be tiny or full, got {preset!r}")
    usual = dict(task.presets[preset])  # type: ignore[index]
    if preset == "tiny" and values.get("source") == "real":
        usual |= task.real
    if preset == "tiny":
        usual["batch"] = batch_of_rank(usual["batch"], request.ranks)
    values = {**usual, **values}  # of a table, so not choices: the same in every place
    gpu = device != "cpu"
    if preset == "tiny":
        take("precision", "fp32", "a tiny model gains nothing from less")
        take("threads", 0 if gpu else 1, "the framework's choice" if gpu else "a tiny model is no faster with more")
    else:
        precision, reason = usual_precision(device)
        take("precision", "tf32" if precision == "fp16" and gpu else precision, reason)
        take("threads", 0, "the framework's choice")
    take("fused", gpu, "the optimizer has a fused kernel on a GPU")
    try:
        params = FitParams.model_validate({**values, "data_sha256": values.get("data_sha256", "0" * 64)})
        targets_of(task.qualities, params.target)
        _require_folder(task, params)
    except (ValidationError, ValueError) as error:
        said = explain(error) if isinstance(error, ValidationError) else str(error)
        raise WorkloadFailure("bad_parameter", said, "see: stackmark run --help") from error
    if "data_sha256" not in values:
        with rig.part("data", "hash of the data"):
            sha256 = module_of(task).data_sha256(params)
        params = params.model_copy(update={"data_sha256": sha256})
    return params, reasons


def batch_of_rank(batch: Scalar, ranks: int) -> int:
    """Return what each rank takes of a tiny preset's batch, which is that of a whole step.

    So N ranks make as many updates of as many samples as one does, and its learning rate, warm-up and epochs are theirs. With
    a whole batch for each rank a tiny task has too few updates to reach its target. The presets `full` are for the ranks that
    MLPerf's submission had, so theirs is a rank's.
    """
    assert isinstance(batch, int)
    return max(1, round(batch / ranks))


def _require_folder(task: FitTask, params: FitParams) -> None:
    if task.real_in_folder and params.source == "real" and not params.data:
        raise WorkloadFailure("bad_parameter", "source real needs the folder with the data", "name it: --data DIR")


# --- a run --------------------------------------------------------------------------------------------------------------


def run(name: str, params: AnyParams, rig: Rig) -> Generator[TimedTraining, None, None]:
    assert isinstance(params, FitParams)
    task, device = TASKS[name], torch.device(params.device)
    _require_folder(task, params)
    with rig.part("device"):
        require_device(params.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)
        torch.set_float32_matmul_precision("highest" if params.precision == "fp32" else "high")
        torch.backends.cudnn.allow_tf32 = params.precision != "fp32"
        if params.threads:
            torch.set_num_threads(params.threads)
    seed = params.seed + rig.repetition
    with joined_as(rig.rank, device) if rig.rank.size > 1 else nullcontext() as group:
        bench = Bench(params, device, seed, rig.rank, group)
        clock = Clock()
        forgotten = bool(params.data) and forget_files(Path(params.data))
        if params.data:
            clock.start()
        with rig.part("model", "and data"):
            learner = module_of(task).build(bench)
        sha256 = learner.data_sha256
        if sha256 != params.data_sha256:
            raise WorkloadFailure(
                "bad_data",
                f"the data are not those of the spec: their SHA-256 begins with {sha256[:12]}, that of the spec with "
                f"{params.data_sha256[:12]}",
                "use the same data in all places, or measure again with --choose-again",
            )
        training = Training(task, bench, learner, clock, forgotten)
        saved = training.restored()
        facts: dict[str, JsonValue] = {
            "seed": seed,
            "data_sha256": sha256,
            "train_samples": learner.samples,
            "model_parameters": sum(p.numel() for p in learner.net.parameters()),
        }
        if saved is not None:
            lost_s = time.time() - saved.saved_unix_s
            facts |= {"resumed_at_s": round(saved.saved_unix_s - saved.started_unix_s, 3), "lost_s": round(lost_s, 3)}
            rig.flag(
                f"resumed: it went on after epoch {saved.epochs} from a checkpoint; {lost_s:.1f} s without training are on "
                "its clock"
            )
        yield TimedTraining(
            run=lambda evaluated, say: training.run(evaluated, say, saved),
            device=params.device,
            evaluations=-(-params.most_epochs // params.evaluate_every),
            facts=facts,
        )


class Clock:
    """The clock of a run. Within a process it is monotonic; what came before a checkpoint is known by the time of day."""

    def __init__(self) -> None:
        self.init_unix_s = time.time()
        self.started_unix_s: float | None = None
        self._began, self._before_s = 0.0, 0.0

    def start(self, started_unix_s: float | None = None) -> float:
        """Start it, or let it go on from a run that started it earlier; return when it was started."""
        now = time.time()
        if started_unix_s is not None:
            self.started_unix_s, self._before_s = started_unix_s, max(0.0, now - started_unix_s)
        elif self.started_unix_s is None:
            self.started_unix_s = now
        else:
            return self.started_unix_s
        self._began = time.perf_counter()
        return self.started_unix_s

    def seconds(self) -> float:
        return self._before_s + time.perf_counter() - self._began


def forget_files(folder: Path) -> bool:
    """Ask the system to drop a folder's files from its cache; tell whether it took the request for all of them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    try:
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
    except OSError:
        return False
    return bool(files)


@dataclass
class Training:
    """One run: epochs, evaluations on the clock, checkpoints and MLPerf's log."""

    task: FitTask
    bench: Bench
    learner: Learner
    clock: Clock
    # Whether the data's files were dropped from the system's cache before the clock started.
    forgotten: bool

    def __post_init__(self) -> None:
        params, rank = self.bench.params, self.bench.rank
        self._target = targets_of(self.task.qualities, params.target)
        self._checkpoints = None
        if params.checkpoint_dir:
            # How long it may take does not change what is trained.
            work = params.model_dump(mode="json") | {
                "seed": self.bench.seed,
                "ranks": rank.size,
                "task": self.task.name,
            }
            for name in ("checkpoint_dir", "most_epochs", "most_seconds", "data", "threads"):
                work.pop(name, None)
            digest = hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()
            self._checkpoints = Checkpoints(
                Path(params.checkpoint_dir), f"{self.task.name}-seed{self.bench.seed}", digest, saves=rank.number == 0
            )

    def restored(self) -> Saved | None:
        """Load the checkpoint, if there is one; all ranks have it, or none."""
        if self._checkpoints is None:
            return None
        saved = self._checkpoints.load(self.bench.device)
        found = self.bench.gathered([saved.epochs if saved else -1])
        if len(set(found)) > 1:
            raise WorkloadFailure(
                "bad_data",
                "the ranks do not all see the same checkpoint",
                "put --checkpoint-dir on a folder that all nodes share",
            )
        if saved is not None:
            try:
                self.learner.load(saved.learner)
            except DAMAGE as error:
                raise self._checkpoints.unusable(error) from error
        return saved

    def run(
        self, evaluated: Callable[[Evaluated], None], say: Callable[[str], None], saved: Saved | None
    ) -> TimedFigure:
        params, rank = self.bench.params, self.bench.rank
        log = MlperfLog(say if rank.number == 0 else lambda _line: None)
        started_unix_s = self.clock.start(saved.started_unix_s if saved else None)
        self._log_begin(log, started_unix_s)
        began = time.perf_counter()
        history = list(saved.evaluations) if saved else []
        for one in history:
            evaluated(one)
        samples, epochs, trained_s = saved.samples if saved else 0, saved.epochs if saved else 0, 0.0
        while not (history and history[-1].reached):
            if epochs >= params.most_epochs or (
                params.most_seconds and history and history[-1].clock_s >= params.most_seconds
            ):
                log.event("run_stop", kind=END, status="aborted")
                self._forget()
                raise self._not_reached(history, epochs)
            span = min(params.evaluate_every, params.most_epochs - epochs)
            first = epochs + 1
            log.event("block_start", kind=START, first_epoch_num=first, epoch_count=span)
            for number in range(epochs, epochs + span):
                log.event("epoch_start", kind=START, epoch_num=number + 1)
                begin = time.perf_counter()
                torch.manual_seed(self._seed_of_epoch(number))
                samples += self.learner.train_epoch(number)
                trained_s += time.perf_counter() - begin
                log.event("epoch_stop", kind=END, epoch_num=number + 1)
            epochs += span
            log.event("block_stop", kind=END, first_epoch_num=first)
            log.event("eval_start", kind=START, epoch_num=epochs)
            quality = self.learner.evaluate()
            clock_s = self._clock_s()
            log.event("eval_accuracy", _logged_quality(self.task, quality), epoch_num=epochs)
            log.event("eval_stop", kind=END, epoch_num=epochs)
            history.append(Evaluated(float(epochs), samples, clock_s, quality, self._target))
            evaluated(history[-1])
            if self._checkpoints is not None and not history[-1].reached:
                state = self.learner.state()
                self._checkpoints.save(Saved(epochs, samples, started_unix_s, time.time(), tuple(history), state))
        last = history[-1]
        log.event("run_stop", kind=END, at_unix_s=started_unix_s + last.clock_s, status="success")
        self._forget()
        return TimedFigure(
            Figure(
                name=TIME_TO_TARGET.name,
                value=max(last.clock_s / 60, SHORTEST_MIN),
                unit=TIME_TO_TARGET.unit,
                higher_is_better=TIME_TO_TARGET.higher_is_better,
            ),
            wall_s=time.perf_counter() - began,
            metrics=self._metrics(last, samples - (saved.samples if saved else 0), trained_s),
        )

    def _log_begin(self, log: MlperfLog, started_unix_s: float) -> None:
        params, rank = self.bench.params, self.bench.rank
        # The rules of the closed division are about the full model and its own data; nothing else claims it.
        division: Division = "closed" if params.preset == "full" and params.data else "open"
        log.event("cache_clear", self.forgotten, at_unix_s=self.clock.init_unix_s)
        log.event("init_start", kind=START, at_unix_s=self.clock.init_unix_s)
        chip = torch.cuda.get_device_name(self.bench.device) if self.bench.device.type == "cuda" else "CPU"
        log.begin(
            self.task.benchmark,
            division,
            f"{rank.size} x {chip}",
            {"seed": self.bench.seed, "global_batch_size": params.batch * rank.size, **self.learner.logged},
        )
        log.event("init_stop", kind=END, at_unix_s=started_unix_s)
        log.event("run_start", kind=START, at_unix_s=started_unix_s)

    def _seed_of_epoch(self, number: int) -> int:
        """Return the seed of what is drawn in an epoch: a run that goes on draws what it would have drawn without the pause."""
        return (self.bench.seed * MOST_EVALUATIONS + number) * MOST_RANKS + self.bench.rank.number

    def _clock_s(self) -> float:
        """Return the time on the clock: that of the slowest rank, for all."""
        own_s = self.clock.seconds()
        return own_s if self.bench.group is None else self.bench.group.most(own_s)[0]

    def _not_reached(self, history: list[Evaluated], epochs: int) -> WorkloadFailure:
        last = history[-1]
        said = ", ".join(
            f"{name} is {last.quality.get(name, 0.0):.4g} of {least:g}" for name, least in self._target.items()
        )
        return WorkloadFailure(
            "target_not_reached",
            f"after {counted(epochs, 'epoch')} and {last.clock_s:.1f} s {said}",
            "give it more time (--most-epochs, --most-seconds), or a lower --target",
        )

    def _forget(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.remove()

    def _metrics(self, last: Evaluated, samples: int, trained_s: float) -> tuple[Metric, ...]:
        """Return what is known besides the time; the rate is of the training alone, without evaluations."""
        found = [Metric("epochs_to_target", last.epoch, "epochs", False)]
        found += [
            Metric(one.name, last.quality[one.name], one.unit, one.higher_is_better) for one in self.task.qualities
        ]
        if trained_s > 0 and samples > 0:
            unit = f"{self.task.sample}s/s"
            found.append(Metric("training_rate", samples / trained_s, unit, True))
        return tuple(found)


def _logged_quality(task: FitTask, quality: Values) -> JsonValue:
    """Return a quality as MLPerf's logs have it: one number, or the boxes and masks of Mask R-CNN by name."""
    values: list[JsonValue] = [quality[one.name] for one in task.qualities]
    return values[0] if len(values) == 1 else dict(zip(task.logged_as, values, strict=True))
