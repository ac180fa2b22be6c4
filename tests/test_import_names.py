"""What stands around a result in a log: the chips that TensorFlow names, the model that was served, the published time."""

import json
from pathlib import Path
from typing import Any

import pytest

from asking import Answer, ask
from stackmark.ledger.importers import FORMATS, format_of, results_of
from stackmark.ledger.importers.found import Found
from stackmark.ledger.importers.reading import opened

LOGS = Path(__file__).parent / "data" / "logs"
# As versions of TensorFlow print them (tensorflow/core/common_runtime/gpu/gpu_device.cc): 0.x, 1.4, 1.8, 1.15, 2.1, 2.10.
DEVICE_LINES = {
    "0.12": "I tensorflow/core/common_runtime/gpu/gpu_device.cc:975] Creating TensorFlow device (/gpu:0) -> "
    "(device: 0, name: {}, pci bus id: 0000:02:00.0)",
    "1.4": "2018-10-25 18:31:10.305981: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1120] Creating TensorFlow device "
    "(/device:GPU:0) -> (device: 0, name: {}, pci bus id: ccb6:00:00.0, compute capability: 3.7)",
    "1.15": "2019-11-04 18:29:29.727810: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1304] Created TensorFlow device "
    "(/job:localhost/replica:0/task:0/device:GPU:0 with 30555 MB memory) -> physical GPU (device: 0, name: {}, "
    "pci bus id: 0000:d8:00.0, compute capability: 7.0)",
    "2.10": "2022-09-28 10:00:00.000000: I tensorflow/core/common_runtime/gpu/gpu_device.cc:1613] Created device "
    "/job:localhost/replica:0/task:0/device:GPU:0 with 13775 MB memory:  -> device: 0, name: {}, pci bus id: 0000:00:04.0, "
    "compute capability: 7.5",
    "1.x, found": "I tensorflow/core/common_runtime/gpu/gpu_device.cc:1405] Found device 0 with properties: \n"
    "name: {} major: 5 minor: 2 memoryClockRate(GHz): 1.266",
    "0.x, found": "I tensorflow/core/common_runtime/gpu/gpu_init.cc:103] Found device 0 with properties:\nname: {}",
    "2.x, found": "I tensorflow/core/common_runtime/gpu/gpu_device.cc:1555] Found device 0 with properties: \n"
    "pciBusID: 0000:26:00.0 name: {} computeCapability: 6.1",
}


@pytest.fixture
def ledger(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.sqlite3")


def found_in_text(text: str, folder: Path, kind: str | None = None) -> list[Found]:
    path = folder / "a.log"
    path.write_text(text)
    with opened(str(path)) as log:
        return results_of(log, FORMATS[kind] if kind else format_of(log))


def imported(ledger: str, *arguments: str) -> Answer:
    return ask("import", *arguments, "--ledger", ledger, "--json")


# Chips


@pytest.mark.parametrize("name", ["Tesla T4", "TITAN X (Pascal)", "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB"])
@pytest.mark.parametrize("form", DEVICE_LINES)
def test_the_chip_is_taken_from_tensorflows_device_lines(form: str, name: str, tmp_path: Path) -> None:
    log = (LOGS / "tf_cnn" / "t4_host_1gpu.log").read_text()
    (found,) = found_in_text(DEVICE_LINES[form].format(name) + "\n" + log, tmp_path)
    assert (found.chip, found.ranks) == (name, 1)


def _two(first: str, second: str) -> str:
    line = DEVICE_LINES["1.15"]
    return f"{line.format(first)}\n{line.replace('GPU:0', 'GPU:1').replace('device: 0', 'device: 1').format(second)}\n"


def test_two_gpus_of_one_model_are_one_chip_and_two_ranks(tmp_path: Path) -> None:
    log = (LOGS / "tf_cnn" / "t4_host_2gpu.log").read_text()
    (found,) = found_in_text(_two("Tesla T4", "Tesla T4") + log, tmp_path)
    assert (found.chip, found.ranks) == ("Tesla T4", 2)


def test_two_models_are_both_named_where_both_were_used(tmp_path: Path) -> None:
    gpus = _two("Tesla T4", "Tesla P4")
    (both,) = found_in_text(gpus + (LOGS / "tf_cnn" / "t4_host_2gpu.log").read_text(), tmp_path)
    (first,) = found_in_text(gpus + (LOGS / "tf_cnn" / "t4_host_1gpu.log").read_text(), tmp_path)
    assert (both.chip, first.chip) == ("Tesla T4 + Tesla P4", "Tesla T4")


def test_a_run_on_the_cpu_does_not_have_the_gpu_that_was_there(tmp_path: Path) -> None:
    log = (LOGS / "tf_cnn" / "t4_host_1gpu.log").read_text().replace("/gpu:0", "/cpu:0")
    (found,) = found_in_text(DEVICE_LINES["1.15"].format("Tesla T4") + "\n" + log, tmp_path)
    assert (found.chip, found.params["device"]) == (None, "cpu")


def test_the_chip_of_one_run_is_not_that_of_the_next(tmp_path: Path) -> None:
    log = (LOGS / "tf_cnn" / "t4_host_1gpu.log").read_text()
    found = found_in_text(DEVICE_LINES["2.10"].format("Tesla T4") + "\n" + log + log, tmp_path)
    assert [one.chip for one in found] == ["Tesla T4", None]


@pytest.mark.parametrize(
    ("typed", "code"), [("T4", 0), ("Tesla T4", 0), ("NVIDIA T4", 0), ("Tesla P4", 2), ("V100", 2)]
)
def test_another_name_of_the_same_chip_does_not_contradict_the_log(
    typed: str, code: int, ledger: str, tmp_path: Path
) -> None:
    log = (LOGS / "tf_cnn" / "t4_host_1gpu.log").read_text()
    (tmp_path / "a.log").write_text(DEVICE_LINES["2.10"].format("Tesla T4") + "\n" + log)
    answer = imported(ledger, str(tmp_path / "a.log"), "--chip", typed)
    assert answer.code == code
    assert code or json.loads(answer.out)["runs"][0]["chip"] == "Tesla T4"


# Models that were served

LINE = "TestScenario.SingleStream qps=67.94, mean=0.014653, queries=683, tiles=80:0.0154,90:0.0173"
ARGUMENTS = (
    "INFO:main:Namespace(accuracy=False, backend='onnxruntime', cache=0, dataset='coco-300', max_batchsize=32, max_latency=None, "
    "model='/root/dataset/ssd_mobilenet_v1_coco_2018_01_28.onnx', {}output='/root/output', profile={}, qps=None, threads=64)"
)


@pytest.mark.parametrize(
    "text",
    [
        f"mobilenet: {LINE}\nresnet50: {LINE}\nssd: {LINE}",
        f"mobilenet.log:{LINE}\nresnet50.log:{LINE}\nlogs/ssd.log:{LINE}",
        f"mobilenet\n{LINE}\nresnet50\n{LINE}\nssd\n{LINE}",
        f"# MobileNet\n{LINE}\n== resnet50 ==\n{LINE}\n## SSD:\n{LINE}",
        f"./run_local.sh tf mobilenet gpu\n{LINE}\n./run_local.sh tf resnet50 gpu\n{LINE}\n+ ./run_local.sh tf ssd gpu\n{LINE}",
        f"python python/main.py --profile mobilenet-tf --x\n{LINE}\npython main.py --profile resnet50-tf\n{LINE}\n"
        f"main.py --model-name=ssd\n{LINE}",
    ],
    ids=["in front", "grep", "headings", "decorated headings", "commands", "profiles"],
)
def test_three_lines_named_after_three_models_are_three_workloads(text: str, ledger: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(text + "\n")
    answer = imported(ledger, str(tmp_path / "a.log"))
    assert answer.code == 0, answer.err
    assert [run["workload"] for run in json.loads(answer.out)["runs"]] == [
        "serve/mobilenet",
        "serve/resnet50",
        "serve/ssd",
    ]


@pytest.mark.parametrize(
    ("name", "profile", "workload"),
    [("model_name='ssd-mobilenet', ", "'ssd-mobilenet-onnxruntime'", "serve/ssd-mobilenet"),
     ("", "'resnet50-onnxruntime'", "serve/resnet50"), ("", "None", "serve/ssd-mobilenet"),
     ("model_name='${CK_MODEL}', ", "None", "serve/ssd-mobilenet")],
)  # fmt: skip
def test_the_arguments_of_the_reference_application_name_the_model(
    name: str, profile: str, workload: str, tmp_path: Path
) -> None:
    text = f"{ARGUMENTS.format(name, profile)}\nINFO:main:starting TestScenario.SingleStream\n{LINE}\n"
    (found,) = found_in_text(text, tmp_path)
    assert (found.workload, found.framework, found.params["max_batch"]) == (workload, "onnxruntime", 32)


def test_the_accuracy_of_a_served_model_is_kept(tmp_path: Path) -> None:
    (found,) = found_in_text(LINE.replace("mean", "acc=76.456%, mean") + "\n", tmp_path)
    assert {one.name: one.value for one in found.said}["accuracy"] == 76.456


def test_summaries_of_loadgen_in_one_file_are_a_workload_each(tmp_path: Path) -> None:
    summary = (LOGS / "loadgen" / "offline_summary.txt").read_text()
    heads = [
        f"==> results/{name}/Offline/mlperf_log_summary.txt <==\n" for name in ("mobilenet", "resnet50", "ssd-large")
    ]
    found = found_in_text("".join(f"{head}{summary}\n" for head in heads), tmp_path)
    assert [one.workload for one in found] == ["serve/mobilenet", "serve/resnet50", "serve/ssd-large"]
    assert len({one.figure and one.figure.value for one in found}) == 1


def test_the_name_of_the_system_under_test_may_name_the_model(tmp_path: Path) -> None:
    summary = (LOGS / "loadgen" / "offline_summary.txt").read_text().replace("PySUT", "BERT-99 server")
    (found,) = found_in_text(summary, tmp_path)
    assert found.workload == "serve/bert-99"


@pytest.mark.parametrize(
    ("log", "example"),
    [
        ("inference/reference_app.log", "serve/resnet50"),
        ("loadgen/server_summary.txt", "serve/resnet50"),
        ("nvcnn/p4x4_kubernetes.log", "train/resnet50"),
    ],
)
def test_the_hint_for_a_log_without_a_name_is_a_workload_of_its_kind(log: str, example: str, ledger: str) -> None:
    answer = imported(ledger, str(LOGS / log))
    assert (answer.code, f"name it: --workload {example}\n" in answer.err) == (2, True), answer.err


def test_results_without_names_are_named_one_by_one(ledger: str) -> None:
    path = str(LOGS / "inference" / "reference_app.log")
    refused = imported(ledger, path)
    assert (refused.code, "line 5" in refused.err, "67.94" in refused.err) == (2, True, True)
    names = ("serve/resnet50", "serve/resnet50", "serve/mobilenet")
    chips = ("unnamed GPU", "unnamed CPU", "unnamed CPU")
    words = [word for pair in zip(names, chips, strict=True) for word in ("--workload", pair[0], "--chip", pair[1])]
    answer = imported(ledger, path, *words)
    assert [(run["workload"], run["chip"]) for run in json.loads(answer.out)["runs"]] == list(
        zip(names, chips, strict=True)
    )


@pytest.mark.parametrize(
    "words", [("--workload", "serve/x") * 2, ("--workload", "serve/x", "--chip", "X", "--chip", "Y")]
)
def test_fewer_names_than_results_are_refused(words: tuple[str, ...], ledger: str) -> None:
    answer = imported(ledger, str(LOGS / "inference" / "reference_app.log"), *words)
    assert (answer.code, words[-2] in answer.err, " 3 results" in answer.err) == (2, True, True), answer.err


def test_one_name_does_not_make_one_workload_of_several(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(f"mobilenet: {LINE}\nresnet50: {LINE}\n")
    answer = imported(ledger, str(tmp_path / "a.log"), "--workload", "serve/x")
    assert (answer.code, "serve/mobilenet, serve/resnet50" in answer.err) == (2, True)


# MLPerf training next to what was published


def published(ledger: str, text: str, folder: Path) -> list[dict[str, Any]]:
    (folder / "result.txt").write_text(text)
    answer = imported(ledger, str(folder / "result.txt"))
    assert answer.code == 0, answer.err
    found: list[dict[str, Any]] = json.loads(answer.out)["published"]
    return found


@pytest.mark.parametrize(
    ("benchmark", "minutes", "percent"),
    # The published minutes, and the single runs' seconds from the table that was computed when the logs were published.
    [("resnet", 115.22, 100 * (6920.221 / 60 / 115.22 - 1)), ("ssd", 22.36, 100 * (1347.521 / 60 / 22.36 - 1)),
     ("minigo", 27.39, 100 * (1725.869 / 60 / 27.39 - 1))],
)  # fmt: skip
def test_a_run_stands_next_to_the_published_minutes_of_its_system_and_round(
    benchmark: str, minutes: float, percent: float, ledger: str
) -> None:
    answer = imported(ledger, str(LOGS / "mlperf_v0.6" / benchmark / "result_0.txt"))
    (one,) = json.loads(answer.out)["published"]
    assert (one["system"], one["same_system"], one["source"]) == ("1x DGX-1", True, "MLPerf Training v0.6")
    assert (one["minutes"], one["percent_slower"]) == (minutes, pytest.approx(percent, abs=1e-4))
    assert one["run"] == json.loads(answer.out)["runs"][0]["id"]
    table = ask("import", str(LOGS / "mlperf_v0.6" / benchmark / "result_0.txt"), "--again", "--ledger", ledger).out
    assert f"{minutes:.2f}" in table


SSD = (LOGS / "mlperf_v0.6" / "ssd" / "result_0.txt").read_text()


def test_the_same_chips_in_another_system_are_said_to_be_that(ledger: str, tmp_path: Path) -> None:
    (one,) = published(ledger, SSD.replace("1xDGX-1", "1xSuperMicro"), tmp_path)
    assert (one["same_system"], one["minutes"]) == (False, 22.36)


@pytest.mark.parametrize(
    ("old", "new"),
    [("'num_accelerators': '8'", "'num_accelerators': '4'"), ("V100-SXM2-16GB", "T4"), (":::MLL ", ":::MLPv0.5.0 ")],
    ids=["fewer chips", "other chips", "another round"],
)
def test_other_chips_and_rounds_have_no_published_time(old: str, new: str, ledger: str, tmp_path: Path) -> None:
    text = SSD.replace(old, new)
    if "MLPv0.5" in new:
        text = (
            ":::MLPv0.5.0 ssd 1541720273.9 (a.py:1) submission_benchmark: {\"value\": \"ssd\"}\n"
            ":::MLPv0.5.0 ssd 1541720273.9 (a.py:1) run_start\n"
            ":::MLPv0.5.0 ssd 1541721273.9 (a.py:1) run_stop: {\"success\": true}\n"
        )  # fmt: skip
    (tmp_path / "result.txt").write_text(text)
    answer = imported(ledger, str(tmp_path / "result.txt"), "--workload", "fit/ssd")
    assert (answer.code, json.loads(answer.out)["published"]) == (0, []), answer.err


def test_a_system_whose_name_only_begins_alike_is_another_system(ledger: str, tmp_path: Path) -> None:
    (one,) = published(ledger, SSD.replace("1xDGX-1 with", "1xDGX-12 with"), tmp_path)
    assert one["same_system"] is False
