"""The family `train/`: sets up a network on a device and yields its step. See workload.Workload for the contract."""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import torch

from stackmark.spec import Params, Request
from stackmark.workloads.impl.devices import require_device
from stackmark.workloads.impl.kernels import profile_step
from stackmark.workloads.impl.process_group import Group, joined_as
from stackmark.workloads.train.definition import TrainParams, bytes_of
from stackmark.workloads.train.impl.choose import choose, require_compiler
from stackmark.workloads.train.impl.data import Feed, open_feed, samples_in_epoch
from stackmark.workloads.train.impl.schedule import Schedule, parse_schedule
from stackmark.workloads.train.impl.step import Machine, make_peek, prepare, set_arithmetic
from stackmark.workloads.train.zoo import MODELS, Model
from stackmark.workloads.workload import Metric, Rig, TimedSteps, Together, WorkloadFailure


def probe(request: Request, rig: Rig) -> tuple[Params, dict[str, str]]:
    model = MODELS[request.workload.partition("/")[2]]

    def trial(params: TrainParams) -> float:
        """Return the seconds of a plain step, the second of two: the first one allocates."""
        with rig.part("trial", f"a step of {params.batch}"):
            return _trial(params, model, rig)

    return choose(request, model, trial)


def _trial(params: TrainParams, model: Model, rig: Rig) -> float:
    plain = params.model_copy(
        update={
            "strategy": "none",
            "compile": False,
            "cuda_graph": False,
            "autotune": False,
            "data": "device",
            "checkpoint_dir": "",
            "mode": "train",
        }
    )
    if params.mode == "forward":
        plain = plain.model_copy(update={"mode": "forward"})
    set_arithmetic(plain)
    machine = Machine.build(plain, model, open_feed(plain, model, torch.device(plain.device)), rig)
    body = machine.body()
    body()
    begin = time.perf_counter()
    body()
    float(machine.loss)
    return time.perf_counter() - begin


def run(name: str, params: Params, rig: Rig) -> Generator[TimedSteps, None, None]:
    assert isinstance(params, TrainParams)
    model = MODELS[name]
    device = torch.device(params.device)
    if rig.rank.size > 1 and params.strategy == "none":
        raise WorkloadFailure("bad_parameter", f"{rig.rank.size} ranks need a strategy", "use --strategy ddp")
    if params.lr_schedule:
        parse_schedule(params.lr_schedule)
    with rig.part("device"):
        require_device(params.device)
        if params.compile:
            require_compiler(params.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.zeros(1, device=device)
        set_arithmetic(params)
    with rig.part("data"):
        feed = open_feed(params, model, device, rig.rank)
    with closing(feed):
        if params.strategy == "none":
            yield from _stand(params, model, feed, rig)
            return
        with joined_as(rig.rank, device, shared=params.share_gpus) as group:
            yield from _stand(params, model, feed, rig, group)


def _stand(
    params: TrainParams, model: Model, feed: Feed, rig: Rig, group: Group | None = None
) -> Generator[TimedSteps, None, None]:
    machine = Machine.build(params, model, feed, rig, group)
    _plan_between_steps(machine, rig)
    step = prepare(machine, rig)
    if group and (warning := group.slow_network()):
        rig.flag(warning)
    if params.trace_file:
        with rig.part("trace"):
            _trace(step, params)
    machine.forget()
    peek, reserve = make_peek(machine)
    moved = bytes_of(model, params)
    yield TimedSteps(
        step=step,
        device=params.device,
        sample=model.sample,
        samples_per_step=params.batch * rig.rank.size,
        peek=peek,
        reserve=reserve,
        peek_every=params.loss_every,
        operations_per_sample=_operations(params, model),
        least_bytes_per_sample=moved.least if moved else None,
        called_bytes_per_sample=moved.called if moved else None,
        data_wait_s=lambda: feed.wait_s,
        reset=machine.forget,
        check=lambda: _check(machine),
        metrics=lambda: _metrics(machine),
        # A checkpoint is of the steps that were asked for, and not of one more.
        profile=None if params.checkpoint_dir else lambda: profile_step(step, params.device),
        together=_together(machine, group) if group else None,
    )
    if params.checkpoint_dir and params.mode == "train" and machine.schedule:
        machine.schedule.save()


def _together(machine: Machine, group: Group) -> Together:
    strategy = machine.strategy
    return Together(
        most=group.most,
        alone=None if machine.params.checkpoint_dir else strategy.alone(),
        exchanged_bytes=strategy.exchanged_bytes,
        facts={"strategy": machine.params.strategy, **group.facts()},
    )


def _plan_between_steps(machine: Machine, rig: Rig) -> None:
    params = machine.params
    if not (params.lr_schedule or params.checkpoint_dir):
        return
    epoch = samples_in_epoch(params, machine.model) if params.lr_schedule else params.batch
    machine.schedule = Schedule(
        params, machine.net, machine.optimizer, machine.scaler, epoch / rig.rank.size, saves=rig.rank.number == 0
    )
    if machine.schedule.restored:
        rig.flag(machine.schedule.restored)


def _check(machine: Machine) -> None:
    if not math.isfinite(float(machine.loss_sum)):
        what = "an output" if machine.params.mode == "forward" else "the loss"
        raise WorkloadFailure(
            "not_finite",
            f"{what} was not finite at some step",
            "try a smaller --learning-rate, another --seed, or --precision bf16 instead of fp16",
        )


def _metrics(machine: Machine) -> list[Metric]:
    params = machine.params
    if params.mode != "eval":
        return []
    top_1, top_5, steps = machine.hits.tolist()
    return [
        Metric("top_1_accuracy", top_1 / steps, "share", True),
        Metric("top_5_accuracy", top_5 / steps, "share", True),
        Metric("examples", steps * params.batch, "samples", True),
    ]


def _operations(params: TrainParams, model: Model) -> float | None:
    """Floating-point operations of one sample; not claimed for another last layer than the one that was counted."""
    if params.classes != model.classes:
        return None
    return float(model.training_flops if params.mode == "train" else 2 * model.forward_macs)


def _trace(step: Callable[[], None], params: TrainParams) -> None:
    """A Chrome trace of one step before the measured ones: a profiler slows what it watches."""
    from torch.profiler import ProfilerActivity, profile

    path = Path(params.trace_file)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if params.device != "cpu" else [])
    # Events are kept over cycles, of which there is one: without it a warning is printed.
    with profile(activities=activities, acc_events=True) as profiler:
        step()
        if params.device != "cpu":
            torch.cuda.synchronize()
    # Not written by the profiler itself: it only logs what goes wrong, and puts a new file in the place of /dev/null.
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / path.name
        profiler.export_chrome_trace(str(whole))
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(whole, path)
        except OSError as error:
            raise WorkloadFailure("bad_output", f"the trace {path} cannot be written: {error.strerror}") from error
