"""The networks against independent numbers: the classic's, the libraries', and arithmetic by hand.

Beyond what runs here, outputs were compared once with weights copied over, in eval and train mode: resnet50_v1.5 (with
torchvision's max pool), mobilenet and vit-b16 with torchvision 0.29.2, gpt2, bert-large and llama3-1b (two layers,
700 tokens) with transformers 5.22.2, all on torch 2.13. The largest difference was 8e-5, at outputs of up to 6.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import counting
from stackmark.workloads.train.impl import nets
from stackmark.workloads.train.impl.nets import layers, plain, resnet, transformer
from stackmark.workloads.train.zoo import MODELS, Model
from stackmark.workloads.workload import WorkloadFailure

CPU, META = torch.device("cpu"), torch.device("meta")

# Parameters and GMAC per image of tf_cnn_benchmarks at 8fb7907 with its 1001 or 11 classes, counted by executing its
# model files on a stub that records shapes. Its densenets are left out: they were built wrong.
CLASSIC = {
    "alexnet": (61842345, 0.8388),
    "vgg11": (132867433, 7.6091),
    "vgg16": (138361641, 15.4703),
    "vgg19": (143671337, 19.6321),
    "googlenet": (6999577, 1.5827),
    "overfeat": (145924969, 2.8014),
    "lenet": (2173353, 0.014),
    "trivial": (4263877, 0.0043),
    "inception3": (23819401, 5.7132),
    "inception4": (42649769, 12.254),
    "resnet50": (25559081, 3.858),
    "resnet50_v1.5": (25559081, 4.0892),
    "resnet50_v2": (25536361, 3.858),
    "resnet101": (44551209, 7.5702),
    "resnet101_v2": (44511081, 7.5702),
    "resnet152": (60194857, 11.2824),
    "resnet152_v2": (60139369, 11.2824),
    "alexnet_cifar10": (1756619, 0.0328),
    "trivial_cifar10": (56332, 0.0001),
    "resnet20": (269787, 0.0406),
    "resnet20_v2": (269467, 0.0406),
    "resnet32": (464219, 0.0689),
    "resnet32_v2": (463675, 0.0689),
    "resnet44": (658651, 0.0972),
    "resnet44_v2": (657883, 0.0972),
    "resnet56": (853083, 0.1255),
    "resnet56_v2": (852091, 0.1255),
    "resnet110": (1728027, 0.2529),
    "resnet110_v2": (1726027, 0.2529),
}

# Trainable parameters: classes, count. torchvision 0.29.2, transformers 5.22.2 (GPT2LMHeadModel, BertForPreTraining,
# LlamaForCausalLM), Keras' NASNetMobile, and for densenet40_k12 the authors' own.
LIBRARIES = {
    "vgg11": (1000, 132863336),
    "vgg16": (1000, 138357544),
    "vgg19": (1000, 143667240),
    "resnet50_v1.5": (1000, 25557032),
    "resnet101_v1.5": (1000, 44549160),
    "resnet152_v1.5": (1000, 60192808),
    "mobilenet": (1000, 3504872),
    "vit-b16": (1000, 86567656),
    "nasnet": (1000, 5289978),
    "densenet40_k12": (10, 1019722),
    "gpt2": (50257, 124439808),
    "bert-large": (30522, 336226108),
    "llama3-1b": (128256, 1235814400),
}

TINY = ("lenet", "trivial_cifar10", "alexnet_cifar10", "resnet20", "resnet20_v2", "densenet40_k12")


def meta(name: str, classes: int | None = None) -> nn.Module:
    with META:
        return nets.build(MODELS[name], classes or MODELS[name].classes)


def fresh(name: str, batch: int) -> tuple[Model, nn.Module, nets.Sample]:
    torch.manual_seed(1)
    model = MODELS[name]
    return model, nets.build(model, model.classes), nets.synthetic(model, batch, model.classes, CPU, seed=1)


def each(outputs: nets.Outputs) -> tuple[Tensor, ...]:
    return (outputs,) if isinstance(outputs, Tensor) else outputs


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing from a second thread, and lose much where a busy machine has to share it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def uninitialised_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)  # which makes torch.empty return NaN
    yield
    torch.use_deterministic_algorithms(False)


def test_the_table_can_be_read_without_torch() -> None:
    code = "import sys, stackmark.workloads.train.zoo; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_row_has_a_network_and_every_network_a_row() -> None:
    assert set(MODELS) == set(nets.BUILDERS)


@pytest.mark.parametrize("name", MODELS)
def test_the_table_has_the_counts_of_the_network(name: str) -> None:
    model = MODELS[name]
    assert counting.count_parameters(meta(name)) == model.params
    assert counting.count(model) == (model.forward_macs, model.training_flops)


@pytest.mark.parametrize("name", CLASSIC)
def test_a_classic_network_has_the_size_it_had(name: str) -> None:
    params, gmac = CLASSIC[name]
    assert MODELS[name].params == params
    assert round(MODELS[name].forward_macs / 1e9, 4) == gmac


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_network_has_as_many_parameters_as_the_librarys(name: str) -> None:
    classes, params = LIBRARIES[name]
    assert counting.count_parameters(meta(name, classes)) == params


@pytest.mark.parametrize(("name", "millions"), [("densenet100_k12", 7.0), ("densenet100_k24", 27.2)])
def test_a_densenet_has_the_size_its_paper_prints(name: str, millions: float) -> None:
    assert round(counting.count_parameters(meta(name, 10)) / 1e6, 1) == millions


@pytest.mark.parametrize(("name", "mmacs"), [("mobilenet", 301), ("nasnet", 564)])
def test_a_mobile_network_has_the_multiply_adds_its_paper_prints(name: str, mmacs: int) -> None:
    # 300 in MobileNetV2's paper, rounded; 0.301 by torchvision's own table at 1000 classes.
    assert round(MODELS[name].forward_macs / 1e6) == mmacs


def test_attention_is_counted() -> None:
    width, tokens, vocabulary, depth = 768, 1024, 50257, 12
    linear = 3 * width * width + width * width + 2 * 4 * width * width
    attention = 2 * tokens * width  # scores, and their product with the values
    macs = tokens * (depth * (linear + attention) + vocabulary * width)
    assert counting.count(MODELS["gpt2"]) == (macs, 6 * macs)


def test_shared_keys_and_values_are_counted_once_in_projection_and_for_each_head_in_attention() -> None:
    width, inner, tokens, vocabulary, depth = 2048, 8192, 2048, 128256, 16
    linear = 2 * width * width + 2 * width * (width // 4) + 3 * width * inner
    macs = tokens * (depth * (linear + 2 * tokens * width) + vocabulary * width)
    assert MODELS["llama3-1b"].forward_macs == macs


def test_a_torch_without_shared_keys_in_attention_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.4.1")
    with pytest.raises(WorkloadFailure) as failed:
        meta("llama3-1b")
    assert (failed.value.kind, "2.5" in failed.value.message) == ("missing_package", True)


def test_a_grouped_convolutions_backward_pass_costs_twice_its_forward_pass() -> None:
    # mobilenet's first convolution needs no gradient of the images: 32 filters of 3×3×3 on 112×112.
    first = 112 * 112 * 32 * 27
    assert MODELS["mobilenet"].training_flops == 6 * MODELS["mobilenet"].forward_macs - 2 * first


@pytest.mark.parametrize("name", MODELS)
def test_outputs_have_a_score_for_every_class(name: str) -> None:
    model = MODELS[name]
    sample = nets.synthetic(model, 2, 77, META, seed=0)
    outputs = each(meta(name, 77)(*sample.inputs))
    shapes = {
        "gpt2": [(2, 1024, 77)],
        "llama3-1b": [(2, 2048, 77)],
        "bert-large": [(2, 20, 77), (2, 2)],
    }
    assert [tuple(output.shape) for output in outputs] == shapes.get(name, [(2, 77)])
    assert [output.shape[:-1] for output in outputs] == [target.shape for target in sample.targets]


@pytest.mark.usefixtures("uninitialised_memory_is_nan")
@pytest.mark.parametrize("name", [*TINY, "inception3", "mobilenet", "nasnet", "resnet50_v2", "vit-b16", "gpt2"])
def test_no_parameter_or_buffer_is_left_without_a_value(name: str) -> None:
    assert torch.empty(1).isnan().item()
    net = nets.build(MODELS[name], 5)
    assert all(bool(value.isfinite().all()) for value in net.state_dict(keep_vars=True).values())
    assert all(bool(value.isfinite().all()) for value in net.buffers())


@pytest.mark.usefixtures("uninitialised_memory_is_nan")
@pytest.mark.parametrize("name", ["bert-large", "llama3-1b"])
def test_a_large_transformer_of_one_layer_starts_at_an_even_guess(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer.Bert, "LAYERS", 1)
    monkeypatch.setattr(transformer.Llama, "LAYERS", 1)
    model = MODELS[name]
    torch.manual_seed(1)
    net = nets.build(model, 500)
    sample = nets.synthetic(model, 1, 500, CPU, seed=1)
    value = nets.loss(model, net(*sample.inputs), sample.targets)
    even = math.log(500) + (math.log(2) if name == "bert-large" else 0)
    assert value.item() == pytest.approx(even, abs=0.7)


@pytest.mark.parametrize("name", [*TINY, "resnet110", "mobilenet", "nasnet", "googlenet"])
def test_training_starts_at_an_even_guess_and_stays_finite(name: str) -> None:
    model, net, sample = fresh(name, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=model.learning_rate)
    values: list[float] = []
    for _ in range(3):
        optimizer.zero_grad()
        value = nets.loss(model, net(*sample.inputs), sample.targets)
        value.backward()
        assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in net.parameters())
        optimizer.step()
        values.append(value.item())
    assert values[0] == pytest.approx(math.log(model.classes), abs=0.4)
    assert all(math.isfinite(value) for value in values)


def test_the_data_are_not_the_weights_though_they_have_the_same_seed() -> None:
    torch.manual_seed(7)
    first = torch.randn(100)
    images = nets.synthetic(MODELS["lenet"], 1, 10, CPU, seed=7).inputs[0]
    assert not torch.equal(images.flatten()[:100], first)


def test_the_same_seed_makes_the_same_batch_and_another_seed_another() -> None:
    one, same, other = (nets.synthetic(MODELS["bert-large"], 3, 999, CPU, seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(one.inputs + one.targets, same.inputs + same.targets, strict=True))
    assert not torch.equal(one.inputs[0], other.inputs[0])


def test_images_are_normalised_and_labels_reach_every_class() -> None:
    sample = nets.synthetic(MODELS["resnet20"], 256, 11, CPU, seed=3)
    assert sample.inputs[0].mean().item() == pytest.approx(0, abs=0.01)
    assert sample.inputs[0].std().item() == pytest.approx(1, abs=0.01)
    assert set(sample.targets[0].tolist()) == set(range(11))


def test_masked_positions_differ_within_a_sequence() -> None:
    masked = nets.synthetic(MODELS["bert-large"], 8, 999, CPU, seed=3).inputs[2]
    assert all(len(set(row)) == 20 and max(row) < 128 for row in masked.tolist())


def test_a_decoder_learns_the_next_word() -> None:
    sample = nets.synthetic(MODELS["gpt2"], 2, 999, CPU, seed=3)
    assert torch.equal(sample.inputs[0][:, 1:], sample.targets[0][:, :-1])


def test_a_decoder_does_not_see_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer.Llama, "LAYERS", 2)
    monkeypatch.setattr(transformer.GPT2, "LAYERS", 2)
    for name in ("gpt2", "llama3-1b"):
        torch.manual_seed(1)
        net = nets.build(MODELS[name], 50)
        words = torch.randint(50, (1, 32))
        changed = words.clone()
        changed[0, 20:] = (changed[0, 20:] + 1) % 50
        with torch.no_grad():
            before, after = net(words), net(changed)
        torch.testing.assert_close(before[:, :20], after[:, :20])
        assert not torch.allclose(before[:, 20:], after[:, 20:], atol=1e-3)


@pytest.mark.parametrize("name", ["resnet20", "resnet20_v2", "alexnet_cifar10", "densenet40_k12", "lenet"])
def test_channels_last_computes_the_same(name: str) -> None:
    _, net, sample = fresh(name, 4)
    with torch.no_grad():
        contiguous = net(*sample.inputs)
        images = sample.inputs[0].contiguous(memory_format=torch.channels_last)
        last = net.to(memory_format=torch.channels_last)(images)  # type: ignore[call-overload]
    torch.testing.assert_close(contiguous, last, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["resnet20", "mobilenet"])
def test_autocast_changes_the_loss_little(name: str) -> None:
    model, net, sample = fresh(name, 4)
    exact = nets.loss(model, net(*sample.inputs), sample.targets)
    with torch.autocast("cpu", torch.bfloat16):
        rough = nets.loss(model, net(*sample.inputs), sample.targets)
    assert rough.dtype == torch.float32
    assert rough.item() == pytest.approx(exact.item(), rel=0.05)


def test_two_tasks_add_their_losses() -> None:
    words, follows = torch.zeros(2, 20, 50), torch.zeros(2, 2)
    targets = (torch.zeros(2, 20, dtype=torch.long), torch.zeros(2, dtype=torch.long))
    value = nets.loss(MODELS["bert-large"], (words, follows), targets)
    assert value.item() == pytest.approx(math.log(50) + math.log(2))


def test_accuracy_is_the_fraction_of_labels_among_the_likeliest() -> None:
    scores = torch.tensor([[3.0, 2.0, 1.0], [1.0, 3.0, 2.0], [3.0, 1.0, 2.0], [2.0, 3.0, 1.0]])
    labels = (torch.tensor([0, 2, 1, 1]),)
    model = MODELS["resnet20"]
    assert nets.accuracy(model, scores, labels, 1).item() == 0.5
    assert nets.accuracy(model, scores, labels, 2).item() == 0.75
    assert nets.accuracy(model, scores, labels, 3).item() == 1.0


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding"),
    # tf.nn's documentation: the output has ceil(size / stride) pixels, and the odd pixel of padding comes last.
    [(224, 7, 2, (2, 3)), (112, 3, 2, (0, 1)), (111, 3, 2, (1, 1)), (35, 3, 1, (1, 1)), (28, 1, 2, (0, 0))],
)
def test_same_padding_is_tensorflows(size: int, kernel: int, stride: int, padding: tuple[int, int]) -> None:
    assert layers.same_padding(size, kernel, stride) == padding


@pytest.mark.parametrize("size", [8, 9])
def test_same_pools_ignore_their_padding(size: int) -> None:
    x = torch.full((1, 1, size, size), -2.0)
    for kind in ("max", "avg"):
        for stride in (1, 2):
            pooled = layers.SamePool2d("max" if kind == "max" else "avg", 3, stride)(x)
            assert pooled.shape[2] == -(-size // stride)
            assert torch.equal(pooled, torch.full_like(pooled, -2.0))


def test_an_uneven_same_convolution_starts_at_the_first_pixel() -> None:
    conv = layers.convolution(1, 1, 3, 2)
    nn.init.ones_(conv.weight)
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    # Windows begin at pixels 0 and 2; what lies beyond the right and lower edge is zero.
    assert conv(x).flatten().tolist() == [45.0, 39.0, 66.0, 50.0]


def test_resnet_versions_stride_where_their_names_say() -> None:
    with META:
        blocks = {v: resnet.Bottleneck(256, 512, 2, v) for v in ("v1", "v1.5")}
    assert [blocks["v1"].conv1.stride, blocks["v1"].conv2.stride] == [(2, 2), (1, 1)]
    assert [blocks["v1.5"].conv1.stride, blocks["v1.5"].conv2.stride] == [(1, 1), (2, 2)]


def test_inception_normalises_without_a_trainable_scale() -> None:
    with META:
        net = plain.PlainNet(plain.PLAIN["inception3"], 299, 10)
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 94
    assert not any(isinstance(norm.weight, nn.Parameter) for norm in norms)


def test_response_normalisation_is_tensorflows() -> None:
    row = next(row for row in plain.PLAIN["alexnet_cifar10"].rows if isinstance(row, layers.Response))
    module, _ = layers.column((row,), 12)
    x = torch.randn(1, 12, 1, 1, generator=torch.Generator().manual_seed(0)) * 30
    values = x.flatten().tolist()
    # tf.nn.lrn with depth_radius 4, bias 1, alpha 0.001 / 9, beta 0.75.
    sums = [sum(v * v for v in values[max(i - 4, 0) : i + 5]) for i in range(12)]
    expected = [v / (1 + 0.001 / 9 * s) ** 0.75 for v, s in zip(values, sums, strict=True)]
    assert module(x).flatten().tolist() == pytest.approx(expected, rel=1e-5)
