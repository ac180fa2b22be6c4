"""The scaling of stored runs: imported logs of one GPU, of two, of eight, put side by side.

Runs that differ in nothing but the number of ranks are one group, and each rank count is compared with one rank. Nothing was
interleaved, often a side has one run, and logs do not say when they were written: the rules of groups.py for all of that apply,
with the one-sided question of scaling. Holm decides over all rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import log

from stackmark.errors import SpecError
from stackmark.experiments import fairness
from stackmark.experiments.design import check_margin
from stackmark.experiments.groups import are_undated, run_spread
from stackmark.experiments.progress import series_numbers
from stackmark.experiments.scale import label_of
from stackmark.experiments.selecting import (
    NOT_GIVEN,
    read_conditions,
    say_conditions,
    select_runs,
    value_of,
    varying_keys,
)
from stackmark.ledger.rows import RunDetail
from stackmark.ledger.several import SeveralLedgers
from stackmark.published.lookup import known_rows
from stackmark.published.scaling import nearest_scaling
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.family import holm
from stackmark.verdict.scaling import MARGIN, PublishedScaling, is_questioned, question
from stackmark.verdict.throughput import Throughput, throughput_over_runs
from stackmark.verdict.unpaired import ONE_SERIES, compare_runs, in_these_logs

OPTION = "--stored"
# What tells groups apart besides the parameters of the work; machines are not named by logs.
_ABOUT = ("chip", "place", "framework")
MOST_ROWS = 500
WITHOUT_ONE = "no run of one rank with these settings"


@dataclass(frozen=True)
class ScalingRow:
    """The runs of one group with one number of ranks. `reason` says why there is no efficiency; one rank needs none."""

    values: tuple[str, ...]
    ranks: int
    throughput: Throughput
    unit: str
    comparison: Comparison | None = None
    reason: str = ""

    @property
    def speedup(self) -> float | None:
        return self.ranks * self.comparison.ratio if self.comparison else None


@dataclass(frozen=True)
class ScalingTable:
    """Groups of runs by their rank counts. `by` names what tells the groups apart."""

    by: tuple[str, ...]
    rows: tuple[ScalingRow, ...]
    margin: float
    scope: str
    published: tuple[PublishedScaling, ...] = ()
    left_out: tuple[str, ...] = ()
    questions: tuple[str, ...] = ()
    command: str = ""

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return tuple(row.comparison for row in self.rows if row.comparison)


def tabulate_scaling(
    sources: SeveralLedgers, texts: Sequence[str], *, margin: float = MARGIN, command: str = ""
) -> ScalingTable:
    """Hold the selected runs of several ranks against those of one rank with the same settings."""
    check_margin(margin)
    conditions = read_conditions(texts, OPTION)
    selected = select_runs(sources, conditions, OPTION)
    rows = list(selected.rows)
    counts = sorted({row.spec.ranks for row in rows})
    if len(counts) < 2:
        raise SpecError(
            f"{OPTION}: {say_conditions(conditions)} selects runs of {label_of(counts[0])} only",
            hint="select runs with several rank counts: leave out ranks=, or import the other logs",
        )
    by = _keys(rows)
    groups: dict[tuple[str, ...], dict[int, list[RunDetail]]] = {}
    for row in rows:
        values = tuple(value_of(row, key) or NOT_GIVEN for key in by)
        groups.setdefault(values, {}).setdefault(row.spec.ranks, []).append(row)
    made = [
        _row(sources, values, ranks, group[ranks], group.get(1, []), margin)
        for values, group in sorted(groups.items())
        for ranks in sorted(group)
    ]
    if len(made) > MOST_ROWS:
        raise SpecError(f"{OPTION}: {len(made):,} rows; at most {MOST_ROWS} are shown", hint="add a condition")
    decided = _decided(made, _limit(rows))
    return ScalingTable(
        by=by,
        rows=tuple(decided),
        margin=margin,
        scope=fairness.scope(rows),
        published=_published(sources, rows),
        left_out=tuple(str(said) for said in selected.left_out),
        questions=tuple(
            question(row.comparison) for row in decided if row.comparison and is_questioned(row.comparison)
        ),
        command=command,
    )


def _keys(rows: Sequence[RunDetail]) -> tuple[str, ...]:
    """Return in what the runs differ besides their ranks."""
    work = [key for key in varying_keys(rows) if key != "ranks" and len({value_of(row, key) for row in rows}) > 1]
    about = [key for key in _ABOUT if len({value_of(row, key) for row in rows}) > 1]
    return tuple(dict.fromkeys([*work, *about]))


def _row(
    sources: SeveralLedgers,
    values: tuple[str, ...],
    ranks: int,
    mine: Sequence[RunDetail],
    one: Sequence[RunDetail],
    margin: float,
) -> ScalingRow:
    throughput = throughput_over_runs([row.rate_per_s for row in mine if row.rate_per_s])
    row = ScalingRow(values, ranks, throughput, mine[0].rate_unit or "")
    if ranks == 1:
        return row
    if not one:
        return replace(row, reason=WITHOUT_ONE)
    compared = compare_runs(
        label_of(1), label_of(ranks), _logs(one), _logs(mine), margin, spread=run_spread(sources, one[0], mine[0]),
        terms="efficiency",
    )  # fmt: skip
    return replace(row, comparison=compared)


def _logs(rows: Sequence[RunDetail]) -> list[float]:
    """Return ln R of each rank."""
    return [log(row.rate_per_s / row.spec.ranks) for row in rows if row.rate_per_s]


def _limit(rows: Sequence[RunDetail]) -> str:
    """Say why words hold for these runs alone: undated logs, or runs of several days or boots; empty where they do not."""
    if are_undated(rows):
        return ONE_SERIES
    series = len(set(series_numbers(rows)))
    return (
        f"the runs are of {series} series: how far series of this machine differ is not in the interval"
        if series > 1
        else ""
    )


def _decided(rows: Sequence[ScalingRow], limit: str) -> list[ScalingRow]:
    """Let Holm decide over the rows, then limit the words where something does."""
    decided = iter(holm([row.comparison for row in rows if row.comparison]))
    found = []
    for row in rows:
        one = next(decided) if row.comparison else None
        found.append(replace(row, comparison=in_these_logs(one, limit) if one and limit else one))
    return found


def _published(sources: SeveralLedgers, rows: Sequence[RunDetail]) -> tuple[PublishedScaling, ...]:
    """Return published efficiencies, where all runs are of one workload."""
    if len({row.workload for row in rows}) > 1:
        return ()
    counts = sorted({row.spec.ranks for row in rows})
    return nearest_scaling(known_rows(sources.first), rows[0].spec, rows[0].chip, counts)
