"""The series of a baseline and its checks over time: the table, its JSON and the picture."""

import json
import xml.etree.ElementTree as ElementTree
from math import exp, log
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from numpy.typing import NDArray

from asking import ask
from experiment_asking import empty_ledger
from other_days import copied, kernel, on_another_day, with_fact
from stackmark import show_baseline
from stackmark.ledger import baselines
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger
from stackmark.verdict.changes import changes_in
from web_serving import serving

BEFORE = (100.1, 99.9, 100.05)
NIGHTS = (100.1, 99.9, 97.0, 96.9)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger with a baseline of three series and four checks, the last two of which are slow."""
    file = empty_ledger(tmp_path, monkeypatch)
    (tmp_path / "rate").write_text("rate: 100.0")
    done = ask("run", "--cmd", f"cat {tmp_path / 'rate'}", "--metric", "rate: ([0-9.]+)", "--runs", "2", "--json")
    assert done.code == 0, done.err
    with Ledger.open(str(file)) as book:
        first = book.runs(RunFilter(status="done"))[0].experiment_id
        for days, value in zip((33, 32, 31), BEFORE, strict=True):
            baselines.save(book, "before", copied(file, first, days, value))
    (found,) = json.loads(ask("check", "before", "--json").out)["workloads"]
    for days, value in zip((4, 3, 2), NIGHTS[:3], strict=True):
        copied(file, found["experiment"], days, value)
    on_another_day(file, found["experiment"], 1, faster=NIGHTS[3] / 100.0)
    return file


def test_every_series_and_check_is_listed_in_time_with_its_word(file: Path) -> None:
    (shown,) = json.loads(ask("baseline", "show", "before", "--json").out)["workloads"]
    series = shown["series"]
    assert [(one["kind"], one["rate_per_s"]) for one in series] == [
        *(("baseline", pytest.approx(rate)) for rate in BEFORE), *(("check", pytest.approx(rate)) for rate in NIGHTS)
    ]  # fmt: skip
    assert [one["word"] for one in series] == [None, None, None, "EQUIVALENT", "EQUIVALENT", "SLOWER", "SLOWER"]
    mean = exp(fmean(log(rate) for rate in BEFORE))
    assert shown["before"]["rate_per_s"] == pytest.approx(mean)
    assert [one["ratio_to_first"] for one in series] == pytest.approx([one["rate_per_s"] / BEFORE[0] for one in series])
    assert series[-1]["ratio_to_baseline"] == pytest.approx(NIGHTS[3] / mean)
    moments = [one["began_unix_s"] for one in series]
    assert moments == sorted(moments)


def test_a_check_gets_the_word_that_it_got_when_it_was_made(file: Path) -> None:
    (made,) = json.loads(ask("check", "before", "--json").out)["workloads"]
    (shown,) = json.loads(ask("baseline", "show", "before", "--json").out)["workloads"]
    assert shown["series"][-1]["experiments"] == [made["experiment"]]
    assert shown["series"][-1]["word"] == made["verdict"]["word"]


def test_the_table_has_a_line_for_each_and_the_margin_decides_the_word(file: Path) -> None:
    lines = ask("baseline", "show", "before").out.splitlines()
    assert [line.split()[-1] for line in lines[3:10]] == [
        "baseline", "baseline", "baseline", "EQUIVALENT", "EQUIVALENT", "SLOWER", "SLOWER",
    ]  # fmt: skip
    # The point of the slow night lies left of the baseline's mean, in the trend.
    assert lines[9].index("●") < lines[9].index("│")
    wide = ask("baseline", "show", "before", "--margin", "10%").out.splitlines()
    assert wide[9].split()[-1] == "EQUIVALENT"


def test_the_picture_has_a_point_for_each_and_both_bands(file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "trend.svg"
    assert ask("baseline", "plot", "before", "-o", str(picture)).code == 0
    root = ElementTree.parse(picture).getroot()
    space = "{http://www.w3.org/2000/svg}"
    titles = [one.text or "" for one in root.iter(f"{space}title")]
    assert len(titles) == len(BEFORE) + len(NIGHTS)
    assert sum("SLOWER" in title for title in titles) == 2
    # Two slow nights in a row have one word: it stands where it begins.
    written = [one.text for one in root.iter(f"{space}text") if "word" in (one.get("class") or "")]
    assert written == ["SLOWER"]
    bands = [one for one in root.iter(f"{space}rect") if one.get("class") == "margin"]
    assert len(bands) == 2  # in the legend and in the picture
    assert picture.read_text().count('fill-opacity="0.18"') == 2
    png = tmp_path / "trend.png"
    pytest.importorskip("resvg_py")
    assert ask("baseline", "plot", "before", "-o", str(png)).code == 0
    assert png.read_bytes().startswith(b"\x89PNG")


def test_points_that_would_lie_on_each_other_stand_in_their_order(file: Path, tmp_path: Path) -> None:
    with Ledger.open(str(file)) as book:
        (last,) = {row.experiment_id for row in book.runs(RunFilter(status="done")) if row.rate_per_s == NIGHTS[2]}
    # Two checks a minute apart, in a picture of a month.
    copied(file, last, 0.001, 97.1)
    trend = show_baseline("before", ledger=str(file))
    picture = trend.plot(tmp_path / "close.svg").read_text()
    assert "not to scale" in picture


def test_a_time_is_drawn_in_its_own_terms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty_ledger(tmp_path, monkeypatch)
    assert ask("baseline", "save", "before", "--cmd", "sleep 0.05", "--runs", "2").code == 0
    (shown,) = json.loads(ask("baseline", "show", "before", "--json").out)["workloads"]
    (one,) = shown["series"]
    assert (one["figure_unit"], one["higher_is_better"]) == ("s", False)
    assert 0.05 <= one["figure_value"] < 5
    picture = show_baseline("before").plot(tmp_path / "time.svg").read_text()
    assert "lower is better" in picture


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (("show", "befor"), "before"),
        (("show", "before", "--margin", "60%"), "margin"),
        (("plot", "before"), "-o"),
        (("plot", "before", "-o", "trend.pdf"), "trend.pdf"),
        (("plot", "before", "-o", "/nowhere/trend.svg"), "/nowhere"),
    ],
)
def test_wrong_use_is_a_sentence(file: Path, typed: tuple[str, ...], named: str) -> None:
    answer = ask("baseline", *typed)
    assert answer.code == 2
    assert named in answer.err


# Changes


def histories(*levels: tuple[float, int], spread: float = 0.003) -> NDArray[np.float64]:
    """Logs of rates with so many series on each level, oldest first."""
    rng = np.random.default_rng(11)
    return np.concatenate([np.log(level) + rng.normal(0.0, spread, count) for level, count in levels])


def test_a_drop_is_found_where_it_is_with_its_size() -> None:
    (found,) = changes_in(histories((100.0, 20), (97.0, 8)))
    assert found.first == 20
    assert found.ratio == pytest.approx(0.97, abs=0.005)
    assert 0.96 < found.low < found.ratio < found.high < 0.98
    assert (found.series_before, found.series_after) == (20, 8)
    assert found.p <= 0.05


def test_two_changes_are_two() -> None:
    found = changes_in(histories((100.0, 15), (95.0, 15), (100.0, 15)))
    assert [one.first for one in found] == [15, 30]
    assert [one.ratio < 1 for one in found] == [True, False]


def test_one_terrible_night_is_no_change() -> None:
    logs = histories((100.0, 30))
    logs[12] = np.log(20.0)
    assert changes_in(logs) == []


def test_a_change_below_the_margin_is_left_out_and_seven_series_are_too_few() -> None:
    logs = histories((100.0, 20), (99.0, 20), spread=0.001)
    assert [one.first for one in changes_in(logs, margin=0.005)] == [20]
    assert changes_in(logs, margin=0.02) == []
    assert changes_in(histories((100.0, 4), (50.0, 3))) == []


def test_histories_without_a_change_are_rarely_given_one() -> None:
    """At most 5 % by the rule; 60 histories, of which 8 would be a chance of less than one in a hundred."""
    rng = np.random.default_rng(3)
    assert sum(bool(changes_in(rng.standard_t(3, 24) * 0.01, permutations=99)) for _ in range(60)) < 8


@pytest.fixture
def weeks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve nights of which the last four are slow, on another kernel."""
    file = empty_ledger(tmp_path, monkeypatch)
    measured = ask(
        "run", "trick/calm", "--steps", "3", "--warmup-steps", "0", "--step-s", "0.01", "--runs", "1", "--json"
    )
    assert measured.code == 0, measured.err
    with Ledger.open(str(file)) as book:
        first = book.runs(RunFilter(status="done"))[0].experiment_id
    rates = [100.1, 99.9, 100.05, 100.2, 99.8, 100.0, 99.95, 100.1, 93.0, 93.1, 92.9, 93.05]
    old = kernel()
    for days, rate in zip(range(30, 6, -2), rates, strict=True):
        night = copied(file, first, days, rate)
        if rate < 95:
            with_fact(file, night, old, "9.9.9-new")
    with Ledger.open(str(file)) as book:
        book.delete_together([row.id for row in book.runs_of(first)], [first])
    return file


def test_the_day_of_a_change_is_named_with_what_changed(weeks: Path, tmp_path: Path) -> None:
    found = json.loads(ask("trend", "trick/calm", "--json").out)
    (one,) = found["trends"]
    (change,) = one["changes"]
    assert (change["first"], change["series_before"], change["series_after"]) == (8, 8, 4)
    assert change["ratio"] == pytest.approx(0.93, abs=0.002)
    assert change["until_unix_s"] - change["after_unix_s"] == pytest.approx(2 * 86_400, abs=5)
    assert any("9.9.9-new" in line for line in change["stack_changed"])
    answer = ask("trend", "trick/calm", "-o", str(tmp_path / "trend.svg"))
    assert answer.code == 0
    assert "9.9.9-new" in answer.out
    drawn = (tmp_path / "trend.svg").read_text()
    ElementTree.fromstring(drawn)
    assert drawn.count("stroke-dasharray") == 1


def test_the_web_page_names_the_same_change(weeks: Path) -> None:
    (one,) = json.loads(ask("trend", "trick/calm", "--json").out)["trends"]
    with serving(weeks) as site:
        assert 'data-verdict="/trends/changes?' in site.get("/trends").body
        page = site.get("/trends/changes?workload=trick/calm")
        assert one["changes"][0]["change"] in page.words
        assert "9.9.9-new" in page.words
        assert site.get("/trends/changes?workload=trick/calm&part=1").body.startswith("<h2")
        drawn = site.get("/trends/changes.svg?workload=trick/calm").body
        assert drawn.count("stroke-dasharray") == 1
        assert "No two series" in site.get("/trends/changes?workload=train/lenet").words


def test_a_machine_that_is_not_there_and_a_workload_that_never_ran_are_sentences(weeks: Path) -> None:
    for typed in (
        ("trick/calm", "--machine", "gpu-99"),
        ("train/lenet",),
        ("no/such",),
        ("trick/calm", "--margin", "60%"),
    ):
        assert ask("trend", *typed).code == 2


def test_a_machine_is_named_by_the_beginning_of_its_id(weeks: Path) -> None:
    machine = json.loads(ask("results", "--json").out)["runs"][0]["machine_id"]
    assert len(json.loads(ask("trend", "trick/calm", "--machine", machine[:6], "--json").out)["trends"]) == 1
