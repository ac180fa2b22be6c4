"""Slurm as a place, on a real Slurm of two nodes: groups over nodes, real kills, and nothing left."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rank_tricks import install as install_ranked
from rank_tricks import ranked
from refusing import refused
from slurm_clusters import TestSlurm
from stackmark.errors import PlaceError
from stackmark.events import Event, Failed, Hello, Result, Stream, gathered_facts
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.judging import judge
from stackmark.ledger.store import Ledger
from stackmark.machine.orphans import marked
from stackmark.places.place import Handle, Outcome, Place
from stackmark.places.registry import find_place
from stackmark.spec import Spec, Task
from worker_process import (
    PIDS_VARIABLE,
    environment,
    eventually,
    gone,
    install,
    read_pids,
    stands_still,
    time_is_up_when,
    trick,
)

pytestmark = pytest.mark.slurm
MARK = f"r-test-{os.getpid()}"


class Notes:
    """A watch that writes down what it sees."""

    def __init__(self) -> None:
        self.handle: Handle = {}
        self.lines: list[str] = []
        self.err: list[str] = []
        self.waits: list[str] = []

    def started(self, handle: Handle) -> None:
        self.handle = dict(handle)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def waiting(self, sentence: str) -> None:
        self.waits.append(sentence)

    def stderr(self, text: str) -> None:
        self.err.append(text)

    @property
    def stream(self) -> Stream:
        stream = Stream()
        for line in self.lines:
            stream.feed(line)
        return stream

    @property
    def events(self) -> list[Event]:
        return list(self.stream.events)


@pytest.fixture(scope="module", autouse=True)
def env(test_slurm: TestSlurm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of srun, and so of the nodes, has the families of tests."""
    folders = [install(tmp_path_factory.mktemp("tricks")), install_ranked(tmp_path_factory.mktemp("ranked"))]
    made = environment(*folders, SLURM_CONF=test_slurm.conf)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SLURM_CONF", "PYTHONPATH"):
            patch.setenv(name, made[name])
        yield made


@pytest.fixture(autouse=True)
def whole(test_slurm: TestSlurm) -> Iterator[None]:
    """Whatever a test did, nothing of it is left, and Slurm is whole again."""
    yield
    left = marked(MARK)
    test_slurm.heal()
    assert not left


def place(**options: str) -> Place:
    return find_place("slurm", {"gpus": "none", "python": sys.executable, **options})


def run(spec: Spec, limit_s: float | None = 60, notes: Notes | None = None, **options: str) -> tuple[Outcome, Notes]:
    notes = notes or Notes()
    return place(**options).run(Task(do="run", spec=spec), notes, mark=MARK, time_limit_s=limit_s), notes


def failed(notes: Notes) -> Failed:
    closed = notes.stream.ended()
    assert isinstance(closed, Failed)
    return closed


# What works


def test_a_run_of_one_rank_is_one_worker(test_slurm: TestSlurm) -> None:
    outcome, notes = run(trick("calm"))
    assert (outcome.exit_code, outcome.failure) == (0, None)
    assert isinstance(notes.stream.ended(), Result)
    facts = gathered_facts(notes.events)
    assert facts["container"]["slurm_job_id"] == notes.handle["slurm_job_id"]
    assert (facts["container"]["slurm_partition"], notes.handle["partition"]) == ("gpu", "gpu")
    assert not place().not_enforced(trick("calm"), facts)
    assert not test_slurm.jobs()


def test_a_worker_binds_itself_within_its_job() -> None:
    outcome, notes = run(trick("calm"), bind="cores")
    assert outcome.failure is None
    facts = gathered_facts(notes.events)
    assert facts["binding"]["bind"] == "cores"
    assert facts["binding"]["cpus"] == facts["process"]["cpus"]
    assert not place(bind="cores").not_enforced(trick("calm"), facts)


def test_a_group_on_two_nodes_is_one_run() -> None:
    outcome, notes = run(ranked("calm", ranks=4), ranks_per_node="2")
    assert outcome.failure is None
    assert isinstance(notes.stream.ended(), Result)
    assert {event.rank for event in notes.events if isinstance(event, Hello)} == {0, 1, 2, 3}
    assert notes.handle["nodes"] == "n[1-2]"


def test_the_rank_of_a_driver_under_a_launcher_is_not_that_of_the_job_s(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    outcome, notes = run(ranked("calm"))
    assert outcome.failure is None
    assert {event.rank for event in notes.events} == {0, 1}


def test_long_lines_of_two_nodes_come_whole() -> None:
    outcome, notes = run(ranked("wordy"), ranks_per_node="1")
    assert outcome.failure is None
    assert {len(line) > 7000 for line in notes.lines if '"part"' in line} >= {True}
    assert [line for line in notes.err if line.endswith("é" * 5000)]


def test_two_ranks_on_two_nodes_reduce(env: dict[str, str], tmp_path: Path) -> None:
    done = stackmark(
        ["run", "op/all-reduce", "--ranks", "2", "--on", "slurm", "--ranks-per-node", "1", "--gpus", "none",
         "--shape", "floats=10000", "--row-seconds", "0.1", "--runs", "1", "--json"], env, tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["schema"].startswith("stackmark.list/")


def test_a_network_is_scaled_from_one_node_to_two(env: dict[str, str], tmp_path: Path) -> None:
    done = stackmark(
        ["scale", "train/trivial_cifar10", "--batch", "2", "--steps", "5", "--warmup-steps", "1", "--warmup-seconds", "0",
         "--device", "cpu", "--ranks", "1,2", "--ranks-per-node", "1", "--blocks", "2", "--no-primers", "--on", "slurm",
         "--gpus", "none", "--json"], env, tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert [point["ranks"] for point in shown["scaling"]["points"]] == [1, 2]
    assert shown["scaling"]["points"][1]["efficiency"] > 0


def test_a_program_on_the_host_and_under_slurm_is_compared(env: dict[str, str], tmp_path: Path) -> None:
    words = ["compare", "--cmd", "sleep 0.1", "--arm", "host", "--arm", "slurm,gpus=none", "--blocks", "2"]
    done = stackmark(words, env, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "slurm" in done.stdout


def stackmark(words: list[str], env: dict[str, str], folder: Path) -> "subprocess.CompletedProcess[str]":
    more = {"STACKMARK_LEDGER": str(folder / "ledger.sqlite3"), "XDG_STATE_HOME": str(folder), "NO_COLOR": "1"}
    return subprocess.run(
        [sys.executable, "-m", "stackmark", *words], env={**env, **more}, capture_output=True, text=True, timeout=280,
        cwd=folder,
    )  # fmt: skip


# What cannot be


def test_a_partition_that_does_not_exist_names_those_that_do() -> None:
    with refused("'gqu'", "gpu", error=PlaceError):
        run(trick("calm"), partition="gqu")


def test_more_nodes_than_the_partition_has_are_refused_before_the_job_waits(test_slurm: TestSlurm) -> None:
    notes = Notes()
    with refused("3 nodes", "gpu", error=PlaceError):
        run(ranked("calm", ranks=3), notes=notes, ranks_per_node="1")
    assert not notes.waits
    assert not test_slurm.jobs()


def test_what_slurm_refuses_is_a_sentence() -> None:
    with refused("features", error=PlaceError):
        run(trick("calm"), constraint="no-such-feature")


def test_a_python_that_is_not_on_the_node_is_a_sentence() -> None:
    with refused("/no/such/python", error=PlaceError):
        run(trick("calm"), python="/no/such/python")


def test_a_job_that_no_node_takes_says_why_and_is_given_up(test_slurm: TestSlurm) -> None:
    test_slurm.update("n2", "drain")
    notes = Notes()
    with refused("drained", error=PlaceError):
        run(trick("calm"), notes=notes, nodelist="n2", wait="2s")
    assert [sentence for sentence in notes.waits if "drained" in sentence]
    assert eventually(lambda: not test_slurm.jobs())


def test_a_job_waits_for_the_one_before_it(test_slurm: TestSlurm) -> None:
    hog = subprocess.Popen(["srun", "--exclusive", "--nodes=2", "--quiet", "sleep", "3"])
    eventually(lambda: "sleep RUNNING" in test_slurm.jobs())
    try:
        outcome, notes = run(trick("calm"), exclusive="yes")
    finally:
        hog.wait()
    assert outcome.failure is None
    assert [sentence for sentence in notes.waits if "in use" in sentence or "come first" in sentence]


# What goes wrong


def test_a_killed_rank_fails_the_run_and_ends_the_others(test_slurm: TestSlurm) -> None:
    outcome, notes = run(ranked("dies", step_s=0.1), ranks_per_node="1")
    assert outcome.failure is None
    assert (failed(notes).kind, failed(notes).rank, "SIGKILL" in failed(notes).message) == ("rank_died", 1, True)
    assert str(judge(notes.stream, outcome).failure_message).startswith("rank 1 of 2, on n2: ")
    assert not test_slurm.jobs()


def test_a_rank_that_stands_still_is_ended_by_the_time_limit(test_slurm: TestSlurm) -> None:
    notes = Notes()
    # The nodes of the test's Slurm are on this machine. A rank that is ended before it stands still answers.
    with time_is_up_when(lambda: any(stands_still(one.pid) for one in notes.stream.events if isinstance(one, Hello))):
        outcome, _ = run(ranked("stands", step_s=0.1), 600, notes, ranks_per_node="1")
    assert outcome.failure is not None
    assert outcome.failure.kind == "timeout"
    end = judge(notes.stream, outcome)
    assert (end.failure_kind, "rank 1 of 2, on n2 " in str(end.failure_message)) == ("timeout", True)
    assert eventually(lambda: not test_slurm.jobs())


def test_a_killed_worker_names_the_signal() -> None:
    outcome, _ = run(trick("segfault"))
    assert outcome.failure is not None
    assert (outcome.failure.kind, "SIGSEGV" in outcome.failure.message) == ("killed", True)


def cut_off(notes: Notes, hurt: list[str]) -> Outcome:
    """A long run, to which something is done as soon as it measures."""
    task = Task(do="run", spec=trick("calm", steps=100_000))

    def wait_and_hurt() -> None:
        eventually(lambda: any('"phase":"measure"' in line for line in notes.lines))
        subprocess.run(hurt, check=True, capture_output=True)

    thread = threading.Thread(target=wait_and_hurt)
    thread.start()
    try:
        return place(nodelist="n2").run(task, notes, mark=MARK, time_limit_s=600)
    finally:
        thread.join()


def test_a_job_that_was_cancelled_by_hand_says_so() -> None:
    notes = Notes()
    outcome = cut_off(notes, ["scancel", f"--name=stackmark-{MARK}"])
    assert outcome.failure is not None
    assert (outcome.failure.kind, "cancelled" in outcome.failure.message) == ("deleted", True)


def test_a_node_whose_slurmd_is_killed_ends_its_run_well(test_slurm: TestSlurm) -> None:
    """The job's own process (slurmstepd) does not need it."""
    notes = Notes()
    task = Task(do="run", spec=trick("calm", steps=1000))

    def hurt() -> None:
        eventually(lambda: any('"phase":"measure"' in line for line in notes.lines))
        test_slurm.do("kill", "n2")
        eventually(lambda: isinstance(notes.stream.ended(), Result))
        test_slurm.do("start", "n2")

    thread = threading.Thread(target=hurt)
    thread.start()
    outcome = place(nodelist="n2").run(task, notes, mark=MARK, time_limit_s=600)
    thread.join()
    assert outcome.failure is None
    assert isinstance(notes.stream.ended(), Result)


def test_a_run_waits_for_a_controller_that_comes_back(test_slurm: TestSlurm) -> None:
    there = place()
    notes = Notes()
    there.run(Task(do="facts"), Notes(), mark=MARK)
    test_slurm.do("kill", "ctld")

    def heal() -> None:
        eventually(lambda: notes.waits)
        test_slurm.do("start", "ctld")

    thread = threading.Thread(target=heal)
    thread.start()
    outcome = there.run(Task(do="run", spec=trick("calm")), notes, mark=MARK, time_limit_s=60)
    thread.join()
    assert outcome.failure is None
    assert "slurmctld" in notes.waits[0]


# Drivers that are killed


def driver(env: dict[str, str], folder: Path, spec: Spec, **options: str) -> "subprocess.Popen[bytes]":
    """A process that drives a run, as `stackmark run` does."""
    words = ["-c", DRIVER, str(folder / "ledger.sqlite3"), spec.model_dump_json(), str(options)]
    return subprocess.Popen([sys.executable, *words], env={**env, PIDS_VARIABLE: str(folder / "pids")})


DRIVER = """
import ast, sys
from stackmark.experiments.recorder import Position, Recorder, Silent, begin, new_experiment
from stackmark.ledger.store import Ledger
from stackmark.places.registry import find_place
from stackmark.spec import Spec
ledger, spec, options = sys.argv[1:]
spec, options = Spec.model_validate_json(spec), ast.literal_eval(options)
with Ledger.open(ledger) as book:
    experiment = begin(book, new_experiment(), [(spec, "slurm", options)])
    Recorder(book, experiment.id).run(spec, Position(), find_place("slurm", options), Silent())
"""


def test_a_killed_driver_leaves_nothing_running(env: dict[str, str], tmp_path: Path, test_slurm: TestSlurm) -> None:
    process = driver(env, tmp_path, ranked("children", step_s=0.01, steps=100_000), gpus="none", ranks_per_node="1")
    pids = read_pids(tmp_path / "pids", 8)
    process.kill()
    process.wait()
    assert gone(pids, 10)
    assert eventually(lambda: not test_slurm.jobs())


def test_a_killed_driver_leaves_no_job_in_the_queue(env: dict[str, str], tmp_path: Path, test_slurm: TestSlurm) -> None:
    test_slurm.update("n2", "drain")
    process = driver(env, tmp_path, trick("calm"), gpus="none", nodelist="n2")
    assert eventually(test_slurm.jobs)
    process.kill()
    process.wait()
    assert eventually(lambda: not test_slurm.jobs())


def test_what_cannot_end_itself_the_next_command_ends(
    env: dict[str, str], tmp_path: Path, test_slurm: TestSlurm
) -> None:
    test_slurm.update("n2", "drain")
    process = driver(env, tmp_path, trick("calm"), gpus="none", nodelist="n2")
    assert eventually(test_slurm.jobs)
    # Neither hears that its driver is gone.
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as ledger:
        (row,) = ledger.runs(limit=1)
        client = int(str(eventually(lambda: ledger.run(row.id).handle.get("pid"))))
        os.kill(client, signal.SIGSTOP)
        process.kill()
        process.wait()
        said = clean_up(ledger)
    assert [sentence for sentence in said if row.id in sentence and "Slurm job" in sentence]
    assert gone([client])
    assert eventually(lambda: not test_slurm.jobs())
