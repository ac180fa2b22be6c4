"""Provide a working home: for a UID without a name, and where the home folder is not writable.

OpenShift gives a pod an arbitrary UID that stands in no passwd file, and `getpass.getuser()`, which torch's compiler calls
for the name of its cache, then dies with a KeyError unless USER is set. A read-only home loses the caches of CUDA, Triton
and the compiler: ten seconds and more at each first step. Both are settled here, before any framework is imported.
"""

import os
import pwd
import tempfile
from pathlib import Path

_CACHES = {"CUDA_CACHE_PATH": "cuda", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}


def settle(environ: dict[str, str] | os._Environ[str] = os.environ) -> list[str]:
    """Set what is missing in the environment, and say what was set and why."""
    said = []
    uid = os.getuid()
    if not any(environ.get(name) for name in ("LOGNAME", "USER", "LNAME", "USERNAME")):
        try:
            environ["USER"] = pwd.getpwuid(uid).pw_name
        except KeyError:
            environ["USER"] = f"uid-{uid}"
            said.append(f"the user {uid} has no name here: USER is set to uid-{uid}")
    home = environ.get("HOME") or "/"
    home_works = _writable(Path(home))
    lost = {}
    for name in _CACHES:
        named = environ.get(name)
        if named and not _writable(_nearest_folder(Path(named))):
            lost[name] = named
        elif not named and not home_works:
            lost[name] = f"the home folder {home}"
    if not lost:
        return said
    where = ", ".join(dict.fromkeys(lost.values()))
    try:
        folder = _private_folder(uid)
    except OSError as error:
        # A read-only root file system without a temporary folder: compilers have no cache, and the rest works.
        said.append(f"neither {where} nor a temporary folder is writable: {error}")
        return said
    for name in lost:
        environ[name] = str(folder / _CACHES[name])
    said.append(f"{where} is not writable: compiler caches go to {folder}")
    return said


def _nearest_folder(path: Path) -> Path:
    """Return the folder itself, or the one in which it would be made; one that may not be looked at stands for itself."""
    for folder in (path, *path.parents):
        try:
            if folder.is_dir():
                return folder
        except PermissionError:  # another user's home lies above it
            return folder
    return Path("/")


def _writable(folder: Path) -> bool:
    """Asks the file system and not the permission bits: a read-only mount has bits that say yes."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _private_folder(uid: int) -> Path:
    """A cache folder of our own below the temporary folder, which nobody else may have prepared for us."""
    folder = Path(tempfile.gettempdir()) / f"stackmark-{uid}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except FileExistsError:
        return Path(tempfile.mkdtemp(prefix="stackmark-"))  # somebody's file
    status = folder.stat(follow_symlinks=False)
    if status.st_uid != uid or folder.is_symlink():
        return Path(tempfile.mkdtemp(prefix="stackmark-"))
    return folder
