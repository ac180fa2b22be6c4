"""A temporary folder for one worker: its engine's files, and the scratch folder of a user's own program.

Its name says which run it belongs to and which driver made it, so that the next command can remove what a killed driver left.
A probe has no row in the ledger, so the name is all there is to find it by. Nothing is removed that is not a folder of this
user with such a name, and nothing whose driver lives or cannot be seen from here.
"""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stackmark.machine.orphans import start_ticks
from stackmark.spec import Task
from stackmark.workloads.registry import is_own_program

SCRATCH = "scratch"
_NAME = re.compile(r"stackmark-r-[0-9a-z-]+-(?P<namespace>\d+)\.(?P<pid>\d+)\.(?P<ticks>\d+)-[A-Za-z0-9_]+")


@contextmanager
def private_folder(mark: str) -> Iterator[Path]:
    """Make a folder for one worker, readable by this user alone, and remove it afterwards."""
    owner = f"{_namespace()}.{os.getpid()}.{start_ticks(os.getpid()) or 0}"
    folder = Path(tempfile.mkdtemp(prefix=f"stackmark-{mark}-{owner}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def runs_own_program(task: Task) -> bool:
    """Tell whether a task runs a user's own program, which may need a folder to write to."""
    asked = task.spec or task.request
    return task.do == "run" and asked is not None and is_own_program(asked.workload)


def scratch_folder(folder: Path, task: Task) -> Path | None:
    """Make the folder that a user's own program may write to; None for every other task."""
    if not runs_own_program(task):
        return None
    scratch = folder / SCRATCH
    scratch.mkdir()
    # A container may run as another user. Nobody else gets here: the folder above is closed.
    scratch.chmod(0o777)
    return scratch


def remove_forgotten() -> int:
    """Remove the folders of drivers that were killed, and return how many there were."""
    removed = 0
    for folder in Path(tempfile.gettempdir()).glob("stackmark-r-*"):
        found = _NAME.fullmatch(folder.name)
        if found and _is_ours(folder) and not _may_live(found):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def _is_ours(folder: Path) -> bool:
    return folder.is_dir() and not folder.is_symlink() and folder.lstat().st_uid == os.getuid()


def _may_live(name: re.Match[str]) -> bool:
    if name["namespace"] != str(_namespace()):
        return True  # it may be alive in another container
    return start_ticks(int(name["pid"])) == int(name["ticks"])


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0
