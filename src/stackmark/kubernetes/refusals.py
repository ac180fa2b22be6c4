"""What the API server says when it refuses, in a sentence with the cause and what to do next.

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
        "the quota {quota} of the namespace {namespace} is used up: asked for {requested}, used {used}, limit {limited}",
        "wait until others are done, ask for less (--gpus, --cpus, --memory), or ask who runs the cluster for more",
        "kubectl -n {namespace} describe resourcequota {quota}",
    ),
    _known(
        r"failed quota: (?P<quota>[^:]+): must specify (?P<what>.*)",
        "quota",
        "the quota {quota} of the namespace {namespace} wants to be told {what}",
        "give --cpus and --memory",
        "kubectl -n {namespace} describe resourcequota {quota}",
    ),
    _known(
        r"because it is being terminated",
        "namespace_ends",
        "the namespace {namespace} is being deleted, and takes nothing new",
        "wait until it is gone and make it again, or take another with --namespace",
        "kubectl get namespace {namespace}",
    ),
    _known(
        r'namespaces "(?P<missing>[^"]+)" not found',
        "no_namespace",
        "the cluster has no namespace {missing}",
        "make it (kubectl create namespace {missing}), or name another with --namespace",
        "kubectl get namespaces",
    ),
    _known(
        r'violates PodSecurity "(?P<level>[^"]+)": (?P<what>.*)',
        "forbidden_by_policy",
        "the namespace {namespace} enforces Pod Security {level}, which forbids: {what}",
        "leave out what it names (hostPath is the host's own software: give an --image; see --host-network, --cap), or take a "
        "namespace that allows it",
        "kubectl get namespace {namespace} --show-labels",
    ),
    _known(
        r"unable to validate against any security context constraint: (?P<what>.*)",
        "forbidden_by_policy",
        "no security context constraint of OpenShift allows this pod: {what}",
        "take --openshift, and leave out --host-network, --cap and the host's own software; or let the service account use one "
        "that allows it",
        "oc -n {namespace} get scc",
    ),
    _known(
        r'admission webhook "(?P<webhook>[^"]+)" denied the request:? ?(?P<what>.*)',
        "forbidden_by_policy",
        "a rule of this cluster ({webhook}) refuses it: {what}",
        "do as it says, by an option or --patch; who runs the cluster knows the rule",
    ),
    _known(
        r"ValidatingAdmissionPolicy '(?P<webhook>[^']+)'.* denied request: (?P<what>.*)",
        "forbidden_by_policy",
        "a rule of this cluster ({webhook}) refuses it: {what}",
        "do as it says, by an option or --patch; who runs the cluster knows the rule",
    ),
    _known(
        r'failed calling webhook "(?P<webhook>[^"]+)"',
        "webhook_down",
        "a rule of this cluster ({webhook}) cannot be asked, and without it nothing is taken",
        "what serves it must run: see the pods of its service",
        "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
    ),
    _known(
        r"(?P<what>(maximum|minimum) \S+ usage per (Container|Pod) is .*)",
        "limit_range",
        "a LimitRange of the namespace {namespace} refuses it: {what}",
        "ask for what it allows with --cpus and --memory",
        "kubectl -n {namespace} describe limitrange",
    ),
    _known(
        r'serviceaccount "(?P<account>[^"]+)" not found',
        "no_service_account",
        "the namespace {namespace} has no service account {account}",
        "name another with --service-account, or make it: kubectl -n {namespace} create serviceaccount {account}",
        "kubectl -n {namespace} get serviceaccounts",
    ),
    _known(
        r"no PriorityClass with name (?P<priority>\S+) was found",
        "no_priority_class",
        "the cluster has no priority class {priority}",
        "name one that it has with --priority-class",
        "kubectl get priorityclasses",
    ),
    _known(
        r'RuntimeClass.*"(?P<runtime>[^"]+)" not found',
        "no_runtime_class",
        "the cluster has no runtime class {runtime}",
        "leave --runtime-class out, or name one that it has",
        "kubectl get runtimeclasses",
    ),
    _known(
        r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
        r'(?: in the namespace "(?P<inside>[^"]+)")?',
        "no_right",
        "{user} may not {verb} {resource}{where}",
        "ask who runs the cluster for the right to {verb} {resource}{where}, or take another --context or --namespace",
        "kubectl auth can-i {verb} {asked}{option}",
    ),
)  # fmt: skip

# Where its words say nothing that we know.
BY_STATUS = {
    401: (
        "not_known",
        "the cluster does not know who asks: the kubeconfig's token or certificate has run out",
        "log in again (oc login, aws eks update-kubeconfig, gcloud container clusters get-credentials …)",
    ),
    403: ("no_right", "it is forbidden", "see the rules of the namespace, and one's rights: kubectl auth can-i --list"),
    404: ("not_found", "it is not there", "is the name right, and does this cluster have such things?"),
    409: (
        "conflict",
        "there is one already, or it was changed meanwhile",
        "try again; what an earlier run left goes with: stackmark cluster clean",
    ),
    413: ("too_large", "it is too large for the API server", "hand large data in by a volume"),
    422: ("invalid", "the cluster finds a mistake in it", "see the option that it names, and --patch if there is one"),
    429: ("busy", "the API server has too much to do", "try again in a while"),
}


def explained(error: ClusterError, doing: str) -> PlaceError:
    """The error as a person is told it; `doing` is what was being done: `the Job x is created`."""
    if not isinstance(error, ApiError):
        return PlaceError(f"{doing}: {error.message}", hint=error.hint, command=error.command)
    known = refusal(error.message, "", error.status, error.reason)
    return PlaceError(f"{doing}: {known.cause}", hint=known.hint, command=known.command or error.command)


def refusal(message: str, namespace: str = "", status: int = 0, reason: str = "") -> Refusal:
    """What a refusal means; of one that nobody foresaw, the server's own words."""
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
        return Refusal("api_error", f"the API server is in trouble ({status}): {said}", "try again in a while")
    return Refusal("refused", said or reason or "the cluster gave no reason", "see the words of the cluster")


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
