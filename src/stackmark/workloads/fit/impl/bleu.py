"""BLEU of a corpus, as sacreBLEU computes it with its tokenizers 13a or intl and its exponential smoothing.

It is written here so that a worker needs no package for it; a test compares it with sacreBLEU.
"""

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache

ORDER = 4
Tokenizer = Callable[[str], list[str]]
# From this character on Unicode has no numbers, punctuation or symbols.
LATER_PLANES = 0x20000
_ENTITIES = (("<skipped>", ""), ("-\n", ""), ("\n", " "), ("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
# The tokenizer of NIST's mteval-v13a: punctuation, a period or comma next to no digit, a dash after a digit.
_RULES = (
    (re.compile(r"([\{-\~\[-\` -\&\(-\+\:-\@\/])"), r" \1 "),
    (re.compile(r"([^0-9])([\.,])"), r"\1 \2 "),
    (re.compile(r"([\.,])([^0-9])"), r" \1 \2"),
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)


def tokens_13a(text: str) -> list[str]:
    for entity, meaning in _ENTITIES:
        text = text.replace(entity, meaning)
    text = f" {text} "
    for rule, into in _RULES:
        text = rule.sub(into, text)
    return text.split()


def tokens_intl(text: str) -> list[str]:
    """Cut at symbols, and at punctuation that does not stand between digits, by Unicode's classes of characters."""
    for rule, into in _unicode_rules():
        text = rule.sub(into, text)
    return text.split()


@cache
def _unicode_rules() -> tuple[tuple[re.Pattern[str], str], ...]:
    # `re` has no classes of Unicode, so they are listed.
    listed: defaultdict[str, list[str]] = defaultdict(list)
    for character in map(chr, range(LATER_PLANES)):
        listed[unicodedata.category(character)[0]].append(character)
    number, punctuation, symbol = (re.escape("".join(listed[kind])) for kind in "NPS")
    return (
        (re.compile(f"([^{number}])([{punctuation}])"), r"\1 \2 "),
        (re.compile(f"([{punctuation}])([^{number}])"), r" \1 \2"),
        (re.compile(f"([{symbol}])"), r" \1 "),
    )


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenizer: Tokenizer = tokens_13a,
) -> float:
    """Return BLEU from 0 to 100: one reference for each hypothesis."""
    matched, possible = [0] * ORDER, [0] * ORDER
    length = reference_length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        if lowercase:
            hypothesis, reference = hypothesis.lower(), reference.lower()
        ours, theirs = tokenizer(hypothesis), tokenizer(reference)
        length += len(ours)
        reference_length += len(theirs)
        for n in range(1, ORDER + 1):
            found = _ngrams(ours, n)
            possible[n - 1] += sum(found.values())
            matched[n - 1] += sum((found & _ngrams(theirs, n)).values())
    if not length or not matched[0]:
        return 0.0
    smooth, logs = 1.0, 0.0
    for right, of in zip(matched, possible, strict=True):
        if not of:
            return 0.0  # no hypothesis is that long
        if not right:
            smooth *= 2
        logs += math.log(right / of if right else 1 / (smooth * of))
    brevity = min(0.0, 1 - reference_length / length)
    return 100 * math.exp(brevity + logs / ORDER)


def _ngrams(tokens: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(tokens[start : start + n]) for start in range(len(tokens) - n + 1))
