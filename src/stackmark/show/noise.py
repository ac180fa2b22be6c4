"""The noise floor in words: what this machine can tell apart, and what that costs."""

from stackmark.show.lines import Line
from stackmark.units import say_seconds
from stackmark.verdict.examined import Examined
from stackmark.verdict.needed import CHEAPER, MOST, percent
from stackmark.verdict.noise import MarginCost, NoiseFloor, noise_floor


def noise_headline(examined: Examined) -> str:
    floor = noise_floor(examined)
    if floor is None:
        return "NOISE FLOOR: not known; two whole blocks or more would tell"
    spread = f"NOISE FLOOR: blocks of {examined.workload} against itself spread by {percent(floor.sd_blocks)}"
    if floor.smallest_margin is None:
        return f"{spread}; what that can decide is known from four blocks or more"
    return f"{spread}; the smallest margin that {floor.blocks} blocks can honestly decide is {percent(floor.smallest_margin)}"


def noise_lines(examined: Examined) -> list[Line]:
    floor = noise_floor(examined)
    if floor is None:
        return []
    lines: list[Line] = []
    if floor.sd_runs is not None:
        lines.append(
            ("runs", f"one run differs from the next by {percent(floor.sd_runs)} (standard deviation of the rate)")
        )
    lines.append(("blocks", _blocks(floor)))
    if floor.costs:
        lines.append(("cheaper", f"than many blocks: {CHEAPER}"))
    lines += [("margin", _cost(cost)) for cost in floor.costs]
    if floor.parts and floor.block_s:
        parts = ", ".join(f"{name} {say_seconds(s)} ({100 * s / floor.block_s:.0f} %)" for name, s in floor.parts)
        lines.append(("a block", f"{say_seconds(floor.block_s)}, two runs: {parts}"))
    if floor.differs:
        said = "the two equal arms differ by more than chance allows in 95 of 100 experiments: is the machine shared?"
        lines.append(("note", said))
    return lines


def _blocks(floor: NoiseFloor) -> str:
    most = (
        f"; with only {floor.blocks} blocks it may be up to {percent(floor.sd_blocks_most)}, and what follows takes it for "
        f"{percent(floor.sd_blocks_planned)}"
        if floor.sd_blocks_most and floor.sd_blocks_planned
        else f"; from {floor.blocks} blocks that is hardly known: take six or more"
    )
    return f"the ratio of a block spreads by {percent(floor.sd_blocks)} (standard deviation){most}"


def _cost(cost: MarginCost) -> str:
    """Nine experiments of ten reach a verdict with so many, where there is no difference."""
    if cost.blocks is None or cost.blocks > MOST:
        return f"{percent(cost.margin)} cannot be had here: it would take more than {MOST:,} blocks"
    took = f", about {say_seconds(cost.seconds)}" if cost.seconds is not None else ""
    return f"{percent(cost.margin)} takes {cost.blocks} blocks{took}"
