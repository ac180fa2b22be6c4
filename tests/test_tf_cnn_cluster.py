"""The classic in a pod of a real cluster: the table on the terminal and in the pod's log; and what `kubectl logs` gives is
imported, whatever it puts around the lines."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, ask, ask_process, environment
from clusters import TestCluster, until
from stackmark.events import EVENT_PREFIX, Stream, is_for_people
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.names import KIND_LABEL
from stackmark.ledger.store import Ledger

pytestmark = pytest.mark.cluster

NET = ("--model=resnet20", "--data_name=cifar10", "--batch_size=4", "--num_batches=20", "--num_warmup_batches=2")
STEPS, BATCH = 20, 4
SIDECAR = """\
spec:
  template:
    spec:
      containers:
      - name: chatty
        image: localhost/busybox:1
        command: [sh, -c, "for i in 1 2 3; do echo line $i of another program; sleep 1; done"]
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""


def kubectl(cluster: TestCluster, *words: str, given: str | None = None) -> str:
    command = ["kubectl", "-n", cluster.namespace, *words]
    variables = {**os.environ, **cluster.variables}
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


def running(cluster: TestCluster) -> Json | None:
    """The pod of a run, not of its probe, once its container runs."""
    for pod in cluster.pods():
        said = pod["status"].get("containerStatuses") or [{}]
        if pod["metadata"]["labels"].get(KIND_LABEL) == "run" and "waiting" not in (
            said[0].get("state") or {"waiting": 1}
        ):
            return pod
    return None


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("classic") / "ledger.sqlite3"


@pytest.fixture(scope="module")
def driven(cluster: TestCluster, worker_image: str, ledger: Path) -> tuple[str, str, str]:
    """Standard output and standard error of a classic run in a pod without a GPU, and the log of that pod."""
    at = ("--on", "pod", "--namespace", cluster.namespace, "--image", worker_image, "--gpus", "none")
    argv = [*COMMAND, "tf-cnn", "--num_gpus=1", *NET, *at]
    env = environment(ledger, **cluster.variables)
    process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        pod = until(lambda: running(cluster))
        log = kubectl(cluster, "logs", "--follow", pod["metadata"]["name"])
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, err
    return out, err, log


def test_the_pods_log_has_the_table_that_the_command_prints(driven: tuple[str, str, str]) -> None:
    out, _, log = driven
    table = [line for line in log.splitlines() if is_for_people(line) and not line.startswith("[stackmark ")]
    assert table == out.splitlines()
    assert "Devices:     ['/cpu:0']" in table
    assert [line.split("\t")[0] for line in table if "images/sec: " in line and "\t" in line] == ["1", "10", "20"]


def test_the_fall_back_to_the_cpu_is_one_line(driven: tuple[str, str, str]) -> None:
    _, err, _ = driven
    assert [line.partition(":")[0] for line in err.splitlines() if "--device=cpu" in line] == ["pod"]


def test_the_run_is_stored_with_every_event_once_and_without_the_lines_for_people(
    driven: tuple[str, str, str], ledger: Path
) -> None:
    out, _, log = driven
    with Ledger.open(str(ledger), create=False) as book:
        (row,) = book.runs()
        lines = book.stream(row.id)
        options = book.run(row.id).place_options
    assert (row.status, row.place, row.steps_total) == ("done", "pod", STEPS)
    assert options["log_format"] == "tf-cnn"
    assert row.wall_s is not None
    assert f"total images/sec: {STEPS * BATCH / row.wall_s:.2f}" in out
    assert [line for line in lines if line.startswith(EVENT_PREFIX)] == [
        line for line in log.splitlines() if line.startswith(EVENT_PREFIX)
    ]
    assert not [line for line in lines if "images/sec" in line or "[stackmark " in line]
    stream = Stream()
    for line in lines:
        stream.feed(line)
    assert stream.ended() is not None


@pytest.fixture(scope="module")
def job(cluster: TestCluster, worker_image: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Job that somebody applied: its pod has a second container, and its log stays."""
    patch = tmp_path_factory.mktemp("patch") / "sidecar.yaml"
    patch.write_text(SIDECAR)
    made = ask(
        "manifest", "train/resnet20", "--device", "cpu", "--batch", "4", "--steps", "20", "--warmup-steps", "2",
        "--warmup-seconds", "0", "--image", worker_image, "--namespace", cluster.namespace, "--patch", str(patch),
    )  # fmt: skip
    assert made.code == 0, made.err
    kubectl(cluster, "create", "-f", "-", given=made.out)
    (created,) = [one for one in cluster.jobs() if one["metadata"]["labels"].get(KIND_LABEL) == "run"]
    name = str(created["metadata"]["name"])
    kubectl(cluster, "wait", "--for=condition=complete", f"job/{name}", "--timeout=120s")
    return name


def test_the_log_of_a_pod_is_readable_text_unless_another_format_is_asked_for(cluster: TestCluster, job: str) -> None:
    log = kubectl(cluster, "logs", f"job/{job}", "-c", "worker").splitlines()
    text = [line for line in log if line.startswith("[stackmark ")]
    assert len([line for line in text if "] result: " in line]) == 1
    assert text[0] == next(line for line in log if not line.startswith(EVENT_PREFIX))


@pytest.mark.parametrize(
    "words",
    [("-c", "worker"), ("-c", "worker", "--timestamps"), ("--all-containers", "--prefix"),
     ("--all-containers", "--prefix", "--timestamps")],
)  # fmt: skip
def test_what_kubectl_prints_of_it_is_imported_as_one_run(
    cluster: TestCluster, job: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    log = tmp_path / "pod.log"
    log.write_text(kubectl(cluster, "logs", f"job/{job}", *words))
    answer = ask("import", str(log), "--ledger", str(tmp_path / "ledger.sqlite3"), "--json")
    assert answer.code == 0, answer.err
    (run,) = json.loads(answer.out)["runs"]
    found: dict[str, Any] = run
    assert (found["workload"], found["status"]) == ("train/resnet20", "done")


def test_a_place_that_has_no_gpu_for_a_named_one_is_an_error(
    cluster: TestCluster, worker_image: str, ledger: Path
) -> None:
    at = ("--on", "pod", "--namespace", cluster.namespace, "--image", worker_image, "--gpus", "none")
    answer = ask_process(ledger, "tf-cnn", "--gpu_indices=1", *NET, *at, **cluster.variables)
    assert (answer.code, answer.out) == (3, "")
