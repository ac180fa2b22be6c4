"""Faults without a cluster: what is decided and computed, and the processes that must heal whatever becomes of us."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import kubernetes_validate
import pytest

from fault_sample import a_finding
from naming import missing, numbers
from stackmark.cluster.faults import helper, means, safety
from stackmark.cluster.faults.helper import compared
from stackmark.cluster.faults.means import Setting, Target, choose
from stackmark.cluster.faults.record import FaultRecord, FaultTimes, Part, State, recovery
from stackmark.cluster.faults.script import Script, node_number
from stackmark.errors import ClusterError, SpecError
from stackmark.events import Hello, Steps, read_event, write_event
from stackmark.kubernetes.client import Json
from stackmark.show.faults import fault_json, fault_lines, fault_svg
from stackmark.spec import COPY_VARIABLE
from stackmark.verdict.interruption import DiskSeen, LogSeen
from worker_process import environment, install, run_worker, trick


def node(name: str, *, allowed: bool = True, ready: bool = True, version: str = "v1.34.4") -> Json:
    return {
        "metadata": {"name": name, "labels": {safety.ALLOWED: "true"} if allowed else {}},
        "status": {
            "conditions": [{"type": "Ready", "status": "True" if ready else "Unknown"}],
            "nodeInfo": {"kubeletVersion": version, "containerRuntimeVersion": "containerd://1.7.2"},
        },
    }


def control_plane(name: str, *, allowed: bool = True) -> Json:
    made = node(name, allowed=allowed)
    made["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = ""
    return made


def until(look: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "what was waited for did not come"
        time.sleep(0.02)


# What was seen of the cluster


def test_devices_that_left_and_came_back_are_timed_from_the_faults_end() -> None:
    states = [
        State(at_unix_s=100, reachable=True, ready=True, allocatable=2, pod_uid="u", restarts=0),
        State(at_unix_s=112, reachable=True, ready=True, allocatable=0, pod_uid="u", restarts=0),
        State(at_unix_s=123, reachable=True, ready=True, allocatable=2, pod_uid="u", restarts=0),
    ]
    seen = recovery(states, (110.0, 120.0), 140.0)
    assert (seen.before, seen.lowest, seen.away_s, seen.returned_after_s) == (2, 0, 11.0, 3.0)
    assert (seen.pod_uids, seen.restarts) == (("u",), 0)


def test_devices_that_never_left_are_called_that() -> None:
    states = [State(at_unix_s=100, reachable=True, ready=True, allocatable=2)]
    seen = recovery(states, (110.0, 120.0), 140.0)
    assert (seen.away_s, seen.returned_after_s, seen.lowest) == (None, None, 2)


def test_devices_that_did_not_come_back_have_no_time_of_return() -> None:
    states = [
        State(at_unix_s=100, reachable=True, ready=True, allocatable=2),
        State(at_unix_s=115, reachable=True, ready=True, allocatable=1),
    ]
    seen = recovery(states, (110.0, 120.0), 140.0)
    assert (seen.away_s, seen.returned_after_s) == (25.0, None)


def test_the_time_in_which_nobody_answered_is_added_up_and_says_nothing_of_the_node() -> None:
    states = [
        State(at_unix_s=100, reachable=True, ready=True, allocatable=2),
        State(at_unix_s=110, reachable=False),
        State(at_unix_s=118, reachable=True, ready=False, allocatable=2),
        State(at_unix_s=121, reachable=True, ready=True, allocatable=2),
    ]
    seen = recovery(states, (110.0, 118.0), 130.0)
    assert (seen.unreachable_s, seen.not_ready_s, seen.away_s) == (8.0, 3.0, None)


def test_a_pod_that_was_replaced_is_two_pods() -> None:
    states = [
        State(at_unix_s=1, reachable=True, pod_uid="first", restarts=0),
        State(at_unix_s=2, reachable=True, pod_uid="second", restarts=1),
    ]
    seen = recovery(states, (1.0, 2.0), 3.0)
    assert (seen.pod_uids, seen.restarts) == (("first", "second"), 1)


def test_the_helpers_own_times_need_no_clock_of_ours_and_ours_are_brought_to_the_nodes() -> None:
    common = {"part": "kubelet", "means": "helper", "node": "n", "asked_s": 5, "before_s": 5, "after_s": 5, "recover_s": 5,
              "resource": "nvidia.com/gpu", "offset_s": 100.0}  # fmt: skip
    by_node = FaultRecord.model_validate({**common, "done": FaultTimes(begun_unix_s=10, over_unix_s=15, clock="node")})
    by_driver = FaultRecord.model_validate({**common, "done": FaultTimes(begun_unix_s=110, over_unix_s=115)})
    assert by_node.span_on_node() == by_driver.span_on_node() == (10, 15)
    assert by_node.span_on_driver() == by_driver.span_on_driver() == (110, 115)


def test_a_record_survives_the_ledgers_json() -> None:
    record = FaultRecord(
        part="runtime", means="script", node="n", asked_s=5, before_s=5, after_s=5, recover_s=5, resource="nvidia.com/gpu",
        states=(State(at_unix_s=1, reachable=False),), done=FaultTimes(begun_unix_s=1, over_unix_s=2, said=("a", "b")),
    )  # fmt: skip
    assert FaultRecord.model_validate(json.loads(json.dumps(record.model_dump(mode="json")))) == record


# The heartbeat on disk


def heartbeat(count: int) -> list[str]:
    events = [Hello(seq=0, t=0.0, time_unix_s=1.0, pid=1)]
    steps = [Steps(seq=i, t=float(i), phase="measure", first=2 * i - 2, step_s=[0.5, 0.5]) for i in range(1, count)]
    return [write_event(event) for event in (*events, *steps)]


def test_steps_on_disk_that_never_reached_the_log_are_found() -> None:
    lines = heartbeat(10)
    received = [event for number, line in enumerate(lines[:7]) if (event := read_event(line, number))]
    disk = compared(lines, received)
    assert (disk.events, disk.steps, disk.missing_count) == (10, 18, 3)
    assert list(disk.missing) == lines[7:]


def test_a_last_line_that_was_cut_off_on_disk_is_no_event() -> None:
    lines = heartbeat(5)
    disk = compared([*lines[:4], lines[4][:25]], [])
    assert disk.events == 4


def test_a_worker_keeps_a_copy_of_its_events_on_disk(tmp_path: Path) -> None:
    copy = tmp_path / "events.jsonl"
    done = run_worker(trick("calm"), environment(install(tmp_path), **{COPY_VARIABLE: str(copy)}))
    assert done.code == 0
    assert copy.read_text().splitlines() == done.lines


def test_a_copy_that_cannot_be_written_costs_no_run(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no" / "such" / "folder")
    done = run_worker(trick("calm"), environment(install(tmp_path), **{COPY_VARIABLE: nowhere}))
    assert done.code == 0
    assert nowhere in done.stderr


# Who may be hurt


def test_a_node_without_the_label_is_not_touched_and_the_command_to_allow_it_is_named() -> None:
    with pytest.raises(SpecError) as caught:
        safety.choose_node([node("a", allowed=False), node("b", allowed=False)], "b")
    assert missing(caught.value.message, "b", "stackmark.io/allow-faults=true") == []
    assert safety.allow_command("b") in str(caught.value.hint)


def test_a_label_of_another_value_allows_nothing() -> None:
    only = node("a", allowed=False)
    only["metadata"]["labels"][safety.ALLOWED] = "false"
    with pytest.raises(SpecError) as caught:
        safety.choose_node([only], None)
    assert safety.allow_command("a") in str(caught.value.hint)


def test_the_first_ready_node_that_may_be_hurt_is_taken() -> None:
    nodes = [node("a", allowed=False), node("b", ready=False), node("c"), node("d")]
    assert safety.choose_node(nodes, None)["metadata"]["name"] == "c"


def test_a_node_that_is_no_node_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        safety.choose_node([node("a")], "x")
    assert missing(caught.value.message, "x") == []


def test_the_hosts_own_software_only_runs_on_this_machine() -> None:
    with pytest.raises(SpecError) as caught:
        safety.choose_node([node("a")], None, only=["b"])
    assert missing(caught.value.message, "--image") == []
    assert safety.allow_command("b") in str(caught.value.hint)


def test_the_only_control_plane_keeps_its_api_server_unless_it_is_said() -> None:
    nodes = [control_plane("cp"), node("a")]
    with pytest.raises(SpecError) as caught:
        safety.choose_control_plane(nodes, only_one_allowed=False)
    assert "--only-control-plane" in str(caught.value.hint)
    assert safety.choose_control_plane(nodes, only_one_allowed=True) == "cp"
    assert safety.choose_control_plane([control_plane("x", allowed=False), control_plane("y")], False) == "y"


@pytest.mark.parametrize("part", ["kubelet", "runtime", "node-network"])
def test_the_only_control_plane_is_not_hurt_as_a_node_either(part: Part) -> None:
    with pytest.raises(SpecError) as caught:
        safety.refuse_the_only_control_plane(Target(part, "cp", 5, "x-1"), [control_plane("cp"), node("a")])
    assert missing(caught.value.message, "cp", part) == []
    safety.refuse_the_only_control_plane(Target(part, "a", 5, "x-1"), [control_plane("cp"), node("a")])


def test_a_means_that_nobody_knows_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(SpecError) as caught:
        choose("scrpt:./x", "kubelet")
    assert missing(caught.value.message, "scrpt", "script") == []
    assert choose(None, "device-plugin") == ("plugin-pod", "")
    assert choose(None, "runtime") == ("helper", "")
    assert choose("script:/a:b", "runtime") == ("script", "/a:b")


# Services by distribution


@pytest.mark.parametrize(
    ("part", "version", "stop"),
    [
        ("kubelet", "v1.34.4", "systemctl stop kubelet"),
        ("runtime", "v1.34.4", "systemctl stop containerd"),
        ("kubelet", "v1.30.1+k3s1", "systemctl stop k3s-agent"),
        ("runtime", "v1.30.1+rke2r1", "systemctl stop rke2-agent"),
    ],
)
def test_services_are_named_as_the_distribution_names_them(part: Part, version: str, stop: str) -> None:
    commands = means.commands_for(part, node("a", version=version))
    assert commands.stop == stop
    assert commands.start == stop.replace("stop", "start")


def test_a_static_pods_manifest_is_moved_aside_and_back_and_back_again_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest, aside = tmp_path / "kube-apiserver.yaml", tmp_path / "aside"
    manifest.write_text("kind: Pod")
    monkeypatch.setattr(means, "ASIDE", str(aside))
    commands = means._moved(str(manifest))
    subprocess.run(["/bin/sh", "-c", commands.stop], check=True)
    assert not manifest.exists()
    for _ in range(2):
        subprocess.run(["/bin/sh", "-c", commands.start], check=True)
        assert manifest.read_text() == "kind: Pod"


def test_all_that_is_run_on_a_node_is_shell_that_can_be_read() -> None:
    texts = [helper.FAULT, helper.GUARD, helper.BEGIN, helper.ENTER]
    for part in ("kubelet", "runtime", "node-network", "api-server"):
        commands = means.commands_for(part, node("a"))
        texts += [commands.stop, commands.start]
    for text in texts:
        assert subprocess.run(["/bin/sh", "-n", "-c", text], capture_output=True).stderr == b""


def a_helper() -> helper.Helper:
    setting = Setting(cluster=None, part="kubelet", namespace="n", image="i", nodes=(node("node-2"),))  # type: ignore[arg-type]
    return helper.Helper(setting)


def test_the_helper_is_a_pod_that_the_api_server_takes_and_that_nothing_evicts() -> None:
    made = a_helper().manifest(Target("kubelet", "node-2", 60, "x-01"))
    for version in ("1.28", "1.37"):
        assert kubernetes_validate.validate(made, version, strict=True) == version
    spec = made["spec"]
    assert spec["nodeName"] == "node-2"
    assert spec["tolerations"] == [{"operator": "Exists"}]
    assert spec["activeDeadlineSeconds"] > 60


def test_a_helper_with_half_of_its_commands_is_refused() -> None:
    with pytest.raises(SpecError) as caught:
        helper.Helper(Setting(cluster=None, part="kubelet", namespace="n", image="i", stop_command="x"))  # type: ignore[arg-type]
    assert missing(str(caught.value.hint), "--stop-command", "--start-command") == []


# What runs on the node, as processes of this machine


def on_node(tmp_path: Path, script: str, *words: str) -> "subprocess.Popen[bytes]":
    """As the helper begins it, without the way into the host."""
    (tmp_path / "stop").write_text(f"touch {tmp_path}/stopped\n")
    (tmp_path / "start").write_text(f"touch {tmp_path}/started\n")
    return subprocess.Popen(["/bin/sh", "-c", script, "fault", str(tmp_path), *words], start_new_session=True)


def moments(tmp_path: Path) -> dict[str, str]:
    return dict(line.split()[:2] for line in (tmp_path / "moments").read_text().splitlines())


def test_the_process_on_the_node_stops_waits_and_starts(tmp_path: Path) -> None:
    process = on_node(tmp_path, helper.FAULT, "0.3", "0")
    assert process.wait(20) == 0
    at = moments(tmp_path)
    assert list(at) == ["pid", "stopping", "stopped", "over", "healed"]
    assert float(at["over"]) - float(at["stopped"]) >= 0.3
    assert (tmp_path / "started").exists()


def test_the_process_on_the_node_heals_at_once_when_it_is_told_to_end(tmp_path: Path) -> None:
    process = on_node(tmp_path, helper.FAULT, "600", "0")
    until((tmp_path / "stopped").exists)
    process.terminate()
    process.wait(20)
    assert (tmp_path / "started").exists()


def test_the_second_guard_starts_the_part_when_the_first_was_killed(tmp_path: Path) -> None:
    process = on_node(tmp_path, helper.FAULT, "600", "0")
    until((tmp_path / "stopped").exists)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(20)
    assert not (tmp_path / "started").exists()
    guard = on_node(tmp_path, helper.GUARD, "0.1")
    until((tmp_path / "started").exists)
    os.killpg(guard.pid, signal.SIGKILL)
    guard.wait(20)


def test_commands_reach_the_node_as_they_were_written_and_are_begun_outside_of_the_pods_session(tmp_path: Path) -> None:
    """The whole of what the helper's container runs, but for nsenter: quotes and dollars stay what they are."""
    folder = tmp_path / "fault"
    stop = f"""x='a "b" $1 %s'; printf %s "$x" >{tmp_path}/stopped"""
    words = [str(folder), stop, f"touch {tmp_path}/started", "600", "0", "3600", helper.FAULT, helper.GUARD]
    process = subprocess.Popen(["/bin/sh", "-c", helper.BEGIN, "begin", *words], stdout=subprocess.PIPE)
    until(lambda: "stopped" in (folder / "moments").read_text() if (folder / "moments").exists() else False)
    assert (tmp_path / "stopped").read_text() == 'a "b" $1 %s'
    process.terminate()  # as a deleted pod is: it passes it on, and the part is started at once
    out, _ = process.communicate(timeout=20)
    assert (tmp_path / "started").exists()
    assert b"healed" in out
    for pid in (int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()):
        if f"{folder}/guard" in _command(pid):
            os.killpg(pid, signal.SIGKILL)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


# The script, and its healer


def a_script(tmp_path: Path, *, stop: str = "", start: str = "") -> Path:
    """Writes down what it was told."""
    script = tmp_path / "cluster"
    script.write_text(
        f'#!/bin/sh\necho "$@" >>{tmp_path}/told\ncase $1 in kill|cut) {stop or ":"} ;; *) {start or ":"} ;; esac\n'
    )
    script.chmod(0o755)
    return script


def told(tmp_path: Path) -> list[str]:
    file = tmp_path / "told"
    return file.read_text().splitlines() if file.exists() else []


def script_means(path: Path) -> Script:
    return Script(Setting(cluster=None, part="kubelet", namespace="", image="", how=str(path)))  # type: ignore[arg-type]


def test_nodes_are_numbers_to_a_script() -> None:
    assert [node_number(name) for name in ("node-1", "gpu07", "n12", "alpha")] == ["1", "7", "12", "alpha"]


KILLED_AND_STARTED = ["kill kubelet 2", "start kubelet 2"]


def test_a_script_kills_a_part_waits_and_starts_it(tmp_path: Path) -> None:
    done = script_means(a_script(tmp_path)).hurt(Target("kubelet", "node-2", 0.5, "x"), threading.Event())
    assert told(tmp_path) == KILLED_AND_STARTED
    assert done.over_unix_s - done.begun_unix_s >= 0.5


def test_a_script_cuts_a_node_off_and_the_api_server_has_no_node(tmp_path: Path) -> None:
    means = script_means(a_script(tmp_path))
    means.hurt(Target("node-network", "node-1", 0.1, "x"), threading.Event())
    means.hurt(Target("api-server", "node-1", 0.1, "x"), threading.Event())
    assert told(tmp_path) == ["cut 1", "join 1", "kill api-server", "start api-server"]


def test_a_fault_that_is_called_off_heals_at_once(tmp_path: Path) -> None:
    heal = threading.Event()
    threading.Timer(0.5, heal.set).start()
    done = script_means(a_script(tmp_path)).hurt(Target("kubelet", "node-1", 600, "x"), heal)
    assert told(tmp_path)[-1].split() == ["start", "kubelet", "1"]
    assert done.over_unix_s - done.begun_unix_s < 300


def test_a_part_that_could_not_be_stopped_is_started_all_the_same_and_it_is_said(tmp_path: Path) -> None:
    means = script_means(a_script(tmp_path, stop="echo no-such-part >&2; exit 3"))
    with pytest.raises(ClusterError) as caught:
        means.hurt(Target("kubelet", "node-1", 600, "x"), threading.Event())
    assert "no-such-part" in caught.value.message
    assert told(tmp_path)[-1].split() == ["start", "kubelet", "1"]


def test_a_part_that_starts_at_the_second_try_is_healed(tmp_path: Path) -> None:
    again = f"test -e {tmp_path}/tried || {{ touch {tmp_path}/tried; exit 1; }}"
    done = script_means(a_script(tmp_path, start=again)).hurt(Target("kubelet", "node-1", 0.1, "x"), threading.Event())
    assert done.healed_unix_s is not None
    assert [line.split() for line in told(tmp_path)].count(["start", "kubelet", "1"]) == 2


def test_a_script_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        script_means(tmp_path / "missing").plan(Target("kubelet", "node-1", 5, "x"))
    assert missing(caught.value.message, tmp_path / "missing") == []


DRIVER = """
import sys, threading
from stackmark.cluster.faults.means import Setting, Target
from stackmark.cluster.faults.script import Script
means = Script(Setting(cluster=None, part="kubelet", namespace="", image="", how=sys.argv[1]))
means.hurt(Target("kubelet", "node-2", float(sys.argv[2]), "x"), threading.Event())
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_the_part_is_started_again_when_the_driver_is_killed(tmp_path: Path, end: signal.Signals) -> None:
    script = a_script(tmp_path)
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(script), "600"], env=environment())
    until(lambda: told(tmp_path) == KILLED_AND_STARTED[:1])
    driver.send_signal(end)
    driver.wait(20)
    until(lambda: told(tmp_path) == KILLED_AND_STARTED)


# What is shown


def test_the_table_says_what_happened_to_loop_pod_log_disk_devices_and_the_next_pod() -> None:
    said = dict(fault_lines(a_finding()))
    assert missing(said["loop"], "2.00 s", "20", "100 ms") == []
    assert numbers(said["pod"]) == [0, 200]
    assert numbers(said["log"]) == [1, 6, 70, 200]
    assert numbers(said["disk"]) == [200]
    assert numbers(said["devices"]) == [0, 1, 2, 3]
    assert numbers(said["new pod"]) == [1, 1, 2, 2.5]


def test_a_run_that_died_of_the_fault_says_how_far_it_came_by_disk() -> None:
    dead = a_finding(
        run_status="failed", failure="the node is gone", final_step=123, log=LogSeen(30, 100, False, 0, 0.0, "gone"),
        disk=DiskSeen(True, 123, 23), healthy=False, healthy_after_s=None, sick="node-2 is not ready",
    )  # fmt: skip
    said = dict(fault_lines(dead))
    assert (numbers(said["pod"]), dead.failure in said["pod"]) == ([0, 123], True)
    assert missing(said["log"], "gone") == []
    assert numbers(said["disk"]) == [23, 123]
    assert missing(said["cluster"], "5 min") == []
    assert said["sick"] == dead.sick


def test_the_picture_is_xml_with_the_fault_shaded_and_no_foreign_markup_in_it() -> None:
    drawn = fault_svg(a_finding(node='<script>alert("1")</script>'))
    root = ElementTree.fromstring(drawn)
    assert root.tag.endswith("svg")
    assert "<script>" not in drawn
    assert "#fbe3c8" in drawn


def test_a_million_steps_make_no_picture_of_a_million_points() -> None:
    ends = [0.001 * step for step in range(100_000)]
    drawn = fault_svg(a_finding(step_ends_t=tuple(ends), interruption=None))
    assert len(drawn) < 200_000


def test_what_is_printed_as_json_is_json() -> None:
    told_json = json.loads(json.dumps(fault_json(a_finding()), allow_nan=False))
    assert told_json["interruption"]["during_ratio"]["ratio"] == pytest.approx(0.67, abs=0.1)
    assert "step_ends_t" not in told_json
