"""What is said of an experiment, decided once: which sentences, which rows, in which order.

The terminal (verdict.py), the page (report/html.py) and the Markdown (report/markdown.py) lay the same sections out, each with
the room that it has: a terminal shows the first few differences, the page all of them, and pictures. None of them chooses or
words anything by itself.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from stackmark.figures import LOWER_IS_BETTER, figure_unit, name_of_figures
from stackmark.show.quality import quality_lines, say_seeds
from stackmark.show.result import say_flag, say_steadiness
from stackmark.show.wording import (
    LETTERS,
    Percentiles,
    bad_runs,
    letter,
    measured_runs,
    percentiles,
    say_answer,
    say_arm_rate,
    say_bad_run_shares,
    say_in_own_terms,
    say_order,
    say_setup_difference,
    say_spread,
    say_took,
    setup_total_s,
    stopped,
)
from stackmark.units import counted, say_minute, say_percent, say_seconds
from stackmark.verdict.cautions import Caution, caution, in_order
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.covariates import BY_NAME
from stackmark.verdict.examined import CovariateLine, Examined, ExaminedArm, ExaminedRun, FactDifference
from stackmark.verdict.noise import noise_floor
from stackmark.verdict.rules import say_rules

# Next to each word a sign that needs no colour, and the name of its colour in the page.
SIGNS = {
    "EQUIVALENT": ("=", "same"),
    "SLOWER": ("▼", "slower"),
    "FASTER": ("▲", "faster"),
    "LIKELY SLOWER": ("▼", "slower"),
    "LIKELY FASTER": ("▲", "faster"),
    "WORSE": ("▼", "slower"),
    "BETTER": ("▲", "faster"),
    "LIKELY WORSE": ("▼", "slower"),
    "LIKELY BETTER": ("▲", "faster"),
    "INCONCLUSIVE": ("?", "open"),
    "SCALES": ("=", "same"),
    "FALLS SHORT": ("▼", "slower"),
}
# More comparisons than these are summed up.
MOST_HEADLINES = 3
NO_REASON = "no reason is known"
EQUAL_ARMS_DIFFER = (
    "the two equal arms differ by more than chance allows in 95 of 100 experiments: is the machine shared?"
)
_NUMBERS = re.compile(r"[\d.,]+")


@dataclass(frozen=True)
class Headline:
    """The word of a verdict and the sentence that stands behind it, which does not begin with the word again."""

    word: str
    sign: str
    colour: str
    sentence: str


@dataclass(frozen=True)
class ArmRow:
    """An arm and its numbers in words; a text is empty where there is no such number."""

    arm: ExaminedArm
    # In its own terms, with its unit.
    figure: str
    spread: str
    bounds: str
    runs: int
    cv: str
    failed: int
    setup: str
    steadiness: str


@dataclass(frozen=True)
class DifferenceRow:
    """A fact in which arms differ; `values` has one for each arm, None where it is not known."""

    fact: FactDifference
    values: tuple[str | None, ...]


@dataclass(frozen=True)
class ConditionRow:
    """A covariate in words, each arm's median in words, and what that says."""

    words: str
    values: tuple[str, ...]
    remark: str
    # Zero, or unknown, in all arms.
    quiet: bool


@dataclass(frozen=True)
class FailureRow:
    """A run that failed or is invalid, and is in no number."""

    run: ExaminedRun
    label: str
    kind: str
    message: str
    hint: str


class Sections:
    """The sections of one experiment, each computed when a renderer comes to it."""

    def __init__(self, examined: Examined) -> None:
        self.examined = examined

    # The verdict

    @cached_property
    def headlines(self) -> list[Headline]:
        """One for each comparison; where there is none, one that says what there is instead."""
        examined = self.examined
        if examined.comparisons:
            return [Headline(c.word, *SIGNS[c.word], self._after_word(c)) for c in examined.comparisons]
        measured = [arm for arm in examined.arms if arm.throughput]
        if not measured:
            why = "Too few runs reached the target." if examined.quality else "No run gave a number."
            return [Headline("NO RESULT", "×", "slower", why)]
        sentences = [f"{arm.label}: {say_arm_rate(arm)}." for arm in measured]
        word = "MEASURED" if examined.state == "done" else "UNFINISHED"
        return [Headline(word, "•" if word == "MEASURED" else "?", "plain", " ".join(sentences))]

    def sentence(self, comparison: Comparison) -> str:
        """Return the sentence of a comparison, in the terms of its arms' figures."""
        return say_in_own_terms(comparison, figure_unit(next((arm.unit for arm in self.examined.arms), "")))

    def answer(self, comparison: Comparison) -> str:
        """Return the verdict with its word first, in one plain sentence."""
        return say_answer(comparison, figure_unit(next((arm.unit for arm in self.examined.arms), "")))

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """What speaks against the result, interference first, then by severity."""
        found = [caution(getattr(said, "kind", "") or "note", said) for said in self.examined.warnings]
        found += [
            caution("not-usable", f"{arm.label} is NOT USABLE: {arm.unusable.text}")
            for arm in self.examined.arms
            if arm.unusable
        ]
        # What runs that were not measured in blocks cannot show.
        found += [
            caution("not-in-blocks", note) for c in self.examined.comparisons if c.kind == "runs" for note in c.notes
        ]
        if self.examined.kind == "noise" and (floor := noise_floor(self.examined)) and floor.differs:
            found.append(caution("equal-arms-differ", EQUAL_ARMS_DIFFER))
        return in_order(Caution(one.kind, one.severity, str(one.text)) for one in found)

    def _after_word(self, comparison: Comparison) -> str:
        return stopped(self.sentence(comparison).removeprefix(f"{comparison.word} "))

    @cached_property
    def is_summed_up(self) -> bool:
        """Whether there are too many comparisons for a sentence each: nine arms make 36 pairs."""
        return len(self.examined.comparisons) > MOST_HEADLINES

    @cached_property
    def words(self) -> str:
        """How many comparisons came to which word."""
        counts = Counter(comparison.word for comparison in self.examined.comparisons)
        return ", ".join(f"{count} {word}" for word, count in counts.items())

    @cached_property
    def family(self) -> int:
        """Over how many comparisons Holm decided."""
        return max((comparison.family for comparison in self.examined.comparisons), default=1)

    @cached_property
    def undecided(self) -> list[Comparison]:
        """The comparisons for which it is known what would decide them."""
        return [comparison for comparison in self.examined.comparisons if comparison.needed]

    @cached_property
    def why_no_verdict(self) -> str:
        """Why arms were measured and none is compared."""
        examined = self.examined
        if examined.scaling and examined.scaling.refused:
            return "; ".join(examined.scaling.refused)
        if not examined.blocks_whole:
            return "there is no block in which every arm has a run that counts"
        # Every row of a Williams square in an alternating order: less would have a drift in its ratio.
        whole = counted(examined.blocks_whole, "block")
        return f"{whole} of {examined.blocks_planned} are whole, which is less than one design in its balanced order"

    @cached_property
    def bad_run_shares(self) -> list[str]:
        return say_bad_run_shares(self.examined)

    # What was measured

    @cached_property
    def arms(self) -> list[ArmRow]:
        return [_arm_row(self.examined, arm) for arm in self.examined.arms]

    @cached_property
    def figure_name(self) -> str:
        """What the arms' numbers are called at the head of a column."""
        arms = [arm for arm in self.examined.arms if arm.throughput]
        return name_of_figures([arm.unit for arm in arms])

    @cached_property
    def direction(self) -> str:
        """Say which way is better, after the name; nothing of rates."""
        return "" if self.figure_name == "rate" else f", {LOWER_IS_BETTER}"

    def step(self, arm: ExaminedArm) -> Percentiles | None:
        return percentiles(self.examined, arm.index)

    @cached_property
    def limits(self) -> list[tuple[ExaminedArm, list[str]]]:
        """How far arms are from the limits of their machine, a sentence each."""
        return [(arm, [stopped(said) for said in arm.limits]) for arm in self.examined.arms if arm.limits]

    @cached_property
    def setup_difference(self) -> str:
        return say_setup_difference([arm for arm in self.examined.arms if arm.setup])

    # Why one may believe it

    @cached_property
    def differences(self) -> list[DifferenceRow]:
        """Facts in which arms differ: those first that show an effect, then by what is known to matter."""
        found = sorted(self.examined.differences, key=lambda one: (-one.shows_effect, -one.weight))
        return [DifferenceRow(one, _values(one, len(self.examined.arms))) for one in found]

    @cached_property
    def conditions(self) -> list[ConditionRow]:
        return [_condition(one, len(self.examined.arms)) for one in self.examined.covariates]

    @cached_property
    def flags(self) -> list[str]:
        """Each flag once, in the first run's words, with how many runs of which arm had it."""
        first: dict[str, str] = {}
        counts: Counter[tuple[str, int]] = Counter()
        for run in measured_runs(self.examined):
            for flag in run.flags:
                kind = _NUMBERS.sub("#", flag)
                first.setdefault(kind, flag)
                counts[kind, run.arm] += 1
        of = {
            key: ", ".join(f"{n} × {letter(arm)}" for (kind, arm), n in sorted(counts.items()) if kind == key)
            for key in first
        }
        return [f"{say_flag(said)} ({of[key]})" for key, said in first.items()]

    @cached_property
    def failures(self) -> list[FailureRow]:
        return [_failure(self.examined, run) for run in bad_runs(self.examined)]

    @cached_property
    def quality(self) -> list[tuple[str, str]]:
        """How the runs of each arm came to their target: name and text of each line."""
        several = len(self.examined.arms) > 1
        # Of arms that are one and the same it is one number.
        seeds = next((say_seeds(found) for found in self.examined.quality if found and found.seeds), "")
        lines = [
            (name, f"{arm.label}: {said}" if several else said)
            for arm, found in zip(self.examined.arms, self.examined.quality, strict=False)
            if found
            for name, said in quality_lines(found)
        ]
        return [*lines, *([("seeds", seeds)] if seeds else [])]

    @cached_property
    def rules(self) -> str:
        return say_rules(self.examined.rules_made)

    @cached_property
    def order(self) -> str:
        """AB BA AB BA: the arms' letters, a word a block."""
        return say_order(self.examined, LETTERS)

    @cached_property
    def method(self) -> list[str]:
        """How it was measured."""
        examined = self.examined
        facts = [*examined.method, self.rules]
        if examined.order:
            seed = f" (seed {examined.seed})." if examined.seed is not None else "."
            facts.append(f"Order of the runs, a word a block: {self.order}{seed}")
        if examined.blocks_planned:
            again = f"; {counted(examined.blocks_repeated, 'block')} repeated" if examined.blocks_repeated else ""
            facts.append(f"{examined.blocks_whole} of {counted(examined.blocks_planned, 'block')} whole{again}.")
        took = say_took(examined)
        facts.append(f"Begun {say_minute(examined.created_unix_s)}" + (f"; it took {took}." if took else "."))
        return facts


def _arm_row(examined: Examined, arm: ExaminedArm) -> ArmRow:
    rate, bounds = arm.throughput, ""
    if rate and rate.low_per_s is not None and rate.high_per_s is not None:
        bounds = arm.figure_unit.scaled(rate.rate_per_s).say_bounds(rate.low_per_s, rate.high_per_s)
    return ArmRow(
        arm=arm,
        figure=arm.figure_unit.scaled(rate.rate_per_s).say(rate.rate_per_s) if rate else "",
        spread=say_spread(rate) if rate else "",
        bounds=bounds,
        runs=rate.runs if rate else 0,
        cv=f"spread {say_percent(rate.cv, figures=2)}" if rate and rate.cv is not None else "",
        failed=sum(1 for run in bad_runs(examined) if run.role == "measured" and run.arm == arm.index),
        setup=say_seconds(setup_total_s(arm)) if arm.setup else "",
        steadiness=say_steadiness(arm.steadiness),
    )


def _values(one: FactDifference, arms: int) -> tuple[str | None, ...]:
    return tuple(one.values[index] if index < len(one.values) else None for index in range(arms))


def _condition(one: CovariateLine, arms: int) -> ConditionRow:
    medians = [one.medians[index] if index < len(one.medians) else None for index in range(arms)]
    return ConditionRow(
        words=BY_NAME[one.name].words if one.name in BY_NAME else one.name,
        values=tuple(_say_median(value, one.unit) for value in medians),
        remark=one.remark,
        quiet=not one.remark and not any(one.medians),
    )


def _say_median(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return f"{100 * value:.3g} %" if unit == "share" else f"{value:,.4g} {unit}"


def _failure(examined: Examined, run: ExaminedRun) -> FailureRow:
    label = next((arm.label for arm in examined.arms if arm.index == run.arm), f"arm {run.arm + 1}")
    kind, message = run.failure_kind or run.status, run.failure_message or NO_REASON
    return FailureRow(run, label, kind, message, run.failure_hint or "")


def differences_worth(rows: Sequence[DifferenceRow], weight: int) -> list[DifferenceRow]:
    """Return those that are known to matter at least so much, or show an effect."""
    return [row for row in rows if row.fact.shows_effect or row.fact.weight >= weight]
