"""`fit/gnmt`: translation with a recurrent network (GNMT v2), trained until its BLEU is reached.

The model is that of MLPerf's reference: LSTM layers on either side, the first of the encoder in both directions, and an
attention between them. `full` has its size (160.7 M parameters with its vocabulary of 32,320), optimizer and learning rate;
`tiny` is the same code with layers of width 64, and an embedding for each language where the two have nothing in common.

The query of the attention is the output of the first decoder layer, and what was attended goes to the layers above it, never back
into the first. So each layer and the attention are computed for all tokens of the target at once, and training has no loop over
time but the one within the LSTM kernels.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl import translation
from stackmark.workloads.fit.impl.bleu import tokens_intl
from stackmark.workloads.fit.impl.learner import Bench
from stackmark.workloads.fit.impl.text import PAD, Corpus, TextBatch, length_buckets, plan_bucketed
from stackmark.workloads.fit.impl.translation import Decoding, Search, TranslationLearner, Translator, smoothed_loss

# On either side; the first of the encoder is two LSTMs, one for each direction.
LAYERS = 4
SEARCH = Search(beam=5, alpha=0.6, coverage=0.1)
CLIP = 5.0
BETAS, EPSILON = (0.9, 0.999), 1e-8
# The learning rate rises from this part of its peak, and is halved four times in the last third of the planned epochs.
WARMUP_FROM, DECAY_FROM, DECAY_STEPS, DECAY_FACTOR = 0.01, 0.666, 4, 0.5
FULL_WORDS = 32_320
# Numbers of the generated data.
DIGITS = 4

# What an LSTM layer goes on from: its output and its cell.
State = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Size:
    width: int
    dropout: float
    # One embedding for both languages.
    shared: bool
    # Weights are drawn uniformly between minus this and this.
    weights: float
    # Pieces of a sentence, without its begin and end.
    longest: int
    longest_tested: int
    # The learning rate is planned for this many epochs: with WMT16 and 2,048 pairs a step it falls from about 6,453 on.
    epochs: int


SIZES = {
    "tiny": Size(64, 0.0, False, 0.12, 15, 15, 20),
    "real": Size(192, 0.1, True, 0.1, 64, 64, 20),
    "full": Size(1024, 0.2, True, 0.1, 73, 148, 5),
}


def size_of(params: FitParams) -> Size:
    return SIZES["real" if params.preset == "tiny" and params.source == "real" else params.preset]


def load_corpus(params: FitParams) -> Corpus:
    size = size_of(params)
    return translation.load_corpus(
        params, size.longest, words=FULL_WORDS, digits=DIGITS, longest_tested=size.longest_tested
    )


def data_sha256(params: FitParams) -> str:
    return load_corpus(params).sha256


# --- the model ----------------------------------------------------------------------------------------------------------


def run_layer(layer: nn.Module, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
    """Run an LSTM over all tokens. Autocast would run it in fp16, which needs its losses scaled: so it is left out."""
    with torch.autocast(x.device.type, enabled=False):
        y, after = layer(x.to(next(layer.parameters()).dtype), state)
    return y, after


class Encoder(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        width = size.width
        self.forwards, self.backwards = (nn.LSTM(width, width, batch_first=True) for _ in range(2))
        self.layers = nn.ModuleList(
            nn.LSTM(width if number else 2 * width, width, batch_first=True) for number in range(LAYERS - 1)
        )
        self.dropout = nn.Dropout(size.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Encode embedded sentences (b, s, width). The mask is true where a token is not padding."""
        # Each sentence backwards, its padding where it was: no layer needs to know the lengths.
        places = torch.arange(x.shape[1], device=x.device)
        turned = torch.where(mask, mask.sum(1, keepdim=True) - 1 - places, places)[:, :, None].expand_as(x)
        x = self.dropout(x)
        forwards, _ = run_layer(self.forwards, x)
        backwards, _ = run_layer(self.backwards, x.gather(1, turned))
        x = torch.cat((forwards, backwards.gather(1, turned)), 2)
        for number, layer in enumerate(self.layers):
            y, _ = run_layer(layer, self.dropout(x))
            x = x + y if number else y
        return x


class Attention(nn.Module):
    """Normalised attention of Bahdanau: a source token weighs softmax(g v/|v| · tanh(W q + U k + b))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.vector = nn.Parameter(torch.empty(width))
        self.scale = nn.Parameter(torch.full((1,), width**-0.5))

    def forward(self, queries: Tensor, memory: "Memory") -> tuple[Tensor, Tensor]:
        """Return the mean of the encoded source by weight for each query (b, t, width), and the weights (b, t, s)."""
        mixed = (self.query(queries)[:, :, None] + memory.keys[:, None]).tanh_()
        scores = mixed @ (self.vector * (self.scale / self.vector.norm()))
        weights = scores.float().masked_fill(~memory.mask[:, None], float("-inf")).softmax(2)
        return weights.to(memory.encoded.dtype) @ memory.encoded, weights


@dataclass(frozen=True)
class Memory:
    """An encoded source (b, s, width), the keys of its tokens, and which tokens are not padding."""

    encoded: Tensor
    keys: Tensor
    mask: Tensor


class Gnmt(Translator):
    def __init__(self, size: Size, source_words: int, target_words: int) -> None:
        super().__init__()
        width = size.width
        self.target_embedding = nn.Embedding(target_words, width)
        self.source_embedding = self.target_embedding if size.shared else nn.Embedding(source_words, width)
        self.encoder = Encoder(size)
        self.attention = Attention(width)
        self.decoder = nn.ModuleList(
            nn.LSTM(2 * width if number else width, width, batch_first=True) for number in range(LAYERS)
        )
        self.out = nn.Linear(width, target_words)
        self.dropout = nn.Dropout(size.dropout)
        for name, parameter in self.named_parameters():
            if name == "attention.key.bias" or "bias_hh" in name:
                nn.init.zeros_(parameter)
            elif name != "attention.scale":
                nn.init.uniform_(parameter, -size.weights, size.weights)

    def encode(self, source: Tensor) -> Memory:
        mask = source != PAD
        encoded = self.encoder(self.source_embedding(source), mask)
        return Memory(encoded, self.attention.key(encoded), mask)

    def decode(
        self, inputs: Tensor, memory: Memory, states: Sequence[State | None]
    ) -> tuple[Tensor, list[State], Tensor]:
        """Return the logits of every next token, the state of each layer after the last one, and what was attended."""
        x, after = run_layer(self.decoder[0], self.dropout(self.target_embedding(inputs)), states[0])
        context, weights = self.attention(x, memory)
        kept = [after]
        for number, layer in enumerate(self.decoder[1:], 1):
            y, after = run_layer(layer, self.dropout(torch.cat((x, context), 2)), states[number])
            x = x + y if number > 1 else y
            kept.append(after)
        return self.out(x), kept, weights

    def forward(self, source: Tensor, inputs: Tensor) -> Tensor:
        """Return the logits of every next token, given all tokens before it."""
        return self.decode(inputs, self.encode(source), [None] * LAYERS)[0]

    def begin(self, source: Tensor, hypotheses: int) -> "GnmtDecoding":
        memory = self.encode(source)
        parts = (memory.encoded, memory.keys, memory.mask)
        return GnmtDecoding(self, Memory(*(part.repeat_interleave(hypotheses, 0) for part in parts)))


class GnmtDecoding(Decoding):
    def __init__(self, net: Gnmt, memory: Memory) -> None:
        self._net, self._memory = net, memory
        self._states: Sequence[State | None] = [None] * LAYERS

    def next_logits(self, tokens: Tensor, place: int) -> Tensor:
        logits, self._states, weights = self._net.decode(tokens, self._memory, self._states)
        self.attention = weights[:, 0]
        return logits[:, 0]

    def take(self, rows: Tensor) -> None:
        self._states = [
            state and (state[0].index_select(1, rows), state[1].index_select(1, rows)) for state in self._states
        ]


# --- the task -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """The learning rate by update: an exponential rise, a plateau, and four halvings."""

    peak: float
    warmup: int
    remain: int
    interval: int

    def rate(self, update: int) -> float:
        if update < self.warmup:
            return self.peak * math.pow(WARMUP_FROM, 1 - update / self.warmup)
        halvings = min((update - self.remain) // self.interval + 1, DECAY_STEPS) if update >= self.remain else 0
        return self.peak * math.pow(DECAY_FACTOR, halvings)


def plan_schedule(params: FitParams, updates: int) -> Schedule:
    """Return the schedule of a training, by the number of its planned updates."""
    remain = max(1, int(DECAY_FROM * updates))
    return Schedule(params.learning_rate, params.warmup_updates, remain, max(1, (updates - remain) // DECAY_STEPS))


class GnmtLearner(TranslationLearner):
    def __init__(self, bench: Bench) -> None:
        params, size = bench.params, size_of(bench.params)
        corpus = load_corpus(params)
        torch.manual_seed(bench.seed)
        with bench.device:
            net = Gnmt(size, len(corpus.source), len(corpus.target))
        optimizer = torch.optim.Adam(
            net.parameters(), params.learning_rate, betas=BETAS, eps=EPSILON, fused=params.fused or None
        )
        self._buckets = length_buckets(corpus.train, size.longest)
        steps = len(plan_bucketed(self._buckets, params.batch, bench.rank.size, bench.seed, 0)) // bench.rank.size
        schedule = plan_schedule(params, size.epochs * steps)
        super().__init__(
            bench, net, optimizer, schedule.rate, corpus=corpus, search=SEARCH, tokenizer=tokens_intl, clip=CLIP
        )
        self.logged = {
            "opt_name": "adam",
            "opt_base_learning_rate": params.learning_rate,
            "opt_adam_beta_1": BETAS[0],
            "opt_adam_beta_2": BETAS[1],
            "opt_adam_epsilon": EPSILON,
            "opt_learning_rate_alt_warmup_func": True,
            "opt_learning_rate_warmup_steps": params.warmup_updates,
            "opt_learning_rate_alt_decay_func": True,
            "opt_learning_rate_decay_interval": schedule.interval,
            "opt_learning_rate_decay_factor": DECAY_FACTOR,
            "opt_learning_rate_decay_steps": DECAY_STEPS,
            "opt_learning_rate_remain_steps": schedule.remain,
            # With begin and end, as the reference counts.
            "max_sequence_length": size.longest + 2,
        }

    def plan(self, epoch: int) -> list[list[int]]:
        return plan_bucketed(self._buckets, self.bench.params.batch, self.bench.rank.size, self.bench.seed, epoch)

    def loss(self, batch: TextBatch) -> Tensor:
        """Return the loss of a pair: summed over its tokens, as the reference has it, which the clipping depends on."""
        logits = self.strategy.net(batch.source, batch.inputs)
        return smoothed_loss(logits, batch.labels, "sum") / batch.pairs


def build(bench: Bench) -> GnmtLearner:
    return GnmtLearner(bench)
