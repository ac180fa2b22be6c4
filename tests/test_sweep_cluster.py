"""A sweep on a real cluster: every device once, by the trick that a pod keeps its device while it holds it."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from asking import COMMAND, Answer, ask_process, environment
from clusters import TestCluster, until
from stackmark.events import gathered_facts
from stackmark.experiments.judging import read_stored
from stackmark.kubernetes.client import Json
from stackmark.ledger.store import Ledger
from stackmark.places.place import Facts

pytestmark = [pytest.mark.cluster, pytest.mark.cluster_whole]

# Counts for a second, without a framework: what is tested is the way, not the work.
SPIN = """
import time
best = 0
for _ in range(3):
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < 0.4:
        for i in range(20000):
            pass
        count += 1
    best = max(best, count / (time.perf_counter() - began))
print(f"rate: {best:.3f}")
"""


@pytest.fixture
def spin(tmp_path: Path) -> list[str]:
    """The words that sweep with it."""
    (tmp_path / "spin.py").write_text(SPIN)
    return ["--cmd", f"{sys.executable} spin.py", "--cwd", str(tmp_path), "--metric", "rate: ([0-9.]+)"]


@pytest.fixture
def several(cluster: TestCluster) -> list[str]:
    """The words that mean one node with two GPUs or more."""
    for node in cluster.cluster.items("/api/v1/nodes"):
        if int(node["status"]["allocatable"].get("nvidia.com/gpu", "0")) > 1:
            return [
                "--gpus",
                "1",
                "--nodes",
                f"kubernetes.io/hostname={node['metadata']['labels']['kubernetes.io/hostname']}",
            ]
    pytest.skip("no node of this cluster has two GPUs")


@pytest.fixture
def first(cluster: TestCluster) -> str:
    """A node of the cluster."""
    return str(min(node["metadata"]["name"] for node in cluster.cluster.items("/api/v1/nodes")))


def sweep(cluster: TestCluster, ledger: Path, *words: str) -> Answer:
    where = ["--namespace", cluster.namespace, "--json"]
    return ask_process(ledger, "cluster", "sweep", *words, *where, KUBECONFIG=cluster.kubeconfig)


def facts_of(book: Ledger, run: str) -> Facts:
    return gathered_facts(read_stored(book.stream(run)).stream.events)


def test_every_gpu_of_every_node_is_measured_once_and_nothing_is_left(
    cluster: TestCluster, tmp_path: Path, spin: list[str], several: list[str]
) -> None:
    """On a node with two, the second pod gets the other one, since the first still holds its own."""
    done = sweep(cluster, tmp_path / "ledger.sqlite3", *spin, *several)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    devices = [one["device"] for one in found["devices"]]
    assert len(devices) == 2
    assert len(set(devices)) == 2
    assert {one["state"] for one in found["devices"]} == {"measured"}
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        inside = [facts_of(book, one["run"])["container"] for one in found["devices"]]
    assert {facts.get("kubernetes_version") for facts in inside} == {cluster.cluster.version}
    assert not any(facts.get("engine_version") for facts in inside)
    assert [job for job in cluster.jobs() if job["metadata"]["labels"].get("stackmark.io/sweep")] == []


def test_nodes_without_gpus_are_swept_by_their_cpus_one_at_a_time_where_they_share_a_machine(
    cluster: TestCluster, tmp_path: Path, spin: list[str]
) -> None:
    done = sweep(cluster, tmp_path / "ledger.sqlite3", *spin, "--gpus", "0")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert len(found["devices"]) >= 2
    assert [one["device"] for one in found["devices"]] == [one["node"] for one in found["devices"]]
    assert "nodes share one machine" in found["at_once"]
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        rows = book.runs_of(found["experiment"])
    # One at a time: each began when the one before it had ended.
    assert all(later.started_unix_s >= (earlier.ended_unix_s or 0) for earlier, later in pairwise(rows))


def test_a_resumed_sweep_measures_the_device_that_is_missing_and_no_other(
    cluster: TestCluster, tmp_path: Path, spin: list[str], several: list[str]
) -> None:
    """A killed driver leaves pods that hold devices: they are removed, and the measured device is held while the other runs."""
    ledger = tmp_path / "ledger.sqlite3"
    words = [*spin, *several]
    first = json.loads(sweep(cluster, ledger, *words).out)
    with Ledger.open(str(ledger)) as book:
        book.delete([first["devices"][0]["run"]])
    again = ask_process(ledger, "resume", "last", "--json", KUBECONFIG=cluster.kubeconfig)
    assert again.code == 0, again.err
    second = json.loads(again.out)
    assert {one["device"] for one in second["devices"]} == {one["device"] for one in first["devices"]}
    assert second["devices"][1]["run"] == first["devices"][1]["run"]
    assert second["devices"][0]["device"] == first["devices"][0]["device"]


def test_a_device_that_fails_is_a_row_and_the_sweep_goes_on(cluster: TestCluster, tmp_path: Path, first: str) -> None:
    (tmp_path / "one.py").write_text(
        f"import os, sys\nsys.exit(3 if os.environ['STACKMARK_NODE'] == {first!r} else print('rate: 5'))"
    )
    words = ["--cmd", f"{sys.executable} one.py", "--cwd", str(tmp_path), "--metric", "rate: ([0-9.]+)", "--gpus", "0"]
    done = sweep(cluster, tmp_path / "ledger.sqlite3", *words)
    assert done.code == 7, done.err
    states = {one["node"]: (one["state"], one["reason"]) for one in json.loads(done.out)["devices"]}
    state, reason = states.pop(first)
    assert state == "failed"
    assert "code 3" in reason
    assert {state for state, _ in states.values()} <= {"ok", "measured"}


def test_a_node_that_hangs_is_a_row_after_its_time(cluster: TestCluster, tmp_path: Path, first: str) -> None:
    (tmp_path / "hang.py").write_text("import time\ntime.sleep(600)")
    words = ["--cmd", f"{sys.executable} hang.py", "--cwd", str(tmp_path), "--metric", "rate: ([0-9.]+)"]
    where = ["--gpus", "0", "--nodes", f"kubernetes.io/hostname={first}", "--time-limit", "3s"]
    done = sweep(cluster, tmp_path / "ledger.sqlite3", *words, *where)
    assert done.code == 6, done.err
    (row,) = json.loads(done.out)["devices"]
    assert row["state"] == "failed"
    assert "3.00 s" in row["reason"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nodes", "a in (b"], "is not a label selector"),
        (["--nodes", "there=none"], "there is no node to sweep"),
        (["--resource", "amd.com/gpu", "--gpus", "1"], "it has no amd.com/gpu"),
        (["--gpus", "1", "--cpus", "1000"], "do not fit on"),
    ],
    ids=["selector", "no node", "no resource", "too many CPUs"],
)
def test_what_the_cluster_cannot_do_is_said_before_a_pod_is_made(
    cluster: TestCluster, tmp_path: Path, spin: list[str], words: list[str], said: str
) -> None:
    done = sweep(cluster, tmp_path / "ledger.sqlite3", *spin, *words)
    assert done.code in (2, 6), done.err
    assert said in done.err


def sweeping(cluster: TestCluster, ledger: Path, *words: str) -> "subprocess.Popen[str]":
    argv = [*COMMAND, "cluster", "sweep", *words, "--namespace", cluster.namespace, "--json"]
    env = environment(ledger, KUBECONFIG=cluster.kubeconfig)
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def shared_map(cluster: TestCluster) -> Json | None:
    """The ConfigMap of a sweep, once a pod mounts it; its owner is a Job that has no pod."""
    anchors = {
        job["metadata"]["uid"]
        for job in cluster.jobs()
        if job["spec"].get("suspend") and not job["spec"]["parallelism"]
    }
    found = [one for one in cluster.maps() if one["metadata"]["ownerReferences"][0]["uid"] in anchors]
    mounted = json.dumps([pod["spec"]["volumes"] for pod in cluster.pods()])
    return next((one for one in found if one["metadata"]["name"] in mounted), None)


def nothing_left(cluster: TestCluster) -> None:
    until(lambda: not (cluster.pods() or cluster.jobs() or cluster.maps()), within_s=60)


def test_the_pods_of_an_image_share_one_worker_which_goes_with_the_sweep_or_its_killed_driver(
    cluster: TestCluster, tmp_path: Path, several: list[str], worker_image: str
) -> None:
    nothing_left(cluster)
    ledger = tmp_path / "ledger.sqlite3"
    words = [
        "check/vector-add",
        "--device",
        "cpu",
        "--image",
        worker_image,
        "--more-runs",
        "0",
        "--confirm",
        "0",
        *several,
    ]
    killed = sweeping(cluster, ledger, *words)
    until(lambda: shared_map(cluster))
    killed.kill()
    killed.communicate()
    assert ask_process(ledger, "results", KUBECONFIG=cluster.kubeconfig).code == 0
    nothing_left(cluster)
    done = sweep(cluster, ledger, *words)
    assert done.code == 0, done.err
    devices = json.loads(done.out)["devices"]
    assert [one["state"] for one in devices] == ["measured", "measured"]
    assert len({one["device"] for one in devices}) == 2
    nothing_left(cluster)
