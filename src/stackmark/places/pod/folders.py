"""The host's own software in a pod: its folders, read-only, each at its own path, as in a container.

Only where the driver stands on the pod's node, which the place sees to. The image under them may be any that the node has, also
one without a file in it, so the root's links (/bin, /lib64) are mounted as well, and the loader's cache where no GPU is asked
for: with one, NVIDIA's hooks write a cache of their own, and a mount there would end the pod before it begins.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from stackmark.kubernetes.client import Json
from stackmark.kubernetes.manifest.request import WORK_FOLDER, VolumeMount
from stackmark.places.container.launch import paths_of, program_of
from stackmark.places.container.software import PROGRAM_FOLDERS, HostSoftware, outermost, within, without_home
from stackmark.spec import Task

LOADER_CACHE = "/etc/ld.so.cache"
SELINUX = Path("/sys/fs/selinux/enforce")


def host_folders(
    software: HostSoftware, task: Task | None, cache: str | None, gpus: int, environment: Mapping[str, str]
) -> tuple[tuple[VolumeMount, ...], str]:
    """Return the volumes with their mounts, and the folder to work in."""
    read: list[str] = []
    written: list[str] = []
    folder = WORK_FOLDER
    if task is not None:
        read, written, folder = paths_of(task)
        read += without_home(program_of(task, folder, environment))
    if cache:
        written.append(cache)
    written_all = outermost(written)
    targets = {path: True for path in outermost([*software.folders, *read]) if not within(path, written_all)}
    made = [_mounted(number, path, path, read_only) for number, (path, read_only) in enumerate(targets.items())]
    made += [_mounted(len(made) + number, path, path, False) for number, path in enumerate(written_all)]
    for link, target in root_links().items():
        made.append(_mounted(len(made), target, link, True))
    if not gpus and os.path.isfile(LOADER_CACHE):
        made.append(_mounted(len(made), LOADER_CACHE, LOADER_CACHE, True))
    return tuple(made), folder


def root_links(root: Path = Path("/")) -> dict[str, str]:
    """`/bin` and its like where they are links, each with the folder that it means."""
    return {
        f"/{name}": os.path.realpath(root / name)
        for name in PROGRAM_FOLDERS
        if (root / name).is_symlink() and (root / name).is_dir()
    }


def selinux_type() -> str | None:
    """The host's folders carry the host's labels, which a container may not read, and must not be relabelled."""
    return "spc_t" if SELINUX.exists() else None


def _mounted(number: int, source: str, target: str, read_only: bool) -> VolumeMount:
    # With its kind, so that a folder that is not there is an error: without, some runtimes make an empty one.
    kind = "File" if os.path.isfile(source) else "Directory"
    name = f"host-{number}"
    mount: Json = {"name": name, "mountPath": target}
    if read_only:
        mount["readOnly"] = True
    return {"name": name, "hostPath": {"path": source, "type": kind}}, mount
