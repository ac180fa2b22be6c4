"""What a launch costs: one tiny operator, many times.

Eager is the host's time to enqueue one (on a CPU, to do one). In a graph it is the device's time of one of many that were
recorded once, each of which waits for the one before: what is left when the host is out of the way.
"""

import time
from collections.abc import Callable
from itertools import pairwise

import torch

from stackmark.workloads.op.impl.bench import Stand
from stackmark.workloads.op.impl.stretch import wait

# Few enough for the device's queue, which holds about a thousand: past it the host would wait for the device.
LAUNCHES, SAMPLES = 200, 50


def tiny_operator(stand: Stand) -> Callable[[], None]:
    line = torch.zeros(1, device=stand.device)

    def add() -> None:
        line.add_(1.0)

    for _ in range(LAUNCHES):
        add()
    wait(stand)
    return add


def eager(tiny: Callable[[], None], stand: Stand) -> list[float]:
    taken = []
    for _ in range(SAMPLES):
        wait(stand)
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            tiny()
        taken.append((time.perf_counter() - begin) / LAUNCHES)
    return taken


def graph(tiny: Callable[[], None], stand: Stand) -> list[float]:
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        for _ in range(LAUNCHES):
            tiny()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(SAMPLES + 1)]
    recorded.replay()
    marks[0].record()
    for mark in marks[1:]:
        recorded.replay()
        mark.record()
    wait(stand)
    return [before.elapsed_time(after) / 1e3 / LAUNCHES for before, after in pairwise(marks)]
