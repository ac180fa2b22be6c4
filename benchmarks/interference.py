"""Does a busy neighbour make two equal arms look different? For real: A/A comparisons with a program that burns a core in bursts.

    python benchmarks/interference.py [--experiments 20] [--arm host --arm container] [--train | --gpu]

A neighbour burns one core for the length of two runs, then rests for as long, and so on, while `stackmark compare` measures a
program against itself in six blocks with a margin of 5 %. The program is two processes that wait for each other after every
step, as the threads of a training step do, so a neighbour on either of two cores slows both down. `--train` measures a small
network instead, which takes three minutes per experiment where the program takes one; `--gpu` trains it on the GPU, and the
neighbour multiplies matrices on the same GPU. With several `--arm` the experiments take turns.

Prints one line per experiment: arm, word, named difference, repeated blocks, and the sentence. Expected: no SLOWER or FASTER,
and a named difference in at most 3 of 20 (two arms that do not differ are named different in 5 % by definition). Needs a machine
without other work. Ctrl-C ends it after the experiment in hand, with the totals.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

BURN = "import time\nend = time.monotonic() + {on}\nwhile time.monotonic() < end: pass"
BURN_GPU = """\
import time, torch
a = torch.randn(8192, 8192, device="cuda")
end = time.monotonic() + {on}
while time.monotonic() < end:
    for _ in range(10):
        a @ a
    torch.cuda.synchronize()
"""
TRAIN = ("train/resnet20", "--seconds", "1.5", "--warmup-seconds", "0.5")

PROGRAM = """\
import multiprocessing, sys, time

def half(barrier, steps):
    for _ in range(steps):
        for _ in range(100_000):
            pass
        barrier.wait()

steps, barrier = int(sys.argv[1]), multiprocessing.Barrier(2)
start = time.monotonic()
halves = [multiprocessing.Process(target=half, args=(barrier, steps)) for _ in range(2)]
for process in halves:
    process.start()
for process in halves:
    process.join()
print("steps/s:", steps / (time.monotonic() - start))
"""
# About 1.4 seconds on an undisturbed core of 2024; a run of less than a second is not judged by the load it met.
STEPS = 650


def neighbour(program: str, burst_s: float) -> int:
    """Start a neighbour that runs a program in bursts, and return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    while os.getppid() == parent:
        subprocess.run([sys.executable, "-c", program.format(on=burst_s)], check=False)
        time.sleep(burst_s)
    os._exit(0)


def compare(arm: str, folder: Path, measured: Sequence[str]) -> dict[str, object]:
    argv = [
        sys.executable, "-m", "stackmark", "compare", *measured, "--arm", arm, "--arm", arm, "--blocks", "6", "--margin", "5%",
        "--ledger", str(folder / "ledger.sqlite3"), "--json",
    ]  # fmt: skip
    # A session of its own: Ctrl-C in the terminal ends this benchmark, not the experiment in hand.
    done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True, cwd=folder, start_new_session=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--experiments", type=int, default=20, help="how many with each arm")
    options.add_argument("--arm", action="append", help="host (default) or container; several take turns")
    options.add_argument("--train", action="store_true", help="measure train/resnet20 instead of the program")
    options.add_argument("--gpu", action="store_true", help="measure train/resnet20 on the GPU, with a neighbour on it")
    asked = options.parse_args()
    arms = asked.arm or ["host"]
    stop: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: stop.append(number))
    # A run of the program takes two seconds with its start and end, one of the network four to five, on a GPU eight.
    measured: tuple[str, ...]
    if asked.gpu:
        measured, pid = (*TRAIN, "--device", "cuda", "--batch", "256"), neighbour(BURN_GPU, 16.0)
    elif asked.train:
        measured, pid = (*TRAIN, "--device", "cpu", "--batch", "32"), neighbour(BURN, 9.0)
    else:
        measured = "--cmd", f"python3 program.py {STEPS}", "--metric", "steps/s: ([0-9.]+)"
        pid = neighbour(BURN, 4.0)
    words: Counter[tuple[str, str]] = Counter()
    named: Counter[str] = Counter()
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "program.py").write_text(PROGRAM)
            print(f"{'arm':10} {'word':13} {'named':7} {'repeated':>8}  ratio   sentence")
            for arm in arms * asked.experiments:
                if stop:
                    break
                found = compare(arm, Path(folder), measured)
                pairs = found["comparisons"]
                assert isinstance(pairs, list)
                (pair,) = pairs
                words[arm, pair["word"]] += 1
                named[arm] += pair["difference"] is not None
                start = f"{arm:10} {pair['word']:13} {pair['difference'] or '-':7} {found['blocks_repeated']:8}"
                print(f"{start}  {pair['ratio']:.4f}  {pair['sentence']}", flush=True)
    finally:
        os.killpg(pid, signal.SIGKILL)
    for arm in arms:
        counts = {word: count for (of, word), count in words.items() if of == arm}
        print(f"{arm}: {sum(counts.values())} experiments, {counts}, {named[arm]} named differences")


if __name__ == "__main__":
    main()
