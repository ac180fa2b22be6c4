"""Does a busy neighbour make two equal arms look different? For real: A/A comparisons with a program that burns a core in bursts.

    python benchmarks/interference.py [--experiments 20] [--arm host|container] [--seconds 1.5]

A neighbour burns one core for the length of two runs, then rests for as long, and so on, while `stackmark compare` measures a
small network against itself in six blocks. Prints one line per experiment: the word, the named difference, how many blocks were
repeated, and the ratio. Expected: no SLOWER or FASTER, and a named difference in at most 3 of 20 (two arms that do not differ are
named different in 5 % by definition). Takes three minutes per experiment on two cores; needs a machine
without other work.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BURN = "import time\nend = time.monotonic() + {on}\nwhile time.monotonic() < end: pass"


def neighbour(burst_s: float) -> int:
    """Start the program that burns a core in bursts, and return its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    while os.getppid() == parent:
        subprocess.run([sys.executable, "-c", BURN.format(on=burst_s)], check=False)
        time.sleep(burst_s)
    os._exit(0)


def compare(arm: str, seconds: float, ledger: Path) -> dict[str, object]:
    argv = [
        sys.executable, "-m", "stackmark", "compare", "train/resnet20", "--device", "cpu", "--batch", "32",
        "--seconds", str(seconds), "--warmup-seconds", "0.5", "--arm", arm, "--arm", arm, "--blocks", "6", "--margin", "5%",
        "--ledger", str(ledger), "--json",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--experiments", type=int, default=20)
    options.add_argument("--arm", default="host")
    options.add_argument("--seconds", type=float, default=1.5)
    asked = options.parse_args()
    # A run takes its seconds, and some three to start, warm up and end.
    pid = neighbour(2 * (asked.seconds + 3.0))
    words: list[str] = []
    named = 0
    try:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{'word':13} {'named':7} {'repeated':>8}  ratio   sentence")
            for _ in range(asked.experiments):
                found = compare(asked.arm, asked.seconds, Path(folder) / "ledger.sqlite3")
                pairs = found["comparisons"]
                assert isinstance(pairs, list)
                (pair,) = pairs
                words.append(pair["word"])
                named += pair["difference"] is not None
                start = f"{pair['word']:13} {pair['difference'] or '-':7} {found['blocks_repeated']:8}"
                print(f"{start}  {pair['ratio']:.4f}  {pair['sentence'][:110]}", flush=True)
    finally:
        os.killpg(pid, signal.SIGKILL)
    wrong = sum(word in ("SLOWER", "FASTER") for word in words)
    print(f"{len(words)} experiments on {asked.arm}: {wrong} false words, {named} named differences")


if __name__ == "__main__":
    main()
