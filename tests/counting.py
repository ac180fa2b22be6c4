"""Count the arithmetic of a network, for the tests of the table: multiply-adds forward, operations of a training step.

What is counted: convolutions, linear layers, and the two products of attention (all of them, also the half that a
causal mask hides, which is the usual convention). Normalisation, activations and the optimizer are not. The backward
pass is counted as run: the first layer needs no gradient for its input. Attention is counted by its plain formula,
without what fused kernels compute a second time, so that the number belongs to the network and not to a kernel.

torch's counter does the walking. Its formula for the backward pass of a grouped convolution is too large by the
number of groups (as of torch 2.13), which would make MobileNet twenty times as expensive as it is: ours replaces it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from stackmark.workloads.train.impl import nets
from stackmark.workloads.train.zoo import Model

_BATCH = 2  # batch normalisation cannot train on a single value a channel


class Arithmetic(NamedTuple):
    """Operations for one sample; a multiply-add is one MAC and two FLOPs."""

    forward_macs: int
    training_flops: int


def _convolution_backward(
    grad_out: Sequence[int],
    _x: Sequence[int],
    weight: Sequence[int],
    _bias: object,
    _stride: object,
    _padding: object,
    _dilation: object,
    _transposed: bool,
    _output_padding: object,
    _groups: int,
    output_mask: Sequence[bool],
    **_: object,
) -> int:
    """The gradients of input and weight each take as many multiply-adds as the forward pass."""
    forward = 2 * grad_out[0] * prod(grad_out[2:]) * prod(weight)
    return forward * (bool(output_mask[0]) + bool(output_mask[1]))


@cache
def count(model: Model) -> Arithmetic:
    """Run one step of the network on the meta device, where it costs no memory, and count it."""
    device = torch.device("meta")
    with device:
        net = nets.build(model, model.classes)
    sample = nets.synthetic(model, _BATCH, model.classes, device, seed=0)
    mapping = {torch.ops.aten.convolution_backward: _convolution_backward}
    counter = FlopCounterMode(display=False, custom_mapping=mapping)
    with sdpa_kernel(SDPBackend.MATH), counter:
        loss = nets.loss(model, net(*sample.inputs), sample.targets)
        forward = counter.get_total_flops()
        loss.backward()
        total = counter.get_total_flops()
    return Arithmetic(forward // (2 * _BATCH), total // _BATCH)


def count_parameters(net: nn.Module) -> int:
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in net.parameters() if parameter.requires_grad)
