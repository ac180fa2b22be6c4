"""Whether a served network's answers are right: LoadGen's accuracy mode, known answers, real samples, files with weights."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from asking import ask
from refusing import fails_as
from stackmark.events import Metric, Stream, write_event
from stackmark.experiments.verify import impossible_result
from stackmark.spec import Scalar, Spec
from stackmark.workloads.fit.impl.boxes import Found
from stackmark.workloads.fit.impl.coco import TEST, read_instances
from stackmark.workloads.serve.definition import QUALITIES, SERVED, Scenario
from stackmark.workloads.serve.impl.accuracy import (
    Judge,
    choose_samples,
    judged,
    prepare,
    read_accuracy_log,
    score_against,
    spans,
    token_metrics,
)
from stackmark.workloads.serve.impl.answering import Classifier
from stackmark.workloads.serve.impl.detectors import DETECTORS, detection_words
from stackmark.workloads.serve.impl.language import Translators
from stackmark.workloads.serve.impl.loadgen import Load, library, run_accuracy
from stackmark.workloads.serve.impl.network import Network
from stackmark.workloads.serve.impl.real import open_samples
from stackmark.workloads.serve.impl.weights import fill_with, read_safetensors, sha256_of_file
from stackmark.workloads.train.impl.data import MEAN, STD
from test_fit_coco import write_coco
from test_serve import claimed
from test_serve_networks import TINY, params

# LoadGen's accuracy mode


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream", "server", "offline"])
def test_loadgen_asks_for_each_sample_once_and_logs_its_answer(scenario: Scenario) -> None:
    network = Network("gpt2-tiny", params("gpt2-tiny", library=11))
    load = Load(scenario, 0.3, 1, 11, 1, 1e-3, 500.0, 1.0, accuracy=True)
    answers = read_accuracy_log(run_accuracy(library(), load, network, 4), 11)
    assert torch.equal(answers, torch.cat([network.words([index]) for index in range(11)]))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('[{"seq_id":0,"qsl_idx":0,"data":"0100', "no_figure"),
        ('[{"qsl_idx":0,"data":"xyz"}]', "no_figure"),
        ("[1]", "no_figure"),
        ("[" * 100_000, "no_figure"),
        ('[{"qsl_idx":0,"data":"01000000"}]', "wrong_result"),
        ('[{"qsl_idx":0,"data":"01000000"},{"qsl_idx":0,"data":"01000000"}]', "wrong_result"),
        ('[{"qsl_idx":0,"data":"01000000"},{"qsl_idx":9,"data":"01000000"}]', "wrong_result"),
        ('[{"qsl_idx":0,"data":"01000000"},{"qsl_idx":1,"data":"0100"}]', "wrong_result"),
        ('[{"qsl_idx":0,"data":""},{"qsl_idx":1,"data":""}]', "wrong_result"),
    ],
)
def test_an_accuracy_log_that_is_not_whole_is_a_failure(text: str, kind: str) -> None:
    with fails_as(kind):
        read_accuracy_log(text, 2)


# Known answers


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_the_reference_is_right_and_the_same_network_in_fp32_as_well(name: str) -> None:
    network, judge = prepare(name, params(name, accuracy=True, library=20))
    assert judge is not None
    quality = QUALITIES[SERVED[name].kind][0]
    assert judge.reference[quality] >= 99.9
    metrics, wrong = judged(SERVED[name], judge, network.words(range(20)).cpu())
    assert {one.name for one in metrics} == {
        name for one in QUALITIES[SERVED[name].kind] for name in (one, f"{one}_reference")
    }
    assert metrics[0].value >= 99
    assert not wrong


@pytest.mark.slow
def test_images_that_can_be_learned_have_labels_that_a_network_without_its_last_layer_misses() -> None:
    network, judge = prepare("resnet20", params("resnet20", accuracy=True, library=20))
    assert judge is not None
    assert network.labels is not None
    assert network.labels.tolist() == [*range(10), *range(10)]
    last = [module for module in network.made.net.modules() if isinstance(module, torch.nn.Linear)][-1]
    last.weight.data = last.weight.data.roll(1, 0)
    last.bias.data = last.bias.data.roll(1, 0)
    assert judge.score(network.words(range(20)))["top1"] < 20


def worse(words: Tensor) -> Tensor:
    """Change one answer of twenty."""
    changed = words.clone()
    changed[0] = 0
    return changed


@pytest.mark.parametrize("name", TINY)
def test_wrong_answers_are_flagged_with_the_share_that_is_asked_for(name: str) -> None:
    network = Network(name, params(name, library=20))
    right = network.words(range(20)).cpu()
    score = score_against(SERVED[name], right)
    first = QUALITIES[SERVED[name].kind][0]
    judge = Judge(score, score(right), "its own answers in fp64")
    assert judge.reference[first] == pytest.approx(100)
    metrics, wrong = judged(SERVED[name], judge, worse(right))
    assert metrics[0].value < 99
    assert wrong.startswith("accuracy-low: ")
    assert first in wrong


def test_mobilenet_may_lose_two_percent_and_others_one() -> None:
    """The closed division of MLPerf Inference v0.5."""
    scored = {"top1": 98.5}
    judge = Judge(lambda _: scored, {"top1": 100.0}, "labels")
    assert not judged(SERVED["mobilenet"], judge, torch.zeros(1, 1))[1]
    assert judged(SERVED["resnet50"], judge, torch.zeros(1, 1))[1]


def test_spans_are_compared_as_squads_script_compares_words() -> None:
    right = torch.tensor([[10, 13], [10, 13], [10, 13], [10, 13]])
    # The same; half of it and nothing else; one word shared of two and four; nothing shared.
    said = torch.tensor([[10, 13], [12, 13], [13, 14], [20, 22]])
    expected = (1 + 2 * 1 * 0.5 / 1.5 + 2 * 0.5 * 0.25 / 0.75 + 0) / 4
    assert spans(said, right) == {"F1": pytest.approx(100 * expected), "exact_match": 25}


def test_times_of_tokens_are_those_of_loadgens_log() -> None:
    found = token_metrics({
        "result_first_token_90.00_percentile_latency_ns": 2_000_000, "result_time_per_output_token_50.00_percentile_ns": 30_000,
        "result_token_throughput": 4.8e-6, "result_completed_tokens_per_second": 4800.0, "result_tokens_per_second": "many",
    })  # fmt: skip
    assert {one.name: one.value for one in found} == {
        "p90_ttft": 2e-3,
        "p50_tpot": pytest.approx(3e-5),
        "token_rate": 4800,
    }


# Real samples


@pytest.mark.slow
def test_a_run_judges_the_answers_to_real_images_with_weights_of_a_file(tmp_path: Path) -> None:
    """The network learned these images, as they are read from a folder; its weights are a file of safetensors."""
    made = Network("resnet20", params("resnet20", accuracy=True, library=20)).made
    assert isinstance(made, Classifier)
    assert made.labels is not None
    mean, std = (torch.tensor(part)[:, None, None] for part in (MEAN, STD))
    pixels = (made.samples * std + mean).round().clamp(0, 255).byte()
    for number, (image, label) in enumerate(zip(pixels, made.labels.tolist(), strict=True)):
        folder = tmp_path / "images" / f"class{label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{number:03d}.png")
    read, score = open_samples("resnet20", tmp_path / "images", "").read(range(20))
    with torch.inference_mode():
        made.learn(read, torch.arange(10).repeat_interleave(2))
        # Two classes are called by each other's name, so that not all are right.
        last = [module for module in made.net.modules() if isinstance(module, torch.nn.Linear)][-1]
        last.weight[[3, 4]] = last.weight[[4, 3]]
        last.bias[[3, 4]] = last.bias[[4, 3]]
        right = score(made.net(read).argmax(1)[:, None])["top1"]
    assert right == 80
    weights = tmp_path / "weights.safetensors"
    write_safetensors(weights, made.net.state_dict())
    words = [
        "serve/resnet20",
        "--weights",
        str(weights),
        "--data",
        str(tmp_path / "images"),
        "--accuracy",
        "--device",
        "cpu",
    ]
    ledger = ["--seconds", "0.3", "--runs", "1", "--ledger", str(tmp_path / "ledger.sqlite3")]
    done = ask("run", *words, *ledger, "--json")
    assert done.code == 0, done.err
    (result,) = json.loads(done.out)["results"]
    found = {one["name"]: one["value"] for one in result["served"]["metrics"]}
    assert found["top1"] == pytest.approx(right)
    assert result["spec"]["params"]["weights_sha256"] == sha256_of_file(weights)
    assert result["spec"]["params"]["library"] == 20


@pytest.mark.parametrize("name", ["ssd-tiny", "ssd-mobilenet"])
def test_the_objects_of_coco_are_the_right_answer(tmp_path: Path, name: str) -> None:
    folder = write_coco(tmp_path)
    samples = open_samples(name, folder, "")
    pixels, score = samples.read(samples.spaced(3))
    model, found = DETECTORS[name], read_instances(folder, TEST)
    assert pixels.shape == (3, 3, model.px, model.px)
    assert float(pixels.max()) <= 1
    assert (float(pixels.min()) < 0) == model.signed
    picture = torch.arange(3).repeat_interleave(found.counts)
    boxes, labels, scores = torch.zeros(3, 8, 4), torch.zeros(3, 8, dtype=torch.long), torch.zeros(3, 8)
    for number in range(3):
        own = (picture == number) & ~found.crowds
        count = int(own.sum())
        boxes[number, :count] = (found.boxes[own] / found.sizes[number].repeat(2)).float()
        named = found.labels[own]
        labels[number, :count] = torch.tensor(found.categories)[named - 1] if model.coco_numbers else named
        scores[number, :count] = 0.9
    assert score(detection_words(Found(boxes, labels, scores), model.most))["mAP"] == pytest.approx(100)
    assert score(detection_words(Found(boxes, labels % 3 + 1, scores), model.most))["mAP"] < 50


def write_text(folder: Path) -> Path:
    pairs = [("1 2", "one two"), ("2 1 3", "two one three"), ("3", "three"), ("1 1 3 2", "one one three two")]
    for part in ("train", "test"):
        (folder / f"{part}.src").write_text("".join(f"{one}\n" for one, _ in pairs))
        (folder / f"{part}.tgt").write_text("".join(f"{other}\n" for _, other in pairs))
    (folder / "vocab.txt").write_text("1\n2\n3\none\ntwo\nthree\n")
    return folder


def test_translations_are_scored_by_bleu_against_the_text(tmp_path: Path) -> None:
    samples = open_samples("gnmt-tiny", write_text(tmp_path), "")
    sources, score = samples.read([0, 1, 3])
    assert sources.tolist() == [[4, 5, 3, 0, 0], [5, 4, 6, 3, 0], [4, 4, 6, 5, 3]]
    said = torch.tensor([[7, 8, 3, 0, 0], [8, 7, 9, 3, 0], [7, 7, 9, 8, 3]])
    assert score(said)["BLEU"] == pytest.approx(100)
    assert score(said.flip(0))["BLEU"] < 50


def test_a_folder_that_does_not_fit_the_network_is_refused(tmp_path: Path) -> None:
    write_text(tmp_path)
    (tmp_path / "vocab.txt").write_text("".join(f"w{number}\n" for number in range(80)))
    with fails_as("bad_data", "pieces", "64"):
        open_samples("gnmt-tiny", tmp_path, "")
    for name in ("bert-tiny", "gpt2-tiny", "empty"):
        with fails_as("bad_parameter", "--data"):
            open_samples(name, tmp_path, "")


def chosen(name: str, **values: Scalar) -> dict[str, Any]:
    found: dict[str, Any] = dict(values)
    choose_samples(name, found, {})
    return found


def test_parameters_of_another_kind_of_network_are_refused() -> None:
    with fails_as("bad_parameter", "prompt", "resnet20"):
        chosen("resnet20", prompt=5)
    with fails_as("bad_parameter", "accuracy"):
        chosen("empty", accuracy=True)
    assert chosen("gpt2-tiny") == {"prompt": 16, "generate": 8}
    assert chosen("gpt2-tiny", generate=3) == {"prompt": 16, "generate": 3}


def test_files_that_changed_since_the_spec_are_refused(tmp_path: Path) -> None:
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"other")
    with fails_as("bad_data", str(weights), "SHA-256"):
        prepare("resnet20", params("resnet20", weights=str(weights), weights_sha256="0" * 64))
    write_text(tmp_path)
    with fails_as("bad_data", str(tmp_path), "SHA-256"):
        prepare("gnmt-tiny", params("gnmt-tiny", data=str(tmp_path), data_sha256="0" * 64, library=2))


def test_the_hash_of_a_spec_is_what_it_was_where_nothing_new_is_asked_for() -> None:
    dumped = params("resnet20").model_dump(mode="json")
    assert not {"accuracy", "data", "data_sha256", "weights_sha256", "prompt", "generate"} & dumped.keys()


def test_qualities_and_times_of_tokens_that_cannot_be_are_not_believed() -> None:
    given = params("gpt2-tiny", scenario="single-stream")
    spec = Spec(workload="serve/gpt2-tiny", params=given.model_dump(mode="json"))

    def with_metrics(**values: float) -> str | None:
        whole = claimed(2.0, p90_latency=0.002)
        result = whole.events[-1]
        stream = Stream()
        metrics = [
            Metric(seq=0, t=0.1, name=name, value=value, unit="%" if "match" in name else "s", higher_is_better=False)
            for name, value in values.items()
        ]
        for number, event in enumerate((*whole.events[:-1], *metrics, result)):
            stream.feed(write_event(event.model_copy(update={"seq": number})))
        return impossible_result(stream, spec, None)

    assert with_metrics(p50_ttft=0.001, p99_ttft=0.002, p50_tpot=0.0001, token_match=100.0) is None
    assert "token_match" in str(with_metrics(token_match=101.0))
    assert "p99_ttft" in str(with_metrics(p50_ttft=0.002, p99_ttft=0.001))


# Files with weights


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    names = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.int64: "I64", torch.uint8: "U8"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, tensor in tensors.items():
        own = bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())
        shape = list(tensor.shape)
        header[name] = {"dtype": names[tensor.dtype], "shape": shape, "data_offsets": [len(data), len(data) + len(own)]}
        data += own
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_safetensors_are_read_with_their_types_and_shapes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {
        "a.weight": torch.randn(3, 2), "b": torch.randn(2, 1, 2).bfloat16(), "c": torch.tensor(-7), "d": torch.zeros(0, 3),
        "e": torch.tensor([1.5], dtype=torch.float64), "f": torch.arange(5, dtype=torch.uint8),
    }  # fmt: skip
    write_safetensors(path, {name: tensors[name] for name in ("a.weight", "b", "d", "e", "c", "f")})
    found = read_safetensors(path)
    assert {name: (one.dtype, one.shape) for name, one in found.items()} == {
        name: (one.dtype, one.shape) for name, one in tensors.items()
    }
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def safetensors(header: object, data: bytes = b"\0" * 8) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(shape: object, begin: object, end: object, kind: object = "F32") -> dict[str, object]:
    return {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 8,
        struct.pack("<Q", 1 << 40) + b"{}",
        safetensors(b"not json"),
        safetensors(b"[" * 50_000),
        safetensors([]),
        safetensors({"a": 1}),
        safetensors({"a": entry([2], 0, 8, "F31")}),
        safetensors({"a": entry([2], 0, 8, ["F32"])}),
        safetensors({"a": entry([3], 0, 12)}),
        safetensors({"a": entry([2], -8, 0)}),
        safetensors({"a": entry([2], 8, 0)}),
        safetensors({"a": entry([1 << 62, 1 << 62], 0, 8)}),
        safetensors({"a": entry([-1, -2], 0, 8)}),
        safetensors({"a": entry([True, 2], 0, 8)}),
        safetensors({"a": entry([2.0], 0, 8)}),
        safetensors({"a": entry("2", 0, 8)}),
        safetensors({"a": entry([1] * 65, 0, 4), "b": entry([1], 4, 8)}),
        safetensors({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}),
        safetensors({"a": entry([1], 4, 8)}),
        safetensors({"a": entry([1], 0, 4)}),
        safetensors({"a": {"dtype": "F32", "shape": [2]}}),
    ],
)
def test_a_hostile_file_of_safetensors_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with fails_as("bad_data", str(path)):
        read_safetensors(path)


def test_weights_of_safetensors_must_fit_the_network(tmp_path: Path) -> None:
    path, net = tmp_path / "x.safetensors", torch.nn.Linear(2, 2)
    write_safetensors(path, {"weight": torch.ones(2, 2), "bias": torch.zeros(2)})
    fill_with(net, read_safetensors(path), path)
    assert torch.equal(net.weight, torch.ones(2, 2))
    write_safetensors(path, {"weight": torch.ones(2, 3)})
    with fails_as("bad_data", "weight is (2, 3) instead of (2, 2)", "bias is missing"):
        fill_with(net, read_safetensors(path), path)


def test_a_network_has_as_many_classes_as_its_weights(tmp_path: Path) -> None:
    network = Network("resnet20", params("resnet20"))
    state = dict(network.made.net.state_dict())
    names: Sequence[str] = [name for name, one in state.items() if one.dim() == 2]
    state[names[-1]] = state[names[-1]][:7]
    state[names[-1].replace("weight", "bias")] = state[names[-1].replace("weight", "bias")][:7]
    path = tmp_path / "weights.pt"
    torch.save(state, path)
    seven = Network("resnet20", params("resnet20", weights=str(path), weights_sha256=sha256_of_file(path)))
    assert int(seven.words(range(6)).max()) < 7


def test_with_weights_a_translation_may_be_longer_than_its_source(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    without = Network("gnmt-tiny", params("gnmt-tiny"))
    torch.save(without.made.net.state_dict(), path)
    network = Network("gnmt-tiny", params("gnmt-tiny", weights=str(path), weights_sha256=sha256_of_file(path)))
    assert isinstance(network.made, Translators)
    assert network.words([0]).shape[1] == without.words([0]).shape[1] + 50
