"""A canary that sends pods, on a real cluster."""

import json

import pytest

from asking import ask
from clusters import TestCluster
from experiment_asking import empty_ledger
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger


@pytest.mark.cluster
@pytest.mark.timeout(600)
def test_each_node_is_checked_against_itself_and_a_node_that_was_never_saved_is_named(
    cluster: TestCluster, worker_image: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("canary")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    file = empty_ledger(folder, monkeypatch)
    names = [node["metadata"]["name"] for node in cluster.cluster.items("/api/v1/nodes")]
    first, *others = sorted(names)
    place = ("--on", f"pod,node={first}", "--image", worker_image, "--namespace", cluster.namespace)
    saved = ask(
        "baseline", "save", "nodes", "train/trivial_cifar10", "--device", "cpu", "--batch", "2", "--steps", "3",
        "--warmup-steps", "1", "--warmup-seconds", "0", "--runs", "1", *place,
    )  # fmt: skip
    assert saved.code == 0, saved.err
    answer = ask("canary", "--baseline", "nodes", "--each-node", "--once", "--margin", "40%", "--json")
    found = json.loads(answer.out)
    assert found["state"] in ("passed", "inconclusive", "slower"), answer.err
    with Ledger.open(str(file)) as book:
        runs = book.runs(RunFilter(status="done"))
    assert {run.handle["node"] for run in runs} == {first}
    assert len({run.experiment_id for run in runs}) == 2
    # One that has no room for the pod now is not named.
    assert all(name in answer.err for name in others) or len(others) > 1
