"""The script that makes the shipped tables: what it writes, what it leaves out, and that it stops at what it cannot read."""

import csv
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stackmark.published.table import NAME, OPERATORS_NAME, Published, load_operators, parse
from the_reference import reference_data

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "src" / "stackmark" / "published" / "data"
SCRIPT = ROOT / "scripts" / "make_published.py"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "src")}
V15 = "train/resnet50_v1.5"


def run_script(reference: Path, output: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), str(reference), "--output", str(output)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


COLLECTED = "source,url_or_repo_path,date,model,task,precision,batch,accelerator,count,metric,value,unit"
CLASSIC = "system,gpu,data,model,batch_per_gpu,gpus,images_per_sec,source"
FIELD = "source,date,model,task,framework,precision,batch,accelerator,count,place,metric,value,unit,note"
LAMBDA = "Lambda deeplearning-benchmark v2,x@1:a.csv,2025-12-10,resnet50,training;NVIDIA,fp16,,NVIDIA H200 140GB SXM,1"


V06 = (
    "id,id_basis,division,category,submitter,system_dir,system,accelerator,accelerator_count,software,resnet_min,ssd_min,"
    "maskrcnn_min,gnmt_min,transformer_min,minigo_min,runs,note"
)
V06_RUNS = "submitter,system_dir,benchmark,run,seconds,init_seconds,final_quality,evals,status,global_batch_size"
V51 = (
    "division,availability,submitter,system,number_of_nodes,host_processor_model_name,host_processors_count,"
    "accelerator_model_name,accelerators_count,framework,notes,private_id,llama31_8b,dlrm_dcnv2,retinanet,flux1,"
    "llama2_70b_lora,rgat,llama31_405b,details_url,code_url"
)
V05 = "division,submitter,system,benchmark,scenario,metric,runs,value,valid"
SHEET = "source_file,platform,set,sheet,precision,application"
DEEPBENCH = {
    "specs": "source_file,platform,key,value",
    "gemm": f"{SHEET},m,n,k,a_transpose,b_transpose,time_ms,flops,flops_unit,padded",
    "conv": f"{SHEET},w,h,c,n,k,filter_w_s,filter_h_r,pad_w,pad_h,wstride,hstride,fwd_ms,bwd_inputs_ms,bwd_params_ms,total_ms,"
    "fwd_tflops,bwd_inputs_tflops,bwd_params_tflops,fwd_algo,padded",
    "rnn": f"{SHEET},cell_type,hidden_units,batch_size,timesteps,fwd_ms,bwd_inputs_ms,bwd_weights_ms,bwd_ms_combined,"
    "total_ms_as_published,fwd_tflops",
    "sparse_gemm": f"{SHEET},m,n,k,a_transpose,b_transpose,sparsity,sparse_time_ms,dense_time_ms,sparse_flops,speedup_vs_dense",
    "allreduce": f"{SHEET},size_floats,num_ranks,mean_time_ms,gbytes_per_s,algorithm,stddev_ms",
}


def reference_folder(
    folder: Path,
    collected: list[str],
    classic: list[str],
    v05: tuple[str, ...] = (),
    deepbench: dict[str, list[str]] | None = None,
) -> Path:
    tables = {
        "published/all.csv": [COLLECTED, *collected],
        "tf_published.csv": [CLASSIC, *classic],
        "field_reports.csv": [FIELD],
        "mlperf/mlperf_training_v0.6.csv": [V06],
        "mlperf/mlperf_training_v0.6_runs.csv": [V06_RUNS],
        "mlperf/mlperf_training_v5.1.csv": [V51],
        "mlperf/mlperf_inference_v0.5.csv": [V05, *v05],
    }
    for name, header in DEEPBENCH.items():
        tables[f"deepbench/published_{name}.csv"] = [header, *(deepbench or {}).get(name, [])]
    for name, lines in tables.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def made(folder: Path, name: str) -> tuple[Published, ...]:
    return parse((folder / name).read_text(encoding="utf-8"), name)


def test_the_script_writes_a_table_that_loads_and_says_what_it_left_out(tmp_path: Path) -> None:
    collected = [f"{LAMBDA},throughput,3079.0,img/s", f"{LAMBDA},CV over 39 rows (hosts),0.07,%"]
    without_value = "closed,Google,tpu-v3.8x1,resnet,offline,,1,,VALID"
    classic = ["NVIDIA DGX-1,Tesla P100,real,alexnet,512,8,N/A,a"]
    reference = reference_folder(tmp_path / "in", collected, classic, (without_value,))
    done = run_script(reference, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    (row,) = made(tmp_path / "out", NAME)
    assert made(tmp_path / "out", OPERATORS_NAME) == ()
    assert (row.workload, row.chip, row.value, row.unit) == (V15, "NVIDIA H200", 3079, "images/s")
    for file in ("published/all.csv", "mlperf/mlperf_inference_v0.5.csv", "tf_published.csv"):
        assert f"1: {file}" in done.stderr


def test_eight_devices_that_do_more_than_eight_times_the_work_do_not_ship(tmp_path: Path) -> None:
    eight = LAMBDA.removesuffix(",1") + ",8"
    rows = [f"{LAMBDA},throughput,3079.0,img/s", f"{eight},throughput,60000.0,img/s"]
    done = run_script(reference_folder(tmp_path / "in", rows, []), tmp_path / "out")
    assert "left out 1:" in done.stderr
    assert [row.count for row in made(tmp_path / "out", NAME)] == [1]


@pytest.mark.parametrize(
    "broken",
    [
        LAMBDA.replace("NVIDIA H200 140GB SXM", "Quantum Brick") + ",throughput,3079.0,img/s",
        LAMBDA.replace("fp16", "half") + ",throughput,3079.0,img/s",
        LAMBDA.replace("resnet50", "tacotron2") + ",throughput,3079.0,img/s",
        LAMBDA.replace("Lambda", "Somebody's") + ",throughput,3079.0,img/s",
        LAMBDA + ",speed-up,2.18,x",
        LAMBDA + ",throughput,fast,img/s",
        LAMBDA + ",throughput",
    ],
)
def test_a_row_that_cannot_be_normalised_stops_the_script_with_its_line(broken: str, tmp_path: Path) -> None:
    reference = reference_folder(tmp_path / "in", [f"{LAMBDA},throughput,3079.0,img/s", broken], [])
    done = run_script(reference, tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith("published/all.csv, line 3: ")
    assert not (tmp_path / "out").exists()


V100_HALF = 'results/train/DeepBench_NV_V100.xlsx,NV_V100,training,Half,"16 bit inputs, 16 bit multiplication, 32 bit addition",'


def test_a_line_of_deepbench_becomes_a_row_for_each_of_its_times(tmp_path: Path) -> None:
    conv = [
        f"{V100_HALF},224,224,3,16,64,7,7,3,3,2,2,0.5,N/A*,0.25,0.75,1,N/A*,1,IMPLICIT_PRECOMP_GEMM,",
        f"{V100_HALF},7,7,512,16,512,3,3,1,1,1,1,0.1,0.2,0.3,0.5,1,1,1,,",
        f"{V100_HALF},7,7,512,16,512,3,3,1,1,1,1,0.1,0.2,0.3,0.5,1,1,1,,",
    ]
    specs = [
        "results/train/DeepBench_NV_V100.xlsx,NV_V100,CUDA Version,10.1",
        "results/train/DeepBench_NV_V100.xlsx,NV_V100,Cudnn Version,-",
    ]
    reference = reference_folder(tmp_path / "in", [], [], deepbench={"conv": conv, "specs": specs})
    done = run_script(reference, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    first, second, *others = made(tmp_path / "out", OPERATORS_NAME)
    assert [(row.extra["pass"], row.value) for row in (first, second)] == [("forward", 0.5), ("backward-weights", 0.25)]
    assert [row.value for row in others] == [0.1, 0.2, 0.3] * 2
    assert (first.precision, first.chip) == ("fp16", "NVIDIA V100")
    assert "CUDA 10.1" in first.framework
    assert "zero" in first.note
    assert "padded" in first.note
    assert "padded" not in others[0].note


@pytest.mark.parametrize("broken", ["224,224,3,16,64,7,7,3,3,2,2,fast,,,,,,,,", "224,224,3,16,64,7,7,3,3,2,2,0.5"])
def test_a_line_of_deepbench_that_cannot_be_read_stops_the_script_with_its_line(broken: str, tmp_path: Path) -> None:
    reference = reference_folder(tmp_path / "in", [], [], deepbench={"conv": [f"{V100_HALF},{broken}"]})
    done = run_script(reference, tmp_path / "out")
    assert done.returncode == 1
    assert "deepbench/published_conv.csv, line 2:" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_script_makes_the_shipped_tables_byte_for_byte(tmp_path: Path) -> None:
    done = run_script(reference_data(), tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for name in (NAME, OPERATORS_NAME):
        assert (tmp_path / "out" / name).read_bytes() == (DATA / name).read_bytes()


def test_the_rates_that_were_left_out_are_those_of_the_times_that_ship() -> None:
    """71 of DeepBench's GEMMs stand in another file as TFLOP/s: the full table gives the same, so none is lost."""
    about = ("multiply_bits", "m", "n", "k", "a_t", "b_t")
    times = {
        (row.system, row.precision, *(row.extra.get(name) for name in about)): row
        for row in load_operators()
        if row.workload == "op/gemm" and row.extra["set"] == "training"
    }
    compared = 0
    with (reference_data() / "published" / "all.csv").open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file):
            if cells["source"] != "Baidu DeepBench":
                continue
            _, m, n, k, letters = cells["model"].split()
            sizes = [int(text[2:]) for text in (m, n, k)]
            bits = re.search(r"(\d+) bit multiplication", cells["precision"])
            precision = "fp16" if bits else "fp32"
            row = times[
                cells["accelerator"],
                precision,
                int(bits[1]) if bits else None,
                *sizes,
                letters[0] == "T",
                letters[1] == "T",
            ]
            assert 2 * math.prod(sizes) / (row.value * 1e-3) / 1e12 == pytest.approx(float(cells["value"]), abs=6e-4)
            assert row.date == cells["date"]
            compared += 1
    assert compared == 71
