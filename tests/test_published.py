"""Published results: chips have one name, the shipped table is sound, and what is nearest says all that differs."""

import csv
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stackmark.errors import LedgerError
from stackmark.ledger.added import cells_of
from stackmark.published.checks import too_fast
from stackmark.published.chips import chip_distance, normalise_chip, parse_chip
from stackmark.published.near import Match, nearest
from stackmark.published.table import FIELDS, NAME, OPERATORS_NAME, Published, load, load_all, load_operators, parse
from stackmark.remarks import Remark
from stackmark.workloads.train.zoo import MODELS

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "stackmark" / "published" / "data"
SHIPPED = DATA / NAME
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}


# --- chips ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        # as NVML prints them
        ("NVIDIA H200", "NVIDIA H200"),
        ("NVIDIA H200 NVL", "NVIDIA H200 NVL"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 80GB PCIe"),
        ("NVIDIA H100 NVL", "NVIDIA H100 94GB NVL"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 40GB PCIe"),
        ("Tesla V100-SXM2-16GB", "NVIDIA V100 16GB"),
        ("Tesla P100-SXM2-16GB", "NVIDIA P100"),
        ("Tesla K80", "NVIDIA K80"),
        ("Tesla T4", "NVIDIA T4"),
        ("NVIDIA GeForce RTX 4090", "NVIDIA RTX 4090"),
        ("NVIDIA GeForce RTX 3080 Ti", "NVIDIA RTX 3080 Ti"),
        ("NVIDIA RTX 6000 Ada Generation", "NVIDIA RTX 6000 Ada"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA RTX PRO 6000 Max-Q"),
        ("NVIDIA GH200 480GB", "NVIDIA GH200"),
        # as tables print them
        ("NVIDIA H200 140GB SXM", "NVIDIA H200"),
        ("NVIDIA H200-SXM5-141GB", "NVIDIA H200"),
        ("NVIDIA H100-PCIe-80GB", "NVIDIA H100 80GB PCIe"),
        ("V100 16G", "NVIDIA V100 16GB"),
        ("NVIDIA B200-SXM-180GB", "NVIDIA B200"),
        ("NVIDIA RTX Pro 6000 SE PCIe 96GB", "NVIDIA RTX PRO 6000 Server"),
        ("AMD Instinct MI300X-NPS1-SPX-192GB-750W", "AMD MI300X"),
        # as /proc/cpuinfo prints them
        ("Intel(R) Core(TM) i9-10940X CPU @ 3.30GHz", "Intel Core i9-10940X"),
        ("12th Gen Intel(R) Core(TM) i7-12700H", "Intel Core i7-12700H"),
        ("AMD EPYC 9374F 32-Core Processor", "AMD EPYC 9374F"),
    ],
)
def test_a_chip_has_one_name_whoever_wrote_it(printed: str, name: str) -> None:
    assert normalise_chip(printed) == name


@pytest.mark.parametrize("part", ["NVIDIA A100-SXM4-40GB MIG 1g.5gb", "NVIDIA A100-40C"])
def test_a_slice_of_a_gpu_is_not_the_gpu(part: str) -> None:
    assert normalise_chip(part) != normalise_chip("NVIDIA A100-SXM4-40GB")


def test_a_laptop_part_is_not_the_card() -> None:
    assert normalise_chip("NVIDIA GeForce RTX 4090 Laptop GPU") != normalise_chip("NVIDIA GeForce RTX 4090")


def test_two_unnamed_cpus_are_not_the_same_cpu() -> None:
    assert chip_distance(parse_chip("CPU"), parse_chip("CPU (not named)")) > 0


def test_only_ampere_and_later_may_call_tf32_fp32() -> None:
    with_tf32 = {
        name: parse_chip(name).has_tf32 for name in ("NVIDIA A100 80GB", "NVIDIA H200", "Tesla V100", "Tesla T4")
    }
    assert with_tf32 == {"NVIDIA A100 80GB": True, "NVIDIA H200": True, "Tesla V100": False, "Tesla T4": False}


@given(st.text(max_size=60))
def test_any_name_is_taken_without_an_error(name: str) -> None:
    chip = parse_chip(name)
    assert chip_distance(chip, parse_chip("NVIDIA H200")) >= 0


# --- the table --------------------------------------------------------------------------------------------------------


def test_the_shipped_table_has_so_many_rows_of_each_source() -> None:
    # The files' own rows less: 24 model costs, 24 coefficients of variation, 6 that scale impossibly, 2 N/A, 2 ratios, and
    # 462 results of MLPerf Inference whose value is not in the reference. 62 and 184 are the cells that MLPerf's tables fill.
    assert Counter(row.source for row in load()) == {
        "timm results (huggingface/pytorch-image-models)": 282 - 24,
        "Lambda deeplearning-benchmark v1": 108,
        "Lambda deeplearning-benchmark v2": 120 - 24 - 1,
        "NVIDIA DeepLearningExamples (PyTorch)": 153 - 5,
        "NVIDIA DeepLearningExamples (TensorFlow)": 12,
        "NVIDIA DeepLearningExamples (MXNet)": 24,
        "NVIDIA DeepLearningExamples (PaddlePaddle)": 8,
        "MLPerf Training v0.6": 62,
        "MLPerf Training v0.7 logs": 44,
        "MLPerf Training v4.0 logs": 50,
        "MLPerf Training v5.1": 184,
        "MLPerf Inference v0.5": 589 - 462,
        "MLPerf Inference v4.1 official summary": 108,
        "MLPerf Inference v5.1 official summary": 64,
        "TensorFlow performance guide (tf_cnn_benchmarks)": 209 - 2,
        "GPU Host vs Container (blog, Korean)": 8,
        "GPU on Kubernetes (LG CNS slides)": 10,
        "Machine Learning benchmarking with OpenStack and Kubernetes (slides)": 5,
    }


def test_the_shipped_table_of_operators_has_every_time_of_deepbench() -> None:
    # Convolutions: forward of 1,760 lines, backward of the 1,316 of training, less 78 by inputs that are printed as N/A.
    # Recurrent layers: forward of 781, backward by inputs and by weights of 415, both together of 159.
    assert Counter(row.workload for row in load_operators()) == {
        "op/gemm": 2579,
        "op/conv": 1760 + 1316 + (1316 - 78),
        "op/rnn": 781 + 2 * 415 + 159,
        "op/sparse-gemm": 96,
        "op/all-reduce": 203,
    }
    assert {(row.source, row.unit, row.task) for row in load_operators()} == {("Baidu DeepBench", "ms", "operator")}


def test_pages_count_the_rows_that_there_are() -> None:
    counts = {
        "published numbers": len(load_all()),
        "rows of whole workloads": len(load()),
        "times of single operators": len(load_operators()),
    }
    root = Path(__file__).parents[1]
    pages = "\n".join(page.read_text() for page in (root / "README.md", *(root / "docs").glob("*.md")))
    told = re.findall(rf"(\d[\d,]*)\s+({'|'.join(counts)})", pages)
    assert {what for _, what in told} == {*counts}
    assert [(number, what) for number, what in told if number != f"{counts[what]:,}"] == []


def values(**wanted: object) -> list[float]:
    return [row.value for row in load() if all(getattr(row, name) == value for name, value in wanted.items())]


# Read by eye in the sources: NVIDIA's READMEs, Lambda's CSVs, TensorFlow's guide of May 2017.
V15 = "train/resnet50_v1.5"
A100 = {"workload": V15, "chip": "NVIDIA A100 80GB", "count": 1}
V100 = {"workload": V15, "chip": "NVIDIA V100 16GB", "count": 1}
TF = {"framework": "TensorFlow (NGC 20.06)"}
DGX1 = {"system": "NVIDIA DGX-1", "chip": "NVIDIA P100", "data": "synthetic", "framework": "TensorFlow 1.x"}


@pytest.mark.parametrize(
    ("wanted", "value"),
    [
        ({"workload": "train/resnet50", "batch": 64, "count": 1, **DGX1}, 219),
        ({"workload": "train/resnet50", "batch": 64, "count": 8, **DGX1}, 1734),
        ({"workload": "train/alexnet", "batch": 512, "count": 4, **DGX1}, 10509),
        ({"workload": "train/vgg16", "batch": 64, "count": 1, **DGX1}, 154),
        ({"workload": V15, "system": "NVIDIA DGX-1 16GB (8x V100 16GB)", "count": 1, "precision": "fp32"}, 367),
        ({"workload": V15, "system": "NVIDIA DGX-1 16GB (8x V100 16GB)", "count": 8, "precision": "mixed"}, 8322),
        ({"precision": "mixed", "batch": 256, **V100, **TF}, 1270),
        ({"precision": "fp32", "batch": 128, **V100, **TF}, 412),
        ({"framework": "PyTorch (NGC 21.03)", "precision": "tf32", **A100}, 938),
        ({"framework": "MXNet (NGC 22.10)", "precision": "mixed", **A100}, 3410.52),
        ({"workload": V15, "chip": "NVIDIA H200", "count": 1, "precision": "fp16"}, 3079),
        ({"workload": V15, "chip": "NVIDIA H200", "count": 1, "precision": "fp32"}, 2259),
        ({"workload": V15, "chip": "NVIDIA B200", "count": 8, "precision": "fp16"}, 24461),
        ({"model": "llama2_70b_lora", "system": "1xXE9680x8H200-SXM-141GB", "unit": "min"}, 23.369),
        ({"source": "MLPerf Training v0.6", "system": "1x DGX-1", "model": "resnet"}, 115.22),
        ({"source": "MLPerf Training v0.6", "system": "1x DGX-1", "model": "ssd"}, 22.36),
        ({"source": "MLPerf Training v0.6", "system": "1x DGX-1", "model": "minigo"}, 27.39),
        # Read in NVIDIA's results of November 2019.
        ({"source": "MLPerf Inference v0.5", "system": "T4x20", "model": "ssd-small", "unit": "queries/s"}, 129056.78),
        ({"source": "MLPerf Inference v0.5", "system": "Xavier", "model": "resnet", "unit": "ms"}, 2.037735),
        ({"workload": "train/resnet50", "chip": "unnamed CPU", "batch": 32, "unit": "images/s"}, 2.24),
    ],
)
def test_a_row_says_what_its_source_prints(wanted: dict[str, object], value: float) -> None:
    assert values(**wanted) == [value]


def test_a_batch_that_counts_accumulated_steps_is_not_taken_for_the_batch_of_a_device() -> None:
    rows = [row for row in load() if "batch_with_accumulation" in row.extra]
    assert len(rows) == 8
    assert all(row.batch is None and row.chip == "NVIDIA V100 32GB" for row in rows)


def test_fp32_of_a_source_that_does_not_state_tf32_is_marked_on_chips_that_have_it() -> None:
    fp32 = [row for row in load() if row.source.startswith("Lambda") and row.precision == "fp32"]
    marked = {row.chip for row in fp32 if row.extra.get("may_be_tf32")}
    assert {row.chip for row in fp32} - marked == {"NVIDIA V100 16GB", "NVIDIA Quadro RTX 8000"}


def test_every_training_workload_in_the_table_is_one_of_ours_with_its_unit() -> None:
    named = {(row.workload.removeprefix("train/"), row.unit) for row in load() if row.workload.startswith("train/")}
    assert len(named) == 9
    assert named == {(name, f"{MODELS[name].sample}s/s") for name, _ in named}


def test_no_row_is_there_twice() -> None:
    # `extra` is no part of a row's hash, so it is compared as text: the passes of a convolution differ only there.
    seen = Counter(tuple(cells_of(row)) for row in load_all())
    assert [cells for cells, times in seen.items() if times > 1] == []


@pytest.mark.parametrize(("name", "rows"), [(NAME, load()), (OPERATORS_NAME, load_operators())])
def test_a_row_written_again_is_the_line_of_the_table(name: str, rows: tuple[Published, ...]) -> None:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        assert [cells_of(row) for row in rows] == list(csv.reader(file))[1:]


def test_the_shipped_table_is_plain_csv_that_other_programs_read() -> None:
    with SHIPPED.open(encoding="utf-8", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(load())


def test_no_row_that_ships_would_be_refused_from_a_user() -> None:
    assert list(too_fast(load_all())) == []
    assert {row.date for row in load_all() if not "2017" <= row.date < "2026-11"} == set()


def test_the_minutes_of_mlperf_follow_from_the_single_runs_beside_them() -> None:
    """The mean without the fastest and the slowest, as MLPerf's rules have it."""
    compared = 0
    for row in load():
        runs_s = row.extra.get("runs_s")
        if isinstance(runs_s, list):
            kept = sorted(runs_s)[1:-1]
            assert round(sum(kept) / len(kept) / 60, 2) == row.value, row
            compared += 1
    assert compared == 61


def test_the_long_table_of_operators_is_not_read_by_who_does_not_ask_for_it() -> None:
    """What happens at the end of a run: the nearest rows are looked for."""
    code = (
        "from stackmark.published.lookup import known_rows, near; from stackmark.published import table as p;"
        "from stackmark.spec import Spec; known_rows(None);"
        "near(Spec(workload='train/resnet50', params={'precision': 'fp32'}), 'images/s', 'NVIDIA H200', None);"
        "print(p.load_operators.cache_info().currsize, p.load.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]


# --- a broken table ---------------------------------------------------------------------------------------------------

GOOD = dict.fromkeys(FIELDS, "") | {
    "workload": "train/resnet50", "model": "resnet50", "task": "training", "chip": "NVIDIA P100", "count": "1",
    "precision": "fp32", "value": "219", "unit": "images/s", "data": "synthetic", "date": "2017-05",
    "source": "a guide",
}  # fmt: skip


def table(*rows: dict[str, str]) -> str:
    return "\n".join([",".join(FIELDS), *(",".join(row.values()) for row in rows)]) + "\n"


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"value": "N/A"}, "value 'N/A'"),
        ({"value": "nan"}, "value 'nan'"),
        ({"count": "0"}, "count '0'"),
        ({"batch": "64.5"}, "batch '64.5'"),
        ({"unit": "img/s"}, "unit must be one of"),
        ({"precision": "half"}, "precision must be one of"),
        ({"chip": "Tesla P100"}, "'NVIDIA P100'"),
        ({"date": "May 2017"}, "date 'May 2017'"),
        ({"source": ""}, "source"),
        ({"extra": "[1]"}, "extra '[1]'"),
        ({"extra": "{"}, "extra '{'"),
        ({"extra": "{},more"}, "18 cells"),
        ({"extra": '"open'}, "end of data"),
    ],
)
def test_a_broken_row_is_a_sentence_with_its_line(wrong: dict[str, str], named: str) -> None:
    with pytest.raises(LedgerError) as caught:
        parse(table(GOOD, GOOD | wrong), "some.csv")
    where, _, what = caught.value.message.partition(": ")
    assert ("some.csv" in where, where.split()[-1]) == (True, "3")
    assert named in what


@pytest.mark.parametrize("text", ["", "workload,model\n"])
def test_a_table_with_another_header_is_refused_at_line_1(text: str) -> None:
    with pytest.raises(LedgerError) as caught:
        parse(text, "some.csv")
    where, _, what = caught.value.message.partition(": ")
    assert ("some.csv" in where, where.split()[-1]) == (True, "1")
    assert ",".join(FIELDS) in what


# --- what is nearest --------------------------------------------------------------------------------------------------


def near(
    workload: str = V15,
    chip: str | None = "NVIDIA H200",
    *,
    rows: tuple[Published, ...] | None = None,
    precision: str = "bf16",
    batch: int | None = 256,
    unit: str = "images/s",
    count: int = 1,
    limit: int = 3,
) -> list[Match]:
    return nearest(
        load() if rows is None else rows,
        workload=workload,
        chip=chip,
        count=count,
        precision=precision,
        batch=batch,
        unit=unit,
        framework="PyTorch 2.13",
        data="synthetic",
        limit=limit,
    )


def differing(match: Match) -> dict[str, Remark]:
    """What differs, by its kind, in its order."""
    return {remark.kind: remark for remark in match.differs if isinstance(remark, Remark)}


def test_on_an_h200_the_h200_rows_come_first_half_precision_before_fp32_before_eight_gpus() -> None:
    assert [match.row.value for match in near()] == [3079, 2259, 21735.5]


def test_everything_that_differs_is_said() -> None:
    row = next(row for row in load() if row.value == 1218.01)  # timm, nhwc
    (match,) = near(rows=(row,), count=8)
    values = {
        "chip": ("RTX 3090", "H200"), "count": ("1", "8"), "precision": ("mixed", "bf16"), "batch": ("512", "256"),
        "framework": ("PyTorch 1.12", "PyTorch 2.13"), "layout": ("nhwc",),
    }  # fmt: skip
    found = differing(match)
    assert [*found] == [*values]
    assert [(kind, value) for kind in found for value in values[kind] if value not in found[kind]] == []


def test_what_was_not_stated_is_said_too() -> None:
    best = near(precision="fp32")[0]
    assert [*differing(best)] == [
        "may-be-tf32", "batch-not-stated", "framework-version-not-stated", "data-not-stated",
    ]  # fmt: skip


def test_nothing_is_said_of_a_row_with_the_same_recipe() -> None:
    (row,) = parse(table(GOOD | {"framework": "PyTorch 2.13", "batch": "64"}), "some.csv")
    (match,) = near("train/resnet50", "Tesla P100-SXM2-16GB", rows=(row,), precision="fp32", batch=64)
    assert match.differs == ()


def test_among_equals_the_newest_is_first() -> None:
    rows = parse(table(GOOD, GOOD | {"date": "2019-01-31"}, GOOD | {"date": "2018-02"}), "some.csv")
    found = near("train/resnet50", "Tesla P100", rows=rows, precision="fp32", batch=None)
    assert [match.row.date for match in found] == ["2019-01-31", "2018-02", "2017-05"]


def test_the_same_workload_comes_first_and_a_relation_on_the_same_chip_is_not_lost() -> None:
    found = near("train/resnet50")
    assert [match.row.workload for match in found] == ["train/resnet50", "train/resnet50", V15]
    assert found[-1].row.chip == "NVIDIA H200"
    assert next(iter(differing(found[-1]))) == "workload"
    assert [word for word in ("resnet50", "v1.5", "6 %") if word not in found[-1].differs[0]] == []


def test_the_six_per_cent_are_those_of_the_networks() -> None:
    more = MODELS["resnet50_v1.5"].forward_macs / MODELS["resnet50"].forward_macs
    assert round((more - 1) * 100) == 6
    assert MODELS["resnet50_v2"].forward_macs == MODELS["resnet50"].forward_macs


def test_fine_tuning_is_offered_for_bert_with_a_warning() -> None:
    found = near("train/bert-large", unit="sequences/s")
    assert found[-1].row.value == 350
    assert next(iter(differing(found[-1]))) == "workload"
    assert "SQuAD" in found[-1].differs[0]


def test_on_a_cpu_the_one_cpu_row_comes_first_and_gpus_after_it() -> None:
    found = near("train/resnet50", "Intel(R) Xeon(R) Platinum 8480+", precision="fp32", batch=32)
    assert [parse_chip(match.row.chip).kind for match in found] == ["cpu", "gpu", "gpu"]
    assert found[0].row.value == 2.24
    assert next(iter(differing(found[0]))) == "chip"
    assert found[0].row.chip in found[0].differs[0]
    assert "8480+" in found[0].differs[0]


@pytest.mark.parametrize("chip", [None, "", "Some New Chip 9000", "CPU"])
def test_an_unknown_chip_still_gets_rows_and_every_one_says_that_the_chip_differs(chip: str | None) -> None:
    found = near(chip=chip)
    assert len(found) == 3
    for match in found:
        assert parse_chip(match.row.chip).short in differing(match)["chip"]


def test_rows_in_another_unit_are_never_offered() -> None:
    assert near("infer/resnet50_v1.5", unit="ms")
    assert {match.row.unit for match in near("infer/resnet50_v1.5", unit="ms", limit=1000)} == {"ms"}


@pytest.mark.parametrize("workload", ["train/gpt2", "train/lenet", "serve/resnet50", ""])
def test_a_workload_that_nobody_published_has_no_rows(workload: str) -> None:
    assert near(workload) == []


def test_a_unit_may_be_spelled_as_the_classic_does() -> None:
    assert near(unit="images/sec") == near(unit="images/s")


def test_no_more_rows_than_asked_for() -> None:
    assert [len(near("train/resnet50", limit=limit)) for limit in (0, 1, 2, 5)] == [0, 1, 2, 5]
