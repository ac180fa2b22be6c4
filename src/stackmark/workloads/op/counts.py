"""How many operations a problem needs, and how many bytes at the least: formulas over its shape, without a framework.

A list is shortened by them and a limit is computed from them, and both must be possible where no device is. Operations count a
multiply-add as two. Least bytes are every operand read once and every result written once: a lower bound, which a chip with
a cache that holds all of it from call to call could go below if the operands were not changed from call to call; they are.
"""

from collections.abc import Callable
from math import prod

from stackmark.workloads.op.problem import BACKWARD, COLLECTIVES, FORWARD, Problem, conv_output

# Bytes of an element by precision; tf32 operands are fp32 in memory.
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
# What a product of such operands is written as. Of fp8 the libraries give bf16, of int8 the 32-bit sums themselves.
RESULT_BYTES = {**ELEMENT_BYTES, "fp8": 2, "int8": 4}


def operations(problem: Problem) -> float | None:
    """Floating-point operations of one call; None of what memory limits on any chip, where bytes say more."""
    count = _OPERATIONS.get(problem.op)
    return float(count(problem)) if count else None


def least_bytes(problem: Problem, precision: str) -> float:
    """Every operand once and every result once, in bytes."""
    return float(_BYTES[problem.op](problem, precision))


def _product(problem: Problem, *names: str) -> int:
    return prod(problem.number(name) for name in names)


def _conv_operations(problem: Problem) -> int:
    out_w, out_h = conv_output(problem)
    return 2 * _product(problem, "n", "k", "c", "filter_w", "filter_h") * out_w * out_h


# Matrix products of the recurrent weights with the state, a step: one, four gates, three gates.
RNN_GATES = {"vanilla": 1, "lstm": 4, "gru": 3}


def rnn_product(problem: Problem) -> int:
    """Of the recurrent weights with the states of all steps, or as many: what a layer and its gradients are made of."""
    gates = RNN_GATES[problem.word("cell")]
    return 2 * gates * problem.number("hidden") ** 2 * _product(problem, "batch", "timesteps")


def _rnn_operations(problem: Problem) -> int:
    """The recurrent products alone: DeepBench leaves the input's projection out (cuDNN's skip input)."""
    return rnn_product(problem) * (2 if problem.word("pass") == BACKWARD else 1)


def _attention_operations(problem: Problem) -> int:
    """Two products forward, five backward (one of them done again), all of them where a causal mask hides half: said beside."""
    products = 2 if problem.word("pass") == FORWARD else 5
    keys = problem.number("kv_length") or problem.number("length")
    return products * 2 * _product(problem, "batch", "heads", "length", "head") * keys


_OPERATIONS: dict[str, Callable[[Problem], int]] = {
    "gemm": lambda p: 2 * _product(p, "m", "n", "k"),
    "batched-gemm": lambda p: 2 * _product(p, "groups", "m", "n", "k"),
    "grouped-gemm": lambda p: 2 * _product(p, "tokens", "n", "k"),
    # As DeepBench counts it: those of the values that are there.
    "sparse-gemm": lambda p: round(2 * _product(p, "m", "n", "k") * (1 - float(p.shape["sparsity"] or 0))),
    "conv": _conv_operations,
    "rnn": _rnn_operations,
    "attention": _attention_operations,
}


def _gemm_bytes(problem: Problem, precision: str, groups: int = 1) -> int:
    m, n, k = (problem.number(name) for name in ("m", "n", "k"))
    return groups * ((m * k + k * n) * ELEMENT_BYTES[precision] + m * n * RESULT_BYTES[precision])


def _grouped_bytes(problem: Problem, precision: str) -> int:
    tokens, n, k, groups = (problem.number(name) for name in ("tokens", "n", "k", "groups"))
    # Every group's matrix is read only if a token falls to it.
    return (tokens * k + min(groups, tokens) * k * n) * ELEMENT_BYTES[precision] + tokens * n * RESULT_BYTES[precision]


def _sparse_bytes(problem: Problem, precision: str) -> int:
    m, n, k = (problem.number(name) for name in ("m", "n", "k"))
    values = round(m * k * (1 - float(problem.shape["sparsity"] or 0)))
    size = ELEMENT_BYTES[precision]
    # Compressed rows: a value and a 32-bit column each, and a 32-bit offset a row.
    return values * (size + 4) + (m + 1) * 4 + k * n * size + m * n * size


def _conv_bytes(problem: Problem, precision: str) -> int:
    out_w, out_h = conv_output(problem)
    image = _product(problem, "n", "c", "w", "h")
    weights = _product(problem, "k", "c", "filter_w", "filter_h")
    # Each pass reads two of the three and writes the third.
    return (image + weights + _product(problem, "n", "k") * out_w * out_h) * ELEMENT_BYTES[precision]


def _rnn_bytes(problem: Problem, precision: str) -> int:
    gates, hidden = RNN_GATES[problem.word("cell")], problem.number("hidden")
    states = _product(problem, "batch", "timesteps", "hidden")
    return (gates * hidden * hidden + (gates + 1) * states) * ELEMENT_BYTES[precision]


def _attention_bytes(problem: Problem, precision: str) -> int:
    size = ELEMENT_BYTES[precision]
    heads, kv_heads = problem.number("heads"), problem.number("kv_heads") or problem.number("heads")
    length, keys = problem.number("length"), problem.number("kv_length") or problem.number("length")
    queries = _product(problem, "batch", "head") * heads * length
    kept = _product(problem, "batch", "head") * kv_heads * keys
    if problem.word("pass") == FORWARD:
        return (2 * queries + 2 * kept) * size  # q and the result; k and v
    return (4 * queries + 4 * kept) * size  # q, result, its gradient, dq; k, v, dk, dv


def _layer_norm_bytes(problem: Problem, precision: str) -> int:
    elements = _product(problem, "rows", "width") * ELEMENT_BYTES[precision]
    return elements * (2 if problem.word("pass") == FORWARD else 3)


def _embedding_bytes(problem: Problem, precision: str) -> int:
    row = problem.number("width") * ELEMENT_BYTES[precision]
    tokens = problem.number("tokens")
    if problem.word("pass") == FORWARD:
        return tokens * (2 * row + 8)
    # Backward: a dense gradient of the whole table is written, and the rows that were looked up are read.
    return problem.number("vocabulary") * row + tokens * (row + 8)


def _optimizer_bytes(problem: Problem, _precision: str) -> int:
    # 32-bit states: adamw reads weight, gradient and two moments and writes three of them; momentum one moment fewer.
    words = 7 if problem.word("kind") == "adamw" else 5
    return problem.number("parameters") * 4 * words


_BYTES: dict[str, Callable[[Problem, str], int]] = {
    "gemm": _gemm_bytes,
    "batched-gemm": lambda p, precision: _gemm_bytes(p, precision, p.number("groups")),
    "grouped-gemm": _grouped_bytes,
    "sparse-gemm": _sparse_bytes,
    "conv": _conv_bytes,
    "rnn": _rnn_bytes,
    "attention": _attention_bytes,
    "layer-norm": _layer_norm_bytes,
    "embedding": _embedding_bytes,
    "optimizer": _optimizer_bytes,
    # Read once and written once.
    "copy": lambda p, _precision: 2 * p.number("bytes"),
    "transfer": lambda p, _precision: p.number("bytes"),
    # Of a collective: the buffer of one rank, as nccl-tests count it; its bandwidths are in verdict/collectives.py.
    **{op: (lambda p, _precision: 4 * p.number("floats")) for op in COLLECTIVES},
}
