"""Fully sharded: each rank has a part of the weights, gradients and optimizer states (PyTorch's FSDP2, `fully_shard`).

Each block of a transformer is gathered before it is used and let go after it; gradients are averaged and scattered. In bf16
weights travel and compute in 16 bits, and gradients are summed in 32.
"""

import torch
from torch import nn

from stackmark.workloads.impl.process_group import Group
from stackmark.workloads.train.impl.strategies.strategy import Strategy, gradient_bytes
from stackmark.workloads.versions import has_torch, lacking
from stackmark.workloads.workload import WorkloadFailure


class Sharded(Strategy):
    def __init__(self, net: nn.Module, group: Group, precision: str) -> None:
        if not has_torch("2.6"):
            raise lacking("strategy fsdp", "2.6")
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        blocks = blocks_of(net)
        if not blocks:
            raise WorkloadFailure(
                "bad_parameter", "strategy fsdp shards the blocks of a transformer, and this network has none",
                "use --strategy ddp",
            )  # fmt: skip
        # Before it is sharded: what is gathered twice (forward and backward pass) and scattered once.
        self.exchanged_bytes = gradient_bytes(net)
        sixteen = precision == "bf16"
        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16 if sixteen else None, reduce_dtype=torch.float32 if sixteen else None
        )
        mesh = init_device_mesh(group.device.type, (group.rank.size,))
        for block in blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)
        super().__init__(net)


def blocks_of(net: nn.Module) -> list[nn.Module]:
    """Return the blocks: the entries of the first list or sequence of modules that are alike and made of several modules."""
    for module in net.modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len({type(entry) for entry in module}) == 1:
            entries = [entry for entry in module if len([*entry.children()]) > 1]
            if len(entries) == len(module) > 1:
                return entries
    return []
