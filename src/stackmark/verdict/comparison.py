"""The result of comparing two arms, as data. ratio.py, sequential.py, unpaired.py and series.py compute it.

A ratio is B over A, oriented so that above one B is better. `word` is the verdict at the margin; next to it, `difference` names
a difference that the 95 % interval shows to be real, however small. "Not significantly different" is never written as "the same".
Rates and times are SLOWER or FASTER; any other figure (a quality, a cost) is WORSE or BETTER. Both kinds of words mean the same
to statistics and to exit codes: `is_slower` and `is_faster` are about the direction.

Where B has N times the devices of A, both rates are per device, and the ratio is the efficiency. It SCALES or FALLS SHORT: the
question has one side, since an efficiency above the margin is good however high it is (scaling.py).
"""

from dataclasses import dataclass
from typing import Literal

from stackmark.figures import Terms
from stackmark.verdict.bad_runs import BadRuns

# LIKELY is said of a baseline with fewer than three series, where only an allowance for the change of series stands behind it.
SpeedWord = Literal["EQUIVALENT", "SLOWER", "FASTER", "LIKELY SLOWER", "LIKELY FASTER", "INCONCLUSIVE"]
Word = Literal[SpeedWord, "WORSE", "BETTER", "LIKELY WORSE", "LIKELY BETTER", "SCALES", "FALLS SHORT"]
Difference = Literal["slower", "faster", "worse", "better"]
_QUALITY_WORDS: dict[SpeedWord, Word] = {
    "SLOWER": "WORSE",
    "FASTER": "BETTER",
    "LIKELY SLOWER": "LIKELY WORSE",
    "LIKELY FASTER": "LIKELY BETTER",
}
_EFFICIENCY_WORDS: dict[SpeedWord, Word] = {"EQUIVALENT": "SCALES", "FASTER": "SCALES", "SLOWER": "FALLS SHORT"}
# What the numbers were paired by: blocks of one experiment; nothing (Welch); series before and after; a constant.
Kind = Literal["blocks", "runs", "series", "published"]


def word_in(terms: Terms, word: SpeedWord) -> Word:
    """Return the word of a verdict in the terms of its figure."""
    if terms == "efficiency":
        return _EFFICIENCY_WORDS.get(word, word)
    return _QUALITY_WORDS.get(word, word) if terms == "quality" else word


def difference_in(terms: Terms, difference: Literal["slower", "faster"]) -> Difference:
    """Return the name of a difference in the terms of its figure."""
    if terms != "quality":
        return difference
    return "worse" if difference == "slower" else "better"


@dataclass(frozen=True)
class Interval:
    """An interval of the ratio, not of its logarithm."""

    low: float
    high: float
    confidence: float


# A margin is smaller than this: of rates that differ by half nobody asks whether they are equivalent.
MOST_MARGIN = 0.5
# What may decide an open question, in the order in which it costs more: other programs ended, longer runs, a wider margin, more
# blocks; and that more blocks are no way.
AdviceKind = Literal["free-machine", "longer-runs", "wider-margin", "more-blocks", "not-by-blocks"]


@dataclass(frozen=True)
class Advice:
    """One thing to do. `kind` is for programs."""

    kind: AdviceKind
    words: str


@dataclass(frozen=True)
class Needed:
    """The number of blocks (runs, series) in all that would decide at this margin; None where no number is likely to.

    `seconds` is what the missing ones take, where the time of a block is known. `practical` is False where that is more than
    anybody waits for. `advice` is what to do, the cheapest first, and `sentence` says it all.
    """

    count: int | None
    sentence: str
    seconds: float | None = None
    practical: bool = True
    advice: tuple[Advice, ...] = ()


@dataclass(frozen=True)
class Comparison:
    """B against A. Intervals are unadjusted, also where Holm decided; they are None where one sample has no spread."""

    a: str
    b: str
    kind: Kind
    count_a: int
    count_b: int
    ratio: float
    interval_90: Interval | None
    interval_95: Interval | None
    # Standard deviation of ln R_b − ln R_a between blocks; of the pooled ln R where nothing was paired.
    sd_log: float | None
    margin: float
    word: Word
    difference: Difference | None
    p_equivalence: float | None
    p_difference: float | None
    needed: Needed | None
    # The verdict in one sentence, without its scope.
    sentence: str
    notes: tuple[str, ...] = ()
    # Of the comparisons in one family; above 1 Holm decided.
    family: int = 1
    # What SLOWER and FASTER rest on, as EQUIVALENT on p_equivalence: the larger p of "by more than the margin" (one-sided)
    # and of "different at all" (two-sided).
    p_outside: float | None = None
    # Degrees of freedom of sd_log.
    df: float | None = None
    # Of the sign-flip test over blocks; None where it was not made.
    p_sign_flip: float | None = None
    # Of the permutation log-rank test, where a run did not reach its target quality.
    p_log_rank: float | None = None
    # Of A and of B, and the p of Fisher's test between them where a run is an outlier.
    bad_runs: tuple[BadRuns, ...] = ()
    p_bad_runs: float | None = None
    # What a block takes, for forecasts in minutes.
    block_s: float | None = None
    # Whether its words are about speed or about quality and cost.
    terms: Terms = "speed"
    # What must stand in the first sentence with the word: blocks that other programs disturbed.
    caveats: tuple[str, ...] = ()
    # Whether the intervals rest on the spread of other runs in the ledger, since a side has a single run.
    assumed: bool = False
    # Of a side with a single run and no known spread: by which factor one run would have to differ from the next for the
    # ratio to be chance (the exponential of σ*).
    chance_factor: float | None = None
    # The word for undated logs alone, where the verdict is INCONCLUSIVE because nothing is known of other days.
    word_in_logs: Word | None = None

    @property
    def is_slower(self) -> bool:
        """Whether B is slower, or worse where the figure is not a rate or a time; also where that is only likely.

        An efficiency that FALLS SHORT is one too.
        """
        return self.word in ("SLOWER", "LIKELY SLOWER", "WORSE", "LIKELY WORSE", "FALLS SHORT")

    @property
    def is_faster(self) -> bool:
        """Whether B is faster, or better where the figure is not a rate or a time; also where that is only likely."""
        return self.word in ("FASTER", "LIKELY FASTER", "BETTER", "LIKELY BETTER")

    @property
    def is_likely(self) -> bool:
        return self.word.startswith("LIKELY ")
