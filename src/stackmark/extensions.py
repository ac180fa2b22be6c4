"""Find extensions of other packages: workloads, places, importers, commands, formats of lists, means of faults.

Other packages announce theirs by entry points, one group for each kind of thing. `BUILT_IN` names those of ours that nothing
else in the program knows of, in the same form: both are found by `announced` and loaded by `load`. They are not entry points
in our own pyproject.toml, for three reasons:

- Entry points are written at installation. A source tree on PYTHONPATH has none, and an editable install that is older than
  the tree has old ones: `stackmark tf-cnn` would be gone until the next `pip install`.
- Reading them takes 35 to 40 ms (the import of importlib.metadata), and `stackmark --help` takes 60 ms.
- They have no line of help, which `stackmark --help` prints without importing the command.

Where a package takes a name of ours, ours stays. A package that cannot be loaded, or that announces something else, must not
disturb the rest. It is left out, and whoever asks for its name is told why.
"""

import os
import sys
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Generic, TypeVar

from stackmark.errors import SpecError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

T = TypeVar("T")
OURS = "stackmark"


@dataclass(frozen=True)
class Announcement:
    """An object that a package adds: where it is (`module:object`, as in an entry point), and a line of help if it is ours."""

    group: str
    name: str
    value: str
    package: str = OURS
    summary: str = ""
    # Under which heading our own stands in the help; empty: the last.
    section: str = ""


BUILT_IN = (
    Announcement(
        "stackmark.commands",
        "tf-cnn",
        "stackmark.cli.tf_cnn:command",
        summary="The classic tf_cnn_benchmarks command line, drop-in.",
    ),
    Announcement(
        "stackmark.commands",
        "mlperf",
        "stackmark.cli.mlperf:command",
        summary="Score, write and verify logs of MLPerf training.",
    ),
    Announcement(
        "stackmark.commands",
        "web",
        "stackmark.cli.web:command",
        summary="Show the ledger as web pages, live while something runs.",
        section="Watch",
    ),
    Announcement("stackmark.list_formats", "deepbench", "stackmark.show.deepbench_table:DEEPBENCH"),
    Announcement("stackmark.cluster_means", "plugin-pod", "stackmark.cluster.faults.plugin_pod:PluginPod"),
    Announcement("stackmark.cluster_means", "helper", "stackmark.cluster.faults.helper:Helper"),
    Announcement("stackmark.cluster_means", "script", "stackmark.cluster.faults.script:Script"),
)


@dataclass(frozen=True)
class Extensions(Generic[T]):
    """Loaded objects by the names of their entry points, and why the others failed."""

    found: dict[str, T]
    broken: dict[str, SpecError]

    def require(self, name: str) -> None:
        """Raise the reason where a package announces this name and could not be loaded."""
        if name in self.broken:
            raise self.broken[name]


def extensions(group: str, *kinds: type[T]) -> Extensions[T]:
    """Load all that is announced in a group; each announcement gives an object of one of these kinds."""
    return _extensions(group, kinds, tuple(sys.path))


@cache  # a command asks several times, and an import that failed would be tried again each time
def _extensions(group: str, kinds: tuple[type[T], ...], _path: tuple[str, ...]) -> Extensions[T]:
    loaded: Extensions[T] = Extensions({}, {})
    for name, announcement in announced(group).items():
        try:
            loaded.found[name] = load(announcement, *kinds)
        except SpecError as error:
            loaded.broken[name] = error
    return loaded


def announced(group: str) -> dict[str, Announcement]:
    """Return what is announced in a group by its names, without loading it. Of two with one name the first is taken."""
    found = built_in(group)
    for point in _entry_points(group, tuple(sys.path)):
        package = point.dist.name if point.dist else point.value
        found.setdefault(point.name, Announcement(group, point.name, point.value, package))
    return found


def built_in(group: str) -> dict[str, Announcement]:
    """Return our own announcements in a group by their names."""
    return {one.name: one for one in BUILT_IN if one.group == group}


@cache  # it reads the files of all packages, in 4 ms
def _entry_points(group: str, _path: tuple[str, ...]) -> "EntryPoints":
    from importlib.metadata import entry_points  # 35 ms, as much as the rest of `stackmark --help`

    return entry_points(group=group)


def is_announced(group: str) -> bool:
    """Tell whether another package uses a group. It only reads files in the folders of sys.path, in about 2 ms."""
    return any(f"[{group}]" in text for folder in sys.path for text in _entry_point_files(folder or os.curdir))


def announcing_text() -> str:
    """Return what other packages announce to us, in short: it changes when one of them is installed, removed or changed."""
    import hashlib

    texts = (text for folder in sys.path for text in _entry_point_files(folder or os.curdir) if "[stackmark." in text)
    return hashlib.sha256("\0".join(sorted(texts)).encode()).hexdigest()[:16]


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


def load(announcement: Announcement, *kinds: type[T]) -> T:
    """Import an announced object, or raise a SpecError that names its package. What ours raise is a defect and passes."""
    from importlib.metadata import EntryPoint

    wanted = " or ".join(kind.__name__ for kind in kinds)
    try:
        found: object = EntryPoint(announcement.name, announcement.value, announcement.group).load()
    # The import runs the module of another package, and a module may raise anything, also SystemExit. A list of types would
    # let the first unforeseen one end every command, those too that do not use the package. This is a border like the two
    # in which a main catches everything; nothing of ours is inside of it.
    except (Exception, SystemExit) as error:
        if announcement.package == OURS:
            raise
        raise _error(announcement, f"cannot be loaded: {type(error).__name__}: {error}") from error
    if not isinstance(found, kinds):
        raise _error(announcement, f"must be of type {wanted}, got {type(found).__name__}")
    return found


def _error(announcement: Announcement, why: str) -> SpecError:
    package, name = announcement.package, announcement.name
    return SpecError(
        f"the package {package} announces {name!r} in {announcement.group}, but {announcement.value} {why}",
        hint=f"repair it or remove it: pip uninstall {package}",
    )
