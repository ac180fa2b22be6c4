"""Writes src/stackmark/places/container/image/worker-pins.txt: what an image of the worker installs, to the version.

    python scripts/write_worker_pins.py > src/stackmark/places/container/image/worker-pins.txt

It is worker-requirements.txt with all that those packages need in their turn, at the versions of constraints.txt, so that an
image holds what the tests ran with. torch stands in it without its build (`+cpu`, `+cu130`), which a recipe chooses. A test
fails where the file is not current.
"""

import importlib.metadata
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
HEAD = """\
# What an image of the worker holds beside stackmark, to the version. Made from worker-requirements.txt and constraints.txt by:
# python scripts/write_worker_pins.py > src/stackmark/places/container/image/worker-pins.txt
"""
# torch needs it; a virtual environment of Python 3.11 brings one, which `pip list` does not show, and later ones bring none.
BROUGHT_ALONG = {"setuptools": "84.2.1"}


def pins() -> dict[str, str]:
    """Every version in constraints.txt, by its normalised name."""
    found = dict(BROUGHT_ALONG)
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, equals, version = line.partition("==")
        if equals and not line.startswith("#"):
            found[canonicalize_name(name)] = version.strip()
    return found


def needed() -> list[str]:
    """What worker-requirements.txt names, and what that needs on Linux without a GPU's packages, which torch pins itself."""
    found: set[str] = set()
    waiting = [line for line in (ROOT / "worker-requirements.txt").read_text().splitlines() if not line.startswith("#")]
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        if name not in BROUGHT_ALONG:
            waiting += importlib.metadata.requires(name) or []
    return sorted(found)


def page() -> str:
    known = pins()
    missing = [name for name in needed() if name not in known]
    if missing:
        sys.exit(f"constraints.txt has no version of {', '.join(missing)}")
    return HEAD + "".join(f"{name}=={known[name]}\n" for name in needed())


if __name__ == "__main__":
    sys.stdout.write(page())
