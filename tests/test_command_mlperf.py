"""A user's own program whose MLPerf log is its result."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from stackmark.workloads.command.mlperf_log import time_to_train

# Writes a log of ten milliseconds, in the spelling and with the status that are named.
PROGRAM = """
import json, sys, time
from pathlib import Path
style, status, where = sys.argv[1:]
def line(key, value=None, **metadata):
    at = time.time()
    if style == "v0.6":
        return f":::MLL {at:.3f} {key}: " + json.dumps({"value": value, "metadata": metadata})
    entry = {"namespace": "", "time_ms": int(at * 1000), "key": key, "value": value, "metadata": metadata}
    return "0: :::MLLOG " + json.dumps(entry)
lines = ["some print", line("run_start")]
time.sleep(0.2)
lines.append(line("eval_accuracy", 0.75, epoch_num=1))
if status != "none":
    lines.append(line("run_stop", status=status))
if where:
    Path(where).parent.mkdir(exist_ok=True)
    Path(where).write_text("\\n".join(lines) + "\\n")
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def run(program: Path, style: str, status: str, where: str, log: str, code: int = 0) -> dict[str, Any]:
    command = f"python3 {program} {style} {status} '{where}'"
    answer = ask(
        "run", "--cmd", command, "--cwd", str(program.parent), "--mlperf-log", log, "--runs", "1", "--json",
        "--ledger", str(program.parent / "ledger.db"),
    )  # fmt: skip
    assert answer.code == code, answer.err
    told: dict[str, Any] = json.loads(answer.out)["results"][0]["runs"][0]
    return told


@pytest.mark.parametrize("style", ["mllog", "v0.6"])
@pytest.mark.parametrize(("where", "log"), [("results/result_0.txt", "results"), ("mine.out", "mine.out")])
def test_the_time_of_the_log_is_the_figure(program: Path, style: str, where: str, log: str) -> None:
    told = run(program, style, "success", where, log)
    assert told["rate_unit"] == "1/min"
    # It slept for 0.2 s between the two lines, whose times have milliseconds, and ran for longer.
    assert 0.198 / 60 <= 1 / told["rate_per_s"] < told["wall_s"] / 60 + 1e-3


@pytest.mark.parametrize(
    ("value", "quality"),
    [
        (0.75, 0.75),
        ("25.3", 25.3),
        ({"BBOX": 0.38, "SEGM": 0.34}, 0.34),
        ({"accuracy": {"BBOX": 0.33, "SEGM": 0.34}}, 0.33),
        ({"accuracy": {"BBOX": {}}}, None),
        ({}, None),
    ],
)
def test_of_several_qualities_the_smallest_is_told(tmp_path: Path, value: Any, quality: float | None) -> None:
    """Each of them had to reach its target."""
    entries = [("run_start", 0, None), ("eval_accuracy", 500, value), ("run_stop", 1000, None)]
    lines = [
        json.dumps({"time_ms": at, "key": key, "value": said, "metadata": {"status": "success"}})
        for key, at, said in entries
    ]
    log = tmp_path / "result_0.txt"
    log.write_text("".join(f":::MLLOG {line}\n" for line in lines))
    _, metrics = time_to_train(log, 0.0, 10.0)
    assert [one.value for one in metrics] == ([] if quality is None else [quality])


@pytest.mark.parametrize(
    ("status", "where", "said"),
    [
        ("aborted", "result_0.txt", "aborted"),
        ("none", "result_0.txt", "no run_stop"),
        ("success", "", "wrote no MLPerf log"),
    ],
)
def test_a_log_without_a_success_is_a_failed_run(program: Path, status: str, where: str, said: str) -> None:
    told = run(program, "mllog", status, where, "result_0.txt", code=3)
    assert told["failure_kind"] == "no_figure"
    assert said in told["failure_message"]


def test_a_log_of_an_earlier_run_is_not_taken_for_this_one(program: Path) -> None:
    old = program.parent / "result_0.txt"
    run(program, "mllog", "success", str(old), str(old))
    os.utime(old, (1_600_000_000, 1_600_000_000))
    told = run(program, "mllog", "success", "elsewhere.txt", str(old), code=3)
    assert told["failure_kind"] == "no_figure"


def test_a_log_that_claims_more_time_than_the_program_ran_is_refused(program: Path) -> None:
    log = program.parent / "result_0.txt"
    entries = [
        {"time_ms": 1_000, "key": "run_start"},
        {"time_ms": 9_000_000, "key": "run_stop", "metadata": {"status": "success"}},
    ]
    program.write_text(
        f"open({str(log)!r}, 'w').write({chr(10).join(':::MLLOG ' + json.dumps(one) for one in entries)!r})"
    )
    told = run(program, "x", "y", "z", str(log), code=3)
    assert told["failure_kind"] == "no_figure"


def test_a_log_with_absurd_numbers_is_a_sentence(program: Path) -> None:
    log = program.parent / "result_0.txt"
    lines = [
        f':::MLLOG {{"time_ms": {"9" * 400}, "key": "run_start"}}',
        f':::MLLOG {{"time_ms": 1, "key": "eval_accuracy", "value": {"9" * 400}}}',
        ':::MLLOG {"time_ms": NaN, "key": "run_stop"}',
        ":::MLLOG " + "[" * 5000,
        ":::MLL 1.2.3 run_start: {}",
    ]
    program.write_text(f"open({str(log)!r}, 'w').write({chr(10).join(lines)!r})")
    told = run(program, "x", "y", "z", str(log), code=3)
    assert told["failure_kind"] == "no_figure"
    assert "no run_start line" in told["failure_message"]


def test_a_metric_and_a_log_are_two_figures(program: Path) -> None:
    assert ask("run", "--cmd", "true", "--metric", "x ([0-9])", "--mlperf-log", "results").code == 2
