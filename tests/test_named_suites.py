"""The suites that ship: each can be read and written out, and its cells are those that its text promises."""

import json
from pathlib import Path

import pytest

from asking import ask
from stackmark.errors import Exit
from stackmark.experiments.design import whole_blocks
from stackmark.experiments.suite.plan import SuitePlan, find_suite, named_suites
from stackmark.workloads.registry import check_ranks

GENERAL = {"quick", "gpu-server", "cluster", "chips", "operators"}
STUDIES = {
    "study-gpu-pod-vs-cpu-pod", "study-host-vs-container", "study-poc-matrix", "study-mlperf-v0.6", "study-cpu-vs-gpu",
}  # fmt: skip
NAMES = sorted(GENERAL | STUDIES)


def columns(plan: SuitePlan) -> list[tuple[str, ...]]:
    """The arms of each row."""
    return [tuple(arm.label for arm in row.arms) for row in plan.rows]


def test_the_suites_that_were_promised_ship() -> None:
    assert sorted(named_suites()) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_suite_is_written_out_and_every_option_of_it_is_taken_by_a_cell(name: str) -> None:
    plan = find_suite(name)
    assert plan.title
    assert len(plan.about) > 200
    for row in plan.rows:
        check_ranks(row.request)
        assert len(row.read()) == len(row.arms)


@pytest.mark.parametrize("name", NAMES)
def test_every_order_of_the_arms_comes_equally_often(name: str) -> None:
    plan = find_suite(name)
    assert plan.blocks
    if not plan.compare:
        assert plan.blocks >= 3
        return
    assert plan.blocks >= 4
    assert whole_blocks(len(plan.arms), plan.blocks) == plan.blocks
    assert all(row[0] == plan.reference for row in columns(plan))


@pytest.mark.parametrize("name", NAMES)
def test_fp16_is_not_trained_on_a_cpu(name: str) -> None:
    for row in find_suite(name).rows:
        for arm in row.read():
            typed = {**row.params, **arm.typed}
            assert (typed.get("device"), typed.get("precision")) != ("cpu", "fp16")


def test_a_study_names_what_of_the_original_is_not_measured() -> None:
    assert [name for name in STUDIES if not find_suite(name).missing] == []


def test_the_suite_of_a_gpu_server_has_five_models_in_two_places_and_two_precisions() -> None:
    plan = find_suite("gpu-server")
    assert columns(plan) == [("host", "container")] * 10
    assert len({(row.workload, row.values["precision"]) for row in plan.rows}) == 10
    assert plan.blocks == 4


def test_the_study_of_a_cpu_and_a_gpu_trains_one_network_and_infers_with_two_and_answers_queries() -> None:
    rows = find_suite("study-cpu-vs-gpu").rows
    assert [(row.workload, row.params.get("mode"), row.params["batch"]) for row in rows] == [
        ("train/resnet50", "train", 32),
        ("train/resnet50_v1.5", "forward", 1),
        ("train/mobilenet", "forward", 1),
        ("serve/resnet50", None, 1),
    ]


def test_the_study_of_a_host_and_a_container_has_one_gpu_and_two() -> None:
    rows = find_suite("study-host-vs-container").rows
    assert [row.request.ranks for row in rows] == [1, 2]


def test_the_study_of_mlperf_trains_its_six_tasks_to_their_targets() -> None:
    rows = find_suite("study-mlperf-v0.6").rows
    assert [row.workload.partition("/")[0] for row in rows] == ["train", *["fit"] * 6]
    assert (rows[0].params["batch"], rows[0].params["precision"]) == (208, "fp16")
    # Nothing of the rate's settings is held for a task.
    assert {row.params.get("batch", "auto") for row in rows[1:]} == {"auto"}


def test_operators_are_each_measured_in_each_precision() -> None:
    plan = find_suite("operators")
    assert len(plan.rows) == 4 * 3
    assert {row.params["budget"] for row in plan.rows} == {60.0}


def test_the_quick_suite_needs_no_gpu_and_no_engine() -> None:
    assert {arm.text for row in find_suite("quick").rows for arm in row.arms} == {"host"}


def test_a_plan_is_shown_before_there_is_a_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.sqlite3"
    answer = ask("suite", "show", "quick", "--ledger", str(ledger), "--json")
    assert answer.code == Exit.DONE, answer.err
    plan = json.loads(answer.out)
    assert (plan["cells"], plan["runs"], plan["cells_measured_before"]) == (4, 12, 0)
    assert not ledger.exists()


@pytest.mark.parametrize("name", ["chips", "study-poc-matrix"])
def test_commands_in_the_text_of_a_suite_keep_their_lines(name: str, tmp_path: Path) -> None:
    shown = ask("suite", "show", name, "--ledger", str(tmp_path / "ledger.sqlite3")).out.splitlines()
    written = [
        line for line in named_suites()[name].splitlines() if line.startswith("  ") and not line.strip().startswith('"')
    ]
    assert sum(line.startswith("  stackmark ") for line in written) == 3
    assert max(map(len, written)) <= 80, "a screen of 80 columns shows each on one line"
    at = shown.index(written[0])
    assert shown[at - 1 : at + len(written) + 1] == ["", *written, ""]


def test_the_toml_of_a_suite_that_ships_is_printed_as_it_is() -> None:
    assert ask("suite", "show", "chips", "--toml").out == named_suites()["chips"]
