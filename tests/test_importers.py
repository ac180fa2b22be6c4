"""Importers of foreign logs: the original logs give the figures that their authors printed, and bad ones give sentences.

tests/data/logs/README.md says where each log is from; those of DeepBench are made here after its source code.
"""

import gzip
import io
import json
import math
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from scipy.stats import ttest_ind

from asking import Answer, ask
from stackmark.errors import SpecError
from stackmark.ledger.importers import FORMATS, format_of, results_of
from stackmark.ledger.importers.found import Found
from stackmark.ledger.importers.reading import bare, opened

LOGS = Path(__file__).parent / "data" / "logs"
HEADER = (LOGS / "tf_cnn" / "t4_host_1gpu.log").read_text().partition("Step\t")[0]
ROW = "10\timages/sec: 126.4 +/- 0.2 (jitter = 0.4)\t7.849\n"
TOTAL = "total images/sec: 124.77\n"


def found_in(path: Path, kind: str | None = None) -> list[Found]:
    with opened(str(path)) as log:
        return results_of(log, FORMATS[kind] if kind else format_of(log))


def found_in_text(text: str, folder: Path, kind: str | None = None) -> list[Found]:
    path = folder / "a.log"
    path.write_text(text)
    return found_in(path, kind)


def figure(found: Found) -> tuple[object, str]:
    assert found.figure is not None, found.failure
    return found.figure.value, found.figure.unit


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.sqlite3")


def imported(ledger: str, *arguments: str) -> Answer:
    return ask("import", *arguments, "--ledger", ledger, "--json")


# The original logs


@pytest.mark.parametrize(
    ("name", "total", "devices"),
    [("host_1gpu", 124.77, 1), ("host_1gpu_run2", 125.76, 1), ("container_1gpu", 126.95, 1),
     ("container_1gpu_run2", 125.07, 1), ("host_2gpu", 242.60, 2), ("host_2gpu_run2", 241.52, 2),
     ("container_2gpu", 240.64, 2), ("container_2gpu_run2", 236.72, 2)],
)  # fmt: skip
def test_a_classic_log_gives_its_total_and_its_settings(name: str, total: float, devices: int) -> None:
    (found,) = found_in(LOGS / "tf_cnn" / f"t4_{name}.log")
    assert figure(found) == (total, "images/s")
    assert (found.workload, found.ranks, found.framework) == ("train/resnet50", devices, "TensorFlow 2.3")
    assert found.params == {
        "batch": 64, "device": "cuda", "steps": 100, "mode": "train", "data": "device", "layout": "nchw",
        "optimizer": "sgd", "variable_update": "parameter_server",
    }  # fmt: skip
    # 100 steps of 64 images a device, by the loop's own clock.
    assert found.wall_s == pytest.approx(6400 * devices / total)


def test_the_rows_of_a_classic_log_are_kept_as_they_are() -> None:
    (found,) = found_in(LOGS / "tf_cnn" / "t4_host_1gpu.log")
    assert len(found.rows) == 11
    assert found.rows[1] == {"step": 10, "images_per_s": 126.4, "plus_minus": 0.2, "jitter": 0.4, "loss": 7.849}
    assert found.step_s == ()


@pytest.mark.parametrize(("name", "total"), [("gpu", 325.03), ("cpu", 2.24)])
def test_a_classic_log_without_its_header_says_only_its_rate(name: str, total: float) -> None:
    (found,) = found_in(LOGS / "tf_cnn" / f"v100_report_{name}.log")
    assert figure(found) == (total, "images/s")
    assert (found.workload, found.params, found.wall_s) == (None, {}, None)


def test_a_log_of_nvcnn_gives_its_mean_and_says_what_kind_of_mean_it_is() -> None:
    (found,) = found_in(LOGS / "nvcnn" / "p4x4_kubernetes.log")
    assert figure(found) == (433.8, "images/s")
    assert [row["images_per_s"] for row in found.rows[:2]] == [433.5, 432.8]
    assert found.step_s == ()  # the batch is not in the log
    assert "mean-of-rates" in found.flags[0]


def test_nvcnn_steps_are_timed_where_the_batch_is_known(tmp_path: Path) -> None:
    head = "TensorFlow:  1.4.0\nThis script: nvcnn.py v1.6\nNum images:  Synthetic\nModel:       resnet50\n"
    head += "Batch size:  128 global\n             64.0 per device\nDevices:     ['/gpu:0', '/gpu:1']\n"
    head += "Data format: NCHW\nData type:   fp16\n"
    (found,) = found_in_text(head + (LOGS / "nvcnn" / "p4x4_kubernetes.log").read_text(), tmp_path)
    assert found.step_s == pytest.approx([128 / rate for rate in (433.5, 432.8, 433.9, 434.6, 434.4, 433.8, 434.5)])
    assert found.params == {"mode": "train", "batch": 64, "device": "cuda", "data": "device", "layout": "nchw",
                            "precision": "fp16"}  # fmt: skip
    assert found.ranks == 2


def test_lines_of_the_reference_application_are_a_run_each() -> None:
    found = found_in(LOGS / "inference" / "reference_app.log")
    assert [figure(one) for one in found] == [(163.51, "queries/s"), (10.18, "queries/s"), (67.94, "queries/s")]
    assert {said.name: said.value for said in found[0].said}["latency_p90"] == pytest.approx(6.6)


# The figures of DeepBench's own sheets, for the same shapes and times.
@pytest.mark.parametrize(
    ("name", "expected"),
    [("gemm_train_float", [1.80224, 7.080228571]), ("gemm_inference_int8", [14.706239039, 0.993584158]),
     ("conv_train_float", [17.008625876, 17.511839659, 17.307022821, 12.750973298, 14.106296008, 7.930066727]),
     ("rnn_train_float", [3.707160006])],
)  # fmt: skip
def test_tables_of_deepbench_give_the_rates_of_its_sheets(name: str, expected: list[float]) -> None:
    found = found_in(LOGS / "deepbench" / f"{name}.log")
    for one, value in zip(found, expected, strict=False):
        assert figure(one) == (pytest.approx(value, rel=1e-6), "TFLOP/s")


def test_every_kind_of_recurrent_cell_is_counted_as_the_sheets_do() -> None:
    found = found_in(LOGS / "deepbench" / "rnn_train_float.log")
    forward = [one for one in found if one.params["pass"] == "forward"]
    # The sheet counts the bias of the vanilla cell too, one addition a unit.
    assert [figure(one)[0] for one in forward] == pytest.approx([3.707160006, 1.047226025, 3.304149689], rel=3e-4)


def test_a_row_of_deepbench_says_its_shape() -> None:
    found = found_in(LOGS / "deepbench" / "gemm_train_float.log")
    assert found[2].workload == "op/gemm"
    assert found[2].params == {"m": 7680, "n": 48000, "k": 2560, "a_t": False, "b_t": False, "precision": "fp32",
                               "set": "training"}  # fmt: skip
    assert found[2].wall_s == pytest.approx(0.207228)


def test_a_time_that_was_cut_to_zero_is_a_failed_run() -> None:
    last = found_in(LOGS / "deepbench" / "gemm_train_float.log")[-1]
    assert last.figure is None
    assert last.failure is not None
    assert last.failure.kind == "bad_number"
    assert last.failure.hint


def test_a_kernel_that_is_not_supported_is_a_failed_run() -> None:
    last = found_in(LOGS / "deepbench" / "gemm_inference_int8.log")[-1]
    assert last.failure is not None
    assert last.failure.kind == "not_supported"


@pytest.mark.parametrize(("name", "ms"), [("nccl", 76.6), ("mpi", 77.366)])
def test_an_all_reduce_is_bytes_over_time_and_knows_its_ranks(name: str, ms: float) -> None:
    found = found_in(LOGS / "deepbench" / f"all_reduce_{name}_8.log")
    assert figure(found[1]) == (pytest.approx(258_000_000 / (ms / 1e3) / 1e9), "GB/s")
    assert [one.ranks for one in found] == [8, 8]


@pytest.mark.parametrize(
    ("benchmark", "run", "seconds"),
    # From the table of single runs that was computed when the logs were published.
    [("resnet", 0, 6920.221), ("resnet", 2, 6488.404), ("ssd", 0, 1347.521), ("minigo", 0, 1725.869)],
)
def test_an_mlperf_log_gives_its_minutes(benchmark: str, run: int, seconds: float) -> None:
    (found,) = found_in(LOGS / "mlperf_v0.6" / benchmark / f"result_{run}.txt")
    assert figure(found) == (pytest.approx(seconds / 60, abs=1e-5), "min")
    assert found.figure is not None
    assert not found.figure.higher_is_better
    assert (found.workload, found.chip, found.ranks) == (f"fit/{benchmark}", "Tesla V100-SXM2-16GB", 8)


@pytest.mark.parametrize(
    ("name", "unit"),
    [("single_stream_summary", "ms"), ("server_summary", "samples/s"), ("offline_summary", "samples/s")],
)
def test_each_scenario_of_loadgen_has_its_own_figure(name: str, unit: str) -> None:
    text = (LOGS / "loadgen" / f"{name}.txt").read_text()
    (found,) = found_in(LOGS / "loadgen" / f"{name}.txt")
    # The headline stands in the line before the verdict.
    headline = text.splitlines()[text.splitlines().index("Result is : VALID") - 1].split(":")[1]
    expected = float(headline) / 1e6 if unit == "ms" else float(headline)
    assert figure(found) == (pytest.approx(expected), unit)
    assert found.invalid == ()
    assert found.workload is None


@pytest.mark.parametrize("name", ["server", "multi_stream_invalid"])
def test_loadgens_two_files_say_the_same(name: str) -> None:
    (summary,), (detail,) = (found_in(LOGS / "loadgen" / f"{name}_{kind}.txt") for kind in ("summary", "detail"))
    assert figure(summary)[0] == pytest.approx(figure(detail)[0], rel=1e-4)
    assert figure(summary)[1] == figure(detail)[1]
    assert summary.params == detail.params
    assert bool(summary.invalid) == bool(detail.invalid)


def test_what_loadgen_calls_invalid_keeps_its_number_and_is_no_result(ledger: str) -> None:
    answer = imported(
        ledger, str(LOGS / "loadgen" / "multi_stream_invalid_summary.txt"), "--workload", "serve/resnet50"
    )
    (run,) = json.loads(answer.out)["runs"]
    assert answer.code == 3
    assert (run["status"], run["failure_kind"]) == ("invalid", "not_valid")
    # LoadGen's own name of the requirement that was not met.
    assert "duration satisfied" in run["failure_message"]
    assert run["rate_per_s"] is not None


def test_an_accuracy_run_of_loadgen_has_no_rate() -> None:
    (found,) = found_in(LOGS / "loadgen" / "accuracy_summary.txt", "loadgen")
    assert found.failure is not None
    assert found.failure.kind == "cut_off"


# Whatever passed a log on

PREFIXES = {
    "kubectl --prefix": "[pod/bench-0-x7k2p/main] {}",
    "kubectl --timestamps": "2020-10-23T08:15:30.123456789Z {}",
    "both": "[pod/bench-0-x7k2p/main] 2020-10-23T08:15:30.123456789Z {}",
    "containerd": "2020-10-23T08:15:30.123456789+09:00 stdout F {}",
    "docker compose": "bench-1  | {}",
    "mpirun": "[1,0]<stdout>:{}",
    "colours": "\x1b[32m{}\x1b[0m",
    "Windows": "{}\r",
    "a progress bar": "50 %\r100 %\r{}",
}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize(
    "name", ["tf_cnn/t4_host_2gpu.log", "deepbench/gemm_train_float.log", "deepbench/all_reduce_nccl_8.log",
             "nvcnn/p4x4_kubernetes.log", "loadgen/server_summary.txt", "mlperf_v0.6/ssd/result_0.txt"],
)  # fmt: skip
def test_what_a_log_reader_puts_before_a_line_changes_nothing(name: str, prefix: str, tmp_path: Path) -> None:
    plain = found_in(LOGS / name)
    text = "".join(PREFIXES[prefix].format(line) + "\n" for line in (LOGS / name).read_text().splitlines())
    path = tmp_path / "a.log"
    path.write_bytes(text.encode())
    wrapped = found_in(path)
    assert [(one.figure, one.failure, one.params, one.rows, one.ranks) for one in wrapped] == [
        (one.figure, one.failure, one.params, one.rows, one.ranks) for one in plain
    ]


def test_dockers_own_log_file_is_unwrapped(tmp_path: Path) -> None:
    lines = (LOGS / "tf_cnn" / "t4_host_1gpu.log").read_text().splitlines(keepends=True)
    text = "".join(json.dumps({"log": line, "stream": "stdout"}, separators=(",", ":")) + "\n" for line in lines)
    (found,) = found_in_text(text, tmp_path)
    assert figure(found)[0] == 124.77


def test_a_log_that_windows_wrote_as_utf_16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text((LOGS / "tf_cnn" / "t4_host_1gpu.log").read_text(), encoding="utf-16")
    (found,) = found_in(path)
    assert figure(found)[0] == 124.77


def test_pods_whose_lines_are_mixed_are_told_apart(tmp_path: Path) -> None:
    logs = [(LOGS / "tf_cnn" / f"t4_{where}_1gpu.log").read_text().splitlines() for where in ("host", "container")]
    mixed = [
        f"[pod/{pod}/main] {line}" for pair in zip(*logs, strict=True) for pod, line in zip("ab", pair, strict=True)
    ]
    found = found_in_text("\n".join(mixed), tmp_path)
    assert [figure(one)[0] for one in found] == [124.77, 126.95]
    assert [len(one.rows) for one in found] == [11, 11]


def test_several_runs_in_one_file_are_several_runs(tmp_path: Path) -> None:
    text = "".join((LOGS / "tf_cnn" / f"t4_{name}.log").read_text() for name in ("host_1gpu", "host_2gpu"))
    assert [(figure(one)[0], one.ranks) for one in found_in_text(text, tmp_path)] == [(124.77, 1), (242.60, 2)]


def test_a_run_that_was_cut_off_before_the_next_is_not_given_its_total(tmp_path: Path) -> None:
    cut, whole = found_in_text(HEADER + ROW + HEADER + ROW + TOTAL, tmp_path)
    assert cut.failure is not None
    assert "step 10" in cut.failure.message
    assert figure(whole)[0] == 124.77


def test_the_name_of_a_pod_is_taken_off_a_line_and_kept() -> None:
    text = "total images/sec: 1.0"
    line = bare(f"[pod/a-1/main] 2020-10-23T08:15:30Z {text}")
    assert (line.text, line.source) == (text, "pod/a-1/main")


# Strict about numbers


@pytest.mark.parametrize(
    ("text", "kind", "named"),
    [
        ("total images/sec: nan", "not_finite", ("total images/sec", "'nan'")),
        ("total images/sec: inf", "not_finite", ("total images/sec", "'inf'")),
        ("total images/sec: -124.77", "bad_number", ("total images/sec", "-124.77")),
        ("total images/sec: 0.00", "bad_number", ("total images/sec", "0")),
        ("total images/sec: 1e400", "bad_number", ("total images/sec",)),
        ("total images/sec: 1,247.7", "bad_number", ("total images/sec", "'1,247.7'")),
        ("total images/sec: 124.77.3", "bad_number", ("total images/sec", "'124.77.3'")),
        ("total images/sec: ١٢٤", "bad_number", ("total images/sec", "'١٢٤'")),
        (f"10\timages/sec: 126.4 +/- 0.2 (jitter = 0.4)\tnan\n{TOTAL}", "not_finite", ("loss", "'nan'")),
        (f"10\timages/sec: nan +/- 0.2 (jitter = 0.4)\t7.8\n{TOTAL}", "not_finite", ("images/sec", "'nan'")),
    ],
)
def test_a_number_that_cannot_be_fails_the_run_with_its_line(
    text: str, kind: str, named: tuple[str, ...], tmp_path: Path
) -> None:
    (found,) = found_in_text(HEADER + text + "\n", tmp_path)
    assert found.figure is None
    assert found.failure is not None
    assert found.failure.kind == kind
    assert [word for word in ("line 20", *named) if word not in found.failure.message] == []


@pytest.mark.parametrize("text", ["", "Step\tImg/sec\ttotal_loss\n", ROW, f"{ROW}Killed\n"])
def test_a_log_without_a_result_is_a_failed_run(text: str, ledger: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(HEADER + text)
    answer = imported(ledger, str(tmp_path / "a.log"))
    (run,) = json.loads(answer.out)["runs"]
    assert answer.code == 3
    assert (run["status"], run["failure_kind"], run["rate_per_s"]) == ("failed", "cut_off", None)


@pytest.mark.parametrize(
    ("name", "lines", "kind", "named"),
    [
        ("ssd", [":::MLL 1.0 init_start: {}", ":::MLL 2.0 run_start: {}"], "cut_off", "run_stop"),
        ("ssd", [":::MLL 1.0 init_start: {}"], "cut_off", "run_start"),
        ("ssd", [":::MLL 2.0 run_start: {}", ':::MLL 9.0 run_stop: {"metadata": {"status": "aborted"}}'], "aborted",
         "'aborted'"),
        ("ssd", [":::MLL 9.0 run_start: {}", ':::MLL 2.0 run_stop: {"metadata": {"status": "success"}}'], "bad_number",
         "-7 s"),
        ("ssd", [":::MLL nan run_start: {}"], "bad_number", "'nan'"),
    ],
)  # fmt: skip
def test_an_mlperf_run_without_success_is_a_failed_run(
    name: str, lines: list[str], kind: str, named: str, tmp_path: Path
) -> None:
    head = f':::MLL 1.0 submission_benchmark: {{"value": "{name}"}}'
    (found,) = found_in_text("\n".join([head, *lines]), tmp_path)
    assert found.failure is not None
    assert (found.failure.kind, named in found.failure.message) == (kind, True)


def test_the_two_other_spellings_of_mlperf_are_read(tmp_path: Path) -> None:
    old = ":::MLPv0.5.0 resnet 1541720000.5 (a.py:1) run_start\n"
    old += ':::MLPv0.5.0 resnet 1541720060.5 (a.py:2) run_stop: {"success": true}\n'
    new = "".join(
        f":::MLLOG {json.dumps({'time_ms': at, 'key': key, 'value': value, 'metadata': metadata})}\n"
        for at, key, value, metadata in (
            (1594790000000, "submission_benchmark", "bert", {}), (1594790000000, "run_start", None, {}),
            (1594790120000, "run_stop", None, {"status": "success"}),
        )
    )  # fmt: skip
    assert figure(found_in_text(old, tmp_path)[0]) == (pytest.approx(1.0), "min")
    (found,) = found_in_text(new, tmp_path)
    assert (figure(found), found.workload) == ((pytest.approx(2.0), "min"), "fit/bert")


def test_metadata_with_pythons_quotes_are_read(tmp_path: Path) -> None:
    text = ":::MLL 1.0 run_start: {'value': None, 'metadata': {}}\n"
    text += ":::MLL 61.0 run_stop: {'value': None, 'metadata': {'status': 'success'}}\n"
    assert figure(found_in_text(text, tmp_path)[0]) == (pytest.approx(1.0), "min")


# Into the ledger


def test_an_imported_run_is_a_run_like_any_other(ledger: str) -> None:
    answer = imported(
        ledger, str(LOGS / "tf_cnn" / "t4_host_2gpu.log"), "--place", "host", "--chip", "Tesla T4",
        "--param", "precision=fp32", "--label", "bare host", "--note", "a blog of 2020",
    )  # fmt: skip
    said = json.loads(answer.out)
    (run,) = said["runs"]
    assert answer.code == 0
    assert (run["status"], run["rate_per_s"], run["rate_unit"]) == ("done", 242.60, "images/s")
    assert (run["chip"], run["place"], run["batch"], run["precision"]) == ("Tesla T4", "host", 64, "fp32")
    assert (run["spec"]["ranks"], run["framework"], run["flags"], run["steady"]) == (2, "TensorFlow 2.3", [], None)
    shown = json.loads(ask("show", run["id"], "--ledger", ledger, "--json").out)
    assert shown["doubts"] == []
    facts = shown["facts"]["import"]
    assert (facts["file"], facts["format"], facts["label"]) == ("t4_host_2gpu.log", "tf-cnn", "bare host")
    assert facts["sha256"] == said["files"][0]["sha256"]
    assert facts["by_hand"] == {"precision": "fp32", "chip": "Tesla T4", "place": "host"}


def test_both_databases_take_an_import(ledger_url: str) -> None:
    first = imported(ledger_url, str(LOGS / "deepbench" / "conv_train_float.log"), "--chip", "Tesla P100")
    assert (first.code, len(json.loads(first.out)["runs"])) == (0, 6)
    again = imported(ledger_url, str(LOGS / "deepbench" / "conv_train_float.log"))
    first_id, *others = (run["id"] for run in json.loads(first.out)["runs"])
    # The first of its runs is named, and the others are counted.
    assert (again.code, first_id in again.err, f" {len(others)} " in again.err) == (2, True, True)


def test_the_log_itself_is_kept_with_its_run(ledger: str) -> None:
    path = LOGS / "tf_cnn" / "t4_host_1gpu.log"
    imported(ledger, str(path))
    kept = ask("show", "last", "--log", "--ledger", ledger).out
    assert kept.splitlines() == path.read_text().splitlines()[:33]  # up to its total


def test_the_screen_says_what_was_imported(ledger: str) -> None:
    answer = ask("import", str(LOGS / "mlperf_v0.6" / "ssd" / "result_0.txt"), "--ledger", ledger)
    assert "22.46 min" in answer.out
    shown = ask("show", "last", "--ledger", ledger).out
    assert "22.4587 min" in shown
    assert "result_0.txt" in shown


def test_all_files_of_a_call_are_one_experiment(ledger: str) -> None:
    files = [str(path) for path in sorted((LOGS / "tf_cnn").glob("t4_host_1gpu*.log"))]
    said = json.loads(imported(ledger, *files).out)
    assert [run["rate_per_s"] for run in said["runs"]] == [124.77, 125.76]
    assert {run["experiment_id"] for run in said["runs"]} == {said["experiment"]}
    assert len({run["spec_digest"] for run in said["runs"]}) == 1
    listed = json.loads(ask("show", said["experiment"], "--ledger", ledger, "--json").out)
    assert listed["experiment"]["kind"] == "import"


def test_a_file_is_imported_once_unless_asked_again(ledger: str, tmp_path: Path) -> None:
    path = LOGS / "tf_cnn" / "t4_host_1gpu.log"
    first = json.loads(imported(ledger, str(path)).out)["runs"][0]["id"]
    copy = tmp_path / "another name.log"
    copy.write_bytes(path.read_bytes())
    second = imported(ledger, str(copy))
    assert second.code == 2
    assert first in second.err
    assert "--again" in second.err
    assert imported(ledger, str(copy), "--again").code == 0
    assert len(json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"]) == 2


def test_two_copies_in_one_call_are_refused(ledger: str, tmp_path: Path) -> None:
    path = LOGS / "tf_cnn" / "t4_host_1gpu.log"
    (tmp_path / "b.log").write_bytes(path.read_bytes())
    answer = imported(ledger, str(path), str(tmp_path / "b.log"))
    said = json.loads(answer.out)
    assert (answer.code, len(said["runs"])) == (7, 1)
    assert [one["file"] for one in said["refused"]] == [str(tmp_path / "b.log")]
    assert str(path) in said["refused"][0]["error"]


def test_a_bad_file_is_refused_by_itself(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "b.log").write_text("hello\n")
    good = str(LOGS / "tf_cnn" / "t4_host_1gpu.log")
    answer = imported(ledger, str(tmp_path / "b.log"), good, str(tmp_path / "none.log"))
    said = json.loads(answer.out)
    assert answer.code == 7
    assert [one["file"] for one in said["files"]] == [good]
    assert [one["file"] for one in said["refused"]] == [str(tmp_path / "b.log"), str(tmp_path / "none.log")]
    assert all(one["error"] in answer.err for one in said["refused"])
    assert len(json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"]) == 1


def test_where_every_file_is_refused_nothing_is_stored(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "b.log").write_text("hello\n")
    answer = imported(ledger, str(tmp_path / "b.log"), str(tmp_path / "none.log"))
    said = json.loads(answer.out)
    assert (answer.code, said["experiment"], said["files"], len(said["refused"])) == (2, None, [], 2)
    assert json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"] == []


def test_a_log_that_contradicts_what_was_typed_is_refused_and_the_others_are_not(ledger: str) -> None:
    files = [str(LOGS / "tf_cnn" / f"t4_host_{count}gpu.log") for count in (1, 2)]
    answer = imported(ledger, *files, "--ranks", "3")
    said = json.loads(answer.out)
    assert (answer.code, [one["file"] for one in said["refused"]]) == (7, files[1:])


def test_an_arm_that_keeps_a_log_is_compared_without_the_other(ledger: str, tmp_path: Path) -> None:
    answer = imported(ledger, *arms(1), "--arm", f"host={tmp_path / 'none.log'}")
    assert answer.code == 7
    assert "none.log" in answer.err
    assert json.loads(answer.out)["comparisons"][0]["word"]


HOSTILE = {
    "a log cut after qps=": ("TestScenario.SingleStream qps=", "cut_off"),
    "a rate of 1e-320": ("total images/sec: 1e-320\n", "bad_number"),
    "a rate of 5e-324": ("TestScenario.SingleStream qps=5e-324, time=60\n", "bad_number"),
    "a run of nothing": (":::MLL 1e-320 run_start: {}\n:::MLL 5e-324 run_stop: {'value': 'success'}", "bad_number"),
    "a date in milliseconds": (":::MLL 1.0 init_start: {}\n:::MLL 1560881731835 run_start: {}\n", "bad_number"),
    "a date past all calendars": (':::MLL 1.0 init_start: {}\n:::MLLOG {"time_ms": 1e300, "key": "run_start"}\n', "bad_number"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_numbers_that_crashed_are_failed_runs(case: str, ledger: str, tmp_path: Path) -> None:
    text, kind = HOSTILE[case]
    (tmp_path / "a.log").write_text(text)
    answer = imported(ledger, str(tmp_path / "a.log"), "--workload", "train/x")
    assert answer.code == 3, answer.err
    assert {run["failure_kind"] for run in json.loads(answer.out)["runs"]} == {kind}


def test_a_key_that_python_cannot_hash_is_left_out(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(
        ":::MLL 1.0 run_start: {{}: 1}\n:::MLL 61.0 run_stop: {'metadata': {'status': 'success'}}\n"
    )
    answer = imported(ledger, str(tmp_path / "a.log"), "--workload", "fit/x")
    assert (answer.code, json.loads(answer.out)["runs"][0]["rate_per_s"]) == (0, pytest.approx(1.0))


@pytest.mark.parametrize("digits", [400, 5000])
def test_integers_past_all_numbers_are_left_out(digits: int, ledger: str, tmp_path: Path) -> None:
    huge = "9" * digits
    lines = [
        ":::MLL 1.0 run_start: {}",
        f':::MLL 2.0 eval_accuracy: {{"value": {huge}}}',
        f':::MLL 2.0 global_batch_size: {{"value": {huge}}}',
        f':::MLL 2.0 eval_result: {{"metadata": {{"timestamp": {huge}}}}}',
        f":::MLL 2.0 submission_entry: {{'value': 0x{huge}}}",
        ':::MLL 61.0 run_stop: {"metadata": {"status": "success"}}',
    ]
    (tmp_path / "a.log").write_text("\n".join(lines))
    answer = imported(ledger, str(tmp_path / "a.log"), "--workload", "fit/x")
    assert (answer.code, json.loads(answer.out)["runs"][0]["rate_per_s"]) == (0, pytest.approx(1.0)), answer.err


def test_ten_billion_accelerators_are_a_failed_run_and_no_memory(ledger: str, tmp_path: Path) -> None:
    entry = json.dumps("{'accelerator': 'X', 'num_accelerators': '99999', 'num_nodes': '99999'}")
    lines = [':::MLL 1.0 submission_benchmark: {"value": "ssd"}', f':::MLL 1.0 submission_entry: {{"value": {entry}}}',
             ":::MLL 2.0 run_start: {}", ':::MLL 62.0 run_stop: {"metadata": {"status": "success"}}']  # fmt: skip
    (tmp_path / "a.log").write_text("\n".join(lines))
    (run,) = json.loads(imported(ledger, str(tmp_path / "a.log")).out)["runs"]
    assert (run["failure_kind"], run["spec"]["ranks"]) == ("bad_number", 1)
    assert "9,999,800,001 accelerators" in run["failure_message"]


def test_a_head_of_a_table_is_not_kept_whole_with_each_of_its_rows(tmp_path: Path) -> None:
    head = "m n k a_t b_t precision time (usec) " + "x" * 60_000
    found = found_in_text(f"{head}\n" + "1 1 1 0 0 float 5\n" * 10, tmp_path)
    assert len(found) == 10
    assert max(len(line.raw) for one in found for line in one.lines) <= 4096


@pytest.mark.parametrize(
    "line",
    [
        "Model:  a" + " " * 60_000 + "b",
        ":::MLLOG {" * 6000,
        ":::MLPv0.5.0 a 1 (" * 3000,
        "vanilla 1 1 1 x" + " " * 60_000 + "y",
    ],
)
def test_no_line_takes_time_that_grows_with_its_square(line: str, tmp_path: Path) -> None:
    """The limit of pytest is what fails where a pattern tries again and again: minutes for these."""
    for kind in FORMATS:
        with suppress(SpecError):
            found_in_text(f"type hidden N timesteps\n{line}\n" * 3 + TOTAL, tmp_path, kind)


def test_part_of_a_file_may_fail(ledger: str) -> None:
    answer = imported(ledger, str(LOGS / "deepbench" / "gemm_train_float.log"))
    assert [run["status"] for run in json.loads(answer.out)["runs"]] == ["done"] * 4 + ["failed"]
    assert answer.code == 7


def test_a_log_may_come_by_standard_input(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = (LOGS / "tf_cnn" / "t4_host_1gpu.log").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
    answer = imported(ledger, "-")
    assert json.loads(answer.out)["files"][0]["file"] == "standard input"
    assert json.loads(answer.out)["runs"][0]["rate_per_s"] == 124.77


# Two places against each other


def arms(count: int) -> list[str]:
    names = [(where, f"t4_{where}_{count}gpu{run}.log") for where in ("host", "container") for run in ("", "_run2")]
    return [word for where, name in names for word in ("--arm", f"{where}={LOGS / 'tf_cnn' / name}")]


@pytest.mark.parametrize(
    ("devices", "host", "container"),
    [(1, [124.77, 125.76], [126.95, 125.07]), (2, [242.60, 241.52], [240.64, 236.72])],
)
def test_the_field_report_is_one_command(devices: int, host: list[float], container: list[float], ledger: str) -> None:
    answer = imported(ledger, *arms(devices), "--chip", "Tesla T4", "--param", "precision=fp32")
    assert answer.code == 0, answer.err
    (found,) = json.loads(answer.out)["comparisons"]
    # Welch's interval of the difference of the logarithms, by SciPy.
    logs = [[math.log(rate) for rate in rates] for rates in (container, host)]
    interval = ttest_ind(*logs, equal_var=False).confidence_interval(0.90)
    assert found["ratio"] == pytest.approx(math.exp(sum(logs[0]) / 2 - sum(logs[1]) / 2))
    assert found["interval_90"]["low"] == pytest.approx(math.exp(interval.low))
    assert found["interval_90"]["high"] == pytest.approx(math.exp(interval.high))
    assert (found["word"], found["margin"]) == ("INCONCLUSIVE", 0.01)
    # Two runs a side tell too little of their spread to promise anything.
    assert found["needed"]["count"] is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "file"),
        (["--arm", "host=a.log"], "--arm"),
        (["--arm", "host"], "'host'"),
        (["a.log", "--arm", "host=a.log"], "--arm"),
        (["--arm", "a=x", "--arm", "b=y", "--place", "host"], "--place"),
        (["--arm", "A b=x", "--arm", "b=y"], "'A b'"),
    ],
)
def test_arms_that_are_typed_wrong_are_a_sentence(arguments: list[str], named: str, ledger: str) -> None:
    answer = imported(ledger, *arguments)
    assert (answer.code, named in answer.err) == (2, True), answer.err


def test_a_bad_log_in_the_second_arm_leaves_nothing_of_the_first(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "b.log").write_text("hello\n")
    answer = imported(ledger, *arms(1)[:2], "--arm", f"pod={tmp_path / 'b.log'}")
    assert answer.code == 2
    assert json.loads(ask("results", "--ledger", ledger, "--json").out)["runs"] == []


# Bad input


def test_what_a_log_does_not_say_must_be_named(ledger: str) -> None:
    path = str(LOGS / "nvcnn" / "p4x4_kubernetes.log")
    answer = imported(ledger, path)
    assert (answer.code, path in answer.err, "--workload" in answer.err) == (2, True, True)
    run = json.loads(imported(ledger, path, "--workload", "train/resnet50", "--ranks", "4").out)["runs"][0]
    assert (run["workload"], run["spec"]["ranks"]) == ("train/resnet50", 4)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--param", "batch=32"], ("--param", "batch=32")),
        (["--param", "batch"], ("--param", "'batch'")),
        (["--param", "Batch=32"], ("'Batch'",)),
        (["--ranks", "4"], (" 2 devices",)),
        (["--workload", "resnet50"], ("'resnet50'",)),
        (["--place", "on the moon"], ("'on the moon'",)),
        (["--format", "tfcnn"], ("'tfcnn'", "tf-cnn")),
        (["--format", "loadgen"], ("LoadGen", "t4_host_2gpu.log")),
    ],
)
def test_what_is_typed_wrong_is_a_sentence(arguments: list[str], named: tuple[str, ...], ledger: str) -> None:
    answer = imported(ledger, str(LOGS / "tf_cnn" / "t4_host_2gpu.log"), *arguments)
    assert (answer.code, [word for word in named if word not in answer.err]) == (2, []), answer.err


def test_a_chip_that_contradicts_the_log_is_refused(ledger: str) -> None:
    answer = imported(ledger, str(LOGS / "mlperf_v0.6" / "ssd" / "result_0.txt"), "--chip", "Tesla T4")
    assert (answer.code, "'Tesla V100-SXM2-16GB'" in answer.err) == (2, True)


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "empty"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "binary"),
        (bytes(range(1, 32)) * 100, "binary"),
        (gzip.compress(TOTAL.encode(), mtime=0)[:-9], "cut off"),
        (gzip.compress(TOTAL.encode(), mtime=0)[:12] + bytes(20), "damaged"),
        (gzip.compress(gzip.compress(TOTAL.encode(), mtime=0), mtime=0), "gzip"),
        (b"nothing of interest\n", "format"),
        (f"{TOTAL}:::MLL 1.0 run_start: {{}}\n".encode(), "tf-cnn (line 1), mlperf-training"),
    ],
)
def test_a_file_that_is_no_log_is_a_sentence(content: bytes, named: str, ledger: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_bytes(content)
    answer = imported(ledger, str(tmp_path / "a.log"))
    assert (answer.code, named in answer.err, "Traceback" in answer.err) == (2, True, False), answer.err
    assert str(tmp_path / "a.log") in answer.err


def test_a_log_that_is_packed_with_gzip_is_the_same_log(ledger: str, tmp_path: Path) -> None:
    content = (HEADER + ROW + TOTAL).encode()
    (tmp_path / "a.log").write_bytes(content)
    (tmp_path / "a.log.gz").write_bytes(gzip.compress(content))
    assert json.loads(imported(ledger, str(tmp_path / "a.log.gz")).out)["runs"][0]["rate_per_s"] == 124.77
    again = imported(ledger, str(tmp_path / "a.log"))
    assert (again.code, "already" in again.err) == (2, True), again.err


def test_a_folder_and_a_missing_file_are_sentences(ledger: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.log"):
        answer = imported(ledger, str(path))
        assert (answer.code, str(path) in answer.err) == (2, True)


def test_an_endless_line_and_half_a_character_do_no_harm(ledger: str, tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    noise = b"\xff\xfe\xc3 " + b"x" * 300_000 + b"\n" + b"y \t:" * 50_000 + b"\n"
    path.write_bytes(b"# \n" + noise + (HEADER + ROW).encode() + noise + TOTAL.encode())
    run = json.loads(imported(ledger, str(path)).out)["runs"][0]
    assert run["rate_per_s"] == 124.77


def test_a_name_with_escape_sequences_does_not_reach_the_terminal(ledger: str, tmp_path: Path) -> None:
    path = tmp_path / "a\x1b[31m.log"
    path.write_text((HEADER + ROW + TOTAL).replace("resnet50", "res\x1b]0;hi\x07net50"))
    answer = ask("import", str(path), "--ledger", ledger)
    assert answer.code == 0
    assert "\x1b" not in answer.out + answer.err
    assert "\x1b" not in ask("show", "last", "--ledger", ledger).out
