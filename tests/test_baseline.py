"""Baselines: measurements under a name, saved again, from what was measured already, listed, deleted."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ledger_runs
from asking import ask
from experiment_asking import empty_ledger
from other_days import QUICK, TYPED, change, on_another_day, save, stored
from refusing import refused
from stackmark.errors import Exit
from stackmark.experiments.arms import read_arms
from stackmark.experiments.baseline import SeriesOptions, held_by, save_again, save_stored
from stackmark.experiments.compare import CompareRequest, carry_out, start
from stackmark.experiments.recorder import Silent
from stackmark.ledger import baselines
from stackmark.ledger.store import Ledger
from stackmark.spec import Request


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_ledger(tmp_path, monkeypatch)


@pytest.fixture
def book(file: Path) -> Iterator[Ledger]:
    with Ledger.open(str(file)) as ledger:
        yield ledger


def test_a_baseline_holds_the_good_runs_of_its_experiments(book: Ledger) -> None:
    series = save(book, runs=2)
    (held,) = held_by(book, "before")
    assert (held.label, held.place, held.series, held.runs_a_series) == ("trick/calm", "host", 1, 2)
    assert [row.experiment_id for row in held.rows] == [series.experiment_id] * 2


def test_saved_again_it_gets_another_series_of_the_same_spec_without_a_probe(book: Ledger, file: Path) -> None:
    first = save(book)
    on_another_day(file, first.experiment_id, 1)

    class NoProbe(Silent):
        def probing(self, request: Request) -> None:
            raise AssertionError("a probe was asked")

    (held,) = held_by(book, "before")
    save_again(book, "before", held, SeriesOptions(NoProbe()))
    (held,) = held_by(book, "before")
    assert (held.series, len(held.rows)) == (2, 4)
    assert len({row.spec_digest for row in held.rows}) == 1


def test_saved_twice_within_an_hour_is_one_series(book: Ledger) -> None:
    save(book)
    save(book)
    (held,) = held_by(book, "before")
    assert (held.series, held.runs_a_series) == (1, 2)


def test_the_command_saves_again_all_that_a_baseline_holds(book: Ledger, file: Path) -> None:
    assert ask("baseline", "save", "before", "trick/calm", *TYPED).code == 0
    again = ask("baseline", "save", "before", "--json")
    assert again.code == 0, again.err
    assert json.loads(again.out)["holds"] == [{"workload": "trick/calm", "series": 1, "runs": 4}]
    assert "probe" not in again.err


def test_a_saved_series_is_printed_with_its_interval(book: Ledger) -> None:
    several = ask("baseline", "save", "before", "trick/calm", *TYPED)
    assert several.code == 0, several.err
    assert "(95 %; 2 runs)" in several.out
    one = ask("baseline", "save", "other", "trick/calm", *TYPED, "--runs", "1")
    assert "(one run: no interval)" in one.out


def test_a_workload_that_is_named_again_is_run_as_the_baseline_holds_it(book: Ledger) -> None:
    ask("baseline", "save", "before", "trick/calm", *TYPED)
    loosely = ask("baseline", "save", "before", "trick/calm")
    assert loosely.code == 0
    assert "probe" not in loosely.err
    otherwise = ask("baseline", "save", "before", "trick/calm", "--steps", "5", "--warmup-steps", "0", "--runs", "1")
    assert otherwise.code == 0
    assert [(held.spec.params["steps"], held.spec.params["step_s"], len(held.rows)) for held in held_by(book, "before")] == [
        (4, 0.01, 4), (5, 0.001, 1)
    ]  # fmt: skip


def test_one_workload_that_cannot_be_measured_does_not_stop_the_others(book: Ledger) -> None:
    answer = ask("baseline", "save", "before", "trick/crash", "trick/calm", *TYPED)
    assert answer.code == Exit.PART_FAILED
    assert "something nobody foresaw" in answer.err
    assert [held.label for held in held_by(book, "before")] == ["trick/calm"]
    alone = ask("baseline", "save", "other", "trick/crash", *TYPED)
    assert alone.code == Exit.RUN_FAILED
    assert not baselines.exists(book, "other")


def test_what_was_measured_already_can_be_saved_once(book: Ledger) -> None:
    series = save(book, "first")
    assert save_stored(book, "second", [series.experiment_id]) == {series.experiment_id: True}
    assert save_stored(book, "second", ["last"]) == {series.experiment_id: False}
    answer = ask("baseline", "save", "second", "--from", series.experiment_id[:-3])
    assert answer.code == 0
    assert series.experiment_id in answer.out


def test_an_experiment_of_several_arms_or_without_a_good_run_or_from_logs_is_not_saved(book: Ledger) -> None:
    request = Request(workload="trick/calm", params=QUICK)
    asked = CompareRequest(request=request, arms=read_arms(["host", "host,step_s=0.002"], "trick/calm"), blocks=2)
    arms = start(asked, book, Silent())
    carry_out(arms, book, Silent())
    with refused(arms.id):
        save_stored(book, "before", [save(book, "other").experiment_id, arms.id])
    ask("run", "trick/crash", *TYPED)
    with refused("x-"):
        save_stored(book, "before", ["last"])
    log = Path(__file__).parent / "data" / "logs" / "tf_cnn" / "t4_host_1gpu.log"
    assert ask("import", str(log)).code == 0
    with refused("stackmark verdict", "--against"):
        save_stored(book, "before", ["last"])
    assert not baselines.exists(book, "before")


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (("--from", "last", "trick/calm"), ["--from"]),
        (("--from", "last", "--runs", "5"), ["--runs"]),
        (("--from", "last", "--on", "container"), ["--on"]),
        (("--from", "last", "--step-s", "1"), ["--step-s"]),
        (("--steps", "5"), ["--steps"]),
        (("--from", ""), ["--from"]),
        (("trick/calm", "--cmd", "true"), ["--cmd"]),
        (("trick/clam",), ["trick/clam", "trick/calm"]),
        (("trick/calm", "--on", "hsot"), ["hsot", "host"]),
    ],
)
def test_what_does_not_go_together_is_refused_before_anything_is_measured(
    book: Ledger, typed: tuple[str, ...], named: list[str]
) -> None:
    stored(book)
    answer = ask("baseline", "save", "before", *typed)
    assert answer.code == 2
    assert all(word in answer.err for word in named)
    assert book.count() == 1


@pytest.mark.parametrize("name", ["", " ", "-x", "a b", "a/b", "../x", "ü", "x" * 81, "a\n", "\x1b[2J"])
def test_a_name_that_is_none_is_refused(file: Path, name: str) -> None:
    answer = ask("baseline", "save", "--", name, "trick/calm")
    assert answer.code == 2
    assert "\x1b" not in answer.err
    assert not file.exists()


def test_a_baseline_that_nobody_saved_is_answered_with_the_nearest(book: Ledger) -> None:
    stored(book, "before-driver-580")
    for arguments in (("check", "before-drivr-580"), ("baseline", "delete", "before-drivr-580")):
        answer = ask(*arguments)
        assert answer.code == 2
        assert "before-driver-580" in answer.err
    nothing = ask("baseline", "save", "other")
    assert nothing.code == 2
    assert "'other'" in nothing.err


def test_baselines_are_listed_and_forgotten_without_their_runs(book: Ledger) -> None:
    assert ask("baseline", "list").out == ""
    stored(book, "b-second")
    stored(book, "a-first")
    listed = ask("baseline", "list").out.splitlines()
    assert [line.split()[0] for line in listed] == ["baseline", "a-first", "b-second"]
    found = json.loads(ask("baseline", "list", "--json").out)["baselines"]
    assert [(one["name"], one["experiments"], one["workloads"]) for one in found] == [
        ("a-first", 1, ["train/resnet50"]), ("b-second", 1, ["train/resnet50"])
    ]  # fmt: skip
    answer = ask("baseline", "delete", "a-first")
    assert (answer.code, "a-first" in answer.out) == (0, True)
    assert [one.name for one in baselines.every(book)] == ["b-second"]
    assert book.count() == 2


def test_a_baseline_that_lost_its_good_runs_says_so_and_can_be_saved_to_again(book: Ledger, file: Path) -> None:
    stored(book)
    change(file, "UPDATE runs SET status = 'failed', rate_per_s = NULL, failure_kind = 'killed'")
    answer = ask("check", "before")
    assert answer.code == 2
    assert "stackmark baseline save before" in answer.err
    assert ask("baseline", "save", "before", "trick/calm", *TYPED).code == 0
    assert [held.label for held in held_by(book, "before")] == ["trick/calm"]


def test_a_deleted_experiment_leaves_its_baselines(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as book:
        runs = [ledger_runs.complete(book, at=ledger_runs.T0 + day) for day in range(2)]
        experiments = [book.run(run).experiment_id for run in runs]
        for experiment_id in experiments:
            assert baselines.save(book, "before", experiment_id)
            assert not baselines.save(book, "before", experiment_id)
        book.delete([runs[0]])
        assert baselines.experiments_of(book, "before") == [experiments[1]]
        book.delete([runs[1]])
        with refused("'before'"):
            baselines.experiments_of(book, "before")


def test_a_baseline_in_either_database_is_listed_and_its_checks_found(ledger_url: str) -> None:
    with Ledger.open(ledger_url) as book:
        run = ledger_runs.complete(book)
        baselines.save(book, "before", book.run(run).experiment_id)
        (listed,) = baselines.every(book)
        assert (listed.experiments, listed.workloads, listed.first_unix_s) == (1, ["train/resnet50"], ledger_runs.T0)
        assert baselines.checked_runs(book, "before", book.run(run).spec_digest) == []
        assert baselines.remove(book, "before") == 1
