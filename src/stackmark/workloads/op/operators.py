"""The operators of `op/`: one entry each, with its sizes, counts, lists and texts. No framework.

To add one: an entry in a group below, and the constant that `implementation` names (impl/bench.py: `Implementation`).

Operations count a multiply-add as two. Least bytes are every operand read once and every result written once: a lower bound,
which a chip with a cache that holds all of it from call to call could go below if the operands were not changed from call to
call; they are.
"""

from math import prod

from stackmark.errors import SpecError
from stackmark.units import counted, say_size
from stackmark.workloads.op import lists
from stackmark.workloads.op.lists import DEVICE, SERVER, SWEEP, TRAINING, TRANSFORMER, deepbench
from stackmark.workloads.op.problem import (
    BACKWARD,
    BACKWARD_INPUTS,
    BACKWARD_WEIGHTS,
    FORWARD,
    Axis,
    Exchange,
    Operator,
    Problem,
    Shape,
    Source,
    plain_shape,
)

# Bytes of an element by precision; tf32 operands are fp32 in memory.
ELEMENT_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1}
# What a product of such operands is written as. Of fp8 the libraries give bf16, of int8 the 32-bit sums themselves.
RESULT_BYTES = {**ELEMENT_BYTES, "fp8": 2, "int8": 4}
# The passes as DeepBench's columns call them.
PASSES = {FORWARD: "fwd", BACKWARD: "bwd", BACKWARD_INPUTS: "bwd-in", BACKWARD_WEIGHTS: "bwd-w"}
_IMPL = "stackmark.workloads.op.impl"


def _product(problem: Problem, *names: str) -> int:
    return prod(problem.number(name) for name in names)


def _pass(shape: Shape) -> str:
    return PASSES.get(str(shape["pass"]), str(shape["pass"]))


# --- products of matrices -----------------------------------------------------------------------------------------------

_TRANSPOSED = {"a_t": Axis(0, False), "b_t": Axis(0, False)}
_MATRIX = {"m": Axis(), "n": Axis(), "k": Axis(), **_TRANSPOSED}


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


def _check_sparse(problem: Problem) -> None:
    if problem.shape["a_t"]:
        raise SpecError(
            "the libraries would transpose the sparse matrix in each call, which would be timed",
            hint="use a_t=0 with m and k of the product",
        )


def _say_gemm(shape: Shape) -> str:
    letters = "".join("T" if shape.get(name) else "N" for name in _TRANSPOSED)
    return f"{shape['m']}×{shape['n']}×{shape['k']} {letters}"


_PRODUCTS = (
    Operator(
        name="gemm",
        title="Matrix products: DeepBench's lists, a transformer's, or one of your own (--m --n --k)",
        implementation=f"{_IMPL}.matrix:GEMM",
        fields=_MATRIX,
        sets={
            **{name: deepbench("gemm", name) for name in (TRAINING, SERVER, DEVICE)},
            TRANSFORMER: lists.transformer_gemm,
        },
        operations=lambda problem: 2 * _product(problem, "m", "n", "k"),
        least_bytes=_gemm_bytes,
        say=_say_gemm,
        product=("m", "n", "k"),
        options=tuple(_MATRIX),
        deepbench=Source(spelled={"k": {1530: 1536}}),
    ),
    # `groups` matrices of one shape in one call.
    Operator(
        name="batched-gemm",
        title="Many matrix products of one shape in one call",
        implementation=f"{_IMPL}.matrix:BATCHED_GEMM",
        fields={"groups": Axis(), **_MATRIX},
        sets={TRANSFORMER: lists.transformer_batched_gemm},
        operations=lambda problem: 2 * _product(problem, "groups", "m", "n", "k"),
        least_bytes=lambda problem, precision: _gemm_bytes(problem, precision, problem.number("groups")),
        say=lambda shape: f"{shape['groups']} × {_say_gemm(shape)}",
    ),
    # `tokens` rows fall to `groups` matrices of k × n, unevenly.
    Operator(
        name="grouped-gemm",
        title="A mixture of experts: rows are distributed unevenly over many matrices",
        implementation=f"{_IMPL}.matrix:GROUPED_GEMM",
        fields={"groups": Axis(), "tokens": Axis(), "n": Axis(), "k": Axis()},
        sets={TRANSFORMER: lists.transformer_grouped_gemm},
        operations=lambda problem: 2 * _product(problem, "tokens", "n", "k"),
        least_bytes=_grouped_bytes,
        say=lambda shape: (
            f"{counted(float(str(shape['groups'])), 'group')} {shape['tokens']}×{shape['n']}×{shape['k']}"
        ),
    ),
    Operator(
        name="sparse-gemm",
        title="A sparse matrix times a dense one, by DeepBench's lists",
        implementation=f"{_IMPL}.matrix:SPARSE_GEMM",
        fields={**_MATRIX, "sparsity": Axis(0, 0.9)},
        sets={name: deepbench("sparse-gemm", name) for name in (SERVER, DEVICE)},
        # As DeepBench counts it: those of the values that are there.
        operations=lambda problem: round(
            2 * _product(problem, "m", "n", "k") * (1 - float(problem.shape["sparsity"] or 0))
        ),
        least_bytes=_sparse_bytes,
        check=_check_sparse,
        say=lambda shape: f"{_say_gemm(shape)} {100 * float(str(shape['sparsity'])):g} %",
        product=("m", "n", "k"),
        deepbench=Source(spelled={"m": {7680: 7860}}),
    ),
)

# --- layers of networks -------------------------------------------------------------------------------------------------

# Matrix products of the recurrent weights with the state, a step: one, four gates, three gates.
RNN_GATES = {"vanilla": 1, "lstm": 4, "gru": 3}


def conv_output(problem: Problem) -> tuple[int, int]:
    """Return width and height of what a convolution gives."""
    size = problem.number
    return (
        (size("w") + 2 * size("pad_w") - size("filter_w")) // size("stride_w") + 1,
        (size("h") + 2 * size("pad_h") - size("filter_h")) // size("stride_h") + 1,
    )


def _conv_operations(problem: Problem) -> int:
    out_w, out_h = conv_output(problem)
    return 2 * _product(problem, "n", "k", "c", "filter_w", "filter_h") * out_w * out_h


def _conv_bytes(problem: Problem, precision: str) -> int:
    out_w, out_h = conv_output(problem)
    image = _product(problem, "n", "c", "w", "h")
    weights = _product(problem, "k", "c", "filter_w", "filter_h")
    # Each pass reads two of the three and writes the third.
    return (image + weights + _product(problem, "n", "k") * out_w * out_h) * ELEMENT_BYTES[precision]


def _check_conv(problem: Problem) -> None:
    if min(conv_output(problem)) < 1:
        raise SpecError(
            f"the filter of {plain_shape(problem.shape)} is larger than its padded image, so there is no output",
            hint="use a smaller filter, or more padding",
        )


def _say_conv(shape: Shape) -> str:
    image = f"{shape['w']}×{shape['h']}×{shape['c']}→{shape['k']}"
    words = [image, f"{shape['filter_w']}×{shape['filter_h']}", f"n{shape['n']}"]
    for letter, name, usual in (("p", "pad", 0), ("s", "stride", 1)):
        w, h = shape[f"{name}_w"], shape[f"{name}_h"]
        if (w, h) != (usual, usual):
            words.append(f"{letter}{w}" if w == h else f"{letter}{w}×{h}")
    return " ".join([*words, _pass(shape)])


def rnn_product(problem: Problem) -> int:
    """Count the operations of the recurrent weights with the states of all steps: what a layer and its gradients are made of."""
    gates = RNN_GATES[problem.word("cell")]
    return 2 * gates * problem.number("hidden") ** 2 * _product(problem, "batch", "timesteps")


def _rnn_operations(problem: Problem) -> int:
    """Count the recurrent products alone: DeepBench leaves the input's projection out (cuDNN's skip input)."""
    return rnn_product(problem) * (2 if problem.word("pass") == BACKWARD else 1)


def _rnn_bytes(problem: Problem, precision: str) -> int:
    gates, hidden = RNN_GATES[problem.word("cell")], problem.number("hidden")
    states = _product(problem, "batch", "timesteps", "hidden")
    return (gates * hidden * hidden + (gates + 1) * states) * ELEMENT_BYTES[precision]


def _attention_operations(problem: Problem) -> int:
    """Count two products forward, five backward (one of them done again), all of them where a causal mask hides half."""
    products = 2 if problem.word("pass") == FORWARD else 5
    keys = problem.number("kv_length") or problem.number("length")
    return products * 2 * _product(problem, "batch", "heads", "length", "head") * keys


def _attention_bytes(problem: Problem, precision: str) -> int:
    size = ELEMENT_BYTES[precision]
    heads, kv_heads = problem.number("heads"), problem.number("kv_heads") or problem.number("heads")
    length, keys = problem.number("length"), problem.number("kv_length") or problem.number("length")
    queries = _product(problem, "batch", "head") * heads * length
    kept = _product(problem, "batch", "head") * kv_heads * keys
    if problem.word("pass") == FORWARD:
        return (2 * queries + 2 * kept) * size  # q and the result; k and v
    return (4 * queries + 4 * kept) * size  # q, result, its gradient, dq; k, v, dk, dv


def _check_attention(problem: Problem) -> None:
    heads, kv_heads = problem.number("heads"), problem.number("kv_heads")
    if kv_heads and heads % kv_heads:
        raise SpecError(
            f"{heads} heads cannot share {kv_heads} key heads evenly", hint="use a kv_heads that divides heads"
        )
    length, keys = problem.number("length"), problem.number("kv_length")
    if problem.shape["causal"] and keys not in (0, length):
        raise SpecError(
            f"a causal mask over {length} queries and {keys} keys is ambiguous: start at the first key, or end at the last?",
            hint="use causal=0 for the step of a decoder, whose query sees all keys, or kv_length equal to length",
        )


def _say_attention(shape: Shape) -> str:
    heads = f"h{shape['heads']}" + (f"/{shape['kv_heads']}" if shape.get("kv_heads") else "")
    length = f"l{shape['length']}" + (f"/{shape['kv_length']}" if shape.get("kv_length") else "")
    causal = " causal" if shape.get("causal") else ""
    return f"b{shape['batch']} {heads} {length} d{shape['head']}{causal} {_pass(shape)}"


def _layer_norm_bytes(problem: Problem, precision: str) -> int:
    elements = _product(problem, "rows", "width") * ELEMENT_BYTES[precision]
    return elements * (2 if problem.word("pass") == FORWARD else 3)


def _check_norm(problem: Problem) -> None:
    if problem.number("width") < 2:
        raise SpecError(
            "width must be at least 2, got 1: one element cannot be normalised", hint="use a width of 2 or more"
        )


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


_BOTH_PASSES = Axis(0, FORWARD, (FORWARD, BACKWARD))

_LAYERS = (
    Operator(
        name="conv",
        title="Convolutions forward, and backward by inputs and by weights: DeepBench's lists",
        implementation=f"{_IMPL}.conv:CONV",
        fields={
            **dict.fromkeys(("w", "h", "c", "n", "k", "filter_w", "filter_h"), Axis()),
            **dict.fromkeys(("pad_w", "pad_h"), Axis(0, 0)),
            **dict.fromkeys(("stride_w", "stride_h"), Axis(1, 1)),
            "pass": Axis(0, FORWARD, (FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS)),
        },
        sets={
            TRAINING: deepbench("conv", TRAINING, lists.conv_passes),
            **{name: deepbench("conv", name) for name in (SERVER, DEVICE)},
        },
        operations=_conv_operations,
        least_bytes=_conv_bytes,
        check=_check_conv,
        say=_say_conv,
        product=("w", "h", "c"),
    ),
    Operator(
        name="rnn",
        title="Recurrent layers (vanilla, LSTM, GRU), forward and backward: DeepBench's lists",
        implementation=f"{_IMPL}.rnn:RNN",
        fields={
            "cell": Axis(0, "lstm", tuple(RNN_GATES)),
            **dict.fromkeys(("hidden", "batch", "timesteps"), Axis()),
            "pass": Axis(0, FORWARD, (FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, BACKWARD)),
        },
        sets={
            TRAINING: deepbench("rnn", TRAINING, lists.rnn_passes),
            **{name: deepbench("rnn", name) for name in (SERVER, DEVICE)},
        },
        operations=_rnn_operations,
        least_bytes=_rnn_bytes,
        # The products with its input too, and both backward.
        work=3,
        say=lambda shape: f"{shape['cell']} h{shape['hidden']} b{shape['batch']} t{shape['timesteps']} {_pass(shape)}",
        deepbench=Source(
            caveat="DeepBench leaves out the products with the layer's input, which a framework's layer computes"
        ),
    ),
    Operator(
        name="attention",
        title="Scaled dot-product attention of several lengths, forward and backward",
        implementation=f"{_IMPL}.attention:ATTENTION",
        fields={
            "batch": Axis(),
            "heads": Axis(),
            "kv_heads": Axis(1, 0),
            "length": Axis(),
            "kv_length": Axis(1, 0),
            "head": Axis(),
            "causal": Axis(0, False),
            "pass": _BOTH_PASSES,
        },
        sets={TRANSFORMER: lists.transformer_attention},
        operations=_attention_operations,
        least_bytes=_attention_bytes,
        check=_check_attention,
        say=_say_attention,
    ),
    Operator(
        name="layer-norm",
        title="Layer normalisation, forward and backward",
        implementation=f"{_IMPL}.layer_norm:LAYER_NORM",
        fields={"rows": Axis(), "width": Axis(), "pass": _BOTH_PASSES},
        sets={TRANSFORMER: lists.transformer_layer_norm},
        least_bytes=_layer_norm_bytes,
        check=_check_norm,
        say=lambda shape: f"{shape['rows']}×{shape['width']} {_pass(shape)}",
    ),
    Operator(
        name="embedding",
        title="Look-up of table rows, and their gradient",
        implementation=f"{_IMPL}.embedding:EMBEDDING",
        fields={"tokens": Axis(), "vocabulary": Axis(), "width": Axis(), "pass": _BOTH_PASSES},
        sets={TRANSFORMER: lists.transformer_embedding},
        least_bytes=_embedding_bytes,
        say=lambda shape: f"{shape['tokens']} of {shape['vocabulary']}×{shape['width']} {_pass(shape)}",
    ),
    Operator(
        name="optimizer",
        title="One step of an optimizer over all parameters of a model",
        implementation=f"{_IMPL}.optimizer:OPTIMIZER",
        fields={"parameters": Axis(), "kind": Axis(0, "adamw", ("adamw", "momentum"))},
        sets={TRANSFORMER: lists.transformer_optimizer},
        least_bytes=_optimizer_bytes,
        say=lambda shape: f"{shape['kind']} {int(str(shape['parameters'])):,}",
        moves=True,
    ),
)

# --- what moves bytes ---------------------------------------------------------------------------------------------------


def _say_bytes(shape: Shape) -> str:
    return say_size(float(str(shape["bytes"])))


def _say_transfer(shape: Shape) -> str:
    how = f" {shape['how']}" if shape.get("how") else ""
    return f"{shape['from']} → {shape['to']}{how} {_say_bytes(shape)}"


def _collective(name: str, title: str, exchange: Exchange, deepbench_source: Source | None = None) -> Operator:
    return Operator(
        name=name,
        title=f"{title} (--ranks N)",
        implementation=f"{_IMPL}.collectives:COLLECTIVE",
        fields={"floats": Axis(), "ranks": Axis(2, 2)},
        # Every collective goes over the sizes of DeepBench's one.
        sets={TRAINING: deepbench("all-reduce", TRAINING), SWEEP: lists.sweep},
        # The buffer of one rank, as nccl-tests count it; its bandwidths are in verdict/collectives.py.
        least_bytes=lambda problem, _precision: 4 * problem.number("floats"),
        say=lambda shape: f"{int(str(shape['floats'])):,} floats, {shape['ranks']} ranks",
        moves=True,
        exchange=exchange,
        deepbench=deepbench_source or Source(),
    )


_MOVING = (
    Operator(
        name="copy",
        title="Copies within the device's own memory",
        implementation=f"{_IMPL}.copies:COPY",
        fields={"bytes": Axis()},
        sets={TRANSFORMER: lists.transformer_copy},
        # Read once and written once.
        least_bytes=lambda problem, _precision: 2 * problem.number("bytes"),
        say=_say_bytes,
        moves=True,
    ),
    Operator(
        name="transfer",
        title="Copies between host and device from each NUMA node, and between all pairs of devices",
        implementation=f"{_IMPL}.copies:TRANSFER",
        fields={"bytes": Axis(), "from": Axis(0, ""), "to": Axis(0, ""), "how": Axis(0, "")},
        sets={"links": None},
        least_bytes=lambda problem, _precision: problem.number("bytes"),
        say=_say_transfer,
        moves=True,
    ),
    # nccl-tests, doc/PERFORMANCE.md: "To obtain a bus bandwidth which should be independent of the number of ranks n, we apply
    # a correction factor to the algorithm bandwidth", S/t, where S is "the size in bytes of the total array": of an all-gather
    # what every rank has in the end, of a reduce-scatter what every rank has at first.
    _collective(
        "all-reduce",
        "All-reduce: every rank gets the sum over all ranks",
        Exchange(lambda n: 2 * (n - 1) / n),
        Source(spelled={"floats": {16777216: 16777217}}),
    ),
    _collective("all-gather", "All-gather: every rank gets every rank's part", Exchange(lambda n: (n - 1) / n)),
    _collective(
        "reduce-scatter", "Reduce-scatter: each rank gets one part of the sum", Exchange(lambda n: (n - 1) / n)
    ),
    _collective("all-to-all", "All-to-all: every rank sends a part to every rank", Exchange(lambda n: (n - 1) / n)),
    # The first rank only sends, and is done before the others have it: that says nothing of it.
    _collective("broadcast", "Broadcast: every rank gets rank 0's buffer", Exchange(lambda _n: 1.0, ranks_alike=False)),
)

_MACHINE = (
    Operator(
        name="ceilings",
        title="The machine's limits: matrix rate by precision, copies, transfers, launches",
        implementation=f"{_IMPL}.ceilings:CEILINGS",
        sets={"machine": None},
        verb="ceilings",
    ),
)

OPERATORS: dict[str, Operator] = {one.name: one for one in (*_PRODUCTS, *_LAYERS, *_MOVING, *_MACHINE)}
