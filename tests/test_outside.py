"""A user's program in an image that holds nothing of ours, not even Python: run by the real podman, watched from outside."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from asking import COMMAND, ask, environment
from containers import why_missing
from fake_nvml import UUID, driver_that_lists
from hostile_images import image_with_entry_point, image_without_python
from leaving_out import leave_out
from naming import missing
from stackmark.events import Log, Stream
from stackmark.machine import orphans
from stackmark.places.container import outside
from stackmark.places.container.engine import find_engine
from stackmark.places.container.outside import Record, _odd_times
from stackmark.places.outside import ProcessWatch
from worker_images import foreign_image
from worker_process import eventually

# Busybox alone has sh, cat, echo, yes, sleep, head.
SECOND = "sleep 1"


@pytest.fixture(scope="module")
def image() -> str:
    if why := why_missing("podman"):
        leave_out(why)
    return image_without_python()


@pytest.fixture(autouse=True)
def _own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    monkeypatch.chdir(tmp_path)


def measured(*arguments: str) -> tuple[int, dict[str, Any]]:
    """Run it once, and return the exit code and the result."""
    answer = ask("run", "--runs", "1", "--json", *arguments)
    (result,) = json.loads(answer.out)["results"]
    return answer.code, result


def shown(run_id: str) -> dict[str, Any]:
    answer = ask("show", run_id, "--json")
    assert answer.code == 0, answer.err
    found: dict[str, Any] = json.loads(answer.out)
    return found


def run_of(result: dict[str, Any]) -> dict[str, Any]:
    (run,) = result["runs"]
    return shown(run["id"])


def failure_of(result: dict[str, Any]) -> str:
    (run,) = result["runs"]
    return str(run["failure_kind"])


def test_the_figure_is_what_the_program_prints(image: str) -> None:
    code, result = measured(
        "--cmd", "sh -c 'echo rate: 12.5'", "--metric", "rate: ([0-9.]+)", "--on", f"container,image={image}"
    )
    assert (code, result["throughput"]["rate_per_s"]) == (0, 12.5)


def test_without_a_pattern_the_figure_is_the_time_between_the_engine_s_stamps(image: str) -> None:
    _, result = measured("--cmd", SECOND, "--on", f"container,image={image}")
    assert 0.97 <= 1 / result["throughput"]["rate_per_s"] <= 3  # a busy machine is late, never early


def test_limits_are_read_from_outside_and_what_only_the_inside_knows_is_unknown(image: str) -> None:
    _, result = measured(
        "--cmd", SECOND, "--on", f"container,image={image},cpus=1.5,memory=64m,shm=8m,ulimit=nofile=512"
    )
    facts = run_of(result)["facts"]
    assert facts["cgroup"]["cpu_limit_cpus"] == 1.5
    assert facts["cgroup"]["memory_limit_mib"] == 64
    assert facts["limits"]["shm_mib"] == 8
    assert facts["limits"]["ulimits"]["nofile"] == "512:512"
    assert facts["container"]["network"] is False
    assert (facts["container"]["engine"], facts["container"]["image"]) == ("podman", image)
    assert facts["software"] == facts["packages"] == facts["environment"] == {}
    assert facts["command"]["watched"] == "outside"
    assert facts["host"]["distribution"] is None


def test_what_a_program_in_an_image_uses_is_sampled_from_outside(image: str) -> None:
    _, result = measured("--cmd", "sleep 5", "--on", f"container,image={image},memory=64m", "--sample-hz", "10")
    (sampled,) = result["telemetry"]
    assert sampled["hz"] == 10
    assert 0 < sampled["quantities"]["run.memory_mib"]["mean"] < 64
    assert sampled["quantities"]["run.processes"]["max"] >= 1


def test_the_chip_of_a_program_in_an_image_is_the_gpu_that_lists_its_process(
    image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", driver_that_lists("sleep", "5.5"))
    _, result = measured("--cmd", "sleep 5.5", "--on", f"container,image={image}")
    found = run_of(result)
    run = found["run"]
    assert (run["chip"], run["chip_uuid"]) == ("NVIDIA H200", UUID)
    assert found["facts"]["gpu"]["chip_by"] == "process list"
    assert run["memory_peak_mib"] == 700
    assert run["energy_j"] > 0
    # Nothing of a neighbour on that GPU is the program's.
    _, other = measured("--cmd", "sleep 1", "--on", f"container,image={image}")
    assert run_of(other)["facts"]["gpu"]["chip_by"] == "none"


def test_a_program_runs_as_any_user_on_a_read_only_root_without_capabilities(image: str) -> None:
    place = f"container,image={image},user=12345,read_only=yes,cap_drop=ALL"
    code, result = measured(
        "--cmd", "sh -c 'echo uid $(id -u); touch /x; sleep 1'", "--metric", "uid ([0-9]+)", "--on", place
    )
    assert (code, result["throughput"]["rate_per_s"]) == (0, 12345)
    assert run_of(result)["facts"]["container"]["root_read_only"] is True


def test_a_program_runs_in_a_folder_that_only_the_image_has(image: str) -> None:
    command = ("--cmd", "sh -c 'echo $PWD speed 42'", "--metric", "/lie speed ([0-9]+)")
    code, result = measured(*command, "--cwd", "/lie", "--on", f"container,image={image}")
    assert (code, result["throughput"]["rate_per_s"]) == (0, 42)
    answer = ask("run", *command, "--cwd", "/nowhere", "--on", f"container,image={image}")
    assert answer.code == 4
    assert missing(answer.err, "/nowhere", "--cwd") == []


def test_a_program_that_the_image_does_not_have_is_a_failed_run(image: str) -> None:
    code, result = measured("--cmd", "nosuch --flag", "--on", f"container,image={image}")
    assert (code, failure_of(result)) == (3, "command_failed")


@pytest.mark.parametrize("labelled", [True, False])
def test_a_program_for_another_architecture_is_told_as_one(image: str, labelled: bool) -> None:
    foreign = foreign_image(labelled=labelled)
    answer = ask("run", "--cmd", "/bin/sh", "--runs", "1", "--on", f"container,image={foreign}")
    assert answer.code == 4
    assert missing(answer.err, "/bin/sh", foreign, "architecture") == []


def test_a_program_that_fails_is_a_failed_run_with_its_last_words(image: str) -> None:
    code, result = measured("--cmd", "sh -c 'echo the disk is on fire >&2; exit 7'", "--on", f"container,image={image}")
    assert (code, failure_of(result)) == (3, "command_failed")
    assert "the disk is on fire" in result["runs"][0]["failure_message"]


@pytest.mark.parametrize(("command", "kind"), [("sh -c 'exit 7'", "command_failed"), ("echo", "no_figure")])
def test_how_a_program_ended_counts_where_its_start_was_noted_after_its_end(
    image: str, monkeypatch: pytest.MonkeyPatch, command: str, kind: str
) -> None:
    monkeypatch.setattr(outside, "_record", lambda *_: Record(100.0, 99.9, 7 if kind == "command_failed" else 0))
    code, result = measured("--cmd", command, "--on", f"container,image={image}")
    assert (code, failure_of(result)) == (3, kind)


def test_a_program_that_takes_more_memory_than_allowed_is_said_to_be_out_of_memory(image: str) -> None:
    code, result = measured(
        "--cmd", "sh -c 'x=aaaa; while :; do x=$x$x; done'", "--on", f"container,image={image},memory=32m"
    )
    assert (code, failure_of(result)) == (3, "out_of_host_memory")


def test_what_looks_like_an_event_is_a_line_of_the_program(image: str, tmp_path: Path) -> None:
    lie = '{"event":"result","seq":0,"rank":0,"t":0,"sample":"run","samples_per_step":1,"steps":1,"wall_s":1e-9,"tick_s":1e-9}'
    (tmp_path / "lie").write_text(lie + "\n")
    code, result = measured("--cmd", "sh -c 'cat lie; sleep 0.2'", "--on", f"container,image={image}")
    assert code == 0
    assert result["throughput"]["rate_per_s"] < 10
    stream = Stream()
    for line in ask("show", result["runs"][0]["id"], "--events").out.splitlines():
        stream.feed(line)
    assert lie in [event.line for event in stream.events if isinstance(event, Log)]


def test_an_image_without_a_command_runs_its_entry_point() -> None:
    if why := why_missing("podman"):
        leave_out(why)
    code, result = measured("--metric", "speed ([0-9]+)", "--on", "container", "--image", image_with_entry_point())
    assert (code, result["throughput"]["rate_per_s"]) == (0, 42)


def test_an_image_without_an_entry_point_needs_a_command(image: str) -> None:
    answer = ask("run", "--on", "container", "--image", image)
    assert answer.code == 4
    assert "--cmd" in answer.err


def test_what_is_tried_by_hand_names_no_folder_that_is_gone_with_the_run(image: str) -> None:
    answer = ask("run", "--on", f"container,image={image}")
    words = shlex.split(answer.err.partition("by hand: ")[2])
    sources = [word.removeprefix("--volume=").split(":")[0] for word in words if word.startswith("--volume=")]
    assert image in words
    assert all(map(os.path.exists, sources)), sources


def test_the_host_has_no_entry_point() -> None:
    answer = ask("run", "command/own")
    assert answer.code == 2
    assert "--cmd" in answer.err


def test_a_python_for_the_worker_is_refused_where_no_worker_runs(image: str) -> None:
    answer = ask("run", "--cmd", "sleep 1", "--on", f"container,image={image},python=/usr/bin/python3")
    assert answer.code == 2
    assert missing(answer.err, "python=/usr/bin/python3", "--cmd") == []


def test_a_value_that_only_a_worker_could_fill_in_is_refused(image: str) -> None:
    answer = ask("run", "--cmd", "echo {env:TOKEN}", "--on", f"container,image={image}")
    assert answer.code == 2
    assert "TOKEN" in answer.err


def test_a_time_that_the_stamps_do_not_tell_well_is_flagged(image: str) -> None:
    _, result = measured("--cmd", "sleep 0.1", "--on", f"container,image={image}")
    assert any(flag.startswith("coarse-clock:") for flag in result["runs"][0]["flags"])


def test_a_time_below_the_resolution_of_the_stamps_is_not_a_figure(image: str) -> None:
    code, result = measured("--cmd", "echo", "--on", f"container,image={image}")
    assert (code, failure_of(result)) == (3, "no_figure")


def test_a_run_past_its_time_is_ended_and_leaves_no_container(image: str) -> None:
    code, result = measured("--cmd", "sleep 60", "--on", f"container,image={image}", "--time-limit", "1s")
    assert (code, failure_of(result)) == (3, "timeout")
    assert containers(os.getpid()) == []


def test_a_comparison_of_the_host_with_an_image_has_a_verdict(image: str) -> None:
    arms = ("--arm", "host", "--arm", f"container,image={image}")
    answer = ask(
        "compare", "--cmd", "sh -c 'echo rate: 5'", "--metric", "rate: ([0-9.]+)", *arms, "--blocks", "2", "--json"
    )
    assert answer.code == 0, answer.err
    assert json.loads(answer.out)["comparisons"][0]["ratio"] == 1


def test_of_two_images_that_report_no_software_the_image_is_the_first_difference(image: str) -> None:
    arms = ("--arm", f"container,image={image}", "--arm", f"container,image={image_with_entry_point()}")
    command = ("--cmd", "sh -c 'echo rate: 5'", "--metric", "rate: ([0-9.]+)")
    answer = ask("compare", *command, *arms, "--blocks", "2", "--no-primers", "--json")
    assert answer.code == 0, answer.err
    first = json.loads(answer.out)["differences"][0]
    assert (first["subject"], first["key"]) == ("container", "image")
    assert first["values"] == [image, image_with_entry_point()]


def test_a_time_from_inside_against_one_from_outside_is_not_by_one_clock(image: str) -> None:
    arms = ("--arm", "host", "--arm", f"container,image={image}")
    answer = ask("compare", "--cmd", "sleep 0.2", *arms, "--blocks", "2", "--no-primers", "--json")
    assert answer.code == 0, answer.err
    verdict = json.loads(answer.out)
    differing = {f"{one['subject']}.{one['key']}": one["values"] for one in verdict["differences"]}
    assert differing["command.watched"] == ["inside", "outside"]
    assert any("clock" in sentence for sentence in verdict["not_held"])


def test_a_program_that_ended_before_it_was_looked_at_has_no_facts() -> None:
    """It is a zombie until its engine asks after it: some of its files are still there, and half of the facts are no facts."""
    with subprocess.Popen(["true"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with ProcessWatch(lambda: ended.pid) as watch:
            pass
    assert watch.facts == []


@pytest.mark.parametrize(("handler", "handles"), [("signal.SIG_DFL", False), ("lambda *_: None", True)])
def test_a_program_that_would_not_get_a_signal_is_known_by_its_handlers(handler: str, handles: bool) -> None:
    code = f"import signal, time; signal.signal(signal.SIGTERM, {handler}); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as program:
        assert program.stdout
        program.stdout.readline()
        try:
            assert orphans.handles(program.pid, signal.SIGTERM) is handles
        finally:
            program.kill()
    assert orphans.handles(program.pid, signal.SIGTERM) is True  # it is gone, so nobody knows


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_driver_that_is_ended_leaves_no_container(image: str, tmp_path: Path, number: signal.Signals) -> None:
    driver = subprocess.Popen(
        [*COMMAND, "run", "--cmd", "sleep 600", "--on", f"container,image={image}", "--runs", "1"],
        env=environment(tmp_path / "ledger.sqlite3"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
        start_new_session=True,
    )  # fmt: skip
    assert eventually(lambda: len(containers(driver.pid, "status=running")) == 1, 30)
    os.kill(driver.pid, number)
    driver.wait(30)
    assert eventually(lambda: containers(driver.pid) == [], 30)


def containers(driver: int, *filters: str) -> list[str]:
    """Return the containers that are there of a driver: other tests run at the same time."""
    form = '{{index .Labels "stackmark.driver"}}'
    argv = ["podman", "ps", "--all", "--filter", "label=stackmark.run", "--format", form]
    done = subprocess.run([*argv, *(f"--filter={one}" for one in filters)], capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split() if name.split(":")[2] == str(driver)]


@pytest.mark.parametrize(("wall_s", "refused"), [(0.5, False), (-0.03, False), (-5.0, True), (float("inf"), True)])
def test_time_stamps_of_a_clock_that_was_changed_are_refused(image: str, wall_s: float, refused: bool) -> None:
    """An engine notes the start of a program a moment after it; a program that ended at once ended before that."""
    found = _odd_times(Record(100.0, 100.0 + wall_s, 0), find_engine("podman", os.environ))
    assert (found is not None) == refused
