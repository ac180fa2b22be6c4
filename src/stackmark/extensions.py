"""Find what other packages add: workloads, places, importers, commands, each by an entry point of its own group.

Ours stand in static tables next to the code that reads them, and not in our own entry points: those are written when the
package is installed, so a source tree on PYTHONPATH would have none, and an editable install that was made before the last
`git pull` would have old ones. Where a package takes a name of ours, ours stays.

A package that cannot be loaded, or that announces something else, must not disturb the rest. It is left out, and whoever asks
for its name is told why.
"""

import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from stackmark.errors import SpecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


@dataclass(frozen=True)
class Extensions(Generic[T]):
    """What was loaded, by the names of the entry points, and why the others were not."""

    found: dict[str, T]
    broken: dict[str, SpecError]

    def require(self, name: str) -> None:
        """Raise the reason where a package announces this name and could not be loaded."""
        if name in self.broken:
            raise self.broken[name]


def extensions(group: str, *kinds: type[T]) -> Extensions[T]:
    """Load what other packages announce in a group; each entry point gives an object of one of these kinds."""
    return _extensions(group, kinds, tuple(sys.path))


@cache  # a command asks several times, and an import that failed would be tried again each time
def _extensions(group: str, kinds: tuple[type[T], ...], _path: tuple[str, ...]) -> Extensions[T]:
    loaded: Extensions[T] = Extensions({}, {})
    for name, point in announced(group).items():
        try:
            loaded.found[name] = load(point, *kinds)
        except SpecError as error:
            loaded.broken[name] = error
    return loaded


def announced(group: str) -> "dict[str, EntryPoint]":
    """Return the entry points of a group by their names, without loading them. Of two with one name the first is taken."""
    from importlib.metadata import entry_points  # 30 ms, as much as the rest of `stackmark --help`

    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        found.setdefault(point.name, point)
    return found


def is_announced(group: str) -> bool:
    """Tell whether a folder of sys.path has a package that uses a group. It only reads files, in about 3 ms."""
    return any(f"[{group}]" in text for folder in sys.path for text in _entry_point_files(folder or os.curdir))


def _entry_point_files(folder: str) -> list[str]:
    found = []
    try:
        infos = [entry.path for entry in os.scandir(folder) if entry.name.endswith((".dist-info", ".egg-info"))]
    except OSError:  # a zip file, or nothing
        return []
    for info in infos:
        try:
            with open(os.path.join(info, "entry_points.txt"), encoding="utf-8", errors="replace") as file:
                found.append(file.read())
        except OSError:
            continue  # most packages have none
    return found


def load(point: "EntryPoint", *kinds: type[T]) -> T:
    """Import the object of an entry point, or raise a SpecError that names the package."""
    wanted = " or ".join(kind.__name__ for kind in kinds)
    try:
        found: object = point.load()
    except (Exception, SystemExit) as error:  # other people's modules may raise anything when they are imported
        raise _error(point, f"cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, kinds):
        raise _error(point, f"must be of type {wanted}, got {type(found).__name__}")
    return found


def _error(point: "EntryPoint", why: str) -> SpecError:
    package = package_of(point)
    return SpecError(
        f"the package {package} announces {point.name!r} in {point.group}, but {point.value} {why}",
        hint=f"repair it or remove it: pip uninstall {package}",
    )


def package_of(point: "EntryPoint") -> str:
    """Return the name of the package that announces an entry point."""
    return point.dist.name if point.dist else point.value
