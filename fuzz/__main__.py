"""`python -m fuzz`: try every target, or one, for so many inputs or so many seconds each."""

import argparse
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fuzz.harness import Tried, fuzz
from fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description="Fuzz the borders of stackmark.")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="only this one; may be repeated")
    how_long = parser.add_mutually_exclusive_group()
    how_long.add_argument("--iterations", type=int, help="mutated inputs of each target")
    how_long.add_argument("--seconds", type=float, help="seconds for each target [default: 10]")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other inputs [default: 1]")
    asked = parser.parse_args()
    seconds = asked.seconds if asked.iterations is not None or asked.seconds is not None else 10.0
    return try_each(dict.fromkeys(asked.target or TARGETS, asked.iterations), seconds, asked.seed)


def try_each(iterations: Mapping[str, int | None], seconds: float | None = None, seed: int = 1) -> int:
    """Fuzz these targets, one after another, with a line for each; 1 where something was found."""
    found = False
    for name, count in iterations.items():
        with tempfile.TemporaryDirectory(prefix="stackmark-fuzz-") as folder:
            tried = fuzz(TARGETS[name], Path(folder), seed=seed, iterations=count, seconds=seconds)
        print(_row(tried), flush=True)
        for finding in tried.findings[:20]:
            print(f"  {finding}", flush=True)
        found = found or bool(tried.findings)
    return int(found)


def _row(one: Tried) -> str:
    return (
        f"{one.target:<22}{one.inputs:>8} inputs  {one.seconds:>7.1f} s  slowest {one.slowest_s:>6.2f} s  "
        f"{len(one.findings):>4} findings"
    )


if __name__ == "__main__":
    sys.exit(main())
