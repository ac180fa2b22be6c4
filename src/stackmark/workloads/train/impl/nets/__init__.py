"""The networks of the family `train/`, their synthetic data, loss and accuracy.

A network is called as `net(*sample.inputs)`; nothing here depends on the values of a tensor, so that all of it can be
compiled, captured in a CUDA graph, or run on the meta device, where shapes are worked out and nothing is computed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.train.impl.nets import layers, mobile, plain, resnet, transformer
from stackmark.workloads.train.zoo import Model

Outputs = Tensor | tuple[Tensor, ...]

BERT_MASKED = 20
"""Words to predict in a sequence of 128: the paper's max_predictions_per_seq in its first phase."""


_DATA_STREAM = 0x5D47_A000
"""Added to the seed of the data. With the seed of the weights alone the first image would *be* the first layer's weights
(both are the first normal numbers of one stream), and their product 500 times what it should be."""


class Sample(NamedTuple):
    """One batch: what the network is called with, and what the loss compares its output with."""

    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]


Builder = Callable[[Model, int], nn.Module]


def _plain(model: Model, classes: int) -> nn.Module:
    return plain.PlainNet(plain.PLAIN[model.name], model.image_px, classes)


def _resnet(depth: int, version: resnet.Version, _: Model, classes: int) -> nn.Module:
    return resnet.imagenet(depth, version, classes)


def _resnet_cifar10(depth: int, preactivated: bool, _: Model, classes: int) -> nn.Module:
    return resnet.cifar10(depth, preactivated, classes)


def _densenet(depth: int, growth: int, _: Model, classes: int) -> nn.Module:
    return resnet.densenet(depth, growth, classes)


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(plain.PLAIN, _plain),
    **{f"resnet{depth}": partial(_resnet, depth, "v1") for depth in resnet.DEPTHS},
    **{f"resnet{depth}_v1.5": partial(_resnet, depth, "v1.5") for depth in resnet.DEPTHS},
    **{f"resnet{depth}_v2": partial(_resnet, depth, "v2") for depth in resnet.DEPTHS},
    **{f"resnet{depth}": partial(_resnet_cifar10, depth, False) for depth in (20, 32, 44, 56, 110)},
    **{f"resnet{depth}_v2": partial(_resnet_cifar10, depth, True) for depth in (20, 32, 44, 56, 110)},
    **{f"densenet{depth}_k{k}": partial(_densenet, depth, k) for depth, k in ((40, 12), (100, 12), (100, 24))},
    "mobilenet": lambda _, classes: mobile.mobilenet_v2(classes),
    "nasnet": lambda _, classes: mobile.NASNet(classes),
    "gpt2": lambda model, classes: transformer.GPT2(classes, model.sequence_tokens),
    "bert-large": lambda _, classes: transformer.Bert(classes),
    "vit-b16": lambda model, classes: transformer.ViT(model.image_px, classes),
    "llama3-1b": lambda model, classes: transformer.Llama(classes, model.sequence_tokens),
}


def build(model: Model, classes: int) -> nn.Module:
    """Build a network on torch's default device, with fresh values from that device's random numbers.

    `with torch.device("cuda:0"): build(...)` makes it there, which is quicker than to move it; on the meta device it
    has shapes and no values.
    """
    return build_with(lambda: BUILDERS[model.name](model, classes))


def build_with(builder: Callable[[], nn.Module]) -> nn.Module:
    """Build any network of modules that know how to fill themselves."""
    device = torch.empty(0).device  # the default one, for which PyTorch has a function since 2.3
    with torch.device("meta"):
        net = builder()
    if device.type != "meta":
        _make_real(net, device)
        layers.fill(net)
    return net


def _make_real(net: nn.Module, device: torch.device) -> None:
    """Gives every parameter and buffer memory; a shared one stays shared.

    Module.to_empty does the same through torch's Python references, which import SymPy: seconds of every start.
    """
    made: dict[int, Tensor] = {}
    for module in net.modules():
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if tensor is None:
                    continue
                if id(tensor) not in made:
                    memory = torch.empty(tensor.shape, dtype=tensor.dtype, device=device)
                    made[id(tensor)] = nn.Parameter(memory) if isinstance(tensor, nn.Parameter) else memory
                table[name] = made[id(tensor)]  # type: ignore[assignment]


def synthetic(model: Model, batch: int, classes: int, device: torch.device, seed: int) -> Sample:
    """Make one batch of normal noise, or of random words, with random labels; the same seed makes the same batch.

    The classic fed unnormalised noise (mean 127), and many of its networks diverged on it.
    """
    generator = None if device.type == "meta" else torch.Generator(device).manual_seed(seed + _DATA_STREAM)

    def integers(below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=generator, device=device)

    if model.sample == "image":
        shape = (batch, 3, model.image_px, model.image_px)
        images = torch.randn(shape, generator=generator, device=device)
        return Sample((images,), (integers(classes, batch),))
    if model.name == "bert-large":
        tokens = integers(classes, batch, model.sequence_tokens)
        kinds = (torch.arange(model.sequence_tokens, device=device) >= model.sequence_tokens // 2).long()
        order = torch.rand((batch, model.sequence_tokens), generator=generator, device=device).argsort(1)
        masked = order[:, :BERT_MASKED].sort(1).values
        targets = (integers(classes, batch, BERT_MASKED), integers(2, batch))
        return Sample((tokens, kinds.expand(batch, -1).contiguous(), masked), targets)
    text = integers(classes, batch, model.sequence_tokens + 1)
    return Sample((text[:, :-1].contiguous(),), (text[:, 1:].contiguous(),))


def _pairs(outputs: Outputs, targets: tuple[Tensor, ...]) -> list[tuple[Tensor, Tensor]]:
    """Pairs each output with its labels, one row a prediction."""
    logits = (outputs,) if isinstance(outputs, Tensor) else outputs
    return [(one.flatten(0, -2), labels.flatten()) for one, labels in zip(logits, targets, strict=True)]


def loss(model: Model, outputs: Outputs, targets: tuple[Tensor, ...]) -> Tensor:
    """Return the mean cross-entropy in float32; for a network with two tasks (BERT) the sum of both."""
    # float32 whatever the precision of the network: a sum over 128256 words in bf16 is not a loss.
    losses = [F.cross_entropy(logits.float(), labels) for logits, labels in _pairs(outputs, targets)]
    return torch.stack(losses).sum() if len(losses) > 1 else losses[0]


def accuracy(model: Model, outputs: Outputs, targets: tuple[Tensor, ...], k: int) -> Tensor:
    """Return the fraction of predictions whose label is among the k likeliest; of the first task where there are two."""
    logits, labels = _pairs(outputs, targets)[0]
    return (logits.topk(k, 1).indices == labels.unsqueeze(1)).any(1).float().mean()
