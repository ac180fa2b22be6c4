"""`op/optimizer`: one step of AdamW or of momentum over a model's parameters, by the framework's fused kernels.

Parameters, gradients and moments are fp32, as they are in mixed-precision training; the step reads and writes them once and is
bound by the memory. The parameters are a list of tensors of at most 4096 × 4096, the size of a transformer's matrices.
What is called is what `torch.optim.AdamW(fused=True)` and `torch.optim.SGD(momentum=…, fused=True)` call, without their Python.

Each step changes what the next one reads, so no two calls give the same bits and a timed result has nothing to be compared with.
So each set holds its values twice, in two halves that begin alike and are stepped alike: whatever the number of steps, they
must be alike to the last bit, and a step that went wrong anywhere, once, leaves them different for good. That is what is watched
while it is timed. Against float64 one step is compared, from the state that it finds.
"""

import math
from dataclasses import dataclass

import torch

from stackmark.workloads.op.impl.bench import Compared, Implementation, Prepared, Stand, Tensor, require_precision
from stackmark.workloads.op.impl.checking import SAMPLED, bound, relative_error, say_compared
from stackmark.workloads.op.impl.operands import Piece, rotated
from stackmark.workloads.op.problem import Problem
from stackmark.workloads.versions import fused_since, has_torch, lacking
from stackmark.workloads.workload import WorkloadFailure

# The framework's defaults.
LEARNING_RATE, BETA_1, BETA_2, EPSILON, DECAY = 1e-3, 0.9, 0.999, 1e-8, 1e-2
MOMENTUM = 0.9
# Of one tensor; a transformer's matrices are of this size.
LARGEST = 4096 * 4096
LEAST = 2
# Steps that the state has behind it, so that its moments are not those of a first step.
STEPS_BEFORE = 10
# Products, sums, a root and a quotient, one after the other, in 32 bits; and squares of normal values have a long tail.
ROUNDINGS = 32


def check_precision(stand: Stand) -> None:
    require_precision(stand, {"fp32"})


@dataclass(frozen=True)
class State:
    """One set: of each kind two halves, alike, and of an odd number of parameters one more alone. Moments: one or two kinds."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    moments: list[list[Tensor]]

    def all_kinds(self) -> list[list[Tensor]]:
        return [self.parameters, *self.moments]


@dataclass(frozen=True)
class Lists:
    """The same as lists of tensors, as the kernels want them."""

    parameters: list[Tensor]
    gradients: list[Tensor]
    moments: list[list[Tensor]]
    steps: list[Tensor]


def prepare(problem: Problem, stand: Stand) -> Prepared:
    kind = problem.word("kind")
    if problem.number("parameters") < LEAST:
        raise WorkloadFailure(
            "bad_parameter", "at least 2 parameters are needed: their two halves are compared", "use two or more"
        )
    since = fused_since(kind, stand.device.type)
    if not has_torch(since):
        raise lacking(f"a fused step of {kind} on {stand.device}", since)
    states = states_of(problem.number("parameters"), kind, stand)
    lists = [_cut(state, stand) for state in states]
    step = _adamw if kind == "adamw" else _momentum
    return Prepared(
        call=lambda i: step(lists[i]),
        copies=len(states),
        outputs=lambda i: differences(states[i]),
        compare=lambda: _compare(states[0], lists[0], kind, stand),
        accumulate="fp32",
        notes=(
            f"fused step over {len(lists[0].parameters):,} tensors of at most {LARGEST:,} elements",
            "each set contains its values twice; the two halves are compared bit by bit after the timed steps",
        ),
    )


def _adamw(lists: Lists) -> None:
    torch._foreach_add_(lists.steps, 1)
    torch._fused_adamw_(
        lists.parameters,
        lists.gradients,
        lists.moments[0],
        lists.moments[1],
        [],
        lists.steps,
        lr=LEARNING_RATE,
        beta1=BETA_1,
        beta2=BETA_2,
        weight_decay=DECAY,
        eps=EPSILON,
        amsgrad=False,
        maximize=False,
    )


def _momentum(lists: Lists) -> None:
    torch._fused_sgd_(
        lists.parameters,
        lists.gradients,
        lists.moments[0],
        weight_decay=0.0,
        momentum=MOMENTUM,
        lr=LEARNING_RATE,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def states_of(parameters: int, kind: str, stand: Stand) -> list[State]:
    half = parameters // 2
    sizes = [size for size in (half, half, parameters % 2) if size]
    kinds = 4 if kind == "adamw" else 3
    pieces = [Piece((size,), torch.float32, random=number < 2) for number in range(kinds) for size in sizes]
    states = []
    for tensors in rotated(pieces, stand):
        parts = [tensors[number * len(sizes) : (number + 1) * len(sizes)] for number in range(kinds)]
        for values in parts[:2]:
            values[1].copy_(values[0])
        gradients, moments = parts[1], parts[2:]
        for number, moment in enumerate(moments):
            for tensor, gradient in zip(moment, gradients, strict=True):
                # As after some steps with such gradients: the first moment follows them, the second their squares.
                torch.mul(gradient, gradient if number else 0.5, out=tensor)
        states.append(State(parts[0], gradients, moments))
    return states


def _cut(state: State, stand: Stand) -> Lists:
    def cut(tensors: list[Tensor]) -> list[Tensor]:
        return [part for tensor in tensors for part in tensor.split(LARGEST)]

    parameters = cut(state.parameters)
    steps = torch.full((len(parameters),), float(STEPS_BEFORE), device=stand.device)
    return Lists(parameters, cut(state.gradients), [cut(moment) for moment in state.moments], list(steps.unbind()))


def differences(state: State) -> list[Tensor]:
    """Return the bits in which the two halves differ, of parameters and moments: all zero."""
    return [torch.bitwise_xor(kind[0].view(torch.int32), kind[1].view(torch.int32)) for kind in state.all_kinds()]


def _compare(state: State, lists: Lists, kind: str, stand: Stand) -> Compared:
    """Makes one step more, and compares it with the formula in float64; and the halves with each other."""
    positions = [_spread(len(tensor), stand).to(stand.device) for tensor in state.parameters]
    before = _sampled([*state.all_kinds(), state.gradients], positions)
    steps = float(lists.steps[0]) + 1
    (_adamw if kind == "adamw" else _momentum)(lists)
    wanted = _adamw_formula(before, steps) if kind == "adamw" else _momentum_formula(before)
    after = _sampled(state.all_kinds(), positions)
    error = max(relative_error(made, right) for made, right in zip(after, wanted, strict=True))
    if any(bool(bits.any()) for bits in differences(state)):
        error = math.inf
    compared, of = after[0].numel(), sum(tensor.numel() for tensor in state.parameters)
    elements = f"{say_compared(compared, of)} parameters with float64, one half with the other"
    return Compared(error, bound(ROUNDINGS, result="fp32", sums="fp32"), elements)


def _spread(length: int, stand: Stand) -> Tensor:
    """Positions in rising order, one somewhere in each of this many equal parts: a shuffle of 10^9 would take a minute."""
    count = min(length, SAMPLED // 2)
    ends = torch.arange(count + 1, dtype=torch.int64) * length // count
    chance = torch.rand(count, generator=torch.Generator().manual_seed(stand.seed), dtype=torch.float64)
    return ends[:-1] + (chance * (ends[1:] - ends[:-1])).long()


def _sampled(kinds: list[list[Tensor]], positions: list[Tensor]) -> list[Tensor]:
    """Some elements of each kind, in float64."""
    return [torch.cat([one[some].double() for one, some in zip(kind, positions, strict=True)]) for kind in kinds]


def _adamw_formula(before: list[Tensor], steps: float) -> list[Tensor]:
    parameter, first, second, gradient = before
    first = BETA_1 * first + (1 - BETA_1) * gradient
    second = BETA_2 * second + (1 - BETA_2) * gradient.square()
    root = (second / (1 - BETA_2**steps)).sqrt() + EPSILON
    moved = LEARNING_RATE * first / (1 - BETA_1**steps) / root
    return [parameter * (1 - LEARNING_RATE * DECAY) - moved, first, second]


def _momentum_formula(before: list[Tensor]) -> list[Tensor]:
    parameter, moment, gradient = before
    moment = MOMENTUM * moment + gradient
    return [parameter - LEARNING_RATE * moment, moment]


OPTIMIZER = Implementation(check_precision, prepare)
