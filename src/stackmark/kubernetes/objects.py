"""Read the JSON of pods, nodes and Jobs: fields, quantities, and which nodes a pod may run on.

Whatever is missing from an object, or is not what it should be, is simply not there. Selectors, affinity and taints are read as
the scheduler reads them.
"""

import re
from collections.abc import Collection, Iterable
from datetime import datetime

from stackmark.kubernetes.client import Json
from stackmark.kubernetes.names import CONTAINER
from stackmark.units import say_size

# A message of a runtime repeats itself; this holds what names the image, the volume, the limit.
SHOWN_CHARACTERS = 300
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"
_QUANTITY = re.compile(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)(n|u|m|k|[KMGTPE]i?)?")
_FACTORS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3} | {
    f"{letter}{binary}": float(1024**power if binary else 1000**power)
    for power, letter in enumerate("KMGTPE", start=1)
    for binary in ("", "i")
}
_IN_BYTES = ("memory", "ephemeral-storage", "storage")
# Of these a node has always some; others come from a device plugin, which may be away for a moment.
BASIC = ("cpu", "memory", "ephemeral-storage", "pods")


def metadata(thing: Json) -> Json:
    return thing.get("metadata") or {}


def spec(thing: Json) -> Json:
    return thing.get("spec") or {}


def status(thing: Json) -> Json:
    return thing.get("status") or {}


def name(thing: Json) -> str:
    return str(metadata(thing).get("name") or "")


def namespace(thing: Json) -> str:
    return str(metadata(thing).get("namespace") or "default")


def has_ended(pod: Json) -> bool:
    """Tell whether a pod has given back all that it held."""
    return status(pod).get("phase") in ("Succeeded", "Failed")


def container_status(pod: Json, container: str = CONTAINER) -> Json:
    """Return the container's status; where there is only one under another name, that one's."""
    known: list[Json] = status(pod).get("containerStatuses") or []
    found = next((one for one in known if one.get("name") == container), None)
    return found or (known[0] if len(known) == 1 else {})


def state(pod: Json, kind: str, container: str = CONTAINER) -> Json:
    """Return `waiting`, `running` or `terminated`; empty where the container is in another state."""
    return (container_status(pod, container).get("state") or {}).get(kind) or {}


def container_spec(pod: Json, container: str = CONTAINER) -> Json:
    known: list[Json] = spec(pod).get("containers") or []
    found = next((one for one in known if one.get("name") == container), None)
    return found or (known[0] if known else {})


def condition(pod: Json, kind: str) -> Json:
    return next((one for one in status(pod).get("conditions") or () if one.get("type") == kind), {})


def unix_s(text: object) -> float | None:
    """Parse a time in the API's format."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def words(text: object) -> str:
    """Return a message on one line, shortened."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", " ".join(str(text or "").split())).strip()
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


def describe(pod: Json) -> str:
    """Return the command that shows the same, also after the pod is removed: its events stay for an hour."""
    return f"kubectl -n {namespace(pod)} get events --field-selector involvedObject.name={name(pod)}"


# Quantities: `500m`, `8Gi`, `2`


def quantity(text: object) -> float:
    """Parse a quantity; 0 where it is invalid."""
    match = _QUANTITY.fullmatch(str(text).strip())
    try:
        return float(match[1]) * _FACTORS.get(match[2] or "", 1.0) if match else 0.0
    except ValueError:
        return 0.0


def requests(pod: Json) -> dict[str, float]:
    """Return what the scheduler counts: the containers together, or the most that an init container requests."""
    held: dict[str, float] = {}
    _add(held, spec(pod).get("containers") or ())
    restartable: dict[str, float] = {}
    most: dict[str, float] = {}
    for one in spec(pod).get("initContainers") or ():
        # Restartable ones run together with all that come after them.
        now = dict(restartable)
        _add(now, [one])
        most = {name: max(most.get(name, 0.0), now.get(name, 0.0)) for name in {*most, *now}}
        if one.get("restartPolicy") == "Always":
            restartable = now
            _add(held, [one])
    held = {name: max(held.get(name, 0.0), most.get(name, 0.0)) for name in {**held, **most}}
    for name, asked in (spec(pod).get("overhead") or {}).items():
        held[name] = held.get(name, 0.0) + quantity(asked)
    return {name: asked for name, asked in held.items() if asked > 0}


def say_amount(resource: str, amount: float, free: bool = False) -> str:
    """Format like `2 nvidia.com/gpu`, `62.7 GiB of memory`, `1.5 CPUs`."""
    word = "free " if free else ""
    if resource == "cpu":
        return f"{amount:g} {word}CPU{'' if amount == 1 else 's'}"
    if resource in _IN_BYTES:
        return f"{say_size(amount)} of {word}{resource.replace('-', ' ')}"
    return f"{amount:g} {word}{resource}"


def _asked(container: Json) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(value) for name, value in asked.items()}


def _add(held: dict[str, float], containers: Iterable[Json]) -> None:
    for one in containers:
        for name, asked in _asked(one).items():
            held[name] = held.get(name, 0.0) + asked


# Which nodes a pod may go to


def matches(node: Json, pod: Json) -> bool:
    """Return whether the pod's node selector and its required affinity allow the node."""
    labels = metadata(node).get("labels") or {}
    if any(labels.get(key) != value for key, value in (spec(pod).get("nodeSelector") or {}).items()):
        return False
    terms = _terms(pod)
    return not terms or any(_term_matches(term, node) for term in terms)


def say_requirements(pod: Json) -> str:
    """Say what a node must be like; empty where any will do."""
    said = [f"the label {key}={value}" for key, value in (spec(pod).get("nodeSelector") or {}).items()]
    for term in _terms(pod)[:1]:
        said += [f"the name {' or '.join(rule.get('values') or ())}" for rule in term.get("matchFields") or ()]
        for rule in term.get("matchExpressions") or ():
            values = rule.get("values") or ()
            said.append(
                f"the label {rule.get('key')}" + (f" {rule.get('operator')} {', '.join(values)}" if values else "")
            )
    return " and ".join(said)


def untolerated(node: Json, pod: Json) -> list[Json]:
    """Return the taints of the node that repel the pod."""
    return keeping_away(spec(node).get("taints") or (), spec(pod).get("tolerations") or ())


def keeping_away(taints: Iterable[Json], tolerations: Collection[Json]) -> list[Json]:
    """Return the taints that are not tolerated. PreferNoSchedule repels no pod."""
    return [
        taint
        for taint in taints
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(_tolerates(one, taint) for one in tolerations)
    ]


def say_taint(taint: Json) -> str:
    """Format as --toleration takes it: `nodetype=gpu:NoSchedule`."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def _terms(pod: Json) -> list[Json]:
    affinity = (spec(pod).get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []


def _term_matches(term: Json, node: Json) -> bool:
    labels = metadata(node).get("labels") or {}
    by_label = all(_rule_holds(rule, labels.get(rule.get("key"))) for rule in term.get("matchExpressions") or ())
    fields = {"metadata.name": name(node)}
    by_field = all(_rule_holds(rule, fields.get(str(rule.get("key")))) for rule in term.get("matchFields") or ())
    return bool(term.get("matchExpressions") or term.get("matchFields")) and by_label and by_field


def _rule_holds(rule: Json, value: str | None) -> bool:
    values = rule.get("values") or []
    match rule.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as how:
            try:
                number, bound = int(str(value)), int(values[0])
            except (ValueError, IndexError):
                return False
            return number > bound if how == "Gt" else number < bound
    return True


def _tolerates(toleration: Json, taint: Json) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    if toleration["key"] != taint.get("key"):
        return False
    return toleration.get("operator") == "Exists" or (toleration.get("value") or "") == (taint.get("value") or "")
