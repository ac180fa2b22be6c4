"""Checks against a baseline, with real workers on the real host. Where a verdict is asserted, the sides differ threefold."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from asking import COMMAND, ask
from experiment_asking import empty_ledger
from other_days import (
    change,
    checked,
    copied,
    kernel,
    on_another_day,
    only,
    save,
    stored,
    three_series,
    verdict,
    with_fact,
)
from stackmark.errors import Exit
from stackmark.experiments.baseline import SeriesOptions, held_by, save_again
from stackmark.experiments.check import check_again
from stackmark.experiments.recorder import Silent
from stackmark.ledger import baselines
from stackmark.ledger.rows import RunFilter
from stackmark.ledger.store import Ledger
from stackmark.show.check import NO_CHANGE, NOT_SEEN
from worker_process import eventually


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return empty_ledger(tmp_path, monkeypatch)


@pytest.fixture
def book(file: Path) -> Iterator[Ledger]:
    with Ledger.open(str(file)) as ledger:
        yield ledger


def test_a_check_runs_the_very_spec_as_often_as_the_baseline_did(book: Ledger) -> None:
    save(book, runs=2)
    one = only(checked(book))
    rows = book.runs_of(one.experiment_id)
    assert {row.spec_digest for row in rows} == {held_by(book, "before")[0].spec.digest}
    assert len(rows) == 2
    experiment = book.experiment(one.experiment_id)
    assert (experiment.kind, experiment.note) == ("check", "before")
    assert len(book.runs_of(only(checked(book, runs=3)).experiment_id)) == 3


@pytest.fixture
def rated(tmp_path: Path, book: Ledger) -> Path:
    """A program that prints the rate in a file, and a baseline of it of three nights: 100.35, 99.65, 100.10."""
    rate = tmp_path / "rate"
    rate.write_text("rate: 100.0")
    measured = ask("run", "--cmd", f"cat {rate}", "--metric", "rate: ([0-9.]+)", "--runs", "1", "--json")
    assert measured.code == 0, measured.err
    (row,) = book.runs(RunFilter(status="done"))
    for days, value in ((23, 100.35), (22, 99.65), (21, 100.10)):
        baselines.save(book, "before", copied(tmp_path / "ledger.sqlite3", row.experiment_id, days, value))
    return rate


def the_check(*typed: str) -> tuple[int, Any]:
    answer = ask("check", "before", "--json", *typed)
    (found,) = json.loads(answer.out)["workloads"]
    return answer.code, found


def test_a_stored_check_is_shown_and_listed_with_its_verdict(rated: Path, book: Ledger) -> None:
    rated.write_text("rate: 50.0")
    answer = ask("check", "before", "--margin", "2%")
    (row,) = [row for row in book.experiments() if row.experiment.kind == "check"]
    id_ = row.experiment.id
    assert ask("show", id_).out == answer.out
    (listed,) = [one for one in json.loads(ask("experiments", "--json").out)["experiments"] if one["id"] == id_]
    assert listed["verdicts"] == ["SLOWER"]
    found = check_again(book, row.experiment)
    assert found is not None
    assert (found.baseline, found.margin) == ("before", 0.02)
    assert verdict(found.checked).margin == 0.02
    # A report of its runs alone would say nothing of the baseline.
    report = json.loads(ask("verdict", id_, "--json").out)
    assert [(one["kind"], one["severity"]) for one in report["warnings"]][:1] == [("check", "high")]
    assert "SLOWER" in report["warnings"][0]["text"]
    # A series that is saved later was not what this check was compared with.
    before = ask("show", id_).out
    ask("baseline", "save", "before", "--from", id_)
    assert ask("show", id_).out == before
    # Without its baseline it is its runs.
    assert ask("baseline", "delete", "before").code == 0
    assert check_again(book, row.experiment) is None
    assert row.experiment.command in ask("show", id_).out


def ten_good_nights(file: Path) -> None:
    _, found = the_check()
    for days, value in enumerate((100.1, 99.9, 100.2, 99.8, 100.0, 100.15, 99.85, 100.05, 99.95), start=2):
        copied(file, found["experiment"], days, value)
    on_another_day(file, found["experiment"], 11)


def test_ten_good_nights_do_not_hide_tonights_drop(rated: Path, file: Path) -> None:
    ten_good_nights(file)
    rated.write_text("rate: 98.0")
    code, found = the_check("--fail-on", "slower")
    assert (code, found["verdict"]["word"], found["now"]["rate_per_s"]) == (8, "SLOWER", 98.0)
    assert (found["now"]["series"], found["lately_verdict"]) == (1, None)
    # The drop is named as one, after ten nights that were alike.
    assert any(" 10 " in doubt for doubt in found["doubts"])
    assert not found["alarm"]["two_in_a_row"]
    # The night after: tonight on its own, both together, and an alarm.
    on_another_day(file, found["experiment"], 1)
    answer = ask("check", "before", "--fail-on", "alarm")
    assert answer.code == 8
    rows = [line for line in answer.out.splitlines() if line.endswith("SLOWER")]
    assert rows[0].startswith("command/own")
    # The second line holds the earlier check too: tonight's and one more against the three of the baseline.
    assert rows[1].split()[1] == "1"
    assert re.search(r"\b2 \w+ 3\b", rows[1])
    assert any(line.startswith("alarm") for line in answer.out.splitlines())


def test_good_nights_together_say_more_than_tonight_alone(rated: Path, file: Path) -> None:
    ten_good_nights(file)
    code, found = the_check("--fail-on", "slower", "--fail-on", "alarm")
    assert (code, found["verdict"]["word"], found["lately_verdict"]["word"]) == (0, "EQUIVALENT", "EQUIVALENT")
    assert (found["verdict"]["count_b"], found["lately_verdict"]["count_b"]) == (1, 11)
    assert json.loads(ask("check", "before", "--json").out)["rules"] == 2


def test_one_series_a_side_is_likely_slower_beyond_ten_percent_and_fail_on_slower_names_it(
    rated: Path, book: Ledger, file: Path
) -> None:
    baselines.remove(book, "before")
    (row,) = (row for row in book.runs(RunFilter(status="done")) if row.rate_per_s == 100.0)
    baselines.save(book, "before", row.experiment_id)
    change(file, "DELETE FROM runs WHERE experiment_id != ?", row.experiment_id)
    on_another_day(file, row.experiment_id, 1)
    for rate, word, code in ((85.0, "LIKELY SLOWER", 8), (93.0, "INCONCLUSIVE", 0)):
        rated.write_text(f"rate: {rate}")
        ended, found = the_check("--fail-on", "slower")
        assert (ended, found["verdict"]["word"], found["verdict"]["likely_slower"]) == (code, word, code == 8)
        change(file, "DELETE FROM runs WHERE experiment_id = ?", found["experiment"])


def test_five_series_of_the_machine_tell_how_far_series_differ(rated: Path, book: Ledger, file: Path) -> None:
    _, found = the_check()
    for days, value in enumerate((100.2, 99.8, 100.1, 99.9), start=2):
        copied(file, found["experiment"], days, value)
    on_another_day(file, found["experiment"], 1)
    (first, *_) = baselines.experiments_of(book, "before")
    baselines.remove(book, "before")
    baselines.save(book, "before", first)
    rated.write_text("rate: 96.0")
    code, found = the_check("--fail-on", "slower")
    assert (code, found["verdict"]["word"], found["before"]["series"]) == (8, "LIKELY SLOWER", 1)
    # The run that was measured first, the three nights before and the five checks.
    assert any(" 9 " in note for note in found["verdict"]["notes"])


def test_three_series_before_and_one_now_are_a_verdict_with_its_assumption(book: Ledger, file: Path) -> None:
    three_series(book, file, faster=3.0)
    one = only(checked(book))
    seen = verdict(one)
    assert (seen.word, seen.count_a, seen.count_b) == ("SLOWER", 3, 1)
    # The one after is taken to spread like the three before.
    assert len(seen.notes) == 1
    assert " 3 " in seen.notes[0]
    assert one.before is not None
    assert one.now is not None
    assert (one.before.series, one.before.runs, one.now.series, one.now.runs) == (3, 6, 1, 2)
    assert one.now.rate_per_s / one.before.rate_per_s == pytest.approx(seen.ratio)


def test_the_side_after_grows_with_every_check_on_the_same_stack(book: Ledger, file: Path) -> None:
    # Days that differ by a tenth: what a busy machine does to the runs measured here is no change of the rate.
    three_series(book, file, faster=3.0, apart=0.1)
    for day in (2.0, 1.0):
        on_another_day(file, only(checked(book)).experiment_id, day)
    one = only(checked(book))
    assert (verdict(one).count_b, verdict(one).word) == (1, "SLOWER")
    assert one.lately_comparison is not None
    assert one.lately is not None
    assert (one.lately_comparison.count_a, one.lately_comparison.count_b, one.lately.series) == (3, 3, 3)
    assert one.lately_comparison.word == "SLOWER"


@pytest.mark.parametrize(
    "otherwise",
    [
        "UPDATE runs SET machine_id = 'elsewhere' WHERE experiment_id = ?",
        "UPDATE runs SET chip_uuid = 'GPU-2' WHERE experiment_id = ?",
        'UPDATE runs SET place_options = \'{"shm":"1g"}\' WHERE experiment_id = ?',
        "UPDATE runs SET place = 'container' WHERE experiment_id = ?",
        "UPDATE runs SET spec_digest = 'x' WHERE experiment_id = ?",
        "UPDATE runs SET started_unix_s = 1.0 WHERE experiment_id = ?",
        "UPDATE experiments SET note = 'another baseline' WHERE id = ?",
        "UPDATE experiments SET kind = 'run' WHERE id = ?",
    ],
)
def test_a_check_of_something_else_is_not_counted(book: Ledger, file: Path, otherwise: str) -> None:
    on_another_day(file, save(book, runs=1).experiment_id, 5)
    earlier = only(checked(book))
    on_another_day(file, earlier.experiment_id, 1)
    change(file, otherwise, earlier.experiment_id)
    assert only(checked(book)).lately is None


def test_a_check_on_another_stack_is_not_counted(book: Ledger, file: Path) -> None:
    on_another_day(file, save(book).experiment_id, 5)
    earlier = only(checked(book))
    on_another_day(file, earlier.experiment_id, 1)
    with_fact(file, earlier.experiment_id, kernel(), "5.10.0-old")
    assert only(checked(book)).lately is None


def test_what_changed_in_the_stack_is_listed_first_in_text_json_and_junit(
    book: Ledger, file: Path, tmp_path: Path
) -> None:
    series = save(book)
    on_another_day(file, series.experiment_id, 1)
    with_fact(file, series.experiment_id, kernel(), "5.10.0-\x1bold".replace("\x1b", "\\u001b"))
    junit = tmp_path / "check.xml"
    answer = ask("check", "before", "--junit", str(junit))
    assert answer.code == 0, answer.err
    changed = f"kernel 5.10.0-\\x1bold → {kernel()}"
    # After the verdict, before everything else.
    assert answer.out.splitlines()[1] == f"changed     {changed}"
    found = json.loads(ask("check", "before", "--json").out)
    assert found["stack_changed"] == [f"kernel 5.10.0-\x1bold → {kernel()}"]
    assert found["workloads"][0]["stack_changed"] == [{"what": "kernel", "before": "5.10.0-\x1bold", "after": kernel()}]
    root = ElementTree.parse(junit).getroot()
    properties = [(one.get("name"), one.get("value")) for one in root.iter("property")]
    assert [name for name, _ in properties] == ["baseline", "margin", "rules", "verdict", "failures", "changed"]
    assert dict(properties) | {"verdict": ""} == {
        "baseline": "before", "margin": "0.01", "rules": "2", "verdict": "", "failures": "slower", "changed": changed,
    }  # fmt: skip
    (case,) = root.iter("testcase")
    assert case.get("name") == "trick/calm"


def test_nothing_changed_is_said_too(book: Ledger) -> None:
    save(book)
    answer = ask("check", "before")
    assert answer.out.splitlines()[1] == f"changed     {NO_CHANGE}"


def test_a_baseline_over_an_upgrade_is_called_that(book: Ledger, file: Path) -> None:
    first = save(book)
    on_another_day(file, first.experiment_id, 2)
    with_fact(file, first.experiment_id, kernel(), "5.10.0-old")
    on_another_day(
        file, save_again(book, "before", held_by(book, "before")[0], SeriesOptions(Silent())).experiment_id, 1
    )
    one = only(checked(book))
    assert one.stack_changed == ()
    (doubt,) = one.doubts
    assert doubt.kind == "several-stacks"
    assert f"5.10.0-old → {kernel()}" in doubt


def test_a_busy_machine_is_said_with_the_side_that_met_it(book: Ledger, file: Path) -> None:
    """The runs take more than a second: over less, the counters say nothing about others."""
    series = save(book, runs=1, step_s=0.7)
    with sqlite3.connect(file) as connection:
        for run_id, data in connection.execute("SELECT run_id, data FROM streams").fetchall():
            text = zlib.decompress(data).decode()
            lines = [_with_load(line, 1.75) for line in text.splitlines(keepends=True)]
            packed = zlib.compress("".join(lines).encode())
            connection.execute("UPDATE streams SET data = ? WHERE run_id = ?", (packed, run_id))
    connection.close()
    on_another_day(file, series.experiment_id, 1)
    one = only(checked(book))
    (busy,) = (doubt for doubt in one.doubts if doubt.kind == "busy-machine")
    assert "1.8 of" in busy
    assert "series of before" in busy


def _with_load(line: str, cpus: float) -> str:
    event = json.loads(line)
    if event.get("event") != "metric" or event.get("name") != "other_cpus":
        return line
    return json.dumps({**event, "value": cpus}) + "\n"


def test_fail_on_slower_says_where_nothing_was_decided(book: Ledger) -> None:
    """One series a side: exit code 0 is no word about the upgrade, and whoever reads only that should be told."""
    save(book)
    answer = ask("check", "before", "--fail-on", "slower")
    assert answer.code == Exit.DONE
    (said,) = (line for line in answer.err.splitlines() if "--fail-on slower" in line)
    assert "trick/calm" in said
    assert "--fail-on" not in ask("check", "before", "--fail-on", "inconclusive").err


def test_the_exit_code_is_8_only_where_fail_on_names_the_verdict(book: Ledger, file: Path, tmp_path: Path) -> None:
    three_series(book, file, faster=3.0)
    junit = tmp_path / "check.xml"
    outcomes = {}
    for named in ("", "slower", "worse", "different", "inconclusive"):
        typed = ("--fail-on", named) if named else ()
        answer = ask("check", "before", "--margin", "30%", *typed, "--junit", str(junit))
        assert "SLOWER" in answer.out
        outcomes[named] = (
            answer.code,
            [child.tag for child in next(ElementTree.parse(junit).getroot().iter("testcase"))],
        )
    passed, failed = (0, ["system-out"]), (8, ["failure", "system-out"])
    # Without --fail-on no verdict fails the command, and yet the file shows what is slower.
    shown = (0, ["failure", "system-out"])
    assert outcomes == {"": shown, "slower": failed, "worse": failed, "different": failed, "inconclusive": passed}


def break_one(file: Path, book: Ledger, workload: str) -> None:
    """Makes the first workload of the baseline one that fails, as after an upgrade."""
    (first, *_) = held_by(book, "before")
    spec = first.spec.model_copy(update={"workload": workload})
    change(
        file, "UPDATE runs SET workload = ?, spec = ?, spec_digest = ? WHERE spec_digest = ?",
        workload, spec.model_dump_json(), spec.digest, first.spec.digest,
    )  # fmt: skip


def test_a_workload_that_fails_now_does_not_stop_the_others(book: Ledger, file: Path, tmp_path: Path) -> None:
    save(book)
    save(book, steps=5)
    break_one(file, book, "trick/crash")
    junit = tmp_path / "check.xml"
    answer = ask("check", "before", "--junit", str(junit))
    assert answer.code == Exit.PART_FAILED
    table = {line.split()[0]: line.split()[-1] for line in answer.out.splitlines() if line.startswith("trick/")}
    assert table == {"trick/crash": "FAILED", "trick/calm": "INCONCLUSIVE"}
    (failed,) = (line for line in answer.out.splitlines() if line.startswith("failed"))
    assert "nobody foresaw" in failed
    assert "--log" in failed
    root = ElementTree.parse(junit).getroot()
    assert [child.tag for case in root.iter("testcase") for child in case] == ["error", "system-out", "system-out"]


def test_a_workload_that_nobody_knows_any_more_fails_alone(book: Ledger, file: Path) -> None:
    save(book)
    break_one(file, book, "gone/with-its-package")
    answer = ask("check", "before", "--json")
    assert answer.code == Exit.RUN_FAILED
    (found,) = json.loads(answer.out)["workloads"]
    assert found["failed"]
    assert "gone" in found["error"]
    # Nothing was begun, so nothing is left behind.
    assert found["experiment"] is None
    assert book.count() == 2


@pytest.mark.parametrize(("place", "named"), [("container", "podman"), ("slurm-of-somebody", "'slurm-of-somebody'")])
def test_a_place_that_is_gone_is_a_failed_line(
    book: Ledger, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, named: str
) -> None:
    save(book)
    change(file, "UPDATE runs SET place = ?", place)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    answer = ask("check", "before")
    assert answer.code == Exit.PLACE_FAILED
    assert answer.out.splitlines()[1] == f"changed     {NOT_SEEN}"
    assert f"trick/calm on {place}" in answer.out
    (failed,) = (line for line in answer.out.splitlines() if line.startswith("failed"))
    assert named in failed


def test_a_baseline_of_another_machine_is_refused_before_anything_is_measured(book: Ledger, file: Path) -> None:
    save(book)
    change(file, "UPDATE runs SET machine_id = 'elsewhere'")
    answer = ask("check", "before", "--fail-on", "slower")
    assert answer.code == Exit.WRONG_USE
    assert answer.out.splitlines()[3].split()[-2:] == ["NOT", "COMPARABLE"]
    assert "--anyway" in answer.out
    assert book.count() == 2


def test_anyway_another_machine_or_chip_is_compared_and_said(book: Ledger, file: Path) -> None:
    save(book)
    change(file, "UPDATE runs SET machine_id = 'elsewhere'")
    one = only(checked(book, anyway=True))
    assert verdict(one).word == "INCONCLUSIVE"
    assert [doubt.kind for doubt in one.doubts] == ["other-machine"]
    change(file, "UPDATE runs SET machine_id = 'elsewhere', chip = 'NVIDIA H200'")
    answer = ask("check", "before", "--anyway")
    assert answer.code == 0
    assert "NVIDIA H200" in answer.out


def test_another_chip_is_not_comparable(book: Ledger, file: Path) -> None:
    save(book)
    change(file, "UPDATE runs SET chip = 'NVIDIA H200'")
    answer = ask("check", "before", "--json")
    assert answer.code == Exit.WRONG_USE
    (found,) = json.loads(answer.out)["workloads"]
    assert (found["verdict"], found["failed"]) == (None, False)
    assert "NVIDIA H200" in found["error"]
    assert [doubt.kind for doubt in only(checked(book, anyway=True)).doubts] == ["other-chip-model"]


def test_of_a_baseline_that_machines_share_the_series_on_this_one_count(book: Ledger, file: Path) -> None:
    other = save(book)
    change(
        file,
        "UPDATE runs SET machine_id = 'elsewhere', boot_id = 'theirs' WHERE experiment_id = ?",
        other.experiment_id,
    )
    save(book)
    one = only(checked(book))
    assert verdict(one).count_a == 1
    (doubt,) = one.doubts
    assert doubt.kind == "other-chips-left-out"
    assert doubt.split()[0] == "2"


def test_holm_decides_over_the_workloads_of_a_check(book: Ledger, file: Path) -> None:
    save(book)
    save(book, steps=5)
    found = checked(book)
    assert [verdict(one).family for one in found] == [2, 2]
    assert len(found) == 2


def test_interrupted_a_check_says_what_was_done_and_keeps_its_runs(book: Ledger, file: Path) -> None:
    save(book)
    slow = save(book, steps=5)
    spec = book.runs_of(slow.experiment_id)[0].spec
    params = {**spec.params, "step_s": 60.0}
    stored = spec.model_copy(update={"params": params}).model_dump_json()
    change(file, "UPDATE runs SET spec = ? WHERE experiment_id = ?", stored, slow.experiment_id)
    process = subprocess.Popen(
        [*COMMAND, "check", "before"], env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    running = RunFilter(status="running")
    # Four were saved and two checked; the seventh is the one that takes minutes.
    eventually(lambda: book.count() == 7 and any(row.handle.get("pid") for row in book.runs(running)))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == Exit.INTERRUPTED
    assert "trick/calm steps=2" in out
    assert [row.failure_kind for row in book.runs(RunFilter(status="failed"))] == ["interrupted"]
    assert book.count(RunFilter(status="done")) == 6


def test_a_ledger_that_may_only_be_read_lists_and_does_not_check(file: Path, tmp_path: Path) -> None:
    with Ledger.open(str(file)) as book:
        stored(book)
    change(file, "UPDATE runs SET place_options = '{}'")
    # Root is bound by file permissions only where it drops the capability.
    drop = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if os.getuid() == 0 else []
    file.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        answers = [
            subprocess.run(
                [*drop, *COMMAND, *arguments], env=dict(os.environ), capture_output=True, text=True, check=False
            )
            for arguments in (("baseline", "list"), ("check", "before", "--anyway"), ("baseline", "delete", "before"))
        ]
    finally:
        tmp_path.chmod(0o755)
    assert "before" in answers[0].stdout
    assert [answer.returncode for answer in answers] == [0, Exit.LEDGER_FAILED, Exit.LEDGER_FAILED]
    assert all("read-only" in answer.stderr for answer in answers[1:])


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        (("--margin", "0"), "margin"),
        (("--runs", "0"), "--runs"),
        (("--fail-on", "nothing"), "--fail-on"),
        (("--junit", ""), "--junit"),
        (("--junit", "/nowhere/at/all.xml"), "/nowhere/at"),
        (("--junit", "-"), "--junit"),
        (("--time-limit", "soon"), "--time-limit"),
    ],
)
def test_wrong_use_of_check_is_found_before_anything_is_measured(
    book: Ledger, typed: tuple[str, ...], named: str
) -> None:
    stored(book)
    answer = ask("check", "before", *typed)
    assert answer.code == 2
    assert named in answer.err
    assert book.count() == 1


def test_a_run_past_its_time_limit_is_a_failed_line(book: Ledger) -> None:
    save(book, runs=1, steps=40, step_s=0.05)
    answer = ask("check", "before", "--time-limit", "0.5s")
    assert answer.code == Exit.RUN_FAILED
    assert "FAILED" in answer.out
