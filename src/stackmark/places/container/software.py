"""Mount the host's own software in a container: find the folders a worker needs, each read-only at its own path.

So that only the container differs between two arms, the container sees the very files that the host's worker runs: /usr, the
Python it runs on (pyenv's, a distribution's, conda's), its environment, what PYTHONPATH names, our own code, and the folders
of the driver's libraries. Python itself is asked: a path that it would import from is a path that it needs. A user's own
program may be of another Python (a virtual environment, conda, pyenv's shims), and what it is found by is mounted too: else
the container would have another program by that name, or none.
"""

import json
import os
import pwd
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
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
    """The worker's Python, and the folders (or files) it needs."""

    python: str
    folders: tuple[str, ...]


def off_the_root(folders: Iterable[str]) -> list[str]:
    """Return the folders on their own file systems, which an overlay of / does not show."""
    root = os.stat("/").st_dev
    return [folder for folder in folders if os.stat(folder).st_dev != root]


def host_software(python: str, environment: Mapping[str, str]) -> HostSoftware:
    asked = _needs_of(python, environment)
    system = ["/usr", "/etc/alternatives", *(f"/{name}" for name in PROGRAM_FOLDERS if not os.path.islink(f"/{name}"))]
    libraries = environment.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    # A checkout of ours as a whole: its facts (commit, changes) lie next to the code.
    checkout = [str(PACKAGE_ROOT.parent)] if (PACKAGE_ROOT.parent / "pyproject.toml").is_file() else []
    needed = [*system, *asked, *libraries, *checkout]
    folders = outermost(both_names(needed))
    links = [os.path.dirname(link) for link in link_chain(python) if not within(link, folders)]
    return HostSoftware(python, outermost([*folders, *both_names(links)]))


def program_folders(command: str, folder: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what a user's command needs besides its working folder: its program, that program's Python, the files it names."""
    try:
        words = shlex.split(command)
        program = shutil.which(
            os.path.join(folder, words[0]) if "/" in words[0] else words[0], path=environment.get("PATH")
        )
    except (ValueError, IndexError):
        return ()  # refused elsewhere, with a better sentence
    if program is None:
        return ()  # the worker says so
    needed = [_home_of(link) for link in link_chain(program)]
    python = program if os.path.basename(program).startswith("python") else _interpreter(program)
    if python:
        needed += [_home_of(link) for link in link_chain(python)]
        with suppress(PlaceError):  # it is no Python, or a broken one: the run will tell
            # As the program itself will run: without the path by which a checkout of ours is found.
            needed += _needs_of(python, {key: value for key, value in environment.items() if key != "PYTHONPATH"})
    for word in words[1:]:
        path = os.path.join(folder, word)
        if os.path.isfile(path):
            # What lies next to a script is imported by it; a file in /tmp comes alone.
            above = os.path.dirname(os.path.abspath(path))
            needed.append(path if above in NEVER or holds_home(above) else above)
    return outermost(both_names(needed))


def _needs_of(python: str, environment: Mapping[str, str]) -> list[str]:
    argv = [python, "-P", "-c", _QUESTION]
    try:
        done = subprocess.run(
            argv, env=dict(environment), capture_output=True, timeout=ASK_LIMIT_S, check=True, text=True
        )
        told = json.loads(done.stdout.splitlines()[-1])
        return [*told["prefixes"], *told["path"]]
    except (OSError, ValueError, LookupError, TypeError, subprocess.SubprocessError) as error:
        raise PlaceError(
            f"{python} did not report what it needs in a container: {error}", command=shell([*argv[:-1], "…"])
        ) from error


def _home_of(program: str) -> str:
    """The folder in which a program lies; of a shim (pyenv's, asdf's), the folder of what it calls."""
    folder = os.path.dirname(program)
    if holds_home(folder):
        return program
    return os.path.dirname(folder) if os.path.basename(folder) == "shims" else folder


def _interpreter(script: str) -> str | None:
    """The Python in a script's first line: that of torchrun, and of whatever else pip has installed."""
    try:
        with open(script, "rb") as file:
            first = file.readline(1024).decode(errors="replace")
    except OSError:
        return None
    name = first[2:].split()[0] if first.startswith("#!/") else ""
    return name if os.path.basename(name).startswith("python") else None


def both_names(paths: Iterable[str]) -> list[str]:
    """Return each existing path, as written and without links: files in it may point to either."""
    found: dict[str, None] = {}
    for path in paths:
        # A relative entry of PYTHONPATH or LD_LIBRARY_PATH means the working folder, which the worker does not have.
        if not path.startswith("/") or not os.path.exists(path):
            continue
        for name in (os.path.normpath(path), os.path.realpath(path)):
            found[name] = None
    return list(found)


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the folders without those inside another, and without those that a container has of its own."""
    kept: list[str] = []
    for path in sorted(set(paths) - NEVER):
        if not within(path, kept):
            kept.append(path)
    return tuple(kept)


def holds_home(folder: str) -> bool:
    """Tell whether a folder is this user's home folder, or one above it."""
    homes = {os.path.realpath(os.path.expanduser(name)) for name in ("~", f"~{user_name(os.environ)}")} - {"/"}
    return any(Path(home).is_relative_to(os.path.realpath(folder)) for home in homes)


def without_home(paths: Iterable[str]) -> list[str]:
    """Leave out a home folder that only a search path names: nobody asked for it to be seen in a container."""
    return [path for path in paths if not holds_home(path)]


def user_name(environment: Mapping[str, str]) -> str:
    """Return a user name: a container has none for the UID, and libraries that need one fail unless USER is set."""
    try:
        return environment.get("USER") or environment.get("LOGNAME") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid-{os.getuid()}"


def within(path: str, folders: Iterable[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def link_chain(path: str) -> list[str]:
    """Return the path and every link on the way to its file: `.venv/bin/python`, `python3`, pyenv's …"""
    chain = [os.path.abspath(path)]
    while os.path.islink(chain[-1]) and len(chain) < 40:  # the kernel's own limit
        target = os.path.join(os.path.dirname(chain[-1]), os.readlink(chain[-1]))
        chain.append(os.path.normpath(target))
    return chain
