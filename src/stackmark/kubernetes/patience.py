"""Wait for an API server that is away: equally long within a run, between two runs, and in a sweep."""

import time
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from stackmark.errors import ClusterError
from stackmark.kubernetes.client import ApiError, Cluster, Unreachable
from stackmark.units import say_seconds

# Pods go on without an API server, so that only its return is waited for: this long, and asked this often.
AWAY_S, AGAIN_S = 600.0, 2.0
# One that has just come back is busy, and knows for a moment neither accounts nor rights.
COMING_BACK_S = 30.0
_READY_S = 5.0
Answer = TypeVar("Answer")
Say = Callable[[str], None]


def may_pass(error: ClusterError) -> bool:
    """Return whether it is worth asking again: no answer, an error of the server, or too many requests."""
    return isinstance(error, Unreachable) or (
        isinstance(error, ApiError) and (error.status == 429 or error.status >= 500)
    )


def is_there(error: ClusterError) -> bool:
    """Return whether something could not be created because it exists: the answer to the try before was lost."""
    return isinstance(error, ApiError) and error.reason == "AlreadyExists"


def patiently(ask: Callable[[], Answer], say: Say, patience_s: float = AWAY_S) -> Answer:
    """Ask until the API server answers; `say` is told when that takes longer than one try."""
    began: float | None = None
    refused_since: float | None = None
    while True:
        try:
            return ask()
        except ClusterError as error:
            now = time.monotonic()
            passes = may_pass(error)
            if began is None:
                if not passes:
                    raise
                began = now
                say(f"{error.message}; waiting for it, for up to {say_seconds(patience_s)}")
            elif not passes:
                refused_since = refused_since or now
                known = isinstance(error, ApiError) and error.status in (401, 403)
                if not known or now - refused_since > COMING_BACK_S:
                    raise
            if now - began >= patience_s:
                raise
        time.sleep(AGAIN_S)


def wait_until_ready(cluster: Cluster, say: Say) -> None:
    """Return once the API server answers, calls itself ready, and knows our rights, which were checked before.

    One that answers and never calls itself ready, or has taken our rights away, is not waited for long: what comes next tells.
    """
    until = time.monotonic() + COMING_BACK_S

    def ask() -> None:
        nonlocal until
        try:
            _look(cluster)
        except Unreachable:
            until = time.monotonic() + COMING_BACK_S
            raise
        except ApiError as error:
            passes = may_pass(error) or error.status in (401, 403)
            if passes and time.monotonic() < until:
                raise Unreachable(f"the API server {cluster.server} is not ready") from error

    patiently(ask, say)


def _look(cluster: Cluster) -> None:
    try:
        cluster.text("/readyz", timeout_s=_READY_S)
    except ApiError as error:
        if error.status not in (401, 403, 404):  # not everybody may ask
            raise
    cluster.get(f"/api/v1/namespaces/{quote(cluster.namespace, safe='')}/pods", timeout_s=_READY_S, limit=1)
