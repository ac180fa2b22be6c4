"""What a machine can do at most, as measured: the rows of `op/ceilings`, put together over the runs of an experiment.

A limit is a rate (operations or bytes a second) or a time (a launch). From one run it is the median of that run's samples
with the median's own interval, which says how steady the chip was and not how far the next run would be; from several runs,
which are as many samples, it is their geometric mean with Student's interval. Matrix rates come in pairs: `cold` is what a
chip gives that rested (a clock that nothing holds back yet), `sustained` what it gives after seconds at full power. A
workload that runs for minutes is held against the sustained one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stackmark.events import OpRow
from stackmark.medians import median_of
from stackmark.verdict.throughput import throughput_over_runs
from stackmark.verdict.vendors import Vendor

MATRIX, COPY, READ, TRANSFER, LAUNCH = "matrix", "copy", "read", "transfer", "launch"
COLD, SUSTAINED = "cold", "sustained"
TO_DEVICE, FROM_DEVICE = "host to device", "device to host"
EAGER, GRAPH = "eager", "graph"
# Of a worker's notes on a row, those after which the limit is not to be believed hold one of these.
DOUBTFUL = ("others were at work", "for want of budget")
# What a limit is counted in.
OPERATIONS_PER_S, BYTES_PER_S, SECONDS = "FLOP/s", "B/s", "s"


@dataclass(frozen=True)
class Limit:
    """One limit. `value` is a rate in `unit`, or seconds; `low` and `high` are None where there is no interval."""

    what: str
    # Of a matrix rate its state, of a transfer its direction, of a launch how it was launched; else empty.
    state: str
    # Of a matrix rate; else empty.
    precision: str
    value: float
    unit: str
    low: float | None = None
    high: float | None = None
    runs: int = 1
    # What it was measured with: `8192×8192×8192`, `1 GiB`.
    size: str = ""
    # Of the sums of a matrix product, where the library says it.
    accumulate: str = ""
    # What the hardware's own description allows, e.g. of a link, and in which words.
    allowed: float | None = None
    allowed_words: str = ""
    # What the chip's vendor says.
    vendor: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def vendor_share(self) -> float | None:
        return self.value / self.vendor if self.vendor else None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.what, self.state, self.precision


@dataclass(frozen=True)
class Rate:
    """The matrix rate of one precision, in operations a second; `low` and `high` are the interval of the sustained one."""

    cold_per_s: float
    sustained_per_s: float
    low: float | None = None
    high: float | None = None
    # What makes the sustained one doubtful, a sentence each.
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A limit that was to be measured and gave no number."""

    what: str
    precision: str
    message: str


@dataclass(frozen=True)
class Ceilings:
    """The limits of one device, or of a CPU with so many threads. None: not measured."""

    matrix: Mapping[str, Rate]
    copy_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    h2d_bytes_per_s: float | None = None
    d2h_bytes_per_s: float | None = None
    # Of one small kernel or operator, launched alone, as the host sees it.
    launch_s: float | None = None
    # The newest run that they are from, and when it began.
    run_id: str = ""
    measured_unix_s: float = 0.0
    chip: str = ""
    device: str = ""
    threads: int = 0
    limits: tuple[Limit, ...] = ()
    missing: tuple[Missing, ...] = field(default=())

    @property
    def memory_bytes_per_s(self) -> float | None:
        """The best that was seen of the device's memory: a copy reads and writes, a sum only reads."""
        return max((rate for rate in (self.copy_bytes_per_s, self.read_bytes_per_s) if rate), default=None)


def ceilings_of(
    limits: Sequence[Limit],
    *,
    run_id: str = "",
    measured_unix_s: float = 0.0,
    chip: str = "",
    device: str = "",
    threads: int = 0,
    missing: Sequence[Missing] = (),
) -> Ceilings:
    """A precision counts only where both of its states were measured."""
    found = {limit.key: limit for limit in limits}

    def value(what: str, state: str = "") -> float | None:
        limit = found.get((what, state, ""))
        return limit.value if limit else None

    matrix = {}
    for limit in limits:
        cold, sustained = (found.get((MATRIX, state, limit.precision)) for state in (COLD, SUSTAINED))
        if limit.what == MATRIX and cold and sustained:
            doubts = tuple(note for note in sustained.notes if any(words in note for words in DOUBTFUL))
            matrix[limit.precision] = Rate(cold.value, sustained.value, sustained.low, sustained.high, doubts)
    return Ceilings(
        matrix=matrix,
        copy_bytes_per_s=value(COPY),
        read_bytes_per_s=value(READ),
        h2d_bytes_per_s=value(TRANSFER, TO_DEVICE),
        d2h_bytes_per_s=value(TRANSFER, FROM_DEVICE),
        launch_s=value(LAUNCH, EAGER),
        run_id=run_id,
        measured_unix_s=measured_unix_s,
        chip=chip,
        device=device,
        threads=threads,
        limits=tuple(limits),
        missing=tuple(missing),
    )


def limits_of(runs: Sequence[Sequence[OpRow]]) -> list[Limit]:
    """The limits of an experiment from the rows of each of its runs, in the order in which they were measured."""
    by_key: dict[tuple[str, str, str], list[OpRow]] = {}
    for rows in runs:
        for row in rows:
            if not row.failure_kind and row.call_s:
                by_key.setdefault(_key(row), []).append(row)
    return [_limit(key, rows) for key, rows in by_key.items()]


def missing_of(runs: Sequence[Sequence[OpRow]]) -> list[Missing]:
    """What failed, each once."""
    found = {_key(row): row for rows in runs for row in rows if row.failure_kind}
    return [Missing(key[0], key[2], row.failure_message) for key, row in found.items()]


def merged(newest_first: Iterable[Sequence[Limit]]) -> list[Limit]:
    """Each limit from the newest experiment that has it: one of a single precision does not hide the others."""
    found: dict[tuple[str, str, str], Limit] = {}
    for limits in newest_first:
        for limit in limits:
            found.setdefault(limit.key, limit)
    return list(found.values())


def beside_vendor(limits: Iterable[Limit], vendor: Vendor | None) -> list[Limit]:
    """The same limits with the vendor's figure: of a copy and of a sum, that of the memory."""
    if vendor is None:
        return list(limits)
    return [replace(limit, vendor=_vendor_figure(limit, vendor)) for limit in limits]


def _vendor_figure(limit: Limit, vendor: Vendor) -> float | None:
    if limit.what == MATRIX:
        return vendor.operations_per_s(limit.precision)
    return vendor.memory_bytes_per_s if limit.what in (COPY, READ) else None


def _key(row: OpRow) -> tuple[str, str, str]:
    what = str(row.shape.get("what", ""))
    return what, str(row.shape.get("state", "")), row.precision if what == MATRIX else ""


def _limit(key: tuple[str, str, str], rows: Sequence[OpRow]) -> Limit:
    what, state, precision = key
    first = rows[0]
    work = first.operations if what == MATRIX else first.least_bytes if what != LAUNCH else None
    unit = SECONDS if work is None else OPERATIONS_PER_S if what == MATRIX else BYTES_PER_S
    value, low, high = _over_runs(rows, is_time=work is None)
    return Limit(
        what=what,
        state=state,
        precision=precision,
        value=value,
        unit=unit,
        low=low,
        high=high,
        runs=len(rows),
        size=_size(first),
        accumulate=first.accumulate,
        allowed=first.limit_per_s,
        allowed_words=first.limit,
        notes=tuple(dict.fromkeys(note for row in rows for note in row.notes)),
    )


def _over_runs(rows: Sequence[OpRow], is_time: bool) -> tuple[float, float | None, float | None]:
    """The work of a call over its time, or the time itself, with the interval."""
    works = [1.0 if is_time else (row.operations or row.least_bytes or 0.0) for row in rows]
    if len(rows) == 1:
        median = median_of(rows[0].call_s)
        value, low, high = (
            works[0] / seconds if seconds else None for seconds in (median.value, median.high, median.low)
        )
        assert value is not None
    else:
        over = throughput_over_runs([work / median_of(row.call_s).value for work, row in zip(works, rows, strict=True)])
        value, low, high = over.rate_per_s, over.low_per_s, over.high_per_s
    if not is_time:
        return value, low, high
    return 1 / value, 1 / high if high else None, 1 / low if low else None


def _size(row: OpRow) -> str:
    if row.shape.get("what") == MATRIX:
        return "×".join(str(row.shape.get(name)) for name in ("m", "n", "k"))
    size = row.shape.get("bytes")
    if not isinstance(size, int):
        return ""
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
