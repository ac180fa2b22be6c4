"""How MLPerf's three reference tables become rows, used by make_published.py.

A line there is a system and has one column a benchmark, so one line makes several rows. The single runs behind a time of
Training v0.6 are not rows of their own (a run is not a published result), but stand in `extra` as `runs_s`, so that the
spread of that time is known. Their mean without the fastest and the slowest gives the printed minutes in every case but
where no log exists.
"""

import csv
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from published_rows import MLPERF_RESNET, Cells, LeftOut, Row, chip_of, whole

# The day each round was published.
TRAINING_V06, TRAINING_V51, INFERENCE_V05 = "2019-07-10", "2025-11-12", "2019-11-06"
V06_BENCHMARKS = ("resnet", "ssd", "maskrcnn", "gnmt", "transformer", "minigo")
V51_BENCHMARKS = ("llama31_8b", "dlrm_dcnv2", "retinanet", "flux1", "llama2_70b_lora", "rgat", "llama31_405b")
CPUS = {"CLX 8260L": "Intel Xeon Platinum 8260L", "CLX 9282": "Intel Xeon Platinum 9282"}
# The systems of Inference v0.5 that have results: what is inside, and how many. The names are all that the logs say.
V05_SYSTEMS: dict[str, tuple[str, int, str]] = {
    "alibaba_HanGuang": ("Alibaba HanGuang", 1, ""),
    "alibaba_cloud_t4": ("NVIDIA T4", 1, ""),
    "0": ("Centaur chip (not named)", 1, ""),
    "DELLEMC_R740xd6248_openvino-linux": ("Intel Xeon Gold 6248", 2, "OpenVINO"),
    "DELLEMC_R740xd8276_openvino-linux": ("Intel Xeon Platinum 8276", 2, "OpenVINO"),
    "R740_T4x4_tensorrt": ("NVIDIA T4", 4, "TensorRT"),
    "furiosa-multi-fpga": ("FuriosaAI FPGA", 1, ""),
    "furiosa-single-fpga": ("FuriosaAI FPGA", 1, ""),
    "Goya_1": ("Habana Goya", 1, ""),
    "Goya_fast_latency": ("Habana Goya", 1, ""),
    "Goya_med_latency": ("Habana Goya", 1, ""),
    "Hailo8": ("Hailo-8", 1, ""),
    "ICL-I3-1005G1_OpenVINO-Windows": ("Intel Core i3-1005G1", 1, "OpenVINO"),
    "clx-9282-2s_pytorch-caffe2": ("Intel Xeon Platinum 9282", 2, "PyTorch with Caffe2"),
    "clx_9282-2s_openvino-linux": ("Intel Xeon Platinum 9282", 2, "OpenVINO"),
    "T4x20": ("NVIDIA T4", 20, ""),
    "T4x8": ("NVIDIA T4", 8, ""),
    "TitanRTXx4": ("NVIDIA TITAN RTX", 4, ""),
    "Xavier": ("NVIDIA Jetson AGX Xavier", 1, ""),
    "SDM855": ("Qualcomm Snapdragon 855", 1, ""),
    "NF5888M5-1GPU": ("unnamed GPU", 1, ""),
}
NOT_STATED = {
    "DELLEMC_R740xd6248_openvino-linux": "number of CPUs not stated; two, as this server has sockets",
    "DELLEMC_R740xd8276_openvino-linux": "number of CPUs not stated; two, as this server has sockets",
    "furiosa-multi-fpga": "number of devices not stated; counted as one system",
    "alibaba_cloud_t4": "number of devices not stated; one by its rate",
}
# Metric of the log summary: unit, how many of the log's make one of it, what it is called.
METRICS = {
    "samples_per_s": ("samples/s", 1, ""),
    "scheduled_qps": ("queries/s", 1, "scheduled queries/s that met the latency bound"),
    "samples_per_query": ("samples/query", 1, "samples in each query that met the latency bound"),
    "p90_latency_ns": ("ms", 1_000_000, "latency p90"),
}


def training_rows(cells: Cells, reference: Path) -> list[Row]:
    """Training v0.6: the minutes of each benchmark that the system ran."""
    found = [name for name in V06_BENCHMARKS if cells[f"{name}_min"]]
    if not found:
        raise LeftOut("a system without a result")
    node = re.fullmatch(r"(\d+)x (.+?)(?:, .*)?", cells["system"])
    about: dict[str, object] = {}
    if cpus := re.fullmatch(r"none \((\d+) CPUs\)", cells["accelerator"]):
        chip, count = CPUS[cells["system"].partition("2S ")[2]], int(cpus[1])
    else:
        (chip, about), count = chip_of(cells["accelerator"]), whole(cells["accelerator_count"])
    who: dict[str, object] = {
        "submitter": cells["submitter"], "system": node[2] if node else cells["system"],
        "division": cells["division"], "category": cells["category"], "metric": "time to train",
    }  # fmt: skip
    if cells["id"]:
        who["id"] = cells["id"]
    runs = single_runs(reference / "mlperf" / "mlperf_training_v0.6_runs.csv")
    return [
        {
            "model": name, "task": "training to target", "chip": chip, "system": cells["system"], "count": count,
            "framework": cells["software"], "precision": "unknown", "value": float(cells[f"{name}_min"]),
            "unit": "min", "data": "unknown" if name == "minigo" else "real", "date": TRAINING_V06,
            "source": "MLPerf Training v0.6", "note": cells["note"],
            "at": f"mlcommons/training_results_v0.6:{cells['submitter']}/results/{cells['system_dir']}/{name}",
            "extra": about | who | network(name) | runs.get((cells["submitter"], cells["system_dir"], name), {}),
        }
        for name in found
    ]  # fmt: skip


@cache
def single_runs(path: Path) -> dict[tuple[str, str, str], dict[str, object]]:
    """The seconds of the single runs of each result, in their order, and the batch of the whole system."""
    seconds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    batches: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    with path.open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file, strict=True):
            key = cells["submitter"], cells["system_dir"], cells["benchmark"]
            seconds[key].append(float(cells["seconds"]))
            batches[key].add(cells["global_batch_size"])
    found: dict[tuple[str, str, str], dict[str, object]] = {}
    for key, runs_s in seconds.items():
        found[key] = {"runs_s": runs_s}
        (batch,) = batches[key]
        if batch:
            found[key]["global_batch"] = int(batch)
    return found


def network(name: str) -> dict[str, object]:
    return {"network": MLPERF_RESNET} if name in {"resnet", "resnet50"} else {}


def scored_rows(cells: Cells, _reference: Path) -> list[Row]:
    """Training v5.1: minutes as MLPerf's own scorer makes them from the logs."""
    found = [name for name in V51_BENCHMARKS if cells[name]]
    if not found:
        raise LeftOut("a system without a result")
    chip, about = chip_of(cells["accelerator_model_name"])
    who: dict[str, object] = {
        "submitter": cells["submitter"], "system": cells["system"], "division": cells["division"],
        "category": cells["availability"], "nodes": whole(cells["number_of_nodes"]), "metric": "time to train",
        "host": f"{cells['host_processors_count']} × {cells['host_processor_model_name']}",
    }  # fmt: skip
    return [
        {
            "model": name, "task": "training to target", "chip": chip, "system": cells["system"],
            "count": whole(cells["accelerators_count"]), "framework": cells["framework"], "precision": "unknown",
            "value": round(float(cells[name]), 3), "unit": "min", "data": "real", "date": TRAINING_V51,
            "source": "MLPerf Training v5.1", "at": cells["details_url"].removeprefix("https://github.com/"),
            "note": cells["notes"].removesuffix(";N/A"), "extra": about | who,
        }
        for name in found
    ]  # fmt: skip


def inference_rows(cells: Cells, _reference: Path) -> list[Row]:
    """Inference v0.5: a result of one benchmark in one scenario."""
    if not cells["value"]:
        raise LeftOut("a result whose value is not in the log summary")
    if cells["valid"] != "VALID":
        raise LeftOut("a result that was not valid")
    chip, count, framework = V05_SYSTEMS[cells["system"]]
    unit, divisor, what = METRICS[cells["metric"]]
    extra: dict[str, object] = {
        "division": cells["division"], "scenario": cells["scenario"], "submitter": cells["submitter"],
        "system": cells["system"], "runs": whole(cells["runs"]),
    }  # fmt: skip
    if what:
        extra["metric"] = what
    row: Row = {
        "model": cells["benchmark"], "task": "inference", "chip": chip, "system": cells["system"], "count": count,
        "framework": framework, "precision": "unknown", "value": float(cells["value"]) / divisor,
        "unit": unit, "data": "real", "date": INFERENCE_V05, "source": "MLPerf Inference v0.5",
        "at": f"mlcommons/inference_results_v0.5:{cells['division']}/{cells['submitter']}/results/{cells['system']}",
        "note": NOT_STATED.get(cells["system"], ""), "extra": extra | network(cells["benchmark"]),
    }  # fmt: skip
    return [row]
