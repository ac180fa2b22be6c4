"""What a driver needs of memory for a worker that says very much: its peak for a million events of each kind.

    python benchmarks/streams.py [EVENTS]

A small program plays the worker on the host. Each kind is measured in a driver of its own. The driver alone, without any
event, is the first line. Exits with 1 where a driver needs more than 300 MB.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVENTS = 1_000_000
MOST_MB = 300.0
KINDS = ("sample", "log", "steps", "phase")
WORKER = """
import json, sys
kind, count = sys.argv[1], int(sys.argv[2])
sys.stdin.readline()
about = {
    "sample": {"values": {"power_w": 412.25, "temperature_c": 61.0, "clock_sm_mhz": 1755.0}},
    "log": {"line": "a line of a library that prints very much about very little"},
    "steps": {"phase": "measure", "step_s": [0.000001234567]},
    "phase": {"phase": "model", "state": "begin"},
}
def say(seq, event, **more):
    print(json.dumps({"event": event, "seq": seq, "rank": 0, "t": seq * 1e-6, **more}, separators=(",", ":")))
say(0, "hello", time_unix_s=1.0, pid=1)
for n in range(count):
    more = {"first": n} if kind == "steps" else {}
    say(n + 1, kind, **about[kind], **more)
steps = count if kind == "steps" else 1
if kind != "steps":
    say(count + 1, "steps", phase="measure", first=0, step_s=[1.0])
say(count + 1 + (kind != "steps"), "result", sample="image", samples_per_step=1, steps=steps, wall_s=steps * 0.000001234567
    if kind == "steps" else 1.0, tick_s=1e-9)
"""


def drive(kind: str, count: int) -> str:
    """Run one such worker as `stackmark run` would, in this process, and say what it took."""
    from stackmark.experiments import trust
    from stackmark.experiments.recorder import Position, Recorder, Silent
    from stackmark.ids import new_id
    from stackmark.ledger.rows import Experiment
    from stackmark.ledger.store import Ledger
    from stackmark.places.host import HostPlace
    from stackmark.spec import Spec

    class Flood(HostPlace):
        def command(self) -> list[str]:
            return [sys.executable, "-c", WORKER, kind, str(count)]

    with tempfile.TemporaryDirectory() as folder, Ledger.open(str(Path(folder) / "ledger.sqlite3")) as book:
        experiment = Experiment(id=new_id("x"), created_unix_s=time.time())
        book.start_experiment(experiment)
        begin = time.perf_counter()
        spec = Spec(workload="command/own", params={"cmd": "true"})
        trust.allow(trust.parts_of([(spec, "host", {})]))
        row, _ = Recorder(book, experiment.id).run(spec, Position(), Flood(), Silent())
        seconds = time.perf_counter() - begin
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    how = row.status if row.status == "done" else f"{row.failure_kind}: {row.failure_message}"
    return f"{kind:8} {count:>10,} events  {seconds:6.1f} s  peak {peak_mb:6.1f} MB  {how}"


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS
    if len(sys.argv) > 2:
        print(drive(sys.argv[2], count))
        return 0
    worst_mb = 0.0
    for kind, number in (("sample", 0), *((kind, count) for kind in KINDS)):
        done = subprocess.run(
            [sys.executable, __file__, str(number), kind], stdout=subprocess.PIPE, text=True, check=True
        )
        print(done.stdout, end="", flush=True)
        worst_mb = max(worst_mb, float(done.stdout.partition("peak")[2].split()[0]))
    return int(worst_mb > MOST_MB)


if __name__ == "__main__":
    sys.exit(main())
