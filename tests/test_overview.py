"""A list of experiments: kinds, states and verdicts of what was recorded and of what is open."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from ledger_runs import T0
from recorded import load
from stackmark import ids
from stackmark.errors import Exit
from stackmark.experiments import overview
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledger]:
    monkeypatch.setenv("STACKMARK_LEDGER", str(tmp_path / "ledger.sqlite3"))
    with Ledger.open(str(tmp_path / "ledger.sqlite3")) as ledger:
        yield ledger


def listed(*options: str) -> list[dict[str, Any]]:
    answer = ask("experiments", "--json", *options)
    assert answer.code == Exit.DONE, answer
    whole = json.loads(answer.out)
    assert whole["schema"] == "stackmark.experiments/1"
    found: list[dict[str, Any]] = whole["experiments"]
    return found


def test_every_kind_is_listed_with_its_arms_and_its_verdict(book: Ledger) -> None:
    for name in ("h200_host_container", "h200_noise", "h200_gemm_bf16", "made_sweep", "made_fault"):
        load(book, name)
    found = {one["kind"]: one for one in listed()}
    assert {kind: one["verdicts"] for kind, one in found.items()} == {
        "compare": ["EQUIVALENT"], "noise": ["EQUIVALENT"], "operator list": [], "sweep": [], "fault": [],
    }  # fmt: skip
    # Of two equal arms the margin that they decide says more than their word.
    assert 0.001 < found["noise"]["smallest_margin"] < 0.02
    assert found["compare"]["smallest_margin"] is None
    assert "±" in ask("experiments").out
    assert found["compare"]["arms"] == ["host", "container"]
    assert found["compare"]["runs"] == {"done": 12}
    assert {one["state"] for one in found.values()} == {"done"}


def test_a_comparison_whose_runs_are_missing_is_open(book: Ledger) -> None:
    experiment = load(book, "h200_host_container")
    measured = [row.id for row in book.runs_of(experiment) if row.role == "measured"]
    book.delete(measured[4:])
    one = listed()[0]
    assert (one["state"], one["runs"], one["runs_asked"]) == ("open", {"done": 4}, 12)


def test_a_verdict_that_takes_too_much_reading_is_not_computed(book: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    load(book, "h200_noise")
    load(book, "h200_host_container")
    sizes = [row.stored_bytes for row in book.experiments()]
    monkeypatch.setattr(overview, "MOST_READ_BYTES", max(sizes))
    assert [one["verdicts"] for one in listed()].count(None) == 1
    monkeypatch.setattr(overview, "MOST_READ_BYTES", 0)
    assert [(one["verdicts"], one["state"]) for one in listed()] == [(None, "done")] * 2


def test_a_damaged_design_hides_no_other_experiment(book: Ledger) -> None:
    damaged, whole = load(book, "h200_noise"), load(book, "h200_host_container")
    book.set_design(damaged, {"arms": []})
    assert {one["id"]: one["verdicts"] for one in listed()} == {damaged: None, whole: ["EQUIVALENT"]}


def test_an_experiment_without_runs_is_empty_and_has_the_workload_that_was_asked_for(book: Ledger) -> None:
    book.start_experiment(
        Experiment(id=ids.new_id("x"), created_unix_s=T0, request={"workload": "train/lenet"}, kind="fault")
    )
    one = listed()[0]
    assert (one["state"], one["workloads"], one["runs"]) == ("empty", ["train/lenet"], {})


def test_the_limit_says_that_there_are_more(book: Ledger) -> None:
    for name in ("h200_noise", "h200_gemm_bf16"):
        load(book, name)
    assert json.loads(ask("experiments", "--json", "--limit", "1").out)["more"] is True
    assert json.loads(ask("experiments", "--json").out)["more"] is False
    assert [one["workloads"] for one in listed("--workload", "op/*")] == [["op/gemm"]]
