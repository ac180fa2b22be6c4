"""Find and remove what was left in a cluster: everything with our label that no process waits for.

Drivers that end, by Ctrl-C too, remove what they made; this is for those that were killed, and for machines that went away. A
label names the driver (names.py): its machine and its process, hashed. So of a driver on this machine it is known whether it
lives: what belongs to a living one stays. Of another machine's it is not, and time decides: what has ended a while ago, or is
older than it was allowed to become, is nobody's. The rest stays, with the reason, unless it is forced.

Two kinds stay for what they are. A canary is wanted, and so are its results until somebody has collected them. A pod that hurts
a node for a fault also heals it: it is left to its end.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from stackmark.errors import ClusterError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import ApiError, Cluster, Json
from stackmark.kubernetes.objects import unix_s
from stackmark.units import say_seconds

Fate = Literal["removed", "would go", "going", "stays", "refused"]
# Why, for programs; `why` says the same in a sentence.
Reason = Literal[
    "being-deleted", "driver-lives", "canary", "heals-a-fault", "driver-dead", "forced", "applied-by-hand", "ended",
    "too-old", "driver-elsewhere", "deletion-failed",
]  # fmt: skip
# A driver reads a finished pod's log within seconds; one whose API server was away waits for some minutes.
READ_WITHIN_S = 900.0
# Where nothing says how long it may live.
OLD_S = 86_400.0
# What we create, in the order in which it is removed: owners before what they own.
KINDS: tuple[tuple[str, str, str], ...] = (
    ("CronJob", "/apis/batch/v1", "cronjobs"),
    ("Job", "/apis/batch/v1", "jobs"),
    ("Pod", "/api/v1", "pods"),
    ("Service", "/api/v1", "services"),
    # Those of printed manifests; all others belong to a Job.
    ("ConfigMap", "/api/v1", "configmaps"),
    ("ResourceClaimTemplate", "/apis/resource.k8s.io/v1", "resourceclaimtemplates"),
    ("ResourceClaimTemplate", "/apis/resource.k8s.io/v1beta2", "resourceclaimtemplates"),
    ("ResourceClaimTemplate", "/apis/resource.k8s.io/v1beta1", "resourceclaimtemplates"),
    ("Lease", "/apis/coordination.k8s.io/v1", "leases"),
)
NAMESPACES = "/api/v1/namespaces"
# Without these a sweep has not looked where runs are; the others are not in every cluster, nor everybody's to see.
NEEDED = ("Job", "Pod")


@dataclass(frozen=True)
class Left:
    """One object with our label, and its fate."""

    kind: str
    namespace: str
    name: str
    work: str
    run: str
    age_s: float
    fate: Fate
    reason: Reason
    why: str
    path: str


def clean(
    cluster: Cluster,
    namespaces: Sequence[str] | None,
    *,
    own_namespaces: bool = True,
    force: bool = False,
    canaries: bool = False,
    dry_run: bool = False,
    now: float | None = None,
) -> Iterator[Left]:
    """Remove what stackmark left; yield each thing with its fate. `namespaces` None means all; namespaces of tests are searched
    wherever they are, unless `own_namespaces` says that only those that were named are meant."""
    living, now = names.living_drivers(), time.time() if now is None else now
    for kind, thing, path in _found(cluster, namespaces, own_namespaces):
        left = judged(kind, thing, path, living, now, force=force, canaries=canaries)
        if left.fate == "removed" and dry_run:
            left = replace(left, fate="would go")
        elif left.fate == "removed":
            left = _removed(cluster, left)
        yield left


def _found(cluster: Cluster, namespaces: Sequence[str] | None, own: bool) -> Iterator[tuple[str, Json, str]]:
    """Everything of ours there; what belongs to something else of ours goes with it, and is not named twice."""
    owned: set[str] = set()
    ours = {str(one["metadata"]["name"]): one for one in _own_namespaces(cluster)}
    for name, one in ours.items():
        if own or name in (namespaces or ()):
            yield "Namespace", one, f"{NAMESPACES}/{name}"
    for kind, group, resource in KINDS:
        for place in ("",) if namespaces is None else [f"/namespaces/{name}" for name in namespaces]:
            for thing in _listed(cluster, kind, f"{group}{place}/{resource}"):
                meta = thing["metadata"]
                uid = str(meta.get("uid"))
                owners = {str(owner.get("uid")) for owner in meta.get("ownerReferences") or ()}
                # One and the same is served under several versions of its group.
                if uid not in owned and not owners & owned and meta["namespace"] not in ours:
                    yield kind, thing, f"{group}/namespaces/{meta['namespace']}/{resource}/{meta['name']}"
                owned.add(uid)


def _listed(cluster: Cluster, kind: str, path: str) -> list[Json]:
    try:
        return cluster.items(path, labelSelector=names.SELECTOR)
    except ApiError as error:
        if kind not in NEEDED and error.status in (403, 404):
            return []
        raise


def _own_namespaces(cluster: Cluster) -> list[Json]:
    with suppress(ApiError):  # few may list namespaces, and who may not has made none
        return cluster.items(NAMESPACES, labelSelector=names.SELECTOR)
    return []


def judged(
    kind: str, thing: Json, path: str, living: Iterable[str], now: float, *, force: bool = False, canaries: bool = False
) -> Left:
    """Decide whether it is removed, and why. Pure except for the machine's own name."""
    meta = thing["metadata"]
    labels: Mapping[str, str] = meta.get("labels") or {}
    work, driver = labels.get(names.KIND_LABEL, ""), labels.get(names.DRIVER_LABEL, "")
    age_s = max(0.0, now - (unix_s(meta.get("creationTimestamp")) or now))
    fate, reason, why = _fate(thing, work, driver, age_s, set(living), now, force=force, canaries=canaries)
    namespace, run = "" if kind == "Namespace" else str(meta.get("namespace") or ""), labels.get(names.RUN_LABEL, "")
    return Left(kind, namespace, str(meta["name"]), work, run, age_s, fate, reason, why, path)


def _fate(
    thing: Json, work: str, driver: str, age_s: float, living: set[str], now: float, *, force: bool, canaries: bool
) -> tuple[Fate, Reason, str]:
    if thing["metadata"].get("deletionTimestamp"):
        return "going", "being-deleted", "it is already being deleted"
    if driver in living:
        return "stays", "driver-lives", "its stackmark process runs on this machine"
    ended, old = ended_s_ago(thing, now), age_s > allowed_s(thing)
    if work == "canary":
        if canaries:
            return "removed", "canary", "a canary"
        return "stays", "canary", "a canary stays; --canaries removes it"
    if _heals(thing) and ended is None and not old and not force:
        return "stays", "heals-a-fault", "it belongs to a fault that heals by itself; --force removes it now"
    if names.is_dead(driver, living):
        return "removed", "driver-dead", "its stackmark process on this machine has ended"
    if force:
        return "removed", "forced", "forced"
    if not driver:
        return "stays", "applied-by-hand", "it was applied manually, and its log may be needed; --force removes it"
    if ended is not None and ended > READ_WITHIN_S:
        return "removed", "ended", f"it ended {say_seconds(ended)} ago"
    if old:
        return "removed", "too-old", f"it is {say_seconds(age_s)} old, more than its limit"
    waits = "stackmark on another machine, or before a restart, may wait for it; --force removes it"
    return "stays", "driver-elsewhere", waits


def _heals(thing: Json) -> bool:
    """The pod on a node that hurts and heals it, and the lock that keeps other faults away meanwhile."""
    spec = thing.get("spec") or {}
    return bool(spec.get("hostPID")) or "leaseDurationSeconds" in spec


def allowed_s(thing: Json) -> float:
    """Return how old it may become: by its deadline and the time it may wait for a place; a day where it has none."""
    spec = thing.get("spec") or {}
    inner = (spec.get("template") or {}).get("spec") or spec
    if "leaseDurationSeconds" in spec:
        made, taken = (unix_s(one) for one in (thing["metadata"].get("creationTimestamp"), spec.get("renewTime")))
        return float(spec["leaseDurationSeconds"]) + max(0.0, (taken or 0.0) - (made or 0.0))
    deadline = inner.get("activeDeadlineSeconds")
    return float(deadline) + READ_WITHIN_S if isinstance(deadline, int) else OLD_S


def ended_s_ago(thing: Json, now: float) -> float | None:
    """Return how long ago a Job or a pod ended; None while it runs."""
    status = thing.get("status") or {}
    if status.get("phase") in ("Succeeded", "Failed"):
        ends = [
            unix_s(((one.get("state") or {}).get("terminated") or {}).get("finishedAt"))
            for one in status.get("containerStatuses") or ()
        ]
        last = max((end for end in ends if end), default=unix_s(thing["metadata"].get("creationTimestamp")))
        return now - last if last else None
    for one in status.get("conditions") or ():
        if one.get("type") in ("Complete", "Failed") and one.get("status") == "True":
            moment = unix_s(one.get("lastTransitionTime"))
            return now - moment if moment else None
    return None


def _removed(cluster: Cluster, left: Left) -> Left:
    try:
        cluster.delete(left.path)
    except ClusterError as error:
        return replace(left, fate="refused", reason="deletion-failed", why=error.message)
    return left
