"""Mounts: data that a place brings to where a worker runs, in one grammar for all places.

`SRC:DST[:ro|rw]`, read-only unless said. SRC is a path of the machine that stackmark runs on, `hostpath:PATH` of the machine that
the worker runs on, `claim:NAME` of a persistent volume claim or `nfs:SERVER:/PATH`. Which of them a place has is the place's own
decision; the last two exist in a cluster only. So an experiment has one `--data /data`, and each arm says where that comes from:

    stackmark compare train/resnet50 --data /data --arm host --arm pod,image=REF,mount=claim:imagenet:/data
"""

import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, get_args

from pydantic import Field

from stackmark.errors import PlaceError, SpecError
from stackmark.kubernetes.names import OBJECT_NAME
from stackmark.machine.container import NOT_MOUNTED, READ_ONLY, WRITABLE
from stackmark.places.place import Facts
from stackmark.remarks import Remark

SourceKind = Literal["path", "hostpath", "claim", "nfs"]
# A host name or an address; one of IPv6 in brackets, since its colons would end it.
_SERVER = r"\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?"
_NFS = re.compile(rf"(?P<server>{_SERVER}):(?P<path>/[^:]*)")
_TYPED = re.compile(r"(?P<source>.+):(?P<target>/[^:]*?)(:(?P<mode>[^:/]*))?")
# More than anybody types, and few enough for one fact.
MOST = 32
# The kernel's own, and shared memory, which every place sets up itself.
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - the worker's own
NEVER = ("/proc", "/sys", SHARED_MEMORY)
HOW = (
    "write SRC:DST or SRC:DST:rw, where SRC is /PATH, hostpath:/PATH, claim:NAME or nfs:SERVER:/PATH, "
    "like /data:/data or claim:imagenet:/data"
)
MOUNT = Field(
    default=(),
    description="data to mount: SRC:DST[:ro|rw], read-only unless said; SRC is a path, in a pod also claim:NAME, "
    "hostpath:PATH or nfs:SERVER:/PATH; may be repeated",
)


@dataclass(frozen=True)
class Mount:
    """One mount, as it was typed."""

    text: str
    kind: SourceKind
    # A path, or the name of a claim.
    source: str
    target: str
    read_only: bool = True
    # Of NFS only.
    server: str = ""

    @property
    def on_host(self) -> bool:
        """Whether the source is a path of a machine."""
        return self.kind in ("path", "hostpath")


def read_mounts(texts: Sequence[str], own: Sequence[str] = (), work: Sequence[str] = ()) -> tuple[Mount, ...]:
    """Read what was typed. A mount must hide neither what the place mounts itself (`own`) nor its folders to work in (`work`);
    it may lie in the latter."""
    if len(texts) > MOST:
        raise SpecError(f"mount: {len(texts)} mounts were given, and at most {MOST} are allowed")
    found = tuple(read_mount(text) for text in texts)
    seen: dict[str, Mount] = {}
    for mount in found:
        if mount.target in seen:
            raise SpecError(
                f"mount: {seen[mount.target].text!r} and {mount.text!r} have the same target {mount.target}"
            )
        seen[mount.target] = mount
        _check_target(mount, own, work)
    return found


def read_mount(text: str) -> Mount:
    """Read `SRC:DST[:ro|rw]`."""
    typed = _TYPED.fullmatch(text)
    if typed is None or any(ord(character) < 32 for character in text):
        raise SpecError(f"mount: {text!r} does not name a source and a target", hint=HOW)
    mode = typed["mode"] if typed["mode"] is not None else "ro"
    if mode not in ("ro", "rw"):
        raise SpecError(f"mount: {text!r} ends with {mode!r}, which must be ro or rw", hint=HOW)
    target = _path("target", text, typed["target"])
    prefix, colon, rest = typed["source"].partition(":")
    read_only = mode == "ro"
    if not colon:
        return Mount(text, "path", _path("source", text, prefix), target, read_only)
    if prefix == "hostpath":
        return Mount(text, "hostpath", _path("source", text, rest), target, read_only)
    if prefix == "claim":
        if not OBJECT_NAME.fullmatch(rest):
            raise SpecError(
                f"mount: {text!r}: {rest!r} cannot be the name of a claim",
                hint="names have lower case, digits, - and .",
            )
        return Mount(text, "claim", rest, target, read_only)
    if prefix == "nfs" and (found := _NFS.fullmatch(rest)):
        return Mount(text, "nfs", _path("path", text, found["path"], root=True), target, read_only, found["server"])
    kinds = ", ".join(f"{kind}:" for kind in get_args(SourceKind) if kind != "path")
    raise SpecError(
        f"mount: {typed['source']!r} in {text!r} is not a source: it is a path or begins with {kinds}", hint=HOW
    )


def _path(what: str, text: str, path: str, *, root: bool = False) -> str:
    """Return a whole path without `.`, `..` and slashes at its end."""
    if not path.startswith("/") or ":" in path:
        raise SpecError(f"mount: the {what} {path!r} in {text!r} is not a whole path", hint=HOW)
    if ".." in path.split("/"):
        raise SpecError(f"mount: the {what} {path!r} in {text!r} contains ..", hint="write the path without it")
    clean = "/" + posixpath.normpath(path).strip("/")
    if clean == "/" and not root:
        raise SpecError(f"mount: the {what} in {text!r} is /", hint="name a folder below it")
    return clean


def _check_target(mount: Mount, own: Sequence[str], work: Sequence[str]) -> None:
    for folder in (*NEVER, *own, *work):
        if covers(mount.target, folder) or (folder not in work and covers(folder, mount.target)):
            hint = "--shm sets the size of it" if folder == SHARED_MEMORY else "choose another target, like /data"
            raise SpecError(
                f"mount: the target of {mount.text!r} would hide {folder}, which the place sets up", hint=hint
            )


def covers(folder: str, path: str) -> bool:
    """Tell whether a path is this folder or lies in it."""
    return PurePosixPath(path).is_relative_to(folder)


def covering(mounts: Sequence[Mount], path: str) -> Mount | None:
    """Return the mount that a path of the place lies in: the innermost one."""
    found = [mount for mount in mounts if covers(mount.target, posixpath.normpath(path))]
    return max(found, key=lambda mount: len(mount.target), default=None)


def targets(mounts: Sequence[Mount]) -> list[str]:
    return [mount.target for mount in mounts]


def refuse_cluster_sources(mounts: Sequence[Mount], place: str) -> None:
    """Refuse what only a cluster has."""
    for mount in mounts:
        if not mount.on_host:
            what = "claims" if mount.kind == "claim" else "NFS volumes"
            raise SpecError(
                f"mount: {mount.text!r}: {what} exist in a cluster, and not in the place {place}",
                hint=f"mount a path of this machine there: /PATH:{mount.target}",
            )


def cluster_sources(mount: Mount) -> str:
    """Return a hint that says what to write where a path of this machine means nothing."""
    to = mount.target
    return f"write claim:NAME:{to}, nfs:SERVER:/PATH:{to}, or hostpath:{mount.text} for a path of the node"


def require_sources(mounts: Sequence[Mount]) -> None:
    """Refuse a path of this machine that is not there: an engine would answer in its own words, or make an empty folder."""
    for mount in mounts:
        if mount.on_host and not os.path.exists(mount.source):
            raise PlaceError(
                f"mount: {mount.source} of {mount.text!r} does not exist on this machine",
                hint="make it, or name another path: SRC:DST, where SRC is this machine's",
            )


def not_mounted(mounts: Sequence[Mount], facts: Facts) -> Iterator[Remark]:
    """Compare what was asked for with what the worker saw at each target; a sentence for each difference."""
    seen = facts.get("container", {}).get("mounts")
    table = seen if isinstance(seen, dict) else {}
    for mount in mounts:
        asked, there = READ_ONLY if mount.read_only else WRITABLE, table.get(mount.target)
        if there in (None, NOT_MOUNTED):
            said = "the worker did not say what is there" if there is None else "nothing is mounted there"
            yield Remark(f"a mount at {mount.target} was asked for, and {said}", "mount")
        elif there != asked:
            yield Remark(f"the mount at {mount.target} was asked for as {asked}, and it is {there}", "mount")
