"""Experiments with real workers on the real host: order, failures, kill and resume. A worker of the trick family is up in a
fraction of a second; what differs between arms is how long its step takes."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND
from experiment_asking import empty_ledger
from refusing import refused
from stackmark.errors import LedgerError, PlaceError, WorkerError
from stackmark.experiments import caches
from stackmark.experiments.arms import read_arms
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.compare import CompareRequest, carry_out, design_of, make_design, primer_spec, start
from stackmark.experiments.design import order_of, unasked_differences
from stackmark.experiments.examine import examine
from stackmark.experiments.progress import progress
from stackmark.experiments.recorder import Silent
from stackmark.ledger.rows import Experiment, RunDetail
from stackmark.ledger.store import Ledger
from stackmark.spec import Request
from worker_process import alive, eventually, train

QUICK = {"steps": 4, "warmup_steps": 0}


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    """An empty ledger, and the trick family where driver and worker find it."""
    with Ledger.open(str(empty_ledger(tmp_path, monkeypatch))) as ledger:
        yield ledger


def asked(*arms: str, workload: str = "trick/calm", **more: Any) -> CompareRequest:
    request = Request(workload=workload, params=dict(QUICK))
    return CompareRequest(request=request, arms=read_arms(arms, workload), **more)


def made(book: Ledger, experiment: Experiment) -> list[RunDetail]:
    return book.runs_of(experiment.id)


def measured(rows: list[RunDetail]) -> list[RunDetail]:
    return [row for row in rows if row.role == "measured"]


def test_an_experiment_runs_its_design_and_every_run_is_in_the_ledger(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.004", blocks=2, seed=3), book, Silent())
    done = carry_out(experiment, book, Silent())
    assert not done.open
    rows = made(book, experiment)
    design = design_of(experiment)
    order = [*order_of(design, 0), *order_of(design, 1)]
    assert [(row.role, row.arm) for row in rows] == [
        *(("primer", arm) for arm in order_of(design, 0)), *(("measured", arm) for arm in order)
    ]  # fmt: skip
    assert [row.position for row in rows] == list(range(6))
    assert all(row.status == "done" for row in rows)
    shown = examine(book, experiment.id)
    assert (shown.state, shown.blocks_whole, shown.seed) == ("done", 2, 3)
    (pair,) = shown.comparisons
    assert pair.count_a == pair.count_b == 2
    # A step of 4 ms against one of 1 ms: about a quarter of the rate, whatever else the machine does.
    assert pair.ratio < 0.6


def test_a_run_that_somebody_deleted_is_made_again_and_the_verdict_says_so(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=2, primers=False), book, Silent())
    carry_out(experiment, book, Silent())
    assert not any("choice" in sentence for sentence in examine(book, experiment.id).not_held)
    book.delete([made(book, experiment)[1].id])
    carry_out(experiment, book, Silent())
    shown = examine(book, experiment.id)
    assert shown.state == "done"
    assert any("choice" in sentence and "1 deleted" in sentence for sentence in shown.not_held)


def test_only_what_an_arm_types_differs_between_specs(book: Ledger) -> None:
    design, _, _ = make_design(asked("host", "host,step_s=0.004", blocks=2), Silent())
    first, second = (arm.spec.params for arm in design.arms)
    assert {name for name in first if first[name] != second[name]} == {"step_s"}
    assert unasked_differences(design.arms) == []


def test_what_follows_from_a_typed_key_is_chosen_anew_and_said(book: Ledger) -> None:
    request = Request(workload="train/trivial_cifar10", params={"batch": 2, "steps": 2, "warmup_steps": 0})
    arms = read_arms(["host,tune=off", "host,tune=fast"], request.workload)
    design, _, _ = make_design(CompareRequest(request=request, arms=arms, blocks=2), Silent())
    assert [arm.spec.params["tune"] for arm in design.arms] == ["off", "fast"]
    assert [arm.spec.params["layout"] for arm in design.arms] == ["nchw", "nhwc"]
    (line,) = (line for line in unasked_differences(design.arms) if line.startswith("layout"))
    assert line.index("nchw (host,tune=off)") < line.index("nhwc")
    assert len({arm.spec.params["batch"] for arm in design.arms}) == 1


def test_a_primer_does_the_same_work_cut_short() -> None:
    spec = train(steps=0, seconds=30.0, warmup_seconds=5.0, at_least_steps=30)
    short = primer_spec(spec)
    changed = {name for name in spec.params if spec.params[name] != short.params[name]}
    assert changed == {"seconds", "warmup_seconds", "at_least_steps"}
    assert short.params["seconds"] == 1.0


def test_the_arms_share_one_cache_folder_which_is_gone_when_the_experiment_is_done(book: Ledger) -> None:
    experiment = start(asked("host", "host", blocks=2), book, Silent())
    folder = caches.root() / experiment.id
    seen: set[str] = set()

    class Looking(Silent):
        def run_begins(self, *_: Any, **__: Any) -> None:
            seen.update(str(path.relative_to(folder)) for path in folder.iterdir())

    carry_out(experiment, book, Looking())
    assert {"cuda", "triton", "inductor"} <= seen
    assert not folder.exists()


def test_a_primer_that_fails_ends_the_experiment_with_its_reason(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", workload="trick/crash", blocks=2), book, Silent())
    with pytest.raises(WorkerError) as caught:
        carry_out(experiment, book, Silent())
    (row,) = made(book, experiment)
    assert (row.role, row.status, row.failure_kind) == ("primer", "failed", "crash")
    assert row.failure_message
    assert row.failure_message in caught.value.message
    assert caught.value.command == f"stackmark show {row.id} --log"


class KillsOnce(Silent):
    """Ends one measured run from outside, as an administrator would: the block of that run has failed."""

    def __init__(self, book: Ledger, experiment_id: str, times: int = 1) -> None:
        self.book, self.experiment_id, self.times = book, experiment_id, times

    def event(self, event: Any) -> None:
        if event.event != "phase" or event.phase != "trick" or not self.times:
            return
        row = self.book.runs_of(self.experiment_id)[-1]
        if row.role == "measured":
            self.times -= 1
            with suppress(ProcessLookupError):  # its last words come after its end
                os.kill(int(str(row.handle["pid"])), signal.SIGKILL)


def test_a_failed_run_is_kept_and_its_block_repeated_whole_at_the_end(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=2, seed=1), book, Silent())
    done = carry_out(experiment, book, KillsOnce(book, experiment.id))
    rows = measured(made(book, experiment))
    assert [(row.status, row.block, row.attempt) for row in rows] == [
        ("failed", 0, 0), ("done", 1, 0), ("done", 1, 0), ("done", 0, 1), ("done", 0, 1)
    ]  # fmt: skip
    assert rows[0].failure_kind == "killed"
    assert [row.arm for row in rows[-2:]] == order_of(design_of(experiment), 0)
    assert done.blocks == {0: 1, 1: 0}
    shown = examine(book, experiment.id)
    assert (shown.state, shown.blocks_repeated) == ("done", 1)
    assert [run.counted for run in shown.runs if run.role == "measured"] == [False, True, True, True, True]


def test_a_block_that_is_not_repeated_leaves_an_uneven_order_which_is_said(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=2, most_repeats=0), book, Silent())
    carry_out(experiment, book, KillsOnce(book, experiment.id))
    shown = examine(book, experiment.id)
    assert (shown.state, [pair.count_b for pair in shown.comparisons]) == ("short", [1])
    assert any(sentence.startswith("the order:") for sentence in shown.not_held)


def test_a_block_that_fails_too_often_ends_it_short_and_says_so(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=2, most_repeats=1), book, Silent())
    done = carry_out(experiment, book, KillsOnce(book, experiment.id, times=99))
    assert not done.open
    shown = examine(book, experiment.id)
    assert shown.state == "short"
    assert [row.status for row in made(book, experiment) if row.role == "measured"].count("failed") == 2
    assert shown.comparisons == ()


def test_interrupted_it_goes_on_with_the_missing_runs_in_the_same_order(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=4, seed=5), book, Silent())

    class Impatient(Silent):
        def event(self, event: Any) -> None:
            rows = measured(made(book, experiment))
            if len(rows) == 4 and event.event == "phase":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        carry_out(experiment, book, Impatient())
    assert examine(book, experiment.id).state == "open"
    carry_out(experiment, book, Silent())
    rows = measured(made(book, experiment))
    good = [row for row in rows if row.status == "done"]
    assert [row.failure_kind for row in rows if row.status != "done"] == ["interrupted"]
    assert [row.arm for row in good] == [arm for block in range(4) for arm in order_of(design_of(experiment), block)]
    # The caches are still there: nobody is primed twice.
    assert sum(1 for row in made(book, experiment) if row.role == "primer") == 2


def test_killed_in_the_middle_it_is_resumed_by_the_next_command_and_no_run_is_lost(
    book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arms = ["--arm", "host", "--arm", "host,step_s=0.002", "--steps", "4", "--warmup-steps", "0", "--blocks", "4"]
    ledger = str(tmp_path / "ledger.sqlite3")
    process = subprocess.Popen(
        [*COMMAND, "compare", "trick/calm", *arms, "--ledger", ledger],
        env=dict(os.environ), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def third() -> RunDetail | None:
        experiments = {row.experiment_id for row in book.runs()}
        rows = measured(book.runs_of(experiments.pop())) if experiments else []
        return rows[2] if len(rows) > 2 and rows[2].handle.get("pid") else None

    row: RunDetail = eventually(third)
    before = [one.id for one in book.runs_of(row.experiment_id) if one.status == "done"]
    process.kill()
    process.wait()
    eventually(lambda: not alive(int(str(row.handle["pid"]))))
    answer = subprocess.run(
        [*COMMAND, "resume", "last", "--ledger", ledger, "--json"],
        env=dict(os.environ),
        capture_output=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    rows = book.runs_of(row.experiment_id)
    assert before == [one.id for one in rows if one.id in before]
    design = design_of(book.experiment(row.experiment_id))
    good = [one for one in measured(rows) if one.status == "done"]
    assert [one.arm for one in good] == [arm for block in range(4) for arm in order_of(design, block)]
    assert json.loads(answer.stdout)["experiment_id"] == row.experiment_id
    assert not progress(design, rows).open


def test_two_drivers_cannot_run_one_experiment(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=2), book, Silent())

    class Greedy(Silent):
        refused = ""

        def event(self, event: Any) -> None:
            if event.event == "hello" and not self.refused:
                with pytest.raises(LedgerError) as caught:
                    carry_out(experiment, book, Silent())
                self.refused = caught.value.message

    watcher = Greedy()
    carry_out(experiment, book, watcher)
    assert f"by process {os.getpid()}" in watcher.refused


def test_an_experiment_begun_on_another_machine_is_not_resumed_here(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=2), book, Silent())
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("stackmark.experiments.driver.machine_name", lambda: "another")
        with pytest.raises(KeyboardInterrupt):
            carry_out(experiment, book, StopsAfter(3))
    with refused(experiment.id, "--anyway"):
        carry_out(experiment, book, Silent())
    assert not carry_out(experiment, book, Silent(), anyway=True).open


class StopsAfter(Silent):
    def __init__(self, runs: int) -> None:
        self.runs = runs

    def run_ended(self, *_: Any) -> None:
        self.runs -= 1
        if not self.runs:
            raise KeyboardInterrupt


def test_runs_on_two_chips_are_no_comparison(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake only for what is not here: the chip that each run reports."""
    from stackmark.experiments import judging

    judged = judging.judge
    chips = iter(["GPU-a", "GPU-b"])

    def judge(*given: Any, **more: Any) -> Any:
        return judged(*given, **more).model_copy(update={"chip": "a GPU", "chip_uuid": next(chips)})

    monkeypatch.setattr("stackmark.experiments.recorder.judge", judge)
    experiment = start(asked("host", "host,step_s=0.002", blocks=2), book, Silent())
    with refused("GPU-a", "GPU-b", error=PlaceError):
        carry_out(experiment, book, Silent())


def test_until_decided_stops_at_a_look_that_was_fixed_before(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.02", until_decided=True, blocks=12, margin=0.1), book, Silent())
    design = design_of(experiment)
    assert design.rule
    assert design.rule.looks[-1] == design.blocks == 12
    carry_out(experiment, book, Silent())
    shown = examine(book, experiment.id)
    # A step of 20 ms against one of 1 ms is slower by any margin, long before the last look.
    assert shown.comparisons[0].word == "SLOWER"
    assert shown.blocks_whole == design.rule.looks[0] < 12
    assert shown.state == "done"


def test_until_decided_has_looks_at_whole_designs_only_and_pairs_share_the_level(book: Ledger) -> None:
    arms = ("host", "host,step_s=0.02", "host,step_s=0.03")
    design, _, _ = make_design(asked(*arms, until_decided=True, blocks=12), Silent())
    assert design.rule
    assert design.rule.looks == [6, 12]
    assert design.rule.alpha == pytest.approx(0.05 / 3)


def test_a_lost_run_is_found_by_the_next_command(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=2), book, Silent())
    carry_out(experiment, book, Silent())
    assert clean_up(book) == []


def test_where_the_caches_were_swept_away_the_arms_are_primed_again(book: Ledger) -> None:
    experiment = start(asked("host", "host,step_s=0.002", blocks=2), book, Silent())
    with pytest.raises(KeyboardInterrupt):
        carry_out(experiment, book, StopsAfter(3))
    caches.remove_cache(experiment.id)
    carry_out(experiment, book, Silent())
    assert [row.role for row in made(book, experiment)].count("primer") == 4
