"""Measured limits of a machine: the rows of `op/ceilings`, combined over the runs of an experiment.

A limit is a rate (operations or bytes a second) or a time (a launch). From one run it is the median of that run's samples
with the median's own interval, which says how steady the chip was and not how far the next run would be; from several runs,
which are as many samples, it is their geometric mean with Student's interval. Matrix rates come in pairs: `cold` is what a
chip gives that rested (a clock that nothing holds back yet), `sustained` what it gives after seconds at full power. A
workload that runs for minutes is compared with the sustained one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from stackmark.events import OpRow
from stackmark.medians import median_of
from stackmark.verdict.throughput import throughput_over_runs

# --- What vendors say that their chips can do: the figure next to the measured one, with where it is printed
#
# All are rates of dense matrices at the boost clock. Where a datasheet prints only the rate with structured sparsity,
# which counts products with zeros that are never made, half of it stands here, and it is said. A figure counts the
# units that a matrix product would use: tensor or matrix cores where the chip has them for that precision, with sums in
# 32 bits (in 64 for fp64), else the vector units. Nobody sustains these: a chip at full power lowers its clock below
# the boost clock that they are computed with.
#
# A chip stands here when its figures were found printed by others as well, word for word; the others are left out until
# somebody has compared them with the sheet.


HALF_OF_SPARSE = "half of the printed rates, which include structured sparsity"


@dataclass(frozen=True)
class Vendor:
    """Figures of one chip, by its normalised name: TFLOP/s (TOP/s of int8) by precision, and GB/s of its memory."""

    chip: str
    source: str
    memory_gb_per_s: float
    tflops: dict[str, float]
    note: str = ""

    def operations_per_s(self, precision: str) -> float | None:
        found = self.tflops.get(precision)
        return found * 1e12 if found is not None else None

    @property
    def memory_bytes_per_s(self) -> float:
        return self.memory_gb_per_s * 1e9


def _ampere_a100(chip: str, memory_gb_per_s: float) -> Vendor:
    rates = {"fp64": 19.5, "fp32": 19.5, "tf32": 156.0, "bf16": 312.0, "fp16": 312.0, "int8": 624.0}
    return Vendor(chip, "NVIDIA A100 Tensor Core GPU datasheet", memory_gb_per_s, rates, "fp64 by tensor cores")


def _volta(chip: str, fp64: float, fp32: float, fp16: float, memory_gb_per_s: float, sheet: str) -> Vendor:
    return Vendor(chip, sheet, memory_gb_per_s, {"fp64": fp64, "fp32": fp32, "fp16": fp16}, "fp16 by tensor cores")


def _hopper(chip: str, sheet: str, fp32: float, sparse_tf32: float, memory_gb_per_s: float) -> Vendor:
    """The sheets print tf32 with sparsity: 16 bits are twice that, 8 bits four times; fp64 by tensor cores equals fp32."""
    bits_16, bits_8 = sparse_tf32, 2 * sparse_tf32
    rates = {"fp64": fp32, "fp32": fp32, "tf32": sparse_tf32 / 2, "bf16": bits_16, "fp16": bits_16}
    rates |= {"fp8": bits_8, "int8": bits_8}
    return Vendor(chip, sheet, memory_gb_per_s, rates, f"fp64 by tensor cores; tf32 and below: {HALF_OF_SPARSE}")


_V100, _P100 = "NVIDIA V100 Tensor Core GPU datasheet", "NVIDIA Tesla P100 datasheet"
_H100 = "NVIDIA H100 Tensor Core GPU datasheet"

_TABLE = (
    Vendor("NVIDIA P100", _P100, 732, {"fp64": 5.3, "fp32": 10.6, "fp16": 21.2}, "vector units only"),
    Vendor("NVIDIA P100 PCIe", _P100, 732, {"fp64": 4.7, "fp32": 9.3, "fp16": 18.7}, "vector units only"),
    _volta("NVIDIA V100 16GB", 7.8, 15.7, 125, 900, _V100),
    _volta("NVIDIA V100 32GB", 7.8, 15.7, 125, 900, _V100),
    _volta("NVIDIA V100 16GB PCIe", 7.0, 14.0, 112, 900, _V100),
    _volta("NVIDIA V100 32GB PCIe", 7.0, 14.0, 112, 900, _V100),
    Vendor(
        "NVIDIA T4", "NVIDIA T4 Tensor Core GPU datasheet", 300, {"fp32": 8.1, "fp16": 65, "int8": 130},
        "an older edition of the datasheet prints 320 GB/s",
    ),
    _ampere_a100("NVIDIA A100 40GB", 1555),
    _ampere_a100("NVIDIA A100 40GB PCIe", 1555),
    _ampere_a100("NVIDIA A100 80GB", 2039),
    _ampere_a100("NVIDIA A100 80GB PCIe", 1935),
    Vendor(
        "NVIDIA A40", "NVIDIA A40 datasheet", 696,
        {"fp32": 37.4, "tf32": 74.8, "bf16": 149.7, "fp16": 149.7, "int8": 299.3},
    ),
    Vendor(
        "NVIDIA L40", "NVIDIA L40 datasheet", 864,
        {"fp32": 90.5, "tf32": 90.5, "bf16": 181.05, "fp16": 181.05, "fp8": 362, "int8": 362},
    ),
    Vendor(
        "NVIDIA L40S", "NVIDIA L40S datasheet", 864,
        {"fp32": 91.6, "tf32": 183, "bf16": 362.05, "fp16": 362.05, "fp8": 733, "int8": 733},
    ),
    _hopper("NVIDIA H100 80GB", _H100, 67, 989, 3350),
    _hopper("NVIDIA H100 80GB PCIe", _H100, 51, 756, 2000),
    _hopper("NVIDIA H200", "NVIDIA H200 Tensor Core GPU datasheet", 67, 989, 4800),
    Vendor(
        "NVIDIA B200", "NVIDIA Blackwell Architecture Technical Brief, HGX B200", 8000,
        {"fp64": 40, "fp32": 80, "tf32": 1100, "bf16": 2250, "fp16": 2250, "fp8": 4500, "int8": 4500},
        "later datasheets print 37 and 75 TFLOP/s for fp64 and fp32, and 7.7 TB/s",
    ),
)  # fmt: skip
VENDORS = {vendor.chip: vendor for vendor in _TABLE}


MATRIX, COPY, READ, TRANSFER, LAUNCH = "matrix", "copy", "read", "transfer", "launch"
COLD, SUSTAINED = "cold", "sustained"
TO_DEVICE, FROM_DEVICE = "host to device", "device to host"
EAGER, GRAPH = "eager", "graph"
# A worker's note on a row with one of these phrases makes the limit doubtful. The last two are what older workers wrote.
DOUBTFUL = ("other programs were running", "short of time budget", "others were at work", "for want of budget")
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
    """The matrix rate of one precision, in operations per second; `low` and `high` are the interval of the sustained one."""

    cold_per_s: float
    sustained_per_s: float
    low: float | None = None
    high: float | None = None
    # What makes the sustained one doubtful, a sentence each.
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Missing:
    """A limit that should have been measured but gave no number."""

    what: str
    precision: str
    message: str


@dataclass(frozen=True)
class Ceilings:
    """The limits of one device, or of a CPU with a number of threads. None: not measured."""

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
        """Return the best rate seen of the device's memory: a copy reads and writes, a sum only reads."""
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
    """Gather the ceilings; a precision counts only if both of its states were measured."""
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
    """Return the limits of an experiment from the rows of each of its runs, in the order in which they were measured."""
    by_key: dict[tuple[str, str, str], list[OpRow]] = {}
    for rows in runs:
        for row in rows:
            if not row.failure_kind and row.call_s:
                by_key.setdefault(_key(row), []).append(row)
    return [_limit(key, rows) for key, rows in by_key.items()]


def missing_of(runs: Sequence[Sequence[OpRow]]) -> list[Missing]:
    """Return what failed, each once."""
    found = {_key(row): row for rows in runs for row in rows if row.failure_kind}
    return [Missing(key[0], key[2], row.failure_message) for key, row in found.items()]


def merged(newest_first: Iterable[Sequence[Limit]]) -> list[Limit]:
    """Return each limit from the newest experiment that has it, so that one precision does not hide the others."""
    found: dict[tuple[str, str, str], Limit] = {}
    for limits in newest_first:
        for limit in limits:
            found.setdefault(limit.key, limit)
    return list(found.values())


def with_vendor_figures(limits: Iterable[Limit], vendor: Vendor | None) -> list[Limit]:
    """Return the limits with the vendor's figure; for a copy and a sum that is the memory's."""
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
