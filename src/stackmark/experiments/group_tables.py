"""Compare two sides of stored runs row by row: V100 against P100 for each precision, fp16 against fp32 for each chip.

A row is a value, or several, that both sides have: `by` names the keys. Every row is a comparison of its own, by the rules of
groups.py; Holm decides over all of them, since ten rows at 5 % each are nearly even odds of a false word somewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from stackmark.errors import SpecError
from stackmark.experiments import fairness
from stackmark.experiments.design import MARGIN, check_margin
from stackmark.experiments.groups import (
    CANNOT_COMPARE,
    Side,
    Sides,
    are_undated,
    find_sides,
    has_imported_arms,
    put_together,
    reasons_of,
    sides_of_import,
)
from stackmark.experiments.selecting import NOT_GIVEN, check_keys, value_of, varying_keys
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.several import SeveralLedgers
from stackmark.ledger.store import Ledger
from stackmark.units import counted
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import Examined
from stackmark.verdict.family import holm
from stackmark.verdict.unpaired import in_these_logs

# A screen of rows, and no more streams than somebody waits for.
MOST_ROWS = 500
_NAMED = 3


@dataclass(frozen=True)
class TableRow:
    """One row: its values of the keys, and what its runs show. `reason` says why they are not compared."""

    values: tuple[str, ...]
    examined: Examined
    reason: str = ""

    @property
    def comparison(self) -> Comparison | None:
        return next(iter(self.examined.comparisons), None)


@dataclass(frozen=True)
class GroupTable:
    """Two sides compared row by row. `left_out` says which values only one side has."""

    a: str
    b: str
    by: tuple[str, ...]
    selected_by: tuple[str, ...]
    rows: tuple[TableRow, ...]
    left_out: tuple[str, ...]
    margin: float
    scope: str
    command: str = ""
    experiment_id: str = ""

    @property
    def comparisons(self) -> tuple[Comparison, ...]:
        return tuple(row.comparison for row in self.rows if row.comparison)


def tabulate_groups(
    sources: SeveralLedgers,
    before: Sequence[str],
    after: Sequence[str],
    by: Sequence[str],
    *,
    margin: float = MARGIN,
    anyway: bool = False,
    command: str = "",
) -> GroupTable:
    """Compare `after` with `before` for each value of the keys that both have."""
    check_margin(margin)
    sides = find_sides(sources, before, after)
    if fixed := [key for key in by if key in sides.question.keys]:
        raise SpecError(
            f"--by {fixed[0]}: the sides differ in {fixed[0]}, so no value of it is on both",
            hint="name another key, e.g. --by precision",
        )
    check_keys(by, [*sides.first.rows, *sides.second.rows], "--by")
    return _tabulate(sources, sides, tuple(dict.fromkeys(by)), margin, anyway=anyway, command=command)


def tabulate_import(ledger: Ledger, experiment: Experiment, margin: float | None = None) -> GroupTable | None:
    """Compare the two arms of an import spec by spec; None where it has no arms, or all its runs are of one spec."""
    if not has_imported_arms(experiment):
        return None
    sides = sides_of_import(ledger, experiment)
    rows = [*sides.first.rows, *sides.second.rows]
    specs = {row.spec_digest for row in rows}
    if len(specs) < 2 or not sides.first.rows or not sides.second.rows:
        return None
    by = varying_keys(sides.first.rows, sides.second.rows)
    table = _tabulate(
        SeveralLedgers([ledger]), sides, by, MARGIN if margin is None else margin, command=experiment.command
    )
    return replace(table, experiment_id=experiment.id)


def _tabulate(
    sources: SeveralLedgers,
    sides: Sides,
    by: tuple[str, ...],
    margin: float,
    *,
    anyway: bool = False,
    command: str = "",
) -> GroupTable:
    first, second = (_grouped(side.rows, by) for side in sides.both)
    shared = [values for values in first if values in second]
    left_out = [_say_alone(sides.labels[0], first, second), _say_alone(sides.labels[1], second, first)]
    if not shared:
        raise SpecError(
            f"no value of {', '.join(by)} is on both sides: {'; '.join(filter(None, left_out))}",
            hint="name other keys with --by, or select other runs",
        )
    if len(shared) > MOST_ROWS:
        raise SpecError(
            f"--by {','.join(by)} gives {len(shared):,} rows; at most {MOST_ROWS} are compared",
            hint="select fewer runs, or name fewer keys",
        )
    rows = [_row(sources, sides, values, first[values], second[values], margin, anyway) for values in shared]
    if not any(row.comparison for row in rows):
        reasons = dict.fromkeys(row.reason for row in rows)
        raise SpecError(
            f"{CANNOT_COMPARE}: {'; '.join(reasons)}",
            hint=f"{_more_keys(sides, by)}, or add a condition to both sides; --anyway compares them nevertheless",
        )
    doubts = dict.fromkeys(str(said) for side in sides.both for said in side.left_out)
    return GroupTable(
        *sides.labels,
        by=by,
        selected_by=sides.question.keys,
        rows=_decided(rows, sides),
        left_out=(*filter(None, left_out), *doubts),
        margin=margin,
        scope=_scope(sides),
        command=command,
    )


def _more_keys(sides: Sides, by: tuple[str, ...]) -> str:
    vary = varying_keys(sides.first.rows, sides.second.rows)
    missing = [key for key in vary if key not in (*by, *sides.question.keys)]
    return f"add keys: --by {','.join([*by, *missing])}" if missing else "name other keys with --by"


def _grouped(rows: Sequence[RunDetail], by: Sequence[str]) -> dict[tuple[str, ...], list[RunDetail]]:
    found: dict[tuple[str, ...], list[RunDetail]] = {}
    for row in rows:
        found.setdefault(tuple(value_of(row, key) or NOT_GIVEN for key in by), []).append(row)
    return dict(sorted(found.items()))


def _say_alone(
    label: str, own: dict[tuple[str, ...], list[RunDetail]], other: dict[tuple[str, ...], list[RunDetail]]
) -> str:
    alone = [" ".join(values) for values in own if values not in other]
    if not alone:
        return ""
    more = f" and {len(alone) - _NAMED} more" if len(alone) > _NAMED else ""
    return f"only {label} has {', '.join(alone[:_NAMED])}{more}"


def _row(
    sources: SeveralLedgers,
    sides: Sides,
    values: tuple[str, ...],
    first: Sequence[RunDetail],
    second: Sequence[RunDetail],
    margin: float,
    anyway: bool,
) -> TableRow:
    of_row = replace(sides, first=Side(tuple(first)), second=Side(tuple(second)))
    reasons, doubts = reasons_of(sources, of_row)
    compared = anyway or not reasons
    examined = put_together(sources, of_row, margin, [*reasons, *doubts], "", comparable=compared, limited=False)
    return TableRow(values, examined, "" if compared else "; ".join(reasons))


def _decided(rows: Sequence[TableRow], sides: Sides) -> tuple[TableRow, ...]:
    """Let Holm decide over the rows, then limit words about undated logs to these logs."""
    asked = [row for row in rows if row.comparison]
    decided = iter(holm([row.comparison for row in asked if row.comparison]))
    undated = are_undated([*sides.first.rows, *sides.second.rows])
    found = []
    for row in rows:
        if row.comparison is None:
            found.append(row)
            continue
        one = next(decided)
        one = in_these_logs(one) if undated else one
        found.append(replace(row, examined=replace(row.examined, comparisons=(one,))))
    return tuple(found)


def _scope(sides: Sides) -> str:
    if sides.question.is_about_chips:
        return fairness.scope_of_sides(sides.labels, (sides.first.rows, sides.second.rows))
    return fairness.scope([*sides.first.rows, *sides.second.rows])


def say_runs(row: TableRow) -> str:
    """Say how many runs a row has on each side, B first."""
    b, a = (sum(run.arm == arm and run.counted for run in row.examined.runs) for arm in (1, 0))
    return counted(b, "run") if a == b else f"{b} against {a}"
