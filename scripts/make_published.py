"""Makes the shipped tables of published results from a folder of reference data.

    python scripts/make_published.py REFERENCE_DIR [--output FOLDER]

Reads `published/all.csv`, `tf_published.csv`, `field_reports.csv` and MLPerf's three tables there, in this order, and writes
one long table, one row a number, into the package; and a second of the same columns from DeepBench's timings of single
operators (`deepbench/`), which is apart because the first is read at the end of every run. The same input gives the same
bytes. How a source spells its rows is in published_rows.py, published_mlperf.py and published_deepbench.py. A third, small
table describes the systems that numbers were measured on, where a source describes them (published_systems.py).

Left out are, by name and counted: cells printed as N/A, results whose value is not in the reference, counts that describe a
model and not a run, quantities that somebody derived from others (speed-ups, coefficients of variation, ratios: sources
contradict their own columns there), the second copy of a result that two files hold, and what would be refused from a user
as well: n devices that do more than n times the work of one.
"""

import argparse
import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from published_deepbench import Timings
from published_mlperf import inference_rows, scored_rows, training_rows
from published_rows import Cells, LeftOut, Row, classic_row, collected_row, field_row
from published_systems import described_systems

from stackmark.errors import LedgerError
from stackmark.published.checks import too_fast
from stackmark.published.stack import FIELDS as SYSTEM_FIELDS
from stackmark.published.stack import SYSTEMS_NAME, parse_systems
from stackmark.published.table import FIELDS, NAME, OPERATORS_NAME, parse, row_of

SHIPPED = Path(__file__).resolve().parent.parent / "src" / "stackmark" / "published" / "data"
# What a line of a reference file becomes: in MLPerf's tables each line holds a number for each of several benchmarks.
Read = Callable[[Cells, Path], list[Row]]


def one(read: Callable[[Cells], Row]) -> Read:
    return lambda cells, _reference: [read(cells)]


def tables() -> dict[str, tuple[tuple[str, Read], ...]]:
    """Each table's name and the files that it is made from."""
    timings = Timings()
    return {
        NAME: (
            ("published/all.csv", one(collected_row)),
            ("tf_published.csv", one(classic_row)),
            ("field_reports.csv", one(field_row)),
            ("mlperf/mlperf_training_v0.6.csv", training_rows),
            ("mlperf/mlperf_training_v5.1.csv", scored_rows),
            ("mlperf/mlperf_inference_v0.5.csv", inference_rows),
        ),
        OPERATORS_NAME: (
            ("deepbench/published_gemm.csv", timings.gemm),
            ("deepbench/published_conv.csv", timings.conv),
            ("deepbench/published_rnn.csv", timings.rnn),
            ("deepbench/published_sparse_gemm.csv", timings.sparse_gemm),
            ("deepbench/published_allreduce.csv", timings.all_reduce),
        ),
    }


def make(reference: Path, from_files: tuple[tuple[str, Read], ...]) -> tuple[list[list[str]], Counter[str]]:
    """The cells of all rows, and how many rows were left out by which rule."""
    table: list[list[str]] = []
    left_out: Counter[str] = Counter()
    for name, read in from_files:
        with (reference / name).open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for cells in reader:
                try:
                    if None in cells or None in cells.values():
                        raise ValueError("more or fewer cells than the header")
                    made = [written(row) for row in read(cells, reference)]
                    for row in made:
                        row_of(row)  # checks it
                    table += made
                except LeftOut as rule:
                    left_out[f"{name}: {rule}"] += 1
                except (ValueError, KeyError, TypeError, IndexError) as error:
                    raise SystemExit(f"{name}, line {reader.line_num}: {type(error).__name__}: {error}") from error
    impossible = {finding.line for finding in too_fast([row_of(cells) for cells in table], lines=range(len(table)))}
    if impossible:
        left_out["n devices that do more than n times the work of one, by more than 5 %"] = len(impossible)
    return [cells for number, cells in enumerate(table) if number not in impossible], left_out


def as_csv(table: list[list[str]], header: Sequence[str] = FIELDS) -> str:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(table)
    return out.getvalue()


def written(row: Row) -> list[str]:
    """The cells of a row in the table's order; a value as short as it can be said without changing it."""
    cells = []
    for name in FIELDS:
        cell = row.pop(name, "")
        if isinstance(cell, dict):
            cells.append(json.dumps(cell, sort_keys=True, ensure_ascii=False) if cell else "")
        elif isinstance(cell, float):
            cells.append(str(int(cell)) if cell.is_integer() else repr(cell))
        else:
            cells.append(str(cell))
    if row:
        raise ValueError(f"no column for {', '.join(row)}")
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the shipped tables of published results.")
    parser.add_argument("reference", type=Path, help="the folder that holds published/all.csv and the other tables")
    parser.add_argument("--output", type=Path, default=SHIPPED, help="the folder to write to (default: the package's)")
    chosen = parser.parse_args()
    texts: dict[str, str] = {}
    all_left_out: Counter[str] = Counter()
    try:
        for name, from_files in tables().items():
            table, left_out = make(chosen.reference, from_files)
            texts[name] = as_csv(table)
            print(f"{len(parse(texts[name], name)):,} rows in {name}", file=sys.stderr)
            all_left_out += left_out
        texts[SYSTEMS_NAME] = as_csv(described_systems(chosen.reference), SYSTEM_FIELDS)
        print(f"{len(parse_systems(texts[SYSTEMS_NAME])):,} rows in {SYSTEMS_NAME}", file=sys.stderr)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SystemExit(f"{chosen.reference}: {error}") from error
    except LedgerError as error:
        raise SystemExit(error.message) from error
    # All of them or none.
    chosen.output.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (chosen.output / name).write_text(text, encoding="utf-8", newline="")
    for rule, number in sorted(all_left_out.items()):
        print(f"left out {number}: {rule}", file=sys.stderr)


if __name__ == "__main__":
    main()
