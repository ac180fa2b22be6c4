"""Find and remove Jobs whose driver has ended, by a note on this machine for each Job that we create.

A ledger knows runs, but no probes, and a run that was interrupted while the API server was away is finished there although its
Job lives on. So a small file is written before the Job is created and removed after it: what a driver that is dead, or could not
reach the cluster, left behind is found by the next command, in whichever ledger and namespace that works. Each user has a
folder, which nobody else can write: what a note says is followed.
"""

import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue, ValidationError

from stackmark.errors import StackmarkError
from stackmark.frozen import Frozen
from stackmark.kubernetes import names
from stackmark.kubernetes.client import Cluster, connect
from stackmark.kubernetes.pods import remove_run
from stackmark.machine import host as machine
from stackmark.machine.orphans import driver_may_live, pid_namespace, start_ticks
from stackmark.units import counted

# A cluster that does not answer is not asked again by every command.
RETRY_S = 60.0
# By then the Job is gone by its own deadline and TTL.
FORGOTTEN_S = 30 * 86_400.0
_UNREACHABLE = "unreachable"
# Jobs that a driver waits for, and that mean nothing without it.
_DRIVEN = f"{names.SELECTOR},{names.DRIVER_LABEL},{names.KIND_LABEL} in (run,probe,sweep,doctor)"


class JobNote(Frozen):
    """The location of a Job, and the process that created it."""

    mark: str
    namespace: str
    context: str
    # Absolute paths as $KUBECONFIG has them; None: the account of the pod that we are in.
    kubeconfig: str | None
    server: str
    created_unix_s: float
    machine: str | None
    boot: str | None
    pid_namespace: int | None
    pid: int
    start_ticks: int | None
    # Its driver lives on, and could not remove it.
    given_up: bool = False

    @property
    def is_orphan(self) -> bool:
        """Return whether no process waits for the Job. A home folder may be shared: other machines' drivers are unknown."""
        if self.machine != machine.machine_id():
            return False
        same_boot = self.boot == machine.boot_id()
        if self.given_up and same_boot:
            return True
        return not driver_may_live(self.pid, self.start_ticks, same_boot=same_boot, namespace=self.pid_namespace)


def folder() -> Path:
    """Return `$XDG_STATE_HOME/stackmark/jobs`, usually ~/.local/state/stackmark/jobs."""
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        state = Path(os.environ.get("HOME") or "/") / ".local" / "state"
    return state / "stackmark" / "jobs"


def write(cluster: Cluster, kubeconfig: str | None, namespace: str, mark: str) -> None:
    """Note a Job before it is created. Without a folder to write to there is no note: labels and the ledger remain."""
    note = JobNote(
        mark=mark,
        namespace=namespace,
        context=cluster.context,
        kubeconfig=_absolute(kubeconfig or os.environ.get("KUBECONFIG"), cluster),
        server=cluster.server,
        created_unix_s=time.time(),
        machine=machine.machine_id(),
        boot=machine.boot_id(),
        pid_namespace=pid_namespace(),
        pid=os.getpid(),
        start_ticks=start_ticks(os.getpid()),
    )
    with suppress(OSError):
        _store(note)


def give_up(mark: str) -> None:
    """Leave the Job to the next command: its driver goes on without it."""
    note = _read(folder() / f"{mark}.json")
    if note is not None:
        with suppress(OSError):
            _store(note.model_copy(update={"given_up": True}))


def forget(mark: str) -> None:
    """Forget a Job that was removed."""
    with suppress(OSError):
        (folder() / f"{mark}.json").unlink(missing_ok=True)


def orphans() -> list[JobNote]:
    """List the Jobs that no process waits for. Without one this only looks into a folder."""
    found = []
    with suppress(OSError):
        for path in sorted(folder().glob("*.json")):
            if path.stat().st_uid != os.getuid():
                continue  # a note names a kubeconfig, which can name a program to run: only our own are followed
            note = _read(path)
            if note is None or time.time() - note.created_unix_s > FORGOTTEN_S:
                path.unlink(missing_ok=True)
            elif note.is_orphan:
                found.append(note)
    return found


def remove_orphans(server: str | None = None) -> list[str]:
    """Remove what earlier commands left, and say it in a sentence for each namespace.

    With `server` only in that cluster, which the command at hand works with. Without, in every cluster that a note names; one
    that does not answer is then left alone for a while, since the command at hand may have nothing to do with it.
    """
    left = [one for one in orphans() if server in (None, one.server)]
    if not left or (server is None and _asked_lately()):
        return []
    said = []
    for where in dict.fromkeys((one.kubeconfig, one.context, one.server, one.namespace) for one in left):
        here = [one for one in left if (one.kubeconfig, one.context, one.server, one.namespace) == where]
        try:
            removed = _removed(here)
        except StackmarkError:
            _asked_in_vain()
            continue
        if removed:
            said.append(removed_sentence(removed, here[0].namespace, here[0].context))
    return said


def removed_sentence(count: int, namespace: str, context: str) -> str:
    was = "was" if count == 1 else "were"
    return (
        f"{counted(count, 'Job')} left by an earlier stackmark in the namespace {namespace} of {context} {was} removed"
    )


def _removed(notes: Iterable[JobNote]) -> int:
    """How many were there. All are in one namespace of one cluster."""
    cluster: Cluster | None = None
    count = 0
    for note in notes:
        if cluster is None:
            if note.kubeconfig and not any(map(os.path.isfile, note.kubeconfig.split(os.pathsep))):
                return 0  # asked again when it is back
            context = note.context if note.kubeconfig else None
            cluster = connect(context, note.kubeconfig, note.namespace)
            if cluster.server != note.server:
                return 0  # its name means another cluster now
        count += bool(remove_run(cluster, note.namespace, note.mark, grace_s=0))
        forget(note.mark)
    return count


def _absolute(named: str | None, cluster: Cluster) -> str | None:
    if cluster.context == "in-cluster":
        return None
    paths = (named or str(Path.home() / ".kube/config")).split(os.pathsep)
    return os.pathsep.join(os.path.abspath(os.path.expanduser(path)) for path in paths if path)


def _store(note: JobNote) -> None:
    where = folder()
    where.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = where / f"{note.mark}.json"
    part = where / f".{note.mark}.{os.getpid()}"
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(note.model_dump_json())
    part.replace(path)


def _read(path: Path) -> JobNote | None:
    """None where it is gone, or not a note of ours."""
    try:
        note = JobNote.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
    return note if path.name == f"{note.mark}.json" and names.is_mark(note.mark) else None


def _asked_lately() -> bool:
    try:
        return time.time() - (folder() / _UNREACHABLE).stat().st_mtime < RETRY_S
    except OSError:
        return False


def _asked_in_vain() -> None:
    with suppress(OSError):
        (folder() / _UNREACHABLE).touch()


def remove_of_dead_drivers(cluster: Cluster, namespace: str) -> int:
    """Delete the Jobs in the namespace whose driver could be seen from here if it lived; return how many there were."""
    jobs = cluster.items(f"/apis/batch/v1/namespaces/{namespace}/jobs", labelSelector=_DRIVEN)
    living = names.living_drivers() if jobs else set()
    count = 0
    for job in jobs:
        meta = job["metadata"]
        labels: Mapping[str, str] = meta.get("labels") or {}
        mark = labels.get(names.RUN_LABEL, "")
        if meta.get("deletionTimestamp") or not names.is_mark(mark) or meta.get("name") != names.object_name(mark):
            continue
        if names.is_dead(labels.get(names.DRIVER_LABEL, ""), living):
            count += bool(remove_run(cluster, namespace, mark, grace_s=0))
    return count


def remove_left(run_id: str, handle: Mapping[str, JsonValue]) -> list[str]:
    """Delete what a killed driver's run left in its cluster, as the ledger has it. Where the cluster does not answer now, the
    note of the Job stays for a later command, and the Job has its own TTL."""
    namespace = handle.get("namespace")
    if not isinstance(namespace, str) or not isinstance(handle.get("job"), str) or not names.is_mark(run_id):
        return []
    context, kubeconfig = handle.get("context"), handle.get("kubeconfig")
    with suppress(StackmarkError):
        cluster = connect(
            str(context) if context and context != "in-cluster" else None,
            str(kubeconfig) if kubeconfig else None,
            namespace,
        )
        if remove_run(cluster, namespace, run_id):
            return ["a Job in the cluster"]
    return []
