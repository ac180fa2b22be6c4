"""What a pod run trusts, without a cluster: its rights, the last word of a log, and the notes of what it created."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from limited_account import documented_rules, rights_in
from stackmark.events import Failed, write_event
from stackmark.experiments import driver
from stackmark.ids import new_id
from stackmark.kubernetes import orphans
from stackmark.kubernetes.log.lines import Closing
from stackmark.kubernetes.rights import RUN_RIGHTS
from stackmark.ledger.rows import Experiment, RunStart
from stackmark.ledger.store import Ledger
from stackmark.machine import host as machine
from stackmark.machine.orphans import pid_namespace, start_ticks
from stackmark.spec import Request, Spec, Task

RECORDED = (Path(__file__).parent / "data/kubernetes/sweep_run.jsonl").read_text().splitlines()
SPEC = Spec(workload="train/lenet", params={"device": "cpu"})
RUN, PROBE = Task(do="run", spec=SPEC), Task(do="probe", request=Request(workload="train/lenet"))


# Rights


def test_the_documented_role_has_every_right_that_is_checked_and_no_other() -> None:
    assert rights_in(documented_rules()) == set(RUN_RIGHTS)


# The last word of a log


def kind_of(task: Task, lines: list[str], code: int = 0) -> str | None:
    failure = Closing.of(task, lines).failure(code, "node-1", "containerd://1.6.20")
    return failure.kind if failure else None


def test_a_recorded_log_is_complete_only_with_its_last_line() -> None:
    assert kind_of(RUN, RECORDED) is None
    for cut in range(len(RECORDED)):
        assert kind_of(RUN, RECORDED[:cut]) == "log_incomplete"
        assert kind_of(RUN, RECORDED[:cut], code=1) is None, "a worker that failed has its own kinds"


def test_a_worker_that_says_that_it_failed_has_closed_its_log() -> None:
    failed = write_event(Failed(seq=1, t=1, kind="crash", message="no"))
    assert kind_of(RUN, [RECORDED[0], failed]) is None


def test_each_rank_closes_the_log_for_itself() -> None:
    two = Task(do="run", spec=SPEC.model_copy(update={"ranks": 2}))
    assert kind_of(two, RECORDED) == "log_incomplete"
    assert kind_of(two, [*RECORDED, RECORDED[-1]]) is None


def test_a_probe_is_complete_with_its_last_facts() -> None:
    last = next(number for number, line in enumerate(RECORDED) if '"subject":"environment"' in line)
    assert kind_of(PROBE, RECORDED[: last + 1]) is None
    assert kind_of(PROBE, RECORDED[:last]) == "log_incomplete"


# Notes of Jobs


def dead_process() -> tuple[int, int | None]:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = process.pid, start_ticks(process.pid)
    process.communicate()
    return found


def note(pid: int, ticks: int | None, **more: Any) -> orphans.JobNote:
    return orphans.JobNote(
        **{
            "mark": new_id("r"), "namespace": "n", "context": "c", "kubeconfig": "/nonexistent", "server": "https://s",
            "created_unix_s": time.time(), "machine": machine.machine_id(), "boot": machine.boot_id(),
            "pid_namespace": pid_namespace(), "pid": pid, "start_ticks": ticks, **more,
        }
    )  # fmt: skip


def test_only_what_a_dead_driver_of_this_machine_created_is_an_orphan() -> None:
    me = os.getpid(), start_ticks(os.getpid())
    assert not note(*me).is_orphan
    assert note(*me, given_up=True).is_orphan
    assert note(*dead_process()).is_orphan
    assert not note(*dead_process(), machine="another").is_orphan, "a home folder may be shared by many machines"
    assert not note(*dead_process(), pid_namespace=1).is_orphan, "a process in another container cannot be seen"


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"mark": "../../x"}'])
def test_a_note_that_cannot_be_read_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "stackmark/jobs"
    folder.mkdir(parents=True)
    (folder / "r-1.json").write_text(text)
    assert orphans.remove_orphans() == []
    assert list(folder.iterdir()) == []


def test_a_note_stays_while_its_kubeconfig_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = tmp_path / "stackmark/jobs"
    folder.mkdir(parents=True)
    one = note(*dead_process())
    (folder / f"{one.mark}.json").write_text(one.model_dump_json())
    assert orphans.remove_orphans() == []
    assert [left.mark for left in orphans.orphans()] == [one.mark]


# A ledger that others can write


def lost_run(ledger: Path, run_id: str, handle: dict[str, Any]) -> None:
    """A row as kill -9 leaves it."""
    with Ledger.open(str(ledger)) as book:
        experiment = Experiment(id=new_id("x"), created_unix_s=1.0)
        book.start_experiment(experiment)
        book.start(
            RunStart(
                id=run_id, experiment_id=experiment.id, spec=SPEC, place="pod", started_unix_s=1.0, driver_pid=os.getpid(),
                machine_id=driver.machine_name(), boot_id=driver.boot_name(), stackmark_version="0.1.0",
                handle={"driver_start_ticks": 1, "pid_namespace": driver.pid_namespace(), "job": "j", "namespace": "n", **handle},
            )
        )  # fmt: skip


@pytest.fixture
def asked_paths(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of what would be deleted in a cluster."""
    found: list[str] = []

    class Recorder:
        context, server, namespace = "c", "s", "n"
        items: Callable[..., list[object]] = staticmethod(lambda *_a, **_k: [])

        def delete(self, path: str, **_more: object) -> bool:
            found.append(path)
            return False

    monkeypatch.setattr("stackmark.kubernetes.orphans.connect", lambda *_: Recorder())
    return found


@pytest.mark.parametrize("namespace", ["a/jobs/victim?x=", "../../../api/v1/namespaces/x", "a#", "a b"])
def test_a_namespace_that_a_ledger_names_cannot_lead_to_another_object(
    asked_paths: list[str], tmp_path: Path, namespace: str
) -> None:
    run_id = new_id("r")
    lost_run(tmp_path / "l.sqlite3", run_id, {"namespace": namespace})
    assert ask("results", "--ledger", str(tmp_path / "l.sqlite3")).code == 0
    (path,) = asked_paths
    before, _, after = path.partition("/namespaces/")
    assert (before, after.count("/"), set(after) & set("?# ")) == ("/apis/batch/v1", 2, set())
    assert path.endswith(f"/jobs/stackmark-{run_id}")
