"""A server's own counters (`/metrics`, Prometheus text) before and after a load, compared with what its answers said."""

from collections.abc import Mapping, Sequence

from stackmark.workloads.serve.impl.client.load import Record

# Of each server: what it calls the tokens of prompts that it computed, and those that it generated.
PROMPT = ("llamacpp:prompt_tokens_total", "vllm:prompt_tokens_total", "sglang:prompt_tokens_total")
OUTPUT = ("llamacpp:tokens_predicted_total", "vllm:generation_tokens_total", "sglang:generation_tokens_total")
# llama.cpp counts what it computed: without what it took from its cache.
WITHOUT_CACHED = ("llamacpp:",)
MOST_BYTES = 16 * 2**20


def read_counters(text: str) -> dict[str, float]:
    """Sum each counter that we know over its labels (models, engines)."""
    found: dict[str, float] = {}
    for line in text[:MOST_BYTES].split("\n"):
        name = line.partition("{")[0].partition(" ")[0]
        if name not in PROMPT and name not in OUTPUT:
            continue
        try:
            value = float(line.rpartition("}")[2].split()[0] if "{" in line else line.split()[1])
        except (ValueError, IndexError):
            continue
        if 0 <= value < 1e15:
            found[name] = found.get(name, 0.0) + value
    return found


def differences(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, float]:
    return {name: after[name] - before[name] for name in after if name in before and after[name] >= before[name]}


def compared_with(counted: Mapping[str, float], records: Sequence[Record]) -> list[tuple[str, float, float]]:
    """Return what a server counted next to what its answers said: what of, the server's, the answers'."""
    good = [one for one in records if not one.failure]
    found = []
    for what, names in (("prompt", PROMPT), ("output", OUTPUT)):
        name = next((one for one in names if one in counted), None)
        if name is None:
            continue
        ours = sum(max(0, one.prompt if what == "prompt" else one.output) for one in good)
        if what == "prompt" and name.startswith(WITHOUT_CACHED):
            ours -= sum(max(0, one.cached) for one in good)
        found.append((what, counted[name], float(ours)))
    return found
