"""`cluster sweep`: make the same run on every GPU of every node, and find slow devices.

The request is resolved once, by a probe in the first slot, and the spec is frozen for all. Every run is a row of the ledger, in
an experiment of the kind `sweep` whose design is the plan (plan.py). A row has its `slot`. In a pass over all slots it has a
`pass_number`: 0 in the first, and in the second which run of each device it is, from 1. A run that repeats a suspected device, or
the good one with it, has a block and the slot that is the `suspect`, so that suspicions are distinguished. So a sweep that
was killed goes on with what is missing.

    sweep ─┬─▶ plan (what there is to visit, and how)
           ├─▶ runs (which comes next, its row) ─▶ pods (one pod, all of them, which device each holds)
           └─▶ rows (what the ledger shows)
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from stackmark.errors import ClusterError, PlaceError, SpecError
from stackmark.experiments.design import check_margin
from stackmark.experiments.probing import resolve
from stackmark.experiments.recorder import Recorder, Watcher, begin, new_experiment
from stackmark.experiments.sweep.plan import (
    CONFIRM_BLOCKS,
    MARGIN,
    MORE_RUNS,
    MOST_CONFIRM_BLOCKS,
    Slot,
    SweepPlan,
    at_once,
    at_once_sentence,
    find_slots,
    holders_ask,
    is_here,
    limit_of,
    looked_again,
    numbered,
    plan_of,
)
from stackmark.experiments.sweep.pods import HOLD_LIMITS
from stackmark.experiments.sweep.rows import blocks_left, missing_slots, read_swept, second_pass_left
from stackmark.experiments.sweep.runs import Looker, Runs, first_pass, repeat, second_pass
from stackmark.experiments.trust import Part, parts_of
from stackmark.kubernetes.client import ApiError
from stackmark.kubernetes.client import Json as ApiObject
from stackmark.kubernetes.refusals import explained
from stackmark.ledger.rows import Experiment
from stackmark.ledger.store import Ledger
from stackmark.places.pod.options import LONGEST_DEADLINE_S, PodOptions
from stackmark.places.pod.place import PodPlace
from stackmark.places.pod.setup import PodSetup
from stackmark.spec import Request
from stackmark.verdict.swept import Swept
from stackmark.workloads.registry import check_request, check_spec, find


@dataclass(frozen=True)
class SweepRequest:
    """A request for a sweep. `nodes` is a label selector as kubectl takes it."""

    request: Request
    options: PodOptions = field(default_factory=PodOptions)
    nodes: str | None = None
    margin: float = MARGIN
    # None: as many blocks as the spread asks for, and as many runs more as is usual.
    confirm_blocks: int | None = None
    more_runs: int | None = None
    at_once: int | None = None
    one_a_node: bool = False
    command: str = ""


def start(asked: SweepRequest, ledger: Ledger, watcher: Watcher) -> Experiment:
    """Find the slots, probe in the first of them, and store the plan: from here on `resume` can continue."""
    check_margin(asked.margin)
    check_request(asked.request)
    if asked.options.dra:
        raise SpecError("a sweep requests GPUs by number and cannot use --dra", hint="leave out --dra")
    place = PodPlace(asked.options, kind="sweep")
    ready, gpus = place.prepare(), place.gpus_for(asked.request)
    nodes = _nodes(ready, asked.nodes)
    slots = _slots(nodes, ready, gpus, watcher)
    ask = not gpus or holders_ask(nodes, slots, ready.options, HOLD_LIMITS)
    if not ask:
        watcher.notice(
            "the pods fill their nodes, so the pods that hold devices request no CPU or memory (QoS class not Guaranteed)"
        )
    first = next((slot for slot in slots if not slot.trouble), None)
    if first is None:
        raise ClusterError(f"no node can be measured now: {slots[0].node}: {slots[0].trouble}")
    request = _fast(asked.request)
    resolved = resolve(request, PodPlace(asked.options.model_copy(update={"node": first.node}), kind="sweep"), watcher)
    total, per_machine, _ = at_once(slots, asked.at_once, asked.one_a_node)
    plan = SweepPlan(
        spec=resolved.spec,
        choices=resolved.choices,
        place_options=asked.options.model_dump(mode="json", exclude_unset=True),
        gpus=gpus,
        slots=slots,
        margin=asked.margin,
        confirm_blocks=CONFIRM_BLOCKS if asked.confirm_blocks is None else asked.confirm_blocks,
        most_confirm_blocks=MOST_CONFIRM_BLOCKS if asked.confirm_blocks is None else None,
        more_runs=MORE_RUNS if asked.more_runs is None else asked.more_runs,
        more_runs_asked=asked.more_runs is not None,
        at_once=total,
        per_machine=per_machine,
        holders_ask=ask,
    )
    experiment = new_experiment(
        kind="sweep",
        command=asked.command,
        request=request.model_dump(mode="json"),
        design=plan.model_dump(mode="json"),
    )
    return begin(ledger, experiment, [(plan.spec, "pod", plan.place_options)])


def parts_in(plan: SweepPlan) -> list[Part]:
    """Return the parts of a plan that need trust before they run: not typed here and not confirmed."""
    return parts_of([(plan.spec, "pod", plan.place_options)])


def _fast(request: Request) -> Request:
    """As in a comparison: a compiler's choices differ from process to process, and devices are compared by one run each."""
    defaults = find(request.workload)[0].compared_with
    return request.model_copy(update={"params": {**defaults, **request.params}})


def _nodes(ready: PodSetup, selector: str | None = None) -> list[ApiObject]:
    try:
        return ready.cluster.items("/api/v1/nodes", labelSelector=selector)
    except ClusterError as error:
        if selector and isinstance(error, ApiError) and error.status == 400:
            raise SpecError(
                f"--nodes: {selector!r} is not a label selector", hint="write it like pool=gpu,zone in (a, b)"
            ) from error
        raise explained(error, "listing the nodes") from error


def _slots(nodes: Sequence[ApiObject], ready: PodSetup, gpus: int, watcher: Watcher) -> list[Slot]:
    found = find_slots(nodes, ready.options, gpus)
    slots = found.slots
    for sentence in found.notices:
        watcher.notice(sentence)
    if ready.software is not None:
        here = [slot for slot in slots if is_here(slot)]
        if len(here) < len(slots):
            others = len({slot.node for slot in slots}) - len({slot.node for slot in here})
            watcher.notice(
                f"{others} nodes are left out, because the host's own software is only on this machine; use --image"
            )
        slots = numbered(here)
    if not slots:
        raise PlaceError("none of the nodes has this host's software", hint="use --image; `stackmark image` builds one")
    return slots


def carry_out(experiment: Experiment, ledger: Ledger, looker: Looker, *, time_limit_s: float | None = None) -> None:
    """Visit what is missing, then run suspects again. Interruptions pass through: what was finished is stored."""
    with Recorder(ledger, experiment.id).claim():
        _carry_out(experiment, ledger, looker, time_limit_s)


def _carry_out(experiment: Experiment, ledger: Ledger, looker: Looker, time_limit_s: float | None) -> None:
    plan = plan_of(experiment)
    check_spec(plan.spec)
    ledger.notice = looker.notice
    options = PodOptions.model_validate(plan.place_options)
    ready = PodPlace(options, kind="sweep").prepare()
    slots = looked_again(plan.slots, _nodes(ready), ready.options.resource, plan.gpus)
    plan = plan.model_copy(update={"slots": slots})
    looker.notice(at_once_sentence(plan))
    limit_s = limit_of(plan) if time_limit_s is None else min(time_limit_s, LONGEST_DEADLINE_S)
    with Runs(experiment.id, plan, ready, ledger, looker, limit_s) as runs:
        first_pass(runs)
        second_pass(runs)
        repeat(runs)


def is_open(ledger: Ledger, experiment: Experiment) -> bool:
    """Return whether anything is left to run: slots without a number, failed ones, a second pass, and repetitions."""
    plan, rows = plan_of(experiment), ledger.runs_of(experiment.id)
    return bool(missing_slots(plan, rows) or second_pass_left(plan, rows) or blocks_left(plan, rows))


def examine(ledger: Ledger, experiment: Experiment) -> Swept:
    """Compute what a stored sweep shows; nothing is run."""
    return read_swept(ledger, experiment, plan_of(experiment))


__all__ = ["Looker", "SweepRequest", "Swept", "carry_out", "examine", "is_open", "parts_in", "plan_of", "start"]
