"""The lists of problems, by operator and set: what `--set` may name, and the rows that it stands for.

DeepBench's lists are data of the package (data/SOURCES.md says where from and where they contradict themselves), because
they are its authors' and must stay theirs to the letter; what today's models do is computed from the models' own sizes
(transformer_lists.py). A row's number in its list is its name in a ledger, so a list is never reordered.

A convolution and a recurrent layer of the training set are gone through once a pass, the passes of one shape next to each
other, as DeepBench prints them. Backward by inputs is left out for a first layer (one or three channels): no layer lies
before it, and most of DeepBench's sheets print `N/A*` there.
"""

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from importlib.resources import files

from stackmark.errors import SpecError, nearest_names
from stackmark.workloads.op.problem import (
    BACKWARD_INPUTS,
    BACKWARD_WEIGHTS,
    BY_MACHINE,
    COLLECTIVES,
    FORWARD,
    Problem,
    read_problem,
)
from stackmark.workloads.op.transformer_lists import TRANSFORMER

TRAINING, SERVER, DEVICE = "training", "inference_server", "inference_device"
TRANSFORMER_SET, SWEEP = "transformer", "sweep"
# A grey or a coloured image, or sound: what a network's first layer reads.
FIRST_LAYER_CHANNELS = (1, 3)
# Of fp32, from a message whose time is all latency to one whose time is all bandwidth.
SWEEP_BYTES = tuple(2**power for power in range(10, 29))

_SETS: dict[str, tuple[str, ...]] = {
    "gemm": (TRAINING, SERVER, DEVICE, TRANSFORMER_SET),
    "sparse-gemm": (SERVER, DEVICE),
    "conv": (TRAINING, SERVER, DEVICE),
    "rnn": (TRAINING, SERVER, DEVICE),
    **{op: (TRANSFORMER_SET,) for op in TRANSFORMER if op != "gemm"},
    **dict.fromkeys(COLLECTIVES, (TRAINING, SWEEP)),
    **{op: (name,) for op, name in BY_MACHINE.items()},
}


def sets_of(op: str) -> tuple[str, ...]:
    """The sets an operator has; the first is the one that is taken where none was named."""
    if op not in _SETS:
        raise SpecError(
            f"there is no operator {op!r}{nearest_names(op, list(_SETS))}", hint="list them with: stackmark workloads"
        )
    return _SETS[op]


def check_set(op: str, set_name: str) -> None:
    """A set that the operator does not have is a sentence."""
    sets = sets_of(op)
    if set_name not in sets:
        raise SpecError(
            f"op/{op} has no set {set_name!r}{nearest_names(set_name, list(sets))}",
            hint=f"its sets are {', '.join(sets)}" if len(sets) > 1 else f"its only set is {sets[0]}",
        )


@cache
def problems(op: str, set_name: str) -> tuple[Problem, ...]:
    """A list's rows in their order."""
    check_set(op, set_name)
    if op in BY_MACHINE:
        raise SpecError(
            f"the rows of op/{op} depend on the machine that it runs on: there is no list of them",
            hint=f"see them with: stackmark run op/{op}" if op != "ceilings" else "see them with: stackmark ceilings",
        )
    if set_name == TRANSFORMER_SET:
        return TRANSFORMER[op]()
    if set_name == SWEEP:
        return tuple(read_problem(op, {"floats": size // 4}) for size in SWEEP_BYTES)
    return tuple(_deepbench(op, set_name))


def _deepbench(op: str, set_name: str) -> Iterator[Problem]:
    # Every collective goes over the sizes of DeepBench's one.
    name = "all-reduce" if op in COLLECTIVES else op
    text = files("stackmark.workloads.op").joinpath("data", f"{name}.csv").read_text(encoding="utf-8")
    for cells in csv.DictReader(text.splitlines(), strict=True):
        its_set, application = cells.pop("set"), cells.pop("application")
        if its_set == set_name:
            for more in _PASSES.get((op, set_name), _forward)(cells):
                yield replace(read_problem(op, {**cells, **more}), application=application)


def _forward(_cells: dict[str, str]) -> tuple[dict[str, str], ...]:
    """Of operators without passes, and of sets for inference, where forward is what a problem is unless it says otherwise."""
    return ({},)


def _conv_passes(cells: dict[str, str]) -> tuple[dict[str, str], ...]:
    first = int(cells["c"]) in FIRST_LAYER_CHANNELS
    return tuple({"pass": name} for name in _TRAINED if not (first and name == BACKWARD_INPUTS))


def _rnn_passes(_cells: dict[str, str]) -> tuple[dict[str, str], ...]:
    return tuple({"pass": name} for name in _TRAINED)


_TRAINED = (FORWARD, BACKWARD_INPUTS, BACKWARD_WEIGHTS)
_PASSES: dict[tuple[str, str], Callable[[dict[str, str]], tuple[dict[str, str], ...]]] = {
    ("conv", TRAINING): _conv_passes,
    ("rnn", TRAINING): _rnn_passes,
}
