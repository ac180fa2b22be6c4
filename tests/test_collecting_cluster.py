"""`stackmark results --from-cluster`: what canaries measured while nobody waited, each run once, from real pods.

Most pods here replay the stream of a real worker, since a pod's log is all that is collected.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from asking import ask
from clusters import TestCluster, until
from ledger_runs import id_unix_s
from stackmark.errors import Exit
from stackmark.events import Stream
from stackmark.experiments.collecting import Collected, collect
from stackmark.experiments.judging import judge, read_stored
from stackmark.ids import derived_id
from stackmark.kubernetes.manifest.build import cronjob, pod
from stackmark.ledger.store import Ledger
from stackmark.places.place import Outcome
from stackmark.places.pod.finished import options_of, task_of
from stackmark.places.pod.options import PodOptions
from stackmark.places.pod.request import pod_request
from stackmark.spec import Request, Task
from worker_process import environment, finish, start

Json = dict[str, Any]
REQUEST = Request(
    workload="train/trivial_cifar10",
    params={"device": "cpu", "batch": 2, "steps": 4, "warmup_seconds": 0, "tune": "off"},
)
BUSYBOX = "localhost/busybox:1"


@pytest.fixture(scope="module")
def stream() -> list[str]:
    """What a worker says that resolves a request and runs it."""
    task = Task(do="run", request=REQUEST, lifeline=False)
    finished = finish(start(environment(STACKMARK_SPEC=task.model_dump_json())))
    assert finished.last["event"] == "result", finished.stderr
    return [quicker(line) for line in finished.lines]


def quicker(line: str) -> str:
    """The event with a hundredth of its times: what a pod replays in a moment may not claim to have measured for seconds."""
    event = json.loads(line)
    for name in ("t", "wall_s", "data_wait_s"):
        if event.get(name):
            event[name] /= 100
    if "step_s" in event:
        event["step_s"] = [seconds / 100 for seconds in event["step_s"]]
    return json.dumps(event, separators=(",", ":"))


def canary(cluster: TestCluster, mark: str, command: Sequence[str], options: Json | None = None, **more: Any) -> Json:
    """A pod as a canary's Job makes it, which runs this instead of the worker."""
    wanted = pod_request(
        PodOptions.model_validate(options or {}), mark=mark, kind="canary", namespace=cluster.namespace, image=BUSYBOX,
        task=Task(do="run", request=REQUEST), command=tuple(command), driven=False,
    )  # fmt: skip
    return cluster.cluster.create(f"/api/v1/namespaces/{cluster.namespace}/pods", pod(replace(wanted, **more)))


def replayed(lines: Sequence[str], code: int = 0) -> list[str]:
    return ["sh", "-c", f'printf "%s\\n" "$@"; exit {code}', "replay", *lines]


def ended(cluster: TestCluster, made: Json) -> Json:
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/{made['metadata']['name']}"

    def look() -> Json | None:
        found = cluster.cluster.get(path)
        return found if found["status"].get("phase") in ("Succeeded", "Failed") else None

    return until(look)


def removed(cluster: TestCluster, *pods: Json) -> None:
    """So that the next test finds only its own."""
    for one in pods:
        path = f"/api/v1/namespaces/{cluster.namespace}/pods/{one['metadata']['name']}"
        cluster.cluster.delete(path, grace_s=0)


def collected(cluster: TestCluster, ledger: Ledger) -> Collected:
    return collect(ledger, kubeconfig=cluster.kubeconfig, namespace=cluster.namespace)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger.open(str(tmp_path / "ledger.sqlite3"))


@pytest.mark.cluster
def test_a_finished_canary_is_a_run_as_if_it_had_been_waited_for(
    cluster: TestCluster, ledger: Ledger, stream: list[str]
) -> None:
    made = canary(cluster, "good", replayed(stream), {"cpus": "0.1", "memory": "64m"})
    found = ended(cluster, made)
    with ledger:
        (row,) = collected(cluster, ledger).taken
        spoken = Stream()
        for line in stream:
            spoken.feed(line)
        judged = judge(spoken, Outcome(0))
        assert (row.status, row.place, row.workload, row.batch) == ("done", "pod", "train/trivial_cifar10", 2)
        assert (row.rate_per_s, row.rate_unit, row.setup_s) == (judged.rate_per_s, judged.rate_unit, judged.setup_s)
        assert row.started_unix_s == json.loads(stream[0])["time_unix_s"]
        assert row.handle["pod_uid"] == made["metadata"]["uid"]
        assert row.handle["node"] == found["spec"]["nodeName"]
        assert row.place_options == {"image": BUSYBOX, "cpus": "0.1", "memory": str(64 << 20)}
        stored = read_stored(ledger.stream(row.id))
        assert [event.seq for event in stored.stream.events] == list(range(len(stream)))
        assert ledger.experiment(row.experiment_id).request["workload"] == "train/trivial_cifar10"
    removed(cluster, made)


@pytest.mark.cluster
def test_what_was_taken_is_not_taken_again_and_has_one_id_in_every_ledger(
    cluster: TestCluster, ledger: Ledger, stream: list[str], tmp_path: Path
) -> None:
    pods = [canary(cluster, mark, replayed(stream)) for mark in ("one", "two")]
    for made in pods:
        ended(cluster, made)
    with ledger, Ledger.open(str(tmp_path / "other.sqlite3")) as other:
        first, again, elsewhere = collected(cluster, ledger), collected(cluster, ledger), collected(cluster, other)
    assert (len(first.taken), first.known) == (2, 0)
    assert (len(again.taken), again.known) == (0, 2)
    assert {row.id for row in first.taken} == {row.id for row in elsewhere.taken}
    assert len({row.id for row in first.taken}) == 2
    removed(cluster, *pods)


@pytest.mark.cluster
def test_a_failed_canary_is_a_failed_run_with_its_reason(
    cluster: TestCluster, ledger: Ledger, stream: list[str]
) -> None:
    """What the worker said, and where it could say nothing, what the pod's status says."""
    events = [json.loads(line) for line in stream[:2]]
    failed = {"event": "failed", "seq": 2, "rank": 0, "t": 1.0, "kind": "no_device", "message": "none", "hint": "h"}
    said = canary(cluster, "said", replayed([json.dumps(one, separators=(",", ":")) for one in (*events, failed)], 12))
    late = canary(cluster, "late", ["sh", "-c", "trap 'exit 1' TERM; sleep 60 & wait"], deadline_s=1)
    for made in (said, late):
        ended(cluster, made)
    with ledger:
        rows = {str(row.handle["pod_uid"]): row for row in collected(cluster, ledger).taken}
        by_worker, by_node = rows[said["metadata"]["uid"]], rows[late["metadata"]["uid"]]
    assert (by_worker.status, by_worker.failure_kind, by_worker.failure_hint) == ("failed", "no_device", "h")
    assert (by_node.status, by_node.failure_kind, by_node.rate_per_s) == ("failed", "deadline", None)
    # Nothing was resolved: what was typed is known.
    assert (by_node.workload, by_node.batch) == ("train/trivial_cifar10", 2)
    removed(cluster, said, late)


@pytest.mark.cluster
def test_what_has_lost_its_beginning_is_said_and_not_stored(
    cluster: TestCluster, ledger: Ledger, stream: list[str]
) -> None:
    made = canary(cluster, "cut", replayed(stream[3:]))
    ended(cluster, made)
    with ledger:
        told = collected(cluster, ledger)
        assert ledger.count() == 0
    assert told.taken == ()
    (sentence,) = told.left
    assert made["metadata"]["name"] in sentence
    removed(cluster, made)


@pytest.mark.cluster
def test_what_runs_still_or_has_a_driver_is_left_alone(cluster: TestCluster, ledger: Ledger, stream: list[str]) -> None:
    running = canary(cluster, "running", ["sleep", "60"])
    driven = canary(cluster, "driven", replayed(stream), driven=True)
    other = canary(cluster, "sweep", replayed(stream), kind="sweep")
    for made in (driven, other):
        ended(cluster, made)
    with ledger:
        told = collected(cluster, ledger)
    assert (told.taken, told.left, told.unfinished) == ((), (), 1)
    removed(cluster, running, driven, other)


@pytest.mark.cluster
def test_the_command_line_collects_and_then_lists(cluster: TestCluster, stream: list[str], tmp_path: Path) -> None:
    made = canary(cluster, "listed", replayed(stream))
    ended(cluster, made)
    words = ["results", "--from-cluster", "--namespace", cluster.namespace, "--ledger", str(tmp_path / "new.sqlite3")]
    answer = ask(*words, "--json")
    assert answer.code == 0, answer.err
    assert cluster.namespace in answer.err
    (row,) = json.loads(answer.out)["runs"]
    assert row["status"] == "done"
    assert "collected 0 runs" in ask(*words).err
    removed(cluster, made)


@pytest.mark.cluster
def test_a_printed_canary_measures_in_the_cluster_and_is_collected(
    restricted_cluster: TestCluster, worker_image: str, ledger: Ledger
) -> None:
    """The whole way: print, apply in a restricted namespace, let its Job run, collect."""
    namespace, cluster = restricted_cluster.namespace, restricted_cluster.cluster
    printed = ask(
        "manifest", "train/trivial_cifar10", "--device", "cpu", "--batch", "2", "--steps", "4", "--kind", "cronjob",
        "--image", worker_image, "--namespace", namespace, "--memory", "2g", "--cpus", "1",
    )  # fmt: skip
    assert printed.code == 0, printed.err
    worker, canary = yaml.safe_load_all(printed.out)
    cluster.create(f"/api/v1/namespaces/{namespace}/configmaps", worker)
    applied = cluster.create(f"/apis/batch/v1/namespaces/{namespace}/cronjobs", canary)
    # Its hour has not come: its Job is made now, as `kubectl create job --from=cronjob/…` does.
    template = applied["spec"]["jobTemplate"]
    body = {"metadata": {"name": "now", "labels": template["metadata"]["labels"]}, "spec": template["spec"]}
    cluster.create(f"/apis/batch/v1/namespaces/{namespace}/jobs", body)
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs/now"
    until(lambda: cluster.get(path)["status"].get("completionTime"), 180)
    with ledger:
        told = collected(restricted_cluster, ledger)
        assert told.left == ()
        (row,) = told.taken
    assert (row.status, row.steps_total, row.handle["job"]) == ("done", 4, "now")
    assert row.rate_per_s
    assert row.rate_per_s > 0


# Without a cluster


def test_an_id_made_from_a_pod_has_its_moment_and_nothing_by_chance() -> None:
    now = time.time()
    made = derived_id("r", now, "uid 1")
    assert made == derived_id("r", now, "uid 1") != derived_id("r", now, "uid 2")
    assert id_unix_s(made) == pytest.approx(now, abs=0.002)


def test_the_task_and_the_options_are_read_back_from_what_was_made() -> None:
    asked = Request(workload="command/run", params={"cmd": "echo $(HOME) $$"})
    options = PodOptions(gpus="2", resource="amd.com/gpu", cpus="1.5", memory="1g")
    wanted = pod_request(
        options, mark="x", kind="canary", namespace="n", image="i:1", task=Task(do="run", request=asked), gpus=2
    )
    made = cronjob(wanted, "@daily")["spec"]["jobTemplate"]["spec"]["template"]
    task = task_of(made)
    assert task is not None
    assert task.request == asked
    read = options_of(made)
    assert read == {"image": "i:1", "gpus": "2", "resource": "amd.com/gpu", "cpus": "1.5", "memory": str(1 << 30)}
    PodOptions.model_validate(read)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--namespace", "x"), "--namespace says where to collect from, and nothing is collected"),
        (("--from-cluster", "--namespace", ""), "--namespace is empty"),
        (("--from-cluster", "--kubeconfig", "/nowhere"), "the kubeconfig /nowhere does not exist"),
    ],
)
def test_what_cannot_be_collected_is_refused_in_a_sentence(
    words: tuple[str, ...], sentence: str, tmp_path: Path
) -> None:
    answer = ask("results", *words, "--ledger", str(tmp_path / "x.sqlite3"))
    assert answer.code == Exit.WRONG_USE
    assert sentence in answer.err


@pytest.mark.cluster
def test_a_context_that_is_not_there_is_refused_by_name(cluster: TestCluster, tmp_path: Path) -> None:
    answer = ask("results", "--from-cluster", "--context", "nope", "--ledger", str(tmp_path / "x.sqlite3"))
    assert answer.code == Exit.WRONG_USE
    assert "'nope'" in answer.err
