"""A person with few rights in a cluster: a service account, and a kubeconfig that speaks for it."""

import json
from pathlib import Path

import yaml

from clusters import TestCluster
from stackmark.places.kubernetes.client import Json

RBAC = "rbac.authorization.k8s.io"


def limited_account(cluster: TestCluster, folder: Path, name: str, rules: list[Json]) -> str:
    """The kubeconfig of an account with these rights in the cluster's namespace, and no others."""
    inside, about = f"/namespaces/{cluster.namespace}", {"metadata": {"name": name}}
    cluster.cluster.create(f"/api/v1{inside}/serviceaccounts", about)
    if rules:
        cluster.cluster.create(f"/apis/{RBAC}/v1{inside}/roles", {**about, "rules": rules})
        binding = {
            **about,
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": cluster.namespace}],
        }
        cluster.cluster.create(f"/apis/{RBAC}/v1{inside}/rolebindings", binding)
    asked: Json = {"spec": {"expirationSeconds": 3600}}
    token = cluster.cluster.create(f"/api/v1{inside}/serviceaccounts/{name}/token", asked)["status"]["token"]
    known = yaml.safe_load(Path(cluster.kubeconfig).read_text())["clusters"][0]["cluster"]
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": known}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": cluster.namespace}}],
    }
    path = folder / f"{name}.kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)
