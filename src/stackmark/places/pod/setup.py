"""Prepare before the first run: find the cluster, verify the rights in it, and decide what its pods are made of.

Everything that can be known beforehand is said beforehand, in a sentence: a right that is missing is named at once, and not
after a Job that nobody can read.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stackmark.errors import ClusterError, PlaceError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import ApiError, Cluster, Unreachable, connect
from stackmark.kubernetes.manifest.request import PodGroup, PodRequest
from stackmark.kubernetes.nodes import is_missing, smallest_image, this_node
from stackmark.kubernetes.queues import QueueKind, queue_kind
from stackmark.kubernetes.rights import CLAIM_RIGHT, HELD_JOB_RIGHT, RUN_RIGHTS, WORKER_RIGHTS, check_rights
from stackmark.places.container.software import HostSoftware, host_software
from stackmark.places.mounts import Mount, cluster_sources, require_sources
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import pod_request
from stackmark.spec import Task
from stackmark.workloads.command.definition import CommandParams


@dataclass(frozen=True)
class PodSetup:
    """The settings of all pods of a place, found once."""

    cluster: Cluster
    namespace: str
    image: str
    software: HostSoftware | None
    # Where the pod must run; the host's own software is only there.
    node: str | None
    # As they were typed, and with what the cluster itself decides.
    options: PodOptions
    claim_version: str = "v1"
    queue_kind: QueueKind = "kueue"

    @property
    def python(self) -> str | None:
        """Return the Python that pods have; None where each image is searched for one."""
        return self.software.python if self.software else self.options.python

    def request(
        self,
        mark: str,
        kind: names.Kind,
        *,
        task: Task | None = None,
        command: tuple[str, ...] = (),
        options: PodOptions | None = None,
        node: str | None = None,
        gpus: int = 0,
        cache: str | None = None,
        deadline_s: int = 3600,
        variables: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
        worker_map: str | None = None,
        program: CommandParams | None = None,
        table: Mapping[str, object] | None = None,
        group: PodGroup | None = None,
    ) -> PodRequest:
        """Make the request for a pod in this cluster; `options` where they differ from the place's own."""
        return pod_request(
            options or self.options,
            mark=mark,
            kind=kind,
            namespace=self.namespace,
            image=self.image,
            task=task,
            command=command,
            node=node or self.node,
            gpus=gpus,
            software=self.software,
            cache=cache if self.software else None,
            deadline_s=deadline_s,
            variables=variables,
            environment=environment,
            claim_version=self.claim_version,
            about={"kubernetes_version": self.cluster.version},
            worker_map=worker_map,
            program=program,
            table=table,
            group=group,
            queue_kind=self.queue_kind,
        )


def find_setup(options: PodOptions, environment: Mapping[str, str]) -> PodSetup:
    """Find the cluster, check the rights in it, and decide what pods are made of."""
    setup = _find_setup(options, environment)
    return replace(setup, queue_kind=queue_kind(setup.cluster)) if options.queue else setup


def _find_setup(options: PodOptions, environment: Mapping[str, str]) -> PodSetup:
    cluster = connect(options.context, options.kubeconfig, options.namespace)
    _check_namespace(cluster)
    needed = [right for right in RUN_RIGHTS if options.has_own_files or right not in WORKER_RIGHTS]
    check_rights(cluster, [*needed, HELD_JOB_RIGHT, CLAIM_RIGHT] if options.dra else needed)
    claims = _claim_version(cluster, options.dra) if options.dra else "v1"
    if options.user is None and options.host_software != "yes" and _is_openshift(cluster):
        options = options.model_copy(update={"openshift": True})
    _check_claims(cluster, options.mounts)
    if options.image is not None and options.has_own_files:
        if here := _node_of_paths(cluster, options):
            return PodSetup(cluster, cluster.namespace, options.image, None, here, options, claims)
        if options.node is not None and is_missing(cluster, options.node):
            raise PlaceError(
                f"the cluster has no node {options.node!r}",
                command=f"kubectl --context {cluster.context} get nodes",
            )
        return PodSetup(cluster, cluster.namespace, options.image, None, options.node, options, claims)
    why = "without --image a pod runs this host's software, which only works on a node of the cluster"
    if options.host_software == "no":
        raise PlaceError("a pod needs an image: --image is missing", hint="use any image with Python and PyTorch")
    if options.python is not None:
        raise PlaceError(
            f"--python {options.python} is for an image, but the host's software has its own Python",
            hint="add --image, or leave out --python",
        )
    require_sources([mount for mount in options.mounts if mount.kind == "path"])
    node = this_node(
        cluster, options.node, why if options.image is None else "the host's own software is only on this machine"
    )
    image = options.image or smallest_image(node)
    if image is None:
        raise PlaceError(
            f"the node {node.name} lists no image, and a pod needs one, if only to mount the host's folders into it",
            hint="use any image that the node can pull: --image registry.k8s.io/pause:3.10",
        )
    software = host_software(sys.executable, environment)
    return PodSetup(cluster, cluster.namespace, image, software, node.name, options, claims)


def _node_of_paths(cluster: Cluster, options: PodOptions) -> str | None:
    """Return the node that this machine is, where a mount names a path of it; the pod must run there then."""
    paths = [mount for mount in options.mounts if mount.kind == "path"]
    if not paths:
        return None
    try:
        node = this_node(cluster, options.node, f"mount: {paths[0].text!r} names a path of this machine")
    except PlaceError as error:
        raise PlaceError(error.message, hint=cluster_sources(paths[0]), command=error.command) from error
    require_sources(paths)
    return node.name


def _check_claims(cluster: Cluster, mounts: Sequence[Mount]) -> None:
    """Refuse a claim that does not exist: its pod would wait for it. Whoever may not look is told by the pod."""
    for mount in mounts:
        if mount.kind != "claim":
            continue
        try:
            cluster.get(f"/api/v1/namespaces/{cluster.namespace}/persistentvolumeclaims/{mount.source}")
        except ApiError as error:
            if error.status == 404:
                raise PlaceError(
                    f"mount: {mount.text!r}: the namespace {cluster.namespace} has no claim {mount.source!r}",
                    hint="name one that is there, or create it (PersistentVolumeClaim)",
                    command=f"kubectl --context {cluster.context} -n {cluster.namespace} get pvc",
                ) from error
            if error.status != 403:
                raise


def _check_namespace(cluster: Cluster) -> None:
    try:
        found = cluster.get(f"/api/v1/namespaces/{cluster.namespace}")
    except ApiError as error:
        if error.status == 404:
            raise PlaceError(
                f"the cluster has no namespace {cluster.namespace!r}",
                hint="use another --namespace, or create it",
                command=f"kubectl --context {cluster.context} create namespace {cluster.namespace}",
            ) from error
        if error.status != 403:
            raise
        return  # few may look at namespaces; the Job will tell
    if (found.get("status") or {}).get("phase") == "Terminating":
        raise PlaceError(
            f"the namespace {cluster.namespace} is being deleted: nothing can be created in it",
            hint="use another: --namespace",
        )


def _is_openshift(cluster: Cluster) -> bool:
    """OpenShift gives each namespace a range of UIDs, and refuses a pod that brings its own."""
    try:
        cluster.get("/apis/security.openshift.io/v1")
    except ApiError:
        return False
    return True


def _claim_version(cluster: Cluster, device_class: str) -> str:
    """Under which version the cluster serves claims for devices, and that it has this class of them."""
    try:
        served = [str(one["version"]) for one in cluster.get("/apis/resource.k8s.io").get("versions") or ()]
        known = next(version for version in ("v1", "v1beta2", "v1beta1") if version in served)
    except (ApiError, StopIteration) as error:
        raise PlaceError(
            "the cluster does not support device claims (DRA): resource.k8s.io is not served",
            hint="leave out --dra and use --gpus",
        ) from error
    path = f"/apis/resource.k8s.io/{known}/deviceclasses"
    try:
        classes = [str(one["metadata"]["name"]) for one in cluster.items(path)]
    except ApiError:
        return known  # one may not list them; the pod will tell
    if device_class not in classes:
        has = f"; it has {', '.join(classes)}" if classes else " and no other: install a DRA driver"
        raise PlaceError(f"the cluster has no device class {device_class!r}{has}", command="kubectl get deviceclasses")
    return known


def has_resource(cluster: Cluster, resource: str) -> bool:
    """Tell whether any node has such a device; true where one may not look."""
    try:
        nodes = cluster.items("/api/v1/nodes")
    except Unreachable:
        raise
    except ClusterError:
        return True
    return any(str(((node.get("status") or {}).get("capacity") or {}).get(resource, "0")) != "0" for node in nodes)
