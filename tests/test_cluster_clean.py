"""`stackmark cluster clean`: what goes and what stays, by the labels alone and on a real cluster."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import COMMAND, Answer, ask, environment
from clusters import TestCluster, until
from limited_account import limited_account
from stackmark.cluster.cleaning import READ_WITHIN_S, ended_s_ago, judged
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.names import living_drivers

pytestmark = pytest.mark.cluster_whole
NOW = 1_800_000_000.0
ELSEWHERE = "0123456789ab-0123456789ab"


def moment(ago_s: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(NOW - ago_s))


def thing(driver: str, ago_s: float = 60.0, work: str = "run", **more: Json) -> Json:
    labels = {names.MANAGED_BY: names.OURS, names.KIND_LABEL: work, names.RUN_LABEL: "r-1"}
    labels |= {names.DRIVER_LABEL: driver} if driver else {}
    meta = {"name": "x", "namespace": "n", "labels": labels, "creationTimestamp": moment(ago_s)}
    return {"metadata": meta, "spec": {"activeDeadlineSeconds": 600}, **more}


def dead_driver() -> str:
    """The label of a process of this machine that has ended."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    label = names.driver_label(process.pid)
    assert label in living_drivers()
    process.communicate()
    assert label not in living_drivers()
    return label


def fate(one: Json, **how: bool) -> tuple[str, str]:
    left = judged("Pod", one, "/path", living_drivers(), NOW, **how)
    return left.fate, left.reason


def test_what_belongs_to_a_living_driver_of_this_machine_stays_even_if_forced() -> None:
    mine = thing(names.driver_label(), ago_s=10_000)
    assert fate(mine, force=True) == ("stays", "driver-lives")


def test_what_a_dead_driver_of_this_machine_left_goes_at_once() -> None:
    assert fate(thing(dead_driver(), ago_s=1)) == ("removed", "driver-dead")


def test_what_a_driver_elsewhere_may_wait_for_stays_until_it_is_too_old_or_forced() -> None:
    young = thing(ELSEWHERE)
    assert fate(young) == ("stays", "driver-elsewhere")
    assert fate(young, force=True) == ("removed", "forced")
    # Its own deadline of ten minutes, and a quarter of an hour to read its log in.
    assert fate(thing(ELSEWHERE, ago_s=600 + READ_WITHIN_S - 5))[0] == "stays"
    assert fate(thing(ELSEWHERE, ago_s=600 + READ_WITHIN_S + 5)) == ("removed", "too-old")


def test_what_has_ended_a_while_ago_goes() -> None:
    state = {"terminated": {"exitCode": 0, "finishedAt": moment(READ_WITHIN_S + 10)}}
    status = {"phase": "Succeeded", "containerStatuses": [{"state": state}]}
    assert fate(thing(ELSEWHERE, ago_s=1400, status=status)) == ("removed", "ended")
    job = {"conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": moment(30)}]}
    assert ended_s_ago(thing(ELSEWHERE, status=job), NOW) == 30
    assert fate(thing(ELSEWHERE, status=job))[0] == "stays"


def test_a_canary_stays_unless_canaries_are_named() -> None:
    canary = thing("", ago_s=1e6, work="canary")
    assert fate(canary, force=True)[0] == "stays"
    assert fate(canary, canaries=True)[0] == "removed"


def test_what_somebody_applied_by_hand_stays_unless_forced() -> None:
    assert fate(thing("", ago_s=1e6))[0] == "stays"
    assert fate(thing("", ago_s=1e6), force=True)[0] == "removed"


def test_a_pod_that_heals_a_node_stays_to_its_end_though_its_driver_is_dead() -> None:
    spec: Json = {"hostPID": True, "activeDeadlineSeconds": 600}
    helper = thing(dead_driver(), work="fault", spec=spec)
    assert fate(helper)[0] == "stays"
    assert fate(helper, force=True)[0] == "removed"
    assert fate({**helper, "status": {"phase": "Succeeded"}})[0] == "removed"


def test_the_lock_of_a_fault_stays_until_it_ends_by_itself() -> None:
    lock = thing(dead_driver(), ago_s=600, work="fault", spec={"leaseDurationSeconds": 100, "renewTime": moment(50)})
    assert fate(lock)[0] == "stays"
    lock["spec"]["renewTime"] = moment(150)
    assert fate(lock)[0] == "removed"


def test_what_is_being_deleted_is_left_to_it() -> None:
    going = thing(dead_driver())
    going["metadata"]["deletionTimestamp"] = moment(1)
    assert fate(going)[0] == "going"


@pytest.mark.parametrize("broken", ["", "yesterday", None, 7])
def test_a_time_that_cannot_be_read_makes_nothing_old(broken: object) -> None:
    odd = thing(ELSEWHERE)
    odd["metadata"]["creationTimestamp"] = broken
    assert fate(odd)[0] == "stays"


# On a real cluster


def image(cluster: TestCluster) -> str:
    return "localhost/busybox:1" if cluster.script else "docker.io/library/busybox:1.37"


def pods_path(cluster: TestCluster) -> str:
    return f"/api/v1/namespaces/{cluster.namespace}/pods"


def make_pod(cluster: TestCluster, name: str, driver: str | None) -> None:
    labels = names.labels("run", f"r-{name}") | ({names.DRIVER_LABEL: driver} if driver else {})
    body: Json = {
        "metadata": {"name": name, "labels": labels if driver else {"app": "somebodys"}},
        "spec": {"containers": [{"name": "c", "image": image(cluster), "command": ["sleep", "600"]}]},
    }
    cluster.cluster.create(pods_path(cluster), body)


def pods_left(cluster: TestCluster) -> list[str]:
    return [str(pod["metadata"]["name"]) for pod in cluster.pods() if "deletionTimestamp" not in pod["metadata"]]


@pytest.fixture
def pods(cluster: TestCluster) -> Iterator[TestCluster]:
    """One of a dead driver, one of a living one, one of another machine's, one that is not ours; and a Job."""
    dead = dead_driver()
    for name, driver in (("dead", dead), ("living", names.driver_label()), ("elsewhere", ELSEWHERE), ("other", None)):
        make_pod(cluster, name, driver)
    labels = names.labels("sweep", "r-job") | {names.DRIVER_LABEL: dead}
    template = {
        "metadata": {"labels": labels},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{"name": "c", "image": image(cluster), "command": ["sleep", "600"]}],
        },
    }
    jobs = f"/apis/batch/v1/namespaces/{cluster.namespace}/jobs"
    cluster.cluster.create(jobs, {"metadata": {"name": "job", "labels": labels}, "spec": {"template": template}})
    until(lambda: len(cluster.pods()) == 5)
    yield cluster
    cluster.cluster.delete(f"{jobs}/job")
    for pod in cluster.pods():
        cluster.cluster.delete(f"{pods_path(cluster)}/{pod['metadata']['name']}", grace_s=0)


def clean(cluster: TestCluster, *words: str) -> Answer:
    return ask("cluster", "clean", "--namespace", cluster.namespace, "--kubeconfig", cluster.kubeconfig, *words)


@pytest.mark.cluster
def test_only_what_nobody_waits_for_is_removed_and_all_of_ours_is_named(pods: TestCluster) -> None:
    dry = json.loads(clean(pods, "--dry-run", "--json").out)["found"]
    assert {one["name"]: one["fate"] for one in dry} == {
        "job": "would go", "dead": "would go", "living": "stays", "elsewhere": "stays"
    }  # fmt: skip
    assert len(pods_left(pods)) == 5, "a dry run removes nothing"
    answer = clean(pods)
    assert answer.code == 0, answer.err
    assert "2 removed" in answer.out
    left = until(lambda: names_left if len(names_left := pods_left(pods)) == 3 else None)
    assert sorted(left) == ["elsewhere", "living", "other"]
    forced = json.loads(clean(pods, "--force", "--json").out)["found"]
    assert {one["name"]: one["fate"] for one in forced if one["fate"] != "going"} == {
        "living": "stays", "elsewhere": "removed"
    }  # fmt: skip


@pytest.mark.cluster
def test_where_nothing_was_left_it_says_so(cluster: TestCluster) -> None:
    answer = clean(cluster)
    assert (answer.code, cluster.namespace in answer.out) == (0, True)
    assert json.loads(clean(cluster, "--json").out)["found"] == []


@pytest.mark.cluster
def test_who_may_not_look_is_told_the_right_that_is_missing(cluster: TestCluster, tmp_path: Path) -> None:
    config = limited_account(cluster, tmp_path, "blind", [])
    answer = ask("cluster", "clean", "--kubeconfig", config)
    assert answer.code == 4
    assert "list jobs" in answer.err
    assert "auth can-i" in answer.err


@pytest.mark.cluster
def test_what_may_not_be_deleted_is_named_and_fails(pods: TestCluster, tmp_path: Path) -> None:
    rules: list[Json] = [{"apiGroups": ["", "batch"], "resources": ["pods", "jobs"], "verbs": ["list"]}]
    config = limited_account(pods, tmp_path, "reader", rules)
    answer = ask("cluster", "clean", "--kubeconfig", config, "--json")
    assert answer.code == 6
    assert {one["name"] for one in json.loads(answer.out)["found"] if one["fate"] == "refused"} == {"dead", "job"}


def test_a_namespace_and_all_of_them_do_not_go_together() -> None:
    answer = ask("cluster", "clean", "--namespace", "a", "--all-namespaces")
    assert answer.code == 2
    assert all(option in answer.err for option in ("--namespace", "--all-namespaces"))


@pytest.mark.cluster
def test_the_namespace_of_a_check_that_was_killed_is_found_and_removed(cluster: TestCluster, tmp_path: Path) -> None:
    words = [*COMMAND, "cluster", "check", "--image", image(cluster), "--area", "cpu", "--pods", "2"]
    process = subprocess.Popen(
        words, env=environment(tmp_path / "l.sqlite3", **cluster.variables), stderr=subprocess.PIPE, text=True
    )
    label = names.driver_label(process.pid)
    assert process.stderr is not None
    assert "starts, one" in process.stderr.readline()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    selector = f"{names.DRIVER_LABEL}={label}"
    (made,) = cluster.cluster.items("/api/v1/namespaces", labelSelector=selector)
    answer = ask("cluster", "clean", "--kubeconfig", cluster.kubeconfig, "--json")
    found = {one["name"]: one for one in json.loads(answer.out)["found"]}
    assert found[made["metadata"]["name"]]["reason"] == "driver-dead"
    assert until(lambda: not cluster.cluster.items("/api/v1/namespaces", labelSelector=selector))
