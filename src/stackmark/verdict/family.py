"""Correct for several comparisons at once: with ten pairs at 5 % each, a false word somewhere is nearly even odds.

Holm decides within each family of claims: EQUIVALENT by the p of the two one-sided tests, SLOWER and FASTER by the larger p of
lying beyond the margin and of differing at all, the named difference by its two-sided p. In each, the chance of any false claim
at all stays within 5 %. The intervals are printed as they are, and a note says so: whoever reads one of them alone reads it
right.
"""

from collections.abc import Sequence
from dataclasses import replace

from stackmark.verdict.comparison import Comparison, SpeedWord, word_in
from stackmark.verdict.evidence import ALPHA
from stackmark.verdict.ratio import finished

# How the note of each comparison of a family begins; a screen says it once for all of them.
HOLM_NOTE = "decided by Holm"


def holm(comparisons: Sequence[Comparison], *, multiple: int = 1) -> tuple[Comparison, ...]:
    """Decide words and differences of several comparisons by Holm; a single one stays as it is.

    Not for looks of a stopping rule: there the comparisons share alpha (see sequential.stopping_rule).
    """
    if len(comparisons) < 2:
        return tuple(comparisons)
    equivalent = rejected([one.p_equivalence for one in comparisons], ALPHA)
    outside = rejected([one.p_outside for one in comparisons], ALPHA)
    different = rejected([one.p_difference for one in comparisons], ALPHA)
    decided = zip(comparisons, equivalent, outside, different, strict=True)
    return tuple(_decided(one, *decisions, family=len(comparisons), multiple=multiple) for one, *decisions in decided)


def rejected(p_values: Sequence[float | None], alpha: float) -> list[bool]:
    """Apply Holm's step-down: the smallest p against alpha/k, the next against alpha/(k−1), until one fails.

    A comparison without a p stands in the count: it was asked too.
    """
    found = [False] * len(p_values)
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    for step, (p, index) in enumerate(known):
        if p > alpha / (len(p_values) - step):
            break
        found[index] = True
    return found


def _decided(
    one: Comparison, equivalent: bool, outside: bool, different: bool, *, family: int, multiple: int
) -> Comparison:
    if one.p_equivalence is None:
        # Without a p there is nothing for Holm to decide: no interval, or no spread, which its own notes say.
        return replace(one, family=family)
    decision: SpeedWord = "INCONCLUSIVE"
    if equivalent:
        decision = "EQUIVALENT"
    elif outside:
        decision = "SLOWER" if one.ratio < 1 else "FASTER"
    word = word_in(one.terms, decision)
    difference = one.difference if different else None
    notes = [*one.notes, f"{HOLM_NOTE} over {family} comparisons; the intervals are not adjusted for it"]
    if word != one.word:
        notes.append(f"alone it would be {one.word}")
    # FASTER says it already.
    if difference != one.difference and one.difference != one.word.lower():
        notes.append(f"alone it would be called {one.difference}")
    changed = replace(one, word=word, difference=difference, notes=tuple(notes), family=family)
    if word == one.word and difference == one.difference and (word == "INCONCLUSIVE" or one.assumed):
        return changed
    return finished(changed, alpha=ALPHA / family, multiple=multiple)
