"""Measurements of scaling with real groups of workers on the real host: their order, their efficiency, what they lose.

The ranks of scaling_tricks.py take as long as they are told to, so losses are known; how fast a rate is depends on the machine,
and nothing is asserted of it.
"""

import json
import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from asking import ask, ask_process
from experiment_asking import empty_ledger, ledger_of_a_command
from ledger_runs import DONE
from refusing import refused
from scaling_tricks import install
from stackmark import ids
from stackmark.api.scaling import plan_scale
from stackmark.api.stored import Experiment
from stackmark.errors import Exit, PlaceError
from stackmark.events import Facts, Hello, OpRow, Row, Stream, write_event
from stackmark.experiments import scaling
from stackmark.experiments.compare import _Session, carry_out, design_of
from stackmark.experiments.design import Arm, Design, sequences_of, spec_in_block, unasked_differences
from stackmark.experiments.examine import examine
from stackmark.experiments.probing import Resolved
from stackmark.experiments.recorder import Recorder, Silent
from stackmark.experiments.scale import (
    ScaleRequest,
    blocks_for,
    gpus_in,
    rotation_of,
    settings_of_groups,
    share_of,
    start,
)
from stackmark.ledger.rows import Experiment as ExperimentRow
from stackmark.ledger.rows import RunDetail, RunStart
from stackmark.ledger.store import Ledger
from stackmark.spec import Request, Scalar, Spec
from worker_process import SOURCE

QUICK: dict[str, Scalar] = {"steps": 20, "warmup_steps": 0}
# Of two ranks: one computes 8 ms and waits 2, the other computes 10; 1 ms of exchange follows.
SLOW_ONE: dict[str, Scalar] = {"straggler_s": 0.002}


def with_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The family of groups, where driver and worker find it."""
    folder = install(tmp_path / "group")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ["PYTHONPATH"])))
    monkeypatch.syspath_prepend(str(folder))


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    path = empty_ledger(tmp_path, monkeypatch)
    with_group(tmp_path, monkeypatch)
    with Ledger.open(str(path)) as ledger:
        yield ledger


@pytest.fixture(scope="module")
def measured_ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with one measurement of one rank and two, of which one is slow."""
    folder = tmp_path_factory.mktemp("measured")
    with pytest.MonkeyPatch.context() as patch:
        path = empty_ledger(folder, patch)
        with_group(folder, patch)
        with Ledger.open(str(path)) as ledger:
            carried_out(ledger, asked(2, 1, params=SLOW_ONE))
    return path


@pytest.fixture
def measured(measured_ledger: Path, tmp_path: Path) -> Iterator[Ledger]:
    """That ledger, for one test to change."""
    copy = shutil.copyfile(measured_ledger, tmp_path / "measured.sqlite3")
    with Ledger.open(str(copy)) as ledger:
        yield ledger


@pytest.fixture
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for path in ledger_of_a_command(tmp_path, monkeypatch):
        with_group(tmp_path, monkeypatch)
        yield path


def asked(
    *ranks: int, workload: str = "group/steps", params: dict[str, Scalar] | None = None, strong: bool = False
) -> ScaleRequest:
    request = Request(workload=workload, params={**QUICK, **(params or {})})
    return plan_scale(request, ranks, strong=strong, blocks=2, seed=3, primers=False)


def carried_out(book: Ledger, wanted: ScaleRequest) -> ExperimentRow:
    experiment = start(wanted, book, Silent())
    assert not carry_out(experiment, book, Silent()).open
    return experiment


def test_the_arms_are_the_rank_counts_and_only_they_differ(measured: Ledger) -> None:
    experiment = measured.experiment("last")
    design = design_of(experiment)
    assert (experiment.kind, design.scaling, design.margin) == ("scale", "weak", 0.1)
    assert [(arm.label, arm.spec.ranks) for arm in design.arms] == [("1 rank", 1), ("2 ranks", 2)]
    assert unasked_differences(design.arms) == []
    assert [arm.spec.params["graph"] for arm in design.arms] == [False, False]
    assert sorted((row.block, row.ranks, row.status) for row in measured.runs_of(experiment.id)) == [
        (0, 1, "done"), (0, 2, "done"), (1, 1, "done"), (1, 2, "done"),
    ]  # fmt: skip


def test_one_rank_works_as_a_group_can_unless_that_was_typed(book: Ledger) -> None:
    """By itself it would choose a graph: an efficiency would then be about graphs."""
    alone, group = (Spec(workload="group/steps", params={"graph": graph}) for graph in (True, False))
    for typed, settings in (({}, {"graph": False}), ({"graph": True}, {})):
        assert settings_of_groups(Request(workload="group/steps", params=typed), alone, group) == settings


def test_the_efficiency_is_the_mean_over_the_blocks_of_the_rates_per_rank(measured: Ledger) -> None:
    shown = examine(measured, "last")
    (pair,) = shown.comparisons
    rate = {(run.block, run.arm): run.rate_per_s or 0.0 for run in shown.runs}
    logs = [math.log(rate[block, 1] / rate[block, 0] / 2) for block in (0, 1)]
    assert math.log(pair.ratio) == pytest.approx(sum(logs) / 2)
    assert (pair.a, pair.b, pair.terms) == ("1 rank", "2 ranks", "efficiency")
    assert shown.scaling
    assert shown.scaling.points[1].speedup == pytest.approx(2 * pair.ratio)


def test_the_losses_are_those_that_the_ranks_report(measured: Ledger) -> None:
    shown = examine(measured, "last")
    assert shown.scaling
    point = shown.scaling.points[1]
    assert point.losses
    assert point.efficiency is not None
    assert point.losses.communication == pytest.approx(1 / 11)
    assert point.losses.stragglers == pytest.approx(1 / 11)
    assert sum(vars(point.losses).values()) == pytest.approx(1 - point.efficiency)


def test_strong_scaling_divides_the_batch_and_a_silent_workload_has_no_losses(book: Ledger) -> None:
    experiment = carried_out(book, asked(1, 2, workload="group/silent", params={"batch": 8}, strong=True))
    assert [arm.spec.params["batch"] for arm in design_of(experiment).arms] == [8, 4]
    shown = examine(book, experiment.id)
    assert shown.scaling
    assert (shown.scaling.mode, [point.batch for point in shown.scaling.points]) == ("strong", [8, 4])
    assert not any(getattr(said, "kind", "") == "parameters" for said in shown.not_held)
    assert [(point.losses, point.missing) for point in shown.scaling.points] == [(None, ""), (None, "")]
    assert shown.comparisons


def test_a_measurement_that_was_cut_off_goes_on(book: Ledger) -> None:
    experiment = start(asked(1, 2), book, Silent())
    found = Experiment(experiment, book).resume()
    assert (found.examined.state, found.examined.kind, found.examined.blocks_whole) == ("done", "scale", 2)


def test_what_the_exchange_should_take_comes_from_the_newest_rate_of_that_machine(measured: Ledger) -> None:
    row = measured.runs_of(measured.experiment("last").id)[0]
    before = examine(measured, row.experiment_id).scaling
    assert before
    assert before.points[1].missing == "stackmark run op/all-reduce --ranks 2 --shape floats=1000000"
    add_all_reduce(measured, row, {500_000: 1e-3, 2_000_000: 4e-3, 8_000_000: 1e-2})
    after = examine(measured, row.experiment_id).scaling
    assert after
    found = after.points[1].expected
    assert found
    # 8 MB in 4 ms over two ranks: 2 GB/s on the bus; the 4 MB of a step then take 2 ms.
    assert found.array_bytes == 8e6
    assert found.bus_gb_per_s == pytest.approx(2.0)
    assert found.exchange_s == pytest.approx(0.002)
    assert after.points[1].missing == ""


def test_an_exchange_that_is_no_all_reduce_is_not_expected_to_be_one(measured: Ledger) -> None:
    experiment = measured.experiment("last")
    rows = measured.runs_of(experiment.id)
    shown = examine(measured, experiment.id)
    served = [
        row.model_copy(
            update={"spec": row.spec.model_copy(update={"params": {**row.spec.params, "strategy": "parameter-server"}})}
        )
        for row in rows
    ]
    design = design_of(experiment)
    found = scaling.examine_scaling(measured, design, served, shown.runs, shown.arms, shown.comparisons, {})
    assert (found.points[1].expected, found.points[1].missing) == (None, "")


@pytest.mark.parametrize("other", [{"ranks": 4}, {"machine_id": "another"}, {"floats": 900_000}])
def test_a_rate_of_other_ranks_or_machines_or_of_smaller_arrays_is_not_used(
    measured: Ledger, other: dict[str, int | str]
) -> None:
    row = measured.runs_of(measured.experiment("last").id)[0]
    elsewhere = row.model_copy(update={"machine_id": other.get("machine_id", row.machine_id)})
    add_all_reduce(measured, elsewhere, {int(other.get("floats", 2_000_000)): 4e-3}, ranks=int(other.get("ranks", 2)))
    shown = examine(measured, row.experiment_id).scaling
    assert shown
    assert shown.points[1].expected is None


def add_all_reduce(book: Ledger, like: RunDetail, seconds: dict[int, float], ranks: int = 2) -> None:
    """Store a run of an all-reduce on the machine of another run, by the floats of each row."""
    experiment = ExperimentRow(id=ids.new_id("x"), created_unix_s=like.started_unix_s + 60, command="stackmark run")
    book.start_experiment(experiment)
    spec = Spec(workload="op/all-reduce", params={"device": "cpu", "precision": "fp32"}, ranks=ranks)
    run = RunStart(
        id=ids.new_id("r"), experiment_id=experiment.id, spec=spec, place="host", started_unix_s=like.started_unix_s + 60,
        machine_id=like.machine_id, boot_id=like.boot_id, driver_pid=1, stackmark_version="0.1.0",
    )  # fmt: skip
    book.start(run)
    events = [Hello(seq=0, t=0.0, time_unix_s=like.started_unix_s, pid=1, ranks=1, versions={})]
    rows = [
        Row(
            seq=number, t=1.0, of=len(seconds), done=number,
            row=OpRow(index=number - 1, op="all-reduce", shape={"floats": floats}, precision="fp32", call_s=[call_s] * 3),
        )
        for number, (floats, call_s) in enumerate(seconds.items(), 1)
    ]  # fmt: skip
    end = DONE.model_copy(update={"ended_unix_s": like.started_unix_s + 61, "chip": like.chip, "chip_uuid": None})
    book.finish(run.id, end, [write_event(event) for event in [*events, *rows]])


def test_ranks_that_share_a_gpu_have_no_efficiency(measured: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "chips_of", lambda stream: ["GPU-1", "GPU-1"])
    found = Experiment(measured.experiment("last"), measured).verdict()
    assert found.comparisons == ()
    assert found.examined.scaling
    assert "GPU-1" in found.examined.scaling.refused[0]
    assert found.examined.scaling.points[1].efficiency is None
    assert "NO EFFICIENCY" in str(found)


def test_the_gpu_of_each_rank_is_read_from_its_own_facts() -> None:
    stream = Stream()
    for rank, chip in enumerate(("GPU-1", "GPU-2")):
        hello = Hello(seq=0, rank=rank, t=0.0, time_unix_s=1.0, pid=1, ranks=2, versions={})
        facts = Facts(seq=1, rank=rank, t=0.1, subject="gpu", facts={"under_test": chip}, problems=[])
        for event in (hello, facts):
            stream.feed(write_event(event))
    assert scaling.chips_of(stream) == ["GPU-1", "GPU-2"]


def test_an_efficiency_above_one_is_questioned_in_a_warning(measured: Ledger) -> None:
    (pair,) = examine(measured, "last").comparisons
    assert pair.interval_95
    above = replace(pair, interval_95=replace(pair.interval_95, low=1.01, high=1.2))
    said = scaling.scaling_remarks(design_of(measured.experiment("last")), [above])
    assert [getattr(one, "kind", "") for one in said] == ["above-linear", "shared-cores"]


# --- the device of the one rank -------------------------------------------------------------------------------------------


def on_gpus(ranks: int = 1, device: str = "cuda:0") -> Spec:
    return Spec(workload="train/resnet50", params={"device": device, "batch": 64}, ranks=ranks)


def four_gpus(**more: object) -> Design:
    arms = [Arm(label=f"{ranks}", place="host", spec=on_gpus(ranks)) for ranks in (1, 4)]
    made = Design(arms=arms, blocks=6, seed=1, margin=0.1, scaling="weak", rotation=[f"cuda:{n}" for n in range(4)])
    return made.model_copy(update=more)


def test_one_rank_takes_each_device_in_turn_and_a_group_stays_where_it_is() -> None:
    design = four_gpus()
    assert [spec_in_block(design, 0, block).params["device"] for block in range(6)] == [
        "cuda:0", "cuda:1", "cuda:2", "cuda:3", "cuda:0", "cuda:1",
    ]  # fmt: skip
    assert {spec_in_block(design, 1, block).params["device"] for block in range(6)} == {"cuda:0"}
    assert "cuda:0 to cuda:3" in scaling.say_devices(design)


def test_a_stored_design_keeps_the_turn_of_the_devices() -> None:
    design = four_gpus()
    assert Design.model_validate(design.model_dump(mode="json")) == design


def test_a_design_from_before_scaling_has_no_turn() -> None:
    stored = four_gpus().model_dump(mode="json")
    del stored["scaling"], stored["rotation"]
    assert (Design.model_validate(stored).scaling, Design.model_validate(stored).rotation) == ("", [])


@pytest.mark.parametrize(
    ("device", "count", "devices"),
    [("cuda:0", 8, 4), ("cuda:0", 2, 2), ("cuda:0", 1, 0), ("cpu", 8, 0)],
)
def test_the_turn_is_over_the_gpus_that_there_are(device: str, count: int, devices: int) -> None:
    found = Resolved(on_gpus(device=device), {}, {"gpu": {"count": count}}, {})
    assert rotation_of(found, 4) == [f"cuda:{number}" for number in range(devices)]


@pytest.mark.parametrize(
    ("arms", "devices", "blocks"), [(2, 0, 6), (2, 2, 6), (2, 4, 8), (2, 8, 8), (3, 4, 12), (4, 8, 8), (5, 16, 20)]
)
def test_by_default_each_device_comes_equally_often_where_that_is_not_many_blocks(
    arms: int, devices: int, blocks: int
) -> None:
    assert blocks_for(arms, devices) == blocks
    assert blocks % sequences_of(arms) == 0


@pytest.mark.parametrize(("chip", "is_refused"), [("NVIDIA H200", False), ("NVIDIA H100", True)])
def test_the_turn_goes_over_gpus_of_one_model(measured: Ledger, chip: str, is_refused: bool) -> None:
    first, second, *_ = measured.runs_of(measured.experiment("last").id)
    on_one = first.model_copy(update={"chip": "NVIDIA H200", "chip_uuid": "GPU-1"})
    on_two = second.model_copy(update={"chip": chip, "chip_uuid": "GPU-2"})
    recorder = Recorder(measured, first.experiment_id)
    session = _Session(measured.experiment("last"), four_gpus(), recorder, Silent(), None, False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "rows", lambda: [on_one, on_two])
        if is_refused:
            with refused("NVIDIA H200", "NVIDIA H100", error=PlaceError):
                session._check_chip(on_two, "1 rank")
        else:
            session._check_chip(on_two, "1 rank")


def test_devices_that_never_came_are_counted() -> None:
    assert "2 GPUs never" in scaling.say_devices(four_gpus(blocks=2))


def test_a_worker_that_sees_no_gpu_counts_as_one() -> None:
    assert gpus_in({}) == 1


def test_pods_leave_the_device_to_the_scheduler() -> None:
    arms = [Arm(label=f"{ranks}", place="pod", spec=on_gpus(ranks)) for ranks in (1, 4)]
    design = four_gpus(arms=arms, rotation=[])
    assert "scheduler" in scaling.say_devices(design)


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ranks", "named"),
    [((2,), ("2",)), ((1,), ("1",)), ((2, 4), ("2,4", "1")), ((1, 2, 2), ("2",)), ((1, 8), ("4 ranks", "8"))],
)
def test_rank_counts_that_make_no_scaling_are_refused(
    book: Ledger, ranks: tuple[int, ...], named: tuple[str, ...]
) -> None:
    with refused(*named):
        asked(*ranks)


@pytest.mark.parametrize(
    ("workload", "named"), [("group/alone", "group/steps"), ("op/all-reduce", "op/all-reduce"), ("op/gemm", "op/gemm")]
)
def test_a_workload_without_one_rank_and_several_is_refused(book: Ledger, workload: str, named: str) -> None:
    with refused(named):
        plan_scale(Request(workload=workload, params={}), (1, 2))


def test_a_total_batch_that_the_ranks_do_not_divide_is_refused_before_anything_runs(book: Ledger) -> None:
    with refused("8", "3 ranks", "--batch 6"):
        asked(1, 2, 3, params={"batch": 8}, strong=True)
    with refused("8", "3 ranks", "--batch 12"):
        share_of(8, 3, (1, 3, 4))


def test_a_parameter_of_the_workload_is_not_part_of_the_place(book: Ledger) -> None:
    with refused("batch", "--batch"):
        plan_scale(Request(workload="group/steps", params={}), (1, 2), on="host,batch=4")


# --- the command ----------------------------------------------------------------------------------------------------------


SCALE = (
    "scale",
    "group/steps",
    "--ranks",
    "1,2",
    "--blocks",
    "2",
    "--steps",
    "20",
    "--warmup-steps",
    "0",
    "--no-primers",
)


def test_the_answer_of_the_command_is_that_of_verdict_show_and_the_list(ledger_file: Path) -> None:
    answer = ask(*SCALE, "--json")
    assert answer.code == Exit.DONE, answer.err
    shown = json.loads(answer.out)
    assert (shown["schema"], shown["kind"], shown["state"]) == ("stackmark.verdict/3", "scale", "done")
    assert [point["ranks"] for point in shown["scaling"]["points"]] == [1, 2]
    (pair,) = shown["comparisons"]
    assert pair["word"] in ("SCALES", "FALLS SHORT", "INCONCLUSIVE")
    again = json.loads(ask("verdict", "last", "--json").out)
    assert again["scaling"] == shown["scaling"]
    (listed,) = json.loads(ask("experiments", "--json").out)["experiments"]
    assert (listed["kind"], listed["arms"], listed["verdicts"]) == ("scale", ["1 rank", "2 ranks"], [pair["word"]])
    assert ask("show", "last").code == Exit.DONE
    assert ask("resume", "last").code == Exit.DONE


def test_groups_are_scaled_in_containers(tmp_path: Path, podman_reach: dict[str, str]) -> None:
    folder = install(tmp_path / "group")
    path = os.pathsep.join(map(str, (folder, Path(__file__).parent, SOURCE)))
    where = ("--on", "container", "--engine", "podman", "--bind", "numa")
    answer = ask_process(
        tmp_path / "ledger.sqlite3", *SCALE, *where, "--json",
        PYTHONPATH=path, XDG_CACHE_HOME=str(tmp_path / "cache"), **podman_reach,
    )  # fmt: skip
    assert answer.code == Exit.DONE, answer.err
    shown = json.loads(answer.out)
    assert {arm["place"] for arm in shown["arms"]} == {"container"}
    one, two = shown["scaling"]["points"]
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert two["efficiency"] > 0


@pytest.mark.slow
def test_two_ranks_train_in_a_container(tmp_path: Path, podman_reach: dict[str, str]) -> None:
    net = ("train/trivial_cifar10", "--batch", "2", "--steps", "5", "--warmup-steps", "1", "--warmup-seconds", "0")
    answer = ask_process(
        tmp_path / "ledger.sqlite3", "run", *net, "--ranks", "2", "--runs", "1", "--on", "container", "--engine", "podman",
        "--json", XDG_CACHE_HOME=str(tmp_path / "cache"), **podman_reach,
    )  # fmt: skip
    assert answer.code == Exit.DONE, answer.err
    (result,) = json.loads(answer.out)["results"]
    assert result["group"]["exchanged_bytes"] > 0


def test_falling_short_is_named_by_fail_on_and_drawn_and_reported(ledger_file: Path, tmp_path: Path) -> None:
    # The exchange takes 25 times the compute.
    slow = ("--steps", "5", "--exchange-s", "0.2", "--fail-on", "slower", "--junit", str(tmp_path / "scale.xml"))
    answer = ask(*SCALE, *slow, "--report", str(tmp_path / "scale.html"))
    assert answer.code == Exit.VERDICT_NAMED, answer.err
    assert answer.out.splitlines()[0].startswith("verdict     FALLS SHORT")
    assert "<failure" in (tmp_path / "scale.xml").read_text()
    assert "How it scales" in (tmp_path / "scale.html").read_text()
    assert ask("plot", "last", "-o", str(tmp_path / "scale.svg")).code == Exit.DONE
    assert "Speed-up" in (tmp_path / "scale.svg").read_text()
    assert ask("verdict", "last", "--margin", "49%").code == Exit.DONE
