"""How long a scrape takes over a ledger of a million runs: `python benchmarks/exporter.py`.

The first reading reads all runs once. From then on a reading costs what is new: nothing where nothing was written, and a walk to
the end of the primary key where a run was. A scrape within ten seconds of the last reading reads nothing. The scrapes are made
over HTTP by a hundred clients at once; the limit for the slowest is Prometheus' own, 10 s, and for the median of a reading with
one new run 0.2 s.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ledger as filled

from stackmark.api.latest import Latest, LedgerWatch
from stackmark.ids import new_id
from stackmark.ledger.rows import Experiment, RunEnd, RunStart
from stackmark.ledger.store import Ledger
from stackmark.monitor.exporter import Exporter
from stackmark.monitor.server import MetricsServer
from stackmark.spec import Spec

LIMIT_S, SCRAPE_LIMIT_S = 0.2, 10.0
REPETITIONS, CLIENTS = 11, 100
# The runs that are filled in are of the years before.
AGES_S = 1e12


def add_run(ledger: Ledger, unix_s: float) -> None:
    """Add a run that is newer than all that were filled in, which may be of the future."""
    experiment = Experiment(id=new_id("x"), created_unix_s=time.time())
    ledger.start_experiment(experiment)
    run = RunStart(
        id=filled.made_id("r", unix_s, 1), experiment_id=experiment.id, place="host",
        spec=Spec(workload=filled.WORKLOADS[0], params={}),
        started_unix_s=time.time(), machine_id="0" * 32, boot_id="0", driver_pid=1, stackmark_version="0",
    )  # fmt: skip
    ledger.start(run)
    ledger.finish(run.id, RunEnd(status="done", ended_unix_s=time.time(), rate_per_s=1.0, rate_unit="images/s"), [])


def timed(watch: LedgerWatch) -> tuple[float, Latest]:
    begun = time.perf_counter()
    found = watch.read()
    return time.perf_counter() - begun, found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    amount = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "ledger.sqlite3")
        with Ledger.open(file) as ledger:
            filled.fill(ledger, amount)
        watch = LedgerWatch(file, AGES_S)
        first_s, found = timed(watch)
        while found.pending:
            found = watch.read()
        series = len(found.results) + len(found.last_runs)
        print(f"{amount:,} runs, {series} results and kinds of runs; the first reading took {first_s:.1f} s")
        unchanged = [timed(watch)[0] for _ in range(REPETITIONS)]
        changed = []
        with Ledger.open(file) as ledger:
            for number in range(REPETITIONS):
                add_run(ledger, filled.FIRST_UNIX_S + 60.0 * (amount + number))
                changed.append(timed(watch)[0])
        print(
            "| reading                | median ms | slowest ms |\n|------------------------|----------:|-----------:|"
        )
        for name, seconds in (("nothing new", unchanged), ("one new run", changed)):
            print(f"| {name:<22} | {statistics.median(seconds) * 1e3:9.1f} | {max(seconds) * 1e3:10.1f} |")
        scrapes, size = scrape(file)
    print(
        f"{CLIENTS} scrapes at once of {size / 1024:.0f} KiB: median {statistics.median(scrapes):.2f} s, "
        f"slowest {max(scrapes):.2f} s"
    )
    return int(statistics.median(changed) > LIMIT_S or max(scrapes) > SCRAPE_LIMIT_S)


def scrape(file: str) -> tuple[list[float], int]:
    """Scrape by many clients at once, after the first reading."""
    with (
        Exporter(file, horizon_s=AGES_S, ledger_wait_s=120.0) as exporter,
        MetricsServer(exporter, "127.0.0.1", 0) as server,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/metrics"
        size = len(exporter.text())

        def one(_number: int) -> float:
            begun = time.perf_counter()
            with urllib.request.urlopen(url, timeout=60) as answer:
                assert answer.status == 200
                answer.read()
            return time.perf_counter() - begun

        with ThreadPoolExecutor(CLIENTS) as pool:
            scrapes = list(pool.map(one, range(CLIENTS)))
        server.shutdown()
    return scrapes, size


if __name__ == "__main__":
    sys.exit(main())
