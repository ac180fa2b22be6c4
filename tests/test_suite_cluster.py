"""A suite of host and pod on a real cluster, whose driver is killed while a pod trains."""

import os
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from asking import COMMAND, environment
from clusters import TestCluster
from stackmark.experiments.suite.examine import examine_suite
from stackmark.ledger.store import Ledger
from worker_process import eventually

STUDY = """
workloads = ["train/trivial_cifar10", "train/lenet"]
compare = "place"
margin = "20%"
blocks = 2
[axes]
place = ["host", "pod"]
[options]
image = "{image}"
namespace = "{namespace}"
cpus = "1"
steps = 10
warmup_steps = 1
batch = 2
threads = 1
precision = "fp32"
"""


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_killed_while_a_pod_trains_it_is_resumed_and_nothing_is_left(
    cluster: TestCluster, worker_image: str, tmp_path: Path
) -> None:
    ledger, study = tmp_path / "ledger.sqlite3", tmp_path / "study.toml"
    study.write_text(STUDY.format(image=worker_image, namespace=cluster.namespace))
    env = environment(ledger, KUBECONFIG=cluster.kubeconfig, XDG_CACHE_HOME=str(tmp_path), HOME=os.environ["HOME"])
    process = subprocess.Popen(
        [*COMMAND, "suite", "run", str(study)], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    def a_pod_is_measured() -> bool:
        with Ledger.open(str(ledger)) as book:
            return any(
                (row.status, row.place, row.role) == ("running", "pod", "measured") for row in book.runs(limit=5)
            )

    eventually(lambda: process.poll() is not None or (ledger.exists() and a_pod_is_measured()), within_s=240)
    assert process.poll() is None
    process.kill()
    process.wait()
    done = subprocess.run(
        [*COMMAND, "resume", "last"], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    with Ledger.open(str(ledger)) as book:
        suite = book.experiment("last")
        result = examine_suite(book, suite)
        rows = [book.runs_of(one.id) for one in book.experiments_of(suite.id)]
    assert [row.state for row in result.rows] == ["done", "done"]
    assert all(cell.throughput and cell.throughput.runs == 2 for cell in result.cells)
    for runs in rows:
        measured = Counter((run.arm, run.block) for run in runs if run.role == "measured" and run.status == "done")
        assert set(measured.values()) == {1}
    assert sum(run.failure_kind == "lost" for runs in rows for run in runs) == 1
    # The pod of the killed command may still be ending.
    eventually(lambda: (cluster.pods(), cluster.jobs()) == ([], []), within_s=60)
