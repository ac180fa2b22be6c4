"""How often does a sweep find the slow devices, and whom does it name wrongly? By simulation, with a fixed seed.

    python benchmarks/devices.py

Prints what a sweep of made-up devices says, before (one run a device, one cohort, four blocks to confirm, each suspect by
itself) and with today's rules (cohorts of two kinds split first, a second pass where the first leaves something open, Holm over
the suspects, and as many blocks to confirm as the spread asks for). The figures of docs/sweep.md are its output.
Takes about 20 s of one core; the seed is fixed, so the tables do not change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from stackmark.experiments.sweep.plan import CONFIRM_BLOCKS, MORE_RUNS, MOST_CONFIRM_BLOCKS
from stackmark.verdict.cohorts import Device, cohorts, confirm, is_confirmed, reference_for
from stackmark.verdict.swept import Blocks, Repetition, Visit, lines_of, open_cohorts, suspicions

Floats = NDArray[np.float64]
MARGIN = 0.01


@dataclass(frozen=True)
class Outcome:
    """The places of the devices that were named, those of a slow group, whether populations were told apart, and the runs."""

    named: frozenset[int]
    group: frozenset[int]
    populations: bool
    runs: int


@dataclass(frozen=True)
class Case:
    """Devices of one model: ln of their true rates, the spread of their runs, and the value of a fact that they differ in."""

    truth: tuple[float, ...]
    noise: float
    facts: tuple[str, ...] = ()


def before(rng: np.random.Generator, case: Case) -> Outcome:
    truth = np.array(case.truth)
    logs = truth + case.noise * rng.standard_normal(truth.size)
    devices = [Device(f"node-{i // 2}", f"{i}", float(log), ("H200",)) for i, log in enumerate(logs)]
    (cohort,) = cohorts(devices, MARGIN)
    named, runs = set(), truth.size
    for one in cohort.flagged:
        reference = reference_for(one, cohort)
        if reference is None:
            continue
        pair = [int(one.device.device), int(reference.device)]
        slow, good = (truth[i] + case.noise * rng.standard_normal(CONFIRM_BLOCKS) for i in pair)
        runs += 2 * CONFIRM_BLOCKS
        if is_confirmed(confirm(one.device, reference, slow.tolist(), good.tolist(), MARGIN)):
            named.add(pair[0])
    return Outcome(frozenset(named), frozenset(), False, runs)


def today(rng: np.random.Generator, case: Case, more_runs: int = MORE_RUNS) -> Outcome:
    truth = np.array(case.truth)

    def run(device: int, count: int) -> tuple[float, ...]:
        return tuple(float(log) for log in truth[device] + case.noise * rng.standard_normal(count))

    visits = [visited(i, run(i, 1), case.facts[i] if case.facts else "") for i in range(truth.size)]
    runs = truth.size
    for members in open_cohorts(visits, MARGIN):
        for visit in members:
            visits[visit.slot] = visited(visit.slot, (*visit.logs, *run(visit.slot, more_runs)), *visit.facts.values())
            runs += more_runs
    found = suspicions(visits, MARGIN, Blocks(CONFIRM_BLOCKS, MOST_CONFIRM_BLOCKS))
    again = {}
    for one in found:
        if one.reference is not None:
            logs = run(one.flagged, one.blocks), run(one.reference, one.blocks)
            again[one.flagged] = Repetition(one.reference, *logs)
            runs += 2 * one.blocks
    lines, judged, _ = lines_of(visits, again, MARGIN)
    states = {
        state: frozenset(i for i, line in enumerate(lines) if line.state == state) for state in ("SLOW", "slow group")
    }
    return Outcome(states["SLOW"], states["slow group"], any(split.fact for _, split in judged.splits), runs)


def visited(slot: int, logs: Sequence[float], limit: str = "") -> Visit:
    log = sum(logs) / len(logs)
    facts = {"power limit": limit} if limit else {}
    return Visit(slot, f"node-{slot // 2}", f"{slot}", math.exp(log), log, ("H200",), logs=tuple(logs), facts=facts)


def of(count: int, slow: int, by: float, noise: float, *, facts: bool = False) -> Case:
    """`slow` of so many devices are slower by this share."""
    truth = tuple(math.log1p(-by) if i < slow else 0.0 for i in range(count))
    limits = tuple("500 W" if i < slow else "700 W" for i in range(count)) if facts else ()
    return Case(truth, noise, limits)


def share(flags: Sequence[bool]) -> str:
    return f"{100 * sum(flags) / len(flags):.1f}"


def one_slow(rng: np.random.Generator, sweeps: int) -> None:
    print(f"One slow device, margin 1 %, run noise 1 %: named, in % of {sweeps} sweeps; runs a sweep takes")
    print("| devices | slower by | before | runs | today | runs |")
    print("|---|---|---|---|---|---|")
    for count in (8, 16, 64):
        for by in (0.03, 0.05):
            case = of(count, 1, by, 0.01)
            old, new = [before(rng, case) for _ in range(sweeps)], [today(rng, case) for _ in range(sweeps)]
            cells = [share([0 in one.named for one in old]), f"{np.mean([one.runs for one in old]):.0f}"]
            cells += [share([0 in one.named for one in new]), f"{np.mean([one.runs for one in new]):.0f}"]
            print(f"| {count} | {100 * by:.0f} % | " + " | ".join(cells) + " |")
    print()


def nobody_slow(rng: np.random.Generator, sweeps: int) -> None:
    print(f"No slow device: any device named, a slow group reported, in % of {sweeps} sweeps; runs a sweep takes")
    print("| devices | run noise | devices differ by | before: named | today: named | today: group | runs |")
    print("|---|---|---|---|---|---|---|")
    for count, noise, lottery in (
        (8, 0.01, 0.0),
        (8, 0.003, 0.0),
        (8, 0.003, 0.005),
        (8, 0.06, 0.0),
        (64, 0.01, 0.0),
        (64, 0.003, 0.005),
    ):
        old, new = [], []
        for _ in range(sweeps):
            case = replace(of(count, 0, 0.0, noise), truth=tuple(lottery * rng.standard_normal(count)))
            old.append(before(rng, case))
            new.append(today(rng, case))
        cells = [share([bool(one.named) for one in old]), share([bool(one.named) for one in new])]
        cells += [share([bool(one.group) for one in new]), f"{np.mean([one.runs for one in new]):.0f}"]
        print(f"| {count} | {100 * noise:g} % | {100 * lottery:g} % | " + " | ".join(cells) + " |")
    print()


def two_kinds(rng: np.random.Generator) -> None:
    print(
        "Two kinds of devices: how many are named one by one on average, and how often they are found as two kinds, in %"
    )
    print(
        "| devices | slow | by | run noise | a fact differs | sweeps | named before | today | group | populations | runs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    cases = (
        (8, 5, 0.10, 0.01, False, 200),
        (8, 5, 0.10, 0.03, False, 200),
        (8, 4, 0.05, 0.01, False, 200),
        (6, 3, 0.10, 0.01, False, 200),
        (64, 30, 0.03, 0.005, False, 20),
        (8, 4, 0.05, 0.01, True, 200),
        (1000, 300, 0.03, 0.005, False, 3),
        (1000, 450, 0.10, 0.005, False, 3),
        (1000, 450, 0.10, 0.005, True, 3),
    )
    for count, slow, by, noise, facts, sweeps in cases:
        case = of(count, slow, by, noise, facts=facts)
        old, new = [before(rng, case) for _ in range(sweeps)], [today(rng, case) for _ in range(sweeps)]
        whole = frozenset(range(slow))
        cells = [f"{np.mean([len(one.named) for one in old]):.1f}", f"{np.mean([len(one.named) for one in new]):.1f}"]
        # The group is right where it misses, and takes in, at most one device in ten.
        right = [bool(one.group) and len(one.group ^ whole) <= slow / 10 for one in new]
        cells += [share(right), share([one.populations for one in new]), f"{np.mean([one.runs for one in new]):.0f}"]
        print(
            f"| {count} | {slow} | {100 * by:g} % | {100 * noise:g} % | {'yes' if facts else 'no'} | {sweeps} | "
            + " | ".join(cells)
            + " |"
        )
    print()


def main() -> None:
    rng = np.random.default_rng(20240301)
    one_slow(rng, 200)
    nobody_slow(rng, 200)
    two_kinds(rng)


if __name__ == "__main__":
    main()
