"""Reading the JSON of pods and events: whatever is missing from it, or is not what it should be, is simply not there."""

import re
from collections.abc import Sequence
from datetime import datetime

from stackmark.kubernetes.client import Json
from stackmark.kubernetes.names import CONTAINER

# A message of a runtime repeats itself; this holds what names the image, the volume, the limit.
SHOWN_CHARACTERS = 300
KUEUE_QUEUE = "kueue.x-k8s.io/queue-name"


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


def container_status(pod: Json, container: str = CONTAINER) -> Json:
    """That of the container; of the only one where there is just one by another name."""
    known: list[Json] = status(pod).get("containerStatuses") or []
    found = next((one for one in known if one.get("name") == container), None)
    return found or (known[0] if len(known) == 1 else {})


def state(pod: Json, kind: str, container: str = CONTAINER) -> Json:
    """`waiting`, `running` or `terminated`; empty where the container is in another state."""
    return (container_status(pod, container).get("state") or {}).get(kind) or {}


def container_spec(pod: Json, container: str = CONTAINER) -> Json:
    known: list[Json] = spec(pod).get("containers") or []
    found = next((one for one in known if one.get("name") == container), None)
    return found or (known[0] if known else {})


def condition(pod: Json, kind: str) -> Json:
    return next((one for one in status(pod).get("conditions") or () if one.get("type") == kind), {})


def unix_s(text: object) -> float | None:
    """The moment of a time as the API writes it."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except (ValueError, OverflowError):
        return None


def moment_s(event: Json) -> float:
    """When an event happened last; events of the older kind know whole seconds only."""
    times = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        metadata(event).get("creationTimestamp"),
    )
    return next((moment for text in times if (moment := unix_s(text)) is not None), 0.0)


def latest(events: Sequence[Json], *reasons: str) -> Json:
    """The newest event of any of these reasons; empty where there is none."""
    return max((one for one in events if one.get("reason") in reasons), key=moment_s, default={})


def words(text: object) -> str:
    """Somebody's message on one line, not endless."""
    line = re.sub(r"[\x00-\x1f\x7f-\x9f]+", " ", " ".join(str(text or "").split())).strip()
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


def describe(pod: Json) -> str:
    """The command that shows a person the same, also when the pod is removed: its events stay for an hour."""
    return f"kubectl -n {namespace(pod)} get events --field-selector involvedObject.name={name(pod)}"
