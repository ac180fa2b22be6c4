"""The clock around the steps, how long warm-up and measuring take, and the events that come of them.

A CUDA device is stood in for where only its order of events matters; on a real one tests/test_gpu.py runs.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackmark import events
from stackmark.events import EVENT_LIMIT_BYTES, Stream
from stackmark.spec import Params
from stackmark.worker.clock import CpuMarks, CudaMarks, Stretch, run_stretch
from stackmark.worker.measure import MOST_STEPS, long_enough, measure, steps_to_measure, warm_up
from stackmark.worker.stream import STEPS_PER_EVENT, Emitter
from stackmark.workloads.workload import TimedSteps, Values, WorkloadFailure


def params(**changed: float) -> Params:
    given = {"device": "cpu", "seconds": 10.0, "at_least_steps": 0, "warmup_steps": 2, "warmup_seconds": 0.0, **changed}
    return Params.model_validate(given)


@contextmanager
def emitting(path: Path) -> Iterator[tuple[Emitter, Callable[[], Stream]]]:
    """An emitter into a file, and what was written there, read when the emitter is closed."""
    with path.open("wb") as file:
        emitter = Emitter(file.fileno())

        def written() -> Stream:
            emitter.close()
            stream = Stream()
            for line in path.read_text().splitlines():
                assert len(line) < EVENT_LIMIT_BYTES
                assert stream.feed(line) is not None
            return stream

        try:
            yield emitter, written
        finally:
            emitter.close()


def ready(step: Callable[[], None] = lambda: None, **more: object) -> TimedSteps:
    return TimedSteps(step, "cpu", "image", 4, **more)  # type: ignore[arg-type]


def steps_of(stream: Stream, phase: str) -> list[events.Steps]:
    return [event for event in stream.events if isinstance(event, events.Steps) and event.phase == phase]


# How many steps


def test_steps_that_were_typed_are_measured_exactly() -> None:
    assert steps_to_measure(params(steps=7, seconds=1000, at_least_steps=500), step_s=10.0) == 7
    assert steps_to_measure(params(steps=3_000_000), step_s=1e-6) == 3_000_000


def test_seconds_are_turned_into_steps_by_the_step_time() -> None:
    assert steps_to_measure(params(seconds=10), step_s=0.1) == 100
    assert steps_to_measure(params(seconds=10), step_s=0.3) == 34


def test_slow_steps_are_measured_longer_to_have_enough_of_them() -> None:
    assert steps_to_measure(params(seconds=30, at_least_steps=30), step_s=2.0) == 30


def test_but_not_longer_than_three_times_the_seconds() -> None:
    assert steps_to_measure(params(seconds=30, at_least_steps=30), step_s=10.0) == 9


def test_there_is_always_a_step_to_measure() -> None:
    assert steps_to_measure(params(seconds=1), step_s=3600.0) == 1


def test_very_short_steps_are_measured_for_less_time() -> None:
    assert steps_to_measure(params(seconds=10), step_s=1e-6) == MOST_STEPS


# The boundaries


def test_the_processor_s_boundaries_are_where_the_clock_was_read() -> None:
    marks = CpuMarks(3)
    before = time.perf_counter()
    marks.begin()
    for boundary in (1, 2, 3):
        marks.mark(boundary)
    after = time.perf_counter()
    steps = marks.seconds(0, 3)
    assert len(steps) == 3
    assert all(seconds >= 0 for seconds in steps)
    assert sum(steps) <= after - before
    assert marks.seconds(1, 3) == steps[1:]
    assert marks.seconds(2, 2) == []
    assert marks.complete(2) == 2


class FakeEvent:
    """A device event: complete once the device is past it."""

    def __init__(self, device: "FakeDevice", index: int) -> None:
        self._device, self._index = device, index

    def query(self) -> bool:
        self._device.queries += 1
        return self._index <= self._device.passed

    def elapsed_time(self, later: "FakeEvent") -> float:
        return 1000.0 * (self._device.times[later._index] - self._device.times[self._index])


class FakeDevice:
    def __init__(self, boundaries: int) -> None:
        self.passed, self.queries = -1, 0
        self.times = [0.25 * index for index in range(boundaries)]


def cuda_marks(boundaries: int) -> tuple[CudaMarks, FakeDevice]:
    device = FakeDevice(boundaries)
    marks = CudaMarks.__new__(CudaMarks)
    marks._events = [FakeEvent(device, index) for index in range(boundaries)]
    return marks, device


@given(st.integers(0, 5000), st.integers(-1, 5000))
def test_how_far_the_device_is_is_found_by_halving(enqueued: int, passed: int) -> None:
    marks, device = cuda_marks(enqueued + 1)
    device.passed = passed
    assert marks.complete(enqueued) == max(0, min(passed, enqueued))
    assert device.queries <= math.ceil(math.log2(enqueued + 2))


def test_device_milliseconds_become_seconds_between_boundaries() -> None:
    marks, _ = cuda_marks(4)
    assert marks.seconds(1, 3) == [0.25, 0.25]


def test_only_steps_that_the_device_has_passed_are_emitted(tmp_path: Path) -> None:
    marks, device = cuda_marks(6)
    with emitting(tmp_path / "events") as (emitter, written):
        stretch = Stretch("measure", ready(), 5, marks, done=5)
        for passed in (-1, 0, 2, 2, 4):
            device.passed = passed
            stretch.emit(emitter, everything=False)
        device.passed = 5
        stretch.emit(emitter, everything=True)
        assert [(e.first, len(e.step_s)) for e in steps_of(written(), "measure")] == [(0, 2), (2, 2), (4, 1)]
    assert stretch.step_s == [0.25] * 5


# The loop


def test_the_wall_clock_and_the_steps_agree(tmp_path: Path) -> None:
    with emitting(tmp_path / "events") as (emitter, _):
        stretch = run_stretch(emitter, ready(lambda: time.sleep(0.01)), "measure", 30)
    assert len(stretch.step_s) == stretch.done == 30
    assert min(stretch.step_s) >= 0.01
    assert 0.3 <= sum(stretch.step_s) <= stretch.wall_s + 1e-6


def test_steps_are_emitted_while_the_loop_runs(tmp_path: Path) -> None:
    with emitting(tmp_path / "events") as (emitter, written):
        run_stretch(emitter, ready(lambda: time.sleep(0.02)), "measure", 65)
        emitted = steps_of(written(), "measure")
    assert len(emitted) >= 2
    assert [e.first for e in emitted] == [sum(len(b.step_s) for b in emitted[:i]) for i in range(len(emitted))]
    assert sum(len(e.step_s) for e in emitted) == 65


def test_a_loss_is_read_at_the_first_step_every_so_many_and_the_last(tmp_path: Path) -> None:
    count = iter(range(1000))

    def peek() -> Callable[[], Values]:
        loss = float(next(count))
        return lambda: {"loss": loss}

    with emitting(tmp_path / "events") as (emitter, written):
        run_stretch(emitter, ready(peek=peek, peek_every=5), "measure", 12)
        (event,) = steps_of(written(), "measure")
    assert event.losses == [(0, 0.0), (4, 1.0), (9, 2.0), (11, 3.0)]


def test_a_value_at_every_step_still_fits_into_events(tmp_path: Path) -> None:
    """Loss, top 1 and top 5 of each of 2,000 steps, in their longest form: 8 KiB hold some 50 of them."""
    long = -1.2345678901234567e-100
    values: Values = {"loss": long, "top_1": long, "top_5": long}
    with emitting(tmp_path / "events") as (emitter, written):
        run_stretch(emitter, ready(peek=lambda: lambda: values, peek_every=1), "measure", 2000, first=9_000_000)
        emitted = steps_of(written(), "measure")
    assert sum(len(e.step_s) for e in emitted) == 2000
    assert [i for e in emitted for i, _ in e.top_5] == list(range(9_000_000, 9_002_000))


def test_a_day_long_step_in_nanoseconds_fits_into_an_event(tmp_path: Path) -> None:
    with emitting(tmp_path / "events") as (emitter, written):
        emitter.steps("measure", 0, [86_399.123456789] * 3 * STEPS_PER_EVENT, [])
        assert [len(e.step_s) for e in steps_of(written(), "measure")] == [STEPS_PER_EVENT] * 3


def test_a_loss_that_is_not_finite_stops_the_loop_and_is_not_emitted(tmp_path: Path) -> None:
    def peek() -> Callable[[], Values]:
        return lambda: {"loss": math.nan}

    with emitting(tmp_path / "events") as (emitter, written):
        stretch = run_stretch(emitter, ready(lambda: time.sleep(0.01), peek=peek, peek_every=3), "measure", 100_000)
        losses = [loss for e in steps_of(written(), "measure") for loss in e.losses]
    assert stretch.not_finite_at == 0
    assert stretch.done < 100_000
    assert losses == []


def test_a_step_that_raises_ends_the_helper_thread_too(tmp_path: Path) -> None:
    def step() -> None:
        raise ZeroDivisionError

    with emitting(tmp_path / "events") as (emitter, _):
        with pytest.raises(ZeroDivisionError):
            run_stretch(emitter, ready(step), "measure", 5)
        assert "emitter" not in [thread.name for thread in threading.enumerate()]


def test_the_loop_never_waits_for_a_reader_that_is_blocked() -> None:
    """Nobody reads this pipe. All steps are timed to the end, though their events are ten times what it holds."""
    reader, writer = os.pipe()
    emitter = Emitter(writer)
    stretch = run_stretch(emitter, ready(), "measure", 50_000)
    assert (stretch.done, len(stretch.step_s)) == (50_000, 50_000)

    def finish() -> None:
        emitter.close()
        os.close(writer)

    threading.Thread(target=finish).start()
    with os.fdopen(reader, "rb") as pipe:
        received = pipe.read()
    assert len(received) > 200_000
    stream = Stream()
    for line in received.decode().splitlines():
        stream.feed(line)
    assert sum(len(e.step_s) for e in steps_of(stream, "measure")) == 50_000


# Warm-up


def test_without_seconds_warm_up_is_just_its_steps(tmp_path: Path) -> None:
    with emitting(tmp_path / "events") as (emitter, written):
        step_s = warm_up(emitter, ready(lambda: time.sleep(0.002)), params(warmup_steps=5), lambda: None)
        stream = written()
    assert step_s >= 0.002
    assert [len(e.step_s) for e in steps_of(stream, "warm-up")] == [5]
    phases = [(e.state, e.note) for e in stream.events if isinstance(e, events.Phase)]
    assert phases == [("begin", ""), ("end", "")]


def scripted(rates: Iterator[float], patch: pytest.MonkeyPatch) -> list[int]:
    """Warm-up on a machine whose rates are given, chunk by chunk; the steps it asked for."""
    asked: list[int] = []

    def chunk(_emitter: Emitter, workload: TimedSteps, phase: str, steps: int, first: int = 0) -> Stretch:
        step_s = 1 / next(rates)
        asked.append(steps)
        return Stretch(phase, workload, steps, CpuMarks(0), first, steps, steps, steps * step_s, [step_s] * steps)

    patch.setattr("stackmark.worker.measure.run_stretch", chunk)
    return asked


def end_of(stream: Stream) -> events.Phase:
    (end,) = [event for event in stream.events if isinstance(event, events.Phase) and event.state == "end"]
    return end


def test_warm_up_ends_when_the_rate_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = scripted(iter([10, 50, 80, 99.5, 100, 100]), monkeypatch)
    with emitting(tmp_path / "events") as (emitter, written):
        assert warm_up(emitter, ready(), params(warmup_seconds=60), lambda: 1980.0) == 0.01
        assert end_of(written()).note == ""
    # First the steps that were asked for, then chunks of about a second at the rate of the chunk before.
    assert asked == [2, 10, 50, 80, 100]


def test_warm_up_does_not_end_while_the_clock_moves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = scripted(iter([100.0] * 100), monkeypatch)
    clock = iter([1000.0, 1200.0, 1500.0, 1505.0, 1505.0])
    with emitting(tmp_path / "events") as (emitter, written):
        warm_up(emitter, ready(), params(warmup_seconds=60), lambda: next(clock))
        assert end_of(written()).note == ""
    assert len(asked) == 4


def test_warm_up_that_does_not_come_to_rest_ends_with_its_time_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = scripted(iter([100.0 * 1.1**i for i in range(100)]), monkeypatch)
    with emitting(tmp_path / "events") as (emitter, written):
        warm_up(emitter, ready(), params(warmup_seconds=5), lambda: None)
        assert end_of(written()).note
    assert len(asked) == 7


def test_a_step_of_no_time_at_all_is_one_tick_long(tmp_path: Path) -> None:
    """A device's events may give 0: the step count must not be divided by it."""
    with emitting(tmp_path / "events") as (emitter, _), pytest.MonkeyPatch.context() as patch:
        patch.setattr(CpuMarks, "seconds", lambda self, first, last: [0.0] * (last - first))
        assert warm_up(emitter, ready(), params(), lambda: None) == CpuMarks.tick_s


def test_a_loss_that_breaks_late_in_warm_up_fails_there(tmp_path: Path) -> None:
    """The first check saw nothing; waiting for the measured part would waste a minute."""
    steps = 0

    def step() -> None:
        nonlocal steps
        steps += 1
        time.sleep(0.02)

    def peek() -> Callable[[], Values]:
        loss = math.nan if steps > 10 else 1.0
        return lambda: {"loss": loss}

    def check() -> None:
        if steps > 10:
            raise WorkloadFailure("not_finite", "the loss was not finite")

    unsteady = iter(range(1000, 100_000, 100))
    with emitting(tmp_path / "events") as (emitter, _), pytest.raises(WorkloadFailure):
        warm_up(
            emitter,
            ready(step, peek=peek, peek_every=2, check=check),
            params(warmup_seconds=600),
            lambda: float(next(unsteady)),
        )
    assert steps < 200


def test_the_measured_part_announces_its_length_and_says_what_it_took(tmp_path: Path) -> None:
    with emitting(tmp_path / "events") as (emitter, written):
        stretch = measure(emitter, ready(lambda: time.sleep(0.01)), params(seconds=0.2), step_s=0.05)
        begin, *_, end = written().events
    assert isinstance(begin, events.Phase)
    assert (begin.phase, begin.state, begin.expected_steps, begin.expected_s) == ("measure", "begin", 4, 0.2)
    assert isinstance(end, events.Phase)
    assert (end.phase, end.state, end.seconds) == ("measure", "end", round(stretch.wall_s, 6))


def test_on_a_cpu_the_length_goes_by_the_clock_and_not_by_what_warm_up_foretold(tmp_path: Path) -> None:
    with emitting(tmp_path / "events") as (emitter, _):
        stretch = measure(emitter, ready(lambda: time.sleep(0.01)), params(seconds=0.2), step_s=5.0)
    assert sum(stretch.step_s) > 0.2 - 1e-6
    assert sum(stretch.step_s[:-1]) < 0.2 + 1e-6


def test_on_a_cpu_enough_is_both_the_seconds_and_the_steps_but_never_three_times_the_seconds() -> None:
    asked = params(seconds=30, at_least_steps=30)
    assert not long_enough(asked, elapsed_s=29.9, done=500)
    assert not long_enough(asked, elapsed_s=31.0, done=29)
    assert long_enough(asked, elapsed_s=31.0, done=30)
    assert long_enough(asked, elapsed_s=90.0, done=2)


# Events that are too long


@pytest.mark.parametrize(
    "character", ["x", "ä", "😀", "\n", "\udc80"], ids=["ascii", "latin", "emoji", "newline", "surrogate"]
)
def test_an_event_past_the_limit_loses_the_end_of_its_texts(tmp_path: Path, character: str) -> None:
    with emitting(tmp_path / "events") as (emitter, written):
        emitter(events.Failed, kind="crash", message=character * 50_000, hint=character * 50_000)
        emitter(
            events.Result, sample="image", samples_per_step=1, steps=1, wall_s=1, tick_s=1, flags=[character * 9000]
        )
        failed, result = written().events
    assert isinstance(failed, events.Failed)
    assert failed.kind == "crash"
    assert failed.message.startswith(character * 16)
    assert failed.message.endswith("…(cut)")
    assert isinstance(result, events.Result)
    assert result.flags[0].endswith("…(cut)")


def test_a_spec_is_never_cut(tmp_path: Path) -> None:
    spec = {"workload": "train/vgg16", "params": {"data": "/data/" + "x" * 3000}}
    with emitting(tmp_path / "events") as (emitter, written):
        emitter(events.Probe, spec=spec, choices={str(i): "because " * 100 for i in range(20)})
        (probe,) = written().events
    assert isinstance(probe, events.Probe)
    assert probe.spec.params["data"] == "/data/" + "x" * 3000


def test_events_of_many_threads_are_numbered_without_gaps(tmp_path: Path) -> None:
    with emitting(tmp_path / "events") as (emitter, written):

        def talk() -> None:
            for _ in range(100):
                emitter(events.Log, line="x" * 500)

        threads = [threading.Thread(target=talk) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [event.seq for event in written().events] == list(range(800))
