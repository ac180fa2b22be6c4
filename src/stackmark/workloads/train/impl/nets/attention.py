"""What the transformers share: projections to queries, keys and values in one product, and torch's fused attention.

One matrix for the three projections computes the same as three and is what tuned implementations do; the parameter
count does not change. `scaled_dot_product_attention` picks the device's best kernel.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.train.impl.nets.layers import Dense

STD = 0.02
"""The spread of weights in GPT-2, BERT, ViT and Llama alike."""


class Embedding(nn.Embedding):
    """An embedding that starts normal with the transformers' spread."""

    def fill(self) -> None:
        nn.init.normal_(self.weight, std=STD)


class LayerNorm(nn.LayerNorm):
    def fill(self) -> None:
        self.reset_parameters()


class RMSNorm(nn.RMSNorm):
    def fill(self) -> None:
        self.reset_parameters()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Returns (batch, tokens, width) as (batch, heads, tokens, width / heads)."""
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

    def forward(self, x: Tensor) -> Tensor:
        """Turns (batch, heads, tokens, head width) by position."""
        tokens = x.shape[2]
        first, second = x.chunk(2, 3)
        turned = torch.cat([-second, first], 3)
        return x * self.cos[:tokens].to(x.dtype) + turned * self.sin[:tokens].to(x.dtype)


class GroupedAttention(nn.Module):
    """Causal attention in which several heads share keys and values, without biases, as in Llama."""

    def __init__(self, width: int, heads: int, kv_heads: int, tokens: int) -> None:
        super().__init__()
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
