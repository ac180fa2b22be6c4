"""The classic's standard output and its benchmark log, from streams of events."""

import errno
import io
import json
import os
import re
from pathlib import Path

import pytest

from stackmark.errors import SpecError, StackmarkError
from stackmark.events import Event, Facts, Failed, Metric, Phase, Result, Steps
from stackmark.experiments.tf_cnn_mapping import ClassicOptions, plan
from stackmark.show.benchmark_log import BenchmarkLog
from stackmark.show.tf_cnn import ClassicPrinter

# A real log: tf_cnn_benchmarks on one Tesla T4, TensorFlow 2.3.
T4_LOG = """\
TensorFlow:  2.3
Model:       resnet50
Dataset:     imagenet (synthetic)
Mode:        training
SingleSess:  False
Batch size:  64 global
             64 per device
Num batches: 100
Num epochs:  0.00
Devices:     ['/gpu:0']
NUMA bind:   False
Data format: NCHW
Optimizer:   sgd
Variables:   parameter_server
==========
Generating training model
Initializing graph
Running warm up
Done warm up
Step\tImg/sec\ttotal_loss
1\timages/sec: 127.9 +/- 0.0 (jitter = 0.0)\t7.608
10\timages/sec: 126.4 +/- 0.2 (jitter = 0.4)\t7.849
20\timages/sec: 126.3 +/- 0.1 (jitter = 0.5)\t8.013
30\timages/sec: 126.2 +/- 0.1 (jitter = 0.7)\t7.940
40\timages/sec: 126.0 +/- 0.1 (jitter = 0.7)\t8.137
50\timages/sec: 125.8 +/- 0.1 (jitter = 0.6)\t8.052
60\timages/sec: 125.6 +/- 0.1 (jitter = 0.7)\t7.782
70\timages/sec: 125.4 +/- 0.1 (jitter = 0.9)\t7.856
80\timages/sec: 125.3 +/- 0.1 (jitter = 1.0)\t8.011
90\timages/sec: 125.1 +/- 0.1 (jitter = 1.2)\t7.843
100\timages/sec: 124.8 +/- 0.1 (jitter = 1.4)\t8.090
----------------------------------------------------------------
total images/sec: 124.77
----------------------------------------------------------------
"""
# Step times that give that log's rows by the original's formulas; found by search, since the log has only the rows.
T4_STEP_MS = """
    500.39 510.36 503.22 506.03 506.40 508.30 507.50 507.32 506.29 508.44
    510.23 510.13 507.87 505.37 508.62 505.68 502.88 508.52 508.05 503.03
    510.59 506.94 511.23 509.44 505.04 502.64 504.60 507.55 506.65 510.61
    508.64 509.01 510.54 512.59 509.31 509.86 514.67 509.76 510.80 512.83
    512.05 512.31 510.48 510.68 509.95 513.15 508.39 510.52 512.58 510.42
    515.18 524.60 507.56 514.16 511.40 505.56 516.63 507.54 525.74 513.84
    515.49 511.96 518.52 516.92 515.98 502.54 514.56 515.57 517.90 513.78
    518.61 512.09 518.32 510.75 509.16 506.72 510.10 515.98 513.05 520.47
    518.27 522.30 517.72 518.94 516.55 523.29 517.83 516.85 513.96 522.19
    523.55 522.89 523.06 522.66 522.82 521.98 523.71 522.25 523.04 523.24
"""
T4_STEP_S = [float(word) / 1000 for word in T4_STEP_MS.split()]
T4_LOSSES = [7.608, 7.849, 8.013, 7.940, 8.137, 8.052, 7.782, 7.856, 8.011, 7.843, 8.090]
T4_WALL_S = 6400 / 124.77
ISSUE = "--num_gpus=1 --batch_size=64 --model=resnet50 --variable_update=parameter_server"


class Pipe(io.StringIO):
    """Remembers what a reader at the other end of a pipe would have seen after each flush."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def flush(self) -> None:
        self.seen.append(self.getvalue())


def phase(name: str, state: str = "begin") -> Phase:
    return Phase.model_validate({"event": "phase", "seq": 0, "t": 0.0, "phase": name, "state": state})


def steps(
    first: int, step_s: list[float], losses: dict[int, float] | None = None, accuracy: float | None = None
) -> Steps:
    """Losses are by displayed step, which counts from 1."""
    pairs = [(step - 1, loss) for step, loss in (losses or {}).items()]
    shares = [(index, accuracy) for index, _ in pairs] if accuracy is not None else []
    return Steps(seq=0, t=0.0, phase="measure", first=first, step_s=step_s, losses=pairs, top_1=shares, top_5=shares)


def result(count: int, batch: int, wall_s: float, invalid: list[str] | None = None) -> Result:
    return Result(
        seq=0,
        t=0.0,
        sample="image",
        samples_per_step=batch,
        steps=count,
        wall_s=wall_s,
        tick_s=1e-9,
        invalid=invalid or [],
    )


def t4_events() -> list[Event]:
    losses = dict(zip([1, *range(10, 101, 10)], T4_LOSSES, strict=True))
    parts = [
        steps(low, T4_STEP_S[low:high], {step: loss for step, loss in losses.items() if low < step <= high})
        for low, high in ((0, 3), (3, 10), (10, 47), (47, 100))
    ]
    ready = [phase("import"), phase("model"), phase("model", "end"), phase("warm-up"), phase("warm-up", "end")]
    return [*ready, phase("measure"), *parts, phase("measure", "end"), result(100, 64, T4_WALL_S)]


def planned(command: str) -> ClassicOptions:
    return plan(command.split()).options


def printed(command: str, events: list[Event]) -> str:
    options = planned(command)
    out = Pipe()
    printer = ClassicPrinter(options, out)
    printer.start("2.13.0")
    for event in events:
        printer.event(event)
    assert out.seen[-1] == out.getvalue()
    return out.getvalue()


def test_the_output_is_a_real_log_byte_for_byte_but_for_the_framework_and_which_resnet_it_is() -> None:
    expected = T4_LOG.replace("TensorFlow:  2.3\n", "PyTorch:     2.13.0\n").replace(
        "Model:       resnet50\n",
        "Model:       resnet50\n             ResNet-50 v1: stride 2 in the first 1x1 (tf_cnn_benchmarks' resnet50)\n",
    )
    assert printed(ISSUE, t4_events()) == expected


def test_the_originals_own_parser_reads_the_rows() -> None:
    # The rule of its test_util.py: 'images/sec' and '+/-' mark a row, which has nine fields, the loss being the ninth.
    rows = [line.split() for line in printed(ISSUE, t4_events()).splitlines() if "images/sec" in line and "+/-" in line]
    assert {len(row) for row in rows} == {9}
    assert [float(row[8]) for row in rows] == T4_LOSSES
    assert [float(row[2]) for row in rows][-1] == 124.8


def test_a_log_scraper_finds_the_total_and_nothing_else_that_looks_like_it() -> None:
    assert re.findall(r"^total images/sec: (\d+\.\d\d)$", printed(ISSUE, t4_events()), re.MULTILINE) == ["124.77"]


def test_with_accuracy_a_row_has_eleven_fields() -> None:
    text = printed(
        f"{ISSUE} --print_training_accuracy --num_batches=2", [steps(0, [0.5, 0.5], {1: 7.0}, 0.25), result(2, 64, 1.0)]
    )
    assert "Step\tImg/sec\ttotal_loss\ttop_1_accuracy\ttop_5_accuracy\n" in text
    assert "1\timages/sec: 128.0 +/- 0.0 (jitter = 0.0)\t7.000\t0.250\t0.250\n" in text


def test_forward_only_shows_no_loss_and_does_not_wait_for_one() -> None:
    event = Steps(seq=0, t=0.0, phase="measure", first=0, step_s=[0.5], top_1=[(0, 0.5)], top_5=[(0, 1.0)])
    text = printed(f"{ISSUE} --forward_only", [event])
    assert "Mode:        forward only\n" in text
    assert text.endswith("1\timages/sec: 128.0 +/- 0.0 (jitter = 0.0)\t0.000\t0.500\t1.000\n")


def test_evaluation_prints_windows_and_accuracy(tmp_path: Path) -> None:
    metrics: list[Event] = [
        Metric(seq=0, t=0.0, name=name, value=value, unit="share", higher_is_better=True)
        for name, value in (("top_1_accuracy", 0.7512), ("top_5_accuracy", 0.9), ("examples", 640))
    ]
    ready = [phase("model", "end"), phase("warm-up"), phase("measure")]
    events = [*ready, steps(0, [0.5] * 4), steps(4, [0.25] * 6), *metrics, result(10, 64, 4.0)]
    text = printed(f"{ISSUE} --eval --train_dir={tmp_path} --display_every=5 --num_eval_batches=10", events)
    assert text.partition("==========\n")[2] == (
        "Generating evaluation model\n"
        "5\t142.2 examples/sec\n"
        "10\t256.0 examples/sec\n"
        "Accuracy @ 1 = 0.7512 Accuracy @ 5 = 0.9000 [640 examples]\n"
        f"{'-' * 64}\ntotal images/sec: 160.00\n{'-' * 64}\n"
    )


def test_every_line_is_flushed_when_it_is_printed() -> None:
    options = planned(ISSUE)
    out = Pipe()
    printer = ClassicPrinter(options, out)
    printer.start("2.13.0")
    for event in t4_events():
        printer.event(event)
    lines = out.getvalue().splitlines(keepends=True)
    assert out.seen == ["".join(lines[: n + 1]) for n in range(len(lines))]


def test_a_row_is_printed_as_soon_as_its_loss_has_arrived_and_not_before() -> None:
    options = planned(f"{ISSUE} --display_every=2")
    out = Pipe()
    printer = ClassicPrinter(options, out)
    printer.start("2.13.0")
    printer.event(steps(0, [0.5, 0.5, 0.5], {1: 7.0}))
    assert out.getvalue().splitlines()[-1].startswith("1\t")
    printer.event(steps(3, [0.5], {2: 6.5, 4: 6.0}))
    assert [line.split("\t")[0] for line in out.getvalue().splitlines()[-2:]] == ["2", "4"]


def test_a_row_counts_only_the_steps_up_to_it() -> None:
    text = printed(f"{ISSUE} --display_every=2", [steps(0, [0.5, 0.5, 1.0, 1.0], {1: 7.0, 2: 7.0, 4: 7.0})])
    assert [line.split()[2] for line in text.splitlines() if "+/-" in line] == ["128.0", "128.0", "85.3"]


def test_a_loss_that_never_came_is_nan_in_its_row_at_the_end() -> None:
    text = printed(ISSUE, [steps(0, [0.5]), result(1, 64, 0.5)])
    assert "1\timages/sec: 128.0 +/- 0.0 (jitter = 0.0)\tnan\n" in text


def test_the_moving_average_follows_the_latest_step() -> None:
    text = printed(f"{ISSUE} --display_perf_ewma=1 --display_every=2", [steps(0, [0.5, 1.0], {1: 7.0, 2: 7.0})])
    assert text.splitlines()[-1].split()[2] == "64.0"


def test_other_ranks_and_warm_up_steps_are_not_in_the_rows() -> None:
    other = steps(0, [9.0], {1: 1.0}).model_copy(update={"rank": 1})
    warm = steps(0, [9.0], {1: 1.0}).model_copy(update={"phase": "warm-up"})
    text = printed(ISSUE, [warm, other, steps(0, [0.5], {1: 7.0})])
    assert [line for line in text.splitlines() if "+/-" in line] == [
        "1\timages/sec: 128.0 +/- 0.0 (jitter = 0.0)\t7.000"
    ]


def test_a_failed_run_prints_no_total() -> None:
    failed = Failed(seq=0, t=0.0, kind="not_finite", message="the loss was not finite")
    assert "total" not in printed(ISSUE, [*t4_events()[:-1], failed]).replace("total_loss", "")


def test_a_run_in_which_the_hardware_failed_prints_no_total() -> None:
    events = [*t4_events()[:-1], result(100, 64, T4_WALL_S, ["an uncorrectable memory error"])]
    assert "total images/sec" not in printed(ISSUE, events)


def test_a_trace_is_announced_during_warm_up() -> None:
    text = printed(f"{ISSUE} --trace_file=out/trace.json", [phase("warm-up"), phase("measure")])
    assert "Running warm up\nDumping trace to out/trace.json\nDone warm up\n" in text


def test_the_header_of_a_worker_of_a_cluster_of_one() -> None:
    text = printed(f"{ISSUE} --device=cpu --data_format=NHWC --job_name=worker --worker_hosts=a:1 --ps_hosts=b:1", [])
    assert "Devices:     ['/job:worker/replica:0/task:0/cpu:0']\n" in text
    assert "Data format: NHWC\n" in text
    assert "Variables:   parameter_server\nSync:        True\n==========\n" in text


def test_the_header_names_the_all_reduce_where_the_original_does() -> None:
    text = printed("--model=vgg16 --variable_update=replicated --all_reduce_spec=nccl", [])
    assert "Model:       vgg16\nDataset:     imagenet (synthetic)\n" in text
    assert "Variables:   replicated\nAllReduce:   nccl\n==========\n" in text


def logged(folder: Path, command: str, events: list[Event]) -> BenchmarkLog:
    options = planned(f"{command} --benchmark_log_dir={folder}")
    log = BenchmarkLog(options, options.benchmark_log_dir)
    log.start("2.13.0")
    for event in events:
        log.event(event)
    return log


def metrics_of(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metric.log").read_text().splitlines()]


def test_the_metric_log_has_each_displayed_rate_and_the_average(tmp_path: Path) -> None:
    logged(tmp_path / "new" / "folder", ISSUE, t4_events())
    lines = metrics_of(tmp_path / "new" / "folder")
    assert [line["name"] for line in lines] == ["current_examples_per_sec"] * 11 + ["average_examples_per_sec"]
    assert [line["global_step"] for line in lines] == [1, *range(10, 101, 10), 100]
    assert lines[-1]["value"] == pytest.approx(124.77)
    assert set(lines[0]) == {"name", "value", "unit", "global_step", "timestamp", "extras"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", str(lines[0]["timestamp"]))


def test_the_metric_log_has_the_accuracies_of_training_and_of_evaluation(tmp_path: Path) -> None:
    logged(tmp_path, f"{ISSUE} --print_training_accuracy", [steps(0, [0.5], {1: 7.0}, 0.25)])
    metric = Metric(seq=0, t=0.0, name="top_1_accuracy", value=0.75, unit="share", higher_is_better=True)
    logged(tmp_path, f"{ISSUE} --eval --train_dir={tmp_path}", [steps(0, [0.5]), metric, result(1, 64, 0.5)])
    values = {line["name"]: line["value"] for line in metrics_of(tmp_path)}
    assert values["top_1_accuracy"] == 0.25
    assert values["eval_top_1_accuracy"] == 0.75
    assert values["eval_average_examples_per_sec"] == 128.0


def test_the_run_log_says_what_ran_on_what(tmp_path: Path) -> None:
    facts: list[Event] = [
        Facts(seq=0, t=0.0, subject="cpu", facts={"model": "EPYC", "threads": 16}),
        Facts(seq=0, t=0.0, subject="memory", facts={"total_mib": 1024.0, "available_mib": 512.0}),
        Facts(seq=0, t=0.0, subject="gpu", facts={"devices": [{"name": "Tesla T4"}]}),
    ]
    logged(tmp_path, f"{ISSUE} --benchmark_test_id=t4-host", [*facts, phase("measure")])
    about = json.loads((tmp_path / "benchmark_run.log").read_text())
    assert about["model_name"] == "resnet50"
    assert about["dataset"] == {"name": "imagenet (synthetic)"}
    assert about["test_id"] == "t4-host"
    assert about["machine_config"] == {
        "cpu_info": {"num_cores": 16, "cpu_info": "EPYC"},
        "gpu_info": {"count": 1, "model": "Tesla T4"},
        "memory_total": 2**30,
        "memory_available": 2**29,
    }
    parameters = {entry["name"]: entry for entry in about["run_parameters"]}
    assert parameters["batch_size"] == {"name": "batch_size", "long_value": 64}
    assert parameters["num_epochs"]["float_value"] == pytest.approx(6400 / 1281167)
    assert parameters["single_sess"] == {"name": "single_sess", "bool_value": "False"}


def test_an_older_run_log_is_kept(tmp_path: Path) -> None:
    for name in ("first", "second", "third"):
        logged(tmp_path, f"{ISSUE} --benchmark_test_id={name}", [phase("measure"), result(1, 64, 0.5)])
    ids = [json.loads((tmp_path / f"benchmark_run.log{end}").read_text())["test_id"] for end in (".1", ".2", "")]
    assert ids == ["first", "second", "third"]


def test_a_failed_run_has_a_run_log_and_no_average(tmp_path: Path) -> None:
    logged(tmp_path, ISSUE, [Failed(seq=0, t=0.0, kind="crash", message="it broke")])
    assert (tmp_path / "benchmark_run.log").exists()
    assert metrics_of(tmp_path) == []


def test_a_log_folder_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError) as caught:
        logged(tmp_path / "file" / "below", ISSUE, [])
    named = ("--benchmark_log_dir", str(tmp_path / "file"), os.strerror(errno.ENOTDIR))
    assert [word for word in named if word not in caught.value.message] == []


def test_a_log_that_can_no_longer_be_written_is_a_sentence(tmp_path: Path) -> None:
    log = logged(tmp_path, ISSUE, [])
    (tmp_path / "metric.log").unlink()
    (tmp_path / "metric.log").mkdir()
    with pytest.raises(StackmarkError) as caught:
        log.event(result(1, 64, 0.5))
    assert "metric.log" in caught.value.message
