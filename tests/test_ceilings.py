"""What a machine can do at most: measured on this CPU, put together over runs, kept by chip, shown beside the vendor's figure."""

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from asking import ask
from stackmark import events, ids
from stackmark.errors import Exit, SpecError
from stackmark.events import OpRow
from stackmark.experiments import ceilings as lab
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.published.chips import normalise_chip
from stackmark.show.ceilings import say_value, table_rows
from stackmark.spec import Scalar, Spec
from stackmark.verdict.ceilings import (
    BYTES_PER_S,
    DOUBTFUL,
    OPERATIONS_PER_S,
    VENDORS,
    Limit,
    ceilings_of,
    limits_of,
    missing_of,
    with_vendor_figures,
)
from stackmark.workloads.op.definition import OpParams
from stackmark.workloads.op.impl import ceilings, copies
from stackmark.workloads.op.impl.bench import Compared, Prepared, Stand
from stackmark.workloads.op.impl.timing import Look, Sample, Stretch, samples, say_crowded, work
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.workload import WorkloadFailure

CPU = Stand(torch.device("cpu"), "fp32", 1)
ON_CPU = OpParams(
    device="cpu", precision="fp32", set=ceilings.ONE_PRECISION, rows="0-999", budget=1.0, row_seconds=0.05, threads=0
)


def matrix(state: str, call_s: Sequence[float], precision: str = "bf16", size: int = 1000, **more: object) -> OpRow:
    shape: dict[str, Scalar] = {"what": "matrix", "state": state, "m": size, "n": size, "k": size}
    row = OpRow(index=0, op="ceilings", shape=shape, precision=precision, operations=2.0 * size**3, call_s=list(call_s))
    return row.model_copy(update=more)


def moved(what: str, call_s: Sequence[float], size: int, state: str = "") -> OpRow:
    shape: dict[str, Scalar] = {"what": what, "bytes": size, **({"state": state} if state else {})}
    return OpRow(index=1, op="ceilings", shape=shape, precision="fp32", least_bytes=float(size), call_s=list(call_s))


def launch(call_s: Sequence[float], state: str = "eager") -> OpRow:
    return OpRow(
        index=2, op="ceilings", shape={"what": "launch", "state": state}, precision="fp32", call_s=list(call_s)
    )


# --- from rows to ceilings ------------------------------------------------------------------------------------------


def test_ceilings_are_read_from_the_rows_of_a_run() -> None:
    rows = [
        matrix("cold", [1e-3] * 10),
        matrix("sustained", [1.25e-3] * 10),
        moved("copy", [0.5] * 10, 2 * 10**9),
        moved("read", [0.25] * 10, 10**9),
        moved("transfer", [0.1] * 10, 5 * 10**9, "host to device"),
        moved("transfer", [0.2] * 10, 5 * 10**9, "device to host"),
        launch([4e-6] * 10),
        launch([1e-6] * 10, "graph"),
    ]
    found = ceilings_of(limits_of([rows]), run_id="r-1", chip="NVIDIA H200", device="cuda:0")
    assert found.matrix["bf16"].cold_per_s == pytest.approx(2e12)
    assert found.matrix["bf16"].sustained_per_s == pytest.approx(1.6e12)
    assert (found.copy_bytes_per_s, found.read_bytes_per_s) == (4e9, 4e9)
    assert (found.h2d_bytes_per_s, found.d2h_bytes_per_s) == (5e10, 2.5e10)
    assert found.launch_s == pytest.approx(4e-6)
    assert found.memory_bytes_per_s == 4e9


def test_one_run_has_the_interval_of_its_median() -> None:
    times = [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]
    (limit,) = limits_of([[moved("copy", times, 13)]])
    # Of seven samples the smallest and the largest enclose the median with 98.4 %; six of seven would be 93.75 %.
    assert [limit.value, limit.low, limit.high] == pytest.approx([10.0, 13 / 1.6, 13.0])
    (few,) = limits_of([[moved("copy", times[:3], 13)]])
    assert (few.low, few.high) == (None, None)


def test_several_runs_have_students_interval_over_their_logarithms() -> None:
    rates = [900e9, 950e9, 910e9]
    (limit,) = limits_of([[moved("copy", [1e12 / rate] * 7, 10**12)] for rate in rates])
    logs = np.log(rates)
    low, high = stats.t.interval(0.95, 2, loc=logs.mean(), scale=stats.sem(logs))
    assert limit.value == pytest.approx(float(np.exp(logs.mean())))
    assert limit.low == pytest.approx(float(np.exp(low)))
    assert limit.high == pytest.approx(float(np.exp(high)))
    assert limit.runs == 3


def test_a_time_has_its_interval_the_right_way_round() -> None:
    (limit,) = limits_of([[launch([2e-6] * 7)], [launch([3e-6] * 7)]])
    assert limit.low is not None
    assert limit.high is not None
    assert limit.low < limit.value < limit.high
    assert limit.value == pytest.approx((2e-6 * 3e-6) ** 0.5)


def test_runs_that_chose_different_sizes_are_still_of_one_rate() -> None:
    runs = [[matrix("sustained", [1e-3] * 7)], [matrix("sustained", [8e-3] * 7, size=2000)]]
    (limit,) = limits_of(runs)
    assert limit.value == pytest.approx(2e12)


def test_a_precision_whose_sustained_rate_failed_is_missing_and_not_half_there() -> None:
    failed = matrix("sustained", [], failure_kind="wrong_result", failure_message="wrong")
    rows = [matrix("cold", [1e-3] * 7), failed]
    assert ceilings_of(limits_of([rows])).matrix == {}
    (missing,) = missing_of([rows])
    assert (missing.precision, missing.message) == ("bf16", "wrong")


# --- what vendors say -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "Tesla P100-SXM2-16GB", "Tesla V100-SXM2-16GB", "Tesla V100-PCIE-32GB", "Tesla T4", "NVIDIA A100-SXM4-40GB",
        "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A40", "NVIDIA L40S", "NVIDIA H100 80GB HBM3",
        "NVIDIA H100 PCIe", "NVIDIA H200", "NVIDIA B200",
    ],
)  # fmt: skip
def test_the_vendors_figure_is_found_by_the_name_that_a_driver_gives(name: str) -> None:
    vendor = VENDORS[normalise_chip(name)]
    assert vendor.source
    assert vendor.memory_bytes_per_s > 1e11


@pytest.mark.parametrize("name", ["NVIDIA H200 MIG 1g.18gb", "AMD EPYC", "NVIDIA GeForce RTX 4090 Laptop GPU"])
def test_a_part_of_a_chip_or_another_chip_has_no_figure_of_a_whole_one(name: str) -> None:
    assert normalise_chip(name) not in VENDORS


def test_every_vendors_figure_is_dense_and_grows_as_bits_become_fewer() -> None:
    assert VENDORS["NVIDIA H200"].tflops["bf16"] == 989  # and not the 1,979 that count sparsity
    assert VENDORS["NVIDIA A100 80GB"].tflops["bf16"] == 312
    for vendor in VENDORS.values():
        rates = [vendor.tflops[name] for name in ("fp64", "fp32", "tf32", "bf16", "fp8") if name in vendor.tflops]
        assert rates == sorted(rates), vendor.chip
        assert vendor.tflops.get("bf16", 0) in (0, vendor.tflops["fp16"]), vendor.chip


def test_the_share_of_the_vendors_figure_stands_beside_the_measured_one() -> None:
    rows = [matrix("cold", [2.53e-6] * 7), matrix("sustained", [3.06e-6] * 7), moved("copy", [1e-3] * 7, 4_320_000_000)]
    limits = with_vendor_figures(limits_of([rows]), VENDORS["NVIDIA H200"])
    assert [round(limit.vendor_share or 0, 3) for limit in limits] == [0.799, 0.661, 0.9]
    table = table_rows(ceilings_of(limits))
    assert table[0][0] == "matrix, bf16"
    assert table[0][4] == "989 TFLOP/s"
    assert re.findall(r"\d+ %", table[0][5]) == ["66 %", "80 %"]
    assert table[1][:2] == ["memory, copied", "4,320 GB/s"]
    assert table[1][4:6] == ["4,800 GB/s", "90 %"]


def test_integers_are_counted_in_operations_and_not_in_floating_point_ones() -> None:
    assert say_value(1.5e15, Limit("matrix", "sustained", "int8", 1.5e15, OPERATIONS_PER_S)) == "1500 TOP/s"
    assert say_value(2e12, Limit("matrix", "sustained", "fp32", 2e12, OPERATIONS_PER_S)) == "2.00 TFLOP/s"
    assert say_value(63e9, Limit("transfer", "host to device", "", 63e9, BYTES_PER_S)) == "63.00 GB/s"


# --- what is kept ---------------------------------------------------------------------------------------------------


def store(
    ledger: Ledger, rows: Sequence[OpRow], at: float, *, uuid: str | None = "GPU-1", threads: int = 0, machine: str = "here",
    framework: str = "PyTorch 2.11", kind: str = "run", status: str = "done",
) -> str:  # fmt: skip
    """A run of op/ceilings as the ledger would have it."""
    device = "cuda:0" if uuid else "cpu"
    experiment = ids.new_id(ids.EXPERIMENT)
    ledger.start_experiment(Experiment.model_validate({"id": experiment, "created_unix_s": at, "kind": kind}))
    params: dict[str, Scalar] = {"device": device, "precision": "bf16", "set": "machine", "rows": "0-999"}
    run = RunStart(
        id=ids.new_id(ids.RUN), experiment_id=experiment, spec=Spec(workload="op/ceilings", params=params), place="host",
        started_unix_s=at, machine_id=machine, boot_id="now", driver_pid=os.getpid(), stackmark_version="0.1.0",
    )  # fmt: skip
    ledger.start(run)
    stream = [
        events.Facts(seq=0, t=0, subject="op", facts={"threads": threads} if threads else {}),
        *(events.Row(seq=n + 1, t=1, row=row, done=n + 1, of=len(rows)) for n, row in enumerate(rows)),
    ]
    chip = "NVIDIA H200" if uuid else "AMD EPYC"
    failure = {"failure_kind": "hardware_error", "failure_message": "XID 79"} if status == "invalid" else {}
    end = RunEnd.model_validate(
        {"status": status, "ended_unix_s": at + 9, "chip": chip, "chip_uuid": uuid, "framework": framework, **failure}
    )
    ledger.finish(run.id, end, [events.write_event(event) for event in stream])
    return run.id


def both(seconds: float, precision: str = "bf16") -> list[OpRow]:
    rows = [matrix("cold", [seconds * 0.9] * 7, precision), matrix("sustained", [seconds] * 7, precision)]
    return [row.model_copy(update={"index": n}) for n, row in enumerate(rows)]


def test_the_newest_ceilings_of_a_chip_are_found(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "l.sqlite3")) as ledger:
        store(ledger, both(1e-3), 1000.0)
        newest = store(ledger, both(2e-3), 2000.0)
        store(ledger, both(9e-3), 3000.0, uuid="GPU-2")
        store(ledger, both(9e-3), 3000.0, machine="elsewhere")
        store(ledger, both(9e-3), 3000.0, kind="compare")
        store(ledger, both(9e-3), 3000.0, status="invalid")
        found = lab.latest(ledger, "here", "GPU-1", "cuda:0")
        assert found is not None
        assert (found.run_id, found.measured_unix_s, found.chip) == (newest, 2000.0, "NVIDIA H200")
        assert found.matrix["bf16"].sustained_per_s == pytest.approx(1e12)
        assert lab.latest(ledger, "here", None, "cpu") is None
        assert lab.latest(ledger, "nowhere", "GPU-1", "cuda:0") is None


def test_one_precision_measured_later_does_not_hide_the_others(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "l.sqlite3")) as ledger:
        copied = moved("copy", [1.0] * 7, 10**9).model_copy(update={"index": 4})
        store(ledger, [*both(1e-3), *both(4e-3, "fp32"), copied], 1000.0)
        store(ledger, both(5e-3, "tf32"), 500.0, framework="PyTorch 2.9")
        store(ledger, both(2e-3), 2000.0)
        found = lab.latest(ledger, "here", "GPU-1", "cuda:0")
        assert found is not None
        assert sorted(found.matrix) == ["bf16", "fp32"]  # tf32 was another framework's
        assert found.matrix["bf16"].sustained_per_s == pytest.approx(1e12)
        assert found.copy_bytes_per_s == 1e9


def test_a_cpu_has_ceilings_by_the_number_of_its_threads(tmp_path: Path) -> None:
    with Ledger.open(str(tmp_path / "l.sqlite3")) as ledger:
        store(ledger, both(1e-3), 1000.0, uuid=None, threads=2)
        store(ledger, both(2e-3), 2000.0, uuid=None, threads=1)
        two, one, any_of = (lab.latest(ledger, "here", None, "cpu", threads) for threads in (2, 1, None))
        assert two is not None
        assert one is not None
        assert any_of is not None
        assert (two.threads, two.measured_unix_s) == (2, 1000.0)
        assert one == any_of
        assert [kept.ceilings.threads for kept in lab.every_kept(ledger, "here")] == [1, 2]
        assert lab.every_kept(ledger, "here", "cuda:0") == []


def test_without_any_that_are_kept_show_says_how_to_get_them(tmp_path: Path) -> None:
    book = tmp_path / "l.sqlite3"
    Ledger.open(str(book)).close()
    answer = ask("ceilings", "--show", "--ledger", str(book))
    assert answer.code == SpecError.exit_code
    assert "stackmark ceilings" in answer.err


# --- measured on this CPU -------------------------------------------------------------------------------------------


def test_a_cpu_has_its_matrix_rate_twice_and_its_memory_and_launches_once() -> None:
    rows: list[OpRow] = []
    ceilings.run_ceilings(ON_CPU, rows.append)
    assert [(row.shape["what"], row.shape.get("state")) for row in rows] == [
        ("matrix", "cold"), ("copy", None), ("read", None), ("launch", "eager"), ("matrix", "sustained"),
    ]  # fmt: skip
    assert [row.index for row in rows] == list(range(ceilings.rows_planned(ON_CPU)))
    assert {row.op for row in rows} == {"ceilings"}
    assert [row.failure_message for row in rows] == [""] * 5
    assert rows[0].shape["m"] == rows[-1].shape["m"]
    assert rows[-1].operations == 2 * int(str(rows[-1].shape["m"])) ** 3
    assert rows[-1].call_s
    # The budget did not allow the usual stretch, which makes the limit doubtful.
    assert any(words in note for note in rows[-1].notes for words in DOUBTFUL)
    found = ceilings_of(limits_of([rows]))
    assert set(found.matrix) == {"fp32"}
    assert found.copy_bytes_per_s
    assert found.read_bytes_per_s
    assert found.launch_s
    # A row must fit into an event.
    assert max(len(row.model_dump_json()) for row in rows) < events.EVENT_LIMIT_BYTES


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is visible here")
def test_a_gpu_has_its_matrix_rates_its_memory_its_link_and_its_launches() -> None:
    rows: list[OpRow] = []
    torch.cuda.set_device(0)
    params = ON_CPU.model_copy(update={"device": "cuda:0", "set": ceilings.EVERYTHING, "budget": 20.0})
    ceilings.run_ceilings(params, rows.append)
    assert len(rows) == ceilings.rows_planned(params)
    assert [row.failure_message for row in rows] == [""] * len(rows)
    found = ceilings_of(limits_of([rows]))
    assert "fp32" in found.matrix
    assert found.h2d_bytes_per_s
    assert found.d2h_bytes_per_s
    assert found.launch_s


def test_only_the_rows_that_are_missing_are_measured() -> None:
    rows: list[OpRow] = []
    ceilings.run_ceilings(ON_CPU.model_copy(update={"rows": "3"}), rows.append)
    assert [(row.index, row.shape["what"]) for row in rows] == [(3, "launch")]


def test_a_cpu_is_asked_for_what_it_has() -> None:
    everything = ON_CPU.model_copy(update={"set": ceilings.EVERYTHING})
    found = ceilings.precisions(everything, CPU)
    assert found[0] == "fp32"
    assert {"fp64", "bf16"} <= set(found)
    assert not {"tf32", "fp8"} & set(found)


def test_a_set_that_it_does_not_have_is_a_sentence() -> None:
    with pytest.raises(WorkloadFailure) as failure:
        ceilings.run_ceilings(ON_CPU.model_copy(update={"set": "training"}), lambda _row: None)
    assert failure.value.kind == "bad_parameter"
    assert "'training'" in failure.value.message


def test_a_sum_is_compared_with_float64() -> None:
    prepared = copies.prepare_sum(Problem("copy", {"bytes": 2**20}), CPU)
    prepared.call(0)
    compared = prepared.compare()
    assert compared.error <= compared.bound < 0.01
    prepared.outputs(0)[0].add_(20.0)
    wrong = prepared.compare()
    assert wrong.error > wrong.bound


def slower_and_slower(log: list[float]) -> Prepared:
    """Calls that take as long as the clock says: each is noted, and none computes anything."""
    import time

    def call(_number: int) -> None:
        log.append(time.perf_counter())
        time.sleep(0.002 if log[-1] - log[0] < 0.1 else 0.006)

    return Prepared(call=call, copies=1, outputs=lambda _: [], compare=lambda: Compared(0, 0, ""))


def test_the_sustained_rate_is_that_of_the_last_half() -> None:
    """A chip that slows down after a while: the beginning is not in it."""
    log: list[float] = []
    worked = work(slower_and_slower(log), CPU, Stretch(0.3, counted=0.5), 1, Look(None, ""))
    assert min(worked.call_s) >= 0.006
    assert len(worked.call_s) < len(log)


def test_a_stretch_lasts_for_its_time_and_has_enough_samples() -> None:
    taken = samples(slower_and_slower([]), CPU, 0.05, 3, 2)
    assert taken[-1].ended_s >= 0.05
    assert all(isinstance(sample, Sample) and sample.call_s >= 0.002 for sample in taken)
    assert len(samples(slower_and_slower([]), CPU, 0.0, 6, 1)) == 6


def test_threads_that_had_the_cpu_for_a_part_of_the_time_are_a_note() -> None:
    assert say_crowded(0.97) == []
    (note,) = say_crowded(0.43)
    assert "43 %" in note
    assert any(words in note for words in DOUBTFUL)


# --- the command ----------------------------------------------------------------------------------------------------


def test_ceilings_are_measured_kept_and_shown_again(tmp_path: Path) -> None:
    book = str(tmp_path / "l.sqlite3")
    measured = ask("ceilings", "--device", "cpu", "--precision", "fp32", "--budget", "1s", "--ledger", book)
    assert measured.code == 0, measured.err
    for words in ("matrix, fp32", "memory, copied", "memory, read", "launch, one by one", "GB/s", "vendor", "stored"):
        assert words in measured.out
    assert "device" not in measured.out
    again = ask("ceilings", "--show", "--ledger", book)
    assert again.code == 0
    assert again.out == measured.out
    (one,) = json.loads(ask("ceilings", "--show", "--json", "--ledger", book).out)["ceilings"]
    assert one["device"] == "cpu"
    assert one["matrix"]["fp32"]["sustained_per_s"] > 1e8
    assert {limit["what"] for limit in one["limits"]} == {"matrix", "copy", "read", "launch"}
    runs = ask("results", "--workload", "op/ceilings", "--ledger", book)
    assert one["run_id"] in runs.out


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--precision", "fp8", "--device", "cpu"], "fp8"),
        (["--precision", "fp12"], "--precision"),
        (["--device", "tpu"], "--device"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(tmp_path: Path, typed: list[str], words: str) -> None:
    answer = ask("ceilings", *typed, "--ledger", str(tmp_path / "l.sqlite3"))
    assert answer.code == 2
    assert words in answer.err


@pytest.mark.parametrize("option", ["--threads", "--precision", "--budget"])
def test_what_only_measures_by_is_refused_where_nothing_is_measured(option: str, tmp_path: Path) -> None:
    answer = ask("ceilings", "--show", option, "1", "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert answer.code == Exit.WRONG_USE
    assert "--show" in answer.err
    assert option in answer.err
