"""The design of an experiment: its arms, how many blocks, in which order, and when to stop.

It is made before the first run, stored with the experiment, and never changed after it: `next_run` is a pure function of it
and of what is in the ledger, so a killed experiment goes on where it was, in the same order.

A block is one run of each arm. Two arms run AB BA AB BA …: a drift that is linear in time falls out of the ratio. More arms
run in a Williams order, in which every arm follows every other equally often (k sequences for an even k, 2k for an odd
one). A design is whole after so many blocks, and only there the data are looked at.
"""

import random
from typing import Literal

from pydantic import Field, JsonValue, model_validator

from stackmark.spec import Frozen, Scalar, Spec

# More arms than anybody reads a table of: a Williams design of nine has 18 sequences of nine runs.
MOST_ARMS = 9


class Arm(Frozen):
    """A spec and a place with its options. `typed` are the parameters that the person gave to this arm alone."""

    label: str
    place: str
    place_options: dict[str, JsonValue] = {}
    typed: dict[str, Scalar] = {}
    spec: Spec


class StoppingRule(Frozen):
    """Fixed before the first run: after which numbers of blocks one looks, and which nominal level each look has.

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
            raise ValueError("a stopping rule has one level a look")
        if self.looks != sorted(set(self.looks)):
            raise ValueError("looks come in increasing numbers of blocks")
        return self


class Design(Frozen):
    arms: list[Arm] = Field(min_length=1, max_length=MOST_ARMS)
    # The command line takes at most 10,000 blocks, and whole designs round that up.
    blocks: int = Field(ge=1, le=20_000, description="whole designs only: see whole_blocks")
    seed: int = Field(ge=0)
    margin: float = Field(gt=0, lt=1)
    # How many blocks may be repeated, in all, because a run in them failed.
    most_repeats: int = Field(default=2, ge=0)
    pause_s: float = Field(default=0.0, ge=0)
    primers: bool = True
    rule: StoppingRule | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> "Design":
        if self.blocks % sequences_of(len(self.arms)):
            raise ValueError(f"{len(self.arms)} arms need a multiple of {sequences_of(len(self.arms))} blocks")
        if self.rule and self.rule.looks[-1] != self.blocks:
            raise ValueError("the last look is after the last block")
        return self


class Finished(Frozen):
    """A run that ended, as the plan needs to know it. `sitting` names a stretch of time without a reboot or a long pause."""

    arm: int
    block: int
    attempt: int
    good: bool
    # The driver was killed or interrupted: the run did not fail, it was not made.
    cut_off: bool = False
    sitting: int = 0


class Assignment(Frozen):
    arm: int
    block: int
    attempt: int


class Done(Frozen):
    """Nothing is left to run. `short` says why, where the design did not become whole."""

    short: str = ""


def sequences_of(arms: int) -> int:
    """How many blocks make a whole design."""
    if arms <= 1:
        return 1
    return arms if arms % 2 == 0 else 2 * arms


def whole_blocks(arms: int, blocks: int) -> int:
    """Rounded up to whole designs."""
    size = sequences_of(arms)
    return -(-max(blocks, 1) // size) * size


def order_of(arms: int, block: int, seed: int) -> list[int]:
    """The arms of a block in their order. The seed decides which arm is which, and which sequence comes first."""
    dice = random.Random(seed)
    names = list(range(arms))
    dice.shuffle(names)
    if arms <= 2:
        return names if block % 2 == 0 else names[::-1]
    sequences = williams(arms)
    dice.shuffle(sequences)
    return [names[place] for place in sequences[block % len(sequences)]]


def williams(arms: int) -> list[list[int]]:
    """Sequences in which every arm stands at every position, and follows every other arm, equally often."""
    first = [0]
    low, high = 1, arms - 1
    while len(first) < arms:
        first.append(low if len(first) % 2 else high)
        low, high = (low + 1, high) if len(first) % 2 == 0 else (low, high - 1)
    square = [[(place + shift) % arms for place in first] for shift in range(arms)]
    return square if arms % 2 == 0 else square + [row[::-1] for row in square]


def next_run(design: Design, finished: list[Finished], *, blocks: int | None = None) -> Assignment | Done:
    """What to run now, from all that ended so far. `blocks` is where to stop for a look, or the end of the design."""
    until = design.blocks if blocks is None else blocks
    latest = {block: _attempt(design, finished, block) for block in range(until)}
    for block, (attempt, state, missing) in latest.items():
        if state == "open":
            return Assignment(arm=missing[0], block=block, attempt=attempt)
    failed = [(attempt, block) for block, (attempt, state, _) in latest.items() if state == "failed"]
    if not failed:
        return Done()
    # A block that was torn apart is not the arm's fault, and uses up none of its repetitions.
    spoilt = {(run.block, run.attempt) for run in finished if not run.good and not run.cut_off}
    if len(spoilt) > design.most_repeats:
        which = ", ".join(str(block + 1) for _, block in failed)
        blocks_failed = f"block {which}" if len(failed) == 1 else f"blocks {which}"
        return Done(short=f"{blocks_failed} failed, and {design.most_repeats} repetitions of a block were allowed")
    attempt, block = min(failed)
    return Assignment(arm=order_of(len(design.arms), block, design.seed)[0], block=block, attempt=attempt + 1)


def whole(design: Design, finished: list[Finished]) -> dict[int, int]:
    """The blocks that are complete, each with the attempt that counts."""
    found = {block: _attempt(design, finished, block) for block in range(design.blocks)}
    return {block: attempt for block, (attempt, state, _) in found.items() if state == "whole"}


def in_whole_designs(design: Design, blocks: dict[int, int]) -> dict[int, int]:
    """Of these blocks, those whose design is complete: a half one has its arms in one order only, and a drift in its ratio."""
    size = sequences_of(len(design.arms))
    complete = {
        first for first in range(0, design.blocks, size) if all(first + number in blocks for number in range(size))
    }
    return {block: attempt for block, attempt in blocks.items() if block - block % size in complete}


def _attempt(design: Design, finished: list[Finished], block: int) -> tuple[int, str, list[int]]:
    """The latest attempt at a block, whether it is whole, open or failed, and the arms that it still needs."""
    order = order_of(len(design.arms), block, design.seed)
    made = [run for run in finished if run.block == block and not run.cut_off]
    attempt = max((run.attempt for run in made), default=0)
    mine = [run for run in made if run.attempt == attempt]
    if any(not run.good for run in mine):
        return attempt, "failed", []
    if len({run.sitting for run in mine}) > 1:
        # Torn apart by a reboot or a long pause: its runs are no pair any more.
        return attempt, "failed", []
    missing = [arm for arm in order if arm not in {run.arm for run in mine}]
    if not missing:
        return attempt, "whole", []
    return attempt, "open", missing
