"""BLEU of a corpus, as sacreBLEU computes it with its tokenizer 13a and its exponential smoothing.

It is written here so that a worker needs no package for it; a test compares it with sacreBLEU.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence

ORDER = 4
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


def corpus_bleu(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False) -> float:
    """Return BLEU from 0 to 100: one reference for each hypothesis."""
    matched, possible = [0] * ORDER, [0] * ORDER
    length = reference_length = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        if lowercase:
            hypothesis, reference = hypothesis.lower(), reference.lower()
        ours, theirs = tokens_13a(hypothesis), tokens_13a(reference)
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
