"""What everything that we create in a cluster carries: labels by which it is found again, and removed.

A label's value has 63 characters of `[A-Za-z0-9._-]`, and a name is lower case; our ids fit both.
"""

import hashlib
import os
import re
import socket
from typing import Literal

from stackmark.machine import boot_id
from stackmark.strays import start_ticks

MANAGED_BY = "app.kubernetes.io/managed-by"
APP_NAME = "app.kubernetes.io/name"
OURS = "stackmark"
# The run (or whatever else a pod was made for), what kind of work it is, and which driver waits for it.
RUN_LABEL = "stackmark.io/run"
KIND_LABEL = "stackmark.io/kind"
DRIVER_LABEL = "stackmark.io/driver"
# Selects all that is ours, of every kind and driver.
SELECTOR = f"{MANAGED_BY}={OURS}"
# The container in which the worker, or the command, runs.
CONTAINER = "worker"

Kind = Literal["run", "probe", "doctor", "check", "fault", "sweep", "canary"]


def labels(kind: Kind, mark: str) -> dict[str, str]:
    return {MANAGED_BY: OURS, APP_NAME: OURS, KIND_LABEL: kind, RUN_LABEL: mark, DRIVER_LABEL: driver_label()}


def object_name(mark: str) -> str:
    """The name of a run's Job, and of what belongs to it."""
    name = f"stackmark-{mark.lower()}"
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name), f"{name} is no name of an object"
    return name


def driver_label(pid: int | None = None) -> str:
    """Who created it: a word for this boot of this machine, and one for the process and its beginning; hashed, since a label
    has room for no more. In two words, so that another can tell a dead driver of its own machine from one on another."""
    pid = os.getpid() if pid is None else pid
    return f"{machine_word()}-{_word(f'{pid}:{start_ticks(pid)}')}"


def machine_word() -> str:
    return _word(f"{socket.gethostname()}:{boot_id()}")


def _word(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
