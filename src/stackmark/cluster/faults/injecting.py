"""Inject a fault during a run: wait for its steady part, stop the part, observe what comes back, and when.

It goes on in a thread of its own, since the run's own thread follows the log; and it goes on to its end when the run dies of
it: healing comes first, and is waited for. How long a new pod takes to start on the node is seen once before the fault and once
when it is over. It asks for a device where the node has one that no pod holds. The moment is the one in which the API shows it
running, as a person would see it: the kubelet's own times are whole seconds.
"""

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field

from stackmark.cluster.faults.means import Means, Target
from stackmark.cluster.faults.record import FaultTimes, Newcomer
from stackmark.errors import ClusterError, StackmarkError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import ApiError, Cluster
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.nodes import Node
from stackmark.kubernetes.patience import is_there
from stackmark.kubernetes.pods import LOOK_S, Awaited, Pods
from stackmark.places.pod.setup import PodSetup

ANSWER_S = 3.0
# How often the cluster is looked at until it is as it was.
LOOK_AGAIN_S = 0.5
# A newcomer sleeps until it is removed, and not for ever.
SLEEP_S = 600.0


def newcomer_request(setup: PodSetup, mark: str, gpus: int) -> PodRequest:
    """Ask for a pod with the worker's image, node and rights, and none of its work: only a place to start."""
    plain = {"cpus": None, "memory": None, "shm": "64m", "queue": None, "patch": None, "rdma": None, "dra": None}
    options = setup.options.model_copy(update=plain)
    command = build.sleeping(setup.python, SLEEP_S)
    return setup.request(mark, "fault", options=options, command=command, gpus=gpus, deadline_s=900)


def start_one(cluster: Cluster, wanted: PodRequest, within_s: float, give_up: threading.Event) -> Newcomer:
    """Ask for the pod until it is accepted, wait until it runs, and remove it."""
    asked, until = time.time(), time.monotonic() + within_s
    pods = Pods(cluster, wanted.namespace, f"{names.RUN_LABEL}={wanted.mark}", patience_s=within_s, answer_s=ANSWER_S)
    accepted: float | None = None
    try:
        accepted = _accepted(pods, wanted, until, give_up)
        one, left_s = Awaited(wanted.mark), max(0.0, until - time.monotonic())
        pods.wait([one], lambda one: one.phase == "running", left_s, stop=give_up.is_set)
        return Newcomer(gpus=wanted.gpus, asked_unix_s=asked, accepted_unix_s=accepted, running_unix_s=time.time())
    except ClusterError as error:
        return Newcomer(gpus=wanted.gpus, asked_unix_s=asked, accepted_unix_s=accepted, why=error.message)
    finally:
        with suppress(ClusterError):  # it ends by itself, and is found by its label
            pods.remove({wanted.mark}, grace_s=0)


def _accepted(pods: Pods, wanted: PodRequest, until: float, give_up: threading.Event) -> float:
    """Create the pod, and return when it was accepted. A cluster that has just come back refuses for many reasons."""
    body = build.pod(wanted)
    while True:
        try:
            pods.cluster.create(pods.path(), body)
        except ClusterError as error:
            if is_there(error):
                return time.time()  # the answer to our own request was lost on the way
            if time.monotonic() > until or give_up.is_set():
                raise
            give_up.wait(LOOK_S)
        else:
            return time.time()


@dataclass
class Injection:
    """A fault in progress. `measuring`: the measured part has started. `ended`: the run has ended. `heal`: all must end."""

    cluster: Cluster
    means: Means
    target: Target
    # Where the workload trains; the target's node may be a control plane.
    node: str
    resource: str
    setup: PodSetup
    # Devices that the worker itself holds.
    worker_gpus: int
    before_s: float
    recover_s: float
    measuring: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    heal: threading.Event = field(default_factory=threading.Event)
    error: StackmarkError | None = None
    done: FaultTimes | None = None
    newcomer: Newcomer | None = None
    healthy_unix_s: float | None = None
    sick: str = ""
    # Devices that the node had before, and those that no pod held, without the worker's own.
    had: int | None = None
    free: int = 0
    begun: bool = False

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._go, name="fault", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        """Wait in small steps, so that signals are handled."""
        while self._thread.is_alive():
            self._thread.join(0.2)

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def _go(self) -> None:
        try:
            if self._steady():
                self.begun = True
                self.done = self.means.hurt(self.target, self.heal)
                if not self.heal.is_set():
                    self._recover()
        except StackmarkError as error:
            self.error = error

    def _steady(self) -> bool:
        """The measured part has gone on for as long as was asked; False where the run ended before."""
        while not self.measuring.wait(0.1):
            if self.ended.is_set() or self.heal.is_set():
                return False
        deadline = time.monotonic() + self.before_s
        while time.monotonic() < deadline:
            if self.ended.is_set() or self.heal.is_set():
                return False
            time.sleep(0.05)
        return True

    def _recover(self) -> None:
        """Healthy is: the API answers, the node is ready with all its devices, and a new pod has started on it."""
        deadline = time.monotonic() + self.recover_s
        gpus = 1 if self.free > 0 else 0
        wanted = newcomer_request(self.setup, f"{self.target.mark}-new", gpus)
        self.newcomer = start_one(self.cluster, wanted, self.recover_s, self.heal)
        while not self.heal.is_set():
            self.sick = self._what_is_wrong()
            if not self.sick:
                self.healthy_unix_s = time.time()
                return
            if time.monotonic() > deadline:
                return
            self.heal.wait(LOOK_AGAIN_S)

    def look_before(self) -> None:
        """Record what the node has before the fault."""
        node = Node(self.cluster.get(f"/api/v1/nodes/{self.node}"))
        self.had = node.offers(self.resource)
        with suppress(ApiError):  # one may not see the others' pods
            pods = self.cluster.items("/api/v1/pods", fieldSelector=f"spec.nodeName={self.node}")
            self.free = node.free(self.resource, pods) - self.worker_gpus

    def _what_is_wrong(self) -> str:
        try:
            node = Node(self.cluster.get(f"/api/v1/nodes/{self.node}", timeout_s=ANSWER_S))
        except ClusterError as error:
            return error.message
        if not node.ready:
            return f"{self.node} is not ready"
        has = node.offers(self.resource)
        if self.had is not None and (has or 0) < self.had:
            return f"{self.node} offers {has or 0} of {self.had} {self.resource}"
        if self.newcomer is not None and self.newcomer.running_unix_s is None:
            return f"a new pod on {self.node} did not start: {self.newcomer.why}"
        return ""
