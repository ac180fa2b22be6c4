"""Networks that answer about text: BERT that finds an answer in a text, and GNMT that translates."""

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from stackmark.workloads.fit.impl import gnmt
from stackmark.workloads.fit.impl.text import PAD, SPECIAL, source_batch
from stackmark.workloads.fit.impl.translation import EXTRA_LENGTH, beam_search
from stackmark.workloads.serve.impl.answering import Answering, Setup
from stackmark.workloads.train.impl.nets import build_with
from stackmark.workloads.train.impl.nets.layers import Dense
from stackmark.workloads.train.impl.nets.transformer import STD, Bert, BertLayer, Embedding, LayerNorm

# --- questions -------------------------------------------------------------------------------------------------------------

# Tokens of a question and its text together, and of the longest answer, as MLPerf's reference has them.
QUESTION_TOKENS, LONGEST_ANSWER = 384, 30
BERT_WORDS = 30_522
# Tokens of the question; the others are the text, in which the answer is.
ASKED_SHARE = 1 / 8


class BertQa(nn.Module):
    """BERT that gives each token two numbers: whether the answer begins there, and whether it ends there."""

    def __init__(self, layers: int, width: int, heads: int, words: int) -> None:
        super().__init__()
        self.tokens, self.kinds, self.positions = (Embedding(n, width) for n in (words, 2, Bert.POSITIONS))
        self.norm = LayerNorm(width, eps=1e-12)
        self.layers = nn.Sequential(*(BertLayer(width, heads, 0.0) for _ in range(layers)))
        self.answer = Dense(width, 2, STD)

    def forward(self, tokens: Tensor, kinds: Tensor) -> Tensor:
        """Return (n, tokens, 2)."""
        x = self.tokens(tokens) + self.kinds(kinds) + self.positions.weight[: tokens.shape[1]]
        found: Tensor = self.answer(self.layers(self.norm(x)))
        return found


# Layers, width, heads, words, tokens of a sample.
QUESTION_NETS = {
    "bert": (Bert.LAYERS, Bert.WIDTH, Bert.HEADS, BERT_WORDS, QUESTION_TOKENS),
    "bert-tiny": (2, 64, 2, 1000, 64),
}


class Questions(Answering):
    """Answers with the first and the last token of the likeliest answer that lies in the text and is not too long."""

    def __init__(self, setup: Setup) -> None:
        layers, width, heads, words, tokens = QUESTION_NETS[setup.name]
        with setup.device:
            self.net = build_with(partial(BertQa, layers, width, heads, words))
            places = torch.arange(tokens)
            self.kinds = (places >= int(tokens * ASKED_SHARE)).long()
            length = places - places[:, None]
            self.possible = (length >= 0) & (length < LONGEST_ANSWER) & (self.kinds[:, None] > 0)
        self.samples = torch.randint(words, (setup.library, tokens), generator=setup.generator(), device=setup.device)

    def compute(self, batch: Tensor) -> Tensor:
        begins, ends = self.net(batch, self.kinds.expand_as(batch)).float().unbind(2)
        together = (begins[:, :, None] + ends[:, None]).masked_fill_(~self.possible, float("-inf"))
        best = together.flatten(1).argmax(1)
        return torch.stack((best // batch.shape[1], best % batch.shape[1]), 1).int()


# --- translation -----------------------------------------------------------------------------------------------------------

# Pieces of the sentences of newstest2014 are 27 on average; these lie evenly around them.
LENGTHS = (4, 50)
# Size of the network, words of the vocabulary, and the lengths of sentences.
TRANSLATORS = {
    "gnmt": (replace(gnmt.SIZES["full"], dropout=0.0), gnmt.FULL_WORDS, LENGTHS),
    "gnmt-tiny": (replace(gnmt.SIZES["tiny"], shared=True), 64, (2, 6)),
}


class Translators(Answering):
    """Answers with the tokens of a translation, found by a beam search; PAD fills up.

    A translation may be longer than its source by as much as in training. With random weights none ends by itself, so each ends
    when it is as long as its source.
    """

    def __init__(self, setup: Setup) -> None:
        size, words, lengths = TRANSLATORS[setup.name]
        with setup.device:
            self.net = self._net = gnmt.Gnmt(size, words, words)
        sentences = setup.samples
        if sentences is None:
            draw = random.Random(setup.params.seed)
            sentences = source_batch(
                [
                    [draw.randrange(len(SPECIAL), words) for _ in range(draw.randint(*lengths))]
                    for _ in range(setup.library)
                ]
            )
        self.lengths = (sentences != PAD).sum(1).tolist()
        self.samples = sentences.to(setup.device)
        self.extra = EXTRA_LENGTH if setup.params.weights else 0

    def chosen(self, indices: Sequence[int]) -> Tensor:
        return super().chosen(indices)[:, : max(self.lengths[index] for index in indices)]

    def compute(self, batch: Tensor) -> Tensor:
        widest = self.samples.shape[1] + self.extra
        limits = (batch != PAD).sum(1) + self.extra
        found = beam_search(self._net, batch, gnmt.SEARCH, longest=batch.shape[1] + self.extra, limits=limits)
        return torch.tensor([(row + [PAD] * widest)[:widest] for row in found], dtype=torch.int32)
