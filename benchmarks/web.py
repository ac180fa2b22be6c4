"""How long the pages of `stackmark web` take over a million runs: `python benchmarks/web.py`.

Fills a new SQLite ledger as benchmarks/ledger.py does, serves it in a process of its own, and asks for each page several times
over one connection. The median and the slowest are printed; the limit of a list is 200 ms.
"""

import argparse
import http.client
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from html import unescape
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from ledger import CHIPS, DAY_S, FIRST_UNIX_S, WORKLOADS, fill

from stackmark.ledger.store import Ledger

LIMIT_S = 0.2
REPETITIONS = 11
CLIENTS = 100


@contextmanager
def served(ledger: Path) -> Iterator[str]:
    """Serve a ledger at a port that is free, and yield the address."""
    command = [sys.executable, "-m", "stackmark", "web", "--port", "0", "--ledger", str(ledger)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
    finally:
        server.terminate()
        server.wait(20)


def get(connection: http.client.HTTPConnection, where: str) -> str:
    connection.request("GET", where)
    answer = connection.getresponse()
    body = answer.read().decode()
    assert answer.status == 200, f"{where}: {answer.status}\n{body[-800:]}"
    return body


def next_page(body: str) -> str:
    found = re.search(r'<a href="([^"]+)" rel="next">', body)
    assert found, "the list has no further page"
    return unescape(found[1])


def questions(connection: http.client.HTTPConnection, amount: int) -> dict[str, str]:
    day = time.strftime("%Y-%m-%d", time.localtime(FIRST_UNIX_S + 30.0 * amount))
    week = time.strftime("%Y-%m-%d", time.localtime(FIRST_UNIX_S + 60.0 * amount - 7 * DAY_S))

    def of(where: str, **values: str) -> str:
        return f"{where}?{urlencode(values)}"

    return {
        "experiments": "/",
        "experiments, second page": next_page(get(connection, "/")),
        "experiments, page in the middle": next_page(get(connection, of("/", until=day))),
        "experiments, oldest first": of("/", sort="oldest"),
        "experiments of a common workload": of("/", workload=WORKLOADS[0]),
        "experiments of a rare workload": of("/", workload=WORKLOADS[-1]),
        "experiments of a glob and a chip": of("/", workload="serve/*", chip=CHIPS[5]),
        "experiments with a failed run": of("/", state="failed"),
        "experiments, text in the command": of("/", q="stackmark run"),
        "experiments, text that none has": of("/", q="no such text"),
        "runs": "/runs",
        "runs, second page": next_page(get(connection, "/runs")),
        "runs, page in the middle": next_page(get(connection, of("/runs", until=day))),
        "runs of a common workload": of("/runs", workload=WORKLOADS[0]),
        "runs of a glob and a state": of("/runs", workload="*/net9", state="invalid"),
        "runs of a chip, last 7 days": of("/runs", chip=CHIPS[5], since=week),
        "runs by rate, last 7 days": of("/runs", workload=WORKLOADS[0], since=week, sort="fastest"),
        "machines": "/machines",
        "trends": of("/trends", workload=WORKLOADS[0], chip=CHIPS[0]),
        "one experiment": "/experiments/last",
        "one run": "/runs/last",
    }


def measure(address: str, amount: int) -> bool:
    """Print the table; tell whether every median keeps to the limit."""
    host = urlsplit(address).netloc
    connection = http.client.HTTPConnection(host, timeout=60)
    kept = True
    print(f"| {'page':<36} | median ms | slowest ms | KiB |\n|{'-' * 38}|----------:|-----------:|----:|")
    for name, where in questions(connection, amount).items():
        seconds = []
        for _ in range(REPETITIONS):
            start = time.perf_counter()
            body = get(connection, where)
            seconds.append(time.perf_counter() - start)
        median = statistics.median(seconds)
        kept = kept and median <= LIMIT_S
        size = len(body.encode()) / 1024
        print(f"| {name:<36} | {median * 1e3:9.1f} | {max(seconds) * 1e3:10.1f} | {size:3.0f} |", flush=True)
    together(host)
    return kept


def together(host: str) -> None:
    """Ask for the list by many clients at once, each with a connection of its own."""

    def one(_: int) -> float:
        start = time.perf_counter()
        get(http.client.HTTPConnection(host, timeout=120), "/")
        return time.perf_counter() - start

    begun = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        seconds = list(pool.map(one, range(CLIENTS)))
    whole = time.perf_counter() - begun
    print(
        f"\n{CLIENTS} clients at once: all answered in {whole:.1f} s, half of them within {statistics.median(seconds):.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000_000)
    parser.add_argument(
        "--ledger", type=Path, help="a ledger that was filled before; it is filled where it does not exist"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stackmark-bench-") as folder:
        ledger = options.ledger or Path(folder) / "ledger.sqlite3"
        if not ledger.exists():
            begun = time.perf_counter()
            with Ledger.open(str(ledger)) as book:
                fill(book, options.runs)
            print(f"{options.runs:,} runs, filled in {time.perf_counter() - begun:.0f} s\n")
        with served(ledger) as address:
            kept = measure(address, options.runs)
    print(f"every median within {LIMIT_S * 1e3:.0f} ms: {'yes' if kept else 'NO'}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
