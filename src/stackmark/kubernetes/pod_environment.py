"""The variables of the worker's container: its task, what it cannot see from inside, and what it may know of the driver's.

Kubernetes replaces `$(NAME)` in values and in commands, so each `$` that is meant is doubled. With the host's own software the
settings of the libraries under test come along, as they do into a container; into an image they do not: a Job that was made on a
laptop must not depend on that laptop's shell. Which GPUs there are to see is the cluster's business in both cases.
"""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from stackmark.errors import SpecError
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Json
from stackmark.kubernetes.wanted import Wanted
from stackmark.machine.orphans import MARK_VARIABLE
from stackmark.places.container.launch import FILE_ENDINGS, HOME, HOST_ONLY, TUNING
from stackmark.places.container.software import user_name
from stackmark.places.place import CACHE_VARIABLES, cache_variables
from stackmark.places.process import worker_environment
from stackmark.secrets_masking import value_of
from stackmark.spec import ABOUT_VARIABLE, LEDGER_VARIABLE, SCRATCH_VARIABLE, SPEC_LIMIT_BYTES, SPEC_VARIABLE

# Each in lower and in upper case: programs read one or the other.
PROXIES = ("http_proxy", "https_proxy", "no_proxy", "ftp_proxy", "all_proxy")
# The device plugin says which GPUs there are; the driver's own numbers mean others, or none.
VISIBLE_DEVICES = "_VISIBLE_DEVICES"
# Where a printed manifest looks for variables that were given by name.
SECRET_NAME = "stackmark-env"  # noqa: S105 - a name
# From the pod's own description (downward API). Limits that were not set read as what the node has.
FROM_POD = {
    "STACKMARK_NODE": "spec.nodeName",
    "STACKMARK_POD": "metadata.name",
    "STACKMARK_NAMESPACE": "metadata.namespace",
    "STACKMARK_POD_UID": "metadata.uid",
}
FROM_LIMITS = {
    "STACKMARK_CPU_LIMIT_MILLI": ("limits.cpu", "1m"),
    "STACKMARK_MEMORY_LIMIT_BYTES": ("limits.memory", "1"),
}


def variables(wanted: Wanted) -> list[Json]:
    environment = worker_environment(os.environ if wanted.environment is None else wanted.environment)
    values: dict[str, str] = {"HOME": HOME}
    if wanted.software is not None:
        values |= carried(environment, software=True) | {"HOME": HOME, "USER": user_name(environment)}
        values |= cache_variables(Path(wanted.cache) if wanted.cache else None)
    if wanted.options.env_from_proxy:
        values |= proxies(environment)
    values |= wanted.variables
    values |= wanted.options.variables
    if wanted.task is not None:
        values[SPEC_VARIABLE] = _task_text(wanted)
    values[ABOUT_VARIABLE] = json.dumps(_about(wanted), separators=(",", ":"))
    by_name = wanted.options.named_variables
    if wanted.driven:
        values |= {name: value_of(name, environment) for name in by_name}
    plain: list[Json] = [{"name": name, "value": literal(value)} for name, value in values.items()]
    return [*plain, *(() if wanted.driven else _from_secret(by_name)), *_from_pod()]


def literal(text: str) -> str:
    """As it stands: without this, Kubernetes would put the value of NAME for `$(NAME)`, and `$` for `$$`."""
    return text.replace("$", "$$")


def carried(environment: Mapping[str, str], *, software: bool) -> dict[str, str]:
    """The driver's settings of the libraries under test; with the host's software also where its files are."""
    return {name: environment[name] for name in sorted(environment) if _passes(name, software)}


def proxies(environment: Mapping[str, str]) -> dict[str, str]:
    """The proxies of the environment, each in both cases, whichever it is written in there."""
    found: dict[str, str] = {}
    for name in PROXIES:
        value = environment.get(name) or environment.get(name.upper())
        if value:
            found[name] = environment.get(name) or value
            found[name.upper()] = environment.get(name.upper()) or value
    return found


def _passes(name: str, software: bool) -> bool:
    own = (SPEC_VARIABLE, MARK_VARIABLE, ABOUT_VARIABLE, SCRATCH_VARIABLE, LEDGER_VARIABLE, *FROM_POD, *FROM_LIMITS)
    if name in CACHE_VARIABLES or name in own or name.endswith(VISIBLE_DEVICES):
        return False
    tuning = name.startswith(TUNING)
    return tuning or name.startswith(HOST_ONLY) if software else tuning and not name.endswith(FILE_ENDINGS)


def _task_text(wanted: Wanted) -> str:
    """Nobody holds a pod's standard input, so the task says that its end means nothing."""
    assert wanted.task is not None
    text = wanted.task.model_copy(update={"lifeline": False}).model_dump_json(exclude_defaults=True)
    if len(text.encode()) > SPEC_LIMIT_BYTES:
        raise SpecError(f"the task has more than the {SPEC_LIMIT_BYTES} bytes that a pod's variable takes")
    return text


def _about(wanted: Wanted) -> Json:
    by = (
        "none"
        if not wanted.gpus
        else f"a claim of {wanted.options.dra}"
        if wanted.options.dra
        else wanted.options.resource
    )
    return {
        "software": "image" if wanted.software is None else "host",
        "image": wanted.image,
        "gpus_by": by,
        **wanted.about,
    }


def _from_secret(by_name: Sequence[str]) -> list[Json]:
    """A manifest that is printed must not hold the values: whoever applies it has them in a Secret."""
    return [{"name": name, "valueFrom": {"secretKeyRef": {"name": SECRET_NAME, "key": name}}} for name in by_name]


def _from_pod() -> list[Json]:
    fields: list[Json] = [
        {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}
        for name, path in FROM_POD.items()
    ]
    limits: list[Json] = [
        {
            "name": name,
            "valueFrom": {
                "resourceFieldRef": {"containerName": names.CONTAINER, "resource": resource, "divisor": divisor}
            },
        }
        for name, (resource, divisor) in FROM_LIMITS.items()
    ]
    return [*fields, *limits]
