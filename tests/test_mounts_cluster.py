"""Mounts in real pods: folders of the node, claims, and what is said of those that are not there.

The pods run the host's own software, or busybox alone where a program that reads a file is enough.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from PIL import Image

from asking import Answer, ask_process
from clusters import TestCluster, until
from leaving_out import leave_out
from stackmark.events import Stream, gathered_facts
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.nodes import nodes_here
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger

pytestmark = pytest.mark.cluster

BUSYBOX = "localhost/busybox:1"
TRAINING = (
    "train/resnet20", "--device", "cpu", "--batch", "4", "--steps", "4", "--warmup-seconds", "0", "--warmup-steps", "1",
    "--data-workers", "1", "--runs", "1", "--gpus", "none",
)  # fmt: skip
READING = (
    "--cmd",
    "cat /data/figure.txt",
    "--metric",
    "rate ([0-9]+)",
    "--image",
    BUSYBOX,
    "--gpus",
    "none",
    "--runs",
    "1",
)
PLACE_FAILED = 4


class Desk:
    """Somebody at a command line, with a ledger of their own."""

    def __init__(self, cluster: TestCluster, folder: Path) -> None:
        self.cluster, self._ledger = cluster, folder / "ledger.sqlite3"

    def run(self, *words: str) -> Answer:
        at = ("run", "--on", "pod", "--namespace", self.cluster.namespace)
        return ask_process(self._ledger, *at, *words, **self.cluster.variables)

    def only_run(self) -> tuple[RunRow, list[str]]:
        with Ledger.open(str(self._ledger), create=False) as book:
            (row,) = book.runs()
            return row, book.stream(row.id)

    def mounts(self) -> object:
        """What the worker of the one run found where something was to be mounted."""
        stream = Stream()
        for line in self.only_run()[1]:
            stream.feed(line)
        return gathered_facts(list(stream.events))["container"]["mounts"]


@pytest.fixture
def desk(cluster: TestCluster, tmp_path: Path) -> Desk:
    if not nodes_here(cluster.cluster):
        leave_out("this machine is not a node of the cluster, so that it has no folders to mount")
    return Desk(cluster, tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images of two classes, and a file with a figure, readable by everybody."""
    made = tmp_path / "served"
    for name in ("black", "white"):
        (made / "train" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (40, 40), name).save(made / "train" / name / f"{number}.png")
    (made / "figure.txt").write_text("rate 7\n")
    made.chmod(0o777)
    for above in (made, *made.parents):
        if above.stat().st_mode & 0o005 != 0o005:
            above.chmod(above.stat().st_mode | 0o005)
    return made


@pytest.fixture
def claim(desk: Desk, folder: Path) -> Iterator[str]:
    """A claim that is bound to the folder, by a volume made by hand."""
    name, api = f"data-{uuid4().hex[:8]}", desk.cluster.cluster
    claims = f"/api/v1/namespaces/{desk.cluster.namespace}/persistentvolumeclaims"
    spec: Json = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {**spec, "capacity": {"storage": "1Mi"}, "hostPath": {"path": str(folder), "type": "Directory"}}
    api.create("/api/v1/persistentvolumes", {"metadata": {"name": name}, "spec": volume})
    try:
        wanted = {**spec, "volumeName": name, "resources": {"requests": {"storage": "1Mi"}}}
        api.create(claims, {"metadata": {"name": name}, "spec": wanted})
        until(lambda: api.get(f"{claims}/{name}")["status"].get("phase") == "Bound")
        yield name
    finally:
        api.delete(f"{claims}/{name}")
        api.delete(f"/api/v1/persistentvolumes/{name}")


@pytest.mark.parametrize("prefix", ["", "hostpath:"])
def test_a_folder_of_the_node_is_trained_from_at_another_path(desk: Desk, folder: Path, prefix: str) -> None:
    answer = desk.run(*TRAINING, "--data", "/data", "--mount", f"{prefix}{folder}:/data", "--json")
    assert answer.code == 0, answer.err
    (result,) = json.loads(answer.out)["results"]
    assert result["throughput"]["rate_per_s"] > 0
    assert desk.mounts() == {"/data": "read-only"}


def test_a_claim_is_trained_from_and_verified_to_be_read_only(desk: Desk, claim: str) -> None:
    answer = desk.run(*TRAINING, "--data", "/data", "--mount", f"claim:{claim}:/data")
    assert answer.code == 0, answer.err
    assert desk.mounts() == {"/data": "read-only"}


def test_a_program_in_an_image_writes_to_a_claim_that_was_mounted_writable(
    desk: Desk, claim: str, folder: Path
) -> None:
    writes = ("--cmd", "sh -c 'cp /data/figure.txt /data/copy.txt; cat /data/copy.txt'", *READING[2:])
    answer = desk.run(*writes, "--mount", f"claim:{claim}:/data:rw")
    assert answer.code == 0, answer.err
    assert (folder / "copy.txt").read_text() == "rate 7\n"
    (folder / "copy.txt").unlink()
    answer = desk.run(*writes, "--mount", f"claim:{claim}:/data")
    assert answer.code != 0
    assert not (folder / "copy.txt").exists()


def test_a_path_of_this_machine_brings_a_pod_with_an_image_here(desk: Desk, folder: Path) -> None:
    answer = desk.run(*READING, "--mount", f"{folder}:/data")
    assert answer.code == 0, answer.err
    assert desk.only_run()[0].handle["node"] in {node.name for node in nodes_here(desk.cluster.cluster)}


def test_a_claim_that_does_not_exist_is_said_before_anything_is_created(desk: Desk) -> None:
    answer = desk.run(*READING, "--mount", "claim:no-such-claim:/data")
    assert answer.code == PLACE_FAILED
    assert all(named in answer.err for named in ("no-such-claim", desk.cluster.namespace, "get pvc"))
    assert desk.cluster.jobs() == []


def test_a_claim_without_a_volume_is_named_while_its_pod_waits(desk: Desk) -> None:
    claims = f"/api/v1/namespaces/{desk.cluster.namespace}/persistentvolumeclaims"
    spec: Json = {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "",
        "resources": {"requests": {"storage": "1Mi"}},
    }
    desk.cluster.cluster.create(claims, {"metadata": {"name": "waits"}, "spec": spec})
    answer = desk.run(*READING, "--mount", "claim:waits:/data", "--wait", "8s")
    assert answer.code == PLACE_FAILED
    assert all(named in answer.err for named in ("claim waits", "unbound immediate PersistentVolumeClaims"))


def test_a_folder_that_the_node_does_not_have_is_said_at_once(desk: Desk, tmp_path: Path) -> None:
    answer = desk.run(*READING, "--mount", f"hostpath:{tmp_path}/none:/data", "--wait", "2min")
    assert answer.code == PLACE_FAILED
    assert f"{tmp_path}/none" in answer.err
