"""The series of a baseline and its checks over time: the table, its JSON and the picture."""

import json
import xml.etree.ElementTree as ElementTree
from math import exp, log
from pathlib import Path
from statistics import fmean

import pytest

from asking import ask
from experiment_asking import empty_ledger
from other_days import copied, on_another_day
from stackmark import show_baseline
from stackmark.ledger import baselines
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger

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
