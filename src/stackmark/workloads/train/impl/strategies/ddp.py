"""Data parallel: each rank has all weights, and gradients are averaged in buckets during the backward pass (PyTorch's DDP).

The statistics of batch normalisation stay each rank's own, as in tf_cnn_benchmarks: DDP would send them in every step.
"""

from contextlib import AbstractContextManager

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stackmark.workloads.impl.process_group import Group
from stackmark.workloads.train.impl.strategies.strategy import Strategy, gradient_bytes


class Replicated(Strategy):
    def __init__(self, net: nn.Module, group: Group) -> None:
        devices = [group.device] if group.device.type == "cuda" else None
        self._replica = DistributedDataParallel(
            net, device_ids=devices, broadcast_buffers=False, gradient_as_bucket_view=True
        )
        super().__init__(self._replica)
        self.exchanged_bytes = gradient_bytes(net)

    def alone(self) -> AbstractContextManager[None]:
        return self._replica.no_sync()
