"""The loop that all tasks of fit/ share, with the cheapest of them: kills, checkpoints, ranks and runs that miss their target."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from asking import ask
from fit_rig import Course, FitRig, fit_params, trained
from refusing import fails_as
from stackmark import events
from stackmark.events import Evaluation, Facts, Failed, Result, Stream
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.workloads.fit.definition import TASKS
from stackmark.workloads.fit.impl import fit
from stackmark.workloads.fit.impl.checkpoint import Checkpoints, Saved
from stackmark.workloads.workload import Evaluated, WorkloadFailure
from worker_process import SOURCE, Finished, environment, eventually, finish, give, read_until, start, work

CPU = torch.device("cpu")
# The seed of a run is that of its spec and its number.
SEED, REPETITION = 1, 1
NAME = f"ncf-seed{SEED + REPETITION}.checkpoint"


def spec(ranks: int = 1, **params: Scalar) -> Spec:
    return Spec(workload="fit/ncf", params=fit_params("ncf", seed=SEED, **params).model_dump(mode="json"), ranks=ranks)


def run(of: Spec, repetition: int = REPETITION) -> "Told":
    return told(work(Task(do="run", spec=of, repetition=repetition), environment()))


@dataclass(frozen=True)
class Told:
    """What a worker told of a training."""

    code: int
    closed: Result | Failed
    evaluations: tuple[Evaluation, ...]
    facts: dict[str, Any]

    @property
    def curve(self) -> list[tuple[float, int, dict[str, float]]]:
        return [(one.epoch, one.samples, one.quality) for one in self.evaluations]


def told(finished: Finished) -> Told:
    stream = Stream()
    for line in finished.lines:
        assert stream.feed(line) is not None, line
    closed = stream.ended()
    assert isinstance(closed, Result | Failed), finished.stderr
    found = [event for event in stream.events if isinstance(event, Evaluation) and event.rank == 0]
    facts = [event.facts for event in stream.events if isinstance(event, Facts) and event.subject == "fit"]
    return Told(finished.code, closed, tuple(found), dict(facts[0]) if facts else {})


def killed_after_two_epochs(of: Spec, repetition: int = REPETITION) -> list[dict[str, Any]]:
    """Kill a worker and all its processes when it has a checkpoint, and return its evaluations so far."""
    process = start(environment())
    give(process, Task(do="run", spec=of, repetition=repetition))
    seen: list[dict[str, Any]] = []

    def second(event: dict[str, Any]) -> bool:
        if event["event"] == "evaluation" and event["rank"] == 0:
            seen.append(event)
        return len(seen) == 2

    try:
        read_until(process, second)
        eventually((Path(str(of.params["checkpoint_dir"])) / NAME).exists)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        finished = finish(process)
    assert finished.code == -signal.SIGKILL
    assert "result" not in finished.kinds()
    return seen


@pytest.fixture(scope="module")
def uninterrupted() -> Told:
    return run(spec())


@dataclass(frozen=True)
class Killed:
    folder: Path
    evaluations: list[dict[str, Any]]

    def copy(self, to: Path) -> Path:
        shutil.copytree(self.folder, to)
        return to


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    folder = tmp_path_factory.mktemp("killed") / "made" / "by the run"
    return Killed(folder, killed_after_two_epochs(spec(checkpoint_dir=str(folder))))


# The end of a run


@pytest.mark.slow
def test_a_run_that_reaches_its_target_says_when(uninterrupted: Told) -> None:
    closed, last = uninterrupted.closed, uninterrupted.evaluations[-1]
    assert isinstance(closed, Result)
    assert closed.figure is not None
    assert (closed.figure.name, closed.figure.unit, closed.figure.higher_is_better) == ("time to target", "min", False)
    assert closed.figure.value == pytest.approx(last.clock_s / 60, abs=1e-6)
    assert [one.reached for one in uninterrupted.evaluations] == [False] * (len(uninterrupted.evaluations) - 1) + [True]
    assert last.quality["HR@10"] >= last.target["HR@10"] == 0.8
    clocks = [one.clock_s for one in uninterrupted.evaluations]
    assert clocks == sorted(clocks)
    assert uninterrupted.facts["seed"] == SEED + REPETITION


@pytest.mark.slow
def test_a_run_that_misses_its_target_keeps_its_curve() -> None:
    missed = run(spec(target="0.99", most_epochs=3, evaluate_every=2))
    assert isinstance(missed.closed, Failed)
    assert (missed.closed.kind, missed.code) == ("target_not_reached", events.FAILURE_EXIT_CODES["target_not_reached"])
    assert [one.epoch for one in missed.evaluations] == [2, 3]
    assert not any(one.reached for one in missed.evaluations)


@pytest.mark.slow
def test_a_run_gives_up_at_the_first_evaluation_after_its_time() -> None:
    course = Course()
    with fails_as("target_not_reached", "HR@10", "--most-seconds"):
        trained("ncf", fit_params("ncf", target="0.99", most_seconds=1e-6), course=course)
    assert [one.epoch for one in course.evaluations] == [1]


# Killed, and begun again


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_quality(killed: Killed, uninterrupted: Told, tmp_path: Path) -> None:
    folder = killed.copy(tmp_path / "checkpoints")
    resumed = run(spec(checkpoint_dir=str(folder)))
    assert resumed.curve == uninterrupted.curve
    assert isinstance(resumed.closed, Result)
    # What it had before is told again, as it was: by then the clock had not stopped.
    before = [one for one in resumed.evaluations if one.clock_s <= killed.evaluations[-1]["clock_s"]]
    assert [one.clock_s for one in before] == [one["clock_s"] for one in killed.evaluations[: len(before)]]
    assert len(before) >= 1
    # The time from its checkpoint on is on the clock.
    lost_s, at_s = resumed.facts["lost_s"], resumed.facts["resumed_at_s"]
    assert lost_s > 0
    assert resumed.evaluations[len(before)].clock_s >= at_s + lost_s
    assert [flag for flag in resumed.closed.flags if flag.startswith("resumed") and f"{lost_s:.1f} s" in flag]
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_a_run_with_another_number_starts_from_the_beginning(killed: Killed, tmp_path: Path) -> None:
    folder, course = killed.copy(tmp_path / "checkpoints"), Course()
    params = fit_params("ncf", seed=SEED, checkpoint_dir=str(folder), target="0.99", most_epochs=1)
    with fails_as("target_not_reached"):
        trained("ncf", params, REPETITION + 1, course)
    assert course.facts["seed"] == SEED + REPETITION + 1
    assert "resumed_at_s" not in course.facts
    assert [one.epoch for one in course.evaluations] == [1]
    # The other's is left alone, and its own is gone.
    assert {file.stem for file in folder.iterdir()} == {Path(NAME).stem}
    assert (folder / NAME).exists()


@pytest.mark.slow
def test_the_seed_and_the_number_of_a_run_together_name_its_work(killed: Killed, tmp_path: Path) -> None:
    folder = killed.copy(tmp_path / "checkpoints")
    course = trained("ncf", fit_params("ncf", seed=SEED + REPETITION, checkpoint_dir=str(folder)))
    assert "resumed_at_s" in course.facts


def lower_rate(_folder: Path) -> dict[str, Scalar]:
    return {"learning_rate": 1e-3}


def wrong_bit(folder: Path) -> dict[str, Scalar]:
    """In the middle of the file, which is in the weights."""
    raw = bytearray((folder / NAME).read_bytes())
    raw[len(raw) // 2] ^= 1
    (folder / NAME).write_bytes(raw)
    return {}


def other_shape(folder: Path) -> dict[str, Scalar]:
    """As a version with another model would have left it."""
    state = torch.load(folder / NAME, weights_only=True)
    state["learner"]["net"]["users.weight"] = torch.zeros(3, 3)
    torch.save(state, folder / NAME)
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("change", [lower_rate, wrong_bit, other_shape])
def test_a_foreign_or_damaged_checkpoint_is_refused(
    killed: Killed, tmp_path: Path, change: Callable[[Path], dict[str, Scalar]]
) -> None:
    folder = killed.copy(tmp_path / "checkpoints")
    params, course = fit_params("ncf", seed=SEED, checkpoint_dir=str(folder), **change(folder)), Course()
    with fails_as("bad_data", str(folder / NAME), "delete"):
        trained("ncf", params, REPETITION, course)
    assert course.evaluations == []
    assert (folder / NAME).exists()


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with fails_as("bad_output", str(tmp_path / "file" / "folder")):
        trained("ncf", fit_params("ncf", checkpoint_dir=str(tmp_path / "file" / "folder")))


# The file


def saved(epochs: int, weights: int = 1000) -> Saved:
    one = Evaluated(float(epochs), 10 * epochs, 0.5 * epochs, {"HR@10": 0.1}, {"HR@10": 0.8})
    return Saved(epochs, 10 * epochs, 1.0, 2.0, (one,), {"net": {"weight": torch.full((weights,), float(epochs))}})


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    Checkpoints(tmp_path, "a", "work", saves=True).save(saved(3))
    found = Checkpoints(tmp_path, "a", "work", saves=False).load(CPU)
    assert found is not None
    expected = saved(3)
    assert (found.epochs, found.samples, found.started_unix_s, found.saved_unix_s) == (3, 30, 1.0, 2.0)
    assert found.evaluations == expected.evaluations
    assert torch.equal(found.learner["net"]["weight"], expected.learner["net"]["weight"])
    assert Checkpoints(tmp_path, "b", "work", saves=False).load(CPU) is None


def test_only_the_rank_that_saves_writes_and_removes(tmp_path: Path) -> None:
    first, second = (Checkpoints(tmp_path, "a", "work", saves=saves) for saves in (True, False))
    second.save(saved(1))
    assert list(tmp_path.iterdir()) == []
    first.save(saved(1))
    second.remove()
    assert second.load(CPU) is not None
    first.remove()
    assert first.load(CPU) is None


WRITER = """
import sys
from pathlib import Path
from test_fit import Checkpoints, saved

checkpoints = Checkpoints(Path(sys.argv[1]), "a", "work", saves=True)
for epochs in range(1, 1000):
    checkpoints.save(saved(epochs, 4_000_000))
    print(epochs, flush=True)
"""


@pytest.mark.slow
def test_a_kill_while_a_checkpoint_is_written_leaves_the_one_before(tmp_path: Path) -> None:
    """Killed in the middle of a write, which what is left of the new file shows."""
    part, kills = tmp_path / "a.part", 0
    deadline = time.monotonic() + 120
    while kills < 2 and time.monotonic() < deadline:
        part.unlink(missing_ok=True)
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(SOURCE), str(Path(__file__).parent)))},
        )  # fmt: skip
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            eventually(part.exists)
        finally:
            process.kill()
            told, _ = process.communicate()
        if not part.exists():
            continue  # it was just done, so it was not killed while it wrote
        kills += 1
        assert process.returncode == -signal.SIGKILL
        found = Checkpoints(tmp_path, "a", "work", saves=False).load(CPU)
        assert found is not None
        # It said so of all of them but perhaps the last.
        assert 0 <= found.epochs - max([1, *map(int, told.split())]) <= 1
        assert torch.equal(found.learner["net"]["weight"], torch.full((4_000_000,), float(found.epochs)))
    assert kills == 2
    # What the kill left of the new file hinders no later run, and goes with it.
    again = Checkpoints(tmp_path, "a", "work", saves=True)
    again.save(saved(7))
    assert (found := again.load(CPU)) is not None
    assert found.epochs == 7
    again.remove()
    assert list(tmp_path.iterdir()) == []


def cut(raw: bytes) -> bytes:
    return raw[: len(raw) // 2]


def empty(_raw: bytes) -> bytes:
    return b""


def text(_raw: bytes) -> bytes:
    return b"not a checkpoint\n" * 100


@pytest.mark.parametrize("damage", [cut, empty, text])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    checkpoints = Checkpoints(tmp_path, "a", "work", saves=True)
    checkpoints.save(saved(1))
    checkpoints.path.write_bytes(damage(checkpoints.path.read_bytes()))
    with fails_as("bad_data", str(checkpoints.path), "delete"):
        checkpoints.load(CPU)


def test_no_wrong_bit_comes_back_as_a_weight(tmp_path: Path) -> None:
    """A byte changed anywhere: the file is refused, or what it holds is what was saved."""
    checkpoints = Checkpoints(tmp_path, "a", "work", saves=True)
    checkpoints.save(saved(1))
    raw, refused = checkpoints.path.read_bytes(), 0
    for place in range(0, len(raw), 61):
        changed = bytearray(raw)
        changed[place] ^= 0x10
        checkpoints.path.write_bytes(changed)
        try:
            found = checkpoints.load(CPU)
        except WorkloadFailure as failure:
            refused += failure.kind == "bad_data"
        else:
            assert found is not None
            assert torch.equal(found.learner["net"]["weight"], torch.ones(1000)), place
    assert refused > len(raw) // 61 // 2


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


@pytest.mark.parametrize("content", [{"version": 1}, [1, 2], torch.zeros(2), {"version": 1, "work": Payload()}])
def test_a_file_of_another_program_is_refused_and_runs_nothing(
    tmp_path: Path, content: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoints = Checkpoints(tmp_path, "a", "work", saves=True)
    torch.save(content, checkpoints.path)
    with fails_as("bad_data", str(checkpoints.path)):
        checkpoints.load(CPU)
    assert not (tmp_path / "ran").exists()


def test_a_checkpoint_that_cannot_be_written_is_a_failure_in_words(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "folder", "a", "work", saves=True)
    (tmp_path / "folder").rmdir()
    with fails_as("bad_output", str(checkpoints.path)):
        checkpoints.save(saved(1))


# Ranks


@pytest.fixture(scope="module")
def two_ranks() -> Told:
    return run(spec(ranks=2))


@pytest.mark.parametrize("task", TASKS)
def test_the_ranks_of_a_tiny_task_share_the_batch_of_one(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "module_of", lambda _task: SimpleNamespace(data_sha256=lambda _params: "0" * 64))

    def batch(ranks: int, **params: Scalar) -> int:
        asked = Request(workload=f"fit/{task}", params={"device": "cpu", **params}, ranks=ranks)
        return fit.probe(asked, FitRig())[0].batch

    alone = batch(1)
    assert alone == TASKS[task].presets["tiny"]["batch"]
    assert batch(2) * 2 == alone
    assert batch(1_000_000) == 1
    # What somebody typed, and what MLPerf's submission had on each rank, stays.
    assert batch(2, batch=7) == 7
    assert batch(2, preset="full") == TASKS[task].presets["full"]["batch"]


@pytest.mark.slow
def test_two_ranks_reach_the_same_quality_as_one(two_ranks: Told, uninterrupted: Told) -> None:
    """Their batches together are twice as large, so they may take a few epochs more."""
    assert isinstance(two_ranks.closed, Result)
    assert two_ranks.evaluations[-1].quality["HR@10"] >= 0.8
    assert two_ranks.evaluations[0].samples == uninterrupted.evaluations[0].samples == 100_000
    assert len(two_ranks.evaluations) <= 2 * len(uninterrupted.evaluations)


@pytest.mark.slow
def test_two_ranks_that_were_killed_go_on_to_the_same_quality(two_ranks: Told, tmp_path: Path) -> None:
    of = spec(ranks=2, checkpoint_dir=str(tmp_path))
    killed_after_two_epochs(of)
    resumed = run(of)
    assert resumed.curve == two_ranks.curve
    assert resumed.facts["lost_s"] > 0


def test_two_arms_cannot_share_a_folder_of_checkpoints(tmp_path: Path) -> None:
    """Their runs have the same seeds and specs, so one would go on from the other's file."""
    arms = ("--arm", "host", "--arm", "host,batch=512", "--ledger", str(tmp_path / "ledger.db"))
    refused = ask("compare", "fit/ncf", *arms, "--checkpoint-dir", str(tmp_path))
    assert (refused.code, str(tmp_path) in refused.err) == (2, True)
