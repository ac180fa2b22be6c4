"""Read a pod's status: its phase, when what happened, and how its container ended.

All are functions of what was listed; nothing is asked here. The API's times are whole seconds, so a part that took
less than one may come out as 0 or 1; only the image's pull is told finer, in the words of an event. How a pod failed and why it
waits is in why.py.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stackmark.kubernetes.client import Json
from stackmark.kubernetes.events import pull_of, pulls_now
from stackmark.kubernetes.names import CONTAINER
from stackmark.kubernetes.objects import condition, container_status, has_ended, metadata, spec, state, status, unix_s

Phase = Literal["queued", "pending", "pulling", "creating", "running", "ended", "gone"]
# A pod that was to be gone so long ago is on a node that does not answer.
OVERDUE_S = 60.0
_PULL_TROUBLE = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable")


@dataclass(frozen=True)
class Timeline:
    """Moments in unix seconds, and the seconds between them; None where it has not happened, or is unknown."""

    created: float | None = None
    scheduled: float | None = None
    pulled: float | None = None
    started: float | None = None
    ended: float | None = None
    # Suspended in a queue, or without a node.
    queue_s: float | None = None
    # 0 where the image was there.
    pull_s: float | None = None
    # From its node to its start, less the pull: sandbox, volumes, network, container.
    start_s: float | None = None
    run_s: float | None = None
    # From the creation to the container's end.
    pod_s: float | None = None


def timeline(pod: Json, events: Sequence[Json], job: Json | None = None, container: str = CONTAINER) -> Timeline:
    """Read a pod's times. They count from the Job's creation where it is given: one that a queue holds has no pod yet."""
    created = unix_s(metadata(job or {}).get("creationTimestamp")) or unix_s(metadata(pod).get("creationTimestamp"))
    placed = condition(pod, "PodScheduled")
    scheduled = unix_s(placed.get("lastTransitionTime")) if placed.get("status") == "True" else None
    ended = state(pod, "terminated", container)
    # A container that could not be started says that it did in 1970.
    started = unix_s(ended.get("startedAt") or state(pod, "running", container).get("startedAt")) or None
    finished = unix_s(ended.get("finishedAt")) if started is not None else None
    pulled, pull_s = pull_of(events, container)
    return Timeline(
        created=created,
        scheduled=scheduled,
        pulled=pulled,
        started=started,
        ended=finished,
        queue_s=_between(created, scheduled),
        pull_s=pull_s,
        start_s=_between(scheduled, started, pull_s or 0.0),
        run_s=_between(started, finished),
        pod_s=_between(created, finished),
    )


def phase_of(pod: Json | None, container: str = CONTAINER, events: Sequence[Json] = ()) -> Phase:
    """Return the phase of a pod. `gone`: it does not exist, or its node is lost. Its events show whether it is pulling."""
    if pod is None or status(pod).get("phase") == "Unknown" or _overdue(pod):
        return "gone"
    if has_ended(pod) or state(pod, "terminated", container):
        return "ended"
    if state(pod, "running", container):
        return "running"
    if spec(pod).get("schedulingGates"):
        return "queued"
    if not spec(pod).get("nodeName"):
        return "pending"
    reason = state(pod, "waiting", container).get("reason")
    return "pulling" if reason in _PULL_TROUBLE or pulls_now(events, container) else "creating"


def has_begun(pod: Json, container: str = CONTAINER) -> bool:
    """Return whether the container ever ran, so that it may have a log."""
    ended, known = state(pod, "terminated", container), container_status(pod, container)
    ran = bool(ended) and unix_s(ended.get("startedAt")) != 0
    return bool(ran or state(pod, "running", container) or known.get("lastState"))


def exit_code(pod: Json, container: str = CONTAINER) -> int | None:
    code = state(pod, "terminated", container).get("exitCode")
    return code if isinstance(code, int) else None


def image_id(pod: Json, container: str = CONTAINER) -> str | None:
    """Return the image that really ran, with its digest."""
    return container_status(pod, container).get("imageID") or None


def restarts(pod: Json, container: str = CONTAINER) -> int:
    return int(container_status(pod, container).get("restartCount") or 0)


def _overdue(pod: Json) -> bool:
    """Its node was to end it long ago, and has not said that it did."""
    deadline = unix_s(metadata(pod).get("deletionTimestamp"))
    return deadline is not None and time.time() > deadline + OVERDUE_S and status(pod).get("phase") == "Running"


def _between(begin: float | None, end: float | None, less: float = 0.0) -> float | None:
    """Whole seconds of different clocks may be in the wrong order: then it took no time."""
    return None if begin is None or end is None else round(max(0.0, end - begin - less), 3)
