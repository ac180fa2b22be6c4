"""How a baseline and its checks went over time: every series with its rate, its interval and its word.

Everything is computed again from the ledger. A check gets the word that it gets by the rules of today, against the baseline as it
is today, and alone: Holm's method over the workloads of one check is not applied. Series on different chips are different trends.
"""

from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from stackmark.experiments.baseline import HeldWorkload, held_by
from stackmark.experiments.check import Rows, by_series, facts_reader, judge, rate_of_series, sides_of
from stackmark.experiments.progress import in_common_windows
from stackmark.ledger import baselines
from stackmark.ledger.rows import RunDetail
from stackmark.ledger.store import Ledger
from stackmark.verdict.comparison import Word
from stackmark.verdict.throughput import Throughput, throughput_over_runs


@dataclass(frozen=True)
class TrendPoint:
    """One series of the baseline, or one check."""

    kind: Literal["baseline", "check"]
    began_unix_s: float
    experiment_ids: tuple[str, ...]
    # Of its runs, with the 95 % interval where it has two or more.
    throughput: Throughput
    # Of rates, so that more is better.
    ratio_to_first: float
    ratio_to_baseline: float
    # Of a check; None for the baseline itself, and where no series of the baseline ran on this chip.
    word: Word | None = None


@dataclass(frozen=True)
class Trend:
    """One workload of a baseline on one chip, oldest first."""

    label: str
    workload: str
    place: str
    unit: str
    margin: float
    # The mean of the baseline's series, with its 95 % interval over them where there are two or more.
    baseline: Throughput
    points: tuple[TrendPoint, ...]


def trends_of(ledger: Ledger, name: str, margin: float) -> list[Trend]:
    """Collect the series of a baseline and the checks against it."""
    found = []
    for held in held_by(ledger, name):
        checks = [row for row in baselines.checked_runs(ledger, name, held.spec.digest) if row.rate_per_s]
        checks = [row for row in checks if (row.place, row.place_options) == (held.place, held.place_options)]
        chips = list(dict.fromkeys(_chip(row) for row in held.rows))
        for chip in chips:
            label = held.label if len(chips) == 1 else f"{held.label} on {chip[1] or chip[0]}"
            here = [row for row in checks if _chip(row) == chip]
            found.append(
                _trend(ledger, name, held, label, [row for row in held.rows if _chip(row) == chip], here, margin)
            )
    return found


def _chip(row: RunDetail) -> tuple[str | None, str | None, str | None]:
    return row.ran_on, row.chip, row.chip_uuid


def _trend(
    ledger: Ledger, name: str, held: HeldWorkload, label: str, before: Rows, checks: Rows, margin: float
) -> Trend:
    facts = facts_reader(ledger)
    saved = by_series(before)
    means = [rate_of_series(series).rate_per_s for series in saved]
    baseline = throughput_over_runs(means)

    def point(kind: Literal["baseline", "check"], rows: Rows, word: Word | None = None) -> TrendPoint:
        rate = rate_of_series(rows)
        experiments = tuple(dict.fromkeys(row.experiment_id for row in rows))
        began = min(row.started_unix_s for row in rows)
        return TrendPoint(
            kind, began, experiments, rate, rate.rate_per_s / means[0], rate.rate_per_s / baseline.rate_per_s, word
        )

    points = [point("baseline", series) for series in saved]
    for _, group in groupby(checks, key=lambda row: row.experiment_id):
        rows = in_common_windows(ledger, list(group))
        sides = sides_of(ledger, name, held, rows, facts)
        points.append(point("check", rows, judge(ledger, name, held, sides, margin).tonight.word))
    unit = before[0].rate_unit or ""
    ordered = tuple(sorted(points, key=lambda one: one.began_unix_s))
    return Trend(label, held.spec.workload, held.place, unit, margin, baseline, ordered)
