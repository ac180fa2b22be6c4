"""Networks that answer LoadGen's queries: the four scenarios, their figures, what LoadGen says, and what breaks a test."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from asking import ask
from refusing import fails_as
from stackmark.errors import SpecError
from stackmark.events import Figure, Hello, Log, Metric, Result, Stream, write_event
from stackmark.experiments.verify import impossible_result
from stackmark.spec import Scalar, Spec
from stackmark.workloads.registry import check_spec
from stackmark.workloads.serve.definition import ServeParams, figure_of
from stackmark.workloads.serve.impl.loadgen import MARK, LoadResult, read_logs
from stackmark.workloads.serve.impl.network import Network
from stackmark.workloads.serve.impl.search import CLOSE, CONFIRMED, RateFound, Search, Words
from stackmark.workloads.serve.impl.weights import load_weights
from stackmark.workloads.train.impl.nets import build
from stackmark.workloads.train.zoo import MODELS
from worker_process import environment, run_worker

GIVEN: dict[str, Scalar] = {
    "device": "cpu", "scenario": "single-stream", "seconds": 0.3, "rate": 0.0, "latency_bound": 0.0, "batch": 1,
    "library": 4, "precision": "fp32", "threads": 1,
}  # fmt: skip
SERVER: dict[str, Scalar] = {"scenario": "server", "rate": 2000.0, "latency_bound": 0.1, "batch": 8}


def spec(**more: Scalar) -> Spec:
    params = ServeParams.model_validate({**GIVEN, **more})
    return Spec(workload="serve/empty", params=params.model_dump(mode="json"))


def ask_json(*words: str) -> dict[str, Any]:
    done = ask(*words, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    return found


def events_of(one: Spec) -> Stream:
    stream = Stream()
    for line in run_worker(one, environment()).lines:
        stream.feed(line)
    return stream


def detail_of(stream: Stream) -> dict[str, Any]:
    """Return what LoadGen's own detail log says, as the run kept it."""
    lines = [event.line for event in stream.events if isinstance(event, Log)]
    entries = [json.loads(line.partition(MARK)[2]) for line in lines if MARK in line]
    return {entry["key"]: entry["value"] for entry in entries}


def metrics_of(stream: Stream) -> dict[str, float]:
    return {event.name: event.value for event in stream.events if isinstance(event, Metric)}


NAMED = ("p50", "p90", "p99")

# The scenarios


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "key", "scale"),
    [
        ({}, "result_90.00_percentile_latency_ns", 1e-6),
        ({"scenario": "multi-stream", "batch": 8}, "result_99.00_percentile_per_query_latency_ns", 1e-6),
        (SERVER, "result_99.00_percentile_latency_ns", 1e-6),
        ({"scenario": "offline", "batch": 64}, "result_samples_per_second", 1.0),
    ],
    ids=["single-stream", "multi-stream", "server", "offline"],
)
def test_the_figure_of_a_scenario_is_the_one_of_loadgens_log(more: dict[str, Scalar], key: str, scale: float) -> None:
    one = spec(**more)
    stream = events_of(one)
    result, said, metrics = stream.ended(), detail_of(stream), metrics_of(stream)
    assert isinstance(result, Result)
    assert result.figure is not None
    assert result.figure.value == pytest.approx(scale * said[key])
    assert metrics["valid"] == (said["result_validity"] == "VALID")
    assert metrics["queries"] == said["result_query_count"]
    for percent in (50, 90, 95, 99):
        if f"p{percent}_latency" in metrics:
            query = f"result_{percent:.2f}_percentile_per_query_latency_ns"
            theirs = said.get(query, said[f"result_{percent:.2f}_percentile_latency_ns"])
            assert metrics[f"p{percent}_latency"] == pytest.approx(1e-9 * theirs)
    assert ("p99_latency" in metrics) == (one.params["scenario"] != "offline")
    assert impossible_result(stream, one, None) is None
    assert any("quick" in flag for flag in result.flags)


@pytest.mark.slow
def test_a_network_answers_with_the_class_of_each_sample() -> None:
    params = ServeParams.model_validate({**GIVEN, "library": 6})
    network = Network("resnet20", params)
    alone = [int(network([index])[0]) for index in range(6)]
    assert list(network([3, 1, 3, 5])) == [alone[index] for index in (3, 1, 3, 5)]


@pytest.mark.slow
def test_a_comparison_judges_the_percentiles_next_to_the_figure(tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger.sqlite3")
    words = ["serve/empty", "--device", "cpu", "--seconds", "0.3", "--arm", "host", "--arm", "host", "--blocks", "2"]
    found = ask_json("compare", *words, "--ledger", ledger)
    assert [one["name"] for one in found["compared"]] == ["p50_latency", "p90_latency", "p99_latency"]
    for one in found["compared"]:
        assert (one["unit"], one["higher_is_better"]) == ("s", False)
        assert [pair["kind"] for pair in one["pairs"]] == ["blocks"]
    # p90 is the figure, so both comparisons are of the same numbers.
    assert found["compared"][1]["pairs"][0]["ratio"] == pytest.approx(found["comparisons"][0]["ratio"])
    printed = ask("verdict", "last", "--ledger", ledger).out
    assert [line.split()[0] for line in printed.splitlines() if line[:4].strip() in ("p50", "p90", "p99")] == [
        "p50",
        "p90",
        "p99",
    ]


@pytest.mark.slow
def test_a_run_has_its_percentiles_and_loadgens_verdict(tmp_path: Path) -> None:
    words = [
        "serve/empty",
        "--device",
        "cpu",
        "--seconds",
        "0.3",
        "--runs",
        "2",
        "--ledger",
        str(tmp_path / "l.sqlite3"),
    ]
    (result,) = ask_json("run", *words)["results"]
    assert (result["served"]["valid"], result["served"]["runs"]) == (2, 2)
    by_name = {one["name"]: one["value"] for one in result["served"]["metrics"]}
    assert 1e3 * by_name["p90_latency"] == pytest.approx(result["throughput"]["figure"]["value"])
    assert by_name["p50_latency"] <= by_name["p99_latency"]
    shown = ask_json("show", "last", *words[-2:])
    (p90,) = [one["value"] for one in shown["served"]["metrics"] if one["name"] == "p90_latency"]
    assert 1e3 * p90 == pytest.approx(1 / shown["run"]["rate_per_s"])


# What breaks a test of LoadGen. It runs in a process of its own, since LoadGen still waits when the test is over.

BROKEN = """
import os, sys
from stackmark.workloads.serve.impl import loadgen
from stackmark.workloads.workload import WorkloadFailure
loadgen.NO_ANSWER_S = 1.0
count = 0
def predict(indices):
    global count
    count += 1
    if count == 50:
        {broken}
    return [0] * len(indices)
load = loadgen.Load("{scenario}", 0.5, 100, 4, 1, 1e-4, 500.0, 0.1)
try:
    loadgen.run_test(loadgen.library(), load, predict, 4)
    said = "done"
except WorkloadFailure as failure:
    said = failure.kind
except BaseException as error:
    said = f"{{type(error).__name__}}: {{error}}"
print(said, flush=True)
os._exit(0)
"""


def broken(scenario: str, what: str) -> str:
    code = BROKEN.format(scenario=scenario, broken=what)
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["single-stream", "server"])
def test_an_error_of_the_network_ends_the_test_with_its_reason(scenario: str) -> None:
    assert broken(scenario, "raise ValueError('no such sample')") == "ValueError: no such sample"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["single-stream", "server"])
def test_a_network_that_never_answers_is_a_failure_and_not_a_hang(scenario: str) -> None:
    assert broken(scenario, "import time; time.sleep(60)") == "no_answer"


@pytest.mark.slow
def test_answers_that_are_too_few_are_a_wrong_result() -> None:
    assert broken("single-stream", "return []") == "wrong_result"


@pytest.mark.slow
def test_without_loadgen_the_run_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "mlperf_loadgen.py").write_text("raise ImportError('not here')")
    failed = run_worker(spec(), environment(tmp_path)).last
    assert failed["kind"] == "missing_package"
    assert "mlcommons-loadgen" in failed["hint"]


@pytest.mark.parametrize(
    "line", ['{"key": "result_val', '{"key": "x", "value": 1}', "[1]", '{"key": "x", "value": 1, "metadata": 2}']
)
def test_a_log_that_was_cut_off_is_a_failure_and_no_crash(line: str) -> None:
    """As a full disk leaves it."""
    with fails_as("no_figure", line[:10]):
        read_logs([], [f"{MARK}{line}"], 1.0)


# The search for a rate


def load_result(valid: bool) -> LoadResult:
    return LoadResult(valid, {"result_99.00_percentile_latency_ns": 5_000_000}, (), (), 1.0)


def searched(holds: Callable[[float], bool], first: float = 10.0) -> tuple[RateFound[LoadResult], list[float]]:
    tried: list[float] = []

    def test(rate: float) -> LoadResult:
        tried.append(rate)
        return load_result(holds(rate))

    words = Words("more than 1 % of the answers take over 0.015 s", "--latency-bound")
    return Search(test, lambda _: None, first, lambda _: "", words).run(), tried


@pytest.mark.parametrize("limit", [0.9, 9.99, 10.0, 37.0, 400.0])
def test_the_search_brackets_the_highest_rate_and_confirms_both_ends(limit: float) -> None:
    found, tried = searched(lambda rate: rate <= limit)
    assert found.holds <= limit < found.fails
    assert found.fails / found.holds <= CLOSE + 0.01
    assert (tried.count(found.holds), tried.count(found.fails)) == (CONFIRMED, CONFIRMED)
    assert len(tried) == found.tests


def test_a_band_of_rates_that_hold_now_and_then_lies_between_the_two_ends() -> None:
    turns: dict[float, int] = {}

    def holds(rate: float) -> bool:
        """Between 20 and 40 every second test holds."""
        turns[rate] = turns.get(rate, 0) + 1
        return rate <= 20 or (rate < 40 and turns[rate] % 2 == 1)

    found, tried = searched(holds)
    assert found.holds <= 20
    assert found.fails >= 40
    assert found.fails / found.holds < 2 * 1.15**2
    assert (tried.count(found.holds), tried.count(found.fails)) == (CONFIRMED, CONFIRMED)


@pytest.mark.parametrize(
    ("holds", "named"), [(lambda _: False, "--latency-bound"), (lambda _: True, "--latency-bound")]
)
def test_a_search_without_an_end_is_a_sentence(holds: Callable[[float], bool], named: str) -> None:
    with fails_as("no_figure", named):
        searched(holds)


def test_a_machine_on_which_nothing_is_steady_ends_the_search() -> None:
    turn = [0]

    def holds(_rate: float) -> bool:
        """Hold twice of three times: no rate ever does so three times in a row."""
        turn[0] += 1
        return turn[0] % 3 != 0

    with fails_as("no_figure"):
        searched(holds)


# What a worker claims


def claimed(figure_ms: float, **percentiles_s: float) -> Stream:
    stream = Stream()
    events: list[Any] = [Hello(seq=0, t=0.0, time_unix_s=1.0, pid=1)]
    for name, value in percentiles_s.items():
        events.append(Metric(seq=len(events), t=0.1, name=name, value=value, unit="s", higher_is_better=False))
    figure = Figure(name="p90 latency", value=figure_ms, unit="ms", higher_is_better=False)
    events.append(
        Result(
            seq=len(events), t=0.2, sample="run", samples_per_step=1, steps=1, wall_s=0.1, tick_s=1e-9, figure=figure
        )
    )
    for event in events:
        stream.feed(write_event(event))
    return stream


def test_percentiles_that_contradict_each_other_or_the_figure_are_impossible() -> None:
    good = {"p50_latency": 0.001, "p90_latency": 0.002, "p99_latency": 0.002}
    assert impossible_result(claimed(2.0, **good), spec(), None) is None
    assert "p90_latency" in str(impossible_result(claimed(1.0, **good), spec(), None))
    assert "p99_latency" in str(impossible_result(claimed(2.0, **{**good, "p99_latency": 0.0015}), spec(), None))


def test_the_figure_of_another_scenario_is_refused() -> None:
    said = impossible_result(claimed(2.0, p90_latency=0.002), spec(scenario="offline", batch=8), None)
    assert said is not None
    assert "samples/s" in said


# Wrong input


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"rate": 5.0}, "--rate"),
        ({"latency_bound": 0.1}, "--latency-bound"),
        ({"find_rate": True}, "--find-rate"),
        ({"scenario": "server", "latency_bound": 0.1, "rate": 5.0, "find_rate": True}, "leave out --rate"),
        ({"scenario": "server", "latency_bound": 0.1}, "rate"),
        ({"scenario": "server", "rate": 5.0}, "--latency-bound"),
        ({"precision": "fp16"}, "fp16"),
        ({"seconds": 0.0}, "seconds"),
        ({"scenario": "burst"}, "scenario"),
    ],
)
def test_parameters_that_do_not_go_together_are_named(more: dict[str, Scalar], named: str) -> None:
    one = Spec(workload="serve/empty", params={**GIVEN, **more})
    with pytest.raises(SpecError, match=named):
        check_spec(one)


def test_a_weights_file_that_does_not_fit_says_what_differs(tmp_path: Path) -> None:
    model = MODELS["resnet20"]
    net, path = build(model, model.classes), tmp_path / "weights.pt"
    state = net.state_dict()
    torch.save(state, path)
    load_weights(net, path)
    first, *_ = state
    torch.save({**state, first: torch.zeros(3), "extra": torch.zeros(1)}, path)
    with fails_as("bad_data", str(path), first, "extra"):
        load_weights(net, path)
    torch.save([1, 2], path)
    with fails_as("bad_data", "state dict"):
        load_weights(net, path)
    path.write_text("root:x:0:0:root:/root:/bin/bash\n")
    with fails_as("bad_data", str(path), "not a state dict"):  # and not PyTorch's advice to read it without protection
        load_weights(net, path)
    with fails_as("bad_data", "none.pt"):
        load_weights(net, tmp_path / "none.pt")


def test_a_weights_file_cannot_run_code(tmp_path: Path) -> None:
    class Hostile:
        def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
            return os.mkdir, (str(tmp_path / "made"),)

    path = tmp_path / "weights.pt"
    written = io.BytesIO()
    torch.save({"x": Hostile()}, written)
    path.write_bytes(written.getvalue())
    with fails_as("bad_data", str(path)):
        load_weights(build(MODELS["resnet20"], 10), path)
    assert not (tmp_path / "made").exists()


def test_each_scenario_has_a_figure_of_its_own() -> None:
    units = {
        name: figure_of(name, False, "image").unit for name in ("single-stream", "multi-stream", "server", "offline")
    }
    assert units == {"single-stream": "ms", "multi-stream": "ms", "server": "ms", "offline": "images/s"}
    assert figure_of("server", True, "image").unit == "queries/s"
