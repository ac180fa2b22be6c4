"""Time to a quality: how long training takes until a model is as good as its target asks.

A run's figure is the time on its clock at the evaluation that reached the target, as MLPerf counts it. The true moment lies
between that evaluation and the one before, so the time is interval-censored; a run that ended at its limit without the target is
right-censored, and never dropped. What is computed from that:

- the median time of an arm with a 95 % interval, and the ratio of two arms, by a log-normal model (survival.py);
- where every run of the arms reached its target, a comparison keeps to its blocks of figures: both arms are then judged at the
  evaluation that MLPerf counts, and runs of a block, which have one seed, are the same training. As soon as one did not, the
  model decides. Below ten runs a side a permutation log-rank test must support a difference too, and EQUIVALENT is not said;
- MLPerf's score (mlperf_score.py), the share of runs that reach the target (Clopper and Pearson), and the share of the variance
  of ln time that is the seed's, where seeds were run more than once.

Pairing: runs of one block have one seed, so what the seed does is in both and cancels in the difference of their logarithms; the
model then is about that difference, whose interval is from the ends of both spans. Where runs are not in blocks, the arms are
taken as independent, with one spread.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

import numpy as np

from stackmark.units import counted
from stackmark.verdict.bad_runs import share_at_most
from stackmark.verdict.comparison import Comparison, Interval, Needed, SpeedWord, difference_in, word_in
from stackmark.verdict.evidence import ALPHA, limit_of
from stackmark.verdict.mlperf_score import benchmark_name, has_score, score_of, why_unofficial
from stackmark.verdict.ratio import Pair, without_interval
from stackmark.verdict.sentence import sentence_of
from stackmark.verdict.student import f_quantile
from stackmark.verdict.survival import Estimate, Span, difference_of_logs, log_rank_p, mean_difference, mean_log
from stackmark.verdict.throughput import Throughput

# Below this many runs a side the log-rank test must support what the model says.
ENOUGH_FOR_MODEL = 10
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Evaluation:
    """The quality of a model after some training, on the clock of its run."""

    number: int
    epoch: float
    samples: int
    clock_s: float
    quality: Mapping[str, float]
    reached: bool


@dataclass(frozen=True)
class TrainedRun:
    """One run: its curve of quality, and whether it reached its target."""

    run_id: str
    arm: int
    block: int | None
    # None where the worker named none.
    seed: int | None
    target: Mapping[str, float]
    evaluations: tuple[Evaluation, ...]

    @property
    def reached(self) -> bool:
        return bool(self.evaluations) and self.evaluations[-1].reached

    @property
    def time_s(self) -> float:
        """Return the time to the target; of a run that did not reach it, the time to its last evaluation."""
        return self.evaluations[-1].clock_s if self.evaluations else 0.0

    @property
    def epochs(self) -> float:
        return self.evaluations[-1].epoch if self.evaluations else 0.0

    @property
    def span(self) -> Span:
        """Return what is known of the moment at which the target was reached."""
        if not self.reached:
            return Span(self.time_s, None)
        return Span(self.evaluations[-2].clock_s if len(self.evaluations) > 1 else 0.0, self.time_s)

    @property
    def crossing_s(self) -> float | None:
        """Return when the straight line between the last two evaluations crosses the target, the last of several targets.

        None where the target was not reached, or at the first evaluation: nothing is known of the time before.
        """
        if not self.reached or len(self.evaluations) < 2:
            return None
        before, after = self.evaluations[-2:]
        share = 0.0
        for name, least in self.target.items():
            low, high = before.quality.get(name, -math.inf), after.quality.get(name, -math.inf)
            if low < least <= high and math.isfinite(low):
                share = max(share, (least - low) / (high - low))
        return before.clock_s + share * (after.clock_s - before.clock_s)


@dataclass(frozen=True)
class Share:
    """A share of runs with its 95 % interval (Clopper and Pearson)."""

    count: int
    of: int
    low: float
    high: float


@dataclass(frozen=True)
class MedianTime:
    """The median time by the log-normal model; an end that the runs do not bound is None."""

    seconds: float
    low_s: float | None
    high_s: float | None
    # Standard deviation of ln time between runs; None where all runs fit between the same two evaluations.
    spread: float | None


@dataclass(frozen=True)
class MlperfScore:
    """MLPerf's score; `minutes` is None where the rules give none, and `why` says why. Unofficial scores say why they are."""

    minutes: float | None
    official: bool
    why: str


@dataclass(frozen=True)
class SeedShare:
    """The share of the variance of ln time that is the seed's, with its 95 % interval where seeds have equally many runs."""

    share: float
    low: float | None
    high: float | None
    seeds: int
    runs: int


@dataclass(frozen=True)
class QualityResult:
    """The runs of an arm that were trained to a target, and what they show together."""

    workload: str
    # The names of the qualities in the order of the definition, with their units.
    units: Mapping[str, str]
    target: Mapping[str, float]
    runs: tuple[TrainedRun, ...]
    reached: Share
    # By the log-normal model; None where fewer than two runs reached the target.
    median: MedianTime | None
    # Geometric mean of the interpolated crossing times, where all runs have one.
    crossing_s: float | None
    score: MlperfScore
    seeds: SeedShare | None
    # Why the share of the seed is not stated.
    no_seeds: str = ""

    @property
    def censored(self) -> int:
        """Return how many runs did not reach the target."""
        return self.reached.of - self.reached.count


def summed_up(
    workload: str, units: Mapping[str, str], runs: Sequence[TrainedRun], *, tiny: bool = False
) -> QualityResult:
    """Sum up the runs of one arm. `tiny` is whether it is a small preset, which no rule of MLPerf knows."""
    if not runs:
        raise ValueError("there are no runs")
    reached = [run for run in runs if run.reached]
    crossings = [crossing for run in runs if (crossing := run.crossing_s)]
    seeds, no_seeds = seed_share(runs)
    return QualityResult(
        workload,
        units,
        runs[0].target,
        tuple(runs),
        share_of(len(reached), len(runs)),
        median_time([run.span for run in runs]),
        math.exp(fmean(map(math.log, crossings))) if len(crossings) == len(runs) else None,
        mlperf_score(workload, runs, tiny=tiny),
        seeds,
        no_seeds,
    )


def share_of(count: int, of: int) -> Share:
    half = (1 - CONFIDENCE) / 2
    return Share(count, of, 1 - share_at_most(of - count, of, half), share_at_most(count, of, half))


def median_time(spans: Sequence[Span]) -> MedianTime | None:
    """Return the median of a log-normal time; None where fewer than two runs reached the target."""
    found = mean_log(spans)
    if found is None:
        return None
    return MedianTime(math.exp(found.mean), _exp(found.low), _exp(found.high), found.spread)


def _exp(value: float | None) -> float | None:
    return None if value is None else math.exp(value)


def model_throughput(result: QualityResult) -> Throughput | None:
    """Return the median time in minutes as the ledger has figures (1/min), with its interval; None without one.

    It stands for an arm of which a run did not reach the target: the mean of the runs that did would be too good.
    """
    if result.median is None:
        return None
    low_s, high_s = result.median.low_s, result.median.high_s
    both = low_s is not None and high_s is not None and low_s > 0
    return Throughput(
        60 / result.median.seconds,
        60 / high_s if both and high_s else None,
        60 / low_s if both and low_s else None,
        result.reached.of,
        result.median.spread,
    )


def mlperf_score(workload: str, runs: Sequence[TrainedRun], *, tiny: bool) -> MlperfScore:
    benchmark = benchmark_name(workload.partition("/")[2])
    seconds = [run.time_s for run in runs if run.reached]
    failed = len(runs) - len(seconds)
    if not has_score(len(runs), failed):
        allowed = "; the rules allow one" if len(runs) > 1 else ""
        return MlperfScore(None, False, f"{failed} of {counted(len(runs), 'run')} did not reach the target{allowed}")
    why = [why_unofficial(benchmark, len(runs))]
    if tiny:
        why.append("the preset tiny is not MLPerf's task")
    said = "; ".join(filter(None, why))
    return MlperfScore(score_of(seconds, failed), not said, said)


def seed_share(runs: Sequence[TrainedRun]) -> tuple[SeedShare | None, str]:
    """Return the share of the variance of ln time that is the seed's, or why it is not stated.

    One-way random effects: between seeds and within them, with Fisher's F for the interval where each seed has as many runs as
    any other.
    """
    of_seed: dict[int, list[TrainedRun]] = {}
    for run in runs:
        if run.seed is not None:
            of_seed.setdefault(run.seed, []).append(run)
    groups = [group for group in of_seed.values() if len(group) > 1]
    if len(of_seed) < 2 or not groups:
        return None, "it takes two seeds or more with two runs or more of one of them"
    if any(not run.reached for group in of_seed.values() for run in group):
        return None, "a run did not reach the target, so its time is not known"
    logs = [np.log([run.crossing_s or run.time_s for run in group]) for group in of_seed.values()]
    sizes = np.array([group.size for group in logs])
    runs_in_all, seeds = int(sizes.sum()), len(logs)
    grand = float(np.concatenate(logs).mean())
    between = sum(group.size * (float(group.mean()) - grand) ** 2 for group in logs) / (seeds - 1)
    within = sum(float(((group - group.mean()) ** 2).sum()) for group in logs) / (runs_in_all - seeds)
    size = (runs_in_all - float((sizes**2).sum()) / runs_in_all) / (seeds - 1)
    if between + within <= 0:
        return None, "all runs took the same time"
    low: float | None = None
    high: float | None = None
    if len(set(sizes.tolist())) == 1 and within > 0:
        ratio, df = between / within, (seeds - 1, runs_in_all - seeds)
        low, high = (
            min(max(_share_by(ratio / f_quantile(p, *df), size), 0.0), 1.0)
            for p in (0.5 + CONFIDENCE / 2, 0.5 - CONFIDENCE / 2)
        )
    share = _share_by(between / within, size) if within > 0 else 1.0
    return SeedShare(min(max(share, 0.0), 1.0), low, high, seeds, runs_in_all), ""


def with_seeds_of_all(arms: Sequence[QualityResult | None]) -> tuple[QualityResult | None, ...]:
    """Return the arms with the seed's share over the runs of all of them: arms that are one and the same run each seed again."""
    share, why = seed_share([run for arm in arms if arm for run in arm.runs])
    return tuple(arm and replace(arm, seeds=share, no_seeds=why) for arm in arms)


def _share_by(ratio: float, size: float) -> float:
    """Return σ²_seed / (σ²_seed + σ²_run) from the ratio of the mean squares."""
    return (ratio - 1) / (ratio - 1 + size)


# --- Two arms, of which a run did not reach its target


def compare_times(
    pair: Pair,
    a: Sequence[Span],
    b: Sequence[Span],
    margin: float,
    *,
    levels: tuple[float, float] | None = None,
    block_s: float | None = None,
) -> Comparison:
    """Compare B with A by their times, some of which are only known to be longer. `pair.kind` "blocks" pairs them in order.

    The ratio is of rates, as everywhere: above one, B is faster.
    """
    level, level_difference = levels or (ALPHA, ALPHA)
    paired, terms = pair.kind == "blocks", pair.terms
    p_rank = log_rank_p(a, b, paired=paired)
    found = mean_difference(list(zip(a, b, strict=True))) if paired else None
    found = _bounded(found or difference_of_logs(a, b), level_difference / 2)
    few = min(len(a), len(b)) < ENOUGH_FOR_MODEL
    notes = [_how_decided(a, b, pair, p_rank, few)]
    if found is None:
        return _without_model(pair, a, b, margin, p_rank, tuple(notes))
    limit = limit_of(margin)
    interval_90, interval_95 = (_rate_interval(found, one) for one in (level, level_difference / 2))
    profile = found.profile
    # ln rate is −ln time: slower by more than the margin is a difference of times above the limit.
    p_slower, p_faster = profile.p_below(limit), profile.p_above(-limit)
    p_zero = 2 * min(profile.p_below(0.0), profile.p_above(0.0))
    p_outside = max(min(p_slower, p_faster), p_zero, p_rank if few else 0.0)
    p_equivalence = 1.0 if few else max(profile.p_above(limit), profile.p_below(-limit))
    word = _word(interval_90, interval_95, limit, few=few, supported=not few or p_rank <= level_difference)
    shown = interval_95.low > 1 or interval_95.high < 1
    way: Literal["slower", "faster"] = "slower" if interval_95.high < 1 else "faster"
    named = difference_in(terms, way) if shown and (not few or p_rank <= level_difference) else None
    comparison = Comparison(
        a=pair.a, b=pair.b, kind=pair.kind, count_a=len(a), count_b=len(b),
        ratio=_bounded_exp(-found.mean), interval_90=interval_90, interval_95=interval_95,
        sd_log=found.spread, margin=margin, word=word_in(terms, word),
        difference=named,
        p_equivalence=p_equivalence, p_difference=max(p_zero, p_rank) if few else p_zero, p_outside=p_outside,
        needed=_needed(few) if word == "INCONCLUSIVE" else None, sentence="", notes=tuple(notes), df=None,
        block_s=block_s, terms=terms, p_log_rank=p_rank,
    )  # fmt: skip
    return replace(comparison, sentence=sentence_of(comparison))


def _bounded(found: Estimate | None, one_sided_level: float) -> Estimate | None:
    """Leave out an estimate that the runs do not bound from both sides: then the log-rank test alone says what can be said."""
    return found if found and None not in found.profile.bounds(one_sided_level) else None


def _word(interval: Interval, wider: Interval, limit: float, *, few: bool, supported: bool) -> SpeedWord:
    low, high = math.log(interval.low), math.log(interval.high)
    if low >= -limit and high <= limit:
        return "INCONCLUSIVE" if few else "EQUIVALENT"
    if supported and high < -limit and wider.high < 1:
        return "SLOWER"
    if supported and low > limit and wider.low > 1:
        return "FASTER"
    return "INCONCLUSIVE"


def _rate_interval(found: Estimate, one_sided_level: float) -> Interval:
    low, high = found.profile.bounds(one_sided_level)
    assert low is not None
    assert high is not None
    return Interval(_bounded_exp(-high), _bounded_exp(-low), 1 - 2 * one_sided_level)


def _bounded_exp(value: float) -> float:
    return math.exp(min(max(value, -700.0), 700.0))


def _how_decided(a: Sequence[Span], b: Sequence[Span], pair: Pair, p_rank: float, few: bool) -> str:
    missed = [
        f"{sum(not span.reached for span in arm)} of {len(arm)} in {name}" for name, arm in ((pair.a, a), (pair.b, b))
    ]
    how = "within blocks, whose runs have one seed" if pair.kind == "blocks" else "independent runs"
    rank = f"the permutation log-rank test ({how}) has p = {p_rank:.2g}"
    support = f"; below {ENOUGH_FOR_MODEL} runs a side it must support a difference" if few else ""
    return (
        f"runs that did not reach the target: {', '.join(missed)}; they count as longer than their limit, in a log-normal "
        f"model of all runs; {rank}{support}"
    )


def _needed(few: bool) -> Needed:
    more = f"{ENOUGH_FOR_MODEL} runs a side or more" if few else "more runs"
    return Needed(None, f"{more}, or a limit within which more of them reach the target")


def _without_model(
    pair: Pair, a: Sequence[Span], b: Sequence[Span], margin: float, p_rank: float, notes: tuple[str, ...]
) -> Comparison:
    """Compare where an arm never reached its target, or hardly any run did: the log-rank test alone tells them apart.

    The ratio is that of the times that were passed without the target in one arm, and needed or passed in the other: the true
    one is farther from 1.
    """
    known = [
        fmean(math.log(max(span.low_s if span.high_s is None else span.high_s, 1e-9)) for span in arm) for arm in (a, b)
    ]
    mean = known[0] - known[1]
    never = [not any(span.reached for span in arm) for arm in (a, b)]
    bare = without_interval(pair, mean, margin, why=notes[0], advice=_needed(few=True))
    if never[0] == never[1] or p_rank > ALPHA:
        return replace(bare, p_difference=p_rank, p_log_rank=p_rank)
    word: SpeedWord = "FASTER" if never[0] else "SLOWER"
    which, other = (pair.a, pair.b) if never[0] else (pair.b, pair.a)
    reached = sum(span.reached for span in (b if never[0] else a))
    said = (
        f"{pair.b} is {word_in(pair.terms, word)} than {pair.a}: no run of {which} reached the target and "
        f"{counted(reached, 'run')} of {other} did (log-rank test, p = {p_rank:.2g}); by how much is not known"
    )
    return replace(
        bare, word=word_in(pair.terms, word), needed=None, sentence=said, p_difference=p_rank, p_outside=p_rank,
        difference=difference_in(pair.terms, "faster" if word == "FASTER" else "slower"), p_log_rank=p_rank,
    )  # fmt: skip
