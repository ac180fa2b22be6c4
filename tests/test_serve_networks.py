"""The networks of `serve/`: their sizes against published ones, their answers, and what follows a network in a detector."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from refusing import fails_as
from stackmark.spec import Scalar
from stackmark.workloads.fit.impl import gnmt, ssd
from stackmark.workloads.serve.definition import SERVED, ServeParams
from stackmark.workloads.serve.impl.decoder import DECODERS
from stackmark.workloads.serve.impl.detectors import (
    DETECTORS,
    LARGE,
    Detector,
    SsdMobileNet,
    detection_words,
    mobilenet_boxes,
    read_detections,
)
from stackmark.workloads.serve.impl.language import LONGEST_ANSWER, QUESTION_NETS, BertQa
from stackmark.workloads.serve.impl.network import Network
from stackmark.workloads.train.impl.nets import mobile

TINY = ("resnet20", "ssd-tiny", "bert-tiny", "gnmt-tiny", "gpt2-tiny")


def params(name: str, **more: Scalar) -> ServeParams:
    served = SERVED[name]
    given: dict[str, Scalar] = {
        "device": "cpu", "scenario": "offline", "seconds": 0.3, "rate": 0.0, "latency_bound": 0.0, "batch": 2, "library": 6,
        "precision": "fp32", "threads": 1, "prompt": served.prompt, "generate": served.generate,
    }  # fmt: skip
    return ServeParams.model_validate({**given, **more})


def counted(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


# Sizes, on the meta device: shapes without memory

# MobileNet v1: transformers' MobileNetV1ForImageClassification with 1001 classes; the paper (arXiv:1704.04861) says 4.2 M.
# SSD-ResNet34: mlcommons/training's ssd300.py; mlperf/inference's ssd_r34.py has the same layers with other strides.
# SSD-MobileNet v1: the paper's table 13 says 6.8 M; counted from mlcommons/inference's ssd_mobilenet_v1.py at a9ed941, with a
# scale and an offset of each batch normalisation.
# BERT: transformers' BertForQuestionAnswering of bert-large-uncased. GNMT: mlcommons/training's rnn_translator, 160.7 M.
# GPT-2: transformers' GPT2LMHeadModel. Llama: LlamaForCausalLM of Llama-3.2-1B.
SIZES: dict[str, tuple[Callable[[], nn.Module], float, float]] = {
    "mobilenet": (lambda: mobile.mobilenet_v1(1001), 4_233_001, 0),
    "ssd-resnet34": (lambda: ssd.Ssd(LARGE, 81), 19.97e6, 0.005e6),
    "ssd-mobilenet": (lambda: SsdMobileNet(91), 6.8e6, 0.05e6),
    "bert": (lambda: BertQa(*QUESTION_NETS["bert"][:4]), 334_094_338, 0),
    "gnmt": (lambda: gnmt.Gnmt(gnmt.SIZES["full"], gnmt.FULL_WORDS, gnmt.FULL_WORDS), 160.7e6, 0.1e6),
    "gpt2": (lambda: DECODERS["gpt2"].build(160), 124_439_808, 0),
    "llama3-1b": (lambda: DECODERS["llama3-1b"].build(640), 1_235_814_400, 0),
}


@pytest.mark.parametrize("name", SIZES)
def test_a_network_has_the_parameters_that_are_published(name: str) -> None:
    build, published, rounded = SIZES[name]
    with torch.device("meta"):
        assert counted(build()) == pytest.approx(published, abs=rounded)


@pytest.mark.parametrize(
    ("name", "boxes", "classes"), [("ssd-resnet34", 15_130, 81), ("ssd-mobilenet", 1917, 91), ("ssd-tiny", 756, 4)]
)
def test_a_detector_says_something_of_each_default_box(name: str, boxes: int, classes: int) -> None:
    model = DETECTORS[name]
    with torch.device("meta"):
        codes, logits = model.build().eval()(torch.empty(1, 3, model.px, model.px))
    assert (codes.shape, logits.shape) == ((1, boxes, 4), (1, boxes, classes))
    assert model.defaults().shape == (boxes, 4)


def test_mobilenet_has_the_multiply_adds_of_its_paper() -> None:
    """569 M, by the table 4 of arXiv:1704.04861."""
    macs = 0

    def add(module: nn.Module, _inputs: object, output: Tensor) -> None:
        nonlocal macs
        assert isinstance(module, nn.Conv2d | nn.Linear)
        macs += module.weight[0].numel() * output[0].numel()

    with torch.device("meta"):
        net = mobile.mobilenet_v1(1001).eval()
        for module in net.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                module.register_forward_hook(add)
        assert net(torch.empty(1, 3, 224, 224)).shape == (1, 1001)
    assert macs == pytest.approx(569e6, rel=0.005)


def test_default_boxes_of_ssd_mobilenet_are_those_of_the_reference() -> None:
    """The first cell of the first map, and the last map, by TensorFlow's multiple_grid_anchor_generator."""
    boxes, half = mobilenet_boxes(), math.sqrt(0.5)
    first = [(0.1, 0.1), (0.2 / half, 0.2 * half), (0.2 * half, 0.2 / half)]
    assert torch.allclose(boxes[:3], torch.tensor([(0.5 / 19, 0.5 / 19, *shape) for shape in first]))
    assert torch.allclose(boxes[-6], torch.tensor([0.5, 0.5, 0.95, 0.95]))
    assert torch.allclose(boxes[-1], torch.tensor([0.5, 0.5, math.sqrt(0.95), math.sqrt(0.95)]))


# Answers


@pytest.mark.parametrize("name", TINY)
def test_a_network_answers_alike_alone_and_in_a_batch(name: str) -> None:
    network = Network(name, params(name))
    together = network.words([4, 1, 4])
    assert together.dtype == torch.int32
    assert torch.equal(together[0], together[2])
    if name != "ssd-tiny":  # its answers are the bits of numbers, and the last of them depends on the batch
        assert torch.equal(together[1], network.words([1])[0])
    assert list(network([4, 1, 4])) == together.flatten().tolist()


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("precision", ["bf16", "fp64"])
def test_a_network_answers_in_other_precisions(name: str, precision: str) -> None:
    given = params(name, precision="bf16" if precision == "bf16" else "fp32")
    network = Network(name, given, dtype=torch.float64 if precision == "fp64" else None)
    assert network.words([0, 1]).shape == Network(name, params(name)).words([0, 1]).shape
    assert next(network.made.net.parameters()).dtype == (torch.bfloat16 if precision == "bf16" else torch.float64)


def test_a_detectors_answer_is_what_fit_finds() -> None:
    detector = Network("ssd-tiny", params("ssd-tiny")).made
    assert isinstance(detector, Detector)
    with torch.inference_mode():
        codes, logits = detector.net(detector.samples)
        found = ssd.find(codes, logits, detector.defaults)
        picture, boxes, scores, labels = read_detections(detector.compute(detector.samples))
    real = found.scores > 0
    assert torch.equal(picture, real.nonzero()[:, 0])
    assert torch.equal(boxes, found.boxes[real])
    assert torch.equal(scores, found.scores[real])
    assert torch.equal(labels, found.labels[real])


@pytest.mark.parametrize("name", ["ssd-tiny", "ssd-mobilenet"])
def test_random_weights_leave_boxes_for_the_suppression(name: str) -> None:
    detector = Network(name, params(name, library=2)).made
    assert isinstance(detector, Detector)
    with torch.inference_mode():
        _, logits = detector.net(detector.samples)
        scores = logits.sigmoid() if detector.model.independent else logits.softmax(2)
        share = (scores[:, :, 1:].amax(2) > detector.model.least).float().mean().item()
    assert 0.01 < share < 0.04


def test_of_overlapping_boxes_the_better_one_of_each_class_remains() -> None:
    """The reference's rule for SSD-MobileNet: a score over 0.3, and none with an overlap over 0.6 and a better score."""
    detector = Detector.__new__(Detector)
    detector.model = DETECTORS["ssd-mobilenet"]
    detector.defaults = torch.tensor([[0.4, 0.4, 0.4, 0.4], [0.41, 0.4, 0.4, 0.4], [0.8, 0.8, 0.2, 0.2]])
    logits = torch.full((1, 3, 91), -9.0)
    for box, label, score in ((0, 7, 0.9), (1, 7, 0.8), (1, 9, 0.5), (2, 7, 0.31), (2, 9, 0.29)):
        logits[0, box, label] = math.log(score / (1 - score))
    words = detection_words(detector.find(torch.zeros(1, 3, 4), logits), detector.model.most)
    assert words.shape == (1, 600)
    _, boxes, scores, labels = read_detections(words)
    assert labels.tolist() == [7, 9, 7]
    assert scores.tolist() == pytest.approx([0.9, 0.5, 0.31])
    assert boxes[2].tolist() == pytest.approx([0.7, 0.7, 0.9, 0.9])


def test_the_answer_to_a_question_lies_in_the_text_and_is_not_too_long() -> None:
    network = Network("bert-tiny", params("bert-tiny", library=64))
    first, last = network.words(range(64)).unbind(1)
    assert int(first.min()) >= 8  # the question is an eighth of 64 tokens
    assert bool(((last >= first) & (last - first < LONGEST_ANSWER)).all())
    assert len(set(first.tolist())) > 4


@pytest.mark.parametrize("name", ["gpt2-tiny", "llama"])
def test_a_decoder_with_a_cache_chooses_the_tokens_that_it_chooses_without(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "llama":
        for size, value in (("LAYERS", 2), ("WIDTH", 64), ("INNER", 128), ("HEADS", 4), ("KV_HEADS", 2)):
            monkeypatch.setattr(f"stackmark.workloads.train.impl.nets.transformer.Llama.{size}", value)
        small = DECODERS["llama3-1b"].__class__(DECODERS["llama3-1b"].build, 128_256, 64, 4, 2, 64, 2)
        monkeypatch.setitem(DECODERS, "llama3-1b", small)
        name = "llama3-1b"
    network = Network(name, params(name, library=2, prompt=9, generate=5), dtype=torch.float64)
    with torch.inference_mode():
        text = network.made.samples
        for _ in range(5):
            text = torch.cat((text, network.made.net(text)[:, -1:].argmax(2)), 1)
    assert torch.equal(network.words([0, 1]), text[:, 9:].int())


def test_a_decoder_passes_on_its_first_token_and_answers_all() -> None:
    network, first = Network("gpt2-tiny", params("gpt2-tiny")), list[int]()
    said = network.stream([0, 3], first.extend)
    assert len(said) == 2 * SERVED["gpt2-tiny"].generate
    assert first == [said[0], said[SERVED["gpt2-tiny"].generate]]


def test_a_text_longer_than_a_decoder_has_places_for_is_refused() -> None:
    with fails_as("bad_parameter", "128", "--prompt", "--generate"):
        Network("gpt2-tiny", params("gpt2-tiny", prompt=120, generate=9))
