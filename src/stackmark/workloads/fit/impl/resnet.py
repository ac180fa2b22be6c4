"""`fit/resnet`: image classification with ResNet-50 v1.5, trained until its top-1 accuracy is reached.

`full` has the model, the optimizer (LARS) and the schedule of NVIDIA's DGX-1 in MLPerf Training v0.6, and reads ImageNet. `tiny`
is the same stack of blocks with an eighth of the width, for images of 24 or 28 pixels, trained by SGD on the same schedule.

Statistics of batch normalisation are each rank's own in a step. After an epoch the ranks take the mean of those that they have
accumulated: all of them evaluate one model, which is also what a checkpoint holds.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.ranks import Rank
from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl.hashing import hashed
from stackmark.workloads.fit.impl.images import (
    Batch,
    Draw,
    ImageSet,
    generate_images,
    open_imagenet,
    plan_steps,
    read_fashion,
    synthetic_images,
)
from stackmark.workloads.fit.impl.learner import Bench, Supervised, share_of_rank
from stackmark.workloads.train.impl.nets import layers, resnet
from stackmark.workloads.versions import fused_since, has_torch
from stackmark.workloads.workload import Values

QUALITY = "top-1"
SMOOTHING, MOMENTUM = 0.1, 0.9
POWER, LAST_RATE = 2, 1e-4
# Of LARS.
TRUST, EPSILON = 0.001, 0.0
ALONE = Rank(0, 1, 0, 1)


@dataclass(frozen=True)
class Size:
    # 0 is ResNet-50 itself, for 224 pixels.
    width: int
    lars: bool
    weight_decay: float
    # After these the learning rate has fallen to its last value.
    epochs: int
    evaluated_together: int


SIZES = {
    "tiny": Size(8, False, 2e-4, 10, 250),
    "real": Size(8, False, 2e-4, 4, 500),
    "full": Size(0, True, 2e-4, 72, 250),
}


def size_of(params: FitParams) -> Size:
    return SIZES["real" if params.preset == "tiny" and params.source == "real" else params.preset]


def load_images(params: FitParams, rank: Rank = ALONE) -> ImageSet:
    if params.preset == "full":
        return open_imagenet(Path(params.data), rank) if params.data else synthetic_images()
    return read_fashion(Path(params.data)) if params.data else generate_images()


def data_sha256(params: FitParams) -> str:
    return load_images(params).sha256


def build_network(size: Size, channels: int, classes: int) -> nn.Module:
    """Build the network on torch's default device."""
    net = resnet.narrow(channels, size.width, classes) if size.width else resnet.imagenet(50, "v1.5", classes)
    layers.fill(net)
    for module in net.modules():
        if isinstance(module, resnet.Bottleneck):
            # Each block begins as its shortcut (arXiv:1706.02677): without it tiny learns nothing in its first two epochs.
            nn.init.zeros_(module.norm3.weight)
    return net


# --- the optimizer ------------------------------------------------------------------------------------------------------


def learning_rate(peak: float, warmup: int, updates: int, update: int) -> float:
    """Rise in a straight line to the peak, then fall with the square of what is left of the updates."""
    if update < warmup:
        return peak * (update + 1) / warmup
    left = max(0.0, 1 - (update - warmup) / max(1, updates - warmup))
    return LAST_RATE + (peak - LAST_RATE) * left**POWER if peak > LAST_RATE else peak


def decay_groups(net: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weights decay; what normalisation layers and biases have does not."""
    parameters = [*net.parameters()]
    return [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": weight_decay},
        {"params": [one for one in parameters if one.ndim <= 1], "weight_decay": 0.0},
    ]


class Lars(torch.optim.Optimizer):
    """Layer-wise adaptive rate scaling (arXiv:1708.03888), as MLPerf's reference has it.

    The rate of a tensor is that of the schedule times `TRUST` · ‖w‖ / (‖g‖ + decay · ‖w‖ + ε); where nothing decays, that of the
    schedule. The rate is part of what the momentum sums up. No step waits for the device.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], rate: float) -> None:
        super().__init__(groups, {"lr": rate, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            weights = [one for one in group["params"] if one.grad is not None]
            if not weights:
                continue
            for one in weights:
                if "momentum" not in self.state[one]:
                    self.state[one]["momentum"] = torch.zeros_like(one)
            momenta = [self.state[one]["momentum"] for one in weights]
            gradients = [one.grad for one in weights]
            decay, rate = group["weight_decay"], group["lr"]
            torch._foreach_mul_(momenta, MOMENTUM)
            if decay:
                rates = (_trust(weights, gradients, decay) * rate).unbind()
                updates = torch._foreach_add(gradients, weights, alpha=decay)
                torch._foreach_mul_(updates, rates)
                torch._foreach_add_(momenta, updates)
            else:
                torch._foreach_add_(momenta, gradients, alpha=rate)
            torch._foreach_sub_(weights, momenta)


def _trust(weights: list[Tensor], gradients: list[Tensor], decay: float) -> Tensor:
    """Return how much of the schedule's rate each tensor takes; all of it where it or its gradient is zero."""
    weight, gradient = (torch.stack(torch._foreach_norm(one)) for one in (weights, gradients))
    share = TRUST * weight / (gradient + decay * weight + EPSILON)
    return torch.where((weight > 0) & (gradient > 0), share, 1.0)


def build_optimizer(net: nn.Module, size: Size, params: FitParams) -> torch.optim.Optimizer:
    groups = decay_groups(net, size.weight_decay)
    if size.lars:
        return Lars(groups, params.learning_rate)
    fused = params.fused and has_torch(fused_since("momentum", params.device))
    # Older ones do not know the option.
    return torch.optim.SGD(groups, params.learning_rate, MOMENTUM, **({"fused": True} if fused else {}))


# --- the task -----------------------------------------------------------------------------------------------------------


class ResnetLearner(Supervised[Batch]):
    def __init__(self, bench: Bench) -> None:
        params, size = bench.params, size_of(bench.params)
        self._images, self._together = load_images(params, bench.rank), size.evaluated_together
        mean, std = self._images.mean, self._images.std
        torch.manual_seed(bench.seed)
        with bench.device:
            net = build_network(size, len(mean), self._images.classes)
            self._mean, self._std = (torch.tensor(one).view(1, -1, 1, 1) for one in (mean, std))
        gpu = bench.device.type == "cuda"
        # As `train/` chooses them.
        self._layout = torch.contiguous_format
        if not gpu or params.precision != "fp32":
            self._layout = torch.channels_last
        net = net.to(memory_format=self._layout)  # type: ignore[call-overload]
        torch.backends.cudnn.benchmark = gpu
        samples, rank = len(self._images.train), bench.rank
        steps = -(-samples // (params.batch * rank.size))
        updates = size.epochs * steps
        super().__init__(
            bench,
            net,
            build_optimizer(net, size, params),
            partial(learning_rate, params.learning_rate, params.warmup_updates, updates),
            samples=samples,
            data_sha256=self._images.sha256,
        )
        self.logged = {
            "opt_base_learning_rate": params.learning_rate,
            "opt_learning_rate_warmup_epochs": params.warmup_updates / steps,
            "model_bn_span": params.batch,
            "train_samples": samples,
            "eval_samples": len(self._images.test),
        }
        # The two have the same keys, each with its name before it.
        name = "lars" if size.lars else "sgd"
        self.logged |= {
            "opt_name": name,
            f"{name}_opt_base_learning_rate": params.learning_rate,
            f"{name}_opt_end_learning_rate": LAST_RATE,
            f"{name}_opt_learning_rate_decay_poly_power": POWER,
            f"{name}_opt_learning_rate_decay_steps": max(1, updates - params.warmup_updates),
            f"{name}_opt_weight_decay": size.weight_decay,
            f"{name}_opt_momentum": MOMENTUM,
        }
        if size.lars:
            self.logged |= {
                "lars_epsilon": EPSILON,
                "lars_opt_learning_rate_warmup_epochs": params.warmup_updates / steps,
            }

    def batches(self, epoch: int) -> Iterator[tuple[Batch, int]]:
        """Yield batches of one order that all ranks draw alike."""
        bench = self.bench
        generator = torch.Generator().manual_seed(int(hashed(bench.seed, epoch)))
        order = torch.randperm(self.samples, generator=generator).tolist()
        plan = plan_steps(order, bench.params.batch, bench.rank)
        for batch in self._images.train.batches(plan, Draw(bench.seed, epoch), bench.device):
            yield batch, len(batch[1])

    def loss(self, batch: Batch) -> Tensor:
        images, labels = batch
        logits = self.strategy.net(self._normalised(images))
        return F.cross_entropy(logits.float(), labels, label_smoothing=SMOOTHING)

    def _normalised(self, images: Tensor) -> Tensor:
        return images.to(torch.float32, memory_format=self._layout).sub_(self._mean).div_(self._std)

    def evaluate(self) -> Values:
        bench, test = self.bench, self._images.test
        mine = share_of_rank(len(test), bench.rank)
        plan = [[*mine[start : start + self._together]] for start in range(0, len(mine), self._together)]
        hits = torch.zeros((), dtype=torch.long, device=bench.device)
        with self.evaluating():
            for images, labels in test.batches(plan, None, bench.device):
                hits += (self.net(self._normalised(images)).argmax(1) == labels).sum()
        return {QUALITY: sum(bench.gathered([int(hits)])) / len(test)}


def build(bench: Bench) -> ResnetLearner:
    return ResnetLearner(bench)
