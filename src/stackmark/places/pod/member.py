"""One pod of a run: how it is found and read, and what is told of it.

A run has one pod, or several (`--ranks-per-node`): then each has its share of the ranks, its own log, and its own end. Which of
several ends is the cause of a failed run is decided here too: when one pod fails, the others follow within seconds, each with a
complaint of its own.
"""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from stackmark import events
from stackmark.errors import ClusterError, StreamError
from stackmark.failures import PlaceFailure
from stackmark.kubernetes import objects as at
from stackmark.kubernetes import status
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.events import events_of
from stackmark.kubernetes.log.follow import LogEnd
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.nodes import Node, find_node
from stackmark.kubernetes.pods import Awaited
from stackmark.places.place import Handle
from stackmark.spec import Task

_FAILED = f'{events.EVENT_PREFIX}"failed"'
# Ends of a pod that follow when the Job controller removes the rest of a failed group.
_FOLLOWS = ("deleted", "killed")


@dataclass
class Member:
    """One pod of a run."""

    one: Awaited
    closing: Closing
    # The numbers of its ranks, of how many; of a pod that has them all nobody is told.
    ranks: range
    size: int
    last_line: str = ""
    # Whether a rank of it reported why the run fails, and not only that another one is gone.
    knows_cause: bool = False
    # Whether a rank of it reported that another one is gone: then it is not the first.
    lost_another: bool = False
    log: LogEnd | None = None
    # When it was seen to have failed, by the monotonic clock.
    failed_at: float | None = None
    node: Node | None = field(default=None, repr=False)

    @property
    def is_whole(self) -> bool:
        return len(self.ranks) == self.size

    @property
    def name(self) -> str:
        return at.name(self.one.pod) if self.one.pod else ""

    @property
    def node_name(self) -> str:
        return str(at.spec(self.one.pod).get("nodeName") or "") if self.one.pod else ""

    @property
    def says(self) -> str:
        """Name its ranks: `rank 1 of 2`, `ranks 2 and 3 of 4`, `ranks 8 to 15 of 16`."""
        first, last = self.ranks[0], self.ranks[-1]
        if first == last:
            return f"rank {first} of {self.size}"
        return f"ranks {first} {'and' if last == first + 1 else 'to'} {last} of {self.size}"

    @property
    def place(self) -> str:
        """Name the pod and its node."""
        return f"pod {self.name or self.one.index}" + (f" on {self.node_name}" if self.node_name else "")

    @property
    def has_ended(self) -> bool:
        return self.one.phase in ("ended", "gone")

    def take(self, text: str) -> None:
        """Note what a line of its log tells."""
        self.last_line = text
        self.closing.line(text)
        if text.startswith(_FAILED):
            with suppress(StreamError):  # whoever reads the stream finds it too, and says so
                event = events.read_event(text, 0)
                assert isinstance(event, events.Failed)
                self.knows_cause = self.knows_cause or events.is_cause(event)
                self.lost_another = self.lost_another or event.kind == "lost_rank"

    def note_end(self) -> None:
        """Note when it failed."""
        if self.failed_at is None and self.has_ended and (self.one.gone or status.exit_code(self.one.pod or {}) != 0):
            self.failed_at = time.monotonic()

    def find_node(self, cluster: Cluster) -> None:
        with suppress(ClusterError):
            self.node = find_node(cluster, self.node_name) if self.node_name else None

    def placed(self) -> Handle:
        """Return what is known of it once it has its node."""
        meta = at.metadata(self.one.pod or {})
        node = self.node
        return {
            "pod": meta.get("name"),
            "pod_uid": meta.get("uid"),
            "node": self.node_name or None,
            "node_boot_id": node.boot_id if node else None,
            "node_machine_id": node.machine_id if node else None,
            "container_runtime": node.runtime if node else None,
        }

    def ended(self, cluster: Cluster, job: Json, cut: PlaceFailure | None) -> Handle:
        """Return what is known of its end. `cut` says that the end of its log is missing."""
        pod, log = self.one.pod or {}, self.log
        times = status.timeline(pod, events_of(cluster, pod), job)
        return {
            "log": {
                "complete": log is not None and log.complete and cut is None,
                "reconnects": log.reconnects if log else 0,
                "longest_outage_s": round(log.longest_outage_s, 3) if log else 0.0,
                "why": "; ".join(filter(None, (log.why if log else "", cut.message if cut else ""))),
            },
            "image_id": status.image_id(pod),
            "queue_s": times.queue_s,
            "pull_s": times.pull_s,
            "start_s": times.start_s,
            "run_s": times.run_s,
            "restarts": status.restarts(pod),
        }


def members_of(request: PodRequest, task: Task) -> list[Member]:
    """Return the pods that a run will have."""
    group = request.group
    asked = task.spec or task.request
    if group is None:
        size = asked.ranks if asked else 1
        return [Member(Awaited(request.mark, by_job=True), Closing(task), range(size), size)]
    each, size = group.ranks_each, group.pods * group.ranks_each
    return [
        Member(
            Awaited(request.mark, index=number, by_job=True),
            Closing(task, each),
            range(number * each, (number + 1) * each),
            size,
        )
        for number in range(group.pods)
    ]


def cause_among(found: Sequence[tuple[Member, PlaceFailure]], members: Iterable[Member]) -> PlaceFailure | None:
    """Return of the ends of a group's pods the one that the others followed, with its pod, node and ranks.

    None where a rank has reported the cause itself: its event says more.
    """
    if any(member.knows_cause for member in members):
        return None
    own = [pair for pair in found if not _followed(*pair)] or list(found)
    if not own:
        return None
    # Two are often seen to have ended in the same look.
    member, failure = min(own, key=lambda pair: (pair[0].lost_another, pair[0].failed_at or float("inf")))
    return located(member, failure)


def located(member: Member, failure: PlaceFailure) -> PlaceFailure:
    """Return a failure that names the ranks, the pod and its node."""
    return replace(failure, message=f"{member.says}, {member.place}: {failure.message}")


def _followed(member: Member, failure: PlaceFailure) -> bool:
    removed = member.one.gone or bool(at.metadata(member.one.pod or {}).get("deletionTimestamp"))
    return failure.kind in _FOLLOWS and removed


def lost_node(member: Member, cluster: Cluster) -> PlaceFailure | None:
    """Return the failure of a pod that has not ended and whose node does not answer the cluster; None where it does."""
    if member.has_ended or not member.node_name:
        return None
    member.find_node(cluster)
    node = member.node
    if node is None or not node.known or node.ready:
        return None
    ready = next((one for one in node.conditions if one.get("type") == "Ready"), {})
    said = at.words(ready.get("message")) or "it is not ready"
    return PlaceFailure(
        "node_lost",
        f"the node {node.name} does not answer: {said}",
        f"see its state: kubectl describe node {node.name}",
    )
