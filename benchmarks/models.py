"""Every model once, as it is by default on this device: batch, step time, rate, arithmetic, memory.

    python benchmarks/models.py [--tune fast] [--only 'resnet*'] [--seconds 0.5]

All in one process, one after another, so these are looks and not results: `stackmark run` makes those. The shortest step of
them is what the harness's cost per step (benchmarks/overhead.py) is held against.
"""

import argparse
import gc
import os
from fnmatch import fnmatch

import torch

from stackmark.spec import Request
from stackmark.units import say_count, say_rate, say_seconds, say_size
from stackmark.worker.clock import run_stretch
from stackmark.worker.run import Bench, memory_peak_mib
from stackmark.worker.stream import Emitter
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl import train
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import WorkloadFailure


def one(name: str, tune: str | None, seconds: float, emitter: Emitter) -> tuple[float, str]:
    bench = Bench(emitter)
    typed = {"tune": tune} if tune else {}
    params, _ = train.probe(Request(workload=f"train/{name}", params=dict(typed)), bench)
    assert isinstance(params, TrainParams)
    session = train.run(name, params, bench)
    ready = next(session)
    warm = run_stretch(emitter, ready, "warm-up", 5)
    step_s = warm.wall_s / 5
    stretch = run_stretch(emitter, ready, "measure", max(5, min(20_000, int(seconds / step_s))))
    ready.check()
    session.close()
    step_s = stretch.wall_s / len(stretch.step_s)
    rate = params.batch / step_s
    flops = say_count(rate * (ready.operations_per_sample or 0))
    memory = say_size((memory_peak_mib(params.device) or 0) * 2**20)
    settings = f"{params.batch:>6}  {params.precision:<5} {params.tune:<5}"
    return step_s, f"{name:<18}{settings}{say_seconds(step_s):>10}{say_rate(rate):>12}/s{flops:>9}FLOP/s{memory:>11}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune")
    # Without a GPU all forty would take an hour: the small ones then, unless others are named.
    parser.add_argument("--only", default="*" if torch.cuda.is_available() else "*[et]*_cifar10")
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    shortest = (float("inf"), "")
    print(
        f"{'model':<18}{'batch':>6}  {'prec.':<5} {'tune':<5}{'step':>10}{'rate':>14}{'arithmetic':>15}{'memory':>11}"
    )
    with open(os.devnull, "wb") as sink:
        emitter = Emitter(sink.fileno())
        for name in (n for n in MODELS if fnmatch(n, options.only)):
            try:
                step_s, line = one(name, options.tune, options.seconds, emitter)
            except (WorkloadFailure, RuntimeError) as error:
                print(f"{name:<18}failed: {str(error).splitlines()[0]}", flush=True)
                continue
            shortest = min(shortest, (step_s, name))
            print(line, flush=True)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
    print(f"\nshortest step: {say_seconds(shortest[0])} ({shortest[1]})")


if __name__ == "__main__":
    main()
