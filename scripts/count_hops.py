"""Count the modules of the driver that a command goes through, for docs/architecture.md.

    python scripts/count_hops.py [-v]

A module counts as entered when a function of it is called; what runs while modules are imported does not count. `until the
worker starts` is from the start of the command to the call of the place that starts the first measured worker; the probe is
before it. A hop is a call from one module of stackmark into another, also through a library (click, pydantic); a chain is the
hops on the call stack at one moment. Threads count too.

It runs a program that prints a figure, on the host, in an empty ledger. `-v` lists the modules and the chains.
"""

import argparse
import contextlib
import io
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from stackmark.cli.main import main as stackmark

OWN = ("--cmd", "echo rate: 12.5", "--metric", "rate: ([0-9.]+)")
COMMANDS = {
    "run": ("run", *OWN, "--runs", "1"),
    "compare": ("compare", *OWN, "--arm", "host", "--arm", "host,gpus=none", "--blocks", "1", "--no-primers"),
}


@dataclass
class Hops:
    """What was seen of one command."""

    # In the order in which they were entered first.
    entered: dict[str, None] = field(default_factory=dict)
    # How many until the worker was started, and the chain that started it.
    before_worker: int = 0
    to_worker: tuple[str, ...] = ()
    # The longest one.
    chain: tuple[str, ...] = ()

    def look(self, frame: FrameType, event: str, _argument: Any) -> None:
        """Take note of a call, as `sys.setprofile` tells of it."""
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not _is_ours(module) or not (chain := _chain(frame)):
            return
        self.entered.setdefault(module)
        if len(chain) > len(self.chain):
            self.chain = chain
        if not self.to_worker and module.startswith("stackmark.places") and frame.f_code.co_name == "run":
            task = frame.f_locals.get("task")
            if task is not None and task.do == "run":
                self.before_worker, self.to_worker = len(self.entered), chain


def _is_ours(module: str) -> bool:
    return module == "stackmark" or module.startswith("stackmark.")


def _chain(frame: FrameType | None) -> tuple[str, ...]:
    """The modules on the stack, outermost first; neighbours that are the same count once. None while a module is imported."""
    found: list[str] = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if _is_ours(module):
            if frame.f_code.co_name == "<module>":
                return ()
            if not found or found[-1] != module:
                found.append(module)
        frame = frame.f_back
    return tuple(reversed(found))


def count(arguments: tuple[str, ...]) -> Hops:
    hops = Hops()
    threading.setprofile(hops.look)
    sys.setprofile(hops.look)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
            code = stackmark(list(arguments))
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if code:
        raise SystemExit(f"stackmark {' '.join(arguments)} ended with {code}: {said.getvalue()}")
    return hops


def report(name: str, verbose: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["STACKMARK_LEDGER"] = f"{folder}/ledger.sqlite3"
        hops = count(COMMANDS[name])
    print(
        f"{name}: {hops.before_worker} modules until the worker starts, by a chain of {len(hops.to_worker) - 1} hops; "
        f"{len(hops.entered)} modules in all, the longest chain has {len(hops.chain) - 1} hops"
    )
    layers = Counter(module.partition(".")[2].partition(".")[0] for module in [*hops.entered][: hops.before_worker])
    print(f"  until the worker starts: {', '.join(f'{layer} {number}' for layer, number in layers.most_common())}")
    if verbose:
        for number, module in enumerate(hops.entered, 1):
            print(f"  {number:3} {module}")
        print(f"  to the worker: {' > '.join(hops.to_worker)}")
        print(f"  longest chain: {' > '.join(hops.chain)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "command", nargs="?", choices=COMMANDS, help="count this one; default: each, in a process of its own"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="list the modules and the chains")
    asked = parser.parse_args()
    if asked.command:
        report(asked.command, asked.verbose)
        return
    for name in COMMANDS:
        subprocess.run([sys.executable, __file__, name, *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
