"""A saved log of one of our own workers becomes the run that it was, whatever passed it on, and is verified like a live one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asking import Answer, ask
from stackmark.events import Facts, Failed, Hello, Phase, Probe, Result, Steps, write_event
from stackmark.ledger.importers import FORMATS, format_of, results_of
from stackmark.ledger.importers.found import Found
from stackmark.ledger.importers.reading import opened
from stackmark.ledger.store import Ledger
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.workloads.train.definition import TrainParams

LOGS = Path(__file__).parent / "data" / "logs"
WORKLOAD = "train/trivial_cifar10"
BATCH = 4
CHOSEN: dict[str, Any] = {
    "device": "cpu", "batch": BATCH, "precision": "fp32", "tune": "fast", "optimizer": "momentum", "classes": 11,
    "seconds": 1.0, "layout": "nchw", "autotune": False, "fused": True, "cuda_graph": False, "compile": False, "threads": 0,
    "data_workers": 0, "learning_rate": 0.1, "at_least_steps": 0, "warmup_steps": 2, "warmup_seconds": 1.0,
}  # fmt: skip
PARAMS = TrainParams.model_validate(CHOSEN).model_dump(mode="json")
SPEC = Spec(workload=WORKLOAD, params=PARAMS)


def stream(
    began: float = 1.7e9,
    *,
    spec: Spec | None = SPEC,
    steps: int = 5,
    ended: bool = True,
    batch: int = BATCH,
    pid: int = 7,
) -> list[str]:
    """The lines of a worker that measured some steps of a second each."""
    events: list[Any] = [
        Hello(seq=0, t=0.0, time_unix_s=began, pid=pid, spec=spec),
        Facts(seq=1, t=0.1, subject="host", facts={"machine_id": "m-1", "boot_id": "b-1"}),
        Phase(seq=2, t=0.2, phase="measure", state="begin"),
        Steps(seq=3, t=1.0, phase="measure", first=0, step_s=[1.0] * steps),
    ]
    if ended:
        events.append(
            Result(seq=4, t=6.0, sample="image", samples_per_step=batch, steps=steps, wall_s=float(steps), tick_s=1e-6)
        )
    return [write_event(event) for event in events]


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.sqlite3")


def imported(ledger: str, lines: list[str], *arguments: str, name: str = "worker.log") -> Answer:
    path = Path(ledger).with_name(name)
    path.write_text("".join(f"{line}\n" for line in lines))
    return ask("import", str(path), *arguments, "--ledger", ledger, "--json")


def runs(answer: Answer) -> list[dict[str, Any]]:
    assert answer.out, answer.err
    found: list[dict[str, Any]] = json.loads(answer.out)["runs"]
    return found


def found_in(lines: list[str], folder: Path) -> list[Found]:
    path = folder / "worker.log"
    path.write_text("".join(f"{line}\n" for line in lines))
    with opened(str(path)) as log:
        kind = format_of(log)
        assert kind is FORMATS["stackmark"]
        return results_of(log, kind)


def test_a_saved_log_is_the_run_with_its_spec_its_machine_and_its_time(ledger: str) -> None:
    answer = imported(ledger, stream(), "--place", "pod")
    (run,) = runs(answer)
    assert answer.code == 0
    assert (run["workload"], run["place"], run["rate_per_s"], run["rate_unit"]) == (WORKLOAD, "pod", BATCH, "images/s")
    assert (run["started_unix_s"], run["machine_id"], run["boot_id"]) == (1.7e9, "m-1", "b-1")
    assert run["spec"]["params"] == PARAMS


PASSED_ON = {
    "--timestamps": "2026-11-18T08:15:30.123456789Z {}",
    "--prefix": "[pod/bench-0-x7k2p/main] {}",
    "both": "[pod/bench-0-x7k2p/main] 2026-11-18T08:15:30.123456789Z {}",
    "containerd": "2026-11-18T08:15:30.123456789+09:00 stdout F {}",
}


@pytest.mark.parametrize("form", PASSED_ON)
def test_what_kubectl_puts_before_lines_and_text_between_them_change_nothing(form: str, ledger: str) -> None:
    mixed = [part for line in stream() for part in ("W1118 some library says {something}", line)]
    answer = imported(ledger, [PASSED_ON[form].format(line) for line in ["Downloading…", *mixed, "bye"]])
    (run,) = runs(answer)
    assert (run["status"], run["rate_per_s"]) == ("done", BATCH)
    # Other text is kept as the worker's standard error.
    assert "some library says" in ask("show", run["id"], "--log", "--ledger", ledger).out


def test_an_event_behind_other_text_on_its_line_is_found(tmp_path: Path) -> None:
    lines = stream()
    (found,) = found_in([*lines[:3], f"50 %|#####     | {lines[3]}", lines[4]], tmp_path)
    assert list(found.events) == lines


def test_what_a_worker_passed_on_of_other_formats_does_not_decide(tmp_path: Path) -> None:
    (found,) = found_in([*stream(), "total images/sec: 124.77"], tmp_path)
    assert found.program == "stackmark"


def test_several_runs_in_one_file_are_several_runs(ledger: str) -> None:
    answer = imported(ledger, [*stream(1.7e9), *stream(1.7e9 + 60), *stream(1.7e9 + 120, ended=False)])
    assert [(run["status"], run["started_unix_s"]) for run in runs(answer)] == [
        ("done", 1.7e9), ("done", 1.7e9 + 60), ("failed", 1.7e9 + 120),
    ]  # fmt: skip
    assert answer.code == 7


def test_a_log_that_was_followed_twice_is_one_run(tmp_path: Path, ledger: str) -> None:
    lines = stream()
    (run,) = runs(imported(ledger, [*lines[:3], *lines]))
    assert (run["status"], run["rate_per_s"]) == ("done", BATCH)


def test_pods_whose_lines_are_mixed_are_told_apart(ledger: str) -> None:
    pairs = zip(stream(1.7e9, steps=5), stream(1.7e9 + 1, steps=8), strict=True)
    lines = [f"[pod/{pod}/main] {line}" for pair in pairs for pod, line in zip("ab", pair, strict=True)]
    assert [run["steps_total"] for run in runs(imported(ledger, lines))] == [5, 8]


def test_a_worker_that_was_only_asked_something_is_not_a_run(ledger: str) -> None:
    asked = [
        Hello(seq=0, t=0.0, time_unix_s=1.6e9, pid=1),
        Probe(seq=1, t=0.1, spec=SPEC),
        Facts(seq=2, t=0.2, subject="environment", facts={}),
    ]
    answer = imported(ledger, [*map(write_event, asked), *stream()])
    assert len(runs(answer)) == 1


# What a worker says is not believed


@pytest.mark.parametrize(("kept", "named"), [(1, "event 0"), (4, "event 3")])
def test_a_log_that_ends_early_is_a_failed_run_with_what_was_received(kept: int, named: str, ledger: str) -> None:
    answer = imported(ledger, stream()[:kept])
    (run,) = runs(answer)
    assert (answer.code, run["failure_kind"], run["rate_per_s"]) == (3, "cut_off", None)
    assert named in run["failure_message"]
    assert len(ask("show", run["id"], "--events", "--ledger", ledger).out.splitlines()) == kept


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([*stream()[:2], *stream()[3:]], "broken_stream"),
        ([*stream()[:3], '{"event":"steps","seq":3,"rank":0,"t":NaN}', stream()[4]], "broken_stream"),
        (stream(steps=5)[:3] + stream(steps=4)[3:4] + stream(steps=5)[4:], "broken_stream"),
        (stream(batch=BATCH * 1000), "impossible_result"),
        ([*stream()[:4], write_event(Failed(seq=4, t=5, kind="lost", message="x"))], "unknown_failure"),
        ([*stream()[:4], write_event(Failed(seq=4, t=5, kind="no_device", message="x"))], "no_device"),
    ],
    ids=["a gap", "not JSON", "steps are missing", "another batch", "a kind of ours", "its own failure"],
)
def test_events_are_verified_as_those_of_a_live_worker(lines: list[str], kind: str, ledger: str) -> None:
    (run,) = runs(imported(ledger, lines))
    assert (run["status"], run["failure_kind"], run["rate_per_s"]) == ("failed", kind, None)


def test_a_spec_that_its_definition_does_not_allow_is_refused(ledger: str) -> None:
    wrong = SPEC.model_copy(update={"params": {**PARAMS, "batch": -1}})
    answer = imported(ledger, stream(spec=wrong))
    assert (answer.code, "batch" in answer.err, "Traceback" in answer.err) == (2, True, False)


def test_a_worker_that_does_not_name_its_spec_is_named_by_hand(ledger: str) -> None:
    answer = imported(ledger, stream(spec=None))
    assert (answer.code, "--workload" in answer.err) == (2, True)
    (run,) = runs(imported(ledger, stream(spec=None), "--workload", WORKLOAD, "--param", "batch=4"))
    assert (run["status"], run["batch"], run["rate_per_s"]) == ("done", 4, BATCH)


@pytest.mark.parametrize("arguments", [("--workload", "train/vgg16"), ("--param", "batch=99"), ("--ranks", "2")])
def test_what_contradicts_the_workers_own_spec_is_refused(arguments: tuple[str, str], ledger: str) -> None:
    answer = imported(ledger, stream(), *arguments)
    assert (answer.code, arguments[0] in answer.err) == (2, True)


# Each run once


def test_another_copy_of_a_run_is_noticed(ledger: str) -> None:
    (first,) = runs(imported(ledger, stream()))
    stamped = [f"2026-11-18T08:15:30Z {line}" for line in stream()]
    answer = imported(ledger, stamped, name="stamped.log")
    assert (answer.code, first["id"] in answer.err) == (2, True)
    assert imported(ledger, stamped, "--again", name="stamped.log").code == 0


def test_two_copies_in_one_call_are_noticed(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "stamped.log").write_text("".join(f"2026-11-18T08:15:30Z {line}\n" for line in stream()))
    answer = imported(ledger, stream(), str(tmp_path / "stamped.log"))
    assert (answer.code, len(runs(answer))) == (7, 1)


def test_a_real_worker_says_what_it_ran(ledger: str) -> None:
    """The events of a process that ran it, with what its libraries printed."""
    params: dict[str, Scalar] = {"device": "cpu", "batch": 2, "steps": 20, "warmup_seconds": 0, "tune": "off"}
    request = Request(workload=WORKLOAD, params=params)
    task = Task(do="run", request=request, lifeline=False)
    done = subprocess.run(
        [sys.executable, "-m", "stackmark.worker"], env={**os.environ, "STACKMARK_SPEC": task.model_dump_json()},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    (run,) = runs(imported(ledger, done.stdout.splitlines()))
    assert (run["workload"], run["status"], run["steps_total"]) == (WORKLOAD, "done", 20)


def test_a_log_of_kubectl_with_prefixes_times_and_text_is_the_run_of_its_worker(ledger: str) -> None:
    """Recorded from a real pod of two containers, whose other one printed too."""
    answer = ask("import", str(LOGS / "own_worker" / "kubectl_prefix_timestamps.log"), "--ledger", ledger, "--json")
    (run,) = runs(answer)
    assert (answer.code, run["workload"], run["status"]) == (0, "train/resnet20", "done")
    with Ledger.open(ledger, create=False) as book:
        (row,) = book.runs()
        lines = book.stream(row.id)
    assert (row.steps_total, row.batch) == (20, 4)
    assert [line for line in lines if "[stackmark " in line] == []
