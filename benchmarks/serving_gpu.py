"""What docs/serving.md says of a GPU, in one command under ten minutes: LoadGen's scenarios, and a container against the host.

    python benchmarks/serving_gpu.py [--device cuda:0] [--image IMAGE] [--ledger FILE]
    python benchmarks/serving_gpu.py --device cpu --network resnet20 --decoder gpt2-tiny --seconds 1     (a rehearsal)

Each part is a command of stackmark, which is printed before its result; a part that fails says so, and the next one runs. The
decoder's tokens per second stand next to what reading its weights once for each token would allow (`stackmark ceilings`).
"""

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator


def parts(asked: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Return what is measured, and the command."""
    network, quick = f"serve/{asked.network}", ["--device", asked.device, "--seconds", f"{asked.seconds:g}s"]
    one = [*quick, "--runs", "3"]
    yield "one image at a time: p90", ["run", network, *one]
    yield "all images at once", ["run", network, "--scenario", "offline", *_precision(asked), *one]
    yield "the highest rate within the bound", [
        "run", network, "--scenario", "server", "--find-rate", *_precision(asked), *_bound(asked), *quick, "--runs", "1",
    ]  # fmt: skip
    for batch in (1, 64):
        yield f"tokens of {batch} prompts at a time", [
            "run", f"serve/{asked.decoder}", "--scenario", "offline", "--batch", str(batch), *one, "--details",
        ]  # fmt: skip
    if asked.device != "cpu":
        yield "what memory allows", ["ceilings", "--device", asked.device]
    if asked.image:
        arms = ["--arm", "host", "--arm", f"container,image={asked.image}"]
        yield "host against container", ["compare", network, *arms, *quick, "--blocks", "6"]


def _precision(asked: argparse.Namespace) -> list[str]:
    return [] if asked.device == "cpu" else ["--precision", "bf16"]


def _bound(asked: argparse.Namespace) -> list[str]:
    return ["--latency-bound", asked.bound] if asked.bound else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--decoder", default="llama3-1b")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--bound", default="", help="of the latency in server; MLPerf's unless given")
    parser.add_argument("--image", default="", help="compare the host with a container of this image too")
    parser.add_argument("--ledger", default="serving_gpu.sqlite3")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds after which no further part begins")
    asked = parser.parse_args()
    failed, began = 0, time.monotonic()
    for what, words in parts(asked):
        if time.monotonic() - began > asked.limit:
            print(f"\n## {what}: not begun, {asked.limit:g} s are over", flush=True)
            continue
        command = ["stackmark", *words, "--ledger", asked.ledger]
        print(f"\n## {what}\n$ {shlex.join(command)}", flush=True)
        done = subprocess.run([sys.executable, "-m", *command], check=False)
        failed += done.returncode != 0
    print(f"\ntook {time.monotonic() - began:.0f} s; {failed} parts failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
