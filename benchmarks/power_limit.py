"""How long a chip that rested stays at its highest clock under full load: the rate of products, one after another.

    python benchmarks/power_limit.py [--device cuda:0] [--products bf16:4096,bf16:8192,bf16:16384,tf32:8192,fp8:8192,fp32:8192]

For each product: five calls, a second of rest, then calls for a second. A column is the median of the calls that began in those
milliseconds; a long call may begin in none of some columns. On a GPU two events enclose each call.
"""

import argparse
import time
from itertools import pairwise
from statistics import median

import torch

from stackmark.workloads.op.definition import read_problem
from stackmark.workloads.op.impl.bench import Prepared, Stand
from stackmark.workloads.op.impl.matrix import EIGHT_BITS, prepare_gemm

EDGES_MS = (0, 2, 5, 10, 20, 40, 60, 80, 100, 150, 200, 300, 500, 1000)
PRODUCTS = "bf16:4096,bf16:8192,bf16:16384,tf32:8192,fp8:8192,fp32:8192"
# Calls that the device has in its queue, so that it never waits for the host.
AHEAD = 5


def moments_ms(prepared: Prepared, device: torch.device, seconds: float) -> list[float]:
    """When each call ended, from the beginning of the first."""
    for number in range(5):
        prepared.call(number % prepared.copies)
    if device.type == "cpu":
        time.sleep(1)
        begin = time.perf_counter()
        ended = [0.0]
        while ended[-1] < 1e3 * seconds:
            prepared.call(len(ended) % prepared.copies)
            ended.append(1e3 * (time.perf_counter() - begin))
        return ended
    torch.cuda.synchronize(device)
    time.sleep(1)
    marks = [torch.cuda.Event(enable_timing=True)]
    marks[0].record()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        prepared.call(len(marks) % prepared.copies)
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        if len(marks) > AHEAD:
            marks[-AHEAD].synchronize()
    marks[-1].synchronize()
    return [float(marks[0].elapsed_time(mark)) for mark in marks]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--products", default=PRODUCTS if torch.cuda.is_available() else "fp32:1024")
    options = parser.parse_args()
    device = torch.device(options.device)
    print("TFLOP/s in the milliseconds from … to …")
    print(f"{'product':<14}" + "".join(f"{f'{low}–{high}':>9}" for low, high in pairwise(EDGES_MS)))
    for product in options.products.split(","):
        precision, _, text = product.partition(":")
        size, stand = int(text), Stand(device, precision, 1)
        shape = {"m": size, "n": size, "k": size, "a_t": precision in EIGHT_BITS, "b_t": False}
        ended = moments_ms(prepare_gemm(read_problem("gemm", shape), stand), device, EDGES_MS[-1] / 1e3)
        cells = []
        for low, high in pairwise(EDGES_MS):
            calls = [after - before for before, after in pairwise(ended) if low <= before < high]
            cells.append(f"{2 * size**3 / median(calls) / 1e9:>9.3g}" if calls else f"{'':>9}")
        print(f"{product:<14}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
