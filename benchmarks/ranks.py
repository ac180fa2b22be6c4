"""What does merging the streams of many ranks take? Time and memory of a driver for up to 1,000 ranks, and lost lines.

    python benchmarks/ranks.py [RANKS...]

Each pod has eight ranks and a thread that hands its lines on, as a run in pods does (places/pod/run.py). A rank says what one of
an all-reduce says: its facts, a minute of telemetry at one line a second, 600 steps, its result. Each number of ranks is measured
in a driver of its own. Exits with 1 where an event is missing at the end.
"""

import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

RANKS = (1, 8, 64, 250, 1000)
RANKS_OF_A_POD = 8
FACTS, SAMPLES, STEPS, STEPS_A_LINE = 18, 60, 600, 10
# As long as those that a worker sends, on average.
FACT = {f"name_{number}": "a value of some length" for number in range(16)}


def lines_of(rank: int, ranks: int) -> list[str]:
    """Return what one rank prints."""
    said: list[dict[str, object]] = [{"event": "hello", "time_unix_s": 1.0, "pid": 1, "ranks": ranks}]
    said += [{"event": "facts", "subject": f"subject_{number}", "facts": FACT} for number in range(FACTS)]
    sample: dict[str, object] = {
        "event": "sample",
        "values": {"power_w": 412.25, "temperature_c": 61.0, "clock_sm_mhz": 1755.0},
    }
    said += [sample] * SAMPLES
    for first in range(0, STEPS, STEPS_A_LINE):
        said.append(
            {"event": "steps", "phase": "measure", "first": first, "step_s": [0.1 + rank * 1e-9] * STEPS_A_LINE}
        )
    said.append(
        {
            "event": "result",
            "sample": "image",
            "samples_per_step": 1,
            "steps": STEPS,
            "wall_s": STEPS * 0.1,
            "tick_s": 1e-9,
        }
    )
    return [
        json.dumps({"event": one.pop("event"), "seq": seq, "rank": rank, "t": seq * 0.01, **one}, separators=(",", ":"))
        for seq, one in enumerate(map(dict, said))
    ]


def drive(ranks: int) -> str:
    """Merge the streams of a run in this process, store it, and say what that took."""
    from stackmark.experiments.recorder import Listener, Position, Recorder, Silent
    from stackmark.ids import new_id
    from stackmark.ledger.rows import Experiment
    from stackmark.ledger.store import Ledger
    from stackmark.places.place import Outcome
    from stackmark.spec import Spec

    pods = [range(first, min(ranks, first + RANKS_OF_A_POD)) for first in range(0, ranks, RANKS_OF_A_POD)]
    listener, handing_on = Listener(Silent()), threading.Lock()
    sent = Counter[int]()

    def follow(of_pod: range) -> None:
        streams = [lines_of(rank, ranks) for rank in of_pod]
        for together in zip(*streams, strict=True):
            for rank, line in zip(of_pod, together, strict=True):
                with handing_on:
                    sent[rank] += 1
                    listener.line(line)

    began = time.perf_counter()
    threads = [threading.Thread(target=follow, args=(one,)) for one in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read_s = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder, Ledger.open(str(Path(folder) / "ledger.sqlite3")) as book:
        experiment = Experiment(id=new_id("x"), created_unix_s=time.time())
        book.start_experiment(experiment)
        recorder, spec = (
            Recorder(book, experiment.id),
            Spec(workload="train/resnet50", params={"batch": 1}, ranks=ranks),
        )
        run_id = recorder.start(spec, Position(), "pod", {})
        began = time.perf_counter()
        row = recorder.finish(run_id, spec, listener, Outcome(0))
        store_s = time.perf_counter() - began
        kept = Counter(json.loads(line)["rank"] for line in book.stream(run_id))
    missing = sum((sent - kept).values())
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    events = sum(sent.values())
    found = f"{ranks:6,} {len(pods):5} {events:9,} {missing:7} {read_s:8.2f} {events / read_s:10,.0f} {store_s:17.2f}"
    found += f" {peak_mb:8.0f}"
    return f"{found}  {row.status}" + (f": {row.failure_message}" if row.failure_message else "")


def main(words: list[str]) -> int:
    if words[:1] == ["--drive"]:
        print(drive(int(words[1])))
        return 0
    print(" ranks  pods    events missing  merge s   events/s judge and store s  peak MB")
    lost = False
    for ranks in [int(word) for word in words] or RANKS:
        done = subprocess.run(
            [sys.executable, __file__, "--drive", str(ranks)], stdout=subprocess.PIPE, text=True, check=True
        )
        print(done.stdout.rstrip())
        lost = lost or done.stdout.split()[3] != "0"
    return int(lost)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
