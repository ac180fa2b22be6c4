"""Reading losses without taking memory in the loop: rows that are there before, written one after another."""

from collections.abc import Callable

import pytest
import torch

from stackmark.worker.clock import run_stretch
from stackmark.worker.stream import Emitter
from stackmark.workloads.train.impl.step import Rows
from stackmark.workloads.workload import TimedSteps, Values


def rows_of(loss: torch.Tensor, accuracy: torch.Tensor) -> Rows:
    return Rows({("loss",): loss.view(1), ("top_1", "top_5"): accuracy}, pinned=False)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what torch.empty is asked for."""
    asked: list[tuple[int, ...]] = []
    empty = torch.empty

    def counting(shape: tuple[int, ...], pin_memory: bool) -> torch.Tensor:
        asked.append(shape)
        return empty(shape, pin_memory=pin_memory)

    monkeypatch.setattr(torch, "empty", counting)
    return asked


def test_each_read_has_the_values_of_its_own_moment() -> None:
    loss, accuracy = torch.zeros(()), torch.zeros(2)
    rows = rows_of(loss, accuracy)
    rows.reserve(3)
    reads = []
    for number in range(3):
        loss.fill_(number)
        accuracy.fill_(number / 4)
        reads.append(rows.peek())
    assert [read() for read in reads] == [{"loss": n, "top_1": n / 4, "top_5": n / 4} for n in (0.0, 1.0, 2.0)]


def test_nothing_is_taken_while_peeking(counted: list[tuple[int, ...]]) -> None:
    rows = rows_of(torch.ones(()), torch.ones(2))
    rows.reserve(50)
    for _ in range(50):
        rows.peek()
    assert counted == [(50, 3)]


def test_the_next_stretch_takes_the_same_rows(counted: list[tuple[int, ...]]) -> None:
    rows = rows_of(torch.ones(()), torch.ones(2))
    for stretch in (20, 10, 20):
        rows.reserve(stretch)
        for _ in range(stretch):
            rows.peek()
    assert counted == [(20, 3)]


def test_more_reads_than_were_foreseen_are_still_right() -> None:
    loss = torch.zeros(())
    rows = rows_of(loss, torch.zeros(2))
    reads = []
    for number in range(5):
        loss.fill_(number)
        reads.append(rows.peek())
    assert [read()["loss"] for read in reads] == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(("steps", "every"), [(1, 1), (1, 10), (10, 10), (25, 10), (7, 1), (30, 7)])
def test_a_stretch_reserves_as_many_as_it_reads(steps: int, every: int) -> None:
    reserved: list[int] = []
    peeks: list[int] = []

    def peek() -> Callable[[], Values]:
        peeks.append(1)
        return lambda: {"loss": 1.0}

    ready = TimedSteps(lambda: None, "cpu", "step", 1, peek=peek, peek_every=every, reserve=reserved.append)
    with open("/dev/null", "wb") as nowhere:
        run_stretch(Emitter(nowhere.fileno()), ready, "measure", steps)
    assert len(peeks) <= reserved[0] <= len(peeks) + 2
