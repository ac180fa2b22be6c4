"""A group of ranks as one run: real processes, whole lines, one dead rank, and nothing left behind."""

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from rank_tricks import BAD, install, ranked
from refusing import refused
from stackmark import events
from stackmark.events import Event, Failed, Hello, Result, Stream
from stackmark.experiments.judging import judge
from stackmark.machine.orphans import marked
from stackmark.places.host import HostPlace
from stackmark.places.place import Outcome
from stackmark.ranks import Rank, own_rank, variables
from stackmark.spec import SPEC_VARIABLE, Request, Scalar, Spec, Task
from stackmark.worker.ranks import Agent, Child, Out, ranks_of, task_of_rank
from test_host_place import Killing, Notes
from worker_process import (
    PIDS_VARIABLE,
    Finished,
    environment,
    eventually,
    finish,
    give,
    gone,
    read_until,
    signals_in,
    stands_still,
    start,
    time_is_up_when,
    work,
)

MARK = f"r-ranks-{os.getpid()}"


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(install(tmp_path_factory.mktemp("ranked")))


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    yield
    assert marked(MARK) == []


def run(spec: Spec, env: dict[str, str], **more: str) -> Finished:
    return work(Task(do="run", spec=spec), {**env, **more})


def read(lines: Sequence[str]) -> Stream:
    """The whole stream: numbered without gaps by every rank, nothing foreign in it."""
    stream = Stream()
    for line in lines:
        assert stream.feed(line) is not None, line
    return stream


def failure(finished: Finished) -> Failed:
    closed = read(finished.lines).ended()
    assert isinstance(closed, Failed), finished.stderr
    assert finished.code == events.FAILURE_EXIT_CODES[closed.kind]
    return closed


def pids_of(lines: Sequence[str]) -> list[int]:
    return [event.pid for event in read(lines).events if isinstance(event, Hello)]


# A run of several


def test_a_group_is_one_stream_that_ends_with_a_result_of_every_rank(env: dict[str, str]) -> None:
    finished = run(ranked("calm", ranks=3), env)
    stream = read(finished.lines)
    assert (finished.code, stream.ranks) == (0, 3)
    assert {event.rank: event.ranks for event in stream.events if isinstance(event, Hello)} == {0: 3, 1: 3, 2: 3}
    assert len(set(pids_of(finished.lines))) == 3
    closed = stream.ended()
    assert isinstance(closed, Result)
    assert closed.rank == 0
    for rank in range(3):
        assert len(events.measured_steps(stream.events, rank)) == 5
        assert "cpu" in events.gathered_facts(stream.events, rank)


def test_long_lines_of_several_ranks_do_not_tear(env: dict[str, str]) -> None:
    """Each is twice what a pipe takes in one piece; standard error has the rank before each line."""
    finished = run(ranked("wordy", ranks=3), env)
    assert finished.code == 0
    stream = read(finished.lines)
    notes = [event.note for event in stream.events if isinstance(event, events.Phase) and len(event.note) == 7000]
    assert len(notes) == 3 * 200
    assert {note[0] for note in notes} == {"0", "1", "2"}
    assert all(set(note) == {note[0]} for note in notes)
    lines = [line for line in finished.stderr.splitlines() if " of 3 " in line]
    assert sorted(lines) == [f"[rank {number}] rank {number} of 3 {'é' * 5000}" for number in range(3)]


def test_a_task_in_the_environment_makes_a_group_too(env: dict[str, str]) -> None:
    """As a pod gets it: without a lifeline from outside."""
    task = Task(do="run", spec=ranked("calm"), lifeline=False).model_dump_json()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stackmark.worker"], env={**env, SPEC_VARIABLE: task}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert isinstance(read(done.stdout.splitlines()).ended(), Result)
    assert done.returncode == 0


def test_a_request_is_resolved_once_and_said_by_the_first_rank(env: dict[str, str], tmp_path: Path) -> None:
    count = tmp_path / "probes"
    request = Request(workload="ranked/calm", params={"steps": 3}, ranks=2)
    finished = work(Task(do="run", request=request), {**env, PIDS_VARIABLE: str(count)})
    assert count.read_text() == "probed\n"
    (probe,) = [event for event in read(finished.lines).events if isinstance(event, events.Probe)]
    assert (probe.rank, probe.spec.ranks, probe.spec.params["steps"]) == (0, 2, 3)


def test_a_probe_of_several_ranks_is_one_process(env: dict[str, str], tmp_path: Path) -> None:
    request = Request(workload="ranked/calm", ranks=2)
    finished = work(Task(do="probe", request=request), {**env, PIDS_VARIABLE: str(tmp_path / "probes")})
    (hello,) = [event for event in read(finished.lines).events if isinstance(event, Hello)]
    assert hello.ranks == 1
    assert any(isinstance(event, events.Probe) and event.spec.ranks == 2 for event in read(finished.lines).events)


def test_a_request_that_cannot_be_is_a_failure_in_words(env: dict[str, str], tmp_path: Path) -> None:
    request = Request(workload="ranked/calm", params={"steps": -1}, ranks=2)
    finished = work(Task(do="run", request=request), {**env, PIDS_VARIABLE: str(tmp_path / "probes")})
    assert (finished.kinds(), finished.last["kind"]) == (["hello", "failed"], "crash")


def test_the_copy_of_the_events_has_those_of_all_ranks(env: dict[str, str], tmp_path: Path) -> None:
    copy = tmp_path / "copy.jsonl"
    finished = run(ranked("dies"), env, STACKMARK_COPY=str(copy))
    assert sorted(copy.read_text().splitlines()) == sorted(finished.lines)


# One that fails


@pytest.mark.parametrize(
    ("name", "kind", "named"),
    [
        ("dies", "rank_died", "SIGKILL; its last event was: warm-up, begin"),
        ("segfaults", "rank_died", "SIGSEGV; its last event was: warm-up, begin"),
        ("leaves", "rank_died", "code 3 without a result; its last event was: warm-up, begin"),
        ("says", "out_of_device_memory", "memory"),
        ("raises", "crash", "RuntimeError"),
    ],
)
def test_one_dead_rank_fails_the_run_in_its_own_words(env: dict[str, str], name: str, kind: str, named: str) -> None:
    """The other one would step on for hours."""
    finished = run(ranked(name, steps=10_000_000), env)
    closed = failure(finished)
    assert (closed.rank, closed.kind, named in closed.message) == (BAD, kind, True)
    assert gone(pids_of(finished.lines))
    others = [event for event in read(finished.lines).of(0) if isinstance(event, Failed)]
    assert [event.kind for event in others] == ["terminated"]
    end = judge(read(finished.lines), Outcome(finished.code))
    assert (end.status, end.failure_kind) == ("failed", kind)
    assert end.failure_message is not None
    assert end.failure_message.startswith(f"rank {BAD}")
    assert end.failure_message.endswith(closed.message)


def test_a_rank_that_lost_another_does_not_hide_the_death_that_it_speaks_of(env: dict[str, str]) -> None:
    """Its word comes first, and half a second before the death."""
    finished = run(ranked("lost", steps=10_000_000), env)
    said = [event.kind for event in read(finished.lines).events if isinstance(event, Failed)]
    assert said == ["lost_rank", "rank_died"]
    closed = failure(finished)
    assert (closed.rank, "SIGKILL" in closed.message) == (BAD, True)


def test_half_a_line_of_a_dead_rank_is_no_broken_stream(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as file:
        agent = Agent(Out(file.fileno(), os.getppid()), None)
        whole = events.write_event(events.Log(seq=0, rank=1, t=0, line="whole")).encode() + b"\n"
        child = Child(1, None)
        agent._events(child, io.BytesIO(whole + b'{"event":"log","seq":1,"ra'))
    assert out.read_bytes() == whole
    assert child.said == 1


def test_more_ranks_than_are_started_are_refused(env: dict[str, str]) -> None:
    refusal = failure(run(ranked("calm", ranks=100_000), env))
    assert refusal.kind == "bad_parameter"
    assert "256" in refusal.message
    assert "--ranks-per-node" in refusal.hint


# Ended from outside


def place_run(spec: Spec, env: dict[str, str], notes: Notes, limit_s: float | None = None) -> Outcome:
    return HostPlace(environment=env).run(Task(do="run", spec=spec), notes, mark=MARK, time_limit_s=limit_s)


@pytest.mark.parametrize("name", ["stands", "hangs"])
def test_a_rank_that_hangs_is_ended_with_its_group_when_the_time_is_up(env: dict[str, str], name: str) -> None:
    notes = Notes()

    def stands() -> bool:
        pids = pids_of(notes.lines)
        return (
            notes.measuring()
            and len(pids) == 2
            and any(stands_still(pid) or signal.SIGTERM in signals_in(pid, "SigBlk") for pid in pids)
        )

    with time_is_up_when(stands):
        outcome = place_run(ranked(name, steps=10_000_000), env, notes, limit_s=600)
    assert outcome.failure is not None
    assert (outcome.failure.kind, outcome.exit_code) == ("timeout", 143)
    assert "600 s" in outcome.failure.message
    stream = read(notes.lines)
    said = {event.rank: event for event in stream.events if isinstance(event, Failed)}
    assert {0: said[0].kind, BAD: said[BAD].kind} == {0: "terminated", BAD: "terminated"}
    assert said[0].message != said[BAD].message, "the one stopped by itself, the other did not"
    end = judge(stream, outcome)
    assert end.failure_kind == "timeout"
    # A rank that is stopped hears nothing. One that hangs in its work does, and so do those that wait for it.
    assert ("rank 1 of 2 " in str(end.failure_message)) == (name == "stands")
    assert "rank 0" not in str(end.failure_message)
    assert gone([notes.pid, *pids_of(notes.lines)])


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")])
def test_a_signal_to_the_group_reaches_every_rank(env: dict[str, str], number: signal.Signals, kind: str) -> None:
    process = start(env)
    give(process, Task(do="run", spec=ranked("calm", steps=10_000_000)))
    before = read_until(process, lambda event: event["event"] == "phase" and event["phase"] == "measure")
    process.send_signal(number)
    finished = finish(process, before)
    assert finished.code == events.FAILURE_EXIT_CODES[kind]
    assert [event.kind for event in read(finished.lines).events if isinstance(event, Failed)] == [kind, kind]
    assert gone(pids_of(finished.lines))


def test_nothing_is_left_when_the_agent_is_killed(env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "pids"
    notes = Killing()
    outcome = place_run(ranked("children", steps=10_000_000), {**env, PIDS_VARIABLE: str(file)}, notes)
    assert outcome.failure is not None
    assert (outcome.failure.kind, "SIGKILL" in outcome.failure.message) == ("killed", True)
    assert gone([int(pid) for pid in file.read_text().split()])


def test_the_ranks_notice_by_themselves_that_their_agent_was_killed(env: dict[str, str]) -> None:
    """Without a place that looks after them, and without a mark."""
    process = start(env)
    give(process, Task(do="run", spec=ranked("calm", steps=10_000_000)))
    lines = read_until(process, lambda event: event["event"] == "phase" and event["phase"] == "measure")
    process.kill()
    assert gone(pids_of(lines))
    finish(process)


DRIVER = """
import sys
sys.path.insert(0, {tests!r})
from test_host_place import Notes
from stackmark.places.host import HostPlace
from stackmark.spec import Task
HostPlace().run(Task.model_validate_json(sys.argv[1]), Notes(), mark={mark!r})
"""


def test_nothing_is_left_when_the_driver_is_killed(env: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "pids"
    task = Task(do="run", spec=ranked("children", steps=10_000_000)).model_dump_json()
    script = DRIVER.format(tests=str(Path(__file__).parent), mark=MARK)
    driver = subprocess.Popen([sys.executable, "-c", script, task], env={**env, PIDS_VARIABLE: str(file)})

    def both() -> list[int] | None:
        lines = file.read_text().splitlines() if file.exists() else []
        return [int(pid) for pid in " ".join(lines).split()] if len(lines) == 2 else None

    pids: list[int] = eventually(both)
    driver.kill()
    driver.wait()
    assert gone(pids)


# Other people's launchers


def test_a_launcher_s_rank_is_taken_as_it_is(env: dict[str, str]) -> None:
    """As torchrun starts them: each process has its rank, and the task without one."""
    task = Task(do="run", spec=ranked("calm"), lifeline=False).model_dump_json()
    rank = variables(Rank(1, 2, 1, 2), "127.0.0.1", 29500)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stackmark.worker"], env={**env, **rank, SPEC_VARIABLE: task},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    stream = read(done.stdout.splitlines())
    assert {event.rank for event in stream.events} == {1}
    assert stream.ranks == 2
    assert stream.ended() is None  # rank 0 is somewhere else


def test_the_rank_of_a_driver_under_a_launcher_is_not_that_of_its_worker(env: dict[str, str]) -> None:
    """The worker would wait for a rank 0 that nobody starts."""
    notes = Notes()
    outcome = place_run(ranked("calm"), env | variables(Rank(1, 2, 1, 2), "127.0.0.1", 29500), notes, limit_s=60)
    assert (outcome.exit_code, outcome.failure) == (0, None)
    assert {event.rank for event in read(notes.lines).events} == {0, 1}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"RANK": "0", "WORLD_SIZE": "1"}, "2 ranks"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4"),
        ({"RANK": "one"}, "RANK=one"),
    ],
)
def test_a_launcher_that_started_another_group_is_refused(
    env: dict[str, str], given: dict[str, str], named: str
) -> None:
    finished = run(ranked("calm"), env, **given)
    assert named in finished.last["message"]
    assert (finished.last["kind"], finished.code) == ("bad_task", 10)


def test_a_run_of_one_does_not_mind_somebody_s_rank(env: dict[str, str]) -> None:
    finished = run(ranked("calm", ranks=1), env, RANK="3", WORLD_SIZE="8")
    assert (finished.code, finished.last["rank"]) == (0, 0)


def test_each_rank_has_its_own_gpu() -> None:
    spec = ranked("calm", device="cuda:0", ranks=4)
    task = task_of_rank(Task(do="run", spec=spec), Rank(2, 4, 2, 4))
    assert task.spec is not None
    assert (task.rank, task.spec.params["device"]) == (2, "cuda:2")
    on_cpu = task_of_rank(Task(do="run", spec=ranked("calm")), Rank(1, 2, 1, 2))
    assert on_cpu.spec == ranked("calm")


def test_what_a_launcher_says_is_read_back() -> None:
    rank = Rank(5, 8, 1, 4)
    assert own_rank(variables(rank, "10.0.0.1", 29500)) == rank
    assert own_rank({"WORLD_SIZE": "8"}) is None
    with refused("RANK=8", "WORLD_SIZE=8"):
        own_rank({"RANK": "8", "WORLD_SIZE": "8"})


def test_only_a_run_is_ever_several_processes() -> None:
    request = Request(workload="ranked/calm", ranks=4)
    assert ranks_of(Task(do="probe", request=request)) == 1
    assert ranks_of(Task(do="run", request=request)) == 4
    assert ranks_of(Task(do="facts")) == 1


# The stream of several, without processes


def stream_of(*said: Event, ranks: int = 2) -> Stream:
    stream = Stream()
    seqs = [0] * ranks
    hellos = [Hello(seq=0, rank=rank, t=0, time_unix_s=0, pid=1, ranks=ranks) for rank in range(ranks)]
    for event in (*hellos, *said):
        stream.feed(events.write_event(event.model_copy(update={"seq": seqs[event.rank]})))
        seqs[event.rank] += 1
    return stream


def result(rank: int, **more: Any) -> Result:
    return Result(seq=0, rank=rank, t=1, sample="step", samples_per_step=1, steps=200, wall_s=2.0, tick_s=1e-9, **more)


def failed(rank: int, kind: str) -> Failed:
    return Failed(seq=0, rank=rank, t=1, kind=kind, message=f"{kind} of {rank}")


def steps(rank: int, step_s: float = 0.01) -> events.Steps:
    return events.Steps(seq=0, rank=rank, t=1, phase="measure", first=0, step_s=[step_s] * 200)


def test_a_group_is_done_when_all_of_its_ranks_are() -> None:
    assert stream_of(result(0)).ended() is None
    assert stream_of(result(1)).ended() is None
    closed = stream_of(result(1), result(0)).ended()
    assert isinstance(closed, Result)
    assert closed.rank == 0


def test_a_group_has_failed_if_any_of_its_ranks_did() -> None:
    closed = stream_of(result(0), failed(1, "crash")).ended()
    assert isinstance(closed, Failed)
    assert closed.rank == 1


@pytest.mark.parametrize(
    ("kinds", "cause"),
    [
        (["crash", "not_finite"], 0),
        (["lost_rank", "crash"], 1),
        (["terminated", "rank_died"], 1),
        (["terminated", "lost_rank"], 1),
        (["interrupted", "interrupted"], 0),
    ],
)
def test_the_failure_of_a_group_is_the_one_that_the_others_followed(kinds: list[str], cause: int) -> None:
    closed = stream_of(*(failed(rank, kind) for rank, kind in enumerate(kinds))).ended()
    assert isinstance(closed, Failed)
    assert closed.rank == cause


def test_one_rank_is_read_as_ever() -> None:
    assert isinstance(stream_of(result(0), failed(0, "crash"), ranks=1).ended(), Failed)
    assert isinstance(stream_of(result(0), ranks=1).ended(), Result)
    assert stream_of(ranks=1).ended() is None


def test_what_only_another_rank_says_is_said_with_its_number() -> None:
    stream = stream_of(
        steps(0), steps(1), result(0, flags=["clocks: 1 %"]), result(1, flags=["clocks: 2 %", "heat: 90 °C"])
    )
    end = judge(stream, Outcome(0))
    assert end.status == "done"
    assert [flag for flag in end.flags if "clocks" in flag or "heat" in flag] == ["clocks: 1 %", "heat: 90 °C (rank 1)"]


def test_an_error_of_any_rank_s_hardware_makes_the_run_invalid() -> None:
    end = judge(stream_of(steps(0), steps(1), result(0), result(1, invalid=["an XID"])), Outcome(0))
    assert (end.status, end.failure_message) == ("invalid", "an XID (rank 1)")


def test_a_rank_whose_steps_are_slower_is_named() -> None:
    end = judge(stream_of(steps(0, 0.01), steps(1, 0.013), result(0), result(1)), Outcome(0))
    (flag,) = (flag for flag in end.flags if flag.startswith("stragglers: rank 1"))
    assert all(time in flag for time in ("13.0 ms", "10.0 ms"))
    alike = judge(stream_of(steps(0, 0.01), steps(1, 0.0105), result(0), result(1)), Outcome(0))
    assert not any("stragglers" in flag for flag in alike.flags)


def test_energy_is_that_of_all_gpus_and_of_one_machine() -> None:
    def spent(rank: int, gpu: Scalar) -> list[Event]:
        return [
            events.Facts(seq=0, rank=rank, t=0, subject="gpu", facts={"under_test": gpu}),
            events.Metric(seq=0, rank=rank, t=1, name="energy_j", value=100.0 + rank, unit="J", higher_is_better=False),
        ]

    rest = [steps(0), steps(1), result(0), result(1)]
    assert judge(stream_of(*spent(0, "GPU-a"), *spent(1, "GPU-b"), *rest), Outcome(0)).energy_j == 201.0
    assert judge(stream_of(*spent(0, None), *spent(1, None), *rest), Outcome(0)).energy_j == 100.0


# What a person types


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["op/gemm", "--ranks", "2"], ["op/gemm", "--ranks"]),
        (["op/conv", "--ranks", "2"], ["op/conv", "--ranks", "train/*"]),
        (["op/all-reduce"], ["op/all-reduce", "--ranks 2"]),
        (["op/all-reduce", "--ranks", "0"], ["--ranks", "4096", "'0'"]),
        (["op/all-reduce", "--ranks", "2,many"], ["--ranks", "4096", "'many'"]),
        (
            ["op/all-reduce", "--ranks", "2", "--device", "cuda:1"],
            ["--device cuda:1"],
        ),
    ],
)
def test_ranks_that_cannot_be_are_a_sentence(words: list[str], named: list[str], tmp_path: Path) -> None:
    answer = ask("run", *words, "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert answer.code == 2
    assert all(word in answer.err for word in named), answer.err


def test_one_experiment_has_one_number_of_ranks(tmp_path: Path) -> None:
    answer = ask("noise", "op/all-reduce", "--ranks", "2,4", "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert (answer.code, "--ranks" in answer.err) == (2, True)
