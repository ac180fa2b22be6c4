"""The doctor on a real cluster: the diagnostics of its nodes, an account without rights, a dead device plugin, no API server."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from asking import Answer, ask
from clusters import TestCluster, until
from limited_account import documented_rules
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json, connect

pytestmark = [pytest.mark.cluster, pytest.mark.cluster_whole]


def doctor(cluster: TestCluster, *words: str) -> Answer:
    return ask("cluster", "doctor", "--kubeconfig", cluster.kubeconfig, "--namespace", cluster.namespace, *words)


def told(answer: Answer, node: str) -> dict[str, Json]:
    """Results by diagnostic, of the cluster and of a node."""
    return {one["diagnostic"]: one for one in json.loads(answer.out)["results"] if one["node"] in (node, None)}


def kinds(result: Json) -> list[str]:
    return [finding["kind"] for finding in result["findings"]]


def nothing_is_left(cluster: TestCluster) -> bool:
    return (
        not cluster.jobs()
        and not cluster.maps()
        and not [pod for pod in cluster.pods() if "deletionTimestamp" not in pod["metadata"]]
    )


def node_names(cluster: TestCluster) -> list[str]:
    return [str(one["metadata"]["name"]) for one in cluster.cluster.items("/api/v1/nodes")]


def account(cluster: TestCluster, folder: Path, name: str, rules: list[Json]) -> str:
    """The kubeconfig of a service account with these rights in the namespace, and no others."""
    inside = f"/namespaces/{cluster.namespace}"
    about = {"metadata": {"name": name}}
    cluster.cluster.create(f"/api/v1{inside}/serviceaccounts", about)
    if rules:
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", **about, "rules": rules}
        binding = {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            **about,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}],
        }
        cluster.cluster.create(f"/apis/rbac.authorization.k8s.io/v1{inside}/roles", role)
        cluster.cluster.create(f"/apis/rbac.authorization.k8s.io/v1{inside}/rolebindings", binding)
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    token = cluster.cluster.create(f"/api/v1{inside}/serviceaccounts/{name}/token", asked)["status"]["token"]
    path = folder / f"{name}.kubeconfig"
    known = yaml.safe_load(Path(cluster.kubeconfig).read_text())["clusters"][0]["cluster"]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": known}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": cluster.namespace}}],
    }
    path.write_text(json.dumps(config))
    return str(path)


def test_the_diagnosis_of_a_node_of_stand_ins_fails_at_the_driver_and_leaves_nothing(cluster: TestCluster) -> None:
    node = node_names(cluster)[0]
    answer = doctor(cluster, "--node", node, "--json")
    results = told(answer, node)
    assert answer.code == 6, answer.err
    assert {diagnostic: one["status"] for diagnostic, one in results.items() if diagnostic not in ("nodes", "allocatable")} == {
        "api": "ok", "permissions": "ok", "pci": "warning", "driver": "failed", "runtime": "skipped", "device-plugin": "ok",
        "pod": "unknown", "vector-add": "skipped",
    }  # fmt: skip
    assert "NVIDIA_VISIBLE_DEVICES=GPU-" in results["pod"]["evidence"]
    assert "small-shm" in kinds(results["pod"])
    assert kinds(results["nodes"])[:2] == ["no-cpu-manager", "topology"]
    assert until(lambda: nothing_is_left(cluster))


def test_on_cpus_alone_a_node_is_fit_and_its_sums_are_right(cluster: TestCluster, tmp_path: Path) -> None:
    node = node_names(cluster)[0]
    junit = tmp_path / "doctor.xml"
    answer = doctor(cluster, "--node", node, "--gpus", "none", "--junit", str(junit))
    assert answer.code == 0, answer.err
    assert 'failures="0"' in junit.read_text()
    assert f'name="{node}: vector-add"' in junit.read_text()


def test_a_look_without_pods_makes_nothing(cluster: TestCluster) -> None:
    answer = doctor(cluster, "--no-pods", "--json")
    assert answer.code == 0
    results = told(answer, node_names(cluster)[0])
    assert "--no-pods" in results["pod"]["evidence"]
    selector = f"{names.KIND_LABEL}=doctor"
    assert cluster.cluster.items(f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs", labelSelector=selector) == []


def test_an_account_without_rights_is_told_each_of_them(cluster: TestCluster, tmp_path: Path) -> None:
    config = account(cluster, tmp_path, "poor", [])
    answer = ask("cluster", "doctor", "--kubeconfig", config, "--json")
    permissions = told(answer, "")["permissions"]
    assert answer.code == 6
    first = permissions["findings"][0]["what"]
    for right in ("create jobs.batch", "delete jobs.batch", "list pods", "get pods/log"):
        assert right in first
    assert any("list nodes" in finding["what"] for finding in permissions["findings"])
    assert told(answer, "")["pod"]["status"] == "skipped"


def test_an_account_of_a_namespace_alone_gets_a_pod_where_the_scheduler_puts_it(
    cluster: TestCluster, worker_image: str, tmp_path: Path
) -> None:
    config = account(cluster, tmp_path, "lodger", documented_rules())
    answer = ask("cluster", "doctor", "--kubeconfig", config, "--image", worker_image, "--json")
    report = json.loads(answer.out)
    assert report["nodes"][0] in node_names(cluster), answer.err
    assert told(answer, report["nodes"][0])["driver"]["status"] == "failed"


def test_ctrl_c_leaves_nothing_in_the_cluster(cluster: TestCluster) -> None:
    until(lambda: not cluster.pods())  # of the tests before
    words = ["--kubeconfig", cluster.kubeconfig, "--namespace", cluster.namespace]
    process = subprocess.Popen(
        [sys.executable, "-m", "stackmark", "cluster", "doctor", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    until(lambda: [pod for pod in cluster.pods() if pod["metadata"]["labels"].get(names.KIND_LABEL) == "doctor"])
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert until(lambda: nothing_is_left(cluster))


def test_a_namespace_that_is_not_there_is_said_with_the_command_that_makes_it(cluster: TestCluster) -> None:
    answer = ask("cluster", "doctor", "--kubeconfig", cluster.kubeconfig, "--namespace", "nowhere", "--json")
    (finding,) = told(answer, "")["permissions"]["findings"]
    assert answer.code == 6
    assert finding["do"][0].endswith("create namespace nowhere")


def test_a_node_that_is_not_there_is_a_sentence(cluster: TestCluster) -> None:
    answer = doctor(cluster, "--node", "node-17")
    assert answer.code == 2
    assert all(name in answer.err for name in ("node-17", "node-1", "node-2"))


@pytest.mark.cluster_hurt
def test_a_dead_device_plugin_is_seen_by_what_can_be_allocated(cluster: TestCluster) -> None:
    first = node_names(cluster)[0]

    def allocatable() -> str:
        found = connect(kubeconfig=cluster.kubeconfig).get(f"/api/v1/nodes/{first}")["status"]["allocatable"]
        return str(found.get("nvidia.com/gpu"))

    try:
        cluster.do("kill", "device-plugin", "1")
        until(lambda: allocatable() == "0")
        answer = doctor(cluster, "--node", first, "--no-pods", "--json")
    finally:
        cluster.do("start", "device-plugin", "1")
    result = told(answer, first)["allocatable"]
    assert answer.code == 6
    assert result["status"] == "failed"
    assert result["findings"]
    until(lambda: allocatable() == "2")


@pytest.mark.cluster_hurt
def test_an_api_server_that_is_away_fails_the_first_diagnostic_and_skips_the_rest(cluster: TestCluster) -> None:
    try:
        cluster.do("kill", "api-server")
        answer = doctor(cluster, "--json")
    finally:
        cluster.do("start", "api-server")
    results = json.loads(answer.out)["results"]
    assert answer.code == 6
    assert [one["status"] for one in results] == ["failed"] + ["skipped"] * 9
