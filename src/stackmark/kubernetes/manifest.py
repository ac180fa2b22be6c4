"""What is created in a cluster, as plain data: a Job, a Pod or a CronJob with one container, and a claim for devices.

The Job is the unit: `backoffLimit: 0` and a policy that fails it when its pod is disrupted, since a pod that was silently
started again is a corrupted measurement (to ignore disruptions, as services do, would start another one). The deadline stands
on the pod: on the Job it would delete the pod, and its log with it. The finished Job goes after a day, with all that belongs
to it, even where nobody comes back for it.

Accepted by Pod Security `restricted` and by OpenShift's `restricted-v2`, unless an option asks for what they forbid: podspec.py
has the pod itself, pod_environment.py its variables, host_folders.py what the host's own software needs.
"""

import copy

from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.options import PodOptions
from stackmark.kubernetes.patch import patched_for, read_patch
from stackmark.kubernetes.podspec import pod_spec, user_of
from stackmark.kubernetes.schedule import read_schedule
from stackmark.kubernetes.wanted import CLAIM
from stackmark.kubernetes.wanted import Wanted as Wanted
from stackmark.places.container.launch import PATH_PARAMETERS
from stackmark.spec import AUTO, Task

# A driver that lost its cluster for a night still finds its pod's log.
TTL_S = 86_400
# An hour's worth of canaries for a day: each finished pod is an object in the cluster and a log on a node.
HISTORY = 24
# A canary that could not be started for so long (a paused controller) is left out: its hour is over.
STARTING_DEADLINE_S = 600
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
# A measurement is not moved to save a node: those who remove nodes ask these two before they evict.
NOT_TO_BE_MOVED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}


def job(wanted: Wanted) -> Json:
    return _patched(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(wanted, queued=True),
            "spec": {**_job_spec(wanted), "ttlSecondsAfterFinished": TTL_S},
        },
        wanted,
    )


def pod(wanted: Wanted) -> Json:
    """Without a Job around it, for those who want to see it live."""
    template = _template(wanted)
    metadata = {**_metadata(wanted, queued=True), "annotations": template["metadata"]["annotations"]}
    return _patched({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, wanted)


def cronjob(wanted: Wanted, schedule: str, *, history: int = HISTORY) -> Json:
    """One at a time. What bounds the number of finished ones is the history, and no time to live: it would delete results
    that nobody has collected yet."""
    template = {"metadata": {"labels": _labels(wanted, queued=True)}, "spec": _job_spec(wanted)}
    return _patched(
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": _metadata(wanted),
            "spec": {
                "schedule": read_schedule(schedule),
                "concurrencyPolicy": "Forbid",
                "startingDeadlineSeconds": STARTING_DEADLINE_S,
                "successfulJobsHistoryLimit": history,
                "failedJobsHistoryLimit": history,
                "jobTemplate": template,
            },
        },
        wanted,
    )


def claim_template(wanted: Wanted) -> Json | None:
    """The template of the claim that each pod makes for its devices, where they are asked by one; it is created first."""
    if not wanted.options.dra or not wanted.gpus:
        return None
    request: Json = {"deviceClassName": wanted.options.dra, "allocationMode": "ExactCount", "count": wanted.gpus}
    named: Json = (
        {"name": CLAIM, **request} if wanted.claim_version == "v1beta1" else {"name": CLAIM, "exactly": request}
    )
    return {
        "apiVersion": f"resource.k8s.io/{wanted.claim_version}",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(wanted),
        "spec": {"metadata": {"labels": _labels(wanted)}, "spec": {"devices": {"requests": [named]}}},
    }


def gpus_of(options: PodOptions, task: Task | None) -> int:
    """How many GPUs: as typed; else one for each rank, unless the workload was told to run on the CPU."""
    if options.gpu_count is not None:
        return options.gpu_count
    asked = (task.spec or task.request) if task else None
    return 0 if asked is None or str(asked.params.get("device", AUTO)) == "cpu" else asked.ranks


def forbidden_by_restricted(wanted: Wanted) -> list[str]:
    """What Pod Security `restricted`, and OpenShift's `restricted-v2`, will refuse, a sentence each."""
    said = []
    if wanted.software is not None:
        said.append("the host's own software is mounted from the node (hostPath), which `restricted` forbids")
    if wanted.options.host_network:
        said.append("the node's network (hostNetwork) is forbidden by `restricted`")
    added = [name.upper() for name in wanted.options.cap if name.upper() != "NET_BIND_SERVICE"]
    if added:
        said.append(f"more capabilities than `restricted` allows: {', '.join(added)}")
    if user_of(wanted)[0] == 0:
        said.append("it runs as root (UID 0), which `restricted` forbids")
    return said


def remarks(wanted: Wanted) -> list[str]:
    """What a person should know of what they asked for, a sentence each."""
    options, said = wanted.options, forbidden_by_restricted(wanted)
    cpus = options.cpu_count
    if cpus is not None and cpus.denominator != 1:
        said.append(
            f"{options.cpus} CPUs are no whole number: the pod is guaranteed its time, and gets no CPUs of its own from a "
            "static CPU manager"
        )
    if (cpus is None) != (options.memory_bytes is None):
        missing = "memory" if options.memory_bytes is None else "cpus"
        said.append(f"without {missing} the pod is not of the class Guaranteed: it may be evicted first, or throttled")
    asked = (wanted.task.spec or wanted.task.request) if wanted.task else None
    params = asked.params if asked and wanted.software is None else {}
    for name in PATH_PARAMETERS:
        if isinstance(value := params.get(name), str) and "/" in value:
            said.append(f"{name}: {value} is a path in the pod, where a volume has to be mounted: --patch FILE")
    shm, memory = options.shm_bytes, options.memory_bytes
    if shm and memory and shm >= memory:
        said.append(f"shared memory of {options.shm} counts as memory, of which the pod has {options.memory}")
    return said


def _job_spec(wanted: Wanted) -> Json:
    made: Json = {
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        # A pod that is being ended still holds its devices: none is started beside it.
        "podReplacementPolicy": "Failed",
        "template": _template(wanted),
    }
    if wanted.options.queue:
        # Kueue lets it go when its turn has come.
        made["suspend"] = True
    return made


def _template(wanted: Wanted) -> Json:
    annotations = dict(NOT_TO_BE_MOVED)
    if wanted.options.network_attachment:
        annotations[NETWORKS] = ",".join(wanted.options.network_attachment)
    return {"metadata": {"labels": _labels(wanted), "annotations": annotations}, "spec": pod_spec(wanted)}


def _metadata(wanted: Wanted, *, queued: bool = False) -> Json:
    where = {"namespace": wanted.namespace} if wanted.namespace else {}
    return {"name": names.object_name(wanted.mark), **where, "labels": _labels(wanted, queued=queued)}


def _labels(wanted: Wanted, *, queued: bool = False) -> dict[str, str]:
    made = names.labels(wanted.kind, wanted.mark)
    if not wanted.driven:
        del made[names.DRIVER_LABEL]
    if queued and wanted.options.queue:
        made[KUEUE_QUEUE] = wanted.options.queue
    return made


def _patched(made: Json, wanted: Wanted) -> Json:
    if wanted.options.patch is None:
        return made
    return patched_for(copy.deepcopy(made), read_patch(wanted.options.patch))
