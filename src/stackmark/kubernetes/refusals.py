"""Explain refusals of the API server in a sentence with the cause and what to do next.

The server's own words stay in it: they name the object, the quota, the rule. The table is in the order of looking: a refusal by
an admission rule comes as 403 too, so that it is looked for before a missing right.
"""

import re
from typing import NamedTuple

from stackmark.errors import ClusterError, PlaceError
from stackmark.kubernetes.client import ApiError
from stackmark.kubernetes.objects import words


class Refusal(NamedTuple):
    kind: str
    cause: str
    hint: str
    command: str | None = None


class KnownRefusal(NamedTuple):
    pattern: re.Pattern[str]
    kind: str
    cause: str
    hint: str
    command: str | None = None


def _known(pattern: str, kind: str, cause: str, hint: str, command: str | None = None) -> KnownRefusal:
    return KnownRefusal(re.compile(pattern, re.IGNORECASE | re.DOTALL), kind, cause, hint, command)


KNOWN = (
    _known(
        r"exceeded quota: (?P<quota>[^,]+), requested: (?P<requested>.*), used: (?P<used>.*), limited: (?P<limited>.*)",
        "quota",
        "the quota {quota} of the namespace {namespace} is used up: requested {requested}, used {used}, limit {limited}",
        "wait for other pods to end, request less (--gpus, --cpus, --memory), or ask the cluster's administrator for more",
        "kubectl -n {namespace} describe resourcequota {quota}",
    ),
    _known(
        r"failed quota: (?P<quota>[^:]+): must specify (?P<what>.*)",
        "quota",
        "the quota {quota} of the namespace {namespace} requires {what}",
        "set --cpus and --memory",
        "kubectl -n {namespace} describe resourcequota {quota}",
    ),
    _known(
        r"because it is being terminated",
        "namespace_ends",
        "the namespace {namespace} is being deleted and accepts no new objects",
        "wait until it is gone and create it again, or use another --namespace",
        "kubectl get namespace {namespace}",
    ),
    _known(
        r'namespaces "(?P<missing>[^"]+)" not found',
        "no_namespace",
        "the cluster has no namespace {missing}",
        "create it (kubectl create namespace {missing}), or use another --namespace",
        "kubectl get namespaces",
    ),
    _known(
        r'violates PodSecurity "(?P<level>[^"]+)": (?P<what>.*)',
        "forbidden_by_policy",
        "the namespace {namespace} enforces Pod Security {level}, which forbids: {what}",
        "leave out what it names (hostPath is the host's software: use --image; see --host-network, --cap), or use a "
        "namespace that allows it",
        "kubectl get namespace {namespace} --show-labels",
    ),
    _known(
        r"unable to validate against any security context constraint: (?P<what>.*)",
        "forbidden_by_policy",
        "no security context constraint of OpenShift allows this pod: {what}",
        "use --openshift without --host-network, --cap and the host's software; or let the service account use one "
        "that allows it",
        "oc -n {namespace} get scc",
    ),
    _known(
        r'admission webhook "(?P<webhook>[^"]+)" denied the request:? ?(?P<what>.*)',
        "forbidden_by_policy",
        "a rule of this cluster ({webhook}) refuses it: {what}",
        "follow it with an option or --patch; the cluster's administrator knows the rule",
    ),
    _known(
        r"ValidatingAdmissionPolicy '(?P<webhook>[^']+)'.* denied request: (?P<what>.*)",
        "forbidden_by_policy",
        "a rule of this cluster ({webhook}) refuses it: {what}",
        "follow it with an option or --patch; the cluster's administrator knows the rule",
    ),
    _known(
        r'failed calling webhook "(?P<webhook>[^"]+)"',
        "webhook_down",
        "the admission webhook {webhook} does not answer, and without it the cluster accepts nothing",
        "check the pods of the webhook's service",
        "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
    ),
    _known(
        r"(?P<what>(maximum|minimum) \S+ usage per (Container|Pod) is .*)",
        "limit_range",
        "a LimitRange of the namespace {namespace} refuses it: {what}",
        "request what it allows with --cpus and --memory",
        "kubectl -n {namespace} describe limitrange",
    ),
    _known(
        r'serviceaccount "(?P<account>[^"]+)" not found',
        "no_service_account",
        "the namespace {namespace} has no service account {account}",
        "use another --service-account, or create it: kubectl -n {namespace} create serviceaccount {account}",
        "kubectl -n {namespace} get serviceaccounts",
    ),
    _known(
        r"no PriorityClass with name (?P<priority>\S+) was found",
        "no_priority_class",
        "the cluster has no priority class {priority}",
        "use one that it has: --priority-class",
        "kubectl get priorityclasses",
    ),
    _known(
        r'RuntimeClass.*"(?P<runtime>[^"]+)" not found',
        "no_runtime_class",
        "the cluster has no runtime class {runtime}",
        "leave out --runtime-class, or use one that it has",
        "kubectl get runtimeclasses",
    ),
    _known(
        r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
        r'(?: in the namespace "(?P<inside>[^"]+)")?',
        "no_right",
        "{user} may not {verb} {resource}{where}",
        "ask the cluster's administrator for the right to {verb} {resource}{where}, or use another --context or --namespace",
        "kubectl auth can-i {verb} {asked}{option}",
    ),
)  # fmt: skip

# Where its words say nothing that we know.
BY_STATUS = {
    401: (
        "not_known",
        "the cluster does not accept your credentials: the kubeconfig's token or certificate has expired",
        "log in again (oc login, aws eks update-kubeconfig, gcloud container clusters get-credentials …)",
    ),
    403: ("no_right", "it is forbidden", "see the namespace's rules and your rights: kubectl auth can-i --list"),
    404: ("not_found", "it does not exist", "check the name, and whether this cluster supports it"),
    409: (
        "conflict",
        "it already exists, or it was changed meanwhile",
        "try again; remove what an earlier run left: stackmark cluster clean",
    ),
    413: ("too_large", "it is too large for the API server", "use a volume for large data"),
    422: ("invalid", "the cluster found an error in it", "see the option that it names, and --patch if you use it"),
    429: ("busy", "the API server is overloaded", "try again later"),
}


def explained(error: ClusterError, doing: str) -> PlaceError:
    """Explain the error for people; `doing` is what was being done: `the Job x is created`."""
    if not isinstance(error, ApiError):
        return PlaceError(f"{doing}: {error.message}", hint=error.hint, command=error.command)
    known = refusal(error.message, "", error.status, error.reason)
    return PlaceError(f"{doing}: {known.cause}", hint=known.hint, command=known.command or error.command)


def refusal(message: str, namespace: str = "", status: int = 0, reason: str = "") -> Refusal:
    """Explain a refusal; an unforeseen one in the server's own words."""
    # The object's own name in it may hold anything; the rule that refuses comes last.
    for known in KNOWN:
        if match := known.pattern.search(message):
            fill = {name: words(value) for name, value in match.groupdict().items() if value}
            return _filled(known, fill, namespace or _namespace_in(message))
    said = words(message)
    if status in BY_STATUS:
        kind, cause, hint = BY_STATUS[status]
        return Refusal(kind, f"{cause}: {said}", hint)
    if status >= 500:
        return Refusal("api_error", f"the API server failed ({status}): {said}", "try again later")
    return Refusal("refused", said or reason or "the cluster gave no reason", "see the cluster's message")


def _filled(known: KnownRefusal, fill: dict[str, str], namespace: str) -> Refusal:
    inside = fill.get("inside") or ""
    fill["namespace"] = namespace or inside or "NAMESPACE"
    # Rights are asked for as kubectl does: `jobs.batch`, `pods --subresource=log`.
    thing, _, part = fill.get("resource", "").partition("/")
    fill["asked"] = (f"{thing}.{fill['group']}" if fill.get("group") else thing) + (
        f" --subresource={part}" if part else ""
    )
    fill["where"] = f" in the namespace {inside}" if inside else ""
    fill["option"] = f" -n {inside}" if inside else ""
    cause, hint, command = (_with(text, fill) if text else None for text in known[2:])
    return Refusal(known.kind, cause or "", hint or "", command)


def _with(text: str, fill: dict[str, str]) -> str:
    """With its `{names}` filled in, once: what is filled in may have braces of its own."""
    return re.sub(r"\{(\w+)\}", lambda match: fill.get(match[1], match[0]), text)


def _namespace_in(message: str) -> str:
    found = re.search(
        r"(?:in (?:the )?namespace|to namespace|in new content in namespace) \"?([a-z0-9][-a-z0-9]*)", message
    )
    return found[1] if found else ""
