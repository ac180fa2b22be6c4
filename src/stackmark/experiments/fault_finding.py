"""Examine a stored fault: the run's own events, combined with the record of what was done to the cluster."""

from pydantic import ValidationError

from stackmark.cluster.faults.record import FaultRecord, recovery
from stackmark.errors import SpecError
from stackmark.events import Hello, Result, Stream, measured_steps, read_event
from stackmark.experiments.judging import read_stored
from stackmark.experiments.kinds import FAULT, require
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.verdict.interruption import DiskSeen, LogSeen, NewPod, interruption, step_ends
from stackmark.verdict.interruption import FaultFinding as FaultFinding


def examine_fault(ledger: Ledger, experiment_id: str) -> FaultFinding:
    """Compute what a stored fault shows, from the ledger only."""
    experiment = ledger.experiment(experiment_id)
    require(experiment, FAULT)
    try:
        record = FaultRecord.model_validate(experiment.design)
    except ValidationError as error:
        raise SpecError(
            f"the stored record of {experiment.id} cannot be read: was it made by a newer stackmark?"
        ) from error
    rows = ledger.runs_of(experiment.id)
    if not rows:
        raise SpecError(f"{experiment.id} has no run: it ended before the first one started", hint="run it again")
    row = rows[-1]
    return _finding(experiment, record, row, read_stored(ledger.stream(row.id)).stream)


def _finding(experiment: Experiment, record: FaultRecord, row: RunDetail, stream: Stream) -> FaultFinding:
    hello = next((event for event in stream.events if isinstance(event, Hello)), None)
    span = record.span_on_node()
    begin_t = end_t = None
    if span and hello:
        zero = hello.time_unix_s - hello.t
        begin_t, end_t = span[0] - zero, span[1] - zero
    # Steps that only the disk has were made as well.
    saved = [event for line in (record.disk.missing if record.disk else ()) if (event := read_event(line, 0))]
    ends = step_ends([*stream.events, *saved])
    seen = recovery(
        record.states,
        record.span_on_driver() or (experiment.created_unix_s,) * 2,
        row.ended_unix_s or row.started_unix_s,
    )
    over = record.span_on_driver()
    healthy_after = record.healthy_unix_s - over[1] if record.healthy_unix_s is not None and over else None
    return FaultFinding(
        experiment_id=experiment.id,
        run_id=row.id,
        created_unix_s=experiment.created_unix_s,
        command=experiment.command,
        workload=row.workload,
        part=record.part,
        means=record.means,
        node=record.hurt_node if record.part == "api-server" else record.node,
        asked_s=record.asked_s,
        fault_s=span[1] - span[0] if span else None,
        exact=record.done.exact if record.done else False,
        begin_t=begin_t,
        end_t=end_t,
        step_ends_t=tuple(ends),
        interruption=interruption(ends, begin_t, end_t) if begin_t is not None and end_t is not None else None,
        run_status=row.status,
        failure=row.failure_message or row.failure_kind or "",
        final_step=max(len(ends) - 1, 0),
        same_pod=len(seen.pod_uids) <= 1,
        restarts=seen.restarts,
        resource=record.resource,
        devices_before=seen.before,
        devices_lowest=seen.lowest,
        devices_away_s=seen.away_s,
        devices_back_after_s=seen.returned_after_s,
        api_away_s=seen.unreachable_s,
        node_not_ready_s=seen.not_ready_s,
        new_pod=_new_pod(record),
        log=_log(row, stream),
        disk=_disk(record),
        healthy=record.healthy_unix_s is not None,
        healthy_after_s=healthy_after,
        sick=record.sick,
        recover_s=record.recover_s,
        notes=_notes(record),
    )


def _new_pod(record: FaultRecord) -> NewPod | None:
    before, after = record.newcomer_before, record.newcomer_after
    if after is None:
        return None
    span = record.span_on_driver()
    since = after.running_unix_s - span[1] if after.running_unix_s is not None and span else None
    return NewPod(after.gpus, before.seconds if before else None, after.seconds, since, after.why)


def _log(row: RunDetail, stream: Stream) -> LogSeen:
    told = row.handle.get("log")
    log = told if isinstance(told, dict) else {}
    outage, again = log.get("longest_outage_s"), log.get("reconnects")
    return LogSeen(
        events=len(stream.events),
        steps=len(stream.measured_steps()),
        complete=log.get("complete") is True and isinstance(stream.ended(), Result),
        reconnects=int(again) if isinstance(again, int | float) else 0,
        longest_outage_s=float(outage) if isinstance(outage, int | float) else 0.0,
        why=str(log.get("why") or ""),
    )


def _disk(record: FaultRecord) -> DiskSeen | None:
    if record.disk is None:
        return None
    lost = [event for line in record.disk.missing if (event := read_event(line, 0)) is not None]
    return DiskSeen(record.disk.read, record.disk.steps, len(measured_steps(lost)), record.disk.why)


def _notes(record: FaultRecord) -> tuple[str, ...]:
    notes = list(record.notes)
    if record.done and not record.done.exact:
        notes.append("the fault's times could not be read from the node: the planned times are used")
    if record.done and record.done.clock == "node" and record.hurt_node:
        notes.append(f"its start and end are by the clock of {record.hurt_node}, not of the workload's node")
    if record.disk and record.disk.missing_count > len(record.disk.missing):
        notes.append(f"of {record.disk.missing_count} lines found only on disk, {len(record.disk.missing)} are stored")
    return tuple(notes)
