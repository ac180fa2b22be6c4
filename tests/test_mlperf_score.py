"""The scorer of MLPerf training: from the raw logs of v0.6 it finds the minutes that were published."""

import json
import re
import shutil
from pathlib import Path

import pytest

from asking import ask
from stackmark.experiments.mlperf import Score, score_folders, score_of

LOGS = Path(__file__).parent / "data" / "logs" / "mlperf_v0.6"
PUBLISHED = {"resnet": 115.22, "ssd": 22.36, "minigo": 27.39}
START = ":::MLL 1000.0 run_start: {}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(LOGS / "ssd", tmp_path / "ssd")
    return tmp_path / "ssd"


def score(folder: Path, against: str | None = None) -> Score:
    (found,), refused = score_folders([str(folder)], against)
    assert not refused
    return found


def write_runs(folder: Path, benchmark: str, seconds: list[float]) -> None:
    folder.mkdir(exist_ok=True)
    for i, taken in enumerate(seconds):
        head = f':::MLL 999.0 submission_benchmark: {{"value": "{benchmark}"}}\n'
        stop = f':::MLL {1000 + taken} run_stop: {{"metadata": {{"status": "success"}}}}\n'
        (folder / f"result_{i}.txt").write_text(head + START + stop)


@pytest.mark.parametrize("benchmark", PUBLISHED)
def test_the_published_minutes_are_found_exactly(benchmark: str) -> None:
    found = score(LOGS / benchmark)
    assert found.minutes is not None
    assert round(found.minutes, 2) == PUBLISHED[benchmark]


def test_one_command_scores_all_and_stands_them_beside_the_published_system() -> None:
    answer = ask("mlperf", "score", str(LOGS))
    assert answer.code == 0
    rows = {line.split()[0]: line.split() for line in answer.out.splitlines()}
    for benchmark, minutes in PUBLISHED.items():
        assert rows[benchmark][4:6] == [f"{minutes:.2f}", f"{minutes:.2f}"]
    assert all(named in answer.out for named in ("1x DGX-1", "NVIDIA", "v0.6"))


def test_the_difference_is_in_percent_of_the_published_time(tmp_path: Path) -> None:
    # As a white paper of 2019 has it: GNMT 6.13 % slower than the DGX-1's 20.55 minutes.
    write_runs(tmp_path / "gnmt", "gnmt", [20.55 * 1.0613 * 60] * 10)
    against = score(tmp_path / "gnmt", "DGX-1").against
    assert against is not None
    assert against.percent == pytest.approx(6.13, abs=0.01)
    assert "6.13 %" in ask("mlperf", "score", str(tmp_path), "--against", "DGX-1").out
    write_runs(tmp_path / "gnmt", "gnmt", [20.55 * 0.9771 * 60] * 10)
    against = score(tmp_path / "gnmt", "DGX-1").against
    assert against is not None
    assert against.percent == pytest.approx(-2.29, abs=0.01)
    assert "2.29 %" in ask("mlperf", "score", str(tmp_path), "--against", "DGX-1").out


def test_for_programs_it_is_json() -> None:
    answer = ask("mlperf", "score", str(LOGS / "resnet"), "--json")
    (found,) = json.loads(answer.out)["scores"]
    assert (round(found["minutes"], 2), found["against"]["minutes"], len(found["runs"])) == (115.22, 115.22, 5)
    assert found["runs"][2] == {"file": "result_2.txt", "seconds": pytest.approx(6488.404), "problem": None}


def test_an_entry_may_be_named_by_its_number() -> None:
    found = score(LOGS / "resnet", "0.6-17")
    assert found.against is not None
    assert (found.against.row.system, found.against.row.value) == ("1x DGX-2", 57.87)
    assert found.against.percent == pytest.approx(100 * (115.22 / 57.87 - 1), abs=0.01)


def test_the_fastest_and_the_slowest_are_dropped() -> None:
    assert score_of([600, 60, 120, 180, 6000], failed=0) == pytest.approx(5.0)
    assert score_of([600, 60, 120, 180], failed=1) == pytest.approx(5.0)


def test_one_run_that_failed_is_the_slowest(folder: Path) -> None:
    text = (folder / "result_4.txt").read_text()
    (folder / "result_4.txt").write_text(text.replace('"status": "success"', '"status": "aborted"'))
    found = score(folder)
    # 1337.529 is dropped as the fastest, the aborted one as the slowest.
    assert found.minutes == pytest.approx((1347.521 + 1340.489 + 1339.586) / 3 / 60, abs=1e-5)
    assert "result_4.txt" in found.notes[0]


def test_two_runs_that_failed_leave_no_score(folder: Path) -> None:
    for name in ("result_1.txt", "result_3.txt"):
        (folder / name).write_text(START)
    found = score(folder)
    assert found.minutes is None
    assert all(named in found.problem for named in ("2 of 5", "result_1.txt", "result_3.txt"))


def test_a_result_that_is_no_log_is_a_run_that_failed(folder: Path) -> None:
    (folder / "result_0.txt").write_bytes(b"\0\1\2")
    assert "binary" in score(folder).notes[0]


@pytest.mark.parametrize("keep", [4, 1])
def test_too_few_runs_are_a_sentence(folder: Path, keep: int) -> None:
    for path in sorted(folder.iterdir())[keep:]:
        path.unlink()
    answer = ask("mlperf", "score", str(folder))
    assert answer.code == 3
    assert score(folder).minutes is None
    assert re.findall(r"\d+", score(folder).problem) == [str(keep), "5"]


def test_a_benchmark_of_another_round_is_scored_and_said_to_be(tmp_path: Path) -> None:
    write_runs(tmp_path / "bert", "bert", [60, 120, 180])
    found = score(tmp_path / "bert", "DGX-1")
    assert found.minutes == pytest.approx(2.0)
    assert (found.asked, found.against) == (None, None)
    runs, published = found.notes
    assert "bert" in runs
    assert "DGX-1" in published
    write_runs(tmp_path / "few", "bert", [60, 120])
    few = score(tmp_path / "few")
    assert (few.minutes, bool(few.problem)) == (None, True)


def test_part_of_the_folders_may_have_no_score(folder: Path) -> None:
    (folder / "result_0.txt").unlink()
    answer = ask("mlperf", "score", str(LOGS / "resnet"), str(folder))
    assert (answer.code, "115.22" in answer.out) == (7, True)


@pytest.mark.parametrize("name", ["none", "a.txt", "empty"])
def test_a_bad_folder_is_a_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "empty").mkdir()
    answer = ask("mlperf", "score", str(tmp_path / name))
    assert (answer.code, str(tmp_path / name) in answer.err) == (2, True)


def test_a_folder_with_other_logs_is_a_sentence() -> None:
    folder = str(LOGS.parent / "tf_cnn")
    answer = ask("mlperf", "score", folder)
    assert (answer.code, folder in answer.err) == (2, True)


def test_a_system_that_nobody_published_is_a_sentence() -> None:
    answer = ask("mlperf", "score", str(LOGS / "ssd"), "--against", "DGX-3")
    assert answer.code == 2
    assert all(named in answer.err for named in ("--against", "DGX-3", "DGX-1"))
