"""What a list shows: a row's time with its interval, the list's own rate, the table at every width, DeepBench's own table."""

import io
import math
import re
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats
from scipy.stats import t as student

from naming import missing, numbers
from op_streams import NO_ROOM, failed_row, op_row, op_spec, rows_for
from stackmark.events import OpRow, Phase, Row, Steps
from stackmark.ledger.importers.deepbench import DeepBenchImporter
from stackmark.ledger.importers.found import Found, Line
from stackmark.ledger.rows import RunRow
from stackmark.published.operators import NearPublished
from stackmark.published.table import Published
from stackmark.show.deepbench_table import PASSES, TABLES, deepbench_table
from stackmark.show.lists import list_lines, list_ratio_lines, print_below
from stackmark.show.live import LiveBar, PlainLines
from stackmark.show.operators import NO_TIMES, PublishedTimes, print_rows, say_times
from stackmark.verdict.operators import ListResult, compare_lists, over_runs, row_of
from stackmark.workloads.op.definition import problems, say_problem, sets_of
from stackmark.workloads.op.operators import OPERATORS

SPEC = op_spec(rows="0-4")
ESC = "\x1b"


def shown(result: ListResult, width: int = 0, published: dict[int, NearPublished] | None = None) -> str:
    """On a screen of so many columns, or in a pipe."""
    times = NO_TIMES
    if published:
        found = [{"P100": published[row.index]} if row.index in published else {} for row in result.rows]
        times = PublishedTimes({"P100": "P100 fp32"}, found)
    out = io.StringIO()
    screen = {"width": width, "force_terminal": True} if width else {}
    console = Console(file=out, highlight=False, emoji=False, **screen)  # type: ignore[arg-type]
    print_rows(result, console, times)
    print_below(console, "op/gemm", list_lines(result), "stackmark run op/gemm")
    return out.getvalue()


def plain(text: str) -> list[str]:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


# A row


def test_one_run_s_time_is_its_median_with_the_median_s_own_interval() -> None:
    samples = [1e-3 * (1 + 0.01 * i) for i in range(21)]
    row = row_of([op_row(SPEC, 0).model_copy(update={"call_s": samples[::-1]})])
    assert row.seconds == pytest.approx(median(samples))
    # The 6th smallest and the 6th largest of 21 enclose the median with 97.3 %, the 7th with 92.2 %.
    assert row.low_s == pytest.approx(samples[5])
    assert row.high_s == pytest.approx(samples[15])
    assert (row.known_by, row.runs, row.samples) == ("samples", 1, 21)


def test_several_runs_are_as_many_samples() -> None:
    times = [1.0e-3, 1.1e-3, 1.3e-3]
    row = row_of([op_row(SPEC, 0, seconds) for seconds in times])
    logs = np.log(times)
    reach = student.ppf(0.975, 2) * logs.std(ddof=1) / math.sqrt(3)
    assert row.seconds == pytest.approx(float(np.exp(logs.mean())))
    assert row.low_s == pytest.approx(float(np.exp(logs.mean() - reach)))
    assert row.high_s == pytest.approx(float(np.exp(logs.mean() + reach)))
    assert (row.known_by, row.runs, row.samples) == ("runs", 3, 63)


def test_a_row_s_rate_is_operations_over_time_and_a_memory_operator_s_bytes() -> None:
    gemm = row_of([op_row(SPEC, 0, 1e-3)])
    assert gemm.unit == "TFLOP/s"
    assert gemm.rate == pytest.approx(2 * 1760 * 16 * 1760 / 1e-3 / 1e12)
    norm = row_of([op_row(op_spec("layer-norm", "0", "transformer"), 0, 1e-3)])
    assert norm.unit == "GB/s"
    assert norm.rate == pytest.approx((norm.least_bytes or 0) / 1e-3 / 1e9)
    assert norm.tflop_per_s is None


def test_few_samples_have_a_time_and_no_interval() -> None:
    row = row_of([op_row(SPEC, 0, samples=3)])
    assert row.seconds == pytest.approx(1e-3)
    assert (row.low_s, row.half_width, row.known_by) == (None, None, "")


def test_a_row_that_failed_in_one_run_has_the_others_time_and_says_it() -> None:
    row = row_of([op_row(SPEC, 0, 1e-3), failed_row(SPEC, 0), op_row(SPEC, 0, 2e-3)])
    assert (row.runs, row.failed_runs) == (2, 1)
    assert row.seconds == pytest.approx(math.sqrt(2) * 1e-3)
    assert row.failure is not None
    assert row.failure.kind == "out_of_device_memory"


def test_the_share_of_a_limit_is_of_what_the_row_is_counted_in() -> None:
    row = row_of([op_row(SPEC, 0, 1e-3, limit_per_s=2 * 1760 * 16 * 1760 / 1e-3 * 2, limit="half of it")])
    assert row.limit_share == pytest.approx(0.5)


# A list


def test_the_list_s_rate_is_all_its_operations_over_the_sum_of_its_times() -> None:
    rows = rows_for(SPEC)
    result = over_runs([rows], range(5))
    assert result.aggregate is not None
    operations = sum(row.operations or 0 for row in rows)
    assert result.aggregate.rate_per_s == pytest.approx(operations / sum(map(seconds, rows)) / 1e12)
    assert result.geometric_mean == pytest.approx(
        math.exp(np.mean([math.log((row.operations or 0) / seconds(row) / 1e12) for row in rows]))
    )
    assert (result.whole, result.missing, result.counted) == (1, (), 5)


def seconds(row: OpRow) -> float:
    return median(row.call_s)


def test_runs_in_which_different_rows_failed_are_compared_by_the_rows_that_both_have() -> None:
    result = over_runs([rows_for(SPEC, failed=[4]), rows_for(SPEC, 2e-3, failed=[0])], range(5))
    assert result.counted == 3
    assert result.aggregate is not None
    common = rows_for(SPEC)[1:4]
    rate = sum(row.operations or 0 for row in common) / sum(map(seconds, common)) / 1e12
    assert result.aggregate.rate_per_s == pytest.approx(rate / math.sqrt(2))
    assert [row.index for row in result.failed] == [0, 4]


def test_a_run_that_is_not_whole_gives_its_rows_and_is_not_the_list() -> None:
    result = over_runs([rows_for(SPEC), rows_for(SPEC)[:2]], range(5))
    assert (result.whole, result.aggregate and result.aggregate.runs) == (1, 1)
    assert [row.runs for row in result.rows] == [2, 2, 1, 1, 1]


def test_a_list_of_failures_has_no_rate() -> None:
    result = over_runs([rows_for(SPEC, failed=range(5))], range(5))
    assert (result.aggregate, result.geometric_mean, result.total_s) == (None, None, 0)
    assert len(result.failed) == 5


def by_block(*seconds: float) -> dict[int, list[OpRow]]:
    """One run a block, each problem of which takes so long."""
    return {block: rows_for(SPEC, each) for block, each in enumerate(seconds)}


def test_two_arms_are_compared_row_by_row() -> None:
    slow = by_block(2e-3)
    found = compare_lists("host", "container", slow, {0: rows_for(SPEC)[1:]})
    assert found is not None
    assert found.geometric_mean == pytest.approx(2)
    assert len(found.rows) == 4
    ((name, line),) = list_ratio_lines([found])
    assert name == "rows"
    # One block tells no row from chance, so no row is named.
    assert missing(line, "container", "host", "4 problems", "2.0000") == []
    assert found.differing == ()
    assert compare_lists("a", "b", slow, {}) is None
    assert compare_lists("a", "b", slow, {1: rows_for(SPEC)}) is None


def test_rows_that_differ_are_named_after_correction_for_their_number() -> None:
    rng = np.random.default_rng(3)

    def arm(slow: float) -> dict[int, list[OpRow]]:
        """Five rows that spread by 1 % from block to block; the first of them is slower by `slow`."""
        return {block: [one_row(row, slow if row.index == 0 else 0.0) for row in rows_for(SPEC)] for block in range(6)}

    def one_row(row: OpRow, slow: float) -> OpRow:
        return row.model_copy(update={"call_s": [1e-3 * math.exp(0.01 * rng.standard_normal() + slow)]})

    found = compare_lists("host", "container", arm(0.0), arm(0.2))
    assert found is not None
    assert [row.index for row in found.differing] == [0]
    (row,) = found.differing
    assert row.low is not None
    assert row.high is not None
    assert row.low < math.exp(-0.2) < row.high
    tested = [row.p for row in found.rows if row.p is not None]
    assert [row.p_adjusted for row in found.rows] == pytest.approx(stats.false_discovery_control(tested))
    ((_, line),) = list_ratio_lines([found])
    assert missing(line, "1", "5 %", f"{row.ratio:.4g}") == []
    same = compare_lists("host", "container", arm(0.0), arm(0.0))
    assert same is not None
    ((_, line),) = list_ratio_lines([same])
    assert (same.differing, missing(line, "5 problems")) == ((), [])


# The table


@pytest.fixture(scope="module")
def whole_list() -> ListResult:
    """DeepBench's 160, three runs, two failed, one only in the second run."""
    spec = op_spec(rows="0-159", precision="bf16")
    runs = [rows_for(spec, 1e-4 * (1 + k / 100), [3, 7, *([9] if k == 1 else [])]) for k in range(3)]
    return over_runs(runs, range(160))


ROW = Published(
    "op/gemm", "gemm", "operator", "P100", "", 1, "", "fp32", None, 206.884, "ms", "", "2017", "DeepBench", "", "", {}
)
PUBLISHED = {
    i: NearPublished("P100", 0.206884, "fp32", ("K = 1530 instead of 1536",) if i % 2 else (), ROW) for i in range(160)
}


@pytest.mark.parametrize("width", [80, 120, 200])
def test_a_line_of_the_table_fits_on_the_screen(width: int, whole_list: ListResult) -> None:
    text = shown(whole_list, width, PUBLISHED)
    assert ESC in text
    lines = plain(text)
    repeat = next(i for i, line in enumerate(lines) if line.startswith("repeat: "))
    assert max(map(len, lines[:repeat])) <= width
    for index in range(160):
        assert any(line.split()[:1] == [str(index)] for line in lines), index


def test_columns_are_left_out_for_want_of_room_and_named(whole_list: ListResult) -> None:
    heads = {width: plain(shown(whole_list, width, PUBLISHED))[0].split() for width in (60, 80, 120, 200)}
    assert heads[60] == ["#", "problem", "time", "±", "TFLOP/s", "notes"]
    assert heads[80][:7] == ["#", "problem", "time", "±", "TFLOP/s", "P100", "fp32"]
    assert "kernel" in heads[200]
    narrow = plain(shown(whole_list, 80, PUBLISHED))
    assert any(missing(line, "GB/s", "first call", "kernel") == [] and "TFLOP/s" not in line for line in narrow)


def test_a_failed_row_stands_in_its_place_in_red_with_its_sentence(whole_list: ListResult) -> None:
    text = shown(whole_list, 120)
    assert f"{ESC}[31mfailed: {NO_ROOM}" in text
    lines = plain(text)
    at = next(i for i, line in enumerate(lines) if line.split()[:3] == ["3", "1760×128×1760", "NN"])
    assert lines[at].endswith(NO_ROOM)
    assert lines[at + 1].split()[:3] == ["4", "1760×7000×1760", "NN"]
    ninth = next(i for i, line in enumerate(lines) if line.startswith("  9  "))
    assert missing(lines[ninth + 1], "1", "3 runs", NO_ROOM) == []


def test_in_a_pipe_a_row_is_a_line_without_colour_and_with_every_column(whole_list: ListResult) -> None:
    text = shown(whole_list, published=PUBLISHED)
    assert ESC not in text
    lines = text.splitlines()
    assert lines[0].split() == ["#", "problem", "time", "±", "TFLOP/s", "P100", "fp32", "GB/s", "error", "first", "call",
                                "kernel", "notes"]  # fmt: skip
    assert [line.split()[0] for line in lines[1:5]] == ["0", "1", "2", "3"]
    assert any(line.startswith("rate        ") for line in lines)
    assert lines[-1].split() == ["repeat", "stackmark", "run", "op/gemm"]


def test_a_published_time_has_its_ratio_and_a_caveat_its_number(whole_list: ListResult) -> None:
    lines = shown(whole_list, published=PUBLISHED).splitlines()
    one = next(line for line in lines if line.startswith("  1  "))
    row = whole_list.rows[1]
    assert f"207 ms {say_times(0.206884 / (row.seconds or 1)):>6}" in one
    assert one.endswith("  1")
    assert any(line.startswith("note 1:") and missing(line, *PUBLISHED[1].caveats) == [] for line in lines)
    assert not next(line for line in lines if line.startswith("  2  ")).endswith("  1")


def test_sentences_that_differ_in_numbers_only_are_one_note() -> None:
    rows = [op_row(SPEC, i, notes=[f"unknown: 0.{i}"]) for i in range(5)]
    lines = shown(over_runs([rows], range(5))).splitlines()
    (note,) = [line for line in lines if line.startswith("note ")]
    assert missing(note, "unknown: 0.0", "5 rows") == []


def test_the_lines_under_the_table_say_where_the_time_went_and_what_failed(whole_list: ListResult) -> None:
    lines = dict(list_lines(whole_list))
    assert missing(lines["rate"], "157 problems") == []
    assert lines["rows"]
    assert missing(lines["failed"], "2 problems", "160", "1760×128×1760", "2048×64×2048", "1 problem") == []
    assert numbers(lines["launches"])[0] == 4
    assert lines["checked"].startswith("against float64")


def test_a_list_that_is_not_whole_says_so() -> None:
    result = over_runs([rows_for(SPEC)[:2]], range(5))
    whole = over_runs([rows_for(SPEC)], range(5))
    assert len(dict(list_lines(result))["rate"].split(";")) == len(dict(list_lines(whole))["rate"].split(";")) + 1


def test_collectives_have_three_bandwidths_each_under_its_name() -> None:
    spec = op_spec("all-reduce", "0-6")
    rows = [row.model_copy(update={"shape": {**row.shape, "ranks": 4}}) for row in rows_for(spec)]
    lines = shown(over_runs([rows], range(7)), 120).splitlines()
    text = "\n".join(plain("\n".join(lines)))
    assert missing(text.splitlines()[0], "algorithm", "bus", "DeepBench's") == []
    # 400,000 bytes in 1 ms: 0.4 GB/s; by 4 ranks 1.5 of it on each link, and four times it by DeepBench.
    assert missing(text, "100,000 floats", "4 ranks") == []
    assert re.findall(r" (\d\.\d{3})(?= )", plain("\n".join(lines))[1])[-3:] == ["0.400", "0.600", "1.600"]


def test_a_link_s_rows_stand_beside_what_it_allows() -> None:
    spec = op_spec("copy", "0-2", "transformer")
    rows = [row.model_copy(update={"limit_per_s": 64e9, "limit": "PCIe 5.0, 16 lanes"}) for row in rows_for(spec)]
    text = shown(over_runs([rows], range(3)))
    assert "limit" in text.splitlines()[0]
    assert "64.00" in text
    assert any(line.startswith("note ") and missing(line, "PCIe 5.0", "16 lanes") == [] for line in text.splitlines())


@pytest.mark.parametrize("op", [op for op, one in OPERATORS.items() if one.fields])
def test_every_problem_of_every_list_is_told_from_the_others_in_few_characters(op: str) -> None:
    if op == "transfer":
        one = say_problem(op, {"bytes": 2**26, "from": "node0", "to": "cuda:0", "how": "pinned"})
        assert missing(one, "node0", "cuda:0", "pinned", "64.0 MiB") == []
        return
    for name in sets_of(op):
        found = problems(op, name)
        said = [say_problem(op, problem.shape) for problem in found]
        assert max(map(len, said)) <= 44
        assert len(set(said)) == len({tuple(problem.shape.items()) for problem in found})


# DeepBench's own table


def imported(text: str) -> list[Found]:
    importer = DeepBenchImporter()
    found = [one for number, line in enumerate(text.splitlines(), 1) for one in importer.feed(Line(number, line, line))]
    return [*found, *importer.end()]


@pytest.mark.parametrize(
    ("op", "set_name"), [("gemm", "training"), ("gemm", "inference_server"), ("conv", "training"),
                         ("conv", "inference_device"), ("rnn", "training"), ("rnn", "inference_server")],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_our_table_is_read_back_by_the_importer(op: str, set_name: str, precision: str) -> None:
    # Whole shapes: eighteen passes of recurrent layers are six of them, twenty of convolutions eight.
    most = 18 if op == "rnn" else 20
    spec = op_spec(op, f"0-{min(len(problems(op, set_name)), most) - 1}", set_name, precision=precision)
    rows = rows_for(spec, 1.2345e-4)
    found = imported(deepbench_table(spec, over_runs([rows], [row.index for row in rows])).text)
    # Of a first layer the original prints 0 for the pass by inputs, which is no time.
    timed = [one for one in found if one.figure]
    assert [{k: v for k, v in one.params.items() if k != "set"} for one in timed] == [
        {**row.shape, "precision": precision} for row in rows
    ]
    assert [one.wall_s for one in timed] == pytest.approx([int(median(row.call_s) * 1e6) / 1e6 for row in rows])
    assert {one.workload for one in found} == {f"op/{op}"}


def test_the_all_reduce_table_knows_its_ranks_and_milliseconds() -> None:
    spec = op_spec("all-reduce", "0-6")
    rows = rows_for(spec, 0.0766)
    found = imported(deepbench_table(spec, over_runs([rows], range(7))).text)
    assert [one.params["floats"] for one in found] == [row.shape["floats"] for row in rows]
    assert {one.ranks for one in found} == {2}
    assert found[0].wall_s == pytest.approx(0.0766)


def test_a_gemm_row_is_the_very_line_that_the_original_prints() -> None:
    log = (Path(__file__).parent / "data" / "logs" / "deepbench" / "gemm_train_float.log").read_text().splitlines()
    rows = [op_row(SPEC, i, us * 1e-6 + 1e-7) for i, us in ((0, 55), (3, 112))]
    assert deepbench_table(SPEC, over_runs([rows], [0, 3])).text.splitlines() == log[:6]


@pytest.mark.parametrize("op", ["conv", "rnn"])
def test_a_pass_that_was_not_measured_is_no_time_of_zero(op: str) -> None:
    found = problems(op, "training")
    # A shape with three passes, and one of which a pass was not asked for.
    at = next(i for i in range(60) if [one.shape["pass"] for one in found[i : i + 6]] == 2 * list(PASSES))
    wanted = [at, at + 1, at + 2, at + 3, at + 5]
    spec = op_spec(op, f"{at}-{at + 5}")
    rows = [row for row in rows_for(spec, 1.2345e-4) if row.index in wanted]
    table = deepbench_table(spec, over_runs([rows], wanted))
    assert [one.params["pass"] for one in imported(table.text)] == ["forward", "backward-inputs", "backward-weights"]
    assert [int(number) for note in table.notes for number in re.findall(r"\d+", note)] == [at + 3, at + 5]


def test_a_failed_row_is_in_no_table_of_deepbench() -> None:
    for op in ("gemm", "conv", "rnn"):
        spec = op_spec(op, "0-2")
        assert f"op/{op}" in TABLES
        table = deepbench_table(spec, over_runs([rows_for(spec, failed=[0, 1, 2])], range(3))).text
        assert "Not Supported" not in table
        assert imported(table)[0].failure is not None


# While it runs


def told(watcher: PlainLines | LiveBar, rows: list[OpRow], of: int) -> None:
    watcher.run_begins("r-1", 1, 3, SPEC)
    watcher.event(Phase(seq=0, t=0, phase="measure", state="begin", expected_steps=of))
    for number, row in enumerate(rows, 1):
        watcher.event(Row(seq=0, t=0, row=row, done=number, of=of))


def test_in_a_log_a_failed_row_is_said_at_once_and_others_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    told(PlainLines(out), rows_for(op_spec(rows="0-159"), failed=[3]), 160)
    (line,) = out.getvalue().splitlines()
    assert line.split()[:5] == ["run", "1/3", "4/160", "1760×128×1760", "NN"]
    assert missing(line, "failed", NO_ROOM) == []
    monkeypatch.setattr("stackmark.show.live.ROWS_EVERY_S", 0.0)
    out = io.StringIO()
    told(PlainLines(out), rows_for(SPEC), 5)
    lines = out.getvalue().splitlines()
    assert lines[0].split()[:7] == ["run", "1/3", "1/5", "1760×16×1760", "NN", "99.12", "GFLOP/s,"]
    assert lines[0].endswith(" left")
    assert lines[-1].split() == ["run", "1/3", "5/5", "1760×7000×1760", "NN", "30.98", "TFLOP/s"]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_the_bar_counts_rows_with_their_name_and_rate_on_one_line(width: int) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, highlight=False, emoji=False)
    with LiveBar(console, unit_of=lambda _: "calls") as bar:
        told(bar, rows_for(op_spec("conv", "0-19"), failed=[2]), 20)
        bar.event(Steps(seq=0, t=0, phase="measure", first=0, step_s=[1.0]))
        bar._progress.refresh()
    drawn = [line for line in re.split(r"[\r\n]", _plain_text(out.getvalue())) if "20/20" in line]
    assert drawn
    assert max(map(len, drawn)) <= width
    assert "33 %" in drawn[-1]  # of the whole: the first of three runs
    assert NO_ROOM[:24] in " ".join(_plain_text(out.getvalue()).split())


def _plain_text(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_a_run_s_last_line_says_how_many_rows_it_did() -> None:
    out = io.StringIO()
    lines = PlainLines(out)
    told(lines, rows_for(SPEC, failed=[3]), 5)
    lines.run_ended(ended(status="done", rate_per_s=1.5), 1, 3)
    assert missing(out.getvalue().splitlines()[-1], "run 1/3", "r-1", "1.500 TFLOP/s", "5 rows", "1 failed") == []
    lines.run_ended(ended(status="failed"), 1, 3)
    assert missing(out.getvalue().splitlines()[-1], "r-1", STOPPED, "5 rows", "1 failed") == []


STOPPED = "it was interrupted"


def ended(**how: Any) -> RunRow:
    known: dict[str, Any] = {"id": "r-1", "rate_unit": "TFLOP/s", "failure_message": STOPPED}
    return RunRow.model_construct(**{**dict.fromkeys(RunRow.model_fields), **known, **how})
