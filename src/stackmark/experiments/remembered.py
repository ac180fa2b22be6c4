"""Use a probe's earlier choices again, so that the same command measures the same thing.

A choice depends on the moment: on free memory, on the version of a library. So what was chosen for a workload on this machine,
this chip and this kind of place is taken from the newest run that was asked for in the same words, and only what was not typed:
the ledger holds it already, in the request and the spec of an experiment. The device is not remembered, since a GPU may have been
added or taken out: on another chip everything is chosen again.
"""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from stackmark.errors import SpecError, WorkerError
from stackmark.experiments.driver import machine_name
from stackmark.experiments.judging import chip_in
from stackmark.experiments.probing import Resolved, resolve
from stackmark.experiments.recorder import Watcher
from stackmark.experiments.typed import extra_of
from stackmark.ledger.rows import Experiment, RunFilter, RunRow
from stackmark.ledger.store import Ledger
from stackmark.places.place import Place
from stackmark.spec import AUTO, Request, Scalar, Spec
from stackmark.units import say_moment
from stackmark.workloads.registry import find

# Newest runs of a workload that are looked through for one that was asked for in the same words.
LOOKED_AT = 100
# Named in the sentence that says what is used again; the others stand in the spec.
NAMED = ("batch", "precision", "tune")
FORGET = "--choose-again forgets"
# Kinds of failures that no setting causes: the image or the host lacks something.
OF_THE_STACK = ("missing_package", "old_python")


@dataclass(frozen=True)
class Chosen:
    """An earlier probe's choices, with reasons and date."""

    values: Mapping[str, Scalar]
    reasons: Mapping[str, str]
    chip: str | None
    unix_s: float


def resolve_as_before(
    request: Request, place: Place, ledger: Ledger, watcher: Watcher
) -> tuple[Resolved, float | None]:
    """Ask a probe, with what was chosen before as if it had been typed; also return when that was, None for a new choice."""
    before = find_chosen(request, place, ledger)
    if before is None:
        return resolve(request, place, watcher), None
    day = say_moment(before.unix_s, "%Y-%m-%d")
    pinned = request.model_copy(update={"params": {**request.params, **before.values}})
    try:
        resolved = resolve(pinned, place, watcher)
    except (SpecError, WorkerError) as error:
        if error.kind not in OF_THE_STACK:
            said = f"settings are as on {day}; --choose-again makes a new choice"
            error.hint = f"{error.hint}\n{said}" if error.hint else said
        raise
    if chip_in(resolved.facts) != before.chip:
        return resolve(request, place, watcher), None
    named = ", ".join(f"{name} {before.values[name]}" for name in NAMED if name in before.values)
    watcher.notice(f"{named or 'settings'}, as on {day}; {FORGET}")
    reasons = {**before.reasons, **resolved.choices}
    return replace(resolved, choices=reasons), before.unix_s


def find_chosen(request: Request, place: Place, ledger: Ledger) -> Chosen | None:
    """Find what was chosen for the same request on this machine, in this kind of place, in the newest run that gave a number."""
    wanted = RunFilter(workload=request.workload, place=place.name, status="done")
    here = machine_name()
    seen: set[str] = set()
    for row in ledger.runs(wanted, limit=LOOKED_AT):
        if row.machine_id != here or row.role != "measured" or row.experiment_id in seen:
            continue
        seen.add(row.experiment_id)
        experiment = ledger.experiment(row.experiment_id)
        if experiment.kind == "run" and _asks_the_same(experiment, request):
            return _chosen(ledger, experiment, row)
    return None


def typed_in(experiment: Experiment) -> dict[str, object]:
    """Return the parameters of a stored request that a person typed; none where the request is not stored."""
    params = experiment.request.get("params")
    return (
        {name: value for name, value in params.items() if value not in (AUTO, None)} if isinstance(params, dict) else {}
    )


def _asks_the_same(experiment: Experiment, request: Request) -> bool:
    return experiment.request.get("ranks", 1) == request.ranks and typed_in(experiment) == request.typed()


def _chosen(ledger: Ledger, experiment: Experiment, row: RunRow) -> Chosen | None:
    """Return what the probe of an experiment chose, of what a definition leaves to it: a ledger may hold anything."""
    told = experiment.request.get("choices")
    if not isinstance(told, dict):
        return None
    fields, params = find(row.workload)[0].params.model_fields, ledger.run(row.id).spec.params
    names = [
        name
        for name in told
        if name != "device" and name in params and name in fields and extra_of(fields[name]).get("auto")
    ]
    if not names:
        return None
    return Chosen(
        {name: params[name] for name in names},
        {name: str(told[name]) for name in names},
        row.chip,
        chosen_unix_s(experiment),
    )


def chosen_unix_s(experiment: Experiment) -> float:
    """Return when the settings of an experiment were chosen: when it began, or before."""
    before = experiment.request.get("chosen_unix_s")
    return float(before) if isinstance(before, int | float) else experiment.created_unix_s


def say_choices(experiment: Experiment) -> dict[str, str]:
    """Return why each setting was chosen, with the day where it was chosen before."""
    told = experiment.request.get("choices")
    reasons = {name: str(reason) for name, reason in told.items()} if isinstance(told, dict) else {}
    if "chosen_unix_s" not in experiment.request:
        return reasons
    day = say_moment(chosen_unix_s(experiment), "%Y-%m-%d")
    return {name: reason if name == "device" else f"as on {day}: {reason}" for name, reason in reasons.items()}


def pinned_command(command: str, experiment: Experiment, spec: Spec, choices: Iterable[str]) -> str:
    """Return the command line of a `run` with every choice typed out, so that it measures the same on another machine too.

    One that measures several things is left as it is: what was chosen for one is not for the others.
    """
    words = [word for word in shlex.split(command) if word != "--choose-again"]
    texts = [spec.workload, *(text for text in typed_in(experiment).values() if isinstance(text, str))]
    if not all(any(word == text or word.endswith(f"={text}") for word in words) for text in texts):
        return command
    pins = [_pin(name, spec.params.get(name)) for name in choices]
    return shlex.join([*words, *(word for pin in pins if pin and pin[0] not in words for word in pin)])


def _pin(name: str, value: Scalar) -> list[str]:
    """Return a parameter as it is typed; nothing where it is empty."""
    option = name.replace("_", "-")
    if value is None or value == "":
        return []
    if isinstance(value, bool):
        return [f"--{option}" if value else f"--no-{option}"]
    return [f"--{option}", str(value).removesuffix(".0")]
