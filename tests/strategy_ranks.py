"""One rank of two that train a small network with each strategy, and write their gradients and weights: for test_strategies.py.

`python strategy_ranks.py FILE`, with torchrun's variables. The network has neither batch statistics nor dropout, so the ranks'
gradients must be those of one process with both batches.
"""

import os
import sys
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from stackmark.ranks import own_rank
from stackmark.workloads.impl.process_group import Group, joined_as
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl.optimizer import build_optimizer
from stackmark.workloads.train.impl.strategies import Strategy, build_strategy

BATCH, WIDTH = 4, 16
STRATEGIES = ("ddp", "parameter-server", "fsdp", "independent")
DTYPES = ("float64", "float32")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, WIDTH, 3)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(3))
        self.last = nn.Linear(WIDTH, 5)

    def forward(self, images: Tensor) -> Tensor:
        x = self.first(images).mean((2, 3))
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.last(x))


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(3)
    return Small().to(dtype)


def batch(rank: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(100 + rank)
    return torch.randn(BATCH, 3, 8, 8, dtype=dtype), torch.randint(5, (BATCH,))


def params(strategy: str, server_device: str = "cpu") -> TrainParams:
    given: dict[str, Any] = {
        "device": "cpu", "seconds": 1.0, "at_least_steps": 0, "warmup_steps": 0, "warmup_seconds": 0.0, "batch": BATCH,
        "precision": "fp32", "tune": "off", "optimizer": "sgd", "classes": 5, "layout": "nchw", "autotune": False,
        "fused": False, "cuda_graph": False, "compile": False, "threads": 0, "data_workers": 0, "learning_rate": 0.5,
        "strategy": strategy, "server_device": server_device,
    }  # fmt: skip
    return TrainParams.model_validate(given)


def step(strategy: Strategy, optimizer: torch.optim.Optimizer | None, images: Tensor, labels: Tensor) -> None:
    strategy.forget_gradients(optimizer)
    nn.functional.cross_entropy(strategy.net(images), labels).backward()
    strategy.exchange()


def whole(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    found = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return cast(Tensor, found.detach().clone())


def trained(name: str, dtype: torch.dtype, group: Group) -> dict[str, list[Tensor]]:
    chosen = params(name)
    strategy = build_strategy(chosen, network(dtype), group)
    optimizer = build_optimizer(chosen, strategy.owner) if strategy.updates else None
    step(strategy, optimizer, *batch(group.rank.number, dtype))
    gradients = [whole(p.grad) for p in strategy.owner.parameters()] if strategy.updates else []
    if optimizer:
        optimizer.step()
    strategy.publish()
    return {"gradients": gradients, "weights": [whole(p) for p in strategy.net.parameters()]}


def main(file: Path) -> None:
    rank = own_rank(os.environ)
    assert rank is not None
    torch.set_num_threads(1)
    with joined_as(rank, torch.device("cpu")) as group:
        found = {
            f"{name} {dtype}": trained(name, getattr(torch, dtype), group) for name in STRATEGIES for dtype in DTYPES
        }
    torch.save(found, file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
