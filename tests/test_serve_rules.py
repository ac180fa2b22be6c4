"""MLPerf's rules by model, published results next to a result, all scenarios with one word, and batches."""

import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from asking import ask
from stackmark.cli.options import read_requests
from stackmark.published.lookup import near
from stackmark.spec import Scalar, Spec
from stackmark.workloads.serve.definition import SERVED, ServeParams, figure_of
from stackmark.workloads.serve.impl.batches import Batches, buckets_of, fixed_sizes
from stackmark.workloads.serve.impl.loadgen import Answers
from stackmark.workloads.serve.impl.serve import queries_of
from stackmark.workloads.serve.impl.trials import SERVER_PATH_RATE, best_batch, stable_rate
from stackmark.workloads.serve.rules import RULES, against_rules, judged_percent, rules_of, say_quick, say_rules

GIVEN: dict[str, Scalar] = {
    "device": "cpu", "scenario": "single-stream", "seconds": 10.0, "rate": 0.0, "latency_bound": 0.0, "batch": 1,
    "library": 4, "precision": "fp32", "threads": 1,
}  # fmt: skip
SERVER: dict[str, Scalar] = {"scenario": "server", "rate": 5.0, "latency_bound": 0.25, "batch": 8}


def params(**more: Scalar) -> ServeParams:
    return ServeParams.model_validate({**GIVEN, **more})


# Rules


def test_every_model_with_rules_is_served_with_the_bound_of_its_rules() -> None:
    assert set(RULES) <= set(SERVED)
    assert all(SERVED[name].bound_s == rules.bound_s for name, rules in RULES.items())


def test_a_run_by_the_rules_has_as_many_queries_as_they_ask() -> None:
    assert queries_of("mobilenet", params(**SERVER, mlperf=True)) == 270_336
    assert queries_of("gnmt", params(**SERVER, mlperf=True)) == 90_112
    assert queries_of("mobilenet", params(mlperf=True)) == 1024
    assert (queries_of("resnet50", params()), queries_of("resnet50", params(**SERVER))) == (100, 1000)


def test_gnmt_is_judged_by_its_97th_percentile() -> None:
    assert judged_percent("gnmt", "server") == 97
    assert figure_of("server", False, "sentence", "gnmt").name == "p97 latency"
    assert figure_of("server", False, "image", "resnet50").name == "p99 latency"


def test_what_falls_short_of_the_rules_is_named() -> None:
    good: dict[str, Any] = {"seconds": 600.0, "library": 1024, "bound_s": 0.015, "queries": 662, "samples": 0}
    assert against_rules("resnet50", "server", **good) == []
    for name, value, said in (
        ("seconds", 60.0, "600 s"), ("library", 64, "1,024"), ("bound_s", 0.1, "15 ms"), ("queries", 100, "662")
    ):  # fmt: skip
        (short,) = against_rules("resnet50", "server", **{**good, name: value})
        assert said in short


def test_a_network_that_mlperf_does_not_have_takes_the_rules_of_resnet_50() -> None:
    assert rules_of("vit-b16") is RULES["resnet50"]
    assert "vit-b16" in say_rules("vit-b16")
    assert say_quick("vit-b16", "server", 2.0) == (
        "2.00 s of queries; MLPerf's rules for ResNet-50 (v5.1) ask for 10 min 0 s, and it has none for vit-b16"
    )


@pytest.mark.slow
def test_a_run_that_falls_short_of_the_rules_is_not_valid(tmp_path: Path) -> None:
    words = ["serve/empty", "--mlperf", "--device", "cpu", "--seconds", "0.2", "--library", "8", "--runs", "1"]
    done = ask("run", *words, "--json", "--ledger", str(tmp_path / "l.sqlite3"))
    assert done.code == 0, done.err
    (found,) = json.loads(done.out)["results"]
    assert (found["served"]["valid"], found["served"]["runs"]) == (0, 1)
    assert "not-by-the-rules" in [one["kind"] for one in found["warnings"]]


# Published results


def published(name: str, unit: str, **more: Scalar) -> list[Any]:
    spec = Spec(workload=f"serve/{name}", params=params(**more).model_dump(mode="json"))
    return near(spec, unit, "NVIDIA T4", "PyTorch 2.13.0", limit=50)


@pytest.mark.parametrize(
    ("name", "unit", "more", "model", "scenario"),
    [
        ("resnet50", "1/ms", {}, "resnet", "SingleStream"),
        ("resnet50", "images/s", {"scenario": "offline", "batch": 8}, "resnet", "Offline"),
        ("resnet50", "queries/s", {**SERVER, "rate": 0.0, "find_rate": True}, "resnet", "Server"),
        ("ssd-mobilenet", "images/s", {"scenario": "offline", "batch": 8}, "ssd-small", "Offline"),
        ("gnmt", "sentences/s", {"scenario": "offline", "batch": 8}, "gnmt", "Offline"),
    ],
)
def test_published_rows_are_of_the_same_model_and_scenario(
    name: str, unit: str, more: dict[str, Scalar], model: str, scenario: str
) -> None:
    found = [one for one in published(name, unit, **more) if one.row.extra.get("scenario")]
    assert found
    assert {one.row.extra["scenario"] for one in found} == {scenario}
    assert {one.row.model for one in found} <= {model, "resnet50"}


def test_what_a_submission_has_and_a_quick_run_has_not_is_named() -> None:
    kinds = {remark.kind for remark in published("resnet50", "1/ms")[0].differs}
    assert {"rules", "weights", "system", "precision", "data"} <= kinds


@pytest.mark.parametrize(("name", "more"), [("resnet20", {}), ("resnet50", {"scenario": "multi-stream", "batch": 8})])
def test_a_result_that_nobody_published_has_no_neighbour(name: str, more: dict[str, Scalar]) -> None:
    assert published(name, "1/ms", **more) == []


# All scenarios


def test_all_scenarios_are_asked_for_with_one_word() -> None:
    found = read_requests(["serve/empty"], {"scenario": "all", "rate": "10,20", "latency_bound": "5ms"})
    assert [(one.params["scenario"], one.params.get("rate")) for one in found] == [
        ("single-stream", None), ("multi-stream", None), ("server", 10.0), ("server", 20.0), ("offline", None),
    ]  # fmt: skip
    assert [one.params.get("latency_bound") for one in found] == [None, None, 0.005, 0.005, None]


def test_a_rate_without_a_server_is_still_refused() -> None:
    found = read_requests(["serve/empty"], {"scenario": "offline,single-stream", "rate": "10"})
    assert [one.params["rate"] for one in found] == [10.0, 10.0]


@pytest.mark.slow
def test_all_scenarios_are_one_table_with_their_percentiles(tmp_path: Path) -> None:
    words = ["serve/empty", "--scenario", "all", "--rate", "1000", "--device", "cpu", "--seconds", "0.2", "--runs", "1"]
    ledger = ["--ledger", str(tmp_path / "l.sqlite3")]
    done = ask("run", *words, *ledger)
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    scenarios = ["single-stream", "multi-stream", "server", "offline"]
    assert [words[0] for words in lines if words[0] in scenarios] == scenarios
    told = {words[1].rstrip(":"): words for words in lines if words[0] == "served"}
    assert list(told) == scenarios
    assert all(name in told["server"] for name in ("p50", "p90", "p99"))


# Batches


def test_batches_are_padded_to_few_sizes() -> None:
    assert [buckets_of(most) for most in (1, 2, 8, 256, 300)] == [
        [1], [1, 2], [1, 4, 8], [1, 4, 16, 64, 256], [1, 4, 16, 64, 256, 300],
    ]  # fmt: skip


def test_padded_batches_give_the_answers_of_each_sample_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda compute, **_: compute)
    seen: list[int] = []

    def compute(batch: torch.Tensor) -> torch.Tensor:
        seen.append(len(batch))
        return batch.sum(1).int()[:, None]

    samples = torch.arange(12.0).reshape(6, 2)
    batches = Batches(params(compile=True, scenario="offline", batch=8), compute, samples)
    assert seen == [1, 4, 8]
    assert [list(batches(range(count))) for count in (1, 3, 5)] == [[1], [1, 5, 9], [1, 5, 9, 13, 17]]
    assert seen[3:] == [1, 4, 8]


def test_networks_whose_answers_have_no_fixed_size_are_not_recorded() -> None:
    assert fixed_sizes("resnet50")
    assert not fixed_sizes("empty")
    assert not any(
        fixed_sizes(name) for name, one in SERVED.items() if one.kind in ("detector", "decoder", "translator")
    )


class Responses:
    """What LoadGen hears, without LoadGen."""

    def __init__(self, wanted: int) -> None:
        self.heard: list[int] = []
        self.whole, self._wanted = threading.Event(), wanted

    def QuerySampleResponse(self, number: int, *_: int) -> int:  # noqa: N802
        return number

    def QuerySamplesComplete(self, answers: Sequence[int]) -> None:  # noqa: N802
        self.heard += answers
        if len(self.heard) >= self._wanted:
            self.whole.set()


class Sample:
    def __init__(self, number: int) -> None:
        self.id = self.index = number


def test_the_next_batch_is_begun_before_the_answers_of_the_one_before_are_taken() -> None:
    order: list[str] = []

    class Ahead:
        asynchronous = True

        def __call__(self, indices: Sequence[int]) -> Sequence[int]:
            return self.launch(indices)()

        def launch(self, indices: Sequence[int]) -> Callable[[], Sequence[int]]:
            order.append(f"begin {indices[0]}")

            def wait() -> Sequence[int]:
                order.append(f"take {indices[0]}")
                return list(indices)

            return wait

    responses: Any = Responses(5)
    answers = Answers(responses, Ahead(), 2, scenario="offline")
    answers.issue([Sample(number) for number in range(5)])
    assert order == ["begin 0", "begin 2", "take 0", "begin 4", "take 2", "take 4"]
    assert responses.heard == [0, 1, 2, 3, 4]
    assert (answers.issued, answers.answered, len(answers.done_ns)) == (5, 5, 3)


def test_a_batch_of_the_server_waits_for_more_samples_where_it_is_told_to() -> None:
    calls: list[int] = []

    def predict(indices: Sequence[int]) -> Sequence[int]:
        calls.append(len(indices))
        return list(indices)

    responses: Any = Responses(4)
    answers = Answers(responses, predict, 4, scenario="server", wait_s=60.0)
    for number in range(4):
        answers.issue([Sample(number)])
    assert responses.whole.wait(30)
    answers.close()
    assert calls == [4]
    assert len(answers.came_ns) == len(answers.done_ns) == 4


def test_the_trial_leaves_the_usual_batch_only_for_a_clearly_faster_one(monkeypatch: pytest.MonkeyPatch) -> None:
    per_call = {256: 1.0, 64: 0.24, 128: 0.2, 512: 1.9}
    monkeypatch.setattr(
        "stackmark.workloads.serve.impl.trials._shortest", lambda _predict, batch, _most: per_call[batch]
    )
    nothing: Any = None
    assert best_batch(nothing, (256, 64, 512), 4)[0] == 256
    assert best_batch(nothing, (256, 64, 128), 4)[0] == 128
    # A third of a bound of 0.75 s.
    assert best_batch(nothing, (256, 64), 4, 0.75)[0] == 64
    batch, why = best_batch(nothing, (256, 512), 4, 0.75)
    assert batch == 256
    assert "1.00 s" in why


@pytest.mark.parametrize(
    ("rate", "chosen"), [(3.9, 2.0), (5.0, 5.0), (99.9, 50.0), (0.4, 0.2), (10**6, SERVER_PATH_RATE)]
)
def test_a_rate_that_nobody_typed_is_one_of_few(rate: float, chosen: float) -> None:
    assert stable_rate(rate) == pytest.approx(chosen)
