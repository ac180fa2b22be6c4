"""Clusters as the doctor sees them: a recorded node, and labels as the vendors' documentation prints them."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from stackmark.cluster.doctor.diagnosing import make_report
from stackmark.cluster.doctor.evidence import RIGHTS, Addition, ClusterView, Look, NodeVisit, Wish
from stackmark.cluster.doctor.results import Report

DATA = Path(__file__).parent / "data"
RECORDED: dict[str, Any] = json.loads((DATA / "kubernetes/doctor_node.json").read_text())
DOCUMENTED: dict[str, Any] = json.loads((DATA / "kubernetes/gfd_labels.json").read_text())
WISH = Wish(tolerations=({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},))
H200 = "GPU-00000000-0000-0000-0000-000000000000"


def node(name: str = "node-2", **documented: str) -> dict[str, Any]:
    """The recorded node, or one with the labels and resources of `like`."""
    made: dict[str, Any] = deepcopy(RECORDED["node"])
    made["metadata"]["name"] = name
    if like := documented.get("like"):
        made["metadata"]["labels"] |= DOCUMENTED[like]["labels"]
        for part in ("capacity", "allocatable"):
            del made["status"][part]["nvidia.com/gpu"]
            made["status"][part] |= {key: str(count) for key, count in DOCUMENTED[like]["resources"].items()}
    return made


def seen(*nodes: dict[str, Any], **more: Any) -> ClusterView:
    rights = tuple(replace(right, allowed=True) for right in RIGHTS)
    base = ClusterView(
        "test",
        "https://10.0.0.1:6443",
        "default",
        version="v1.34.4",
        rights=rights,
        nodes=list(nodes),
        pods=[],
        daemonsets=[],
    )
    return replace(base, **more)


def look(which: str, gpus: int = 0, **changed: Any) -> Look:
    facts = deepcopy(RECORDED[which]["facts"])
    for subject, values in changed.items():
        facts[subject] |= values
    return Look(facts=facts, gpus=gpus, problems=tuple(RECORDED[which]["problems"]))


def h200_gpu() -> dict[str, Any]:
    """What the driver showed on an H200, from a recorded run."""
    for line in (DATA / "h200_gpt2.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["event"] == "facts" and event["subject"] == "gpu":
            found: dict[str, Any] = event["facts"]
            return found
    raise AssertionError("the recorded run has no GPU")


def on_bus(*drivers: str | None, module: str | None = None) -> dict[str, Any]:
    gpus = [
        {"address": f"0000:{i:02x}:00.0", "vendor": "nvidia", "device": "0x2335", "driver": driver}
        for i, driver in enumerate(drivers)
    ]
    return {"devices": 40, "gpus": gpus, "modules": {"nvidia": module} if module else {}, "device_nodes": []}


def real_visit(shown: int = 1, given: str = H200) -> NodeVisit:
    """A node with an H200 and its driver."""
    gpu = h200_gpu()
    first = gpu["devices"][0]
    gpu["devices"] = [{**first, "uuid": first["uuid"][:-1] + str(i)} for i in range(shown)]
    pci = on_bus("nvidia", module="580.159.04")
    with_gpus = look(
        "with_gpus",
        1,
        gpu=gpu,
        pci={**pci, "device_nodes": ["/dev/nvidia0"]},
        environment={"NVIDIA_VISIBLE_DEVICES": given},
    )
    added = Addition(figure="3200 GB/s", checked=33_687_630, devices=1)
    return NodeVisit(plain=look("plain", pci=pci, limits={"shm_mib": 8192.0}), with_gpus=with_gpus, addition=added)


def stand_in() -> NodeVisit:
    return NodeVisit(plain=look("plain"), with_gpus=look("with_gpus", 1))


def of(made: dict[str, Any], visit: NodeVisit | None = None, wish: Wish = WISH, **more: Any) -> Report:
    visits = {made["metadata"]["name"]: visit} if visit else {}
    return make_report(seen(made, **more), wish, visits)
