"""How often are the verdicts wrong? By simulation, where the truth is known, with a fixed seed.

    python benchmarks/verdicts.py

Prints tables in Markdown: what the intervals cover and how often each word is false, by number of blocks, spread and kind of
noise; what a drift of the machine does to each order of runs; what pooled steps would claim; the error rates of the rule for
stopping early, and the blocks that it saves; several comparisons at once; runs and sittings that were not paired. The figures
of docs/verdicts.md are its output. Takes a minute or two on one core; the seed is fixed, so the tables do not change.

The functions under test are those of stackmark.verdict.evidence, which the verdicts of single experiments are made by too.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.evidence import (
    ALPHA,
    Evidence,
    Floats,
    limit_of,
    named_differences,
    paired,
    pooled,
    reach,
    welch,
    words,
)
from stackmark.verdict.family import holm
from stackmark.verdict.needed import count_needed
from stackmark.verdict.ratio import compare_blocks
from stackmark.verdict.sequential import Spending, StoppingLevels, planned_looks, spent, stopping_rule
from stackmark.verdict.student import normal_cdf, t_quantile

MARGIN = 0.01
LIMIT = limit_of(MARGIN)
EXPERIMENTS = 40_000  # a share near 5 % is then known to within 0.3 points (three standard errors)
WELCH_EXPERIMENTS = 4_000  # each has its own degrees of freedom, and so its own quantile
HOLM_EXPERIMENTS = 2_000

Noise = Callable[[np.random.Generator, tuple[int, ...]], Floats]


def gaussian(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_normal(shape)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_t(3, shape) / math.sqrt(3.0)


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.exponential(1.0, shape) - 1.0


def spiked(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """One run in ten is slower by five standard deviations: a neighbour woke up."""
    return rng.standard_normal(shape) - 5.0 * (rng.random(shape) < 0.1)


NOISES: dict[str, Noise] = {
    "Gaussian": gaussian,
    "heavy tails, t with 3 df": heavy_tailed,
    "skewed, exponential": skewed,
    "one run in ten 5 sd slower": spiked,
}


def blocks(rng: np.random.Generator, truth: float, sd: float, n: int, noise: Noise = gaussian) -> Floats:
    """Differences ln R_b − ln R_a of many experiments: both arms have the noise, `sd` is that of the difference."""
    shape = (EXPERIMENTS, n)
    return truth + sd / math.sqrt(2) * (noise(rng, shape) - noise(rng, shape))


def covered(evidence: Evidence, truth: float, level: float = ALPHA) -> float:
    return float((np.abs(evidence.mean - truth) <= reach(evidence, level)).mean())


def share_of(word: str, evidence: Evidence) -> float:
    return float((words(evidence.mean, reach(evidence, ALPHA), LIMIT) == word).mean())


def share_named(evidence: Evidence) -> float:
    return float((named_differences(evidence.mean, reach(evidence, ALPHA / 2)) != "").mean())


def percent(share: float) -> str:
    return f"{100 * share:.1f}"


def fixed_designs(rng: np.random.Generator) -> None:
    print(f"A fixed number of blocks, margin 1 %, {EXPERIMENTS} experiments a row, in %")
    print(
        "| noise | blocks | s_d | 90 % interval covers | false EQUIVALENT | false SLOWER | A/A difference named | power |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, noise in NOISES.items():
        for n, sd in ((2, 0.003), (4, 0.003), (6, 0.003), (6, 0.01), (12, 0.01), (46, 0.02)):
            same, edge = paired(blocks(rng, 0.0, sd, n, noise)), paired(blocks(rng, -LIMIT, sd, n, noise))
            cells = (covered(same, 0.0), share_of("EQUIVALENT", edge), share_of("SLOWER", edge), share_named(same),
                     share_of("EQUIVALENT", same))  # fmt: skip
            print(f"| {name} | {n} | {100 * sd:g} % | " + " | ".join(percent(cell) for cell in cells) + " |")
    print()


def run_times(order: str, n: int) -> NDArray[np.int_]:
    """At which of the 2n positions each block's A and B ran, as an array of n rows."""
    if order == "AAAA BBBB":
        return np.stack([np.arange(n), n + np.arange(n)], axis=1)
    first = 2 * np.arange(n)
    swapped = (np.arange(n) % 2 == 1) if order == "AB BA" else np.zeros(n, dtype=bool)
    return np.stack([first + swapped, first + 1 - swapped], axis=1)


def drift(rng: np.random.Generator) -> None:
    print(
        f"A machine that slows down by 1 % from the first run to the last, no difference, {EXPERIMENTS} experiments a row"
    )
    print("| order | blocks | s_d | bias of the ratio, % | 90 % interval covers, % | A/A difference named, % |")
    print("|---|---|---|---|---|---|")
    for order in ("AAAA BBBB", "AB AB", "AB BA"):
        for n, sd in ((10, 0.003), (6, 0.003), (6, 0.001)):
            at = run_times(order, n)
            drifted = -0.01 * (at[:, 1] - at[:, 0]) / (2 * n - 1)
            seen = paired(blocks(rng, 0.0, sd, n) + drifted)
            bias = round(100 * float(np.expm1(seen.mean.mean())), 2) + 0.0  # never -0.00
            cells = f"{bias:.2f} | {percent(covered(seen, 0.0))} | {percent(share_named(seen))}"
            print(f"| {order} | {n} | {100 * sd:g} % | {cells} |")
    print()


def pooled_steps(rng: np.random.Generator) -> None:
    experiments, runs, steps = 4000, 5, 100
    print(
        f"{runs} runs an arm of {steps} steps, runs differ by 0.5 %, steps by 1 %, no difference: one is claimed, in %"
    )
    print("| what is taken for a sample | claimed |")
    print("|---|---|")
    by_steps, by_runs = 0.0, 0.0
    for _ in range(experiments // 500):
        shape = (2, 500, runs)
        means = 0.005 * rng.standard_normal(shape)
        logs = means[..., None] + 0.01 * rng.standard_normal((*shape, steps))
        every = logs.reshape(2, 500, runs * steps)
        by_steps += share_named(welch(every[0], every[1])) * 500 / experiments
        by_runs += share_named(welch(logs[0].mean(axis=-1), logs[1].mean(axis=-1))) * 500 / experiments
    print(f"| every step | {percent(by_steps)} |")
    print(f"| every run | {percent(by_runs)} |")
    print()


def stopped(
    differences: Floats, rule: StoppingLevels, looks_levels: tuple[tuple[float, float], ...] | None = None
) -> tuple[NDArray[np.str_], NDArray[np.str_], NDArray[np.int_]]:
    """For each experiment the word it ended with, the difference that is named then, and the blocks it took."""
    word = np.full(len(differences), "INCONCLUSIVE", dtype="<U12")
    named = np.full(len(differences), "", dtype="<U6")
    used = np.full(len(differences), rule.looks[-1])
    levels = looks_levels or tuple(zip(rule.one_sided, rule.two_sided, strict=True))
    going = np.ones(len(differences), dtype=bool)
    for look, (one_sided, two_sided) in zip(rule.looks, levels, strict=True):
        evidence = paired(differences[:, :look])
        now = words(evidence.mean, reach(evidence, one_sided), LIMIT)
        ends = going & ((now != "INCONCLUSIVE") | (look == rule.looks[-1]))
        word[ends], used[ends] = now[ends], look
        named[ends] = named_differences(evidence.mean, reach(evidence, two_sided / 2))[ends]
        going &= ~ends
    return word, named, used


def sequential(rng: np.random.Generator) -> None:
    print(f"Stopping early, margin 1 %, {EXPERIMENTS} experiments a row; shares in %")
    print(
        "| rule, looks | s_d | false EQUIVALENT | false SLOWER | A/A difference named | decided in A/A | mean blocks in A/A |"
    )
    print("|---|---|---|---|---|---|---|")
    every_two = tuple(range(4, 21, 2))
    plans: list[tuple[str, tuple[int, ...], Spending | None]] = [
        ("Pocock", planned_looks(20), "pocock"),
        ("Pocock", planned_looks(40), "pocock"),
        ("Pocock", every_two, "pocock"),
        ("O'Brien–Fleming", every_two, "obrien-fleming"),
        ("O'Brien–Fleming", planned_looks(40), "obrien-fleming"),
        ("no rule: 5 % at each look", every_two, None),
    ]
    for name, looks, spending in plans:
        rule = stopping_rule(looks, spending=spending or "pocock")
        levels = None if spending else tuple((ALPHA, ALPHA) for _ in looks)
        for sd in (0.003, 0.01, 0.02):
            same, same_named, used = stopped(blocks(rng, 0.0, sd, looks[-1]), rule, levels)
            edge, _, _ = stopped(blocks(rng, -LIMIT, sd, looks[-1]), rule, levels)
            shares = ((edge == "EQUIVALENT").mean(), (edge == "SLOWER").mean(), (same_named != "").mean(),
                      (same == "EQUIVALENT").mean())  # fmt: skip
            print(
                f"| {name}, {' '.join(map(str, looks))} | {100 * sd:g} % | "
                + " | ".join(percent(float(share)) for share in shares)
                + f" | {used.mean():.1f} |"
            )
    print()


def several(rng: np.random.Generator) -> None:
    print(f"Six blocks of several arms against one, s_d 0.3 %, {HOLM_EXPERIMENTS} experiments: any false claim, in %")
    print("| comparisons | truth | claim | each alone | Holm |")
    print("|---|---|---|---|---|")
    for count in (3, 6):
        for truth, what in ((-LIMIT, "EQUIVALENT"), (-LIMIT, "SLOWER"), (0.0, "difference")):
            alone, together = 0, 0
            for _ in range(HOLM_EXPERIMENTS):
                arms = 0.003 / math.sqrt(2) * rng.standard_normal((count + 1, 6))
                pairs = [compare_blocks("a", "b", arms[0], truth + arm, MARGIN) for arm in arms[1:]]
                claims = [{one.word, "difference" if one.difference else ""} for one in pairs]
                decided = [{one.word, "difference" if one.difference else ""} for one in holm(pairs)]
                alone += any(what in claim for claim in claims)
                together += any(what in claim for claim in decided)
            where = "at the margin" if truth else "no difference"
            print(
                f"| {count} | {where} | {what} | {percent(alone / HOLM_EXPERIMENTS)} | {percent(together / HOLM_EXPERIMENTS)} |"
            )
    print()


def unpaired(rng: np.random.Generator) -> None:
    print(f"Runs and sittings that were not paired, margin 1 %, {WELCH_EXPERIMENTS} experiments a row, in %")
    print(
        "| counts | spread of A, of B | by | 90 % interval covers | false EQUIVALENT | false SLOWER | A/A difference named |"
    )
    print("|---|---|---|---|---|---|---|")
    for n_a, n_b, sd_a, sd_b in ((2, 2, 0.003, 0.003), (2, 2, 0.001, 0.004), (3, 3, 0.003, 0.003), (3, 3, 0.001, 0.004),
                                 (5, 10, 0.003, 0.006), (3, 1, 0.002, 0.002), (3, 1, 0.002, 0.004)):  # fmt: skip
        a = sd_a * rng.standard_normal((WELCH_EXPERIMENTS, n_a))
        b = sd_b * rng.standard_normal((WELCH_EXPERIMENTS, n_b))
        by = welch if min(n_a, n_b) > 1 else pooled
        same, edge = by(a, b), by(a, b - LIMIT)
        cells = (covered(same, 0.0), share_of("EQUIVALENT", edge), share_of("SLOWER", edge), share_named(same))
        name = "Welch" if by is welch else "pooled"
        print(
            f"| {n_a} against {n_b} | {100 * sd_a:g} %, {100 * sd_b:g} % | {name} | "
            + " | ".join(percent(cell) for cell in cells)
            + " |"
        )
    print()


def forecasts(rng: np.random.Generator) -> None:
    print(f"Blocks that the forecast asks for at 1 %, and how often so many decide, {EXPERIMENTS} experiments a row")
    print("| s_d | true ratio | blocks | decided, % |")
    print("|---|---|---|---|")
    for sd in (0.003, 0.005, 0.01, 0.02, 0.07):
        for truth in (0.0, math.log(0.995), math.log(0.97)):
            n = count_needed(truth, sd, MARGIN)
            assert n is not None
            # Seventy thousand million numbers are not needed to know a share.
            seen = paired(truth + sd * rng.standard_normal((min(EXPERIMENTS, 4_000_000 // n), n)))
            word = "EQUIVALENT" if abs(truth) < LIMIT else "SLOWER"
            print(f"| {100 * sd:g} % | {math.exp(truth):.3f} | {n} | {percent(share_of(word, seen))} |")
    print()


def known_spread(rng: np.random.Generator) -> None:
    """The levels of textbooks, found for a known spread, with t quantiles at them: why ours are made for an estimated one."""
    looks, experiments = np.array(planned_looks(20)), 10 * EXPERIMENTS
    budget = np.diff(spent(looks / looks[-1], 0.05, "pocock"), prepend=0.0)
    sums = np.cumsum(rng.standard_normal((experiments, looks[-1])), axis=1)
    alive, levels = np.ones(experiments, dtype=bool), []
    for look, allowed in zip(looks, budget, strict=True):
        score = sums[:, look - 1] / math.sqrt(look)
        edge = float(np.sort(score[alive])[-int(allowed * experiments)])
        levels.append(1 - normal_cdf(edge))
        alive &= score < edge
    draws = rng.standard_normal((experiments, looks[-1]))
    claimed = np.zeros(experiments, dtype=bool)
    for look, level in zip(looks, levels, strict=True):
        seen = draws[:, :look]
        claimed |= seen.mean(axis=1) * math.sqrt(look) / seen.std(axis=1, ddof=1) > t_quantile(1 - level, int(look) - 1)
    at = " ".join(map(str, looks))
    print(
        f"Levels for a known spread with t quantiles, Pocock, {at}: {percent(claimed.mean())} % are spent instead of 5.0"
    )


def main() -> None:
    rng = np.random.default_rng(20_240_601)
    for table in (fixed_designs, drift, pooled_steps, sequential, several, unpaired, forecasts, known_spread):
        table(rng)


if __name__ == "__main__":
    main()
