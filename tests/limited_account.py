"""A person with few rights in a cluster: a service account, and a kubeconfig that speaks for it."""

import json
import re
from pathlib import Path

import yaml

from clusters import TestCluster
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.rights import Right

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


def documented_rules() -> list[Json]:
    """The rules of the Role that docs/pods.md shows."""
    text = (Path(__file__).parents[1] / "docs/pods.md").read_text()
    blocks = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (role,) = [made for block in blocks for made in yaml.safe_load_all(block) if made["kind"] == "Role"]
    rules: list[Json] = role["rules"]
    return rules


def rights_in(rules: list[Json]) -> set[Right]:
    """Each right by itself."""
    return {
        Right(verb, group, *resource.split("/"))
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def without(rules: list[Json], right: Right) -> list[Json]:
    """The same rules less one right."""
    return [
        {
            "apiGroups": [one.group],
            "resources": [f"{one.resource}/{one.subresource}" if one.subresource else one.resource],
            "verbs": [one.verb],
        }
        for one in sorted(rights_in(rules), key=str)
        if one != right
    ]
