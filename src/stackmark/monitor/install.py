"""Manifests that bring the exporter into a cluster, and the scrape configuration of a plain Prometheus.

Results and GPUs are two workloads: a Deployment with one pod reads the ledger (PostgreSQL: a file is of one node), a DaemonSet
the GPUs of each node that has some. Neither asks for a GPU, which would take it from jobs: NVIDIA's container runtime shows
all of them to a pod that sets NVIDIA_VISIBLE_DEVICES (where it allows that), without a path of the host and without privileges.
Both listen on the pod's address, so both ask for the token of a Secret.
"""

import re
from dataclasses import dataclass
from typing import Literal

from stackmark.errors import SpecError
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.manifest.yaml_text import document, documents
from stackmark.monitor.rules import RuleOptions, rule_groups

Kind = Literal["kubernetes", "prometheus-operator", "openshift"]
PORT = 9469
NAME = "stackmark-exporter"
GPU_NAME = "stackmark-exporter-gpu"
TOKEN, TOKEN_KEY = "stackmark-exporter-token", "token"
LEDGER, LEDGER_KEY = "stackmark-ledger", "url"
INTERVAL = "30s"
USER = 1001
# Set by NVIDIA's GPU feature discovery, which the GPU operator installs.
GPU_NODES = {"nvidia.com/gpu.present": "true"}
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class InstallRequest:
    """What is installed. Without `runtime_class`, NVIDIA's runtime must be the default of the nodes."""

    kind: Kind
    image: str
    namespace: str = "stackmark"
    runtime_class: str = "nvidia"
    gpus: bool = True

    def __post_init__(self) -> None:
        if not _NAMESPACE.fullmatch(self.namespace):
            raise SpecError(
                f"--namespace {self.namespace!r} is not a valid name of a namespace",
                hint="use lower-case letters, digits and -, at most 63",
            )


def manifests(request: InstallRequest) -> list[Json]:
    """Make all objects, in the order in which they are applied."""
    found = [_service_account(request), *_ledger_exporter(request)]
    if request.gpus:
        found += _gpu_exporter(request)
    if request.kind != "kubernetes":
        found += [_monitor(request, NAME), *([_monitor(request, GPU_NAME)] if request.gpus else []), _rules(request)]
    return found


def install_yaml(request: InstallRequest) -> str:
    """Return the objects as YAML, with what has to be there before."""
    space = request.namespace
    remarks = [
        "stackmark exporter. Before it is applied, create the namespace and two secrets:",
        f"  kubectl create namespace {space}",
        f"  kubectl -n {space} create secret generic {TOKEN} --from-literal {TOKEN_KEY}=$(openssl rand -hex 32)",
        f"  kubectl -n {space} create secret generic {LEDGER} --from-literal {LEDGER_KEY}=postgresql://USER:PASSWORD@HOST/DATABASE",
    ]
    if request.kind == "openshift":
        remarks += [
            "User-workload monitoring must be on: enableUserWorkload: true in the ConfigMap cluster-monitoring-config of",
            "openshift-monitoring. It reads this namespace unless that has the label openshift.io/cluster-monitoring.",
        ]
    return documents(manifests(request), remarks)


def scrape_config(targets: tuple[str, ...] = (f"127.0.0.1:{PORT}",), token_file: str = "") -> str:
    """Return what goes into a plain prometheus.yml."""
    job: Json = {"job_name": "stackmark", "scrape_interval": INTERVAL, "static_configs": [{"targets": list(targets)}]}
    if token_file:
        job["authorization"] = {"type": "Bearer", "credentials_file": token_file}
    return document({"rule_files": ["stackmark.rules.yaml"], "scrape_configs": [job]})


def _labels(name: str) -> Json:
    return {"app.kubernetes.io/name": name, "app.kubernetes.io/part-of": "stackmark"}


def _metadata(request: InstallRequest, name: str, **labels: str) -> Json:
    return {"name": name, "namespace": request.namespace, "labels": {**_labels(name), **labels}}


def _service_account(request: InstallRequest) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": _metadata(request, NAME),
        "automountServiceAccountToken": False,
    }


def _ledger_exporter(request: InstallRequest) -> list[Json]:
    source = {"secretKeyRef": {"name": LEDGER, "key": LEDGER_KEY}}
    pod = _pod(request, NAME, ["--no-gpu"], [{"name": "STACKMARK_LEDGER", "valueFrom": source}])
    made = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(request, NAME),
        "spec": {
            "replicas": 1,
            # Two at once would show every result twice.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _labels(NAME)},
            "template": pod,
        },
    }
    return [made, _service(request, NAME)]


def _gpu_exporter(request: InstallRequest) -> list[Json]:
    # Devices are shown by these; the driver's library by `utility`.
    shown = [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
        {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "utility"},
    ]
    pod = _pod(request, GPU_NAME, ["--gpu", "--no-ledger"], shown)
    pod["spec"] |= {
        "nodeSelector": GPU_NODES,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    if request.runtime_class:
        pod["spec"]["runtimeClassName"] = request.runtime_class
    made = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": _metadata(request, GPU_NAME),
        "spec": {
            "selector": {"matchLabels": _labels(GPU_NAME)},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "20%"}},
            "template": pod,
        },
    }
    return [made, _service(request, GPU_NAME)]


def _pod(request: InstallRequest, name: str, arguments: list[str], environment: list[Json]) -> Json:
    """Make a pod that Pod Security `restricted` accepts. On OpenShift the namespace's range has the user."""
    security: Json = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if request.kind != "openshift":
        security |= {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    listen = [
        "stackmark",
        "exporter",
        "--listen",
        "0.0.0.0",  # noqa: S104 - of the pod, behind the token
        "--port",
        str(PORT),
        "--token-file",
        f"/token/{TOKEN_KEY}",
    ]
    probe = {"httpGet": {"path": "/healthy", "port": "metrics"}, "periodSeconds": 15}
    home = [{"name": "HOME", "value": "/tmp"}]  # noqa: S108 - a volume of its own
    container = {
        "name": "exporter",
        "image": request.image,
        "command": [*listen, *arguments],
        "env": [*home, *environment],
        "ports": [{"name": "metrics", "containerPort": PORT}],
        "readinessProbe": probe,
        "livenessProbe": {**probe, "failureThreshold": 4},
        "resources": {"requests": {"cpu": "20m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "token", "mountPath": "/token", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - a volume of its own
        ],
    }
    return {
        "metadata": {"labels": _labels(name)},
        "spec": {
            "serviceAccountName": NAME,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": security,
            "containers": [container],
            "volumes": [
                {"name": "token", "secret": {"secretName": TOKEN, "defaultMode": 0o440}},
                {"name": "tmp", "emptyDir": {"sizeLimit": "16Mi"}},
            ],
        },
    }


def _service(request: InstallRequest, name: str) -> Json:
    """Make a Service without an address of its own: Prometheus scrapes each pod behind it."""
    metadata = _metadata(request, name)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {
            "clusterIP": "None",
            "selector": _labels(name),
            "ports": [{"name": "metrics", "port": PORT, "targetPort": "metrics"}],
        },
    }


def _monitor(request: InstallRequest, name: str) -> Json:
    credentials = {"name": TOKEN, "key": TOKEN_KEY}
    endpoint: Json = {
        "port": "metrics",
        "interval": INTERVAL,
        "scrapeTimeout": "10s",
        "authorization": {"type": "Bearer", "credentials": credentials},
    }
    if name == GPU_NAME:
        # GPUs are of a node, and pods come and go.
        endpoint["relabelings"] = [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"}]
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": _metadata(request, name),
        "spec": {"selector": {"matchLabels": _labels(name)}, "endpoints": [endpoint]},
    }


def _rules(request: InstallRequest) -> Json:
    """Make the rules. OpenShift evaluates those of a project next to its metrics with this label, else in Thanos Ruler."""
    labels = {}
    if request.kind == "openshift":
        labels["openshift.io/prometheus-rule-evaluation-scope"] = "leaf-prometheus"
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": _metadata(request, "stackmark", **labels),
        "spec": rule_groups(RuleOptions()),
    }
