"""Decoders that are served: a prompt is read at once, then one token after the other is chosen, the likeliest each time.

Keys and values of all tokens so far are kept (the KV cache), in memory that is taken once for a batch. The modules are those of
`train/`; what they do with a cache is written here. Nothing in the loop waits for the device: tokens stay there until the end,
or until the first one where somebody wants to know when it was there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.serve.impl.answering import Answering, Setup
from stackmark.workloads.train.impl.nets import build_with
from stackmark.workloads.train.impl.nets.transformer import (
    GPT2,
    Attention,
    GroupedAttention,
    Llama,
    PreNormBlock,
    split_heads,
)
from stackmark.workloads.workload import WorkloadFailure


class TinyGpt2(GPT2):
    LAYERS, WIDTH, HEADS = 2, 64, 4


@dataclass(frozen=True)
class DecoderModel:
    build: Callable[[int], nn.Module]
    words: int
    # The most tokens that it has positions for; of Llama those that a cache is sensible for here.
    most: int
    heads: int
    kv_heads: int
    width: int
    layers: int


def _gpt2(net: type[GPT2], words: int, most: int) -> DecoderModel:
    return DecoderModel(lambda _: net(words, most), words, most, net.HEADS, net.HEADS, net.WIDTH, net.LAYERS)


DECODERS = {
    "gpt2": _gpt2(GPT2, 50_257, 1024),
    "gpt2-tiny": _gpt2(TinyGpt2, 512, 128),
    "llama3-1b": DecoderModel(
        partial(Llama, 128_256), 128_256, 131_072, Llama.HEADS, Llama.KV_HEADS, Llama.WIDTH, Llama.LAYERS
    ),
}


@dataclass(frozen=True)
class Cache:
    """Keys and values of each layer: (batch, heads, tokens, head width)."""

    keys: list[Tensor]
    values: list[Tensor]


class Decoder(Answering):
    """Answers with the tokens that it generates."""

    def __init__(self, setup: Setup) -> None:
        self.model = model = DECODERS[setup.name]
        self.prompt, self.generate = setup.params.prompt, setup.params.generate
        tokens = self.prompt + self.generate
        if tokens > model.most:
            raise WorkloadFailure(
                "bad_parameter",
                f"serve/{setup.name} has {model.most:,} positions, and --prompt {self.prompt} and --generate {self.generate} "
                f"need {tokens:,}",
                "use a shorter prompt, or generate fewer tokens",
            )
        with setup.device:
            self.net = build_with(partial(model.build, tokens))
        shape = (setup.library, self.prompt)
        self.samples = torch.randint(model.words, shape, generator=setup.generator(), device=setup.device)

    def compute(self, batch: Tensor) -> Tensor:
        return self.decode(batch, lambda _: None)

    def decode(self, batch: Tensor, on_first: Callable[[Tensor], None]) -> Tensor:
        """Generate; `on_first` gets the first token of each sample as soon as it is chosen."""
        cache, found = (
            self._cache(len(batch)),
            torch.empty((len(batch), self.generate), dtype=torch.long, device=batch.device),
        )
        token = self._next(batch, cache, 0)
        on_first(token)
        found[:, :1] = token
        for place in range(1, self.generate):
            token = self._next(token, cache, self.prompt + place - 1)
            found[:, place : place + 1] = token
        return found.int()

    def _cache(self, batch: int) -> Cache:
        model, like = self.model, next(self.net.parameters())
        shape = (batch, model.kv_heads, self.prompt + self.generate, model.width // model.heads)
        keys, values = ([like.new_empty(shape) for _ in range(model.layers)] for _ in range(2))
        return Cache(keys, values)

    def _next(self, tokens: Tensor, cache: Cache, begin: int) -> Tensor:
        """Return the likeliest token after these, which stand at the places from `begin` on, (batch, 1)."""
        net, end = self.net, begin + tokens.shape[1]
        assert isinstance(net, GPT2 | Llama)
        x = net.tokens(tokens)
        if isinstance(net, GPT2):
            x = x + net.positions.weight[begin:end]
        for number, block in enumerate(net.blocks):
            assert isinstance(block, PreNormBlock)
            x = x + _attend(block.attention, block.norm1(x), cache.keys[number], cache.values[number], begin)
            x = x + block.mlp(block.norm2(x))
        # Of the prompt only the last token says what comes next.
        return F.linear(net.norm(x[:, -1:]), net.tokens.weight).argmax(2)


def _attend(attention: nn.Module, x: Tensor, keys: Tensor, values: Tensor, begin: int) -> Tensor:
    """Attend to all tokens so far, and keep the keys and values of these."""
    end, tokens = begin + x.shape[1], x.shape[1]
    if isinstance(attention, GroupedAttention):
        q, k, v = attention.project_in(x).split(attention.widths, 2)
        q = attention.rotary(split_heads(q, attention.heads), begin)
        k = attention.rotary(split_heads(k, attention.kv_heads), begin)
        v = split_heads(v, attention.kv_heads)
    else:
        assert isinstance(attention, Attention)
        q, k, v = (split_heads(part, attention.heads) for part in attention.project_in(x).chunk(3, 2))
    keys[:, :, begin:end], values[:, :, begin:end] = k, v
    # Named only where it is needed: PyTorch has it since 2.5.
    grouped: dict[str, Any] = {"enable_gqa": True} if isinstance(attention, GroupedAttention) else {}
    y = F.scaled_dot_product_attention(q, keys[:, :, :end], values[:, :, :end], is_causal=tokens > 1, **grouped)
    out: Tensor = attention.project_out(y.transpose(1, 2).flatten(2))
    return out
