"""The stored record of a fault: what was done to the cluster and observed. Everything shown is recomputed from it.

Moments are unix seconds of the driver's clock. What was seen on the node (a helper's own times) is brought to that clock by
`offset_s`: the driver's clock less the node's, taken from the promptest of the worker's events, so that it holds the way of a
line through the log too, some hundredths of a second.
"""

import threading
import time
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from stackmark.errors import ClusterError
from stackmark.frozen import Frozen
from stackmark.kubernetes import names
from stackmark.kubernetes import objects as at
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.status import restarts

Part = Literal["device-plugin", "kubelet", "api-server", "runtime", "node-network"]
PARTS: tuple[Part, ...] = ("device-plugin", "kubelet", "api-server", "runtime", "node-network")
# How many lines that are on disk and not in the log are kept with the record.
MISSING_KEPT = 200


class State(Frozen):
    """Node and pod as the API showed them from this moment until the next; unknown while it did not answer."""

    at_unix_s: float
    reachable: bool
    ready: bool | None = None
    allocatable: int | None = None
    pod_uid: str | None = None
    pod_phase: str | None = None
    restarts: int | None = None


class Newcomer(Frozen):
    """A pod that was requested on the node, and when it ran; `why` says why it did not."""

    gpus: int
    asked_unix_s: float
    accepted_unix_s: float | None = None
    running_unix_s: float | None = None
    why: str = ""

    @property
    def seconds(self) -> float | None:
        return None if self.running_unix_s is None else self.running_unix_s - self.asked_unix_s


class FaultTimes(Frozen):
    """The fault's times: from the moment it was applied to the one in which its end was ordered."""

    begun_unix_s: float
    over_unix_s: float
    clock: Literal["driver", "node"] = "driver"
    # When whatever ends it said that it was done, where it says so.
    healed_unix_s: float | None = None
    # Off where the node could not be asked for its times, and they are those that were planned.
    exact: bool = True
    said: tuple[str, ...] = ()


class Disk(Frozen):
    """The worker's copy of its events on the node's disk, compared with what came through the log."""

    read: bool
    why: str = ""
    events: int = 0
    steps: int = 0
    # Lines that never reached the log, as far as they are kept.
    missing: tuple[str, ...] = ()
    missing_count: int = 0


class FaultRecord(Frozen):
    schema_version: Literal[1] = 1
    part: Part
    means: str
    node: str
    # The node that was hurt, where it is another than the workload's.
    hurt_node: str | None = None
    asked_s: float
    before_s: float
    after_s: float
    recover_s: float
    resource: str
    plan: tuple[str, ...] = ()
    done: FaultTimes | None = None
    offset_s: float | None = None
    states: tuple[State, ...] = ()
    newcomer_before: Newcomer | None = None
    newcomer_after: Newcomer | None = None
    disk: Disk | None = None
    healthy_unix_s: float | None = None
    # What is not as it was, where the cluster did not recover in time.
    sick: str = ""
    notes: tuple[str, ...] = Field(default=())

    def span_on_node(self) -> tuple[float, float] | None:
        """Return the fault's beginning and end by the clock of the worker's node."""
        if self.done is None or (self.done.clock == "driver" and self.offset_s is None):
            return None
        shift = 0.0 if self.done.clock == "node" else self.offset_s or 0.0
        return self.done.begun_unix_s - shift, self.done.over_unix_s - shift

    def span_on_driver(self) -> tuple[float, float] | None:
        if self.done is None:
            return None
        shift = 0.0 if self.done.clock == "driver" else self.offset_s or 0.0
        return self.done.begun_unix_s + shift, self.done.over_unix_s + shift


class Recovery(Frozen):
    """The recovery, from the states. `away_s` is None where it never left; `returned_after_s` counts from the fault's end."""

    before: int | None
    lowest: int | None
    away_s: float | None
    returned_after_s: float | None
    unreachable_s: float
    not_ready_s: float
    pod_uids: tuple[str, ...]
    restarts: int


def recovery(states: Sequence[State], span: tuple[float, float], until_unix_s: float) -> Recovery:
    """Compute the recovery. `span` is the fault's, by the driver's clock; the last state lasts until `until_unix_s`."""
    begin, over = span
    lengths = _lengths(states, until_unix_s)
    earlier = [state for state in states if state.at_unix_s <= begin and state.allocatable is not None]
    before = (
        earlier[-1].allocatable if earlier else next((s.allocatable for s in states if s.allocatable is not None), None)
    )
    known = [state.allocatable for state in states if state.at_unix_s >= begin and state.allocatable is not None]
    lowest = min(known, default=before)
    away, returned = None, None
    if before is not None and lowest is not None and lowest < before:
        missing = [
            (state, length) for state, length in lengths if state.allocatable is not None and state.allocatable < before
        ]
        away = sum(length for _, length in missing)
        last = missing[-1][0]
        back = next(
            (
                s.at_unix_s
                for s in states
                if s.at_unix_s > last.at_unix_s and s.allocatable is not None and s.allocatable >= before
            ),
            None,
        )
        returned = max(0.0, back - over) if back is not None else None
    uids = tuple(dict.fromkeys(state.pod_uid for state in states if state.pod_uid))
    return Recovery(
        before=before,
        lowest=lowest,
        away_s=away,
        returned_after_s=returned,
        unreachable_s=sum(length for state, length in lengths if not state.reachable),
        not_ready_s=sum(length for state, length in lengths if state.ready is False),
        pod_uids=uids,
        restarts=max((state.restarts for state in states if state.restarts is not None), default=0),
    )


def _lengths(states: Sequence[State], until_unix_s: float) -> list[tuple[State, float]]:
    ends = [*(state.at_unix_s for state in states[1:]), until_unix_s]
    return [(state, max(0.0, end - state.at_unix_s)) for state, end in zip(states, ends, strict=True)]


# --- Looks at node and pod all the while, and keeps each state from the moment it was first seen


LOOK_S = 0.5
# One that does not answer within this does not answer: the next look comes sooner than a longer wait would end.
ANSWER_S = 2.0


class Looking:
    """A separate observing thread; its errors are states (`reachable` off)."""

    def __init__(self, cluster: Cluster, node: str, resource: str, namespace: str, run_id: str) -> None:
        self._cluster, self._node, self._resource = cluster, node, resource
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._run_id = run_id
        self._over = threading.Event()
        self._states: list[State] = []
        self._thread = threading.Thread(target=self._look_on, name="looking", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(2 * ANSWER_S + 10)

    @property
    def states(self) -> tuple[State, ...]:
        return tuple(self._states)

    def _look_on(self) -> None:
        while not self._over.wait(LOOK_S if self._states else 0.0):
            seen = self.look()
            last = self._states[-1] if self._states else None
            if last is None or seen.model_copy(update={"at_unix_s": last.at_unix_s}) != last:
                self._states.append(seen)

    def look(self) -> State:
        now = time.time()
        try:
            node = Node(self._cluster.get(f"/api/v1/nodes/{self._node}", timeout_s=ANSWER_S))
            selector = f"{names.RUN_LABEL}={self._run_id}"
            pods = self._cluster.get(self._pods, timeout_s=ANSWER_S, labelSelector=selector).get("items") or []
        except ClusterError:
            return State(at_unix_s=now, reachable=False)
        pod: Json = pods[0] if pods else {}
        return State(
            at_unix_s=now,
            reachable=True,
            ready=node.ready,
            allocatable=node.offers(self._resource),
            pod_uid=at.metadata(pod).get("uid"),
            pod_phase=at.status(pod).get("phase"),
            restarts=restarts(pod) if pod else None,
        )
