"""Pairs of sentences for the translation tasks: generated, or read from a folder, as batches of token numbers.

Generated: a number in digits is translated into English words, `40917` into `forty thousand nine hundred seventeen`. The
language is small, has a grammar, and whether a number is of the training or of the test set follows from the number, so that no
test sentence was ever trained on.

A folder has text, one sentence a line, in the two languages: `train.src`, `train.tgt`, `test.src`, `test.tgt`. MLPerf's data
(WMT after moses and byte pair encoding) have other names, which are found too (`_WMT`): the lines are already cut into
pieces, with `@@` where a word goes on, and the vocabulary is a file. Without a vocabulary file the pieces are learned from the
training text here (byte pair encoding).
"""

import hashlib
import html
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from stackmark.workloads.workload import WorkloadFailure

PAD, UNKNOWN, BEGIN, END = range(4)
SPECIAL = ("<pad>", "<unk>", "<s>", "</s>")
# MLPerf's names: source text, target text, test source in pieces, test target as plain text, vocabulary.
_WMT = (
    "train.tok.clean.bpe.32000.en", "train.tok.clean.bpe.32000.de", "newstest2014.tok.bpe.32000.en", "newstest2014.de",
    "vocab.bpe.32000",
)  # fmt: skip
_PLAIN = ("train.src", "train.tgt", "test.src", "test.tgt", "vocab.txt")
GOES_ON = "@@"
# Pieces that are learned from a folder without a vocabulary.
MERGES = 4000
# A pair that stands in the text once is no piece of the language.
LEAST_PAIRS = 2
# A damaged file must not fill the memory: WMT's longest training line has 1,000 pieces.
LONGEST_LINE = 20_000
MOST_LINES = 50_000_000
# Sentences of about one length are batched together: they are sorted within a stretch of this many batches.
SORTED_TOGETHER = 32
# Or they are drawn from buckets of lengths.
BUCKETS = 5
# Generated: how many pairs, and the part of all numbers that is kept for the test.
TRAIN_PAIRS, TEST_PAIRS, DIGITS, TEST_EVERY = 12_000, 400, 6, 20
DATA_SEED = 20190710

Pair = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True)
class Vocabulary:
    """Pieces by number. `joined` turns numbers into text again."""

    pieces: tuple[str, ...]
    # MLPerf's text is escaped as Moses does it (`&apos;`), and its references are not.
    escaped: bool = False

    def __len__(self) -> int:
        return len(self.pieces)

    @property
    def numbers(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(self.pieces)}

    def joined(self, numbers: Iterable[int]) -> str:
        """Return the text of a sentence up to its end."""
        words: list[str] = []
        for number in numbers:
            if number == END:
                break
            if number not in (PAD, BEGIN):
                words.append(self.pieces[number] if 0 <= number < len(self.pieces) else SPECIAL[UNKNOWN])
        text = " ".join(words).replace(f"{GOES_ON} ", "").removesuffix(GOES_ON)
        return html.unescape(text) if self.escaped else text


@dataclass(frozen=True)
class Corpus:
    """Training pairs and test sentences as numbers, and the references of the test as text."""

    source: Vocabulary
    target: Vocabulary
    train: tuple[Pair, ...]
    test: tuple[Sequence[int], ...]
    references: tuple[str, ...]
    sha256: str


# --- generated ----------------------------------------------------------------------------------------------------------

# fmt: off
_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
# fmt: on
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def number_words(number: int) -> list[str]:
    """Return a number below a million in English words."""
    if number < 20:
        return [_ONES[number]]
    if number < 100:
        return [_TENS[number // 10 - 2], *([_ONES[number % 10]] if number % 10 else [])]
    if number < 1000:
        return [_ONES[number // 100], "hundred", *(number_words(number % 100) if number % 100 else [])]
    return [*number_words(number // 1000), "thousand", *(number_words(number % 1000) if number % 1000 else [])]


def is_test_number(number: int) -> bool:
    """Tell whether a number belongs to the test set: by its hash, so that neighbours of it are trained."""
    return int.from_bytes(hashlib.blake2s(str(number).encode(), digest_size=4).digest(), "big") % TEST_EVERY == 0


def generated_number(seed: int, index: int, *, test: bool, most_digits: int = DIGITS) -> int:
    """Return number `index` of a set: any of them can be made without the others. All lengths come equally often."""
    draw = random.Random(f"{seed} {'test' if test else 'train'} {index}")
    while True:
        digits = draw.randint(1, most_digits)
        number = draw.randrange(10 ** (digits - 1) if digits > 1 else 0, 10**digits)
        # The few numbers of up to two digits are all trained: of ten of them none may be left out.
        if (is_test_number(number) and digits > 2) == test:
            return number


def generate_corpus(
    seed: int = DATA_SEED, train_pairs: int = TRAIN_PAIRS, test_pairs: int = TEST_PAIRS, digits: int = DIGITS
) -> Corpus:
    words = sorted({*_ONES, *_TENS, "hundred", "thousand"})
    source, target = Vocabulary((*SPECIAL, *"0123456789")), Vocabulary((*SPECIAL, *words))
    train = [generated_number(seed, index, test=False, most_digits=digits) for index in range(train_pairs)]
    test = [generated_number(seed, index, test=True, most_digits=digits) for index in range(test_pairs)]
    written, spoken = source.numbers, target.numbers

    def in_digits(number: int) -> list[int]:
        return [written[digit] for digit in str(number)]

    return Corpus(
        source,
        target,
        tuple((in_digits(number), [spoken[word] for word in number_words(number)]) for number in train),
        tuple(map(in_digits, test)),
        tuple(" ".join(number_words(number)) for number in test),
        _sha256((f"{number} {' '.join(number_words(number))}" for number in (*train, *test)), "numbers"),
    )


def synthetic_corpus(words: int, pairs: int, length: int, seed: int = DATA_SEED) -> Corpus:
    """Return random tokens of the full shape: for the speed of the full model without its data. Nothing can be learned."""
    draw = random.Random(seed)
    vocabulary = Vocabulary((*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), words))))

    def sentence() -> list[int]:
        return [draw.randrange(len(SPECIAL), words) for _ in range(draw.randint(length // 4, length))]

    train = tuple((sentence(), sentence()) for _ in range(pairs))
    test = tuple(sentence() for _ in range(max(1, pairs // 100)))
    references = tuple(vocabulary.joined(sentence()) for _ in test)
    return Corpus(
        vocabulary, vocabulary, train, test, references, _sha256((str(words), str(pairs), str(length)), "synthetic")
    )


# --- a folder -----------------------------------------------------------------------------------------------------------


def read_corpus(folder: Path, longest: int, longest_tested: int = 0) -> Corpus:
    """Read the pairs of a folder.

    Training pairs with a sentence of more than `longest` pieces are left out, as MLPerf does. Test sentences are cut off at
    that length, or at `longest_tested`.
    """
    names = next((names for names in (_WMT, _PLAIN) if (folder / names[0]).is_file()), None)
    if names is None:
        raise WorkloadFailure(
            "bad_data",
            f"{folder} has neither {_PLAIN[0]} nor {_WMT[0]}",
            "a folder with text has train.src, train.tgt, test.src and test.tgt, one sentence per line",
        )
    sources, targets, test, references = (_lines(folder / name) for name in names[:4])
    for one, other, left, right in ((names[0], names[1], sources, targets), (names[2], names[3], test, references)):
        if len(left) != len(right):
            raise WorkloadFailure("bad_data", f"{one} has {len(left)} lines, but {other} has {len(right)}")
        if not left:
            raise WorkloadFailure("bad_data", f"{folder / one} is empty")
    sha256 = _sha256((*sources, *targets, *test, *references), "text")
    listed = folder / names[4]
    if listed.is_file():
        pieces = tuple(dict.fromkeys((*SPECIAL, *_lines(listed))))
        cut: Callable[[str], list[str]] = str.split
    else:
        merges = learn_merges([*sources, *targets], MERGES)
        cut = cutter(merges)
        counts = Counter(piece for line in (*sources, *targets) for piece in cut(line))
        pieces = (*SPECIAL, *sorted(counts, key=lambda piece: (-counts[piece], piece)))
    vocabulary = Vocabulary(pieces, escaped=names is _WMT)
    numbers = vocabulary.numbers

    def numbered(line: str) -> list[int]:
        return [numbers.get(piece, UNKNOWN) for piece in cut(line)]

    pairs = ((numbered(one), numbered(other)) for one, other in zip(sources, targets, strict=True))
    train = tuple(pair for pair in pairs if all(0 < len(part) <= longest for part in pair))
    if not train:
        raise WorkloadFailure("bad_data", f"no pair of {folder} has at most {longest} pieces in both languages")
    tested = tuple(numbered(line)[: longest_tested or longest] for line in test)
    return Corpus(vocabulary, vocabulary, train, tested, tuple(references), sha256)


def _lines(path: Path) -> list[str]:
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            lines: list[str] = []
            while line := file.readline(LONGEST_LINE + 1):
                if len(line) > LONGEST_LINE:
                    raise WorkloadFailure(
                        "bad_data", f"line {len(lines) + 1} of {path} has more than {LONGEST_LINE} characters"
                    )
                lines.append(line.rstrip("\r\n"))
                if len(lines) > MOST_LINES:
                    raise WorkloadFailure("bad_data", f"{path} has more than {MOST_LINES:,} lines")
            return lines
    except UnicodeDecodeError as error:
        raise WorkloadFailure("bad_data", f"{path} is not text in UTF-8: {error.reason}") from error
    except OSError as error:
        raise WorkloadFailure("bad_data", f"{path} cannot be read: {error.strerror}") from error


def learn_merges(lines: Iterable[str], most: int) -> dict[tuple[str, str], int]:
    """Learn byte pair encoding: the most frequent neighbours within words become one piece, `most` times.

    Ties are broken by the pieces themselves, so that the same text gives the same merges everywhere.
    """
    counts = Counter(word for line in lines for word in line.split())
    words = {word: _letters(word) for word in counts}
    pairs: Counter[tuple[str, str]] = Counter()
    where: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for word, pieces in words.items():
        for pair in pairwise(pieces):
            pairs[pair] += counts[word]
            where[pair].add(word)
    # Counts change as pieces grow: an entry of the heap that is out of date is passed over.
    heap = [(-count, pair) for pair, count in pairs.items()]
    heapify(heap)
    merges: dict[tuple[str, str], int] = {}
    while heap and len(merges) < most:
        count, best = heappop(heap)
        if pairs[best] != -count or best in merges:
            continue
        if -count < LEAST_PAIRS:
            break
        merges[best] = len(merges)
        changed: set[tuple[str, str]] = set()
        for word in where.pop(best):
            before, words[word] = words[word], merged(words[word], best)
            for pair in pairwise(before):
                pairs[pair] -= counts[word]
                changed.add(pair)
            for pair in pairwise(words[word]):
                pairs[pair] += counts[word]
                where[pair].add(word)
                changed.add(pair)
        for pair in changed:
            heappush(heap, (-pairs[pair], pair))
    return merges


def merged(pieces: Sequence[str], pair: tuple[str, str]) -> list[str]:
    """Return the pieces with each occurrence of a pair made one."""
    found: list[str] = []
    for piece in pieces:
        if found and (found[-1], piece) == pair:
            found[-1] = found[-1].removesuffix(GOES_ON) + piece
        else:
            found.append(piece)
    return found


def cutter(merges: Mapping[tuple[str, str], int]) -> Callable[[str], list[str]]:
    """Return a function that cuts a line into pieces. Each word is cut once."""
    known: dict[str, list[str]] = {}

    def cut(line: str) -> list[str]:
        pieces: list[str] = []
        for word in line.split():
            if word not in known:
                known[word] = _cut_word(word, merges)
            pieces += known[word]
        return pieces

    return cut


def _cut_word(word: str, merges: Mapping[tuple[str, str], int]) -> list[str]:
    pieces = _letters(word)
    while len(pieces) > 1:
        best = min(pairwise(pieces), key=lambda pair: merges.get(pair, len(merges)))
        if best not in merges:
            break
        pieces = merged(pieces, best)
    return pieces


def _letters(word: str) -> list[str]:
    return [*(f"{letter}{GOES_ON}" for letter in word[:-1]), word[-1]]


def _sha256(parts: Iterable[str], kind: str) -> str:
    digest = hashlib.sha256(kind.encode())
    for part in parts:
        digest.update(b"\n" + part.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


# --- batches ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextBatch:
    """Padded sentences: `source` (b, s), `inputs` and `labels` of the decoder (b, t), and what counts of the labels."""

    source: Tensor
    inputs: Tensor
    labels: Tensor
    pairs: int

    def to(self, device: torch.device) -> "TextBatch":
        return TextBatch(self.source.to(device), self.inputs.to(device), self.labels.to(device), self.pairs)


def plan_batches(pairs: Sequence[Pair], tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Return which pairs make a batch, for one epoch: sentences of one length together, at most `tokens` with padding.

    The order is drawn from the seed and the epoch: every rank makes the same plan and takes its part of it.
    """
    draw = random.Random(f"{seed} {epoch}")
    order = list(range(len(pairs)))
    draw.shuffle(order)
    mean = max(1, sum(len(target) + 1 for _, target in pairs) // len(pairs))
    stretch = max(1, SORTED_TOGETHER * tokens // mean)
    batches: list[list[int]] = []
    for start in range(0, len(order), stretch):
        part = sorted(order[start : start + stretch], key=lambda index: (len(pairs[index][1]), len(pairs[index][0])))
        batch: list[int] = []
        longest = 0
        for index in part:
            size = max(len(pairs[index][0]), len(pairs[index][1])) + 1
            if batch and max(longest, size) * (len(batch) + 1) > tokens:
                batches.append(batch)
                batch, longest = [], 0
            batch.append(index)
            longest = max(longest, size)
        batches.append(batch)
    draw.shuffle(batches)
    return batches


def length_buckets(pairs: Sequence[Pair], longest: int) -> list[list[int]]:
    """Return the pairs by length, in buckets of one width: a pair is as long as the longer of its sentences."""
    width = -(-longest // BUCKETS)
    buckets: list[list[int]] = [[] for _ in range(BUCKETS)]
    for index, pair in enumerate(pairs):
        buckets[min(max(map(len, pair)) // width, BUCKETS - 1)].append(index)
    return buckets


def plan_bucketed(buckets: Sequence[Sequence[int]], pairs: int, ranks: int, seed: int, epoch: int) -> list[list[int]]:
    """Return which pairs make a batch, for one epoch: all from one bucket, and in a step from the same one for all ranks.

    The last step of a bucket has what is left, in equal parts, so up to ranks − 1 pairs of a bucket are left out.
    """
    draw = random.Random(f"{seed} {epoch}")
    steps: list[list[list[int]]] = []
    for bucket in buckets:
        order = draw.sample(bucket, len(bucket))
        for start in range(0, len(order), pairs * ranks):
            together = order[start : start + pairs * ranks]
            each = len(together) // ranks
            if each:
                steps.append([together[rank * each : (rank + 1) * each] for rank in range(ranks)])
    draw.shuffle(steps)
    return [batch for step in steps for batch in step]


def text_batch(pairs: Sequence[Pair]) -> TextBatch:
    source = _padded([[*one, END] for one, _ in pairs])
    inputs = _padded([[BEGIN, *other] for _, other in pairs])
    labels = _padded([[*other, END] for _, other in pairs])
    return TextBatch(source, inputs, labels, len(pairs))


def batches_of_rank(plan: Sequence[Sequence[int]], number: int, size: int) -> Iterator[Sequence[int]]:
    """Return one rank's share of an epoch: all ranks do the same number of steps, so up to size − 1 batches are left out."""
    steps = len(plan) // size
    for step in range(steps):
        yield plan[step * size + number]


def source_batch(sentences: Sequence[Sequence[int]]) -> Tensor:
    return _padded([[*one, END] for one in sentences])


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows], dtype=torch.long)
