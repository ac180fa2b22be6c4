"""The diagnostics of the whole cluster: does the API answer, and may one do what is needed?"""

from stackmark.cluster.doctor import advice
from stackmark.cluster.doctor.evidence import NO_NAMESPACE, ClusterView, RightReview, Wish
from stackmark.cluster.doctor.results import Finding, Result, failure, judged, unknown, warning

# The first version that this program is tried against.
OLDEST = (1, 28)
ENFORCED = "pod-security.kubernetes.io/enforce"


def api(seen: ClusterView) -> Result:
    command = f"kubectl --context {seen.context} get --raw /readyz"
    if seen.trouble:
        finding = failure("unreachable", seen.trouble, (seen.trouble_hint,) if seen.trouble_hint else ())
        return judged("api", None, f"{seen.server or 'no API server'} does not answer us", command, [finding])
    findings = []
    if (version := _version(seen.version)) and version < OLDEST:
        findings.append(
            warning(
                "old-kubernetes",
                f"Kubernetes {seen.version} is older than 1.28, the oldest that is tried",
                ("upgrade the cluster; until then some of what is made may be refused",),
            )
        )
    who = f", as {seen.user}" if seen.user else ""
    kind = "OpenShift, Kubernetes" if seen.openshift else "Kubernetes"
    return judged("api", None, f"{kind} {seen.version} at {seen.server}{who}", command, findings)


def permissions(seen: ClusterView, wish: Wish) -> Result:
    command = f"{seen.kubectl} auth can-i --list -n {seen.namespace}"
    findings = []
    if seen.namespace_trouble:
        findings.append(_namespace(seen))
    missing = [one for one in seen.rights if one.allowed is False]
    needed = [one.right for one in missing if one.needed]
    if needed:
        said = ", ".join(map(str, needed))
        findings.append(
            failure(
                "missing-rights",
                f"no pod of ours can run in the namespace {seen.namespace} without the rights: {said}",
                (
                    "somebody who may, gives them:",
                    *advice.role(
                        seen.kubectl, seen.namespace, [(right.verb, right.name) for right in needed], seen.user
                    ),
                    "or take a namespace in which you have them: --namespace",
                ),
            )
        )
    findings += [_less_seen(seen, one) for one in missing if not one.needed]
    findings += _quota(seen, wish)
    untold = [one for one in seen.rights if one.allowed is None]
    if seen.rights and len(untold) == len(seen.rights) and not findings:
        return unknown("permissions", None, "the API server does not say what one may do", command)
    have = sum(one.allowed is True for one in seen.rights)
    policy = seen.namespace_labels.get(ENFORCED)
    level = f"; Pod Security {policy}" if policy else ""
    evidence = f"{have} of {len(seen.rights)} rights in the namespace {seen.namespace}{level}"
    return judged("permissions", None, evidence, command, findings)


def may_run_pods(seen: ClusterView) -> str | None:
    """Why no pod of ours can be made, or None."""
    if seen.trouble:
        return "the API server does not answer"
    if seen.namespace_trouble:
        return seen.namespace_trouble
    lacks = [str(one.right) for one in seen.rights if one.needed and one.allowed is False]
    return f"one may not {', '.join(lacks)} in the namespace {seen.namespace}" if lacks else None


def _namespace(seen: ClusterView) -> Finding:
    do: tuple[str, ...] = ("give another: --namespace",)
    if seen.namespace_trouble.startswith(NO_NAMESPACE):
        do = (f"$ {seen.kubectl} create namespace {seen.namespace}", "or give another: --namespace")
    return failure("namespace", seen.namespace_trouble, do)


def _less_seen(seen: ClusterView, review: RightReview) -> Finding:
    right = review.right
    where = f" -n {seen.namespace}" if right.namespace is not None else ""
    return warning(
        "less-seen",
        f"one may not {right}: {review.loses}",
        (f"$ {seen.kubectl} auth can-i {right}{where}",),
    )


def _quota(seen: ClusterView, wish: Wish) -> list[Finding]:
    """A quota that leaves no room for the GPUs that are asked for refuses the pod, and not the Job: it waits for nothing."""
    findings = []
    for quota in seen.quotas or ():
        name = f"requests.{wish.resource}"
        status = quota.get("status") or {}
        hard, used = (status.get("hard") or {}).get(name), (status.get("used") or {}).get(name, "0")
        if not str(hard).isdecimal() or not str(used).isdecimal():
            continue
        left = int(str(hard)) - int(str(used))
        if left < wish.gpus:
            called = (quota.get("metadata") or {}).get("name")
            findings.append(
                Finding(
                    "quota",
                    "failed" if int(str(hard)) < wish.gpus else "warning",
                    f"the quota {called} of the namespace {seen.namespace} leaves {max(0, left)} of {hard} {wish.resource}",
                    (f"$ {seen.kubectl} -n {seen.namespace} describe resourcequota {called}",),
                )
            )
    return findings


def _version(text: str) -> tuple[int, int] | None:
    parts = text.lstrip("v").split(".")
    minor = "".join(char for char in parts[1] if char.isdecimal()) if len(parts) > 1 else ""
    return (int(parts[0]), int(minor)) if parts[0].isdecimal() and minor else None
