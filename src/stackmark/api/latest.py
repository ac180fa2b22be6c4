"""The newest results of a ledger, kept up to date: for a process that watches it for months.

`LedgerWatch.read` returns them by workload, place, machine and chip. It reads the whole ledger once, then only what is new
(ledger/latest.py), and never writes: not even a migration. A ledger is untrusted, so values are validated, texts are cut and the
number of series is bounded. A rate here is the mean over the runs of one arm as they are stored; a report also cuts them to a
common window, which needs their streams.
"""

import json
import math
import platform
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sqlalchemy import RowMapping

from stackmark.api.ledgers import Ledger, RunFilter
from stackmark.errors import StackmarkError
from stackmark.events import LARGEST, SMALLEST
from stackmark.experiments.canary import stored_disturbance
from stackmark.experiments.check import check_again
from stackmark.experiments.driver import machine_name, may_live
from stackmark.ids import RUN, derived_id
from stackmark.ledger import latest
from stackmark.ledger.address import find
from stackmark.ledger.latest import changes_of
from stackmark.published.lookup import known_rows, near
from stackmark.show.check import SEVERITY, word_of
from stackmark.verdict.throughput import throughput_over_runs

# Every word of a stored check, the worst first.
WORDS = SEVERITY
# Results that are older are not shown: a machine that was taken away would be watched for ever.
HORIZON_S = 35 * 86_400.0
# Of each kind of series: what a Prometheus takes from one target without a thought.
MOST_SERIES = 2000
# What is spent on verdicts and published rows in one reading: the others come with the next.
BUDGET_S = 2.0
# Clocks of machines that share a ledger may differ by so much, and that many runs may come from one that is wrong.
AHEAD_S = 60.0
_MOST_AHEAD = 1000
# The next run of a check begins within moments of the last.
SETTLED_S = 10.0
# A run of another machine that began so long ago was lost, and nobody cleaned up.
LONGEST_RUN_S = 86_400.0
# What other kinds measure says nothing about the state of a machine: logs of others, runs that were disturbed on purpose.
NOT_RESULTS = frozenset({"import", "fault"})
_LONGEST_TEXT = 120
# Rows of pods have a handle of their own each, so what is remembered of them is bounded.
_MOST_WHERES = 20_000


@dataclass(frozen=True)
class Where:
    """What was measured and where; `machine` as the ledger tells machines apart, `chip` is empty where it is not known."""

    workload: str
    place: str
    machine: str
    chip: str = ""


@dataclass(frozen=True)
class LatestResult:
    """The newest arm of an experiment that has a rate: the mean of its runs, with the 95 % interval from two runs on."""

    where: Where
    experiment_id: str
    unit: str
    rate: float
    low: float | None
    high: float | None
    runs: int
    ended_unix_s: float
    precision: str
    batch: str
    framework: str


@dataclass(frozen=True)
class PublishedRatio:
    """Our rate over the nearest published one of the same metric, of rates, so that more is better."""

    ratio: float
    source: str
    date: str
    # Whether the recipe differs, so that the ratio is context and not a verdict.
    context: bool


@dataclass(frozen=True)
class LatestCheck:
    """The newest check of a workload against a baseline. `ratio` is of rates, its interval is of 90 %.

    While a check runs, the verdict of the one before stands; `began_unix_s` is of the one that runs.
    """

    baseline: str
    where: Where
    spec: str
    experiment_id: str
    began_unix_s: float
    word: str | None = None
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    margin: float | None = None
    alarm: bool = False


@dataclass(frozen=True)
class LastRun:
    """How the newest run of a workload on a machine ended."""

    done: bool
    ended_unix_s: float


@dataclass(frozen=True)
class Latest:
    """What a ledger shows now."""

    runs: int = 0
    results: tuple[LatestResult, ...] = ()
    published: Mapping[Where, PublishedRatio] = field(default_factory=dict)
    checks: tuple[LatestCheck, ...] = ()
    # Verdicts and comparisons with published rows that are still to be computed; a check that runs is one.
    pending: int = 0
    # By what was measured, without the chip, which a failed run does not know.
    last_runs: Mapping[Where, LastRun] = field(default_factory=dict)
    running: Mapping[Where, int] = field(default_factory=dict)
    ended: Mapping[tuple[Where, str], int] = field(default_factory=dict)
    failures: Mapping[tuple[Where, str], int] = field(default_factory=dict)
    # The names of machines for people, where the ledger knows one: the node of a pod.
    hosts: Mapping[str, str] = field(default_factory=dict)
    # Series that were left out because there are too many.
    left_out: int = 0


class _RunRow:
    """One row. Of a million rows few are shown, so texts are validated when somebody asks for them."""

    __slots__ = ("arm", "bare", "began_unix_s", "ended_unix_s", "experiment_id", "host", "id", "rate", "row", "where")

    def __init__(self, row: RowMapping, where: Where, bare: Where, host: str) -> None:
        self.row = row
        self.where = where
        # Without the chip, which a run that failed early does not know.
        self.bare = bare
        self.host = host
        self.id = str(row["id"])
        self.experiment_id = str(row["experiment_id"])
        self.arm = row["arm"]
        self.began_unix_s = _number(row["started_unix_s"]) or 0.0
        self.ended_unix_s = _number(row["ended_unix_s"]) or self.began_unix_s
        rate = _number(row["rate_per_s"])
        self.rate = rate if rate is not None and SMALLEST <= rate <= LARGEST else None

    def text(self, column: str) -> str:
        return _text(self.row[column])


@dataclass(frozen=True)
class _PublishedRate:
    """A published rate."""

    rate: float
    source: str
    date: str
    context: bool


@dataclass
class _ArmRates:
    """The newest arm of an experiment at one place."""

    first: _RunRow
    rates: list[float]
    ended_unix_s: float


@dataclass
class _CheckRuns:
    """One check as far as it was read."""

    first: _RunRow
    running: set[str] = field(default_factory=set)
    ended: int = 0
    ended_unix_s: float = 0.0

    @property
    def is_settled(self) -> bool:
        """Whether its last run ended: between two of its runs, none is running either."""
        return not self.running and time.time() - self.ended_unix_s >= SETTLED_S


@dataclass
class _Tally:
    """What was read so far."""

    count: int = 0
    last_id: str = ""
    ahead: set[str] = field(default_factory=set)
    pending: set[str] = field(default_factory=set)
    wheres: dict[tuple[object, ...], tuple[Where, Where, str]] = field(default_factory=dict)
    arms: dict[Where, _ArmRates] = field(default_factory=dict)
    # The newest two, oldest first: while one runs, the verdict of the one before stands.
    checks: dict[tuple[str, Where, str], list[_CheckRuns]] = field(default_factory=dict)
    chips: dict[tuple[str, Where, str], str] = field(default_factory=dict)
    last_runs: dict[Where, LastRun] = field(default_factory=dict)
    ended: Counter[tuple[Where, str]] = field(default_factory=Counter)
    failures: Counter[tuple[Where, str]] = field(default_factory=Counter)
    hosts: dict[str, str] = field(default_factory=dict)

    def add(self, row: RowMapping) -> None:
        """Add a run that was not seen, or that was seen while it ran."""
        run = self._read(row)
        status = row["status"]
        if row["kind"] == "check":
            self._add_check(run, is_running=status == "running")
        if status == "running":
            self.pending.add(run.id)
            return
        self.pending.discard(run.id)
        if row["kind"] in NOT_RESULTS or row["role"] != "measured":
            return
        self.ended[run.bare, run.text("status")] += 1
        if status == "failed":
            self.failures[run.bare, run.text("failure_kind") or "unknown"] += 1
        known = self.last_runs.get(run.bare)
        if known is None or run.ended_unix_s >= known.ended_unix_s:
            self.last_runs[run.bare] = LastRun(status == "done", run.ended_unix_s)
        if status == "done" and run.rate is not None:
            self._add_rate(run, run.rate)

    def _read(self, row: RowMapping) -> _RunRow:
        """Find the machine and the chip of a row; runs of one place share the objects."""
        handle = row["handle"]
        on_node = isinstance(handle, str) and '"node"' in handle
        key = row["workload"], row["place"], row["machine_id"], row["chip"], row["boot_id"], handle if on_node else None
        if key not in self.wheres:
            if len(self.wheres) > _MOST_WHERES:
                self.wheres.clear()
            self.wheres[key] = _where_of(row)
        return _RunRow(row, *self.wheres[key])

    def _add_check(self, run: _RunRow, *, is_running: bool) -> None:
        key = run.text("note"), run.bare, run.text("spec_digest")
        known = self.checks.setdefault(key, [])
        check = next((one for one in known if one.first.experiment_id == run.experiment_id), None)
        if check is None:
            check = _CheckRuns(run)
            known.append(check)
            known.sort(key=lambda one: one.first.began_unix_s)
            del known[:-2]
        if is_running:
            check.running.add(run.id)
        else:
            check.running.discard(run.id)
            check.ended += 1
            check.ended_unix_s = max(check.ended_unix_s, run.ended_unix_s)
        if run.where.chip:
            self.chips[key] = run.where.chip

    def _add_rate(self, run: _RunRow, rate: float) -> None:
        arm = self.arms.get(run.where)
        if arm is not None and arm.first.experiment_id == run.experiment_id and arm.first.arm == run.arm:
            arm.rates.append(rate)
            arm.ended_unix_s = max(arm.ended_unix_s, run.ended_unix_s)
        elif arm is None or run.began_unix_s >= arm.first.began_unix_s:
            self.arms[run.where] = _ArmRates(run, [rate], run.ended_unix_s)
            if run.host:
                self.hosts[run.where.machine] = run.host


class LedgerWatch:
    """Reads the newest results of one ledger, again and again. Not safe to use from several threads at once."""

    def __init__(self, where: str | None, horizon_s: float = HORIZON_S, budget_s: float = BUDGET_S) -> None:
        # A name that can never be a ledger's is refused now.
        find(where)
        self._where = where
        self._horizon_s = horizon_s
        self._budget_s = budget_s
        self._seen = _Tally()
        self._changes: tuple[object, ...] | None = None
        # By the experiment and how many of its runs ended.
        self._judged: dict[tuple[str, int], LatestCheck] = {}
        self._published: dict[tuple[str, ...], _PublishedRate | None] = {}

    def read(self) -> Latest:
        """Return what the ledger shows now; raise a LedgerError where it cannot be read."""
        with Ledger.open_to_copy(self._where or "") as ledger:
            # Before reading: what is written meanwhile is a change that the next reading sees.
            changes = changes_of(ledger.file)
            if changes is None or changes != self._changes:
                self._read_runs(ledger)
                self._changes = changes
            return self._summary(ledger)

    def _read_runs(self, ledger: Ledger) -> None:
        with ledger.saying(), ledger.snapshot() as connection:
            total = latest.count_runs(connection)
            for row in latest.runs_named(connection, sorted(self._seen.pending)):
                self._seen.add(row)
            self._add(latest.runs_after(connection, self._seen.last_id))
            if self._seen.count != total:
                self._seen = _Tally()
                self._add(latest.runs_after(connection, ""))

    def _add(self, rows: latest.Rows) -> None:
        """Add runs that were not seen. Ids from a clock that is ahead do not hide those of the others that come later."""
        seen, now = self._seen, derived_id(RUN, time.time() + AHEAD_S, "")
        for row in rows:
            run_id = str(row["id"])
            if run_id in seen.ahead:
                continue
            seen.add(row)
            seen.count += 1
            if run_id > now and len(seen.ahead) < _MOST_AHEAD:
                seen.ahead.add(run_id)
            else:
                seen.last_id = max(seen.last_id, run_id)

    def _summary(self, ledger: Ledger) -> Latest:
        seen, since = self._seen, time.time() - self._horizon_s
        until = time.monotonic() + self._budget_s
        keys = [key for key, known in seen.checks.items() if known[-1].first.began_unix_s >= since]
        keys.sort(key=lambda key: -seen.checks[key][-1].first.began_unix_s)
        arms = [(where, arm) for where, arm in seen.arms.items() if arm.ended_unix_s >= since]
        arms.sort(key=lambda one: -one[1].ended_unix_s)
        shown = {where for where, last in seen.last_runs.items() if last.ended_unix_s >= since}
        left_out = sum(max(0, len(one) - MOST_SERIES) for one in (arms, keys, shown))
        newest = sorted(shown, key=lambda where: -seen.last_runs[where].ended_unix_s)[:MOST_SERIES]
        kept = set(newest)
        checks = [self._check(ledger, key, until) for key in keys[:MOST_SERIES]]
        published, not_searched = self._find_published(ledger, arms[:MOST_SERIES], until)
        running = self._running(ledger)
        alive = {one.experiment_id for one, _ in checks}
        self._judged = {name: one for name, one in self._judged.items() if name[0] in alive}
        return Latest(
            runs=seen.count,
            results=tuple(_result(where, arm) for where, arm in arms[:MOST_SERIES]),
            published=published,
            checks=tuple(one for one, _ in checks),
            pending=not_searched + sum(not complete for _, complete in checks),
            last_runs={where: seen.last_runs[where] for where in newest},
            running={**dict.fromkeys(newest, 0), **running},
            ended={key: count for key, count in seen.ended.items() if key[0] in kept},
            failures={key: count for key, count in seen.failures.items() if key[0] in kept},
            hosts={machine_name(): platform.node(), **seen.hosts},
            left_out=left_out,
        )

    def _check(self, ledger: Ledger, key: tuple[str, Where, str], until: float) -> tuple[LatestCheck, bool]:
        """Return the newest check that has a verdict, with when the newest one began, and whether they are the same."""
        known, (baseline, bare, spec) = self._seen.checks[key], key
        newest = known[-1]
        where = replace(bare, chip=self._seen.chips.get(key, ""))
        for one in reversed(known):
            bare_check = LatestCheck(baseline, where, spec[:8], one.first.experiment_id, newest.first.began_unix_s)
            name = one.first.experiment_id, one.ended
            if name not in self._judged and one.is_settled and time.monotonic() <= until:
                self._judged[name] = _judged(ledger, bare_check)
            if name in self._judged:
                found = replace(self._judged[name], where=where, began_unix_s=newest.first.began_unix_s)
                return found, one is newest
        return bare_check, False

    def _find_published(
        self, ledger: Ledger, arms: Iterable[tuple[Where, _ArmRates]], until: float
    ) -> tuple[dict[Where, PublishedRatio], int]:
        """Return the ratios that are known, and how many rows were not searched for yet."""
        found, pending = {}, 0
        for where, arm in arms:
            first = arm.first
            named = (first.text(name) for name in ("spec_digest", "rate_unit", "framework"))
            key = (first.where.workload, first.where.chip, *named)
            if key not in self._published:
                if time.monotonic() > until:
                    pending += 1
                    continue
                self._published[key] = _nearest(ledger, first)
            if row := self._published[key]:
                ratio = throughput_over_runs(arm.rates).rate_per_s / row.rate
                found[where] = PublishedRatio(ratio, row.source, row.date, row.context)
        return found, pending

    def _running(self, ledger: Ledger) -> dict[Where, int]:
        here, now = machine_name(), time.time()
        counts: Counter[Where] = Counter()
        for row in ledger.runs(RunFilter(status="running"), limit=200):
            alive = may_live(row) if row.machine_id == here else now - row.started_unix_s < LONGEST_RUN_S
            if alive:
                counts[Where(_text(row.workload), _text(row.place), _text(row.ran_on))] += 1
        return dict(counts)


def _judged(ledger: Ledger, check: LatestCheck) -> LatestCheck:
    """Add the verdict. None is there where the baseline was deleted, or a stream of a run is damaged."""
    try:
        experiment = ledger.experiment(check.experiment_id)
        stored = check_again(ledger, experiment)
        disturbed = bool(stored and stored_disturbance(ledger, experiment, stored))
    except StackmarkError as error:
        if error.kind == "locked":
            raise
        return check
    if stored is None:
        return check
    found, seen = stored.checked, stored.checked.comparison
    interval = seen.interval_90 if seen else None
    return replace(
        check,
        # As the canary said itself: a disturbed turn accuses nobody.
        word="INCONCLUSIVE" if disturbed else word_of(found),
        ratio=seen.ratio if seen else None,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        margin=stored.margin,
        alarm=bool(not disturbed and found.alarm and found.alarm.rings),
    )


def _result(where: Where, arm: _ArmRates) -> LatestResult:
    rate = throughput_over_runs(arm.rates)
    first = arm.first
    return LatestResult(
        where, first.experiment_id, first.text("rate_unit"), rate.rate_per_s, rate.low_per_s, rate.high_per_s, len(arm.rates),
        arm.ended_unix_s, first.text("precision"), first.text("batch"), first.text("framework"),
    )  # fmt: skip


def _nearest(ledger: Ledger, first: _RunRow) -> _PublishedRate | None:
    """Find the nearest published row of the same unit; None where there is none."""
    try:
        run = ledger.run(first.id)
        unit = first.text("rate_unit")
        matches = near(run.spec, unit, run.chip, run.framework, known_rows(ledger), limit=1)
    except StackmarkError:
        return None
    if not matches or matches[0].row.unit != unit or matches[0].row.value <= 0:
        return None
    row = matches[0].row
    return _PublishedRate(row.value, _text(row.source), _text(row.date), bool(matches[0].differs))


# --- a row of a ledger that somebody may have edited


def _where_of(row: RowMapping) -> tuple[Where, Where, str]:
    """Return what a row measured where, the same without the chip, and the name of its node."""
    node, boot = _node(row["handle"])
    machine = _text(row["machine_id"])
    if node and boot != row["boot_id"]:
        machine = node[0]
    where = Where(_text(row["workload"]), _text(row["place"]), machine, _text(row["chip"]))
    return where, replace(where, chip=""), node[1] if node else ""


def _node(handle: object) -> tuple[tuple[str, str] | None, object]:
    """Return the machine and the name of the node that a pod ran on, and its boot."""
    if not isinstance(handle, str) or '"node"' not in handle:
        return None, None
    try:
        found = json.loads(handle)
    except (ValueError, RecursionError):
        return None, None
    if not isinstance(found, dict) or not found.get("node"):
        return None, None
    name = _text(found["node"])
    return (_text(found.get("node_machine_id")) or name, name), found.get("node_boot_id")


def _text(value: object) -> str:
    """Return a text that a label may have: cut, without control characters."""
    if value is None:
        return ""
    text = str(value)[:_LONGEST_TEXT]
    return text if text.isprintable() else "".join(one if one.isprintable() else "?" for one in text)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def names_of(found: Latest) -> Iterator[tuple[str, str]]:
    """Yield every machine with its name for people."""
    machines = {one.where.machine for one in found.results} | {one.where.machine for one in found.checks}
    machines |= {one.machine for one in found.last_runs}
    yield from ((machine, found.hosts.get(machine, "")) for machine in sorted(machines))
