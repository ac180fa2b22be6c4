"""The Pythons of this machine that pyenv built, of which images and folders of the tests are made."""

import os
from pathlib import Path

from leaving_out import leave_out


def pyenv_python(version: str) -> Path:
    """Return the folder of a version, e.g. 3.10: `bin/python3`, its library and all."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(root.glob(f"versions/{version}.*/bin/python3")) or sorted(
        root.glob(f"versions/{version}.*/bin/python")
    )
    if not found:
        leave_out(f"pyenv has no Python {version} (pyenv install {version})")
    return found[-1].parents[1]
