"""How the ranks of a training run exchange gradients: one small file for each strategy.

A strategy takes a network and gives the one that the forward pass calls (`net`) and the one whose parameters the optimizer
updates (`owner`). What it does besides happens between the backward pass and the optimizer (`exchange`) and after the
optimizer (`publish`).
"""

from torch import nn

from stackmark.workloads.impl.process_group import Group
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl.strategies.strategy import Strategy as Strategy


def build_strategy(params: TrainParams, net: nn.Module, group: Group | None) -> Strategy:
    """Wrap a network as the parameters say; without a group, or without gradients, it stays as it is."""
    if group is None or params.strategy in ("none", "independent") or params.mode != "train":
        return Strategy(net)
    if params.strategy == "fsdp":
        from stackmark.workloads.train.impl.strategies.fsdp import Sharded

        return Sharded(net, group, params.precision)
    if params.strategy == "parameter-server":
        from stackmark.workloads.train.impl.strategies.parameter_server import ParameterServer

        return ParameterServer(net, group, params.server_device)
    from stackmark.workloads.train.impl.strategies.ddp import Replicated

    return Replicated(net, group)
