"""The folder in which all arms of an experiment keep their compilers' caches.

cuDNN's autotuning and compilers choose kernels by timing. If each arm kept its own cache, one draw would colour all its runs,
and no number of blocks would show it; and an empty home in a container costs ten seconds at the first step. The folder
lives as long as the experiment is open, so that `resume` finds it.
"""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

from stackmark.errors import PlaceError
from stackmark.places.place import CACHE_VARIABLES

# An experiment that nobody resumed for this long is not missed; its kernels are compiled again if it is.
FORGOTTEN_S = 14 * 86_400.0


def root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stackmark" / "experiments"


def cache_folder(experiment_id: str) -> Path:
    """Make the folder, for its owner and whatever user a container runs as.

    It is open to all and lies in a folder that is not: a container has it mounted, and a stranger on this machine, who
    might put kernels of his own there, does not reach it.
    """
    folder = root() / experiment_id
    try:
        root().mkdir(parents=True, exist_ok=True)
        root().chmod(0o700)
        for name in CACHE_VARIABLES.values():
            (folder / name).mkdir(parents=True, exist_ok=True)
        for path in (folder, *(folder / name for name in CACHE_VARIABLES.values())):
            path.chmod(0o777)
        os.utime(folder)  # it is not forgotten
    except OSError as error:
        raise PlaceError(
            f"cannot create the cache folder that the arms share: {folder}: {error.strerror}",
            hint="set XDG_CACHE_HOME to a writable folder",
        ) from error
    return folder


def remove_cache(experiment_id: str) -> None:
    shutil.rmtree(root() / experiment_id, ignore_errors=True)


def remove_forgotten(now_unix_s: float | None = None) -> None:
    """Remove caches of experiments that were never finished."""
    limit = (time.time() if now_unix_s is None else now_unix_s) - FORGOTTEN_S
    with suppress(OSError):
        for folder in root().iterdir():
            if folder.name.startswith("x-") and folder.stat().st_mtime < limit:
                shutil.rmtree(folder, ignore_errors=True)
