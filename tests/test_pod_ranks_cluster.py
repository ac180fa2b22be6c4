"""A run on several nodes of a real cluster: gloo ranks in pods on two nodes, and what is said and left when one of them fails."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, Answer, ask_process, environment
from clusters import TestCluster, until
from limited_account import documented_rules, limited_account
from stackmark.errors import ClusterError
from stackmark.events import Result, Stream, gathered_facts
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json, connect
from stackmark.kubernetes.objects import condition
from stackmark.kubernetes.rights import RUN_RIGHTS, SERVICE_RIGHT, missing_rights
from stackmark.kubernetes.status import phase_of
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger

pytestmark = pytest.mark.cluster

RUN_FAILED, PLACE_FAILED, WRONG_USE = 3, 4, 2
REDUCING = (
    *("op/all-reduce", "--device", "cpu", "--precision", "fp32", "--shape", "floats=4096"),
    *("--threads", "1", "--runs", "1"),
)
QUICK, LONG = ("--row-seconds", "0.1"), ("--row-seconds", "50")
TWO = ("--ranks", "2", "--ranks-per-node", "1")
# In a pod: send a signal to each rank, which are the agent's children.
SIGNAL = "for one in /proc/[0-9]*; do grep -qz '^RANK=' $one/environ && kill -{} ${{one#/proc/}} && echo sent; done"


@dataclass(frozen=True)
class Desk:
    """Somebody at a command line, with a ledger and notes of their own."""

    cluster: TestCluster
    folder: Path
    kubeconfig: str
    image: str

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.sqlite3"

    def _variables(self) -> dict[str, str]:
        return {"KUBECONFIG": self.kubeconfig, "XDG_STATE_HOME": str(self.folder / "state")}

    def words(self, *words: str) -> list[str]:
        return [*words, "--on", "pod", "--namespace", self.cluster.namespace, "--image", self.image]

    def run(self, *words: str) -> Answer:
        return self.ask(*self.words("run", *words))

    def ask(self, *words: str) -> Answer:
        return ask_process(self.ledger, *words, **self._variables())

    @contextmanager
    def begun(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        env = environment(self.ledger, **self._variables())
        process = subprocess.Popen(
            [*COMMAND, *self.words("run", *words)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def only_run(self) -> tuple[RunRow, list[str]]:
        with Ledger.open(str(self.ledger), create=False) as book:
            (row,) = book.runs()
            return row, book.stream(row.id)

    def member(self, index: int) -> Json | None:
        """The pod with this number, once its ranks can be signalled."""
        for pod in self.cluster.pods():
            if (pod["metadata"].get("labels") or {}).get(names.INDEX_LABEL) == str(index):
                return pod
        return None

    def running(self, index: int) -> Json | None:
        """The pod with this number, once its worker runs."""
        pod = self.member(index)
        return pod if pod and phase_of(pod) == "running" else None

    def signal_rank(self, index: int, name: str) -> Json:
        """Send a signal to the ranks of a pod, as soon as it has some; return the pod."""

        def send() -> Json | None:
            pod = self.member(index)
            return pod if pod and self._exec(pod, SIGNAL.format(name)) else None

        return until(send)

    def _exec(self, pod: Json, script: str) -> bool:
        try:
            said = self.cluster.cluster.execute(self.cluster.namespace, pod["metadata"]["name"], ["sh", "-c", script])
        except ClusterError:
            return False  # its container does not run yet
        return "sent" in said.out

    def services(self) -> list[Json]:
        return self.cluster.cluster.items(f"/api/v1/namespaces/{self.cluster.namespace}/services")

    def nothing_left(self, within_s: float = 40) -> bool:
        """What was deleted may be on its way out; what was not stays."""
        until(
            lambda: not (self.cluster.pods() or self.cluster.jobs() or self.cluster.maps() or self.services()), within_s
        )
        return True


@pytest.fixture
def desk(restricted_cluster: TestCluster, worker_image: str, tmp_path: Path) -> Desk:
    return Desk(restricted_cluster, tmp_path, restricted_cluster.kubeconfig, worker_image)


def stream_of(lines: Sequence[str]) -> Stream:
    stream = Stream()
    for line in lines:
        stream.feed(line)
    return stream


def pods_of(row: RunRow) -> list[dict[str, Any]]:
    found: Any = row.handle["pods"]
    return list(found)


def test_two_ranks_on_two_nodes_are_one_run_with_facts_of_both(desk: Desk) -> None:
    answer = desk.run(*REDUCING, *QUICK, *TWO, "--json")
    assert answer.code == 0, answer.err
    row, lines = desk.only_run()
    stream = stream_of(lines)
    assert isinstance(stream.ended(), Result)
    on = [gathered_facts(stream.events, rank)["container"]["node"] for rank in (0, 1)]
    told = pods_of(row)
    assert on == [pod["node"] for pod in told]
    assert len(set(on)) == 2
    assert [pod["ranks"] for pod in told] == [[0], [1]]
    assert all(pod["log"]["complete"] for pod in told)
    shown = desk.ask("show", row.id).out
    assert all(str(pod["node"]) in shown and str(pod["pod"]) in shown for pod in told)
    assert desk.nothing_left()


def test_two_ranks_train_on_two_nodes_with_clocks_that_are_aligned(desk: Desk) -> None:
    short = ["--batch", "4", "--seconds", "0.5", "--warmup-seconds", "0s", "--warmup-steps", "1", "--device", "cpu"]
    answer = desk.run("train/resnet20", "--runs", "1", *short, *TWO, "--json")
    assert answer.code == 0, answer.err
    row, lines = desk.only_run()
    stream = stream_of(lines)
    facts = [gathered_facts(stream.events, rank)["ranks"] for rank in (0, 1)]
    assert [(of_rank["strategy"], of_rank["backend"]) for of_rank in facts] == [("ddp", "gloo")] * 2
    uncertain_s = facts[1]["clock_uncertainty_s"]
    assert isinstance(uncertain_s, float)
    assert 0 <= uncertain_s < 1
    result = stream.ended()
    assert isinstance(result, Result)
    assert result.samples_per_step == 8
    assert len({pod["node"] for pod in pods_of(row)}) == 2


def test_a_network_is_scaled_from_one_pod_to_two_on_two_nodes(desk: Desk) -> None:
    short = ["--batch", "2", "--steps", "5", "--warmup-seconds", "0s", "--warmup-steps", "1", "--device", "cpu"]
    several = ["--ranks", "1,2", "--ranks-per-node", "1", "--bind", "numa", "--blocks", "2", "--no-primers"]
    answer = desk.ask(*desk.words("scale", "train/trivial_cifar10", *short, *several, "--json"))
    assert answer.code == 0, answer.err
    shown = json.loads(answer.out)
    assert [point["ranks"] for point in shown["scaling"]["points"]] == [1, 2]
    assert shown["scaling"]["points"][1]["efficiency"] > 0
    assert desk.nothing_left()


def test_an_applied_manifest_of_several_pods_is_collected_as_one_run(desk: Desk) -> None:
    chosen = ("--precision", "fp32", "--set", "training", "--rows", "0", "--budget", "0", "--threads", "1")
    where = ("--image", desk.image, "--namespace", desk.cluster.namespace)
    answer = desk.ask("manifest", "op/all-reduce", "--device", "cpu", *chosen, *QUICK, *TWO, *where, "--json")
    assert answer.code == 0, answer.err
    kinds = {"ConfigMap": "/api/v1", "Service": "/api/v1", "Job": "/apis/batch/v1"}
    made = json.loads(answer.out)["items"]
    paths = [f"{kinds[one['kind']]}/namespaces/{desk.cluster.namespace}/{one['kind'].lower()}s" for one in made]
    try:
        for path, one in zip(paths, made, strict=True):
            desk.cluster.cluster.create(path, one)
        until(lambda: [phase_of(pod) for pod in desk.cluster.pods()] == ["ended", "ended"])
        assert desk.ask("results", "--from-cluster", "--namespace", desk.cluster.namespace).code == 0
    finally:
        for path, one in zip(paths, made, strict=True):
            desk.cluster.cluster.delete(f"{path}/{one['metadata']['name']}")
    row, _ = desk.only_run()
    assert (row.status, row.ranks) == ("done", 2)
    assert desk.nothing_left()


def test_a_killed_rank_is_named_with_its_pod_and_node(desk: Desk) -> None:
    with desk.begun(*REDUCING, *LONG, *TWO) as process:
        pod = desk.signal_rank(1, "KILL")
        _, err = process.communicate(timeout=90)
    assert process.returncode == RUN_FAILED, err
    row, _ = desk.only_run()
    assert row.failure_kind == "rank_died"
    assert f"rank 1 of 2, pod {pod['metadata']['name']} on {pod['spec']['nodeName']}: " in str(row.failure_message)
    assert desk.nothing_left()


def test_a_stopped_rank_ends_with_the_time_limit(desk: Desk) -> None:
    with desk.begun(*REDUCING, *LONG, *TWO, "--time-limit", "9s") as process:
        pod = desk.signal_rank(1, "STOP")
        _, err = process.communicate(timeout=90)
    assert process.returncode == RUN_FAILED, err
    row, _ = desk.only_run()
    assert row.failure_kind == "timeout"
    assert f"rank 1 of 2, pod {pod['metadata']['name']}" in str(row.failure_message)
    assert desk.nothing_left()


@pytest.mark.cluster_hurt
def test_a_pod_of_the_group_that_waits_is_named_with_what_it_waits_for(desk: Desk) -> None:
    node = str(desk.cluster.cluster.items("/api/v1/nodes")[0]["metadata"]["name"])
    path = f"/api/v1/nodes/{node}"
    desk.cluster.cluster.patch(path, {"spec": {"unschedulable": True}})
    try:
        answer = desk.run(*REDUCING, *QUICK, *TWO, "--wait", "8s")
    finally:
        desk.cluster.cluster.patch(path, {"spec": {"unschedulable": None}})
    assert answer.code == PLACE_FAILED
    assert "1 of 2 pods run; " in answer.err
    assert node in answer.err
    assert desk.nothing_left()


# Kueue's word about a Job, as far as it is read.
WORKLOADS: Json = {
    "metadata": {"name": "workloads.kueue.x-k8s.io"},
    "spec": {
        "group": "kueue.x-k8s.io",
        "scope": "Namespaced",
        "names": {"plural": "workloads", "singular": "workload", "kind": "Workload"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}
NO_ROOM = "couldn't assign flavors to pod set main: insufficient unused quota for cpu in flavor default, 2 more needed"


@pytest.fixture
def kueue(cluster: TestCluster) -> Iterator[None]:
    """Kueue's API without its controller, which the test is."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    cluster.cluster.create(path, {**WORKLOADS, "apiVersion": "apiextensions.k8s.io/v1"})
    try:
        until(lambda: _is_served(cluster))
        yield
    finally:
        cluster.cluster.delete(f"{path}/{WORKLOADS['metadata']['name']}")


def _is_served(cluster: TestCluster) -> bool:
    try:
        cluster.cluster.items(_workloads(cluster))
    except ClusterError:
        return False
    return True


def _workloads(cluster: TestCluster) -> str:
    return f"/apis/kueue.x-k8s.io/v1beta1/namespaces/{cluster.namespace}/workloads"


def set_suspended(desk: Desk, job: Json, value: bool) -> None:
    path = f"/apis/batch/v1/namespaces/{desk.cluster.namespace}/jobs/{job['metadata']['name']}"
    desk.cluster.cluster.patch(path, {"spec": {"suspend": value}})


def job_of(desk: Desk, kind: str) -> Json | None:
    return next((job for job in desk.cluster.jobs() if job["metadata"]["labels"][names.KIND_LABEL] == kind), None)


@pytest.mark.cluster_hurt
@pytest.mark.usefixtures("kueue")
def test_a_queue_holds_the_whole_group_and_may_take_it_back(desk: Desk) -> None:
    cluster = desk.cluster
    with desk.begun(*REDUCING, *LONG, *TWO, "--queue", "team-a") as process:
        set_suspended(desk, until(lambda: job_of(desk, "probe")), False)
        job = until(lambda: job_of(desk, "run"))
        about = {"name": "of-the-run", "labels": {"kueue.x-k8s.io/job-uid": job["metadata"]["uid"]}}
        said = {"conditions": [{"type": "QuotaReserved", "status": "False", "message": NO_ROOM}]}
        body: Json = {"apiVersion": "kueue.x-k8s.io/v1beta1", "kind": "Workload", "metadata": about, "status": said}
        cluster.cluster.create(_workloads(cluster), body)
        assert process.stderr is not None
        waiting = next(line for line in process.stderr if NO_ROOM in line)
        assert "team-a" in waiting
        assert job["spec"]["suspend"] is True
        assert desk.member(0) is None
        set_suspended(desk, job, False)
        until(lambda: desk.running(0) and desk.running(1))
        set_suspended(desk, job, True)
        _, err = process.communicate(timeout=90)
    assert process.returncode in (RUN_FAILED, PLACE_FAILED), err
    row, _ = desk.only_run()
    assert row.failure_kind == "preempted", row.failure_message
    assert "team-a" in str(row.failure_message)
    assert desk.nothing_left()


def test_what_a_killed_driver_left_is_removed_by_the_next_command(desk: Desk) -> None:
    with desk.begun(*REDUCING, *LONG, *TWO) as process:
        until(lambda: desk.member(1))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert desk.services()
    assert desk.ask("results").code == 0
    assert desk.nothing_left()


def test_the_right_to_create_services_is_asked_for_only_by_a_run_on_several_nodes(
    cluster: TestCluster, worker_image: str, tmp_path: Path
) -> None:
    config = limited_account(cluster, tmp_path, "no-services", documented_rules())
    until(lambda: missing_rights(connect(kubeconfig=config), [*RUN_RIGHTS, SERVICE_RIGHT]) == [SERVICE_RIGHT])
    desk = Desk(cluster, tmp_path, config, worker_image)
    answer = desk.run(*REDUCING, *QUICK, *TWO)
    assert (answer.code, cluster.jobs()) == (PLACE_FAILED, [])
    assert str(SERVICE_RIGHT) in answer.err


def test_ranks_that_do_not_divide_are_refused_before_anything_is_created(desk: Desk) -> None:
    answer = desk.run(*REDUCING, *QUICK, "--ranks", "3", "--ranks-per-node", "2")
    assert (answer.code, desk.cluster.jobs()) == (WRONG_USE, [])
    assert "--ranks-per-node 2" in answer.err


def test_a_run_that_needs_more_nodes_than_there_are_is_refused(desk: Desk) -> None:
    count = len(desk.cluster.cluster.items("/api/v1/nodes")) + 1
    answer = desk.run(*REDUCING, *QUICK, "--ranks", str(count), "--ranks-per-node", "1")
    assert answer.code == PLACE_FAILED
    assert f"{count} nodes" in answer.err
    assert desk.nothing_left()


@pytest.mark.cluster_hurt
def test_a_node_that_is_cut_off_is_named(desk: Desk) -> None:
    with desk.begun(*REDUCING, *LONG, *TWO, "--time-limit", "60s") as process:
        pod = until(lambda: desk.running(1))
        node = str(pod["spec"]["nodeName"])
        desk.cluster.do("cut", node.rpartition("-")[2])
        try:
            _, err = process.communicate(timeout=150)
        finally:
            desk.cluster.do("join", node.rpartition("-")[2])
    path = f"/api/v1/nodes/{node}"
    until(lambda: condition(desk.cluster.cluster.get(path), "Ready").get("status") == "True")
    assert process.returncode == RUN_FAILED, err
    row, _ = desk.only_run()
    assert row.failure_kind == "node_lost"
    assert f"rank 1 of 2, pod {pod['metadata']['name']} on {node}: " in str(row.failure_message)
    assert desk.nothing_left()
