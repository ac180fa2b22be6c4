"""The question itself, on a real cluster: a network trained on the host and in a pod of the same machine, down to the verdict.

This machine may be noisy: no test here asserts a verdict that chance could turn.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asking import ask_process
from clusters import TestCluster, until
from leaving_out import leave_out
from stackmark.events import Result, Stream, measured_steps
from stackmark.kubernetes.nodes import nodes_here
from stackmark.ledger.store import Ledger

pytestmark = pytest.mark.cluster

SMALL = (
    "train/resnet20",
    "--device",
    "cpu",
    "--batch",
    "4",
    "--steps",
    "12",
    "--warmup-seconds",
    "0",
    "--warmup-steps",
    "2",
)


@dataclass(frozen=True)
class Compared:
    ledger: Path
    shown: dict[str, Any]
    err: str

    def arm(self, place: str) -> dict[str, Any]:
        found: dict[str, Any] = next(arm for arm in self.shown["arms"] if arm["place"] == place)
        return found


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, cluster: TestCluster) -> Compared:
    if not nodes_here(cluster.cluster):
        leave_out("this machine is no node of the cluster, and a pod is compared with the host only on one")
    folder = tmp_path_factory.mktemp("compared")
    arms = ("--arm", "host", "--arm", f"pod,namespace={cluster.namespace}", "--blocks", "2", "--no-primers")
    answer = ask_process(
        folder / "ledger.sqlite3", "compare", *SMALL, *arms, "--json",
        XDG_CACHE_HOME=str(folder / "cache"), **cluster.variables,
    )  # fmt: skip
    assert answer.code == 0, answer.err
    return Compared(folder / "ledger.sqlite3", json.loads(answer.out), answer.err)


def test_it_ends_in_a_verdict_with_an_interval(compared: Compared) -> None:
    (pair,) = compared.shown["comparisons"]
    assert pair["word"] in ("EQUIVALENT", "SLOWER", "FASTER", "INCONCLUSIVE")
    assert 0 < pair["interval_90"]["low"] < pair["ratio"] < pair["interval_90"]["high"]
    assert (compared.shown["state"], compared.shown["blocks_whole"]) == ("done", 2)


def test_the_arms_were_interleaved(compared: Compared) -> None:
    counted = [run for run in compared.shown["runs"] if run["counted"]]
    assert Counter(run["block"] for run in counted) == dict.fromkeys({run["block"] for run in counted}, 2)
    assert Counter(run["arm"] for run in counted) == {0: 2, 1: 2}


def test_every_event_of_every_run_is_there_once(compared: Compared) -> None:
    with Ledger.open(str(compared.ledger), create=False) as book:
        streams = [book.stream(run["run_id"]) for run in compared.shown["runs"]]
    assert len(streams) == 4
    for lines in streams:
        stream = Stream()
        for line in lines:
            stream.feed(line)
        events = list(stream.events)
        assert [event.seq for event in events] == list(range(len(events)))
        assert isinstance(events[-1], Result)
        assert len(measured_steps(events)) == 12


def test_both_arms_ran_the_same_software_on_the_same_machine(compared: Compared) -> None:
    host, pod = compared.arm("host")["facts"], compared.arm("pod")["facts"]
    assert pod["container"]["kubernetes"] is True
    assert host["container"].get("kubernetes") is not True
    assert pod["software"] == host["software"] | {"executable": pod["software"]["executable"]}
    assert pod["kernels"]["hash"] == host["kernels"]["hash"]
    assert pod["host"]["boot_id"] == host["host"]["boot_id"]


def test_nothing_is_left_of_it(compared: Compared, cluster: TestCluster) -> None:
    until(lambda: not (cluster.pods() or cluster.jobs()))
    assert not list((compared.ledger.parent / "cache" / "stackmark" / "experiments").iterdir())
