"""The worker's heartbeat on the node's disk: a copy of its events that needs no log, no kubelet and no API server.

The worker writes each event to a file in a folder of the pod before it goes to standard output. A second container of the pod
keeps that folder open for reading when the worker has ended, however it ended. Where the pod itself is gone, so is its folder.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from stackmark.cluster.faults.record import MISSING_KEPT, Disk
from stackmark.errors import ClusterError, StreamError
from stackmark.events import Event, Steps, read_event
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.manifest.build import pod_spec, sleeper
from stackmark.kubernetes.manifest.request import PodRequest, VolumeMount
from stackmark.places.pod.place import PodPlace
from stackmark.places.pod.setup import PodSetup
from stackmark.spec import COPY_VARIABLE, Task

CONTAINER = "keeper"
FOLDER = "/stackmark-heartbeat"
FILE = f"{FOLDER}/events.jsonl"
VOLUME = "heartbeat"
# Longer than any run that is hurt: the pod's own deadline comes first.
WAIT_S = 1e6
PRINT = "import shutil,sys; shutil.copyfileobj(open(sys.argv[1],'rb'), sys.stdout.buffer)"
READ_S, PAUSE_S = 60.0, 1.0


class KeptPod(PodPlace):
    """A pod whose worker keeps its heartbeat on disk as well."""

    def request(self, setup: PodSetup, task: Task, mark: str, time_limit_s: float | None = None) -> PodRequest:
        request = super().request(setup, task, mark, time_limit_s)
        return with_keeper(request, setup.python) if task.do == "run" else request


def with_keeper(request: PodRequest, python: str) -> PodRequest:
    volume: VolumeMount = ({"name": VOLUME, "emptyDir": {}}, {"name": VOLUME, "mountPath": FOLDER})
    kept = replace(request, volumes=(*request.volumes, volume), env={**request.env, COPY_VARIABLE: FILE})
    worker: Json = pod_spec(kept)["containers"][0]
    keeper = sleeper(worker, CONTAINER, python, WAIT_S, {"cpu": "100m", "memory": "64Mi"})
    return replace(kept, sidecars=(*kept.sidecars, keeper))


def read_disk(cluster: Cluster, namespace: str, pod: str, python: str, received: Sequence[Event]) -> Disk:
    """The file of a worker that has ended, held against what was received of it."""
    deadline, why = time.monotonic() + READ_S, ""
    while time.monotonic() < deadline:
        try:
            done = cluster.execute(
                namespace, pod, [python, "-S", "-c", PRINT, FILE], container=CONTAINER, timeout_s=READ_S
            )
        except ClusterError as error:
            why = error.message
        else:
            if done.code == 0:
                return compared(done.out.splitlines(), received)
            why = (done.err or done.out).strip()[-300:] or f"it ended with code {done.code}"
        time.sleep(PAUSE_S)
    return Disk(read=False, why=why)


def compared(lines: Sequence[str], received: Sequence[Event]) -> Disk:
    """A last line that is cut off is no event: its writer was killed in the middle of it."""
    known = {event.seq for event in received}
    events, missing = [], []
    for number, line in enumerate(lines, 1):
        try:
            event = read_event(line, number)
        except StreamError:
            continue
        if event is None:
            continue
        events.append(event)
        if event.seq not in known:
            missing.append(line)
    steps = sum(len(event.step_s) for event in events if isinstance(event, Steps) and event.phase == "measure")
    return Disk(
        read=True, events=len(events), steps=steps, missing=tuple(missing[:MISSING_KEPT]), missing_count=len(missing)
    )
