"""Ledgers with baselines for tests: real runs of the trick family, moved to other days, stacks and machines.

What is moved is what is stored: that is data, as another day would have left it.
"""

import sqlite3
import zlib
from pathlib import Path
from typing import Any

import ledger_runs
from stackmark.experiments.baseline import SeriesOptions, SeriesResult, held_by, save_again, save_new
from stackmark.experiments.check import Checked, check, decided
from stackmark.experiments.recorder import Silent
from stackmark.ids import new_id
from stackmark.ledger import baselines
from stackmark.ledger.store import Ledger
from stackmark.places.registry import find_place
from stackmark.spec import Request
from stackmark.verdict.comparison import Comparison

HOUR_S = 3600.0
QUICK: dict[str, Any] = {"steps": 2, "warmup_steps": 0, "step_s": 0.05}
TYPED = ("--steps", "4", "--warmup-steps", "0", "--step-s", "0.01", "--runs", "2")
# Wide enough that chance does not turn it where the sides differ threefold.
MARGIN = 0.3


def save(book: Ledger, name: str = "before", runs: int = 2, **params: Any) -> SeriesResult:
    request = Request(workload="trick/calm", params={**QUICK, **params})
    return save_new(book, name, request, find_place("host"), SeriesOptions(Silent(), runs))


def stored(book: Ledger, name: str = "before") -> None:
    """A baseline of one stored run, where nothing is to be measured."""
    baselines.save(book, name, book.run(ledger_runs.complete(book)).experiment_id)


def change(file: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(sql, values)
    connection.close()


def on_another_day(file: Path, experiment_id: str, days: float, faster: float = 1.0, boot: str | None = None) -> None:
    """Moves an experiment so many days back, to a boot of its own, and makes it so many times faster."""
    change(
        file,
        "UPDATE runs SET started_unix_s = started_unix_s - ?, ended_unix_s = ended_unix_s - ?, boot_id = ?, "
        "rate_per_s = rate_per_s * ? WHERE experiment_id = ?",
        days * 24 * HOUR_S, days * 24 * HOUR_S, boot or f"{days} days ago", faster, experiment_id,
    )  # fmt: skip


def copied(file: Path, experiment_id: str, days: float, rate_per_s: float) -> str:
    """Copies an experiment to a day so far back, with that rate in all of its runs."""
    new = new_id("x")
    with sqlite3.connect(file) as connection:
        connection.row_factory = sqlite3.Row

        def insert(table: str, row: dict[str, Any]) -> None:
            marks = ", ".join("?" * len(row))
            connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", [*row.values()])

        (old,) = connection.execute("SELECT * FROM experiments WHERE id = ?", (experiment_id,)).fetchall()
        insert("experiments", {**old, "id": new, "created_unix_s": old["created_unix_s"] - days * 24 * HOUR_S})
        for row in connection.execute("SELECT * FROM runs WHERE experiment_id = ?", (experiment_id,)).fetchall():
            again = {
                **row,
                "id": new_id("r"),
                "experiment_id": new,
                "boot_id": f"{days} days ago",
                "rate_per_s": rate_per_s,
            }
            for name in ("started_unix_s", "ended_unix_s"):
                again[name] = row[name] - days * 24 * HOUR_S
            insert("runs", again)
            (stream,) = connection.execute("SELECT * FROM streams WHERE run_id = ?", (row["id"],)).fetchall()
            insert("streams", {**stream, "run_id": again["id"]})
    connection.close()
    return new


def with_fact(file: Path, experiment_id: str, old: str, new: str) -> None:
    """Changes a fact in the stored streams of an experiment."""
    with sqlite3.connect(file) as connection:
        query = "SELECT run_id, data FROM streams JOIN runs ON id = run_id WHERE experiment_id = ?"
        for run_id, data in connection.execute(query, (experiment_id,)).fetchall():
            text = zlib.decompress(data).decode()
            assert old in text
            packed = zlib.compress(text.replace(old, new).encode())
            connection.execute("UPDATE streams SET data = ? WHERE run_id = ?", (packed, run_id))
    connection.close()


def kernel() -> str:
    return Path("/proc/sys/kernel/osrelease").read_text().strip()


def three_series(book: Ledger, file: Path, faster: float, apart: float = 0.001) -> None:
    """A baseline of three days, each that share apart from the next, and so many times faster than this machine is."""
    saved = [save(book)]
    saved += [save_again(book, "before", held_by(book, "before")[0], SeriesOptions(Silent())) for _ in range(2)]
    assert saved[0].throughput
    rate_per_s = faster * saved[0].throughput.rate_per_s
    for series, days, about in zip(saved, (12.0, 11.0, 10.0), (1 - apart, 1.0, 1 + apart), strict=True):
        on_another_day(file, series.experiment_id, days)
        change(file, "UPDATE runs SET rate_per_s = ? WHERE experiment_id = ?", rate_per_s * about, series.experiment_id)


def checked(book: Ledger, name: str = "before", anyway: bool = False, runs: int | None = None) -> list[Checked]:
    return decided(list(check(book, name, SeriesOptions(Silent(), runs), margin=MARGIN, anyway=anyway)))


def only(found: list[Checked]) -> Checked:
    (one,) = found
    return one


def verdict(one: Checked) -> Comparison:
    assert one.comparison is not None, one.trouble
    return one.comparison
