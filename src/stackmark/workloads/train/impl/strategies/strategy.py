"""The base of all strategies, and the one without exchange: each rank trains for itself."""

from contextlib import AbstractContextManager

import torch
from torch import nn


class Strategy:
    # What a rank hands over in a step, in bytes: the size of what is summed up, whatever the library sends for it.
    exchanged_bytes: int = 0

    def __init__(self, net: nn.Module, owner: nn.Module | None = None) -> None:
        self.net = net
        self.owner = net if owner is None else owner

    @property
    def updates(self) -> bool:
        """Whether this rank has an optimizer."""
        return True

    def forget_gradients(self, optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer:
            optimizer.zero_grad(set_to_none=True)

    def exchange(self) -> None:
        """Run between the backward pass and the optimizer."""

    def publish(self) -> None:
        """Run after the optimizer."""

    def alone(self) -> AbstractContextManager[None] | None:
        """Return what makes steps run without their exchange; None where there is none, or where it cannot be left out."""
        return None


def gradient_bytes(net: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in net.parameters() if p.requires_grad)
