"""The scorer of MLPerf training: from the raw logs of v0.6 it finds the minutes that were published."""

import gzip
import json
import os
import re
import shutil
from pathlib import Path

import pytest

from asking import ask
from stackmark.experiments.mlperf import Score, score_folders
from stackmark.verdict.mlperf_score import score_of

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


def test_logs_that_are_packed_with_gzip_are_scored(folder: Path) -> None:
    for log in folder.glob("result_*.txt"):
        log.with_name(f"{log.name}.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()
    found = score(folder)
    assert found.minutes is not None
    assert round(found.minutes, 2) == PUBLISHED["ssd"]


def test_a_gzip_file_that_is_cut_off_is_a_run_that_failed(folder: Path) -> None:
    log = folder / "result_3.txt"
    (folder / "result_3.txt.gz").write_bytes(gzip.compress(log.read_bytes())[:2000])
    log.unlink()
    found = score(folder)
    assert found.minutes is not None
    (note,) = found.notes
    assert "result_3.txt.gz" in note
    assert "cut off" in note


@pytest.mark.timeout(30)
def test_a_pipe_among_the_logs_is_not_waited_for(folder: Path) -> None:
    (folder / "result_3.txt").unlink()
    os.mkfifo(folder / "result_3.txt")
    (note,) = score(folder).notes
    assert "result_3.txt" in note


def test_a_result_that_is_no_log_is_a_run_that_failed(folder: Path) -> None:
    (folder / "result_0.txt").write_bytes(b"\0\1\2")
    assert "binary" in score(folder).notes[0]


@pytest.mark.parametrize(
    ("keep", "seconds"), [(4, (1340.489 + 1339.586) / 2), (2, (1347.521 + 1340.489) / 2), (1, 1347.521)]
)
def test_another_number_of_runs_than_the_rules_require_gives_an_unofficial_score(
    folder: Path, keep: int, seconds: float
) -> None:
    for path in sorted(folder.iterdir())[keep:]:
        path.unlink()
    found = score(folder)
    # Of four the fastest and the slowest are dropped; of one or two none can be.
    assert found.minutes == pytest.approx(seconds / 60, abs=1e-5)
    assert (found.official, re.findall(r"\d+", found.unofficial)) == (False, [str(keep), "0", "6", "5"])
    answer = ask("mlperf", "score", str(folder), "--json")
    (told,) = json.loads(answer.out)["scores"]
    assert (answer.code, told["official"], told["runs_asked"]) == (0, False, 5)
    assert told["unofficial_reason"] == found.unofficial
    assert "unofficial" in ask("mlperf", "score", str(folder)).out


def test_more_runs_than_the_rules_require_are_unofficial_too(folder: Path) -> None:
    shutil.copy(folder / "result_0.txt", folder / "result_5.txt")
    found = score(folder)
    assert (found.official, found.minutes is not None) == (False, True)


def test_the_number_of_runs_of_the_rules_gives_an_official_score() -> None:
    found = score(LOGS / "ssd")
    assert (found.official, found.unofficial) == (True, "")


def test_one_run_that_failed_leaves_no_score(tmp_path: Path) -> None:
    (tmp_path / "ssd").mkdir()
    (tmp_path / "ssd" / "result_0.txt").write_text(START)
    found = score(tmp_path / "ssd")
    assert (found.minutes, found.official, bool(found.problem)) == (None, False, True)
    assert ask("mlperf", "score", str(tmp_path)).code == 3


def test_a_benchmark_of_another_round_is_scored_and_said_to_be(tmp_path: Path) -> None:
    write_runs(tmp_path / "bert", "bert", [60, 120, 180])
    found = score(tmp_path / "bert", "DGX-1")
    assert found.minutes == pytest.approx(2.0)
    assert (found.asked, found.against, found.official) == (None, None, False)
    assert "bert" in found.unofficial
    (published,) = found.notes
    assert "DGX-1" in published


def test_part_of_the_folders_may_have_no_score(folder: Path) -> None:
    for name in ("result_0.txt", "result_1.txt"):
        (folder / name).write_text(START)
    answer = ask("mlperf", "score", str(LOGS / "resnet"), str(folder))
    assert (answer.code, "115.22" in answer.out) == (7, True)


def test_no_score_is_no_table(folder: Path) -> None:
    for name in ("result_0.txt", "result_1.txt"):
        (folder / name).write_text(START)
    answer = ask("mlperf", "score", str(folder))
    assert (answer.code, answer.out) == (3, "")


def test_a_readme_that_was_named_next_to_folders_is_left_out(folder: Path) -> None:
    readme = folder.parent / "README.md"
    readme.write_text("logs")
    answer = ask("mlperf", "score", str(readme), str(folder))
    assert (answer.code, answer.err) == (0, "")


def test_a_log_that_was_named_next_to_folders_is_refused(folder: Path) -> None:
    answer = ask("mlperf", "score", str(folder), str(folder / "result_0.txt"))
    assert (answer.code, "result_0.txt" in answer.err) == (7, True)


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


# --- the stack, and the chart -------------------------------------------------------------------------------------------


def test_the_stack_of_the_logs_stands_next_to_that_of_the_published_system() -> None:
    stack = {line.name: line for line in score(LOGS / "resnet", "DGX-1").stack}
    assert (stack["cuDNN"].ours, stack["cuDNN"].theirs, stack["cuDNN"].agreement) == ("7.6.0.64", "7.6.0.64", "same")
    assert {line.agreement for line in stack.values()} == {"same"}
    another = {line.name: line for line in score(LOGS / "resnet", "DGX-2").stack}
    assert (another["count"].theirs, another["count"].agreement) == ("16", "differs")
    assert (another["driver"].theirs, another["driver"].agreement) == (None, "not stated")


def test_details_print_the_stacks_and_json_has_them() -> None:
    assert "418.67" in ask("mlperf", "score", str(LOGS / "ssd"), "--details").out
    (told,) = json.loads(ask("mlperf", "score", str(LOGS / "ssd"), "--json").out)["scores"]
    assert {"name": "driver", "ours": "418.67", "theirs": "418.67", "agreement": "same"} in told["stack"]


def test_the_chart_has_both_minutes_the_difference_and_the_sources(folder: Path, tmp_path: Path) -> None:
    for path in sorted(folder.iterdir())[1:]:
        path.unlink()
    chart = tmp_path / "minutes.svg"
    answer = ask("mlperf", "score", str(LOGS / "resnet"), str(folder), "--chart", str(chart))
    drawn = chart.read_text()
    assert answer.code == 0
    assert all(said in drawn for said in ("115.22 min", "22.46 min", "22.36 min", "0.44 %", "[1]", "[2]"))
    assert "nofficial" in drawn
    assert "dgx1_ngc19.05_pytorch" in drawn
    # Four bars: ours and theirs of two benchmarks.
    assert len(re.findall(r'class="bar [^"]+"', drawn)) == 4


@pytest.mark.parametrize("name", ["minutes.gif", "none/minutes.svg"])
def test_a_chart_that_cannot_be_written_is_refused_before_anything_is_scored(name: str, tmp_path: Path) -> None:
    answer = ask("mlperf", "score", str(LOGS / "ssd"), "--chart", str(tmp_path / name))
    assert (answer.code, answer.out) == (2, "")


def test_without_a_published_time_no_chart_is_written(tmp_path: Path) -> None:
    write_runs(tmp_path / "bert", "bert", [60, 120, 180])
    chart = tmp_path / "minutes.svg"
    answer = ask("mlperf", "score", str(tmp_path / "bert"), "--chart", str(chart))
    assert (answer.code, chart.exists()) == (2, False)


def test_a_folder_without_logs_leaves_no_chart(tmp_path: Path) -> None:
    chart = tmp_path / "minutes.svg"
    answer = ask("mlperf", "score", str(LOGS.parent / "tf_cnn"), "--chart", str(chart))
    assert (answer.code, chart.exists()) == (2, False)
