"""`stackmark suite`, and lists of `run` and `compare`, as a person types them."""

import csv
import io
import json
import sqlite3
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest

from asking import ask
from experiment_asking import is_a_sentence, ledger_of_a_command
from stackmark.errors import Exit
from stackmark.ledger.store import Ledger

STUDY = """
title = "Two workloads"
workloads = ["trick/calm", "trick/values"]
compare = "place"
margin = "20%"
blocks = 2
[axes]
place = ["host", "host,step_s=0.02"]
[options]
steps = 4
warmup_steps = 0
"""


@pytest.fixture(autouse=True)
def ledger_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from ledger_of_a_command(tmp_path, monkeypatch)


@pytest.fixture
def study(tmp_path: Path) -> str:
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    return str(path)


def test_a_suite_is_run_reported_and_read_again(study: str, tmp_path: Path, ledger_file: Path) -> None:
    report, junit = tmp_path / "study.html", tmp_path / "study.xml"
    answer = ask("suite", "run", study, "--json", "--report", str(report), "--junit", str(junit))
    assert answer.code == Exit.DONE, answer.err
    shown = json.loads(answer.out)
    assert shown["schema"].startswith("stackmark.suite/")
    assert [row["workload"] for row in shown["rows"]] == ["trick/calm", "trick/values"]
    suite_id = shown["experiment_id"]
    assert suite_id in report.read_text()
    cases = ElementTree.fromstring(junit.read_text()).iter("testcase")
    assert len(list(cases)) in (2, 4)

    again = json.loads(ask("suite", "show", "last", "--json").out)
    assert again["rows"] == shown["rows"]
    assert json.loads(ask("show", suite_id, "--json").out)["rows"] == shown["rows"]
    assert json.loads(ask("verdict", "last", "--json").out)["rows"] == shown["rows"]
    lines = list(csv.DictReader(io.StringIO(ask("suite", "show", "last", "--format", "csv").out)))
    assert len(lines) == 4
    assert (
        "trick/calm" in ask("suite", "show", "last", "--format", "markdown").out
        or "calm" in ask("suite", "show", "last", "--format", "markdown").out
    )
    (listed,) = json.loads(ask("experiments", "--json").out)["experiments"]
    assert (listed["id"], listed["kind"], listed["state"]) == (suite_id, "suite", "done")

    for kind in ("heatmap", "bars"):
        picture = tmp_path / f"{kind}.svg"
        assert ask("plot", "last", "--kind", kind, "-o", str(picture)).code == Exit.DONE
        assert picture.read_text().startswith("<?xml")
    page = tmp_path / "again.html"
    assert ask("report", "last", "-o", str(page)).code == Exit.DONE
    assert "<details" in page.read_text()

    # What needs runs is told that the rows have them.
    for words in (("baseline", "save", "b", "--from", "last"), ("verdict", "last", "--against", "last")):
        is_a_sentence(ask(*words), Exit.WRONG_USE)
    # A step of 20 ms instead of 1 ms is slower by far more than the margin, unless the machine stops for seconds.
    named = ask("verdict", "last", "--fail-on", "different", "--fail-on", "inconclusive")
    assert named.code == Exit.VERDICT_NAMED
    assert ask("resume", "last", "--json").code == Exit.DONE
    with Ledger.open(str(ledger_file)) as book:
        assert len(book.experiments_of(suite_id)) == 2
    assert ask("delete", suite_id, "--yes").code == Exit.DONE
    with Ledger.open(str(ledger_file)) as book:
        assert book.experiments_of(suite_id) == []
        assert book.count() == 0


def test_the_same_suite_unfinished_is_resumed_and_not_begun_twice(study: str) -> None:
    Path(study).write_text(STUDY.replace("blocks = 2", 'blocks = 2\nbudget = "1ms"'))
    first = ask("suite", "run", study, "--json")
    assert first.code == Exit.DONE, first.err
    assert json.loads(first.out)["state"] == "open"
    second = ask("suite", "run", study)
    assert (second.code, second.out) == (Exit.WRONG_USE, "")
    assert "stackmark resume x-" in second.err
    assert ask("suite", "run", study, "--again", "--json").code == Exit.DONE


def test_a_failed_cell_ends_with_its_own_exit_code(study: str) -> None:
    Path(study).write_text(STUDY.replace("trick/values", "trick/nan"))
    answer = ask("suite", "run", study, "--json")
    assert answer.code == Exit.PART_FAILED
    cells = [cell for row in json.loads(answer.out)["rows"] for cell in row["cells"]]
    assert sum("failed" in cell["marks"] for cell in cells) == 2


def test_lists_of_run_are_interleaved_and_one_table(ledger_file: Path) -> None:
    answer = ask(
        "run", "trick/calm", "--step-s", "0.001,0.002", "--steps", "4", "--warmup-steps", "0", "--runs", "2",
        "--sample-hz", "7", "--json",
    )  # fmt: skip
    assert answer.code == Exit.DONE, answer.err
    shown = json.loads(answer.out)
    assert len(shown["results"]) == 2
    assert [row["values"]["step_s"] for row in shown["suite"]["rows"]] == ["0.001", "0.002"]
    assert shown["suite"]["title"] == "trick/calm by step-s"
    with Ledger.open(str(ledger_file)) as book:
        suite = book.experiment("last")
        assert suite.kind == "suite"
        rows = sorted(book.runs(limit=10), key=lambda row: row.started_unix_s)
        asked = {book.experiment(row.experiment_id).request["sample_hz"] for row in rows}
    order = [row.experiment_id for row in rows]
    assert len(set(order[:2])) == 2
    assert len(order) == 4
    assert asked == {7.0}


def test_several_workloads_are_compared_in_one_table(ledger_file: Path) -> None:
    answer = ask(
        "compare", "trick/calm,trick/values", "--arm", "host", "--arm", "host,step_s=0.02", "--steps", "4", "--warmup-steps",
        "0", "--blocks", "2", "--no-primers", "--order-seed", "3", "--sample-hz", "0", "--json",
    )  # fmt: skip
    assert answer.code == Exit.DONE, answer.err
    shown = json.loads(answer.out)
    assert [len(row["cells"]) for row in shown["rows"]] == [2, 2]
    assert shown["reference"] == "host"
    assert shown["title"] == "host,step_s=0.02 against host: trick/calm, trick/values"
    with Ledger.open(str(ledger_file)) as book:
        rows = {row.experiment_id for row in book.runs(limit=20)}
        assert {book.experiment(one).request["sample_hz"] for one in rows} == {0.0}


@pytest.mark.parametrize(
    "more",
    [
        ("--arm", "host"),
        (),
        ("--arm", "host", "--arm", "host"),
        ("--arm", "host", "--arm", "host,step_s=1", "--until-decided"),
        ("--arm", "host", "--published", "H200"),
        ("--arm", "host", "--arm", "hots"),
        ("--arm", "host", "--arm", "host,step_s=-1"),
        ("--arm", "host", "--arm", "host,step_s=1", "--margin", "70%"),
    ],
)
def test_what_several_comparisons_cannot_be_is_a_sentence(more: tuple[str, ...]) -> None:
    is_a_sentence(ask("compare", "trick/calm,trick/values", *more), Exit.WRONG_USE)


def test_suites_that_ship_are_listed_shown_and_a_start_for_ones_own(tmp_path: Path) -> None:
    listed = json.loads(ask("suite", "list", "--json").out)["suites"]
    assert {"quick", "gpu-server", "cluster", "chips", "operators"} <= {one["name"] for one in listed}
    assert "quick" in ask("suite", "list").out
    mine = tmp_path / "mine.toml"
    mine.write_text(ask("suite", "show", "gpu-server", "--toml").out)
    plan = json.loads(ask("suite", "show", str(mine), "--json").out)
    assert (plan["name"], plan["cells"]) == ("mine", 20)
    assert plan["expected_s"] > 0
    assert "20 in 10 comparisons" in ask("suite", "show", str(mine)).out


def test_a_long_name_of_an_axis_stands_apart_from_its_values(tmp_path: Path) -> None:
    path = tmp_path / "long.toml"
    path.write_text('workloads = ["trick/calm"]\n[axes]\nwarmup_seconds = [0, 1]\n')
    answer = ask("suite", "show", str(path))
    assert ["warmup-seconds", "0,", "1"] in [line.split() for line in answer.out.splitlines()]


def test_a_plan_of_one_run_has_the_singular(tmp_path: Path) -> None:
    one = tmp_path / "one.toml"
    one.write_text('workloads = ["trick/calm"]\nruns = 1\n')
    assert "1, 1 run each: 1 run\n" in ask("suite", "show", str(one)).out


def test_ten_thousand_cells_say_their_hours_and_ask(tmp_path: Path) -> None:
    large = tmp_path / "large.toml"
    numbers = ", ".join(map(str, range(1, 101)))
    large.write_text(
        f'workloads = ["trick/calm"]\n[axes]\nseed = [{numbers}]\nwarmup_steps = [{numbers}]\n[options]\nseconds = "10s"\n'
    )
    answer = ask("suite", "run", str(large))
    assert answer.code == Exit.WRONG_USE
    assert "10,000 cells" in answer.err
    assert "hours" in answer.err
    assert "--yes" in answer.err


@pytest.mark.parametrize(
    "words",
    [
        ("suite", "run", "quik"),
        ("suite", "run", "missing.toml"),
        ("suite", "run", "quick", "--blocks", "0"),
        ("suite", "run", "quick", "--margin", "nine"),
        ("suite", "run", "quick", "--report", "x.doc"),
        ("suite", "run", "quick", "--junit", "/nowhere/x.xml"),
        ("suite", "show", "quik"),
        ("suite", "show", "quick", "--format", "csv"),
        ("suite", "show", "x-01k9", "--toml"),
        ("suite", "run", ""),
    ],
)
def test_wrong_use_is_a_sentence(words: tuple[str, ...]) -> None:
    answer = ask(*words)
    assert answer.code in (Exit.WRONG_USE, Exit.LEDGER_FAILED), answer
    assert "Traceback" not in answer.err
    assert answer.err


def test_an_experiment_that_is_no_suite_is_not_shown_as_one() -> None:
    assert ask("run", "trick/calm", "--steps", "4", "--warmup-steps", "0", "--runs", "1").code == Exit.DONE
    is_a_sentence(ask("suite", "show", "last"), Exit.WRONG_USE)
    is_a_sentence(ask("plot", "last", "--kind", "heatmap", "-o", "x.svg"), Exit.WRONG_USE)


@pytest.mark.parametrize("option", [(), ("--failed",)])
def test_a_command_that_somebody_put_into_the_plan_is_not_run(
    option: tuple[str, ...], tmp_path: Path, ledger_file: Path
) -> None:
    study, mark = tmp_path / "own.toml", tmp_path / "was-run"
    budget = "" if option else 'budget = "1ms"\n'
    study.write_text(f'workloads = ["command/own"]\nruns = 1\n{budget}[axes]\ncmd = ["true", "false"]\n')
    assert ask("suite", "run", str(study), "--json").code in (Exit.DONE, Exit.PART_FAILED)
    with sqlite3.connect(ledger_file) as connection:
        ((design,),) = connection.execute("SELECT design FROM experiments WHERE kind = 'suite'")
        changed = design.replace('"cmd":"false"', f'"cmd":"touch {mark}"')
        assert changed != design
        connection.execute("UPDATE experiments SET design = ? WHERE kind = 'suite'", (changed,))
    answer = ask("resume", "last", *option)
    assert answer.code == Exit.WRONG_USE, answer
    assert str(mark) in answer.err
    assert not mark.exists()
