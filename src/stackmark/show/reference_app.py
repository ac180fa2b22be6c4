"""The line of MLPerf Inference's reference application (main.py), made of a run of ours.

    TestScenario.SingleStream qps=163.51, mean=0.0061, time=60.040, queries=9817, tiles=50.0:0.0059,80.0:0.0063,…,99.9:0.0108

Whoever compares with results of that application has lines like it, in mails and slides; `stackmark import` reads ours as well
as theirs. It prints percentiles that hardly anything lies beyond, and so does this line.
"""

import math
import re
from collections.abc import Iterable

from stackmark.experiments.serving import ServingResult
from stackmark.histogram import Histogram
from stackmark.workloads.serve.definition import LATENCY, SINCE_START, Scenario

# Its names of the scenarios.
NAMES: dict[str, Scenario] = {
    "SingleStream": "single-stream",
    "MultiStream": "multi-stream",
    "Server": "server",
    "Offline": "offline",
}
TILES = (50.0, 80.0, 90.0, 95.0, 99.0, 99.9)
# A result of another log: the line, without what stands in front of it.
_LINE = re.compile(r"TestScenario\.(\w{1,40}) qps=[0-9][^\x00-\x1f\x7f]{0,600}")
MOST_LINES = 20


def name_of(scenario: str) -> str:
    return next(name for name, ours in NAMES.items() if ours == scenario)


def reference_line(scenario: str, found: ServingResult) -> str:
    """Return the line of a run. Of offline, latencies are the times at which batches were done, since the start."""
    one = found.latencies.get(LATENCY) or found.latencies.get(SINCE_START)
    if one is None or not one.total or not found.test_s:
        return ""
    queries = found.samples if scenario == "offline" else one.total
    tiles = ",".join(f"{percent:.1f}:{_tile_s(one, percent):.4f}" for percent in TILES)
    mean_s = 1e-9 * (one.mean_ns or 0.0)
    return (
        f"TestScenario.{name_of(scenario)} qps={queries / found.test_s:.2f}, mean={mean_s:.4f}, "
        f"time={found.test_s:.3f}, queries={queries}, tiles={tiles}"
    )


def _tile_s(one: Histogram, percent: float) -> float:
    known = one.percentile_ns(percent)
    if known is None:
        # So few lie beyond it that it is among the slowest, which are kept one by one.
        from_top = one.total - max(1, math.ceil(one.total * percent / 100 - 1e-9))
        slowest = one.slowest_ns or [0]
        known = slowest[min(from_top, len(slowest) - 1)]
    return 1e-9 * known


def lines_of_log(lines: Iterable[str], scenarios: Iterable[str]) -> list[str]:
    """Return the results of these scenarios in somebody's log, in its order; at most the first twenty."""
    wanted = {name_of(one) for one in scenarios}
    found: list[str] = []
    for line in lines:
        match = _LINE.search(line[:2000])
        if match and match[1] in wanted:
            found.append(match[0].rstrip())
            if len(found) == MOST_LINES:
                break
    return found
