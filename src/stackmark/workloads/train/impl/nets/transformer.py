"""Four transformers in common sizes: GPT-2, BERT-large, ViT-B/16, Llama 3.2 1B.

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

from stackmark.workloads.train.impl.nets.layers import Conv2d, Dense
from stackmark.workloads.versions import has_torch, lacking

# --- parts ------------------------------------------------------------------------------------------------------------
#
# What the transformers share: projections to queries, keys and values in one product, and torch's fused attention.
#
# One matrix for the three projections computes the same as three and is what tuned implementations do; the parameter
# count does not change. `scaled_dot_product_attention` picks the device's best kernel.


STD = 0.02
"""The spread of weights in GPT-2, BERT, ViT and Llama alike."""


class Embedding(nn.Embedding):
    """An embedding that starts normal with the transformers' spread."""

    def fill(self) -> None:
        nn.init.normal_(self.weight, std=STD)


class LayerNorm(nn.LayerNorm):
    def fill(self) -> None:
        self.reset_parameters()


class RMSNorm(getattr(nn, "RMSNorm", nn.Module)):  # type: ignore[misc]
    def __init__(self, width: int, eps: float) -> None:
        if not hasattr(nn, "RMSNorm"):
            raise lacking("a network with RMSNorm", "2.4")
        super().__init__(width, eps=eps)

    def fill(self) -> None:
        self.reset_parameters()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Return (batch, tokens, width) as (batch, heads, tokens, width / heads)."""
    batch, tokens, width = x.shape
    return x.view(batch, tokens, heads, width // heads).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention with biases, as in GPT-2, BERT and ViT."""

    def __init__(
        self, width: int, heads: int, causal: bool = False, dropout: float = 0.0, out_std: float = STD
    ) -> None:
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.project_in = Dense(width, 3 * width, STD)
        self.project_out = Dense(width, width, out_std)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.project_in(x).chunk(3, 2))
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=self.causal)
        out: Tensor = self.project_out(y.transpose(1, 2).flatten(2))
        return out


class Rotary(nn.Module):
    """Rotary positions with Llama 3's stretching of the low frequencies (factor 32, from 8192 tokens)."""

    THETA = 500_000.0
    FACTOR, LOW, HIGH, TRAINED = 32.0, 1.0, 4.0, 8192

    cos: Tensor
    sin: Tensor

    def __init__(self, head_width: int, tokens: int) -> None:
        super().__init__()
        self.head_width, self.tokens = head_width, tokens
        self.register_buffer("cos", torch.empty(tokens, head_width), persistent=False)
        self.register_buffer("sin", torch.empty(tokens, head_width), persistent=False)

    def fill(self) -> None:
        device = self.cos.device
        exponent = torch.arange(0, self.head_width, 2, device=device, dtype=torch.float32) / self.head_width
        frequency = self.THETA**-exponent
        # Turns within the trained length: below LOW the position is stretched, above HIGH kept, between them mixed.
        turns = self.TRAINED * frequency / (2 * math.pi)
        keep = ((turns - self.LOW) / (self.HIGH - self.LOW)).clamp(0, 1)
        frequency = frequency * (keep + (1 - keep) / self.FACTOR)
        angle = torch.outer(torch.arange(self.tokens, device=device, dtype=torch.float32), frequency)
        angle = torch.cat([angle, angle], 1)
        self.cos.copy_(angle.cos())
        self.sin.copy_(angle.sin())

    def forward(self, x: Tensor, begin: int = 0) -> Tensor:
        """Turn (batch, heads, tokens, head width) by position, counted from the first token's."""
        end = begin + x.shape[2]
        first, second = x.chunk(2, 3)
        turned = torch.cat([-second, first], 3)
        return x * self.cos[begin:end].to(x.dtype) + turned * self.sin[begin:end].to(x.dtype)


class GroupedAttention(nn.Module):
    """Causal attention in which several heads share keys and values, without biases, as in Llama."""

    def __init__(self, width: int, heads: int, kv_heads: int, tokens: int) -> None:
        super().__init__()
        if not has_torch("2.5"):
            raise lacking("attention with fewer key heads than query heads", "2.5")
        head = width // heads
        self.heads, self.kv_heads = heads, kv_heads
        self.widths = (heads * head, kv_heads * head, kv_heads * head)
        self.project_in = Dense(width, sum(self.widths), STD, bias=False)
        self.project_out = Dense(heads * head, width, STD, bias=False)
        self.rotary = Rotary(head, tokens)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project_in(x).split(self.widths, 2)
        q, k = self.rotary(split_heads(q, self.heads)), self.rotary(split_heads(k, self.kv_heads))
        v = split_heads(v, self.kv_heads)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.project_out(y.transpose(1, 2).flatten(2))
        return out


# --- networks ---------------------------------------------------------------------------------------------------------


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
