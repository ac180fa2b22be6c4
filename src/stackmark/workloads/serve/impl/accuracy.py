"""Whether the answers are right: all samples of the library once, by LoadGen's accuracy mode, scored by the reference's metric.

What is right is known in one of three ways:

- real samples of a folder (`--data`) have labels, boxes or translations;
- a network that names images, with random weights, gets images that can be learned: patterns of ten classes in noise. Its last
  layer is solved for from the features of further images of the same classes, so that nearly all answers are right;
- for other networks with random weights, what is right is what the network itself answers in fp64.

The reference is the same network in fp64, sample by sample. A run whose quality is a smaller share of the reference's than
MLPerf's closed division allows is flagged: it says that precision, compilation or batching has changed the answers.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from stackmark.model import JsonValue
from stackmark.spec import Scalar
from stackmark.workloads.fit.impl.bleu import corpus_bleu
from stackmark.workloads.fit.impl.boxes import areas
from stackmark.workloads.fit.impl.coco_map import Truth
from stackmark.workloads.fit.impl.text import END, PAD
from stackmark.workloads.serve.definition import (
    MULTI_STREAM_SAMPLES,
    QUALITIES,
    SERVED,
    ServedNetwork,
    ServeParams,
)
from stackmark.workloads.serve.impl.detectors import DETECTORS, read_detections
from stackmark.workloads.serve.impl.loadgen import WORD_BYTES
from stackmark.workloads.serve.impl.network import Network
from stackmark.workloads.serve.impl.real import Score, mean_precision, open_samples, top1
from stackmark.workloads.serve.impl.weights import sha256_of_file
from stackmark.workloads.workload import Metric, WorkloadFailure

# Boxes are compared in a picture of this size, where there is no real one.
UNIT_PX = 1000
# Unless somebody asks for more: pictures lie in the device's memory.
MOST_OF_FOLDER = 1024
# LoadGen's keys in its log: the time to the first token, the time of each token after it, and tokens per second. Its key
# result_token_throughput is too small by 1e9 (6.0.17).
TOKEN_TIMES = {
    "ttft": "result_first_token_{:.2f}_percentile_latency_ns", "tpot": "result_time_per_output_token_{:.2f}_percentile_ns",
}  # fmt: skip
TOKEN_RATES = ("result_completed_tokens_per_second", "result_tokens_per_second")
TOKEN_PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Judge:
    """How answers are scored, what the reference gets, and what is right by whom, for a sentence."""

    score: Score
    reference: dict[str, float]
    truth: str


def choose_samples(name: str, values: dict[str, Scalar], reasons: dict[str, str]) -> None:
    """Choose what follows from the network and from the files that somebody named: lengths of text, hashes, how many samples."""
    served = SERVED[name]
    for key, usual in (("prompt", served.prompt), ("generate", served.generate)):
        if values.get(key) and not usual:
            raise WorkloadFailure("bad_parameter", f"{key} is for networks that generate text; serve/{name} does not")
        if usual and not values.get(key):
            values[key], reasons[key] = usual, f"usual for {name}"
    if not served.source and (values.get("accuracy") or values.get("weights") or values.get("data")):
        raise WorkloadFailure("bad_parameter", f"serve/{name} computes nothing: it has no weights, data or accuracy")
    if values.get("weights") and not values.get("weights_sha256"):
        values["weights_sha256"] = sha256_of_file(Path(str(values["weights"])))
        reasons["weights_sha256"] = "that of the file"
    if values.get("data"):
        folder = open_samples(name, Path(str(values["data"])), str(values.get("weights") or ""))
        if not values.get("data_sha256"):
            values["data_sha256"], reasons["data_sha256"] = folder.sha256, "that of the folder"
        if "library" not in values:
            values["library"], reasons["library"] = min(folder.count, MOST_OF_FOLDER), "samples of the folder"


def prepare(name: str, params: ServeParams) -> tuple[Network, Judge | None]:
    """Return a network with its samples, and the judge of its answers where one is asked for."""
    samples, score = None, None
    if params.weights and (sha256 := sha256_of_file(Path(params.weights))) != params.weights_sha256:
        raise WorkloadFailure(
            "bad_data",
            f"--weights {params.weights} is not the file of the spec: its SHA-256 begins with {sha256[:12]}, that of the spec "
            f"with {params.weights_sha256[:12]}",
            "name the same file, or run without a spec",
        )
    if params.data:
        folder = open_samples(name, Path(params.data), params.weights)
        if params.library > folder.count or folder.sha256 != params.data_sha256:
            raise WorkloadFailure(
                "bad_data",
                f"{params.data} is not what the spec was made for: it has {folder.count} samples with the SHA-256 "
                f"{folder.sha256[:12]}…, the spec {params.data_sha256[:12]}…",
                "was it changed since? run without a spec",
            )
        samples, score = folder.read(folder.spaced(params.library))
        samples = samples.to(torch.device(params.device))

    def network(dtype: torch.dtype | None = None) -> Network:
        return Network(name, params, samples, dtype)

    if not params.accuracy:
        return network(), None
    exact = network(torch.float64)
    if score is None and exact.labels is not None:
        score = top1(exact.labels)
    words = torch.cat([exact.words([index]).cpu() for index in range(params.library)])
    truth = params.data or ("labels of images made for it" if exact.labels is not None else "its own answers in fp64")
    if score is None:
        score = score_against(SERVED[name], words)
    judge = Judge(score, score(words), truth)
    del exact  # before the next one takes memory
    return network(), judge


# --- what the network itself answers ------------------------------------------------------------------------------------------


def score_against(served: ServedNetwork, right: Tensor) -> Score:
    """Return how answers are compared with other answers of the same network."""
    scores: dict[str, Callable[[], Score]] = {
        "classifier": lambda: top1(right[:, 0].long()),
        "detector": lambda: _boxes_against(right, DETECTORS[served.name].classes),
        "question": lambda: lambda words: spans(words, right),
        "translator": lambda: lambda words: {"BLEU": _bleu(words, right)},
        "decoder": lambda: lambda words: {"token_match": 100 * (words == right).double().mean().item()},
    }
    return scores[served.kind]()


def _boxes_against(right: Tensor, classes: int) -> Score:
    image, boxes, _, labels = read_detections(right)
    boxes = boxes.double() * UNIT_PX
    truth = Truth(image, labels - 1, areas(boxes), torch.zeros_like(labels, dtype=torch.bool))
    return mean_precision(truth, boxes, torch.full((len(right), 2), UNIT_PX), classes)


def spans(words: Tensor, right: Tensor) -> dict[str, float]:
    """Compare first and last tokens of answers as SQuAD's script compares their words."""
    first, last = torch.maximum(words[:, 0], right[:, 0]), torch.minimum(words[:, 1], right[:, 1])
    shared = (last - first + 1).clamp(min=0).double()
    together = (words[:, 1] - words[:, 0] + right[:, 1] - right[:, 0] + 2).double()
    exact = (words == right).all(1).double()
    return {"F1": 100 * (2 * shared / together).mean().item(), "exact_match": 100 * exact.mean().item()}


def _bleu(words: Tensor, right: Tensor) -> float:
    """Return the BLEU of token numbers, each of which is a word."""

    def texts(rows: Tensor) -> list[str]:
        return [" ".join(f"w{number}" for number in row if number not in (PAD, END)) for row in rows.tolist()]

    return corpus_bleu(texts(words), texts(right), tokenizer=str.split)


# --- tokens ------------------------------------------------------------------------------------------------------------------


def token_metrics(values: Mapping[str, JsonValue]) -> list[Metric]:
    """Return what LoadGen says of tokens, where it heard of them."""
    found = []
    for name, key in TOKEN_TIMES.items():
        for percent in TOKEN_PERCENTILES:
            value = values.get(key.format(percent))
            if isinstance(value, int | float) and value > 0:
                found.append(Metric(f"p{percent}_{name}", 1e-9 * value, "s", False))
    rates = [rate for rate in map(values.get, TOKEN_RATES) if isinstance(rate, int | float) and rate > 0]
    return found + [Metric("token_rate", float(rate), "tokens/s", True) for rate in rates]


# --- LoadGen's accuracy log -------------------------------------------------------------------------------------------------


def read_accuracy_log(text: str, library: int) -> Tensor:
    """Return the answers in the order of the samples, (library, words).

    Each sample is answered once; in multi-stream LoadGen fills the last query up with samples that were in others.
    """
    try:
        given = [(int(one["qsl_idx"]), bytes.fromhex(one["data"])) for one in json.loads(text)]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise WorkloadFailure(
            "no_figure", f"LoadGen's accuracy log cannot be read: {error}", "is the disk for temporary files full?"
        ) from error
    rows = dict(reversed(given))
    sizes = {len(row) for row in rows.values()}
    whole = len(given) < library + MULTI_STREAM_SAMPLES and sorted(rows) == list(range(library))
    if not whole or len(sizes) != 1 or not max(sizes) or max(sizes) % WORD_BYTES:
        raise WorkloadFailure(
            "wrong_result", f"LoadGen's accuracy log has {len(given)} answers to {len(rows)} of {library} samples"
        )
    joined = bytearray(b"".join(rows[index] for index in range(library)))
    return torch.frombuffer(joined, dtype=torch.int32).view(library, -1)


def judged(served: ServedNetwork, judge: Judge, words: Tensor) -> tuple[list[Metric], str]:
    """Return the qualities of answers and of the reference, and what is wrong with them, if anything."""
    found = judge.score(words)
    names = QUALITIES[served.kind]
    metrics = [Metric(name, found[name], "%", True) for name in names]
    metrics += [Metric(f"{name}_reference", judge.reference[name], "%", True) for name in names]
    first = names[0]
    ours, theirs = found[first], judge.reference[first]
    if ours >= served.least_share * theirs:
        return metrics, ""
    return metrics, (
        f"accuracy-low: {first} is {ours:.4g} % by {judge.truth}, {100 * ours / theirs:.4g} % of the {theirs:.4g} % in fp64; "
        f"MLPerf's rules ask for {100 * served.least_share:.0f} % of the reference"
    )
