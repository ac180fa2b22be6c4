"""A sweep without a cluster: its plan from recorded nodes, its rows in a ledger, its table, picture and reports."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from naming import missing
from stackmark.errors import ClusterError, Exit, SpecError
from stackmark.experiments.sweep.plan import at_once, find_slots, holders_ask, looked_again
from stackmark.experiments.sweep.pods import HOLD_LIMITS, holder
from stackmark.experiments.sweep.rows import (
    about_device,
    blocks_left,
    device_in,
    missing_slots,
    second_pass_left,
    visits_of,
)
from stackmark.experiments.sweep.sweep import examine, is_open
from stackmark.ids import new_id
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.places.pod.options import PodOptions
from stackmark.show.sweep import junit_cases, print_sweep, shown_lines, sweep_json, sweep_png, sweep_svg
from stackmark.show.terminal import standard_output
from stackmark.verdict.swept import headline
from sweep_runs import HINT, SPEC, WHY, Sweep, slow_sweep


def node(
    name: str, gpus: int = 2, boot: str = "", offered: int | None = None, cpu: str = "8", **more: Any
) -> dict[str, Any]:
    """A node as the API server gives it, down to what a sweep reads."""
    counts = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    given = {"nvidia.com/gpu": str(gpus if offered is None else offered)} if gpus else {}
    rest = {"cpu": cpu, "memory": "64Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": more.get("labels", {})},
        "spec": {"taints": more.get("taints", []), "unschedulable": more.get("cordoned", False)},
        "status": {
            "capacity": {**rest, **counts},
            "allocatable": {**rest, **given},
            "nodeInfo": {"bootID": boot or f"boot-{name}"},
            "conditions": [{"type": "Ready", "status": "True" if more.get("ready", True) else "Unknown",
                            "message": "Kubelet stopped posting node status."}],
        },
    }  # fmt: skip


# The plan


def test_every_device_of_every_node_is_a_slot_in_the_order_of_the_names() -> None:
    found = find_slots([node("node-10"), node("node-2", gpus=1)], PodOptions(), gpus=1)
    assert [(slot.number, slot.node, slot.index) for slot in found.slots] == [
        (0, "node-2", 0),
        (1, "node-10", 0),
        (2, "node-10", 1),
    ]
    assert found.notices == []


def test_without_gpus_a_node_is_one_slot() -> None:
    found = find_slots([node("a"), node("b", gpus=0)], PodOptions(), gpus=0)
    assert [slot.node for slot in found.slots] == ["a", "b"]


def test_a_run_of_several_gpus_takes_several_devices_of_a_slot() -> None:
    assert len(find_slots([node("a", gpus=8)], PodOptions(), gpus=4).slots) == 2


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (node("a", gpus=0), "nvidia.com/gpu"),
        (node("a", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]), "--toleration team=x:NoSchedule"),
        (node("a", labels={"nvidia.com/gpu.sharing-strategy": "time-slicing"}), "time-slicing"),
        (node("a", labels={"nvidia.com/gpu.replicas": "4"}), "GPU"),
    ],
    ids=["no GPU", "taint", "time-slicing", "replicas"],
)
def test_a_node_that_is_left_out_says_why(made: dict[str, Any], said: str) -> None:
    found = find_slots([made, node("b")], PodOptions(), gpus=1)
    assert {slot.node for slot in found.slots} == {"b"}
    assert missing(found.notices[0], "a", said) == []


@pytest.mark.parametrize("typed", ["team=x:NoSchedule", "team:NoSchedule", "team"])
def test_a_taint_that_is_tolerated_keeps_nobody_off(typed: str) -> None:
    tainted = node("a", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    assert len(find_slots([tainted], PodOptions(toleration=(typed,)), gpus=1).slots) == 2


def test_another_value_of_a_taint_is_not_tolerated() -> None:
    tainted = node("a", taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}])
    with pytest.raises(ClusterError) as refused:
        find_slots([tainted], PodOptions(toleration=("team=y:NoSchedule",)), gpus=1)
    assert missing(refused.value.message, "--toleration team=x:NoSchedule") == []


def test_the_taint_of_a_gpu_node_is_tolerated_unasked() -> None:
    tainted = node("a", taints=[{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}])
    assert len(find_slots([tainted], PodOptions(), gpus=1).slots) == 2


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (node("a", ready=False), "Kubelet stopped posting"),
        (node("a", cordoned=True), "cordoned"),
        (node("a", offered=0), "nvidia.com/gpu"),
    ],
    ids=["not ready", "cordoned", "plugin down"],
)
def test_a_node_in_trouble_is_slots_with_their_reason(made: dict[str, Any], said: str) -> None:
    slots = find_slots([made], PodOptions(), gpus=1).slots
    assert [said in slot.trouble for slot in slots] == [True, True]


def test_one_unhealthy_device_is_one_slot_in_trouble() -> None:
    slots = find_slots([node("a", gpus=8, offered=7)], PodOptions(), gpus=1).slots
    assert [bool(slot.trouble) for slot in slots] == [False] * 7 + [True]


def test_a_resumed_sweep_sees_nodes_that_came_back_and_those_that_went() -> None:
    before = find_slots([node("a", ready=False), node("b"), node("c")], PodOptions(), gpus=1).slots
    now = looked_again(before, [node("a"), node("b", offered=1)], "nvidia.com/gpu", gpus=1)
    assert [slot.number for slot in now] == [0, 1, 2, 3, 4, 5]
    assert [bool(slot.trouble) for slot in now] == [False] * 3 + [True] * 3
    assert [missing(slot.trouble, "nvidia.com/gpu") == [] for slot in now[3:]] == [True, False, False]


def test_nodes_that_share_a_machine_are_visited_one_at_a_time_and_it_says_so() -> None:
    slots = find_slots([node("a", boot="one"), node("b", boot="one")], PodOptions(), gpus=1).slots
    total, per_machine, said = at_once(slots, None, one_a_node=False)
    assert (total, per_machine) == (None, 1)
    assert missing(said, "2 nodes") == []


def test_machines_of_their_own_are_visited_all_at_once_unless_told_otherwise() -> None:
    slots = find_slots([node("a"), node("b")], PodOptions(), gpus=1).slots
    assert at_once(slots, None, one_a_node=False)[:2] == (None, None)
    assert at_once(slots, None, one_a_node=True)[:2] == (None, 1)
    assert at_once(slots, 3, one_a_node=False)[:2] == (3, None)


def test_pods_that_hold_their_devices_must_fit_beside_one_another() -> None:
    nodes = [node("a", gpus=4, cpu="8")]
    slots = find_slots(nodes, PodOptions(), gpus=1).slots
    assert holders_ask(nodes, slots, PodOptions(cpus="1"), HOLD_LIMITS)
    assert not holders_ask(nodes, slots, PodOptions(cpus="2"), HOLD_LIMITS)
    with pytest.raises(SpecError) as error:
        holders_ask(nodes, slots, PodOptions(cpus="3"), HOLD_LIMITS)
    assert missing(error.value.message, "4 pods", "3 CPUs", "a", "8 CPUs") == []
    assert missing(error.value.hint or "", "--cpus 2") == []


def test_what_holds_a_device_asks_for_none_and_keeps_the_class_of_the_pod() -> None:
    worker = {"name": "worker", "image": "i", "command": ["x"], "env": [{"name": "STACKMARK_SPEC", "value": "{}"}],
              "resources": {"limits": {"nvidia.com/gpu": "1"}}, "securityContext": {"privileged": False}}  # fmt: skip
    made = holder({"containers": [worker]}, "python3", 60)
    assert made["resources"]["requests"] == made["resources"]["limits"] == HOLD_LIMITS
    assert made["securityContext"] == worker["securityContext"]
    assert "env" not in made
    assert "resources" not in holder({"containers": [worker]}, "python3", 60, asks=False)


# Which device it was


@pytest.mark.parametrize(
    ("facts", "device"),
    [
        ({"container": {"devices_given": "GPU-1-0"}}, "GPU-1-0"),
        ({"container": {"devices_given": "MIG-7"}, "gpu": {"devices": [{"uuid": "GPU-a"}]}}, "MIG-7"),
        ({"container": {"devices_given": "void"}, "gpu": {"devices": [{"uuid": "GPU-a"}]}}, "GPU-a"),
        ({"container": {"devices_given": "0"}, "gpu": {"devices": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}]}}, "0"),
        ({"container": {"devices_given": "all"}, "gpu": {"devices": [{"uuid": "a"}, {"uuid": "b"}]}}, None),
        ({}, None),
    ],
    ids=["by the plugin", "a slice", "by CDI", "by index, all seen", "all seen", "nothing known"],
)
def test_a_device_is_known_by_what_names_it(facts: dict[str, Any], device: str | None) -> None:
    assert device_in(facts, gpus=1) == device


# The ledger


@pytest.fixture
def book(tmp_path: Path) -> Ledger:
    return Ledger.open(str(tmp_path / "ledger.sqlite3"))


def test_equal_devices_are_all_ok_and_nothing_is_run_again(book: Ledger) -> None:
    sweep = Sweep(book)
    sweep.first_pass()
    swept = examine(book, sweep.experiment)
    assert {line.state for line in swept.lines} == {"ok"}
    assert swept.finished
    assert not is_open(book, sweep.experiment)
    assert swept.seen_from == pytest.approx(0.0118, abs=0.00005)
    assert missing(headline(swept), "10", "1.18 %") == []


def test_flagged_devices_are_run_again_beside_one_on_a_node_that_nobody_suspects(book: Ledger) -> None:
    sweep = Sweep(book)
    sweep.first_pass(slow=(4, 5))
    left = blocks_left(sweep.plan, book.runs_of(sweep.experiment.id))
    assert [(suspect, block) for suspect, _, block in left] == [(4, b) for b in range(4)] + [(5, b) for b in range(4)]
    assert not {reference for _, reference, _ in left} & {4, 5}
    assert {line.state for line in examine(book, sweep.experiment).lines} == {"ok", "flagged"}
    assert is_open(book, sweep.experiment)


def test_confirmed_devices_are_named_with_their_node(book: Ledger) -> None:
    sweep = Sweep(book)
    sweep.first_pass(slow=(4, 5))
    for suspect, reference in {(s, r) for s, r, _ in blocks_left(sweep.plan, book.runs_of(sweep.experiment.id))}:
        sweep.again(suspect, reference, 0.5)
    swept = examine(book, sweep.experiment)
    assert [line.visit.slot for line in swept.in_state("SLOW")] == [4, 5]
    assert swept.slow_nodes == (("node-3", 2),)
    slow = swept.in_state("SLOW")[0].comparison
    assert slow is not None
    assert slow.word == "SLOWER"
    assert slow.ratio == pytest.approx(0.5, rel=0.01)
    assert missing(headline(swept), "2", "10", "SLOW", "node-3 GPU-4", "node-3 GPU-5") == []
    assert swept.finished


def test_a_device_that_is_fine_the_second_time_is_not_named(book: Ledger) -> None:
    sweep = Sweep(book)
    sweep.first_pass(slow=(4,))
    ((suspect, reference),) = {(s, r) for s, r, _ in blocks_left(sweep.plan, book.runs_of(sweep.experiment.id))}
    sweep.again(suspect, reference, 1.0)
    (line,) = examine(book, sweep.experiment).in_state("flagged")
    assert line.settled
    assert line.comparison is not None
    assert line.comparison.word != "SLOWER"
    said = headline(examine(book, sweep.experiment))
    assert missing(said, "10", "1 flagged") == []


def test_a_repetition_on_another_device_than_meant_confirms_nothing(book: Ledger) -> None:
    sweep = Sweep(book)
    sweep.first_pass(slow=(4,))
    ((suspect, reference),) = {(s, r) for s, r, _ in blocks_left(sweep.plan, book.runs_of(sweep.experiment.id))}
    for block in range(4):
        sweep.run(suspect, 50, block=block, suspect=suspect, device="GPU-5")
        sweep.run(reference, 100, block=block, suspect=suspect)
    (line,) = examine(book, sweep.experiment).in_state("flagged")
    assert (line.settled, line.comparison) == (True, None)
    assert missing(line.reason, "GPU-5", "GPU-4") == []


def test_a_device_that_failed_is_a_row_with_its_reason_and_is_tried_again_on_resume(book: Ledger) -> None:
    sweep = Sweep(book)
    sweep.first_pass(failed=(3,))
    swept = examine(book, sweep.experiment)
    (line,) = swept.in_state("failed")
    assert (line.visit.node, line.reason, line.visit.hint) == ("node-2", WHY, HINT)
    assert [slot.number for slot in missing_slots(sweep.plan, book.runs_of(sweep.experiment.id))] == [3]
    sweep.run(3, 100.1)
    assert examine(book, sweep.experiment).in_state("failed") == []


def test_a_device_that_a_node_gave_twice_is_not_two_devices(book: Ledger) -> None:
    sweep = Sweep(book)
    for slot in range(10):
        sweep.run(slot, 100 + 0.1 * slot, device="GPU-0" if slot == 1 else None)
    visits = visits_of(sweep.plan, book.runs_of(sweep.experiment.id))
    assert (visits[1].log_rate, missing(visits[1].trouble, "GPU-0")) == (None, [])
    assert [slot.number for slot in missing_slots(sweep.plan, book.runs_of(sweep.experiment.id))] == [1]


def test_what_was_not_visited_yet_is_missing(book: Ledger) -> None:
    sweep = Sweep(book)
    sweep.run(0, 100)
    swept = examine(book, sweep.experiment)
    assert len(swept.in_state("missing")) == 9
    assert not swept.finished
    assert missing(headline(swept), "9") == []


def test_four_devices_have_numbers_and_are_not_called_good(book: Ledger) -> None:
    sweep = Sweep(book, nodes=2)
    sweep.first_pass(slow=(1,))
    swept = examine(book, sweep.experiment)
    assert {line.state for line in swept.lines} == {"measured"}
    assert swept.seen_from is None
    assert missing(headline(swept), "4 devices") == []


# Two kinds of devices, and several runs of each


def test_a_slow_majority_is_reported_as_a_group_and_fails_where_slow_ones_do(book: Ledger, tmp_path: Path) -> None:
    sweep = Sweep(book, nodes=4)
    for slot in range(8):
        sweep.run(slot, (90 if slot < 5 else 100) * (1 + 0.001 * (slot % 3)))
    words = ["cluster", "sweep", "--resume", "last", "--ledger", str(tmp_path / "ledger.sqlite3")]
    found = json.loads(ask(*words, "--json").out)
    assert [one["state"] for one in found["devices"]] == ["slow group"] * 5 + ["measured"] * 3
    (split,) = found["groups"]
    assert (split["kind"], split["fact"]) == ("slow group", None)
    assert split["ratio"] == pytest.approx(0.9, abs=0.003)
    assert split["p"] < 0.01
    assert [part["devices"] for part in split["parts"]] == [3, 5]
    assert missing(found["headline"], "5", "8", "SLOW") == []
    assert ask(*words).code == Exit.DONE
    assert ask(*words, "--fail-on-slow").code == Exit.VERDICT_NAMED


def test_two_populations_are_told_apart_and_nobody_is_named(book: Ledger, tmp_path: Path) -> None:
    sweep = Sweep(book, nodes=6)
    for slot in range(12):
        limit = {"power limit": "500 W" if slot < 5 else "700 W"}
        sweep.run(slot, (90 if slot < 5 else 100) * (1 + 0.002 * (slot % 3)), facts=limit)
    done = ask(
        "cluster", "sweep", "--resume", "last", "--json", "--fail-on-slow", "--ledger", str(tmp_path / "ledger.sqlite3")
    )
    assert done.code == Exit.DONE, done.err
    found = json.loads(done.out)
    assert {one["state"] for one in found["devices"]} == {"ok"}
    assert [one["group"].split()[-2:] for one in found["devices"]] == [["500", "W"]] * 5 + [["700", "W"]] * 7
    (split,) = found["groups"]
    assert (split["kind"], split["fact"]) == ("populations", "power limit")
    assert missing(found["headline"], "2 populations", "power limit") == []


def test_what_sets_the_speed_of_a_device_is_kept_with_its_run() -> None:
    gpu = {"uuid": "GPU-a", "power_limit_w": 700.0, "pcie_width": 16, "ecc": True, "memory_total_mib": 143771.0}
    facts: dict[str, Any] = {"gpu": {"driver": "580", "devices": [gpu]}, "cpu": {"model": "Xeon"}, "container": {}}
    kept = about_device(facts, gpus=1)
    assert (kept["device"], kept["gpu_driver"]) == ("GPU-a", "580")
    assert kept["speed_facts"] == {
        "CPU": "Xeon", "power limit": "700 W", "memory": "143771 MiB", "ECC": "True", "PCIe lanes": "16",
    }  # fmt: skip


def test_devices_that_one_run_leaves_open_are_run_again_before_anybody_is_suspected(book: Ledger) -> None:
    sweep = Sweep(book, nodes=4, more_runs=3)
    noise = [0.0, 0.008, -0.007, 0.003, -0.009, 0.001, 0.012, -0.016]
    for slot in range(8):
        sweep.run(slot, 100 * math.exp(noise[slot]))
    left = second_pass_left(sweep.plan, book.runs_of(sweep.experiment.id))
    assert [(number, slot.number) for number, slot in left] == [(n, slot) for n in (1, 2, 3) for slot in range(8)]
    assert is_open(book, sweep.experiment)
    assert blocks_left(sweep.plan, book.runs_of(sweep.experiment.id)) == []
    for number in (1, 2, 3):
        for slot in range(8):
            # On a node with two devices a slot may get the other one: what counts is which device it was.
            other = slot ^ 1
            rate = 100 * math.exp(noise[(other + 3 * number) % 8] - (0.04 if other == 5 else 0.0))
            sweep.run(slot, rate, number=number, device=f"GPU-{other}")
    rows = book.runs_of(sweep.experiment.id)
    assert second_pass_left(sweep.plan, rows) == []
    visits = visits_of(sweep.plan, rows)
    assert {len(visit.logs) for visit in visits} == {4}
    assert visits[5].log_rate == pytest.approx(math.log(100) - 0.03, abs=0.012)
    assert {suspect for suspect, _, _ in blocks_left(sweep.plan, rows)} == {5}
    swept = examine(book, sweep.experiment)
    assert not swept.finished
    assert any(missing(note, "24") == [] for note in swept.notes)


def test_a_second_run_that_failed_is_not_made_again_and_one_that_was_cut_off_is(book: Ledger) -> None:
    sweep = Sweep(book, nodes=4, more_runs=1)
    for slot in range(8):
        sweep.run(slot, 100 * math.exp(0.01 * (-1) ** slot))
    sweep.run(0, None, number=1)
    left = second_pass_left(sweep.plan, book.runs_of(sweep.experiment.id))
    assert [slot.number for _, slot in left] == list(range(1, 8))
    run_id = new_id("r")
    book.start(
        RunStart(id=run_id, experiment_id=sweep.experiment.id, position=50, slot=1, pass_number=1, spec=SPEC, place="pod",
                 started_unix_s=1e9, machine_id="m", boot_id="b", driver_pid=1, stackmark_version="0")
    )  # fmt: skip
    end = RunEnd(status="failed", ended_unix_s=1e9, failure_kind="interrupted", failure_message="it was interrupted")
    book.finish(run_id, end, [])
    assert 1 in [slot.number for _, slot in second_pass_left(sweep.plan, book.runs_of(sweep.experiment.id))]


def test_a_sweep_that_was_stored_before_there_was_a_second_pass_stays_finished(book: Ledger) -> None:
    sweep = Sweep(book, nodes=4)
    for slot in range(8):
        sweep.run(slot, 100 * math.exp(0.01 * (-1) ** slot))
    swept = examine(book, sweep.experiment)
    assert swept.finished
    assert any("--more-runs 3" in note for note in swept.notes)


def test_another_cohort_of_the_same_model_in_the_ledger_is_a_second_yardstick(book: Ledger) -> None:
    before = Sweep(book)
    for slot in range(10):
        before.run(slot, 110)
    after = Sweep(book)
    after.first_pass()
    (note,) = [one for one in examine(book, after.experiment).notes if before.experiment.id in one]
    assert missing(note, "10 runs", "EPYC", "110.0", "8.9 %") == []


# What is shown


def test_the_table_has_a_line_a_device_and_says_what_stands_behind_it(
    book: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    print_sweep(examine(book, slow_sweep(book).experiment), standard_output(), "stackmark resume x")
    said = capsys.readouterr().out
    assert missing(said, "2", "9", "SLOW", "node-3 GPU-4", "1 failed", WHY, HINT, "EPYC") == []
    assert [line.split()[:2] for line in said.splitlines() if line.startswith("node-")] == [
        [f"node-{slot // 2 + 1}", f"GPU-{slot}"] for slot in range(10)
    ]
    first, *_, going_on, last = said.splitlines()
    assert going_on.endswith("stackmark resume x")
    assert first == last  # the answer, again: a screen does not hold all of it


def test_of_many_devices_only_what_is_odd_and_the_slowest_are_listed(book: Ledger) -> None:
    sweep = Sweep(book, nodes=100, per_node=1)
    sweep.first_pass(slow=(7,), failed=(9,))
    shown, left = shown_lines(examine(book, sweep.experiment))
    assert [line.visit.slot for line in shown[:2]] == [7, 9]
    assert len(shown) + left == 100


def test_a_name_from_outside_reaches_no_terminal_as_it_is(book: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = Sweep(book)
    sweep.run(0, None, why="\x1b[31mred\x1b[0m")
    print_sweep(examine(book, sweep.experiment), standard_output())
    assert "\x1b[31m" not in capsys.readouterr().out


def test_json_has_every_device_and_what_was_repeated(book: Ledger) -> None:
    made = json.loads(json.dumps(sweep_json(examine(book, slow_sweep(book).experiment)), allow_nan=False))
    assert [one["state"] for one in made["devices"]].count("SLOW") == 2
    slow = made["devices"][4]
    assert slow["repeated"]["verdict"] == "SLOWER"
    assert slow["repeated"]["blocks"] == 4
    assert slow["ratio_to_median"] == pytest.approx(0.5, rel=0.01)
    assert made["slow_nodes"] == [{"node": "node-3", "devices": 2}]
    assert made["cohorts"][0]["median_per_s"] == pytest.approx(100.0)


def test_in_junit_a_slow_device_is_a_failure_and_one_that_was_not_measured_an_error(book: Ledger) -> None:
    cases = {case.name: case.outcome for case in junit_cases(examine(book, slow_sweep(book).experiment))}
    assert cases["node-3 GPU-4"] == "failure"
    assert cases["node-5 GPU-9"] == "error"
    assert cases["node-1 GPU-0"] == "passed"


def test_the_picture_has_a_sign_a_device_by_its_form_and_the_margin(book: Ledger) -> None:
    drawn = sweep_svg(examine(book, slow_sweep(book).experiment))
    assert drawn.count("<circle") >= 7  # the good ones, and the legend's
    assert drawn.count('class="cross"') == 2  # the failed one, and the legend's
    assert drawn.count("sign a4") == 3  # two slow ones, and the legend's
    assert 'class="margin"' in drawn
    assert "node-3 GPU-4: " in drawn


def test_the_picture_shows_a_slow_group_below_the_fast_one(book: Ledger) -> None:
    sweep = Sweep(book, nodes=4)
    for slot in range(8):
        sweep.run(slot, (90 if slot < 5 else 100) * (1 + 0.001 * (slot % 3)))
    drawn = sweep_svg(examine(book, sweep.experiment))
    assert drawn.count("sign a4") == 6  # five of the group, and the legend's
    assert missing(drawn, "node-1 GPU-0", "90.00 images/s", "89.91 %") == []


@pytest.mark.slow
def test_the_picture_of_hundreds_of_nodes_names_none_and_is_of_a_size_that_opens(book: Ledger) -> None:
    sweep = Sweep(book, nodes=400, per_node=1)
    sweep.first_pass(slow=(77,))
    drawn = sweep_svg(examine(book, sweep.experiment))
    assert len(drawn) < 200_000
    assert missing(drawn, "400 nodes") == []


def test_the_picture_can_be_had_as_png(book: Ledger) -> None:
    pytest.importorskip("resvg_py")
    assert sweep_png(examine(book, slow_sweep(book).experiment)).startswith(b"\x89PNG")


# The command line


def test_resume_prints_a_finished_sweep_again_without_a_cluster(
    book: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "there is none"))
    sweep = Sweep(book)
    sweep.first_pass()
    where = str(tmp_path / "ledger.sqlite3")
    for words in (["resume", "last"], ["cluster", "sweep", "--resume", "last"]):
        done = ask(*words, "--ledger", where)
        assert done.code == Exit.DONE, done.out + done.err
        assert missing(done.out + done.err, "10 devices", "1.18 %") == []


def test_a_picture_of_a_stored_sweep_can_be_drawn_later(book: Ledger, tmp_path: Path) -> None:
    Sweep(book).first_pass()
    picture, report = tmp_path / "sweep.svg", tmp_path / "sweep.xml"
    words = ["cluster", "sweep", "--resume", "last", "-o", str(picture), "--junit", str(report)]
    assert ask(*words, "--ledger", str(tmp_path / "ledger.sqlite3")).code == Exit.DONE
    assert picture.read_text().startswith("<?xml")
    assert 'tests="10"' in report.read_text()


def test_a_sweep_is_no_comparison(book: Ledger, tmp_path: Path) -> None:
    Sweep(book).first_pass()
    done = ask("verdict", "last", "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert done.code == Exit.WRONG_USE
    assert missing(done.out + done.err, "sweep") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train/resnet20", "-o", "sweep.pdf"], ".svg"),
        (["train/resnet20", "--junit", "-"], "--junit"),
        (["train/resnet20", "--confirm", "1"], "--confirm"),
        (["train/resnet20", "--margin", "70%"], "70 %"),
        (["train/resnet20", "--dra", "gpu.nvidia.com"], "--dra"),
        (["train/resnet20", "--nodes", ""], "--nodes"),
        (["train/resnet20", "--gpus", "all"], "GPUs"),
        (["train/nothing"], "train/nothing"),
        ([], "workload"),
        (["train/resnet20", "--resume", "x-1"], "--resume"),
        (["--resume", "x-1", "--cpus", "2"], "--resume"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence_before_a_cluster_is_asked(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "there is none"))
    done = ask("cluster", "sweep", *words, "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert done.code == Exit.WRONG_USE, done.out + done.err
    assert said in done.out + done.err
    assert "Traceback" not in done.out + done.err


def test_a_sweep_that_is_none_cannot_be_resumed_as_one(book: Ledger, tmp_path: Path) -> None:
    book.start_experiment(Experiment(id=new_id("x"), created_unix_s=1e9))
    done = ask("cluster", "sweep", "--resume", "last", "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert done.code == Exit.WRONG_USE
    assert missing(done.out + done.err, "sweep") == []


def test_the_exit_code_names_what_was_found(book: Ledger, tmp_path: Path) -> None:
    sweep = Sweep(book)
    sweep.first_pass(slow=(4,))
    ((suspect, reference),) = {(s, r) for s, r, _ in blocks_left(sweep.plan, book.runs_of(sweep.experiment.id))}
    sweep.again(suspect, reference, 0.5)
    words = ["cluster", "sweep", "--resume", "last", "--ledger", str(tmp_path / "ledger.sqlite3")]
    assert ask(*words).code == Exit.DONE
    assert ask(*words, "--fail-on-slow").code == Exit.VERDICT_NAMED


def test_log_rates_are_of_the_rates_that_were_stored(book: Ledger) -> None:
    sweep = Sweep(book)
    sweep.first_pass()
    visit = visits_of(sweep.plan, book.runs_of(sweep.experiment.id))[2]
    assert visit.rate_per_s is not None
    assert visit.log_rate == pytest.approx(math.log(visit.rate_per_s))
