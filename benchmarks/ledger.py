"""How long the ledger's questions take among a million runs: `python benchmarks/ledger.py`.

Fills a new SQLite ledger, and a new PostgreSQL one where a server is given (`--url`) or installed, with runs as
they would lie there (thirty workloads of unequal frequency, twelve chips, five runs an experiment, a spec of 700 bytes
each), and then times each question through the same `Ledger` that the command line uses. The median and the slowest of
some repetitions are printed; the limit is 100 ms.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from sqlalchemy import create_engine, insert, make_url

from stackmark.ids import ALPHABET, new_id
from stackmark.ledger.export import export_to_file
from stackmark.ledger.rows import Experiment, RunEnd, RunFilter, RunStart
from stackmark.ledger.schema import experiments, runs
from stackmark.ledger.store import Ledger
from stackmark.spec import Spec

LIMIT_S = 0.1
REPETITIONS = 11
WRITES = 100
DAY_S = 86_400.0
FIRST_UNIX_S = 1_750_000_000.0
EXPERIMENT_RUNS = 5
WORKLOADS = [f"{family}/net{number}" for family in ("train", "op", "serve") for number in range(10)]
CHIPS = [f"NVIDIA Model {number}" for number in range(12)]


def made_id(letter: str, unix_s: float, random_bits: int) -> str:
    """An id of a given time: `new_id` knows only the present."""
    number = int(unix_s * 1000) << 80 | random_bits
    return f"{letter}-" + "".join(ALPHABET[number >> shift & 31] for shift in range(125, -1, -5))


def rows(amount: int) -> Iterator[dict[str, object]]:
    """Runs in the order of time, one every minute, reproducible."""
    chance = random.Random(1)
    weights = [1 / (rank + 1) for rank in range(len(WORKLOADS))]
    chip_weights = [1 / (rank + 1) for rank in range(len(CHIPS))]
    params = {f"parameter_{number}": "a value of a parameter" for number in range(15)}
    spec = json.dumps({"schema_version": 1, "workload": "train/net0", "params": params, "ranks": 1})
    experiment = ""
    for number in range(amount):
        started = FIRST_UNIX_S + 60.0 * number
        if number % EXPERIMENT_RUNS == 0:
            experiment = made_id("x", started, chance.getrandbits(80))
        status = chance.choices(("done", "failed", "invalid"), (95, 4, 1))[0]
        yield {
            "id": made_id("r", started, chance.getrandbits(80)), "experiment_id": experiment,
            "position": number % EXPERIMENT_RUNS, "workload": chance.choices(WORKLOADS, weights)[0], "status": status,
            "started_unix_s": started, "ended_unix_s": started + 40, "place": chance.choice(("host", "container", "pod")),
            "device": "cuda:0", "chip": chance.choices(CHIPS, chip_weights)[0], "chip_uuid": f"GPU-{number % 64:032x}",
            "precision": "bf16", "batch": 256, "tune": "fast", "framework": "torch 2.13.0",
            "rate_per_s": None if status == "failed" else chance.gauss(3000, 30), "rate_unit": "images/s",
            "steps_total": 400, "steps_used": 380, "steady": "warm-up", "step_p50_s": 0.085, "step_p90_s": 0.086,
            "step_p99_s": 0.09, "step_cv": 0.01, "wall_s": 34.2, "setup_s": 12.5, "memory_peak_mib": 20480.0,
            "energy_j": 23_000.0, "data_share": 0.01, "machine_id": "0" * 32, "boot_id": "0" * 36, "driver_pid": 4242,
            "stackmark_version": "0.1.0", "spec_digest": "0" * 64,
            "failure_kind": "out_of_device_memory" if status == "failed" else None, "failure_message": None,
            "failure_hint": None, "flags": "[]", "place_options": "{}", "handle": '{"pid":4243}', "spec": spec,
            "arm": 0, "block": None, "attempt": 0, "role": "measured", "slot": None, "suspect": None, "pass_number": None,
            "piece": None,
        }  # fmt: skip


def fill(ledger: Ledger, amount: int) -> None:
    """By the driver's own bulk insert, beside the ledger's one-run transactions; JSON columns are given as text."""
    engine = ledger._engine
    columns = [column.name for column in runs.c]
    sqlite = engine.dialect.name == "sqlite"
    statement = f"INSERT INTO runs ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
    with engine.connect().execution_options(writes=True) as connection, connection.begin():
        raw = connection.connection.driver_connection
        assert raw is not None
        cursor = raw.cursor()
        batch: list[dict[str, object]] = []

        def flush() -> None:
            known = {row["experiment_id"]: row["started_unix_s"] for row in batch if row["position"] == 0}
            made = [
                {
                    "id": name,
                    "created_unix_s": at,
                    "command": "stackmark run",
                    "note": "",
                    "request": {},
                    "kind": "run",
                    "design": None,
                    "suite_id": None,
                }
                for name, at in known.items()
            ]
            connection.execute(insert(experiments), made)
            values = [tuple(row[name] for name in columns) for row in batch]
            if sqlite:
                cursor.executemany(statement, values)
            else:
                with cursor.copy(f"COPY runs ({', '.join(columns)}) FROM STDIN") as copy:
                    for row in values:
                        copy.write_row(row)
            batch.clear()

        for row in rows(amount):
            batch.append(row)
            if len(batch) == 10_000:
                flush()
        if batch:
            flush()
    ledger._wrote = True  # so that closing it brings SQLite's statistics up to date, as after any other writing


def questions(ledger: Ledger, amount: int) -> dict[str, Callable[[], object]]:
    middle = ledger.runs(RunFilter(until_unix_s=FIRST_UNIX_S + 30.0 * amount), limit=1)[0]
    week_ago = FIRST_UNIX_S + 60.0 * amount - 7 * DAY_S
    return {
        "newest 50": lambda: ledger.runs(limit=50),
        "50 from the middle on": lambda: ledger.runs(limit=50, before=middle.cursor),
        "newest 50 of a common workload": lambda: ledger.runs(RunFilter(workload=WORKLOADS[0])),
        "newest 50 of a rare workload": lambda: ledger.runs(RunFilter(workload=WORKLOADS[-1])),
        "newest 50 of a glob (serve/*)": lambda: ledger.runs(RunFilter(workload="serve/*")),
        "newest 50 of two globs and a status": lambda: ledger.runs(
            RunFilter(workload="*/net9", chip="*Model 1*", status="invalid")
        ),
        "newest 50 of a chip, last 7 days": lambda: ledger.runs(RunFilter(chip=CHIPS[5], since_unix_s=week_ago)),
        "newest 50 failed of a workload": lambda: ledger.runs(RunFilter(workload=WORKLOADS[-1], status="failed")),
        "workload that does not exist": lambda: ledger.runs(RunFilter(workload="train/nothing")),
        "runs of one experiment": lambda: ledger.runs(RunFilter(experiment_id=middle.experiment_id)),
        "one run by a prefix": lambda: ledger.run(middle.id[:14]),
        "count all": ledger.count,
        "count a common workload": lambda: ledger.count(RunFilter(workload=WORKLOADS[0])),
        "count a glob (serve/*)": lambda: ledger.count(RunFilter(workload="serve/*")),
        "count failed of a common workload": lambda: ledger.count(RunFilter(workload=WORKLOADS[0], status="failed")),
        "count a chip, last 7 days": lambda: ledger.count(RunFilter(chip=CHIPS[5], since_unix_s=week_ago)),
        "abandoned runs": lambda: ledger.abandoned(machine_id="0" * 32, alive=lambda row: True),
    }


def ask(where: str, amount: int) -> bool:
    """Prints the table of one ledger; whether every question kept to the limit."""
    begun = time.perf_counter()
    with Ledger.open(where) as ledger:
        fill(ledger, amount)
    kind = "PostgreSQL" if "://" in where else "SQLite"
    if kind == "PostgreSQL":  # what its autovacuum does a minute after such a load
        with create_engine(make_url(where).set(drivername="postgresql+psycopg")).connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("VACUUM ANALYZE stackmark.runs")
    print(f"\n{kind}: {amount:,} runs, filled in {time.perf_counter() - begun:.0f} s")
    print(f"| {'query':<36} | median ms | slowest ms |\n|{'-' * 38}|----------:|-----------:|")
    kept = True
    with Ledger.open(where) as ledger:
        for name, question in questions(ledger, amount).items():
            seconds = []
            for _ in range(REPETITIONS):
                start = time.perf_counter()
                question()
                seconds.append(time.perf_counter() - start)
            median = statistics.median(seconds)
            kept = kept and median <= LIMIT_S
            print(f"| {name:<36} | {median * 1e3:9.1f} | {max(seconds) * 1e3:10.1f} |", flush=True)
        export(ledger)
        if kind == "SQLite":  # the tests' PostgreSQL does not wait for the disk, so its figure would flatter
            write(ledger)
    return kept


def write(ledger: Ledger) -> None:
    """Storing a run as a command does: the row, its handle, its end with 100 KiB of output; each waits for the disk."""
    experiment = Experiment(id=new_id("x"), created_unix_s=time.time())
    ledger.start_experiment(experiment)
    lines = [json.dumps({"event": "steps", "seq": number, "step_s": [random.random()] * 20}) for number in range(200)]
    seconds = []
    for position in range(WRITES):
        run = RunStart(
            id=new_id("r"), experiment_id=experiment.id, position=position, spec=Spec(workload=WORKLOADS[0], params={}),
            place="host", started_unix_s=time.time(), machine_id="0" * 32, boot_id="0", driver_pid=1, stackmark_version="0",
        )  # fmt: skip
        start = time.perf_counter()
        ledger.start(run)
        ledger.set_handle(run.id, {"pid": 1})
        ledger.finish(run.id, RunEnd(status="done", ended_unix_s=time.time(), rate_per_s=1.0), lines)
        seconds.append(time.perf_counter() - start)
    median_ms, slowest_ms = statistics.median(seconds) * 1e3, max(seconds) * 1e3
    print(f"storing one run, {WRITES} times: median {median_ms:.1f} ms, slowest {slowest_ms:.1f} ms")


def export(ledger: Ledger) -> None:
    """Not a question with a limit, but good to know: everything as CSV, and the memory it took."""
    import resource

    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        written = export_to_file(ledger, RunFilter(), "csv", Path(folder) / "runs.csv")
        size_mib = (Path(folder) / "runs.csv").stat().st_size / 2**20
        peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = time.perf_counter() - start
    print(f"export as CSV: {written:,} runs, {size_mib:,.0f} MiB in {seconds:.0f} s; peak memory {peak_mib:,.0f} MiB")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument("--url", help="an empty PostgreSQL database; else a server of its own, if one is installed")
    parser.add_argument("--only", choices=("sqlite", "postgres"))
    options = parser.parse_args()
    kept = True
    with ExitStack() as stack:
        if options.only != "postgres":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="stackmark-bench-"))
            kept = ask(str(Path(folder) / "ledger.sqlite3"), options.runs)
        if options.only != "sqlite":
            url: str | None = options.url
            if url is None:
                sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
                from postgres import find_binaries, running_server

                binaries = find_binaries()
                if binaries is None:
                    print("\nPostgreSQL: not installed, and no --url was given")
                    return 0 if kept else 1
                url = stack.enter_context(running_server(binaries)).new_database()
            kept = ask(url, options.runs) and kept
    print(f"\nevery median within {LIMIT_S * 1e3:.0f} ms: {'yes' if kept else 'NO'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
