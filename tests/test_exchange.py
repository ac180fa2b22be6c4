"""What a group of ranks says of itself: its clocks, and where the time of a step goes."""

import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from stackmark.spec import Params
from stackmark.worker import kernels
from stackmark.worker.exchange import align
from stackmark.worker.run import Bench
from stackmark.worker.run import _measured as measured
from stackmark.worker.stream import Emitter
from stackmark.workloads.workload import Kernel, TimedSteps, Together

PARAMS = Params(device="cpu", steps=5, seconds=1.0, at_least_steps=0, warmup_steps=1, warmup_seconds=0.0)


class Meeting:
    """Ranks that are threads of this process: each gets the largest of each number, when all have come."""

    def __init__(self, size: int, delay_s: float = 0.0) -> None:
        self._barrier = threading.Barrier(size)
        self._lock = threading.Lock()
        self._told: list[list[float]] = []
        self._size, self._delay_s = size, delay_s

    def together(self, number: int) -> Together:
        def most(*numbers: float) -> list[float]:
            if number:
                time.sleep(self._delay_s)  # the way to the others
            with self._lock:
                self._told.append(list(numbers))
            self._barrier.wait()
            found = [max(column) for column in zip(*self._told[-self._size :], strict=True)]
            self._barrier.wait()
            return found

        return Together(most=most)


def aligned(ahead_s: float, delay_s: float = 0.0) -> list[tuple[float, float]]:
    """The offsets of two ranks, of which the second one's clock is ahead."""
    meeting, found = Meeting(2, delay_s), [(0.0, 0.0)] * 2

    def rank(number: int, now: Callable[[], float]) -> None:
        found[number] = align(meeting.together(number), number == 0, now)

    threads = [
        threading.Thread(target=rank, args=(0, time.monotonic)),
        threading.Thread(target=rank, args=(1, lambda: time.monotonic() + ahead_s)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


@pytest.mark.parametrize("ahead_s", [0.0, 7.5, -3600.0])
def test_the_offset_of_a_clock_is_within_its_uncertainty(ahead_s: float) -> None:
    (first, _), (offset_s, uncertain_s) = aligned(ahead_s)
    assert first == pytest.approx(0, abs=1e-9)
    assert abs(offset_s - ahead_s) <= uncertain_s + 1e-9


def test_a_slow_network_makes_the_offset_uncertain_and_not_wrong() -> None:
    _, (offset_s, uncertain_s) = aligned(2.0, delay_s=0.02)
    assert abs(offset_s - 2.0) <= uncertain_s + 1e-9
    assert uncertain_s >= 0.009


def test_ranks_agree_on_whether_a_step_is_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profiled step has an exchange: a rank that did it alone would wait for the others in vain."""
    monkeypatch.setattr(kernels, "LONGEST_STEP_S", 0.02)
    meeting, profiled = Meeting(2), list[int]()

    def rank(number: int) -> None:
        def profile() -> list[Kernel]:
            profiled.append(number)
            return []

        step = partial(time.sleep, 0.05 * number)
        ready = TimedSteps(step, "cpu", "step", 1, profile=profile, together=meeting.together(number))
        with (tmp_path / str(number)).open("wb") as out:
            emitter = Emitter(out.fileno(), rank=number)
            measured(emitter, ready, PARAMS, Bench(emitter))
            emitter.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all("result" in (tmp_path / str(number)).read_text() for number in (0, 1))
    assert profiled == []
