"""Describes the systems of published numbers, for make_published.py: which stack a number was measured with.

MLPerf's logs carry a description of the whole system in `submission_entry`; DeepBench's spreadsheets have a sheet of it. Other
sources in the reference describe no system beyond the columns of their rows.
"""

import csv
from pathlib import Path

from published_deepbench import COMMIT

from stackmark.ledger.importers.mlperf_training import training_logs
from stackmark.ledger.importers.reading import opened
from stackmark.published.stack import FIELDS

V06 = "mlcommons/training_results_v0.6"
V06_COMMIT = "f312518c"
# The benchmark whose logs are in the reference, and its folder in the submission. One description holds for a folder.
V06_FOLDERS = {"resnet": "dgx1_ngc19.05_mxnet", "ssd": "dgx1_ngc19.05_pytorch", "minigo": "dgx1_ngc19.05_tensorflow"}
SHEET_KEYS = {
    "Nvidia Driver": "driver", "CUDA Version": "cuda", "ROCm Version": "cuda", "Cudnn Version": "cudnn",
    "Linux Kernel Version": "os",
}  # fmt: skip


def described_systems(reference: Path) -> list[list[str]]:
    """Return the cells of every described system, in the order of the table's columns."""
    return [*_mlperf(reference / "mlperf" / "logs_v0.6"), *_deepbench(reference / "deepbench" / "published_specs.csv")]


def _mlperf(logs: Path) -> list[list[str]]:
    found = []
    for benchmark, folder in V06_FOLDERS.items():
        path = logs / benchmark / "result_0.txt"
        if not path.is_file():
            continue
        with opened(str(path)) as log:
            (run,) = training_logs(log.lines())
        place = f"NVIDIA/results/{folder}"
        where = {"rows_at": f"{V06}:{place}/", "at": f"{V06}@{V06_COMMIT}:{place}/{benchmark}/result_0.txt"}
        found.append(_cells({**dict(run.stack), "framework": run.framework or "", **where}))
    return found


def _deepbench(sheet: Path) -> list[list[str]]:
    described: dict[str, dict[str, str]] = {}
    with sheet.open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file, strict=True):
            name = SHEET_KEYS.get(line["key"])
            system = described.setdefault(line["source_file"], {})
            if name and line["value"].strip() not in ("", "-"):
                prefix = {"ROCm Version": "ROCm ", "Linux Kernel Version": "Linux "}.get(line["key"], "")
                system[name] = prefix + line["value"].strip()
    return [
        _cells({**system, "rows_at": f"{COMMIT}:{file}[", "at": f"{COMMIT}:{file}"})
        for file, system in described.items()
        if system
    ]


def _cells(system: dict[str, str]) -> list[str]:
    return [system.get(name, "") for name in FIELDS]
