"""Which kernels a step called: what is hashed, what goes wrong, and that the measured part is not touched by it."""

import hashlib
import os
import tempfile
from collections.abc import Callable
from typing import Any

import pytest
import torch

from stackmark import events
from stackmark.worker.kernels import HEAVIEST, LONGEST_STEP_S, NAME_CHARACTERS, emit_kernels, facts_of
from stackmark.worker.stream import Emitter
from stackmark.workloads.impl.kernels import profile_step
from stackmark.workloads.workload import Kernel, TimedSteps
from train_rig import standing
from worker_process import environment, run_worker, train


def emitted(profile: Callable[[], list[Kernel]] | None, step_s: float = 0.1) -> list[events.Event]:
    """What is said about the kernels of a workload with this profiler."""
    with tempfile.TemporaryFile() as out:
        emitter = Emitter(out.fileno())
        emit_kernels(emitter, TimedSteps(lambda: None, "cpu", "step", 1, profile=profile), step_s)
        emitter.close()
        out.seek(0)
        read = [events.read_event(line.decode(), number) for number, line in enumerate(out, 1)]
    return [event for event in read if isinstance(event, events.Facts)]


def kernel(name: str, seconds: float = 1.0) -> Kernel:
    return Kernel(name, 1, seconds)


def test_the_hash_is_that_of_the_sorted_names() -> None:
    facts = facts_of([kernel("b"), kernel("a")])
    assert facts["hash"] == hashlib.sha256(b"a\nb").hexdigest()[:16]
    assert facts["count"] == 2


def test_order_and_time_do_not_change_the_hash_and_another_name_does() -> None:
    one = facts_of([kernel("a", 1.0), kernel("b", 2.0)])["hash"]
    assert facts_of([kernel("b", 9.0), kernel("a", 0.1)])["hash"] == one
    assert facts_of([kernel("a"), kernel("c")])["hash"] != one


def test_the_heaviest_come_first_and_long_names_are_cut() -> None:
    facts = facts_of([kernel(f"k{number}" + "x" * 9_000, float(number)) for number in range(20)])
    heaviest = facts["heaviest"]
    assert isinstance(heaviest, list)
    assert [str(name)[:4] for name in heaviest[:2]] == ["k19x", "k18x"]
    assert (len(heaviest), len(str(heaviest[0]))) == (HEAVIEST, NAME_CHARACTERS)


def test_a_workload_that_cannot_be_profiled_says_nothing() -> None:
    assert emitted(None) == []


@pytest.mark.parametrize(
    "error", [RuntimeError("CUPTI_ERROR_NOT_INITIALIZED"), OSError("no libcupti"), ImportError("x")]
)
def test_a_profiler_that_fails_is_a_problem_and_not_a_failed_run(error: Exception) -> None:
    def broken() -> list[Kernel]:
        raise error

    (facts,) = emitted(broken)
    assert isinstance(facts, events.Facts)
    assert facts.facts == {}
    assert str(error) in facts.problems[0]


def test_a_profiler_that_sees_nothing_says_so() -> None:
    (facts,) = emitted(list)
    assert isinstance(facts, events.Facts)
    assert (facts.facts, len(facts.problems)) == ({}, 1)
    assert "CUPTI" in facts.problems[0]


def test_a_step_that_takes_long_is_not_done_again_for_its_names() -> None:
    (facts,) = emitted(lambda: pytest.fail("it was done"), LONGEST_STEP_S * 2)
    assert isinstance(facts, events.Facts)
    assert facts.facts == {}
    assert f"{LONGEST_STEP_S * 2:.3g} s" in facts.problems[0]


def test_the_profiler_names_the_operators_of_a_step() -> None:
    weight = torch.ones(3, 3, requires_grad=True)
    found = {one.name: one for one in profile_step(lambda: torch.mm(weight, weight).sum().backward(), "cpu")}
    assert found["aten::mm"].calls == 3  # forward, and once for each operand backward
    assert not any(name.startswith("autograd::engine") for name in found)


def test_two_workers_with_the_same_spec_have_the_same_kernels() -> None:
    spec = train(steps=2)
    seen: list[dict[str, Any]] = []
    for _ in range(2):
        done = run_worker(spec, environment())
        seen += [event["facts"] for event in done.events if event.get("subject") == "kernels"]
        assert done.stderr == ""
    assert seen[0]["hash"] == seen[1]["hash"]
    assert seen[0]["count"] > 5


def test_the_profiled_step_comes_after_the_measured_ones() -> None:
    done = run_worker(train(steps=3), environment())
    kinds = [event["event"] + event.get("phase", "") + event.get("subject", "") for event in done.events]
    last_step = max(index for index, kind in enumerate(kinds) if kind == "stepsmeasure")
    assert last_step < kinds.index("factskernels") < kinds.index("result")
    assert done.last["steps"] == 3


def test_a_run_that_writes_checkpoints_does_no_step_more(tmp_path: os.PathLike[str]) -> None:
    with standing("trivial_cifar10", checkpoint_dir=os.fspath(tmp_path)) as ready:
        assert ready.profile is None
