"""Names and labels of everything that we create in a cluster, by which it is found again and removed.

A label's value has 63 characters of `[A-Za-z0-9._-]`, and a name is lower case; our ids fit both.
"""

import hashlib
import os
import re
import socket
from collections.abc import Container
from typing import Literal

from stackmark.machine.host import boot_id
from stackmark.machine.orphans import PROC, pid_namespace, start_ticks

MANAGED_BY = "app.kubernetes.io/managed-by"
APP_NAME = "app.kubernetes.io/name"
OURS = "stackmark"
# The run (or whatever else a pod was made for), what kind of work it is, and which driver waits for it.
RUN_LABEL = "stackmark.io/run"
KIND_LABEL = "stackmark.io/kind"
DRIVER_LABEL = "stackmark.io/driver"
# The pod's number in an Indexed Job, as the Job controller writes it (Kubernetes 1.28 and later).
INDEX_LABEL = "batch.kubernetes.io/job-completion-index"
# Selects all that is ours, of every kind and driver.
SELECTOR = f"{MANAGED_BY}={OURS}"
# The container in which the worker, or the command, runs.
CONTAINER = "worker"

# How the API server wants an object's name: a DNS subdomain, of which this is one label.
DNS_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
OBJECT_NAME = re.compile(rf"(?=.{{1,253}}\Z){DNS_LABEL}(\.{DNS_LABEL})*")

Kind = Literal["run", "probe", "doctor", "check", "fault", "sweep", "canary"]


def labels(kind: Kind, mark: str) -> dict[str, str]:
    return {MANAGED_BY: OURS, APP_NAME: OURS, KIND_LABEL: kind, RUN_LABEL: mark, DRIVER_LABEL: driver_label()}


def object_name(mark: str) -> str:
    """Return the name of a run's Job and of what belongs to it."""
    assert is_mark(mark), f"{mark} cannot be the name of an object"
    return f"stackmark-{mark.lower()}"


def mark_of(name: str) -> str:
    """Return the mark in the name of one of our objects."""
    return name.removeprefix("stackmark-")


def is_mark(text: str) -> bool:
    """Return whether an object can be named after it."""
    return bool(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", f"stackmark-{text.lower()}"))


def driver_label(pid: int | None = None) -> str:
    """Name who created something: a word for where it runs, and one for the process and its beginning; hashed, since a label
    has room for no more. Two words, so that a dead driver of this machine can be told from one on another."""
    return f"{machine_word()}-{_process_word(os.getpid() if pid is None else pid)}"


def machine_word() -> str:
    """Return a word for the processes visible from here: this boot, this pid namespace, and this user, since /proc may hide
    the processes of others."""
    return _word(f"{socket.gethostname()}:{boot_id()}:{pid_namespace()}:{os.getuid()}")


def living_drivers() -> set[str]:
    """Return the labels of all visible processes, including ours."""
    here = machine_word()
    return {f"{here}-{_process_word(int(entry.name))}" for entry in PROC.iterdir() if entry.name.isdigit()}


def is_dead(label: str, living: Container[str]) -> bool:
    """Tell whether a driver could be seen from here if it lived, and is not among the living."""
    return label.split("-")[0] == machine_word() and label not in living


def _process_word(pid: int) -> str:
    return _word(f"{pid}:{start_ticks(pid)}")


def _word(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
