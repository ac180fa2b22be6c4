"""What `stackmark ceilings` says of a GPU, beside bare loops of torch.matmul and Tensor.copy_ in the same minutes, in turn.

    python benchmarks/ceilings.py [--device cuda:0] [--precision bf16,tf32,fp32] [--turns 2]

The bare loops are what anybody would write: after a second of rest twenty products between two events (cold), and products for
three seconds of which the last half counts (sustained), of 4096, 8192 and 16384, the best of which is taken; and a copy of 4 GiB.
`ratio` is ours to theirs, and should be 0.97 at the least.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch

from stackmark.events import OpRow
from stackmark.medians import median_of
from stackmark.workloads.op.definition import OpParams, Precision
from stackmark.workloads.op.impl import ceilings
from stackmark.workloads.op.impl.bench import Stand, set_precision
from stackmark.workloads.op.impl.ceilings import GPU_SIZES

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "tf32": torch.float32, "fp32": torch.float32}
SUSTAINED_S = 3.0


def ours(device: str, precision: Precision) -> dict[str, float]:
    params = OpParams(
        device=device,
        precision=precision,
        set=ceilings.ONE_PRECISION,
        rows="0-999",
        budget=0,
        row_seconds=0.5,
        threads=0,
    )
    rows: list[OpRow] = []
    ceilings.run_ceilings(params, rows.append)
    return {
        str(row.shape.get("state", row.shape["what"])): (row.operations or row.least_bytes or 0.0)
        / median_of(row.call_s).value
        for row in rows
        if row.shape["what"] in ("matrix", "copy")
    }


def between(calls: int, call: Callable[[], object]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(calls):
        call()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) / 1e3 / calls


def bare(device: str, precision: str) -> dict[str, float]:
    set_precision(Stand(torch.device(device), precision, 1))
    best = {"cold": 0.0, "sustained": 0.0}
    for size in GPU_SIZES:
        left, right = (torch.randn(size, size, device=device, dtype=DTYPES[precision]) for _ in range(2))
        for _ in range(3):
            torch.matmul(left, right)
        torch.cuda.synchronize()
        time.sleep(1)
        best["cold"] = max(best["cold"], 2 * size**3 / between(20, partial(torch.matmul, left, right)))
        rates = []
        began = time.perf_counter()
        each = max(1, int(0.05 / between(2, partial(torch.matmul, left, right))))
        while (at := time.perf_counter() - began) < SUSTAINED_S:
            rate = 2 * size**3 / between(each, partial(torch.matmul, left, right))
            rates += [rate] if at >= SUSTAINED_S / 2 else []
        best["sustained"] = max(best["sustained"], statistics.median(rates))
    source = torch.randn(2**30, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    best["copy"] = 2 * 2**32 / between(50, lambda: target.copy_(source))
    return best


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--precision", default="bf16,tf32,fp32")
    parser.add_argument("--turns", type=int, default=2)
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name(options.device)}, PyTorch {torch.__version__}, {options.turns} turns")
    print(f"{'limit':<24}{'ours':>14}{'bare':>14}{'ratio':>8}")
    for precision in options.precision.split(","):
        found: tuple[list[dict[str, float]], list[dict[str, float]]] = ([], [])
        for turn in range(options.turns):
            for which in (0, 1) if turn % 2 == 0 else (1, 0):
                found[which].append((ours, bare)[which](options.device, precision))
        for name in ("cold", "sustained", "copy"):
            mine, theirs = (statistics.median(one[name] for one in some) for some in found)
            unit, scale = ("GB/s", 1e9) if name == "copy" else ("TFLOP/s", 1e12)
            print(
                f"{precision + ' ' + name:<24}{mine / scale:>9.1f} {unit:<4}{theirs / scale:>9.1f}{mine / theirs:>12.3f}"
            )


if __name__ == "__main__":
    main()
