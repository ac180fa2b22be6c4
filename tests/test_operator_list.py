"""Lists in the lab: what a cut off run has done is kept, what is missing is taken later, and failed rows are failed rows.

Streams are made by hand, row by row, and played back through the same door as a worker's.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue

import op_streams
from op_streams import cut_stream, list_stream, op_spec, probe_stream, rows_for
from refusing import refused
from stackmark.errors import Exit
from stackmark.events import Failed
from stackmark.experiments import operator_list
from stackmark.experiments.cleaning import clean_up
from stackmark.experiments.compare import PRIMER_ROWS, primer_spec
from stackmark.experiments.examine import examine
from stackmark.experiments.list_specs import check_list, is_list, rows_of_spec
from stackmark.experiments.operator_list import (
    ListedRuns,
    carry_out,
    go_through,
    list_doubts,
    pieces_left,
    read_list,
    start,
)
from stackmark.experiments.recorder import KEEP_EVERY_S, Listener, Silent
from stackmark.failures import PlaceFailure
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger
from stackmark.places.place import Outcome, Watch
from stackmark.spec import Request, Spec, Task
from stackmark.verdict.operators import over_runs
from stackmark.workloads.op.problem import read_rows

SPEC = op_spec(rows="0-4")
REQUEST = Request(workload="op/gemm", params={"rows": "0-4"})


class Bench:
    """A place that does the rows it is asked for. `dies_at` are rows that end their process, `failing` give no number."""

    name = "bench"

    def __init__(
        self, dies_at: Sequence[int] = (), failing: Sequence[int] = (), stops_after: int | None = None
    ) -> None:
        self.dies_at, self.failing, self.stops_after = set(dies_at), set(failing), stops_after
        self.asked: list[str] = []

    def options(self) -> dict[str, JsonValue]:
        return {}

    def not_enforced(self, spec: Spec, facts: Any) -> list[str]:
        return []

    def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
        watch.started({})
        if task.spec is None:
            self._tell(watch, probe_stream(SPEC))
            return Outcome(0)
        rows = str(task.spec.params["rows"])
        self.asked.append(rows)
        numbers = read_rows(rows, 1000)
        every = rows_for(task.spec, failed=self.failing)
        if self.stops_after is not None:
            self._tell(watch, cut_stream(every[: self.stops_after], len(every)))
            return Outcome(130, PlaceFailure("interrupted", "the run was interrupted"), (), KeyboardInterrupt())
        fatal = next((place for place, number in enumerate(numbers) if number in self.dies_at), None)
        if fatal is not None:
            self._tell(watch, cut_stream(every[:fatal], len(every)))
            return Outcome(-11, PlaceFailure("killed", "the worker was ended by SIGSEGV"))
        if all(row.failure_kind for row in every):
            failed = Failed(seq=0, t=0, kind="out_of_device_memory", message="no row gave a number")
            self._tell(watch, cut_stream(every, len(every), failed))
            return Outcome(13)
        self._tell(watch, list_stream(every))
        return Outcome(0, live=False)

    @staticmethod
    def _tell(watch: Watch, lines: Sequence[str]) -> None:
        for line in lines:
            watch.line(line)


@pytest.fixture
def book(tmp_path: Path) -> Any:
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as ledger:
        yield ledger


def measure(book: Ledger, place: Bench, runs: int | None = None) -> ListedRuns:
    started = start(REQUEST, place, book, Silent(), runs, "stackmark run op/gemm")
    go_through(started, place, book, Silent(), None)
    return read_list(book, started.experiment)


def last(book: Ledger) -> Experiment:
    return book.experiment("last")


def resume(book: Ledger, place: Bench, monkeypatch: pytest.MonkeyPatch, **more: bool) -> ListedRuns:
    monkeypatch.setattr(operator_list, "find_place", lambda *_: place)
    experiment = last(book)
    carry_out(experiment, book, Silent(), **more)
    return read_list(book, experiment)


def test_a_list_is_gone_through_three_times(book: Ledger) -> None:
    place = Bench()
    listed = measure(book, place)
    assert place.asked == ["0-4"] * 3
    assert (listed.whole, listed.result.whole, len(listed.result.rows)) == (True, 3, 5)
    assert {row.runs for row in listed.result.rows} == {3}
    assert listed.exit_code == Exit.DONE


def test_a_row_that_fails_stops_no_other(book: Ledger) -> None:
    listed = measure(book, Bench(failing=[2]), runs=2)
    assert [row.index for row in listed.result.failed] == [2]
    assert [row.index for row in listed.result.good] == [0, 1, 3, 4]
    assert (listed.whole, listed.exit_code) == (True, Exit.PART_FAILED)
    assert {run.status for run in listed.runs} == {"done"}


def test_where_no_row_gives_a_number_the_run_has_failed(book: Ledger) -> None:
    listed = measure(book, Bench(failing=range(5)), runs=2)
    assert [run.status for run in listed.runs] == ["failed"]
    assert len(listed.result.failed) == 5
    assert listed.exit_code == Exit.RUN_FAILED


def test_an_interrupted_list_keeps_its_rows_and_goes_on_with_the_others(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(book, Bench(stops_after=2), runs=2)
    listed = read_list(book, last(book))
    assert [row.index for row in listed.result.rows] == [0, 1]
    assert (listed.result.missing, listed.whole, listed.exit_code) == ((2, 3, 4), False, Exit.RUN_FAILED)
    place = Bench()
    again = resume(book, place, monkeypatch)
    assert place.asked == ["2-4", "0-4"]
    assert (again.whole, again.result.whole) == (True, 2)
    assert [len(one.pieces) for one in again.passes] == [2, 1]
    assert {row.runs for row in again.result.rows} == {2}
    assert again.exit_code == Exit.DONE


def test_a_whole_list_has_nothing_to_go_on_with(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(book, Bench(), runs=1)
    place = Bench()
    assert resume(book, place, monkeypatch).whole
    assert place.asked == []


def test_a_row_that_ended_its_process_is_taken_last_and_alone(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = measure(book, Bench(dies_at=[2]), runs=1)
    assert [row.index for row in listed.result.rows] == [0, 1]
    assert pieces_left(listed) == [(0, [3, 4]), (0, [2])]
    place = Bench()
    assert resume(book, place, monkeypatch).whole
    assert place.asked == ["3-4", "2"]


def test_a_row_that_ends_its_process_alone_too_has_failed_in_the_run_s_words(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(book, Bench(dies_at=[2]), runs=1)
    listed = resume(book, Bench(dies_at=[2]), monkeypatch)
    assert (listed.whole, listed.exit_code) == (True, Exit.PART_FAILED)
    (row,) = listed.result.failed
    assert row.index == 2
    assert row.shape == {"m": 1760, "n": 64, "k": 1760, "a_t": False, "b_t": False}
    assert row.failure is not None
    assert (row.failure.kind, "SIGSEGV" in row.failure.message) == ("killed", True)
    place = Bench()
    resume(book, place, monkeypatch)
    assert place.asked == []
    assert resume(book, place, monkeypatch, failed=True).result.failed == ()
    assert place.asked == ["2"]


def test_failed_rows_are_tried_again_when_asked_for_and_once(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(book, Bench(failing=[1, 3]), runs=2)
    place = Bench(failing=[3])
    listed = resume(book, place, monkeypatch, failed=True)
    assert place.asked == ["1,3", "1,3"]
    assert [row.index for row in listed.result.failed] == [3]


def test_a_wrong_result_is_not_forgotten_when_a_later_run_was_right(
    book: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = op_streams.failed_row(SPEC, 1, "off by 0.3").model_copy(update={"failure_kind": "wrong_result"})
    monkeypatch.setattr(op_streams, "failed_row", lambda *_: wrong)
    measure(book, Bench(failing=[1]), runs=1)
    listed = resume(book, Bench(), monkeypatch, failed=True)
    (row,) = listed.result.failed
    assert (row.runs, row.failed_runs, row.seconds is not None) == (1, 1, True)
    assert listed.exit_code == Exit.PART_FAILED


def test_what_brings_no_row_further_is_given_up(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    class Broken(Bench):
        def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
            self.asked.append(str(task.spec.params["rows"]) if task.spec else "")
            return Outcome(1, PlaceFailure("crash", "no GPU any more"))

    class Hearing(Silent):
        def notice(self, sentence: str) -> None:
            said.append(sentence)

    measure(book, Bench(dies_at=[2]), runs=1)
    place = Broken()
    monkeypatch.setattr(operator_list, "find_place", lambda *_: place)
    carry_out(last(book), book, Hearing())
    assert place.asked == ["3-4"] * operator_list.FRUITLESS
    assert "stackmark show" in said[-1]


def test_a_list_of_another_machine_is_not_gone_on_with(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    measure(book, Bench(dies_at=[2]), runs=1)
    monkeypatch.setattr(operator_list, "machine_name", lambda: "another")
    with refused("--anyway"):
        resume(book, Bench(), monkeypatch)
    assert resume(book, Bench(), monkeypatch, anyway=True).whole


def test_rows_of_an_invalid_run_are_no_result(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    original = op_streams.list_stream
    monkeypatch.setitem(globals(), "list_stream", lambda rows: original(rows, invalid=["an XID error"]))
    listed = measure(book, Bench(), runs=1)
    assert (listed.runs[0].status, listed.result.rows, listed.whole) == ("invalid", (), False)
    monkeypatch.setitem(globals(), "list_stream", original)
    assert resume(book, Bench(), monkeypatch).whole


def test_rows_are_stored_while_the_run_goes_on(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever kills the driver loses the rows of a few seconds."""
    ages: list[int] = []

    class Slow(Bench):
        def run(self, task: Task, watch: Watch, *, mark: str, time_limit_s: float | None = None) -> Outcome:
            if task.spec is None:
                return super().run(task, watch, mark=mark)
            assert isinstance(watch, Listener)
            lines = list_stream(rows_for(task.spec))
            for line in lines:
                watch.kept_s -= KEEP_EVERY_S
                watch.line(line)
                ages.append(len(book.stream(mark)))
            raise SystemExit  # as if killed: nothing below ends the run

    with pytest.raises(SystemExit):
        measure(book, Slow(), runs=1)
    assert max(ages) == len(list_stream(rows_for(SPEC))) - 2  # up to the last row


def test_the_rows_of_a_lost_run_are_kept(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    started = start(REQUEST, Bench(), book, Silent(), 1, "")

    def killed(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(Ledger, "finish", killed)
    monkeypatch.setattr("stackmark.experiments.recorder.KEEP_EVERY_S", 0.0)
    with pytest.raises(MemoryError):
        go_through(started, Bench(), book, Silent(), None)
    monkeypatch.undo()
    monkeypatch.setattr("stackmark.experiments.cleaning.may_live", lambda _: False)
    assert len(clean_up(book)) == 1
    listed = read_list(book, started.experiment)
    assert listed.runs[0].failure_kind == "lost"
    assert len(listed.result.rows) == 5
    place = Bench()
    assert resume(book, place, monkeypatch).whole
    assert place.asked == []


def test_a_later_piece_of_a_list_is_no_run_of_an_arm(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rate is that of a part."""
    with pytest.raises(KeyboardInterrupt):
        measure(book, Bench(stops_after=2), runs=2)
    resume(book, Bench(), monkeypatch)
    examined = examine(book, last(book).id)
    assert [(run.status, run.counted) for run in examined.runs] == [("failed", False), ("done", False), ("done", True)]


def test_arms_that_timed_different_problems_are_not_of_one_list() -> None:
    whole, part = (over_runs([rows_for(SPEC, failed=bad)], range(5)) for bad in ([], [3]))
    assert list_doubts(["host", "container"], [whole, whole]) == []
    assert list_doubts(["host", "container"], [part, part]) == []
    (said,) = list_doubts(["host", "container"], [whole, part])
    assert all(named in said for named in ("1 problem", "container", "--rows"))
    fewer = over_runs([rows_for(SPEC)[:2]], range(2))
    (said,) = list_doubts(["host", "host, rows 0-1"], [whole, fewer])
    assert re.findall(r"(\d) problems in (host(?:, rows 0-1)?)", said) == [("5", "host"), ("2", "host, rows 0-1")]


def test_a_primer_of_a_list_takes_a_few_rows_for_a_moment() -> None:
    primer = primer_spec(op_spec(rows="5-99"))
    assert rows_of_spec(primer) == (5, 6, 7)
    assert len(rows_of_spec(primer)) == PRIMER_ROWS
    assert primer.params["row_seconds"] == 0.1


def test_only_operators_are_lists() -> None:
    assert is_list("op/gemm")
    assert not is_list("train/resnet50")
    assert not is_list("gone/away")


@pytest.mark.parametrize(
    ("op", "params", "named"),
    [
        ("gemm", {"set": "trainin"}, ["trainin", "training"]),
        ("gemm", {"rows": "0-160"}, ["row 160"]),
        ("gemm", {"rows": "9-3"}, ["9-3"]),
        ("conv", {"m": 4}, ["--m", "op/gemm"]),
        ("gemm", {"m": 4, "n": 4}, ["op/gemm", "k"]),
        ("gemm", {"m": 4, "n": 4, "k": 4, "shape": "m=1"}, ["--shape", "--m"]),
        ("gemm", {"m": 4, "n": 4, "k": 4, "set": "training"}, ["--set"]),
        ("gemm", {"m": 4, "n": 4, "k": 4, "rows": "1"}, ["row 1"]),
        ("gemm", {"set": "typed"}, ["typed"]),
        ("conv", {"shape": "w=1,x"}, ["'x'"]),
        ("transfer", {"shape": "bytes=4"}, ["--shape"]),
    ],
)
def test_what_no_list_has_is_refused_without_a_worker(op: str, params: dict[str, Any], named: list[str]) -> None:
    with refused(*named):
        check_list(Request(workload=f"op/{op}", params=params))
