"""Leaf through a ledger: pages of experiments and runs, what is running, chips. Nothing is written or cleaned up."""

import hashlib
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from stackmark.api.cluster_experiments import sweep_result
from stackmark.api.ledgers import Ledger, LedgerLike, opened
from stackmark.api.stored import load, load_run
from stackmark.api.suites import read_suite
from stackmark.errors import SpecError
from stackmark.experiments.driver import machine_name, may_live
from stackmark.experiments.judging import read_stored, timed_run
from stackmark.experiments.kinds import FAULT, SUITE, SWEEP
from stackmark.experiments.overview import ListedExperiment, overview
from stackmark.experiments.watched import STARTING_S
from stackmark.experiments.watched import ExperimentProgress as ExperimentProgress
from stackmark.experiments.watched import progress_of as told_progress
from stackmark.ledger import browsing
from stackmark.ledger.progress import holder
from stackmark.ledger.rows import Cursor as Cursor
from stackmark.ledger.rows import Edge as Edge
from stackmark.ledger.rows import ExperimentFilter as ExperimentFilter
from stackmark.ledger.rows import ExperimentRow as ExperimentRow
from stackmark.ledger.rows import RunDetail as RunDetail
from stackmark.ledger.rows import RunFilter as RunFilter
from stackmark.ledger.rows import RunRow as RunRow
from stackmark.ledger.rows import Status
from stackmark.verdict.examined import Examined
from stackmark.verdict.suite import SuiteResult

T = TypeVar("T")
# Rows of one page of a list.
PAGE = 50
# Of each chip: how many of its newest runs say what was measured on it lately.
LATELY = 20
# Chips that are listed: each costs one walk along an index.
MOST_CHIPS = 200


@dataclass(frozen=True)
class Page(Generic[T]):
    """One page of a list, with where the pages before and after it begin; None where there is none."""

    rows: tuple[T, ...]
    previous: Edge | None = None
    next: Edge | None = None


def _page(
    rows: Sequence[T], cursors: Sequence[Cursor], limit: int, edge: Edge | None, *, oldest_first: bool
) -> Page[T]:
    """Make a page of up to `limit` + 1 rows that were read from its edge on. Read backwards, they are turned round."""
    forwards = edge is None or edge.older != oldest_first
    more = len(rows) > limit
    shown, places = list(rows[:limit]), list(cursors[:limit])
    if not forwards:
        shown.reverse()
        places.reverse()
    if not places:
        return Page((), None, None)
    before, after = Edge(places[0], older=oldest_first), Edge(places[-1], older=not oldest_first)
    if forwards:
        return Page(tuple(shown), before if edge else None, after if more else None)
    return Page(tuple(shown), before if more else None, after)


def page_of_experiments(
    wanted: ExperimentFilter,
    *,
    edge: Edge | None = None,
    oldest_first: bool = False,
    limit: int = PAGE,
    most_read_bytes: int = 0,
    ledger: LedgerLike = None,
) -> Page[ListedExperiment]:
    """List experiments; a verdict is computed where it takes no more than `most_read_bytes` of stored output."""
    with opened(ledger) as book:
        # From an edge the walk goes away from it; from the list's beginning as it is sorted.
        upwards = oldest_first if edge is None else not edge.older
        rows = browsing.experiments(book, wanted, limit + 1, edge, oldest_first=upwards)
        cursors = [Cursor(row.experiment.created_unix_s, row.experiment.id) for row in rows]
        page = _page(rows, cursors, limit, edge, oldest_first=oldest_first)
        return Page(tuple(overview(book, page.rows, most_read_bytes)), page.previous, page.next)


def page_of_runs(
    wanted: RunFilter,
    *,
    edge: Edge | None = None,
    oldest_first: bool = False,
    limit: int = PAGE,
    ledger: LedgerLike = None,
) -> Page[RunRow]:
    """List runs."""
    with opened(ledger) as book:
        upwards = oldest_first if edge is None else not edge.older
        rows = browsing.runs(book, wanted, limit + 1, edge, oldest_first=upwards)
        return _page(rows, [row.cursor for row in rows], limit, edge, oldest_first=oldest_first)


def runs_by_rate(
    wanted: RunFilter, *, lowest_first: bool = False, limit: int = PAGE, ledger: LedgerLike = None
) -> tuple[RunRow, ...]:
    """List the fastest or slowest runs of a filter that few runs match; more are refused."""
    with opened(ledger) as book:
        rows = browsing.runs_by_rate(book, wanted, limit, lowest_first=lowest_first)
    if rows is None:
        raise SpecError(
            "too many runs match to be sorted by their figure", hint="filter by workload, chip, place or time first"
        )
    return tuple(rows)


def one_listed(experiment: str, ledger: LedgerLike = None) -> ListedExperiment:
    """Summarise one experiment as in a list, with its verdict however much must be read for it."""
    with opened(ledger) as book:
        found = book.experiment(experiment)
        counts: Counter[Status] = Counter(run.status for run in book.runs_of(found.id) if run.role == "measured")
        rows = book.runs_of(found.id)
        row = ExperimentRow(
            experiment=found,
            workloads=tuple(sorted({one.workload for one in rows})),
            places=tuple(sorted({one.place for one in rows})),
            runs=dict(counts),
        )
        return overview(book, [row])[0]


@dataclass(frozen=True)
class Progress:
    """How far an experiment is: its runs in the order started, those of them whose driver is gone, and what works on it."""

    id: str
    runs: tuple[RunDetail, ...]
    lost: frozenset[str] = frozenset()
    # Where somebody works on it: what its driver last told.
    told: ExperimentProgress | None = None

    @property
    def running(self) -> bool:
        return self.told is not None

    @property
    def state(self) -> tuple[object, ...]:
        """Return what the stored runs show depends on."""
        return tuple((run.id, "lost" if run.id in self.lost else run.status) for run in self.runs)


def progress_of(experiment: str, ledger: LedgerLike = None) -> Progress:
    """Read how far an experiment is. A run whose driver on this machine has ended is called lost, and nothing is written."""
    with opened(ledger) as book:
        found = book.experiment(experiment)
        runs = book.runs_of(found.id)
        told = None
        # What nobody works on needs no look at its verdict.
        young = time.time() - found.created_unix_s < STARTING_S
        if young or holder(book, found.id) or any(run.status == "running" for run in runs):
            seen = told_progress(book, found.id)
            told = seen if seen.is_at_work else None
        return Progress(found.id, tuple(runs), frozenset(run.id for run in runs if is_lost(run)), told)


def is_lost(run: RunRow) -> bool:
    """Tell whether a row says `running` though its driver is gone, as far as it can be seen from here."""
    return run.status == "running" and run.machine_id == machine_name() and not may_live(run)


def newest_change(ledger: LedgerLike = None) -> str:
    """Return a text that differs as soon as the first page of the list does: of the newest runs, and of what is running."""
    with opened(ledger) as book:
        newest = [(run.id, run.status) for run in book.runs(limit=PAGE)]
        running = [run.id for run in book.runs(RunFilter(status="running"), limit=PAGE)]
    return hashlib.sha256(repr((newest, running)).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Shown:
    """What an experiment shows: an examination of its runs, of a suite its table, of a kind without arms lines of text."""

    examined: Examined | None = None
    suite: SuiteResult | None = None
    lines: tuple[str, ...] = ()


def shown(experiment: str, ledger: LedgerLike = None) -> Shown:
    """Recompute what an experiment shows; one whose kind has no verdict is refused with what to do instead."""
    with opened(ledger) as book:
        found = load(experiment, book)
        if found.kind() is SUITE:
            return Shown(suite=read_suite(found).result)
        if found.kind() is FAULT:
            return Shown(lines=tuple(str(found.fault()).splitlines()))
        if found.kind() is SWEEP:
            return Shown(lines=tuple(str(sweep_result(found)).splitlines()))
        return Shown(examined=found.verdict().examined)


@dataclass(frozen=True)
class StepsOfRun:
    """The times of a run's steps, and the first one that counts."""

    step_s: tuple[float, ...]
    first_step: int


def steps_of(run: str, ledger: LedgerLike = None) -> StepsOfRun | None:
    """Return the step times of a run; None for one without steps, or whose output cannot be read."""
    found = load_run(run, ledger)
    try:
        timed = timed_run(read_stored(found.lines).stream)
    except (ValueError, OverflowError):
        return None
    return StepsOfRun(tuple(map(float, timed.step_s)), timed.own_first_step) if timed else None


@dataclass(frozen=True)
class Chip:
    """A chip of the ledger, by its newest runs."""

    name: str
    last: RunRow
    machines: tuple[str, ...]
    places: tuple[str, ...]
    workloads: tuple[str, ...]
    devices: tuple[str, ...]


def chips(ledger: LedgerLike = None) -> tuple[Chip, ...]:
    """List the chips that runs were made on, the one that was used last first."""
    with opened(ledger) as book:
        found = [_chip(book, name) for name in book.values_of("chip")[:MOST_CHIPS] if name]
        return tuple(sorted((one for one in found if one), key=lambda one: -one.last.started_unix_s))


def _chip(book: Ledger, name: str) -> Chip | None:
    rows = browsing.runs(book, RunFilter(chip=_literal(name)), LATELY)
    if not rows:
        return None

    def several(values: Sequence[str | None]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(value for value in values if value))

    return Chip(
        name,
        rows[0],
        several([row.ran_on for row in rows]),
        several([row.place for row in rows]),
        several([row.workload for row in rows]),
        several([row.chip_uuid for row in rows]),
    )


def _literal(name: str) -> str:
    """Write a value as a glob that stands for itself alone."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)


def values_of(column: str, ledger: LedgerLike = None) -> tuple[str, ...]:
    """Return what runs have in a column: workload, chip or place."""
    with opened(ledger) as book:
        return tuple(book.values_of(column))
