"""Reports as text: what stands in the page and in the Markdown, in which order, and that foreign text stays text."""

import errno
import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import examined_sample as sample
from asking import ask
from ledger_runs import complete
from naming import missing
from stackmark.ledger.store import Ledger
from stackmark.show.report.html import render_html
from stackmark.show.report.markdown import fenced, plain, render_markdown
from stackmark.show.sections import Sections
from stackmark.verdict.comparison import Word
from stackmark.verdict.covariates import BY_NAME
from stackmark.verdict.examined import CovariateLine, Examined, FactDifference
from stackmark.verdict.sentence import sentence_of

MAKERS = [sample.sample_examined, sample.slower_examined, sample.three_arms, sample.with_failed_run, sample.one_arm,
          sample.open_experiment, sample.nothing_measured, sample.hostile]  # fmt: skip
VOID = {"meta", "br", "hr", "img", "link", "input"}


def html(examined: Examined) -> str:
    return render_html(examined, generated_unix_s=sample.T0, version="0.1.0")


class Reader(HTMLParser):
    """Which elements there are, whether they are closed in order, and the text outside the style sheet."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


def words(page: str) -> str:
    return re.sub(r"\s+", " ", " ".join(read(page).text))


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_every_element_is_closed_and_none_can_run_or_fetch(make: Callable[[], Examined]) -> None:
    reader = read(html(make()))
    assert not {"script", "img", "link", "iframe", "object", "base", "form", "a"} & set(reader.tags)
    assert not [name for name, _ in reader.attributes if name.startswith("on") or name in ("src", "href", "style")]


@pytest.mark.parametrize(
    ("word", "sign"), [("EQUIVALENT", "="), ("SLOWER", "▼"), ("FASTER", "▲"), ("INCONCLUSIVE", "?")]
)
def test_the_verdict_stands_first_with_a_sign_that_needs_no_colour(word: Word, sign: str) -> None:
    base = sample.sample_examined()
    page = html(replace(base, comparisons=(replace(base.comparisons[0], word=word),)))
    said = words(page)
    assert page.index(word) < page.index('id="arms"')
    assert f"{sign} {word}" in said
    before = said[said.index(f"{sign} {word}") :]
    assert before.index(base.comparisons[0].sentence) < before.index(base.scope)


def test_the_numbers_of_the_verdict_are_those_of_the_comparison() -> None:
    examined = sample.sample_examined()
    said = words(html(examined))
    logs = [math.log(b / a) for a, b in zip(sample.HOST, sample.CONTAINER, strict=True)]
    assert f"{math.exp(sum(logs) / 6):.4f} (−0.17 %)" in said
    assert missing(said, "0.9969", "0.9998") == []
    assert "6 blocks" in said


def test_everything_that_the_lab_says_is_in_the_page() -> None:
    examined = sample.with_failed_run()
    said = words(html(examined))
    sentences = [
        *examined.warnings,
        *examined.held,
        *examined.not_held,
        *examined.method,
        examined.scope,
        examined.command,
    ]
    sentences += [one.why for one in examined.differences] + [one.remark for one in examined.covariates]
    sentences += [one.source for one in examined.published] + [examined.experiment_id, examined.title]
    assert [one for one in sentences if re.sub(r"\s+", " ", one) not in said] == []


def test_a_failed_run_is_shown_with_its_reason_and_what_to_do() -> None:
    said = words(html(sample.with_failed_run()))
    failed = said[said.index("out_of_host_memory") :]
    assert "out_of_host_memory" in failed
    bad = sample.with_failed_run().runs[-1]
    assert missing(failed, bad.failure_message, bad.failure_hint) == []
    assert ['id="failed"' in html(one) for one in (sample.with_failed_run(), sample.sample_examined())] == [True, False]


def test_one_arm_has_its_rate_and_no_ratio() -> None:
    said = words(html(sample.one_arm()))
    assert missing(said, "MEASURED", "4,737 images/s", "0.12 %") == []
    page = html(sample.one_arm())
    assert not [name for name in ("ratio", "differences") if f'id="{name}"' in page]


def test_a_figure_without_steps_has_no_step_times() -> None:
    """A program's own figure, or that of a log: the one "step" beside it is the whole run."""
    base = sample.sample_examined()
    own = replace(base, runs=tuple(replace(run, steady=None, first_step=0, step_s=(50.8,)) for run in base.runs))
    assert "50.8 s" not in render_markdown(own)
    assert ['id="steps"' in html(one) for one in (own, base)] == [False, True]


def test_one_run_has_no_interval() -> None:
    said = words(html(sample.one_arm(runs=1))).replace("\N{NO-BREAK SPACE}", " ")
    assert missing(said, "one run") == []
    assert "±" not in said


def test_where_nothing_was_measured_it_says_so_and_why() -> None:
    said = words(html(sample.nothing_measured()))
    assert missing(said, "NO RESULT", sample.nothing_measured().runs[-1].failure_message) == []
    assert "images/s" not in said


def test_an_open_experiment_says_how_to_go_on_before_its_verdict() -> None:
    said = words(html(sample.open_experiment()))
    command = "stackmark resume x-01m8h200c0nta1nerv5h0st0a1"
    assert said.index(command) < said.index("? INCONCLUSIVE")


def test_many_comparisons_are_summed_up_and_listed() -> None:
    base = sample.sample_examined()
    same, slow = base.comparisons[0], sample.slower_examined().comparisons[0]
    said = words(html(replace(base, comparisons=(same, same, same, slow, slow))))
    assert missing(said, "3 EQUIVALENT", "2 SLOWER") == []
    assert said.count(slow.sentence) == 2


def test_several_comparisons_say_that_holm_decided() -> None:
    assert "Holm" in words(html(sample.three_arms()))
    assert "Holm" not in words(html(sample.sample_examined()))


def test_what_shows_an_effect_comes_before_what_merely_differs() -> None:
    heavy = FactDifference("software", "cudnn", ("9.1", "9.2"), "heavy", 99)
    seen = FactDifference("cgroup", "cpu.max", ("none", "1"), "throttled", 50, shows_effect=True)
    page = words(html(sample.sample_examined(differences=(heavy, seen))))
    assert page.index("throttled") < page.index("heavy")


def test_the_largest_part_of_a_longer_set_up_is_named() -> None:
    said = words(html(sample.sample_examined()))
    gaps = ("container", "10.7 s", "host", "9.59 s", "first step", "3.31 s", "12.9 s")
    assert any(missing(one, *gaps) == [] for one in said.split(". "))


def test_a_flag_of_several_runs_is_said_once() -> None:
    base = sample.sample_examined()
    runs = tuple(replace(run, flags=(f"power-cap: {100 + index} ms capped",)) for index, run in enumerate(base.runs))
    said = words(html(replace(base, runs=runs)))
    (at,) = (found.start() for found in re.finditer("100 ms capped", said))
    assert re.findall(r"(\d) × ([AB])", said[at : at + 40]) == [("6", "A"), ("6", "B")]
    assert "power-cap:" not in said
    assert "101 ms" not in said


def test_covariates_are_said_in_words_and_those_that_never_moved_in_one_line() -> None:
    said = words(html(sample.sample_examined())).replace("\N{NO-BREAK SPACE}", " ")
    moved, still = said.index("99.5 %"), said.index("stopped by the CPU quota")
    assert missing(said[moved : moved + 20], "99.4 %") == []
    assert missing(said[still - 80 : still], "hypervisor") == []


def test_no_two_covariates_have_one_name() -> None:
    lines = tuple(CovariateLine(one.name, one.unit, (0.0, 0.0)) for one in BY_NAME.values())
    names = [one.words for one in Sections(sample.sample_examined(covariates=lines)).conditions]
    assert sorted(set(names)) == sorted(names)


@pytest.mark.parametrize("arms", [sample.sample_examined, sample.three_arms])
def test_the_word_of_a_verdict_is_not_said_twice_in_a_row(arms: Callable[[], Examined]) -> None:
    undecided = [replace(one, word="INCONCLUSIVE", difference=None) for one in arms().comparisons]
    told = tuple(replace(one, sentence=sentence_of(one)) for one in undecided)
    assert all(one.sentence.startswith("INCONCLUSIVE") for one in told)
    examined = replace(arms(), comparisons=told)
    for said in (render_markdown(examined), words(html(examined))):
        assert "INCONCLUSIVE" in said
        assert not re.search(r"INCONCLUSIVE\W+INCONCLUSIVE", said)


def test_the_same_data_give_the_same_bytes() -> None:
    assert html(sample.three_arms()) == html(sample.three_arms())


def test_24_runs_of_5000_steps_make_a_page_below_half_a_megabyte() -> None:
    page = html(sample.sample_examined(blocks=12, step_count=5000))
    assert page.count("5,000 steps") == 24
    assert len(page.encode()) < 500_000


def test_runs_beyond_what_can_be_shown_are_counted() -> None:
    said = words(html(sample.sample_examined(blocks=40, step_count=40)))
    assert missing(said, "8 more") == []


def test_text_that_attacks_is_shown_as_text() -> None:
    reader = read(html(sample.hostile()))
    assert "fetch('http://evil.example/')" in "".join(reader.text)
    assert "\\x1b[31m" in "".join(reader.text), "an escape is shown, not obeyed"
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in "".join(reader.text)


# Markdown

GITHUB = MarkdownIt("commonmark").enable("table").enable("strikethrough")


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_the_tables_are_tables_whatever_stands_in_them(make: Callable[[], Examined]) -> None:
    examined = make()
    page = GITHUB.render(render_markdown(examined))
    arms, *others = re.findall(r"<table>.*?</table>", page, re.DOTALL)
    assert arms.count("<td") == 7 * len(examined.arms)
    assert len(others) == bool(examined.differences)
    for differences in others:
        assert differences.count("<td") == (2 + len(examined.arms)) * len(examined.differences)


def test_hostile_text_is_text_in_markdown_too() -> None:
    page = GITHUB.render(render_markdown(sample.hostile()).replace("<sub>", "").replace("</sub>", ""))
    ours = "h3 p strong br ul li table thead tbody tr th td pre code"
    assert set(re.findall(r"<(\w+)", page)) <= set(ours.split())
    outside = re.sub(r"<pre>.*?</pre>", "", page, flags=re.DOTALL)
    assert "@all" not in outside, "nobody is called"
    assert "#1" not in outside
    assert "http://" not in outside


def test_the_verdict_is_the_first_thing_after_the_title() -> None:
    lines = render_markdown(sample.sample_examined()).splitlines()
    assert lines[0].startswith("### Host vs container")
    assert missing(lines[2], "= EQUIVALENT", "container", "host", "−0.17 %", "±1 %", "6 blocks") == []
    assert missing(lines[3], "container", "host", "**0.9983**", "−0.17 %", "90 %", "0.9969", "0.9998") == []


def test_a_command_with_backticks_does_not_leave_its_block() -> None:
    command = "stackmark run ``` --x ````"
    page = GITHUB.render(fenced(command))
    assert re.findall(r"<pre><code[^>]*>([^<]*)</code></pre>", page) == [f"{command}\n"]


@given(st.text(max_size=60))
def test_any_text_comes_back_from_markdown_as_it_is_seen(content: str) -> None:
    written = plain(content)
    page = GITHUB.render(f"| a |\n| --- |\n| x{written}x |\n")
    cells = re.findall(r"<td>(.*?)</td>", page, re.DOTALL)
    assert len(cells) == 1
    assert "<" not in cells[0]
    alone = GITHUB.render(written)
    assert not written or re.fullmatch(r"<p>[^<]*</p>\n", alone), alone


# The command


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger with one experiment; what it shows is the sample."""
    monkeypatch.chdir(tmp_path)
    path = str(tmp_path / "ledger.sqlite3")
    with Ledger.open(path) as book:
        complete(book)

    def shown(book: Ledger, experiment_id: str, margin: float | None = None) -> Examined:
        return sample.sample_examined(experiment_id=book.experiment(experiment_id).id, margin=margin or 0.01)

    monkeypatch.setattr("stackmark.api.stored.examine", shown)
    return path


def test_a_report_is_written_and_its_name_said(ledger: str) -> None:
    answer = ask("report", "last", "-o", "report.html", "--ledger", ledger)
    assert answer.code == 0
    assert re.search(r"\bx-\w{26}\b.*\breport\.html\n", answer.err)
    assert Path("report.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert sorted(path.name for path in Path().iterdir() if path.name.startswith(".")) == [], (
        "nothing half-written is left"
    )


def test_without_a_name_the_page_is_named_for_its_experiment(ledger: str) -> None:
    assert ask("report", "last", "--ledger", ledger).code == 0
    assert [path.name for path in Path().glob("stackmark-x-*.html")]


@pytest.mark.parametrize("arguments", [["--format", "markdown"], ["--format", "markdown", "-o", "-"]])
def test_markdown_goes_to_standard_output(ledger: str, arguments: list[str]) -> None:
    answer = ask("report", "last", "--ledger", ledger, *arguments)
    assert answer.code == 0
    assert answer.out.startswith("### Host vs container")
    assert answer.err == ""


def test_the_format_follows_the_name_of_the_file(ledger: str) -> None:
    assert ask("report", "last", "-o", "report.MD", "--ledger", ledger).code == 0
    assert Path("report.MD").read_text(encoding="utf-8").startswith("### ")


def test_the_margin_is_handed_on(ledger: str) -> None:
    assert missing(ask("report", "last", "--format", "markdown", "--margin", "3%", "--ledger", ledger).out, "3 %") == []


def test_a_file_that_is_there_is_replaced_and_a_link_stays_a_link(ledger: str) -> None:
    Path("old.html").write_text("old")
    os.chmod("old.html", 0o640)
    Path("link.html").symlink_to("old.html")
    assert ask("report", "last", "-o", "link.html", "--ledger", ledger).code == 0
    assert Path("link.html").is_symlink()
    assert Path("old.html").read_text(encoding="utf-8").startswith("<!doctype html>")
    assert Path("old.html").stat().st_mode & 0o777 == 0o640


WRONG: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "no such folder": (["report", "last", "-o", "no/where.html"], ("no/where.html", os.strerror(errno.ENOENT))),
    "a folder": (["report", "last", "-o", "folder.html"], ("folder.html", os.strerror(errno.EISDIR))),
    "a file as a folder": (["plot", "last", "-o", "file/x.svg"], ("file/x.svg", os.strerror(errno.ENOTDIR))),
    "an unknown ending": (["report", "last", "-o", "report.docx"], ("report.docx",)),
    "no picture": (["plot", "last", "-o", "x.jpg"], (".svg", ".png", "x.jpg")),
    "no such experiment": (["report", "x-0zzz", "-o", "r.html"], ("x-0zzz",)),
    "a margin of nothing": (["report", "last", "--margin", "0"], ("margin", "0")),
    "a margin beyond all": (["plot", "last", "-o", "x.svg", "--margin", "150%"], ("150%",)),
    "an empty name": (["report", "last", "-o", ""], ("--output",)),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use_is_a_sentence_and_leaves_no_file(ledger: str, case: str) -> None:
    Path("folder.html").mkdir()
    Path("file").write_text("")
    before = set(Path().iterdir())
    arguments, named = WRONG[case]
    answer = ask(*arguments, "--ledger", ledger)
    assert answer.code == 2
    assert missing(answer.err, *named) == []
    assert "Traceback" not in answer.err
    assert set(Path().iterdir()) == before


def test_a_full_disk_is_the_systems_failure(ledger: str) -> None:
    Path("full.svg").symlink_to("/dev/full")
    answer = ask("plot", "last", "-o", "full.svg", "--ledger", ledger)
    assert answer.code == 4
    assert missing(answer.err, "full.svg", os.strerror(errno.ENOSPC)) == []
    assert Path("/dev/full").is_char_device(), "a device is written, not replaced"


@pytest.mark.parametrize("name", ["x.svg", "x.PNG"])
def test_a_picture_is_written(ledger: str, name: str) -> None:
    answer = ask("plot", "last", "-o", name, "--ledger", ledger)
    assert answer.code == 0, answer.err
    begins = b"<?xml" if name.endswith("svg") else b"\x89PNG"
    assert Path(name).read_bytes().startswith(begins)
