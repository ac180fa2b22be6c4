"""The lists of problems that operators' sets name, with the source of each row.

DeepBench's lists are data of the package (data/SOURCES.md says where from and where they contradict themselves), because
they are its authors' and must stay theirs to the letter; what today's models do is computed from the models' own sizes.
A row's number in its list is its name in a ledger, so a list is never reordered.

A convolution and a recurrent layer of the training set are gone through once a pass, the passes of one shape next to each
other, as DeepBench prints them. Backward by inputs is left out for a first layer (one or three channels): no layer lies
before it, and most of DeepBench's sheets print `N/A*` there.

No list of DeepBench's kind exists for transformers, so the shapes of the set `transformer` are derived here from a few numbers
a model, which anybody can check, instead of being typed as rows, which nobody would.

Matrix products are written as the other lists write them, which is as BLAS sees them: m output features, n tokens, k input
features. A framework keeps a linear layer's weights as features out × in, so its forward product is `TN` there (a_t), the one
backward by inputs `NN`, the one backward by weights `NT` (b_t).

"One of 8" is what one of eight devices does that share a layer by its columns or rows (tensor parallelism, as in Megatron-LM,
arXiv:1909.08053), or its experts.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files

from stackmark.spec import Scalar
from stackmark.units import counted
from stackmark.workloads.op.problem import BACKWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, FORWARD, ListRow

TRAINING, SERVER, DEVICE = "training", "inference_server", "inference_device"
TRANSFORMER, SWEEP = "transformer", "sweep"
# A grey or a coloured image, or sound: what a network's first layer reads.
FIRST_LAYER_CHANNELS = (1, 3)
# Of fp32, from a message whose time is all latency to one whose time is all bandwidth.
SWEEP_BYTES = tuple(2**power for power in range(10, 29))
_TRAINED = (FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS)

Cells = Mapping[str, str]

# --- DeepBench's lists, and a sweep of sizes ----------------------------------------------------------------------------


def once(_cells: Cells) -> tuple[Cells, ...]:
    """Go through a row once, forward unless it says otherwise."""
    return ({},)


def conv_passes(cells: Cells) -> tuple[Cells, ...]:
    """Go through a row once a pass; a first layer has no gradient of its input."""
    first = int(cells["c"]) in FIRST_LAYER_CHANNELS
    return tuple({"pass": name} for name in _TRAINED if not (first and name == BACKWARD_INPUTS))


def rnn_passes(_cells: Cells) -> tuple[Cells, ...]:
    return tuple({"pass": name} for name in _TRAINED)


def deepbench(
    table: str, set_name: str, passes: Callable[[Cells], tuple[Cells, ...]] = once
) -> Callable[[], Iterator[ListRow]]:
    """Return the list that a table of DeepBench has for a set."""

    def rows() -> Iterator[ListRow]:
        text = files("stackmark.workloads.op").joinpath("data").joinpath(f"{table}.csv").read_text(encoding="utf-8")
        for cells in csv.DictReader(text.splitlines(), strict=True):
            its_set, application = cells.pop("set"), cells.pop("application")
            if its_set == set_name:
                for more in passes(cells):
                    yield application, {**cells, **more}

    return rows


def sweep() -> Iterator[ListRow]:
    for size in SWEEP_BYTES:
        yield "", {"floats": size // 4}


# --- models whose operators are measured --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """Sizes of one network. A gated MLP has two matrices upwards; `kv_heads` are fewer than `heads` where queries share."""

    name: str
    width: int
    heads: int
    kv_heads: int
    head: int
    mlp: int
    vocabulary: int
    gated: bool = False
    experts: int = 0
    chosen: int = 0

    @property
    def qkv(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head

    @property
    def up(self) -> int:
        return self.mlp * (2 if self.gated else 1)

    def one_of(self, parts: int) -> "Model":
        """Return the share of one of this many devices."""
        return replace(
            self,
            name=f"{self.name}, one of {parts}",
            heads=self.heads // parts,
            kv_heads=self.kv_heads // parts,
            mlp=self.mlp // parts if not self.experts else self.mlp,
            vocabulary=self.vocabulary // parts,
            experts=self.experts // parts,
        )


# Radford et al., "Language Models are Unsupervised Multitask Learners", 2019, table 2 (the 12-layer model); the vocabulary from
# section 2.3.
GPT2 = Model("GPT-2 small", 768, 12, 12, 64, 3072, 50257)
# Devlin et al., arXiv:1810.04805, section 3 (L = 24, H = 1024, A = 16); the vocabulary of the released uncased model.
BERT = Model("BERT-large", 1024, 16, 16, 64, 4096, 30522)
# Touvron et al., arXiv:2302.13971, table 2, and arXiv:2307.09288 (Llama 2 keeps the 7B's sizes); the MLP's 11,008 is
# 2/3 · 4 · 4096, rounded up to a multiple of 256, as in the released parameters.
LLAMA2 = Model("Llama-2-7B", 4096, 32, 32, 128, 11008, 32000, gated=True)
# Grattafiori et al., arXiv:2407.21783, table 3; 128,000 tokens there and 256 special ones in the released vocabulary.
LLAMA3 = Model("Llama-3-8B", 4096, 32, 8, 128, 14336, 128256, gated=True)
LLAMA3_70B = Model("Llama-3-70B", 8192, 64, 8, 128, 28672, 128256, gated=True)
# Jiang et al., arXiv:2401.04088, table 1: eight experts, two for each token.
MIXTRAL = Model("Mixtral-8x7B", 4096, 32, 8, 128, 14336, 32000, gated=True, experts=8, chosen=2)
# Dai et al., arXiv:2401.06066, section 5.1 and the released parameters of the 16B model: 64 routed experts, six for each token.
DEEPSEEK_MOE = Model("DeepSeekMoE-16B", 2048, 16, 16, 128, 1408, 102400, gated=True, experts=64, chosen=6)
# DeepSeek-AI, arXiv:2412.19437, section 4.2: 256 routed experts, eight for each token.
DEEPSEEK_V3 = Model("DeepSeek-V3", 7168, 128, 128, 128, 2048, 129280, gated=True, experts=256, chosen=8)


def _row(application: str, **shape: Scalar) -> ListRow:
    return application, shape


# --- matrix products ----------------------------------------------------------------------------------------------------


def _linear(model: Model, layer: str, tokens: int) -> ListRow:
    """One linear layer forward, for this many tokens: a batch in training, a row for each sequence in decoding."""
    out, into = {
        "qkv": (model.qkv, model.width),
        "attention out": (model.width, model.heads * model.head),
        "MLP up": (model.up, model.width),
        "MLP down": (model.width, model.mlp),
        "vocabulary": (model.vocabulary, model.width),
    }[layer]
    words = "MLP gate and up" if layer == "MLP up" and model.gated else layer
    return _row(f"{model.name}: {words}", m=out, n=tokens, k=into, a_t=True)


_LAYERS = ("qkv", "attention out", "MLP up", "MLP down", "vocabulary")


def transformer_gemm() -> Iterator[ListRow]:
    shared = LLAMA3_70B.one_of(8)
    for model, tokens in ((GPT2, 8192), (BERT, 16384), (LLAMA2, 4096), (LLAMA3, 8192), (shared, 8192)):
        for layer in _LAYERS:
            yield _linear(model, layer, tokens)
    # Both products backward of the largest layer inside a block.
    out, into, tokens = LLAMA3.up, LLAMA3.width, 8192
    name = f"{LLAMA3.name}: MLP gate and up"
    yield _row(f"{name}, backward by inputs", m=into, n=tokens, k=out)
    yield _row(f"{name}, backward by weights", m=into, n=out, k=tokens, b_t=True)
    yield _linear(BERT, "MLP up", 512)
    yield _linear(LLAMA2, "MLP up", 512)
    # Decoding: one token of each sequence, so the weights are read for few rows.
    for model, layer, rows in (
        (LLAMA2, "MLP up", 1), (LLAMA3, "qkv", 1), (LLAMA3, "MLP up", 1), (LLAMA3, "MLP down", 1), (LLAMA3, "vocabulary", 1),
        (LLAMA3, "MLP up", 8), (LLAMA3, "MLP up", 16), (LLAMA3, "MLP up", 64), (LLAMA3, "MLP down", 64), (shared, "MLP up", 16),
        (shared, "MLP down", 64),
    ):  # fmt: skip
        application, shape = _linear(model, layer, rows)
        yield f"{application}, decoding", shape


def transformer_batched_gemm() -> Iterator[ListRow]:
    """List attention without a fused kernel: a product per head of each sequence; and DeepSeek's own matrices per head."""
    for model, batch, length in (
        (GPT2, 8, 1024),
        (BERT, 32, 128),
        (BERT, 32, 512),
        (LLAMA2, 1, 4096),
        (LLAMA3, 1, 8192),
    ):
        groups = batch * model.heads
        yield _row(f"{model.name}: scores", groups=groups, m=length, n=length, k=model.head, a_t=True)
        yield _row(f"{model.name}: values", groups=groups, m=model.head, n=length, k=length)
    # Decoding: the query heads that share one key head are the rows; eight sequences of 8192.
    shared_by = LLAMA3.heads // LLAMA3.kv_heads
    groups, name = 8 * LLAMA3.kv_heads, f"{LLAMA3.name}, decoding"
    yield _row(f"{name}: scores", groups=groups, m=8192, n=shared_by, k=LLAMA3.head, a_t=True)
    yield _row(f"{name}: values", groups=groups, m=LLAMA3.head, n=shared_by, k=8192)
    # Latent attention (arXiv:2405.04434, section 2.1): each head's query of 128 becomes one of the 512 that are kept of the keys.
    for tokens in (16, 128):
        name = f"{DEEPSEEK_V3.name}, decoding: queries to latent"
        yield _row(name, groups=DEEPSEEK_V3.heads, m=512, n=tokens, k=DEEPSEEK_V3.head)


def transformer_grouped_gemm() -> Iterator[ListRow]:
    """List the products of experts: rows are tokens times the experts that each chooses."""
    for model, all_tokens in (
        (MIXTRAL, (1, 16, 64, 512, 4096, 8192)),
        (DEEPSEEK_MOE, (16, 128, 4096)),
        (DEEPSEEK_V3.one_of(8), (16, 128, 4096)),
    ):
        for tokens in all_tokens:
            # Devices that share the experts share the rows as well: an eighth of the rows of eight times the tokens.
            rows = tokens * model.chosen
            for layer, n, k in (("gate and up", model.up, model.width), ("down", model.width, model.mlp)):
                name = f"{model.name}: experts' {layer}, {counted(tokens, 'token')}"
                yield _row(name, groups=model.experts, tokens=rows, n=n, k=k)


# --- attention, norms, tables -------------------------------------------------------------------------------------------


def _both(application: str, **shape: Scalar) -> Iterator[ListRow]:
    for name in (FORWARD, BACKWARD):
        yield _row(application, **shape, **{"pass": name})


def transformer_attention() -> Iterator[ListRow]:
    # The lengths of Dao, arXiv:2307.08691, section 4.1: 16,384 tokens in all, width 2048, here 16 heads of 128.
    for length in (512, 1024, 2048, 4096, 8192, 16384):
        name = "FlashAttention-2's own benchmark"
        yield from _both(name, batch=16384 // length, heads=16, length=length, head=128, causal=True)
    shared = LLAMA3_70B.one_of(8)
    for model, batch, length, causal in (
        (GPT2, 8, 1024, True), (BERT, 32, 512, False), (LLAMA2, 1, 4096, True), (LLAMA3, 1, 8192, True),
        (LLAMA3_70B, 1, 4096, True), (shared, 1, 8192, True),
    ):  # fmt: skip
        heads = {"heads": model.heads, "kv_heads": model.kv_heads if model.kv_heads != model.heads else 0}
        yield from _both(model.name, batch=batch, **heads, length=length, head=model.head, causal=causal)
    # Decoding: one new token of each sequence looks at all that came before.
    for model, batch, kept in (
        (LLAMA2, 16, 4096), (LLAMA3, 1, 8192), (LLAMA3, 16, 8192), (LLAMA3, 64, 8192), (LLAMA3, 8, 16384), (shared, 64, 8192),
    ):  # fmt: skip
        heads = {"heads": model.heads, "kv_heads": model.kv_heads if model.kv_heads != model.heads else 0}
        name = f"{model.name}, decoding"
        yield _row(name, batch=batch, **heads, length=1, kv_length=kept, head=model.head)


def transformer_layer_norm() -> Iterator[ListRow]:
    # GPT-2's other widths from its table 2; GPT-3's from Brown et al., arXiv:2005.14165, table 2.1; ViT-B/16's 197 tokens
    # an image from Dosovitskiy et al., arXiv:2010.11929. Llama's norms (RMS) have no mean and no shift: they are here for
    # their size.
    for name, rows, width in (
        ("BERT-large, 32 sequences of 128", 4096, 1024), ("BERT-large, 32 sequences of 512", 16384, 1024),
        ("GPT-2 small, 8 sequences of 1024", 8192, 768), ("GPT-2 XL, 4 sequences of 1024", 4096, 1600),
        ("GPT-3 175B, one sequence of 2048", 2048, 12288), ("ViT-B/16, 64 images", 64 * 197, 768),
        ("width of Llama-3-8B, 8192 tokens", 8192, 4096), ("width of Llama-3-70B, 8192 tokens", 8192, 8192),
    ):  # fmt: skip
        yield from _both(name, rows=rows, width=width)


def transformer_embedding() -> Iterator[ListRow]:
    for model, tokens in ((GPT2, 8192), (BERT, 16384), (LLAMA2, 4096), (LLAMA3, 8192), (LLAMA3_70B, 8192)):
        shape = {"tokens": tokens, "vocabulary": model.vocabulary, "width": model.width}
        yield from _both(f"{model.name}: tokens in", **shape)
    shape = {"tokens": 64, "vocabulary": LLAMA3.vocabulary, "width": LLAMA3.width}
    yield _row(f"{LLAMA3.name}: tokens in, decoding", **shape)


# --- what only moves memory ---------------------------------------------------------------------------------------------

# As counted from the networks that `train/…` measures; ResNet-50 with 1000 classes, as it is mostly quoted.
_PARAMETERS = {
    "ResNet-50": 25_557_032,
    "GPT-2 small": 124_439_808,
    "BERT-large, with its heads for pre-training": 336_226_108,
    "a thousand million": 10**9,
}


def transformer_optimizer() -> Iterator[ListRow]:
    for name, parameters in _PARAMETERS.items():
        for kind in ("adamw", "momentum"):
            yield _row(name, parameters=parameters, kind=kind)


def transformer_copy() -> Iterator[ListRow]:
    # From what a cache holds to what none does.
    for power in range(20, 33):
        size = f"{2 ** (power - 20)} MiB" if power < 30 else f"{2 ** (power - 30)} GiB"
        yield _row(size, bytes=2**power)
