"""What the path around a network costs: `serve/empty` with LoadGen, in a table.

    python benchmarks/loadgen.py [--seconds 5]

Single-stream: microseconds of a query; offline: samples per second with batches of 64. LoadGen by itself, driven from Python,
takes 1.5 to 5 µs a query and gives 459,000 samples per second on two cores.
"""

import argparse

from stackmark.workloads.serve.definition import Scenario
from stackmark.workloads.serve.impl.loadgen import Load, library, run_test
from stackmark.workloads.serve.impl.network import nothing

ROWS: tuple[tuple[Scenario, int, float], ...] = (
    ("single-stream", 1, 3e-6),
    ("server", 8, 0.0),
    ("offline", 64, 300_000.0),
)
SERVER_RATE = 5000.0
RATES = {"single-stream": "result_qps_with_loadgen_overhead", "server": "result_completed_samples_per_sec"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    loadgen = library()
    print(f"{'scenario':<14}  {'p50':>9}  {'p99':>9}  {'a second':>12}  valid")
    for scenario, batch, expected in ROWS:
        load = Load(scenario, seconds, 1000, 64, 1, expected, SERVER_RATE, 0.1)
        found, _ = run_test(loadgen, load, nothing, batch)
        if scenario == "offline":
            times, rate = ["", ""], found.number("result_samples_per_second")
        else:
            times = [f"{1e6 * found.percentile_s(percent):.1f} µs" for percent in (50, 99)]
            rate = found.number(RATES[scenario])
        print(f"{scenario:<14}  {times[0]:>9}  {times[1]:>9}  {rate:>12,.0f}  {found.valid}")


if __name__ == "__main__":
    main()
