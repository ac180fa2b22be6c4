"""Find the layers around this process: a container engine, Kubernetes, Slurm.

There is no one mark of a container, so each known mark is looked for, and the one that was found is stored next to the
answer. The service account's token lies next to the namespace's name that is read here; it is never opened.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from stackmark.machine.reading import ROOT, Facts, Reading, table, text
from stackmark.spec import ABOUT_VARIABLE

# Marks in a cgroup path, the more telling first: a pod's container has both `kubepods` and its runtime's name.
PATH_MARKS = (
    ("cri-containerd", "containerd"),
    ("crio", "cri-o"),
    ("libpod", "podman"),
    ("docker", "docker"),
    ("containerd", "containerd"),
    ("lxc", "lxc"),
    ("machine.slice", "systemd-nspawn"),
)
POD_UID = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
WHOLE_UID_MAP = ["0", "0", "4294967295"]
# What the place may tell of itself; anything else in its variable is nobody's business.
TOLD = ("engine_version", "software", "image", "image_digest", "gpus_by", "kubernetes_version", "slurm_version")
# What is found at a path where the place was to mount something.
READ_ONLY, WRITABLE, NOT_MOUNTED = "read-only", "writable", "not mounted"
MOST_MOUNTS = 32


def read(root: Path = ROOT, environ: Mapping[str, str] | None = None) -> Reading:
    environ = os.environ if environ is None else environ
    cgroups = text(root / "proc/self/cgroup") or ""
    engine, mark = _engine(root, environ, cgroups)
    about = _about(environ)
    told = {name: about[name] for name in TOLD if isinstance(about.get(name), str)}
    if (asked := about.get("mounts")) and isinstance(asked, list):
        paths = [path for path in asked if isinstance(path, str)][:MOST_MOUNTS]
        told["mounts"] = mounts_at(paths, text(root / "proc/self/mountinfo") or "")
    secrets = root / "var/run/secrets/kubernetes.io"
    marks = ("KUBERNETES_SERVICE_HOST", "STACKMARK_NODE")
    kubernetes = secrets.is_dir() or any(name in environ for name in marks) or "kubepods" in cgroups
    pod = POD_UID.search(cgroups)
    ids = (text(root / "proc/self/uid_map") or "").split()
    facts: Facts = {
        "engine": engine or ("kubernetes" if kubernetes else "none"),
        "mark": mark,
        "rootless": _rootless(root),
        "user_namespace": ids[:3] != WHOLE_UID_MAP if ids else None,
        "root_filesystem": _root_filesystem(root),
        "root_read_only": bool(os.statvfs(root).f_flag & os.ST_RDONLY),
        "kubernetes": kubernetes,
        "pod_uid": pod.group(1).replace("_", "-") if pod else None,
        "namespace": environ.get("STACKMARK_NAMESPACE") or text(secrets / "serviceaccount/namespace"),
        "node": environ.get("STACKMARK_NODE"),
        "pod": environ.get("STACKMARK_POD"),
        # What the device plugin handed out, by its own word: seen even where no driver answers.
        "devices_given": environ.get("NVIDIA_VISIBLE_DEVICES") if kubernetes else None,
        "slurm_job_id": environ.get("SLURM_JOB_ID"),
        "slurm_partition": environ.get("SLURM_JOB_PARTITION"),
        "slurm_nodes": environ.get("SLURM_JOB_NODELIST"),
        "network": _network(root),
        **told,
    }
    return Reading(facts)


def _about(environ: Mapping[str, str]) -> Facts:
    """What only the place that started us knows: it put it into our environment."""
    try:
        told = json.loads(environ.get(ABOUT_VARIABLE, "{}"))
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def mounts_at(paths: Iterable[str], mountinfo: str) -> Facts:
    """Tell for each path whether something is mounted there, and how, from the kernel's table of mounts."""
    found: dict[str, str] = {}
    for line in mountinfo.splitlines():
        mount, _, volume = line.partition(" - ")
        words, rest = mount.split(), volume.split()
        if len(words) > 5 and rest:
            # A mount and the file system below it each have options; either makes it read-only. Spaces are octal.
            options = {*words[5].split(","), *rest[-1].split(",")}
            path = re.sub(r"\\([0-7]{3})", lambda digits: chr(int(digits[1], 8)), words[4])
            found[path] = READ_ONLY if "ro" in options else WRITABLE
    return {path: found.get(path, NOT_MOUNTED) for path in paths}


def read_of(process: str, root: Path = ROOT) -> Reading:
    """Read what can be seen of another process's container from outside."""
    mountinfo = text(root / "proc" / process / "mountinfo")
    return Reading(
        {
            "network": _network(root, process),
            "root_filesystem": _root_filesystem(root, process),
            "root_read_only": mounts_at(["/"], mountinfo)["/"] == READ_ONLY if mountinfo else None,
        }
    )


def _network(root: Path, process: str = "self") -> bool | None:
    """Whether any way leads out of a process's network namespace."""
    net = root / "proc" / process / "net"
    fourth = text(net / "route")
    if fourth is None:
        return None
    sixth = (text(net / "ipv6_route") or "").splitlines()
    # The first line of the older file is its heading; the newer has none, and always lists the loopback.
    return len(fourth.splitlines()) > 1 or any(line.split()[-1] != "lo" for line in sixth if line.strip())


def _engine(root: Path, environ: Mapping[str, str], cgroups: str) -> tuple[str | None, str | None]:
    """The engine and the mark it was known by."""
    if (root / "run/.containerenv").exists():
        named = table(text(root / "run/.containerenv"), "=").get("engine", "podman").strip('"')
        return named.partition("-")[0], "/run/.containerenv"
    if (root / ".dockerenv").exists():
        return "docker", "/.dockerenv"
    for variable in ("APPTAINER_CONTAINER", "SINGULARITY_CONTAINER"):
        if variable in environ:
            return "apptainer", variable
    for mark, engine in PATH_MARKS:
        if mark in cgroups:
            return engine, f"{mark} in /proc/self/cgroup"
    if environ.get("container"):  # lower case: what systemd asks container managers to set
        return environ["container"], "the variable `container`"
    manager = text(root / "run/systemd/container")
    return (manager, "/run/systemd/container") if manager else (None, None)


def _rootless(root: Path) -> bool | None:
    marks = table(text(root / "run/.containerenv"), "=")
    return marks["rootless"] == "1" if "rootless" in marks else None


def _root_filesystem(root: Path, process: str = "self") -> str | None:
    """`overlay` in most containers; what is mounted last on / is what is seen."""
    found = None
    for line in (text(root / "proc" / process / "mountinfo") or "").splitlines():
        place, _, kind = line.partition(" - ")
        words = place.split()
        if len(words) > 4 and words[4] == "/" and kind:
            found = kind.split()[0]
    return found
