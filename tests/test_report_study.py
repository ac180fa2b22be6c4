"""Reports that people forward: of several experiments, of imported logs, of operator lists, with a heading, as PDF."""

import json
import os
import re
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import examined_sample as sample
from asking import ask
from browser import NAMES, PACKAGE, Browser, find_browser, running_browser
from leaving_out import leave_out
from naming import missing
from recorded import load
from stackmark.api.stored import load as load_experiment
from stackmark.errors import PlaceError
from stackmark.ledger.store import Ledger
from stackmark.show.answer import title_of
from stackmark.show.report.charts import bars
from stackmark.show.report.heading import Heading
from stackmark.show.report.html import render_html
from stackmark.show.report.markdown import render_markdown
from stackmark.show.report.pdf import render_pdf
from stackmark.show.report.study import render_study_html, render_study_markdown, study_title, titles_of
from stackmark.show.sections import Sections

LOGS = Path(__file__).parent / "data" / "logs"
ATTACK = "</title><script>alert(1)</script> & \x1b[31m\u202e\"'"
STUDY = [sample.sample_examined(), sample.slower_examined(), sample.one_arm(), sample.hostile()]


class Page(HTMLParser):
    """The ids, the links, the headings and the text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.headings: list[str] = []
        self.tags: list[str] = []
        self.said: list[str] = []
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.tags.append(tag)
        self._inside = tag
        self.ids += [str(found["id"])] if "id" in found else []
        self.links += [str(found["href"])] if "href" in found else []
        self.headings += [tag] if re.fullmatch("h[1-6]", tag) else []

    def handle_data(self, data: str) -> None:
        if self._inside != "style":
            self.said.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.said)).replace("\N{NO-BREAK SPACE}", " ")


def study(heading: Heading | None = None) -> Page:
    return Page(render_study_html(STUDY, generated_unix_s=sample.T0, version="0.1.0", heading=heading or Heading()))


# Several experiments


def test_rows_of_a_suite_are_distinguished_by_what_they_were_measured_with() -> None:
    one = sample.sample_examined()
    arm = one.arms[0]
    rows = [replace(one, arms=(replace(arm, params={**arm.params, "batch": batch}), *one.arms[1:])) for batch in (4, 8)]
    first, second = titles_of(rows)
    assert (first, second) == (f"{title_of(one)}, batch 4", f"{title_of(one)}, batch 8")
    assert titles_of([one]) == [title_of(one)]
    assert second in render_study_html(rows, generated_unix_s=0.0, version="0")


def test_every_link_of_a_study_leads_to_one_experiment_and_no_anchor_comes_twice() -> None:
    page = study()
    assert len(page.ids) == len(set(page.ids))
    assert page.links == [f"#x{number}" for number in range(1, 1 + len(STUDY))]
    assert {link.removeprefix("#") for link in page.links} <= set(page.ids)


def test_the_contents_say_the_verdict_of_each_before_the_first_begins() -> None:
    page = study().text
    contents = page[: page.index(sample.sample_examined().scope)]
    assert missing(contents, "EQUIVALENT", "SLOWER", "MEASURED", "−0.17 %", "4,737 images/s") == []


def test_a_study_has_one_title_and_headings_that_skip_no_level() -> None:
    levels = [int(tag[1]) for tag in study().headings]
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_a_study_of_hostile_experiments_runs_and_fetches_nothing() -> None:
    page = study()
    assert not {"script", "img", "link", "iframe", "object", "base", "form"} & set(page.tags)


def test_the_title_of_a_study_says_what_its_experiments_share() -> None:
    same = [sample.sample_examined(), sample.inconclusive()]
    assert missing(study_title(same), "2 experiments", "train/resnet50_v1.5", "NVIDIA H200") == []
    assert study_title(same).startswith("Host vs container")
    assert not study_title([sample.sample_examined(), sample.one_arm()]).startswith("Host")


def test_a_study_in_markdown_links_to_headings_that_exist() -> None:
    page = MarkdownIt("commonmark").enable("table").render(render_study_markdown(STUDY))
    linked = re.findall(r'href="#([^"]+)"', page)
    headings = [name.lower().replace(" ", "-") for name in re.findall(r"<h3>(.*?)</h3>", page)]
    assert linked == headings == [f"experiment-{number}" for number in range(1, 1 + len(STUDY))]


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of three recorded experiments in a ledger that commands find; the last is an operator list."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as book:
        return [load(book, name) for name in ("h200_host_container", "h200_cpu_limit", "h200_gemm_bf16")]


def test_the_command_puts_several_experiments_into_one_file(recorded: list[str]) -> None:
    answer = ask("report", *recorded, "-o", "study.html")
    assert answer.code == 0, answer.err
    page = Page(Path("study.html").read_text(encoding="utf-8"))
    assert missing(page.text, *recorded) == []
    assert ask("report", *recorded[:2]).code == 0
    assert Path("stackmark-study.html").exists()
    assert ask("report", *recorded, "-o", "study.md").code == 0
    assert missing(Path("study.md").read_text(encoding="utf-8"), *recorded) == []


def test_an_experiment_that_is_named_twice_is_refused(recorded: list[str]) -> None:
    answer = ask("report", recorded[0], recorded[0][:20], "-o", "study.html")
    assert (answer.code, recorded[0] in answer.err, Path("study.html").exists()) == (2, True, False)


# The heading


@pytest.mark.parametrize("form", ["html", "md"])
def test_title_note_and_author_are_shown_as_text_and_stored_nowhere_else(recorded: list[str], form: str) -> None:
    before = Path("ledger.sqlite3").read_bytes()
    heading = ("--title", f"T{ATTACK}", "--note", f"first{ATTACK}\nsecond", "--author", f"Ada{ATTACK}")
    answer = ask("report", recorded[0], "-o", f"report.{form}", *heading)
    assert answer.code == 0, answer.err
    written = Path(f"report.{form}").read_text(encoding="utf-8")
    page = Page(written if form == "html" else MarkdownIt("commonmark").enable("table").render(written))
    assert "script" not in page.tags
    assert missing(page.text, "Ada", "second") == []
    assert page.text.index("Ada") < page.text.index("EQUIVALENT")
    assert "\x1b" not in written
    assert "\\x1b" not in written, "removed, not shown"
    assert "\u202e" not in written
    assert Path("ledger.sqlite3").read_bytes() == before


def test_without_a_heading_the_title_is_the_question(recorded: list[str]) -> None:
    assert ask("report", recorded[0], "-o", "report.html").code == 0
    titles = re.findall(r"<(?:title|h1)>(.*?)</", Path("report.html").read_text(encoding="utf-8"))
    assert titles[:2] == ["Host vs container: train/resnet50_v1.5 on NVIDIA H200"] * 2


def test_an_empty_title_is_wrong_use(recorded: list[str]) -> None:
    assert ask("report", recorded[0], "--title", " ").code == 2


# Imported logs


def imported(*words: str) -> tuple[str, dict[str, object]]:
    answer = ask("import", *words, "--json")
    assert answer.code == 0, answer.err
    said: dict[str, object] = json.loads(answer.out)
    return str(said["experiment_id"]), said


ARMS = [
    word
    for where in ("host", "container")
    for run in ("", "_run2")
    for word in ("--arm", f"{where}={LOGS / 'tf_cnn' / f't4_{where}_1gpu{run}.log'}")
]


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    return tmp_path


def test_arms_that_were_imported_together_are_reported_with_the_verdict_of_the_import(empty: Path) -> None:
    id_, said = imported(*ARMS)
    assert json.loads(ask("verdict", "last", "--json").out)["comparisons"] == said["comparisons"]
    examined = load_experiment("last").verdict().examined
    assert (examined.experiment_id, [arm.label for arm in examined.arms]) == (id_, ["host", "container"])
    assert ask("report", "last", "-o", "report.html").code == 0
    page = Page(Path("report.html").read_text(encoding="utf-8")).text
    (pair,) = examined.comparisons
    assert missing(page, "Host vs container", pair.word, f"{pair.ratio:.4f}", "125.3 images/s", "126.0 images/s") == []
    (listed,) = json.loads(ask("experiments", "--json").out)["experiments"]
    assert (listed["arms"], listed["verdicts"]) == (["host", "container"], [pair.word])
    assert pair.word in ask("show", id_).out


def test_imported_arms_that_cannot_be_compared_are_reported_without_a_verdict(empty: Path) -> None:
    arms = [
        f"{where}={LOGS / 'tf_cnn' / name}"
        for where, name in (("host", "t4_host_1gpu.log"), ("pod", "t4_host_2gpu.log"))
    ]
    answer = ask("import", "--arm", arms[0], "--arm", arms[1])
    assert answer.code == 2
    examined = load_experiment("last").verdict().examined
    assert (len(examined.arms), examined.comparisons) == (2, ())
    assert examined.warnings[0].kind == "not-comparable"  # type: ignore[attr-defined]
    assert examined.warnings[0] in answer.err
    assert ask("report", "last", "-o", "report.html").code == 0
    assert (
        missing(Page(Path("report.html").read_text(encoding="utf-8")).text, examined.warnings[0], "host", "pod") == []
    )


def test_an_imported_list_of_problems_is_a_table_and_not_a_mean(empty: Path) -> None:
    assert ask("import", str(LOGS / "deepbench" / "gemm_train_float.log")).code in (0, 7)
    examined = load_experiment("last").verdict().examined
    assert "mixed-runs" in [getattr(one, "kind", "") for one in examined.warnings]
    times = {one.name: one.rows[0].seconds for one in examined.operators if one.rows[0]}
    assert times["1760×128×1760 NN"] == pytest.approx(112e-6)
    rates = [one.rows[0].rate for one in examined.operators if one.rows[0] and one.rows[0].seconds]
    assert rates == pytest.approx([run.rate_per_s for run in examined.runs if run.counted])


# Operator lists


def test_the_problems_of_a_list_are_those_of_show_with_published_times(recorded: list[str]) -> None:
    rows = json.loads(ask("show", recorded[2], "--json").out)["rows"]
    examined = load_experiment(recorded[2]).verdict().examined
    assert [one.index for one in examined.operators] == [row["index"] for row in rows]
    for one, row in zip(examined.operators, rows, strict=True):
        (mine,) = one.rows
        assert mine is not None
        assert (mine.seconds, mine.low_s, mine.high_s) == (row["seconds"], row["low_s"], row["high_s"])
        assert [near.seconds for near in one.published] == [near["seconds"] for near in row["published"]]


def test_a_report_of_a_list_has_every_problem_once_in_its_own_order(recorded: list[str]) -> None:
    examined = load_experiment(recorded[2]).verdict().examined
    page = Page(render_html(examined, generated_unix_s=0, version="1"))
    numbers = [int(found) for found in re.findall(r"number (\d+)", page.text)]
    assert numbers[-len(examined.operators) :] == [one.index for one in examined.operators]
    assert "Baidu DeepBench" in page.text
    assert "operators" not in load_experiment(recorded[2]).verdict().to_dict()
    markdown = render_markdown(examined)
    assert missing(markdown, examined.operators[0].name, "Baidu DeepBench") == []


# Bars


def test_bars_begin_at_zero_and_are_as_long_as_their_figures() -> None:
    examined = sample.slower_examined()
    drawn = bars.bars(examined)
    widths = [float(found) for found in re.findall(r'<rect class="bar a\d"[^>]* width="([\d.]+)"', drawn)]
    rates = [arm.throughput.rate_per_s for arm in examined.arms if arm.throughput]
    assert widths[1] / widths[0] == pytest.approx(rates[1] / rates[0], rel=1e-3)
    assert set(re.findall(r'<rect class="bar a\d" x="([\d.]+)"', drawn)) == {f"{bars.WIDE.left:.0f}"}
    assert "<title>" in drawn
    assert "<desc>" in drawn


def test_bars_stand_above_the_ratio_and_one_arm_has_none() -> None:
    page = render_html(sample.sample_examined(), generated_unix_s=0, version="1")
    assert page.index('class="chart bars"') < page.index('class="chart forest"')
    assert bars.drawable(sample.one_arm()) == []


def test_parameters_are_folded() -> None:
    page = render_html(sample.sample_examined(), generated_unix_s=0, version="1")
    folded = page[page.index("<details>") :]
    assert missing(folded[: folded.index("</details>")], "precision", "bf16", "cuda:0") == []


def test_an_interrupted_run_does_not_say_that_all_runs_were_made() -> None:
    said = "2 of 5 runs were made; go on with: stackmark resume x-1"
    examined = sample.one_arm(runs=2, state="open", state_sentence=said)
    for page in (Page(render_html(examined, generated_unix_s=0, version="1")).text, render_markdown(examined)):
        assert missing(page, "2 of 5 runs", "resume") == []
        assert "all runs that were asked" not in page
    assert Sections(examined).headlines[0].word == "UNFINISHED"


# PDF


@pytest.fixture
def chromium() -> str:
    found = find_browser()
    if found is None:
        leave_out(f"no browser is installed (apt-get install {PACKAGE})")
    return found


@pytest.fixture
def reader(chromium: str) -> Iterator[Browser]:
    with running_browser(chromium) as found:
        yield found


def test_a_pdf_has_the_title_and_as_many_pages_as_it_says(recorded: list[str], chromium: str) -> None:
    left = set(Path("/tmp").glob("stackmark-pdf-*"))
    answer = ask("report", recorded[0], "-o", "report.pdf", "--title", "Our question", "--note", "a note")
    assert answer.code == 0, answer.err
    data = Path("report.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    counted = len(re.findall(rb"/Type /Page\b", data))
    # Chromium keeps pages in groups of eight; the root counts all of them.
    assert counted == max(map(int, re.findall(rb"/Count (\d+)", data)))
    assert 2 <= counted <= 12
    # Chromium writes the page's title into the document's information as it is, where it is ASCII.
    assert b"/Title (Our question)" in data
    assert set(Path("/tmp").glob("stackmark-pdf-*")) == left, "its folder is gone"


def test_pdf_without_a_browser_says_what_to_install(recorded: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    answer = ask("report", recorded[0], "-o", "report.pdf")
    assert answer.code == 2
    assert missing(answer.err, "chromium") == []
    assert not Path("report.pdf").exists()
    asked = ("compare", "--cmd", "true", "--arm", "host", "--arm", "host", "--report", "report.pdf")
    assert ask(*asked).code == 2, "before anything is measured"


def program(folder: Path, script: str) -> None:
    path = folder / NAMES[0]
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_a_browser_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, f"sleep 600 & echo $! > {tmp_path}/child; wait")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(PlaceError):
        render_pdf("<p>hello</p>", time_limit_s=1.0)
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 30
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    """A zombie that nobody has waited for yet does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_browser_that_writes_nothing_is_the_systems_failure(
    recorded: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path, "echo 'no display' >&2")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    answer = ask("report", recorded[0], "-o", "report.pdf")
    assert (answer.code, "no display" in answer.err, Path("report.pdf").exists()) == (4, True, False)


def test_a_study_asks_nobody_for_anything(reader: Browser, tmp_path: Path) -> None:
    page = tmp_path / "study.html"
    page.write_text(render_study_html(STUDY, generated_unix_s=sample.T0, version="1"), encoding="utf-8")
    for width in (400, 1200):
        reader.open(page, width=width)
        assert reader.requests() == [page.as_uri()]
        assert reader.complaints() == []
        assert reader.value("document.documentElement.scrollWidth <= innerWidth")
