"""The kind `scale`: one workload in one place at several rank counts, which are the arms of a design in blocks.

The runs are those of a comparison (compare.py carries them out, `resume` goes on with them); what is asked of them differs:
scaling.py has the verdict. Each rank count is probed, since a group may need other options than one process (how the ranks
exchange gradients, whether a step can be recorded once). What defines the work is held as one rank has it: weak scaling holds
the batch of each rank, strong scaling that of all together, so that a rank of N has an N-th of it.
How the work is done is held as a group can have it.

One rank takes each device of the largest group in turn, one per block: R_1 is then the average device and not the best. Where a
scheduler chooses the device, it is left to it, and the verdict says so.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from stackmark.errors import SpecError
from stackmark.experiments.arms import ArmRequest
from stackmark.experiments.caches import remove_forgotten
from stackmark.experiments.compare import BLOCKS, PROBE_S, held_by, naming, prepare_places
from stackmark.experiments.design import MOST_ARMS, SHUFFLED, Arm, Design, check_margin, sequences_of, whole_blocks
from stackmark.experiments.judging import Facts
from stackmark.experiments.probing import Resolved, resolve
from stackmark.experiments.recorder import Watcher, begin, new_experiment
from stackmark.experiments.surroundings import KEY as SURROUNDINGS
from stackmark.experiments.surroundings import look_around
from stackmark.experiments.typed import extra_of
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger
from stackmark.places.registry import find_kind, find_place
from stackmark.spec import AUTO, Request, Scalar, Spec
from stackmark.units import counted
from stackmark.verdict.rules import RULES
from stackmark.verdict.scaling import MARGIN
from stackmark.workloads.registry import check_typed, find, with_ranks

# Parameters of a group alone, how its ranks exchange what they learn: one rank exchanges nothing, so it is not asked for them,
# and what it has of them does not hold for many.
OF_GROUPS = frozenset({"strategy", "server_device", "share_gpus"})
# Up to here the default number of blocks grows so that each device comes equally often; four times the usual six is still
# what somebody waits for.
MOST_BALANCED = 24


@dataclass(frozen=True)
class ScaleRequest:
    """A request for a measurement of scaling. `request` is that of one rank."""

    request: Request
    place: ArmRequest
    ranks: Sequence[int]
    strong: bool = False
    blocks: int | None = None
    margin: float = MARGIN
    pause_s: float = 0.0
    most_repeats: int = 2
    seed: int | None = None
    primers: bool = True
    command: str = ""


def label_of(ranks: int) -> str:
    return counted(ranks, "rank")


def check_scale(asked: ScaleRequest) -> None:
    """Refuse what can be refused without a worker."""
    check_margin(asked.margin)
    check_typed(asked.request)
    _check_ranks(asked)
    if asked.strong:
        total = asked.request.params.get(_batch_name(asked.request.workload))
        if isinstance(total, int):
            for ranks in asked.ranks:
                share_of(total, ranks, asked.ranks)


def _check_ranks(asked: ScaleRequest) -> None:
    workload, ranks = asked.request.workload, sorted(asked.ranks)
    known = "e.g. --ranks 1,2,4"
    if twice := next((one for one in ranks if ranks.count(one) > 1), None):
        raise SpecError(f"--ranks names {twice} twice", hint=known)
    if len(ranks) < 2:
        raise SpecError(f"scaling needs several rank counts, got --ranks {','.join(map(str, ranks))}", hint=known)
    if ranks[0] != 1:
        raise SpecError(f"--ranks {','.join(map(str, ranks))} lacks 1: efficiency is against one rank", hint=known)
    if len(ranks) > MOST_ARMS:
        raise SpecError(f"--ranks takes at most {MOST_ARMS} rank counts, got {len(ranks)}", hint="e.g. --ranks 1,2,4,8")
    allowed = find(workload)[1].ranks
    if allowed.most < 2:
        able = with_ranks(or_one=True)
        raise SpecError(
            f"{workload} runs as one rank, so there is nothing to scale",
            hint=f"these take several ranks: {able}" if able else "no workload that is installed takes several ranks",
        )
    if allowed.least > 1:
        raise SpecError(
            f"{workload} needs several ranks, so it has no rate of one rank to compare with",
            hint=f"its bandwidth at several rank counts: stackmark run {workload} --ranks 2,4",
        )
    if ranks[-1] > allowed.most:
        raise SpecError(f"{workload} takes at most {counted(allowed.most, 'rank')}, got {ranks[-1]}")


def _batch_name(workload: str) -> str:
    family, definition = find(workload)
    name = definition.samples_per_step or "batch"
    if name not in family.params.model_fields:
        raise SpecError(f"{workload} has no batch to divide among ranks", hint="leave out --strong")
    return name


def share_of(total: int, ranks: int, counts: Sequence[int]) -> int:
    """Return one rank's part of the total batch; `counts` are all rank counts, which must divide it."""
    if total % ranks:
        least = math.lcm(*counts)
        fits = max(total // least, 1) * least
        raise SpecError(
            f"a total batch of {total} cannot be divided evenly among {ranks} ranks",
            hint=f"with --strong --batch is the total: use one that every rank count divides, e.g. --batch {fits}",
        )
    return total // ranks


def start(asked: ScaleRequest, ledger: Ledger, watcher: Watcher) -> Experiment:
    """Probe each rank count, make the design and store it: from here on `resume` can continue."""
    check_scale(asked)
    remove_forgotten()
    counts = sorted(asked.ranks)
    prepare_places([asked.place])
    around = look_around(watcher.notice, [asked.place.place])
    found = _resolve(asked, counts, watcher)
    rotation = [] if find_kind(asked.place.place).leads else rotation_of(found[0], counts[-1])
    arms = [
        Arm(label=label_of(ranks), place=asked.place.place, place_options=asked.place.place_options, spec=one.spec)
        for ranks, one in zip(counts, found, strict=True)
    ]
    design = Design(
        arms=arms,
        blocks=_blocks(asked, len(counts), len(rotation), watcher),
        seed=secrets.randbelow(2**31) if asked.seed is None else asked.seed,
        margin=asked.margin,
        most_repeats=asked.most_repeats,
        pause_s=asked.pause_s,
        primers=asked.primers,
        ordering=SHUFFLED,
        rules=RULES,
        repeats_disturbed=True,
        idle_cpus=around.idle_cpus,
        scaling="strong" if asked.strong else "weak",
        rotation=rotation,
    )
    experiment = new_experiment(
        kind="scale",
        command=asked.command,
        request={
            **asked.request.model_dump(mode="json"),
            SURROUNDINGS: around.stored(),
            PROBE_S: max(one.took_s for one in found),
        },
        design=design.model_dump(mode="json"),
    )
    return begin(ledger, experiment, [(arm.spec, arm.place, arm.place_options) for arm in design.arms])


def _blocks(asked: ScaleRequest, arms: int, devices: int, watcher: Watcher) -> int:
    """Return how many blocks: as typed, or enough for the one rank to take each of its devices equally often."""
    if asked.blocks is None:
        return blocks_for(arms, devices)
    blocks = whole_blocks(arms, asked.blocks)
    if blocks != asked.blocks:
        why = f"the order of {arms} rank counts is balanced in multiples of {sequences_of(arms)} blocks"
        watcher.notice(f"--blocks {asked.blocks} becomes {blocks}: {why}")
    if devices and blocks % devices:
        watcher.notice(f"with {blocks} blocks the one rank does not take each of the {devices} GPUs equally often")
    return blocks


def blocks_for(arms: int, devices: int) -> int:
    """Return the default: the least that is whole for the order and for the devices, as long as that is not many."""
    together = math.lcm(sequences_of(arms), max(devices, 1))
    if together <= MOST_BALANCED:
        return -(-BLOCKS // together) * together
    return whole_blocks(arms, max(BLOCKS, devices))


def _resolve(asked: ScaleRequest, counts: Sequence[int], watcher: Watcher) -> list[Resolved]:
    """What the request means for one rank, and then for each group with the same work."""
    place = find_place(asked.place.place, asked.place.place_options)
    base = asked.request
    alone = {name: value for name, value in base.params.items() if name not in OF_GROUPS}
    with naming(label_of(1)):
        one = resolve(base.model_copy(update={"params": alone, "ranks": 1}), place, watcher)
    held = {name: value for name, value in held_by(base, one.spec, {}).items() if name not in OF_GROUPS}
    found = [one]
    for ranks in counts[1:]:
        params: dict[str, Scalar] = {**base.params, **held}
        if asked.strong:
            name = _batch_name(base.workload)
            total = one.spec.params[name]
            assert isinstance(total, int)
            params[name] = share_of(total, ranks, counts)
        with naming(label_of(ranks)):
            found.append(resolve(base.model_copy(update={"params": params, "ranks": ranks}), place, watcher))
    if settings := settings_of_groups(base, one.spec, found[1].spec):
        said = ", ".join(f"{name} {str(value).lower()}" for name, value in settings.items())
        watcher.notice(f"the one rank gets the settings that a group must have: {said}")
        with naming(label_of(1)):
            found[0] = resolve(
                base.model_copy(update={"params": {**alone, **held, **settings}, "ranks": 1}), place, watcher
            )
    return found


def settings_of_groups(base: Request, one: Spec, group: Spec) -> dict[str, Scalar]:
    """Return how a group works where one rank would choose otherwise, and nobody typed it.

    A network that one rank compiles and a group cannot has an efficiency that is not about scaling.
    """
    fields = find(base.workload)[0].params.model_fields
    return {
        name: value
        for name, value in group.params.items()
        if name in fields
        and extra_of(fields[name]).get("follows")
        and name not in base.typed()
        and name not in OF_GROUPS
        and value != one.params.get(name)
    }


def rotation_of(one: Resolved, most_ranks: int) -> list[str]:
    """Return the devices that one rank takes in turn: those of the largest group, as far as its place has them."""
    if not str(one.spec.params.get("device", AUTO)).startswith("cuda"):
        return []
    devices = min(most_ranks, gpus_in(one.facts))
    return [f"cuda:{number}" for number in range(devices)] if devices > 1 else []


def gpus_in(facts: Facts) -> int:
    """Return how many GPUs a worker sees."""
    count = facts.get("gpu", {}).get("count")
    return count if isinstance(count, int) and count > 0 else 1
