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
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl.bleu import corpus_bleu
from stackmark.workloads.fit.impl.learner import Bench, Supervised, in_order_of_ranks, share_of_rank
from stackmark.workloads.fit.impl.text import (
    BEGIN,
    END,
    PAD,
    Corpus,
    Pair,
    TextBatch,
    batches_of_rank,
    generate_corpus,
    plan_batches,
    read_corpus,
    source_batch,
    synthetic_corpus,
    text_batch,
)
from stackmark.workloads.workload import Values

SMOOTHING = 0.1
BEAM, ALPHA, EXTRA_LENGTH = 4, 0.6, 50
# Sentences that are translated at a time, in tokens of their source.
EVALUATED_TOKENS = 4096
# A synthetic corpus has the vocabulary of the reference, and sentences of up to its length.
FULL_WORDS, FULL_PAIRS, FULL_LENGTH = 33_708, 20_000, 64


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
    if params.data:
        return read_corpus(Path(params.data), size_of(params).longest)
    if params.preset == "full":
        return synthetic_corpus(FULL_WORDS, FULL_PAIRS, FULL_LENGTH)
    return generate_corpus()


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


class Transformer(nn.Module):
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

    def begin(self, encoded: Tensor) -> list[LayerCache]:
        return [LayerCache(layer.source_attention.keys_values(encoded)) for layer in self.decoder_layers()]

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


@torch.inference_mode()
def beam_search(net: Transformer, source: Tensor, *, beam: int = BEAM, alpha: float = ALPHA) -> list[list[int]]:
    """Translate a batch: the likeliest sentence of each, by the length-normalised score of the reference.

    All hypotheses of all sentences are decoded together. One that has ended stays among the candidates of its sentence.
    """
    count, device = source.shape[0], source.device
    most = source.shape[1] + EXTRA_LENGTH
    encoded, mask = net.encode(source)
    rows = torch.arange(count, device=device).repeat_interleave(beam)
    caches, mask = net.begin(encoded.index_select(0, rows)), mask.index_select(0, rows)
    tokens = torch.full((count * beam, 1), BEGIN, device=device)
    # Of the equal hypotheses at the start one counts.
    scores = torch.full((count, beam), -math.inf, device=device)
    scores[:, 0] = 0.0
    ended = torch.zeros((count, beam), dtype=torch.bool, device=device)
    lengths = torch.zeros((count, beam), device=device)
    first = torch.arange(count, device=device)[:, None] * beam
    for place in range(most):
        logits = net.next_logits(tokens[:, -1:], place, caches, mask).float()
        steps = F.log_softmax(logits, 1).view(count, beam, -1)
        words = steps.shape[2]
        # What has ended goes on with padding, at no cost.
        steps = steps.masked_fill(ended[:, :, None], -math.inf)
        steps[:, :, PAD] = torch.where(ended, 0.0, -math.inf)
        scores, chosen = (scores[:, :, None] + steps).view(count, -1).topk(beam, 1)
        before, word = chosen // words, chosen % words
        rows = (first + before).flatten()
        tokens = torch.cat((tokens.index_select(0, rows), word.view(-1, 1)), 1)
        for cache in caches:
            cache.take(rows)
        was_over = ended.gather(1, before)
        lengths = lengths.gather(1, before) + (~was_over).float()
        ended = was_over | (word == END)
        # One look in eight steps: each waits for the device.
        if place % 8 == 7 and bool(ended.all()):
            break
    penalty = ((5.0 + lengths) / 6.0) ** alpha
    best = (scores / penalty).argmax(1)
    return tokens[:, 1:].view(count, beam, -1)[torch.arange(count, device=device), best].tolist()


# --- the task -----------------------------------------------------------------------------------------------------------


def learning_rate(peak: float, warmup: int, update: int) -> float:
    """Rise in a straight line to the peak, then fall with the inverse square root of the updates."""
    step = update + 1
    return peak * min(step / max(1, warmup), math.sqrt(max(1, warmup) / step))


class TransformerLearner(Supervised[TextBatch]):
    def __init__(self, bench: Bench) -> None:
        params, size = bench.params, size_of(bench.params)
        self.corpus = load_corpus(params)
        torch.manual_seed(bench.seed)
        with bench.device:
            net = Transformer(size, len(self.corpus.source), len(self.corpus.target))
        optimizer = torch.optim.Adam(
            net.parameters(), params.learning_rate, betas=size.betas, eps=1e-9, fused=params.fused or None
        )
        rate = partial(learning_rate, params.learning_rate, params.warmup_updates)
        super().__init__(bench, net, optimizer, rate, samples=len(self.corpus.train), data_sha256=self.corpus.sha256)
        self.logged = {
            "opt_name": "adam",
            "opt_base_learning_rate": params.learning_rate,
            "opt_learning_rate_warmup_steps": params.warmup_updates,
            "opt_adam_beta_1": size.betas[0],
            "opt_adam_beta_2": size.betas[1],
            "opt_adam_epsilon": 1e-9,
            "max_sequence_length": size.longest,
        }

    def batches(self, epoch: int) -> Iterator[tuple[TextBatch, int]]:
        train, rank = self.corpus.train, self.bench.rank
        plan = plan_batches(train, self.bench.params.batch, self.bench.seed, epoch)
        for numbers in batches_of_rank(plan, rank.number, rank.size):
            pairs: list[Pair] = [train[number] for number in numbers]
            yield text_batch(pairs).to(self.bench.device), len(pairs)

    def loss(self, batch: TextBatch) -> Tensor:
        logits = self.strategy.net(batch.source, batch.inputs)
        return F.cross_entropy(
            logits.flatten(0, 1).float(), batch.labels.flatten(), ignore_index=PAD, label_smoothing=SMOOTHING
        )

    def evaluate(self) -> Values:
        rank, test = self.bench.rank, self.corpus.test
        mine = share_of_rank(len(test), rank)
        with self.evaluating():
            said = translate(self.net, [test[number] for number in mine], self.bench.device)
        translated = in_order_of_ranks(self.bench.gathered(said), rank)
        texts = [self.corpus.target.joined(sentence) for sentence in translated]
        # The reference's metric is uncased.
        return {"BLEU": corpus_bleu(texts, self.corpus.references, lowercase=True)}


def translate(net: nn.Module, sentences: Sequence[Sequence[int]], device: torch.device) -> list[list[int]]:
    """Translate sentences in batches of about one length."""
    assert isinstance(net, Transformer)
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
    found: list[list[int]] = [[] for _ in sentences]
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * (len(sentences[order[end]]) + 1) <= EVALUATED_TOKENS:
            end += 1
        source = source_batch([sentences[number] for number in order[start:end]]).to(device)
        for number, translation in zip(order[start:end], beam_search(net, source), strict=True):
            found[number] = translation
        start = end
    return found


def build(bench: Bench) -> TransformerLearner:
    return TransformerLearner(bench)
