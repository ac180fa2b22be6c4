"""What the runs of a workload that is trained to a quality show: their curves, and their times to the target.

Everything is read from stored streams. What a live worker says was verified when its run ended (verify.py); a stream that came
into the ledger otherwise is verified here again, and left out where it cannot be.
"""

from collections.abc import Iterable, Sequence

from stackmark.errors import SpecError
from stackmark.events import Stream, gathered_facts
from stackmark.experiments.judging import read_stored
from stackmark.experiments.verify import evaluations_in, impossible_training, targets_of
from stackmark.failures import TARGET_NOT_REACHED
from stackmark.ledger.rows import RunRow
from stackmark.ledger.several import StreamSource
from stackmark.spec import Spec
from stackmark.units import counted
from stackmark.verdict.time_to_quality import Evaluation, QualityResult, TrainedRun, summed_up
from stackmark.workloads.registry import known

# The preset that any machine trains to its target in a minute or two.
TINY = "tiny"


def is_trained(workload: str) -> bool:
    """Tell whether a workload is trained until it reaches a quality."""
    found = known(workload)
    return found is not None and found.timed == "quality"


def is_censored(row: RunRow) -> bool:
    """Tell whether a run ended at its limit without its target: its time is known to be longer, and it counts as that."""
    return row.status == "failed" and row.failure_kind == TARGET_NOT_REACHED and is_trained(row.workload)


def is_outcome(row: RunRow) -> bool:
    """Tell whether a run gave a figure, or is known to be longer."""
    return (row.status == "done" and bool(row.rate_per_s)) or is_censored(row)


def refuse_censored(rows: Iterable[RunRow], what: str) -> None:
    """Refuse to compare stored runs by their figures where one did not reach its target and has none: it would be left out."""
    missed = [row.id for row in rows if is_censored(row)]
    if missed:
        raise SpecError(
            f"{counted(len(missed), 'run')} of {what} did not reach the target, e.g. {missed[0]}: "
            "to compare the others alone would make it look faster than it is",
            hint="compare the arms in one experiment, which counts such runs: stackmark compare",
        )


def curve_of(stream: Stream, spec: Spec) -> tuple[Evaluation, ...]:
    """Return the evaluations of a run; nothing where they contradict each other or the spec."""
    if impossible_training(stream, spec, None):
        return ()
    return tuple(
        Evaluation(one.number, one.epoch, one.samples, one.clock_s, dict(one.quality), one.reached)
        for one in evaluations_in(stream)
    )


def trained_run(row: RunRow, spec: Spec, stream: Stream) -> TrainedRun | None:
    """Return the run by its evaluations; None where it is no outcome, or its evaluations are not those of one."""
    target = targets_of(spec)
    if not target or row.role != "measured" or not is_outcome(row):
        return None
    evaluations = curve_of(stream, spec)
    if row.status == "done" and not evaluations:
        return None
    seed = gathered_facts(stream.events).get("fit", {}).get("seed")
    known_seed = seed if isinstance(seed, int) and not isinstance(seed, bool) else None
    return TrainedRun(row.id, row.arm, row.block, known_seed, target, evaluations)


def trained_runs(ledger: StreamSource, spec: Spec, rows: Iterable[RunRow]) -> list[TrainedRun]:
    """Read the runs of one spec from their streams."""
    if targets_of(spec) is None:
        return []
    read = ((row, read_stored(ledger.stream(row.id)).stream) for row in rows if is_outcome(row))
    return [run for row, stream in read if (run := trained_run(row, spec, stream))]


def quality_of(spec: Spec, runs: Sequence[TrainedRun]) -> QualityResult | None:
    """Sum up the runs of one arm; None where there is none, or the workload is not trained to a quality."""
    definition = known(spec.workload)
    if definition is None or not runs:
        return None
    units = {one.name: one.unit for one in definition.qualities}
    return summed_up(spec.workload, units, runs, tiny=spec.params.get("preset") == TINY)
