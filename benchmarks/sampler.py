"""What the sampler costs: runs with and without it, in turn, and the ratio of their rates with its interval.

    python benchmarks/sampler.py                                   # on a CPU: a small network, a thread less than CPUs
    python benchmarks/sampler.py --device cuda:0 --workload train/resnet50 --seconds 20 --pairs 20

Each pair is one run without and one with samples, in a drawn order, each in a fresh process as `stackmark run` makes it. A rate
is steps by the time of the measured part. Also printed: the sampler's own CPU time, and how long a reading takes here.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import fmean, median, stdev
from typing import Any

from stackmark.machine.telemetry import Telemetry, host
from stackmark.machine.telemetry_gpu import Gpus
from stackmark.spec import Request, Spec, Task
from stackmark.verdict.student import t_quantile


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="train/trivial_cifar10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--hz", type=float, nargs="+", default=[2.0, 10.0])
    parser.add_argument("--threads", type=int, default=max(1, (os.cpu_count() or 2) - 1))
    asked = parser.parse_args()
    print_reading()
    spec = probe(asked)
    for hz in asked.hz:
        compare(spec, hz, asked.pairs)


def print_reading(readings: int = 200) -> None:
    """How long one reading takes, and each of its collectors."""
    with Gpus() as gpus:
        collectors = {**host(os.getppid()), **dict(gpus.collectors())}
        telemetry = Telemetry(collectors)
        telemetry.read()
        for name in telemetry.problems:
            del collectors[name]
        took = {name: median(timed(collect) for _ in range(readings)) for name, collect in collectors.items()}
        whole = median(timed(telemetry.read) for _ in range(readings))
    each = ", ".join(f"{name} {seconds * 1e3:.2f}" for name, seconds in sorted(took.items(), key=lambda one: -one[1]))
    print(f"a reading takes {whole * 1e3:.2f} ms (median of {readings}): {each}")


def timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def probe(asked: argparse.Namespace) -> Spec:
    params = {"device": asked.device, "seconds": asked.seconds}
    if asked.device == "cpu":
        params |= {"threads": asked.threads, "batch": 16}
    events = worker(Task(do="probe", request=Request(workload=asked.workload, params=params)))
    found = next(event for event in events if event["event"] == "probe")
    return Spec.model_validate(found["spec"])


def compare(spec: Spec, hz: float, pairs: int) -> None:
    logs, costs, dice = [], [], random.Random(1)
    for _ in range(pairs):
        order = [0.0, hz]
        dice.shuffle(order)
        rates = {}
        for one in order:
            events = worker(Task(do="run", spec=spec, sample_hz=one))
            result = next(event for event in events if event["event"] == "result")
            rates[one] = result["steps"] / result["wall_s"]
            costs += [event["cpu_s"] / event["elapsed_s"] for event in events if event["event"] == "sampled"]
        logs.append(math.log(rates[hz] / rates[0.0]))
    reach = t_quantile(0.975, pairs - 1) * stdev(logs) / math.sqrt(pairs)
    low, middle, high = (100 * (math.exp(x) - 1) for x in (fmean(logs) - reach, fmean(logs), fmean(logs) + reach))
    print(f"{spec.workload} on {spec.params['device']}, {hz:g} Hz, {pairs} pairs: rate {middle:+.3f} % "
          f"(95 %: {low:+.3f} to {high:+.3f} %); the sampler used {100 * median(costs):.2f} % of one CPU")  # fmt: skip


def worker(task: Task) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "stackmark.worker"],
        input=task.model_copy(update={"lifeline": False}).model_dump_json() + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"event":')]


if __name__ == "__main__":
    main()
