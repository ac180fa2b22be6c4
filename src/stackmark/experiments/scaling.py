"""What a measurement of scaling shows, from the ledger: speed-up, losses, what the exchange should take, what others published.

The words are decided with the other comparisons in examine.py; nothing here runs anything.
"""

from collections.abc import Mapping, Sequence
from statistics import median

from stackmark.events import Event, Metric, Row, Stream, by_rank, gathered_facts
from stackmark.experiments.design import Design
from stackmark.experiments.judging import read_stored
from stackmark.ledger.rows import RunDetail, RunFilter
from stackmark.ledger.several import StreamSource
from stackmark.ledger.store import Ledger
from stackmark.places.registry import find_kind
from stackmark.published.lookup import known_rows
from stackmark.published.scaling import nearest_scaling
from stackmark.remarks import Remark
from stackmark.verdict.comparison import Comparison
from stackmark.verdict.examined import ExaminedArm, ExaminedRun
from stackmark.verdict.scaling import (
    BYTES,
    COMPUTE,
    EXCHANGE,
    ONE_NEEDED,
    WAITING,
    Expected,
    GroupTimes,
    RankTimes,
    Scaling,
    ScalingPoint,
    expected,
    group_times,
    is_questioned,
    losses,
    question,
    shared_devices,
)
from stackmark.workloads.op.definition import bus_factor

ALL_REDUCE = "op/all-reduce"
# The strategy whose exchange is one all-reduce; a workload without strategies has no other.
ALL_REDUCES = "ddp"
# The newest stored runs of an all-reduce that are looked at for one that fits.
LOOKED_AT = 200
# Bytes of an element, by the precision of a row.
_FLOAT_BYTES: Mapping[str, int] = {"fp64": 8, "fp16": 2, "bf16": 2}


def refused_labels(
    ledger: StreamSource, design: Design, rows: Sequence[RunDetail], runs: Sequence[ExaminedRun]
) -> dict[str, str]:
    """Return the arms that have no efficiency, each with the reason: ranks that share a GPU are not more devices."""
    found: dict[str, str] = {}
    for row, run in zip(rows, runs, strict=True):
        arm = design.arms[run.arm]
        if not run.counted or arm.spec.ranks == 1 or arm.label in found:
            continue
        if why := shared_devices(chips_of(read_stored(ledger.stream(row.id)).stream)):
            found[arm.label] = why
    return found


def chips_of(stream: Stream) -> list[str | None]:
    """Return the GPU of each rank, by its UUID; None of a rank that names none."""
    chips: list[str | None] = []
    for rank, events in sorted(by_rank(stream.events).items()):
        chip = gathered_facts(events, rank).get("gpu", {}).get("under_test")
        chips.append(str(chip) if chip else None)
    return chips


def times_of(run: Sequence[Event], size: int) -> GroupTimes | None:
    """Return what the ranks of a run say of a step; None unless all `size` of them do."""
    ranks = []
    for events in by_rank(run).values():
        said = {event.name: event.value for event in events if isinstance(event, Metric)}
        ranks.append(RankTimes(said.get(COMPUTE), said.get(WAITING), said.get(EXCHANGE), said.get(BYTES)))
    return group_times(ranks) if size > 1 and len(ranks) == size else None


def examine_scaling(
    ledger: Ledger,
    design: Design,
    rows: Sequence[RunDetail],
    runs: Sequence[ExaminedRun],
    arms: Sequence[ExaminedArm],
    pairs: Sequence[Comparison],
    refused: Mapping[str, str],
) -> Scaling:
    """Put together what the arms show. `pairs` are the comparisons with one rank, `refused` the arms that have none."""
    one = arms[0].throughput
    step_s = _step_s(arms[0], runs)
    by_label = {pair.b: pair for pair in pairs}
    points = []
    for arm, planned in zip(arms, design.arms, strict=True):
        ranks, rate = planned.spec.ranks, arm.throughput.rate_per_s if arm.throughput else None
        pair = by_label.get(arm.label)
        times = _group_times(ledger, arm, rows, runs) if ranks > 1 else []
        efficiency = pair.ratio if pair else 1.0 if ranks == 1 and rate else None
        ideal_s = step_s / ranks if step_s and design.scaling == "strong" else step_s
        exchange, missing = _expected(ledger, arm, rows, runs, ranks, times, ideal_s)
        batch = planned.spec.params.get("batch")
        points.append(
            ScalingPoint(
                label=arm.label,
                ranks=ranks,
                batch=batch if isinstance(batch, int) else None,
                rate_per_s=rate,
                speedup=ranks * efficiency if efficiency else None,
                efficiency=efficiency,
                low=pair.interval_95.low if pair and pair.interval_95 else None,
                high=pair.interval_95.high if pair and pair.interval_95 else None,
                losses=losses(times, efficiency) if efficiency and ranks > 1 else None,
                expected=exchange,
                refused=refused.get(arm.label, "" if one or ranks == 1 else ONE_NEEDED),
                missing=missing,
            )
        )
    shown = next((row for row, run in zip(rows, runs, strict=True) if run.counted), None)
    published = nearest_scaling(known_rows(ledger), shown.spec, shown.chip, [p.ranks for p in points]) if shown else ()
    return Scaling(
        mode="strong" if design.scaling == "strong" else "weak",
        points=tuple(points),
        devices=say_devices(design),
        published=published,
    )


def say_devices(design: Design) -> str:
    """Say which device the one rank had."""
    arm = design.arms[0]
    if find_kind(arm.place).leads:
        return "the cluster's scheduler chose the device of the one rank"
    if design.rotation:
        taken = design.rotation[: design.blocks]
        which = f"{taken[0]} to {taken[-1]} in turn, one per block" if len(taken) > 1 else taken[0]
        left = len(design.rotation) - len(taken)
        return f"the one rank took {which}{f'; {left} GPUs never' if left else ''}"
    device = str(arm.spec.params.get("device", ""))
    return f"the one rank was always on {device}" if device.startswith("cuda") else ""


def scaling_remarks(design: Design, pairs: Sequence[Comparison]) -> list[str]:
    """Return what a reader must see with an efficiency."""
    said: list[str] = [Remark(question(pair), "above-linear") for pair in pairs if is_questioned(pair)]
    params = design.arms[-1].spec.params
    if params.get("device") == "cpu" and not params.get("threads"):
        text = "on a CPU the ranks divide the cores that one rank has to itself: this is how cores are shared, not more devices"
        hint = "; with --threads 1 each rank has as much" if "threads" in params else ""
        said.append(Remark(text + hint, "shared-cores"))
    return said


def _step_s(arm: ExaminedArm, runs: Sequence[ExaminedRun]) -> float | None:
    """Return the step of an arm: the median over its runs of the mean of their steady steps."""
    means = [
        sum(steps) / len(steps)
        for run in runs
        if run.counted and run.arm == arm.index and (steps := run.step_s[run.first_step :])
    ]
    return median(means) if means else None


def _group_times(
    ledger: StreamSource, arm: ExaminedArm, rows: Sequence[RunDetail], runs: Sequence[ExaminedRun]
) -> list[GroupTimes]:
    mine = [row for row, run in zip(rows, runs, strict=True) if run.counted and run.arm == arm.index]
    streams = (read_stored(ledger.stream(row.id)).stream for row in mine)
    return [times for stream in streams if (times := times_of(stream.events, stream.ranks))]


def _expected(
    ledger: Ledger,
    arm: ExaminedArm,
    rows: Sequence[RunDetail],
    runs: Sequence[ExaminedRun],
    ranks: int,
    times: Sequence[GroupTimes],
    ideal_s: float | None,
) -> tuple[Expected | None, str]:
    """Return what the exchange should take; or else the command that measures what is missing for it."""
    sent = [one.exchanged_bytes for one in times if one.exchanged_bytes]
    row = next((row for row, run in zip(rows, runs, strict=True) if run.counted and run.arm == arm.index), None)
    if not sent or not ideal_s or row is None or row.spec.params.get("strategy", ALL_REDUCES) != ALL_REDUCES:
        return None, ""
    sent_bytes = median(sent)
    rate = all_reduce_rate(ledger, row, ranks, sent_bytes)
    if rate is None:
        floats = -(-int(sent_bytes) // 4)
        return None, f"stackmark run {ALL_REDUCE} --ranks {ranks} --shape floats={floats}"
    bus_gb_per_s, array_bytes, run_id = rate
    compute_s = median(one.slowest_compute_s for one in times)
    found = expected(
        ranks, sent_bytes, bus_gb_per_s, ideal_s=ideal_s, compute_s=compute_s, run_id=run_id, array_bytes=array_bytes
    )
    return found, ""


def all_reduce_rate(
    ledger: Ledger, like: RunDetail, ranks: int, wanted_bytes: float
) -> tuple[float, float, str] | None:
    """Return the newest bus bandwidth that was measured with these ranks on that machine, for the next larger array.

    With it the bytes of that array and the run; None where no array is at least that large.
    """
    for row in ledger.runs(RunFilter(workload=ALL_REDUCE, status="done"), limit=LOOKED_AT):
        if row.ranks != ranks or row.ran_on != like.ran_on or row.chip != like.chip:
            continue
        stream = read_stored(ledger.stream(row.id)).stream
        sizes = []
        for event in stream.events:
            if isinstance(event, Row) and event.rank == 0 and event.row.call_s and not event.row.failure_kind:
                floats = event.row.shape.get("floats")
                size = float(floats) * _FLOAT_BYTES.get(event.row.precision, 4) if isinstance(floats, int) else 0.0
                if size >= wanted_bytes:
                    sizes.append((size, median(event.row.call_s)))
        if sizes:
            size, seconds = min(sizes)
            return size / seconds / 1e9 * bus_factor("all-reduce", ranks), size, row.id
    return None
