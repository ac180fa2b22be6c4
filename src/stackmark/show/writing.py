"""Files that a command makes: whole or not at all, and a sentence where they cannot be written.

A wrong path is wrong use, as for `stackmark export`; what the disk refuses is the system's failure.
"""

import os
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from stackmark.errors import PlaceError, SpecError

STANDARD_OUTPUT = Path("-")
PICTURES = (".svg", ".png")
ANOTHER = "give another file, in a folder that may be written"


def write_whole(path: Path, data: bytes) -> None:
    """Write a file next to it first, then rename that: half a file never has its name. `-` is standard output."""
    if path == STANDARD_OUTPUT:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    # A link stays a link, to the new file; a device is written, not replaced.
    target = Path(os.path.realpath(path))
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise SpecError(f"cannot write {path}: {error.strerror}", hint=ANOTHER) from error
    except OSError as error:
        raise PlaceError(f"cannot write {path}: {error.strerror}; no file was left", hint=ANOTHER) from error
    except ValueError as error:
        raise SpecError(f"cannot write {path}: that is no file name", hint=ANOTHER) from error


def check_writable(path: Path) -> None:
    """Before the minutes of a measurement, not after them."""
    folder = Path(os.path.realpath(path)).parent
    if path == STANDARD_OUTPUT:
        return
    if not folder.is_dir():
        raise SpecError(f"cannot write {path}: there is no folder {folder}", hint=ANOTHER)
    if path.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why = "it is a folder" if path.is_dir() else "the folder may not be written"
        raise SpecError(f"cannot write {path}: {why}", hint=ANOTHER)


def check_picture(path: Path, example: str) -> None:
    """Refuse a name that says neither SVG nor PNG, and PNG where the package that draws it is missing."""
    suffix = path.suffix.lower()
    if suffix not in PICTURES:
        raise SpecError(f"a picture ends in .svg or .png, not {path.name!r}", hint=f"give a file like {example}")
    if suffix == ".png" and find_spec("resvg_py") is None:
        raise SpecError(
            "drawing PNG needs the package resvg-py, which is not installed",
            hint="pip install 'stackmark[plot]', or give a file that ends in .svg",
        )


def write_picture(path: Path, svg: Callable[[], str], png: Callable[[], bytes]) -> Path:
    """Write a picture as SVG or PNG, by the name of the file."""
    write_whole(path, png() if path.suffix.lower() == ".png" else svg().encode())
    return path


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=".stackmark-", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise


def _mode(target: Path) -> int:
    """As it was, or as a new file would be. Python can read the umask only by setting it."""
    if target.exists():
        return target.stat().st_mode & 0o777
    current = os.umask(0)
    os.umask(current)
    return 0o666 & ~current
