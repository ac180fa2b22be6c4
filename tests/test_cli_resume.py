"""Experiments that are stopped, killed and gone on with, and experiments in real containers, by the command line."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, ask
from experiment_asking import OWN, is_a_sentence, ledger_of_a_command, rows_of
from stackmark.errors import Exit
from stackmark.experiments import caches
from stackmark.ledger.rows import RunDetail
from stackmark.ledger.store import Ledger
from worker_process import alive, eventually


@pytest.fixture(autouse=True)
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from ledger_of_a_command(tmp_path, monkeypatch)


def driver(*arguments: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ)


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [(signal.SIGINT, Exit.INTERRUPTED, "interrupted"), (signal.SIGTERM, Exit.TERMINATED, "terminated")],
)
def test_stopped_it_says_how_to_go_on(number: signal.Signals, code: Exit, word: str, ledger_file: Path) -> None:
    arms = ("--arm", "host", "--arm", "host", "--ledger", str(ledger_file))
    with driver(
        "compare", "trick/calm", "--steps", "200", "--step-s", "0.05", "--warmup-steps", "0", "--details", *arms
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith(b"block 1/6") and b"warm-up" in line:
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, b"")
    (row,) = rows_of(ledger_file)
    said = err.decode().splitlines()
    assert any(line.endswith(f"stackmark resume {row.experiment_id} --ledger {ledger_file}") for line in said)
    assert said[-1].startswith(f"stackmark: {word}")
    assert row.failure_kind == word
    assert not alive(int(str(row.handle["pid"])))


def containers_of(runs: list[RunDetail]) -> list[str]:
    """What podman still knows of these runs."""
    asked = [
        "podman",
        "ps",
        "--all",
        "--filter",
        "label=stackmark.run",
        "--format",
        '{{index .Labels "stackmark.run"}}',
    ]
    listed = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()
    return [run.id for run in runs if run.id in listed]


def test_a_program_with_quotes_runs_alike_on_the_host_and_in_a_container(
    podman_reach: dict[str, str], ledger_file: Path
) -> None:
    answer = ask(*OWN, "--arm", "host", "--arm", "container,engine=podman", "--blocks", "2", "--json")
    assert answer.code == Exit.DONE, answer.err
    shown = json.loads(answer.out)
    assert [arm["place"] for arm in shown["arms"]] == ["host", "container"]
    assert {run["rate_per_s"] for run in shown["runs"]} == {12.5}
    assert shown["arms"][1]["facts"]["container"]["image"].startswith("localhost/stackmark-bare")
    assert containers_of(rows_of(ledger_file)) == []


def test_another_program_under_the_same_name_is_said_first(
    podman_reach: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = tmp_path / "bin" / "echo"
    ours.parent.mkdir()
    ours.write_text("#!/bin/sh\nprintf 'rate: 5\\n'\n")
    ours.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ours.parent}{os.pathsep}{os.environ['PATH']}")
    arms = ("--arm", "host", "--arm", "container,env=PATH=/usr/bin:/bin")
    answer = ask("compare", "--cmd", "echo rate: 5", "--metric", "rate: ([0-9.]+)", *arms, "--blocks", "2", "--json")
    assert answer.code == Exit.DONE, answer.err
    shown = json.loads(answer.out)
    # The variable that was typed comes first, then what follows from it.
    found = [(one["subject"], one["key"]) for one in shown["differences"]]
    assert found[:2] == [("environment", "PATH"), ("command", "program")]
    (warning,) = [one for one in shown["warnings"] if one["kind"] == "other-programs"]
    assert f"{ours} (host)" in warning["text"]
    assert warning["severity"] == "high"


def test_killed_while_a_container_runs_it_is_resumed_in_order_and_no_container_is_left(
    podman_reach: dict[str, str], ledger_file: Path
) -> None:
    own = ("compare", "--cmd", "sh -c 'sleep 1; echo rate: 5'", "--metric", "rate: ([0-9.]+)", "--order-seed", "3")
    process = driver(*own, "--arm", "host", "--arm", "container,engine=podman", "--blocks", "2")

    def in_container() -> RunDetail | None:
        with Ledger.open(str(ledger_file)) as book:
            known = book.runs()
        rows = rows_of(ledger_file) if known else []
        running = [row for row in rows if row.place == "container" and row.status == "running"]
        return running[0] if running and containers_of(running) else None

    eventually(lambda: ledger_file.exists() and ledger_file.stat().st_size)
    row: RunDetail = eventually(in_container, within_s=60)
    process.kill()
    process.communicate()
    before = [one.id for one in rows_of(ledger_file) if one.status == "done"]
    answer = ask("resume", "last", "--json")
    assert answer.code == Exit.DONE, answer.err
    assert f"{row.id} (command/own)" in answer.err
    rows = rows_of(ledger_file)
    good = [one for one in rows if one.status == "done"]
    order = [arm for block in json.loads(answer.out)["order"] for arm in block]
    # A block that other programs disturbed is repeated at the end.
    assert [one.arm for one in good][: len(order)] == order
    assert [one.id for one in good][: len(before)] == before
    assert [one.failure_kind for one in rows if one.status != "done"] == ["lost"]
    assert containers_of(rows) == []
    assert json.loads(answer.out)["state"] == "done"


def test_an_engine_that_went_away_leaves_the_experiment_open(
    podman_reach: dict[str, str], ledger_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its runs would fail one after another and use up the blocks that may be repeated."""
    from stackmark.experiments.compare import _Session

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as impatient:
        impatient.setattr(_Session, "run", stop)
        assert ask(*OWN, "--arm", "host", "--arm", "container", "--blocks", "2").code == Exit.INTERRUPTED
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = ask("resume", "last")
    is_a_sentence(answer, Exit.PLACE_FAILED)
    assert "stackmark resume" in answer.err
    assert rows_of(ledger_file) == []


def test_the_cache_of_the_arms_can_be_reached_by_nobody_else(tmp_path: Path) -> None:
    """What a container's user may write, another user of the machine may not: kernels are loaded from it."""
    folder = caches.cache_folder("x-01")
    assert folder.stat().st_mode & 0o777 == 0o777
    assert folder.parent.stat().st_mode & 0o777 == 0o700
