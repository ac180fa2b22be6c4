"""How long `stackmark --help` takes beyond starting Python: the time before a person sees anything.

The two commands are run in turn, so that a machine that is busy for a while is busy for both, and their difference is taken
within each turn. A command is not run for the first time here: the first run writes byte code, which is the installer's work.

    python benchmarks/start.py [TURNS]

The goal is 0.15 s; it exits with 1 where the median is above.

    python benchmarks/start.py set-up [cpu|cuda:0] [TURNS]

times the set-up of a training run (train/resnet50_v1.5 on a GPU, train/resnet20 on a CPU; --tune fast) by its parts instead:
in wall time, in CPU time, which other programs disturb less, and in modules imported. `torch's optimizer` is the run with the
optimizer's class as torch has it, which imports torch's compiler; `ours` is the run as it is. Each is a fresh process.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

GOAL_S = 0.15
FEWEST_TURNS = 10
SOURCE = Path(__file__).resolve().parents[1] / "src"
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "stackmark --help": ("-m", "stackmark", "--help"),
    "stackmark run --help": ("-m", "stackmark", "run", "--help"),
}
BASE = "python -c pass"


def seconds(arguments: tuple[str, ...]) -> float:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    begin = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


# In a fresh process: the parts of the set-up, as [name, seconds, CPU seconds, modules].
SET_UP = """
import json, sys, time
from contextlib import contextmanager
kind, device = sys.argv[1:]
parts = []
@contextmanager
def part(name, note=""):
    wall, cpu, modules = time.perf_counter(), time.process_time(), len(sys.modules)
    yield
    parts.append([name, time.perf_counter() - wall, time.process_time() - cpu, len(sys.modules) - modules])
with part("import torch"):
    import torch
with part("import ours"):
    from stackmark.workloads.train.definition import TrainParams
    from stackmark.workloads.train.impl import optimizer, train
    from stackmark.workloads.train.zoo import MODELS
if kind != "ours":
    optimizer.without_compiler = lambda given: given
gpu = device != "cpu"
model = MODELS["resnet50_v1.5" if gpu else "resnet20"]
params = TrainParams.model_validate({
    "device": device, "seconds": 1.0, "at_least_steps": 0, "warmup_steps": 0, "warmup_seconds": 0.0, "batch": 64 if gpu else 4,
    "precision": "bf16" if gpu else "fp32", "tune": "fast", "optimizer": "momentum", "classes": model.classes, "layout": "nhwc",
    "autotune": gpu, "fused": True, "cuda_graph": gpu, "compile": False, "threads": 0, "data_workers": 0, "learning_rate": 0.01,
})
class Rig:
    part = staticmethod(part)
    def flag(self, sentence): ...
with part("all after the imports"):
    next(train.run(model.name, params, Rig()))
print(json.dumps([*parts, ["process", 0.0, time.process_time(), len(sys.modules)]]))
"""


def set_up(device: str, turns: int) -> int:
    """Print the parts of the set-up, with torch's own optimizer and with ours, in turn."""
    kinds = ("torch's optimizer", "ours")
    found: dict[str, list[dict[str, list[float]]]] = {kind: [] for kind in kinds}
    for turn in range(-1, turns):  # the first one writes byte code and is not counted
        for kind in kinds[:: 1 if turn % 2 else -1]:
            done = subprocess.run(
                [sys.executable, "-c", SET_UP, kind, device],
                env={**os.environ, "PYTHONPATH": str(SOURCE)}, stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            if turn >= 0:
                found[kind].append({name: numbers for name, *numbers in json.loads(done.stdout)})
    print(f"{turns} turns on {device}; medians\n")
    print(f"{'':<24}" + "".join(f"{kind:>32}" for kind in kinds))
    print(f"{'part':<24}" + f"{'s':>12}{'CPU s':>10}{'modules':>10}" * len(kinds))
    for name in found["ours"][0]:
        line = f"{name:<24}"
        for kind in kinds:
            wall, cpu, modules = (statistics.median(one[name][n] for one in found[kind]) for n in range(3))
            line += f"{'' if name == 'process' else f'{wall:.2f}':>12}{cpu:>10.2f}{modules:>10.0f}"
        print(line)
    return 0


def main() -> int:
    if sys.argv[1:2] == ["set-up"]:
        return set_up((sys.argv[2:3] or ["cpu"])[0], int((sys.argv[3:4] or ["5"])[0]))
    turns = max(FEWEST_TURNS, int(sys.argv[1])) if len(sys.argv) > 1 else 2 * FEWEST_TURNS
    for arguments in COMMANDS.values():
        seconds(arguments)
    taken: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for turn in range(turns):
        # There and back, so that none is always the first.
        for name in list(COMMANDS)[:: 1 if turn % 2 else -1]:
            taken[name].append(seconds(COMMANDS[name]))
    print(f"{turns} turns, Python {sys.version.split()[0]}; seconds\n")
    print(
        f"{'command':<22} {'median':>7} {'lowest':>7} {'highest':>7}   {'more than Python: median':>24} {'quartiles':>15}"
    )
    more = {name: [a - b for a, b in zip(times, taken[BASE], strict=True)] for name, times in taken.items()}
    for name, times in taken.items():
        line = f"{name:<22} {statistics.median(times):7.3f} {min(times):7.3f} {max(times):7.3f}"
        if name != BASE:
            low, _, high = statistics.quantiles(more[name], n=4)
            line += f"   {statistics.median(more[name]):24.3f} {f'{low:.3f} to {high:.3f}':>15}"
        print(line)
    reached = statistics.median(more["stackmark --help"]) <= GOAL_S
    print(
        f"\nstackmark --help is to take at most {GOAL_S} s more than Python: {'it does' if reached else 'IT DOES NOT'}"
    )
    return 0 if reached else 1


if __name__ == "__main__":
    sys.exit(main())
