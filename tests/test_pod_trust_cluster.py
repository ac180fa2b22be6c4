"""A pod on a real cluster with few rights, dead drivers, and parts that are away at the wrong moment."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, Answer, ask, ask_process, environment
from clusters import TestCluster, until
from leaving_out import leave_out
from limited_account import documented_rules, limited_account, without
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json, connect
from stackmark.kubernetes.nodes import nodes_here
from stackmark.kubernetes.rights import RUN_RIGHTS, Right, missing_rights
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger

pytestmark = pytest.mark.cluster

PLACE_FAILED, RUN_FAILED = 4, 3
# A program that is over at once: its time is less than a pod's status tells, so it prints a figure.
FIGURE = ("--cmd", "echo rate 1", "--metric", "rate (1)", "--cwd", ".")
TRUE = (*FIGURE, "--gpus", "none")
# A worker in the image, which a probe asks first.
ADDING = ("check/vector-add", "--device", "cpu", "--gpus", "none")


@dataclass(frozen=True)
class Desk:
    """Somebody at a command line, with a ledger and notes of their own."""

    cluster: TestCluster
    folder: Path
    kubeconfig: str

    def _variables(self) -> dict[str, str]:
        return {
            "KUBECONFIG": self.kubeconfig,
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
        }

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.sqlite3"

    def ask(self, *words: str) -> Answer:
        return ask_process(self.ledger, *words, **self._variables())

    @contextmanager
    def begun(self, *words: str) -> Iterator["subprocess.Popen[str]"]:
        env = environment(self.ledger, **self._variables())
        process = subprocess.Popen(
            [*COMMAND, *words], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def rows(self) -> list[RunRow]:
        if not self.ledger.exists():
            return []
        with Ledger.open(str(self.ledger), create=False) as book:
            return list(book.runs())

    def notes(self) -> list[str]:
        return [path.name for path in (self.folder / "state/stackmark/jobs").glob("*.json")]

    def running(self, kind: str) -> Json:
        """The pod of that kind whose container runs."""
        return until(lambda: next((pod for pod in self.cluster.pods() if _runs(pod, kind)), None))

    def nothing_left(self) -> bool:
        until(lambda: not (self.cluster.pods() or self.cluster.jobs()), within_s=40)
        return True


def _runs(pod: Json, kind: str) -> bool:
    states = [one.get("state") or {} for one in pod["status"].get("containerStatuses") or ()]
    return pod["metadata"]["labels"].get(names.KIND_LABEL) == kind and any("running" in one for one in states)


@pytest.fixture
def desk(cluster: TestCluster, tmp_path: Path) -> Desk:
    return Desk(cluster, tmp_path, cluster.kubeconfig)


def on_pod(cluster: TestCluster, image: str) -> tuple[str, ...]:
    return ("--on", "pod", "--namespace", cluster.namespace, "--image", image)


# Rights


@pytest.mark.parametrize("right", RUN_RIGHTS, ids=lambda right: str(right).replace(" ", "-"))
def test_each_right_that_is_missing_is_named_before_anything_is_created(
    cluster: TestCluster, tmp_path: Path, right: Right, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"lacks-{right.verb}-{right.resource}-{right.subresource or 'it'}"
    config = limited_account(cluster, tmp_path, name, without(documented_rules(), right))
    # The cluster takes a moment to know the account's other rights.
    until(lambda: missing_rights(connect(kubeconfig=config), RUN_RIGHTS) == [right])
    monkeypatch.setenv("KUBECONFIG", config)
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    answer = ask("run", *TRUE, *on_pod(cluster, "localhost/busybox:1"))
    assert (answer.code, cluster.jobs()) == (PLACE_FAILED, [])
    assert str(right) in answer.err


@pytest.fixture(scope="module")
def compared(
    cluster: TestCluster, worker_image: str, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Desk, dict[str, Any], str]:
    """Pod against pod with the documented rights alone; between the first two runs the API server is killed and comes back."""
    folder = tmp_path_factory.mktemp("compared")
    config = limited_account(cluster, folder, "documented", documented_rules())
    until(lambda: not missing_rights(connect(kubeconfig=config), RUN_RIGHTS))
    desk = Desk(cluster, folder, config)
    image = f"image={worker_image}"
    arms = ("--arm", f"pod,{image}", "--arm", f"pod,{image},shm=32m", "--blocks", "2", "--no-primers", "--pause", "2s")
    with desk.begun("compare", *FIGURE, *arms, "--json") as process:
        until(lambda: [row for row in desk.rows() if row.status == "done"])
        cluster.do("kill", "api-server")
        time.sleep(3)
        cluster.do("start", "api-server")
        # These wait for up to a minute before they ask a server again that was away; new ones ask at once.
        for part in ("controllers", "scheduler"):
            cluster.do("kill", part)
            cluster.do("start", part)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 0, err
    return desk, json.loads(out), err


@pytest.mark.cluster_hurt
def test_pods_are_compared_with_the_documented_rights_alone(compared: tuple[Desk, dict[str, Any], str]) -> None:
    desk, shown, _ = compared
    assert (shown["state"], shown["blocks_whole"]) == ("done", 2)
    assert len({row.handle["node"] for row in desk.rows()}) == 1, "all are on the node that the first was given"
    assert desk.nothing_left()
    assert desk.notes() == []


@pytest.mark.cluster_hurt
def test_an_api_server_that_is_away_between_two_runs_is_waited_for(
    compared: tuple[Desk, dict[str, Any], str],
) -> None:
    desk, shown, err = compared
    assert [(row.status, row.failure_message) for row in desk.rows()] == [("done", None)] * 4, "no run was repeated"
    assert len(shown["runs"]) == 4
    assert err, "the wait is announced"


# Dead drivers


def test_the_job_of_a_killed_probe_is_removed_by_the_next_run_in_the_namespace(
    desk: Desk, worker_image: str, tmp_path: Path
) -> None:
    with desk.begun("run", *ADDING, "--runs", "1", *on_pod(desk.cluster, worker_image)) as process:
        until(lambda: desk.cluster.jobs())
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert desk.rows() == []
    (killed,) = [str(job["metadata"]["name"]) for job in desk.cluster.jobs()]
    # Somebody who has no note of it, as in a container whose home is new.
    (tmp_path / "other").mkdir()
    other = Desk(desk.cluster, tmp_path / "other", desk.kubeconfig)
    answer = other.ask("run", *TRUE, "--runs", "1", *on_pod(desk.cluster, worker_image))
    assert answer.code == 0, answer.err
    assert desk.nothing_left(), killed


@pytest.mark.cluster_hurt
def test_the_job_of_a_run_that_was_interrupted_without_an_api_server_is_removed_by_any_next_command(
    desk: Desk, worker_image: str
) -> None:
    sleeper = ("--cmd", "sleep 120", "--cwd", ".", "--gpus", "none", "--runs", "1")
    with desk.begun("run", *sleeper, *on_pod(desk.cluster, worker_image)) as process:
        desk.running("run")
        desk.cluster.do("kill", "api-server")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
    (row,) = desk.rows()
    assert row.failure_kind == "interrupted"
    assert desk.notes() == [f"{row.id}.json"]
    assert desk.ask("results").code == 0, "a cluster that is away keeps nobody from their results"
    assert desk.notes() == [f"{row.id}.json"]
    desk.cluster.do("start", "api-server")
    (desk.folder / "state/stackmark/jobs/unreachable").unlink()  # as if a minute had passed

    def removed() -> bool:
        answer = desk.ask("results")
        (desk.folder / "state/stackmark/jobs/unreachable").unlink(missing_ok=True)
        return "1 Job left by an earlier stackmark" in answer.err

    until(removed, within_s=60)
    assert desk.notes() == []
    assert desk.nothing_left()


# Logs whose end is lost


@pytest.mark.cluster_hurt
def test_the_end_of_a_log_that_a_dead_runtime_lost_is_missed(desk: Desk) -> None:
    if not nodes_here(desk.cluster.cluster):
        leave_out("this machine is no node of the cluster")
    # With the host's own software a worker runs the program and closes its stream; from outside nobody knows what is missing.
    host = ("--on", "pod", "--namespace", desk.cluster.namespace)
    with desk.begun("run", "--cmd", "sleep 3", "--cwd", ".", "--gpus", "none", "--runs", "1", *host) as process:
        pod = desk.running("run")
        number = str(pod["spec"]["nodeName"]).rpartition("-")[2]
        desk.cluster.do("kill", "runtime", number)
        time.sleep(5)
        desk.cluster.do("start", "runtime", number)
        _, err = process.communicate(timeout=120)
        assert process.returncode == RUN_FAILED, err
    (row,) = desk.rows()
    assert (row.status, row.failure_kind) == ("failed", "log_incomplete")
    assert "containerd://" in str(row.failure_message)
    log: Any = row.handle["log"]
    assert log["complete"] is False
    assert desk.nothing_left()
