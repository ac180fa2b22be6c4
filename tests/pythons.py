"""Other versions of Python, as images have them: pyenv's, or those on the PATH."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

from leaving_out import leave_out

NEW = ("3.10", "3.11", "3.12", "3.13")
OLD = ("2.7", "3.6", "3.8", "3.9")


def _installed(version: str) -> list[Path]:
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return sorted(root.glob(f"versions/{version}.*/bin/python"))


@cache
def _find(version: str) -> str | None:
    candidates = [*map(str, _installed(version)), *filter(None, [shutil.which(f"python{version}")])]
    return next((path for path in candidates if _starts(path)), None)


def _starts(path: str) -> bool:
    # A shim of pyenv's is on the PATH for versions that it does not start.
    return subprocess.run([path, "-c", "pass"], capture_output=True, check=False).returncode == 0


def python(version: str) -> str:
    """Return its path, or leave the test out."""
    return _find(version) or leave_out(f"Python {version} is not installed: the worker's zip file is not tried with it")


def pyenv_python(version: str) -> Path:
    """Return the folder of a version that pyenv built, of which images are made: `bin/python3`, its library and all."""
    found = _installed(version)
    if not found:
        leave_out(f"pyenv has no Python {version} (pyenv install {version})")
    return found[-1].parents[1]
