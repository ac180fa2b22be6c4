"""Read the ceilings of a machine from the ledger: for `stackmark ceilings`, and for all code that compares a run with
a limit.

A limit belongs to one chip (a GPU by its UUID; a CPU by its machine and the number of threads) under one framework in one
place. The newest experiment counts; where it measured fewer precisions than one before it, the older ones fill what it
leaves open.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from stackmark.experiments.judging import Facts
from stackmark.experiments.kinds import RUN, kind_of
from stackmark.experiments.operator_list import ListedRuns, read_list
from stackmark.ledger.rows import RunDetail, RunFilter, RunRow
from stackmark.ledger.store import Ledger
from stackmark.published.chips import normalise_chip
from stackmark.verdict.ceilings import (
    VENDORS,
    Ceilings,
    Limit,
    Vendor,
    ceilings_of,
    limits_of,
    merged,
    missing_of,
    with_vendor_figures,
)

WORKLOAD = "op/ceilings"
# A page of stored runs, and how many experiments are looked through for what the newest one leaves open.
PAGE, MOST_EXPERIMENTS = 100, 10


@dataclass(frozen=True)
class MeasuredCeilings:
    """Ceilings, their experiment and place, the stack there, and the vendor's figures."""

    ceilings: Ceilings
    experiment_id: str
    runs: int
    place: str
    facts: Facts
    framework: str | None
    vendor: Vendor | None


def latest(
    ledger: Ledger, machine_id: str, chip_uuid: str | None, device: str, threads: int | None = None
) -> Ceilings | None:
    """Return the ceilings of a GPU, or of the CPU (no UUID); None where not measured. `threads` matters for a CPU only."""
    found = kept(ledger, machine_id, chip_uuid, device, threads)
    return found.ceilings if found else None


def kept(
    ledger: Ledger, machine_id: str, chip_uuid: str | None, device: str, threads: int | None = None
) -> MeasuredCeilings | None:
    newest: MeasuredCeilings | None = None
    limits: list[list[Limit]] = []
    for listed in _experiments(ledger, machine_id):
        run = listed.shown_run()
        found = of_experiment(listed)
        if run is None or found is None or not _same_chip(run, chip_uuid, device):
            continue
        if device == "cpu" and threads and found.ceilings.threads != threads:
            continue
        if newest and (found.framework, found.place) != (newest.framework, newest.place):
            continue
        newest = newest or found
        limits.append(list(found.ceilings.limits))
    return _with_limits(newest, merged(limits)) if newest else None


def every_kept(ledger: Ledger, machine_id: str, device: str | None = None) -> list[MeasuredCeilings]:
    """Return the ceilings of every chip of a machine, or of the named one; the newest first."""
    chips: dict[tuple[str | None, str, int], None] = {}
    for listed in _experiments(ledger, machine_id):
        run, found = listed.shown_run(), of_experiment(listed)
        if run and found and device in (None, run.device):
            # A GPU's number may change from boot to boot; its UUID does not.
            threads = found.ceilings.threads if run.device == "cpu" else 0
            chips.setdefault((run.chip_uuid, "" if run.chip_uuid else str(run.device), threads))
    return [
        found for uuid, name, threads in chips if (found := kept(ledger, machine_id, uuid, name or "cuda", threads))
    ]


def of_experiment(listed: ListedRuns) -> MeasuredCeilings | None:
    """Return the ceilings that one experiment measured; None where no row gave a number."""
    runs = [one.rows for one in listed.passes]
    run = listed.shown_run()
    limits = limits_of(runs)
    if run is None or not limits:
        return None
    vendor = VENDORS.get(normalise_chip(run.chip)) if run.chip else None
    threads = listed.facts.get("op", {}).get("threads")
    ceilings = ceilings_of(
        with_vendor_figures(limits, vendor),
        run_id=run.id,
        measured_unix_s=run.started_unix_s,
        chip=run.chip or "",
        device=str(run.device),
        threads=threads if isinstance(threads, int) else 0,
        missing=missing_of(runs),
    )
    return MeasuredCeilings(
        ceilings, listed.experiment.id, len(listed.passes), run.place, listed.facts, run.framework, vendor
    )


def _with_limits(one: MeasuredCeilings, limits: list[Limit]) -> MeasuredCeilings:
    was = one.ceilings
    ceilings = ceilings_of(
        limits,
        run_id=was.run_id,
        measured_unix_s=was.measured_unix_s,
        chip=was.chip,
        device=was.device,
        threads=was.threads,
        missing=[gone for gone in was.missing if gone.precision not in {limit.precision for limit in limits}],
    )
    return MeasuredCeilings(ceilings, one.experiment_id, one.runs, one.place, one.facts, one.framework, one.vendor)


def _same_chip(run: RunDetail, chip_uuid: str | None, device: str) -> bool:
    return run.chip_uuid == chip_uuid if chip_uuid else run.chip_uuid is None and run.device == device


def _experiments(ledger: Ledger, machine_id: str) -> Iterator[ListedRuns]:
    """Newest first. Of a comparison's runs each arm is a place of its own: they are left to the comparison."""
    seen: set[str] = set()
    for run in _runs(ledger):
        if run.ran_on != machine_id or run.experiment_id in seen:
            continue
        if len(seen) >= MOST_EXPERIMENTS:
            return
        experiment = ledger.experiment(run.experiment_id)
        seen.add(experiment.id)
        if kind_of(experiment) is RUN:
            yield read_list(ledger, experiment)


def _runs(ledger: Ledger) -> Iterator[RunRow]:
    before = None
    while page := ledger.runs(RunFilter(workload=WORKLOAD, status="done"), limit=PAGE, before=before):
        yield from page
        before = page[-1].cursor
