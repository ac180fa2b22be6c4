"""Read events of the cluster: what happened to a pod or a Job, in the cluster's own words."""

import re
from collections.abc import Sequence
from contextlib import suppress

from stackmark.errors import ClusterError
from stackmark.kubernetes.client import Cluster, Json
from stackmark.kubernetes.objects import metadata, namespace, unix_s

_PULL_SECONDS = re.compile(r'" in ((?:[0-9]+(?:\.[0-9]+)?(?:h|ms|m|µs|us|ns|s))+)')
_GO_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)(h|ms|m|µs|us|ns|s)")
_GO_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "us": 1e-6, "ns": 1e-9}


def events_of(cluster: Cluster, thing: Json) -> list[Json]:
    """List what happened to an object; empty where one may not see it, or the server is away: the status alone then tells."""
    uid = metadata(thing).get("uid")
    if not uid:
        return []
    with suppress(ClusterError):
        return cluster.items(f"/api/v1/namespaces/{namespace(thing)}/events", fieldSelector=f"involvedObject.uid={uid}")
    return []


def moment_s(event: Json) -> float:
    """Return when an event happened last; older events only have whole seconds."""
    times = (
        (event.get("series") or {}).get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event.get("firstTimestamp"),
        metadata(event).get("creationTimestamp"),
    )
    return next((moment for text in times if (moment := unix_s(text)) is not None), 0.0)


def latest(events: Sequence[Json], *reasons: str) -> Json:
    """Return the newest event of any of these reasons; empty where there is none."""
    return max((one for one in events if one.get("reason") in reasons), key=moment_s, default={})


def _of_container(events: Sequence[Json], container: str) -> list[Json]:
    """Those that are not another container's."""
    path = f"spec.containers{{{container}}}"
    return [one for one in events if (one.get("involvedObject") or {}).get("fieldPath") in (None, "", path)]


def pull_of(events: Sequence[Json], container: str) -> tuple[float | None, float | None]:
    """Return when the image was there, and how long its pull took."""
    pulled = [one for one in _of_container(events, container) if one.get("reason") == "Pulled"]
    if not pulled:
        return None, None
    said = max(pulled, key=moment_s)
    found = _PULL_SECONDS.search(str(said.get("message")))
    seconds = sum(float(number) * _GO_UNITS[unit] for number, unit in _GO_TIME.findall(found[1])) if found else 0.0
    return moment_s(said), round(seconds, 6)


def pulls_now(events: Sequence[Json], container: str) -> bool:
    """Tell whether the image is being pulled."""
    own = _of_container(events, container)
    began = [moment_s(one) for one in own if one.get("reason") == "Pulling"]
    done = [moment_s(one) for one in own if one.get("reason") in ("Pulled", "Created", "Started")]
    return bool(began) and not done
