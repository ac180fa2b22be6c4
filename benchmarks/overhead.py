"""What the harness costs: per step with an empty step, and on a GPU against a bare hand-written loop of the same model.

    python benchmarks/overhead.py [--pairs 10]

The empty step isolates the harness: its loop, its boundary marks, its helper thread. The bare loop is what a careful person
would write by hand, with the same model, the same arithmetic and one synchronisation at either end; both are built in one
process, run alternately (ABBA), and compared by wall clock.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable

import torch

from stackmark.spec import Request
from stackmark.worker.clock import run_stretch
from stackmark.worker.run import Bench
from stackmark.worker.stream import Emitter
from stackmark.workloads.train.definition import TrainParams
from stackmark.workloads.train.impl import nets, train
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import TimedSteps

EMPTY_STEPS = 100_000
REPEATS = 7
# The model with the shortest step at its default batch: benchmarks/models.py prints which it is.
SHORTEST = "trivial_cifar10"


def nothing() -> None: ...


def empty_step_cost(emitter: Emitter, device: str) -> tuple[float, float]:
    """Microseconds a step that the harness adds to an empty loop: median and spread (MAD) of several."""
    costs = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        for _ in range(EMPTY_STEPS):
            nothing()
        bare_s = time.perf_counter() - begin
        stretch = run_stretch(emitter, TimedSteps(nothing, device, "step", 1), "measure", EMPTY_STEPS)
        costs.append(1e6 * (stretch.wall_s - bare_s) / EMPTY_STEPS)
    middle = statistics.median(costs)
    return middle, statistics.median(abs(cost - middle) for cost in costs)


def shortest_step_s(emitter: Emitter, bench: Bench, device: str) -> float:
    params = spec_of(bench, SHORTEST, device=device, tune="fast")
    session = train.run(SHORTEST, params, bench)
    ready = next(session)
    run_stretch(emitter, ready, "warm-up", 50)
    step_s = statistics.median(run_stretch(emitter, ready, "measure", 200).step_s)
    session.close()
    return step_s


def spec_of(bench: Bench, name: str, **typed: str | int | float | bool) -> TrainParams:
    params, _ = train.probe(Request(workload=f"train/{name}", params=dict(typed)), bench)
    assert isinstance(params, TrainParams)
    return params


def hand_written(params: TrainParams, graph: bool, compiled: bool) -> Callable[[int], float]:
    """A training loop as a careful person writes it; gives the seconds of so many steps."""
    model, device = MODELS["resnet50_v1.5"], torch.device(params.device)
    torch.manual_seed(1)
    with device:
        net = nets.build(model, model.classes)
    net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images, labels = (t[0] for t in nets.synthetic(model, params.batch, model.classes, device, 1))
    images = images.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=4e-5, fused=True)
    forward = torch.compile(net) if compiled else net

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(forward(images).float(), labels)
        loss.backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(4):
            step()
    torch.cuda.current_stream().wait_stream(side)
    run: Callable[[], None] = step
    if graph:
        optimizer.zero_grad(set_to_none=True)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            step()
        run = captured.replay

    def timed(steps: int) -> float:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(steps):
            run()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    return timed


def against_bare_loop(
    emitter: Emitter, bench: Bench, batch: int, tune: str, pairs: int, seconds: float
) -> tuple[float, ...]:
    """Ratio of the harness's rate to the bare loop's, with its 95 % interval over pairs."""
    graph = tune != "off"
    params = spec_of(bench, "resnet50_v1.5", device="cuda:0", batch=batch, tune=tune, precision="bf16", layout="nhwc",
                     fused=True, autotune=True)  # fmt: skip
    session = train.run("resnet50_v1.5", params, bench)
    ready = next(session)
    bare = hand_written(params, graph, compiled=tune == "max")
    bare(20)
    steps = max(20, math.ceil(seconds * 20 / bare(20)))

    def harness(count: int) -> float:
        return run_stretch(emitter, ready, "measure", count).wall_s

    harness(steps)
    logs = []
    for pair in range(pairs):
        times = {}
        for name, run in (("a", harness), ("b", bare)) if pair % 2 else (("b", bare), ("a", harness)):
            times[name] = run(steps)
        logs.append(math.log(times["b"] / times["a"]))
    next(session, None)
    from stackmark.verdict.student import t_quantile

    mean = statistics.mean(logs)
    reach = t_quantile(0.975, pairs - 1) * statistics.stdev(logs) / math.sqrt(pairs)
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), steps


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--tune", default="off,fast,max")
    parser.add_argument("--batch", default="64,256")
    options = parser.parse_args()
    with open(os.devnull, "wb") as sink:
        emitter = Emitter(sink.fileno())
        bench = Bench(emitter)
        print(f"{'harness with an empty step':<30}{'µs a step':>10}{'spread':>9}   share of the shortest default step")
        for device in ("cpu", *(["cuda:0"] if torch.cuda.is_available() else [])):
            cost, spread = empty_step_cost(emitter, device)
            shortest = 1e6 * shortest_step_s(emitter, bench, device)
            share = f"{100 * cost / shortest:.3f} % of {shortest:,.0f} µs ({SHORTEST})"
            print(f"{device:<30}{cost:>10.3f}{spread:>9.3f}   {share}", flush=True)
        if not torch.cuda.is_available():
            print("no GPU here: the ratio to a bare loop is measured on one")
            return
        print(f"\n{'resnet50_v1.5, bf16, against a bare loop':<44}{'ratio':>8}  95 % interval      steps × pairs")
        for tune in options.tune.split(","):
            for batch in map(int, options.batch.split(",")):
                ratio, low, high, steps = against_bare_loop(emitter, bench, batch, tune, options.pairs, options.seconds)
                label = f"tune {tune}, batch {batch}"
                print(f"{label:<44}{ratio:>8.4f}  {low:.4f} … {high:.4f}  {steps:.0f} × {options.pairs}", flush=True)


if __name__ == "__main__":
    main()
