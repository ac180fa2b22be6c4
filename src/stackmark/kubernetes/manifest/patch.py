"""`--patch FILE`: merge settings that a cluster needs and no option has into the Job.

Lists of things that have names are merged by name, all others are replaced, and `null` takes a field away. It is done here and
not by the API server since a Job's template cannot be changed once it exists, and so that a printed manifest has it too.

What our measurement stands on cannot be patched away: the labels by which a pod is found and removed, the worker's container, and
that nothing is started twice.
"""

import json
import os

from stackmark.errors import SpecError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.plain_yaml import read_documents

# The lists whose items are merged, and by which of their fields.
MERGE_KEYS = {
    "containers": "name", "initContainers": "name", "env": "name", "volumes": "name", "imagePullSecrets": "name",
    "resourceClaims": "name", "volumeMounts": "mountPath",
}  # fmt: skip
# In an item of such a list: it goes.
PATCH, DELETE = "$patch", "delete"
# What a cluster needs besides our options is a few kilobytes.
LIMIT_BYTES = 128 * 1024
# A Job's deepest field lies at some twenty.
DEEPEST = 100
KINDS = ("CronJob", "Job", "Pod")


def read_patch(path: str) -> Json:
    """Read a file of YAML or JSON with one mapping in it."""
    try:
        with open(os.path.expanduser(path), "rb") as file:
            data = file.read(LIMIT_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise SpecError(f"the patch {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"the patch {path} is not text: {error}") from error
    if len(data) > LIMIT_BYTES:
        raise SpecError(f"the patch {path} is larger than {LIMIT_BYTES} bytes")
    read = _parsed(path, text)
    if not isinstance(read, dict) or not read:
        raise SpecError(f"the patch {path} is not a mapping", hint="write it like: spec: {template: {spec: {…}}}")
    try:
        # Dates and sets of YAML are no JSON, and neither is a key that is not text.
        if json.loads(json.dumps(read, allow_nan=False)) != read:
            raise ValueError("its keys are not all strings")
        if _depth(read) > DEEPEST:
            raise ValueError("it is nested too deeply")
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError(
            f"the patch {path} contains a value that JSON cannot hold: {error}", hint="quote strings"
        ) from error
    return read


def _depth(data: object) -> int:
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return 1 + max(map(_depth, inner), default=0)


def _parsed(path: str, text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if path.endswith(".json"):
            raise SpecError(f"the patch {path} is not JSON: {error}") from error
    found = read_documents(text, f"the patch {path}") or [None]
    if len(found) != 1:
        raise SpecError(f"the patch {path} has {len(found)} documents; only one is supported")
    return found[0]


def patched_for(made: Json, patch: Json) -> Json:
    """Merge the patch into the object. A patch is for a Job unless its `kind` says Pod or CronJob; it is merged into that
    part of whatever is made."""
    meant, kind = str(patch.get("kind", "Job")), str(made["kind"])
    if meant not in KINDS:
        raise SpecError(f"the patch is for a {meant}", hint=f"allowed kinds: {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    if KINDS.index(meant) < KINDS.index(kind):
        if (meant, kind) != ("Job", "Pod"):
            raise SpecError(f"the patch is for a {meant}, but stackmark creates a {kind}")
        # Of a Job's patch a lone pod takes what is about its pod.
        spec = patch.get("spec")
        inner = spec.get("template") if isinstance(spec, dict) else None
        patch, meant = (inner if isinstance(inner, dict) else {}), "Pod"
    plain = {key: value for key, value in patch.items() if key not in ("kind", "apiVersion")}
    path = _way(kind, meant)
    before = _kept(made)
    whole: Json = plain
    for step in reversed(path):
        whole = {step: whole}
    try:
        done = merged(made, whole)
    except TypeError as error:  # a list of mappings where texts belong, or the like
        raise SpecError(f"the patch does not fit a {kind}: {error}") from error
    _still(before, done)
    return done


def merged(original: Json, patch: Json) -> Json:
    """Merge two mappings; neither is changed."""
    result = dict(original)
    for key, value in patch.items():
        if key.startswith("$"):
            raise SpecError(
                f"the patch has {key}: {value!r:.40}; only `{PATCH}: {DELETE}` in an item of a list is supported"
            )
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            before = result.get(key)
            result[key] = merged(before if isinstance(before, dict) else {}, value)
        else:
            result[key] = _by_name(key, result.get(key) or [], value) if key in MERGE_KEYS else value
    return result


def _by_name(key: str, before: list[Json], patch: object) -> list[Json]:
    merge_key = MERGE_KEYS[key]
    result = {one.get(merge_key): one for one in before}
    for one in patch if isinstance(patch, list) else [patch]:
        if not isinstance(one, dict) or not isinstance(one.get(merge_key), str):
            raise SpecError(
                f"the patch has an item of {key} without its {merge_key}, by which it is merged: {one!r:.80}"
            )
        name = one[merge_key]
        if one.get(PATCH) == DELETE:
            result.pop(name, None)
            continue
        old = result.get(name, {})
        # Of a volume all but its name is what kind it is: another kind takes the place of the one before.
        other_kind = key == "volumes" and not old.keys() & one.keys() - {merge_key}
        result[name] = merged({merge_key: name} if other_kind else old, one)
    return list(result.values())


def _way(kind: str, meant: str) -> list[str]:
    """From the object that is made to the part that the patch is for."""
    ways = {
        ("CronJob", "Job"): ["spec", "jobTemplate"],
        ("CronJob", "Pod"): ["spec", "jobTemplate", "spec", "template"],
        ("Job", "Pod"): ["spec", "template"],
    }
    return ways.get((kind, meant), [])


def _kept(made: Json) -> list[tuple[str, object]]:
    """What may not be patched away, each with its name."""
    job = made["spec"]["jobTemplate"] if made["kind"] == "CronJob" else made
    template = job if made["kind"] == "Pod" else job["spec"]["template"]
    spec = template["spec"]
    return [
        ("the kind", (made["apiVersion"], made["kind"])),
        ("the name", made["metadata"].get("name")),
        ("the namespace", made["metadata"].get("namespace")),
        *((f"the label {key}", _ours(part).get(key)) for part in (made, template) for key in _OURS),
        ("restartPolicy", spec.get("restartPolicy")),
        ("backoffLimit", job["spec"].get("backoffLimit")),
        ("parallelism", job["spec"].get("parallelism")),
        ("completions", job["spec"].get("completions")),
        ("the container worker", sum(one.get("name") == names.CONTAINER for one in spec.get("containers") or ())),
    ]


_OURS = (names.MANAGED_BY, names.RUN_LABEL, names.KIND_LABEL, names.DRIVER_LABEL)


def _ours(part: Json) -> Json:
    return (part.get("metadata") or {}).get("labels") or {}


def _still(before: list[tuple[str, object]], done: Json) -> None:
    try:
        after = _kept(done)
    except (KeyError, TypeError, AttributeError) as error:
        raise SpecError("the patch removes a part that the worker needs: its spec, template or containers") from error
    for (name, was), (_, now) in zip(before, after, strict=True):
        if was != now:
            raise SpecError(f"the patch changes {name}, which must stay {was!r}", hint="leave it out of the patch")
