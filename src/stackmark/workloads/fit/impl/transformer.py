"""`fit/transformer`: translation with the Transformer, trained until its BLEU is reached.

The model is that of MLPerf's reference (Transformer big): normalisation before each part and once at the end, one embedding for
both languages and the output layer, no biases in attention. `full` has its size (210.8 M parameters with its vocabulary of
33,708), optimizer and learning rate; `tiny` is the same code with two layers of width 96, and an embedding for each language
where the two have nothing in common.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl import translation
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.fit.impl.text import PAD, Corpus, TextBatch, plan_batches
from stackmark.workloads.fit.impl.translation import (
    EXTRA_LENGTH,
    Decoding,
    Search,
    TranslationLearner,
    Translator,
    smoothed_loss,
)

SEARCH = Search(beam=4, alpha=0.6)
FULL_WORDS = 33_708


@dataclass(frozen=True)
class Size:
    width: int
    heads: int
    layers: int
    hidden: int
    dropout: float
    # One embedding for both languages and the output layer.
    shared: bool
    longest: int
    betas: tuple[float, float]


SIZES = {
    "tiny": Size(96, 4, 2, 384, 0.0, False, 64, (0.9, 0.98)),
    # Real text has one vocabulary for both languages.
    "real": Size(192, 4, 3, 768, 0.1, True, 64, (0.9, 0.98)),
    "full": Size(1024, 16, 6, 4096, 0.1, True, 64, (0.9, 0.98)),
}


def size_of(params: FitParams) -> Size:
    return SIZES["real" if params.preset == "tiny" and params.source == "real" else params.preset]


def load_corpus(params: FitParams) -> Corpus:
    return translation.load_corpus(params, size_of(params).longest, words=FULL_WORDS)


def data_sha256(params: FitParams) -> str:
    return load_corpus(params).sha256


# --- the model ----------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Multi-head attention without biases. A cache has the keys and values of what was decoded before."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads, self.dropout = size.heads, size.dropout
        self.query, self.key, self.value, self.out = (nn.Linear(size.width, size.width, bias=False) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.split(self.key(x)), self.split(self.value(x))

    def forward(
        self, x: Tensor, keys_values: tuple[Tensor, Tensor], mask: Tensor | None = None, *, causal: bool = False
    ) -> Tensor:
        keys, values = keys_values
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(
            self.split(self.query(x)), keys, values, attn_mask=mask, dropout_p=dropout, is_causal=causal
        )
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


class FeedForward(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(size.width, size.hidden), nn.Linear(size.hidden, size.width)
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.out(self.dropout(torch.relu(self.hidden(x))))
        return out


class EncoderLayer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(size), FeedForward(size)
        self.norms = nn.ModuleList(nn.LayerNorm(size.width, eps=1e-6) for _ in range(2))
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.dropout(self.attention(normed, self.attention.keys_values(normed), mask))
        out: Tensor = x + self.dropout(self.feed_forward(self.norms[1](x)))
        return out


@dataclass
class LayerCache:
    """The keys and values of one decoder layer: of the tokens decoded so far, and of the source."""

    source: tuple[Tensor, Tensor]
    own: tuple[Tensor, Tensor] | None = None

    def extended(self, new: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if self.own is not None:
            new = torch.cat((self.own[0], new[0]), 2), torch.cat((self.own[1], new[1]), 2)
        self.own = new
        return new

    def take(self, rows: Tensor) -> None:
        """Keep the rows of the hypotheses that go on. The source's rows are alike for all hypotheses of a sentence."""
        if self.own is not None:
            self.own = self.own[0].index_select(0, rows), self.own[1].index_select(0, rows)


class DecoderLayer(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention, self.source_attention, self.feed_forward = Attention(size), Attention(size), FeedForward(size)
        self.norms = nn.ModuleList(nn.LayerNorm(size.width, eps=1e-6) for _ in range(3))
        self.dropout = nn.Dropout(size.dropout)

    def forward(
        self, x: Tensor, source: tuple[Tensor, Tensor], mask: Tensor, cache: LayerCache | None = None
    ) -> Tensor:
        normed = self.norms[0](x)
        own = self.attention.keys_values(normed)
        if cache is not None:
            own = cache.extended(own)
        x = x + self.dropout(self.attention(normed, own, causal=cache is None))
        x = x + self.dropout(self.source_attention(self.norms[1](x), source, mask))
        out: Tensor = x + self.dropout(self.feed_forward(self.norms[2](x)))
        return out


class Transformer(Translator):
    positions: Tensor

    def __init__(self, size: Size, source_words: int, target_words: int) -> None:
        super().__init__()
        self.width = size.width
        self.target_embedding = nn.Embedding(target_words, size.width)
        self.source_embedding = self.target_embedding if size.shared else nn.Embedding(source_words, size.width)
        self.encoder = nn.ModuleList(EncoderLayer(size) for _ in range(size.layers))
        self.decoder = nn.ModuleList(DecoderLayer(size) for _ in range(size.layers))
        self.norms = nn.ModuleList(nn.LayerNorm(size.width, eps=1e-6) for _ in range(2))
        self.dropout = nn.Dropout(size.dropout)
        self.register_buffer("positions", _positions(2 * size.longest + EXTRA_LENGTH + 2, size.width), persistent=False)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=size.width**-0.5)
            elif isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def embed(self, embedding: nn.Module, tokens: Tensor, begin: int = 0) -> Tensor:
        x = embedding(tokens) * math.sqrt(self.width)
        out: Tensor = self.dropout(x + self.positions[begin : begin + tokens.shape[1]].to(x.dtype))
        return out

    def encode(self, source: Tensor) -> tuple[Tensor, Tensor]:
        """Return the encoded source, and the mask that hides its padding."""
        mask = (source != PAD)[:, None, None, :]
        x = self.embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.norms[0](x), mask

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """Return the logits of every next token, given all tokens before it."""
        encoded, mask = self.encode(source)
        x = self.embed(self.target_embedding, inputs)
        for layer in self.decoder_layers():
            x = layer(x, layer.source_attention.keys_values(encoded), mask)
        return self._logits(x)

    def caches(self, encoded: Tensor) -> list[LayerCache]:
        return [LayerCache(layer.source_attention.keys_values(encoded)) for layer in self.decoder_layers()]

    def begin(self, source: Tensor, hypotheses: int) -> "TransformerDecoding":
        encoded, mask = (part.repeat_interleave(hypotheses, 0) for part in self.encode(source))
        return TransformerDecoding(self, self.caches(encoded), mask)

    def next_logits(self, tokens: Tensor, place: int, caches: Sequence[LayerCache], mask: Tensor) -> Tensor:
        """Return the logits of the token after `tokens` (n, 1), which stand at a place of the target."""
        x = self.embed(self.target_embedding, tokens, place)
        for layer, cache in zip(self.decoder, caches, strict=True):
            x = layer(x, cache.source, mask, cache)
        return self._logits(x)[:, 0]

    def decoder_layers(self) -> Iterator[DecoderLayer]:
        for layer in self.decoder:
            assert isinstance(layer, DecoderLayer)
            yield layer

    def _logits(self, x: Tensor) -> Tensor:
        return F.linear(self.norms[1](x), self.target_embedding.weight)


def _positions(length: int, width: int) -> Tensor:
    """Sines and cosines of the reference: one half of the width each."""
    frequencies = torch.exp(torch.arange(width // 2) * -(math.log(10_000.0) / (width // 2 - 1)))
    angles = torch.arange(length)[:, None] * frequencies[None]
    return torch.cat((angles.sin(), angles.cos()), 1)


class TransformerDecoding(Decoding):
    def __init__(self, net: Transformer, caches: Sequence[LayerCache], mask: Tensor) -> None:
        self._net, self._caches, self._mask = net, caches, mask

    def next_logits(self, tokens: Tensor, place: int) -> Tensor:
        return self._net.next_logits(tokens, place, self._caches, self._mask)

    def take(self, rows: Tensor) -> None:
        for cache in self._caches:
            cache.take(rows)


# --- the task -----------------------------------------------------------------------------------------------------------


def learning_rate(peak: float, warmup: int, update: int) -> float:
    """Rise in a straight line to the peak, then fall with the inverse square root of the updates."""
    step = update + 1
    return peak * min(step / max(1, warmup), math.sqrt(max(1, warmup) / step))


class TransformerLearner(TranslationLearner):
    def __init__(self, bench: Bench) -> None:
        params, size = bench.params, size_of(bench.params)
        corpus = load_corpus(params)
        torch.manual_seed(bench.seed)
        with bench.device:
            net = Transformer(size, len(corpus.source), len(corpus.target))
        optimizer = torch.optim.Adam(
            net.parameters(), params.learning_rate, betas=size.betas, eps=1e-9, fused=params.fused or None
        )
        rate = partial(learning_rate, params.learning_rate, params.warmup_updates)
        super().__init__(bench, net, optimizer, rate, corpus=corpus, search=SEARCH)
        self.logged = {
            "opt_name": "adam",
            "opt_base_learning_rate": params.learning_rate,
            "opt_learning_rate_warmup_steps": params.warmup_updates,
            "opt_adam_beta_1": size.betas[0],
            "opt_adam_beta_2": size.betas[1],
            "opt_adam_epsilon": 1e-9,
            "max_sequence_length": size.longest,
        }

    def plan(self, epoch: int) -> list[list[int]]:
        return plan_batches(self.corpus.train, self.bench.params.batch, self.bench.seed, epoch)

    def loss(self, batch: TextBatch) -> Tensor:
        return smoothed_loss(self.strategy.net(batch.source, batch.inputs), batch.labels, "mean")


def build(bench: Bench) -> TransformerLearner:
    return TransformerLearner(bench)
