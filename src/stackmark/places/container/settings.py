"""Find the settings that podman needs on this machine, and pass them as options of its command line.

Podman's defaults fail on machines that are not rare: in a virtual machine or a CI runner root may lack CAP_SYS_RESOURCE and
then cannot raise the limits podman asks for; crun refuses control groups of which both versions are in use ("hybrid"); without
systemd there is neither its cgroup manager nor its journal. Nobody's files are touched. Where somebody has written a
containers.conf, it is theirs to say what podman should do, and nothing is chosen here.
"""

import os
import resource
import shutil
from collections.abc import Mapping
from pathlib import Path

ROOT = Path("/")
# What podman asks for by itself (containers.conf(5), default_ulimits).
PODMAN_NOFILE = 1048576
_CAP_SYS_RESOURCE = 24


def podman_flags(environment: Mapping[str, str], root: Path = ROOT) -> list[str]:
    """Return options that go before podman's command."""
    if own_conf(environment, root):
        return []
    flags = []
    if _hybrid(root) and shutil.which("runc", path=environment.get("PATH")):
        flags.append("--runtime=runc")
    if not (root / "run/systemd/system").is_dir():
        flags += ["--cgroup-manager=cgroupfs", "--events-backend=file"]
    return flags


def podman_ulimits(
    environment: Mapping[str, str], asked: Mapping[str, tuple[int, int]], root: Path = ROOT
) -> dict[str, tuple[int, int]]:
    """Return the flags for limits that keep podman from requesting more than allowed.

    A limit on the command line drops all those of containers.conf, so where one is asked for, these are said again.
    """
    if os.geteuid() != 0 or _may_raise_limits(root) or (own_conf(environment, root) and not asked):
        return {}
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, processes = resource.getrlimit(resource.RLIMIT_NPROC)
    said = {}
    if 0 <= files < PODMAN_NOFILE:
        said["nofile"] = (files, files)
    # Podman lowers its own to the largest pid when it starts, and cannot go back.
    bounds = [bound for bound in (processes, _number(root / "proc/sys/kernel/pid_max")) if bound > 0]
    if bounds:
        said["nproc"] = (min(bounds), min(bounds))
    return {name: pair for name, pair in said.items() if name not in asked}


def own_conf(environment: Mapping[str, str], root: Path = ROOT) -> bool:
    """Return whether podman has user settings on this machine; /usr/share/containers is the distribution's."""
    if environment.get("CONTAINERS_CONF") or environment.get("CONTAINERS_CONF_OVERRIDE"):
        return True
    home = environment.get("XDG_CONFIG_HOME") or os.path.join(environment.get("HOME") or "/", ".config")
    places = [root / "etc/containers", root / home.lstrip("/") / "containers"]
    return any((place / "containers.conf").is_file() or any(place.glob("containers.conf.d/*.conf")) for place in places)


def _hybrid(root: Path) -> bool:
    try:
        return bool((root / "sys/fs/cgroup/unified/cgroup.controllers").read_text().strip())
    except OSError:
        return False


def _number(path: Path) -> int:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return 0


def _may_raise_limits(root: Path) -> bool:
    try:
        lines = (root / "proc/self/status").read_text().splitlines()
    except OSError:
        return True
    effective = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
    return bool(effective >> _CAP_SYS_RESOURCE & 1)
