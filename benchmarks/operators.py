"""What op/ says of a product or a copy, beside a bare loop of the framework's own call in the same process, taken in turn.

    python benchmarks/operators.py [--device cuda:0] [--precision bf16,tf32,fp32] [--turns 5]

The bare loop calls on one set of operands, back to back, between two device events (on a CPU between two readings of the clock):
what anybody would write. Ours goes round several sets and checks every result. `ratio` is ours to the bare loop's rate; of large
problems it should be at least 0.9, of small ones it may be below 1 (the bare loop finds its operands in the cache) or far above
(it waits for Python to launch).
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from stackmark.medians import median_of
from stackmark.workloads.op.definition import operations, read_problem
from stackmark.workloads.op.impl.bench import Prepared, Stand
from stackmark.workloads.op.impl.checking import Guard
from stackmark.workloads.op.impl.matrix import prepare_gemm
from stackmark.workloads.op.impl.timing import make_rounds, time_rounds

GPU_SHAPES = [(8192, 8192, 8192), (7680, 48000, 2560), (5124, 9124, 2560), (4096, 7000, 4096), (1760, 128, 1760)]
CPU_SHAPES = [(1024, 1024, 1024), (1760, 128, 1760), (512, 512, 512), (35, 700, 2048)]


def ours(prepared: Prepared, stand: Stand) -> float:
    rounds = make_rounds(prepared, stand.device)
    guard = Guard(prepared, 1.0, stand.device)
    guard.remember(rounds.once)
    return median_of(time_rounds(rounds, stand.device, 0.5, guard.check).call_s).value


def bare(prepared: Prepared, device: torch.device, seconds: float = 0.5) -> float:
    """Seconds of a call, of as many as fit into about half a second."""

    def loop(count: int) -> float:
        if device.type == "cpu":
            begin = time.perf_counter()
            for _ in range(count):
                prepared.call(0)
            return time.perf_counter() - begin
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(count):
            prepared.call(0)
        after.record()
        after.synchronize()
        return float(before.elapsed_time(after) / 1e3)

    one = max(loop(3) / 3, 1e-6)
    count = max(3, min(20_000, int(seconds / one)))
    return loop(count) / count


def in_turn(first: Callable[[], float], second: Callable[[], float], turns: int) -> tuple[float, float]:
    """Medians of both, ABBA: what heats up or slows down in between meets both."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            found[which].append((first, second)[which]())
    return statistics.median(found[0]), statistics.median(found[1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    device = torch.device(options.device)
    shapes = GPU_SHAPES if device.type == "cuda" else CPU_SHAPES
    precisions = (options.precision or ("bf16,tf32,fp32" if device.type == "cuda" else "fp32")).split(",")
    name = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads, not pinned"
    )
    print(f"{name}, PyTorch {torch.__version__}, {options.turns} turns")
    print(f"{'problem':<22}{'precision':<11}{'sets':>5}{'stackmark':>12}{'bare':>12}{'TFLOP/s':>10}{'ratio':>8}")
    for precision in precisions:
        stand = Stand(device, precision, 1)
        for m, n, k in shapes:
            problem = read_problem("gemm", {"m": m, "n": n, "k": k})
            prepared = prepare_gemm(problem, stand)
            prepared.call(0)
            turns = (partial(ours, prepared, stand), partial(bare, prepared, device))
            mine, theirs = in_turn(*turns, options.turns)
            rate = (operations(problem) or 0.0) / mine / 1e12
            print(
                f"{problem!s:<22}{precision:<11}{prepared.copies:>5}{mine * 1e6:>9.1f} µs{theirs * 1e6:>9.1f} µs"
                f"{rate:>10.3f}{theirs / mine:>8.3f}"
            )


if __name__ == "__main__":
    main()
