"""The bytes of the training networks: by hand, against a real run on the CPU, and the table against the networks."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from stackmark.workloads.train.definition import PASSES, Counted, bytes_of, table
from stackmark.workloads.train.impl import nets
from stackmark.workloads.train.impl.nets import moving
from stackmark.workloads.train.impl.nets.moving import Traffic, count_bytes, count_step, walk
from stackmark.workloads.train.zoo import MODELS
from train_rig import train_params

META = torch.device("meta")
COMBINATIONS = list(dict.fromkeys((training, device, bits) for _, training, device, bits in table()))


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_two_layers_move_what_is_counted_by_hand() -> None:
    with META:
        net = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 4, bias=False))
        sample = nets.Sample((torch.empty(3, 8),), (torch.empty(3, dtype=torch.long),))
    least, called = count_step(MODELS["lenet"], net, sample, training=True, device="cpu", bits=32)
    forward = (24 + 128 + 48) + (48 + 64 + 12)
    # The second layer by input and by weights; the first only by weights.
    backward = (12 + 64 + 48) + (12 + 48 + 64) + (48 + 24 + 128)
    assert least == 4 * (forward + backward)
    relu = 4 * (48 + 48) + 4 * (48 + 48 + 48)
    softmax = 4 * (12 + 12) + 4 * (12 + 12 + 12)
    # Labels of 64 bits, the loss and its weight; then the gradient of one, and of the probabilities.
    loss = (24 + 4 + 4) + 4 + (4 + 24 + 4 + 48)
    assert called == least + relu + softmax + loss


# What their convolutions put out for an image, in millions: `acts` in pycls' MODEL_ZOO.md (of arXiv:2003.13678), whose residual
# networks have their stride in the 3×3.
ACTIVATIONS = {"resnet50_v1.5": 11.1, "resnet101_v1.5": 16.2, "resnet152_v1.5": 22.6}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_a_residual_networks_bytes_are_those_of_its_activations_and_weights(name: str) -> None:
    with META:
        net = nets.build(MODELS[name], 1001)
        image = torch.empty(1, 3, 224, 224)
    ends: list[tuple[nn.Module, int, int]] = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda one, given, out: ends.append((one, given[0].numel(), out.numel())))
    net.eval()(image)
    assert round(sum(out for one, _, out in ends if isinstance(one, nn.Conv2d)) / 1e6, 1) == ACTIVATIONS[name]
    counted = table()[name, False, "cuda", 32]
    assert counted.least_sample == 4 * sum(into + out for _, into, out in ends)
    # Every weight of a convolution or of the last layer once; normalisation and biases are no operands of a product.
    assert counted.least_step == 4 * sum(p.numel() for p in net.parameters() if p.dim() > 1)


def test_a_transformers_bytes_are_those_of_its_formula() -> None:
    tokens, width, words, layers = 1024, 768, 50257, 12
    # Projections to queries, keys and values; attention, without its scores; projection back; two of the block's own layers.
    block = tokens * width * ((1 + 3) + 4 + (1 + 1) + (1 + 4) + (4 + 1))
    counted = table()["gpt2", False, "cuda", 32]
    assert counted.least_sample == 4 * (layers * block + tokens * (width + words))
    assert counted.least_step == 4 * (layers * 12 * width * width + words * width)


@pytest.mark.parametrize("name", ["lenet", "resnet20_v2", "mobilenet"])
def test_bytes_are_linear_in_the_batch(name: str) -> None:
    model = MODELS[name]
    counted = count_bytes(model, training=True, device="cuda", bits=16)
    least, called = walk(model, 7, training=True, device="cuda", bits=16)
    assert least == 7 * counted.least_sample + counted.least_step
    assert called == 7 * counted.called_sample + counted.called_step


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "inception3", "gpt2", "bert-large", "llama3-1b", "vit-b16"])
def test_the_matrix_operators_of_a_backward_pass_move_about_twice_those_of_the_forward_pass(name: str) -> None:
    training, forward = (table()[name, training, "cuda", 16] for training in (True, False))
    assert 2.85 < training.least_sample / forward.least_sample <= 3
    assert 2.99 < training.least_step / forward.least_step <= 3


def test_half_the_bits_are_half_of_the_least_bytes_and_less_than_called() -> None:
    for (name, training, device, bits), counted in table().items():
        wide = table()[name, training, device, 32]
        assert (counted.least_sample, counted.least_step) == (
            wide.least_sample * bits // 32,
            wide.least_step * bits // 32,
        )
        assert counted.called_sample > counted.least_sample
        assert counted.called_step > counted.least_step


def test_every_network_is_in_the_table_in_every_combination() -> None:
    assert {(name, *one) for name in MODELS for one in COMBINATIONS} == set(table())
    assert len(COMBINATIONS) == 8


@pytest.mark.parametrize(("number", "name"), list(enumerate(MODELS)))
def test_the_table_has_the_bytes_of_the_network(number: int, name: str) -> None:
    """One combination of each network; all of them are written by scripts/write_traffic.py."""
    training, device, bits = COMBINATIONS[number % len(COMBINATIONS)]
    kept: Counted = table()[name, training, device, bits]
    least, called = walk(MODELS[name], 2, training=training, device=device, bits=bits)  # type: ignore[arg-type]
    assert least == 2 * kept.least_sample + kept.least_step
    assert called == 2 * kept.called_sample + kept.called_step


@pytest.mark.parametrize("bits", [16, 32])
@pytest.mark.parametrize("name", ["lenet", "resnet20", "densenet40_k12"])
def test_a_real_step_under_autocast_calls_what_the_walk_counts(name: str, bits: int) -> None:
    model = MODELS[name]
    torch.manual_seed(1)
    net = nets.build(model, model.classes)
    sample = nets.synthetic(model, 2, model.classes, torch.device("cpu"), seed=1)
    with Traffic() as traffic:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bits == 16):
            outputs = net(*sample.inputs)
        nets.loss(model, outputs, sample.targets).backward()
    expected = walk(model, 2, training=True, device="cpu", bits=bits)  # type: ignore[arg-type]
    assert (traffic.least, traffic.called) == expected


def has_autocast(operator: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{operator}", key))


def test_autocast_touches_of_what_our_networks_call_only_what_is_said_here() -> None:
    assert {function.__name__ for function in moving.LOWERED} == {"conv2d", "linear", "scaled_dot_product_attention"}
    for device, key in (("cuda", "AutocastCUDA"), ("cpu", "AutocastCPU")):
        assert all(has_autocast(function.__name__, key) for function in moving.LOWERED)
        kept = {function.__name__ for function in moving.KEPT[device]}  # type: ignore[index]
        for operator in ("layer_norm", "rms_norm"):
            assert has_autocast(operator, key) == (operator in kept)
        for operator in (
            "batch_norm", "relu", "hardtanh", "gelu", "silu", "tanh", "embedding", "dropout", "max_pool2d", "avg_pool2d",
            "mean", "gather", "add.Tensor", "mul.Tensor", "constant_pad_nd",
        ):  # fmt: skip
            assert not has_autocast(operator, key), operator


@pytest.mark.parametrize("weight_decay", [0.0, 1e-4])
@pytest.mark.parametrize("name", PASSES)
def test_the_passes_of_an_optimizer_are_those_that_it_calls(name: str, weight_decay: float) -> None:
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": torch.optim.SGD,
        "momentum": lambda p, **more: torch.optim.SGD(p, momentum=0.9, nesterov=True, **more),
        "rmsprop": lambda p, **more: torch.optim.RMSprop(p, momentum=0.9, **more),
        "adam": torch.optim.Adam,
        "adamw": torch.optim.AdamW,
    }
    parameter = nn.Parameter(torch.empty(1000, 1000, device=META))
    optimizer = makers[name]([parameter], lr=0.1, weight_decay=weight_decay, foreach=True)
    for _ in range(2):  # the first step makes the states
        parameter.grad = torch.empty_like(parameter)
        with Traffic() as traffic:
            optimizer.step()
    plain, decay = PASSES[name]
    # Beside it there are a few numbers for the count of steps.
    assert round(traffic.called / (4 * parameter.numel()), 4) == plain + (decay if weight_decay else 0)


def test_the_batch_the_optimizer_and_the_mode_enter() -> None:
    model = MODELS["lenet"]
    kept = table()["lenet", True, "cpu", 32]

    def least(**given: object) -> float:
        found = bytes_of(model, train_params("lenet", **given))
        assert found is not None
        return found.least

    def called(**given: object) -> float:
        found = bytes_of(model, train_params("lenet", **given))
        assert found is not None
        return found.called

    # Momentum: weight, gradient and momentum in; weight and momentum out; 32 bits each.
    assert least(batch=8) == kept.least_sample + (kept.least_step + 4 * 5 * model.params) / 8
    assert least(batch=8, optimizer="adam") - least(batch=8) == 4 * 2 * model.params / 8
    assert least(batch=8, optimizer="sgd") - least(batch=8) == -4 * 2 * model.params / 8
    assert least(batch=8, mode="forward") == table()["lenet", False, "cpu", 32].least_sample + 4 * sum(
        (25 * 3 * 32, 25 * 32 * 64, 7 * 7 * 64 * 512, 512 * 1001)
    ) / 8  # fmt: skip
    assert called(batch=8) - called(batch=8, fused=True) == 4 * (14 - 5) * model.params / 8
    assert called(gradient_clip=1.0, batch=1) - called(batch=1) == 4 * 2 * model.params
    assert called(batch=8, precision="bf16") != called(batch=8)
    assert bytes_of(model, train_params("lenet", classes=10)) is None
