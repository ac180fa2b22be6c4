"""`op/attention`: scaled dot-product attention as the framework offers it, forward and backward, causal or not, heads grouped.

Which kernel does it (flash, memory-efficient, cuDNN's, or plain products) is the framework's choice by shape and precision, as it
is in anybody's model; the row says which. Operands lie in memory as a model's projections leave them: batch, position, head,
width. A causal mask hides the keys after a query, and a kernel that is worth its name skips them: `operations` counts the
pairs that are left, length·(length + 1)/2 of them, where the usual count of a model's operations takes all.

The reference. All scores of 64 heads and 16,384 positions in float64 would be 128 GiB, so a few (batch, head) pairs are done
again, in stretches of queries: of the forward pass some queries, of the backward pass some queries' and some keys' gradients,
which need every query. An error is relative to what the terms of a sum amount to when they add up like a random walk: early
queries of a causal mask see few keys and give large values, late ones small, and one measure for both would hide the late.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._C import _SDPBackend as SDPBackend
from torch.nn.functional import scaled_dot_product_attention

from stackmark.workloads.op.impl.bench import (
    FLOATS,
    Compared,
    Implementation,
    Prepared,
    Stand,
    Tensor,
    accumulated_in,
    require_precision,
    set_precision,
)
from stackmark.workloads.op.impl.checking import bound_of, sample, say_compared
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import FORWARD, Problem
from stackmark.workloads.versions import has_torch, lacking
from stackmark.workloads.workload import WorkloadFailure

# (batch, key head) pairs, and positions of each, that are compared.
PAIRS, POSITIONS = 4, 64
# Scores that are held in float64 at once: 32 MiB, a few times. And that are computed for a backward pass, if not of one pair.
_STRETCH, _MOST_SCORES = 2**22, 2**26
# Weights, and backward the scores' gradients too, are rounded to the operands' precision between two products.
ROUNDINGS = {True: 2, False: 4}
KERNELS = {
    "MATH": "plain products (every score goes through memory)",
    "FLASH_ATTENTION": "flash attention",
    "EFFICIENT_ATTENTION": "memory-efficient attention",
    "CUDNN_ATTENTION": "cuDNN's attention",
    "OVERRIDEABLE": "the device's own attention",
}


def check_precision(stand: Stand) -> None:
    if stand.precision == "tf32":
        raise WorkloadFailure(
            "bad_parameter",
            "attention has no tf32: the framework's fused kernels always multiply fp32 as fp32",
            "use --precision fp32, bf16 or fp16",
        )
    require_precision(stand, FLOATS)


@dataclass(frozen=True)
class Operands:
    """One set of operands; all are batch × heads × positions × width, and `do` is the gradient of the result."""

    q: Tensor
    k: Tensor
    v: Tensor
    causal: bool
    do: Tensor | None = None

    @property
    def group(self) -> int:
        """Query heads that share a head of keys."""
        return self.q.shape[1] // self.k.shape[1]

    def attend(self) -> Tensor:
        return scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal, **self.grouped())

    def grouped(self) -> dict[str, Any]:
        """Return the argument for heads that share keys, which PyTorch has since 2.5."""
        return {"enable_gqa": True} if self.group > 1 else {}


def prepare(problem: Problem, stand: Stand) -> Prepared:
    set_precision(stand)
    sets = operands_of(problem, stand)
    if sets[0].group > 1 and not has_torch("2.5"):
        raise lacking("attention with fewer key heads than query heads", "2.5")
    kernel = chosen(sets[0])
    call: Callable[[int], None]
    done: list[tuple[Tensor, ...]] = [() for _ in sets]
    forward = problem.word("pass") == FORWARD
    if forward:

        def call(i: int) -> None:
            done[i] = (sets[i].attend(),)
    else:
        kept = [one.attend() for one in sets]

        def call(i: int) -> None:
            one = sets[i]
            done[i] = torch.autograd.grad(kept[i], (one.q, one.k, one.v), one.do, retain_graph=True)

    notes = [f"the framework chose {KERNELS[kernel]}"]
    if sets[0].causal:
        notes.append("operations exclude what the causal mask removes; with it they would be nearly twice as many")
    return Prepared(
        call=call,
        copies=len(sets),
        outputs=lambda i: done[i] if forward or not sets[i].causal else [_evened(tensor) for tensor in done[i]],
        compare=lambda: compare(sets[0], done[0], stand),
        accumulate=accumulated_in(stand),
        # The framework runs a backward pass on the stream of its forward pass, which is not the one that is recorded.
        graph=forward,
        # Backward, the gradients of the queries are summed up by atomic additions.
        same_bits=forward or not stand.on_gpu,
        operations=_operations(problem),
        notes=tuple(notes),
    )


def _evened(tensor: Tensor) -> Tensor:
    """Gradients of a causal mask, each position times the root of its number: early ones are as much larger than late ones.

    So a measure over all of them, by which two calls are compared whose sums were made in another order, sees the late ones.
    """
    positions = torch.arange(1, tensor.shape[2] + 1, device=tensor.device, dtype=torch.float32)
    return tensor * positions.sqrt()[:, None]


def chosen(one: Operands) -> str:
    """Return the name of the kernel that the framework chose."""
    choice = torch._fused_sdp_choice(one.q, one.k, one.v, None, 0.0, one.causal, **one.grouped())
    return str(SDPBackend(choice).name)


def _operations(problem: Problem) -> float:
    """Two products forward; five backward, one of them the scores once more."""
    number = problem.number
    products = 2 if problem.word("pass") == FORWARD else 5
    length, keys = number("length"), number("kv_length") or number("length")
    pairs = length * (length + 1) / 2 if problem.shape["causal"] else length * keys
    return products * 2 * number("batch") * number("heads") * number("head") * pairs


def operands_of(problem: Problem, stand: Stand) -> list[Operands]:
    number = problem.number
    batch, head, length = number("batch"), number("head"), number("length")
    keys, kv_heads = number("kv_length") or length, number("kv_heads") or number("heads")
    queries, kept = (batch, length, number("heads"), head), (batch, keys, kv_heads, head)
    backward = problem.word("pass") != FORWARD
    pieces = [Piece(shape, stand.dtype) for shape in (queries, kept, kept)]
    # What comes back to the result, or room for the result, which the framework allocates itself.
    pieces += [Piece(queries, stand.dtype, random=backward)]
    if backward:
        pieces += [Piece(shape, stand.dtype, random=False) for shape in (queries, queries, kept, kept)]
    sets = []
    for tensors in rotated(pieces, stand):
        q, k, v, do = (tensor.transpose(1, 2) for tensor in tensors[:4])
        q, k, v = (tensor.detach().requires_grad_(backward) for tensor in (q, k, v))
        sets.append(Operands(q, k, v, bool(problem.shape["causal"]), do if backward else None))
    return sets


def compare(one: Operands, got: tuple[Tensor, ...], stand: Stand) -> Compared:
    """Compare the results of some (batch, key head) pairs, at some positions each."""
    generator = torch.Generator().manual_seed(stand.seed)
    batch, kv_heads, keys, _ = one.k.shape
    rows = sample(one.q.shape[2], POSITIONS, generator).to(one.q.device)
    columns = sample(keys, POSITIONS, generator).to(one.q.device)
    scores = one.group * one.q.shape[2] * keys
    most = PAIRS if one.do is None else max(1, min(PAIRS, _MOST_SCORES // scores))
    pairs = sample(batch * kv_heads, most, generator)[:most].tolist()
    worst, compared = 0.0, 0
    for pair in pairs:
        for ours, wanted, size in _reference(one, divmod(pair, kv_heads), got, rows, columns):
            error = float(((ours.double() - wanted) / size).abs().max())
            worst = max(worst, error if error == error else float("inf"))
            compared += ours.numel()
    of = sum(tensor.numel() for tensor in got)
    terms = one.q.shape[3] + max(one.q.shape[2], keys)
    allowed = ROUNDINGS[one.do is None] * bound_of(terms, stand)
    return Compared(worst, allowed, f"{say_compared(compared, of)} elements")


# What was computed, what it should be, and the size of its terms (a number for each position).
Checked = tuple[Tensor, Tensor, Tensor]


def _reference(
    one: Operands, pair: tuple[int, int], got: tuple[Tensor, ...], rows: Tensor, columns: Tensor
) -> list[Checked]:
    """Of one batch element and one head of keys, with all query heads that share it."""
    b, kv_head = pair
    k, v = (tensor.detach()[b, kv_head].double() for tensor in (one.k, one.v))
    checked = []
    heads = range(kv_head * one.group, (kv_head + 1) * one.group)
    if one.do is None:
        for head in heads:
            weights = _weights(one, b, head, k, rows)
            checked.append((got[0][b, head, rows], weights @ v, _size(weights.square() @ v.square())))
        return checked
    sums = [torch.zeros(len(columns), k.shape[1], dtype=torch.float64, device=k.device) for _ in range(4)]
    for head in heads:
        checked.append(_queries_back(one, b, head, k, v, got[0], rows))
        _keys_back(one, b, head, k, v, columns, sums)
    of_keys, of_values = (tensor[b, kv_head, columns] for tensor in got[1:])
    return [*checked, (of_keys, sums[0], _size(sums[2])), (of_values, sums[1], _size(sums[3]))]


def _weights(one: Operands, b: int, head: int, k: Tensor, rows: Tensor) -> Tensor:
    scores: Tensor = one.q.detach()[b, head, rows].double() @ k.t() * k.shape[1] ** -0.5
    if one.causal:
        hidden = torch.arange(len(k), device=k.device)[None, :] > rows[:, None]
        scores.masked_fill_(hidden, float("-inf"))
    return scores.softmax(dim=-1)


def _size(squares: Tensor) -> Tensor:
    """Of each position; where all terms are zero the result must be, and any size will do."""
    size = squares.mean(dim=-1, keepdim=True).sqrt()
    return torch.where(size > 0, size, 1.0)


def _scores_back(one: Operands, b: int, head: int, k: Tensor, v: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights of some queries, the gradients of their scores, and the squares of the terms of these."""
    assert one.do is not None
    weights = _weights(one, b, head, k, rows)
    back = one.do[b, head, rows].double() @ v.t()
    common = (weights * back).sum(dim=-1, keepdim=True)
    scale = k.shape[1] ** -0.5
    squares = weights.square() * (back.square() + common.square()) * scale**2
    return weights, weights * (back - common) * scale, squares


def _queries_back(one: Operands, b: int, head: int, k: Tensor, v: Tensor, got: Tensor, rows: Tensor) -> Checked:
    _, scores, squares = _scores_back(one, b, head, k, v, rows)
    return got[b, head, rows], scores @ k, _size(squares @ k.square())


def _keys_back(one: Operands, b: int, head: int, k: Tensor, v: Tensor, columns: Tensor, sums: list[Tensor]) -> None:
    """Adds what one query head gives to the gradients of some keys and values, and to the squares of their terms."""
    assert one.do is not None
    for rows in torch.arange(one.q.shape[2], device=k.device).split(max(1, _STRETCH // len(k))):
        weights, scores, squares = (part[:, columns].t() for part in _scores_back(one, b, head, k, v, rows))
        q, do = one.q.detach()[b, head, rows].double(), one.do[b, head, rows].double()
        sums[0] += scores @ q
        sums[1] += weights @ do
        sums[2] += squares @ q.square()
        sums[3] += weights.square() @ do.square()


ATTENTION = Implementation(check_precision, prepare)
