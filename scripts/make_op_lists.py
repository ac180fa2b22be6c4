"""Makes DeepBench's lists of problems, as the package ships them, from a folder of reference data.

    python scripts/make_op_lists.py REFERENCE_DIR [--output FOLDER]

Reads `deepbench/{gemm,conv,rnn,sparse_gemm,allreduce}.csv` there (DeepBench's header files, the application of each problem
joined from its spreadsheets) and writes one list an operator, in our names for its sizes, and SOURCES.md beside them. The
same input gives the same bytes. Sizes are as the header files have them, with their typing errors: a list that was silently
put right is no longer the one that others measured.
"""

import argparse
import csv
import io
import sys
from collections.abc import Mapping
from pathlib import Path

from stackmark.errors import SpecError
from stackmark.workloads.op.definition import read_problem
from stackmark.workloads.op.operators import OPERATORS

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "stackmark" / "workloads" / "op" / "data"
Cells = Mapping[str, str]

# Operator: the reference's file, and its name for each of our sizes where that is another. `pass` is no size of a list: how
# often a shape is gone through is decided where the list is read.
FILES: dict[str, tuple[str, Mapping[str, str]]] = {
    "gemm": ("gemm.csv", {}),
    "conv": (
        "conv.csv",
        {"filter_w": "filter_w_s", "filter_h": "filter_h_r", "stride_w": "wstride", "stride_h": "hstride"},
    ),
    "rnn": ("rnn.csv", {"cell": "cell_type", "hidden": "hidden_units", "batch": "batch_size"}),
    "sparse-gemm": ("sparse_gemm.csv", {}),
    "all-reduce": ("allreduce.csv", {"floats": "size_floats"}),
}
NOT_LISTED = ("pass", "ranks")
HEADERS = {
    "gemm": "gemm_problems.h", "conv": "conv_problems.h", "rnn": "rnn_problems.h",
    "sparse-gemm": "sparse_gemm_problems.h", "all-reduce": "all_reduce_problems.h",
}  # fmt: skip
# One application has several spellings in the spreadsheets.
APPLICATIONS = {"Deep Speech": "DeepSpeech"}
# The spreadsheets' size of that all-reduce; the header has one float more.
SHEETS_FLOATS = {"16777217": "16777216"}

SOURCES = """\
# Where these lists come from

DeepBench (Baidu Research, Apache-2.0), commit da81ba7 of 2020-08-11, the header files in `code/kernels/`:

| file | header | problems |
|---|---|---|
{table}

Order and sizes are the headers', typing errors included. `application` is from DeepBench's own spreadsheets of kernels, and is
empty where these have another size or say nothing. Made by `python scripts/make_op_lists.py REFERENCE_DIR`.

## Where DeepBench contradicts itself

- gemm: the products with M = 512 or 1024, N = 24000, 48000, 1500, 3000 or 6000 have K = 1536 in the header and in AMD's sheets,
  and K = 1530 in the sheets of NVIDIA and Intel. The sheet of the TITAN X (Maxwell) has N = 6574, 10376 and 8935 where the list
  has 7133 with B transposed.
- sparse-gemm: M = 7860 in eight of the 24 problems for servers is a typing error for 7680, which the sheets have.
- all-reduce: 16777217 floats in the header, 16777216 in the sheets.
- conv: the order of filter and padding columns (R and S, width and height) differs between files; here it is the header's.
  Nine problems stand in a list twice (7×7×512 to 512 by 3×3, 14×14×256 to 1024 by 1×1), as they do in the header.
- conv, backward by inputs of first layers (one or three channels, ten training problems): nothing lies before them that would
  need it, and the sheets of M40, T4, TITAN X (both), V100 and Xeon Phi print `N/A*` there. Those of GTX 1080 Ti, P100, TITAN Xp
  and AMD's two time it all the same. Our list leaves it out.
"""


def made(op: str, reference: Path) -> list[list[str]]:
    """The header and the rows of a list; each row is read once as a problem, so that none can ship that is refused later."""
    name, theirs = FILES[op]
    sizes = [size for size in OPERATORS[op].fields if size not in NOT_LISTED]
    applications = all_reduce_applications(reference) if op == "all-reduce" else {}
    rows = [["set", *sizes, "application"]]
    with (reference / "deepbench" / name).open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        for cells in reader:
            try:
                shape = {size: cells[theirs.get(size, size)] for size in sizes}
                read_problem(op, shape)
                application = cells.get("application", applications.get(shape.get("floats", ""), "")).strip()
            except (KeyError, SpecError) as error:
                raise SystemExit(f"{name}, line {reader.line_num}: {error}") from error
            rows.append([cells.get("set", "training"), *shape.values(), APPLICATIONS.get(application, application)])
    return rows


def all_reduce_applications(reference: Path) -> dict[str, str]:
    """By the list's number of floats; the spreadsheet has only the smaller ones."""
    with (reference / "deepbench" / "allreduce_ranks_xlsx.csv").open(encoding="utf-8", newline="") as file:
        known = {cells["size_floats"]: cells["application"] for cells in csv.DictReader(file, strict=True)}
    return known | {ours: known[theirs] for ours, theirs in SHEETS_FLOATS.items() if theirs in known}


def as_csv(rows: list[list[str]]) -> str:
    out = io.StringIO(newline="")
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def say_sources(lists: Mapping[str, list[list[str]]]) -> str:
    lines = []
    for op, (_header, *rows) in lists.items():
        sets = list(dict.fromkeys(row[0] for row in rows))
        counts = ", ".join(f"{sum(row[0] == name for row in rows)} {name}" for name in sets)
        lines.append(f"| `{op}.csv` | `{HEADERS[op]}` | {counts} |")
    return SOURCES.format(table="\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes DeepBench's lists of problems, as the package ships them.")
    parser.add_argument("reference", type=Path, help="the folder that holds deepbench/gemm.csv and the other lists")
    parser.add_argument("--output", type=Path, default=PACKAGE, help="the folder to write to (default: the package)")
    chosen = parser.parse_args()
    try:
        lists = {op: made(op, chosen.reference) for op in FILES}
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SystemExit(f"{chosen.reference}: {error}") from error
    chosen.output.mkdir(parents=True, exist_ok=True)
    for op, rows in lists.items():
        (chosen.output / f"{op}.csv").write_text(as_csv(rows), encoding="utf-8", newline="")
        print(f"{len(rows) - 1} problems in {op}.csv", file=sys.stderr)
    (chosen.output / "SOURCES.md").write_text(say_sources(lists), encoding="utf-8", newline="")


if __name__ == "__main__":
    main()
