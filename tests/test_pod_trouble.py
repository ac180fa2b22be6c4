"""What a person is told when a cluster refuses."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusters import TestCluster, new_namespace, until
from stackmark.errors import ClusterError, Exit, PlaceError
from stackmark.kubernetes.client import ApiError, Cluster, Json, Unreachable, connect
from stackmark.kubernetes.log.follow import PodLog
from stackmark.kubernetes.log.node_files import read_node_log
from stackmark.kubernetes.refusals import explained, refusal


def told(message: str, status: int = 403, reason: str = "Forbidden") -> PlaceError:
    return explained(ApiError(message, status=status, reason=reason), "the Job is created")


def job(**pod: object) -> Json:
    container = {"name": "worker", "image": "localhost/busybox:1", "command": ["true"]}
    template = {"spec": {"restartPolicy": "Never", "containers": [container], **pod}}
    return {"metadata": {"name": "refused"}, "spec": {"backoffLimit": 0, "template": template}}


def bare_pod(**spec: object) -> Json:
    return {"metadata": {"name": "refused"}, "spec": job(**spec)["spec"]["template"]["spec"]}


def refused(cluster: Cluster, path: str, body: Json) -> PlaceError:
    with pytest.raises(ClusterError) as caught:
        cluster.create(path, body)
    return explained(caught.value, "the pod is created")


def test_a_refusal_is_a_failure_of_the_place() -> None:
    words = "nobody knows these words"
    error = told(words, status=418)

    assert error.exit_code == Exit.PLACE_FAILED
    assert words in error.message


@pytest.mark.parametrize(
    ("status", "kind", "next_command"),
    [
        (401, "not_known", "oc login"),
        (409, "conflict", "stackmark cluster clean"),
        (429, "busy", ""),
        (503, "api_error", ""),
    ],
)
def test_a_status_without_known_words_still_says_what_to_do(status: int, kind: str, next_command: str) -> None:
    error = told("something", status=status)

    assert refusal("something", status=status).kind == kind
    assert error.hint
    assert next_command in error.hint
    assert "something" in error.message


def test_a_webhooks_own_reason_is_told() -> None:
    reason = "require-labels: team is missing"
    error = told(f'admission webhook "validate.kyverno.svc-fail" denied the request: \n\nresource blocked: {reason}')

    assert "validate.kyverno.svc-fail" in error.message
    assert reason in error.message
    assert "\n" not in error.message


def test_a_webhook_that_cannot_be_asked_is_not_taken_for_its_refusal() -> None:
    said = 'Internal error occurred: failed calling webhook "v.example": failed to call webhook: dial tcp: connection refused'

    assert refusal(said, status=500).kind == "webhook_down"


def test_openshifts_constraints_are_named_with_a_way_out() -> None:
    error = told(
        'pods "x" is forbidden: unable to validate against any security context constraint: [provider "anyuid": Forbidden]'
    )

    assert "--openshift" in str(error.hint)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ('pods "x" is forbidden: error looking up service account n/y: serviceaccount "y" not found', "no_service_account"),
        ("pods \"x\" is forbidden: no PriorityClass with name fast was found", "no_priority_class"),
        ('pods "x" is forbidden: pod rejected: RuntimeClass "nvidia" not found', "no_runtime_class"),
        ('pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 8Gi', "limit_range"),
        ('pods "x" is forbidden: failed quota: q: must specify limits.cpu for: worker', "quota"),
    ],
)  # fmt: skip
def test_what_admission_misses_has_a_kind(said: str, kind: str) -> None:
    assert refusal(said, "team").kind == kind


def test_words_of_a_cluster_cannot_break_the_sentence() -> None:
    known = refusal('admission webhook "{hint}" denied the request: {cause} \x1b[2J' + "x" * 5000)

    assert "\x1b" not in known.cause
    assert len(known.cause) < 500


@pytest.fixture
def weak(cluster: TestCluster, tmp_path: Path) -> Iterator[Cluster]:
    """An account that may look at pods and no more."""
    rbac, space = "/apis/rbac.authorization.k8s.io/v1", f"/namespaces/{cluster.namespace}"
    cluster.cluster.create(f"/api/v1{space}/serviceaccounts", {"metadata": {"name": "weak"}})
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
    cluster.cluster.create(f"{rbac}{space}/roles", {"metadata": {"name": "weak"}, "rules": rules})
    binding = {
        "metadata": {"name": "weak"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "weak"},
        "subjects": [{"kind": "ServiceAccount", "name": "weak", "namespace": cluster.namespace}],
    }
    cluster.cluster.create(f"{rbac}{space}/rolebindings", binding)
    asked = {"spec": {"expirationSeconds": 600}}
    token = cluster.cluster.create(f"/api/v1{space}/serviceaccounts/weak/token", asked)["status"]["token"]
    file = tmp_path / "kubeconfig"
    file.write_text(_with_token(Path(cluster.kubeconfig).read_text(), token))
    yield connect(kubeconfig=str(file), namespace=cluster.namespace)
    for path in (f"/api/v1{space}/serviceaccounts", f"{rbac}{space}/roles", f"{rbac}{space}/rolebindings"):
        cluster.cluster.delete(f"{path}/weak")


def _with_token(kubeconfig: str, token: str) -> str:
    import yaml

    data = yaml.safe_load(kubeconfig)
    for user in data["users"]:
        user["user"] = {"token": token}
    return str(yaml.safe_dump(data))


@pytest.mark.cluster
def test_a_missing_right_is_named_with_the_command_to_see_it(cluster: TestCluster, weak: Cluster) -> None:
    error = refused(weak, f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs", job())

    assert [word for word in ("create", "jobs", cluster.namespace) if word not in error.message] == []
    assert error.command == f"kubectl auth can-i create jobs.batch -n {cluster.namespace}"


@pytest.mark.cluster
def test_a_log_that_may_not_be_read_is_an_error_and_no_endless_wait(cluster: TestCluster, weak: Cluster) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    cluster.cluster.create(path, {**bare_pod(), "metadata": {"name": "unread"}})
    until(lambda: cluster.cluster.get(f"{path}/unread")["status"]["phase"] == "Succeeded")

    with pytest.raises(PlaceError) as caught:
        PodLog(weak, cluster.namespace, "unread").follow(lambda _: None, lambda _: None)

    assert "pods/log" in caught.value.message
    assert caught.value.command == f"kubectl auth can-i get pods --subresource=log -n {cluster.namespace}"


@pytest.mark.cluster
def test_who_may_not_read_a_nodes_log_files_is_told_which_right_it_takes(cluster: TestCluster, weak: Cluster) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    cluster.cluster.create(path, {**bare_pod(), "metadata": {"name": "rotated"}})
    until(lambda: cluster.cluster.get(f"{path}/rotated")["status"]["phase"] == "Succeeded")
    pod = cluster.cluster.get(f"{path}/rotated")

    assert "nodes/proxy" in read_node_log(weak, pod, "worker", None, lambda _: True)
    assert read_node_log(cluster.cluster, pod, "worker", None, lambda _: True) == ""


@pytest.mark.cluster
def test_a_full_quota_is_named_with_what_is_used(cluster: TestCluster) -> None:
    quotas = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    cluster.cluster.create(quotas, {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}})
    until(lambda: "used" in (cluster.cluster.get(f"{quotas}/none").get("status") or {}))
    try:
        error = refused(cluster.cluster, f"/api/v1/namespaces/{cluster.namespace}/pods", bare_pod())
    finally:
        cluster.cluster.delete(f"{quotas}/none")

    assert [word for word in ("quota none", "pods=1", "pods=0") if word not in error.message] == []
    assert "resourcequota none" in str(error.command)


@pytest.mark.cluster
def test_a_namespace_that_is_being_deleted_takes_nothing(test_cluster: TestCluster) -> None:
    with new_namespace(test_cluster) as inside:
        # What holds it: an object that is not let go before we say so.
        path = f"/api/v1/namespaces/{inside.namespace}/configmaps"
        inside.cluster.create(path, {"metadata": {"name": "holds", "finalizers": ["stackmark.io/test"]}})
        try:
            inside.cluster.delete(f"/api/v1/namespaces/{inside.namespace}")
            error = refused(inside.cluster, f"/apis/batch/v1/namespaces/{inside.namespace}/jobs", job())
        finally:
            inside.cluster.patch(f"{path}/holds", {"metadata": {"finalizers": None}})

    assert inside.namespace in error.message
    assert "--namespace" in str(error.hint)


@pytest.mark.cluster
def test_a_namespace_that_is_not_there_is_named(cluster: TestCluster) -> None:
    error = refused(cluster.cluster, "/apis/batch/v1/namespaces/no-such-space/jobs", job())

    assert "no-such-space" in error.message
    assert "namespace no-such-space" in str(error.hint)


@pytest.mark.cluster
def test_pod_security_says_what_it_forbids(restricted_cluster: TestCluster) -> None:
    volumes = [{"name": "host", "hostPath": {"path": "/usr"}}]
    error = refused(
        restricted_cluster.cluster, f"/api/v1/namespaces/{restricted_cluster.namespace}/pods", bare_pod(volumes=volumes)
    )

    assert "restricted:latest" in error.message
    assert "hostPath" in error.message
    assert "--image" in str(error.hint)


@pytest.mark.cluster
def test_a_manifest_with_a_mistake_names_the_field(cluster: TestCluster) -> None:
    error = refused(cluster.cluster, f"/api/v1/namespaces/{cluster.namespace}/pods", bare_pod(activeDeadlineSeconds=-1))

    assert "spec.activeDeadlineSeconds" in error.message


@pytest.mark.cluster
def test_exec_in_a_pod_that_is_not_there_is_a_sentence_without_headers(cluster: TestCluster) -> None:
    with pytest.raises(ApiError) as caught:
        cluster.cluster.execute(cluster.namespace, "nobody", ["true"])

    assert caught.value.status == 404
    assert f"{cluster.namespace}/nobody" in caught.value.message
    assert "\n" not in caught.value.message


@pytest.mark.cluster
def test_exec_of_a_program_that_is_not_there_is_no_lost_connection(cluster: TestCluster) -> None:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    container = {"name": "worker", "image": "localhost/busybox:1", "command": ["sleep", "60"]}
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 0, "containers": [container]}
    cluster.cluster.create(path, {"metadata": {"name": "shell"}, "spec": spec})
    until(lambda: cluster.cluster.get(f"{path}/shell")["status"]["phase"] == "Running")

    with pytest.raises(ApiError) as caught:
        cluster.cluster.execute(cluster.namespace, "shell", ["no-such-program"])
    assert "no-such-program" in caught.value.message
    assert cluster.cluster.execute(cluster.namespace, "shell", ["sh", "-c", "echo out; exit 3"]).code == 3
    cluster.cluster.delete(f"{path}/shell")


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(
        "{apiVersion: v1, kind: Config, current-context: away, clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}],"
        " contexts: [{name: away, context: {cluster: c, user: u}}], users: [{name: u, user: {token: t}}]}"
    )
    began = time.monotonic()
    with pytest.raises(Unreachable) as caught:
        connect(kubeconfig=str(file)).get("/version")
    error = explained(caught.value, "the cluster is asked")

    assert "http://127.0.0.1:9" in error.message
    assert "away" in str(error.hint)
    assert time.monotonic() - began < 60
