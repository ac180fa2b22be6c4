"""Prints the table of docs/operators.md: DeepBench's training GEMMs on one GPU in several precisions, next to published times.

stackmark show EXPERIMENT --json > bf16.json          # the same for each precision
python scripts/write_gemm_table.py bf16.json tf32.json fp32.json
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

from stackmark.workloads.op.definition import say_problem

# Published columns: chip and precision, taken from the experiment that has it nearest.
PUBLISHED = (("NVIDIA P100", "fp32"), ("NVIDIA V100", "fp32"), ("NVIDIA V100", "fp16"))


def table(measured: Sequence[dict[str, Any]]) -> str:
    """Markdown; each of `measured` is what `stackmark show EXPERIMENT --json` printed, all of the same list."""
    lists = [one["rows"] for one in measured]
    precisions = [rows[0]["precision"] for rows in lists]
    heads = ["#", "problem"]
    heads += [head for precision in precisions for head in (f"{precision}, µs", "TFLOP/s")]
    heads += [f"{chip.removeprefix('NVIDIA ')} {precision}, µs" for chip, precision in PUBLISHED]
    lines = [f"| {' | '.join(heads)} |", "|---|---|" + "---:|" * (len(heads) - 2)]
    for same in zip(*lists, strict=True):
        cells = [str(same[0]["index"]), say_problem(same[0]["op"], same[0]["shape"])]
        for row in same:
            half_width = (row["high_s"] - row["low_s"]) / 2 / row["seconds"]
            cells += [f"{three(row['seconds'] * 1e6)} ± {100 * half_width:.1f} %", three(row["tflop_per_s"])]
        for wanted in PUBLISHED:
            cells.append(next((three(one["seconds"] * 1e6) for row in same for one in row["published"]
                               if (one["chip"], one["precision"]) == wanted), ""))  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def three(value: float) -> str:
    """Three digits, never in powers of ten."""
    return f"{value:,.{max(0, 2 - len(str(int(value))) + 1)}f}"


if __name__ == "__main__":
    print(table([json.load(open(path, encoding="utf-8")) for path in sys.argv[1:]]))  # noqa: SIM115
