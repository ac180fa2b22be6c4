"""What the translation tasks share: their data, the search for a translation over any decoder with a state, and the evaluation.

A model is a `Translator`. It trains on whole sentences; for the search it makes a `Decoding`, which has a row of its state for
each hypothesis and goes on token by token.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from stackmark.workloads.fit.definition import FitParams
from stackmark.workloads.fit.impl.bleu import Tokenizer, corpus_bleu, tokens_13a
from stackmark.workloads.fit.impl.learner import Bench, Supervised, in_order_of_ranks, share_of_rank
from stackmark.workloads.fit.impl.text import (
    BEGIN,
    DIGITS,
    END,
    PAD,
    Corpus,
    Pair,
    TextBatch,
    batches_of_rank,
    generate_corpus,
    read_corpus,
    source_batch,
    synthetic_corpus,
    text_batch,
)
from stackmark.workloads.workload import Values

SMOOTHING = 0.1
# A translation may be this much longer than its source.
EXTRA_LENGTH = 50
# Sentences that are translated at a time, in tokens of their source.
EVALUATED_TOKENS = 4096
# Each look whether all hypotheses have ended waits for a GPU; a CPU has nothing to wait for.
STEPS_BETWEEN_LOOKS = 8
SYNTHETIC_PAIRS = 20_000


def load_corpus(
    params: FitParams, longest: int, *, words: int, digits: int = DIGITS, longest_tested: int = 0
) -> Corpus:
    """Return the data of these parameters; synthetic ones have the vocabulary of the full model and sentences of its length."""
    if params.data:
        return read_corpus(Path(params.data), longest, longest_tested)
    if params.preset == "full":
        return synthetic_corpus(words, SYNTHETIC_PAIRS, longest)
    return generate_corpus(digits=digits)


# --- the search ---------------------------------------------------------------------------------------------------------


class Decoding(ABC):
    """A decoder at work, with a row for each hypothesis: those of the first sentence, then those of the second."""

    # What the last token attended to, (rows, tokens of the source); a search with a coverage penalty needs it.
    attention: Tensor

    @abstractmethod
    def next_logits(self, tokens: Tensor, place: int) -> Tensor:
        """Return the logits of the token after `tokens` (rows, 1), which stand at a place of the target."""

    @abstractmethod
    def take(self, rows: Tensor) -> None:
        """Keep the rows of the hypotheses that go on. Each row goes on as one of the same sentence."""


class Translator(nn.Module, ABC):
    @abstractmethod
    def begin(self, source: Tensor, hypotheses: int) -> Decoding:
        """Encode a batch of sentences, and return its decoder, with a number of rows for each."""


@dataclass(frozen=True)
class Search:
    """A beam, and what a hypothesis is scored by: its log probability over the length penalty, and its coverage."""

    beam: int
    # The power of the length penalty ((5 + n) / 6).
    alpha: float
    # Weight of the coverage penalty: the sum over the source of the logarithm of what was attended of a token, at most 1.
    coverage: float = 0.0


@torch.inference_mode()
def beam_search(
    net: Translator, source: Tensor, search: Search, *, longest: int = 0, limits: Tensor | None = None
) -> list[list[int]]:
    """Translate a batch: the hypothesis of each sentence with the best score of those whose log probability is highest.

    All hypotheses of all sentences are decoded together. One that has ended stays among the candidates of its sentence.
    `longest` is where all end, and `limits` where each sentence does, whatever the others of its batch do.
    """
    count, device, beam = source.shape[0], source.device, search.beam
    decoding = net.begin(source, beam)
    tokens = torch.full((count * beam, 1), BEGIN, device=device)
    # Of the equal hypotheses at the start one counts.
    scores = torch.full((count, beam), -math.inf, device=device)
    scores[:, 0] = 0.0
    ended = torch.zeros((count, beam), dtype=torch.bool, device=device)
    lengths = torch.zeros((count, beam), device=device)
    attended = torch.zeros((count * beam, source.shape[1]), device=device)
    first = torch.arange(count, device=device)[:, None] * beam
    between = 1 if device.type == "cpu" else STEPS_BETWEEN_LOOKS
    for place in range(longest or source.shape[1] + EXTRA_LENGTH):
        logits = decoding.next_logits(tokens[:, -1:], place).float()
        if search.coverage:
            attended += decoding.attention.masked_fill(ended.view(-1, 1), 0.0)
        steps = F.log_softmax(logits, 1).view(count, beam, -1)
        words = steps.shape[2]
        # What has ended goes on with padding, at no cost.
        steps = steps.masked_fill(ended[:, :, None], -math.inf)
        steps[:, :, PAD] = torch.where(ended, 0.0, -math.inf)
        scores, chosen = (scores[:, :, None] + steps).view(count, -1).topk(beam, 1)
        before, word = chosen // words, chosen % words
        rows = (first + before).flatten()
        tokens = torch.cat((tokens.index_select(0, rows), word.view(-1, 1)), 1)
        decoding.take(rows)
        attended = attended.index_select(0, rows)
        was_over = ended.gather(1, before)
        lengths = lengths.gather(1, before) + (~was_over).float()
        ended = was_over | (word == END)
        if limits is not None:
            ended |= (limits <= place + 1)[:, None]
        if place % between == between - 1 and bool(ended.all()):
            break
    scores = scores / ((5.0 + lengths) / 6.0) ** search.alpha
    if search.coverage:
        # What was never attended to, padding above all, is left out, as in the reference.
        missing = torch.where(attended > 0, attended.clamp(max=1.0).log(), 0.0)
        scores = scores + search.coverage * missing.sum(1).view(count, beam)
    best = scores.argmax(1)
    return tokens[:, 1:].view(count, beam, -1)[torch.arange(count, device=device), best].tolist()


def translate(
    net: Translator, sentences: Sequence[Sequence[int]], device: torch.device, search: Search
) -> list[list[int]]:
    """Translate sentences in batches of about one length."""
    order = sorted(range(len(sentences)), key=lambda number: len(sentences[number]))
    found: list[list[int]] = [[] for _ in sentences]
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * (len(sentences[order[end]]) + 1) <= EVALUATED_TOKENS:
            end += 1
        source = source_batch([sentences[number] for number in order[start:end]]).to(device)
        for number, translation in zip(order[start:end], beam_search(net, source, search), strict=True):
            found[number] = translation
        start = end
    return found


# --- training -----------------------------------------------------------------------------------------------------------


def smoothed_loss(logits: Tensor, labels: Tensor, reduction: str) -> Tensor:
    """Return the cross-entropy with smoothed labels over all that is not padding."""
    return F.cross_entropy(
        logits.flatten(0, 1).float(),
        labels.flatten(),
        ignore_index=PAD,
        label_smoothing=SMOOTHING,
        reduction=reduction,
    )


class TranslationLearner(Supervised[TextBatch]):
    def __init__(
        self,
        bench: Bench,
        net: Translator,
        optimizer: torch.optim.Optimizer,
        rate: Callable[[int], float],
        *,
        corpus: Corpus,
        search: Search,
        tokenizer: Tokenizer = tokens_13a,
        clip: float = 0.0,
    ) -> None:
        samples, sha256 = len(corpus.train), corpus.sha256
        super().__init__(bench, net, optimizer, rate, samples=samples, data_sha256=sha256, clip=clip)
        self.corpus, self._translator, self._search, self._tokenizer = corpus, net, search, tokenizer

    @abstractmethod
    def plan(self, epoch: int) -> list[list[int]]:
        """Return the pairs of each batch of an epoch: all ranks make the same plan, and take its batches in turn."""

    def batches(self, epoch: int) -> Iterator[tuple[TextBatch, int]]:
        train, rank = self.corpus.train, self.bench.rank
        for numbers in batches_of_rank(self.plan(epoch), rank.number, rank.size):
            pairs: list[Pair] = [train[number] for number in numbers]
            yield text_batch(pairs).to(self.bench.device), len(pairs)

    def evaluate(self) -> Values:
        rank, test = self.bench.rank, self.corpus.test
        mine = share_of_rank(len(test), rank)
        with self.evaluating():
            said = translate(self._translator, [test[number] for number in mine], self.bench.device, self._search)
        translated = in_order_of_ranks(self.bench.gathered(said), rank)
        texts = [self.corpus.target.joined(sentence) for sentence in translated]
        # The references' metric is uncased.
        return {"BLEU": corpus_bleu(texts, self.corpus.references, lowercase=True, tokenizer=self._tokenizer)}
