"""A problem in few characters, for a column of a table and for a bar: `1760×16×1760 NN`, `56×56×64→64 3×3 n16 forward`.

The whole of it, name by name, is in `--json`; here only what tells one row of a list from the next.
"""

from collections.abc import Callable, Mapping

from stackmark.spec import Scalar
from stackmark.units import counted, say_size

Shape = Mapping[str, Scalar]
# The passes as DeepBench's columns call them.
PASSES = {"forward": "fwd", "backward": "bwd", "backward-inputs": "bwd-in", "backward-weights": "bwd-w"}


def say_problem(op: str, shape: Shape) -> str:
    """In few characters; a shape that lacks what its operator has, as from a newer worker, by its names and values."""
    say = _SAY.get(op)
    try:
        return say(shape) if say else _plain(shape)
    except KeyError:
        return _plain(shape)


def _plain(shape: Shape) -> str:
    return " ".join(
        f"{value}" if isinstance(value, str) else f"{name}={_number(value)}" for name, value in shape.items()
    )


def _number(value: Scalar) -> str:
    return f"{value:g}" if isinstance(value, float) else str(int(value)) if isinstance(value, bool) else str(value)


def _letters(shape: Shape) -> str:
    return "".join("T" if shape.get(name) else "N" for name in ("a_t", "b_t"))


def _gemm(shape: Shape) -> str:
    return f"{shape['m']}×{shape['n']}×{shape['k']} {_letters(shape)}"


def _sparse(shape: Shape) -> str:
    return f"{_gemm(shape)} {100 * float(str(shape['sparsity'])):g} %"


def _conv(shape: Shape) -> str:
    image = f"{shape['w']}×{shape['h']}×{shape['c']}→{shape['k']}"
    words = [image, f"{shape['filter_w']}×{shape['filter_h']}", f"n{shape['n']}"]
    for letter, name, usual in (("p", "pad", 0), ("s", "stride", 1)):
        w, h = shape[f"{name}_w"], shape[f"{name}_h"]
        if (w, h) != (usual, usual):
            words.append(f"{letter}{w}" if w == h else f"{letter}{w}×{h}")
    return " ".join([*words, _pass(shape)])


def _rnn(shape: Shape) -> str:
    return f"{shape['cell']} h{shape['hidden']} b{shape['batch']} t{shape['timesteps']} {_pass(shape)}"


def _attention(shape: Shape) -> str:
    heads = f"h{shape['heads']}" + (f"/{shape['kv_heads']}" if shape.get("kv_heads") else "")
    length = f"l{shape['length']}" + (f"/{shape['kv_length']}" if shape.get("kv_length") else "")
    causal = " causal" if shape.get("causal") else ""
    return f"b{shape['batch']} {heads} {length} d{shape['head']}{causal} {_pass(shape)}"


def _pass(shape: Shape) -> str:
    return PASSES.get(str(shape["pass"]), str(shape["pass"]))


def _transfer(shape: Shape) -> str:
    how = f" {shape['how']}" if shape.get("how") else ""
    return f"{shape['from']} → {shape['to']}{how} {_bytes(shape)}"


def _bytes(shape: Shape) -> str:
    return say_size(float(str(shape["bytes"])))


def _collective(shape: Shape) -> str:
    return f"{int(str(shape['floats'])):,} floats, {shape['ranks']} ranks"


_SAY: dict[str, Callable[[Shape], str]] = {
    "gemm": _gemm,
    "batched-gemm": lambda shape: f"{shape['groups']} × {_gemm(shape)}",
    "grouped-gemm": lambda shape: (
        f"{counted(float(str(shape['groups'])), 'group')} {shape['tokens']}×{shape['n']}×{shape['k']}"
    ),
    "sparse-gemm": _sparse,
    "conv": _conv,
    "rnn": _rnn,
    "attention": _attention,
    "layer-norm": lambda shape: f"{shape['rows']}×{shape['width']} {_pass(shape)}",
    "embedding": lambda shape: f"{shape['tokens']} of {shape['vocabulary']}×{shape['width']} {_pass(shape)}",
    "optimizer": lambda shape: f"{shape['kind']} {int(str(shape['parameters'])):,}",
    "copy": _bytes,
    "transfer": _transfer,
    **dict.fromkeys(("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast"), _collective),
}
