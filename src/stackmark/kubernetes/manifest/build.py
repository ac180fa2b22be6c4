"""Build the objects created in a cluster: a Job, a Pod or a CronJob with one container, and what it needs: a claim for devices, a
ConfigMap, a Service.

The Job is the unit: `backoffLimit: 0` and a policy that fails it when its pod is disrupted, since a pod that was silently
started again is a corrupted measurement (to ignore disruptions, as services do, would start another one). The deadline stands
on the pod: on the Job it would delete the pod, and its log with it. The finished Job goes after a day, with all that belongs
to it, even where nobody comes back for it.

Accepted by Pod Security `restricted` and by OpenShift's `restricted-v2`, unless the request asks for what they forbid.
"""

import base64
import copy
import math
from dataclasses import replace
from fractions import Fraction

from stackmark.errors import SpecError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.manifest.patch import patched_for
from stackmark.kubernetes.manifest.request import MASTER_PORT, WORK_FOLDER, PodRequest, VolumeMount

# A driver that lost its cluster for a night still finds its pod's log.
TTL_S = 86_400
# An hour's worth of canaries for a day: each finished pod is an object in the cluster and a log on a node.
HISTORY = 24
# A canary that could not be started for so long (a paused controller) is left out: its hour is over.
STARTING_DEADLINE_S = 600
# The worker says its last event within 5 s of being asked to go.
GRACE_S = 10
# The name of the claim in the pod, where GPUs are asked by one (DRA).
CLAIM = "gpus"
# The volume with the files that a pod brings into its image.
FILES = "stackmark"
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
VOLCANO_QUEUE, VOLCANO_TOGETHER = "scheduling.volcano.sh/queue-name", "scheduling.volcano.sh/group-min-member"
# Set on its pods by the Job controller.
JOB_NAME = "batch.kubernetes.io/job-name"
NETWORKS = "k8s.v1.cni.cncf.io/networks"
HOSTNAME = "kubernetes.io/hostname"
# Where a printed manifest looks for variables that were given by name.
SECRET_NAME = "stackmark-env"  # noqa: S105 - a name
# A measurement is not moved to save a node: those who remove nodes ask these two before they evict.
NOT_TO_BE_MOVED = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
# From the pod's own description (downward API). Limits that were not set read as what the node has.
FROM_POD = {
    "STACKMARK_NODE": "spec.nodeName",
    "STACKMARK_POD": "metadata.name",
    "STACKMARK_NAMESPACE": "metadata.namespace",
    "STACKMARK_POD_UID": "metadata.uid",
}
# What of a worker's environment a Python needs to start at all.
PYTHON_NEEDS = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "HOME")
FROM_LIMITS = {
    "STACKMARK_CPU_LIMIT_MILLI": ("limits.cpu", "1m"),
    "STACKMARK_MEMORY_LIMIT_BYTES": ("limits.memory", "1"),
}


def job(request: PodRequest) -> Json:
    return _patched(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(request, queued=True),
            "spec": {**_job_spec(request), "ttlSecondsAfterFinished": TTL_S},
        },
        request,
    )


def anchor(request: PodRequest) -> Json:
    """Make a Job that never starts a pod. It owns what several Jobs share, which goes when it goes."""
    made = job(replace(request, queue=None))
    made["spec"] |= {"suspend": True, "parallelism": 0}
    return made


def owned_by(owner: Json, made: Json) -> Json:
    """Return the object with its owner: the cluster removes it with that one."""
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    return {**made, "metadata": {**made["metadata"], "ownerReferences": [reference]}}


def pod(request: PodRequest) -> Json:
    """Make a pod without a Job around it."""
    template = _template(request)
    metadata = {**_metadata(request, queued=True), "annotations": template["metadata"]["annotations"]}
    return _patched({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}, request)


def cronjob(request: PodRequest, schedule: str, *, history: int = HISTORY) -> Json:
    """Make a CronJob that runs one Job at a time. What bounds the number of finished ones is the history, and no time to live:
    it would delete results that nobody has collected yet."""
    template = {"metadata": {"labels": _labels(request, queued=True)}, "spec": _job_spec(request)}
    return _patched(
        {
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": _metadata(request),
            "spec": {
                "schedule": _schedule(schedule),
                "concurrencyPolicy": "Forbid",
                "startingDeadlineSeconds": STARTING_DEADLINE_S,
                "successfulJobsHistoryLimit": history,
                "failedJobsHistoryLimit": history,
                "jobTemplate": template,
            },
        },
        request,
    )


def _schedule(text: str) -> str:
    """Refuse what a shell made of a schedule without quotes; the rest is the API server's to verify."""
    words = text.split()
    if len(words) != 5 and not (len(words) == 1 and text.strip().startswith("@")):
        raise SpecError(
            f"the schedule {text!r} must have five fields, got {len(words)}",
            hint='write it like "0 * * * *" (minute, hour, day of month, month, day of week), in quotes',
        )
    return " ".join(words)


def claim_template(request: PodRequest) -> Json | None:
    """Make the template of the claim for a pod's devices; None where they are not asked for by a claim."""
    if not request.by_claim:
        return None
    devices: Json = {"deviceClassName": request.device_class, "allocationMode": "ExactCount", "count": request.gpus}
    named: Json = (
        {"name": CLAIM, **devices} if request.claim_version == "v1beta1" else {"name": CLAIM, "exactly": devices}
    )
    return {
        "apiVersion": f"resource.k8s.io/{request.claim_version}",
        "kind": "ResourceClaimTemplate",
        "metadata": _metadata(request),
        "spec": {"metadata": {"labels": _labels(request)}, "spec": {"devices": {"requests": [named]}}},
    }


def config_map(request: PodRequest) -> Json | None:
    """Make the ConfigMap with the files that the pod mounts; None where it mounts none.

    It cannot be changed: a new file under a running worker would be another program.
    """
    if request.files is None:
        return None
    content = {name: base64.b64encode(data).decode() for name, data in request.files.content.items()}
    metadata = {**_metadata(request), "name": request.files.name}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "binaryData": content}


def service(request: PodRequest) -> Json | None:
    """Make the headless Service by which the pods of a group find each other; None for a single pod.

    It names pods that are not ready too: the worker has no readiness probe, and the first pod's name must lead to it while the
    others still wait.
    """
    if request.group is None:
        return None
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(request),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {JOB_NAME: names.object_name(request.mark)},
            "ports": [{"name": "ranks", "port": MASTER_PORT}],
        },
    }


def address_of_first(mark: str) -> str:
    """Return the name of a group's first pod, as the other pods of its namespace know it."""
    name = names.object_name(mark)
    return f"{name}-0.{name}"


def sleeper(container: Json, name: str, python: str | None, seconds: float, resources: Json | None = None) -> Json:
    """Make a container that only waits, with the image, mounts and account of another one and none of its devices."""
    kept = ("image", "imagePullPolicy", "securityContext", "volumeMounts", "workingDir")
    made: Json = {"name": name, **{key: copy.deepcopy(container[key]) for key in kept if key in container}}
    made["command"] = list(sleeping(python, seconds))
    needed = [one for one in container.get("env") or () if one["name"] in PYTHON_NEEDS and "value" in one]
    if needed:
        made["env"] = needed
    if resources:
        # Requests equal limits here too, or the pod would lose its class.
        made["resources"] = {"requests": dict(resources), "limits": dict(resources)}
    return made


def sleeping(python: str | None, seconds: float) -> tuple[str, ...]:
    """Return a command that waits until it is asked to end; as process 1 it would not hear that without a handler.

    By this Python, or (None) by the shell of an image whose Python is not known.
    """
    if python is None:
        return ("sh", "-c", f"trap 'exit 0' INT TERM; sleep {math.ceil(seconds)} & wait $!")
    program = (
        "import signal, sys; [signal.signal(n, lambda *_: sys.exit(0)) for n in (2, 14, 15)]; "
        f"signal.alarm({math.ceil(seconds)}); signal.pause()"
    )
    return (python, "-S", "-c", program)


def printing(python: str | None, path: str) -> tuple[str, ...]:
    """Return a command that prints a file, in a container like that of `sleeping`."""
    program = "import shutil, sys; shutil.copyfileobj(open(sys.argv[1], 'rb'), sys.stdout.buffer)"
    return ("cat", path) if python is None else (python, "-S", "-c", program, path)


def pod_spec(request: PodRequest) -> Json:
    volumes = _volumes(request)
    made: Json = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": request.deadline_s,
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _security_of_pod(request),
        "tolerations": [dict(one) for one in request.tolerations],
        "containers": [_container(request, [mount for _, mount in volumes]), *request.sidecars],
        "volumes": [volume for volume, _ in volumes],
    }
    if request.node_labels:
        made["nodeSelector"] = dict(request.node_labels)
    if request.node:
        made["affinity"] = _pinned(request.node)
    if request.group:
        made["subdomain"] = names.object_name(request.mark)
        made["affinity"] = {**made.get("affinity", {}), **_apart(request.mark)}
    for key, value in (
        ("runtimeClassName", request.runtime_class),
        ("serviceAccountName", request.service_account),
        ("priorityClassName", request.priority_class),
        ("schedulerName", "volcano" if request.volcano else None),
    ):
        if value:
            made[key] = value
    if request.pull_secrets:
        made["imagePullSecrets"] = [{"name": name} for name in request.pull_secrets]
    if request.host_network:
        made |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if request.by_claim:
        template = names.object_name(request.mark)
        made["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template}]
    return made


def cpu_quantity(cpus: Fraction) -> str:
    """Write CPUs as Kubernetes does: `2`, or in thousandths `1500m`."""
    return str(cpus.numerator) if cpus.denominator == 1 else f"{round(cpus * 1000)}m"


def _resources(request: PodRequest) -> Json:
    """Requests equal limits: with CPUs and memory the pod is then of the class Guaranteed."""
    limits: dict[str, str] = {}
    if request.cpus is not None:
        limits["cpu"] = cpu_quantity(request.cpus)
    if request.memory_bytes is not None:
        limits["memory"] = str(request.memory_bytes)
    if request.gpus and not request.device_class:
        limits[request.resource] = str(request.gpus)
    if request.rdma:
        limits[request.rdma[0]] = str(request.rdma[1])
    made: Json = {"requests": dict(limits), "limits": limits} if limits else {}
    if request.by_claim:
        made["claims"] = [{"name": CLAIM}]
    return made


def _container(request: PodRequest, mounts: list[Json]) -> Json:
    made: Json = {
        "name": names.CONTAINER,
        "image": request.image,
        "imagePullPolicy": request.pull,
        # Not the image's entry point: what runs is what is written here.
        "command": [_literal(word) for word in request.command],
        "workingDir": request.folder,
        "env": _variables(request),
        "resources": _resources(request),
        "securityContext": _security(request),
        # Where the log cannot be had, its end stands in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    # Without a command an image runs its entry point, without a folder in its own.
    return {key: value for key, value in made.items() if value not in ({}, [], "")}


def _literal(text: str) -> str:
    """Keep a text as it stands: Kubernetes replaces `$(NAME)` in values and commands, and reads `$$` as `$`."""
    return text.replace("$", "$$")


def _variables(request: PodRequest) -> list[Json]:
    plain: list[Json] = [{"name": name, "value": _literal(value)} for name, value in request.env.items()]
    secret: list[Json] = [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET_NAME, "key": name}}} for name in request.secret_env
    ]
    fields: list[Json] = [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in FROM_POD.items()
    ]
    limits: list[Json] = [
        {
            "name": name,
            "valueFrom": {
                "resourceFieldRef": {"containerName": names.CONTAINER, "resource": resource, "divisor": divisor}
            },
        }
        for name, (resource, divisor) in FROM_LIMITS.items()
    ]
    return [*plain, *secret, *fields, *limits]


def _volumes(request: PodRequest) -> list[VolumeMount]:
    made: list[VolumeMount] = [
        (
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(request.shm_bytes)}},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own
        ),
        ({"name": "tmp", "emptyDir": {}}, {"name": "tmp", "mountPath": WORK_FOLDER}),
        *request.volumes,
    ]
    if request.files is not None:
        made.append(
            (
                {"name": FILES, "configMap": {"name": request.files.name}},
                {"name": FILES, "mountPath": request.files.folder, "readOnly": True},
            )
        )
    taken = {mount["mountPath"] for _, mount in made}
    return made + [pair for pair in request.host_folders if pair[1]["mountPath"] not in taken]


def _security_of_pod(request: PodRequest) -> Json:
    made: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if request.uid != 0:
        made["runAsNonRoot"] = True
    if request.uid is not None:
        made["runAsUser"] = request.uid
    if request.gid is not None:
        made["runAsGroup"] = request.gid
    if request.selinux_type:
        made["seLinuxOptions"] = {"type": request.selinux_type}
    return made


def _security(request: PodRequest) -> Json:
    capabilities: Json = {"drop": ["ALL"]}
    added = [name.upper().removeprefix("CAP_") for name in request.capabilities]
    if request.host_software and request.uid == 0:
        added.append("DAC_OVERRIDE")  # root reads every file on the host, and shall here
    if added:
        capabilities["add"] = list(dict.fromkeys(added))
    made: Json = {"allowPrivilegeEscalation": False, "capabilities": capabilities}
    if request.files is not None:
        # A worker writes to its volumes alone; a command of one's own may write wherever its image lets it.
        made["readOnlyRootFilesystem"] = True
    return made


def _pinned(node: str) -> Json:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _apart(mark: str) -> Json:
    """Keep two pods of a group off one node: ranks that were to communicate over the network would do it through memory."""
    term = {"labelSelector": {"matchLabels": {names.RUN_LABEL: mark}}, "topologyKey": HOSTNAME}
    return {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}


def _job_spec(request: PodRequest) -> Json:
    made: Json = {
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        # A pod that is being ended still holds its devices: none is started next to it.
        "podReplacementPolicy": "Failed",
        "template": _template(request),
    }
    if request.group:
        count = request.group.pods
        # With `backoffLimit: 0` the first pod that fails ends the Job, and the Job controller ends the other pods.
        made |= {"completionMode": "Indexed", "completions": count, "parallelism": count}
    if request.kueue:
        # Kueue lets it go when its turn has come.
        made["suspend"] = True
    return made


def _template(request: PodRequest) -> Json:
    annotations = dict(NOT_TO_BE_MOVED)
    annotations |= _volcano(request)
    if request.networks:
        annotations[NETWORKS] = ",".join(request.networks)
    return {"metadata": {"labels": _labels(request), "annotations": annotations}, "spec": pod_spec(request)}


def _volcano(request: PodRequest) -> dict[str, str]:
    """Annotations for Volcano: the queue, and how many pods start together or not at all."""
    if not request.volcano:
        return {}
    return {VOLCANO_QUEUE: request.volcano, VOLCANO_TOGETHER: str(request.group.pods if request.group else 1)}


def _metadata(request: PodRequest, *, queued: bool = False) -> Json:
    where = {"namespace": request.namespace} if request.namespace else {}
    made = {"name": names.object_name(request.mark), **where, "labels": _labels(request, queued=queued)}
    # Volcano's controller takes the number of pods from the Job.
    return {**made, "annotations": _volcano(request)} if queued and request.volcano else made


def _labels(request: PodRequest, *, queued: bool = False) -> dict[str, str]:
    made = names.labels(request.kind, request.mark)
    if not request.driven:
        del made[names.DRIVER_LABEL]
    if queued and request.kueue:
        made[KUEUE_QUEUE] = request.kueue
    return made


def _patched(made: Json, request: PodRequest) -> Json:
    return made if request.patch is None else patched_for(copy.deepcopy(made), request.patch)
