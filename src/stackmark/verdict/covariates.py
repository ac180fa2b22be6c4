"""Compare covariates of the rate between arms (clock, heat, power, throttling, load), and find those that drift.

A covariate is one number a run, like the rate. Two arms are called apart in it when the difference is large enough to care
about *and* clear against the spread between runs: per block where both arms ran in it, else by Welch, two-sided at 1 %,
divided by the number of pairs of arms. A dozen covariates at 5 % would name an innocent one in every second experiment.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median
from typing import Literal

import numpy as np

from stackmark.units import say_percent, say_seconds, say_size
from stackmark.verdict.evidence import paired, welch
from stackmark.verdict.examined import CovariateLine, ExaminedArm, ExaminedRun
from stackmark.verdict.student import t_cdf, t_quantile
from stackmark.verdict.telemetry import moved_with_steps

# --- How the ratio of two arms moved with a covariate from block to block: the load of others, a clock, a temperature
#
# That is association and no cause: a container may cause the load that it meets. So it is printed next to a verdict,
# never as one, and over eight blocks or more: fewer cannot tell the covariate's part from the arms' part.


LEAST_ASSOCIATED_BLOCKS = 8
CONFIDENCE = 0.95
# A covariate that moves by less than this share of its value between blocks explains nothing.
LEAST_MOVEMENT = 1e-6


@dataclass(frozen=True)
class Association:
    """The relation of ratio and covariate: per block d = ln R_b − ln R_a against the difference of the covariate.

    `adjusted` is the ratio where both arms met the same; `slope` is the change of ln R for one unit more of the covariate.
    """

    blocks: int
    correlation: float
    slope: float
    slope_low: float
    slope_high: float
    adjusted: float
    adjusted_low: float
    adjusted_high: float

    @property
    def clear(self) -> bool:
        """Return whether the slope's interval excludes 0."""
        return self.slope_low > 0 or self.slope_high < 0


def association(log_ratios: Sequence[float], moved: Sequence[float]) -> Association | None:
    """Fit a straight line through blocks; None where there are too few, or the covariate did not move."""
    d, x = np.asarray(log_ratios, dtype=np.float64), np.asarray(moved, dtype=np.float64)
    if d.size != x.size or d.size < LEAST_ASSOCIATED_BLOCKS or not (np.isfinite(d).all() and np.isfinite(x).all()):
        return None
    spread = float(((x - x.mean()) ** 2).sum())
    if spread <= (LEAST_MOVEMENT * max(1.0, float(np.abs(x).max()))) ** 2 or float(d.std()) == 0.0:
        return None
    slope = float(((x - x.mean()) * (d - d.mean())).sum()) / spread
    intercept = float(d.mean()) - slope * float(x.mean())
    rest = d - intercept - slope * x
    variance = float((rest**2).sum()) / (d.size - 2)
    quantile = t_quantile(0.5 + CONFIDENCE / 2, d.size - 2)
    reach_slope = quantile * math.sqrt(variance / spread)
    reach = quantile * math.sqrt(variance * (1 / d.size + float(x.mean()) ** 2 / spread))
    return Association(
        blocks=d.size,
        correlation=float(np.corrcoef(d, x)[0, 1]),
        slope=slope,
        slope_low=slope - reach_slope,
        slope_high=slope + reach_slope,
        adjusted=_exp(intercept),
        adjusted_low=_exp(intercept - reach),
        adjusted_high=_exp(intercept + reach),
    )


def _exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))


LEVEL = 0.01
# Fewer pairs have no spread worth the name; fewer blocks have no trend.
LEAST_PAIRS, LEAST_BLOCKS = 3, 4
# A drift is the same for all arms and cancels in a balanced order, so it must be larger than a difference to be named.
DRIFT_FACTOR = 2.0

Worse = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class KnownCovariate:
    """A covariate. `least` is the smallest difference to report, a share of the larger value where `relative`. `worse` is the
    direction that slows a run down; `neither` where it is a consequence of the rate as much as a cause. `zero_if_well`: it is
    zero where nothing is wrong, so that a few runs are enough to see that something is."""

    name: str
    words: str
    unit: str
    least: float
    relative: bool = False
    worse: Worse = "neither"
    zero_if_well: bool = False
    # From here on it is worth a word by itself, also where all arms have it alike.
    alarm: float = math.inf
    alarm_words: str = ""


# In the order in which they are shown: what slows a run first.
KNOWN = (
    KnownCovariate(
        "cgroup_throttled_times", "stopped by the CPU quota", "times", 1.0, worse="higher", zero_if_well=True
    ),
    KnownCovariate(
        "cgroup_throttled_s", "time stopped by the CPU quota", "s", 0.005, worse="higher", zero_if_well=True
    ),
    KnownCovariate("clock_sm_start_mhz", "GPU clock at the start", "MHz", 0.005, relative=True, worse="lower"),
    KnownCovariate("clock_sm_mhz", "GPU clock", "MHz", 0.005, relative=True, worse="lower"),
    KnownCovariate("clock_sm_end_mhz", "GPU clock at the end", "MHz", 0.005, relative=True, worse="lower"),
    KnownCovariate("temperature_start_c", "GPU temperature at the start", "°C", 3.0, worse="higher"),
    KnownCovariate("temperature_c", "GPU temperature", "°C", 3.0, worse="higher"),
    KnownCovariate("temperature_end_c", "GPU temperature at the end", "°C", 3.0, worse="higher"),
    KnownCovariate("power_w", "GPU power", "W", 0.02, relative=True),
    KnownCovariate("power_start_w", "GPU power at the start", "W", 0.05, relative=True),
    KnownCovariate("power_end_w", "GPU power at the end", "W", 0.05, relative=True),
    KnownCovariate(
        "limited_thermal_share",
        "clock held down by temperature",
        "share",
        0.01,
        worse="higher",
        alarm=0.01,
        alarm_words="look at the cooling",
    ),
    KnownCovariate("limited_power_cap_share", "clock held down by the power limit", "share", 0.02, worse="higher"),
    KnownCovariate(
        "limited_board_limit_share", "clock held down by the board's power delivery", "share", 0.01, worse="higher"
    ),
    KnownCovariate("limited_sync_boost_share", "clock held down to match another GPU", "share", 0.01, worse="higher"),
    KnownCovariate("limited_reliability_share", "clock held down by voltage", "share", 0.02, worse="higher"),
    KnownCovariate("cpu_thermal_throttles", "CPU slowed by heat", "times", 1.0, worse="higher", zero_if_well=True),
    KnownCovariate(
        "other_cpus",
        "CPUs kept busy by other programs",
        "CPUs",
        0.2,
        worse="higher",
        alarm=0.5,
        alarm_words="other programs were running on the machine",
    ),
    KnownCovariate(
        "other_gpu_processes",
        "other programs on the GPU",
        "programs",
        1.0,
        worse="higher",
        zero_if_well=True,
        alarm=1.0,
        alarm_words="other programs were running on the GPU",
    ),
    KnownCovariate("gpu_waited_share", "time in which the GPU had nothing to do", "share", 0.03, worse="higher"),
    KnownCovariate("clock_memory_mhz", "clock of the GPU's memory", "MHz", 0.005, relative=True, worse="lower"),
    KnownCovariate("memory_temperature_c", "temperature of the GPU's memory", "°C", 5.0, worse="higher"),
    KnownCovariate("cpu_clock_mhz", "clock of the CPUs", "MHz", 0.02, relative=True, worse="lower"),
    KnownCovariate("cpu_pressure_share", "time in which a task waited for a CPU", "share", 0.1, worse="higher"),
    KnownCovariate("memory_pressure_share", "time in which a task waited for memory", "share", 0.02, worse="higher"),
    KnownCovariate("disk_pressure_share", "time in which a task waited for a disk", "share", 0.05, worse="higher"),
    KnownCovariate("load_1m", "load average in the minute before", "", 0.5, worse="higher"),
    KnownCovariate("steal_s", "CPU time the hypervisor gave to other machines", "s", 0.05, worse="higher"),
    KnownCovariate("involuntary_switches", "involuntary context switches", "times", 0.5, relative=True, worse="higher"),
    KnownCovariate("cpu_s", "CPU time used", "s", 0.1, relative=True),
    KnownCovariate("pcie_replays", "PCIe packets resent", "times", 1.0, worse="higher"),
    KnownCovariate("ecc_corrected_volatile", "corrected memory errors", "times", 1.0, worse="higher"),
)
BY_NAME = {known.name: known for known in KNOWN}
# What the counters around the measured part call the same thing.
ALIASES = {"cpu_quota_stops": "cgroup_throttled_times", "cpu_quota_stopped_s": "cgroup_throttled_s"}
# Not what the run met, but how long it was looked at, or what is made into another covariate.
LEFT_OUT = {"counters_elapsed_s", "energy_j", "cpu_energy_j", "cpu_stolen_cpus"}
ENDINGS = {"mhz": "MHz", "c": "°C", "w": "W", "s": "s", "j": "J", "mib": "MiB", "share": "share"}

# One arm's values of one covariate: the block, where there is one, and the number.
Series = Sequence[tuple[int | None, float]]


def covariates_of(run: ExaminedRun) -> dict[str, float]:
    """Return a run's covariates under one name each, with the power that follows from energy and time."""
    told = {name: value for name, value in run.covariates.items() if math.isfinite(value)}
    elapsed_s = told.get("counters_elapsed_s", 0.0)
    made = {ALIASES.get(name, name): value for name, value in told.items() if ALIASES.get(name) not in told}
    if elapsed_s > 0 and "energy_j" in told:
        made.setdefault("power_w", told["energy_j"] / elapsed_s)
    if elapsed_s > 0 and "cpu_stolen_cpus" in told:
        made.setdefault("steal_s", told["cpu_stolen_cpus"] * elapsed_s)
    return {name: value for name, value in made.items() if name not in LEFT_OUT}


def counted_runs(runs: Sequence[ExaminedRun], arm: int) -> list[ExaminedRun]:
    """Return an arm's runs that are part of the verdict; where there are none yet, those that succeeded."""
    mine = [run for run in runs if run.arm == arm and run.role == "measured"]
    return [run for run in mine if run.counted] or [run for run in mine if run.status == "done"]


def series_of_arms(arms: int, runs: Sequence[ExaminedRun]) -> dict[str, list[Series]]:
    """Return each arm's values by covariate; known covariates first, in their order."""
    found: dict[str, list[list[tuple[int | None, float]]]] = {}
    for arm in range(arms):
        for run in counted_runs(runs, arm):
            for name, value in covariates_of(run).items():
                found.setdefault(name, [[] for _ in range(arms)])[arm].append((run.block, value))
    order = [*(known.name for known in KNOWN), *sorted(found.keys() - BY_NAME)]
    return {name: [*found[name]] for name in order if name in found}


def middle(series: Series) -> float | None:
    return median(value for _, value in series) if series else None


def apart(known: KnownCovariate, series: Sequence[Series]) -> tuple[int, int] | None:
    """Return the arms with the lowest and the highest value, where these two differ clearly."""
    middles = [(value, arm) for arm, one in enumerate(series) if (value := middle(one)) is not None]
    if len(middles) < 2:
        return None
    (low, low_arm), (high, high_arm) = min(middles), max(middles)
    if high - low < least_of(known, low, high):
        return None
    pairs = len(list(combinations(middles, 2)))
    if known.zero_if_well and _always(series[high_arm]) and not any(value for _, value in series[low_arm]):
        return low_arm, high_arm
    chance = _chance(series[low_arm], series[high_arm])
    return (low_arm, high_arm) if chance is not None and chance < LEVEL / pairs else None


def least_of(known: KnownCovariate, low: float, high: float) -> float:
    return known.least * max(abs(low), abs(high)) if known.relative else known.least


def _always(series: Series) -> bool:
    return all(value > 0 for _, value in series)


def _chance(first: Series, second: Series) -> float | None:
    """How often two equal arms would be so far apart; None where it cannot be told."""
    by_block = {block: value for block, value in first if block is not None}
    pairs = [value - by_block[block] for block, value in second if block is not None and block in by_block]
    if len(pairs) >= LEAST_PAIRS:
        seen = paired(np.array(pairs))
    elif min(len(first), len(second)) < 2:
        return None
    else:
        seen = welch(*(np.array([value for _, value in one]) for one in (first, second)))
    return _two_sided(float(seen.mean), float(seen.error), float(seen.df))


def _two_sided(difference: float, error: float, df: float) -> float:
    if error <= 1e-12 * abs(difference):
        return 0.0 if difference else 1.0
    return 2 * t_cdf(-abs(difference) / error, df)


def covariate_lines(arms: Sequence[ExaminedArm], runs: Sequence[ExaminedRun]) -> tuple[CovariateLine, ...]:
    """Return the median per arm of every covariate, with a remark where arms differ or where it drifts over the blocks."""
    labels = [arm.label for arm in arms]
    lines = []
    for name, series in series_of_arms(len(arms), runs).items():
        known = BY_NAME.get(name) or KnownCovariate(name, name.replace("_", " "), unit_of(name), 0.05, relative=True)
        remarks = [*_alarm_remark(known, series), *_apart_remark(known, series, labels), *_drift_remark(known, series)]
        if name not in BY_NAME:
            remarks = []  # what it means to a run is not known, so neither is what it would mean that it differs
        lines.append(CovariateLine(name, known.unit, tuple(map(middle, series)), "; ".join(remarks)))
    return tuple(lines)


# What may move a rate from block to block: the load of others, the clock, the heat.
MOVING = ("other_cpus", "clock_sm_mhz", "clock_sm_end_mhz", "temperature_c", "temperature_end_c", "load_1m", "steal_s")


def association_lines(arms: Sequence[ExaminedArm], runs: Sequence[ExaminedRun]) -> tuple[str, ...]:
    """Say what moved with the ratio from block to block, for each pair of arms, where that is clear."""
    met = {(run.arm, run.block): run for run in runs if run.counted and run.block is not None and run.rate_per_s}
    lines = []
    for a, b in combinations(arms, 2):
        blocks = sorted(
            {block for arm, block in met if arm == a.index} & {block for arm, block in met if arm == b.index}
        )
        pairs = [(met[a.index, block], met[b.index, block]) for block in blocks]
        for name in MOVING:
            values = [(covariates_of(one).get(name), covariates_of(other).get(name)) for one, other in pairs]
            moved = [second - first for first, second in values if first is not None and second is not None]
            if len(moved) < len(pairs):
                continue
            ratios = [math.log((other.rate_per_s or 1.0) / (one.rate_per_s or 1.0)) for one, other in pairs]
            found = association(ratios, moved)
            if found is not None and found.clear:
                lines.append(f"{b.label} / {a.label}: {_say_association(BY_NAME[name], found)}")
    return tuple(lines)


def step_associations(arms: Sequence[ExaminedArm], runs: Sequence[ExaminedRun]) -> tuple[str, ...]:
    """Say what moved with the length of steps within the runs of each arm, by their samples."""
    told: list[str] = []
    for arm in arms:
        sampled = [run.telemetry for run in counted_runs(runs, arm.index) if run.telemetry]
        told += moved_with_steps(sampled, arm.label if len(arms) > 1 else "")
    return tuple(told)


def _say_association(known: KnownCovariate, found: Association) -> str:
    slope, low, high = ("+" * (value > 0) + say_percent(value, figures=2)
                        for value in (found.slope, found.slope_low, found.slope_high))  # fmt: skip
    return (
        f"moved with {known.words}: {slope} per {known.unit or 'unit'} (95 % {low} to {high}, correlation "
        f"{found.correlation:+.2f}, {found.blocks} blocks); with the same value in both arms, the ratio is {found.adjusted:.4f} "
        f"({found.adjusted_low:.4f} to {found.adjusted_high:.4f}): an association, not the verdict"
    )


def unit_of(name: str) -> str:
    return ENDINGS.get(name.rpartition("_")[2], "")


def say(known: KnownCovariate, value: float) -> str:
    match known.unit:
        case "share":
            return f"{100 * value:.3g} %"
        case "s":
            return say_seconds(value) if value else "0 s"
        case "MiB":
            return say_size(value * 2**20)
        case "times":
            return f"{value:,.0f} times"
        case _:
            return f"{value:,.0f} {known.unit}".strip() if abs(value) >= 100 else f"{value:.3g} {known.unit}".strip()


def _alarm_remark(known: KnownCovariate, series: Sequence[Series]) -> Iterator[str]:
    worst = max((value for one in series if (value := middle(one)) is not None), default=0.0)
    if worst >= known.alarm:
        yield f"{say(known, worst)}: {known.alarm_words}"


def _apart_remark(known: KnownCovariate, series: Sequence[Series], labels: Sequence[str]) -> Iterator[str]:
    ends = apart(known, series)
    if ends is None:
        return
    low, high = middle(series[ends[0]]), middle(series[ends[1]])
    assert low is not None
    assert high is not None
    if known.zero_if_well:
        yield f"{say(known, high)} in {labels[ends[1]]}, {say(known, low)} in {labels[ends[0]]}"
        return
    by = f"{100 * (high - low) / high:.2g} %" if known.relative and high > 0 else say(known, high - low)
    yield f"{by} higher in {labels[ends[1]]} than in {labels[ends[0]]}"


def _drift_remark(known: KnownCovariate, series: Sequence[Series]) -> Iterator[str]:
    """A straight line through the blocks' means, over the blocks in which every arm has a value."""
    blocks: dict[int, list[float]] = {}
    for one in series:
        for block, value in one:
            if block is not None:
                blocks.setdefault(block, []).append(value)
    full = max((len(values) for values in blocks.values()), default=0)
    points = sorted((block, fmean(values)) for block, values in blocks.items() if len(values) == full)
    if len(points) < LEAST_BLOCKS:
        return
    slope, error = _line(points)
    (first, _), (last, _) = points[0], points[-1]
    centre, level = fmean(block for block, _ in points), fmean(value for _, value in points)
    worth_a_word = DRIFT_FACTOR * least_of(known, level, level)
    if abs(slope * (last - first)) < worth_a_word or _two_sided(slope, error, len(points) - 2) >= LEVEL:
        return
    begin, end = (say(known, level + slope * (block - centre)) for block in (first, last))
    yield f"{'rises' if slope > 0 else 'falls'} over the blocks, from {begin} to {end}"


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Slope and its standard error."""
    x, y = [float(block) for block, _ in points], [value for _, value in points]
    mx, my = fmean(x), fmean(y)
    sxx = sum((one - mx) ** 2 for one in x)
    slope = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / sxx
    rest = sum((b - my - slope * (a - mx)) ** 2 for a, b in zip(x, y, strict=True))
    return slope, math.sqrt(max(rest, 0.0) / (len(x) - 2) / sxx)
