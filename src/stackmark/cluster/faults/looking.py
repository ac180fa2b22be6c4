"""Looks at node and pod all the while, and keeps each state from the moment it was first seen."""

import threading
import time

from stackmark.cluster.faults.record import State
from stackmark.errors import ClusterError
from stackmark.kubernetes import names
from stackmark.kubernetes import objects as at
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.status import restarts

LOOK_S = 0.5
# One that does not answer within this does not answer: the next look comes sooner than a longer wait would end.
ANSWER_S = 2.0


class Looking:
    """A thread of its own; its errors are states (`reachable` off)."""

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
