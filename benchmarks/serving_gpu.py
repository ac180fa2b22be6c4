"""What docs/serving.md says of a GPU, in one command under ten minutes: LoadGen's scenarios, and a container against the host.

    python benchmarks/serving_gpu.py networks [--device cuda:0] [--image IMAGE] [--ledger FILE]
    python benchmarks/serving_gpu.py decoders
    python benchmarks/serving_gpu.py decoders --device cpu --network resnet20 --decoder gpt2-tiny --seconds 1     (a rehearsal)

Each part is a command of stackmark, which is printed before its result; a part that fails or takes too long says so, and the
next one runs. A decoder's tokens per second stand next to what memory allows at the most: to generate a token for each sample of
a batch all weights are read once, in the precision in which they are kept, at the bandwidth of a read (`stackmark ceilings`).
Keys, values and the prompt come on top of that, so the share says how much the decoder could gain at the most.
"""

import argparse
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from stackmark.workloads.serve.impl.decoder import DECODERS

BYTES = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
DECODER = "tokens of "


def parts(asked: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Return what is measured, and the command."""
    network, quick = f"serve/{asked.network}", ["--device", asked.device, "--seconds", f"{asked.seconds:g}s"]
    one = [*quick, "--runs", "3"]
    if "networks" in asked.part:
        yield "one image at a time: p90", ["run", network, *_precision(asked), *one]
        yield "all images at once", ["run", network, "--scenario", "offline", *_precision(asked), *one]
        yield "the highest rate within the bound", [
            "run", network, "--scenario", "server", "--find-rate", *_precision(asked), *_bound(asked), *quick, "--runs", "1",
        ]  # fmt: skip
    if "decoders" in asked.part:
        # What it shows is the memory's bandwidth: one precision is enough.
        yield "what memory allows", ["ceilings", "--device", asked.device, "--precision", "fp32", "--budget", "10s"]
        for decoder in asked.decoder.split(","):
            for batch in (1, 64):
                yield f"{DECODER}serve/{decoder}, {batch} at a time", [
                    "run", f"serve/{decoder}", "--scenario", "offline", "--batch", str(batch), *_precision(asked), *quick,
                    "--runs", "2", "--json",
                ]  # fmt: skip
    if asked.image and "networks" in asked.part:
        arms = ["--arm", "host", "--arm", f"container,image={asked.image}"]
        yield "host against container", ["compare", network, *arms, *_precision(asked), *quick, "--blocks", "6"]


def _precision(asked: argparse.Namespace) -> list[str]:
    return [] if asked.device == "cpu" else ["--precision", "bf16"]


def _bound(asked: argparse.Namespace) -> list[str]:
    return ["--latency-bound", asked.bound] if asked.bound else []


def carried_out(command: list[str], limit_s: float, *, captured: bool) -> tuple[int, str]:
    """Run a command of stackmark; interrupt one that takes too long, as a person would."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdout=subprocess.PIPE if captured else None,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        print(f"it took more than {limit_s:g} s and is ended", flush=True)
        process.send_signal(signal.SIGINT)
        try:
            said, _ = process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
    return process.returncode, said or ""


def read_bytes_per_s(ledger: str) -> float | None:
    """Return the bandwidth of a read, of the latest ceilings that the ledger keeps."""
    code, said = carried_out(["stackmark", "ceilings", "--show", "--json", "--ledger", ledger], 60, captured=True)
    found = json.loads(said).get("ceilings") if code == 0 and said else None
    return found[-1]["read_bytes_per_s"] if found else None


def say_decoder(result: dict[str, Any], bandwidth: float | None) -> str:
    """Say tokens per second, and their share of what reading the weights once for each step allows."""
    params, name = result["spec"]["params"], result["workload"].partition("/")[2]
    with torch.device("meta"):
        net = DECODERS[name].build(params["prompt"] + params["generate"])
    weights = sum(one.numel() for one in net.parameters()) * BYTES[params["precision"]]
    rate = result["throughput"]["rate_per_s"] * params["generate"]
    said = f"{rate:,.0f} tokens/s, batch {params['batch']}, {params['precision']}, {weights / 1e9:.3g} GB of weights"
    if not bandwidth:
        return f"{said}; no bandwidth is known"
    limit = params["batch"] * bandwidth / weights
    return f"{said}; memory ({bandwidth / 1e9:,.0f} GB/s read) allows {limit:,.0f} tokens/s: {rate / limit:.1%}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", nargs="+", choices=("networks", "decoders"))
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--network", default="resnet50")
    parser.add_argument("--decoder", default="gpt2,llama3-1b", help="with commas")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--bound", default="", help="of the latency in server; MLPerf's unless given")
    parser.add_argument("--image", default="", help="compare the host with a container of this image too")
    parser.add_argument("--ledger", default="serving_gpu.sqlite3")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds after which no further part begins")
    parser.add_argument("--each", type=float, default=180.0, help="seconds after which a part is ended")
    asked = parser.parse_args()
    failed, began = 0, time.monotonic()
    for what, words in parts(asked):
        if time.monotonic() - began > asked.limit:
            print(f"\n## {what}: not begun, {asked.limit:g} s are over", flush=True)
            continue
        command = ["stackmark", *words, "--ledger", asked.ledger]
        print(f"\n## {what}\n$ {shlex.join(command)}", flush=True)
        decoder = what.startswith(DECODER)
        code, said = carried_out(command, asked.each, captured=decoder)
        failed += code != 0
        if decoder and code == 0:
            print(say_decoder(json.loads(said)["results"][0], read_bytes_per_s(asked.ledger)), flush=True)
    print(f"\ntook {time.monotonic() - began:.0f} s; {failed} parts failed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
