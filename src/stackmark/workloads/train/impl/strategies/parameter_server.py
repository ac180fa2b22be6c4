"""A parameter server, as tf_cnn_benchmarks had it: one place keeps the weights, in host memory or on a GPU.

In each step all gradients are summed up there, the optimizer runs there and nowhere else, and all ranks fetch the new weights.
Rank 0's process is the server. The classic did this variable by variable; here all of them travel as one piece, which costs the
overlap with the backward pass.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from stackmark.workloads.impl.process_group import Group
from stackmark.workloads.train.impl.strategies.strategy import Strategy, gradient_bytes


class ParameterServer(Strategy):
    def __init__(self, net: nn.Module, group: Group, server_device: str) -> None:
        self._trained = [p for p in net.parameters() if p.requires_grad]
        self._size = group.rank.size
        self._is_server = group.rank.number == 0
        device = torch.device("cpu") if server_device == "cpu" else group.device
        # In host memory only gloo can exchange; on a GPU it is whatever the group itself uses.
        self._group = group.control if device.type == "cpu" else None
        super().__init__(net, copy.deepcopy(net).to(device) if self._is_server else None)
        self._served = [p for p in self.owner.parameters() if p.requires_grad]
        self._piece = torch.empty(sum(p.numel() for p in self._trained), dtype=self._trained[0].dtype, device=device)
        self._views = _views(self._piece, self._trained)
        self.exchanged_bytes = gradient_bytes(net)
        self._alone = False
        with torch.no_grad():
            self._send(self._trained)  # all ranks begin with the server's weights
            self._fetch()

    @property
    def updates(self) -> bool:
        return self._is_server

    def forget_gradients(self, optimizer: torch.optim.Optimizer | None) -> None:
        for parameter in self._trained:
            parameter.grad = None

    @torch.no_grad()
    def exchange(self) -> None:
        if self._alone:
            return
        for view, parameter in zip(self._views, self._trained, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        torch.distributed.reduce(self._piece, 0, group=self._group)
        if self._is_server:
            self._piece.div_(self._size)
            for view, parameter in zip(self._views, self._served, strict=True):
                parameter.grad = view.clone()

    @torch.no_grad()
    def publish(self) -> None:
        if self._alone:
            return
        if self._is_server:
            self._send(self._served)
        self._fetch()

    def _send(self, parameters: list[nn.Parameter]) -> None:
        for view, parameter in zip(self._views, parameters, strict=True):
            view.copy_(parameter)

    def _fetch(self) -> None:
        torch.distributed.broadcast(self._piece, 0, group=self._group)
        for view, parameter in zip(self._views, self._trained, strict=True):
            parameter.copy_(view)

    @contextmanager
    def alone(self) -> Iterator[None]:
        self._alone = True
        try:
            yield
        finally:
            self._alone = False


def _views(piece: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    parts = piece.split([p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]
