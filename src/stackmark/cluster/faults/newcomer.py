"""How long a new pod takes to start on the node: once before the fault, and once when it is over.

It asks for a device where the node has one that nobody holds. The moment is the one in which the API shows it running, as a
person would see it: the kubelet's own times are whole seconds.
"""

import threading
import time
from contextlib import suppress

from stackmark.cluster.faults.record import Newcomer
from stackmark.errors import ClusterError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Cluster
from stackmark.kubernetes.manifest import build
from stackmark.kubernetes.manifest.request import PodRequest
from stackmark.kubernetes.patience import is_there
from stackmark.kubernetes.pods import LOOK_S, Awaited, Pods
from stackmark.places.pod.setup import PodSetup

ANSWER_S = 3.0
# It sleeps until it is removed, and not for ever.
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
