"""The family op/ in a real worker: one process, one row after another, and what a row says."""

from collections.abc import Sequence

import pytest

from stackmark import events
from stackmark.events import OpRow, Result, Stream
from stackmark.medians import median_of
from stackmark.spec import Scalar, Spec
from stackmark.workloads.op.definition import OpParams, problems
from stackmark.workloads.op.impl.op import figure_of
from stackmark.workloads.op.problem import say_rows
from worker_process import environment, run_worker

QUICK: dict[str, Scalar] = {
    "device": "cpu", "precision": "fp32", "set": "training", "rows": "0-1", "budget": 0.0, "row_seconds": 0.05, "threads": 1,
}  # fmt: skip


def spec(op: str, **params: Scalar) -> Spec:
    complete = OpParams.model_validate({**QUICK, **params})
    return Spec(workload=f"op/{op}", params=complete.model_dump(mode="json"))


def streamed(wanted: Spec) -> Stream:
    stream = Stream()
    for line in run_worker(wanted, environment()).lines:
        stream.feed(line)
    return stream


def rows_of(stream: Stream) -> list[OpRow]:
    return [event.row for event in stream.events if isinstance(event, events.Row)]


def test_each_row_says_what_it_was_how_long_it_took_and_that_it_was_right() -> None:
    stream = streamed(spec("gemm"))
    rows = rows_of(stream)
    assert [row.index for row in rows] == [0, 1]
    for row in rows:
        assert row.shape["m"] == 1760
        assert row.call_s
        assert all(seconds > 0 for seconds in row.call_s)
        assert row.error is not None
        assert row.error_bound is not None
        assert row.error <= row.error_bound
        assert row.first_call_s is not None
        assert row.copies > 1  # a product of 12 MB would lie in the cache otherwise
        assert "same bits" in row.checked
        assert (row.precision, row.accumulate) == ("fp32", "fp32")
    result = stream.ended()
    assert isinstance(result, Result)
    assert (result.rows, result.rows_failed) == (2, 0)


def test_what_the_list_reached_can_be_computed_again_from_its_rows() -> None:
    stream = streamed(spec("gemm"))
    result = stream.ended()
    assert isinstance(result, Result)
    assert result.figure is not None
    rows = rows_of(stream)
    seconds = sum(median_of(row.call_s).value for row in rows)
    assert result.figure.unit == "TFLOP/s"
    assert result.figure.value == pytest.approx(sum(row.operations or 0 for row in rows) / seconds / 1e12)


def test_a_row_that_cannot_be_done_fails_with_a_reason_and_the_others_go_on() -> None:
    # In 8 bits the framework multiplies only some sizes: of DeepBench's products some are such, and some are not.
    found = problems("gemm", "training")
    even = [one.number("m") % 8 == one.number("k") % 8 == 0 for one in found]
    rows = say_rows([even.index(False), even.index(True)])
    stream = streamed(spec("gemm", precision="int8", rows=rows))
    by_index = {row.index: row for row in rows_of(stream)}
    assert by_index[even.index(False)].failure_kind == "bad_parameter"
    assert "8" in by_index[even.index(False)].failure_message
    assert by_index[even.index(True)].call_s
    result = stream.ended()
    assert isinstance(result, Result)
    assert (result.rows, result.rows_failed) == (2, 1)
    (flag,) = (flag for flag in result.flags if flag.startswith("rows-failed: "))
    assert "1 of 2" in flag


def test_a_list_of_which_no_row_can_be_done_is_a_failed_run() -> None:
    stream = streamed(spec("gemm", set="typed", rows="0", m=2**22, n=2**22, k=16))
    failed = stream.ended()
    assert isinstance(failed, events.Failed)
    assert failed.kind == "out_of_host_memory"
    assert "6.55e+04 GiB" in failed.message
    assert rows_of(stream)[0].failure_kind == "out_of_host_memory"


def rows_with(seconds: Sequence[float], operations: float | None = 2e9) -> list[OpRow]:
    return [
        OpRow(index=i, op="gemm", shape={}, precision="fp32", operations=operations, least_bytes=1e9, call_s=[one])
        for i, one in enumerate(seconds)
    ]


def test_the_figure_is_of_the_whole_list_and_not_the_mean_of_rates() -> None:
    assert figure_of(rows_with([0.001, 0.003])).value == pytest.approx(4e9 / 0.004 / 1e12)
    moved = figure_of(rows_with([0.001, 0.003], operations=None))
    assert moved.value == pytest.approx(2e9 / 0.004 / 1e9)
    assert moved.unit == "GB/s"


def test_threads_and_their_places_are_facts() -> None:
    facts = events.gathered_facts(streamed(spec("gemm", rows="0")).events)["op"]
    assert facts["threads"] == 1
    assert str(facts["pinned"]).startswith("pinned")
    assert int(str(facts["cache_bytes"])) > 0
