"""Queries over many runs, written so that a million runs answer in a tenth of a second.

Every index of `runs` is (a filter's column, started_unix_s, id), which is the order of the list: with one value in a
filter, a page is one walk along one index, and the next page continues it at a cursor (no OFFSET, which would count
through all the pages before). A glob is resolved first, by hopping from one distinct value to the next along the index;
several values are then several such walks, each cut at the length of the page, and merged. Asking with `IN (…) ORDER
BY` instead makes SQLite read and sort every run that matches.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Select,
    Text,
    and_,
    func,
    literal,
    or_,
    select,
    tuple_,
    type_coerce,
    union_all,
)

from stackmark.ids import EXPERIMENT, first_id
from stackmark.ledger.rows import Cursor, Edge, ExperimentFilter, RunFilter
from stackmark.ledger.schema import experiments, runs, streams

WITHOUT_SPEC = [column for column in runs.c if column.name != "spec"]
# The spec as text, which nobody parses: a list needs one number of it, and may hold runs whose spec was damaged.
SPEC_TEXT = "spec_text"
LISTED = [*WITHOUT_SPEC, type_coerce(runs.c.spec, Text).label(SPEC_TEXT)]
NEWEST_FIRST = (runs.c.started_unix_s.desc(), runs.c.id.desc())
GLOBBED = ("workload", "chip", "place")
# SQLite compiles at most 500 parts of a UNION; past a few dozen, one scan is no slower.
_WALKS = 50
# This many runs are read by an index in a few hundredths of a second.
_FEW_RUNS = 20_000

Values = dict[str, list[str]]


def distinct(connection: Connection, column: Column[str]) -> list[str]:
    """Return the values of an indexed column, each found by one hop: SELECT DISTINCT would read the whole index."""
    hop = select(func.min(column).label("value")).cte("hop", recursive=True)
    following = select(func.min(column)).where(column > hop.c.value).scalar_subquery()
    hop = hop.union_all(select(following).where(hop.c.value.is_not(None)))
    return [value for (value,) in connection.execute(select(hop.c.value).where(hop.c.value.is_not(None)))]


def resolve(connection: Connection, wanted: RunFilter) -> Values:
    """Resolve each glob in this ledger. A name that matches nothing gives an empty list."""
    patterns: dict[str, str | None] = {name: getattr(wanted, name) for name in GLOBBED}
    return {name: matching(connection, runs.c[name], text) for name, text in patterns.items() if text is not None}


def matching(connection: Connection, column: Column[str], pattern: str) -> list[str]:
    """Return the values of an indexed column that a glob stands for; a name without a wildcard is itself."""
    if not any(sign in pattern for sign in "*?["):
        return [pattern]
    return [value for value in distinct(connection, column) if fnmatchcase(value, pattern)]


def conditions(wanted: RunFilter, values: Values) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    for name, allowed in values.items():
        found.append(runs.c[name] == allowed[0] if len(allowed) == 1 else runs.c[name].in_(allowed))
    if wanted.status is not None:
        found.append(runs.c.status == wanted.status)
    if wanted.experiment_id is not None:
        found.append(runs.c.experiment_id == wanted.experiment_id)
    if wanted.since_unix_s is not None:
        found.append(runs.c.started_unix_s >= wanted.since_unix_s)
    if wanted.until_unix_s is not None:
        found.append(runs.c.started_unix_s < wanted.until_unix_s)
    return found


def page(wanted: RunFilter, values: Values, limit: int, before: Cursor | None) -> Select[tuple[object, ...]]:
    """Return one page of runs, newest first, without their specs."""
    return runs_page(wanted, values, limit, None if before is None else Edge(before))


def runs_page(
    wanted: RunFilter, values: Values, limit: int, edge: Edge | None, *, oldest_first: bool = False
) -> Select[tuple[object, ...]]:
    """Return one page of runs without their specs, in the order of time or against it; `edge` is where it begins."""
    order = tuple(one.asc() for one in _ORDER) if oldest_first else NEWEST_FIRST
    older: list[ColumnElement[bool]] = []
    if edge is not None:
        here = tuple_(*map(literal, edge.cursor))
        older = [tuple_(*_ORDER) < here if edge.older else tuple_(*_ORDER) > here]
    split = next((name for name in values if 1 < len(values[name]) <= _WALKS), None)
    if split is None:
        where = and_(True, *conditions(wanted, values), *older)
        return select(*LISTED).where(where).order_by(*order).limit(limit)
    walks = []
    for value in values[split]:
        where = and_(True, *conditions(wanted, {**values, split: [value]}), *older)
        walk = select(runs.c.id).where(where).order_by(*order).limit(limit).subquery()
        walks.append(select(walk.c.id))
    return select(*LISTED).where(runs.c.id.in_(union_all(*walks))).order_by(*order).limit(limit)


_ORDER = (runs.c.started_unix_s, runs.c.id)


def experiments_page(
    connection: Connection,
    wanted: ExperimentFilter,
    limit: int,
    *,
    edge: Edge | None = None,
    oldest_first: bool = False,
) -> Select[tuple[object, ...]]:
    """Return one page of experiments, newest first: an id begins with its time, so this is one walk along the primary key.

    The rows of a suite are not listed, the suite is; with a filter of runs both may be.

    With a filter, each experiment on the way is asked whether it has such a run: where many have one, the page is soon full.
    Where few have one, their runs are found by the index of workloads first.
    """
    key = experiments.c.id
    query = select(experiments).order_by(key.asc() if oldest_first else key.desc()).limit(limit)
    if edge is not None:
        query = query.where(key < edge.cursor.id if edge.older else key > edge.cursor.id)
    if wanted.since_unix_s is not None:
        query = query.where(key >= first_id(EXPERIMENT, wanted.since_unix_s))
    if wanted.until_unix_s is not None:
        query = query.where(key < first_id(EXPERIMENT, wanted.until_unix_s))
    if wanted.kind is not None:
        query = query.where(experiments.c.kind == wanted.kind)
    if wanted.text:
        query = query.where(
            or_(*(_has_text(connection, experiments.c[name], wanted.text) for name in ("command", "note")))
        )
    # The time of an experiment is its own, not that of its runs.
    timeless = RunFilter(workload=wanted.workload, chip=wanted.chip, place=wanted.place, status=wanted.status)
    of_runs = conditions(timeless, resolve(connection, timeless))
    if not of_runs:
        return query.where(experiments.c.suite_id.is_(None))
    some = select(literal(1)).select_from(runs).where(*of_runs).limit(_FEW_RUNS).subquery()
    if connection.execute(select(func.count()).select_from(some)).scalar_one() < _FEW_RUNS:
        return query.where(key.in_(select(runs.c.experiment_id).where(*of_runs)))
    return query.where(select(literal(1)).where(runs.c.experiment_id == key, *of_runs).exists())


def _has_text(connection: Connection, column: Column[str], text: str) -> ColumnElement[bool]:
    """Express that a text stands in a column, in capitals or not. SQLite's LIKE does so by itself, three times as fast."""
    if connection.dialect.name == "sqlite":
        return column.contains(text, autoescape=True)
    return column.icontains(text, autoescape=True)


def figures_page(wanted: RunFilter, values: Values, limit: int, *, ascending: bool) -> Select[tuple[object, ...]]:
    """Return the runs with the highest or lowest rates among those that gave one. No index has this order: they must be few."""
    rate = runs.c.rate_per_s
    where = [*conditions(wanted, values), rate.is_not(None), runs.c.status == "done"]
    return select(*LISTED).where(*where).order_by(rate.asc() if ascending else rate.desc(), runs.c.id).limit(limit)


def few(connection: Connection, wanted: RunFilter, values: Values) -> bool:
    """Tell whether so few runs match that they can be sorted while somebody waits."""
    some = select(literal(1)).select_from(runs).where(*conditions(wanted, values)).limit(_FEW_RUNS).subquery()
    return connection.execute(select(func.count()).select_from(some)).scalar_one() < _FEW_RUNS


def runs_counted(experiment_ids: Sequence[str]) -> Select[tuple[object, ...]]:
    """Count the runs of experiments by workload, place and status, and the stored output."""
    together = (runs.c.experiment_id, runs.c.workload, runs.c.place, runs.c.status, runs.c.role)
    size = func.coalesce(func.sum(func.length(streams.c.data)), 0)
    return (
        select(*together, func.count().label("count"), size.label("bytes"))
        .select_from(runs.outerjoin(streams, streams.c.run_id == runs.c.id))
        .where(runs.c.experiment_id.in_(experiment_ids))
        .group_by(*together)
    )


def starts_with(column: Column[str], prefix: str) -> ColumnElement[bool]:
    """Express a prefix as a range along the primary key. `~` sorts after every character of an id."""
    return and_(column >= prefix, column < prefix + "~")
