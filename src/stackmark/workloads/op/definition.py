"""The family `op/`: its parameters, and questions about an operator by its name. No framework.

A spec names the rows of its list one by one (`rows`), so that all runs of an experiment do the same ones, whatever the
budget was that chose them, and so that a run after one that was cut off can do just the missing ones.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

from stackmark.errors import SpecError, nearest_names
from stackmark.model import Field
from stackmark.spec import AnyParams, Scalar
from stackmark.workloads.definition import Family, operator_definition, outside
from stackmark.workloads.op.operators import OPERATORS
from stackmark.workloads.op.problem import LARGEST, Axis, Operator, Problem, Shape, plain_shape

GROUP = "Operators (op/…)"
OP = {"group": GROUP}
OP_AUTO = {"group": GROUP, "auto": True}
OP_FOLLOWS = {"group": GROUP, "auto": True, "follows": True}

Precision = Literal["fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8"]
# A list of numbers and ranges: 0-159, or 0,8,16-23.
ROWS_PATTERN = r"^\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*$"


class OpParams(AnyParams):
    seed: int = Field(default=1, ge=0, lt=2**31, description="random seed of the operands' values")
    precision: Precision = Field(
        description="type of the operands; tf32: fp32 operands, multiplied with 10 bits; sums have 32 bits or more",
        json_schema_extra={"auto": True},
    )
    set: str = Field(
        description="list of problems: training, inference_server, inference_device, transformer, sweep; "
        "typed: the one problem given by --m --n --k or --shape",
        pattern=r"^[a-z][a-z_]{0,30}$",
        json_schema_extra=OP_AUTO,
    )
    rows: str = Field(
        description="rows of the list to measure, numbered from 0, e.g. 0-9,40",
        pattern=ROWS_PATTERN,
        json_schema_extra={**OP_AUTO, "one_value": True},
    )
    m: int = Field(default=0, ge=0, le=2**31 - 1, description="op/gemm: rows of the result", json_schema_extra=OP)
    n: int = Field(default=0, ge=0, le=2**31 - 1, description="op/gemm: columns of the result", json_schema_extra=OP)
    k: int = Field(default=0, ge=0, le=2**31 - 1, description="op/gemm: length of the sums", json_schema_extra=OP)
    a_t: bool = Field(default=False, description="op/gemm: transpose the left operand", json_schema_extra=OP)
    b_t: bool = Field(default=False, description="op/gemm: transpose the right operand", json_schema_extra=OP)
    shape: str = Field(
        default="",
        description="one problem by its names, e.g. --shape w=56,h=56,c=64,n=16,k=64,filter_w=3,filter_h=3",
        json_schema_extra={**OP, "plain": True},
    )
    budget: float = Field(
        ge=0,
        le=86_400,
        description="time of a run: fewer problems, spread over the list; 0: all; auto: 60 on a CPU, 0 on a GPU",
        json_schema_extra={**OP_FOLLOWS, "quantity": "seconds"},
    )
    row_seconds: float = Field(
        gt=0,
        le=3600,
        description="time one problem for at most this long, or until its median is known to 1 %",
        json_schema_extra={**OP_FOLLOWS, "quantity": "seconds"},
    )
    threads: int = Field(
        ge=0,
        le=4096,
        description="intra-op threads; 0: the framework's choice",
        json_schema_extra={"auto": True, "follows": True},
    )


# --- the operators ------------------------------------------------------------------------------------------------------

NAME = "op"
_MODULE = "stackmark.workloads.op.impl.entry"
# Which rows they are is said apart.
_SHOWN = ("device", "precision", "set", "shape", "m", "n", "k", "row_seconds", "threads")


def family() -> Family:
    """Return ours and those of other packages; a name of ours cannot be taken by another."""
    definitions = tuple(operator_definition(NAME, one) for one in operators().values())
    return Family(NAME, OpParams, _MODULE, definitions, shown=_SHOWN)


def operators() -> dict[str, Operator]:
    more = (one for one in outside().found.values() if isinstance(one, Operator))
    return {**OPERATORS, **{one.name: one for one in more if one.name not in OPERATORS}}


def known_operator(op: str) -> Operator | None:
    """Return the operator of a name; None for one that neither we nor an installed package have."""
    return OPERATORS.get(op) or operators().get(op)


def operator_of(workload: str) -> Operator | None:
    """Return the operator of `op/NAME`; None for every other workload."""
    family_name, _, op = workload.partition("/")
    return known_operator(op) if family_name == NAME else None


def find_operator(op: str) -> Operator:
    found = known_operator(op)
    if found is None:
        raise SpecError(
            f"unknown operator {op!r}{nearest_names(op, list(operators()))}",
            hint="list them with: stackmark workloads",
        )
    return found


def say_problem(op: str, shape: Shape) -> str:
    """Write a problem in few characters: `1760×16×1760 NN`, `56×56×64→64 3×3 n16 fwd`.

    The whole of it, name by name, is in `--json`; here only what tells one row of a list from the next. A shape that lacks
    what its operator has, as from a newer worker, is written by its names and values.
    """
    operator = known_operator(op)
    try:
        return operator.say(shape) if operator else plain_shape(shape)
    except KeyError:
        return plain_shape(shape)


def operations(problem: Problem) -> float | None:
    """Count the operations of one call; None for what memory limits on any chip, where bytes say more."""
    count = find_operator(problem.op).operations
    return float(count(problem)) if count else None


def least_bytes(problem: Problem, precision: str) -> float:
    """Count every operand once and every result once, in bytes."""
    return float(find_operator(problem.op).least_bytes(problem, precision))


def bus_factor(op: str, ranks: int) -> float:
    """Return what each rank's link carries, as a share of the array: the bus bandwidth by the algorithm bandwidth."""
    exchange = find_operator(op).exchange
    assert exchange is not None, op
    return exchange.bus_factor(ranks)


# --- lists --------------------------------------------------------------------------------------------------------------


def sets_of(op: str) -> tuple[str, ...]:
    """Name the sets of an operator; the first is the one that is taken where none was named."""
    return tuple(find_operator(op).sets)


def check_set(op: str, set_name: str) -> None:
    """Refuse a set that the operator does not have."""
    sets = sets_of(op)
    if set_name not in sets:
        raise SpecError(
            f"op/{op} has no set {set_name!r}{nearest_names(set_name, list(sets))}",
            hint=f"its sets are {', '.join(sets)}" if len(sets) > 1 else f"its only set is {sets[0]}",
        )


def problems(op: str, set_name: str) -> tuple[Problem, ...]:
    """Return the rows of a list, in their order."""
    check_set(op, set_name)
    return _problems(find_operator(op), set_name)


@cache
def _problems(operator: Operator, set_name: str) -> tuple[Problem, ...]:
    rows = operator.sets[set_name]
    if rows is None:
        command = f"stackmark {operator.verb}" if operator.verb else f"stackmark run op/{operator.name}"
        raise SpecError(
            f"the rows of op/{operator.name} depend on the machine, so they cannot be listed",
            hint=f"measure them: {command}",
        )
    return tuple(replace(_read(operator, shape), application=application) for application, shape in rows())


# --- reading a problem --------------------------------------------------------------------------------------------------


def read_problem(op: str, typed: Shape) -> Problem:
    """Read a problem from names and values as a person or a table has them; what is wrong is a sentence."""
    return _read(find_operator(op), typed)


def _read(operator: Operator, typed: Shape) -> Problem:
    op, fields = operator.name, operator.fields
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
    operator.check(problem)
    return problem


def _value(op: str, name: str, wanted: Axis, value: Scalar) -> Scalar:
    if wanted.words:
        if value not in wanted.words:
            raise SpecError(f"{name} of op/{op} must be one of {', '.join(wanted.words)}, got {value!r}")
        return value
    if isinstance(wanted.default, str):
        return str(value)
    if isinstance(wanted.default, bool):
        if value in (0, 1, "0", "1", "yes", "no", "true", "false"):
            return value in (1, "1", "yes", "true")
        raise SpecError(f"{name} of op/{op} must be 0 or 1, got {value!r}")
    try:
        number = float(str(value)) if isinstance(wanted.default, float) else int(str(value))
    except ValueError as error:
        raise SpecError(f"{name} of op/{op} must be a number, got {value!r}") from error
    if isinstance(number, float):
        if not 0 <= number < 1:
            raise SpecError(f"{name} of op/{op} must be a share below 1, got {value!r}")
        return number
    if number == wanted.default:
        return number
    if not wanted.least <= number <= LARGEST:
        raise SpecError(f"{name} of op/{op} must be a whole number from {wanted.least} to {LARGEST:,}, got {value!r}")
    return number


def read_shape(op: str, text: str) -> Problem:
    """Read `w=56,h=56,c=64`, as typed after --shape."""
    return read_problem(op, read_values(op, text))


def read_values(op: str, text: str) -> dict[str, Scalar]:
    """Read names and values without validating them: they may be a part of a shape."""
    typed: dict[str, Scalar] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not value.strip():
            raise SpecError(
                f"--shape: {part!r} is not name=value", hint=f"its shape is {', '.join(find_operator(op).fields)}"
            )
        if name.strip() in typed:
            raise SpecError(f"--shape: {name.strip()} is given twice", hint="give it once")
        typed[name.strip()] = value.strip()
    return typed


def typed_problem(op: str, params: Shape) -> Problem | None:
    """Read the one problem of --m --n --k or --shape; None where a list is meant."""
    own = {name: params[name] for name in _OPTIONS if params.get(name)}
    if zeros := [name for name in ("m", "n", "k") if own and name not in own and params.get(name) == 0]:
        raise SpecError(f"op/gemm needs {zeros[0]} of at least 1", hint=f"give it with --{zeros[0]}")
    shape = str(params.get("shape") or "")
    if own and shape:
        raise SpecError(f"--shape and {_option(own)} cannot be combined", hint="give one of them")
    operator = known_operator(op)
    if own and not (operator and operator.options):
        raise SpecError(
            f"{_option(own)} belongs to op/gemm", hint=f"give the shape of op/{op} with --shape name=value,…"
        )
    if own:
        return read_problem(op, own)
    if not shape:
        return None
    operator = find_operator(op)
    if operator.by_machine:
        raise SpecError(f"op/{op} takes no --shape: its rows depend on the machine")
    if operator.exchange and "ranks" in shape:
        raise SpecError("--shape does not take the number of ranks", hint="set it with --ranks")
    return read_shape(op, shape)


# Parameters of a problem that are options of their own.
_OPTIONS = OPERATORS["gemm"].options


def _option(own: Mapping[str, Scalar]) -> str:
    return f"--{next(iter(own)).replace('_', '-')}"
