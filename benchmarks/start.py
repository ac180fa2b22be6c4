"""How long `stackmark --help` takes beyond starting Python: the time before a person sees anything.

The two commands are run in turn, so that a machine that is busy for a while is busy for both, and their difference is taken
within each turn. A command is not run for the first time here: the first run writes byte code, which is the installer's work.

    python benchmarks/start.py [TURNS]

The goal is 0.15 s; it exits with 1 where the median is above.
"""

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


def main() -> int:
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
