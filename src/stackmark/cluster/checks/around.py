"""Test a pod's surroundings: Pod Security, no unrequested token, names and services."""

from contextlib import suppress

from stackmark.cluster.checks import programs
from stackmark.cluster.checks.capacity import ENFORCE, made_namespace, remove_namespace
from stackmark.cluster.checks.work import CaseFailed, LeftOut, Work, explained, runs
from stackmark.errors import ClusterError
from stackmark.kubernetes import names, status
from stackmark.kubernetes.client import ApiError, Json
from stackmark.kubernetes.manifest.request import forbidden_by_restricted

PORT = 18080


def starts(work: Work) -> str:
    """Test that the first pod has a shell, and find its tools. All other cases need it."""
    (name,) = work.create([work.pod(work.request("trial", programs.trial()))])
    try:
        work.wait([name], lambda pod: pod is not None and status.exit_code(pod) == 0, "end")
    except CaseFailed as error:
        if '"sh"' not in error.message:
            raise
        raise CaseFailed(
            error.message, hint="every test needs a shell (sh): use an image that has one, --image"
        ) from error
    lines = work.log(name).splitlines()
    if programs.READY not in lines:
        raise CaseFailed(f"its shell printed {lines[:3]}, expected {programs.READY!r}")
    work.tools = frozenset(line.removeprefix("has ") for line in lines if line.startswith("has "))
    of = "the host's own software" if work.setup.software else f"the image {work.setup.image}"
    return f"a shell of {of}; its tools: {', '.join(sorted(work.tools)) or 'none for the network'}"


def restricted(work: Work) -> str:
    """Test that stackmark's pods run in a namespace that enforces Pod Security's strictest level, as a user who is not root."""
    namespace = _restricted_namespace(work)
    own = namespace != work.setup.namespace
    try:
        # Folders of the host are what `restricted` forbids: without them there is nothing to run, and all else is as it was.
        there = work.elsewhere(namespace, host_software=False)
        request = there.request("restricted", programs.idle())
        forbidden = forbidden_by_restricted(request)
        if forbidden:
            raise LeftOut(f"the pod requests what `restricted` forbids: {forbidden[0]}")
        body = there.pod(request)
        if work.setup.software is not None:
            work.cluster.create(f"/api/v1/namespaces/{namespace}/pods", body, dryRun="All")
            return "accepted in a dry run: without --image a pod needs the host's folders"
        return _run_restricted(there, body["metadata"]["name"], body)
    except ApiError as error:
        raise explained(error, "a pod in a namespace that enforces `restricted`") from error
    finally:
        if own:
            with suppress(ClusterError):
                remove_namespace(work.cluster, namespace)


def _run_restricted(there: Work, name: str, body: Json) -> str:
    there.create([body])
    try:
        there.wait([name], runs, "run")
        seen = there.execute(name, programs.identity()).out.split()
        uid = seen[seen.index("uid") + 1] if "uid" in seen else "?"
        if uid == "0":
            raise CaseFailed("it runs as root, in a namespace that enforces `restricted`")
        return f"accepted; it runs with UID {uid}"
    finally:
        with suppress(ClusterError):
            there.cluster.delete(there.path("pods", name), grace_s=0)


def _restricted_namespace(work: Work) -> str:
    with suppress(ApiError):
        here = work.cluster.get(f"/api/v1/namespaces/{work.setup.namespace}")
        if (here["metadata"].get("labels") or {}).get(ENFORCE) == "restricted":
            return work.setup.namespace
    try:
        return made_namespace(work.cluster, f"{work.mark}-r", {ENFORCE: "restricted"})
    except ApiError as error:
        if error.status != 403:
            raise
        raise LeftOut(
            f"the namespace {work.setup.namespace} does not enforce it, and another cannot be created: {error.message}"
        ) from error


def _any_pod(work: Work) -> str:
    """One that waits, for all cases that look out of it."""
    if "plain" not in work.groups:
        work.start("plain", 1, programs.idle())
    return work.groups["plain"].pods[0]


def no_token(work: Work) -> str:
    """Test that stackmark's pods have no token for the API, and that the API refuses calls without one."""
    pod = _any_pod(work)
    if "token" in work.execute(pod, programs.identity()).out.split():
        raise CaseFailed("a token is mounted despite automountServiceAccountToken: false")
    if "python3" not in work.tools:
        return "no token is mounted; whether the API refuses a call without one was not tried: the image has no python3"
    done = work.execute(pod, programs.asks_the_api())
    said = f"{done.out} {done.err}"
    if "status 200" in said:
        raise CaseFailed(
            "a pod without a token may list the Secrets of kube-system",
            hint="see the ClusterRoleBindings of system:anonymous and system:unauthenticated",
            command="kubectl auth can-i list secrets -n kube-system --as system:anonymous",
        )
    refused = next((code for code in ("401", "403") if code in said), None)
    if refused is None:
        return f"no token is mounted; the API server does not answer from a pod: {' '.join(said.split())[:120]}"
    return f"no token is mounted, and a call to the API without one is refused ({refused})"


def names_resolve(work: Work) -> str:
    if not work.tools & {"python3", "nslookup", "getent"}:
        raise LeftOut("the image has neither python3, nslookup nor getent")
    done = work.execute(_any_pod(work), programs.looks_up())
    if done.code != 0:
        raise CaseFailed(
            f"a pod cannot resolve kubernetes.default: {' '.join(f'{done.out} {done.err}'.split())[:160]}",
            hint="is the cluster's DNS running?",
            command="kubectl -n kube-system get pods -l k8s-app=kube-dns",
        )
    words = [word for word in done.out.split() if word.count(".") == 3 or word.count(":") > 1]
    return f"kubernetes.default is {words[-1] if words else ' '.join(done.out.split())[-80:]}"


def service_between_pods(work: Work) -> str:
    """Test that a service has an address and leads to the pod behind it."""
    if not work.tools & {"python3", "nc"}:
        raise LeftOut("the image has neither python3 nor nc")
    if work.options.host_network:
        raise LeftOut("the pods use the node's network: --host-network")
    server = work.start("server", 1, programs.serves(PORT), keep=False).pods[0]
    client = _any_pod(work)
    name = names.object_name(f"{work.mark}-svc")
    body = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": names.labels("check", f"{work.mark}-svc")},
        "spec": {"selector": {names.RUN_LABEL: f"{work.mark}-server-0"}, "ports": [{"port": 80, "targetPort": PORT}]},
    }
    made = work.cluster.create(work.path("services"), work.ours(body))
    address = str(made["spec"]["clusterIP"])
    while True:
        done = work.execute(client, programs.calls(address, 80))
        if done.code == 0 and server in done.out.split():
            return f"a pod reached another through the service's address {address}"
        if not work.left_s:
            raise CaseFailed(
                f"a pod cannot reach another through the service's address {address}: "
                f"{' '.join(f'{done.out} {done.err}'.split())[:160] or 'no answer'}",
                hint="check network policies, and that kube-proxy runs on the nodes",
            )
        work.pause()
