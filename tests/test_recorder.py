"""The lab: from a worker's lines to a row, and from rows to a number that can be computed again.

Streams are recorded from real workers, or from one H200 (tests/data), and played back through the same door.
"""

import json
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
from scipy.stats import t as student

from naming import missing
from stackmark import events
from stackmark.errors import LedgerError, PlaceError, SpecError, StreamError, WorkerError
from stackmark.events import (
    FOREIGN_LINES_KEPT,
    Event,
    Failed,
    Hello,
    Phase,
    Probe,
    Result,
    Sample,
    Steps,
    write_event,
)
from stackmark.experiments import cleaning, driver, recorder
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.judging import STDERR_PREFIX, judge, judged_again, read_stored
from stackmark.experiments.probing import look, resolve
from stackmark.experiments.recorder import Listener, Position, Recorder, Silent
from stackmark.experiments.run import Measured, measure
from stackmark.failures import PlaceFailure
from stackmark.ids import new_id
from stackmark.ledger import streams
from stackmark.ledger.rows import Experiment, RunRow, RunStart
from stackmark.ledger.store import Ledger
from stackmark.machine import host as machine
from stackmark.machine.orphans import start_ticks
from stackmark.places.host import HostPlace
from stackmark.places.place import Outcome, Watch
from stackmark.places.registry import find_place
from stackmark.places.replay import ReplayPlace
from stackmark.spec import Request, Spec, Task
from stackmark.workloads.train.definition import TrainParams
from worker_process import alive, environment, eventually, install, train

H200 = (Path(__file__).parent / "data" / "h200_gpt2.jsonl").read_text().splitlines()
GPT2 = Spec(workload="train/gpt2", params={"device": "cuda:0", "batch": 32, "precision": "bf16", "tune": "fast"})
# What belongs to one run and not to its stream.
OWN = {"id", "experiment_id", "position", "place", "place_options", "started_unix_s", "ended_unix_s", "handle", "workload",
       "spec_digest", "spec", "device", "precision", "batch", "tune"}  # fmt: skip


@pytest.fixture
def book(tmp_path: Path) -> Any:
    with Ledger.open(str(tmp_path / "ledger.sqlite3"), busy_s=0.3) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(install(tmp_path_factory.mktemp("tricks")))


def once(book: Ledger, place: Any, spec: Spec = GPT2, watcher: Any = None) -> RunRow:
    experiment = Experiment(id=new_id("x"), created_unix_s=1.0)
    book.start_experiment(experiment)
    row, _ = Recorder(book, experiment.id).run(spec, Position(), place, watcher or Silent())
    return row


def stream(*parts: Event) -> list[str]:
    """Lines of a worker that begins as all do; seq and t are given here."""
    hello = Hello(seq=0, t=0, time_unix_s=1.0, pid=1)
    return [
        write_event(part.model_copy(update={"seq": seq, "t": float(seq)})) for seq, part in enumerate((hello, *parts))
    ]


def steps(*step_s: float) -> Steps:
    return Steps(seq=0, t=0, phase="measure", first=0, step_s=list(step_s))


def result(count: int, wall_s: float, **more: Any) -> Result:
    return Result(seq=0, t=0, sample="image", samples_per_step=4, steps=count, wall_s=wall_s, tick_s=1e-9, **more)


def good(step_s: float = 0.1, **more: Any) -> list[str]:
    return stream(steps(*[step_s] * 300), result(300, 300 * step_s, **more))


def failing(kind: str = "crash") -> list[str]:
    return stream(Failed(seq=0, t=0, kind=kind, message="it broke", hint="mend it"))


def probe(spec: Spec) -> list[str]:
    return stream(Probe(seq=0, t=0, spec=spec, choices={"batch": "the usual one"}))


def lenet(device: str = "cpu") -> Spec:
    """What a probe may answer to a request in which nothing was typed."""
    chosen = {
        "device": device, "batch": 4, "precision": "fp32", "tune": "fast", "optimizer": "momentum", "classes": 1000,
        "layout": "nchw", "autotune": False, "fused": True, "cuda_graph": False, "compile": False, "threads": 0,
        "data_workers": 0, "learning_rate": 0.1, "seconds": 1.0, "at_least_steps": 0, "warmup_steps": 2, "warmup_seconds": 1.0,
    }  # fmt: skip
    return Spec(workload="train/lenet", params=TrainParams.model_validate(chosen).model_dump(mode="json"))


def judged(lines: Sequence[str], outcome: Outcome | None = None) -> Any:
    listener = Listener(Silent())
    for line in lines:
        listener.line(line)
    return judge(listener.stream, outcome or Outcome(0), listener.broken)


# One run


def test_a_run_recorded_on_a_gpu_gives_its_row(book: Ledger) -> None:
    row = once(book, ReplayPlace(H200))
    assert (row.status, row.failure_kind) == ("done", None)
    assert (row.chip, row.chip_uuid) == ("NVIDIA H200", "GPU-00000000-0000-0000-0000-000000000000")
    assert row.framework == "PyTorch 2.11.0+cu130"
    assert (row.steps_total, row.steps_used, row.steady) == (36, 18, "too short to tell")
    # By hand: 36 steps are too few to look for a steady state in, so the second half counts.
    measured = [
        s for e in map(json.loads, H200) if e["event"] == "steps" and e["phase"] == "measure" for s in e["step_s"]
    ]
    assert row.rate_per_s == pytest.approx(18 * 32 / sum(measured[18:]), rel=1e-12)
    assert row.rate_unit == "sequences/s"
    assert row.energy_j == pytest.approx(2994.936)
    assert row.setup_s == 11.336699
    assert (row.memory_peak_mib, row.data_share) == (66350.0, 0.0)
    assert any("power limit" in flag for flag in row.flags)


def test_a_live_run_played_back_gives_the_same_row(book: Ledger) -> None:
    """A real network, trained for real; then its stored stream again."""
    live = once(book, HostPlace(environment=environment()), train(steps=30))
    assert live.status == "done", live.failure_message
    lines = [line for line in book.stream(live.id) if not line.startswith(STDERR_PREFIX)]
    again = once(book, ReplayPlace(lines), train(steps=30))
    assert live.model_dump(exclude=OWN) == again.model_dump(exclude=OWN)
    assert live.place == "host"
    assert again.place == "replay"


def test_a_stored_stream_gives_the_stored_rate(book: Ledger) -> None:
    row = once(book, ReplayPlace(H200))
    seen, stderr, _ = read_stored(book.stream(row.id))
    assert judged_again(seen) == row.rate_per_s
    assert stderr == []


def test_a_cut_off_stream_is_a_failed_run_with_what_was_received(book: Ledger) -> None:
    row = once(book, ReplayPlace(H200[:40]))
    assert (row.status, row.failure_kind, row.rate_per_s) == ("failed", "cut_off", None)
    assert row.chip == "NVIDIA H200"
    assert book.stream(row.id) == H200[:40]


def test_the_last_words_of_a_worker_that_was_cut_off_are_its_reason() -> None:
    end = judged(H200[:3], Outcome(1, stderr=("Fatal Python error: Segmentation fault", "  ", "")))
    assert end.failure_kind == "cut_off"
    assert missing(end.failure_message, "1", "Fatal Python error: Segmentation fault") == []


def test_an_empty_stream_is_a_failed_run(book: Ledger) -> None:
    row = once(book, ReplayPlace([]))
    assert (row.status, row.failure_kind) == ("failed", "cut_off")
    assert book.stream(row.id) == []


def test_a_broken_stream_is_a_failed_run_whose_lines_are_kept(book: Ledger) -> None:
    lines = [*H200[:20], H200[20][:50], *H200[21:]]
    row = once(book, ReplayPlace(lines))
    assert (row.status, row.failure_kind, row.rate_per_s) == ("failed", "broken_stream", None)
    assert row.failure_message is not None
    assert "line 21" in row.failure_message
    assert book.stream(row.id) == lines
    seen = read_stored(lines).stream
    assert len(seen.events) == 20


def test_a_missing_event_is_a_failed_run() -> None:
    end = judged([*H200[:30], *H200[31:]])
    assert (end.status, end.failure_kind) == ("failed", "broken_stream")
    assert missing(end.failure_message, "30") == []


def test_a_wrong_number_of_steps_is_a_failed_run() -> None:
    end = judged(stream(steps(0.1, 0.1), result(3, 0.3)))
    assert (end.status, end.failure_kind) == ("failed", "broken_stream")
    assert missing(end.failure_message, "3", "2") == []


def test_what_the_worker_says_of_its_failure_is_the_row_s() -> None:
    end = judged(failing("not_finite"))
    assert (end.status, end.failure_kind, end.failure_message, end.failure_hint) == (
        "failed", "not_finite", "it broke", "mend it",
    )  # fmt: skip


def test_what_the_place_saw_comes_before_half_a_line() -> None:
    """A worker that was killed in the middle of a write."""
    killed = PlaceFailure("killed", "SIGKILL")
    end = judged([*H200[:30], H200[30][:40]], Outcome(-9, killed))
    assert (end.failure_kind, end.failure_message) == ("killed", "SIGKILL")


def test_a_worker_that_ends_badly_after_its_result_has_failed() -> None:
    end = judged(good(), Outcome(1))
    assert (end.status, end.failure_kind, end.rate_per_s) == ("failed", "crash", None)


def test_a_failure_after_the_result_is_a_failure() -> None:
    lines = stream(steps(0.1), result(1, 0.1), Failed(seq=0, t=0, kind="bad_output", message="the disk is full"))
    assert judged(lines).failure_kind == "bad_output"


def test_an_error_of_the_hardware_invalidates_a_run_and_keeps_its_number(book: Ledger) -> None:
    row = once(book, ReplayPlace(good(invalid=["ECC: 1", "XID 79"])), lenet())
    assert (row.status, row.failure_kind) == ("invalid", "hardware_error")
    assert missing(row.failure_message or "", "ECC: 1", "XID 79") == []
    assert row.rate_per_s == pytest.approx(40.0)


@pytest.mark.parametrize(
    "lines",
    [
        stream(steps(0.0), result(1, 1.0)),
        stream(steps(-1.0), result(1, 1.0)),
        stream(steps(1e-320), result(1, 1.0)),
        stream(steps(1.0), result(1, 1.0).model_copy(update={"samples_per_step": 10**400})),
    ],
    ids=["no time at all", "before it began", "an infinite rate", "more samples than numbers"],
)
def test_numbers_that_cannot_be_are_a_failed_run(lines: list[str]) -> None:
    end = judged(lines)
    assert (end.status, end.failure_kind, end.rate_per_s) == ("failed", "broken_stream", None)


def test_foreign_lines_are_flagged_and_do_not_disturb() -> None:
    lines = good()
    end = judged([lines[0], "a progress bar", *lines[1:], "bye"])
    assert (end.status, end.rate_per_s) == ("done", pytest.approx(40.0))
    assert [missing(flag, "2") for flag in end.flags if flag.startswith("foreign-lines:")] == [[]]


def test_an_endless_foreign_output_does_not_fill_the_memory() -> None:
    listener = Listener(Silent())
    for line in good():
        listener.line(line)
    for _ in range(5000):
        listener.line("x" * 100_000)
    assert listener.stream.foreign_count == 5000
    assert len(listener.lines) == len(good()) + FOREIGN_LINES_KEPT
    assert max(map(len, listener.lines)) <= 8192


def samples(count: int) -> list[Sample]:
    return [Sample(seq=0, t=0, values={"power_w": 100.0 + number}) for number in range(count)]


def test_telemetry_past_a_bound_is_stored_and_not_held_in_memory(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "DISPENSABLE_BYTES", 64 * 1024)
    monkeypatch.setattr(recorder, "IN_MEMORY_BYTES", 16 * 1024)
    parts = [one for sample in samples(300) for one in (sample, steps(0.1))]
    lines = stream(*parts, result(300, 30.0))
    row = once(book, ReplayPlace(lines), Spec(workload="command/own", params={"cmd": "true"}))
    assert (row.status, row.steps_total) == ("done", 300), row.failure_message
    assert row.rate_per_s == pytest.approx(40.0)
    stored = book.stream(row.id)
    assert stored == lines
    read = read_stored(stored).stream
    assert read.not_kept > 400
    assert len(read.events) < 100
    assert judged_again(read) == pytest.approx(40.0)


@pytest.mark.parametrize(("bound", "value"), [("MOST_LINES", 50), ("MOST_BYTES", 5000), ("MOST_HEARD_BYTES", 5000)])
def test_a_worker_that_floods_its_output_is_ended_and_its_run_failed(
    book: Ledger, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(recorder, bound, value)
    row = once(book, ReplayPlace(stream(*samples(300), result(300, 30.0))))
    assert (row.status, row.failure_kind) == ("failed", "broken_stream")
    assert 10 < len(book.stream(row.id)) < 100


def test_events_that_must_be_kept_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KEPT_BYTES", 64 * 1024)
    end = judged(stream(*[Phase(seq=0, t=0, phase="model", state="begin") for _ in range(300)], result(300, 30.0)))
    assert (end.status, end.failure_kind) == ("failed", "broken_stream")


def test_what_follows_a_broken_line_does_not_fill_the_memory() -> None:
    listener = Listener(Silent())
    for _ in range(5000):
        listener.line('{"event":' + "[" * 20_000)
    assert listener.broken is not None
    assert listener.broken.line == 1
    assert len(listener.lines) == FOREIGN_LINES_KEPT


def test_a_slice_of_a_gpu_is_named_as_such() -> None:
    part = {"uuid": "MIG-1", "name": "NVIDIA-H100-MIG-1g.10gb"}
    facts = {"under_test": "MIG-1", "devices": [{"uuid": "GPU-1", "name": "NVIDIA H100", "mig_device": part}]}
    line = json.dumps({"event": "facts", "seq": 1, "t": 0, "subject": "gpu", "facts": facts}, separators=(",", ":"))
    end = judged([good()[0], line])
    assert (end.chip, end.chip_uuid) == ("NVIDIA-H100-MIG-1g.10gb", "MIG-1")


@pytest.mark.parametrize(
    "facts", [{"devices": "none"}, {"devices": [None, 1, {}]}, {"under_test": 7, "devices": [{"uuid": 7}]}]
)
def test_facts_of_another_shape_do_not_fail_a_run(facts: dict[str, Any]) -> None:
    line = json.dumps({"event": "facts", "seq": 1, "t": 0, "subject": "gpu", "facts": facts}, separators=(",", ":"))
    assert judged([good()[0], line]).failure_kind == "cut_off"


# Several runs


def measured(book: Ledger, *streams: list[str], runs: int, exit_code: int = 0) -> Measured:
    place = ReplayPlace(probe(lenet()), *streams, exit_code=exit_code)
    return measure(Request(workload="train/lenet"), place=place, ledger=book, runs=runs)


def test_the_rate_of_several_runs_is_their_geometric_mean_with_student_s_interval(book: Ledger) -> None:
    rates = [40.0, 42.0, 39.0]
    throughput = measured(book, *[good(4 / rate) for rate in rates], runs=3).throughput
    assert throughput is not None
    logs = [math.log(rate) for rate in rates]
    reach = student.ppf(0.975, 2) * stdev(logs) / math.sqrt(3)
    assert throughput.rate_per_s == pytest.approx(math.exp(mean(logs)))
    assert throughput.low_per_s == pytest.approx(math.exp(mean(logs) - reach))
    assert throughput.high_per_s == pytest.approx(math.exp(mean(logs) + reach))


def test_what_is_printed_can_be_computed_again_from_the_streams(book: Ledger) -> None:
    done = measured(book, *[good(0.1 + 0.001 * i) for i in range(4)], runs=4)
    again = [judged_again(read_stored(book.stream(row.id)).stream) for row in done.runs]
    assert again == [row.rate_per_s for row in done.runs]
    logs = [math.log(rate) for rate in again if rate]
    assert done.throughput is not None
    assert done.throughput.rate_per_s == pytest.approx(math.exp(mean(logs)), rel=1e-12)
    assert [row.position for row in done.runs] == [0, 1, 2, 3]


def test_a_failed_first_run_stops_and_is_stored(book: Ledger) -> None:
    done = measured(book, failing(), good(), runs=5)
    assert [row.failure_kind for row in done.runs] == ["crash"]
    assert done.throughput is None
    assert len(book.runs()) == 1


def test_a_failed_later_run_is_kept_and_the_others_count(book: Ledger) -> None:
    done = measured(book, good(0.1), failing(), good(0.1), runs=3)
    assert [row.status for row in done.runs] == ["done", "failed", "done"]
    assert [row.failure_kind for row in done.failed] == ["crash"]
    assert done.throughput is not None
    assert done.throughput.runs == 2
    assert done.throughput.rate_per_s == pytest.approx(40.0)


def test_an_invalid_run_is_no_part_of_the_rate(book: Ledger) -> None:
    done = measured(book, good(0.1), good(0.5, invalid=["XID 79"]), runs=2)
    assert [row.status for row in done.runs] == ["done", "invalid"]
    assert done.throughput is not None
    assert done.throughput.runs == 1


def test_a_processor_gets_three_runs_unless_it_was_said(book: Ledger) -> None:
    place = ReplayPlace(probe(lenet()), good())
    assert len(measure(Request(workload="train/lenet"), place=place, ledger=book).runs) == 3
    place = ReplayPlace(probe(lenet("cuda:0")), good())
    assert len(measure(Request(workload="train/lenet"), place=place, ledger=book).runs) == 5


# The probe


def test_a_parameter_that_the_probe_refuses_is_wrong_use() -> None:
    with pytest.raises(SpecError) as refused:
        resolve(Request(workload="train/lenet"), ReplayPlace(failing("bad_parameter"), exit_code=11), Silent())
    assert (refused.value.kind, refused.value.message, refused.value.hint) == ("bad_parameter", "it broke", "mend it")


def test_a_probe_past_its_time_is_said_to_be_that() -> None:
    """The worker itself only knows that it was terminated."""
    timeout = PlaceFailure("timeout", "the run took longer than its limit of 900 s")
    place = ReplayPlace(failing("terminated"), exit_code=143, failure=timeout)
    with pytest.raises(PlaceError) as failed:
        resolve(Request(workload="train/lenet"), place, Silent())
    assert failed.value.kind == "timeout"
    assert timeout.message in failed.value.message


def test_a_probe_that_fails_is_a_failed_run(book: Ledger) -> None:
    with pytest.raises(WorkerError) as failed:
        resolve(Request(workload="train/lenet"), ReplayPlace(failing("no_device"), exit_code=12), Silent())
    assert (failed.value.kind, failed.value.message) == ("no_device", "it broke")
    assert book.runs() == []


def test_a_probe_that_says_nothing_is_the_place_s_failure() -> None:
    with pytest.raises(PlaceError) as failed:
        resolve(Request(workload="train/lenet"), ReplayPlace([], exit_code=1), Silent())
    assert failed.value.kind == "cut_off"


def test_a_broken_probe_is_a_broken_stream() -> None:
    with pytest.raises(StreamError):
        resolve(Request(workload="train/lenet"), ReplayPlace(['{"event":']), Silent())


def test_what_can_be_refused_without_a_worker_is() -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("no worker was to be started")

    place = ReplayPlace([])
    place.run = never  # type: ignore[method-assign]
    for request in (
        Request(workload="train/resnet5"),
        Request(workload="train/lenet", params={"bach": 2}),
        Request(workload="train/lenet", params={"batch": -2}),
        Request(workload="op/gemm", ranks=2),
    ):
        with pytest.raises(SpecError):
            resolve(request, place, Silent())


def test_a_probe_s_choices_and_facts_are_handed_on(env: dict[str, str]) -> None:
    request = Request(workload="train/trivial_cifar10", params={"batch": 2, "steps": 3, "tune": "off", "device": "cpu"})
    resolved = resolve(request, HostPlace(environment=env), Silent())
    assert resolved.spec.params["batch"] == 2
    assert "batch" not in resolved.choices
    assert resolved.facts["cpu"]


class Losing(ReplayPlace):
    """Loses the end of its first logs."""

    def __init__(self, *streams: list[str], losses: int) -> None:
        super().__init__(*streams)
        self.losses, self.marks = losses, list[str]()

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        outcome = super().run(task, watch, mark=mark)
        self.marks.append(mark)
        self.losses -= 1
        return outcome if self.losses < 0 else Outcome(0, PlaceFailure("log_incomplete", "its last lines are missing"))


class Noting(Silent):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, sentence: str) -> None:
        self.notices.append(sentence)


def test_a_probe_whose_log_lost_its_end_is_repeated_once() -> None:
    place, watcher = Losing(probe(lenet())[:1], probe(lenet()), losses=1), Noting()
    assert resolve(Request(workload="train/lenet"), place, watcher).spec == lenet()
    assert len(set(place.marks)) == 2
    assert len(watcher.notices) == 1


def test_a_probe_whose_log_loses_its_end_twice_fails_even_with_its_answer_in_it() -> None:
    place = Losing(probe(lenet()), losses=2)
    with pytest.raises(PlaceError) as failed:
        resolve(Request(workload="train/lenet"), place, Noting())
    assert failed.value.kind == "log_incomplete"
    assert len(place.marks) == 2


# When something else breaks


class Locking(ReplayPlace):
    """While the run is on, somebody else takes the ledger and keeps it."""

    def __init__(self, path: Path, *streams: Sequence[str]) -> None:
        super().__init__(*streams)
        self._path = path
        self.other: sqlite3.Connection | None = None

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        outcome = super().run(task, watch, mark=mark, time_limit_s=time_limit_s)
        self.other = sqlite3.connect(self._path, isolation_level=None)
        self.other.execute("BEGIN EXCLUSIVE")
        return outcome


def test_what_was_measured_is_saved_when_the_ledger_fails_and_stored_by_the_next_command(
    book: Ledger, tmp_path: Path
) -> None:
    place = Locking(tmp_path / "ledger.sqlite3", H200)
    with pytest.raises(LedgerError) as caught:
        once(book, place)
    assert place.other is not None
    place.other.close()
    assert caught.value.kind == "locked"
    (saved,) = (tmp_path / "ledger.sqlite3.rescued").iterdir()
    assert caught.value.hint is not None
    assert missing(caught.value.hint, saved, "stackmark recover") == []
    assert (saved.stat().st_mode & 0o777, saved.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    (said,) = clean_up(book)
    (row,) = book.runs()
    assert missing(said, row.id) == []
    assert (row.status, book.stream(row.id)) == ("done", H200)
    assert not saved.parent.exists()
    assert clean_up(book) == []


def test_where_nothing_can_be_saved_the_ledger_s_own_words_stay(
    book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/nowhere")
    monkeypatch.setenv("XDG_DATA_HOME", "/proc/nowhere")
    (tmp_path / "ledger.sqlite3.rescued").touch()
    place = Locking(tmp_path / "ledger.sqlite3", H200)
    with pytest.raises(LedgerError) as caught:
        once(book, place)
    assert place.other is not None
    place.other.close()
    assert caught.value.hint is not None
    assert caught.value.kind == "locked"
    assert "stackmark recover" not in caught.value.hint


def test_a_place_that_fails_is_a_failed_run(book: Ledger) -> None:
    with pytest.raises(PlaceError):
        once(book, HostPlace(python="/nowhere/python3"))
    (row,) = book.runs()
    assert (row.status, row.failure_kind) == ("failed", "place")


@pytest.mark.parametrize(
    ("error", "kind"), [(BrokenPipeError(32, "Broken pipe"), "driver"), (KeyboardInterrupt(), "interrupted")]
)
def test_a_run_whose_watcher_breaks_does_not_stay_running(book: Ledger, error: BaseException, kind: str) -> None:
    class Breaking(Silent):
        def event(self, event: Event) -> None:
            raise error

    with pytest.raises(type(error)):
        once(book, ReplayPlace(H200), watcher=Breaking())
    (row,) = book.runs()
    assert (row.status, row.failure_kind) == ("failed", kind)


def test_an_interruption_is_raised_once_the_run_is_stored(book: Ledger) -> None:
    class Interrupted(ReplayPlace):
        def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
            super().run(task, watch, mark=mark, time_limit_s=time_limit_s)
            return Outcome(130, PlaceFailure("interrupted", "the run was interrupted"), (), KeyboardInterrupt())

    with pytest.raises(KeyboardInterrupt):
        once(book, Interrupted(H200[:30]))
    (row,) = book.runs()
    assert (row.failure_kind, len(book.stream(row.id))) == ("interrupted", 30)


# What was left behind


def abandoned(book: Ledger, pid: int, ticks: int | None, boot: str | None = None, namespace: int | None = None) -> str:
    experiment = Experiment(id=new_id("x"), created_unix_s=1.0)
    book.start_experiment(experiment)
    run_id = new_id("r")
    book.start(
        RunStart(
            id=run_id, experiment_id=experiment.id, spec=GPT2, place="host", started_unix_s=1.0, driver_pid=pid,
            machine_id=driver.machine_name(), boot_id=boot or driver.boot_name(), stackmark_version="0.1.0",
            handle={"driver_start_ticks": ticks, "pid_namespace": namespace or driver.pid_namespace()},
        )
    )  # fmt: skip
    return run_id


def test_a_run_of_a_driver_that_lives_is_left_alone(book: Ledger) -> None:
    abandoned(book, os.getpid(), start_ticks(os.getpid()))
    assert clean_up(book) == []


def test_a_pid_that_was_given_to_another_process_is_not_the_driver(book: Ledger) -> None:
    ticks = start_ticks(os.getpid())
    assert ticks is not None
    run_id = abandoned(book, os.getpid(), ticks - 1)
    (said,) = clean_up(book)
    assert missing(said, run_id, "train/gpt2") == []
    assert (book.run(run_id).failure_kind, book.run(run_id).failure_message) == ("lost", cleaning.DRIVER_GONE)
    assert clean_up(book) == []


def test_whoever_only_reads_is_not_kept_from_it_by_a_ledger_that_takes_no_more(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object, **_more: object) -> bool:
        raise LedgerError("the disk is full")

    abandoned(book, os.getpid(), (start_ticks(os.getpid()) or 0) - 1)
    monkeypatch.setattr(book, "mark_lost", full)
    assert clean_up(book) == []


def test_a_driver_that_is_a_zombie_is_dead(book: Ledger) -> None:
    child = subprocess.Popen(["sleep", "60"])
    run_id = abandoned(book, child.pid, start_ticks(child.pid))
    child.kill()
    eventually(lambda: not alive(child.pid))
    assert len(clean_up(book)) == 1
    assert book.run(run_id).failure_kind == "lost"
    child.wait()


def test_a_driver_without_a_beginning_that_is_gone_is_dead(book: Ledger) -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    abandoned(book, child.pid, None)
    assert len(clean_up(book)) == 1


def test_a_run_from_before_the_reboot_is_lost(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "pid_namespace", lambda: driver.HOST_PID_NAMESPACE)
    run_id = abandoned(book, os.getpid(), start_ticks(os.getpid()), boot="another")
    assert len(clean_up(book)) == 1
    assert (book.run(run_id).failure_kind, book.run(run_id).failure_message) == ("lost", cleaning.RESTARTED)


def test_a_driver_in_another_container_cannot_be_seen_and_is_left_alone(book: Ledger) -> None:
    abandoned(book, 1, 1, namespace=1)
    assert clean_up(book) == []


def test_a_container_with_our_id_may_be_on_another_host_and_is_left_alone(book: Ledger) -> None:
    abandoned(book, 1, 1, boot="another", namespace=1)
    assert clean_up(book) == []


def test_a_machine_without_an_id_is_known_by_its_boot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "machine_id", lambda: None)
    assert driver.machine_name() == f"boot {machine.boot_id()}"


# Facts and places


def test_the_facts_of_this_stack_are_told_by_a_worker(env: dict[str, str]) -> None:
    seen = look(HostPlace(environment=env), ("cpu", "memory"))
    assert list(seen.facts) == ["cpu", "memory"]
    assert seen.facts["cpu"]["threads"] == os.cpu_count()


def test_a_subject_nobody_knows_is_answered_with_the_nearest() -> None:
    with pytest.raises(SpecError) as refused:
        look(ReplayPlace(H200), ("memmory",))
    assert missing(refused.value.message, "memmory", "memory") == []


def test_a_worker_that_tells_no_facts_is_the_place_s_failure() -> None:
    with pytest.raises(PlaceError):
        look(ReplayPlace(good()))


def test_a_place_nobody_knows_is_answered_with_those_there_are() -> None:
    assert find_place("host").name == "host"
    with pytest.raises(SpecError) as refused:
        find_place("hots")
    assert missing(refused.value.message, "hots", "host") == []


def test_events_of_a_newer_worker_are_judged_and_flagged(book: Ledger) -> None:
    hello, *rest = H200
    newer = json.dumps({**json.loads(hello), "schema_version": 2}, separators=(",", ":"))
    row = once(book, ReplayPlace([newer, *rest]))
    assert row.status == "done"
    assert [missing(flag, "2") for flag in row.flags if flag.startswith("newer-worker:")] == [[]]


def test_a_warm_up_that_did_not_settle_flags_the_run(book: Ledger) -> None:
    def unsettled(line: str) -> str:
        event = json.loads(line)
        if (event["event"], event.get("phase"), event.get("state")) == ("phase", "warm-up", "end"):
            event["note"] = "moved"
        return json.dumps(event, separators=(",", ":"))

    assert not any(flag.startswith("not-settled") for flag in once(book, ReplayPlace(H200)).flags)
    assert "not-settled: moved" in once(book, ReplayPlace([unsettled(line) for line in H200])).flags


def test_what_a_driver_keeps_a_ledger_can_read_again() -> None:
    a_line = sys.getsizeof("") + 8
    assert recorder.MOST_BYTES + recorder.MOST_LINES * a_line < streams.MOST_MEMORY
    assert recorder.MOST_BYTES < streams.MOST_STORED
