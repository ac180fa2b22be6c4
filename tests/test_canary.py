"""The canary: what a turn says and exits with, when it does not measure, and how it ends."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, ask
from experiment_asking import empty_ledger
from other_days import copied
from refusing import refused
from stackmark.api.canary import cron_schedule
from stackmark.api.latest import LedgerWatch
from stackmark.errors import Exit
from stackmark.experiments import canary
from stackmark.experiments.surroundings import Surroundings
from stackmark.ledger import baselines
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger
from stackmark.machine.busy import Busy, BusyGpu, Program
from stackmark.show.canary import systemd_unit
from stackmark.verdict.interference import Load
from worker_process import eventually

FREE = Surroundings(Busy(0.0, 2))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(canary, "look_around", lambda *_: FREE)
    return empty_ledger(tmp_path, monkeypatch)


@pytest.fixture
def book(file: Path) -> Iterator[Ledger]:
    with Ledger.open(str(file)) as ledger:
        yield ledger


@pytest.fixture
def rate(tmp_path: Path, book: Ledger) -> Path:
    """The file of a program that prints the rate in it, and a baseline of it of three nights: 100.35, 99.65, 100.10."""
    path = tmp_path / "rate"
    path.write_text("rate: 100.0")
    measured = ask("run", "--cmd", f"cat {path}", "--metric", "rate: ([0-9.]+)", "--runs", "1", "--json")
    assert measured.code == 0, measured.err
    (row,) = book.runs(RunFilter(status="done"))
    for days, value in ((23, 100.35), (22, 99.65), (21, 100.10)):
        baselines.save(book, "night", copied(tmp_path / "ledger.sqlite3", row.experiment_id, days, value))
    return path


def turn(*typed: str) -> tuple[int, dict[str, Any]]:
    answer = ask("canary", "--baseline", "night", "--json", "--margin", "5%", *(typed or ("--once",)))
    return answer.code, json.loads(answer.out)


def test_a_turn_as_fast_as_before_passes_and_is_an_ordinary_check(rate: Path, book: Ledger) -> None:
    code, found = turn()
    assert (code, found["state"], found["exit_code"]) == (Exit.DONE, "passed", 0)
    (one,) = found["check"]["workloads"]
    assert book.experiment(one["experiment"]).kind == "check"
    assert ask("show", one["experiment"]).code == 0


@pytest.mark.parametrize("how", [("--once",), ("--within", "60s")])
def test_a_slower_machine_has_the_exit_code_of_a_verdict(rate: Path, how: tuple[str, ...]) -> None:
    rate.write_text("rate: 50.0")
    code, found = turn(*how)
    assert (code, found["state"]) == (Exit.VERDICT_NAMED, "slower")


def test_a_failed_run_is_a_result_with_its_code(rate: Path, book: Ledger) -> None:
    rate.unlink()
    code, found = turn()
    assert (code, found["state"]) == (Exit.RUN_FAILED, "failed")
    (one,) = found["check"]["workloads"]
    assert [row.status for row in book.runs_of(one["experiment"])] == ["failed"]


@pytest.mark.parametrize(
    ("around", "named"),
    [
        (Surroundings(Busy(1.8, 2, (Program("trainer", 1.8),))), "trainer"),
        (Surroundings(Busy(0.0, 2), (BusyGpu(0, "H200", 1, ("serving",)),)), "serving"),
    ],
)
def test_somebody_else_s_job_is_left_alone(
    around: Surroundings, named: str, rate: Path, book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate.write_text("rate: 50.0")
    monkeypatch.setattr(canary, "look_around", lambda *_: around)
    before = len(book.runs())
    code, found = turn()
    assert (code, found["state"], found["check"]) == (Exit.DONE, "busy", None)
    assert named in found["why"]
    assert len(book.runs()) == before


def test_a_load_that_was_there_when_the_baseline_was_made_is_usual() -> None:
    around = Surroundings(Busy(1.8, 2, (Program("daemon", 1.8),)))
    assert "daemon" in canary.in_use(around, 0.0)
    assert canary.in_use(around, 1.7) == ""


def test_a_turn_that_was_disturbed_accuses_nobody(rate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rate.write_text("rate: 50.0")
    load = Load(0, 0, 0, other_cpus=1.5, seconds=30.0, cores=2)
    monkeypatch.setattr("stackmark.experiments.canary.StepTimes.load", lambda _self, _row: load)
    monkeypatch.setattr(canary, "usual_cpus", lambda *_: 0.1)
    code, found = turn()
    assert (code, found["state"]) == (Exit.DONE, "inconclusive")
    assert "1.50 CPUs" in found["why"]


def test_the_exporter_says_of_a_turn_what_the_canary_said(
    rate: Path, book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    rate.write_text("rate: 50.0")
    monkeypatch.setattr("stackmark.api.latest.SETTLED_S", 0.0)
    calm = Load(0, 0, 0, other_cpus=0.0, seconds=30.0, cores=2)
    watch = LedgerWatch(book.where)
    words = []
    for load in (calm, replace(calm, other_cpus=1.5)):
        monkeypatch.setattr("stackmark.experiments.canary.StepTimes.load", lambda _self, _row, load=load: load)
        monkeypatch.setattr(canary, "usual_cpus", lambda *_: 0.1)
        state = turn()[1]["state"]
        (check,) = watch.read().checks
        words.append((state, check.word))
    assert words == [("slower", "SLOWER"), ("inconclusive", "INCONCLUSIVE")]


def test_two_canaries_do_not_run_at_the_same_time(rate: Path, tmp_path: Path) -> None:
    assert turn()[1]["state"] == "passed"
    (lock,) = (tmp_path / "cache" / "stackmark").glob("canary-*.lock")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        code, found = turn()
    assert (code, found["state"]) == (Exit.DONE, "overlap")
    assert turn()[1]["state"] == "passed"


def test_what_cannot_fit_into_its_time_is_refused_before_it_begins(rate: Path, book: Ledger) -> None:
    before = len(book.runs())
    answer = ask("canary", "--baseline", "night", "--within", "1s")
    assert answer.code == Exit.WRONG_USE
    assert "--within" in answer.err
    assert len(book.runs()) == before


def test_a_run_that_does_not_end_in_time_fails_the_turn(rate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "run_time", lambda *_: None)  # a run that was quick before
    os.unlink(rate)
    os.mkfifo(rate)  # `cat` waits for somebody who writes
    code, found = turn("--within", "4s")
    assert (code, found["state"]) == (Exit.RUN_FAILED, "failed")


def test_a_hook_gets_the_turn_as_data_and_no_shell(rate: Path, tmp_path: Path) -> None:
    rate.write_text("rate: 50.0")
    seen, program = tmp_path / "seen; echo", tmp_path / "hook.py"
    program.write_text(
        "import json, os, pathlib, sys\n"
        "said = {'argv': sys.argv[2:], 'turn': json.load(sys.stdin), 'state': os.environ['STACKMARK_STATE']}\n"
        "pathlib.Path(sys.argv[1]).write_text(json.dumps(said))\n"
    )
    hook = f"{sys.executable} {program} '{seen}' '$(id)' ';'"
    assert turn("--once", "--on-slower", hook)[0] == Exit.VERDICT_NAMED
    said = json.loads(seen.read_text())
    assert said["argv"] == ["$(id)", ";"]
    assert (said["state"], said["turn"]["state"]) == ("slower", "slower")
    # Not where it is as fast as before; and one that is not there is said, and changes no code.
    rate.write_text("rate: 100.0")
    seen.unlink()
    turn("--once", "--on-slower", hook)
    assert not seen.exists()
    rate.write_text("rate: 50.0")
    answer = ask("canary", "--baseline", "night", "--once", "--on-slower", "/nowhere/hook x")
    assert answer.code == Exit.VERDICT_NAMED
    assert "/nowhere/hook" in answer.err


WRONG = {
    "no kind of canary": ((), ("--every", "--once")),
    "both kinds": (("--every", "1h", "--once"), ("--every", "--once")),
    "no time at all": (("--every", "0s"), ("--every",)),
    "no time for a turn": (("--within", "0s"), ("--within",)),
    "a workload that is not held": (("train/lenet", "--once"), ("night", "train/lenet", "command/own")),
    "a place that is not held": (("--once", "--on", "container"), ("container",)),
    "an open quote": (("--once", "--on-slower", "page 'x"), ("--on-slower",)),
    "a unit without an interval": (("--once", "--print", "systemd"), ("--every",)),
    "no cron schedule": (("--every", "7min", "--print", "cronjob"), ("--every",)),
    "a node for the host": (("--once", "--node", "n1"), ("--node", "--print")),
}


@pytest.mark.parametrize("what", WRONG)
def test_bad_input_is_a_sentence(what: str, rate: Path) -> None:
    typed, named = WRONG[what]
    answer = ask("canary", "--baseline", "night", *typed)
    assert answer.code == Exit.WRONG_USE
    assert [one for one in named if one not in answer.err] == []


def test_a_baseline_that_was_never_saved_ends_it_at_once(file: Path, book: Ledger) -> None:
    assert ask("canary", "--baseline", "gone", "--every", "1s").code == Exit.WRONG_USE


def test_for_ever_means_one_turn_after_another_until_sigterm(rate: Path, file: Path) -> None:
    """A real process. This machine may be busy: then it waits, which is a line too."""
    argv = [*COMMAND, "canary", "--baseline", "night", "--every", "1s", "--json", "--ledger", str(file)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == Exit.TERMINATED
    assert lines[1]["began_unix_s"] > lines[0]["began_unix_s"]
    assert {line["state"] for line in lines} <= {"passed", "inconclusive", "busy"}


def test_the_unit_says_to_systemd_what_was_typed(rate: Path, file: Path) -> None:
    made = ask("canary", "--baseline", "night", "--every", "1h", "--ledger", str(file), "--print", "systemd")
    assert made.code == Exit.DONE, made.err
    (start,) = [line for line in made.out.splitlines() if line.startswith("ExecStart=")]
    assert start.endswith(f"-m stackmark canary --baseline night --every 1h --ledger {file}")
    assert "SuccessExitStatus=143" in made.out


def test_nothing_that_is_typed_breaks_out_of_a_unit() -> None:
    unit = systemd_unit("a\nExecStart=/bin/evil", ["/bin/x", 'a "b" %n $HOME\nExecStartPre=/bin/evil'], "/tmp/a b%i")
    lines = unit.splitlines()
    assert [line for line in lines if line.startswith("Exec")] == [next(x for x in lines if x.startswith("ExecStart="))]
    assert '"a \\"b\\" %%n $$HOME' in unit
    assert "WorkingDirectory=/tmp/a b%%i" in unit


def test_intervals_that_divide_an_hour_or_a_day_have_a_cron_schedule() -> None:
    asked = {60: "* * * * *", 900: "*/15 * * * *", 3600: "0 * * * *", 6 * 3600: "0 */6 * * *", 86_400: "0 0 * * *"}
    assert {seconds: cron_schedule(seconds) for seconds in asked} == asked
    for wrong in (1.0, 420.0, 5 * 3600.0, 90 * 60.0, 2 * 86_400.0):
        with refused("--every"):
            cron_schedule(wrong)


def test_a_cronjob_measures_the_very_spec_of_the_baseline_on_each_node(file: Path, book: Ledger) -> None:
    from other_days import save

    save(book, "night", runs=1)
    made = ask(
        "canary", "--baseline", "night", "--every", "15min", "--print", "cronjob", "--image", "x:1", "--node", "n1",
        "--node", "n2", "--namespace", "canaries",
    )  # fmt: skip
    assert made.code == Exit.DONE, made.err
    import yaml

    objects = [one for one in yaml.safe_load_all(made.out) if one]
    jobs = [one for one in objects if one["kind"] == "CronJob"]
    assert [job["spec"]["schedule"] for job in jobs] == ["*/15 * * * *"] * 2
    assert len({job["metadata"]["name"] for job in objects if job["kind"] == "CronJob" for job in [job]}) == 2
    assert {job["spec"]["concurrencyPolicy"] for job in jobs} == {"Forbid"}


def test_a_canary_of_a_slow_month_says_so_each_time(rate: Path, book: Ledger) -> None:
    rate.write_text("rate: 50.0")
    states = [turn()[1]["state"] for _ in range(2)]
    assert states == ["slower", "slower"]
    assert eventually(lambda: len([one for one in book.experiments() if one.experiment.kind == "check"]) == 2)
