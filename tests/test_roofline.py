"""Runs against the limits of their machine: the words, what is drawn, and the line beside every result."""

import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asking import ask
from naming import missing, numbers
from op_streams import list_stream, op_spec, rows_for
from recorded import load
from stackmark import events, ids
from stackmark.errors import Exit
from stackmark.events import OpRow, Result, write_event
from stackmark.experiments.driver import machine_name
from stackmark.experiments.examine import examine
from stackmark.experiments.limits import limits_of_run, work_of
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.show.report.html import render_html
from stackmark.show.report.markdown import render_markdown
from stackmark.show.roofline import CALLED, labels, roofline_json, standing_json
from stackmark.show.roofline_plot import _apart, roofline_png, roofline_svg
from stackmark.spec import Scalar, Spec
from stackmark.verdict.ceilings import Ceilings, Rate
from stackmark.verdict.roofline import (
    NO_CEILINGS,
    Point,
    Roofline,
    Standing,
    Work,
    doubts,
    say_bound,
    say_standing,
    stand,
)
from stackmark.workloads.op.definition import sets_of

# An H200 as seen by hand: sustained and cold matrix rates, and a copy.
H200 = Ceilings(
    matrix={"bf16": Rate(790e12, 665e12), "tf32": Rate(410e12, 350e12), "fp32": Rate(51e12, 50.5e12)},
    copy_bytes_per_s=4.3e12,
    chip="NVIDIA H200",
    device="cuda:0",
    measured_unix_s=1.7631e9,
    run_id="r-01k9",
)
# ResNet-50 at 7,200 images a second.
RESNET = Work(7200.0, 24.3e9, "bf16", least_bytes=1.3e8, called_bytes=4.2e8)


def standing(matrix: float, least: float | None, called: float | None = None, *, compiled: bool = False) -> Standing:
    """One with these shares of the H200's bf16 rate and of its copy bandwidth."""
    work = Work(
        1.0,
        665e12 * matrix,
        "bf16",
        4.3e12 * least if least is not None else None,
        4.3e12 * called if called is not None else None,
        compiled,
    )
    return stand(work, H200)


# --- words ----------------------------------------------------------------------------------------------------------------


def test_an_eager_run_is_judged_by_what_its_operators_are_called_with() -> None:
    found = stand(RESNET, H200)
    assert found.bound == "memory"
    assert missing(say_standing(found), "70 %", "22 %", "26 %", "bf16") == []


def test_of_a_compiled_run_the_bytes_lie_between_the_two_counts() -> None:
    found = stand(replace(RESNET, compiled=True), H200)
    assert found.bound == "probably memory"
    assert {22.0, 70.0} <= {*numbers(say_standing(found))}


@pytest.mark.parametrize(
    ("shares", "compiled", "bound"),
    [
        ((0.22, 0.21, 0.71), False, "memory"),
        ((0.22, 0.21, 0.71), True, "probably memory"),
        ((0.50, 0.10, 0.60), True, "either"),
        ((0.20, 0.40, 0.90), True, "memory"),
        ((0.60, 0.10, 0.40), False, "matrix"),
        ((0.60, 0.10, 0.40), True, "matrix"),
        ((0.05, 0.02, 0.20), False, "neither"),
        ((0.20, 0.90, None), False, "memory"),
        ((0.90, 0.20, None), False, "matrix"),
    ],
)
def test_the_nearer_limit_is_named_as_far_as_the_counts_tell(
    shares: tuple[float, float, float | None], compiled: bool, bound: str
) -> None:
    assert standing(*shares, compiled=compiled).bound == bound


def test_the_larger_share_is_said_first() -> None:
    for one, shares in ((standing(0.6, 0.1, 0.4), ["60", "40"]), (standing(0.1, 0.1, 0.4), ["40", "10"])):
        said = say_standing(one)
        assert said.index(f"{shares[0]} %") < said.index(f"{shares[1]} %")


def test_a_single_operator_has_one_count_of_bytes() -> None:
    assert missing(say_standing(standing(0.2, 0.93)), "93 %", "20 %") == []


@pytest.mark.parametrize(
    ("one", "kind"),
    [
        (standing(1.1, 0.1, 0.2), "cooler"),
        (standing(1.3, 0.1, 0.2), "matrix-out-of-date"),
        (standing(0.3, 1.2, 3.0), "copy-out-of-date"),
        (standing(0.3, 1.2, 3.0, compiled=True), "copy-out-of-date"),
        (standing(0.3, 2.41), "copy-out-of-date"),
        (standing(0.3, 0.8, 1.24), "copy-out-of-date"),
        (standing(0.3, 0.8, 1.24, compiled=True), "fused-or-cached-as-called"),
    ],
)
def test_a_share_above_100_percent_is_said_as_what_it_is(one: Standing, kind: str) -> None:
    assert [doubt.kind for doubt in doubts(one)] == [kind]


@pytest.mark.parametrize(
    ("one", "out_of_date"),
    [
        (standing(0.3, 2.41), ("copy",)),
        (standing(0.3, 0.8, 1.24), ("copy",)),
        (standing(1.3, 0.1, 0.2), ("matrix",)),
        (standing(1.3, 1.1, 1.2), ("copy", "matrix")),
        (standing(1.1, 0.1, 0.2), ()),  # above the sustained rate alone
        (standing(0.3, 0.8, 1.24, compiled=True), ()),
        (standing(0.9, 0.8, 0.9), ()),
    ],
)
def test_a_ceiling_that_is_out_of_date_bounds_nothing(one: Standing, out_of_date: tuple[str, ...]) -> None:
    told = standing_json(one)
    assert (one.out_of_date, told["ceilings_out_of_date"]) == (out_of_date, list(out_of_date))
    assert (one.bound == "", told["bound"] is None) == (bool(out_of_date), bool(out_of_date))
    assert say_bound(one), "a table says which limit it is, or that it is out of date"
    assert ("-bound" in say_standing(one)) == (one.bound == "memory")


def test_a_share_above_100_percent_is_not_clipped() -> None:
    assert missing(say_standing(standing(0.3, 0.8, 1.24)), "124 %") == []
    assert missing(say_standing(standing(1.3, 0.1, 0.2)), "130 %") == []


def test_each_precision_has_its_own_ceiling_and_a_missing_one_is_said() -> None:
    shares = {name: stand(replace(RESNET, precision=name), H200).matrix_share for name in ("bf16", "tf32", "fp32")}
    work = RESNET.rate_per_s * RESNET.operations
    assert shares == {"bf16": work / 665e12, "tf32": work / 350e12, "fp32": work / 50.5e12}
    unknown = stand(replace(RESNET, precision="fp16"), H200)
    assert unknown.bound == ""
    assert numbers(say_standing(unknown)) == [22, 70]
    (doubt,) = doubts(unknown)
    assert doubt.kind == "no-matrix-rate"
    assert missing(doubt.what, "stackmark ceilings", "--precision fp16") == []


def test_without_a_copy_bandwidth_the_matrix_rate_alone_is_said() -> None:
    found = stand(RESNET, replace(H200, copy_bytes_per_s=None))
    assert numbers(say_standing(found)) == [22, 26]
    assert [doubt.kind for doubt in doubts(found)] == ["no-copy-rate"]


def test_the_roof_is_the_slope_below_the_ridge_and_level_above() -> None:
    found = stand(RESNET, H200)
    ridge = 665e12 / 4.3e12
    assert found.roof_per_s(ridge / 10) == pytest.approx(66.5e12)
    assert found.roof_per_s(10 * ridge) == 665e12
    assert found.intensity == RESNET.operations / 4.2e8
    # Below the ridge the share of the roof is that of the bandwidth.
    assert found.roof_share == pytest.approx(found.called_share)


@given(
    st.floats(1e-6, 10), st.floats(1e-6, 10), st.floats(1, 30), st.booleans()
)  # as called it is never less than at the least
def test_a_bound_never_names_the_limit_that_is_farther_in_both_counts(
    matrix: float, least: float, more: float, compiled: bool
) -> None:
    found = standing(matrix, least, least * more, compiled=compiled)
    if found.bound == "matrix":
        assert found.matrix_share is not None
        assert found.called_share is not None
        assert found.matrix_share >= found.called_share
    if found.bound in ("memory", "probably memory", "either"):
        assert found.called_share is not None
        assert found.matrix_share is not None
        assert found.called_share > found.matrix_share
    assert say_standing(found)


# --- the ledger -----------------------------------------------------------------------------------------------------------


def store(
    ledger: Ledger, workload: str, params: dict[str, Scalar], lines: Sequence[str], *, machine: str = "here",
    uuid: str | None = "GPU-1", rate: float | None = None, status: str = "done", at: float = 1e9,
) -> str:  # fmt: skip
    experiment = ids.new_id(ids.EXPERIMENT)
    ledger.start_experiment(Experiment(id=experiment, created_unix_s=at, command="stackmark run"))
    run = RunStart(
        id=ids.new_id(ids.RUN), experiment_id=experiment, spec=Spec(workload=workload, params=params), place="host",
        started_unix_s=at, machine_id=machine, boot_id="now", driver_pid=os.getpid(), stackmark_version="0.1.0",
    )  # fmt: skip
    ledger.start(run)
    failure = {"failure_kind": "crash", "failure_message": "it fell"} if status == "failed" else {}
    end = RunEnd.model_validate(
        {
            "status": status, "ended_unix_s": at + 9, "chip": "NVIDIA H200" if uuid else "AMD EPYC", "chip_uuid": uuid,
            "framework": "PyTorch 2.11", "rate_per_s": rate, "rate_unit": "images/s", **failure,
        }
    )  # fmt: skip
    ledger.finish(run.id, end, lines)
    return run.id


def store_ceilings(ledger: Ledger, threads: int = 0, notes: Sequence[str] = (), **more: object) -> str:
    """The H200's, as op/ceilings would have measured them; of a CPU with all of this machine's threads."""
    rows = [
        OpRow(index=2 * n + k, op="ceilings", shape={"what": "matrix", "state": state, "m": 8192, "n": 8192, "k": 8192},
              precision=precision, operations=2.0 * 8192**3, call_s=[2.0 * 8192**3 / per_s] * 7, notes=list(notes))
        for n, (precision, rate) in enumerate(H200.matrix.items())
        for k, (state, per_s) in enumerate((("cold", rate.cold_per_s), ("sustained", rate.sustained_per_s)))
    ]  # fmt: skip
    copy = OpRow(index=20, op="ceilings", shape={"what": "copy", "bytes": 2**30}, precision="fp32", least_bytes=2.0**31)
    rows.append(copy.model_copy(update={"call_s": [2.0**31 / 4.3e12] * 7}))
    lines = [write_event(events.Row(seq=n, t=1, row=row, done=n + 1, of=len(rows))) for n, row in enumerate(rows)]
    device = "cuda:0" if more.get("uuid", "GPU-1") else "cpu"
    facts = events.Facts(seq=len(rows), t=1, subject="op", facts={"threads": threads or torch.get_num_threads()})
    lines.append(write_event(facts))
    params: dict[str, Scalar] = {"device": device, "precision": "bf16", "set": "machine", "rows": "0-999"}
    return store(ledger, "op/ceilings", params, lines, **more)  # type: ignore[arg-type]


RESNET_PARAMS: dict[str, Scalar] = {
    "device": "cuda:0", "precision": "bf16", "batch": 256, "tune": "fast", "compile": False, "threads": 0,
}  # fmt: skip


def result_lines(**more: float | None) -> list[str]:
    counts = {
        "operations_per_sample": 24.3e9,
        "least_bytes_per_sample": 1.3e8,
        "called_bytes_per_sample": 4.2e8,
        **more,
    }
    steps = events.Steps(seq=0, t=0, phase="measure", first=0, step_s=[256 / 7200] * 300)
    ended = Result(seq=1, t=1, sample="image", samples_per_step=256, steps=300, wall_s=300 * 256 / 7200, tick_s=1e-9)
    return [write_event(steps), write_event(ended.model_copy(update=counts))]


@pytest.fixture
def book(tmp_path: Path) -> Path:
    return tmp_path / "ledger.sqlite3"


def test_show_says_how_far_a_run_is_from_the_limits(book: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        run = store(ledger, "train/resnet50_v1.5", RESNET_PARAMS, result_lines(), rate=7200.0)
    before = ask("show", run, "--ledger", str(book))
    assert f"\n            {NO_CEILINGS}\n" in before.out
    assert json.loads(ask("show", run, "--json", "--ledger", str(book)).out)["roofline"] is None
    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger)
    after = ask("show", run, "--ledger", str(book)).out
    assert missing(after, "175 TFLOP/s", "70 %") == []
    assert NO_CEILINGS not in after
    shown = json.loads(ask("show", run, "--json", "--ledger", str(book)).out)["roofline"]
    assert shown["bound"] == "memory"
    assert shown["copy_share_called"] == pytest.approx(7200 * 4.2e8 / 4.3e12)
    assert shown["matrix_share"] == pytest.approx(7200 * 24.3e9 / 665e12)


def test_ceilings_of_another_chip_or_machine_are_not_taken(book: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger, machine="elsewhere")
        store_ceilings(ledger, uuid="GPU-2")
        run = store(ledger, "train/resnet50_v1.5", RESNET_PARAMS, result_lines(), rate=7200.0)
        assert limits_of_run(ledger, ledger.run(run)).sentences == (NO_CEILINGS,)


def test_ceilings_of_all_threads_are_no_limit_of_one(book: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger, uuid=None)
        params: dict[str, Scalar] = {**RESNET_PARAMS, "device": "cpu", "threads": 1}
        run = store(ledger, "train/resnet50_v1.5", params, result_lines(), rate=72.0, uuid=None)
        said = limits_of_run(ledger, ledger.run(run)).sentences
    assert len(said) == 1
    assert missing(said[0], "1 thread", "stackmark ceilings", "--threads 1") == []
    assert missing(refused(book, run), "1 thread", "stackmark ceilings", "--threads 1") == []


def test_ceilings_of_one_thread_are_no_limit_of_a_run_that_took_two_by_itself(book: Path) -> None:
    params: dict[str, Scalar] = {**RESNET_PARAMS, "device": "cpu"}
    lines = {
        threads: [
            write_event(events.Facts(seq=0, t=0, subject="software", facts={"torch_threads": threads})), *result_lines()
        ]
        for threads in (1, 2)
    }  # fmt: skip
    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger, threads=1, uuid=None)
        one, two = (
            store(ledger, "train/resnet50_v1.5", params, lines[threads], rate=72.0, uuid=None) for threads in (1, 2)
        )
        assert limits_of_run(ledger, ledger.run(one)).standing is not None
        said = limits_of_run(ledger, ledger.run(two)).sentences
    assert len(said) == 1
    assert missing(said[0], "2 threads", "stackmark ceilings", "--threads 2") == []
    assert missing(refused(book, two), "2 threads", "stackmark ceilings", "--threads 2") == []
    assert missing(refused(book, one, two), "1", "2 threads") == []


def test_a_ceiling_that_is_not_to_be_believed_is_called_so(book: Path) -> None:
    from stackmark.workloads.op.impl.timing import say_crowded

    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger, notes=say_crowded(0.53))
        run = store(ledger, "train/resnet50_v1.5", RESNET_PARAMS, result_lines(), rate=7200.0)
        limits = limits_of_run(ledger, ledger.run(run))
    assert limits.standing is not None
    doubtful, again = doubts(limits.standing)
    assert (doubtful.kind, again.kind) == ("doubtful-ceiling", "measure-again")
    assert missing(doubtful.what, "bf16", "53") == []
    assert limits.sentences[1:] == (doubtful.what, again.what)
    assert doubtful.what in ask("roofline", run, "--ledger", str(book)).out


def test_nothing_is_said_of_a_workload_whose_operations_nobody_counted(book: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger)
        lines = result_lines(operations_per_sample=None)
        run = store(ledger, "command/own", {"device": "cuda:0"}, lines, rate=7200.0)
    assert "arithmetic" not in ask("show", run, "--ledger", str(book)).out
    answer = ask("roofline", run, "--ledger", str(book))
    assert answer.code == Exit.WRONG_USE
    assert missing(answer.err, run, "command/own") == []


def test_a_run_from_before_the_bytes_were_counted_so_is_counted_again_from_its_spec(book: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        experiment = load(ledger, "h200_host_container")
        row = ledger.runs_of(experiment)[0]
        lines = ledger.stream(row.id)
        ended = next(event for line in reversed(lines) if isinstance(event := events.read_event(line, 1), Result))
        assert ended.called_bytes_per_sample is None
        work = work_of(row.spec, ended, row.rate_per_s or 0)
        assert work is not None
        assert work.called_bytes is not None
        assert work.least_bytes is not None
        # 411 MB an image grow with the batch; 460 MB and five words of the optimizer for 25.6 million parameters do not.
        assert work.called_bytes == pytest.approx(411.4e6 + (460.5e6 + 20 * 25.56e6) / 256, rel=1e-3)
        assert work.least_bytes == pytest.approx(128.8e6 + (153.0e6 + 20 * 25.56e6) / 256, rel=1e-3)


def test_a_recorded_comparison_is_a_point_an_arm_and_its_report_has_the_shares(book: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        experiment = load(ledger, "h200_host_container")
        row = ledger.runs_of(experiment)[0]
        assert "46 %" not in render_markdown(examine(ledger, experiment))
        store_ceilings(ledger, machine=row.ran_on, uuid=row.chip_uuid)
        examined = examine(ledger, experiment)
    assert any(
        line.startswith("- A:") and missing(line, "46 %") == [] for line in render_markdown(examined).splitlines()
    )
    page = render_html(examined, generated_unix_s=0, version="0")
    assert 'id="limits"' in page
    found = json.loads(ask("roofline", experiment, "--json", "--ledger", str(book)).out)
    assert [point["name"] for point in found["points"]] == [
        "train/resnet50_v1.5, host",
        "train/resnet50_v1.5, container",
    ]
    assert all(0.44 < point["copy_share_called"] < 0.48 for point in found["points"])


def test_every_row_of_a_list_is_a_point_and_those_without_operations_are_named(book: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger)
        gemm = op_spec("gemm", "0-4", precision="tf32")
        first = store(ledger, gemm.workload, dict(gemm.params), list_stream(rows_for(gemm, failed=[2])), rate=1.0)
        copy = op_spec("copy", "0-1", sets_of("copy")[0])
        second = store(ledger, copy.workload, dict(copy.params), list_stream(rows_for(copy)), rate=1.0)
    answer = ask("roofline", first, second, "--ledger", str(book))
    assert answer.code == Exit.DONE
    table = [line for line in answer.out.splitlines() if "FLOP/s" in line and "×" in line]
    assert len(table) == 4
    assert missing(answer.out, "1 row", first, "2 rows", second) == []


def refused(book: Path, *arguments: str) -> str:
    answer = ask("roofline", *arguments, "--ledger", str(book))
    assert answer.code == Exit.WRONG_USE
    assert answer.out == ""
    return answer.err


def test_what_cannot_be_drawn_is_a_sentence_with_what_to_do(book: Path, tmp_path: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        run = store(ledger, "train/resnet50_v1.5", RESNET_PARAMS, result_lines(), rate=7200.0)
        failed = store(ledger, "train/resnet50_v1.5", RESNET_PARAMS, [], status="failed")
    said = refused(book, run)
    assert missing(said, "NVIDIA H200", "stackmark ceilings") == []
    assert missing(refused(book, failed), failed, "failed") == []
    with Ledger.open(str(book)) as ledger:
        roof = store_ceilings(ledger)
        other = store(ledger, "train/resnet50_v1.5", RESNET_PARAMS, result_lines(), rate=7200.0, uuid="GPU-2")
    assert missing(refused(book, roof), roof, "stackmark ceilings") == []
    assert missing(refused(book, run, other), "2 chips", run, other) == []
    assert missing(refused(book, run, "-o", str(tmp_path / "roof.pdf")), ".svg", ".png", "roof.pdf") == []
    assert missing(refused(book, "r-zz"), "r-zz") == []
    assert (
        "no folder" in refused(book, run, "-o", str(tmp_path / "none" / "roof.svg")) or not (tmp_path / "none").exists()
    )


def test_the_table_fits_a_pipe_and_says_what_the_bytes_are(book: Path, tmp_path: Path) -> None:
    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger)
        run = store(ledger, "train/resnet50_v1.5", RESNET_PARAMS, result_lines(), rate=7200.0)
    picture = tmp_path / "roof.svg"
    answer = ask("roofline", run, run, "-o", str(picture), "--ledger", str(book))
    assert answer.code == Exit.DONE
    assert missing(answer.out, "bf16", "665 TFLOP/s", "790 TFLOP/s", "4.30 TB/s") == []
    (line,) = [line for line in answer.out.splitlines() if line.startswith("train/resnet50_v1.5")]
    name, *cells = re.split(r"  +", line)[:-1]
    assert name == "train/resnet50_v1.5"
    assert [numbers(cell) for cell in cells] == [[175], [57.9, 187], [26], [22, 70], [70]]
    assert CALLED in answer.out
    assert missing(answer.err, "1 point", picture) == []
    assert picture.read_text().startswith("<?xml")


# --- names and the picture --------------------------------------------------------------------------------------------------


def point(workload: str = "train/resnet50_v1.5", work: Work = RESNET, **details: str) -> Point:
    return Point(workload, work, "r-01", details={"precision": work.precision, **details})


def rows(count: int) -> tuple[Point, ...]:
    """Products of matrices of rising size at half of the roof."""
    found = []
    for n in range(count):
        size = 64 * (n + 1)
        operations, moved = 2.0 * size**3, 6.0 * size**2
        rate = 0.5 / max(operations / 665e12, moved / 4.3e12)
        shape: dict[str, Scalar] = {"m": size, "n": size, "k": size, "a_t": False, "b_t": bool(n % 2)}
        found.append(
            Point("op/gemm", Work(rate, operations, "bf16", moved), "x-01", "gemm", shape, {"precision": "bf16"})
        )
    return tuple(found)


def test_points_are_named_by_what_they_differ_in() -> None:
    assert labels([point(batch="64", tune="fast")]) == ["train/resnet50_v1.5"]
    both = labels([point(batch="64", tune="fast"), point(batch="256", tune="fast")])
    assert both == [f"train/resnet50_v1.5, batch {batch}" for batch in (64, 256)]
    # A batch that goes with the workload tells nothing more.
    assert labels([point(batch="64"), point("train/vgg16", batch="32")]) == ["train/resnet50_v1.5", "train/vgg16"]
    assert labels(rows(2)) == ["64×64×64 NN", "128×128×128 NT"]
    assert labels([point(), replace(point(), run_id="r-02")]) == [
        "train/resnet50_v1.5, r-01",
        "train/resnet50_v1.5, r-02",
    ]


def drawn(found: Roofline) -> ElementTree.Element:
    return ElementTree.fromstring(roofline_svg(found))


def texts(root: ElementTree.Element) -> str:
    return " | ".join("".join(one.itertext()) for one in root.iter("{http://www.w3.org/2000/svg}text"))


@pytest.mark.parametrize("count", [1, 3, 9, 40, 160])
def test_any_number_of_points_can_be_drawn_within_the_picture(count: int) -> None:
    root = drawn(Roofline(H200, rows(count)))
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    for one in root.iter():
        for name, most in (("x1", width), ("x2", width), ("cx", width), ("y1", height), ("y2", height), ("cy", height)):
            if one.get(name) is not None:
                assert -1 <= float(one.get(name, "")) <= most
    hollow = [one for one in root.iter() if {"sign", "a0", "hollow"} == {*(one.get("class") or "").split()}]
    assert len(hollow) == (count + 1 if count > 9 else 0)


def test_the_picture_is_read_without_colours() -> None:
    works = (RESNET, replace(RESNET, precision="fp32", rate_per_s=900.0), replace(RESNET, rate_per_s=3000.0))
    root = drawn(Roofline(H200, tuple(point(work=work, batch=str(n)) for n, work in enumerate(works))))
    said = texts(root)
    for name in ("A train/resnet50_v1.5, bf16, batch 0", "B train/resnet50_v1.5, fp32", "bf16 665 TFLOP/s, cold 790 T"):
        assert re.sub(" +", " ", name) in re.sub(" +", " ", said)
    assert missing(said, "tf32", "350 TFLOP/s", "4.30 TB/s", "NVIDIA H200") == []
    assert "2025-11-14" in said
    dashes = {one.get("stroke-dasharray") for one in root.iter("{http://www.w3.org/2000/svg}line")}
    assert {None, "7 4", "2 3"} <= dashes
    # Circle, square, triangle: a form each.
    signs = [one for one in root.iter() if "point" in (one.get("class") or "").split()]
    assert len(signs) == 3
    assert len({one.tag for one in signs}) == 2


def test_a_bar_reaches_from_the_intensity_as_called_to_that_at_the_least() -> None:
    root = drawn(Roofline(H200, (point(),)))
    bar = next(one for one in root.iter() if one.get("class") == "thin a0" and one.get("y1") == one.get("y2"))
    circle = next(one for one in root.iter() if one.get("class") == "sign a0 point")
    assert bar.get("x1") == circle.get("cx")
    assert float(bar.get("x2", "")) > float(bar.get("x1", ""))


def test_names_of_ceilings_do_not_lie_on_each_other() -> None:
    placed = _apart([(100.0, "bf16"), (101.0, "fp16"), (103.0, "fp8"), (300.0, "fp32")])
    heights = sorted(y for y, _, _ in placed)
    assert all(b - a >= 13 for a, b in pairwise(heights))
    assert [said for _, _, said in sorted(placed)] == ["bf16", "fp16", "fp8", "fp32"]


def test_a_hostile_name_is_drawn_as_text() -> None:
    hostile = "<script>alert(1)</script>\x1b[2J" + "long " * 80
    svg = roofline_svg(Roofline(replace(H200, chip=hostile), (point(workload=hostile),)))
    assert "<script>" not in svg
    assert "\x1b" not in svg
    ElementTree.fromstring(svg)


def test_a_machine_without_some_ceilings_is_drawn_with_what_there_is() -> None:
    for bare in (
        replace(H200, matrix={}),
        replace(H200, copy_bytes_per_s=None),
        replace(H200, matrix={}, copy_bytes_per_s=None),
    ):
        assert texts(drawn(Roofline(bare, (point(),))))
        assert roofline_json(Roofline(bare, (point(),)))


def test_a_png_is_drawn() -> None:
    pytest.importorskip("resvg_py")
    assert roofline_png(Roofline(H200, rows(3))).startswith(b"\x89PNG")


# --- the whole way ----------------------------------------------------------------------------------------------------------


def test_a_measurement_says_its_share_of_the_limits_of_this_machine(book: Path) -> None:
    asked = ("run", "train/trivial_cifar10", "--device", "cpu", "--batch", "16", "--runs", "1", "--seconds", "0.3",
             "--warmup-seconds", "0", "--precision", "fp32", "--details", "--ledger", str(book))  # fmt: skip
    with Ledger.open(str(book)) as ledger:
        store_ceilings(ledger, machine=machine_name(), uuid=None)
    answer = ask(*asked)
    assert answer.code == Exit.DONE, answer.err
    arithmetic = answer.out.split("\narithmetic  ")[1].split("\nstep  ")[0]
    assert "per image)\n" in arithmetic
    assert missing(arithmetic, "fp32") == []
    assert arithmetic.count("%") >= 3
    drawn_too = json.loads(ask("roofline", "last", "--json", "--ledger", str(book)).out)
    assert drawn_too["points"][0]["workload"] == "train/trivial_cifar10"
