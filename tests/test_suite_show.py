"""A suite as people and programs meet it: in the terminal, as JSON, CSV, JUnit XML, Markdown, pictures and a page."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.cells import cell_len

import suite_sample
from refusing import refused
from rendered_screens import _in_pipe, _on_screen
from stackmark.show.report import write_suite_report
from stackmark.show.report.charts import grouped, heatmap
from stackmark.show.report.heading import Heading
from stackmark.show.report.html import HEAT_CLASSES
from stackmark.show.report.suite import render_suite_html, render_suite_markdown, suite_markdown
from stackmark.show.safe import safe_line
from stackmark.show.suite import print_suite
from stackmark.show.suite_formats import suite_csv, suite_json, suite_junit
from stackmark.show.suite_plot import HEAT, suite_plot_png, suite_plot_svg
from stackmark.show.suite_sections import SuiteSections, say_shift
from stackmark.verdict.comparison import Comparison, Interval
from stackmark.verdict.suite import SuiteCell, SuiteResult
from stackmark.verdict.throughput import throughput_over_runs

MADE: dict[str, Callable[[], SuiteResult]] = {
    "two": suite_sample.two,
    "twelve": suite_sample.twelve,
    "forty": suite_sample.forty,
    "chips": suite_sample.chips,
    "uncompared": suite_sample.uncompared,
    "hostile": suite_sample.hostile,
}
WIDTHS = (60, 80, 120)


def on_screen(result: SuiteResult, width: int) -> list[str]:
    return _on_screen(lambda console: print_suite(result, console), width).splitlines()


def without_a_cell(result: SuiteResult) -> SuiteResult:
    """As where the suite excludes a cell: the first row has no pod."""
    first, *others = result.rows
    return replace(result, rows=(replace(first, cells=first.cells[:-1]), *others))


# In the terminal


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", MADE)
def test_the_answer_stands_first_and_last(name: str, width: int) -> None:
    result = MADE[name]()
    lines = on_screen(result, width)
    wanted = re.sub(r"\s", "", safe_line(result.sentence))
    assert re.sub(r"\s", "", "".join(lines)).startswith(wanted)
    assert re.sub(r"\s", "", "".join(lines)).endswith(wanted)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["two", "twelve", "forty", "chips", "uncompared"])
def test_every_interval_is_on_a_screen_of_any_width_and_no_line_is_too_long(name: str, width: int) -> None:
    result = MADE[name]()
    lines = on_screen(result, width)
    commands = [line for line in lines if "stackmark " in line]
    assert all(cell_len(line) <= width for line in lines if line not in commands)
    shown = "\n".join(lines)
    sections = SuiteSections(result)
    for row in result.rows:
        for cell in row.cells:
            said = sections.cell(row, cell)
            assert said.spread in shown
            assert said.verdict in shown


def test_in_a_pipe_each_row_is_one_whole_line() -> None:
    result = suite_sample.forty()
    lines = _in_pipe(lambda console: print_suite(result, console)).splitlines()
    for row in result.rows:
        (line,) = [line for line in lines if line.startswith(f"{result.row_name(row)} ")]
        assert all(cell.comparison is None or say_shift(cell.comparison) in line for cell in row.cells)


@pytest.mark.parametrize("width", [None, *WIDTHS])
def test_a_row_may_lack_a_cell(width: int | None) -> None:
    result = without_a_cell(suite_sample.twelve())
    show = lambda console: print_suite(result, console)  # noqa: E731
    assert (_in_pipe(show) if width is None else _on_screen(show, width)).splitlines()[0]
    assert render_suite_html(result, generated_unix_s=0.0, version="1")
    assert suite_plot_svg(result, "heatmap")
    assert suite_plot_svg(result, "bars")
    assert suite_markdown(result).count("\n| ") == len(result.rows) + 2


def test_the_next_commands_name_the_suite_the_worst_row_and_the_ledger(tmp_path: Path) -> None:
    result = suite_sample.twelve()
    worst = min(
        (row for row in result.rows), key=lambda row: min(c.comparison.ratio for c in row.cells if c.comparison)
    )
    commands = SuiteSections(result).commands("--ledger other.sqlite3")
    assert [command.split()[1] for command in commands] == ["report", "plot", "verdict"]
    assert worst.experiment_id is not None
    assert commands[-1].split()[2] == worst.experiment_id[:12]
    assert all(command.endswith("--ledger other.sqlite3") for command in commands)
    assert SuiteSections(suite_sample.recorded_suite(tmp_path)).commands()[0].startswith("stackmark resume ")


def test_no_picture_is_proposed_of_a_suite_without_a_number() -> None:
    result = suite_sample.two()
    empty = tuple(SuiteCell(cell.arm, marks=("open",), is_reference=cell.is_reference) for cell in result.rows[0].cells)
    commands = SuiteSections(replace(result, rows=(replace(result.rows[0], cells=empty, state="open"),))).commands()
    assert [command.split()[1] for command in commands] == ["resume", "report"]


def test_cells_that_failed_for_one_reason_are_told_together(tmp_path: Path) -> None:
    (failed,) = SuiteSections(suite_sample.recorded_suite(tmp_path)).failures
    assert failed.names == ("vgg16 stackmark in container", "vgg16 stackmark in pod")
    assert (failed.kind, failed.message, failed.hint) == suite_sample.OUT_OF_MEMORY


def test_disturbed_and_single_run_cells_are_cautions(tmp_path: Path) -> None:
    kinds = [one.kind for one in SuiteSections(suite_sample.recorded_suite(tmp_path)).cautions]
    assert kinds[0] == "interference"
    assert "one-run" in kinds


@pytest.mark.parametrize(
    ("ratio", "spread", "said"),
    [
        (0.969, 0.003, "−3.1 ± 0.3 %"),
        (0.969, 0.0003, "−3.10 ± 0.03 %"),
        (1.0, 0.0007, "0.00 ± 0.07 %"),
        (1.1, 0.15, "+10 ± 17 %"),
        (0.9, 0.5, "−10 % (−45 to +48)"),
        (2.41, 0.01, "×2.41 ± 1 %"),
        (0.25, 1.0, "×0.25 within a factor of 2.72"),
        (0.969, None, "−3.1 %"),
    ],
)
def test_a_change_has_as_many_decimals_as_its_interval_tells(ratio: float, spread: float | None, said: str) -> None:
    pair = replace(suite_sample.comparison_of(suite_sample.two(), 0, 1), ratio=ratio, interval_95=None)
    if spread is not None:
        pair = replace(pair, interval_95=Interval(ratio * math.exp(-spread), ratio * math.exp(spread), 0.95))
    assert say_shift(pair) == said


# For programs


def test_json_has_every_number_as_it_was_computed() -> None:
    result = suite_sample.twelve()
    found = json.loads(json.dumps(suite_json(result), allow_nan=False))
    assert found["family"] == len(result.comparisons) == sum(found["words"].values())
    assert [axis["name"] for axis in found["axes"]] == ["workload", "precision", "place"]
    for row, shown in zip(result.rows, found["rows"], strict=True):
        assert (shown["experiment_id"], shown["name"]) == (row.experiment_id, result.row_name(row))
        for cell, told in zip(row.cells, shown["cells"], strict=True):
            assert cell.throughput
            assert told["throughput"]["rate_per_s"] == cell.throughput.rate_per_s
            pair = cell.comparison
            if pair is None:
                assert told["comparison"] is None
                continue
            for name in ("word", "ratio", "p_equivalence", "p_outside", "p_difference", "family"):
                assert told["comparison"][name] == getattr(pair, name)


def test_json_says_why_a_cell_has_no_number(tmp_path: Path) -> None:
    rows = json.loads(json.dumps(suite_json(suite_sample.recorded_suite(tmp_path))))["rows"]
    failed = rows[2]["cells"][1]
    assert failed["failure"] == dict(zip(("kind", "message", "hint"), suite_sample.OUT_OF_MEMORY, strict=True))
    assert failed["throughput"] is None
    assert rows[3]["cells"][1]["marks"] == ["disturbed", "one-run", "open"]
    assert [row["state"] for row in rows] == ["done", "done", "done", "open", "waiting"]


@pytest.mark.parametrize("name", MADE)
def test_csv_has_a_line_for_each_cell_and_no_formula(name: str) -> None:
    result = MADE[name]()
    head, *lines = csv.reader(io.StringIO(suite_csv(result), newline=""))
    assert len(lines) == len(result.cells)
    for line, cell in zip(lines, result.cells, strict=True):
        told = dict(zip(head, line, strict=True))
        assert (float(told["rate_per_s"]) if cell.throughput else None) == (
            cell.throughput and cell.throughput.rate_per_s
        )
        assert told["word"] == (cell.comparison.word if cell.comparison else "")
    assert not [value for line in [head, *lines] for value in line if value[:1] in ("=", "@", "+", "\t", "\r")]


@settings(max_examples=30, deadline=None)
@given(
    st.text(min_size=1, max_size=30).filter(lambda text: text.isprintable()),
    st.sampled_from(["=", "@", "+", "-", "'="]),
)
def test_no_text_begins_a_formula_in_csv(text: str, begin: str) -> None:
    result = suite_sample.two()
    cell = SuiteCell("container", marks=("failed",), failure_kind=begin + text, failure=begin + text, hint=begin + text)
    row = replace(result.rows[0], workload=begin + text, cells=(result.rows[0].cells[0], cell))
    (_, *lines) = csv.reader(io.StringIO(suite_csv(replace(result, rows=(row,))), newline=""))
    assert not [value for line in lines for value in line if value[:1] in ("=", "@", "+", "-")]


def outcomes(text: str) -> dict[str, tuple[str, str | None]]:
    """Of each case what became of it, and its kind."""
    found = {}
    for case in ElementTree.fromstring(text).iter("testcase"):
        first = case[0]
        found[case.attrib["name"]] = ("passed" if first.tag == "system-out" else first.tag, first.get("type"))
    return found


def slower(comparison: Comparison) -> bool:
    return comparison.is_slower


def test_junit_has_a_case_for_each_cell(tmp_path: Path) -> None:
    result = suite_sample.recorded_suite(tmp_path)
    found = outcomes(suite_junit(result, slower))
    assert len(found) == len(result.cells)
    assert found["resnet50_v1.5, stackmark: pod"] == ("passed", None)
    assert found["vgg16, stackmark: pod"] == ("error", "oom")
    assert found["vgg16, vendor: container"][0] == "skipped"
    assert found["inception3, stackmark: host"][0] == "skipped"


def test_junit_fails_the_cells_that_fail_on_names() -> None:
    result = suite_sample.twelve()
    found = outcomes(suite_junit(result, slower))
    failures = {name for name, (outcome, _) in found.items() if outcome == "failure"}
    assert failures == {"vgg16, bf16: pod", "vgg16, fp32: pod"}
    assert found["vgg16, bf16: pod"] == ("failure", "SLOWER")


def test_a_cell_that_was_measured_and_could_not_be_compared_is_an_error_in_junit() -> None:
    result = suite_sample.two()
    cells = [replace(cell, comparison=None) for cell in result.rows[0].cells]
    found = outcomes(suite_junit(replace(result, rows=(replace(result.rows[0], cells=tuple(cells)),)), slower))
    assert found["resnet50: container"][0] == "error"
    assert found["resnet50: host"][0] == "passed"


def test_junit_of_hostile_names_is_xml() -> None:
    assert len(outcomes(suite_junit(suite_sample.hostile(), slower))) == 4


# Pictures


SVG = "{http://www.w3.org/2000/svg}"


def drawn(svg: str, class_: str) -> list[ElementTree.Element]:
    wanted = set(class_.split())
    return [one for one in ElementTree.fromstring(svg).iter() if wanted <= set(one.get("class", "").split())]


@pytest.mark.parametrize("name", ["two", "twelve", "forty", "chips", "hostile"])
def test_a_heat_map_has_a_cell_with_its_number_for_each_cell(name: str) -> None:
    result = MADE[name]()
    cells = drawn(suite_plot_svg(result, "heatmap"), "cell")
    assert len(cells) == len(result.cells)
    said = [" ".join("".join(one.itertext()) for one in cell.iter(f"{SVG}text")) for cell in cells]
    numbers = [one for one in said if "%" in one or "×" in one]
    assert len(numbers) == len(result.cells), "the reference has its interval, a failed cell its cross"


def test_colours_follow_the_ratio_and_what_is_not_decided_has_none() -> None:
    result = suite_sample.twelve()
    edges = heatmap.edges_of(result)
    assert edges[0] == result.margin
    assert [heatmap.level(ratio, edges) for ratio in (0.5, 0.97, 0.985, 0.9901, 1.0, 1.0099, 1.015, 1.03, 2.0)] == [
        -5, -2, -1, 0, 0, 0, 1, 2, 5,
    ]  # fmt: skip
    svg = suite_plot_svg(result, "heatmap")
    words = [one.word for one in result.comparisons]
    fields = [one for one in drawn(svg, "cell") if any(box.get("class") == "undecided" for box in one)]
    assert len(fields) == words.count("INCONCLUSIVE") > 0
    assert all(any(part.get("class") == "hatch" for part in field) for field in fields)


def test_axes_that_a_suite_wants_as_columns_are_groups_of_columns() -> None:
    result = replace(suite_sample.twelve(), columns=("precision",))
    grid = heatmap.grid_of(result)
    assert len(grid.rows) == 6
    assert [(column.group, column.arm) for column in grid.columns] == [
        (group, arm) for group in ("bf16", "fp32") for arm in ("host", "container", "pod")
    ]
    assert len(grid.cells) == len(result.cells)


def test_many_columns_go_on_below_and_none_is_lost() -> None:
    arms = {f"arm{number}": 1.0 for number in range(9)}
    result = suite_sample.made(["train/resnet50"], arms, precisions=("bf16", "fp32", "fp16"), columns=("precision",))
    assert len(drawn(heatmap.heatmap(result), "cell")) == 27
    assert len(drawn(heatmap.heatmap(result, heatmap.NARROW), "cell")) == 27


def test_bars_of_one_unit_and_scale_are_absolute_and_as_long_as_their_figures() -> None:
    result = suite_sample.two()
    (panel,) = grouped.panels_of(result)
    assert panel.unit is not None
    scale = grouped.bar_scale(panel, grouped.WIDE)
    bars = [float(one.attrib["width"]) for one in drawn(grouped.grouped_bars(result), "bar")]
    rates = [cell.throughput.rate_per_s for cell in result.cells if cell.throughput]
    zero = scale(0)
    assert bars == pytest.approx([scale(rate) - zero for rate in rates], abs=0.02)
    assert bars[1] / bars[0] == pytest.approx(rates[1] / rates[0], abs=1e-4)


def test_a_mark_next_to_a_bar_is_never_cut() -> None:
    result = suite_sample.two()
    row = result.rows[0]
    wide = throughput_over_runs([800.0, 2400.0])
    cells = tuple(replace(cell, throughput=wide, marks=("disturbed", "unusable")) for cell in row.cells)
    shown = grouped.grouped_bars(replace(result, rows=(replace(row, cells=cells),)))
    signs = [one for one in re.findall(r"<text[^>]*>([^<]*)</text>", str(shown)) if one.endswith("~!")]
    assert len(signs) == len(cells)


def test_bars_of_several_units_are_relative_to_the_reference_and_say_so() -> None:
    result = suite_sample.twelve()
    assert grouped.is_relative(result)
    bars = [float(one.attrib["width"]) for one in drawn(grouped.grouped_bars(result), "bar")]
    for place, row in enumerate(result.rows):
        mine = bars[3 * place : 3 * place + 3]
        rates = [cell.throughput.rate_per_s for cell in row.cells if cell.throughput]
        assert [one / mine[0] for one in mine] == pytest.approx([rate / rates[0] for rate in rates], abs=1e-3)
    assert "host" in grouped.say_axis(result)


def test_a_relative_bar_has_its_unit_even_if_there_is_no_room_for_the_interval() -> None:
    result = suite_sample.twelve()
    wide = throughput_over_runs([800.0, 2400.0])
    rows = [
        replace(row, cells=tuple(replace(cell, throughput=wide, marks=()) for cell in row.cells)) for row in result.rows
    ]
    other = [replace(row, cells=tuple(replace(cell, unit="1/s") for cell in row.cells)) for row in rows[:1]]
    shown = replace(result, rows=(*other, *rows[1:]))
    assert grouped.is_relative(shown)
    figures = [one.text for one in drawn(suite_plot_svg(shown, "bars"), "row") for one in one.iter(f"{SVG}text")]
    assert len(figures) == len(shown.cells)
    assert all(one and one.endswith(("/s", " s")) for one in figures), figures


def test_bars_without_a_comparison_have_an_axis_for_each_unit() -> None:
    whole = suite_sample.uncompared()
    first = whole.rows[0]
    other = replace(first, number=9, workload="fit/ssd", cells=(replace(first.cells[0], unit="1/s"),))
    panels = grouped.panels_of(replace(whole, rows=(*whole.rows, other)))
    assert [panel.unit.name for panel in panels if panel.unit] == ["images/s", "s"]
    assert sum(len(panel.rows) for panel in panels) == 7, "the failed row is there too"


def test_a_picture_of_ratios_needs_a_comparison() -> None:
    with refused("--kind bars"):
        suite_plot_svg(suite_sample.uncompared(), "heatmap")
    assert suite_plot_svg(suite_sample.uncompared()).startswith("<?xml")


def test_a_suite_without_a_number_has_no_picture() -> None:
    result = suite_sample.two()
    empty = [SuiteCell(cell.arm, marks=("open",), is_reference=cell.is_reference) for cell in result.rows[0].cells]
    with refused(f"stackmark resume {result.experiment_id}"):
        suite_plot_svg(replace(result, rows=(replace(result.rows[0], cells=tuple(empty), state="open"),)), "bars")


@pytest.mark.parametrize("kind", ["heatmap", "bars"])
def test_pictures_are_png_too(kind: str) -> None:
    assert suite_plot_png(suite_sample.two(), kind).startswith(b"\x89PNG")  # type: ignore[arg-type]


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    light = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_are_legible_on_every_colour_of_a_heat_map() -> None:
    sheet = (Path(heatmap.__file__).parents[1] / "page.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        for name in HEAT_CLASSES:
            ink = colours["deep-ink"] if name[-1] in "45" else colours["text"]
            assert contrast(colours[name], ink) >= 4.5, (name, block[:60])
    for name, colour in HEAT.items():
        assert contrast(colour, "#ffffff" if name[-1] in "45" else "#1a1f26") >= 4.5, name


# The report


class Page(HTMLParser):
    """The tags, ids, links and headings of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self.ids += [str(found["id"])] if "id" in found else []
        self.links += [str(found["href"])] if "href" in found else []


def page_of(result: SuiteResult) -> Page:
    return Page(render_suite_html(result, generated_unix_s=suite_sample.T0, version="0.1.0"))


def test_the_page_of_a_suite_has_a_folded_page_for_each_measured_row(tmp_path: Path) -> None:
    page = page_of(suite_sample.recorded_suite(tmp_path))
    assert page.links == ["#row1", "#row2", "#row3"]
    assert set(page.links) <= {f"#{name}" for name in page.ids}
    assert len(page.ids) == len(set(page.ids))
    levels = [int(tag[1]) for tag in page.tags if re.fullmatch("h[1-6]", tag)]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_the_answer_of_a_suite_stands_before_its_table_and_the_method_after(tmp_path: Path) -> None:
    names = [name for name in page_of(suite_sample.recorded_suite(tmp_path)).ids if "-" not in name]
    assert names == [
        "verdict",
        "table",
        "heat",
        "bars",
        "failed",
        "missing",
        "method",
        "rows",
        "row1",
        "row2",
        "row3",
        "repeat",
    ]


def test_a_hostile_suite_runs_and_fetches_nothing() -> None:
    page = page_of(suite_sample.hostile())
    assert not {"script", "img", "link", "iframe", "object", "base", "form"} & set(page.tags)


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=40))
def test_no_name_becomes_markup(text: str) -> None:
    attack = f"{text}<blink onmouseover=x>"
    result = suite_sample.two()
    row = replace(result.rows[0], workload=attack)
    named = replace(result, rows=(row,), title=attack, name=attack, missing=(attack,), command=attack)
    plain = page_of(replace(result, missing=("x",)))
    # A longer name may be drawn in other shapes, but never as an element of its own.
    assert set(page_of(named).tags) <= set(plain.tags)
    assert "blink" not in page_of(named).tags
    ElementTree.fromstring(suite_plot_svg(named, "heatmap"))
    ElementTree.fromstring(suite_plot_svg(named, "bars"))


def test_the_page_of_forty_rows_stays_below_five_megabytes() -> None:
    page = render_suite_html(suite_sample.forty(pages=True), generated_unix_s=0.0, version="1")
    assert len(page.encode()) < 5_000_000
    assert page.count('class="row-page"') == 40


def test_paper_has_no_page_for_each_of_forty_rows() -> None:
    page = render_suite_html(suite_sample.forty(pages=True), generated_unix_s=0.0, version="1", most_pages=6)
    assert page.count('class="row-page"') == 0
    assert not Page(page).links


@pytest.mark.parametrize("name", MADE)
def test_the_markdown_of_a_suite_is_one_table_with_a_line_for_each_row(name: str) -> None:
    result = MADE[name]()
    made = MarkdownIt("commonmark", {"html": False}).enable("table").render(suite_markdown(result))
    assert made.count("<table>") == 1
    assert made.count("<tr>") == 1 + len(result.rows)
    assert made.count("<th>") == 1 + len(result.arms)
    assert "<script" not in made


def test_the_report_in_markdown_folds_the_page_of_each_row(tmp_path: Path) -> None:
    said = render_suite_markdown(suite_sample.recorded_suite(tmp_path), Heading.made("A TITLE", "A NOTE", "SOMEBODY"))
    assert said.count("<details>") == said.count("</details>") == 3
    assert said.startswith("## A TITLE")


@pytest.mark.parametrize(("name", "begin"), [("suite.html", "<!doctype html>"), ("suite.md", "## ")])
def test_a_report_is_what_the_name_of_its_file_says(tmp_path: Path, name: str, begin: str) -> None:
    path = write_suite_report(suite_sample.two(), str(tmp_path / name))
    assert path == tmp_path / name
    assert path.read_text(encoding="utf-8").startswith(begin)
