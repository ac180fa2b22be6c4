"""A pod as a place, on a real cluster by the command line: real Jobs, real shortages, real kills, and nothing left.

What the pod's log and status mean is tested apart, on recorded JSON; here the parts meet.
"""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, Answer, ask_process, environment
from clusters import RESTRICTED, TestCluster, new_namespace, until
from leaving_out import leave_out
from stackmark.events import Stream, gathered_facts
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.nodes import nodes_here
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import Facts

pytestmark = pytest.mark.cluster

TRAINING = (
    "train/resnet20",
    "--device",
    "cpu",
    "--batch",
    "4",
    "--warmup-seconds",
    "0",
    "--warmup-steps",
    "2",
    "--runs",
    "1",
)
# A program of ours starts in a fraction of the time that a framework takes.
# A program that is over at once: its time is less than a pod's status tells, so it prints a figure.
FIGURE = ("--cmd", "echo rate 1", "--metric", "rate (1)", "--cwd", ".")
# A worker in the image, without training anything.
ADDING = ("check/vector-add", "--device", "cpu")
SLEEPER = ("--cmd", "sleep 120", "--cwd", ".", "--runs", "1", "--gpus", "none")
# As OpenShift gives them.
UNKNOWN_UID = 1_000_730_000
PLACE_FAILED, WRONG_USE = 4, 2
# How long a queue holds a Job; the API's times are whole seconds.
HELD_S = 4.0


@dataclass(frozen=True)
class Desk:
    """Somebody at a command line: a cluster, a namespace and a ledger of their own."""

    cluster: TestCluster
    ledger: Path

    def words(self, *arguments: str) -> list[str]:
        """A command that begins with `run` happens in the namespace."""
        at = ("--on", "pod", "--namespace", self.cluster.namespace)
        return [arguments[0], *at, *arguments[1:]] if arguments[0] == "run" else list(arguments)

    def ask(self, *arguments: str, **more: str) -> Answer:
        return ask_process(self.ledger, *self.words(*arguments), **{**self.cluster.variables, **more})

    @contextmanager
    def begun(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """A command under way."""
        env = environment(self.ledger, **self.cluster.variables)
        argv = [*COMMAND, *self.words(*arguments)]
        process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def only_run(self) -> tuple[RunRow, list[str]]:
        with Ledger.open(str(self.ledger), create=False) as book:
            (row,) = book.runs()
            return row, book.stream(row.id)

    def running_pod(self) -> Json:
        """The pod of the one run under way, once its worker runs; a probe's is another."""
        return until(lambda: next((pod for pod in self.cluster.pods() if _is_running_run(pod)), None))

    def nothing_left(self) -> bool:
        """What was deleted may be on its way out; what was not stays."""
        until(lambda: not (self.cluster.pods() or self.cluster.jobs() or self.cluster.maps()), within_s=40)
        return True


def facts_in(lines: list[str]) -> Facts:
    stream = Stream()
    for line in lines:
        stream.feed(line)
    return gathered_facts(list(stream.events))


def _is_running_run(pod: Json) -> bool:
    labels = pod["metadata"].get("labels") or {}
    states = [one.get("state") or {} for one in pod["status"].get("containerStatuses") or ()]
    return labels.get("stackmark.io/kind") == "run" and any("running" in state for state in states)


@pytest.fixture
def desk(cluster: TestCluster, tmp_path: Path) -> Desk:
    return Desk(cluster, tmp_path / "ledger.sqlite3")


@pytest.fixture
def restricted_desk(restricted_cluster: TestCluster, tmp_path: Path) -> Desk:
    return Desk(restricted_cluster, tmp_path / "ledger.sqlite3")


# A worker's life


def test_a_network_is_trained_where_only_restricted_pods_may_be_as_a_uid_without_a_name(
    restricted_desk: Desk, worker_image: str
) -> None:
    limits = ("--cpus", "1", "--memory", "2g", "--shm", "256m")
    asked = ("run", *TRAINING, "--seconds", "2", "--image", worker_image, "--user", str(UNKNOWN_UID), *limits)
    answer = restricted_desk.ask(*asked, "--json")
    assert answer.code == 0, answer.err
    (result,) = json.loads(answer.out)["results"]
    assert result["throughput"]["rate_per_s"] > 0
    row, lines = restricted_desk.only_run()
    facts = facts_in(lines)
    assert facts["process"]["uid"] == UNKNOWN_UID
    assert facts["limits"]["capabilities"] == "none"
    assert facts["limits"]["shm_mib"] == 256
    assert facts["cgroup"]["cpu_limit_cpus"] == 1
    assert facts["cgroup"]["memory_limit_mib"] == 2048
    assert facts["container"]["kubernetes"] is True
    assert row.handle["software"] == "image"
    assert restricted_desk.nothing_left()


def test_what_became_of_the_pod_is_in_the_handle(desk: Desk, worker_image: str) -> None:
    answer = desk.ask("run", *FIGURE, "--runs", "1", "--gpus", "none", "--image", worker_image)
    assert answer.code == 0, answer.err
    row, lines = desk.only_run()
    handle: dict[str, Any] = dict(row.handle)
    nodes = [node["metadata"]["name"] for node in desk.cluster.cluster.items("/api/v1/nodes")]
    assert handle["node"] in nodes
    assert (handle["namespace"], handle["image"]) == (desk.cluster.namespace, worker_image)
    assert handle["image_id"].partition("sha256:")[2]
    assert handle["pod"].startswith(handle["job"])
    assert all(handle[name] >= 0 for name in ("queue_s", "start_s", "run_s"))
    assert handle["log"]["complete"] is True
    assert [json.loads(line)["seq"] for line in lines] == list(range(len(lines)))


def test_a_wait_in_a_queue_is_counted_as_one_and_not_as_the_start_of_the_container(
    desk: Desk, worker_image: str
) -> None:
    """A queue keeps a Job suspended, and its pod is made only when its turn has come. The queue is this test."""
    asked = ("run", *FIGURE, "--runs", "1", "--gpus", "none", "--queue", "team-a")
    seen: dict[str, float] = {}

    def admit() -> bool:
        for job in desk.cluster.jobs():
            name, run = job["metadata"]["name"], job["metadata"]["labels"]["stackmark.io/kind"] == "run"
            first = seen.setdefault(name, time.monotonic())
            if job["spec"].get("suspend") and (not run or time.monotonic() - first > HELD_S):
                path = f"/apis/batch/v1/namespaces/{desk.cluster.namespace}/jobs/{name}"
                desk.cluster.cluster.patch(path, {"spec": {"suspend": False}})
        return process.poll() is not None

    with desk.begun(*asked, "--image", worker_image) as process:
        until(admit)
        assert process.returncode == 0
    row, _ = desk.only_run()
    handle: dict[str, Any] = dict(row.handle)
    assert handle["queue_s"] >= HELD_S - 1


def test_a_pod_runs_the_software_of_the_host_that_is_its_node(desk: Desk) -> None:
    if not nodes_here(desk.cluster.cluster):
        leave_out("this machine is no node of the cluster")
    answer = desk.ask("run", *TRAINING, "--steps", "3")
    assert answer.code == 0, answer.err
    row, lines = desk.only_run()
    facts = facts_in(lines)
    assert (row.handle["software"], facts["software"]["executable"]) == ("host", COMMAND[0])
    assert desk.nothing_left()


# GPUs, of which there are too few


def gpu_node(cluster: TestCluster) -> str:
    """A node with two devices. All of them are taken for a moment, which is nothing to do to a cluster that others use."""
    for node in cluster.cluster.items("/api/v1/nodes"):
        if node["status"]["allocatable"].get("nvidia.com/gpu") == "2":
            return str(node["metadata"]["name"])
    raise AssertionError("the test cluster has no node with two GPUs")


COUNT_DEVICES = (
    "--cmd",
    "sh -c 'ls -d /dev/standin-gpu* | wc -l'",
    "--cwd",
    ".",
    "--metric",
    r"([0-9]+)",
    "--runs",
    "1",
)


@pytest.mark.cluster_hurt
def test_a_job_of_two_gpus_on_one_node_sees_two_devices_and_a_third_waits_and_says_for_whom(
    desk: Desk, worker_image: str, tmp_path: Path
) -> None:
    node = gpu_node(desk.cluster)
    here = ("--node", node, "--image", worker_image)
    two = desk.ask("run", *COUNT_DEVICES, "--gpus", "2", *here, "--json")
    assert two.code == 0, two.err
    assert json.loads(two.out)["results"][0]["throughput"]["rate_per_s"] == 2

    held = holder(desk.cluster, node, gpus=2)
    path = f"/api/v1/namespaces/{desk.cluster.namespace}/pods/{held}"
    try:
        late = Desk(desk.cluster, tmp_path / "other.sqlite3")
        with late.begun("run", *COUNT_DEVICES, "--gpus", "1", *here) as third:
            assert third.stderr is not None
            said = next(line for line in third.stderr if held in line)
            assert "nvidia.com/gpu" in said
            assert node in said
            desk.cluster.cluster.delete(path, grace_s=0)
            assert third.wait(timeout=60) == 0, "once the devices are free it runs"
    finally:
        desk.cluster.cluster.delete(path, grace_s=0)
    assert desk.nothing_left()


def holder(cluster: TestCluster, node: str, gpus: int) -> str:
    """Somebody else's pod, which has the node's devices."""
    name = "somebody-elses-training"
    container = {
        "name": "sleeper", "image": "localhost/busybox:1", "command": ["sleep", "600"],
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }  # fmt: skip
    spec = {
        "containers": [container],
        "nodeSelector": {"kubernetes.io/hostname": node},
        "terminationGracePeriodSeconds": 0,
    }
    path = f"/api/v1/namespaces/{cluster.namespace}/pods"
    cluster.cluster.create(path, {"metadata": {"name": name}, "spec": spec})
    until(lambda: cluster.cluster.get(f"{path}/{name}")["status"].get("phase") == "Running")
    return name


# Drivers and API servers that go away


@pytest.mark.parametrize(
    ("number", "code", "kind"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_to_the_driver_leaves_nothing(
    desk: Desk, worker_image: str, number: signal.Signals, code: int, kind: str
) -> None:
    with desk.begun("run", *SLEEPER, "--image", worker_image) as process:
        desk.running_pod()
        process.send_signal(number)
        process.communicate(timeout=60)
        assert process.returncode == code
    row, _ = desk.only_run()
    assert (row.status, row.failure_kind) == ("failed", kind)
    assert desk.nothing_left()


def test_what_a_killed_driver_left_the_next_command_removes(desk: Desk, worker_image: str) -> None:
    with desk.begun("run", *SLEEPER, "--image", worker_image) as process:
        desk.running_pod()
        process.kill()
        process.communicate()
    row, _ = desk.only_run()
    answer = desk.ask("results")
    assert answer.code == 0
    assert f"the run {row.id}" in answer.err
    assert "removed" in answer.err
    assert desk.nothing_left()


# What cannot be


def refused(desk: Desk, *arguments: str, code: int = PLACE_FAILED, **more: str) -> str:
    """The sentence; nothing is left, and no traceback seen."""
    answer = desk.ask("run", *FIGURE, "--runs", "1", "--gpus", "none", *arguments, **more)
    assert answer.code == code, answer.err
    assert "Traceback" not in answer.err
    return answer.err


def test_a_context_that_does_not_exist_is_wrong_use(desk: Desk, worker_image: str) -> None:
    said = refused(desk, "--image", worker_image, "--context", "elsewhere", code=WRONG_USE)
    assert "'elsewhere'" in said


def test_a_kubeconfig_that_does_not_exist_is_wrong_use(desk: Desk, worker_image: str) -> None:
    said = refused(desk, "--image", worker_image, KUBECONFIG="/nonexistent/config", code=WRONG_USE)
    assert "/nonexistent/config" in said


def test_a_cluster_that_does_not_answer_is_said_with_its_address(desk: Desk, worker_image: str, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(kubeconfig_text("https://127.0.0.1:1", token="x"))
    said = refused(desk, "--image", worker_image, KUBECONFIG=str(config))
    assert "https://127.0.0.1:1" in said


def test_without_the_right_to_create_jobs_the_missing_right_is_named(
    desk: Desk, worker_image: str, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(kubeconfig_text(desk.cluster.cluster.server, token=powerless(desk.cluster), insecure=True))
    said = refused(desk, "--image", worker_image, KUBECONFIG=str(config))
    assert "create" in said
    assert "jobs" in said
    assert "kubectl" in said
    assert desk.nothing_left()


def powerless(cluster: TestCluster) -> str:
    """The token of a service account that may do nothing."""
    path = f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts"
    cluster.cluster.create(path, {"metadata": {"name": "powerless"}})
    made = cluster.cluster.create(f"{path}/powerless/token", {"spec": {"expirationSeconds": 600}})
    return str(made["status"]["token"])


def kubeconfig_text(server: str, *, token: str, insecure: bool = False) -> str:
    named = {"server": server, **({"insecure-skip-tls-verify": True} if insecure else {})}
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "here",
        "clusters": [{"name": "here", "cluster": named}],
        "users": [{"name": "me", "user": {"token": token}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    })  # fmt: skip


def test_an_image_that_is_not_on_the_node_is_said_with_its_name(desk: Desk) -> None:
    said = refused(desk, "--image", "localhost/stackmark-nowhere:1", "--pull", "Never")
    assert "localhost/stackmark-nowhere:1" in said
    assert desk.nothing_left()


def test_an_image_that_cannot_be_pulled_is_waited_for_as_long_as_was_said(desk: Desk) -> None:
    said = refused(desk, "--image", "localhost/stackmark-nowhere:1", "--wait", "3s")
    assert "localhost/stackmark-nowhere:1" in said
    assert desk.nothing_left()


def test_more_memory_than_any_node_has_is_not_waited_for(desk: Desk, worker_image: str) -> None:
    said = refused(desk, "--image", worker_image, "--memory", "900000g")
    assert "memory" in said
    assert desk.nothing_left()


def test_more_gpus_than_any_node_has_are_not_waited_for(desk: Desk, worker_image: str) -> None:
    answer = desk.ask("run", *FIGURE, "--runs", "1", "--gpus", "500", "--image", worker_image)
    assert answer.code == PLACE_FAILED
    assert "nvidia.com/gpu" in answer.err
    assert desk.nothing_left()


def test_a_node_that_does_not_exist_is_said(desk: Desk, worker_image: str) -> None:
    assert "'nowhere'" in refused(desk, "--image", worker_image, "--node", "nowhere")


def test_a_namespace_that_does_not_exist_is_said(desk: Desk, worker_image: str) -> None:
    said = refused(desk, "--image", worker_image, "--namespace", "stackmark-nowhere")
    assert "stackmark-nowhere" in said


def test_a_namespace_that_is_being_deleted_takes_nothing_and_says_so(
    test_cluster: TestCluster, worker_image: str, tmp_path: Path
) -> None:
    with new_namespace(test_cluster) as going:
        space = f"/api/v1/namespaces/{going.namespace}"
        # Something in it that does not go until somebody has seen to it.
        kept = {"metadata": {"name": "kept", "finalizers": ["stackmark.io/test"]}}
        going.cluster.create(f"{space}/configmaps", kept)
        going.cluster.delete(space)
        until(lambda: going.cluster.get(space)["status"]["phase"] == "Terminating")
        try:
            said = refused(Desk(going, tmp_path / "ledger.sqlite3"), "--image", worker_image)
            assert going.namespace in said
            assert "being deleted" in said or "terminated" in said
            assert going.jobs() == []
        finally:
            going.cluster.patch(f"{space}/configmaps/kept", {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("hard", [{"pods": "0"}, {"count/configmaps": "1"}], ids=["pods", "config maps"])
def test_a_quota_that_allows_no_pod_or_not_its_worker_is_named(
    test_cluster: TestCluster, worker_image: str, tmp_path: Path, hard: dict[str, str]
) -> None:
    with new_namespace(test_cluster) as small:
        quota = {"metadata": {"name": "no-more"}, "spec": {"hard": hard}}
        path = f"/api/v1/namespaces/{small.namespace}/resourcequotas"
        small.cluster.create(path, quota)
        until(lambda: small.cluster.get(f"{path}/no-more").get("status", {}).get("hard"))
        desk = Desk(small, tmp_path / "ledger.sqlite3")
        answer = desk.ask("run", *ADDING, "--runs", "1", "--gpus", "none", "--image", worker_image)
        assert (answer.code, "no-more" in answer.err) == (PLACE_FAILED, True), answer.err
        assert desk.nothing_left()


def test_the_host_s_folders_are_refused_where_only_restricted_pods_may_be(
    test_cluster: TestCluster, tmp_path: Path
) -> None:
    if not nodes_here(test_cluster.cluster):
        leave_out("this machine is no node of the cluster")
    with new_namespace(test_cluster, RESTRICTED) as strict:
        desk = Desk(strict, tmp_path / "ledger.sqlite3")
        said = refused(desk)
        assert "restricted" in said
        assert "--image" in said
        assert desk.nothing_left()
