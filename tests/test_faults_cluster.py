"""Faults on a real cluster: parts that are killed and come back, while a pod trains and while none does."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clusters import TestCluster, until
from stackmark.cluster.faults import safety
from stackmark.cluster.faults.means import Setting, Target
from stackmark.cluster.faults.plugin_pod import PluginPod
from stackmark.cluster.faults.record import Looking, Part, State, recovery
from stackmark.cluster.faults.script import Script
from stackmark.errors import ClusterError
from stackmark.kubernetes.client import ApiError
from worker_process import environment

pytestmark = pytest.mark.cluster
RESOURCE = "nvidia.com/gpu"
NODE = "node-2"
# The smallest training there is; on a busy machine a step takes a tenth of a second.
TRAINS = ["--while", "train/resnet20", "--batch", "2", "--device", "cpu", "--threads", "1",
          "--warmup-steps", "1", "--warmup-seconds", "0s"]  # fmt: skip


@pytest.fixture(scope="module")
def hurtful(cluster: TestCluster) -> Iterator[TestCluster]:
    """The cluster, with one node that may be hurt."""
    path = f"/api/v1/nodes/{NODE}"
    before = cluster.cluster.get(path)["metadata"]["labels"].get(safety.ALLOWED)
    cluster.cluster.patch(path, {"metadata": {"labels": {safety.ALLOWED: "true"}}})
    yield cluster
    cluster.cluster.patch(path, {"metadata": {"labels": {safety.ALLOWED: before}}})


def stackmark(cluster: TestCluster, ledger: Path, *words: str) -> "subprocess.Popen[str]":
    env = environment(**cluster.variables, STACKMARK_LEDGER=str(ledger))
    argv = [sys.executable, "-m", "stackmark", *words]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def done(process: "subprocess.Popen[str]", timeout_s: float = 240) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def fault(cluster: TestCluster, ledger: Path, part: Part, *more: str) -> "subprocess.Popen[str]":
    times = ["--before", "4s", "--after", "3s"]
    where = ["--namespace", cluster.namespace, "--node", NODE, "--yes", "--json"]
    return stackmark(cluster, ledger, "cluster", "fault", part, *TRAINS, *times, *where, *more)


def settled(looking: Looking, still_s: float = 5.0) -> State:
    """The node with its two devices, unchanged for a while: a restarted kubelet reports what it had, then none, then two."""
    since = time.monotonic()

    def still() -> State | None:
        nonlocal since
        state = looking.look()
        if not state.ready or state.allocatable != 2:
            since = time.monotonic()
        return state if time.monotonic() - since >= still_s else None

    return until(still, within_s=60)


def alive(cluster: TestCluster, part: str, node: str = "") -> bool:
    words = [part, node] if node else [part]
    return any(line.split()[:-1] == words and line.split()[-1] != "down" for line in cluster.do("status").splitlines())


@pytest.mark.cluster_hurt
def test_no_event_is_lost_and_none_comes_twice_when_the_api_server_is_dead_for_ten_seconds(
    hurtful: TestCluster, tmp_path: Path
) -> None:
    ledger, picture = tmp_path / "l.sqlite3", tmp_path / "fault.svg"
    means = ["--means", f"script:{hurtful.script}", "-o", str(picture)]
    code, out, err = done(fault(hurtful, ledger, "api-server", "--for", "10s", *means))
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)
    assert found["fault_s"] >= 10
    assert found["api_away_s"] > 5
    log, disk = found["log"], found["disk"]
    assert log["complete"] is True
    assert log["reconnects"] >= 1
    # Counted twice over: by the log, and by the worker's own copy on the node.
    assert disk["read"] is True
    assert (disk["steps"], disk["not_in_log"]) == (log["steps"], 0)
    assert found["final_step"] == log["steps"] > 20
    assert (found["same_pod"], found["restarts"], found["run_status"]) == (True, 0, "done")
    assert found["interruption"]["during_ratio"]["ratio"] > 0
    assert found["new_pod"]["after_s"] is not None
    assert found["healthy"] is True
    assert picture.read_text().startswith("<?xml")
    # And all of it again, from the ledger alone.
    code, again, err = done(stackmark(hurtful, ledger, "show", found["experiment_id"], "--json"))
    assert (code, json.loads(again)) == (0, found), err
    until(lambda: not left(hurtful), within_s=20)


def left(cluster: TestCluster) -> list[str]:
    """What is in the namespace and not being deleted."""
    return [pod["metadata"]["name"] for pod in cluster.pods() if "deletionTimestamp" not in pod["metadata"]]


@pytest.mark.cluster_hurt
def test_a_helper_on_the_node_stops_and_starts_what_it_is_told_from_outside_of_its_pod(
    hurtful: TestCluster, tmp_path: Path
) -> None:
    """The runtime: the helper's own container cannot be trusted to heal it."""
    commands = [
        "--means", "helper", "--stop-command", f"{hurtful.script} kill runtime 2",
        "--start-command", f"{hurtful.script} start runtime 2",
    ]  # fmt: skip
    try:
        code, out, err = done(fault(hurtful, tmp_path / "l.sqlite3", "runtime", "--for", "5s", *commands))
        assert alive(hurtful, "runtime", "2")
    finally:
        # Started by a process of the helper's, and not by the machine: whatever it starts has that one's rights and limits.
        if alive(hurtful, "runtime", "2"):
            hurtful.do("kill", "runtime", "2")
        hurtful.do("start", "runtime", "2")
    assert code == 0, err
    found = json.loads(out)
    assert found["exact"] is True  # the node's own times were read
    assert found["fault_s"] >= 5
    assert found["log"]["complete"] is True
    assert found["disk"]["not_in_log"] == 0


@pytest.mark.cluster_hurt
def test_the_cluster_is_healed_when_stackmark_is_killed_in_the_middle_of_a_fault(
    hurtful: TestCluster, tmp_path: Path
) -> None:
    process = fault(
        hurtful, tmp_path / "l.sqlite3", "device-plugin", "--for", "10min", "--means", f"script:{hurtful.script}"
    )
    try:
        until(lambda: not alive(hurtful, "device-plugin", "2"), within_s=120)
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    finally:
        process.kill()
        process.communicate()
    until(lambda: alive(hurtful, "device-plugin", "2"), within_s=30)
    # Its lock is left, and says until when; its run is found again, and its pod removed, by the next command.
    with pytest.raises(ClusterError, match="another fault is in progress"), safety.locked(hurtful.cluster, "x-me", 60):
        pass
    hurtful.cluster.delete(f"/apis/coordination.k8s.io/v1/namespaces/{safety.LOCK_NAMESPACE}/leases/{safety.LOCK}")
    _, _, err = done(stackmark(hurtful, tmp_path / "l.sqlite3", "results"))
    assert "was lost" in err


@pytest.mark.cluster_hurt
@pytest.mark.parametrize("part", ["kubelet", "node-network"])
def test_a_part_that_is_killed_comes_back_and_the_node_with_all_its_devices(hurtful: TestCluster, part: Part) -> None:
    looking = Looking(hurtful.cluster, NODE, RESOURCE, hurtful.namespace, "r-none")
    before = settled(looking)
    looking.start()
    setting = Setting(
        cluster=hurtful.cluster, part=part, namespace=hurtful.namespace, image="", how=str(hurtful.script)
    )
    hurt = Script(setting).hurt(Target(part, NODE, 3.0, "x-1"), threading.Event())
    after = settled(looking)
    looking.stop()
    assert after.allocatable == before.allocatable
    assert hurt.over_unix_s - hurt.begun_unix_s >= 3.0
    seen = recovery(looking.states, (hurt.begun_unix_s, hurt.over_unix_s), time.time())
    assert seen.unreachable_s == 0


def test_a_device_plugins_pod_is_deleted_as_often_as_it_comes_back_and_then_left_alone(cluster: TestCluster) -> None:
    """A DaemonSet that stands for the plugin: what brings it back is the cluster's own controller."""
    label = {"app": "plugin-of-the-test"}
    container = {"name": "plugin", "image": "localhost/busybox:1", "command": ["sleep", "600"]}
    body = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "plugin"},
        "spec": {
            "selector": {"matchLabels": label},
            "template": {"metadata": {"labels": label}, "spec": {"containers": [container]}},
        },
    }
    cluster.cluster.create(f"/apis/apps/v1/namespaces/{cluster.namespace}/daemonsets", body)

    def on_node() -> list[str]:
        found = [pod for pod in cluster.pods() if pod["metadata"].get("labels", {}).get("app") == label["app"]]
        return [pod["metadata"]["uid"] for pod in found if pod["spec"].get("nodeName") == NODE]

    first = until(on_node)
    setting = Setting(
        cluster=cluster.cluster, part="device-plugin", namespace=cluster.namespace, image="",
        plugin_selector=f"app={label['app']}",
    )  # fmt: skip
    means, target = PluginPod(setting), Target("device-plugin", NODE, 3.0, "x-1")
    plan = means.plan(target)
    assert f"deletes {cluster.namespace}/plugin-" in plan.does[0]
    hurt = means.hurt(target, threading.Event())
    assert hurt.said[0].count("plugin-") >= 2
    last = until(on_node)
    assert last != first
    time.sleep(1.5)
    assert on_node() == last


def test_one_fault_at_a_time_and_a_lock_that_is_over_is_taken(cluster: TestCluster) -> None:
    with safety.locked(cluster.cluster, "x-first", 60):
        with (
            pytest.raises(ClusterError, match="another fault is in progress") as caught,
            safety.locked(cluster.cluster, "x-second", 60),
        ):
            pass
        assert "x-first" in caught.value.message
        assert "delete lease stackmark-fault" in str(caught.value.hint)
    path = f"/apis/coordination.k8s.io/v1/namespaces/{safety.LOCK_NAMESPACE}/leases/{safety.LOCK}"
    with pytest.raises(ApiError):
        cluster.cluster.get(path)
    cluster.cluster.create(path.rpartition("/")[0], safety._lease("x-dead", 1))
    until(lambda: _expired(path, cluster), within_s=10)
    with safety.locked(cluster.cluster, "x-next", 60):
        assert "x-next" in cluster.cluster.get(path)["spec"]["holderIdentity"]


def _expired(path: str, cluster: TestCluster) -> bool:
    ends = safety._ends(cluster.cluster.get(path)["spec"])
    return ends is not None and ends.timestamp() < time.time()


def test_without_yes_nothing_is_done_and_a_node_without_the_label_is_refused(
    cluster: TestCluster, tmp_path: Path
) -> None:
    words = ["cluster", "fault", "kubelet", *TRAINS, "--namespace", cluster.namespace, "--node", "node-1"]
    code, out, err = done(stackmark(cluster, tmp_path / "l", *words, "--yes"))
    assert (code, out) == (2, "")
    assert "kubectl label node node-1 stackmark.io/allow-faults=true" in err
    cluster.cluster.patch("/api/v1/nodes/node-1", {"metadata": {"labels": {safety.ALLOWED: "true"}}})
    try:
        code, out, err = done(stackmark(cluster, tmp_path / "l", *words))
    finally:
        cluster.cluster.patch("/api/v1/nodes/node-1", {"metadata": {"labels": {safety.ALLOWED: None}}})
    assert code == 0, err
    assert "systemctl stop kubelet" in out
    assert "this was a dry run" in out
    assert not os.path.exists(tmp_path / "l")
