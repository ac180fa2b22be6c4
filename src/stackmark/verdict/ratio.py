"""Compare two arms of one experiment: a ratio from paired blocks, with its intervals and its verdict.

Per block d = ln R_b − ln R_a; the ratio is exp(mean d), its intervals exp(mean d ± t·s_d/√n). At the margin m, a band from
1−m to 1/(1−m): EQUIVALENT where the 90 % interval lies inside (two one-sided tests at 5 %, TOST), SLOWER or FASTER where it lies
entirely outside and the 95 % interval excludes 1, else INCONCLUSIVE with what it would take. A difference is named where the
95 % interval excludes 1, whatever the word.

Student's t takes the noise for normal. Where blocks spread by more than 3 %, that matters: from six blocks on an exact
sign-flip test over the blocks is made too (evidence.py), and a word that it does not support says so.

The same is done for runs that were not paired, for series and for a published constant: `judged` is the common end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

from stackmark.figures import Terms
from stackmark.verdict.comparison import (
    Comparison,
    Difference,
    Interval,
    Kind,
    Needed,
    SpeedWord,
    difference_in,
    word_in,
)
from stackmark.verdict.evidence import (
    ALPHA,
    NO_SPREAD,
    Evidence,
    Floats,
    efficiency_words,
    limit_of,
    logs_of,
    named_differences,
    one_sided_p,
    paired,
    reach,
    sign_flip_p,
    words,
)
from stackmark.verdict.needed import UNIT, Pilot, needed, plural
from stackmark.verdict.rules import RULES
from stackmark.verdict.sentence import sentence_of

# The one-sided level of the tests behind a word, and the two-sided one behind a named difference.
Levels = tuple[float, float]
AT_A_LOOK = (
    "the intervals follow the stopping rule, which was fixed before the first run: they are wider than without it, so that they "
    "hold at any look it stops at"
)


@dataclass(frozen=True)
class Pair:
    """Two labels, the unit of comparison, and the numbers of samples."""

    a: str
    b: str
    kind: Kind
    count_a: int
    count_b: int
    terms: Terms = "speed"


def compare_blocks(
    a: str,
    b: str,
    logs_a: Sequence[float],
    logs_b: Sequence[float],
    margin: float,
    *,
    levels: Levels | None = None,
    multiple: int = 2,
    block_s: float | None = None,
    rules: int = RULES,
    terms: Terms = "speed",
) -> Comparison:
    """Compare B with A from ln R of each block, both in the order of the blocks.

    `levels` are those of a look of a stopping rule (sequential.py). `multiple` is how many blocks make a whole design, `block_s`
    what one takes. `rules` is the version of the rules: a stored design stops by those that it was made under. `terms` are those
    of the figure.
    """
    first, second = logs_of(logs_a, a), logs_of(logs_b, b)
    if first.size != second.size:
        raise ValueError(f"a block has one run of each arm, but there are {first.size} of {a} and {second.size} of {b}")
    pair = Pair(a, b, "blocks", first.size, second.size, terms)
    differences = second - first
    if differences.size == 1:
        return without_interval(pair, float(differences[0]), margin)
    notes = (AT_A_LOOK,) if levels else ()
    return judged(
        pair, paired(differences), margin, levels=levels, multiple=multiple, notes=notes, rules=rules,
        differences=differences, block_s=block_s,
    )  # fmt: skip


def judged(
    pair: Pair,
    evidence: Evidence,
    margin: float,
    *,
    levels: Levels | None = None,
    multiple: int = 1,
    notes: tuple[str, ...] = (),
    rules: int = RULES,
    differences: Floats | None = None,
    block_s: float | None = None,
) -> Comparison:
    """Make the comparison that the evidence of one experiment allows at a margin.

    `differences` are those of its blocks, for the test of their signs; without blocks there is none.
    """
    limit = limit_of(margin)
    level, level_difference = levels or (ALPHA, ALPHA)
    mean, error, df, sd = (float(part) for part in (evidence.mean, evidence.error, evidence.df, evidence.sd))
    reach_90, reach_95 = reach(evidence, level), reach(evidence, level_difference / 2)
    spread = sd > NO_SPREAD
    if not spread:
        notes = (*notes, _no_spread(pair.kind))
    one_sided = pair.terms == "efficiency"
    if one_sided:
        decided = efficiency_words(evidence.mean, reach_90, limit, reach_95=reach_95)
    else:
        decided = words(evidence.mean, reach_90, limit, reach_95=reach_95 if rules > 1 else None)
    word = cast(SpeedWord, str(decided))
    # An efficiency has the one word: that it is not 100 % is no finding.
    named = "" if one_sided else str(named_differences(evidence.mean, reach_95))
    comparison = Comparison(
        a=pair.a,
        b=pair.b,
        kind=pair.kind,
        count_a=pair.count_a,
        count_b=pair.count_b,
        ratio=_exp(mean),
        interval_90=_interval(mean, float(reach_90), 0.90),
        interval_95=_interval(mean, float(reach_95), 0.95),
        sd_log=sd,
        margin=margin,
        word=word_in(pair.terms, word),
        # Where nothing spreads, a difference of the last digit is rounding.
        difference=_difference(pair.terms, named) if spread or abs(mean) > NO_SPREAD else None,
        p_equivalence=_p_equivalence(mean, error, df, limit, one_sided) if spread else None,
        p_difference=2 * one_sided_p(-abs(mean), error, df, 0.0, "below") if spread else None,
        p_outside=_p_outside(mean, error, df, limit, one_sided) if spread else None,
        needed=None,
        sentence="",
        notes=notes,
        df=df,
        p_sign_flip=sign_flip_p(differences, word, margin) if differences is not None else None,
        block_s=block_s,
        terms=pair.terms,
    )
    return finished(comparison, alpha=level, multiple=multiple)


def _difference(terms: Terms, named: str) -> Difference | None:
    return difference_in(terms, cast(Literal["slower", "faster"], named)) if named else None


def finished(comparison: Comparison, *, alpha: float = ALPHA, multiple: int = 1) -> Comparison:
    """Add the sentence, and for INCONCLUSIVE what would decide it."""
    more: Needed | None = None
    if comparison.word == "INCONCLUSIVE" and comparison.sd_log is not None and comparison.df is not None:
        ran = comparison.count_b if comparison.count_a == 0 else min(comparison.count_a, comparison.count_b)
        mean = math.log(comparison.ratio)
        pilot = Pilot(
            # An efficiency above 1 is nearer to nothing: only its lower side is asked.
            comparison.kind, min(mean, 0.0) if comparison.terms == "efficiency" else mean, comparison.sd_log, comparison.df, ran,
            shown=comparison.difference is not None, block_s=comparison.block_s,
        )  # fmt: skip
        more = needed(pilot, comparison.margin, alpha=alpha, multiple=multiple)
    return replace(comparison, needed=more, sentence=sentence_of(comparison))


def without_interval(pair: Pair, mean: float, margin: float, why: str = "", advice: Needed | None = None) -> Comparison:
    """Compare without an interval: one sample has no spread, so nothing can be decided or forecast."""
    limit_of(margin)
    unit = UNIT[pair.kind]
    comparison = Comparison(
        a=pair.a,
        b=pair.b,
        kind=pair.kind,
        count_a=pair.count_a,
        count_b=pair.count_b,
        ratio=_exp(mean),
        interval_90=None,
        interval_95=None,
        sd_log=None,
        margin=margin,
        word="INCONCLUSIVE",
        difference=None,
        p_equivalence=None,
        p_difference=None,
        needed=advice or Needed(None, f"four or more {plural(pair.kind)} tell how many are needed; six are usual"),
        sentence="",
        notes=(
            why or f"one {unit} has no spread, so it has no interval: how far the next would be from it is not known",
        ),
        terms=pair.terms,
    )
    return replace(comparison, sentence=sentence_of(comparison))


def _no_spread(kind: Kind) -> str:
    return (
        f"all {plural(kind)} gave the same number, so the interval has no width: this shows how coarsely the metric is "
        "counted, not how precise it is; measure with more digits, or longer, before you rely on it"
    )


def _p_equivalence(mean: float, error: float, df: float, limit: float, one_sided: bool) -> float:
    """TOST: the larger p of "not slower by the margin" and "not faster by the margin"; of an efficiency the first alone."""
    above = one_sided_p(mean, error, df, -limit, "above")
    return above if one_sided else max(one_sided_p(mean, error, df, limit, "below"), above)


def _p_outside(mean: float, error: float, df: float, limit: float, one_sided: bool) -> float:
    """Return the p behind SLOWER and FASTER: both "by more than the margin" and "different at all" must be shown."""
    beyond = one_sided_p(mean, error, df, -limit, "below")
    if not one_sided:
        beyond = min(beyond, one_sided_p(mean, error, df, limit, "above"))
    return max(beyond, 2 * one_sided_p(-abs(mean), error, df, 0.0, "below"))


def _interval(mean: float, half: float, confidence: float) -> Interval:
    return Interval(_exp(mean - half), _exp(mean + half), confidence)


def _exp(value: float) -> float:
    """Two runs an arm that differ wildly give an end of e^±5000: still a number, as JSON wants it."""
    return math.exp(min(max(value, -700.0), 700.0))
