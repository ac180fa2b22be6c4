"""The collectives: on real process groups of gloo, exactly right or failed; and what their times are called."""

import csv
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

import stackmark
from asking import ask_process
from collective_tricks import COLLECTIVES, HUGE, SIZES, exchanging, install
from stackmark.events import Failed, OpRow, Row, Stream
from stackmark.experiments.judging import judge
from stackmark.experiments.operator_list import rows_in
from stackmark.places.place import Outcome
from stackmark.ranks import NODE_RANKS_VARIABLE, Rank
from stackmark.spec import Request, Scalar, Spec, Task
from stackmark.verdict.collectives import DEEPBENCH, bandwidths, rows_apart
from stackmark.worker.run import Bench
from stackmark.worker.stream import Emitter
from stackmark.workloads.impl.nccl_log import transports
from stackmark.workloads.impl.process_group import outside_limit, require_group
from stackmark.workloads.op.definition import OpParams, bus_factor
from stackmark.workloads.op.impl import op
from stackmark.workloads.op.impl.collectives import Pattern, differences, exact_calls, make_exchange, period_of
from stackmark.workloads.workload import WorkloadFailure
from test_host_place import Notes
from test_ranks import failure, pids_of, place_run, read
from worker_process import (
    Finished,
    environment,
    finish,
    give,
    gone,
    read_until,
    run_worker,
    start,
    time_is_up_when,
)  # fmt: skip

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return environment(install(tmp_path_factory.mktemp("exchange")))


def all_reduce(floats: int = 1000, **params: Scalar) -> Spec:
    given: dict[str, Scalar] = {
        "device": "cpu", "precision": "fp32", "set": "typed", "rows": "0", "shape": f"floats={floats}", "budget": 0.0,
        "row_seconds": 0.1, "threads": 0,
    }  # fmt: skip
    complete = OpParams.model_validate({**given, **params})
    return Spec(workload="op/all-reduce", params=complete.model_dump(mode="json"), ranks=2)


def numbers(text: str) -> list[str]:
    """The numbers that a sentence names, in its order."""
    return re.findall(r"\b\d[\d.,]*\b|\bnan\b", text)


def rows_of(stream: Stream, rank: int) -> list[OpRow]:
    return [event.row for event in stream.of(rank) if isinstance(event, Row)]


# On a real group


@pytest.fixture(scope="module")
def everything(env: dict[str, str]) -> Finished:
    """Three ranks: no power of two, so that repeated sums run out of exact numbers soon."""
    return run_worker(exchanging("all", ranks=3), env)


def test_every_collective_is_exactly_right_in_every_precision(everything: Finished) -> None:
    stream = read(everything.lines)
    assert everything.code == 0, everything.stderr
    rows = rows_of(stream, 0)
    assert len(rows) == len(COLLECTIVES) * sum(map(len, SIZES.values()))
    failed = {(row.op, row.shape["floats"]): row.failure_message for row in rows if row.failure_kind}
    # One float cannot be a part of each of three; all else can be done.
    assert set(failed) == {(op, 1) for op in ("all-gather", "reduce-scatter", "all-to-all")}
    assert failed["all-gather", 1].startswith("rank 0: 1 ")
    for row in rows:
        if not row.failure_kind:
            assert row.shape["ranks"] == 3
            assert (row.error, row.error_bound) == (0.0, 0.0)
            assert row.call_s
            assert row.checked


def test_every_rank_takes_the_same_samples_and_has_its_own_times(everything: Finished) -> None:
    stream = read(everything.lines)
    by_rank = [rows_of(stream, rank) for rank in range(3)]
    for rows in zip(*by_rank, strict=True):
        # The slowest rank's, sample by sample, is one list at all of them; no rank's own median is above all of it.
        assert len({tuple(row.call_s) for row in rows}) == 1
        assert len({row.calls_each for row in rows}) == 1
        if not rows[0].failure_kind:
            assert all(0 < (row.own_s or 0) <= max(row.call_s) for row in rows)


def test_what_cannot_be_cut_into_equal_parts_says_what_was_moved(everything: Finished) -> None:
    row = next(r for r in rows_in(read(everything.lines).events) if (r.op, r.shape["floats"]) == ("all-gather", 1000))
    assert row.least_bytes == 999 * 4
    assert any("999" in note and "1,000" in note for note in row.notes)


def test_a_row_says_how_the_ranks_talk_and_that_no_link_limits_them(everything: Finished) -> None:
    row = rows_in(read(everything.lines).events)[0]
    assert any(note.startswith("gloo ") and "TCP" in note and note.endswith(" lo") for note in row.notes)
    assert any(note.startswith("3 ranks ") for note in row.notes)
    assert (row.limit_per_s, bool(row.limit)) == (None, True)


def test_one_rank_s_wrong_element_fails_the_row_at_all_ranks_and_the_list_goes_on(env: dict[str, str]) -> None:
    finished = run_worker(exchanging("mixed"), env)
    stream = read(finished.lines)
    assert finished.code == 0, finished.stderr
    for rank in range(2):
        good, huge, wrong, last = rows_of(stream, rank)
        assert (good.failure_kind, last.failure_kind) == ("", "")
        assert (huge.failure_kind, wrong.failure_kind) == ("out_of_host_memory", "wrong_result")
        assert huge.failure_message.startswith("rank 0: ")
        assert huge.shape["floats"] == HUGE
        assert wrong.failure_message.startswith("rank 1: 1 of 1,234 ")
        assert " 17 " in wrong.failure_message


def test_a_rank_that_dies_in_a_collective_is_named_and_the_other_is_not_blamed(env: dict[str, str]) -> None:
    finished = run_worker(exchanging("dies"), env)
    closed = failure(finished)
    assert (closed.rank, closed.kind, "SIGKILL" in closed.message) == (1, "rank_died", True)
    # What it did before is kept.
    assert len(rows_of(read(finished.lines), 0)) == 1
    end = judge(read(finished.lines), Outcome(finished.code))
    assert end.failure_kind == "rank_died"
    assert "rank 1" in str(end.failure_message)
    assert "SIGKILL" in str(end.failure_message)


def test_a_rank_that_stands_still_in_a_collective_is_ended_by_the_time_limit(env: dict[str, str]) -> None:
    class Stopping(Notes):
        stopped = False

        def line(self, text: str) -> None:
            super().line(text)
            if '"event":"phase"' in text and '"phase":"measure"' in text and '"rank":1' in text:
                os.kill(rank_pid(self.lines, 1), signal.SIGSTOP)
                self.stopped = True

    notes = Stopping()
    with time_is_up_when(lambda: notes.stopped):
        outcome = place_run(all_reduce(row_seconds=600.0), env, notes, limit_s=600)
    assert outcome.failure is not None
    assert (outcome.failure.kind, "600 s" in outcome.failure.message) == ("timeout", True)
    assert gone([notes.pid, *pids_of(notes.lines)])


def rank_pid(lines: list[str], rank: int) -> int:
    return next(int(e["pid"]) for e in map(json.loads, lines) if e["event"] == "hello" and e["rank"] == rank)


def test_ctrl_c_ends_a_collective_at_all_ranks(env: dict[str, str]) -> None:
    process = start(env)
    give(process, Task(do="run", spec=all_reduce(row_seconds=600.0)))
    before = read_until(process, lambda event: event["event"] == "phase" and event["phase"] == "measure")
    process.send_signal(signal.SIGINT)
    finished = finish(process, before)
    assert finished.code == 130
    said = [event for event in read(finished.lines).events if isinstance(event, Failed)]
    assert "interrupted" in {event.kind for event in said}
    assert gone(pids_of(finished.lines))


def test_a_person_runs_it_and_finds_it_in_the_ledger(tmp_path: Path) -> None:
    answer = ask_process(
        tmp_path / "ledger.sqlite3", "run", "op/all-reduce", "--ranks", "2", "--device", "cpu", "--shape", "floats=1000",
        "--row-seconds", "0.1", "--runs", "1", "--json",
    )  # fmt: skip
    assert answer.code == 0, answer.err
    made = json.loads(answer.out)["results"][0]
    assert made["spec"]["ranks"] == 2
    text = json.dumps(made)
    assert '"floats": 1000' in text
    shown = ask_process(tmp_path / "ledger.sqlite3", "results")
    assert "op/all-reduce" in shown.out


# Exactly


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8, 16])
def test_sums_stay_exact_as_often_as_an_all_reduce_is_repeated(dtype: torch.dtype, size: int) -> None:
    """Added up in two orders, in the type itself: both give what is expected, to the last repetition that is allowed."""
    period = period_of(size, dtype)
    ranks = [Rank(number, size, number, size) for number in range(size)]
    pattern = Pattern(period, ranks[0], dtype, CPU)
    parts = [pattern.of(number, 5, 100) for number in range(size)]
    total = pattern.total(5, 100)
    for calls in range(1, min(exact_calls(size, period, dtype), 200) + 1):
        forward, backward = parts[0].clone(), parts[-1].clone()
        for part in parts[1:]:
            forward += part
        for part in reversed(parts[:-1]):
            backward += part
        assert differences(forward, total, float(size) ** (calls - 1)) == ""
        assert torch.equal(forward, backward)
        parts = [forward] * size


def test_every_rank_contributes_something_else() -> None:
    pattern = Pattern(61, Rank(0, 4, 0, 4), torch.float32, CPU)
    parts = [pattern.of(number, 0, 500) for number in range(4)]
    assert all(bool((a != b).all()) for a in parts for b in parts if a is not b)
    assert torch.equal(sum(parts[1:], parts[0]), pattern.total(0, 500))
    # A piece that is taken twice in the place of another changes the sum.
    wrong = differences(parts[0] + parts[0] + parts[2] + parts[3], pattern.total(0, 500))
    assert numbers(wrong)[:2] == ["500", "500"]


def test_a_pattern_goes_on_where_a_part_begins() -> None:
    pattern = Pattern(7, Rank(0, 2, 0, 2), torch.float32, CPU)
    assert torch.equal(pattern.of(1, 0, 20)[13:], pattern.of(1, 13, 7))


def test_the_first_wrong_element_is_named_and_all_are_counted() -> None:
    wanted = torch.ones(5_000_000)
    got = wanted.clone()
    got[4_999_999] = 3
    got[4_500_000] = float("nan")
    assert numbers(differences(got, wanted)) == ["2", "5,000,000", "4,500,000", "nan", "1"]
    assert differences(wanted, wanted) == ""


def test_sums_that_a_type_cannot_hold_are_refused() -> None:
    with pytest.raises(WorkloadFailure) as caught:
        period_of(32, torch.bfloat16)
    assert caught.value.kind == "bad_parameter"
    assert "bfloat16" in caught.value.message
    assert " 32 " in caught.value.message


def test_too_few_floats_for_the_ranks_are_a_sentence() -> None:
    with pytest.raises(WorkloadFailure) as caught:
        make_exchange("all-to-all", 3, Rank(0, 4, 0, 4), torch.float32, CPU, 1)
    assert caught.value.kind == "bad_parameter"
    assert numbers(caught.value.message) == ["3", "4"]


# Devices and links


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(WorkloadFailure) as caught:
        require_group(torch.device("cuda:0"), 4)
    assert numbers(caught.value.message) == ["4", "2"]
    assert "--ranks 2" in caught.value.hint
    assert "--device cpu" in caught.value.hint


def test_a_probe_counts_the_gpus_of_one_node_for_the_ranks_of_that_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    params = OpParams.model_validate({**all_reduce().params, "device": "cuda:0"})
    monkeypatch.setattr(op, "choose", lambda _request: (params, {}))
    request = Request(workload="op/all-reduce", params={}, ranks=16)
    with pytest.raises(WorkloadFailure, match="16 ranks"):
        op.probe(request, Bench(Emitter(2)))
    monkeypatch.setenv(NODE_RANKS_VARIABLE, "8")
    assert op.probe(request, Bench(Emitter(2)))[0] == params


def test_a_torch_without_its_part_for_groups_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_available", lambda: False)
    with pytest.raises(WorkloadFailure) as caught:
        require_group(CPU, 2)
    assert (caught.value.kind, "torch.distributed" in caught.value.message) == ("missing_package", True)


# Lines of NCCL's log as people have posted them.
NCCL_LOG = """
gpu-06:4015539:4015652 [0] NCCL INFO Channel 07/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA
gpu-06:4015540:4015653 [1] NCCL INFO Channel 00/0 : 3[1] -> 2[0] via P2P/CUMEM
gpu-06:4015540:4015653 [1] NCCL INFO Channel 02/0 : 3[1] -> 2[0] via P2P/CUMEM
gpu-05:1789225:1789736 [1] NCCL INFO Channel 01 : 1[1] -> 0[0] via SHM/direct/direct
gpu-05:1789225:1789736 [1] NCCL INFO Connected all rings
"""


def test_the_ways_of_nccl_s_channels_are_read_from_its_log() -> None:
    assert transports(NCCL_LOG) == ["via NET/IB/GDRDMA", "via P2P/CUMEM", "via SHM/direct/direct"]
    assert transports("") == []


class Nvml:
    """A stand-in for the driver's library, of a GPU with so many NVLinks."""

    NVMLError = OSError

    def __init__(self, links: int) -> None:
        self._links = links

    def __getattr__(self, name: str) -> Any:
        answers = {
            "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlDeviceGetCount": lambda: 1,
            "nvmlDeviceGetHandleByIndex": lambda _i: "gpu", "nvmlDeviceGetUUID": lambda _h: "GPU-1",
            "nvmlDeviceGetName": lambda _h: "NVIDIA H200", "nvmlDeviceGetCurrPcieLinkGeneration": lambda _h: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda _h: 16, "nvmlDeviceGetNvLinkState": self._state,
        }  # fmt: skip
        if name not in answers:
            raise AttributeError(name)
        return answers[name]

    def _state(self, _handle: object, link: int) -> int:
        if link >= self._links:
            raise OSError("no such link")
        return 1


def test_the_limit_of_a_gpu_is_all_its_nvlinks_or_its_pcie() -> None:
    linked = outside_limit("GPU-1", (9, 0), Nvml(18))
    assert linked.bytes_per_s == 18 * 25e9
    assert linked.words.startswith("18 NVLinks ")
    bare = outside_limit("GPU-1", (9, 0), Nvml(0))
    assert bare.bytes_per_s == pytest.approx(63.0e9, rel=0.001)
    assert bare.words.startswith("PCIe 5.0 ")
    unknown = outside_limit("GPU-1", (11, 0), Nvml(4))
    assert unknown.bytes_per_s is None


# What a time is called


def test_bus_bandwidth_has_the_factors_of_nccl_tests() -> None:
    """doc/PERFORMANCE.md, summary: 2*(n-1)/n, (n-1)/n, (n-1)/n, (n-1)/n, 1."""
    factors = {op: bus_factor(op, 8) for op in COLLECTIVES}
    assert factors == {
        "all-reduce": 14 / 8, "all-gather": 7 / 8, "reduce-scatter": 7 / 8, "all-to-all": 7 / 8, "broadcast": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("op", "ranks", "size", "time_us", "algbw", "busbw"),
    [
        # Printed by all_reduce_perf on 16 H100s, and by all_reduce_perf and alltoall_perf on 64 V100s (nccl-tests, issue 78).
        ("all-reduce", 16, 8589934592, 47535, 180.71, 338.82),
        ("all-reduce", 16, 1048576, 203.2, 5.16, 9.68),
        ("all-reduce", 64, 268435456, 122131, 2.20, 4.33),
        ("all-to-all", 64, 268435456, 520935, 0.52, 0.51),
    ],
)
def test_a_line_that_nccl_tests_printed_is_computed_alike(
    op: str, ranks: int, size: int, time_us: float, algbw: float, busbw: float
) -> None:
    found = bandwidths(op, ranks, size, time_us / 1e6)
    assert found.algorithm_gb_per_s == pytest.approx(algbw, abs=0.0051)
    assert found.bus_gb_per_s == pytest.approx(busbw, abs=0.0151)  # its time was rounded before it was printed


def test_deepbench_s_figure_is_kept_under_its_own_name() -> None:
    """100,000 floats, 2 ranks, 0.09 ms were published as 8.888888889; 8 ranks, 0.22 ms as 14.545454545."""
    assert bandwidths("all-reduce", 2, 4e5, 0.09e-3).by_name()[DEEPBENCH] == pytest.approx(8.888888889)
    assert bandwidths("all-reduce", 8, 4e5, 0.22e-3).by_name()[DEEPBENCH] == pytest.approx(14.545454545)
    assert DEEPBENCH == "DeepBench's Gigabytes/sec"


def row(rank_own_s: float | None = None, index: int = 0, **more: Any) -> OpRow:
    given: dict[str, Any] = {
        "index": index, "op": "all-reduce", "shape": {"floats": 1000, "ranks": 4}, "precision": "fp32",
        "least_bytes": 4000.0, "call_s": [2e-6], "own_s": rank_own_s,
    }  # fmt: skip
    return OpRow(**{**given, **more})


def test_the_share_of_a_link_is_that_of_the_bus_bandwidth() -> None:
    limit = 10e9 / bus_factor("all-reduce", 4)  # a link of 10 GB/s, in bytes of the array
    found = bandwidths("all-reduce", 4, 4000.0, 2e-6, limit, "PCIe")
    assert found.algorithm_gb_per_s == pytest.approx(2.0)
    assert found.bus_gb_per_s == pytest.approx(3.0)
    assert found.limit_bus_gb_per_s == pytest.approx(10.0)
    assert found.limit_share == pytest.approx(0.3)


def test_the_rank_that_is_most_often_late_is_named() -> None:
    apart = {0: [row(1e-3), row(1e-3, 1), row(1e-3, 2)], 1: [row(1.05e-3), row(1.5e-3, 1), row(1.2e-3, 2)]}
    (flag,) = rows_apart(apart)
    kind, _, said = flag.partition(": ")
    assert (kind, numbers(said)) == ("stragglers", ["1", "10", "2", "3", "1.50", "0", "1.00"])
    assert rows_apart({0: [row(1e-3)], 1: [row(1.09e-3)]}) == []
    # The first rank of a broadcast only sends.
    assert rows_apart({0: [row(1e-3, op="broadcast")], 1: [row(9e-3, op="broadcast")]}) == []


def test_all_published_rows_can_be_told_in_all_three() -> None:
    """Of the 203 that ship with the ledger, each has its floats, its ranks and its time; none is dropped."""
    data = Path(stackmark.__file__).parent / "published/data/published_deepbench.csv"
    found = 0
    with data.open(newline="") as file:
        for line in csv.DictReader(file):
            if line["workload"] == "op/all-reduce":
                extra = json.loads(line["extra"])
                told = bandwidths("all-reduce", extra["ranks"], 4 * extra["floats"], float(line["value"]) / 1e3)
                assert told.algorithm_gb_per_s < told.bus_gb_per_s * 1.0000001 < told.deepbench_gb_per_s
                found += 1
    assert found == 203
