"""One training step: does it compute what its parameters say? Against formulas by hand and a plain loop."""

import copy
import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from refusing import fails_as
from stackmark.workloads.train.impl import nets, optimizer, train
from stackmark.workloads.train.impl.choose import FUSED
from stackmark.workloads.train.impl.data import CopyFeed, open_feed
from stackmark.workloads.train.impl.optimizer import build_optimizer
from stackmark.workloads.train.impl.step import Machine, build_model, set_arithmetic
from stackmark.workloads.train.zoo import MODELS
from stackmark.workloads.workload import WorkloadFailure
from train_rig import CPU, RecordingRig, arithmetic_is_left_as_found, losses, peeked, standing, train_params

__all__ = ["arithmetic_is_left_as_found"]

MU, LR, DECAY = 0.8, 0.05, 0.01
Update = Callable[[int, Tensor, Tensor, dict[str, Tensor]], Tensor]


def built(name: str, **given: Any) -> Machine:
    """A step's machinery without a run around it; `given` may hold what no complete run would be let through with."""
    params = train_params(name).model_copy(update=given)
    return Machine.build(params, MODELS[name], open_feed(params, MODELS[name], CPU), RecordingRig())


def weights(net: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in net.parameters()]


# The published formulas, on one tensor: `t` counts from 1, `g` has no weight decay in it, `s` is the state.
def _sgd(t: int, w: Tensor, g: Tensor, s: dict[str, Tensor]) -> Tensor:
    return w - LR * (g + DECAY * w)


def _nesterov(t: int, w: Tensor, g: Tensor, s: dict[str, Tensor]) -> Tensor:
    g = g + DECAY * w
    s["v"] = MU * s.get("v", torch.zeros_like(w)) + g
    return w - LR * (g + MU * s["v"])


def _rmsprop(t: int, w: Tensor, g: Tensor, s: dict[str, Tensor]) -> Tensor:
    g = g + DECAY * w
    s["sq"] = 0.7 * s.get("sq", torch.zeros_like(w)) + 0.3 * g * g
    s["v"] = 0.6 * s.get("v", torch.zeros_like(w)) + g / (s["sq"].sqrt() + 0.5)
    return w - LR * s["v"]


def _moments(t: int, g: Tensor, s: dict[str, Tensor]) -> Tensor:
    s["m"] = 0.8 * s.get("m", torch.zeros_like(g)) + 0.2 * g
    s["sq"] = 0.95 * s.get("sq", torch.zeros_like(g)) + 0.05 * g * g
    return LR * (s["m"] / (1 - 0.8**t)) / ((s["sq"] / (1 - 0.95**t)).sqrt() + 0.01)


def _adam(t: int, w: Tensor, g: Tensor, s: dict[str, Tensor]) -> Tensor:
    return w - _moments(t, g + DECAY * w, s)


def _adamw(t: int, w: Tensor, g: Tensor, s: dict[str, Tensor]) -> Tensor:
    return w * (1 - LR * DECAY) - _moments(t, g, s)


RULES: dict[str, Update] = {
    "sgd": _sgd, "momentum": _nesterov, "rmsprop": _rmsprop, "adam": _adam, "adamw": _adamw,
}  # fmt: skip
HYPER = {
    "learning_rate": LR, "weight_decay": DECAY, "momentum": MU, "rmsprop_decay": 0.7, "rmsprop_momentum": 0.6,
    "rmsprop_epsilon": 0.5, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 0.01,
}  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "fused"), [*((name, False) for name in RULES), *((name, True) for name in sorted(FUSED))]
)
def test_an_optimizer_follows_its_formula_with_the_hyperparameters_given(optimizer: str, fused: bool) -> None:
    machine = built("trivial_cifar10", optimizer=optimizer, fused=fused, **HYPER)
    net = copy.deepcopy(machine.net)
    images, labels = machine.feed.target.inputs[0], machine.feed.target.targets[0]
    states: list[dict[str, Tensor]] = [{} for _ in net.parameters()]
    body = machine.body()
    for t in (1, 2, 3):
        body()
        gradients = torch.autograd.grad(nn.functional.cross_entropy(net(images), labels), list(net.parameters()))
        with torch.no_grad():
            for w, g, state in zip(net.parameters(), gradients, states, strict=True):
                w.copy_(RULES[optimizer](t, w, g, state))
    for ours, theirs in zip(machine.net.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "name", ["resnet20", "resnet20_v2", "densenet40_k12", "inception3", "nasnet", "vit-b16", "llama3-1b"]
)
def test_weight_decay_spares_normalisation_and_nothing_else(name: str) -> None:
    params = train_params(name, weight_decay=0.3)
    with torch.device("meta"):
        net = nets.build(MODELS[name], 11)
    kinds = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
    norms = {id(p) for module in net.modules() if isinstance(module, kinds) for p in module.parameters()}
    groups = build_optimizer(params, net).param_groups
    spared = {id(p) for group in groups if group["weight_decay"] == 0 for p in group["params"]}
    decayed = {id(p) for group in groups if group["weight_decay"] == 0.3 for p in group["params"]}
    assert norms
    assert spared == norms
    assert decayed == {id(p) for p in net.parameters()} - norms


def test_gradients_are_clipped_by_value() -> None:
    machine = built("lenet", optimizer="sgd", learning_rate=1.0, weight_decay=0.0, gradient_clip=1e-4)
    before = weights(machine.net)
    machine.body()()
    moved = torch.cat([(a - b).abs().flatten() for a, b in zip(before, machine.net.parameters(), strict=True)])
    assert moved.max().item() == pytest.approx(1e-4, rel=1e-3)
    assert (moved < 0.9e-4).any()


# fp16 does not train on a CPU for users, because it is slow there and its operators incomplete; LeNet's are there, so
# that the arithmetic of the loss scale can be tried without a GPU.
def test_a_constant_loss_scale_is_taken_out_again_before_the_update() -> None:
    exact = built("lenet", optimizer="sgd", learning_rate=1.0)
    scaled = built("lenet", optimizer="sgd", learning_rate=1.0, precision="fp16", loss_scale=128.0)
    before = weights(exact.net)
    exact.body()()
    scaled.body()()
    for start, a, b in zip(before, exact.net.parameters(), scaled.net.parameters(), strict=True):
        assert ((a - b).norm() / (a - start).norm()).item() < 0.1


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_whose_scaled_gradients_overflow_is_skipped_and_leaves_no_trace(fused: bool) -> None:
    torch.use_deterministic_algorithms(True)  # memory that nobody has written to is NaN then
    try:
        machine = built("lenet", precision="fp16", learning_rate=0.001, fused=fused)
        assert machine.scaler is not None
        machine.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-30)
        before = weights(machine.net)
        body = machine.body()
        body()
        first = machine.loss.item()
        assert all(torch.equal(a, b) for a, b in zip(before, machine.net.parameters(), strict=True))
        assert machine.scaler.get_scale() == 2.0**10
        for _ in range(3):
            body()
    finally:
        torch.use_deterministic_algorithms(False)
    assert machine.loss.item() < first


def hooked(net: nn.Module) -> list[tuple[nn.Module, Tensor]]:
    """Every convolution and linear layer with its output, as they come."""
    seen: list[tuple[nn.Module, Tensor]] = []
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda m, _i, out: seen.append((m, out)))
    return seen


def test_bf16_computes_in_bf16_and_keeps_its_weights_in_fp32() -> None:
    exact, rough = built("lenet"), built("lenet", precision="bf16")
    seen = hooked(rough.net)
    exact.body()()
    rough.body()()
    assert {out.dtype for _, out in seen} == {torch.bfloat16}
    assert {p.dtype for p in rough.net.parameters()} == {torch.float32}
    assert rough.loss.dtype == torch.float32
    assert rough.loss.item() != exact.loss.item()
    assert rough.loss.item() == pytest.approx(exact.loss.item(), rel=0.02)


def test_nhwc_stores_weights_and_activations_channels_last_and_computes_the_same() -> None:
    plain, last = built("resnet20"), built("resnet20", layout="nhwc")
    seen = hooked(last.net)
    for machine in (plain, last):
        body = machine.body()
        body()
        body()
    tensors = [t for m, out in seen if isinstance(m, nn.Conv2d) for t in (m.weight, out)]
    assert len(tensors) > 40
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors)
    assert last.feed.target.inputs[0].is_contiguous(memory_format=torch.channels_last)
    assert last.loss.item() == pytest.approx(plain.loss.item(), rel=1e-4)


# The compiler's own modules use what torch has deprecated.
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_compiling_changes_no_loss() -> None:
    given = {"layout": "nhwc", "fused": True}
    compiled = losses("lenet", 3, compile=True, **given)
    assert compiled == pytest.approx(losses("lenet", 3, **given), rel=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_compiling_without_a_compiler_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with fails_as("missing_package", "C++"), standing("lenet", compile=True):
        pass


def test_the_same_seed_gives_the_same_losses_and_another_seed_others() -> None:
    one, same, other = (losses("alexnet_cifar10", 3, seed=seed) for seed in (5, 5, 6))
    assert one == same
    assert one != other


def test_fp32_is_not_tf32_and_tf32_is() -> None:
    set_arithmetic(train_params("lenet"))
    assert torch.get_float32_matmul_precision() == "highest"
    assert not torch.backends.cudnn.allow_tf32
    set_arithmetic(train_params("lenet", device="cuda:0", precision="tf32"))
    assert torch.get_float32_matmul_precision() == "high"
    assert torch.backends.cudnn.allow_tf32


def test_forward_makes_no_gradient_and_changes_no_weight() -> None:
    machine = built("resnet20", mode="forward")
    before = {name: value.clone() for name, value in machine.net.state_dict().items()}
    machine.body()()
    assert machine.optimizer is None
    assert all(p.grad is None for p in machine.net.parameters())
    assert all(torch.equal(value, before[name]) for name, value in machine.net.state_dict().items())


def test_forward_reads_accuracy_where_it_is_asked_for_and_nothing_where_not() -> None:
    with standing("lenet", mode="forward") as ready:
        assert ready.peek is None
    with standing("lenet", mode="forward", accuracy=True) as ready:
        assert set(peeked(ready, 1)[0]) == {"loss", "top_1", "top_5"}


def test_a_peek_gives_the_loss_of_the_step_just_done() -> None:
    given = {"data": "host", "learning_rate": 0.0, "batch": 3, "seed": 9}
    model, params = MODELS["lenet"], train_params("lenet", **given)
    net = build_model(params, model)
    samples = [nets.synthetic(model, 3, model.classes, CPU, 9 + index) for index in range(4)]
    expected = [nn.functional.cross_entropy(net(s.inputs[0]), s.targets[0]).item() for s in samples]
    # The first of the four batches went into the first step, which belongs to the set-up.
    assert losses("lenet", 5, **given) == pytest.approx([*expected[1:], *expected[:2]], rel=1e-5)


def test_a_loss_that_overflows_fails_the_check() -> None:
    with standing("alexnet_cifar10", learning_rate=1e20) as ready:
        ready.check()
        for _ in range(3):
            ready.step()
        with fails_as("not_finite", "loss", "--learning-rate"):
            ready.check()


def test_a_loss_that_was_not_finite_between_two_peeks_is_found_until_the_sums_begin_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Set-up, one good step, one bad one, two good ones.
    fills = iter([1.0, 1.0, math.inf, 1.0, 1.0])
    plain = CopyFeed.fill

    def fill(feed: CopyFeed) -> None:
        plain(feed)
        feed.target.inputs[0].mul_(next(fills))

    monkeypatch.setattr(CopyFeed, "fill", fill)
    # A forward run: its weights survive the bad batch.
    with standing("lenet", data="host", mode="forward", accuracy=True) as ready:
        ready.step()
        ready.check()
        last = peeked(ready, 2)[-1]
        assert all(math.isfinite(value) for value in last.values())
        with pytest.raises(WorkloadFailure):
            ready.check()
        ready.reset()
        ready.step()
        ready.check()


def test_an_output_that_is_not_finite_fails_the_check_of_a_forward_run() -> None:
    machine = built("lenet", mode="forward")
    body = machine.body()
    body()
    train._check(machine)
    with torch.no_grad():
        next(machine.net.parameters()).fill_(math.nan)
    body()
    with fails_as("not_finite", "output"):
        train._check(machine)


def test_the_set_up_is_timed_by_part() -> None:
    rig = RecordingRig()
    with standing("lenet", rig) as ready:
        assert (ready.device, ready.sample, ready.samples_per_step, ready.peek_every) == ("cpu", "image", 4, 10)
    assert rig.parts == ["device", "data", "model", "first step"]


def test_lenets_operations_and_bytes_are_those_counted_by_hand() -> None:
    # 5×5 convolutions to 32 and 64 channels on 28×28 and 14×14, then 7·7·64 → 512 → 1001.
    weights = [25 * 3 * 32, 25 * 32 * 64, 7 * 7 * 64 * 512, 512 * 1001]
    layers = [weights[0] * 28 * 28, weights[1] * 14 * 14, weights[2], weights[3]]
    macs = sum(layers)
    parameters = sum(weights) + 32 + 64 + 512 + 1001
    # What goes in and what comes out; between them max pools by two.
    ends = [(3 * 28 * 28, 32 * 28 * 28), (32 * 14 * 14, 64 * 14 * 14), (7 * 7 * 64, 512), (512, 1001)]
    image = sum(into + out for into, out in ends)
    with standing("lenet", batch=8, mode="forward") as ready:
        assert ready.operations_per_sample == 2 * macs
        assert ready.least_bytes_per_sample == 4 * (image + sum(weights) / 8)
    with standing("lenet", batch=8) as ready:
        # Backward is twice forward, but nobody needs the gradient of the image.
        assert ready.operations_per_sample == 6 * macs - 2 * layers[0]
        moved = 3 * image - sum(ends[0]) + (3 * sum(weights) - weights[0]) / 8
        # The optimizer: weights, gradients and momenta in, weights and momenta out, shared by eight images.
        assert ready.least_bytes_per_sample == 4 * (moved + 5 * parameters / 8)
        assert ready.called_bytes_per_sample is not None
        assert ready.called_bytes_per_sample > ready.least_bytes_per_sample


def test_no_operations_are_claimed_for_a_network_with_another_last_layer() -> None:
    with standing("lenet", classes=10) as ready:
        assert ready.operations_per_sample is None
        assert (ready.least_bytes_per_sample, ready.called_bytes_per_sample) == (None, None)


def test_a_trace_of_one_step_is_written_for_chrome(tmp_path: Path) -> None:
    path = tmp_path / "new" / "trace.json"
    with standing("lenet", trace_file=str(path)):
        pass
    events = json.loads(path.read_text())["traceEvents"]
    names = {event.get("name") for event in events if event.get("cat") == "cpu_op"}
    assert {"aten::convolution", "aten::addmm"} <= names


@pytest.mark.parametrize("target", ["file/trace.json", "full"])
def test_a_trace_that_cannot_be_written_is_a_sentence(tmp_path: Path, target: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").symlink_to("/dev/full")
    path = tmp_path / target
    with fails_as("bad_output", str(path)), standing("lenet", trace_file=str(path)):
        pass


class Calls(TorchDispatchMode):
    """Records the operators that torch calls, in their order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def calls_and_losses(name: str, fused: bool) -> tuple[list[str], list[float]]:
    machine = built("lenet", optimizer=name, fused=fused, weight_decay=DECAY)
    step = machine.body()
    found = []
    with Calls() as calls:
        for _ in range(3):
            step()
            found.append(float(machine.loss))
    return calls.names, found


@pytest.mark.parametrize(
    ("name", "fused"), [(name, fused) for name in RULES for fused in (False, True) if name in FUSED or not fused]
)
def test_without_the_compiler_torch_calls_the_same_operators_and_finds_the_same_losses(
    name: str, fused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = calls_and_losses(name, fused)
    monkeypatch.setattr(optimizer, "without_compiler", lambda kind: kind)
    assert ours == calls_and_losses(name, fused)


def test_an_unknown_wrapper_of_torch_stays() -> None:
    def wrapped(self: Any) -> None: ...

    @functools.wraps(wrapped)
    def step(self: Any) -> None:
        wrapped(self)

    kind = type("Future", (torch.optim.SGD,), {"step": step})
    assert optimizer.without_compiler(kind).step is step
