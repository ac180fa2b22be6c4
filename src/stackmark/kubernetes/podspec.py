"""The pod itself: where it may run, what it gets, what it may do, and the one container that the worker is in."""

import os
from fractions import Fraction

from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.host_folders import host_folders, selinux_type
from stackmark.kubernetes.options import GPU_RESOURCE
from stackmark.kubernetes.pod_environment import literal, variables
from stackmark.kubernetes.wanted import CLAIM, Wanted
from stackmark.places.container.launch import HOME
from stackmark.units import GIB

# The number that `stackmark image` gives its images too. Kubernetes wants to see one that is not 0; which, is all the same.
USER_ID = 1001
# Half of the memory, as Linux gives a host's /dev/shm; without a limit of memory so much, none of which is taken before use.
SHM_BYTES = 8 * GIB
# The worker says its last event within 5 s of being asked to go.
GRACE_S = 10
WORKER = ("-P", "-m", "stackmark.worker")


def pod_spec(wanted: Wanted) -> Json:
    options = wanted.options
    folders, folder = host_folders(wanted) if wanted.software else ([], HOME)
    volumes = _volumes(wanted, folders)
    made: Json = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": options.deadline_s or wanted.deadline_s,
        "terminationGracePeriodSeconds": GRACE_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _security_of_pod(wanted),
        "tolerations": _tolerations(wanted),
        "containers": [_container(wanted, folder, [mount for _, mount in volumes]), *wanted.sidecars],
        "volumes": [volume for volume, _ in volumes],
    }
    if options.labels_of_node:
        made["nodeSelector"] = options.labels_of_node
    if node := wanted.node or options.node:
        made["affinity"] = _pinned(node)
    for key, value in (
        ("runtimeClassName", options.runtime_class),
        ("serviceAccountName", options.service_account),
        ("priorityClassName", options.priority_class),
    ):
        if value:
            made[key] = value
    if options.pull_secret:
        made["imagePullSecrets"] = [{"name": name} for name in options.pull_secret]
    if options.host_network:
        made |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if _by_claim(wanted):
        template = names.object_name(wanted.mark)
        made["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": template}]
    return made


def user_of(wanted: Wanted) -> tuple[int | None, int | None]:
    """UID and GID; None where it is not for us to say."""
    if wanted.options.user is not None:
        return wanted.options.uid_gid
    if wanted.software is not None:
        return os.getuid(), os.getgid()  # the host's files may be read by their owner only
    return (None, None) if wanted.options.openshift else (USER_ID, None)


def cpu_quantity(cpus: Fraction) -> str:
    """`2`, or in thousandths: `1500m`."""
    return str(cpus.numerator) if cpus.denominator == 1 else f"{round(cpus * 1000)}m"


def shm_bytes(wanted: Wanted) -> int:
    options = wanted.options
    if options.shm_bytes is not None:
        return options.shm_bytes
    return options.memory_bytes // 2 if options.memory_bytes else SHM_BYTES


def resources(wanted: Wanted) -> Json:
    """Requests equal limits: with CPUs and memory the pod is then of the class Guaranteed."""
    options = wanted.options
    limits: dict[str, str] = {}
    if options.cpu_count is not None:
        limits["cpu"] = cpu_quantity(options.cpu_count)
    if options.memory_bytes is not None:
        limits["memory"] = str(options.memory_bytes)
    if wanted.gpus and not options.dra:
        limits[options.resource] = str(wanted.gpus)
    if options.rdma_request:
        limits[options.rdma_request[0]] = str(options.rdma_request[1])
    made: Json = {"requests": dict(limits), "limits": limits} if limits else {}
    if _by_claim(wanted):
        made["claims"] = [{"name": CLAIM}]
    return made


def _container(wanted: Wanted, folder: str, mounts: list[Json]) -> Json:
    python = wanted.software.python if wanted.software else "python3"
    made: Json = {
        "name": names.CONTAINER,
        "image": wanted.image,
        "imagePullPolicy": wanted.options.pull,
        # No shell, and not the image's entry point: what runs is what is written here.
        "command": [literal(word) for word in wanted.command or (python, *WORKER)],
        "workingDir": folder,
        "env": variables(wanted),
        "resources": resources(wanted),
        "securityContext": _security(wanted),
        # Where the log cannot be had, its end stands in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    return {key: value for key, value in made.items() if value != {}}


def _volumes(wanted: Wanted, folders: list[tuple[Json, Json]]) -> list[tuple[Json, Json]]:
    made: list[tuple[Json, Json]] = [
        (
            {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(shm_bytes(wanted))}},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the pod's own
        ),
        ({"name": "tmp", "emptyDir": {}}, {"name": "tmp", "mountPath": HOME}),
        *wanted.volumes,
    ]
    taken = {mount["mountPath"] for _, mount in made}
    return made + [pair for pair in folders if pair[1]["mountPath"] not in taken]


def _security_of_pod(wanted: Wanted) -> Json:
    uid, gid = user_of(wanted)
    made: Json = {"seccompProfile": {"type": "RuntimeDefault"}}
    if uid != 0:
        made["runAsNonRoot"] = True
    if uid is not None:
        made["runAsUser"] = uid
    if gid is not None:
        made["runAsGroup"] = gid
    if wanted.software is not None and (kind := selinux_type()):
        made["seLinuxOptions"] = {"type": kind}
    return made


def _security(wanted: Wanted) -> Json:
    capabilities: Json = {"drop": ["ALL"]}
    added = [name.upper().removeprefix("CAP_") for name in wanted.options.cap]
    if wanted.software is not None and user_of(wanted)[0] == 0:
        added.append("DAC_OVERRIDE")  # root reads every file on the host, and shall here
    if added:
        capabilities["add"] = list(dict.fromkeys(added))
    return {"allowPrivilegeEscalation": False, "capabilities": capabilities}


def _tolerations(wanted: Wanted) -> list[Json]:
    """The taint that NVIDIA's own manifests tolerate, the same for another vendor's resource, and what was typed."""
    names_of_taints = dict.fromkeys((GPU_RESOURCE, wanted.options.resource)) if wanted.gpus else {GPU_RESOURCE: None}
    usual: list[Json] = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in names_of_taints]
    return usual + [dict(one) for one in wanted.options.tolerations if one not in usual]


def _pinned(node: str) -> Json:
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}}


def _by_claim(wanted: Wanted) -> bool:
    return bool(wanted.options.dra and wanted.gpus)
