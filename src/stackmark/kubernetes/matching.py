"""Which nodes a pod may go to, by its own word and the node's: selectors, affinity, taints. As the scheduler decides it."""

from collections.abc import Collection, Iterable

from stackmark.kubernetes import podjson as at
from stackmark.kubernetes.client import Json


def matches(node: Json, pod: Json) -> bool:
    """Whether the pod's node selector and its required affinity allow the node."""
    labels = at.metadata(node).get("labels") or {}
    if any(labels.get(key) != value for key, value in (at.spec(pod).get("nodeSelector") or {}).items()):
        return False
    terms = _terms(pod)
    return not terms or any(_term_matches(term, node) for term in terms)


def wanted(pod: Json) -> str:
    """What a node must be like, in words; empty where any will do."""
    said = [f"the label {key}={value}" for key, value in (at.spec(pod).get("nodeSelector") or {}).items()]
    for term in _terms(pod)[:1]:
        said += [f"the name {' or '.join(rule.get('values') or ())}" for rule in term.get("matchFields") or ()]
        for rule in term.get("matchExpressions") or ():
            values = rule.get("values") or ()
            said.append(
                f"the label {rule.get('key')}" + (f" {rule.get('operator')} {', '.join(values)}" if values else "")
            )
    return " and ".join(said)


def untolerated(node: Json, pod: Json) -> list[Json]:
    """The taints of the node that keep the pod away."""
    return keeping_away(at.spec(node).get("taints") or (), at.spec(pod).get("tolerations") or ())


def keeping_away(taints: Iterable[Json], tolerations: Collection[Json]) -> list[Json]:
    """Those of the taints that nothing tolerates. PreferNoSchedule keeps nobody away."""
    return [
        taint
        for taint in taints
        if taint.get("effect") in ("NoSchedule", "NoExecute") and not any(_tolerates(one, taint) for one in tolerations)
    ]


def say_taint(taint: Json) -> str:
    """As --toleration takes it: `nodetype=gpu:NoSchedule`."""
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"


def _terms(pod: Json) -> list[Json]:
    affinity = (at.spec(pod).get("affinity") or {}).get("nodeAffinity") or {}
    return (affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}).get("nodeSelectorTerms") or []


def _term_matches(term: Json, node: Json) -> bool:
    labels = at.metadata(node).get("labels") or {}
    by_label = all(_rule_holds(rule, labels.get(rule.get("key"))) for rule in term.get("matchExpressions") or ())
    fields = {"metadata.name": at.name(node)}
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
