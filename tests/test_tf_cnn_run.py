"""The classic for real: old command lines through the real command line, worker and ledger, on a CPU."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from asking import environment
from leaving_out import leave_out
from stackmark.ledger.store import Ledger
from worker_images import TORCH, torch_image

NET = ("--device=cpu", "--model=resnet20", "--data_name=cifar10", "--batch_size=8")
ROW = re.compile(r"\d+\timages/sec: \d+\.\d \+/- \d+\.\d \(jitter = \d+\.\d\)\t\d+\.\d{3}")


class Classic:
    """`stackmark tf-cnn` in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger.sqlite3"

    def __call__(self, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command, env = [sys.executable, "-m", "stackmark", "tf-cnn", *flags], environment(self.ledger, **variables)
        return subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def classic(tmp_path_factory: pytest.TempPathFactory) -> Classic:
    return Classic(tmp_path_factory.mktemp("classic"))


@pytest.fixture(scope="module")
def trained(classic: Classic) -> subprocess.CompletedProcess[str]:
    flags = ("--num_batches=20", "--num_warmup_batches=2", "--train_dir=saved", "--save_model_steps=10",
             "--trace_file=trace.json", "--benchmark_log_dir=log", "--variable_update=parameter_server")  # fmt: skip
    return classic(*NET, *flags)


def test_the_old_command_line_gives_the_old_output(trained: subprocess.CompletedProcess[str]) -> None:
    assert trained.returncode == 0, trained.stderr
    lines = trained.stdout.splitlines()
    assert lines[1] == "Model:       resnet20"
    assert lines[lines.index("Variables:   parameter_server") + 1] == "=========="
    begin = lines.index("Step\tImg/sec\ttotal_loss")
    assert lines[begin - 1] == "Done warm up"
    rows = lines[begin + 1 : begin + 4]
    assert [row.split("\t")[0] for row in rows] == ["1", "10", "20"]
    assert all(ROW.fullmatch(row) for row in rows)
    # As the original's own parser reads a row.
    assert all("images/sec" in row and "+/-" in row and len(row.split()) == 9 for row in rows)
    dashes, total, dashes_again = lines[begin + 4 :]
    assert dashes == dashes_again == "-" * 64
    assert re.fullmatch(r"total images/sec: \d+\.\d\d", total)


def test_the_run_is_in_the_ledger_and_agrees_with_what_was_printed(
    classic: Classic, trained: subprocess.CompletedProcess[str]
) -> None:
    with Ledger.open(str(classic.ledger)) as book:
        row = book.runs()[-1]
    total = float(trained.stdout.split("total images/sec: ")[1].split()[0])
    assert row.wall_s is not None
    assert (row.status, row.steps_total, row.batch) == ("done", 20, 8)
    assert total == pytest.approx(20 * 8 / row.wall_s, abs=0.01)


def test_a_flag_without_a_meaning_is_said_on_standard_error(trained: subprocess.CompletedProcess[str]) -> None:
    assert "--variable_update" in trained.stderr
    assert "--variable_update" not in trained.stdout


def test_trace_log_and_checkpoints_are_written(classic: Classic, trained: subprocess.CompletedProcess[str]) -> None:
    assert trained.returncode == 0
    assert json.loads((classic.folder / "trace.json").read_text())["traceEvents"]
    metrics = [json.loads(line) for line in (classic.folder / "log" / "metric.log").read_text().splitlines()]
    assert [m["global_step"] for m in metrics if m["name"] == "current_examples_per_sec"] == [1, 10, 20]
    assert metrics[-1]["name"] == "average_examples_per_sec"
    assert json.loads((classic.folder / "log" / "benchmark_run.log").read_text())["model_name"] == "resnet20"
    # Set-up, trace and warm-up train too, as in the original.
    steps = sorted(int(path.name.split("-")[1].split(".")[0]) for path in (classic.folder / "saved").iterdir())
    assert steps[:2] == [10, 20]
    assert steps[-1] >= 22


@pytest.mark.usefixtures("trained")
def test_eval_reads_the_checkpoint_and_counts_its_examples(classic: Classic) -> None:
    answer = classic(*NET, "--train_dir=saved", "--eval", "--num_eval_batches=10")
    assert answer.returncode == 0, answer.stderr
    assert re.search(r"^10\t\d+\.\d examples/sec$", answer.stdout, re.MULTILINE)
    found = re.search(
        r"^Accuracy @ 1 = (\d\.\d{4}) Accuracy @ 5 = (\d\.\d{4}) \[80 examples\]$", answer.stdout, re.MULTILINE
    )
    assert found
    # The synthetic images are those it was trained on for twenty steps: it knows them better than chance (1 of 11).
    assert 1 / 11 < float(found[1]) <= float(found[2]) <= 1


def test_forward_only_has_columns_for_accuracy_and_no_loss(classic: Classic) -> None:
    answer = classic(*NET, "--forward_only", "--num_batches=10")
    assert answer.returncode == 0, answer.stderr
    assert "Step\tImg/sec\ttotal_loss\ttop_1_accuracy\ttop_5_accuracy\n" in answer.stdout
    row = next(line for line in answer.stdout.splitlines() if line.startswith("10\t"))
    assert len(row.split()) == 11
    assert row.split("\t")[2] == "0.000"


@pytest.mark.parametrize("update", ["parameter_server", "replicated", "distributed_replicated", "independent"])
def test_two_devices_print_the_classic_table(classic: Classic, update: str) -> None:
    answer = classic(*NET, "--num_gpus=2", f"--variable_update={update}", "--num_batches=10")
    assert answer.returncode == 0, answer.stderr
    assert "Devices:     ['/cpu:0', '/cpu:1']\n" in answer.stdout
    assert f"Variables:   {update}\n" in answer.stdout
    assert "total images/sec: " in answer.stdout


def test_a_run_that_fails_has_no_total(classic: Classic) -> None:
    answer = classic(*NET, "--num_batches=10", "--init_learning_rate=1e30")
    assert answer.returncode == 3
    assert "total images/sec" not in answer.stdout
    assert "not finite" in answer.stderr


def test_without_a_gpu_it_runs_on_the_cpu_and_says_so_in_one_line(classic: Classic) -> None:
    answer = classic("--num_gpus=1", *NET[1:], "--num_batches=2", CUDA_VISIBLE_DEVICES="")
    assert answer.returncode == 0, answer.stderr
    assert "Devices:     ['/cpu:0']\n" in answer.stdout
    assert len([line for line in answer.stderr.splitlines() if "--device=cpu" in line]) == 1
    with Ledger.open(str(classic.ledger)) as book:
        fallen = book.run(book.runs()[0].id).spec
    asked = classic(*NET, "--num_batches=2")
    assert asked.returncode == 0, asked.stderr
    with Ledger.open(str(classic.ledger)) as book:
        assert book.run(book.runs()[0].id).spec.digest == fallen.digest


def test_a_gpu_that_is_named_must_be_there(classic: Classic) -> None:
    answer = classic("--gpu_indices=1", *NET[1:], CUDA_VISIBLE_DEVICES="")
    assert (answer.returncode, answer.stdout) == (3, "")


def test_fp16_training_does_not_fall_back(classic: Classic) -> None:
    answer = classic("--use_fp16", *NET[1:], CUDA_VISIBLE_DEVICES="")
    assert (answer.returncode, answer.stdout) == (2, "")


def test_the_same_command_line_runs_in_a_container_of_an_image(classic: Classic) -> None:
    if shutil.which("podman") is None:
        leave_out("podman is missing")
    at = ("--on", "container", "--image", torch_image(), "--shm", "1g", "--engine", "podman")
    answer = classic(*NET, "--num_batches=20", "--num_warmup_batches=2", *at)
    assert answer.returncode == 0, answer.stderr
    assert [row.split("\t")[0] for row in answer.stdout.splitlines() if ROW.fullmatch(row)] == ["1", "10", "20"]
    assert answer.stdout.startswith(f"PyTorch:     {TORCH}\n")  # the image's, not this machine's
    with Ledger.open(str(classic.ledger)) as book:
        row = book.run(book.runs()[0].id)
    assert (row.place, row.place_options["shm"], row.status) == ("container", "1g", "done")
