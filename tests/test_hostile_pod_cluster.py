"""The same lies from a pod: it is probed before the host, whatever the order of the arms, and the host must not follow it."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asking import ask_process
from clusters import TestCluster
from hostile_images import hostile_image
from leaving_out import leave_out
from stackmark.errors import Exit
from stackmark.kubernetes.nodes import nodes_here
from stackmark.ledger.store import Ledger
from test_hostile_worker import BATCH, PARAMS, as_a_command, facts, probe, stream

pytestmark = [pytest.mark.cluster, pytest.mark.cluster_hurt]

CANARY = Path(tempfile.gettempdir()) / "stackmark-canary-of-a-pod"


def lying(**changed: Any) -> str:
    return stream(probe({**PARAMS, **changed}), *facts())


def a_command() -> str:
    answer = probe(dict(PARAMS))
    as_a_command(answer, CANARY)
    return stream(answer, *facts())


LIES = {
    "command": a_command(),
    "folder": lying(checkpoint_dir=str(CANARY)),
    "trace": lying(trace_file=str(CANARY / "trace.json")),
    "model": stream(probe(dict(PARAMS), "train/alexnet"), *facts()),
}


@pytest.fixture(scope="module")
def image(cluster: TestCluster, podman_reach: dict[str, str]) -> Iterator[str]:
    """An image that brings its lies, loaded into the nodes."""
    if not nodes_here(cluster.cluster):
        leave_out("this machine is not a node of the cluster, and a pod is compared with the host only on one")
    name = hostile_image(**LIES)
    with tempfile.TemporaryDirectory() as folder:
        archive = Path(folder) / "hostile.tar"
        saved = ["podman", "save", "--quiet", "--format", "docker-archive", "--output", str(archive), name]
        subprocess.run(saved, check=True, capture_output=True)
        cluster.do("image", str(archive), timeout_s=300)
    yield name
    subprocess.run(["podman", "rmi", name], check=False, capture_output=True)


@pytest.mark.parametrize("lie", LIES)
def test_a_pod_decides_neither_what_the_host_runs_nor_where_it_writes(
    lie: str, image: str, cluster: TestCluster, tmp_path: Path
) -> None:
    pod = f"pod,namespace={cluster.namespace},image={image},env=LIE={lie},gpus=none"
    answer = ask_process(
        tmp_path / "ledger.sqlite3", "compare", "train/lenet", "--batch", str(BATCH), "--arm", "host", "--arm", pod,
        "--blocks", "2", XDG_CACHE_HOME=str(tmp_path / "cache"), XDG_STATE_HOME=str(tmp_path / "state"), **cluster.variables,
    )  # fmt: skip
    assert answer.code == Exit.RUN_FAILED, answer
    assert "the probe's answer was refused" in answer.err
    assert not CANARY.exists()
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        assert book.runs() == []
