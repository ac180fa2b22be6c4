"""A ledger in which somebody changed cells, read by every command that only reads.

An input is a line of JSON for each cell: table, column, number of the row, and the value; bytes stand as {"hex": …}, lines of a
worker's stream as {"lines": […]}. Further lines name the commands to ask, {"ask": ["results"]}; without one, all are asked.
"""

import json
import lzma
import random
import shutil
import sqlite3
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from fuzz.harness import FOLDER, Target, Try, answer
from fuzz.mutate import mutated, odd_text, odd_value
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger

# Recorded experiments (tests/data), of each as many runs as are kept here: a comparison, a list of operators, ceilings.
_RECORDED = {"h200_host_container": 14, "h200_gemm_bf16": 1, "h200_ceilings": 1}
_LOG = FOLDER / "corpus" / "log-tf-cnn" / "t4_host_2gpu.log"


@cache
def _samples() -> list[dict[str, Any]]:
    found = []
    for name, runs in _RECORDED.items():
        whole = json.loads(lzma.decompress((FOLDER.parent / "tests" / "data" / f"{name}.json.xz").read_bytes()))
        found.append({"experiment": whole["experiment"], "runs": whole["runs"][:runs]})
    return found


_COMPARISON, _LIST, _CEILINGS = (str(one["experiment"]["id"]) for one in _samples())
_ASKED: tuple[tuple[str, ...], ...] = (
    ("results",),
    ("results", "--json"),
    ("show", "last"),
    ("show", "last", "--json"),
    ("show", "last", "--log"),
    ("show", _COMPARISON),
    ("show", _LIST),
    ("show", _LIST, "--format", "deepbench"),
    ("verdict", _COMPARISON),
    ("verdict", _COMPARISON, "--json"),
    ("verdict", _LIST, "--against", _LIST),
    ("report", _COMPARISON, "-o", "{folder}/report.html"),
    ("report", _COMPARISON, "-o", "{folder}/report.md"),
    ("report", _LIST, "-o", "{folder}/report.html"),
    ("plot", _COMPARISON, "-o", "{folder}/plot.svg"),
    ("roofline", _COMPARISON),
    ("export", "--format", "csv"),
    ("export", "--format", "json"),
    ("export", "--format", "jsonl", "-o", "{folder}/runs.jsonl"),
    ("baseline", "list"),
    ("baseline", "show", "kept"),
    ("published", "search", "resnet50"),
    ("published", "sources"),
)
_COLUMNS = {
    "runs": (
        "workload", "status", "started_unix_s", "ended_unix_s", "place", "device", "chip", "chip_uuid", "precision", "batch",
        "tune", "framework", "rate_per_s", "rate_unit", "steps_total", "steps_used", "steady", "step_p50_s", "step_p90_s",
        "step_p99_s", "step_cv", "wall_s", "setup_s", "memory_peak_mib", "energy_j", "data_share", "machine_id", "boot_id",
        "driver_pid", "stackmark_version", "spec_digest", "failure_kind", "failure_message", "failure_hint", "flags",
        "place_options", "handle", "spec", "arm", "block", "attempt", "slot", "suspect", "pass_number", "piece", "role",
        "position",
    ),
    "experiments": ("created_unix_s", "command", "note", "request", "kind", "design"),
    "streams": ("lines", "data"),
    "baselines": ("name", "saved_unix_s"),
    "published": ("added_unix_s", "file", "entry"),
}  # fmt: skip
# Where the odd values are worth the most.
_TABLES = (
    "runs",
    "runs",
    "runs",
    "runs",
    "experiments",
    "experiments",
    "streams",
    "streams",
    "streams",
    "baselines",
    "published",
)


def _prepare(folder: Path) -> Try:
    clean, count = folder / "clean.sqlite3", 0
    _fill(clean)

    def attempt(data: bytes) -> None:
        nonlocal count
        count += 1
        used = folder / f"ledger{count}.sqlite3"
        shutil.copyfile(clean, used)
        asked: list[tuple[str, ...]] = []
        with sqlite3.connect(used) as connection:
            for line in data.decode("utf-8", "replace").splitlines():
                change = json.loads(line)
                if "ask" in change:
                    asked.append(tuple(change["ask"]))
                else:
                    _change(connection, change)
        connection.close()
        for command in asked or _ASKED:
            answer(*(word.format(folder=folder) for word in command), "--ledger", str(used))
        used.unlink()

    return attempt


def _fill(path: Path) -> None:
    with Ledger.open(str(path)) as book:
        for whole in _samples():
            book.start_experiment(Experiment.model_validate(whole["experiment"]))
            for one in whole["runs"]:
                row = one["run"]
                if whole["experiment"]["kind"] == "run" and row["block"] is not None:
                    # As an operator list was stored before it had columns of its own.
                    row = {**row, "pass_number": row["block"], "piece": row["attempt"], "block": None, "attempt": 0}
                book.start(RunStart.model_validate({key: row[key] for key in RunStart.model_fields if key in row}))
                book.finish(
                    row["id"], RunEnd.model_validate({key: row[key] for key in RunEnd.model_fields}), one["lines"]
                )
    answer("import", str(_LOG), "--ledger", str(path))
    answer("baseline", "save", "kept", "--from", _LIST, "--ledger", str(path))
    rows = FOLDER / "corpus" / "published" / "template.csv"
    answer("published", "add", str(rows), "--ledger", str(path))
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode = DELETE")
    connection.close()


def _change(connection: sqlite3.Connection, change: dict[str, object]) -> None:
    table, column = str(change["table"]), str(change["column"])
    if column not in _COLUMNS.get(table, ()):
        return
    rowids = [rowid for (rowid,) in connection.execute(f"SELECT rowid FROM {table} ORDER BY rowid")]
    value = change["value"]
    if isinstance(value, dict) and "lines" in value:
        value = zlib.compress("\n".join(value["lines"]).encode("utf-8", "surrogatepass"))
    elif isinstance(value, dict) and "hex" in value:
        value = bytes.fromhex(value["hex"])
    elif isinstance(value, dict | list | bool):
        value = json.dumps(value)
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        value = float(value) if abs(value) < 10**308 else str(value)
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    row = rowids[int(str(change["row"])) % len(rowids)]
    with suppress(sqlite3.IntegrityError):  # a cell that the database itself does not take
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))


def _make(rng: random.Random, seeds: Sequence[bytes]) -> bytes:
    """One to three odd cells, and one command that reads them."""
    samples = _samples()
    lines = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        table = rng.choice(_TABLES)
        column = rng.choice(_COLUMNS[table])
        value = _cell(rng, table, column, rng.choice(rng.choice(samples)["runs"]), rng.choice(samples)["experiment"])
        lines.append(
            json.dumps({"table": table, "column": column, "row": rng.randrange(10), "value": value}, allow_nan=True)
        )
    lines.append(json.dumps({"ask": list(rng.choice(_ASKED))}))
    return "\n".join(lines).encode()


def _cell(rng: random.Random, table: str, column: str, run: dict[str, Any], experiment: dict[str, Any]) -> object:
    if column == "data":
        if rng.random() < 0.2:
            return {"hex": rng.randbytes(20).hex()}
        lines = run["lines"]
        assert isinstance(lines, list)
        return {"lines": mutated(rng, ["\n".join(lines).encode()]).decode("utf-8", "replace").split("\n")}
    row = run["run"]
    assert isinstance(row, dict)
    known = row.get(column) if table == "runs" else experiment.get(column)
    if isinstance(known, dict | list) and rng.random() < 0.7:
        return mutated(rng, [json.dumps(known).encode()]).decode("utf-8", "replace")
    return odd_value(rng) if rng.random() < 0.6 else odd_text(rng)


TARGET = Target("ledger", _prepare, _make)
