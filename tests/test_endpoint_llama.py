"""A load on llama.cpp with a random model: tokens are exact by its own count and by its /metrics, through run and compare."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asking import ask
from endpoint_server import known_server

SERVE = """
import sys, time, xllamacpp
settings = xllamacpp.CommonParams()
settings.model.path = sys.argv[1]
settings.hostnames = ["127.0.0.1"]
settings.port = int(sys.argv[2])
settings.n_parallel = 4
settings.n_ctx = 4096 * 4
settings.cpuparams.n_threads = 1
settings.warmup = False
settings.endpoint_metrics = True
server = xllamacpp.Server(settings)
print(server.listening_address, flush=True)
while sys.stdin.readline():
    pass
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if "CI" not in os.environ:
        pytest.importorskip("xllamacpp")
        pytest.importorskip("gguf")
    from tiny_gguf import write_model

    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_model(str(model))
    with known_server() as free:  # a port that was free a moment ago
        port = free.port
    with subprocess.Popen(
        [sys.executable, "-c", SERVE, str(model), str(port)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert b"http" in process.stdout.readline()
        yield f"http://127.0.0.1:{port}/v1"
        process.kill()


def counters(url: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{url.removesuffix('/v1')}/metrics") as answer:
        lines = [line.split() for line in answer.read().decode().split("\n") if line and not line.startswith("#")]
    return {line[0]: float(line[1]) for line in lines}


def ask_json(*words: str) -> dict[str, Any]:
    done = ask(*words, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


LOAD = ("--prompt", "60", "--generate", "12", "--warmup-requests", "0", "--runs", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "unit"),
    [(("--concurrency", "3"), "tokens/s"), (("--rate", "40"), "ms")],
    ids=["closed", "open"],
)
def test_tokens_are_exact_by_usage_and_by_the_servers_counters(
    llama: str, tmp_path: Path, load: tuple[str, str], unit: str
) -> None:
    before = counters(llama)
    ledger = str(tmp_path / "ledger.sqlite3")
    (found,) = ask_json("run", "serve/endpoint", "--url", llama, "--requests", "30", *load, *LOAD, "--ledger", ledger)[
        "results"
    ]
    after, client = counters(llama), found["served"]["client"]
    assert (client["asked"], client["answered"], client["failed"]) == (30, 30, 0)
    assert client["output_tokens_total"] == client["server_output_tokens"] == 30 * 12
    assert client["server_prompt_tokens"] == client["prompt_tokens_total"] - client["cached_tokens_total"]
    # Besides the load there were the two requests that look at the server, of two tokens each.
    name = "llamacpp:tokens_predicted_total"
    assert after[name] - before[name] == 30 * 12 + 4
    assert client["prompt_tokens"] == pytest.approx(60, rel=0.5)
    assert next(one["name"] for one in found["served"]["metrics"]) == "p50_ttft"
    assert found["throughput"]["figure"]["unit"] == unit


@pytest.mark.slow
def test_a_comparison_judges_the_figure_and_the_percentiles(llama: str, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite3")
    with known_server(ttft_s=0.2, itl_s=0.001) as slow:
        found = ask_json(
            "compare", "serve/endpoint", "--model", "any", "--requests", "20", "--concurrency", "2", "--generate", "8",
            "--arm", f"host,url={llama}", "--arm", f"host,url={slow.url}", "--blocks", "4", "--ledger", ledger,
        )  # fmt: skip
    assert found["comparisons"][0]["word"] in ("SLOWER", "INCONCLUSIVE")  # on a busy machine blocks may be disturbed
    judged = {one["name"]: one["pairs"][0] for one in found["compared"]}
    assert set(judged) >= {"p50_ttft", "p50_latency"}
    assert {one["kind"] for one in judged.values()} == {"blocks"}


@pytest.mark.slow
def test_a_list_of_loads_makes_a_curve_with_its_knee(tmp_path: Path) -> None:
    ledger, words = str(tmp_path / "ledger.sqlite3"), ("--requests", "24", "--generate", "1", "--runs", "1")
    # Two slots of 50 ms: a third client only waits.
    with known_server(ttft_s=0.05, most_at_once=2) as server:
        found = ask_json(
            "run", "serve/endpoint", "--url", server.url, "--concurrency", "1,2,6", *words, "--ledger", ledger
        )
    assert len(found["results"]) == 3
    suite, curve = found["suite"]["experiment_id"], found["suite"]["loads"]
    assert (curve["name"], [point["load"] for point in curve["points"]]) == ("concurrency", [1, 2, 6])
    # More than two clients gain nothing, whatever else the machine does meanwhile.
    assert curve["points"][2]["requests_per_s"] < 2 / 0.05
    assert curve["points"][2]["times_s"]["p50_latency"] > 0.1
    picture = tmp_path / "curve.svg"
    assert ask("plot", suite, "-o", str(picture), "--ledger", ledger).code == 0
    assert "latency against load" in picture.read_text()
    report = ask("report", suite, "-o", str(tmp_path / "curve.html"), "--ledger", ledger)
    assert report.code == 0, report.err
    assert "Latency against load" in (tmp_path / "curve.html").read_text()
