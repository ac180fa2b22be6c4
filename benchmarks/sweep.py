"""How a thousand pods are swept: `python benchmarks/sweep.py --script ../cluster`, or on nodes that are simulated already.

Simulated nodes (kwok) have a real API server, scheduler and job controller behind them, and pods that pretend to run for two
seconds and whose log is one recorded stream. What is measured is the driver: seconds from the first Job to the last row, its
peak memory, and whether every event of every pod came, once. The script of a test cluster starts the nodes with `simulate COUNT
GPUS LOGFILE`; they are removed again at the end, and the simulator with them.
"""

import argparse
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from stackmark.events import Stream
from stackmark.experiments.recorder import Silent
from stackmark.experiments.sweep import sweep
from stackmark.kubernetes.client import Cluster, connect
from stackmark.ledger.rows import RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.pod.options import PodOptions
from stackmark.spec import Request

RECORDED = Path(__file__).parents[1] / "tests/data/kubernetes/sweep_run.jsonl"
SELECTOR, TOLERATION = "simulated=true", "simulated=true:NoSchedule"
GPUS = 8
LIMIT_MIB = 2048


class Quiet:
    """Counts what lands."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def notice(self, sentence: str) -> None:
        print(f"  {sentence}", file=sys.stderr)

    def stage(self, what: str, total: int, done: int) -> None: ...
    def in_flight(self, names: Sequence[str], count: int) -> None: ...

    def landed(self, name: str, row: RunRow) -> None:
        self.at.append(time.monotonic())


@contextmanager
def simulated(script: str | None, count: int, cluster: Cluster) -> Iterator[None]:
    """So many simulated nodes; taken down again only where we made them."""
    if script is None:
        yield
        return
    subprocess.run([script, "simulate", str(count), str(GPUS), str(RECORDED)], check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        cluster.delete("/api/v1/nodes", labelSelector=SELECTOR)
        subprocess.run([script, "kill", "simulator"], check=False, capture_output=True)


def nodes_ready(cluster: Cluster, count: int, within_s: float = 180.0) -> None:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        found = cluster.items("/api/v1/nodes", labelSelector=SELECTOR)
        states = [
            c.get("status") for node in found for c in node["status"].get("conditions", ()) if c["type"] == "Ready"
        ]
        if len(found) >= count and states.count("True") >= count:
            return
        time.sleep(1)
    raise SystemExit(f"{count} simulated nodes were not ready within {within_s:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--namespace", default="default")
    parser.add_argument("--script", help="the script of a test cluster, which starts the simulated nodes")
    asked = parser.parse_args()
    cluster = connect(namespace=asked.namespace)
    with tempfile.TemporaryDirectory() as folder, simulated(asked.script, asked.nodes, cluster):
        nodes_ready(cluster, asked.nodes)
        measure(asked.nodes, asked.namespace, Path(folder) / "ledger.sqlite3")


def measure(nodes: int, namespace: str, ledger: Path) -> None:
    options = PodOptions(
        image="localhost/stackmark:simulated", namespace=namespace, gpus=str(GPUS), toleration=(TOLERATION,)
    )
    # The probe's answer is in the recorded stream too, since all pods have one log.
    request = Request(workload="train/resnet20", params={"device": "cpu", "batch": 2, "seconds": 2.0})
    looker = Quiet()
    with Ledger.open(str(ledger)) as book:
        before = time.monotonic()
        experiment = sweep.start(sweep.SweepRequest(request, options, nodes=SELECTOR), book, Silent())
        began = time.monotonic()
        sweep.carry_out(experiment, book, looker)
        ended = time.monotonic()
        rows = book.runs_of(experiment.id)
        lost = sum(_events(book.stream(row.id)) != expected() for row in rows)
        swept = sweep.examine(book, experiment)
    good = [row for row in rows if row.status == "done"]
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    took = [at - began for at in looker.at]
    print(f"nodes                      {nodes:,} simulated, {GPUS} GPUs each, one pod a node")
    print(f"probe and plan             {began - before:.1f} s")
    print(f"first, median, last landed {took[0]:.1f} s, {statistics.median(took):.1f} s, {took[-1]:.1f} s")
    print(f"all done and removed       {ended - began:.1f} s, {len(rows) / (ended - began):.0f} pods/s")
    print(f"rows done                  {len(good):,} of {len(swept.lines):,}")
    print(f"streams with lost events   {lost} of {len(rows):,} ({expected():,} events each)")
    print(f"peak memory of the driver  {peak_mib:.0f} MiB (limit {LIMIT_MIB})")
    if lost or len(good) != nodes or peak_mib > LIMIT_MIB:
        for row in [row for row in rows if row.status != "done"][:5]:
            print(f"  {row.handle.get('node')}: {row.failure_message}")
        raise SystemExit(1)


def _events(lines: Sequence[str]) -> int:
    stream = Stream()
    for line in lines:
        stream.feed(line)
    return len(stream.events)


def expected() -> int:
    return _events(RECORDED.read_text().splitlines())


if __name__ == "__main__":
    main()
