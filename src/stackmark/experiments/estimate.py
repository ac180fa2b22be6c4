"""How long an experiment will take, before its first run: from earlier runs of the same spec here, else from its settings.

A run that was made before on this machine in this kind of place is the best forecast. Without one the time that was asked for
(`--seconds`, warm-up) is added to what the probe took, which loads the same framework and builds the same model. A program of
the user's has no such settings: nothing is forecast for it before its first run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from stackmark.experiments.driver import machine_name
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger
from stackmark.spec import Spec

# Newest runs of a workload that are looked through, and how many of those with the same spec are enough.
LOOKED_AT, ENOUGH = 200, 10


@dataclass(frozen=True)
class RunTime:
    """What one run takes, and whether runs on this machine say so."""

    seconds: float
    measured_before: bool


@dataclass(frozen=True)
class Estimate:
    """What the missing runs take together. `run_s` has the time of a run of each arm, by its label."""

    seconds: float
    runs: int
    run_s: Mapping[str, float]
    measured_before: bool
    # Of a comparison that stops when it is decided.
    at_most: bool = False


def run_time(ledger: Ledger, spec: Spec, place: str, probe_s: float | None = None) -> RunTime | None:
    """Forecast what a run of this spec takes in this kind of place; None where nothing tells."""
    here, digest = machine_name(), spec.digest
    wanted = RunFilter(workload=spec.workload, place=place, status="done")
    seen = [
        row.ended_unix_s - row.started_unix_s
        for row in ledger.runs(wanted, limit=LOOKED_AT)
        if row.spec_digest == digest and row.machine_id == here and row.role == "measured" and row.ended_unix_s
    ]
    if seen:
        return RunTime(median(seen[:ENOUGH]), measured_before=True)
    seconds, warm_up = spec.params.get("seconds"), spec.params.get("warmup_seconds")
    if spec.params.get("steps") or not isinstance(seconds, int | float) or not seconds or probe_s is None:
        return None
    return RunTime(seconds + (warm_up if isinstance(warm_up, int | float) else 0.0) + probe_s, measured_before=False)


def estimate(
    times: Mapping[str, RunTime | None], runs_of: Mapping[str, int], *, extra_s: float = 0.0, at_most: bool = False
) -> Estimate | None:
    """Add up runs of arms; None where an arm's time is not known, or no run is missing."""
    known = {label: time for label, time in times.items() if time is not None}
    runs = sum(runs_of.values())
    if len(known) < len(times) or not runs:
        return None
    seconds = sum(known[label].seconds * count for label, count in runs_of.items()) + extra_s
    before = all(time.measured_before for time in known.values())
    return Estimate(seconds, runs, {label: time.seconds for label, time in known.items()}, before, at_most)


def of_one_arm(
    ledger: Ledger, spec: Spec, place: str, runs: int, probe_s: float | None = None, label: str = ""
) -> Estimate | None:
    """Forecast this many runs of one spec in one place."""
    return estimate({label: run_time(ledger, spec, place, probe_s)}, {label: runs})


def of_arms(
    ledger: Ledger,
    arms: Sequence[tuple[str, Spec, str]],
    runs_each: int,
    *,
    probe_s: float | None = None,
    extra_s: float = 0.0,
    at_most: bool = False,
) -> Estimate | None:
    """Forecast as many runs of each arm, given by label, spec and place."""
    times = {label: run_time(ledger, spec, place, probe_s) for label, spec, place in arms}
    return estimate(times, dict.fromkeys(times, runs_each), extra_s=extra_s, at_most=at_most)
