"""Compare a stored run with the ceilings of its machine: for the line next to every result.

A stored run holds what a verdict needs: its operations and bytes. One from before the bytes were counted as they are called is
counted again from its spec, by the same table that a worker uses.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.events import Event, Result, gathered_facts
from stackmark.experiments.ceilings import latest
from stackmark.experiments.judging import read_stored
from stackmark.experiments.run import Measured
from stackmark.ledger.rows import RunDetail, RunRow
from stackmark.ledger.store import Ledger
from stackmark.spec import Spec
from stackmark.units import counted
from stackmark.verdict.ceilings import Ceilings
from stackmark.verdict.roofline import MEASURE, NO_CEILINGS, Standing, Work, doubts, say_standing, stand
from stackmark.workloads.definition import SampleBytes
from stackmark.workloads.registry import known


@dataclass(frozen=True)
class Limits:
    """A run compared with the machine's limits. Without a standing, the sentences say why.

    Nothing at all is said of a workload whose operations nobody counted.
    """

    work: Work | None = None
    standing: Standing | None = None
    sentences: tuple[str, ...] = ()


NO_LIMITS = Limits()


def limits_of_measured(ledger: Ledger, measured: Measured) -> Limits:
    row = next((row for row in measured.runs if row.status == "done"), None)
    if row is None or measured.throughput is None:
        return NO_LIMITS
    return limits_of(ledger, row, measured.spec, measured.events, measured.throughput.rate_per_s)


def limits_of_run(ledger: Ledger, row: RunDetail, rate_per_s: float | None = None) -> Limits:
    """Compute the limits of a stored run, by its own rate or its arm's."""
    rate = rate_per_s or row.rate_per_s
    if row.status != "done" or not rate:
        return NO_LIMITS
    return limits_of(ledger, row, row.spec, read_stored(ledger.stream(row.id)).stream.events, rate)


def limits_of(ledger: Ledger, row: RunRow, spec: Spec, events: Sequence[Event], rate_per_s: float) -> Limits:
    if spec.ranks > 1 and (row.device == "cpu" or spec.params.get("share_gpus")):
        return NO_LIMITS  # ranks share a chip, and how is not known here
    result = next((event for event in reversed(events) if isinstance(event, Result)), None)
    # Each rank has a chip of its own, and is compared with that chip's ceilings.
    work = work_of(spec, result, rate_per_s / spec.ranks)
    if work is None:
        return NO_LIMITS
    threads = threads_of(row, spec, events)
    ceilings = ceilings_for(ledger, row, threads)
    if ceilings is None:
        return Limits(work, None, (none_kept(ledger, row, threads),))
    standing = stand(work, ceilings)
    said = say_standing(standing)
    each = f"each of {spec.ranks} ranks: {said}" if spec.ranks > 1 else said
    return Limits(work, standing, (each, *(doubt.what for doubt in doubts(standing))))


def ceilings_for(ledger: Ledger, row: RunRow, threads: int | None) -> Ceilings | None:
    """Return the ceilings of the same chip; on a CPU with as many threads: those of one thread do not limit two."""
    return latest(ledger, row.ran_on, row.chip_uuid, row.device or "", threads)


def none_kept(ledger: Ledger, row: RunRow, threads: int | None) -> str:
    """Return the sentence for missing ceilings."""
    if threads and latest(ledger, row.ran_on, row.chip_uuid, "cpu"):
        return f"ceilings for {counted(threads, 'thread')} are not measured yet: {MEASURE} --threads {threads}"
    return NO_CEILINGS


def threads_of(row: RunRow, spec: Spec, events: Sequence[Event]) -> int | None:
    """Return how many threads a run on a CPU had: as typed, else as its worker found; None on a GPU."""
    if row.device != "cpu":
        return None
    facts = gathered_facts(list(events))
    asked = (
        spec.params.get("threads"),
        facts.get("op", {}).get("threads"),
        facts.get("software", {}).get("torch_threads"),
    )
    return next((threads for threads in asked if isinstance(threads, int) and threads), None)


def work_of(spec: Spec, result: Result | None, rate_per_s: float) -> Work | None:
    """Return the work; None where operations are not counted, or the rate is a program's own figure."""
    if result is None or not result.operations_per_sample or result.figure is not None:
        return None
    least, called = result.least_bytes_per_sample, result.called_bytes_per_sample
    if called is None:
        again = _counted_again(spec)
        least, called = (again.least, again.called) if again else (least, None)
    return Work(
        rate_per_s=rate_per_s,
        operations=result.operations_per_sample,
        precision=str(spec.params.get("precision") or ""),
        least_bytes=least,
        called_bytes=called,
        compiled=bool(spec.params.get("compile")),
    )


def _counted_again(spec: Spec) -> SampleBytes | None:
    definition = known(spec.workload)
    return definition.sample_bytes(spec.params) if definition else None
