"""Results next to published numbers: which pairs are made, what is drawn of them, and both stacks."""

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

import recorded
import stackmark as sm
from asking import ask
from stackmark.errors import SpecError
from stackmark.experiments.against_published import asked_row, published_pairs
from stackmark.experiments.examine import examine
from stackmark.figures import FigureUnit
from stackmark.ledger.store import Ledger
from stackmark.published.stack import load_systems, parse_systems, stack_lines, stack_of_facts, stack_of_row, system_of
from stackmark.published.table import load, load_operators
from stackmark.show.published_chart import published_svg
from stackmark.show.report.charts import published as chart
from stackmark.show.report.html import render_html
from stackmark.verdict.published_pairs import PublishedPair, pair_of_figures

LOGS = Path(__file__).parent / "data" / "logs"
H200 = "x-01m7fa3ecghx2qyvqdmn749k0t"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as opened:
        yield opened


@pytest.fixture
def stored(book: Ledger, tmp_path: Path) -> str:
    """The path of a ledger with a recorded comparison on an H200."""
    assert recorded.load(book, "h200_host_container") == H200
    return str(tmp_path / "ledger.sqlite3")


def pair(
    name: str = "train/resnet50, fp32",
    ours: float = 300.0,
    theirs: float = 325.03,
    unit: str = "images/s",
    **more: object,
) -> PublishedPair:
    higher = unit != "min"
    percent, ratio = pair_of_figures(FigureUnit(unit, higher), ours, theirs)
    made = PublishedPair(
        name, unit, higher, ours, None, None, (ours,), theirs, percent, ratio, what="resnet50, NVIDIA V100 16GB, fp32",
        source="Some slides", date="2019-11", at="", context=True, differs=("batch not stated",),
    )  # fmt: skip
    return replace(made, **more)  # type: ignore[arg-type]


# --- which pairs --------------------------------------------------------------------------------------------------------


def test_each_arm_is_a_pair_with_the_nearest_row_of_its_metric(book: Ledger) -> None:
    shown = examine(book, recorded.load(book, "h200_host_container"))
    assert [one.theirs for one in shown.published_pairs] == [3079, 3079]
    for one, arm in zip(shown.published_pairs, shown.arms, strict=True):
        logs = [
            math.log(run.rate_per_s) for run in shown.runs if run.counted and run.arm == arm.index and run.rate_per_s
        ]
        mean = sum(logs) / len(logs)
        half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
        assert one.benchmark.endswith(arm.label)
        assert one.ours == pytest.approx(math.exp(mean))
        assert one.low == pytest.approx(math.exp(mean - half))
        assert one.high == pytest.approx(math.exp(mean + half))
        assert one.percent == pytest.approx(100 * (math.exp(mean) / 3079 - 1))
        assert (one.unit, one.higher_is_better, one.context, one.word) == ("images/s", True, True, None)
        assert [difference.kind for difference in one.differs if hasattr(difference, "kind")][:1] == ["precision"]


def test_a_row_that_the_command_named_is_taken_instead_of_the_nearest(book: Ledger) -> None:
    shown = examine(book, recorded.load(book, "h200_host_container"))
    asked = book.experiment(H200).model_copy(
        update={"id": "x-01m7fa3ecghx2qyvqdmn749k0u", "command": "run --published V100"}
    )
    book.start_experiment(asked)
    row = book.runs_of(H200)[0]
    run = next(run for run in shown.runs if run.counted)
    (found,) = published_pairs(book, asked.command, [row], [run], [{}], shown.arms[:1])
    assert "V100" in found.what


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("stackmark run train/resnet50 --published 'NVIDIA H200' --runs 3", "NVIDIA H200"),
        ("stackmark run train/resnet50 --published=V100", "V100"),
        ("stackmark run train/resnet50", None),
        ("stackmark run train/resnet50 --published", None),
        ("stackmark run 'unbalanced", None),
    ],
)
def test_the_row_that_was_asked_for_is_read_from_the_stored_command(command: str, text: str | None) -> None:
    assert asked_row(command) == text


def test_an_import_has_a_pair_for_each_workload_in_its_own_unit(tmp_path: Path) -> None:
    ledger = str(tmp_path / "own.sqlite3")
    logs = [str(LOGS / "mlperf_v0.6" / name / "result_0.txt") for name in ("ssd", "resnet", "minigo")]
    assert ask("import", *logs, "--ledger", ledger).code == 0
    told = json.loads(ask("verdict", "last", "--ledger", ledger, "--json").out)["published_pairs"]
    assert [(one["unit"], one["higher_is_better"], one["theirs"]) for one in told] == [
        ("min", False, 22.36), ("min", False, 115.22), ("min", False, 27.39)
    ]  # fmt: skip
    # One run against the published score of five: 22.459 minutes are slower, and less is better.
    assert told[0]["percent"] == pytest.approx(100 * (1347.521 / 60 / 22.36 - 1), abs=1e-4)
    assert told[0]["ratio"] == pytest.approx(22.36 / (1347.521 / 60), abs=1e-6)
    assert (told[0]["low"], told[0]["word"], told[0]["context"]) == (None, None, True)
    assert all("unofficial" in one["notes"][0] for one in told)


def test_a_time_is_compared_with_a_time_and_a_rate_with_a_rate(book: Ledger) -> None:
    shown = examine(book, recorded.load(book, "h200_own_program"))
    assert shown.published_pairs == ()


def test_problems_of_an_operator_list_are_pairs_of_times_with_the_stack_of_the_sheet(book: Ledger) -> None:
    chart = sm.published_chart(recorded.load(book, "h200_gemm_bf16"), ledger=book)
    shown = examine(book, book.experiment("last").id).operators
    times = [
        (1e3 * row.seconds, 1e3 * one.published[0].seconds) for one in shown if (row := one.rows[0]) and row.seconds
    ]
    assert [(one.ours, one.theirs) for one in chart.pairs] == [pytest.approx(pair) for pair in times]
    first = chart.pairs[0]
    stack = {line.name: line for line in first.stack}
    assert (first.unit, first.higher_is_better, first.context) == ("ms", False, True)
    assert (stack["driver"].theirs, stack["driver"].agreement) == ("375.66", "differs")
    assert any(getattr(one, "kind", "") == "stack-chip" for one in first.differs)


# --- in words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "unit", "said"),
    [
        (95.0, 100.0, "images/s", "5.00 % slower"),
        (112.0, 100.0, "images/s", "12.0 % faster"),
        (21.0, 20.0, "min", "5.00 % slower"),
        (17.0, 20.0, "min", "15.0 % faster"),
        (2.24, 325.03, "images/s", "slower by a factor of 145"),
        (325.03, 2.24, "images/s", "faster by a factor of 145"),
        (0.32, 2259.0, "images/s", "slower by a factor of 7,059"),
        (115.2207, 115.22, "min", "the same"),
        (22.3623, 22.36, "min", "the same"),
    ],
)
def test_the_difference_is_in_percent_and_beyond_a_factor_of_three_a_factor(
    ours: float, theirs: float, unit: str, said: str
) -> None:
    assert pair(ours=ours, theirs=theirs, unit=unit).difference == said


# --- the command --------------------------------------------------------------------------------------------------------


def test_plot_draws_two_bars_for_each_benchmark_with_numbered_sources(stored: str, tmp_path: Path) -> None:
    file = tmp_path / "study.svg"
    answer = ask("plot", H200, "--kind", "published", "-o", str(file), "--ledger", stored)
    drawn = file.read_text()
    assert (answer.code, len(re.findall(r'class="bar ', drawn))) == (0, 4)
    # Both arms have one source.
    assert ("[1]" in drawn, "[2]" in drawn, "lambdal/deeplearning-" in drawn) == (True, False, True)


def test_plot_takes_several_experiments_and_tells_their_benchmarks_apart(
    book: Ledger, stored: str, tmp_path: Path
) -> None:
    second = recorded.load(book, "h200_host_container_pod")
    without = recorded.load(book, "h200_cpu_limit")
    file = tmp_path / "study.svg"
    answer = ask("plot", H200, second, without, "--kind", "published", "-o", str(file), "--ledger", stored)
    drawn = file.read_text()
    assert (answer.code, len(re.findall(r'class="bar ', drawn))) == (0, 10)
    assert all(name in drawn for name in (H200, second, without))
    assert without in answer.err


def test_the_png_is_a_picture(stored: str, tmp_path: Path) -> None:
    file = tmp_path / "study.png"
    assert ask("plot", "last", "--kind", "published", "-o", str(file), "--ledger", stored).code == 0
    assert file.read_bytes().startswith(b"\x89PNG")


def test_forest_is_what_plot_draws_by_itself(stored: str, tmp_path: Path) -> None:
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    assert ask("plot", H200, "-o", str(one), "--ledger", stored).code == 0
    assert ask("plot", H200, "--kind", "forest", "-o", str(two), "--ledger", stored).code == 0
    assert one.read_text() == two.read_text()


@pytest.mark.parametrize("name", ["h200_cpu_limit", "h200_own_program", "cpu_tf_cnn"])
def test_an_experiment_without_a_published_row_is_a_sentence(book: Ledger, name: str, tmp_path: Path) -> None:
    found, file = recorded.load(book, name), tmp_path / "study.svg"
    answer = ask("plot", found, "--kind", "published", "-o", str(file), "--ledger", str(tmp_path / "ledger.sqlite3"))
    assert (answer.code, found in answer.err, file.exists()) == (2, True, False)


@pytest.mark.parametrize(
    "words",
    [
        (H200, "--kind", "published", "-o", "study.pdf"),
        (H200, "--kind", "published", "-o", "none/study.svg"),
        (H200, "--kind", "published", "-o", "study.svg", "--margin", "1%"),
        (H200, H200, "--kind", "published", "-o", "study.svg"),
        (H200, "last", "--kind", "forest", "-o", "study.svg"),
        (H200, "--kind", "pie", "-o", "study.svg"),
        ("x-none", "--kind", "published", "-o", "study.svg"),
    ],
)
def test_wrong_use_of_plot_writes_nothing(
    stored: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = ask("plot", *words, "--ledger", stored)
    assert (answer.code, bool(answer.err)) == (2, True)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("ledger.sqlite3")] == []


def test_a_chart_of_python_has_the_pairs_as_json(stored: str) -> None:
    told = sm.published_chart(H200, ledger=stored).to_dict()
    assert told["schema"] == "stackmark.published-chart/1"
    assert [one["difference"] for one in told["pairs"]] == ["56.0 % faster", "55.9 % faster"]
    with pytest.raises(SpecError):
        sm.published_chart("x-none", ledger=stored)


# --- the picture --------------------------------------------------------------------------------------------------------

LONG = "train/" + "a_long_name_" * 12 + ", bf16, batch 256, container,image=registry.example.com/team/pytorch:24.09"
SEVERAL = [
    pair(ours=2.24, differs=("H200 instead of AMD EPYC",) * 9),
    pair("fit/ssd, 8 devices", 22.46, 22.36, "min", notes=("unofficial score: 1 run; the rules require 5",)),
    pair(LONG, 1234567.8, 1234560.0, low=1.1e6, high=1.3e6, runs=(1.1e6, 1.2e6, 1.4e6), source="Other slides " * 9),
    pair("x", 0.000123, 0.0002, context=False, differs=()),
    pair("train/vgg16", 10.0, 12.0, low=1.0, high=90.0, runs=(1.0, 10.0, 90.0), at="somewhere/" + "deep/" * 30),
    pair("train/alexnet", 325.03, 2.24),
    pair("fit/minigo", 27.4, 27.39, "min", runs=(23.0, 27.0, 31.0), context=False, differs=()),
]


def boxes(drawn: str) -> list[tuple[float, float, float, float, str]]:
    """Left, top, right, bottom of each text; letters are taken for as wide as the package's font has them."""
    found = []
    for one in ET.fromstring(drawn).iter(f"{SVG}text"):
        size, said = float(one.get("font-size", "12")), one.text or ""
        width = len(said) * size * (0.62 if "strong" in one.get("class", "") else 0.55)
        x, y = float(one.get("x", "0")), float(one.get("y", "0"))
        left = {"start": x, "end": x - width, "middle": x - width / 2}[one.get("text-anchor", "start")]
        found.append((left, y - 0.75 * size, left + width, y + 0.2 * size, said))
    return found


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("layout", [chart.WIDE, chart.NARROW], ids=["wide", "narrow"])
def test_no_label_meets_another_or_leaves_the_picture(count: int, layout: chart.Layout) -> None:
    found = boxes(chart.published_bars(SEVERAL[:count], layout))
    assert len(found) > 5 * count
    for index, (left, top, right, bottom, said) in enumerate(found):
        assert left >= -0.5, said
        assert right <= layout.width + 1, said
        for other_left, other_top, other_right, other_bottom, other in found[:index]:
            apart = right <= other_left or other_right <= left or bottom <= other_top or other_bottom <= top
            assert apart, (said, other)


def test_bars_begin_at_zero_and_are_as_long_as_their_numbers() -> None:
    drawn = chart.published_bars([pair(ours=2.24)])
    ours, theirs = (float(one.get("width", "")) for one in ET.fromstring(drawn).iter(f"{SVG}rect"))
    assert theirs / ours == pytest.approx(325.03 / 2.24, rel=0.02)


def test_benchmarks_of_one_unit_and_size_share_a_scale_and_others_have_their_own() -> None:
    same = [pair("a", 100.0, 110.0), pair("b", 200.0, 220.0)]
    widths = [float(one.get("width", "")) for one in ET.fromstring(chart.published_bars(same)).iter(f"{SVG}rect")]
    assert widths[2] == pytest.approx(2 * widths[0], rel=0.01)
    other = [pair("a", 100.0, 110.0), pair("b", 200.0, 220.0, "min")]
    widths = [float(one.get("width", "")) for one in ET.fromstring(chart.published_bars(other)).iter(f"{SVG}rect")]
    assert widths[2] == pytest.approx(widths[0], rel=0.01)


def test_the_interval_is_drawn_and_one_run_has_none() -> None:
    def whiskers(one: PublishedPair) -> int:
        return len(
            [
                line
                for line in ET.fromstring(chart.published_bars([one])).iter(f"{SVG}line")
                if line.get("class") == "whisker"
            ]
        )

    assert whiskers(pair()) == 0
    assert whiskers(pair(low=290.0, high=310.0, runs=(295.0, 305.0))) == 3
    # Without an interval each run is a mark.
    assert whiskers(pair(runs=(295.0, 300.0, 305.0))) == 3


def test_sources_are_numbered_once_each() -> None:
    pairs = [pair("a"), pair("b"), pair("c", source="Other slides")]
    assert [note.partition(":")[0] for note in chart.footnotes(pairs)] == ["resnet50, NVIDIA V100 16GB, fp32"] * 2
    drawn = published_svg(pairs)
    assert (drawn.count(">published [1]<"), drawn.count(">published [2]<")) == (2, 1)


def test_a_hostile_name_stays_text() -> None:
    drawn = published_svg([pair("<script>alert(1)</script>", what="</svg><b>", differs=("<i>",), notes=("<u>",))])
    assert not {element.tag for element in ET.fromstring(drawn).iter()} & {
        f"{SVG}{name}" for name in ("script", "b", "i", "u")
    }


# --- the report ---------------------------------------------------------------------------------------------------------


def test_the_report_has_the_chart_its_sources_and_both_stacks(book: Ledger) -> None:
    page = render_html(examine(book, recorded.load(book, "h200_host_container")), generated_unix_s=0.0, version="0")
    section = page.partition('<section id="published">')[2].partition("</section>")[0]
    assert section.count('class="chart published"') == 2  # for wide and narrow pages
    assert "lambdal/deeplearning-benchmark" in section
    assert all(said in section for said in ("580.159.04", "not stated", "9.19.0"))


# --- the stacks ---------------------------------------------------------------------------------------------------------


def test_every_described_system_is_one_of_published_rows() -> None:
    rows = [*load(), *load_operators()]
    for system in load_systems():
        assert any(row.at.startswith(system.rows_at) for row in rows), system.rows_at
        assert system.at


def test_the_dgx_1_is_described_by_its_own_logs() -> None:
    (row,) = [row for row in load() if row.system == "1x DGX-1" and row.model == "gnmt"]
    system = system_of(row)
    assert system is not None
    assert (system.driver, system.cuda, system.nccl) == ("418.67", "10.1.163", "2.4.6")
    assert stack_of_row(row)["memory"] == "503 GB"
    (many,) = [row for row in load() if row.system == "30x DGX-1" and row.model == "ssd"]
    assert "driver" not in stack_of_row(many)


def test_versions_agree_as_far_as_both_state_them() -> None:
    ours = {"CUDA": "10.1", "cuDNN": "7.6.0", "NCCL": "2.4", "chip": "Tesla V100-SXM2-16GB"}
    theirs = {"CUDA": "10.1.163", "cuDNN": "7.6.5", "chip": "NVIDIA V100 16GB", "OS": "Ubuntu"}
    found = {line.name: line.agreement for line in stack_lines(ours, theirs)}
    assert {name: found[name] for name in ("CUDA", "cuDNN", "NCCL", "chip", "OS")} == {
        "CUDA": "same", "cuDNN": "differs", "NCCL": "not stated", "chip": "same", "OS": "not stated"
    }  # fmt: skip
    (line,) = [line for line in stack_lines({"CUDA": "10.1"}, {"CUDA": "10.10"}) if line.name == "CUDA"]
    assert line.agreement == "differs"


def test_a_cpu_has_no_driver_and_no_cuda() -> None:
    facts = {"cpu": {"model": "AMD EPYC"}, "software": {"cuda": "13.0", "nccl": "2.28"}, "gpu": {"driver": "580"}}
    found = stack_of_facts(facts, "AMD EPYC", 1, "PyTorch 2.13")
    assert set(found) == {"chip", "count", "framework"}


def test_a_table_of_systems_with_a_missing_cell_is_refused_with_its_line() -> None:
    head = "rows_at,driver,cuda,cudnn,nccl,framework,os,memory,storage,at\n"
    with pytest.raises(ValueError, match="line 2"):
        parse_systems(f"{head}a,b\n")
    with pytest.raises(ValueError, match="line 1"):
        parse_systems("a,b\n")
