"""How DeepBench's published timings become rows, used by make_published.py.

A line of the reference is a problem of one sheet of one file; it becomes a row for each time that the sheet prints. What the
sheets compute from the times is left behind: their totals are wrong in 38 rows of recurrent layers and omit a pass in seven of
convolutions, and their "Gigabytes/sec" of an all-reduce is bytes times ranks over time, which is no bandwidth of anything. The
dense time beside a sparse product stands in `extra` and is no row of its own: its matrix has the same zeros, 90 or 95 % of it.

What is known to be wrong with a number stands in its note, as parts that a semicolon ends; the last part is the precision in
the sheet's own words.
"""

import csv
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from published_rows import Cells, Row, chip_of, precision_of, whole

from stackmark.published.operators import PRINTED_AS

SOURCE, COMMIT = "Baidu DeepBench", "baidu-research/DeepBench@da81ba7"
# Devices that are called by what the chip is built into, and one whose name is written together.
CHIPS = {"Raspberry_Pi_3": "ARM Cortex-A53", "iPhone_6": "Apple A8", "iPhone_7": "Apple A10"} | {
    "NV_TitanXp": "NVIDIA TITAN Xp"
}
# The day a file was last changed in DeepBench's repository, as far as the reference has it. T4's sheets for inference came with
# those for training. The sheet of the TITAN Xp was changed together with TITAN X's; the sheets for inference were published on
# 2017-06-28 and corrected later, it is not known when.
DATES = {
    "results/inference/DeepBench_NV_T4.xlsx": "2019-10-07",
    "results/train/DeepBench_AMD_MI25.xlsx": "2018-04-04",
    "results/train/DeepBench_AMD_VegaFE.xlsx": "2018-04-04",
    "results/train/DeepBench_IA_KNL7250.xlsx": "2017-12-07",
    "results/train/DeepBench_NV_1080Ti.xlsx": "2018-05-21",
    "results/train/DeepBench_NV_M40.xlsx": "2018-05-21",
    "results/train/DeepBench_NV_P100.xlsx": "2018-05-21",
    "results/train/DeepBench_NV_T4.xlsx": "2019-10-07",
    "results/train/DeepBench_NV_TitanX.xlsx": "2018-05-21",
    "results/train/DeepBench_NV_TitanX_Pascal.xlsx": "2018-05-23",
    "results/train/DeepBench_NV_TitanXp.xlsx": "2018-05",
    "results/train/DeepBench_NV_V100.xlsx": "2019-10-07",
}
INFERENCE_PUBLISHED = "2017-06"
# What a sheet says of each kind of operator, parted by a semicolon.
SERVER_INT8, SERVER_SINGLE = "GEMM, Conv: Int8 multiplication, 32 bit accumulation", "Sparse Ops, RNN: single precision"
DEVICE_INT8 = "Int8 inputs 32 bit math"
# Which of a file's versions belong to an operator: its library first.
LIBRARIES: dict[str, tuple[tuple[str, str], ...]] = {
    "gemm": (("CUDA Version", "CUDA"), ("ROCm Version", "ROCm"), ("Intel MKL Version", ""), ("Gemmlowp version", "gemmlowp")),
    "conv": (
        ("CUDA Version", "CUDA"), ("Cudnn Version", "cuDNN"), ("ROCm Version", "ROCm"), ("MIOpen Version", "MIOpen"),
        ("Intel MKL Version", ""), ("LIBXSMM Version", "LIBXSMM"), ("ARM Compute Lib version", "ARM Compute Library"),
    ),
    "rnn": (
        ("CUDA Version", "CUDA"), ("Cudnn Version", "cuDNN"), ("ROCm Version", "ROCm"), ("MIOpen Version", "MIOpen"),
    ),
    "sparse-gemm": (("CUDA Version", "CUDA"), ("Eigen Version", "Eigen")),
    "all-reduce": (("CUDA Version", "CUDA"), ("OpenMPI Version", "Open MPI"), ("Intel MPI Version", "Intel MPI")),
}  # fmt: skip
NOT_STATED = {"", "-"}
UNVERSIONED = "Latest code from github"

ZEROS = "nearly all operands were zero, which is up to 15 % faster on a V100 (DeepBench issue 104)"
HALF_SUMS = "the sheet says 32-bit sums, DeepBench's code asked for 16-bit ones"
PADDED = "sizes were padded to what the library takes"
SINGLE = "the sheet says Int8, but its library did convolutions in single precision"
BEST_OF_SEVERAL = "the shortest of several implementations"
# DeepBench's programs for GPUs cut to whole microseconds; below this the cut may be more than a tenth.
FEW_MICROSECONDS, CUT = 10, ("NV_", "AMD_")
FEW = "cut to whole microseconds, so up to {percent:.0f} % too short"
K_1530 = "K = 1530 in the sheet, 1536 in DeepBench's list"
M_7680 = "M = 7680 in the sheet, 7860 in DeepBench's list"
FLOATS = "16777216 floats in the sheet, 16777217 in DeepBench's list"


# --- what all rows of a line have ---------------------------------------------------------------------------------------


def common(op: str, cells: Cells, reference: Path) -> tuple[Row, dict[str, object], list[str]]:
    """The row without its number, what goes into its `extra`, and what is known to be wrong with it."""
    file, platform = cells["source_file"], cells["platform"]
    chip = CHIPS.get(platform) or chip_of(platform)[0]
    precision, extra = read_precision(op, printed_precision(op, cells))
    caveats = list(defects(op, precision, extra, cells))
    row: Row = {
        "workload": f"op/{op}", "task": "operator", "chip": chip, "system": platform, "count": 1,
        "framework": framework(op, file, reference), "precision": precision, "unit": "ms", "data": "synthetic",
        "date": DATES.get(file, INFERENCE_PUBLISHED), "source": SOURCE,
        "at": f"{COMMIT}:{file}[{cells['sheet']}]",
    }  # fmt: skip
    return row, extra | {"set": cells["set"]}, caveats


def printed_precision(op: str, cells: Cells) -> str:
    """The sheet's own words, as far as they are about this operator."""
    if cells["precision"] == f"{SERVER_INT8}; {SERVER_SINGLE}":
        return SERVER_INT8 if op in {"gemm", "conv"} else SERVER_SINGLE
    return cells["precision"]


def read_precision(op: str, printed: str) -> tuple[str, dict[str, object]]:
    if printed in {SERVER_INT8, SERVER_SINGLE}:
        return ("int8" if printed == SERVER_INT8 else "fp32"), {}
    if printed == DEVICE_INT8:
        return ("fp32" if op == "conv" else "int8"), {}
    return precision_of(printed)


def defects(op: str, precision: str, bits: Mapping[str, object], cells: Cells) -> Iterator[str]:
    nvidia = cells["platform"].startswith("NV_")
    if nvidia and precision in {"fp16", "int8"}:
        yield ZEROS
    if op == "gemm" and bits.get("multiply_bits") == 16:
        yield HALF_SUMS
    # Tensor cores take channels by eight; the sheets for inference say themselves which sizes were padded.
    tensor_cores = op == "conv" and bits.get("multiply_bits") == 16 and (int(cells["c"]) % 8 or int(cells["k"]) % 8)
    if tensor_cores or cells.get("padded") == "1":
        yield PADDED
    if op == "conv" and cells["precision"] == DEVICE_INT8:
        yield SINGLE


@cache
def specs(reference: Path) -> dict[str, dict[str, str]]:
    """What each file says of the machine it is of."""
    found: dict[str, dict[str, str]] = {}
    with (reference / "deepbench" / "published_specs.csv").open(encoding="utf-8", newline="") as file:
        for cells in csv.DictReader(file, strict=True):
            found.setdefault(cells["source_file"], {})[cells["key"].strip()] = cells["value"].strip()
    return found


def framework(op: str, file: str, reference: Path) -> str:
    """`DeepBench (CUDA 8.0.88, cuDNN 6.0.21)`."""
    stated = specs(reference).get(file, {})
    named = []
    for key, name in LIBRARIES[op]:
        version = stated.get(key, "")
        if version not in NOT_STATED:
            named.append(name if version.startswith(UNVERSIONED) else f"{name} {version}".strip())
    return f"DeepBench ({', '.join(named)})" if named else "DeepBench"


def finished(row: Row, what: str, extra: Mapping[str, object], value: float, caveats: list[str], cells: Cells) -> Row:
    """One number's row."""
    microseconds = round(value * 1000)
    if microseconds < FEW_MICROSECONDS and str(row["system"]).startswith(CUT):
        caveats = [*caveats, FEW.format(percent=100 / (microseconds + 1))]
    printed = printed_precision(str(row["workload"]).removeprefix("op/"), cells)
    note = "; ".join([*caveats, f"{PRINTED_AS}{printed}"])
    return row | {"model": what, "value": value, "note": note, "extra": dict(extra)}


# --- one line of each file ----------------------------------------------------------------------------------------------


class Timings:
    """The five readers. They count the lines of each sheet, so a new object is needed to read the files again."""

    def __init__(self) -> None:
        self._lines: Counter[str] = Counter()

    def _begin(self, op: str, cells: Cells, reference: Path) -> tuple[Row, dict[str, object], list[str]]:
        """A line's number among those of its sheet and operator is part of where it stands: a shape may stand there twice."""
        row, extra, caveats = common(op, cells, reference)
        place = f"{row['at']} {op}"
        self._lines[place] += 1
        row["at"] = f"{place} {self._lines[place]}"
        return row, extra, caveats

    def gemm(self, cells: Cells, reference: Path) -> list[Row]:
        row, extra, caveats = self._begin("gemm", cells, reference)
        m, n, k = (whole(cells[name]) for name in ("m", "n", "k"))
        letters = cells["a_transpose"] + cells["b_transpose"]
        extra |= {"m": m, "n": n, "k": k, "a_t": letters[0] == "T", "b_t": letters[1] == "T"}
        if k == 1530:
            caveats.insert(0, K_1530)
        what = f"GEMM M={m} N={n} K={k} {letters}"
        return [finished(row, what, extra, float(cells["time_ms"]), caveats, cells)]

    def conv(self, cells: Cells, reference: Path) -> list[Row]:
        row, extra, caveats = self._begin("conv", cells, reference)
        sizes = {ours: int(cells[theirs]) for ours, theirs in CONV_SIZES.items()}
        w, h, c, n, k, filter_w, filter_h, pad_w, pad_h, stride_w, stride_h = sizes.values()
        what = f"conv {w}×{h}×{c} N={n} K={k} {filter_w}×{filter_h} "
        what += f"stride {pair(stride_w, stride_h)} pad {pair(pad_w, pad_h)}"
        rows = []
        for name, cell in (
            ("forward", "fwd_ms"),
            ("backward-inputs", "bwd_inputs_ms"),
            ("backward-weights", "bwd_params_ms"),
        ):
            if cells[cell] in {"", "N/A*"}:
                continue
            more = {"algorithm": cells["fwd_algo"]} if name == "forward" and cells["fwd_algo"] else {}
            full = {**extra, **sizes, "pass": name, **more}
            rows.append(finished(row, f"{what}, {name}", full, float(cells[cell]), caveats, cells))
        return rows

    def rnn(self, cells: Cells, reference: Path) -> list[Row]:
        row, extra, caveats = self._begin("rnn", cells, reference)
        sizes: dict[str, object] = {
            "cell": cells["cell_type"], "hidden": whole(cells["hidden_units"]), "batch": whole(cells["batch_size"]),
            "timesteps": whole(cells["timesteps"]),
        }  # fmt: skip
        what = f"{sizes['cell']} of {sizes['hidden']}, batch {sizes['batch']}, {sizes['timesteps']} steps"
        passes = (
            ("forward", "fwd_ms"), ("backward-inputs", "bwd_inputs_ms"), ("backward-weights", "bwd_weights_ms"),
            ("backward", "bwd_ms_combined"),
        )  # fmt: skip
        return [
            finished(row, f"{what}, {name}", {**extra, **sizes, "pass": name}, float(cells[cell]), caveats, cells)
            for name, cell in passes if cells[cell]
        ]  # fmt: skip

    def sparse_gemm(self, cells: Cells, reference: Path) -> list[Row]:
        row, extra, caveats = self._begin("sparse-gemm", cells, reference)
        m, n, k = (whole(cells[name]) for name in ("m", "n", "k"))
        letters, sparsity = cells["a_transpose"] + cells["b_transpose"], float(cells["sparsity"])
        extra |= {"m": m, "n": n, "k": k, "a_t": letters[0] == "T", "b_t": letters[1] == "T", "sparsity": sparsity}
        extra["dense_ms"] = float(cells["dense_time_ms"])
        if m == 7680 and n in {2, 4, 3000, 6000}:
            caveats.insert(0, M_7680)
        what = f"sparse GEMM M={m} N={n} K={k} {letters}, {sparsity * 100:g} % zeros"
        return [finished(row, what, extra, float(cells["sparse_time_ms"]), caveats, cells)]

    def all_reduce(self, cells: Cells, reference: Path) -> list[Row]:
        row, extra, caveats = self._begin("all-reduce", cells, reference)
        floats, ranks = whole(cells["size_floats"]), whole(cells["num_ranks"])
        extra |= {"floats": floats, "ranks": ranks, "algorithm": cells["algorithm"]}
        if spread := float(cells["stddev_ms"]):
            extra["stddev_ms"] = spread
        if floats == 16777216:
            caveats.insert(0, FLOATS)
        if cells["platform"].startswith("NV_"):
            caveats.append(BEST_OF_SEVERAL)
        row["count"] = ranks
        row["framework"] = str(row["framework"]).replace("(", f"({cells['algorithm']}, ", 1)
        what = f"all-reduce of {floats} floats, {ranks} ranks"
        return [finished(row, what, extra, float(cells["mean_time_ms"]), caveats, cells)]


CONV_SIZES = {
    "w": "w", "h": "h", "c": "c", "n": "n", "k": "k", "filter_w": "filter_w_s", "filter_h": "filter_h_r",
    "pad_w": "pad_w", "pad_h": "pad_h", "stride_w": "wstride", "stride_h": "hstride",
}  # fmt: skip


def pair(one: int, other: int) -> str:
    return f"{one}" if one == other else f"{one}×{other}"
