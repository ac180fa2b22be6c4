"""The design of an experiment: its arms, how many blocks, in which order, and when to stop.

It is made before the first run, stored with the experiment, and never changed after it: `next_run` is a pure function of it
and of what is in the ledger, so a killed experiment goes on where it was, in the same order.

A block is one run of each arm. The order within blocks is shuffled: of two arms half of the blocks run AB and half BA, drawn
at random; more arms run random rows of Williams squares, in which every arm follows every other equally often (k rows for an
even k, 2k for an odd one). The seed is stored. Data are looked at only after whole squares, and each stretch between two looks
is shuffled by itself, so that every look is balanced.

Until rules 2 the order was AB BA AB BA …, which a disturbance with a period of four runs turns into a difference. A stored
design says by which ordering it was made, and keeps it.
"""

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Literal

from pydantic import Field, JsonValue, ValidationError, model_validator

from stackmark.errors import SpecError
from stackmark.frozen import Frozen
from stackmark.ledger.rows import Experiment
from stackmark.ledger.trouble import unreadable_design
from stackmark.spec import Scalar, Spec, explain
from stackmark.verdict.comparison import MOST_MARGIN

# More arms than anybody reads a table of: a Williams design of nine has 18 sequences of nine runs.
MOST_ARMS = 9
# More than anybody has time for; a stored number past it is a mistake, and would be counted through.
MOST_BLOCKS = 20_000
# How the order of a design is made: 1 is AB BA AB BA and the rows of one Williams square over and over, 2 is shuffled.
ALTERNATING, SHUFFLED = 1, 2
# The margin where none is given.
MARGIN = 0.01
# Disturbed blocks are measured again, up to this share of the blocks that were planned.
EXTRA_SHARE = 0.5


class Arm(Frozen):
    """A spec and a place with its options. `typed` are the parameters that the person gave to this arm alone."""

    label: str
    place: str
    place_options: dict[str, JsonValue] = {}
    typed: dict[str, Scalar] = {}
    spec: Spec


class StoppingRule(Frozen):
    """A rule fixed before the first run: after which numbers of blocks to look, and the nominal level of each look.

    `kind` is the function by which the looks spend `alpha`; `levels` are one-sided, of the tests behind a word, `levels_95`
    two-sided, behind a named difference.
    """

    kind: Literal["pocock", "obrien-fleming"] = "pocock"
    alpha: float = 0.05
    looks: list[int]
    levels: list[float]
    levels_95: list[float]

    @model_validator(mode="after")
    def _whole(self) -> "StoppingRule":
        if not self.looks or len(self.looks) != len(self.levels) or len(self.looks) != len(self.levels_95):
            raise ValueError("a stopping rule needs one level per look")
        if self.looks != sorted(set(self.looks)):
            raise ValueError("looks must be increasing numbers of blocks")
        return self


class Design(Frozen):
    arms: list[Arm] = Field(min_length=1, max_length=MOST_ARMS)
    blocks: int = Field(ge=1, le=MOST_BLOCKS, description="whole designs only: see whole_blocks")
    seed: int = Field(ge=0)
    margin: float = Field(gt=0, lt=1)
    # How many blocks may be repeated, in all, because a run in them failed.
    most_repeats: int = Field(default=2, ge=0)
    pause_s: float = Field(default=0.0, ge=0)
    primers: bool = True
    rule: StoppingRule | None = None
    # A design that was stored before this field existed has the first ordering.
    ordering: int = Field(default=ALTERNATING, ge=ALTERNATING, le=SHUFFLED)
    # Blocks that other programs disturbed are measured again, up to half as many as were planned; not in older designs.
    repeats_disturbed: bool = False
    # CPUs that other programs kept busy before the first run; None where the runs are on another machine.
    idle_cpus: float | None = Field(default=None, ge=0)
    # The version of the rules of judging (verdict/rules.py) when the design was made: its stopping rule looks with them.
    rules: int = Field(default=1, ge=1)
    # Whether the arms are rank counts, the first of them one rank: with the batch of each rank fixed, or that of all together.
    scaling: Literal["", "weak", "strong"] = ""
    # The devices of the arm of one rank, by block in turn, so that it is the average device; empty: as its spec says.
    rotation: list[str] = []

    @model_validator(mode="after")
    def _is_whole(self) -> "Design":
        if self.blocks % sequences_of(len(self.arms)):
            raise ValueError(f"{len(self.arms)} arms need a multiple of {sequences_of(len(self.arms))} blocks")
        if self.scaling and self.arms[0].spec.ranks != 1:
            raise ValueError("scaling is measured against one rank, which must be the first arm")
        if self.rule and self.rule.looks[-1] != self.blocks:
            raise ValueError("the last look must be after the last block")
        return self


class Finished(Frozen):
    """A run that ended, as the plan needs it. `series` names a period without a reboot or a long pause."""

    arm: int
    block: int
    attempt: int
    good: bool
    # The driver was killed or interrupted: the run did not fail, it was not made.
    cut_off: bool = False
    series: int = 0
    # Other programs used more of the machine than usual while it ran.
    disturbed: bool = False


class Assignment(Frozen):
    arm: int
    block: int
    attempt: int


class Done(Frozen):
    """Nothing is left to run. `short` says why, where the design is incomplete."""

    short: str = ""


def sequences_of(arms: int) -> int:
    """Return how many blocks make a whole design."""
    if arms <= 1:
        return 1
    return arms if arms % 2 == 0 else 2 * arms


def whole_blocks(arms: int, blocks: int) -> int:
    """Round up to whole designs."""
    size = sequences_of(arms)
    return -(-max(blocks, 1) // size) * size


def order_of(design: Design, block: int) -> list[int]:
    """Return the arms of a block in the order in which they run."""
    arms = len(design.arms)
    if design.ordering == ALTERNATING:
        return _alternating(arms, block, design.seed)
    ends = tuple(design.rule.looks) if design.rule else (design.blocks,)
    return list(_shuffled(arms, design.seed, ends)[block])


def _alternating(arms: int, block: int, seed: int) -> list[int]:
    dice = random.Random(seed)
    names = list(range(arms))
    dice.shuffle(names)
    if arms <= 2:
        return names if block % 2 == 0 else names[::-1]
    sequences = williams(arms)
    dice.shuffle(sequences)
    return [names[place] for place in sequences[block % len(sequences)]]


@lru_cache(maxsize=64)
def _shuffled(arms: int, seed: int, ends: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Draw the order of all blocks. `ends` are the numbers of blocks after which the order is balanced."""
    dice = random.Random(seed)
    orders: list[tuple[int, ...]] = []
    for end in ends:
        stretch: list[tuple[int, ...]] = []
        while len(orders) + len(stretch) < end:
            # Each square names its arms again: of four arms a square has 4 of the 24 possible orders.
            names = list(range(arms))
            dice.shuffle(names)
            stretch += [tuple(names[place] for place in row) for row in williams(arms)]
        dice.shuffle(stretch)
        orders += stretch
    return tuple(orders)


def williams(arms: int) -> list[list[int]]:
    """Make sequences in which every arm stands at every position, and follows every other arm, equally often."""
    if arms == 1:
        return [[0]]
    first = [0]
    low, high = 1, arms - 1
    while len(first) < arms:
        first.append(low if len(first) % 2 else high)
        low, high = (low + 1, high) if len(first) % 2 == 0 else (low, high - 1)
    square = [[(place + shift) % arms for place in first] for shift in range(arms)]
    return square if arms % 2 == 0 else square + [row[::-1] for row in square]


def spec_in_block(design: Design, arm: int, block: int) -> Spec:
    """Return what an arm runs in a block: a single rank takes each device in turn."""
    spec = design.arms[arm].spec
    if not design.rotation or spec.ranks != 1:
        return spec
    device = design.rotation[block % len(design.rotation)]
    return spec.model_copy(update={"params": {**spec.params, "device": device}})


def next_run(design: Design, finished: list[Finished], *, blocks: int | None = None) -> Assignment | Done:
    """Return what to run next, from all that ended so far. `blocks` is where to stop for a look, or the design's end."""
    until = design.blocks if blocks is None else blocks
    latest = {block: _attempt(design, finished, block) for block in range(until)}
    for block, (attempt, state, missing) in latest.items():
        if state == "open":
            return Assignment(arm=missing[0], block=block, attempt=attempt)
    known = whole(design, finished)
    failed = [
        (attempt, block) for block, (attempt, state, _) in latest.items() if state == "failed" and block not in known
    ]
    if not failed:
        return _next_disturbed(design, finished, latest) or Done()
    # A block that was torn apart is not the arm's fault, and uses up none of its repetitions.
    spoilt = {(run.block, run.attempt) for run in finished if not run.good and not run.cut_off}
    if len(spoilt) > design.most_repeats:
        which = ", ".join(str(block + 1) for _, block in failed)
        blocks_failed = f"block {which}" if len(failed) == 1 else f"blocks {which}"
        return Done(short=f"{blocks_failed} failed; the design allows {design.most_repeats} repeated blocks")
    attempt, block = min(failed)
    return Assignment(arm=order_of(design, block)[0], block=block, attempt=attempt + 1)


def _next_disturbed(
    design: Design, finished: list[Finished], latest: dict[int, tuple[int, str, list[int]]]
) -> Assignment | None:
    """Repeat a disturbed block in its own order, the one that was tried least first; None where none is left to repeat."""
    if not design.repeats_disturbed:
        return None
    every = whole_attempts(design, finished)
    extra = len({(run.block, run.attempt) for run in finished if run.attempt and (run.block, run.attempt - 1) in every})
    clean = {block for (block, _), disturbed in every.items() if not disturbed}
    made = {block for block, _ in every}
    left = [(attempt, block) for block, (attempt, _, _) in latest.items() if block in made and block not in clean]
    if not left or extra >= math.floor(EXTRA_SHARE * design.blocks):
        return None
    attempt, block = min(left)
    return Assignment(arm=order_of(design, block)[0], block=block, attempt=attempt + 1)


def whole(design: Design, finished: list[Finished]) -> dict[int, int]:
    """Return the complete blocks, each with the attempt that counts: the latest undisturbed one, else the latest."""
    found: dict[int, int] = {}
    for (block, attempt), _ in sorted(
        whole_attempts(design, finished).items(), key=lambda one: (not one[1], one[0][1])
    ):
        found[block] = attempt
    return dict(sorted(found.items()))


def whole_attempts(design: Design, finished: list[Finished]) -> dict[tuple[int, int], bool]:
    """Return all complete attempts at a block, and whether a run of it was disturbed."""
    made: dict[tuple[int, int], list[Finished]] = {}
    for run in finished:
        if not run.cut_off and run.block < design.blocks:
            made.setdefault((run.block, run.attempt), []).append(run)
    return {key: any(run.disturbed for run in runs) for key, runs in sorted(made.items()) if _is_whole(design, runs)}


def _is_whole(design: Design, runs: list[Finished]) -> bool:
    one_series = len({run.series for run in runs}) == 1
    return one_series and all(run.good for run in runs) and {run.arm for run in runs} == set(range(len(design.arms)))


def balanced(design: Design, blocks: dict[int, int]) -> dict[int, int]:
    """Select the whole blocks that a verdict may rest on: those in which the order of the arms is balanced.

    In a shuffled design an imbalance of one is allowed; where failed blocks leave more, the latest blocks that can mend it are
    left out. In an alternating one, neighbouring blocks balance each other, so a square counts whole or not at all.
    """
    if design.ordering == ALTERNATING:
        return _in_whole_squares(design, blocks)
    kept = dict(sorted(blocks.items()))
    while kept and imbalance(design, kept) > 1:
        without = {
            left: imbalance(design, [block for block in kept if block != left]) for left in sorted(kept, reverse=True)
        }
        del kept[min(without, key=lambda block: without[block])]
    return kept


def imbalance(design: Design, blocks: Collection[int]) -> int:
    """Count by how many blocks one arm stands more often at some place of the order than another arm does."""
    arms = range(len(design.arms))
    seen = Counter((place, arm) for block in blocks for place, arm in enumerate(order_of(design, block)))
    return max(
        (max(counts) - min(counts) for place in arms if (counts := [seen[place, arm] for arm in arms])), default=0
    )


def _in_whole_squares(design: Design, blocks: dict[int, int]) -> dict[int, int]:
    size = sequences_of(len(design.arms))
    complete = {
        first for first in range(0, design.blocks, size) if all(first + number in blocks for number in range(size))
    }
    return {block: attempt for block, attempt in blocks.items() if block - block % size in complete}


def _attempt(design: Design, finished: list[Finished], block: int) -> tuple[int, str, list[int]]:
    """The latest attempt at a block, whether it is whole, open or failed, and the arms that it still needs."""
    order = order_of(design, block)
    made = [run for run in finished if run.block == block and not run.cut_off]
    attempt = max((run.attempt for run in made), default=0)
    mine = [run for run in made if run.attempt == attempt]
    if any(not run.good for run in mine):
        return attempt, "failed", []
    if len({run.series for run in mine}) > 1:
        # Torn apart by a reboot or a long pause: its runs are no pair any more.
        return attempt, "failed", []
    missing = [arm for arm in order if arm not in {run.arm for run in mine}]
    if not missing:
        return attempt, "whole", []
    return attempt, "open", missing


def stored_design(experiment: Experiment) -> Design | None:
    """Return the design of an experiment with arms; None where it has one arm and no order to keep."""
    if experiment.design is None:
        return None
    try:
        return Design.model_validate(experiment.design)
    except ValidationError as error:
        raise unreadable_design(experiment.id, explain(error)) from error


def check_margin(margin: float) -> None:
    if not 0 < margin < MOST_MARGIN:
        raise SpecError(
            f"margin must be between 0 and {100 * MOST_MARGIN:g} %, got {100 * margin:g} %",
            hint="1 % is usual on an idle GPU; `stackmark noise` shows what this machine can decide",
        )


def unasked_differences(arms: Sequence[Arm]) -> list[str]:
    """Return parameters that differ between arms though no arm sets them: consequences of what was typed."""
    typed = {name for arm in arms for name in arm.typed}
    names = sorted({name for arm in arms for name in arm.spec.params} - typed)
    found = []
    for name in names:
        values = [arm.spec.params.get(name) for arm in arms]
        if any(value != values[0] for value in values):
            found.append(
                f"{name}: {', '.join(f'{value} ({arm.label})' for arm, value in zip(arms, values, strict=True))}"
            )
    return found
