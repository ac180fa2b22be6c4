"""How each reference file but MLPerf's spells its rows: one function a source, used by make_published.py.

What a row says is brought to one spelling. A row that cannot be is an error, because a row dropped silently is a hole that
nobody sees; a row that is no measurement is left out by a rule that has a name (`LeftOut`) and is counted.
"""

import ast
import re
from collections.abc import Callable, Mapping

from stackmark.published.chips import parse_chip

Cells = Mapping[str, str]
Row = dict[str, str | int | float | dict[str, object]]

UNITS = {"img/s": "images/s", "seq/s": "sequences/s", "Samples/s": "samples/s", "Tokens/s": "tokens/s"} | {
    "query/s": "queries/s", "TFLOP/s": "TFLOP/s", "ms": "ms", "us": "us", "min": "min", "Watts": "W",
    "tok/s": "tokens/s", "Queries/s": "queries/s",
}  # fmt: skip
PRECISIONS = {"float": "fp32", "amp": "mixed", "mixed precision": "mixed", "mixed(amp)": "mixed", "": "unknown"} | {
    "float8": "fp8"
}  # fmt: skip
SAME_PRECISIONS = {"fp32", "tf32", "mixed", "bf16", "fp16", "fp8", "fp4", "int8"}
# Names that only their own source uses for a chip.
CHIPS = {
    "NV_1080Ti": "NVIDIA GTX 1080 Ti",
    "NV_TitanX": "NVIDIA TITAN X",
    "NV_TitanX_Pascal": "NVIDIA TITAN X (Pascal)",
    "IA_KNL7250": "Intel Xeon Phi 7250",
    "AMD_VegaFE": "AMD Radeon Vega Frontier Edition",
}
# Accelerators that are neither a GPU nor a CPU, so that no rule of ours takes their names apart.
OTHER_CHIPS = {
    "Intel(R) Gaudi(R) 2 AI Accelerator": "Intel Gaudi 2",
    "UntetherAI speedAI240 Slim": "UntetherAI speedAI240 Slim",
    "TPUv3 (chips)": "Google TPU v3",
}
# Where a machine stood, or who built it; in Lambda's and MLPerf's names in front of the chip's.
OWNERS = re.compile(r"^(LambdaCloud|DellTexas|Dell|SMC|1CC|RAIDZ1|Virtualized) ")
# The container each README names above its table (file, first line of the table).
CONTAINERS = {
    "PyTorch/Classification/ConvNets/resnet50v1.5/README.md": "21.03",
    "TensorFlow/Classification/ConvNets/resnet50v1.5/README.md": "20.06",
    "MxNet/Classification/RN50v1.5/README.md#L650": "22.10",
    "MxNet/Classification/RN50v1.5/README.md#L665": "20.12",
}
MLPERF_RESNET = "ResNet-50 v1.5"
V07_PUBLISHED = "2020-07-29"
MAY_BE_TF32 = "fp32 on Ampere and later may be TF32 (not stated)"


class LeftOut(Exception):
    """The row is no published measurement; the message names the rule."""


# --- one cell ---------------------------------------------------------------------------------------------------------


def whole(text: str) -> int:
    number = float(text)
    if number != int(number) or number < 1:
        raise ValueError(f"{text!r} is not a whole number above 0")
    return int(number)


def chip_of(printed: str) -> tuple[str, dict[str, object]]:
    """The normalised chip in a printed accelerator or system, and what else the name says of it."""
    if printed in OTHER_CHIPS:
        return OTHER_CHIPS[printed], {}
    inside = re.search(r"\((?:\d+x )?((?:[AVB]|GB)\d+[^)]*)\)", printed)
    name = CHIPS.get(printed) or (inside[1] if inside else OWNERS.sub("", printed))
    extra: dict[str, object] = {}
    if name.endswith("-CTS"):
        name, extra["variant"] = name.removesuffix("-CTS"), "custom thermal solution (CTS)"
    if printed.startswith("Virtualized"):
        extra["variant"] = "virtualised"
    if watts := re.search(r" \((\d+)W\)$", name):
        name, extra["variant"] = name[: watts.start()], f"set to {watts[1]} W"
    if name.endswith("-SXM3-32GB-H"):
        name, extra["variant"] = name.removesuffix("-H"), "the 450 W part of a DGX-2H"
    if memory := re.search(r" Grace Hopper Superchip (\d+)GB$", name):
        name, extra["variant"] = name[: memory.start()], f"{memory[1]} GB"
    chip = parse_chip(name)
    if chip.kind == "unknown":
        raise ValueError(f"the accelerator {printed!r} has no known spelling")
    return str(chip), extra


def precision_of(printed: str) -> tuple[str, dict[str, object]]:
    """The normalised precision, and what else was printed in its place."""
    name, _, more = printed.strip().lower().partition("+")
    extra: dict[str, object] = {}
    if more == "xla":
        extra["compiler"] = "XLA"
    elif more == "asp":
        extra["sparsity"] = "2:4 (ASP)"
    elif more:
        raise ValueError(f"the precision {printed!r} has no known spelling")
    if bits := re.fullmatch(r"16 bit inputs, (\d+) bit multiplication, 32 bit addition", name):
        return "fp16", {"multiply_bits": int(bits[1]), "add_bits": 32}
    if name == "amp_bf16":
        return "bf16", {"autocast": True}
    if name.startswith("{"):
        return "several", {"precision_by_part": ast.literal_eval(printed)}
    if ":" in name:
        return "several", {"precision_by_part": dict(part.split(":") for part in name.split(","))}
    if name.replace(",", "") != name and all(part in SAME_PRECISIONS for part in name.split(",")):
        return "several", {"precisions": name.split(",")}
    name = PRECISIONS.get(name, name)
    if name not in SAME_PRECISIONS | {"unknown"}:
        raise ValueError(f"the precision {printed!r} has no known spelling")
    return name, extra


def batch_of(printed: str, precision: str) -> tuple[int | str, dict[str, object]]:
    """The batch per device, where the table gives one for each of two precisions the one that belongs to this row."""
    if not printed:
        return "", {}
    if pair := re.fullmatch(r"(\d+) (?:\(FP32\) /|\s*and) +(\d+)(?: \(AMP\))?", printed):
        batch = int(pair[2] if precision == "mixed" else pair[1])
        if batch >= 2048:  # BERT on a V100: the samples between two optimizer steps, in many small batches
            return "", {"batch_with_accumulation": batch}
        return batch, {}
    return whole(printed), {}


# --- one row of each file ---------------------------------------------------------------------------------------------


def collected_row(cells: Cells) -> Row:
    """A row of published/all.csv, which holds what several sources print."""
    metric, task = cells["metric"], cells["task"].split(";")
    if task[0] == "model cost":
        raise LeftOut("a count that describes the model")
    if metric.startswith("CV over"):
        raise LeftOut("a coefficient of variation")
    if cells["source"] == "MLPerf Training v5.1 logs":
        raise LeftOut("a plain mean of logs where mlperf/mlperf_training_v5.1.csv has the scored result")
    chip, extra = chip_of(cells["accelerator"])
    precision, more = precision_of(cells["precision"])
    row: Row = {
        "model": cells["model"], "task": task[0], "chip": chip, "system": cells["accelerator"],
        "count": whole(cells["count"]), "precision": precision, "value": float(cells["value"]),
        "unit": UNITS[cells["unit"]], "data": "unknown", "date": cells["date"], "source": cells["source"],
        "at": cells["url_or_repo_path"],
    }  # fmt: skip
    row["batch"], other = batch_of(cells["batch"], precision)
    extra |= more | other
    if median := re.fullmatch(r"throughput \(median over (\d+) rows\)", metric):
        extra["rows"] = int(median[1])
        row["note"] = f"median of {median[1]} machine rows of the source"
    elif metric.startswith("time-to-train"):
        extra["metric"] = "time to train"
    elif metric in {"latency p99", "system power (SPEC PTD)"}:
        extra["metric"] = metric
    elif metric != "throughput":
        raise ValueError(f"the metric {metric!r} is not known")
    for start, read in SOURCES.items():
        if cells["source"].startswith(start):
            read(row, extra, task[1:])
            row["extra"] = extra
            return row
    raise ValueError(f"the source {cells['source']!r} is not known")


# Our name for timm's network; nothing where we have none. Its ResNets have the stride in the 3×3 convolution: v1.5.
TIMM_NETWORKS = {
    "resnet50": "resnet50_v1.5", "resnet152": "resnet152_v1.5", "vgg16": "vgg16", "vit_base_patch16_224": "vit-b16",
    "resnet18": "", "mobilenetv3_large_100": "", "efficientnet_b0": "", "swin_base_patch4_window7_224": "",
    "vit_large_patch16_224": "", "regnety_032": "", "tf_efficientnetv2_s": "", "convnext_base": "",
}  # fmt: skip


def timm(row: Row, extra: dict[str, object], task: list[str]) -> None:
    torch, platform, layout, *rest = task
    row["framework"] = torch.replace("torch", "PyTorch")
    extra["layout"] = layout
    if found := re.fullmatch(r"cu(\d+)(\d)", platform):
        extra["cuda"] = f"{found[1]}.{found[2]}"
    if rest == ["torch.compile"]:
        extra["compiler"] = "torch.compile"
    elif rest:
        raise ValueError(f"the task ends in {rest!r}")
    if network := TIMM_NETWORKS[str(row["model"]).partition(" @")[0]]:
        row["workload"] = f"{'train' if row['task'] == 'training' else 'infer'}/{network}"
    row["data"] = "synthetic"


def lambda_labs(row: Row, extra: dict[str, object], task: list[str]) -> None:
    row["framework"] = "PyTorch (NGC container)" if "NGC container" in task else "PyTorch"
    if row["model"] == "resnet50":
        row["workload"] = "train/resnet50_v1.5"
    elif row["model"] == "bert_large_squad":
        row["task"] = "fine-tuning"
    elif row["model"] not in {"ssd", "gnmt"}:
        raise ValueError(f"the model {row['model']!r} is not known")
    if row["precision"] == "fp32" and parse_chip(str(row["chip"])).has_tf32:
        extra["may_be_tf32"] = True
        row["note"] = "; ".join(filter(None, [str(row.get("note", "")), MAY_BE_TF32]))


def nvidia(row: Row, extra: dict[str, object], task: list[str]) -> None:
    path = str(row["at"]).partition(":")[2]
    container = CONTAINERS.get(path) or CONTAINERS.get(path.partition("#")[0])
    framework = str(row["source"]).partition("(")[2].rstrip(")")
    row["framework"] = f"{framework} (NGC {container})" if container else framework
    if row["model"] == "resnet50v1.5":
        row["workload"] = f"{'train' if row['task'] == 'training' else 'infer'}/resnet50_v1.5"
    elif row["model"] == "bert-large" and task == ["SQuAD fine-tuning"]:
        row["task"] = "fine-tuning"
    elif row["model"] in {"ssd300", "resnext101-32x4d", "maskrcnn"} and not task:
        pass  # networks that we have no workload for
    elif row["model"] == "bert-large" and (found := re.fullmatch(r"pretraining seq(\d+)", task[0])):
        row["workload"], extra["sequence_length"] = "train/bert-large", int(found[1])
    else:
        raise ValueError(f"the model {row['model']!r} with the task {task!r} is not known")


def mlperf_training(row: Row, extra: dict[str, object], task: list[str]) -> None:
    *software, runs, _ = task  # a name may have a semicolon in it
    row["framework"], row["data"] = shortened(";".join(software)), "real"
    extra |= {"submitter": str(row["at"]).partition(":")[2].split("/")[0], "runs": runs.removeprefix("runs=")}
    extra["global_batch"], row["batch"] = row["batch"], ""
    if row["model"] == "resnet":
        extra["network"] = MLPERF_RESNET
    row["note"] = (
        "time from run_start to run_stop in the logs, mean without the fastest and the slowest; not an official MLPerf "
        "result; the fastest submitter for this chip and count"
    )
    if str(row["date"]) < "2000":  # of two logs, by whose clock it was January 1970
        row["date"] = V07_PUBLISHED
        row["note"] = f"{row['note']}; the day is the round's, because the log's own clock is wrong"


def mlperf_inference(row: Row, extra: dict[str, object], task: list[str]) -> None:
    division, category, scenario, what, *software = task
    extra |= {"division": division, "category": category, "scenario": scenario}
    best = what.removeprefix("best submitter for this accel+count: ")
    row["data"] = "real"
    if row["model"] == "resnet":
        extra["network"] = MLPERF_RESNET
    if best != what:
        extra["submitter"], row["framework"] = best, shortened(software[0])
        row["note"] = "the best submitter for this chip and count"
    elif what == "power submission":
        extra["submitter"], row["note"] = software[0], "power submission"
    else:
        raise ValueError(f"the task {what!r} is not known")


def shortened(software: str) -> str:
    """The reference data cut such names after 40 characters; a cut name says so."""
    return software.rstrip() + ("…" if len(software) >= 40 else "")


def deepbench(_row: Row, _extra: dict[str, object], _task: list[str]) -> None:
    raise LeftOut("a rate that DeepBench computed from a time, which is in the table of its timings")


SOURCES: dict[str, Callable[[Row, dict[str, object], list[str]], None]] = {
    "timm results": timm,
    "Lambda deeplearning-benchmark": lambda_labs,
    "NVIDIA DeepLearningExamples": nvidia,
    "MLPerf Training": mlperf_training,
    "MLPerf Inference": mlperf_inference,
    "Baidu DeepBench": deepbench,
}


def classic_row(cells: Cells) -> Row:
    """A cell of TensorFlow's own table for tf_cnn_benchmarks, whose `resnet50` and `resnet152` are v1."""
    if cells["images_per_sec"] == "N/A":
        raise LeftOut("a cell printed as N/A")
    if cells["model"] not in {"alexnet", "inception3", "resnet50", "resnet152", "vgg16"}:
        raise ValueError(f"the model {cells['model']!r} is not known")
    return {
        "workload": f"train/{cells['model']}", "model": cells["model"], "task": "training",
        "chip": chip_of(cells["gpu"])[0], "system": cells["system"], "count": whole(cells["gpus"]),
        "framework": "TensorFlow 1.x", "precision": "fp32", "batch": whole(cells["batch_per_gpu"]),
        "value": float(cells["images_per_sec"]), "unit": "images/s",
        "data": cells["data"], "date": "2017-05", "source": "TensorFlow performance guide (tf_cnn_benchmarks)",
        "at": cells["source"], "note": "options chosen for the best rate of each cell",
        "extra": {"cuda": "8.0", "cudnn": "5.1", "tensorflow": "b1e174e", "tf_cnn_benchmarks": "9165a70"},
    }  # fmt: skip


def field_row(cells: Cells) -> Row:
    """A number from somebody's report about containers or Kubernetes."""
    if cells["unit"] == "percent":
        raise LeftOut("a ratio to somebody else's number")
    chip, extra = chip_of(cells["accelerator"])
    extra["place"] = cells["place"]
    task, _, more = cells["task"].partition(" ")
    row: Row = {
        "model": cells["model"], "task": task, "chip": chip, "system": cells["accelerator"],
        "count": whole(cells["count"]), "framework": cells["framework"],
        "precision": precision_of(cells["precision"])[0], "batch": whole(cells["batch"]) if cells["batch"] else "",
        "value": float(cells["value"]), "unit": UNITS[cells["unit"]], "data": "unknown",
        "date": cells["date"], "source": cells["source"],
        "note": cells["note"], "extra": extra,
    }  # fmt: skip
    if shape := re.fullmatch(r"gemm (\d+)x(\d+)x(\d+)", cells["model"]):
        row |= {"workload": "op/gemm", "data": "synthetic", "note": ""}
        extra |= {"m": int(shape[1]), "n": int(shape[2]), "k": int(shape[3]), "metric": "time"}
    elif task == "inference":
        extra["scenario"] = more
    elif (
        more == "synthetic"
    ):  # the reports with TensorFlow's version in them ran tf_cnn_benchmarks, whose resnet50 is v1
        row |= {"workload": "train/resnet50", "data": "synthetic"}
    else:  # NVIDIA's own script existed with either variant
        row |= {"data": "real" if cells["note"] == "ImageNet" else "unknown"}
        row["note"] = "; ".join(filter(None, [cells["note"], "resnet50 v1 or v1.5 not stated"]))
    return row
