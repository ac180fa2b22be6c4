"""How often does stackmark recognise a run for what it is? By simulation, with a fixed seed.

    python benchmarks/steady_state.py

Prints six tables: how often each true class is found, by number of steps and spread of the steps; how often a flat
run is called something else, by kind of noise, and by pauses; how often the search behind the classes finds a warm-up in
runs that are too short for a class (why 200 steps are asked for); what one window for all runs does to the bias of a
gradual warm-up and to the spread of runs that drift alike; and what it costs in time. The figures of docs/measuring.md
are its output. Takes about a minute on two cores; the seed is fixed, so the tables do not change.
"""

import math
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stackmark.verdict.steady import change_points, find_steady
from stackmark.verdict.throughput import TimedRun, common_window, rate_in

Floats = NDArray[np.float64]
Noise = Callable[[np.random.Generator, int], Floats]

SERIES = 100  # a share of 100 series is known to within 10 points at worst, 2 points near 0 and 100
ALARM_SERIES = 200
RUNS, EXPERIMENTS = 12, 10
STEP_S = 0.02
TICK_S = 0.5e-6


def gaussian(rng: np.random.Generator, n: int) -> Floats:
    return rng.standard_normal(n)


def autocorrelated(phi: float) -> Noise:
    def noise(rng: np.random.Generator, n: int) -> Floats:
        shocks = rng.standard_normal(n + 100) * math.sqrt(1 - phi**2)
        values = np.zeros(n + 100, dtype=np.float64)
        for i in range(1, n + 100):
            values[i] = phi * values[i - 1] + shocks[i]
        return values[100:]

    return noise


def heavy_tailed(rng: np.random.Generator, n: int) -> Floats:
    return rng.standard_t(3, n) / math.sqrt(3.0)


def skewed(rng: np.random.Generator, n: int) -> Floats:
    return rng.exponential(1.0, n) - 1.0


def level(kind: str, n: int) -> Floats:
    """The true course of the step time, 1 where it is steady."""
    course = np.ones(n)
    at = np.arange(n) / n
    if kind == "warm-up":  # 10 % slower in the first fifth
        course[at < 0.2] = 1.10
    elif kind == "warm-up, gradual":  # decays from 20 % slower
        course += 0.2 * np.exp(-at / 0.05)
    elif kind == "slow-down":  # throttles by 5 % after three tenths
        course[at >= 0.3] = 1.05
    elif kind == "no steady state":  # drifts by 10 % from beginning to end
        course += 0.10 * at
    return course


def series(rng: np.random.Generator, kind: str, n: int, cv: float, noise: Noise = gaussian) -> Floats:
    # A step cannot take no time: at 5 % and heavy tails a draw below a third of the level is that rare accident.
    return STEP_S * np.maximum(level(kind, n) * (1.0 + cv * noise(rng, n)), 0.3)


def detection(rng: np.random.Generator) -> None:
    print(f"Share of {SERIES} simulated runs put into their true class, in %")
    print("| true course | steps | CV 0.5 % | CV 1 % | CV 5 % |")
    print("|---|---|---|---|---|")
    for kind in ("flat", "warm-up", "warm-up, gradual", "slow-down", "no steady state"):
        for n in (100, 200, 300, 1000):
            shares = []
            for cv in (0.005, 0.01, 0.05):
                found = [find_steady(series(rng, kind, n, cv), TICK_S).kind for _ in range(SERIES)]
                short = found.count("too short to tell")
                right = sum(kind.startswith(name) for name in found)
                shares.append("too short" if short == SERIES else f"{100 * right / SERIES:.0f}")
            print(f"| {kind} | {n} | " + " | ".join(shares) + " |")
    print()


def false_alarms(rng: np.random.Generator) -> None:
    kinds: dict[str, Noise] = {
        "independent, Gaussian": gaussian,
        "autocorrelated, AR(1) 0.5": autocorrelated(0.5),
        "autocorrelated, AR(1) 0.9": autocorrelated(0.9),
        "heavy tails, t with 3 df": heavy_tailed,
        "skewed, exponential": skewed,
    }
    print(f"Flat runs of 1000 steps classified as anything but flat, in % of {ALARM_SERIES} simulated runs;")
    print("in brackets the largest error that this caused in the rate, in %")
    print("| noise | CV 0.5 % | CV 1 % | CV 5 % |")
    print("|---|---|---|---|")
    for name, noise in kinds.items():
        cells = []
        for cv in (0.005, 0.01, 0.05):
            wrong, worst = 0, 0.0
            for _ in range(ALARM_SERIES):
                steps = series(rng, "flat", 1000, cv, noise)
                steady = find_steady(steps, TICK_S)
                wrong += steady.kind != "flat"
                worst = max(worst, abs(steps.mean() / steps[steady.first_step :].mean() - 1.0))
            cells.append(f"{100 * wrong / ALARM_SERIES:.1f} ({100 * worst:.1f})")
        print(f"| {name} | " + " | ".join(cells) + " |")
    print()


def pauses(rng: np.random.Generator) -> None:
    print(f"Stationary runs with regular pauses classified as anything but flat, in % of {ALARM_SERIES} runs")
    print("| a pause every N steps, times as long | steps | CV 0.5 % | CV 1 % | CV 5 % |")
    print("|---|---|---|---|---|")
    for every, times in ((50, 3.0), (50, 10.0), (20, 3.0)):
        for n in (300, 1000, 2000):
            cells = []
            for cv in (0.005, 0.01, 0.05):
                wrong = 0
                for _ in range(ALARM_SERIES):
                    steps = series(rng, "flat", n, cv)
                    steps[every - 1 :: every] *= times
                    wrong += find_steady(steps, TICK_S).kind != "flat"
                cells.append(f"{100 * wrong / ALARM_SERIES:.1f}")
            print(f"| {every}, {times:g} | {n} | " + " | ".join(cells) + " |")
    print()


def experiment(rng: np.random.Generator, course: Floats, cv: float) -> tuple[Floats, Floats]:
    """ln R of the runs of one experiment relative to the end of the course: each by itself, and over one window."""
    runs = []
    for _ in range(RUNS):
        steps = STEP_S * np.maximum(course * (1.0 + cv * gaussian(rng, course.size)), 0.3)
        steady = find_steady(steps, TICK_S)
        runs.append(TimedRun(steps, steady.kind, steady.settled_step, 1))
    window = common_window(runs)
    own = np.array([1.0 / run.step_s[run.own_first_step :].mean() for run in runs])
    together = np.array([rate_in(window, run) for run in runs])
    return np.log(own * STEP_S * course[-1]), np.log(together * STEP_S * course[-1])


def windows(rng: np.random.Generator) -> None:
    print(f"Each run over its own steady steps, and {RUNS} runs over one window; {EXPERIMENTS} experiments, in %")
    print("| true course | figure | steps | CV 0.5 % | CV 1 % | CV 5 % |")
    print("|---|---|---|---|---|---|")
    for name, figure, decay, drift in (
        ("decays from 20 %, within 5 % of the run", "bias", 0.05, 0.0),
        ("decays from 20 %, within 15 % of the run", "bias", 0.15, 0.0),
        ("slows down by 3 % from begin to end", "spread", 0.0, 0.03),
    ):
        for n in (300, 1000):
            cells = []
            for cv in (0.005, 0.01, 0.05):
                at = np.arange(n) / n
                course = 1 + drift * at + (0.2 * np.exp(-at / decay) if decay else 0.0)
                seen = [experiment(rng, course, cv) for _ in range(EXPERIMENTS)]
                if figure == "bias":
                    both = [100 * float(np.mean([one[which] for one in seen])) for which in (0, 1)]
                else:
                    both = [100 * float(np.mean([one[which].std(ddof=1) for one in seen])) for which in (0, 1)]
                cells.append(f"{both[0]:.2f}, {both[1]:.2f}")
            print(f"| {name} | {figure} | {n} | " + " | ".join(cells) + " |")
    print()


def short_runs(rng: np.random.Generator) -> None:
    print("A warm-up of 10 % in the first fifth, found by the change-point search alone, in % of 300 runs")
    print("| steps | CV 0.5 % | CV 1 % | CV 5 % |")
    print("|---|---|---|---|")
    for n in (30, 50, 100, 150, 200, 300):
        cells = []
        for cv in (0.005, 0.01, 0.05):
            found = sum(bool(change_points(series(rng, "warm-up", n, cv), TICK_S)) for _ in range(300))
            cells.append(f"{found / 3:.0f}")
        print(f"| {n} | " + " | ".join(cells) + " |")
    print()


def cost(rng: np.random.Generator) -> None:
    print("Time to judge a run, best of 3, in ms (not reproducible to the digit)")
    print("| steps | flat | warm-up | heavy tails, 5 % |")
    print("|---|---|---|---|")
    for n in (1_000, 10_000, 100_000):
        cells = []
        for kind, cv, noise in (("flat", 0.01, gaussian), ("warm-up", 0.01, gaussian), ("flat", 0.05, heavy_tailed)):
            steps = series(rng, kind, n, cv, noise)
            times = []
            for _ in range(3):
                begun = time.perf_counter()
                find_steady(steps, TICK_S)
                times.append(time.perf_counter() - begun)
            cells.append(f"{1000 * min(times):.0f}")
        print(f"| {n:,} | " + " | ".join(cells) + " |")


def main() -> None:
    rng = np.random.default_rng(20240229)
    detection(rng)
    false_alarms(rng)
    pauses(rng)
    windows(rng)
    short_runs(rng)
    cost(rng)


if __name__ == "__main__":
    main()
