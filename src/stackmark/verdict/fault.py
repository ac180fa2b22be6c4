"""What a fault did, as data: to the training loop, to its pod, to its log, and to the cluster. Computed from what was stored."""

from dataclasses import dataclass

from stackmark.verdict.interruption import Interruption


@dataclass(frozen=True)
class LogSeen:
    """The run's events as they came through the pod's log; none can come twice, and a gap would end the reading."""

    events: int
    steps: int
    complete: bool
    reconnects: int
    longest_outage_s: float
    why: str = ""


@dataclass(frozen=True)
class DiskSeen:
    """The worker's own copy on the node's disk."""

    read: bool
    steps: int
    not_in_log: int
    why: str = ""


@dataclass(frozen=True)
class NewPod:
    """Seconds from the wish to the running container, before the fault and after; None where it never ran."""

    gpus: int
    before_s: float | None
    after_s: float | None
    # From the fault's end: the wish comes when whatever ends the fault says that it is done.
    since_end_s: float | None
    why: str = ""


@dataclass(frozen=True)
class FaultFinding:
    """Times in seconds; what counts from the fault's end is named so. None: it was not measured, or did not happen."""

    experiment_id: str
    run_id: str
    created_unix_s: float
    command: str
    workload: str
    part: str
    means: str
    # None where the part is on no node.
    node: str | None
    asked_s: float
    fault_s: float | None
    exact: bool
    # The fault on the worker's clock, and the ends of all its measured steps: what the picture is drawn from.
    begin_t: float | None
    end_t: float | None
    step_ends_t: tuple[float, ...]
    interruption: Interruption | None
    run_status: str
    failure: str
    final_step: int
    same_pod: bool
    restarts: int
    resource: str
    devices_before: int | None
    devices_lowest: int | None
    devices_away_s: float | None
    devices_back_after_s: float | None
    api_away_s: float
    node_not_ready_s: float
    new_pod: NewPod | None
    log: LogSeen
    disk: DiskSeen | None
    healthy: bool
    healthy_after_s: float | None
    sick: str
    recover_s: float
    notes: tuple[str, ...] = ()
