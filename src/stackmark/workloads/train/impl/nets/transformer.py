"""Four transformers that people train today, at the sizes everybody quotes: GPT-2, BERT-large, ViT-B/16, Llama 3.2 1B.

They are written here instead of taken from `transformers` or `torchvision`: a worker image then needs torch alone,
and a release of those libraries cannot change what is measured. Outputs were compared with theirs, weights copied
over (see tests/test_nets.py for the versions). Token embeddings are also the output layer where the original ties
them; the tie is made in `forward`, so that moving a network between devices cannot undo it.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.train.impl.nets.attention import (
    STD,
    Attention,
    Embedding,
    GroupedAttention,
    LayerNorm,
    RMSNorm,
)
from stackmark.workloads.train.impl.nets.layers import Conv2d, Dense


class Mlp(nn.Module):
    """Two linear layers with a GELU between, four times as wide inside."""

    def __init__(self, width: int, approximate: Literal["none", "tanh"] = "none", out_std: float = STD) -> None:
        super().__init__()
        self.up, self.down = Dense(width, 4 * width, STD), Dense(4 * width, width, out_std)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.gelu(self.up(x), approximate=self.approximate))
        return y


class PreNormBlock(nn.Module):
    """Normalise, attend, add; normalise, think, add."""

    def __init__(self, attention: nn.Module, mlp: nn.Module, norm1: nn.Module, norm2: nn.Module) -> None:
        super().__init__()
        self.attention, self.mlp, self.norm1, self.norm2 = attention, mlp, norm1, norm2

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class GPT2(nn.Module):
    """GPT-2 of 124 million parameters: 12 layers of 768, 1024 tokens, tied. Without dropout, as it is trained today."""

    LAYERS, WIDTH, HEADS = 12, 768, 12

    def __init__(self, vocabulary: int, tokens: int) -> None:
        super().__init__()
        residual = STD / math.sqrt(2 * self.LAYERS)
        self.tokens, self.positions = Embedding(vocabulary, self.WIDTH), Embedding(tokens, self.WIDTH)
        self.blocks = nn.Sequential(
            *(
                PreNormBlock(
                    Attention(self.WIDTH, self.HEADS, causal=True, out_std=residual),
                    Mlp(self.WIDTH, "tanh", residual),
                    LayerNorm(self.WIDTH),
                    LayerNorm(self.WIDTH),
                )
                for _ in range(self.LAYERS)
            )
        )
        self.norm = LayerNorm(self.WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(x)), self.tokens.weight)


class BertLayer(nn.Module):
    """The first transformers' order: the normalisation after the sum."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention, self.norm1 = Attention(width, heads, dropout=dropout), LayerNorm(width, eps=1e-12)
        self.mlp, self.norm2 = Mlp(width), LayerNorm(width, eps=1e-12)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.dropout(self.attention(x)))
        y: Tensor = self.norm2(x + self.dropout(self.mlp(x)))
        return y


class Bert(nn.Module):
    """BERT-large in pre-training: masked words, at positions that are given, and whether two sentences follow.

    Predicting only the masked positions, a fixed number a sequence, is what tuned implementations do (20 of 128 in
    the paper's first phase); the vocabulary's product would otherwise be six times as large.
    """

    LAYERS, WIDTH, HEADS, POSITIONS, DROPOUT = 24, 1024, 16, 512, 0.1

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        width = self.WIDTH
        self.tokens, self.kinds, self.positions = (Embedding(n, width) for n in (vocabulary, 2, self.POSITIONS))
        self.norm, self.dropout = LayerNorm(width, eps=1e-12), nn.Dropout(self.DROPOUT)
        self.layers = nn.Sequential(*(BertLayer(width, self.HEADS, self.DROPOUT) for _ in range(self.LAYERS)))
        self.pool, self.follows = Dense(width, width, STD), Dense(width, 2, STD)
        self.transform, self.transform_norm = Dense(width, width, STD), LayerNorm(width, eps=1e-12)
        self.word_bias = nn.Parameter(torch.empty(vocabulary))

    def fill(self) -> None:
        nn.init.zeros_(self.word_bias)

    def forward(self, tokens: Tensor, kinds: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        x = self.tokens(tokens) + self.kinds(kinds) + self.positions.weight[: tokens.shape[1]]
        x = self.layers(self.dropout(self.norm(x)))
        picked = x.gather(1, masked.unsqueeze(2).expand(-1, -1, x.shape[2]))
        words = F.linear(self.transform_norm(F.gelu(self.transform(picked))), self.tokens.weight, self.word_bias)
        follows: Tensor = self.follows(torch.tanh(self.pool(x[:, 0])))
        return words, follows


class ViT(nn.Module):
    """ViT-B/16: 16×16 patches, a class token, 12 layers of 768, without dropout (torchvision's vit_b_16)."""

    LAYERS, WIDTH, HEADS, PATCH = 12, 768, 12, 16

    def __init__(self, image_px: int, classes: int) -> None:
        super().__init__()
        width = self.WIDTH
        self.patches = Conv2d(3, width, self.PATCH, self.PATCH, bias=True)
        self.class_token = nn.Parameter(torch.empty(1, 1, width))
        self.positions = nn.Parameter(torch.empty(1, (image_px // self.PATCH) ** 2 + 1, width))
        self.blocks = nn.Sequential(
            *(
                PreNormBlock(
                    Attention(width, self.HEADS),
                    Mlp(width),
                    LayerNorm(width, eps=1e-6),
                    LayerNorm(width, eps=1e-6),
                )
                for _ in range(self.LAYERS)
            )
        )
        self.norm, self.head = LayerNorm(width, eps=1e-6), Dense.small(width, classes)

    def fill(self) -> None:
        nn.init.zeros_(self.class_token)
        nn.init.normal_(self.positions, std=STD)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        first = self.class_token.to(patches.dtype).expand(patches.shape[0], -1, -1)
        x = torch.cat([first, patches], 1) + self.positions
        logits: Tensor = self.head(self.norm(self.blocks(x))[:, 0])
        return logits


class SwiGlu(nn.Module):
    """Llama's feed-forward layer: the gate and the values in one product."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_up, self.down = Dense(width, 2 * inner, STD, bias=False), Dense(inner, width, STD, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, 2)
        y: Tensor = self.down(F.silu(gate) * up)
        return y


class Llama(nn.Module):
    """The architecture of Llama 3.2 1B: 16 layers of 2048, 32 heads that share 8 keys and values, tied."""

    LAYERS, WIDTH, INNER, HEADS, KV_HEADS = 16, 2048, 8192, 32, 8

    def __init__(self, vocabulary: int, tokens: int) -> None:
        super().__init__()
        width = self.WIDTH
        self.tokens = Embedding(vocabulary, width)
        self.blocks = nn.Sequential(
            *(
                PreNormBlock(
                    GroupedAttention(width, self.HEADS, self.KV_HEADS, tokens),
                    SwiGlu(width, self.INNER),
                    RMSNorm(width, eps=1e-5),
                    RMSNorm(width, eps=1e-5),
                )
                for _ in range(self.LAYERS)
            )
        )
        self.norm = RMSNorm(width, eps=1e-5)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.norm(self.blocks(self.tokens(tokens))), self.tokens.weight)
