"""What the tasks of `fit/` share: a model that is trained epoch by epoch and evaluated, on one rank or several.

A task is a `Learner`. Those that learn from labelled samples are `Supervised`: they say what a batch is, what its loss is and how
their quality is evaluated; the update is the same for all of them.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from stackmark.model import JsonValue
from stackmark.ranks import Rank
from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.impl.process_group import Group
from stackmark.workloads.train.impl.strategies.ddp import Replicated
from stackmark.workloads.train.impl.strategies.strategy import Strategy
from stackmark.workloads.versions import fused_since, has_torch, lacking
from stackmark.workloads.workload import Values, WorkloadFailure

Batch = TypeVar("Batch")


@dataclass(frozen=True)
class Bench:
    """Where a task is set up: its parameters, its device, the seed of this run, and the ranks it is one of."""

    params: FitParams
    device: torch.device
    seed: int
    rank: Rank
    group: Group | None = None

    def replicated(self, net: nn.Module) -> Strategy:
        """Exchange gradients among the ranks by DDP; alone, train the network as it is."""
        return Strategy(net) if self.group is None else Replicated(net, self.group)

    def gathered(self, mine: list[Any]) -> list[Any]:
        """Return the entries of all ranks: rank 0's first, then rank 1's. Entries are what JSON can hold."""
        if self.group is None:
            return mine
        return [entry for said in self.group.all_say(mine) for entry in said]

    def average_statistics(self, net: nn.Module) -> None:
        """Give all ranks the mean of their statistics of batch normalisation, which each gathered from its own samples."""
        if self.group is None:
            return
        norms = [module for module in net.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
        found = [part for one in norms for part in (one.running_mean, one.running_var) if part is not None]
        if found:
            whole = torch.cat([part.flatten() for part in found]).cpu()
            torch.distributed.all_reduce(whole, group=self.group.control)
            for part, mean in zip(found, (whole / self.rank.size).split([len(part) for part in found]), strict=True):
                part.copy_(mean)

    def concatenated(self, mine: Tensor) -> Tensor:
        """Return the rows of all ranks: rank 0's first, then rank 1's."""
        if self.group is None:
            return mine
        counts = self.gathered([len(mine)])
        padded = torch.zeros((max(counts), *mine.shape[1:]), dtype=mine.dtype)
        padded[: len(mine)] = mine
        parts = [torch.empty_like(padded) for _ in counts]
        torch.distributed.all_gather(parts, padded, group=self.group.control)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)]).to(mine.device)

    def autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.params.precision == "bf16")


class Learner(ABC):
    """One task at work."""

    net: nn.Module
    # Of the training set.
    samples: int
    data_sha256: str
    # What MLPerf's log says of the hyperparameters, by its own keys.
    logged: dict[str, JsonValue]

    @abstractmethod
    def train_epoch(self, number: int) -> int:
        """Train one epoch, counted from 0; return how many samples all ranks together saw."""

    @abstractmethod
    def evaluate(self) -> Values:
        """Return the quality of the model, by metric. All ranks get the same."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None: ...


class Supervised(Learner, Generic[Batch]):
    """Trains a network on batches, with one optimizer and a learning rate by update."""

    def __init__(
        self,
        bench: Bench,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        rate: Callable[[int], float],
        *,
        samples: int,
        data_sha256: str,
        clip: float = 0.0,
    ) -> None:
        self.bench, self.net, self.optimizer, self.rate = bench, net, optimizer, rate
        self.samples, self.data_sha256 = samples, data_sha256
        self.strategy = bench.replicated(net)
        self.updates = 0
        self._clip = clip
        self._loss_sum = torch.zeros((), device=bench.device)

    @abstractmethod
    def batches(self, epoch: int) -> Iterator[tuple[Batch, int]]:
        """Yield this rank's batches of an epoch, each with the number of its samples."""

    @abstractmethod
    def loss(self, batch: Batch) -> Tensor: ...

    def train_epoch(self, number: int) -> int:
        self.net.train()
        self._loss_sum.zero_()
        seen = 0
        for batch, samples in self.batches(number):
            self._update(batch)
            seen += samples
        self.bench.average_statistics(self.net)
        # One look at the end of the epoch: no update waits for the device.
        if not math.isfinite(float(self._loss_sum)):
            raise WorkloadFailure(
                "not_finite",
                f"the loss was not finite in epoch {number + 1}",
                "try a smaller --learning-rate, or --precision fp32",
            )
        return sum(self.bench.gathered([seen]))

    def _update(self, batch: Batch) -> None:
        rate = self.rate(self.updates)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("rate_factor", 1.0)
        self.strategy.forget_gradients(self.optimizer)
        with self.bench.autocast():
            loss = self.loss(batch)
        loss.backward()
        if self._clip:
            nn.utils.clip_grad_norm_(self.net.parameters(), self._clip)
        self.optimizer.step()
        self.updates += 1
        self._loss_sum.add_(loss.detach())

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        self.net.eval()
        with torch.inference_mode(), self.bench.autocast():
            yield
        self.net.train()

    def state(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = int(state["updates"])


def fused_option(params: FitParams) -> dict[str, bool]:
    """Return what asks SGD for a fused step. Older optimizers do not know the option, so it is only named where it is used."""
    if not params.fused:
        return {}
    if not has_torch(since := fused_since("sgd", params.device)):
        raise lacking(f"a fused step of sgd on {params.device} (--fused)", since)
    return {"fused": True}


def share_of_rank(count: int, rank: Rank) -> range:
    """Return the numbers of the samples that a rank evaluates."""
    return range(rank.number, count, rank.size)


def in_order_of_ranks(entries: list[Any], rank: Rank) -> list[Any]:
    """Put what all ranks evaluated, rank by rank, into the order of the samples again."""
    ordered: list[Any] = [None] * len(entries)
    start = 0
    for number in range(rank.size):
        places = range(number, len(entries), rank.size)
        ordered[number :: rank.size] = entries[start : start + len(places)]
        start += len(places)
    return ordered
