"""A problem: one operator with its shape, as a list has it or a person types it. How much work it is: counts.py."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from stackmark.errors import SpecError, nearest_names
from stackmark.spec import Scalar

FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, BACKWARD = "forward", "backward-inputs", "backward-weights", "backward"


@dataclass(frozen=True)
class Axis:
    """One number of a shape: at least this, and what it is where it was not typed (None: it must be)."""

    least: int = 1
    default: Scalar = None
    # The words it may be, of a name and not a number.
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Problem:
    op: str
    # In the order of its operator's fields.
    shape: Mapping[str, Scalar] = field(default_factory=dict)
    # What it was taken from: DeepSpeech, a layer of a transformer.
    application: str = ""

    def number(self, name: str) -> int:
        value = self.shape[name]
        assert isinstance(value, int), name
        return value

    def word(self, name: str) -> str:
        return str(self.shape[name])

    def __str__(self) -> str:
        return say_shape(self.op, self.shape)


def say_shape(op: str, shape: Mapping[str, Scalar]) -> str:
    """`1760×16×1760 TN` for a GEMM, names and numbers for the others."""
    if op == "gemm":
        letters = "".join("T" if shape.get(name) else "N" for name in ("a_t", "b_t"))
        return f"{shape.get('m')}×{shape.get('n')}×{shape.get('k')} {letters}"
    return " ".join(
        f"{value}" if isinstance(value, str) else f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in shape.items()
    )


FIELDS: dict[str, dict[str, Axis]] = {
    "gemm": {"m": Axis(), "n": Axis(), "k": Axis(), "a_t": Axis(0, False), "b_t": Axis(0, False)},
    # `groups` matrices of one shape in one call; a_t and b_t as in gemm.
    "batched-gemm": {"groups": Axis(), "m": Axis(), "n": Axis(), "k": Axis(), "a_t": Axis(0, False), "b_t": Axis(0, False)},
    # A mixture of experts: `tokens` rows fall to `groups` matrices of k × n, unevenly.
    "grouped-gemm": {"groups": Axis(), "tokens": Axis(), "n": Axis(), "k": Axis()},
    "sparse-gemm": {
        "m": Axis(), "n": Axis(), "k": Axis(), "a_t": Axis(0, False), "b_t": Axis(0, False),
        "sparsity": Axis(0, 0.9),
    },
    "conv": {
        "w": Axis(), "h": Axis(), "c": Axis(), "n": Axis(), "k": Axis(), "filter_w": Axis(), "filter_h": Axis(),
        "pad_w": Axis(0, 0), "pad_h": Axis(0, 0), "stride_w": Axis(1, 1), "stride_h": Axis(1, 1),
        "pass": Axis(0, FORWARD, (FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS)),
    },
    "rnn": {
        "cell": Axis(0, "lstm", ("vanilla", "lstm", "gru")), "hidden": Axis(), "batch": Axis(), "timesteps": Axis(),
        "pass": Axis(0, FORWARD, (FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS, BACKWARD)),
    },
    "attention": {
        "batch": Axis(), "heads": Axis(), "kv_heads": Axis(1, 0), "length": Axis(), "kv_length": Axis(1, 0), "head": Axis(),
        "causal": Axis(0, False), "pass": Axis(0, FORWARD, (FORWARD, BACKWARD)),
    },
    "layer-norm": {"rows": Axis(), "width": Axis(), "pass": Axis(0, FORWARD, (FORWARD, BACKWARD))},
    "embedding": {"tokens": Axis(), "vocabulary": Axis(), "width": Axis(), "pass": Axis(0, FORWARD, (FORWARD, BACKWARD))},
    "optimizer": {"parameters": Axis(), "kind": Axis(0, "adamw", ("adamw", "momentum"))},
    "copy": {"bytes": Axis()},
    "transfer": {"bytes": Axis(), "from": Axis(0, ""), "to": Axis(0, ""), "how": Axis(0, "")},
    "all-reduce": {"floats": Axis(), "ranks": Axis(2, 2)},
    "all-gather": {"floats": Axis(), "ranks": Axis(2, 2)},
    "reduce-scatter": {"floats": Axis(), "ranks": Axis(2, 2)},
    "all-to-all": {"floats": Axis(), "ranks": Axis(2, 2)},
    "broadcast": {"floats": Axis(), "ranks": Axis(2, 2)},
}  # fmt: skip
# Whose rows depend on the machine, and not on a list.
BY_MACHINE = {"transfer": "links", "ceilings": "machine"}
# The name of a set that is the one problem a person typed, and what a product of matrices is typed with.
TYPED = "typed"
MATRIX = ("m", "n", "k", "a_t", "b_t")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast")


# The largest whole number of which neither JSON nor a double loses a digit.
LARGEST = 2**53 - 1


def read_problem(op: str, typed: Mapping[str, Scalar]) -> Problem:
    """A problem from names and values as a person or a table has them; what is wrong is a sentence."""
    fields = FIELDS[op]
    if unknown := [name for name in typed if name not in fields]:
        raise SpecError(
            f"op/{op} has no {unknown[0]!r}{nearest_names(unknown[0], list(fields))}",
            hint=f"its shape is {', '.join(fields)}",
        )
    shape: dict[str, Scalar] = {}
    for name, wanted in fields.items():
        value = typed.get(name, wanted.default)
        if value is None:
            raise SpecError(f"op/{op} needs {name}", hint=f"its shape is {', '.join(fields)}")
        shape[name] = _value(op, name, wanted, value)
    problem = Problem(op, shape)
    for check in _CHECKS.get(op, ()):
        check(problem)
    return problem


def _value(op: str, name: str, wanted: Axis, value: Scalar) -> Scalar:
    if wanted.words:
        if value not in wanted.words:
            raise SpecError(f"{name} of op/{op} is one of {', '.join(wanted.words)}, not {value!r}")
        return value
    if isinstance(wanted.default, str):
        return str(value)
    if isinstance(wanted.default, bool):
        if value in (0, 1, "0", "1", "yes", "no", "true", "false"):
            return value in (1, "1", "yes", "true")
        raise SpecError(f"{name} of op/{op} is 0 or 1, not {value!r}")
    try:
        number = float(str(value)) if isinstance(wanted.default, float) else int(str(value))
    except ValueError as error:
        raise SpecError(f"{name} of op/{op} is a number, not {value!r}") from error
    if isinstance(number, float):
        if not 0 <= number < 1:
            raise SpecError(f"{name} of op/{op} is a share below 1, not {value!r}")
        return number
    if number == wanted.default:
        return number
    if not wanted.least <= number <= LARGEST:
        raise SpecError(f"{name} of op/{op} is a whole number from {wanted.least} to {LARGEST:,}, not {value!r}")
    return number


def read_shape(op: str, text: str) -> Problem:
    """`w=56,h=56,c=64` as typed after --shape."""
    return read_problem(op, read_values(op, text))


def read_values(op: str, text: str) -> dict[str, Scalar]:
    """The same, apart, and not checked: it may be a part of a shape."""
    typed: dict[str, Scalar] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise SpecError(f"--shape: {part!r} is not name=value", hint=f"its shape is {', '.join(FIELDS[op])}")
        if name.strip() in typed:
            raise SpecError(f"--shape: {name.strip()} was typed twice", hint="give it once")
        typed[name.strip()] = value.strip()
    return typed


def typed_problem(op: str, params: Mapping[str, Scalar]) -> Problem | None:
    """The one problem of --m --n --k or --shape; None where a list is meant."""
    matrix = {name: params[name] for name in MATRIX if params.get(name)}
    if zeros := [name for name in ("m", "n", "k") if matrix and name not in matrix and params.get(name) == 0]:
        raise SpecError(f"op/gemm needs {zeros[0]} of at least 1", hint=f"give it with --{zeros[0]}")
    shape = str(params.get("shape") or "")
    if matrix and shape:
        raise SpecError(f"both --shape and {_option(matrix)} were given", hint="give one of them")
    if matrix and op != "gemm":
        raise SpecError(f"{_option(matrix)} is of op/gemm", hint=f"give the shape of op/{op} with --shape name=value,…")
    if matrix:
        return read_problem(op, matrix)
    if not shape:
        return None
    if op in BY_MACHINE:
        raise SpecError(f"op/{op} takes no --shape: its rows are what this machine has")
    if op in COLLECTIVES and "ranks" in shape:
        raise SpecError("the group's size is no part of its --shape", hint="give it with --ranks")
    return read_shape(op, shape)


def _option(matrix: Mapping[str, Scalar]) -> str:
    return f"--{next(iter(matrix)).replace('_', '-')}"


def conv_output(problem: Problem) -> tuple[int, int]:
    """Width and height of what a convolution gives."""
    size = problem.number
    return (
        (size("w") + 2 * size("pad_w") - size("filter_w")) // size("stride_w") + 1,
        (size("h") + 2 * size("pad_h") - size("filter_h")) // size("stride_h") + 1,
    )


def _check_conv(problem: Problem) -> None:
    if min(conv_output(problem)) < 1:
        raise SpecError(
            f"the filter of {problem} is larger than its padded image: there would be no output",
            hint="take a smaller filter, or a larger pad",
        )


def _check_attention(problem: Problem) -> None:
    heads, kv_heads = problem.number("heads"), problem.number("kv_heads")
    if kv_heads and heads % kv_heads:
        raise SpecError(
            f"{heads} heads cannot share {kv_heads} heads of keys evenly", hint="take a kv_heads that divides heads"
        )
    length, keys = problem.number("length"), problem.number("kv_length")
    if problem.shape["causal"] and keys not in (0, length):
        raise SpecError(
            f"a causal mask over {length} queries and {keys} keys could begin at the first key or end at the last",
            hint="take causal=0 for the step of a decoder, whose query sees all keys, or kv_length as long as length",
        )


def _check_sparse(problem: Problem) -> None:
    if problem.shape["a_t"]:
        raise SpecError(
            "the libraries would turn a transposed sparse matrix round at each call, and that would be timed",
            hint="take a_t=0 with m and k as the product has them",
        )


def _check_norm(problem: Problem) -> None:
    if problem.number("width") < 2:
        raise SpecError(
            "a row of one element is its own mean: there is nothing to normalise", hint="take a width of 2 or more"
        )


_CHECKS: dict[str, tuple[Callable[[Problem], None], ...]] = {
    "conv": (_check_conv,),
    "attention": (_check_attention,),
    "sparse-gemm": (_check_sparse,),
    "layer-norm": (_check_norm,),
}


_ROW = re.compile(r"[0-9]{1,9}")


def read_rows(text: str, count: int) -> list[int]:
    """`0-9,40` as numbers in rising order; one that the list does not have is a sentence."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (_ROW.fullmatch(first) and _ROW.fullmatch(last or first)):  # a spec in a ledger may hold anything
            raise SpecError(f"rows: {part[:40]!r} is no number of a row, and no range of them", hint="e.g. 0-9,40")
        low, high = int(first), int(last or first)
        if high < low:
            raise SpecError(f"--rows: {part!r} goes backwards", hint=f"write {last}-{first}")
        if high >= count:
            raise SpecError(f"--rows: there is no row {high}: this list has {count}, from 0 to {count - 1}")
        found.update(range(low, high + 1))
    return sorted(found)


def say_rows(numbers: Iterable[int]) -> str:
    """The shortest text that `read_rows` reads as these numbers."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{low}-{high}" if high > low else f"{low}" for low, high in ranges)
