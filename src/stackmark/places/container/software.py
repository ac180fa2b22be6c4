"""The host's own software in a container: which folders a worker needs, each mounted read-only at its own path.

So that only the container differs between two arms, the container sees the very files that the host's worker runs: /usr, the
Python it runs on (pyenv's, a distribution's, conda's), its environment, what PYTHONPATH names, our own code, and the folders
of the driver's libraries. Python itself is asked: a path that it would import from is a path that it needs.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stackmark.errors import PlaceError
from stackmark.places.container.trouble import shell
from stackmark.places.process import PACKAGE_ROOT

ASK_LIMIT_S = 60.0
# Folders of the root that hold programs. On a host with a merged /usr they are links into it, and else mounted too.
PROGRAM_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Each engine makes these itself, or they must stay the container's own: never hidden under the host's.
NEVER = frozenset({"/", "/dev", "/etc", "/proc", "/run", "/sys", "/tmp", "/var", "/var/run", "/var/tmp"})  # noqa: S108
_QUESTION = """
import json, sys
print(json.dumps({"path": sys.path, "prefixes": [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]}))
"""


@dataclass(frozen=True)
class HostSoftware:
    """What the worker's Python is, and the folders (or files) it needs."""

    python: str
    folders: tuple[str, ...]

    def off_the_root(self) -> tuple[str, ...]:
        """Those on file systems of their own, which an overlay of / does not show."""
        root = os.stat("/").st_dev
        return tuple(folder for folder in self.folders if os.stat(folder).st_dev != root)


def host_software(python: str, environment: Mapping[str, str]) -> HostSoftware:
    argv = [python, "-P", "-c", _QUESTION]
    try:
        done = subprocess.run(
            argv, env=dict(environment), capture_output=True, timeout=ASK_LIMIT_S, check=True, text=True
        )
        told = json.loads(done.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError) as error:
        raise PlaceError(
            f"{python} does not say what it needs in a container: {error}", command=shell([*argv[:-1], "…"])
        ) from error
    system = ["/usr", "/etc/alternatives", *(f"/{name}" for name in PROGRAM_FOLDERS if not os.path.islink(f"/{name}"))]
    libraries = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    # A checkout of ours as a whole: its facts (commit, changes) lie beside the code.
    checkout = [str(PACKAGE_ROOT.parent)] if (PACKAGE_ROOT.parent / "pyproject.toml").is_file() else []
    needed = [*system, *told["prefixes"], *told["path"], *libraries, *checkout]
    folders = outermost(both_names(needed))
    links = [os.path.dirname(link) for link in link_chain(python) if not within(link, folders)]
    return HostSoftware(python, outermost([*folders, *both_names(links)]))


def both_names(paths: Iterable[str]) -> list[str]:
    """Each path that is there, as it is written and as it is without links: files in it may point to either."""
    found: dict[str, None] = {}
    for path in paths:
        # A relative entry of PYTHONPATH or LD_LIBRARY_PATH means the working folder, which the worker does not have.
        if not path.startswith("/") or not os.path.exists(path):
            continue
        for name in (os.path.normpath(path), os.path.realpath(path)):
            found[name] = None
    return list(found)


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Without those that lie in another, and without those that a container keeps for itself."""
    kept: list[str] = []
    for path in sorted(set(paths) - NEVER):
        if not within(path, kept):
            kept.append(path)
    return tuple(kept)


def within(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def link_chain(path: str) -> list[str]:
    """The path, and every link on the way to the file it means: `.venv/bin/python`, `python3`, pyenv's …"""
    chain = [os.path.abspath(path)]
    while os.path.islink(chain[-1]) and len(chain) < 40:  # the kernel's own limit
        target = os.path.join(os.path.dirname(chain[-1]), os.readlink(chain[-1]))
        chain.append(os.path.normpath(target))
    return chain
