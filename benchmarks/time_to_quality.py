"""What do the intervals of times to a quality cover, and how often is a word false? By simulation, where the truth is known.

    python benchmarks/time_to_quality.py

Times are log-normal. A run is evaluated at fixed distances, so its time is known to lie between two evaluations, and runs end
at a limit that a stated share of them does not reach. Prints tables in Markdown: the 95 % interval of the mean log time, the
interval of the ratio of two arms, paired and not, and the permutation log-rank test without a difference. The tables of
docs/verdicts.md are its output. The seed is fixed; it takes about five minutes on one core.

The functions under test are those of stackmark.verdict.survival, which the verdicts of single experiments are made by too.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from stackmark.verdict.evidence import Floats
from stackmark.verdict.survival import Estimate, Span, difference_of_logs, log_rank_p, mean_difference, mean_log

EXPERIMENTS = 400  # a coverage of 95 % is then known to within 2.2 points (two standard errors)
# How many evaluations a usual run takes to its target, and the spread of ln time between runs.
GRIDS = ((4, 0.3), (10, 0.1), (10, 0.3))
CENSORED = (0.0, 0.1, 0.3)


# What was asked, how many runs (a side), the share that does not reach the limit, and the share of intervals that hold the truth.
Covered = tuple[str, int, float, float]


def main() -> None:
    covered = [*mean_table(), *ratio_table(paired=False), *ratio_table(paired=True)]
    log_rank_table()
    summary(covered)


def summary(covered: Sequence[Covered]) -> None:
    """Print the lowest and the highest coverage over evaluations, spreads and shares of the seed."""
    print("\n### What the 95 % intervals cover, in %, over all rows above\n")
    print("| interval of | runs | all reach the target | 10 % do not | 30 % do not |")
    print("|---|---|---|---|---|")
    for what in dict.fromkeys(one[0] for one in covered):
        for runs in dict.fromkeys(one[1] for one in covered):
            cells = []
            for share in CENSORED:
                found = [one[3] for one in covered if one[:3] == (what, runs, share)]
                cells.append(f"{min(found):.1f} to {max(found):.1f}")
            print(f"| {what} | {runs} | {' | '.join(cells)} |")


def observed(logs: Floats, evaluations: int, limit: float) -> list[Span]:
    """Return what is known of times whose usual one is 1: between which two evaluations, or only that the limit was passed."""
    step = 1 / evaluations
    found = []
    for log in logs.tolist():
        count = max(1, math.ceil(math.exp(log) / step))
        over = count * step > limit
        found.append(
            Span(math.floor(limit / step + 1e-9) * step, None) if over else Span((count - 1) * step, count * step)
        )
    return found


def limit_for(share: float, spread: float, evaluations: int) -> float:
    """Return the limit that a share of the runs does not reach; the last evaluation before it counts."""
    if not share:
        return math.inf
    step = 1 / evaluations
    return max(1, round(math.exp(spread * NormalDist().inv_cdf(1 - share)) / step)) * step


def _covers(found: Estimate | None, truth: float) -> tuple[bool, bool, bool]:
    """Return whether there is an interval, whether it has both ends, and whether it holds the truth."""
    if found is None:
        return False, False, False
    low, high = (-math.inf if found.low is None else found.low), (math.inf if found.high is None else found.high)
    return True, math.isfinite(low) and math.isfinite(high), low <= truth <= high


def _row(cells: Sequence[object], seen: Sequence[tuple[bool, bool, bool]], widths: Sequence[float]) -> float:
    made = [one for one in seen if one[0]]
    covered = 100 * sum(one[2] for one in made) / max(1, len(made))
    both = 100 * sum(one[1] for one in made) / max(1, len(seen))
    width = f"±{100 * float(np.median(widths)) / 2:.0f} %" if widths else "-"
    print(f"| {' | '.join(map(str, cells))} | {covered:.1f} % | {both:.0f} % | {width} |", flush=True)
    return covered


def mean_table() -> list[Covered]:
    rows: list[Covered] = []
    print("\n### Mean log time of one arm: what the 95 % interval covers\n")
    print("| runs | evaluations | spread | not reached | actual | covers | two ends | median width |")
    print("|---|---|---|---|---|---|---|---|")
    for runs in (5, 10, 20):
        for evaluations, spread in GRIDS:
            for share in CENSORED:
                rng = np.random.default_rng(19)
                limit = limit_for(share, spread, evaluations)
                seen, widths, censored = [], [], 0
                for _ in range(EXPERIMENTS):
                    spans = observed(rng.normal(0, spread, runs), evaluations, limit)
                    censored += sum(not span.reached for span in spans)
                    found = mean_log(spans)
                    seen.append(_covers(found, 0.0))
                    if found and found.low is not None and found.high is not None:
                        widths.append(found.high - found.low)
                actual = f"{100 * censored / runs / EXPERIMENTS:.0f} %"
                cells = (runs, evaluations, f"{100 * spread:.0f} %", f"{100 * share:.0f} %", actual)
                rows.append(("the mean log time", runs, share, _row(cells, seen, widths)))
    return rows


def ratio_table(*, paired: bool) -> list[Covered]:
    rows: list[Covered] = []
    truth = math.log(1.2)
    name = "pairs with one seed" if paired else "runs with seeds of their own"
    print(f"\n### Ratio of two arms, {name}: what the 95 % interval covers (truth: 1.2)\n")
    print("| runs a side | evaluations | spread | seed's share | not reached | covers | two ends | median width |")
    print("|---|---|---|---|---|---|---|---|")
    for runs in (5, 10, 20):
        for evaluations, spread in GRIDS:
            for seed_share in (0.0, 0.8) if paired else (0.0,):
                for share in CENSORED:
                    rng = np.random.default_rng(20)
                    limit = limit_for(share, spread, evaluations) * 1.1 if share else math.inf
                    seen, widths = [], []
                    for _ in range(EXPERIMENTS):
                        one, other = _arms(rng, runs, spread, seed_share)
                        a, b = observed(one, evaluations, limit), observed(other + truth, evaluations, limit)
                        if paired:
                            found = mean_difference(list(zip(a, b, strict=True)))
                        else:
                            found = difference_of_logs(a, b)
                        seen.append(_covers(found, truth))
                        if found and found.low is not None and found.high is not None:
                            widths.append(found.high - found.low)
                    shares = f"{100 * seed_share:.0f} %", f"{100 * share:.0f} %"
                    covered = _row((runs, evaluations, f"{100 * spread:.0f} %", *shares), seen, widths)
                    rows.append((f"the ratio, {name}", runs, share, covered))
    return rows


def _arms(rng: np.random.Generator, runs: int, spread: float, seed_share: float) -> tuple[Floats, Floats]:
    common = rng.normal(0, spread * math.sqrt(seed_share), runs)
    own = spread * math.sqrt(1 - seed_share)
    return common + rng.normal(0, own, runs), common + rng.normal(0, own, runs)


def log_rank_table() -> None:
    print("\n### Permutation log-rank test at 5 %: how often it names a difference\n")
    print("| runs a side | paired | not reached | no difference | 1.5 times the time |")
    print("|---|---|---|---|---|")
    for runs in (4, 6, 9):
        for paired in (False, True):
            for share in CENSORED:
                rng = np.random.default_rng(21)
                limit = limit_for(share, 0.3, 10)
                named = []
                for truth in (0.0, math.log(1.5)):
                    count = 0
                    for _ in range(EXPERIMENTS):
                        one, other = _arms(rng, runs, 0.3, 0.5 if paired else 0.0)
                        a, b = observed(one, 10, limit), observed(other + truth, 10, limit)
                        count += log_rank_p(a, b, paired=paired) <= 0.05
                    named.append(f"{100 * count / EXPERIMENTS:.1f} %")
                said = "yes" if paired else "no"
                print(f"| {runs} | {said} | {100 * share:.0f} % | {' | '.join(named)} |", flush=True)


if __name__ == "__main__":
    main()
