"""Our version: from git's tags in a checkout, from the file VERSION in a wheel or an sdist.

The tag v0.2.0 is the version 0.2.0; five commits after it, the version is 0.2.1.dev5+gHASH; without a tag, RELEASE.dev0+gHASH.
In a checkout with changes that are not committed it ends in `.dirty`. Metadata of an editable installation, which is as old as
that installation, is not read.

hatchling loads this file alone when it builds (pyproject.toml), so it imports the standard library only. hatch-vcs was looked
at: it brings setuptools-scm, and answers when the package is built or installed, not when it runs.

A worker says RELEASE and not the version: the zip file that it travels in has the same bytes from a checkout and from a wheel,
and its hash says exactly which worker it is.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path

# The release that this source leads to. Raise it in the commit that is tagged.
RELEASE = "0.1.0"
FILE = "VERSION"
# `git describe --long`: the nearest tag, commits since, the commit; without a tag the commit alone.
_DESCRIBED = re.compile(r"(?:v(?P<tag>\S+)-(?P<count>\d+)-g)?(?P<commit>[0-9a-f]{7,40})(?P<dirty>-dirty)?")
_TAG = re.compile(r"(?P<upper>\d+\.\d+\.)(?P<patch>\d+)(?:(?P<kind>a|b|rc)(?P<number>\d+))?")
# git answers in milliseconds; on a busy disk it may take a moment.
_PATIENCE_S = 10.0


def version() -> str:
    """Return the version of what runs here."""
    return _find(Path(__file__).resolve().parent)


@cache
def _find(package: Path) -> str:
    # Only in `<checkout>/src/stackmark`: a folder above site-packages may be a checkout too, but of something else.
    root = package.parent.parent
    if package.parent.name == "src" and (root / ".git").exists():
        return from_git(root) or f"{RELEASE}.dev0"
    try:
        return (package / FILE).read_text(encoding="ascii").strip() or RELEASE
    except (OSError, UnicodeDecodeError):  # a copy of the sources, or the worker's zip file
        return f"{RELEASE}.dev0"


def from_git(root: Path) -> str | None:
    """Ask git what the checkout is; None where there is no git, or no commit."""
    # Without the variables of a git hook that we may run in, and without writing to the index.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    asked = ["describe", "--tags", "--long", "--always", "--dirty", "--abbrev=10", "--match", "v[0-9]*"]
    try:
        answer = subprocess.run(
            ["git", "-c", f"safe.directory={root}", "-C", str(root), *asked], capture_output=True, text=True,
            timeout=_PATIENCE_S, env={**environment, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return from_description(answer.stdout.strip())


def from_description(text: str) -> str | None:
    """Turn what `git describe --long --always --dirty` says into a version by PEP 440."""
    found = _DESCRIBED.fullmatch(text)
    if found is None:
        return None
    tag = _TAG.fullmatch(found["tag"]) if found["tag"] else None
    if tag and found["count"] == "0" and not found["dirty"]:
        return tag[0]
    local = f"+g{found['commit']}{'.dirty' if found['dirty'] else ''}"
    if tag is None:
        return f"{RELEASE}.dev0{local}"
    following = f"{tag['upper']}{tag['patch']}{tag['kind']}{int(tag['number']) + 1}" if tag["kind"] else None
    return f"{following or tag['upper'] + str(int(tag['patch']) + 1)}.dev{found['count']}{local}"
