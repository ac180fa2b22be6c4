"""Combine the rows of a list: each problem's time and rate with an interval, and the list as a whole.

A row's time is the median of its samples. Within one process that median has an interval by order statistics, which says how
well this process knew it and nothing of the next process. From several runs, which are as many samples, it is the geometric mean
of their medians with Student's interval. The two are never mixed: `known_by` says which one it is.

The list's own rate is the sum of what its problems need over the sum of the times of one call of each: what somebody gets who
has all of them to do. A few large problems decide it, so the geometric mean of the rates stands next to it, in which each counts
alike. Neither is the mean of rates, which the fastest decide.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median, stdev
from typing import Literal

from stackmark.events import OpRow
from stackmark.medians import median_of
from stackmark.spec import Scalar
from stackmark.verdict.cohorts import benjamini_hochberg
from stackmark.verdict.evidence import ALPHA, NO_SPREAD
from stackmark.verdict.student import t_cdf, t_quantile
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.workloads.op.problem import BYTES_RATE, RATE_SCALE, rate_unit

# A standard deviation, of samples that are normal, from the median of the distances to their median.
MAD_TO_SD = 1.4826

KnownBy = Literal["runs", "samples", ""]


@dataclass(frozen=True)
class RowFailure:
    kind: str
    message: str
    hint: str = ""


@dataclass(frozen=True)
class RowResult:
    """One problem over the runs that did it. `failure` is the first, even where other runs gave a time."""

    index: int
    op: str
    shape: Mapping[str, Scalar]
    precision: str
    accumulate: str = ""
    operations: float | None = None
    least_bytes: float | None = None
    # Seconds of one call; None where no run gave any.
    seconds: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    known_by: KnownBy = ""
    # How many runs gave a time, how many failed in it, and how many samples there are in all.
    runs: int = 0
    failed_runs: int = 0
    samples: int = 0
    # Between runs the standard deviation of ln t; within one the same as far as the median distance tells it.
    spread: float | None = None
    first_call_s: float | None = None
    calls_each: int = 1
    copies: int = 1
    launched: str = "eager"
    # The largest over the runs.
    error: float | None = None
    error_bound: float | None = None
    checked: str = ""
    kernels: tuple[str, ...] = ()
    limit_per_s: float | None = None
    limit: str = ""
    notes: tuple[str, ...] = ()
    failure: RowFailure | None = None

    @property
    def unit(self) -> str:
        return rate_unit(self.operations, self.precision)

    @property
    def work(self) -> float | None:
        """Return what its rate counts: operations, or bytes."""
        return self.least_bytes if self.unit == BYTES_RATE else self.operations

    @property
    def rate(self) -> float | None:
        """Return the rate, in `unit`."""
        return self._per_s(self.work, RATE_SCALE[self.unit])

    @property
    def tflop_per_s(self) -> float | None:
        return self._per_s(self.operations, 1e12)

    @property
    def gb_per_s(self) -> float | None:
        return self._per_s(self.least_bytes, 1e9)

    @property
    def half_width(self) -> float | None:
        """Return half of the interval as a share of the time."""
        if self.seconds is None or self.low_s is None or self.high_s is None:
            return None
        return (self.high_s - self.low_s) / (2 * self.seconds)

    @property
    def limit_share(self) -> float | None:
        """Return the share of what the hardware's description allows."""
        if not self.limit_per_s or self.rate is None:
            return None
        return self.rate * RATE_SCALE[self.unit] / self.limit_per_s

    def _per_s(self, work: float | None, scale: float) -> float | None:
        return work / self.seconds / scale if work and self.seconds else None


@dataclass(frozen=True)
class ListResult:
    """A list over its runs. `rows` are those that any run has done, in the list's order."""

    rows: tuple[RowResult, ...]
    # By number: all that were asked for, and those that no run has done.
    wanted: tuple[int, ...]
    missing: tuple[int, ...]
    unit: str
    # How many runs went through the whole list; each may have been made in several pieces.
    whole: int
    # Over those, of the problems that each of them timed: sum of operations (or bytes) over sum of times, in `unit`. Where no
    # run was whole it is of what there is, and says little of the list.
    aggregate: Throughput | None
    counted: int
    geometric_mean: float | None
    # One call of each.
    total_s: float
    first_calls_s: float

    @property
    def good(self) -> tuple[RowResult, ...]:
        return tuple(row for row in self.rows if row.seconds is not None)

    @property
    def failed(self) -> tuple[RowResult, ...]:
        """Return the failed rows, including those that failed in some runs only."""
        return tuple(row for row in self.rows if row.failure)

    @property
    def longest(self) -> RowResult | None:
        return max(self.good, key=lambda row: row.seconds or 0, default=None)

    def extremes(self) -> tuple[RowResult, RowResult] | None:
        """Return the slowest and the fastest by their rates."""
        rated = [row for row in self.good if row.rate]
        if not rated:
            return None
        return min(rated, key=lambda row: row.rate or 0), max(rated, key=lambda row: row.rate or 0)


def row_of(rows: Sequence[OpRow]) -> RowResult:
    """Combine one problem from its rows, one row per run."""
    first = rows[0]
    good = [row for row in rows if not row.failure_kind and row.call_s]
    bad = [row for row in rows if row.failure_kind]
    like = good[0] if good else first
    errors = [row.error for row in good if row.error is not None]
    first_calls = [row.first_call_s for row in good if row.first_call_s is not None]
    time = _time([row.call_s for row in good])
    return RowResult(
        index=first.index,
        op=first.op,
        shape=first.shape,
        precision=first.precision,
        accumulate=like.accumulate,
        operations=like.operations,
        least_bytes=like.least_bytes,
        seconds=time.seconds,
        low_s=time.low_s,
        high_s=time.high_s,
        known_by=time.known_by,
        runs=len(good),
        failed_runs=len(bad),
        samples=sum(len(row.call_s) for row in good),
        spread=time.spread,
        first_call_s=median(first_calls) if first_calls else None,
        calls_each=like.calls_each,
        copies=like.copies,
        launched=like.launched,
        error=max(errors, default=None),
        error_bound=like.error_bound,
        checked=like.checked,
        kernels=tuple(dict.fromkeys(row.kernel for row in good if row.kernel)),
        limit_per_s=like.limit_per_s,
        limit=like.limit,
        notes=tuple(dict.fromkeys(note for row in good or rows for note in row.notes)),
        failure=RowFailure(bad[0].failure_kind, bad[0].failure_message, bad[0].failure_hint) if bad else None,
    )


@dataclass(frozen=True)
class _Time:
    seconds: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    known_by: KnownBy = ""
    spread: float | None = None


def _time(samples: Sequence[Sequence[float]]) -> _Time:
    """`samples` are a run's each."""
    if not samples:
        return _Time()
    medians = [median_of(of_run) for of_run in samples]
    if len(medians) == 1:
        (only,) = medians
        distance = median(abs(sample - only.value) for sample in samples[0])
        spread = MAD_TO_SD * distance / only.value if only.samples > 1 and only.value > 0 else None
        known_by: KnownBy = "samples" if only.low is not None else ""
        return _Time(only.value, only.low, only.high, known_by, spread)
    over = throughput_over_runs([1 / one.value for one in medians])
    assert over.low_per_s is not None
    assert over.high_per_s is not None
    return _Time(1 / over.rate_per_s, 1 / over.high_per_s, 1 / over.low_per_s, "runs", over.cv)


def over_runs(runs: Sequence[Sequence[OpRow]], wanted: Sequence[int]) -> ListResult:
    """Combine a list from its runs, each with its rows; one made in pieces counts as one. `wanted` are the list's row numbers."""
    by_index: dict[int, list[OpRow]] = {index: [] for index in wanted}
    for run in runs:
        for row in run:
            by_index.setdefault(row.index, []).append(row)
    rows = tuple(row_of(found) for _, found in sorted(by_index.items()) if found)
    whole = [run for run in runs if {row.index for row in run} >= set(wanted)]
    good = [row for row in rows if row.seconds is not None]
    rates = [row.rate for row in good if row.rate]
    counted, aggregates = _aggregates(whole or [run for run in runs if any(_seconds(row) for row in run)])
    return ListResult(
        rows=rows,
        wanted=tuple(sorted(wanted)),
        missing=tuple(sorted(index for index, found in by_index.items() if not found)),
        unit=next((row.unit for row in rows if row.work), BYTES_RATE),
        whole=len(whole),
        aggregate=throughput_over_runs(aggregates) if aggregates else None,
        counted=counted,
        geometric_mean=math.exp(fmean(math.log(rate) for rate in rates)) if rates else None,
        total_s=sum(row.seconds or 0 for row in good),
        first_calls_s=sum(row.first_call_s or 0 for row in good),
    )


def _aggregates(runs: Sequence[Sequence[OpRow]]) -> tuple[int, list[float]]:
    """How many problems all of these runs timed, and of those the rate of each run: else two runs would be of two lists."""
    timed = [{row.index: row for row in run if _seconds(row)} for run in runs]
    common = set.intersection(*(set(run) for run in timed)) if timed else set()
    rates = []
    for run in timed:
        rows = [run[index] for index in common]
        units = [rate_unit(row.operations, row.precision) for row in rows]
        work = sum(
            (row.least_bytes if unit == BYTES_RATE else row.operations) or 0
            for row, unit in zip(rows, units, strict=True)
        )
        seconds = sum(_seconds(row) for row in rows)
        if work and seconds:
            rates.append(work / seconds / RATE_SCALE[units[0]])
    return len(common), rates


def _seconds(row: OpRow) -> float:
    return median_of(row.call_s).value if row.call_s and not row.failure_kind else 0.0


@dataclass(frozen=True)
class RowRatio:
    """The same problem in two arms: above one, B is faster. The interval (95 %) and the p are over blocks, None from one block.

    `p_adjusted` is after Benjamini and Hochberg over all rows of the pair; `differs` is whether it is at most 5 %.
    """

    index: int
    op: str
    shape: Mapping[str, Scalar]
    ratio: float
    blocks: int = 1
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    differs: bool = False


@dataclass(frozen=True)
class ListRatio:
    """B over A, row by row: which rows differ after correction for their number. The verdict is by the list's own rate."""

    a: str
    b: str
    geometric_mean: float
    rows: tuple[RowRatio, ...] = field(default=())

    @property
    def differing(self) -> tuple[RowRatio, ...]:
        return tuple(row for row in self.rows if row.differs)

    @property
    def testable(self) -> bool:
        return any(row.p is not None for row in self.rows)


def compare_lists(
    a: str, b: str, of_a: Mapping[int, Sequence[OpRow]], of_b: Mapping[int, Sequence[OpRow]]
) -> ListRatio | None:
    """Compare the problems that both arms timed, by the blocks in which both did; None where there is none.

    The lowest and the highest of 160 ratios of equal arms are 0.97 and 1.03, so a row is said to differ only by its own blocks
    and after Benjamini and Hochberg's correction at 5 %.
    """
    found: dict[int, tuple[OpRow, list[float]]] = {}
    for block in sorted(of_a.keys() & of_b.keys()):
        seconds_a = {row.index: _seconds(row) for row in of_a[block]}
        for row in of_b[block]:
            before, after = seconds_a.get(row.index, 0.0), _seconds(row)
            if before and after:
                found.setdefault(row.index, (row, []))[1].append(math.log(before / after))
    if not found:
        return None
    rows = [_row_ratio(row, differences) for _, (row, differences) in sorted(found.items())]
    tested = [row for row in rows if row.p is not None]
    adjusted = benjamini_hochberg([row.p for row in tested if row.p is not None])
    corrected = {row.index: q for row, q in zip(tested, adjusted, strict=True)}
    judged = tuple(
        replace(row, p_adjusted=corrected[row.index], differs=corrected[row.index] <= ALPHA)
        if row.index in corrected
        else row
        for row in rows
    )
    return ListRatio(a, b, math.exp(fmean(math.log(row.ratio) for row in judged)), judged)


def _row_ratio(row: OpRow, differences: Sequence[float]) -> RowRatio:
    mean, n = fmean(differences), len(differences)
    ratio = RowRatio(row.index, row.op, row.shape, math.exp(mean), n)
    error = stdev(differences) / math.sqrt(n) if n > 1 else 0.0
    if error <= NO_SPREAD:
        return ratio
    reach = t_quantile(1 - ALPHA / 2, n - 1) * error
    return replace(
        ratio, low=math.exp(mean - reach), high=math.exp(mean + reach), p=2 * t_cdf(-abs(mean) / error, n - 1)
    )
