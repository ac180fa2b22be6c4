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
from stackmark.experiments.check import check_again
from stackmark.experiments.driver import machine_name, may_live
from stackmark.ledger import latest
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
# A run of another machine that began so long ago was lost, and nobody cleaned up.
LONGEST_RUN_S = 86_400.0
# What other kinds measure says nothing about the state of a machine: logs of others, runs that were disturbed on purpose.
NOT_RESULTS = frozenset({"import", "fault"})
_LONGEST_TEXT = 120


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
    """The newest check of a workload against a baseline. `ratio` is of rates, its interval is of 90 %."""

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
    # Checks whose verdicts are still to be computed.
    unjudged: int = 0
    # By what was measured, without the chip, which a failed run does not know.
    last_runs: Mapping[Where, LastRun] = field(default_factory=dict)
    running: Mapping[Where, int] = field(default_factory=dict)
    ended: Mapping[tuple[Where, str], int] = field(default_factory=dict)
    failures: Mapping[tuple[Where, str], int] = field(default_factory=dict)
    # The names of machines for people, where the ledger knows one: the node of a pod.
    hosts: Mapping[str, str] = field(default_factory=dict)
    # Series that were left out because there are too many.
    left_out: int = 0


@dataclass(frozen=True)
class _Run:
    """One validated row."""

    id: str
    experiment_id: str
    where: Where
    spec: str
    kind: str
    note: str
    arm: int
    status: str
    measured: bool
    began_unix_s: float
    ended_unix_s: float
    rate: float | None
    unit: str
    failure: str
    precision: str
    batch: str
    framework: str
    host: str


@dataclass
class _Arm:
    """The newest arm of an experiment at one place."""

    first: _Run
    rates: list[float]
    ended_unix_s: float


@dataclass
class _Seen:
    """What was read so far."""

    count: int = 0
    last_id: str = ""
    pending: set[str] = field(default_factory=set)
    arms: dict[Where, _Arm] = field(default_factory=dict)
    checks: dict[tuple[str, Where, str], _Run] = field(default_factory=dict)
    chips: dict[tuple[str, Where, str], str] = field(default_factory=dict)
    last_runs: dict[Where, LastRun] = field(default_factory=dict)
    ended: Counter[tuple[Where, str]] = field(default_factory=Counter)
    failures: Counter[tuple[Where, str]] = field(default_factory=Counter)
    hosts: dict[str, str] = field(default_factory=dict)

    def add(self, run: _Run) -> None:
        """Add a run that was not seen, or that was seen while it ran."""
        bare = replace(run.where, chip="")
        if run.host:
            self.hosts[run.where.machine] = run.host
        if run.kind == "check":
            self._add_check(run, bare)
        if run.status == "running":
            self.pending.add(run.id)
            return
        self.pending.discard(run.id)
        if run.kind in NOT_RESULTS or not run.measured:
            return
        self.ended[bare, run.status] += 1
        if run.status == "failed":
            self.failures[bare, run.failure] += 1
        known = self.last_runs.get(bare)
        if known is None or run.ended_unix_s >= known.ended_unix_s:
            self.last_runs[bare] = LastRun(run.status == "done", run.ended_unix_s)
        if run.status == "done" and run.rate is not None:
            self._add_rate(run, run.rate)

    def _add_check(self, run: _Run, bare: Where) -> None:
        # A run that failed early does not know its chip, so the chip is no part of the key.
        key = run.note, bare, run.spec
        if key not in self.checks or run.began_unix_s >= self.checks[key].began_unix_s:
            self.checks[key] = run
        if run.where.chip:
            self.chips[key] = run.where.chip

    def _add_rate(self, run: _Run, rate: float) -> None:
        arm = self.arms.get(run.where)
        if arm is not None and (arm.first.experiment_id, arm.first.arm) == (run.experiment_id, run.arm):
            arm.rates.append(rate)
            arm.ended_unix_s = max(arm.ended_unix_s, run.ended_unix_s)
        elif arm is None or run.began_unix_s >= arm.first.began_unix_s:
            self.arms[run.where] = _Arm(run, [rate], run.ended_unix_s)


class LedgerWatch:
    """Reads the newest results of one ledger, again and again. Not safe to use from several threads at once."""

    def __init__(self, where: str | None, horizon_s: float = HORIZON_S, budget_s: float = BUDGET_S) -> None:
        self._where = where
        self._horizon_s = horizon_s
        self._budget_s = budget_s
        self._seen = _Seen()
        self._changes: tuple[object, ...] | None = None
        self._judged: dict[str, LatestCheck] = {}
        self._published: dict[str, PublishedRatio | None] = {}

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
                self._seen.add(_validated(row))
            self._add(latest.runs_after(connection, self._seen.last_id))
            if self._seen.count != total:
                self._seen = _Seen()
                self._add(latest.runs_after(connection, ""))

    def _add(self, rows: latest.Rows) -> None:
        for row in rows:
            run = _validated(row)
            self._seen.add(run)
            self._seen.count += 1
            self._seen.last_id = run.id

    def _summary(self, ledger: Ledger) -> Latest:
        seen, since = self._seen, time.time() - self._horizon_s
        until = time.monotonic() + self._budget_s
        checks = [
            LatestCheck(key[0], replace(key[1], chip=seen.chips.get(key, "")), key[2][:8], run.experiment_id, run.began_unix_s)
            for key, run in seen.checks.items()
            if run.began_unix_s >= since
        ]  # fmt: skip
        arms = [(where, arm) for where, arm in seen.arms.items() if arm.ended_unix_s >= since]
        arms.sort(key=lambda one: -one[1].ended_unix_s)
        checks.sort(key=lambda one: -one.began_unix_s)
        shown = {where for where, last in seen.last_runs.items() if last.ended_unix_s >= since}
        lists = (arms, checks)
        left_out = sum(max(0, len(one) - MOST_SERIES) for one in lists) + max(0, len(shown) - MOST_SERIES)
        newest = sorted(shown, key=lambda where: -seen.last_runs[where].ended_unix_s)[:MOST_SERIES]
        kept = set(newest)
        judged = [self._judge(ledger, one, until) for one in checks[:MOST_SERIES]]
        running = self._running(ledger)
        return Latest(
            runs=seen.count,
            results=tuple(_result(where, arm) for where, arm in arms[:MOST_SERIES]),
            published=self._find_published(ledger, arms[:MOST_SERIES], until),
            checks=tuple(judged),
            unjudged=sum(one.experiment_id not in self._judged for one in judged),
            last_runs={where: seen.last_runs[where] for where in newest},
            running={**dict.fromkeys(newest, 0), **running},
            ended={key: count for key, count in seen.ended.items() if key[0] in kept},
            failures={key: count for key, count in seen.failures.items() if key[0] in kept},
            hosts={machine_name(): platform.node(), **seen.hosts},
            left_out=left_out,
        )

    def _judge(self, ledger: Ledger, check: LatestCheck, until: float) -> LatestCheck:
        """Add the verdict, which is computed once: the baseline counts as it was then."""
        if check.experiment_id not in self._judged:
            if time.monotonic() > until:
                return check
            try:
                stored = check_again(ledger, ledger.experiment(check.experiment_id))
            except StackmarkError:
                # Its baseline was deleted, or a stream of it is damaged: the check is there, its verdict is not.
                self._judged[check.experiment_id] = check
                return check
            if stored is None:  # it is still running, or its baseline is gone
                return check
            found, seen = stored.checked, stored.checked.comparison
            interval = seen.interval_90 if seen else None
            self._judged[check.experiment_id] = replace(
                check,
                word=word_of(found),
                ratio=seen.ratio if seen else None,
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                margin=stored.margin,
                alarm=bool(found.alarm and found.alarm.rings),
            )
        return self._judged[check.experiment_id]

    def _find_published(
        self, ledger: Ledger, arms: Iterable[tuple[Where, _Arm]], until: float
    ) -> dict[Where, PublishedRatio]:
        found = {}
        for where, arm in arms:
            key = arm.first.experiment_id + str(arm.first.arm)
            if key not in self._published and time.monotonic() <= until:
                self._published[key] = _published_ratio(ledger, arm)
            if one := self._published.get(key):
                found[where] = one
        return found

    def _running(self, ledger: Ledger) -> dict[Where, int]:
        here, now = machine_name(), time.time()
        counts: Counter[Where] = Counter()
        for row in ledger.runs(RunFilter(status="running"), limit=200):
            alive = may_live(row) if row.machine_id == here else now - row.started_unix_s < LONGEST_RUN_S
            if alive:
                counts[Where(_text(row.workload), _text(row.place), _text(row.ran_on))] += 1
        return dict(counts)


def _result(where: Where, arm: _Arm) -> LatestResult:
    rate = throughput_over_runs(arm.rates)
    first = arm.first
    return LatestResult(
        where, first.experiment_id, first.unit, rate.rate_per_s, rate.low_per_s, rate.high_per_s, len(arm.rates),
        arm.ended_unix_s, first.precision, first.batch, first.framework,
    )  # fmt: skip


def _published_ratio(ledger: Ledger, arm: _Arm) -> PublishedRatio | None:
    """Compare a result with the nearest published row; None where there is none of its metric."""
    try:
        run = ledger.run(arm.first.id)
        matches = near(run.spec, arm.first.unit, run.chip, run.framework, known_rows(ledger), limit=1)
    except StackmarkError:
        return None
    if not matches or matches[0].row.unit != arm.first.unit or matches[0].row.value <= 0:
        return None
    row = matches[0].row
    ratio = throughput_over_runs(arm.rates).rate_per_s / row.value
    return PublishedRatio(ratio, _text(row.source), _text(row.date), bool(matches[0].differs))


# --- a row of a ledger that somebody may have edited


def _validated(row: RowMapping) -> _Run:
    node, boot = _node(row["handle"])
    machine = _text(row["machine_id"])
    if node and boot != row["boot_id"]:
        machine = node[0]
    began = _number(row["started_unix_s"]) or 0.0
    rate = _number(row["rate_per_s"])
    return _Run(
        id=str(row["id"]),
        experiment_id=str(row["experiment_id"]),
        where=Where(_text(row["workload"]), _text(row["place"]), machine, _text(row["chip"])),
        spec=_text(row["spec_digest"]),
        kind=_text(row["kind"]),
        note=_text(row["note"]),
        arm=row["arm"] if isinstance(row["arm"], int) else 0,
        status=_text(row["status"]),
        measured=row["role"] == "measured",
        began_unix_s=began,
        ended_unix_s=_number(row["ended_unix_s"]) or began,
        rate=rate if rate is not None and SMALLEST <= rate <= LARGEST else None,
        unit=_text(row["rate_unit"]),
        failure=_text(row["failure_kind"]) or "unknown",
        precision=_text(row["precision"]),
        batch=_text(row["batch"]),
        framework=_text(row["framework"]),
        host=node[1] if node else "",
    )


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
