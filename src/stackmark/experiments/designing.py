"""From what was asked to a design: each arm's spec is frozen here, before the first run.

A probe in the first arm's place turns the request into the spec, and all arms have that spec. An arm that types parameters
of its own is probed in its own place with everything that defines the work held as the first arm has it; only how the work
is done on a device (layout, CUDA graph, length of the run) is chosen anew, and what came out different is said.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pydantic import ValidationError

from stackmark.errors import PlaceError, SpecError, WorkerError
from stackmark.experiments.arms import AskedArm
from stackmark.experiments.design import SHUFFLED, Arm, Design, StoppingRule, sequences_of, whole_blocks
from stackmark.experiments.driver import idle_cpus
from stackmark.experiments.one_machine import beside_the_driver, following, leading
from stackmark.experiments.placing import find_kind, find_place
from stackmark.experiments.run import Resolved, resolve
from stackmark.experiments.typed import extra_of
from stackmark.experiments.verify import folder_in
from stackmark.experiments.watching import Watcher
from stackmark.ledger.rows import Experiment, Kind
from stackmark.ledger.trouble import unreadable_design
from stackmark.places.place import Prepared
from stackmark.spec import Request, Scalar, Spec, explain
from stackmark.verdict.rules import RULES
from stackmark.verdict.sequential import MOST_BLOCKS as MOST_LOOKED_AT
from stackmark.verdict.sequential import planned_looks, stopping_rule
from stackmark.workloads.registry import find

# At s_d 0.4 %, as on one quiet GPU, six blocks decide at 1 %.
BLOCKS = 6
# Until decided: as many blocks as 90 % power takes at s_d 1 % and a margin of 1 % (13), and half as many again.
MOST_BLOCKS = 20
MARGIN = 0.01


@dataclass(frozen=True)
class Asked:
    """What a person asked of an experiment."""

    request: Request
    arms: Sequence[AskedArm]
    kind: Kind = "compare"
    blocks: int | None = None
    margin: float = MARGIN
    until_decided: bool = False
    pause_s: float = 0.0
    most_repeats: int = 2
    seed: int | None = None
    primers: bool = True
    command: str = ""


def make_design(asked: Asked, watcher: Watcher) -> tuple[Design, list[Resolved]]:
    """Probes what must be probed. The seed decides the order; without one it is drawn, and stored."""
    check_asked(asked)
    blocks, rule = _blocks(asked, watcher)
    prepare_places(asked.arms)
    placed, resolved = _resolve(asked, beside_the_driver(asked.arms, watcher), watcher)
    arms = [
        Arm(label=arm.label, place=arm.place, place_options=arm.place_options, typed=arm.typed, spec=found.spec)
        for arm, found in zip(placed, resolved, strict=True)
    ]
    design = Design(
        arms=arms,
        blocks=blocks,
        seed=secrets.randbelow(2**31) if asked.seed is None else asked.seed,
        margin=asked.margin,
        most_repeats=asked.most_repeats,
        pause_s=asked.pause_s,
        primers=asked.primers,
        rule=rule,
        ordering=SHUFFLED,
        rules=RULES,
        repeats_disturbed=True,
        # Where a pod is compared with a pod, on whatever node, this machine's load says nothing.
        idle_cpus=None if all(find_kind(arm.place).leads for arm in placed) else idle_cpus(),
    )
    return design, resolved


def check_asked(asked: Asked) -> None:
    """What can be refused without a worker."""
    check_margin(asked.margin)
    if asked.until_decided and asked.blocks and asked.blocks > MOST_LOOKED_AT:
        raise SpecError(
            f"--until-decided ends after at most {MOST_LOOKED_AT} blocks, not {asked.blocks}",
            hint=f"give --blocks {MOST_LOOKED_AT} or fewer, or a wider --margin",
        )


def check_margin(margin: float) -> None:
    if not 0 < margin < 0.5:
        raise SpecError(
            f"margin must be between 0 and 50 %, got {100 * margin:g} %",
            hint="1 % is usual on a quiet GPU; `stackmark noise` tells what this machine can decide",
        )


def stored_design(experiment: Experiment) -> Design | None:
    """The design of an experiment with arms; None where it has one arm and no order to keep."""
    if experiment.design is None:
        return None
    try:
        return Design.model_validate(experiment.design)
    except ValidationError as error:
        raise unreadable_design(experiment.id, explain(error)) from error


def refuse_sweep(experiment: Experiment) -> None:
    """A sweep has devices and no arms."""
    if experiment.kind == "sweep":
        raise SpecError(
            f"{experiment.id} is a sweep of a cluster: it has devices and no arms",
            hint=f"see what it showed, or go on with it: stackmark cluster sweep --resume {experiment.id}",
        )


def refuse_fault(experiment: Experiment) -> None:
    """A run during which its cluster was hurt is no measurement of an arm: nothing is decided by it."""
    if experiment.kind == "fault":
        raise SpecError(
            f"{experiment.id} is a fault, and has no arms to compare", hint=f"see it: stackmark show {experiment.id}"
        )


def prepare_places(arms: Sequence[AskedArm] | Sequence[Arm]) -> None:
    """A place that is not there is found before the first run, and not after the minutes of the other arms."""
    seen: list[object] = []
    for arm in arms:
        if (arm.place, arm.place_options) in seen:
            continue
        seen.append((arm.place, arm.place_options))
        with naming(arm.label):
            place = find_place(arm.place, arm.place_options)
            if isinstance(place, Prepared):
                place.prepare()


@contextmanager
def naming(label: str) -> Iterator[None]:
    """Says in which arm something went wrong."""
    try:
        yield
    except (SpecError, WorkerError, PlaceError) as error:
        kind = next(kind for kind in (SpecError, WorkerError, PlaceError) if isinstance(error, kind))
        raise kind(f"the arm {label!r}: {error.message}", hint=error.hint, command=error.command) from error


def _blocks(asked: Asked, watcher: Watcher) -> tuple[int, StoppingRule | None]:
    arms = len(asked.arms)
    wanted = asked.blocks or (MOST_BLOCKS if asked.until_decided else BLOCKS)
    blocks, rule = whole_blocks(arms, wanted), None
    if asked.until_decided:
        rule = _rule(arms, blocks)
        blocks = rule.looks[-1]
    if asked.blocks and blocks != wanted:
        size = sequences_of(arms)
        why = f"the order of {arms} arms is balanced in multiples of {size} blocks"
        if rule and blocks == rule.looks[0]:
            why = "--until-decided looks for the first time then"
        watcher.notice(f"--blocks {wanted} is made {blocks}: {why}")
    return blocks, rule


def _rule(arms: int, blocks: int) -> StoppingRule:
    """All pairs of arms stop together, so they share what may be spent."""
    size = sequences_of(arms)
    looks = planned_looks(min(blocks, MOST_LOOKED_AT // size * size), size)
    levels = stopping_rule(looks, comparisons=max(1, arms * (arms - 1) // 2))
    return StoppingRule(
        kind=levels.kind,
        alpha=levels.alpha,
        looks=list(levels.looks),
        levels=list(levels.one_sided),
        levels_95=list(levels.two_sided),
    )


def _resolve(asked: Asked, arms: Sequence[AskedArm], watcher: Watcher) -> tuple[list[AskedArm], list[Resolved]]:
    """The arms where they will run, and what each of them means there. The leading arm is asked first."""
    family, _ = find(asked.request.workload)
    base = asked.request.model_copy(update={"params": {**family.compared_with, **asked.request.params}})
    lead = leading(arms)
    first = arms[lead]
    request = base.model_copy(update={"params": {**base.params, **first.typed}})
    with naming(first.label):
        resolved = resolve(request, find_place(first.place, first.place_options), watcher)
    placed = following(arms, lead, resolved)
    held = held_by(base, resolved.spec, first.typed)
    found = []
    for number, arm in enumerate(placed):
        if number == lead or (not arm.typed and not first.typed):
            found.append(replace(resolved, spec=_in_own_folder(resolved.spec, base, arm)))
            continue
        own = base.model_copy(update={"params": {**base.params, **held, **arm.typed}})
        with naming(arm.label):
            found.append(resolve(own, find_place(arm.place, arm.place_options), watcher))
    return placed, found


def _in_own_folder(spec: Spec, request: Request, arm: AskedArm) -> Spec:
    """A user's program runs where the driver stands, in every arm that has that folder, whichever arm was probed."""
    if "cwd" not in spec.params or request.typed().get("cwd"):
        return spec
    cwd = folder_in(find_place(arm.place, arm.place_options))
    return spec.model_copy(update={"params": {**spec.params, "cwd": cwd}})


def held_by(request: Request, spec: Spec, typed: dict[str, Scalar]) -> dict[str, Scalar]:
    """What the first arm's spec decides for the others: the work itself, without what only that arm typed."""
    fields = find(request.workload)[0].params.model_fields
    return {
        name: value
        for name, value in spec.params.items()
        if name in fields
        and name not in typed
        and (name in request.typed() or not extra_of(fields[name]).get("follows"))
    }


def unasked_differences(arms: Sequence[Arm]) -> list[str]:
    """Parameters in which arms differ though nobody typed them in an arm: consequences of what was typed."""
    typed = {name for arm in arms for name in arm.typed}
    names = sorted({name for arm in arms for name in arm.spec.params} - typed)
    found = []
    for name in names:
        values = [arm.spec.params.get(name) for arm in arms]
        if any(value != values[0] for value in values):
            found.append(
                f"{name}: {', '.join(f'{value} ({arm.label})' for arm, value in zip(arms, values, strict=True))}"
            )
    return found
