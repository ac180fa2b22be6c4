"""Count the bytes that a network moves: the fewest that its matrix operators must, and all that its operators do one by one.

Two numbers, since neither alone is the truth:

- *least*: every matrix operator (convolution, linear layer, attention; forward, and the two of the backward pass) reads its
  operands once and writes its result once, in the precision in which it computes. Whatever is element-wise and every
  normalisation is taken as fused into them for nothing, and nothing stays in a cache from one of them to the next. Attention is
  one operator: queries, keys, values and result, without the matrix of scores.
- *called*: every operator that the framework calls reads its inputs once and writes its outputs once. That is nearly the truth of
  an eager run; of a compiled one the truth lies between the two.

The optimizer's own traffic is a formula (traffic.py), as it depends on the parameters alone.

The walk is over the real graph, on the meta device. Autocast does not know that device, so what it does to an operator is said
here again (`Autocast`): which operators take 16 bits, and which of those that our networks call are kept at 32 (ATen's
autocast_mode.h). The framework's meta kernels take a second or two to import, more than a start is worth: so the counts are kept
in a table (traffic.csv), which scripts/write_traffic.py writes and tests/test_counting_bytes.py counts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stackmark.workloads.train.impl import nets
from stackmark.workloads.train.zoo import Model

Device = Literal["cuda", "cpu"]
META = torch.device("meta")
aten = torch.ops.aten
# Two sizes of a batch tell what grows with it from what does not; one alone would not do for batch normalisation.
_BATCHES = (2, 4)


class Moved(NamedTuple):
    """Bytes. `sample` grows with the batch, `step` does not."""

    least_sample: int
    least_step: int
    called_sample: int
    called_step: int


@cache
def count_bytes(model: Model, *, training: bool, device: Device, bits: Literal[16, 32]) -> Moved:
    """Count the bytes of a forward pass, or of a forward and a backward pass, without the optimizer."""
    small, large = (walk(model, batch, training=training, device=device, bits=bits) for batch in _BATCHES)
    between = _BATCHES[1] - _BATCHES[0]
    least, called = ((high - low) // between for low, high in zip(small, large, strict=True))
    return Moved(least, small[0] - _BATCHES[0] * least, called, small[1] - _BATCHES[0] * called)


def walk(model: Model, batch: int, *, training: bool, device: Device, bits: Literal[16, 32]) -> tuple[int, int]:
    """Count least and called bytes of one step of this many samples."""
    with META:
        net = nets.build(model, model.classes).train(training)
    sample = nets.synthetic(model, batch, model.classes, META, seed=0)
    return count_step(model, net, sample, training=training, device=device, bits=bits)


def count_step(
    model: Model, net: nn.Module, sample: nets.Sample, *, training: bool, device: Device, bits: Literal[16, 32]
) -> tuple[int, int]:
    """Count as `Machine` does: the network under autocast, its loss not, and no loss without training."""
    with Traffic() as traffic, torch.set_grad_enabled(training):
        with Kernels(traffic, device), Autocast(device, bits):
            outputs = net(*sample.inputs)
        if training:
            nets.loss(model, outputs, sample.targets).backward()
    return traffic.least, traffic.called


# What an operator moves


def _bytes(values: Iterable[object]) -> int:
    """Of each tensor the elements that are really there: an expanded axis repeats one of them. One given twice counts once."""
    total = 0
    for tensor in {id(value): value for value in values if isinstance(value, Tensor)}.values():
        elements = tensor.element_size()
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            elements *= size if stride or not size else 1
        total += elements
    return total


def _flat(values: Iterable[object]) -> list[object]:
    found: list[object] = []
    for value in values:
        found += _flat(value) if isinstance(value, list | tuple) else [value]
    return found


MATRIX = {aten.mm: (0, 1), aten.bmm: (0, 1), aten.addmm: (1, 2), aten.baddbmm: (1, 2), aten.convolution: (0, 1)}
# They say where something lies, or make room for it.
FREE = {aten._unsafe_view, aten.detach, aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.lift_fresh,
        aten.alias, aten._local_scalar_dense}  # fmt: skip
# Arguments that are there for their shape, or are overwritten unread.
UNREAD = {aten.nll_loss_backward: (1,), aten.avg_pool2d_backward: (1,), aten.max_pool2d_with_indices_backward: (1,),
          aten.copy_: (0,), aten.zero_: (0,), aten.fill_: (0,), aten.ones_like: (0,), aten.zeros_like: (0,),
          aten.new_zeros: (0,), aten.bernoulli_: (0,)}  # fmt: skip
# Only the rows that are looked up are read, as many as come out.
LOOKED_UP = {aten.embedding, aten.gather, aten.index_select, aten.index}


class Traffic(TorchDispatchMode):
    """Adds up what the operators move that run inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.least = self.called = 0
        # By operator, to see where it comes from.
        self.by_operator: dict[str, int] = {}

    def add(self, name: str, called: int, least: int = 0) -> None:
        self.least += least
        self.called += called
        self.by_operator[name] = self.by_operator.get(name, 0) + called

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        operator = func.overloadpacket
        if not func.is_view and operator not in FREE:
            self.add(str(operator), *_moved(operator, args, out if isinstance(out, list | tuple) else (out,)))
        return out


def _moved(operator: Any, args: Sequence[Any], outs: Sequence[Any]) -> tuple[int, int]:
    """Called and least bytes of one operator."""
    if operator is aten.convolution_backward:
        return _convolution_backward(*args[:3], *outs)
    if operator in MATRIX:
        least = _bytes([*(args[index] for index in MATRIX[operator]), outs[0]])
        return _bytes([*_flat(args), outs[0]]), least
    read = _flat(arg for index, arg in enumerate(args) if index not in UNREAD.get(operator, ()))
    if operator in LOOKED_UP:
        read = [*_flat(args[1:]), outs[0]]
    elif operator is aten.nll_loss_forward:
        read = [args[1]]
    # What is changed in place is handed in and comes out; a list of such (`_foreach_add_`) only goes in.
    written = _flat(outs) if any(isinstance(out, Tensor) for out in _flat(outs)) else _flat(args[:1])
    return _bytes(read) + _bytes(written), 0


def _convolution_backward(
    gradient: Tensor,
    inputs: Tensor,
    weight: Tensor,
    by_input: Tensor | None,
    by_weight: Tensor | None,
    by_bias: Tensor | None,
) -> tuple[int, int]:
    """Two operators in one call, by input and by weights, and a sum for the bias."""
    least = _bytes([gradient, weight, by_input]) if by_input is not None else 0
    least += _bytes([gradient, inputs, by_weight]) if by_weight is not None else 0
    return least + (_bytes([gradient, by_bias]) if by_bias is not None else 0), least


# What a device has one kernel for, where the meta device goes by small operators


class Kernels(TorchFunctionMode):
    """Counts attention as one call and, on a GPU, RMS normalisation and dropout, which have kernels there."""

    def __init__(self, traffic: Traffic, device: Device) -> None:
        super().__init__()
        self._traffic, self._on_gpu = traffic, device == "cuda"

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return _Attention.apply(self._traffic, *args[:3])  # type: ignore[no-untyped-call]
        if self._on_gpu and func is F.rms_norm:
            weight = args[2] if len(args) > 2 else kwargs.get("weight")
            return _RmsNorm.apply(self._traffic, args[0], weight)  # type: ignore[no-untyped-call]
        if self._on_gpu and func is F.dropout and kwargs.get("training", args[2] if len(args) > 2 else True):
            return aten.native_dropout(args[0], 0.5, True)[0]
        return func(*args, **kwargs)


class _Attention(torch.autograd.Function):
    """The fused kernels read queries, keys and values and write the result, in the order batch, token, head."""

    @staticmethod
    def forward(ctx: Any, traffic: Traffic, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = _token_first(q)
        moved = _bytes([q, k, v, out])
        traffic.add("attention", moved, moved)
        ctx.traffic = traffic
        ctx.save_for_backward(q, k, v, out)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor, Tensor]:
        q, k, v, _ = ctx.saved_tensors
        by_q, by_k, by_v = (_token_first(one) for one in (q, k, v))
        moved = _bytes([*ctx.saved_tensors, *gradients, by_q, by_k, by_v])
        ctx.traffic.add("attention backward", moved, moved)
        return None, by_q, by_k, by_v


def _token_first(like: Tensor) -> Tensor:
    batch, heads, tokens, width = like.shape
    return like.new_empty(batch, tokens, heads, width).transpose(1, 2)


class _RmsNorm(torch.autograd.Function):
    """One kernel forward; backward it reads the gradient and the input, and writes the gradients of input and weight."""

    @staticmethod
    def forward(ctx: Any, traffic: Traffic, x: Tensor, weight: Tensor) -> Tensor:
        out = torch.empty_like(x)
        traffic.add("rms_norm", _bytes([x, weight, out]))
        ctx.traffic = traffic
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        by_x, by_weight = torch.empty_like(x), torch.empty_like(weight)
        ctx.traffic.add("rms_norm backward", _bytes([*gradients, x, weight, by_x, by_weight]))
        return None, by_x, by_weight


# What autocast does

LOWERED: set[Callable[..., Any]] = {torch.conv2d, F.linear, F.scaled_dot_product_attention}
# Of those that our networks call. A response normalisation has its power (GPU) or its pool (CPU) in 32 bits, and gives 32.
KEPT: dict[Device, set[Callable[..., Any]]] = {
    "cuda": {F.layer_norm, F.rms_norm, F.local_response_norm},
    "cpu": {F.local_response_norm},
}


class Autocast(TorchFunctionMode):
    """Casts the arguments of an operator as torch.autocast does on such a device; with 32 bits it does nothing."""

    def __init__(self, device: Device, bits: Literal[16, 32]) -> None:
        super().__init__()
        self._kept = KEPT[device]
        self._on = bits == 16

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._on and (func in LOWERED or func in self._kept):
            dtype = torch.bfloat16 if func in LOWERED else torch.float32
            args = tuple(_cast(arg, dtype) for arg in args)
            kwargs = {name: _cast(value, dtype) for name, value in kwargs.items()}
        return func(*args, **kwargs)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
