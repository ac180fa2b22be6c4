"""How a baseline and its checks went over time: every series with its rate, its interval and its word.

Everything is computed again from the ledger. A check gets the word that it gets by the rules of today, against the baseline as it
is today, and alone: Holm's method over the workloads of one check is not applied. Series on different chips are different trends.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

import numpy as np

from stackmark.experiments.baseline import HeldWorkload, held_by
from stackmark.experiments.check import Rows, by_series, differences, facts_reader, judge, rate_of_series, sides_of
from stackmark.experiments.progress import in_common_windows
from stackmark.ledger import baselines, spreads
from stackmark.ledger.rows import RunDetail, RunFilter
from stackmark.ledger.store import Ledger
from stackmark.verdict.changes import MOST_SERIES, Change, changes_in
from stackmark.verdict.comparison import Word
from stackmark.verdict.examined import FactDifference
from stackmark.verdict.fact_values import stack_changes
from stackmark.verdict.throughput import Throughput, throughput_over_runs

# Newest runs of a workload among which its specs are looked for.
MOST_LOOKED_AT = 5_000


@dataclass(frozen=True)
class TrendPoint:
    """One series of the baseline, or one check."""

    kind: Literal["baseline", "check", "series"]
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
class TrendChange:
    """One change of the rate, and what else changed with it."""

    change: Change
    # The last series before it and the first after it began then.
    after_unix_s: float
    until_unix_s: float
    # Of driver, firmware, kernel and versions, a sentence each.
    stack: tuple[str, ...] = ()
    # What else differs between the two, most telling first.
    differs: tuple[FactDifference, ...] = ()


@dataclass(frozen=True)
class Trend:
    """One workload of a baseline, or of a whole ledger, on one chip, oldest first."""

    label: str
    workload: str
    place: str
    unit: str
    margin: float
    # The mean of the baseline's series, with its 95 % interval over them where there are two or more.
    baseline: Throughput
    points: tuple[TrendPoint, ...]
    # Where one level ends and another begins (verdict/changes.py).
    changes: tuple[TrendChange, ...] = ()
    # Where it was measured, and with which settings: a history of a whole ledger has several.
    about: str = ""


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

    def point(kind: Literal["baseline", "check", "series"], rows: Rows, word: Word | None = None) -> TrendPoint:
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


# --- of a whole ledger --------------------------------------------------------------------------------------------------


def history_of_workload(
    ledger: Ledger, workload: str, margin: float, *, machine: str | None = None, place: str | None = None
) -> list[Trend]:
    """Collect all series of a workload, one trend for each spec, place and chip that has at least two.

    `machine` is the beginning of a machine's id, of a node's name or of a chip's UUID, or a part of a chip's name.
    """
    wanted = RunFilter(workload=workload, status="done", place=place)
    groups: dict[tuple[str, ...], list[RunDetail]] = {}
    for digest in dict.fromkeys(row.spec_digest for row in ledger.runs(wanted, limit=MOST_LOOKED_AT)):
        for row in spreads.runs_of_spec(ledger, digest):
            if (place is None or row.place == place) and (machine is None or _is_on(row, machine)):
                options = json.dumps(row.place_options, sort_keys=True)
                key = (digest, row.place, options, *(part or "" for part in _chip(row)))
                groups.setdefault(key, []).append(row)
    found = [_history(ledger, rows, margin) for rows in groups.values()]
    return sorted((one for one in found if len(one.points) > 1), key=lambda one: -one.points[-1].began_unix_s)


def _is_on(row: RunDetail, machine: str) -> bool:
    names = (row.ran_on, row.machine_id, row.chip_uuid or "", str(row.handle.get("node") or ""))
    return any(name.startswith(machine) for name in names) or machine.lower() in (row.chip or "").lower()


def _history(ledger: Ledger, rows: Rows, margin: float) -> Trend:
    saved = by_series(in_common_windows(ledger, list(rows)))[-MOST_SERIES:]
    rates = [rate_of_series(series) for series in saved]
    logs = np.log(np.array([rate.rate_per_s for rate in rates]))
    changes = changes_in(logs, margin=margin)
    level = rates[: changes[0].first] if changes else rates
    mean = throughput_over_runs([rate.rate_per_s for rate in level])
    points = tuple(
        TrendPoint(
            "series", series[0].started_unix_s, tuple(dict.fromkeys(row.experiment_id for row in series)), rate,
            rate.rate_per_s / rates[0].rate_per_s, rate.rate_per_s / mean.rate_per_s,
        )
        for series, rate in zip(saved, rates, strict=True)
    )  # fmt: skip
    first = rows[0]
    about = ", ".join(
        filter(None, [f"on {first.place}", first.chip or first.device or "", f"machine {first.ran_on[:12]}"])
    )
    return Trend(
        first.workload, first.workload, first.place, first.rate_unit or "", margin, mean, points,
        tuple(_explained(ledger, one, saved) for one in changes), about,
    )  # fmt: skip


def _explained(ledger: Ledger, change: Change, saved: Sequence[Rows]) -> TrendChange:
    before, after = saved[change.first - 1], saved[change.first]
    facts = facts_reader(ledger)
    return TrendChange(
        change, before[0].started_unix_s, after[0].started_unix_s,
        tuple(str(one) for one in stack_changes(facts(before[-1]), facts(after[0]))), differences(ledger, before, after),
    )  # fmt: skip
