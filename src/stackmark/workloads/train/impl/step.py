"""One optimizer step, built as the parameters say: precision, layout, fused optimizer, compiler, CUDA graph.

The step writes its loss into a tensor that was there before, and adds it to a sum: a loss that is not finite at any step
makes the sum not finite, so that one look at the end finds it and no step waits for the device.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stackmark.workloads.impl.process_group import Group
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl import nets
from stackmark.workloads.train.impl.data import Feed
from stackmark.workloads.train.impl.optimizer import build_optimizer
from stackmark.workloads.train.impl.schedule import Schedule
from stackmark.workloads.train.impl.strategies import Strategy, build_strategy
from stackmark.workloads.train.zoo import Model
from stackmark.workloads.workload import Rig, Values

AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
# CUDA's documentation asks for a few eager steps on a side stream before a capture: libraries allocate and tune in them.
CAPTURE_WARMUP = 3


def set_arithmetic(params: TrainParams) -> None:
    """Set what fp32 means in the framework: by default its convolutions on a GPU are tf32."""
    torch.set_float32_matmul_precision("highest" if params.precision == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = params.precision != "fp32"
    torch.backends.cudnn.benchmark = params.autotune
    if params.threads:
        torch.set_num_threads(params.threads)


def build_model(params: TrainParams, model: Model) -> nn.Module:
    device = torch.device(params.device)
    torch.manual_seed(params.seed)
    with device:
        net = nets.build(model, params.classes)
    if params.layout == "nhwc":
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return net.train(params.mode == "train")


def make_scaler(device: torch.device) -> "torch.amp.GradScaler":
    # PyTorch has the one for all devices since 2.3.
    return torch.amp.GradScaler(device.type) if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()


@dataclass
class Machine:
    """The state of one training step.

    `loss` and `accuracy` (top 1, top 5, and a one) are of the step just done; `loss_sum` and `hits` are summed over steps.
    """

    params: TrainParams
    model: Model
    net: nn.Module
    strategy: Strategy
    feed: Feed
    loss: Tensor
    loss_sum: Tensor
    accuracy: Tensor
    hits: Tensor
    optimizer: torch.optim.Optimizer | None = None
    scaler: "torch.amp.GradScaler | None" = None
    schedule: Schedule | None = None

    @classmethod
    def build(cls, params: TrainParams, model: Model, feed: Feed, rig: Rig, group: Group | None = None) -> "Machine":
        device = torch.device(params.device)
        with rig.part("model"):
            net = build_model(params, model)
            strategy = build_strategy(params, net, group)
            zero = torch.zeros((), device=device)
            share = torch.tensor((0.0, 0.0, 1.0), device=device)
            machine = cls(params, model, net, strategy, feed, zero, zero.clone(), share, torch.zeros_like(share))
            if params.mode == "train":
                if strategy.updates:
                    machine.optimizer = build_optimizer(params, strategy.owner)
                if params.precision == "fp16" and not params.loss_scale:
                    machine.scaler = make_scaler(device)
        return machine

    def forget(self) -> None:
        """Reset the sums."""
        self.loss_sum.zero_()
        self.hits.zero_()

    def body(self) -> Callable[[], None]:
        """Return the device's part of a step, without the feed: what a CUDA graph can hold."""
        forward = self._forward()
        if self.params.mode == "train":
            return lambda: self._train(forward)
        return lambda: self._infer(forward)

    def _forward(self) -> Callable[[], tuple[Tensor, Any]]:
        params, model, net, target = self.params, self.model, self.strategy.net, self.feed.target
        dtype = AUTOCAST.get(params.precision)
        kind = torch.device(params.device).type
        # The outputs are only kept where somebody asks for them: a compiler need not write out what nobody reads.
        wants_outputs = params.accuracy or params.mode != "train"

        def forward(*tensors: Tensor) -> tuple[Tensor, Any]:
            inputs, targets = tensors[: len(target.inputs)], tensors[len(target.inputs) :]
            with torch.autocast(kind, dtype=dtype, enabled=dtype is not None):
                outputs = net(*inputs)
            if params.mode == "forward":
                return self.loss, outputs
            return nets.loss(model, outputs, targets), outputs if wants_outputs else None

        compiled = torch.compile(forward, dynamic=False) if params.compile else forward
        tensors = (*target.inputs, *target.targets)
        return lambda: compiled(*tensors)

    def _train(self, forward: Callable[[], tuple[Tensor, Any]]) -> None:
        optimizer, scaler, params, strategy = self.optimizer, self.scaler, self.params, self.strategy
        strategy.forget_gradients(optimizer)
        loss, outputs = forward()
        if scaler:
            scaler.scale(loss).backward()
        elif params.precision == "fp16":
            (loss * params.loss_scale).backward()
            torch._foreach_div_([p.grad for p in self.net.parameters() if p.grad is not None], params.loss_scale)
        else:
            loss.backward()
        strategy.exchange()
        if optimizer:
            self._update(optimizer)
        strategy.publish()
        self._note(loss.detach(), outputs)

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        scaler, params = self.scaler, self.params
        if params.gradient_clip:
            if scaler:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_value_(self.strategy.owner.parameters(), params.gradient_clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()

    @torch.no_grad()
    def _infer(self, forward: Callable[[], tuple[Tensor, Any]]) -> None:
        loss, outputs = forward()
        self._note(loss, outputs)
        if self.params.mode == "forward":
            # A sum over the last layer's output: cheap, and not finite if any of it is not.
            first = outputs if isinstance(outputs, Tensor) else outputs[0]
            self.loss_sum.add_(first.sum(dtype=torch.float32) * 0)

    def _note(self, loss: Tensor, outputs: Any) -> None:
        self.loss.copy_(loss)
        self.loss_sum.add_(loss)
        if outputs is not None and (self.params.accuracy or self.params.mode == "eval"):
            found = outputs.detach() if isinstance(outputs, Tensor) else tuple(o.detach() for o in outputs)
            for place, k in enumerate((1, 5)):
                share = nets.accuracy(self.model, found, self.feed.target.targets, min(k, self.params.classes))
                self.accuracy[place].copy_(share)
            self.hits.add_(self.accuracy)


def prepare(machine: Machine, rig: Rig) -> Callable[[], None]:
    """Run the first steps, so that compiling, tuning and capturing are done, and return the step to measure."""
    params = machine.params
    body = machine.body()
    fill = machine.feed.fill
    schedule = machine.schedule

    def step() -> None:
        fill()
        if schedule:
            schedule.before_step()
        body()  # the captured one, as soon as there is one
        if schedule:
            schedule.after_step()

    with rig.part("compile" if params.compile else "first step", "torch.compile" if params.compile else ""):
        step()
        _wait(params.device)
    if params.cuda_graph:
        with rig.part("capture", "CUDA graph"):
            body = _capture(machine, body)
        if schedule:
            schedule.passed(CAPTURE_WARMUP + 1)
    return body if params.data == "device" and schedule is None else step


def _capture(machine: Machine, body: Callable[[], None]) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(CAPTURE_WARMUP):
            body()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    if machine.optimizer:
        # Gradients made inside the capture are written again at each replay, instead of being added to.
        machine.optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        body()
    graph.replay()
    torch.cuda.synchronize()
    return graph.replay


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


# --- reading the loss -------------------------------------------------------------------------------------------------
#
# Reading the loss of a step while the next ones run.
#
# On a GPU it is copied into pinned memory, without waiting. That memory is taken before a stretch of steps begins, one row
# for each time the loss will be read in it: to pin memory in the loop is to call the driver there, which may wait for the
# device. A row is read when its step is complete, at the latest at the end of the stretch, so
# the next stretch takes the same rows again.


Peek = Callable[[], Callable[[], Values]]


def make_peek(machine: Machine) -> tuple[Peek | None, Callable[[int], None]]:
    """Return how loss and accuracy of the last step are read, and how room for them is made beforehand."""
    params = machine.params
    if params.mode == "forward" and not params.accuracy:
        return None, _nothing
    sources: dict[tuple[str, ...], Tensor] = {("loss",): machine.loss.view(1)}
    if params.accuracy or params.mode == "eval":
        sources["top_1", "top_5"] = machine.accuracy[:2]
    if params.device == "cpu":

        def peek_now() -> Callable[[], Values]:
            values = {
                name: value
                for names, tensor in sources.items()
                for name, value in zip(names, tensor.tolist(), strict=True)
            }
            return lambda: values

        return peek_now, _nothing
    rows = Rows(sources)
    return rows.peek, rows.reserve


def _nothing(_peeks: int) -> None: ...


class Rows:
    """Host memory for the values of some tensors, one row for each reading. Pinned, except in tests."""

    def __init__(self, sources: dict[tuple[str, ...], Tensor], pinned: bool = True) -> None:
        self._names = [name for names in sources for name in names]
        self._sources = list(sources.values())
        self._pinned = pinned
        self._targets: list[tuple[Tensor, ...]] = []
        self._reads: list[Callable[[], Values]] = []
        self._next = 0

    def reserve(self, peeks: int) -> None:
        """Reserve room for this many; existing rows may be overwritten."""
        self._next = 0
        if peeks > len(self._targets):
            self._targets, self._reads = [], []
            self._add(peeks)

    def _add(self, peeks: int) -> None:
        table = torch.empty((peeks, len(self._names)), pin_memory=self._pinned)
        sizes = [source.numel() for source in self._sources]
        for row in table.unbind():
            self._targets.append(row.split(sizes))
            self._reads.append(partial(self._read, row))

    def _read(self, row: Tensor) -> Values:
        return dict(zip(self._names, row.tolist(), strict=True))

    def peek(self) -> Callable[[], Values]:
        if self._next == len(self._targets):
            self._add(max(1, len(self._targets)))  # nobody said how many there would be
        for target, source in zip(self._targets[self._next], self._sources, strict=True):
            target.copy_(source, non_blocking=True)
        self._next += 1
        return self._reads[self._next - 1]
